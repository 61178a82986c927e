"""The generators that a sample may draw from without saying so: those of `random`, of numpy and of torch.

With every batch one has to see whether it was drawn from, and with every sample that draws it begins anew. So both are
done where the states lie in memory (`holdfast.data.places`), and by the functions of the libraries only where that is
not known. What comes out is the same.
"""

import random
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.random import mtrand

from holdfast.data.bits import NUMPY_AT, PYTHON_AT, TORCH_AT, WORDS_BYTES, Read, number_at
from holdfast.data.places import (
    GAUSS,
    Region,
    engine_state,
    region_of_gauss,
    region_of_numpy,
    region_of_python,
    region_of_torch,
)

__all__ = ["ALL", "Generator", "arrived_since", "generators"]

_WORDS = WORDS_BYTES // 4
_FIRST = bytes(4)  # the index of the first word

ALL = 3
"""So many there are, where the program has imported torch."""


class Generator(Protocol):
    """One of them. What `look` gives can be compared and restored; one state can be noted, or kept, which is faster."""

    def look(self) -> Any:
        """The state as it is: the same for the same state."""

    def restore(self, seen: Any) -> None:
        """As it was when it was looked at."""

    def note(self) -> None:
        """The state as it is, for `has_moved`; and for `put_back`, if it has."""

    def keep(self) -> None:
        """The state as it is, for `put_back` only."""

    def has_moved(self) -> bool:
        """Whether it is another one than was noted. Never no if it is; yes also if it was set to what it was."""

    def put_back(self) -> None:
        """As it was when it was noted or kept. ValueError where it has become one of another kind."""

    def bits(self, read: Read, place: int) -> Any:
        """What `seed` needs of the random bytes at that place. Many at once are read faster."""

    def seed(self, bits: Any) -> None:
        """Begin with them."""


def generators() -> list[Generator]:
    """Of this process: that of torch only where the program has imported it."""
    torch = sys.modules.get("torch")
    return [_python(), _Numpy(), *([] if torch is None else [_torch(torch)])]


def arrived_since(known: Sequence[Generator]) -> list[Generator]:
    """That of torch, as it was at first, where the program has imported it since those were found."""
    torch = sys.modules.get("torch")
    if torch is None or any(isinstance(generator, _TorchAsked) for generator in known):
        return []
    torch.default_generator.manual_seed(torch.default_generator.initial_seed())
    return [_torch(torch)]


def _python() -> Generator:
    # The one behind random.random() and its like, which are its methods; unless the program has put others there.
    instance: Any = getattr(random.random, "__self__", None)
    region = region_of_python(instance)
    return _PythonAsked() if region is None else _Python(instance, region)


class _PythonAsked:
    def __init__(self) -> None:
        self._noted: Any = None

    def look(self) -> Any:
        return random.getstate()

    def restore(self, seen: Any) -> None:
        random.setstate(seen)

    def note(self) -> None:
        self._noted = random.getstate()

    keep = note

    def has_moved(self) -> bool:
        return bool(random.getstate() != self._noted)

    def put_back(self) -> None:
        random.setstate(self._noted)

    def bits(self, read: Read, place: int) -> bytes:
        return read(WORDS_BYTES, seek=place + PYTHON_AT)

    def seed(self, bits: bytes) -> None:
        random.setstate((random.Random.VERSION, (*struct.unpack(f"<{_WORDS}I", bits), 0), None))


class _Python:
    def __init__(self, instance: Any, region: Region) -> None:
        self._instance = instance
        self._region = region
        self._view = region.view
        self._gauss: float | None = None

    def look(self) -> Any:
        return bytes(self._view), self._instance.gauss_next

    def restore(self, seen: Any) -> None:
        self._view[:], self._instance.gauss_next = seen

    def note(self) -> None:
        self._region.note()
        self._gauss = self._instance.gauss_next

    keep = note

    def has_moved(self) -> bool:
        region = self._region
        return region.ends != region.noted_ends or bool(self._instance.gauss_next != self._gauss)

    def put_back(self) -> None:
        self._region.put_back()
        self._instance.gauss_next = self._gauss

    def bits(self, read: Read, place: int) -> bytes:
        return _FIRST + read(WORDS_BYTES, seek=place + PYTHON_AT)

    def seed(self, bits: bytes) -> None:
        self._view[:] = bits
        self._instance.gauss_next = None


class _Numpy:
    """The legacy one, behind numpy.random.rand() and its like. The program may give it another bit generator."""

    def __init__(self) -> None:
        self._gauss = region_of_gauss(np.random.get_state.__self__)  # type: ignore[attr-defined]
        self._generator: Any = None
        self._regions: tuple[Region, Region] | None = None
        # The bit generator of then, and its regions; or what was seen.
        self._noted: tuple[Any, tuple[Region, Region] | None, Any] = None, None, None

    def look(self) -> Any:
        regions = self._found()
        if regions is None:
            state = np.random.get_state(legacy=False)
            return _Said(_comparable(state), state)
        words, kept = regions
        has_gauss, gauss = GAUSS.unpack(kept.view)
        return bytes(words.view), gauss if has_gauss else None

    def restore(self, seen: Any) -> None:
        if isinstance(seen, _Said):
            np.random.set_state(seen.state)
            return
        raw, gauss = seen
        words = np.frombuffer(raw, np.uint32)
        has_gauss = gauss is not None
        np.random.set_state(
            ("MT19937", words[:_WORDS], int(words[_WORDS]), int(has_gauss), gauss if has_gauss else 0.0)
        )

    def note(self) -> None:
        regions = self._found()
        if regions is None:
            self._noted = self._generator, None, self.look()
            return
        for region in regions:
            region.note()
        self._noted = self._generator, regions, None

    keep = note

    def has_moved(self) -> bool:
        generator, regions, seen = self._noted
        if mtrand.get_bit_generator() is not generator:
            return True
        if regions is None:
            return bool(self.look() != seen)
        words, kept = regions
        return words.ends != words.noted_ends or kept.ends != kept.noted_ends

    def put_back(self) -> None:
        generator, regions, seen = self._noted
        if regions is None:
            self.restore(seen)
        elif mtrand.get_bit_generator() is generator:
            for region in regions:
                region.put_back()
        else:
            name = type(mtrand.get_bit_generator()).__name__
            raise ValueError(f"numpy.random draws from a {name} now, and drew from another bit generator")

    def bits(self, read: Read, place: int) -> bytes:
        return read(WORDS_BYTES, seek=place + NUMPY_AT)

    def seed(self, bits: bytes) -> None:
        regions = self._found()
        if regions is not None:
            words, kept = regions
            words.view[:WORDS_BYTES] = bits
            words.view[WORDS_BYTES:] = _FIRST
            kept.view[:4] = _FIRST
        elif type(self._generator) is np.random.MT19937:
            np.random.set_state(("MT19937", np.frombuffer(bits, "<u4"), 0, 0, 0.0))
        else:
            begun = type(self._generator)(int.from_bytes(bits[:32], "little")).state
            np.random.set_state({**begun, "has_gauss": 0, "gauss": 0.0})

    def _found(self) -> tuple[Region, Region] | None:
        """The words and the index, and the normal number that is kept; None where they have to be asked for."""
        generator = mtrand.get_bit_generator()
        if generator is not self._generator:
            words = region_of_numpy(generator)
            self._generator = generator
            self._regions = None if words is None or self._gauss is None else (words, self._gauss)
        return self._regions


@dataclass(frozen=True)
class _Said:
    """A state that was asked for. Those of some bit generators have arrays, which do not compare."""

    comparable: Any
    state: Any = field(compare=False, repr=False)


def _comparable(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _comparable(part) for name, part in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _torch(torch: Any) -> Generator:
    # That of the processor: accelerators make no samples, and would have to be waited for.
    region = region_of_torch(torch, torch.default_generator)
    return _TorchAsked(torch) if region is None else _Torch(torch, region)


class _TorchAsked:
    def __init__(self, torch: Any) -> None:
        self._generator = torch.default_generator
        self.seed = torch.default_generator.manual_seed
        self._torch = torch
        self._noted: Any = None

    def look(self) -> Any:
        return bytes(self._generator.get_state().numpy())

    def restore(self, seen: Any) -> None:
        self._generator.set_state(self._torch.frombuffer(bytearray(seen), dtype=self._torch.uint8))

    def note(self) -> None:
        self._noted = self._generator.get_state()

    keep = note

    def has_moved(self) -> bool:
        return not self._torch.equal(self._generator.get_state(), self._noted)

    def put_back(self) -> None:
        self._generator.set_state(self._noted)

    def bits(self, read: Read, place: int) -> int:
        return number_at(read, place + TORCH_AT)


class _Torch(_TorchAsked):
    """Looked at where it lies. It is not written there: its own functions are as fast."""

    def __init__(self, torch: Any, region: Region) -> None:
        super().__init__(torch)
        self._region = region

    def note(self) -> None:
        self._region.note()
        self._noted = None

    def has_moved(self) -> bool:
        return self._region.ends != self._region.noted_ends

    def put_back(self) -> None:
        if self._noted is None:
            self.restore(engine_state(self._region.noted))
        else:
            super().put_back()
