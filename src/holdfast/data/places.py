"""Where the libraries keep the states of their generators: looking at one there, or filling it, costs next to nothing.

`random.getstate()` builds 625 numbers, `numpy.random.get_state()` takes 30 µs, torch's makes a tensor: more than a
small sample itself. What lies where is not taken for granted: every process finds it out once, and compares what it
reads with what the library says. Where they differ, it is the library that is asked, always.
"""

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from holdfast.data.bits import WORDS_BYTES

__all__ = [
    "GAUSS",
    "Region",
    "engine_state",
    "region_of_gauss",
    "region_of_numpy",
    "region_of_python",
    "region_of_torch",
]

GAUSS = struct.Struct("@i4xd")
"""Of numpy: whether a second normal number is kept, and which."""
_WORDS = WORDS_BYTES // 4
_TWISTER_BYTES = WORDS_BYTES + 4  # the words, and the index into them

# Of torch, as at::CPUGeneratorImpl has it: seed, left, seeded, next, words, and the normal numbers that are kept.
_ENGINE = struct.Struct(f"=Qi?3xI{WORDS_BYTES}s4xf?3xd?")
_ENGINE_WORDS_AT = 20
# As get_state() gives it: the words in 64 bits each, and three numbers that are not used any more.
_SAID = struct.Struct(f"=QiiQ{2 * WORDS_BYTES}sdddi4xf?3x")
_END_BYTES = 64  # in whole words, which are compared faster than bytes
_OBJECT_BYTES = 512  # of a generator, before its engine: more than there can be


class Region:
    """A piece of memory that can be noted, compared and put back, without anything being allocated."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self._memory = (ctypes.c_ubyte * size_bytes).from_address(address)
        self.view = memoryview(self._memory).cast("B")
        self.noted = bytearray(size_bytes)
        self._noted = memoryview(self.noted)
        # One of the ends has the index, which every draw moves. Where it has come round to where it was, or a seed was
        # set, all words are others: those between the ends need not be fetched from memory to know it.
        self.ends, self.noted_ends = (
            [view[:_END_BYTES].cast("Q"), view[-_END_BYTES:].cast("Q")] for view in (self.view, self._noted)
        )
        """They differ when it has changed since it was noted."""

    def note(self) -> None:
        """As it is now."""
        self._noted[:] = self.view

    def put_back(self) -> None:
        """As it was when it was noted."""
        self.view[:] = self._noted


def region_of_python(instance: Any) -> Region | None:
    """The index and the words of the one behind random.random(); None where they are not plain to see."""
    begin = object.__basicsize__
    kind = type(instance)
    # What is behind `random.Random` must be as large as what is read, and written, there.
    if kind is not random.Random or kind.__mro__[1].__basicsize__ < begin + _TWISTER_BYTES or not _is_usual():
        return None
    region = Region(id(instance) + begin, _TWISTER_BYTES)
    index, *words = struct.unpack(f"={_WORDS + 1}I", region.view)
    return region if instance.getstate()[1] == (*words, index) else None


def region_of_numpy(generator: Any) -> Region | None:
    """The words and the index of a bit generator of numpy; None where they are not plain to see."""
    if type(generator) is not np.random.MT19937 or not _is_usual():
        return None
    region = Region(generator.ctypes.state_address, _TWISTER_BYTES)
    *words, index = struct.unpack(f"={_WORDS + 1}I", region.view)
    said = generator.state["state"]
    return region if said["key"].tolist() == words and said["pos"] == index else None


def region_of_gauss(random_state: Any) -> Region | None:
    """Where a RandomState of numpy keeps a normal number for the next one who asks, as `GAUSS`."""
    place = _place_of_gauss()
    if place is None or type(random_state) is not np.random.RandomState:
        return None
    return Region(id(random_state) + place, GAUSS.size)


@cache
def _place_of_gauss() -> int | None:
    """In a RandomState. One of our own shows it."""
    if not _is_usual():
        return None
    shown = np.random.RandomState(0)
    words = np.arange(_WORDS, dtype=np.uint32)
    places: set[int] | None = None
    for number in (0.123456789, -2.3456789e-7):  # numbers that are nothing else by chance
        found = []
        for has_gauss in (1, 0):
            shown.set_state(("MT19937", words, _WORDS, has_gauss, number))
            raw, wanted = ctypes.string_at(id(shown), type(shown).__basicsize__), GAUSS.pack(has_gauss, number)
            found.append({at for at in range(0, len(raw) - GAUSS.size + 1, 8) if raw[at : at + GAUSS.size] == wanted})
        both = found[0] & found[1]
        places = both if places is None else places & both
    return places.pop() if places is not None and len(places) == 1 else None


def region_of_torch(torch: Any, generator: Any) -> Region | None:
    """The engine of a generator of torch, for `engine_state`; None where it is not plain to see. Only for reading."""
    offset = _place_of_engine(torch)
    if offset is None or engine_state(_read(generator._cdata + offset, _ENGINE.size)) != _said(generator):
        return None
    return Region(generator._cdata + offset, _ENGINE.size)


@cache
def _place_of_engine(torch: Any) -> int | None:
    """In a generator. One of our own shows it: what is made of its memory must be its state, of whatever kind."""
    try:
        shown = torch.Generator()
        shown.manual_seed(0x0123456789ABCDEF)
        place = _read(shown._cdata, _OBJECT_BYTES + WORDS_BYTES).find(_words_of(_said(shown))) - _ENGINE_WORDS_AT
        if place < 0 or not _is_usual():
            return None
        moves: tuple[Callable[[], object], ...] = (
            lambda: torch.rand(1, generator=shown),
            lambda: torch.randn(1, generator=shown, dtype=torch.float64),  # another one is kept
            lambda: torch.rand(1000, generator=shown),
            lambda: torch.randn(1, generator=shown, dtype=torch.float64),  # it is taken
            lambda: shown.set_state(torch.frombuffer(bytearray(_with_float(_said(shown))), dtype=torch.uint8)),
        )
        for move in moves:
            move()
            if engine_state(_read(shown._cdata + place, _ENGINE.size)) != _said(shown):
                return None
    except (OSError, AttributeError, RuntimeError, TypeError, struct.error):
        return None
    return place


def engine_state(raw: bytes | bytearray) -> bytes:
    """What get_state() gives, made of the memory of the engine."""
    seed, left, seeded, following, words, a_float, has_float, normal, has_normal = _ENGINE.unpack(raw)
    wide = np.frombuffer(words, np.uint32).astype(np.uint64).tobytes()
    normal_and_more = (0.0, normal if has_normal else 0.0, 0.0, int(has_normal))
    return _SAID.pack(seed, left, seeded, following, wide, *normal_and_more, a_float if has_float else 0.0, has_float)


def _said(generator: Any) -> bytes:
    return bytes(generator.get_state().numpy())


def _words_of(said: bytes) -> bytes:
    return np.frombuffer(_SAID.unpack(said)[4], np.uint64).astype(np.uint32).tobytes()


def _with_float(said: bytes) -> bytes:
    """As if a normal number of 32 bits were kept."""
    return _SAID.pack(*_SAID.unpack(said)[:-2], 0.123456789, 1)


def _read(address: int, size_bytes: int) -> bytes:
    """By the kernel, which refuses what is not there instead of ending the process."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size_bytes)


def _is_usual() -> bool:
    """Whether objects lie where id() says, with words as they are written elsewhere, and one thread runs at a time."""
    has_one_lock: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
    return sys.implementation.name == "cpython" and sys.byteorder == "little" and has_one_lock
