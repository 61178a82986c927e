"""A loaded tree as plain containers, numbers and torch tensors: what `torch.load(weights_only=True)` takes back."""

import collections
import datetime as dt
import enum
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.format.paths import join, join_index

__all__ = ["plain_tree"]

_ATOMS = (bool, int, float, complex, str, bytes, type(None))
_TEXTS = (pathlib.PurePath, dt.date, dt.time, dt.timedelta, np.dtype, range, enum.Enum)


def plain_tree(tree: object, torch: Any) -> tuple[object, int, list[str]]:
    """The tree in plain form, the number of its tensors, and the paths of what has no such form."""
    maker = _Maker(torch)
    return maker.plain(tree, ""), maker.tensors, maker.left_out


class _Maker:
    def __init__(self, torch: Any) -> None:
        self.tensors = 0
        self.left_out: list[str] = []
        self._torch = torch
        self._seen: dict[object, object] = {}

    def plain(self, value: Any, path: str) -> object:
        if isinstance(value, self._torch.Tensor):
            self.tensors += 1
            return self._same(value.detach())
        if isinstance(value, enum.Enum):
            return str(value)
        if type(value) in _ATOMS or isinstance(value, self._torch.Size | self._torch.dtype | self._torch.device):
            return value
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, tuple):
            return tuple(self.plain(item, join_index(path, index)) for index, item in enumerate(value))
        if isinstance(value, list | collections.deque):
            return [self.plain(item, join_index(path, index)) for index, item in enumerate(value)]
        if isinstance(value, set | frozenset):
            return {self.plain(item, path) for item in value}
        # One of more bits than Python's has none of its own to give.
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSU" and type(value.item()) in _ATOMS:
            return value.item()
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, _TEXTS):
            return str(value)
        return self._array(value, path)

    def _same(self, tensor: Any) -> object:
        """One object for one place in memory: only then does torch write tied tensors once, and tie them again."""
        if not tensor.numel():
            return tensor
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        return self._seen.setdefault(place, tensor)

    def _mapping(self, value: Mapping[Any, object], path: str) -> object:
        items = ((self.plain(key, path), self.plain(item, join(path, key))) for key, item in value.items())
        return collections.OrderedDict(items) if isinstance(value, collections.OrderedDict) else dict(items)

    def _array(self, value: Any, path: str) -> object:
        try:
            tensor = self._torch.from_numpy(np.array(value))
        except (TypeError, ValueError, RuntimeError):
            # Random generators, arrays of texts or structures: torch has no tensor for them.
            self.left_out.append(path)
            return None
        self.tensors += 1
        return tensor
