"""The samples of a ledger's entry, computed again from seed, epoch and positions, and their digest."""

from collections.abc import Callable, Iterator

from blake3 import blake3

from holdfast.data.order import Indices, Order
from holdfast.data.sharing import share_of
from holdfast.engine.ledger import DIGEST_BYTES, Entry

__all__ = ["Orders", "cost_of", "is_computable", "recomputed_digest"]

_BLOCK = 1 << 16
# What asking for a batch costs, in numbers that could be computed meanwhile.
_CALL = 400


class Orders:
    """The order of an entry's epoch; the last one is kept, since entries of an epoch follow each other."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._order = Order(0, seed=0, epoch=0)

    def of(self, entry: Entry) -> Order | None:
        """None where it does not follow from a seed."""
        if entry.seed is None or entry.length is None:
            return None
        key = (entry.length, entry.seed, entry.epoch, entry.shuffle)
        if key != self._key:
            self._order = Order(entry.length, seed=int(entry.seed), epoch=entry.epoch, shuffle=entry.shuffle)
            self._key = key
        return self._order


def is_computable(entry: Entry) -> bool:
    """Whether there is a digest, and what it takes to compute it again."""
    return bool(entry.digest) and entry.seed is not None and entry.length is not None and entry.end <= entry.length


def cost_of(entry: Entry) -> int:
    """About how many numbers have to be computed for it."""
    span = entry.end - entry.begin
    return span if entry.world == 1 else span // entry.world + _CALL * entry.batches


def recomputed_digest(entry: Entry, order: Order, *, pad: bool, progress: Callable[[int], None] | None = None) -> str:
    """What the digest would be if the samples were those of the order; `pad` as in `share_of`.

    `progress` is told, now and then, how much more of `cost_of` the entry is done.
    """
    hasher = blake3()
    call = 0 if entry.world == 1 else _CALL
    waiting, told = 0, 0
    for indices in _whole(entry, order) if entry.world == 1 else _shares(entry, order, pad=pad):
        hasher.update(indices.astype("<i8").tobytes())
        waiting += len(indices) + call
        if progress is not None and waiting >= _BLOCK:
            progress(waiting)
            waiting, told = 0, told + waiting
    if progress is not None:
        progress(max(0, cost_of(entry) - told))
    return hasher.hexdigest(length=DIGEST_BYTES)


def _whole(entry: Entry, order: Order) -> Iterator[Indices]:
    for begin in range(entry.begin, entry.end, _BLOCK):
        yield order.indices(begin, min(begin + _BLOCK, entry.end))


def _shares(entry: Entry, order: Order, *, pad: bool) -> Iterator[Indices]:
    span = entry.batch_size * entry.world if entry.batches > 1 else entry.end - entry.begin
    for begin in range(entry.begin, entry.end, span):
        for part in share_of(range(begin, min(begin + span, entry.end)), entry.rank, entry.world, pad=pad):
            yield order.indices(part.start, part.stop)
