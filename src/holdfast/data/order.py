"""The order of one epoch: a permutation that is computed where it is asked for, not stored.

It depends on seed, epoch and length only, not on who asks, on how many ask, or on what was asked before: so that a
training can go on from any position at once, with any number of ranks and workers.

- Up to 65,536 samples: by sorting as many random numbers, which gives every order the same chance.
- Above: a Feistel network over a rectangle that is hardly larger than the epoch. Left and right half take turns in
  being moved by a hash of the other one; each turn can be undone, so that no two positions get the same sample. Where
  one lands outside of the epoch, it is sent through once more (cycle walking). Memory is that of one block.
"""

import math

import numpy as np
from blake3 import blake3

from holdfast.data.numbers import MAX_LENGTH, whole, whole_seed

__all__ = ["MAX_LENGTH", "Indices", "Order"]

Indices = np.ndarray[tuple[int], np.dtype[np.int64]]
Words = np.ndarray[tuple[int], np.dtype[np.uint64]]

_SORTED_MOST = 1 << 16
_ROUNDS = 8
# Computed and kept at once: small ones cost more for the calls than for the numbers.
_BLOCK = 1 << 12
_VERSION = "holdfast order 1"


class Order:
    """Which sample comes at which position of an epoch."""

    def __init__(self, length: int, *, seed: int, epoch: int, shuffle: bool = True) -> None:
        self.length = whole("length", length, 0, MAX_LENGTH)
        length = self.length
        self._shuffles = shuffle and length > 1
        key = blake3(f"{_VERSION}:{whole_seed(seed)}:{whole('epoch', epoch, 0)}:{length}".encode())
        self._sorted: Indices | None = None
        if self._shuffles and length <= _SORTED_MOST:
            numbers = np.frombuffer(key.digest(8 * length), "<u8")
            self._sorted = np.argsort(numbers, kind="stable").astype(np.int64)
        elif self._shuffles:
            self._keys = [np.uint64(number) for number in np.frombuffer(key.digest(8 * _ROUNDS), "<u8")]
            self._left = math.isqrt(length - 1) + 1
            self._right = -(-length // self._left)
        self._block: Indices = np.empty(0, np.int64)
        self._block_begin = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> int:
        """The sample at that position."""
        if not 0 <= position < self.length:
            raise IndexError(f"position {position} of {self.length}")
        if not self._shuffles:
            return position
        if self._sorted is not None:
            return int(self._sorted[position])
        if not self._block_begin <= position < self._block_begin + len(self._block):
            begin = position // _BLOCK * _BLOCK
            self._block = self.indices(begin, min(begin + _BLOCK, self.length))
            self._block_begin = begin
        return int(self._block[position - self._block_begin])

    def indices(self, start: int, stop: int, step: int = 1) -> Indices:
        """The samples at these positions, in this order."""
        if not 0 <= start <= stop <= self.length or step < 1:
            raise IndexError(f"positions {start} to {stop} by {step} of {self.length}")
        return self.at(np.arange(start, stop, step, dtype=np.int64))

    def at(self, positions: Indices) -> Indices:
        """The samples at these positions, which are not checked."""
        if not self._shuffles:
            return positions
        return self._sorted[positions] if self._sorted is not None else self._permuted(positions)

    def _permuted(self, positions: Indices) -> Indices:
        found = self._through(positions.astype(np.uint64))
        outside = np.flatnonzero(found >= self.length)
        while len(outside):
            found[outside] = self._through(found[outside])
            outside = outside[found[outside] >= self.length]
        return found.astype(np.int64)

    def _through(self, numbers: Words) -> Words:
        """A permutation of 0 … left · right - 1."""
        right_size, left_size = np.uint64(self._right), np.uint64(self._left)
        left = numbers // right_size
        right = numbers - left * right_size
        for turn, key in enumerate(self._keys):
            if turn % 2:
                right = _added(right, _mixed(left, key), right_size)
            else:
                left = _added(left, _mixed(right, key), left_size)
        left *= right_size
        left += right
        return left


def _added(numbers: Words, addends: Words, size: np.uint64) -> Words:
    """Modulo the size. Dividing by one number is several times faster than a remainder, in numpy."""
    wholes = addends // size
    wholes *= size
    addends -= wholes
    addends += numbers
    # Where nothing is to be taken away, taking it away gives a huge number.
    np.subtract(addends, size, out=wholes)
    np.minimum(addends, wholes, out=addends)
    return addends


def _mixed(numbers: Words, key: np.uint64) -> Words:
    """A hash: that of splitmix64, twice with a key between (Steele, Lea and Flood 2014; constants of Stafford)."""
    mixed = numbers + key
    shifted = np.empty_like(mixed)
    for addend in (None, ~key):
        if addend is not None:
            mixed += addend
        for shift, factor in ((_SHIFTS[0], _FACTORS[0]), (_SHIFTS[1], _FACTORS[1]), (_SHIFTS[2], None)):
            np.right_shift(mixed, shift, out=shifted)
            mixed ^= shifted
            if factor is not None:
                mixed *= factor
    return mixed


_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
