"""What the state_dict of a torch module would hold, read from the module itself.

To call `state_dict` takes several times as long: it makes a tensor, a dictionary and a few calls for each part. But it
may also do anything else, by hooks, by methods of a class or of one object, by extra state. Where there may be such a
thing nothing is read.
"""

import collections
from typing import Any, NamedTuple

from holdfast.format.frameworks import loaded

__all__ = ["ModuleContent", "read_module"]

# What a module keeps in its own dictionary; a class that has such a name does something else with it.
_KEPT = (
    "_parameters",
    "_buffers",
    "_non_persistent_buffers_set",
    "_modules",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
)
_METHODS = ("state_dict", "_save_to_state_dict")


class ModuleContent(NamedTuple):
    """What was found in a module, in the order in which its state_dict has it."""

    keys: list[str]
    tensors: list[Any]
    """The program's own, of the parameters and buffers; state_dict gives detached ones."""
    names: list[str]
    """Of the module and all modules in it."""
    versions: list[int]
    """Of each of these."""

    def describes(self, state: object) -> bool:
        """Whether a state_dict has these keys and versions, and nothing besides but the tensors."""
        if type(state) is not collections.OrderedDict or list(vars(state)) != ["_metadata"]:
            return False
        metadata: Any = vars(state)["_metadata"]
        if type(metadata) is not collections.OrderedDict or vars(metadata):
            return False
        expected = [(name, int, version) for name, version in zip(self.names, self.versions, strict=True)]
        found = [(name, *_only_version(entry)) for name, entry in metadata.items()]
        return list(state) == self.keys and found == expected


def read_module(module: object) -> ModuleContent | None:
    """None where its state_dict may be more than that, or something else."""
    torch = loaded("torch")
    if torch is None or not _is_torchs_own(torch.nn.Module):
        return None
    content = ModuleContent([], [], [], [])
    try:
        _read(module, "", content, torch.nn.Module, set())
    except (_OwnWays, AttributeError, KeyError, TypeError, RecursionError):  # not as torch makes them: it may refuse
        return None
    return content


class _OwnWays(Exception):  # noqa: N818  not an error: its state_dict is called
    """A module whose state_dict may do something of its own."""


def _read(module: Any, prefix: str, content: ModuleContent, base: Any, plain: set[type]) -> None:
    """The same walk as that of torch's state_dict; `plain` has the classes that were looked at."""
    cls = type(module)
    if cls not in plain:
        if not _is_plain(cls, base):
            raise _OwnWays
        plain.add(cls)
    own, version = module.__dict__, module._version
    if "state_dict" in own or "_save_to_state_dict" in own or type(version) is not int:
        raise _OwnWays
    if own["_state_dict_pre_hooks"] or own["_state_dict_hooks"]:
        raise _OwnWays
    content.names.append(prefix[:-1])
    content.versions.append(version)
    for name, tensor in own["_parameters"].items():
        if tensor is not None:
            content.keys.append(prefix + name)
            content.tensors.append(tensor)
    if own["_buffers"]:
        passing = own["_non_persistent_buffers_set"]
        for name, tensor in own["_buffers"].items():
            if tensor is not None and name not in passing:
                content.keys.append(prefix + name)
                content.tensors.append(tensor)
    for name, part in own["_modules"].items():
        if part is not None:
            _read(part, prefix + name + ".", content, base, plain)


def _is_plain(cls: Any, base: Any) -> bool:
    """Whether objects of the class keep their parts where torch's modules do, and give their state as these do."""
    if not issubclass(cls, base) or cls.__getattribute__ is not object.__getattribute__:
        return False
    if any(getattr(cls, name) is not getattr(base, name) for name in (*_METHODS, "get_extra_state")):
        return False
    return not any(name in vars(each) for each in cls.__mro__ for name in _KEPT)


def _is_torchs_own(base: Any) -> bool:
    """Whether nobody has put another function in place of torch's: a profiler, a library that patches it."""
    return all(
        getattr(getattr(base, name), "__globals__", {}).get("__name__") == base.__module__
        and getattr(base, name).__name__ == name
        for name in _METHODS
    )


def _only_version(entry: Any) -> tuple[object, object]:
    """The type and the version of a module, where that is all that is said of it."""
    if type(entry) is not dict or list(entry) != ["version"]:
        return None, None
    return type(entry["version"]), entry["version"]
