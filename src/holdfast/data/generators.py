"""The generators that a sample may draw from without saying so: those of `random`, of numpy and of torch.

Looking at one must cost next to nothing, since it happens with every batch. `random.getstate()` builds 625 numbers and
`numpy.random.get_state()` takes 30 µs: so the bytes of their states are read where they lie. numpy documents where that
is; for `random`, every process compares what it reads with `getstate()` once, and uses that where they differ. The
second normal number that numpy keeps lies beside its state: where, a generator shows that nobody else draws from.
"""

import ctypes
import random
import struct
import sys
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.random import mtrand

__all__ = ["Generator", "generators"]

_WORDS = 624  # of the state of a Mersenne twister, followed by the index into it
_Twister = ctypes.c_char * (4 * (_WORDS + 1))
_GAUSS = struct.Struct("@i4xd")  # whether there is one, and which


class Generator(Protocol):
    """One of them. What `look` gives can be compared, and restored."""

    def look(self) -> Any:
        """The state as it is."""

    def seed(self, number: int) -> None:
        """Begin with that number, of 64 bits."""

    def restore(self, seen: Any) -> None:
        """As it was when it was looked at."""


def generators() -> list[Generator]:
    """Of this process: that of torch only where the program has imported it."""
    torch = sys.modules.get("torch")
    return [_Python(), _Numpy(), *([] if torch is None else [_Torch(torch)])]


class _Python:
    def __init__(self) -> None:
        # The one behind random.random() and its like, which are its methods.
        instance: random.Random = random.random.__self__  # type: ignore[attr-defined]
        self._instance: Any = instance
        self._bytes = _Twister.from_address(id(self._instance) + object.__basicsize__)
        self._seed = super(random.Random, instance).seed
        self._readable = sys.implementation.name == "cpython" and self._is_there()

    def _is_there(self) -> bool:
        index, *words = struct.unpack(f"={_WORDS + 1}I", self._bytes.raw)
        return type(self._instance) is random.Random and random.getstate()[1] == (*words, index)

    def look(self) -> Any:
        if not self._readable:
            return random.getstate()
        return self._bytes.raw, self._instance.gauss_next

    def seed(self, number: int) -> None:
        # What random.seed() does with a whole number, without finding out that it is one.
        self._seed(number)
        self._instance.gauss_next = None

    def restore(self, seen: Any) -> None:
        if self._readable:
            raw, gauss = seen
            index, *words = struct.unpack(f"={_WORDS + 1}I", raw)
            seen = (random.Random.VERSION, (*words, index), gauss)
        random.setstate(seen)


class _Numpy:
    """The legacy one, behind numpy.random.rand() and its like."""

    def __init__(self) -> None:
        self._random_state: Any = np.random.get_state.__self__  # type: ignore[attr-defined]
        self._gauss_at = _place_of_gauss() if type(self._random_state) is np.random.RandomState else None
        self._generator: Any = None
        self._bytes: Any = None

    def look(self) -> Any:
        generator = mtrand.get_bit_generator()
        if generator is not self._generator:
            if type(generator) is not np.random.MT19937:
                return repr(np.random.get_state(legacy=False)), np.random.get_state(legacy=False)
            self._generator, self._bytes = generator, _Twister.from_address(generator.ctypes.state_address)
        return self._bytes.raw, self._gauss()

    def _gauss(self) -> float | None:
        """The second of two normal numbers, while it is kept for the next one who asks."""
        if self._gauss_at is None:
            _, _, _, has_gauss, gauss = np.random.get_state()
        else:
            has_gauss, gauss = _GAUSS.unpack(ctypes.string_at(id(self._random_state) + self._gauss_at, _GAUSS.size))
        return float(gauss) if has_gauss else None

    def seed(self, number: int) -> None:
        generator = mtrand.get_bit_generator()
        if type(generator) is np.random.MT19937:
            np.random.seed([number & 0xFFFFFFFF, number >> 32])  # as one number, it takes 32 bits at most
        else:
            generator.state = type(generator)(number).state

    def restore(self, seen: Any) -> None:
        raw, rest = seen
        if isinstance(raw, str):
            np.random.set_state(rest)
            return
        words = np.frombuffer(raw, np.uint32)
        np.random.set_state(
            ("MT19937", words[:_WORDS], int(words[_WORDS]), int(rest is not None), 0.0 if rest is None else rest)
        )


@cache
def _place_of_gauss() -> int | None:
    """Where a RandomState keeps it; None where that is not plain to see."""
    if sys.implementation.name != "cpython":
        return None
    shown = np.random.RandomState(0)
    words = np.arange(_WORDS, dtype=np.uint32)
    places: set[int] | None = None
    for number in (0.123456789, -2.3456789e-7):  # numbers that are nothing else by chance
        found = []
        for has_gauss in (1, 0):
            shown.set_state(("MT19937", words, _WORDS, has_gauss, number))
            raw, wanted = ctypes.string_at(id(shown), type(shown).__basicsize__), _GAUSS.pack(has_gauss, number)
            found.append({at for at in range(0, len(raw) - _GAUSS.size + 1, 8) if raw[at : at + _GAUSS.size] == wanted})
        both = found[0] & found[1]
        places = both if places is None else places & both
    return places.pop() if places is not None and len(places) == 1 else None


class _Torch:
    """That of the processor: accelerators make no samples, and would have to be waited for."""

    def __init__(self, torch: Any) -> None:
        self._generator = torch.default_generator
        self._size_bytes = self._generator.get_state().nbytes
        self._from = torch.frombuffer
        self._bytes = torch.uint8

    def look(self) -> Any:
        state = self._generator.get_state()
        return ctypes.string_at(state.data_ptr(), self._size_bytes)

    def seed(self, number: int) -> None:
        self._generator.manual_seed(number)

    def restore(self, seen: Any) -> None:
        self._generator.set_state(self._from(bytearray(seen), dtype=self._bytes))
