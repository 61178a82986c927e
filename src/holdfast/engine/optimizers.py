"""What a checkpoint has for a torch optimizer or scheduler, and the program's own one cannot take.

torch compares little of it: moments of a wrong shape are only noticed by the next step, or never.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from holdfast.engine.adapters import is_optimizer, is_unshaped
from holdfast.format.carriers import array_kind
from holdfast.format.frameworks import Frameworks, loaded
from holdfast.format.keys import mapping_entries
from holdfast.format.memory import ArraySpec
from holdfast.format.nodes import Node, optional_field
from holdfast.format.registry import type_name
from holdfast.format.select import MAPPING_KINDS

__all__ = ["Misfit", "load_groups", "load_slots", "misfit_slots", "needs_groups_only", "why_left_alone"]

# Keys of slots are numbers and text: neither torch nor JAX is needed to read them.
_SPELLING = Frameworks("numpy")
_ONE_PER_GROUP = ("base_lrs", "min_lrs")
# L-BFGS keeps vectors over all parameters in the slot of the first one.
_OVER_ALL = ("d", "prev_flat_grad")
# Of NAdam and ASGD: numbers in full precision, whatever the type of the parameter.
_NUMBERS = ("mu_product", "eta", "mu")
_HOOKS = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")


class Misfit(NamedTuple):
    """A tensor in an optimizer's slot that does not go with the parameter."""

    slot: object
    """The key of the slot in the checkpoint."""
    name: str
    problem: str


def why_left_alone(owner: Any, node: Node, current: object, *, saved_type: str) -> list[str]:
    """Why nothing of it can be loaded into the program's optimizer or scheduler; nothing, for any other object.

    `saved_type` is the name of the class that was saved, where it is known.
    """
    if not isinstance(current, Mapping):
        return []
    if is_optimizer(owner):
        return _other_class(owner, node, saved_type) or _other_groups(node, current)
    if _is_scheduler(owner):
        return _other_counts(node, current)
    return []


def misfit_slots(owner: Any, node: Node, spec_of: Callable[[Node], ArraySpec]) -> Iterator[Misfit]:
    """The tensors of wrong shape in the slots of an optimizer that is torch's own; of foreign ones nothing is known."""
    if not _is_stock(type_name(type(owner))):
        return
    parameters = list(chain.from_iterable(group["params"] for group in owner.param_groups))
    keys = chain.from_iterable(_saved_groups(node))
    by_key = dict(zip(keys, parameters, strict=False))
    for key, slot in _entries(_entry(node, "state")):
        parameter: Any = by_key.get(key)
        if parameter is None or is_unshaped(parameter):
            continue
        shape = tuple(parameter.shape)
        for name, item in _entries(slot):
            # Counters are scalars, whatever the parameter; older fused optimizers gave `step` a dimension.
            if name != "step" and isinstance(item, dict) and item.get("kind") in ("tensor", "array"):
                found, expected = spec_of(item).shape, _expected_shape(str(name), shape, parameters)
                if found not in ((), expected):
                    verb = "has" if expected == shape else "needs"
                    problem = f"wrong shape: its parameter {verb} {list(expected)}, the checkpoint {list(found)}"
                    yield Misfit(key, str(name), problem)


def needs_groups_only(owner: Any, value: object) -> bool:
    """Whether an optimizer of torch's own has what is in the slots already, and only its groups are left to load.

    `value` is what its load_state_dict would be handed. That would make the same slots of the same tensors again, and
    look for the parameter of each among all of them: a second for ten thousand parameters.
    """
    if not _is_stock(type_name(type(owner))) or _has_hooks(owner):
        return False
    if not isinstance(value, dict):  # or some of it can only be made when all is read
        return False
    groups, slots = value.get("param_groups"), value.get("state")
    if not isinstance(groups, list) or not isinstance(slots, dict) or len(slots) != len(owner.state):
        return False
    keys: list[Any] = []
    for group in groups:
        if not isinstance(group, dict) or not isinstance(group.get("params"), list):
            return False
        if group.get("fused") or group.get("capturable"):  # of which torch converts the counters, too
            return False
        keys.extend(group["params"])
    parameters = chain.from_iterable(group["params"] for group in owner.param_groups)
    by_key = dict(zip(keys, parameters, strict=False))
    return all(key in by_key and _is_in_place(slot, owner, by_key[key]) for key, slot in slots.items())


def load_groups(owner: Any, groups: list[Any]) -> None:
    """Load the hyperparameters of the groups; the slots stay as they are."""
    slots = owner.state
    owner.load_state_dict({"state": {}, "param_groups": groups})
    owner.state = slots


def load_slots(owner: Any, value: Any) -> None:
    """Load everything by torch's own load_state_dict, and have the slots in the types in which they were saved.

    torch converts them to the type of their parameter, also in lists and dictionaries in the slots. That stays so for
    moments of torch's own optimizers, which go with no other parameter, unless the program's optimizer has such moments
    already.
    """
    before = owner.state
    owner.load_state_dict(value)
    if _has_hooks(owner):
        return
    keys = chain.from_iterable(group["params"] for group in value["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in owner.param_groups)
    is_stock = _is_stock(type_name(type(owner)))
    for key, parameter in zip(keys, parameters, strict=True):
        saved, slot, own = value["state"].get(key), owner.state.get(parameter), before.get(parameter)
        if not isinstance(saved, dict) or not isinstance(slot, dict):
            continue
        for name, item in saved.items():
            if name == "step" or name not in slot:
                continue
            was = own.get(name) if isinstance(own, dict) else None
            had_such = array_kind(item) == "tensor" and getattr(was, "dtype", None) == item.dtype
            if not is_stock or name in _NUMBERS or had_such:
                slot[name] = _as_saved(item, slot[name], parameter)


def _as_saved(saved: Any, loaded: Any, parameter: Any) -> Any:
    """What was loaded, and of it in its own type what was converted."""
    if _is_converted(saved, loaded, parameter):
        return saved.to(loaded.device)
    if isinstance(saved, dict) and isinstance(loaded, dict):
        return {key: _as_saved(saved[key], item, parameter) if key in saved else item for key, item in loaded.items()}
    if type(saved) in (list, tuple) and type(loaded) is type(saved) and len(loaded) == len(saved):
        return type(saved)(_as_saved(one, other, parameter) for one, other in zip(saved, loaded, strict=True))
    return loaded


def _is_converted(saved: Any, loaded: Any, parameter: Any) -> bool:
    if array_kind(saved) != "tensor" or array_kind(loaded) != "tensor":
        return False
    return bool(saved.dtype != loaded.dtype == parameter.dtype)


def _has_hooks(owner: Any) -> bool:
    return any(getattr(owner, name, None) for name in _HOOKS)


def _is_in_place(slot: Any, owner: Any, parameter: Any) -> bool:
    """Whether the slot holds the optimizer's own tensors and nothing else, and torch would not convert any of them."""
    own = owner.state.get(parameter)
    if not isinstance(slot, dict) or not isinstance(own, dict) or slot.keys() != own.keys():
        return False
    dtype, device = parameter.dtype, parameter.device
    for name, item in slot.items():
        if item is not own[name] or array_kind(item) != "tensor":
            return False
        if name != "step" and (item.dtype is not dtype or item.device != device):
            return False
    return True


def _expected_shape(name: str, shape: tuple[int, ...], parameters: list[Any]) -> tuple[int, ...]:
    if name == "row_var":  # Adafactor keeps a row and a column instead of the matrix
        return (*shape[:-1], 1)
    if name == "col_var":
        return (*shape[:-2], 1, *shape[-1:])
    if name in _OVER_ALL:
        return (sum(each.numel() * (2 if each.is_complex() else 1) for each in parameters),)
    return shape


def _other_class(owner: Any, node: Node, saved_type: str) -> list[str]:
    own_type = type_name(type(owner))
    if _is_stock(own_type) and _is_stock(saved_type):
        # torch moves its modules around; a class can take what its base class saved.
        if saved_type.rpartition(".")[2] in (base.__name__ for base in type(owner).__mro__):
            return []
        return [f"class mismatch: the program has {own_type}, the checkpoint {saved_type}"]
    if own_type == saved_type:
        return []
    # The class is not known, or may have been renamed. Versions of one optimizer add hyperparameters or lose them;
    # where either has some that the other lacks, they are two.
    own = set(getattr(owner, "defaults", ()))
    # Schedulers and users put entries of their own into the groups.
    known = own | {"params", "param_names"} | {name for group in owner.param_groups for name in group}
    for group in _list_entry(node, "param_groups"):
        saved = {name for name, _ in _entries(group)}
        lacking, unknown = own - saved, saved - known
        if lacking and unknown:
            return [f"other hyperparameters: the program has {_listed(lacking)}, the checkpoint {_listed(unknown)}"]
    return []


def _other_groups(node: Node, current: Mapping[str, Any]) -> list[str]:
    """How the groups of parameters differ. Slots go by the number of the parameter: then none can be trusted."""
    theirs = [len(group) for group in _saved_groups(node)]
    try:
        own = [len(group["params"]) for group in current["param_groups"]]
    except (LookupError, TypeError):  # a foreign optimizer that writes its state in another way
        return []
    if len(theirs) != len(own):
        return [f"param_groups: the program has {len(own)} groups, the checkpoint {len(theirs)}"]
    return [
        f"param_groups[{index}]: the program has {mine} parameters, the checkpoint {saved}"
        for index, (mine, saved) in enumerate(zip(own, theirs, strict=True))
        if mine != saved
    ]


def _other_counts(node: Node, current: Mapping[str, Any]) -> list[str]:
    found = []
    for name in _ONE_PER_GROUP:
        saved, own = _entry(node, name), current.get(name)
        if isinstance(saved, list) and isinstance(own, list) and len(saved) != len(own):
            found.append(f"{name}: the program has {len(own)} groups of parameters, the checkpoint {len(saved)}")
    return found


def _is_scheduler(owner: object) -> bool:
    torch = loaded("torch")
    return torch is not None and isinstance(owner, torch.optim.lr_scheduler.LRScheduler)


def _is_stock(name: str) -> bool:
    return name.startswith("torch.optim.")


def _saved_groups(node: Node) -> list[list[Any]]:
    return [_list_entry(group, "params") for group in _list_entry(node, "param_groups")]


def _list_entry(node: Node, name: str) -> list[Any]:
    found = _entry(node, name)
    return found if isinstance(found, list) else []


def _entry(node: Node, name: str) -> Node:
    return optional_field(node, "items", dict, {}).get(name) if isinstance(node, dict) else None


def _entries(node: Node) -> Collection[tuple[Any, Node]]:
    is_mapping = isinstance(node, dict) and node.get("kind") in MAPPING_KINDS
    return mapping_entries(node, _SPELLING) if is_mapping else []


def _listed(names: set[Any]) -> str:
    return ", ".join(sorted(map(str, names)))
