"""A share of a part of the rig: all slices together are the whole, done in turns or on several machines."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

__all__ = ["WHOLE", "Slice"]

_T = TypeVar("_T")


class Slice(NamedTuple):
    """Number `number` of `count`, from 1 on."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Slice":
        """From `2/5`."""
        number, count = map(int, text.split("/"))
        if not 1 <= number <= count:
            raise ValueError(f"there is no slice {number} of {count}")
        return cls(number, count)

    def of(self, items: Sequence[_T]) -> list[_T]:
        """Every n-th, so that each slice has some of everything."""
        return list(items[self.number - 1 :: self.count])

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


WHOLE = Slice(1, 1)
