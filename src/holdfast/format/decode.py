"""From nodes back to values: memory for the arrays first, the whole tree once it is filled.

Nodes come from files and are not trusted: every field is checked, unknown kinds are refused, and no name in them is
ever imported (I10).
"""

import collections
import math
import pickle
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.core.errors import FormatError, HoldfastError, StateMismatchError, UnsupportedError
from holdfast.core.limits import MAX_DEPTH, MAX_NDIM, MAX_TREE_NODES
from holdfast.format.arrays import Destination, LeafInfo
from holdfast.format.classes import find_class, make_object, misfit, named_fields, read_enum
from holdfast.format.dtypes import numpy_dtype
from holdfast.format.encoder import FACTORIES
from holdfast.format.foreign import FOREIGN_DECODERS
from holdfast.format.frameworks import Arrays, Frameworks
from holdfast.format.generators import GENERATOR_KINDS, fresh_generator, read_state
from holdfast.format.keys import decode_key, mapping_entries
from holdfast.format.memory import LeafMemory
from holdfast.format.nodes import Node, base64_field, field, int_list, malformed, optional_field
from holdfast.format.paths import join, join_index
from holdfast.format.plain import PLAIN_DECODERS
from holdfast.format.registry import Record
from holdfast.format.select import select

__all__ = ["MISSING", "PICKLE_HINT", "Builder", "Late", "Plan", "build", "settle"]

PICKLE_HINT = "pass pickle=True if you trust whoever wrote it: unpickling runs code from the checkpoint"
_PLAIN = frozenset((bool, int, float, str, type(None)))
_MAPPINGS: dict[str, Callable[[], Any]] = {
    "dict": dict,
    "ordered_dict": collections.OrderedDict,
    "counter": collections.Counter,
}
_FOREIGN_ERRORS = (ValueError, TypeError, OverflowError, LookupError, RuntimeError, ArithmeticError)


class _Missing:
    """The program has nothing at this place."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class Late:
    """A value that can only be made when the leaves are filled."""

    __slots__ = ("resolve",)

    def __init__(self, resolve: Callable[[], Any]) -> None:
        self.resolve = resolve


def settle(value: Any) -> Any:
    """The value itself, made now if it had to wait."""
    return value.resolve() if type(value) is Late else value


class Plan:
    """What to read, and the tree that comes out of it."""

    def __init__(self, destinations: list[Destination], root: object) -> None:
        self.destinations = destinations
        self._root = root

    def value(self) -> Any:
        """The tree. Call it once, when every destination is filled."""
        return settle(self._root)


def build(
    node: Node,
    leaves: Sequence[LeafInfo],
    *,
    like: object = None,
    arrays: Arrays = "native",
    allow_pickle: bool = False,
    only: str | None = None,
) -> Plan:
    """A plan for the tree of a stored state, without touching a program's.

    `like` is a similar tree whose classes are used for dataclasses, named tuples and enums. `only` is the path of the
    one part to build; NoCheckpointError where the state has no such part.
    """
    builder = Builder(leaves, arrays=arrays, allow_pickle=allow_pickle)
    path = ""
    if only is not None:
        node, path = select(node, only)
        like = None
    try:
        root = builder.build_root(node, path, MISSING if like is None else like)
    finally:
        builder.release()
    if builder.problems:
        raise StateMismatchError(
            "the checkpoint cannot be loaded as it is:", problems=builder.problems, hint=PICKLE_HINT
        )
    return Plan(builder.memory.destinations(), root)


class Builder:
    """Builds values from nodes. `like` is the program's value at the same place, or MISSING.

    The methods without an underscore are the seams where a program's own objects can take part.
    """

    def __init__(self, leaves: Sequence[LeafInfo], *, arrays: Arrays = "native", allow_pickle: bool = False) -> None:
        self.frameworks = Frameworks(arrays)
        self.memory = LeafMemory(leaves, self.frameworks)
        self.problems: list[str] = []
        self.unknown_classes: dict[str, str] = {}
        """Whose objects become Records where the program has nothing like them; with the first place of each."""
        self._allow_pickle = allow_pickle
        self._count = 0
        self._at = ""
        self._kinds: dict[str, Callable[[Node, str, Any, int], Any]] = {
            "array": self.array,
            "tensor": self.array,
            "jax": self.array,
            "dict": self.mapping,
            "ordered_dict": self.mapping,
            "default_dict": self.mapping,
            "counter": self.mapping,
            "tuple": self._tuple,
            "set": self._set,
            "frozenset": self._set,
            "deque": self._deque,
            "slice": self._slice,
            "namedtuple": self._object,
            "dataclass": self._object,
            "enum": self._enum,
            "object_array": self._object_array,
            "bytes": self._bytes,
            "bytearray": self._bytes,
            "jax_key": self._jax_key,
            "state": self.state,
            "pickle": self._pickle,
            **dict.fromkeys(GENERATOR_KINDS, self.generator),
        }
        self._atoms = PLAIN_DECODERS | FOREIGN_DECODERS

    def release(self) -> None:
        """Forget the table of our own methods: a cycle that would keep every array alive until the next collection."""
        self._kinds.clear()

    def build_root(self, node: Node, path: str, like: object) -> Any:
        """The value of the whole tree; every malformed node becomes a FormatError that says where."""
        try:
            return self.build(node, path, like, 0)
        except StateMismatchError:
            raise
        except FormatError as error:
            # Of the same class: whether it is damaged or only not supported here decides what happens to it.
            raise type(error)(f"the tree at {self._at or 'its root'}: {error.message}", hint=error.hint) from error
        except _FOREIGN_ERRORS as error:
            raise FormatError(f"the tree at {self._at or 'its root'}: {type(error).__name__}: {error}") from error

    def build(self, node: Node, path: str, like: object, depth: int) -> Any:
        """The value, or a Late one where it depends on what will be read."""
        self._count += 1
        cls = type(node)
        if cls in _PLAIN:
            return node
        self._at = path
        if cls is dict:
            kind = node.get("kind")
            atom = self._atoms.get(kind)
            if atom is not None:
                return atom(node, self.frameworks)
            handler = self._kinds.get(kind)
            if handler is None:
                raise FormatError(f"nodes of kind {kind!r} are not known", hint="a newer holdfast may have written it")
            if depth > MAX_DEPTH or self._count > MAX_TREE_NODES:
                raise FormatError(f"more than {MAX_DEPTH} levels or {MAX_TREE_NODES} nodes")
            return handler(node, path, like, depth)
        if cls is list:
            if depth > MAX_DEPTH:
                raise FormatError(f"more than {MAX_DEPTH} levels")
            return self.assemble(list, self._elements(node, path, like, depth), like)
        raise FormatError(f"{cls.__name__} is not a node")

    def assemble(self, make: Callable[[list[Any]], Any], parts: list[Any], like: object) -> Any:  # noqa: ARG002  # a seam
        """The container of the parts: now if possible, else when the leaves are filled."""
        if Late in map(type, parts):
            return Late(lambda: make([settle(part) for part in parts]))
        return make(parts)

    def leaves_out(self, node: Node, path: str, like: object) -> bool:  # noqa: ARG002  # a seam
        """Whether an entry of the checkpoint that the program's container lacks is not taken over into it."""
        return False

    def keeps(self, like: object, path: str, taken: Container[object]) -> list[tuple[Any, Any]]:  # noqa: ARG002  # a seam
        """Entries of the program's container that stay although the checkpoint has none there."""
        return []

    def array(self, node: Node, path: str, like: object, depth: int) -> Any:  # noqa: ARG002  # a seam
        """An array on fresh memory."""
        spec = self.memory.spec(node)
        if node["kind"] == "array":
            return self.memory.numpy_array(spec)
        if node["kind"] == "tensor":
            return self.memory.tensor(spec, node)
        jax = self.frameworks.jax
        if jax is not None:
            _check_width(jax, numpy_dtype(spec.dtype))
        array = self.memory.numpy_array(spec)
        return array if jax is None else Late(lambda: jax.numpy.array(array))

    def state(self, node: Node, path: str, like: object, depth: int) -> Any:  # noqa: ARG002  # a seam
        """What the object's state_dict gave."""
        return self.build(node.get("state"), path, MISSING, depth + 1)

    def generator(self, node: Node, path: str, like: object, depth: int) -> Any:  # noqa: ARG002  # a seam
        """A new generator with the stored state."""
        return fresh_generator(node, read_state(node, self.frameworks), self.frameworks)

    def mapping(self, node: Node, path: str, like: object, depth: int) -> Any:
        """A dictionary of any kind."""
        known: Mapping[Any, Any] = like if isinstance(like, (dict, Mapping)) else {}
        keys: list[Any] = []
        parts: list[Any] = []
        entries = mapping_entries(node, self.frameworks, known)
        taken = dict(entries)
        if len(taken) < len(entries):
            raise malformed(node, "every key once")
        if "pairs" in node:
            self._note_keys(taken, path)
        lacking = 0
        for key, item in taken.items():
            place, child = join(path, key), known.get(key, MISSING)
            if child is MISSING:
                lacking += 1
                if self.leaves_out(item, place, like):
                    continue
            keys.append(key)
            parts.append(self.build(item, place, child, depth + 1))
        if known is not like or len(taken) - lacking < len(known):
            for key, kept in self.keeps(like, path, taken):
                keys.append(key)
                parts.append(kept)
        new = self._new_mapping(node, path, depth)

        def make(values: list[Any]) -> Any:
            made = new()
            for key, value in zip(keys, values, strict=True):
                made[key] = value
            return made

        return self.assemble(make, parts, like)

    def _new_mapping(self, node: Node, path: str, depth: int) -> Callable[[], Any]:
        kind = node["kind"]
        if kind == "default_dict":
            factory = field(node, "factory", str)
            if factory not in FACTORIES:
                raise malformed(node, "a plain factory")
            return lambda: collections.defaultdict(FACTORIES[factory])
        if kind == "ordered_dict" and "metadata" in node:
            metadata = self.build(node["metadata"], f"{path}._metadata", MISSING, depth + 1)
            return lambda: _with_metadata(settle(metadata))
        return _MAPPINGS[kind]

    def _elements(self, nodes: list[Node], path: str, like: object, depth: int) -> list[Any]:
        known = list(like) if isinstance(like, list | tuple | collections.deque) else []
        parts: list[Any] = []
        for index, item in enumerate(nodes):
            place, child = join_index(path, index), known[index] if index < len(known) else MISSING
            if child is not MISSING or not self.leaves_out(item, place, like):
                parts.append(self.build(item, place, child, depth + 1))
        parts.extend(kept for _, kept in self.keeps(like, path, range(len(nodes))))
        return parts

    def _tuple(self, node: Node, path: str, like: object, depth: int) -> Any:
        return self.assemble(tuple, self._elements(field(node, "of", list), path, like, depth), like)

    def _slice(self, node: Node, path: str, like: object, depth: int) -> Any:
        parts = self._elements(field(node, "of", list), path, MISSING, depth)
        if len(parts) != 3:
            raise malformed(node, "three parts")
        return self.assemble(lambda values: slice(*values), parts, like)

    def _deque(self, node: Node, path: str, like: object, depth: int) -> Any:
        maxlen = field(node, "maxlen", int) if "maxlen" in node else None
        nodes = field(node, "of", list)
        if maxlen is not None and (maxlen < len(nodes) or maxlen > sys.maxsize):
            raise malformed(node, "maxlen to be at least the number of elements")
        return self.assemble(
            lambda values: collections.deque(values, maxlen), self._elements(nodes, path, like, depth), like
        )

    def _set(self, node: Node, path: str, like: object, depth: int) -> Any:  # noqa: ARG002  # one signature for all
        models = like if isinstance(like, set | frozenset) else ()
        elements = [decode_key(item, self.frameworks, models) for item in field(node, "of", list)]
        self._note_keys(elements, path)
        return self.assemble(set if node["kind"] == "set" else frozenset, elements, like)

    def _object(self, node: Node, path: str, like: object, depth: int) -> Any:
        fields = named_fields(node)
        names = list(fields)
        cls = find_class(node, like)
        difference = "" if cls is None else misfit(cls, names)
        if difference:
            self.problems.append(f"{path}: wrong fields: {difference}")
            cls = None
        elif cls is None and type(like) is not Record:
            self.unknown_classes.setdefault(node["type"], path)
        parts = [
            self.build(
                item, join(path, name), getattr(like, name, MISSING) if cls is type(like) else MISSING, depth + 1
            )
            for name, item in fields.items()
        ]
        return self.assemble(lambda values: make_object(node, cls, names, values), parts, like)

    def _enum(self, node: Node, path: str, like: object, depth: int) -> Any:
        value = self.build(node.get("value"), path, MISSING, depth + 1)
        cls = find_class(node, like)
        if cls is None and type(like) is not Record:
            self.unknown_classes.setdefault(node["type"], path)
        try:
            return read_enum(node, cls, value)
        except LookupError as error:
            self.problems.append(f"{path}: {error}")
            return None

    def _note_keys(self, keys: Iterable[object], path: str) -> None:
        for key in keys:
            if type(key) is Record:
                self.unknown_classes.setdefault(key.type_name, path)
            elif isinstance(key, tuple | frozenset):
                self._note_keys(key, path)

    def _object_array(self, node: Node, path: str, like: object, depth: int) -> Any:
        shape = int_list(node, "shape", MAX_NDIM, lambda length: 0 <= length < 1 << 63)
        nodes = field(node, "of", list)
        if math.prod(shape) != len(nodes):
            raise malformed(node, f"{math.prod(shape)} elements for the shape {shape}, found {len(nodes)}")
        known = like.ravel().tolist() if isinstance(like, np.ndarray) and like.dtype == object else MISSING
        parts = self._elements(nodes, path, known, depth)
        return self.assemble(lambda values: _make_object_array(shape, values), parts, like)

    def _bytes(self, node: Node, path: str, like: object, depth: int) -> Any:  # noqa: ARG002  # one signature for all
        make: Callable[[bytes], bytes | bytearray] = bytes if node["kind"] == "bytes" else bytearray
        if "leaf" not in node:
            data = base64_field(node)
            return self.assemble(lambda _: make(data), [], like)
        stored = self._raw(node)
        return self.assemble(lambda values: make(values[0].tobytes()), [Late(lambda: stored)], like)

    def _raw(self, node: Node) -> Any:
        spec = self.memory.spec(node)
        if spec.dtype != "uint8" or len(spec.shape) != 1 or spec.view is not None:
            raise malformed(node, "a leaf of bytes")
        return self.memory.numpy_array(spec)

    def _jax_key(self, node: Node, path: str, like: object, depth: int) -> Any:  # noqa: ARG002  # one signature for all
        data = self.array(field(node, "data", dict) | {"kind": "jax"}, path, MISSING, depth + 1)
        impl = field(node, "impl", str)
        jax = self.frameworks.jax
        return data if jax is None else Late(lambda: _wrap_key(jax, settle(data), impl, path))

    def _pickle(self, node: Node, path: str, like: object, depth: int) -> Any:  # noqa: ARG002  # one signature for all
        if not self._allow_pickle:
            name = optional_field(node, "type", str, "object")
            self.problems.append(f"{path}: a pickled {name}, and unpickling was not allowed")
            return None
        stored = self._raw(node)
        return Late(lambda: _unpickle(stored, path))


def _with_metadata(metadata: Any) -> Any:
    made: Any = collections.OrderedDict()
    made._metadata = metadata
    return made


def _make_object_array(shape: list[int], values: list[Any]) -> Any:
    made = np.empty(len(values), object)
    for index, value in enumerate(values):
        made[index] = value
    return made.reshape(shape)


def _check_width(jax: Any, dtype: "np.dtype[Any]") -> None:
    kept = jax.dtypes.canonicalize_dtype(dtype)
    if kept != dtype:
        raise UnsupportedError(f"JAX would turn {dtype} into {kept}", hint="jax.config.update('jax_enable_x64', True)")


def _wrap_key(jax: Any, data: Any, impl: str, path: str) -> Any:
    try:
        return jax.random.wrap_key_data(data, impl=impl)
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{path}: not a random key of the kind {impl!r}: {error}") from error


def _unpickle(stored: Any, path: str) -> Any:
    try:
        return pickle.loads(stored.tobytes())  # noqa: S301  # the caller allowed it
    except HoldfastError:
        raise
    except Exception as error:  # unpickling runs code of any class
        raise UnsupportedError(f"{path}: cannot be unpickled: {type(error).__name__}: {error}") from error
