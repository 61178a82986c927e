"""Random bytes for every sample of an epoch: from seed, epoch and the sample's number, whoever asks for them and when.

They are one long output of BLAKE3, in which each sample has a place of its own: nothing has to be hashed again for the
next sample, and a state of 2,496 bytes is read faster than a Mersenne twister spreads a seed of 8 over its own.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

from blake3 import blake3

__all__ = ["NUMPY_AT", "PYTHON_AT", "TORCH_AT", "WORDS_BYTES", "Kind", "Read", "all_bits", "number_at", "sample_bits"]

Kind = Literal["sample", "batch", "worker"]
Read = Callable[..., bytes]
"""`read(count, seek=place)`."""

_VERSION = "holdfast sample 2"
WORDS_BYTES = 4 * 624
"""Of a Mersenne twister."""
PYTHON_AT, NUMPY_AT, TORCH_AT = 0, WORDS_BYTES, 2 * WORDS_BYTES
"""Within the place of a sample: for `random` and numpy whole states, for torch a number."""
_PLACE_BYTES = 2 * WORDS_BYTES + 64
_PLACES_BITS = 51  # that many fit into an output, which has 2^64 bytes
_PLACES = (1 << _PLACES_BITS) - 1


def sample_bits(seed: int, epoch: int, index: int, *, kind: Kind = "sample", worker: int = 0) -> tuple[Read, int]:
    """The place of one sample of one epoch; or of the batch that begins with it, or of what comes of a worker."""
    return _output(seed, epoch, kind, worker, index >> _PLACES_BITS), (index & _PLACES) * _PLACE_BYTES


def all_bits(seed: int, epoch: int, indices: Sequence[int]) -> list[tuple[Read, int]]:
    """`sample_bits` of the samples of a batch: faster at once than between one sample and the next."""
    parts = {index >> _PLACES_BITS for index in indices}
    outputs = {part: _output(seed, epoch, "sample", 0, part) for part in parts}
    return [(outputs[index >> _PLACES_BITS], (index & _PLACES) * _PLACE_BYTES) for index in indices]


def number_at(read: Read, place: int) -> int:
    """64 bits."""
    return int.from_bytes(read(8, seek=place), "little")


@lru_cache(maxsize=64)
def _output(seed: int, epoch: int, kind: Kind, worker: int, part: int) -> Read:
    return blake3(f"{_VERSION}:{seed}:{epoch}:{kind}:{worker}:{part}".encode()).digest
