"""How an epoch is cut into batches, and how ranks share one. Arithmetic only.

There is one order and one count of consumed samples for all ranks together. So a training that stopped with four ranks
goes on with three or eight, or with another batch size, and every sample of the epoch still comes exactly once.
"""

from holdfast.core.errors import UsageError
from holdfast.data.numbers import shown, whole

__all__ = ["batches_in", "check_ranks", "next_batch", "share_of"]


def check_ranks(rank: int, world: int) -> tuple[int, int]:
    """Both, as numbers of Python; UsageError where there is no such rank."""
    hint = "ranks count from 0; both come from the launcher, e.g. torchrun"
    rank, world = whole("rank", rank, hint=hint), whole("world", world, hint=hint)
    if not 0 <= rank < world:
        raise UsageError(f"rank is {shown(rank)} of a world of {shown(world)}", hint=hint)
    return rank, world


def next_batch(consumed: int, length: int, size: int, *, drop_last: bool) -> range:
    """The positions of the next batch, of all ranks together; empty at the end of the epoch.

    The last one is shorter where the length is no multiple; with `drop_last` it is left out.
    """
    stop = min(consumed + size, length)
    if stop - consumed < size and drop_last:
        return range(consumed, consumed)
    return range(consumed, max(consumed, stop))


def batches_in(consumed: int, length: int, size: int, *, drop_last: bool) -> int:
    """How many are left of the epoch."""
    left = max(0, length - consumed)
    return left // size if drop_last else -(-left // size)


def share_of(batch: range, rank: int, world: int, *, pad: bool) -> list[range]:
    """The positions of the batch that one rank takes: consecutive ones, as many as the others, or one more or less.

    Where a batch is smaller than the world, some ranks get nothing; with `pad` each gets as many as the first, and
    those that are missing are taken from the begin of the batch again.
    """
    if not pad:
        whole, rest = divmod(len(batch), world)
        begin = rank * whole + min(rank, rest)
        return [batch[begin : begin + whole + (rank < rest)]]
    each = -(-len(batch) // world)
    parts, begin = [], rank * each
    while each and len(batch):
        at = begin % len(batch)
        part = batch[at : at + each]
        parts.append(part)
        begin, each = begin + len(part), each - len(part)
    return parts or [batch]
