"""The walk over a state: a node for every value in it, however deep."""

import collections
import dataclasses
import enum
import functools
import pickle
import zoneinfo
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from holdfast.core.errors import StateError, in_words, printable
from holdfast.core.limits import MAX_DEPTH, MAX_TREE_NODES
from holdfast.format.arrays import address_of
from holdfast.format.carriers import NativeArray, Refused, ToHost, array_kind, inspect_array
from holdfast.format.footprint import (
    Block,
    KnownArrays,
    KnownModule,
    Moved,
    memory_of_tensors,
    read_block,
    where_tensors_are,
)
from holdfast.format.foreign import encode_dtype, encode_scalar, torch_encoders
from holdfast.format.frameworks import loaded
from holdfast.format.generators import encode_generator, generator_kind, why_unreadable
from holdfast.format.leaves import LeafCollector
from holdfast.format.modules import read_module
from holdfast.format.nodes import Node, base64_text
from holdfast.format.paths import RANDOM_ROOT, join, join_index
from holdfast.format.plain import PLAIN_ENCODERS, encode_plain, is_json_text
from holdfast.format.refusals import Refusals, contains_itself, describe, too_much
from holdfast.format.registry import Record, is_namedtuple_class, type_name
from holdfast.format.stateful import is_stateful

__all__ = ["FACTORIES", "Encoder"]

FACTORIES: dict[str, type | None] = {
    "None": None,
    **{cls.__name__: cls for cls in (int, float, complex, bool, str, bytes, list, dict, set, tuple, frozenset)},
}
_MAX_INLINE_BYTES = 4096


class Encoder:
    """Walks over a state once. Arrays go to `arrays`, what cannot be represented to `refusals`."""

    def __init__(self, arrays: LeafCollector | KnownArrays, *, allow_pickle: bool, to_host: ToHost | None) -> None:
        self.pickled: list[str] = []
        self.refusals = Refusals()
        self.blocks: dict[str, Block] = {}
        self.modules: dict[str, KnownModule] = {}
        self.remembers = False
        """Whether to note the dictionaries that hold nothing but tensors."""
        self.tensors: dict[int, Any] = {}
        """The program's own tensors that are in such dictionaries, by their place among the arrays."""
        self._arrays = arrays
        self._known = arrays if isinstance(arrays, KnownArrays) else None
        self._allow_pickle = allow_pickle
        self._to_host = to_host
        self._active: dict[int, str] = {}
        self._count = 0
        self._device_copies: dict[object, NativeArray] = {}
        self._torch = loaded("torch")
        self._handlers: dict[type, Callable[[Any, str, int], Node]] = {
            list: self._list,
            dict: functools.partial(self.mapping, "dict"),
            tuple: functools.partial(self._sequence, "tuple"),
            np.ndarray: self._array,
            bytes: functools.partial(self._bytes, "bytes"),
            bytearray: functools.partial(self._bytes, "bytearray"),
            set: functools.partial(self._set, "set"),
            frozenset: functools.partial(self._set, "frozenset"),
            collections.deque: self._deque,
            collections.OrderedDict: self._ordered_dict,
            collections.defaultdict: self._default_dict,
            collections.Counter: functools.partial(self.mapping, "counter"),
            slice: lambda value, path, depth: self._parts("slice", (value.start, value.stop, value.step), path, depth),
            Record: self._record,
            zoneinfo.ZoneInfo: self._zone,
        }
        self._atoms = dict(PLAIN_ENCODERS)
        if self._torch is not None:
            self._atoms.update(torch_encoders(self._torch))
            self._handlers[self._torch.Tensor] = self._handlers[self._torch.nn.Parameter] = self._array

    def trees(self, state: Mapping[str, object], random: Mapping[str, object] | None) -> tuple[Node, Node | None]:
        """The nodes of the state and of the random generators."""
        tree = self.mapping("dict", dict(state), "", 0)
        return tree, None if random is None else self.mapping("dict", dict(random), RANDOM_ROOT, 0)

    def release(self) -> None:
        """Forget the table of our own methods: a cycle that would keep every array alive until the next collection."""
        self._handlers.clear()

    def encode(self, value: object, path: str, depth: int) -> Node:
        """The node of any value."""
        cls = type(value)
        self._count += 1
        atom = self._atoms.get(cls)
        if atom is not None:
            try:
                return atom(value)
            except KeyError:  # a datetime with a time zone of an unknown class
                return self._clock(value, path, depth)
        handler = self._handlers.get(cls)
        if handler is None:
            handler = self._unusual(value)
        if depth > MAX_DEPTH or self._count > MAX_TREE_NODES:
            raise too_much(path, depth)
        return handler(value, path, depth)

    def mapping(self, kind: str, value: Mapping[Any, object], path: str, depth: int) -> dict[str, Any]:
        """The node of a dictionary of any kind."""
        if self._known is not None and (known := self._known.take(kind, value, path)) is not None:
            return known
        self._enter(value, path)
        first = len(self._arrays)
        node: dict[str, Any] = {"kind": kind}
        if all(type(key) is str and is_json_text(key) for key in value):
            if (plain := self._plain_nodes(value.values())) is not None:
                node["items"] = dict(zip(value, plain, strict=True))
            else:
                node["items"] = {key: self.encode(item, join(path, key), depth + 1) for key, item in value.items()}
        else:
            node["pairs"] = [
                [self._key(key, path, depth + 1), self.encode(item, join(path, key), depth + 1)]
                for key, item in value.items()
            ]
        del self._active[id(value)]
        if self.remembers:
            self._remember_block(value, path, first, node)
        return node

    def _remember_block(self, value: Mapping[Any, object], path: str, first: int, node: dict[str, Any]) -> None:
        """Note it if all that is in the dictionary, or in the dictionaries in it, are tensors in the host's memory."""
        arrays, content = self._arrays, read_block(value)
        if content is None or not content.tensors or not content.keys.are_exact:
            return
        if not isinstance(arrays, LeafCollector) or not arrays.are_in_place(first):
            return
        length = len(arrays) - first
        if length == len(content.tensors):
            try:
                whereabouts = where_tensors_are(content.tensors)
            except Moved:  # they are arrays, but not such ones
                return
            # A copy: whoever asked for the node may add to it.
            self.blocks[path] = Block(first, length, content.keys, whereabouts, dict(node))
            self.tensors.update(enumerate(content.tensors, first))

    def _remember_module(self, module: object, state: Any, path: str, node: Node) -> None:
        """Note it if what its state_dict gave is just what can be read from the module itself."""
        block, content = self.blocks.get(path), read_module(module)
        if block is None or content is None or not content.describes(state):
            return
        try:
            whereabouts = where_tensors_are(content.tensors)
            if memory_of_tensors(content.tensors) != memory_of_tensors(list(state.values())):
                return
        except Moved:
            return
        same = block._replace(whereabouts=whereabouts, node=node)
        self.modules[path] = KnownModule(content.names, content.versions, same)
        self.tensors.update(enumerate(content.tensors, block.first))

    def _enter(self, value: object, path: str) -> None:
        if id(value) in self._active:
            raise contains_itself(value, path, self._active[id(value)])
        self._active[id(value)] = path

    def _unusual(self, value: object) -> Callable[[Any, str, int], Node]:
        if is_stateful(value):
            return self._stateful
        if isinstance(value, enum.Enum):
            return self._enum
        if array_kind(value) is not None:
            return self._array
        if isinstance(value, np.generic | np.dtype):
            return self._numpy_atom
        if (kind := generator_kind(value, self._torch)) is not None:
            return functools.partial(self._generator, kind)
        builtin = isinstance(value, dict | list | set | frozenset | str | bytes | int | float | complex)
        if isinstance(value, type) or builtin:
            return self._refuse
        if is_namedtuple_class(type(value)):
            return self._namedtuple
        if dataclasses.is_dataclass(value) and not isinstance(value, tuple):
            return self._dataclass
        return self._refuse

    def _generator(self, kind: str, value: object, path: str, depth: int) -> Node:
        problem = why_unreadable(value)
        if problem:
            return self._refuse(value, path, depth, Refused(problem, "use a smaller seed"))
        return encode_generator(value, kind)

    def _refuse(self, value: object, path: str, _: int, why: Refused | None = None) -> Node:
        what = why.reason if why else describe(value)
        if self._allow_pickle:
            try:
                data = pickle.dumps(value, protocol=5)
            except Exception as error:  # noqa: BLE001  # __reduce__ of any class may raise anything
                what = f"{what}, cannot be pickled ({printable(error)[:100]})"
            else:
                self.pickled.append(path)
                return self._raw({"kind": "pickle", "type": type_name(type(value))}, data, path)
        self.refusals.add(path, what, why.hint if why else "")
        return None

    def _list(self, value: list[object], path: str, depth: int) -> Node:
        if (plain := self._plain_nodes(value)) is not None:
            return plain
        self._enter(value, path)
        nodes = [self.encode(item, join_index(path, index), depth + 1) for index, item in enumerate(value)]
        del self._active[id(value)]
        return nodes

    def _plain_nodes(self, values: Collection[object]) -> list[Node] | None:
        """The nodes of values that are all numbers, texts and the like: these need no path. None where some are not."""
        atoms = self._atoms
        if not atoms.keys() >= set(map(type, values)):
            return None
        try:
            nodes = [atoms[type(value)](value) for value in values]
        except KeyError:  # a datetime with a time zone of an unknown class
            return None
        self._count += len(nodes)
        return nodes

    def _parts(self, kind: str, parts: Collection[object], path: str, depth: int) -> dict[str, Any]:
        if (plain := self._plain_nodes(parts)) is not None:
            return {"kind": kind, "of": plain}
        items = [self.encode(item, join_index(path, index), depth + 1) for index, item in enumerate(parts)]
        return {"kind": kind, "of": items}

    def _sequence(self, kind: str, value: Collection[object], path: str, depth: int) -> dict[str, Any]:
        self._enter(value, path)
        node = self._parts(kind, value, path, depth)
        del self._active[id(value)]
        return node

    def _deque(self, value: "collections.deque[object]", path: str, depth: int) -> Node:
        node = self._sequence("deque", value, path, depth)
        if value.maxlen is not None:
            node["maxlen"] = value.maxlen
        return node

    def _set(self, kind: str, value: Iterable[object], path: str, depth: int) -> Node:
        # By their JSON text: an order that does not depend on the process's hash seed.
        return {"kind": kind, "of": sorted((self._key(item, path, depth + 1) for item in value), key=_json_text)}

    def _key(self, key: object, path: str, depth: int) -> Node:
        """The node of a dictionary's key or a set's element: hashable values without arrays."""
        place = join(path, key)
        self._count += 1
        if type(key) in self._atoms:
            return self.encode(key, place, depth)
        if depth > MAX_DEPTH:
            raise too_much(path, depth)
        if type(key) is bytes:
            return {"kind": "bytes", "base64": base64_text(key)}
        if type(key) is tuple:
            return {"kind": "tuple", "of": [self._key(item, path, depth + 1) for item in key]}
        if type(key) is frozenset:
            return self._set("frozenset", key, path, depth)
        if isinstance(key, enum.Enum):
            return self._enum(key, place, depth)
        if isinstance(key, np.generic | np.dtype):
            return self._numpy_atom(key, place, depth)
        if is_namedtuple_class(type(key)):
            return self._namedtuple_key(key, path, depth)
        return self._refuse(key, place, depth, Refused(f"{describe(key)} as a key"))

    def _ordered_dict(self, value: "collections.OrderedDict[Any, object]", path: str, depth: int) -> Node:
        attributes = vars(value)
        if set(attributes) - {"_metadata"}:
            return self._refuse(value, path, depth, Refused("an OrderedDict with attributes of its own"))
        node = self.mapping("ordered_dict", value, path, depth)
        if attributes:  # what torch modules keep of their versions; their load_state_dict looks for it
            node["metadata"] = self.encode(attributes["_metadata"], f"{path}._metadata", depth + 1)
        return node

    def _default_dict(self, value: "collections.defaultdict[Any, object]", path: str, depth: int) -> Node:
        factory = value.default_factory
        name = "None" if factory is None else getattr(factory, "__name__", "")
        if FACTORIES.get(name, self) is not factory:
            why = Refused(f"a defaultdict of {factory!r}", "use a plain factory or dict")
            return self._refuse(value, path, depth, why)
        node = self.mapping("default_dict", value, path, depth)
        node["factory"] = name
        return node

    def _fields(
        self, kind: str, value: object, fields: Iterable[tuple[str, object]], path: str, depth: int
    ) -> dict[str, Any]:
        self._enter(value, path)
        items = {name: self.encode(item, join(path, name), depth + 1) for name, item in fields}
        del self._active[id(value)]
        return {"kind": kind, "type": type_name(type(value)), "fields": items}

    def _namedtuple(self, value: Any, path: str, depth: int) -> Node:
        if _loose_attributes(value, ()):
            return self._refuse(value, path, depth, Refused(f"{describe(value)} with attributes besides its fields"))
        return self._fields("namedtuple", value, zip(value._fields, value, strict=True), path, depth)

    def _dataclass(self, value: Any, path: str, depth: int) -> Node:
        names = [field.name for field in dataclasses.fields(value)]
        loose = _loose_attributes(value, names)
        unset = [name for name in names if not hasattr(value, name)]
        if loose or unset:
            what = f"attributes besides its fields: {loose[:5]}" if loose else f"fields that are not set: {unset[:5]}"
            return self._refuse(value, path, depth, Refused(f"{describe(value)} with {what}"))
        return self._fields("dataclass", value, ((name, getattr(value, name)) for name in names), path, depth)

    def _namedtuple_key(self, value: Any, path: str, depth: int) -> Node:
        items = {name: self._key(item, path, depth + 1) for name, item in zip(value._fields, value, strict=True)}
        return {"kind": "namedtuple", "type": type_name(type(value)), "fields": items}

    def _enum(self, value: Any, path: str, depth: int) -> Node:
        node: dict[str, Any] = {"kind": "enum", "type": type_name(type(value)), "member": value.name}
        if type(value.value) in self._atoms:
            node["value"] = self.encode(value.value, path, depth + 1)
        return node

    def _record(self, value: Record, path: str, depth: int) -> Node:
        if value.kind == "enum":
            return {"kind": "enum", "type": value.type_name} | {
                name: self.encode(item, path, depth + 1) for name, item in value.items() if name in ("member", "value")
            }
        if value.kind.startswith("torch_"):
            return {"kind": value.kind, "name": value.get("name")}
        return self._fields(value.kind, value, value.items(), path, depth) | {"type": value.type_name}

    def _stateful(self, value: Any, path: str, depth: int) -> Node:
        node: dict[str, Any] = {"kind": "state", "type": type_name(type(value)), "state": None}
        if self._known is not None and (known := self._known.take_module(value, path)) is not None:
            node["state"] = known
            return node
        self._enter(value, path)
        try:
            state = value.state_dict()
        except Exception as error:  # the user's code may raise anything
            what = f"{path}: state_dict of {describe(value)} failed: {in_words(error)}"
            raise StateError(what, hint="mend it") from error
        node["state"] = self.encode(state, path, depth + 1)
        del self._active[id(value)]
        if self.remembers:
            self._remember_module(value, state, path, node["state"])
        return node

    def _clock(self, value: Any, path: str, depth: int) -> Node:
        if type(value.tzinfo) is not zoneinfo.ZoneInfo or value.tzinfo.key is None:
            return self._refuse(value, path, depth, Refused(f"a time in a zone of class {type(value.tzinfo).__name__}"))
        return encode_plain(value.replace(tzinfo=None)) | {"tz": self._zone(value.tzinfo, path, depth)}

    def _zone(self, value: Any, path: str, depth: int) -> Node:
        if value.key is None:
            return self._refuse(value, path, depth, Refused("a time zone without a name"))
        return {"kind": "zoneinfo", "key": value.key}

    def _numpy_atom(self, value: Any, path: str, depth: int) -> Node:
        node = encode_dtype(value) if isinstance(value, np.dtype) else encode_scalar(value)
        if node is None:
            return self._refuse(value, path, depth, Refused(f"numpy {value!r} with Python objects, or nested too deep"))
        return node

    def _bytes(self, kind: str, value: bytes | bytearray, path: str, _: int) -> Node:
        if len(value) <= _MAX_INLINE_BYTES:
            return {"kind": kind, "base64": base64_text(value)}
        return self._raw({"kind": kind}, bytes(value), path)

    def _raw(self, node: dict[str, Any], data: bytes, path: str) -> Node:
        carrier = np.frombuffer(data, np.uint8)
        self._arrays.add(node, path, NativeArray("uint8", carrier, address_of(carrier), {}, in_place=False))
        return node

    def _array(self, value: Any, path: str, depth: int) -> Node:
        kind = str(array_kind(value))
        if kind == "array" and value.dtype.hasobject:
            return self._object_array(value, path, depth)
        jax = loaded("jax") if kind == "jax" else None
        if jax is not None and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = self._array(jax.random.key_data(value), path, depth)
            return {"kind": "jax_key", "impl": str(jax.random.key_impl(value)), "data": data}
        array = self._inspect(value, kind)
        if isinstance(array, Refused):
            return self._refuse(value, path, depth, array)
        node = {"kind": kind, "leaf": -1, **array.flags} if array.flags else {"kind": kind, "leaf": -1}
        self._arrays.add(node, path, array)
        return node

    def _inspect(self, value: Any, kind: str) -> NativeArray | Refused:
        if kind != "tensor" or value.is_cpu or value.is_meta:
            return inspect_array(value, kind)
        # Tied tensors of an accelerator: one copy on the host, so that they are seen to be the same.
        key = (str(value.device), value.data_ptr(), value.dtype, value.shape, value.stride(), value.is_conj())
        found = self._device_copies.get(key)
        if found is None:
            made = inspect_array(value, kind, self._to_host)
            if isinstance(made, Refused):
                return made
            found = self._device_copies[key] = made
        return found

    def _object_array(self, value: "np.ndarray[Any, Any]", path: str, depth: int) -> Node:
        if type(value) is not np.ndarray or value.dtype != object:
            return self._refuse(value, path, depth, Refused(f"an array of dtype {value.dtype} with Python objects"))
        self._enter(value, path)
        node = self._parts("object_array", value.ravel().tolist(), path, depth)
        del self._active[id(value)]
        return node | {"shape": list(value.shape)}


def _json_text(node: Node) -> bytes:
    return msgspec.json.encode(node)


def _loose_attributes(value: object, fields: Iterable[str]) -> list[str]:
    """Attributes that an object has besides its fields; what a cached property remembers does not count."""
    names = set(getattr(value, "__dict__", ())) - set(fields)
    return sorted(n for n in names if not isinstance(getattr(type(value), n, None), functools.cached_property))
