"""The ledger: which samples went into which step. It is saved inside of each checkpoint, so that it always fits it.

Steps that were rolled back, or lost in a crash, are not in the checkpoint that the training went on from, and so not in
its ledger either: what is there is the history that led to this state, and nothing else.

Batches that follow each other are one entry, about one an epoch and attempt. Its digest is that of the numbers of its
samples, so that an audit can tell whether they were those that seed, epoch and position stand for.
"""

import logging
from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from blake3 import blake3

from holdfast.core.errors import FormatError, UsageError
from holdfast.data.order import MAX_LENGTH, Indices

__all__ = ["DIGEST_BYTES", "MAX_ENTRIES", "MAX_READ", "Entry", "Ledger", "entries_of"]

_log = logging.getLogger("holdfast")

MAX_ENTRIES = 2_000
"""Above, the oldest are forgotten: with epochs of a single batch, every save would take longer than the one before."""
MAX_READ = 10_000
"""As many are read."""
DIGEST_BYTES = 16

_MAX_SEED_DIGITS = 400
# Small batches are digested together: each by itself would take several times as long.
_AT_ONCE_BYTES = 16 << 10
_PLAIN_INT = 1 << 63
_INT64 = np.dtype("<i8")

_Count = Annotated[int, msgspec.Meta(ge=0, le=_PLAIN_INT - 1)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=_PLAIN_INT - 1)]
_Position = Annotated[int, msgspec.Meta(ge=0, le=MAX_LENGTH)]
_LongSeed = Annotated[str, msgspec.Meta(pattern=rf"\A-?[1-9][0-9]{{0,{_MAX_SEED_DIGITS - 1}}}\Z")]


class Entry(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Batches of one source that followed each other, in one attempt and one epoch."""

    source: str
    """Its name in the state."""
    attempt: _Positive
    first_step: _Count
    last_step: _Count
    batches: _Positive
    epoch: _Count
    begin: _Position
    """Positions in the order of the epoch, those of all ranks together."""
    end: _Position
    batch_size: _Positive
    """Of one rank. The last batch may be shorter; a single one may have any size, and those without numbers, too."""
    seed: int | _LongSeed | None
    """As text where it does not fit into 64 bits; None where the order does not follow from a seed."""
    length: _Position | None
    """Of the epoch; None where it is not known."""
    shuffle: bool
    rank: _Count
    world: _Positive
    digest: str
    """BLAKE3 of the numbers of this rank's samples, 16 bytes as hexadecimal digits; empty where they have none."""
    drop_last: bool | None = None
    """Whether an end of the epoch that is shorter than a batch is left out; None where unknown, as in older ledgers."""
    pad: bool | None = None
    """Whether the shares of the ranks are filled up; None where unknown."""
    forgotten: bool = False
    """Whether there were batches of the source before it that the ledger does not have."""


_FORGOTTEN = Entry.__struct_fields__.index("forgotten")


class Ledger:
    """What was handed out so far. Not safe for several threads: the loop that takes the batches calls it."""

    def __init__(self) -> None:
        self._closed: deque[list[Any]] = deque()
        self._open: dict[str, _Open] = {}
        # Sources whose first entry here is not that of their first batches.
        self._forgotten: set[str] = set()
        self._goes_on = False

    def note(
        self,
        source: str,
        *,
        attempt: int,
        step: int,
        handed: tuple[int, int, int, Indices | None],
        facts: Mapping[str, Any],
    ) -> None:
        """A batch of the source is handed out for that step: epoch, begin and end of its positions, its samples.

        `facts` has seed, length, shuffle, rank, world, batch_size, drop_last and pad, as far as the source has them.
        """
        epoch, begin, end, indices = handed
        if end <= begin:
            return
        found = self._open.get(source)
        # At every step: what is compared first is what differs first.
        if (
            found is None
            or begin != found.end
            or epoch != found.epoch
            or attempt != found.attempt
            or step < found.last_step
            or end - begin > found.room
            or facts != found.facts
            or (indices is None) is not (found.hasher is None)
        ):
            hasher = None if indices is None else blake3()
            found = self._begin(_Open(source, attempt, step, epoch, range(begin, end), hasher, facts))
        found.end = end
        found.last_step = step
        found.batches += 1
        if indices is not None:
            if end - begin < found.room:
                found.room = 0  # a shorter one is the last: where the ones after it begin would not be known
            if indices.dtype != _INT64:
                indices = indices.astype(_INT64)
            waiting = found.waiting
            waiting += indices.tobytes()
            if len(waiting) >= _AT_ONCE_BYTES:
                found.digest_waiting()

    def plain(self) -> list[list[Any]]:
        """As it goes into a manifest; nothing of it changes later. The entries of each source are in order of time."""
        entries = [*self._closed, *(found.plain() for found in self._open.values())]
        unmarked = set(self._forgotten)
        for at, entry in enumerate(entries):
            if not unmarked:
                break
            if entry[0] in unmarked:
                unmarked.remove(entry[0])
                entries[at] = _marked(entry)
        return entries

    @classmethod
    def from_plain(cls, value: object) -> "Ledger":
        """The ledger of a checkpoint, to be continued; FormatError where it is none. None: the checkpoint has none."""
        ledger = cls()
        ledger._goes_on = not value
        for entry in entries_of(value):
            if entry.forgotten:
                ledger._forgotten.add(entry.source)
            ledger._closed.append(_to_plain(entry))
        ledger._forget()
        return ledger

    @classmethod
    def restored(cls, value: object) -> "Ledger":
        """The same; one that begins anew where it is damaged: the state itself is sound (I7)."""
        try:
            return cls.from_plain(value)
        except FormatError as error:
            _log.warning("the ledger begins anew: %s", error.message)
            return cls.from_plain(None)

    def _begin(self, fresh: "_Open") -> "_Open":
        fresh.check()
        before = self._open.pop(fresh.source, None)
        if before is not None:
            self._closed.append(before.plain())
        elif self._goes_on and (fresh.epoch or fresh.begin):
            self._forgotten.add(fresh.source)
        self._open[fresh.source] = fresh
        self._forget()
        return fresh

    def _forget(self) -> None:
        """The oldest, where there are too many."""
        while self._closed and len(self._closed) + len(self._open) > MAX_ENTRIES:
            self._forgotten.add(self._closed.popleft()[0])


class _Open:
    """An entry that the next batch may join."""

    def __init__(
        self, source: str, attempt: int, step: int, epoch: int, first: range, hasher: Any, facts: Mapping[str, Any]
    ) -> None:
        self.source = source
        self.attempt = attempt
        self.first_step = self.last_step = step
        self.batches = 0
        self.epoch = epoch
        self.begin, self.end = first.start, first.stop
        self.facts = dict(facts)  # a copy: the source may change its own
        self.hasher = hasher
        self.waiting = bytearray()
        world = _number(facts, "world") or 1
        self.batch_size = _number(facts, "batch_size") or max(1, len(first) // world)
        # As many samples as a batch that joins may have. A first one that has more, or fewer, stays alone. Without
        # numbers there is no digest to compute again, and it does not matter where batches begin.
        self.room = self.batch_size * world
        if hasher is None:
            self.room = MAX_LENGTH
        elif len(first) > self.room:
            self.room = len(first) + 1

    def digest_waiting(self) -> None:
        self.hasher.update(self.waiting)
        self.waiting.clear()

    def check(self) -> None:
        """UsageError where the source says what no reader accepts: nothing of it may get into a checkpoint."""
        first = self.plain()
        first[Entry.__struct_fields__.index("batches")] = 1
        try:
            entries_of([first])
        except FormatError as error:
            raise UsageError(
                f"{self.source}: what it says of its batches makes no sense: {error.message}",
                hint="positions and facts come from the source",
            ) from error

    def plain(self) -> list[Any]:
        if self.hasher is not None:
            self.digest_waiting()
        return [
            self.source,
            self.attempt,
            self.first_step,
            self.last_step,
            self.batches,
            self.epoch,
            self.begin,
            self.end,
            self.batch_size,
            _seed(self.facts.get("seed")),
            _number(self.facts, "length"),
            bool(self.facts.get("shuffle")),
            _number(self.facts, "rank") or 0,
            _number(self.facts, "world") or 1,
            "" if self.hasher is None else self.hasher.hexdigest(length=DIGEST_BYTES),
            *_known([_flag(self.facts, "drop_last"), _flag(self.facts, "pad")]),
        ]


def entries_of(value: object) -> list[Entry]:
    """The entries of a ledger as a manifest has it; FormatError where it makes no sense."""
    if value is None:
        return []
    try:
        entries: list[Entry] = msgspec.convert(value, Annotated[list[Entry], msgspec.Meta(max_length=MAX_READ)])
    except (msgspec.ValidationError, RecursionError) as error:
        raise FormatError(f"the ledger is not valid: {error}") from error
    for number, entry in enumerate(entries):
        problem = _problem(entry)
        if problem:
            raise FormatError(f"the ledger is not valid: entry {number} ({entry.source}): {problem}")
    return entries


def _problem(entry: Entry) -> str:
    """Why the entry makes no sense; empty for a sound one."""
    if entry.first_step > entry.last_step:
        return f"steps {entry.first_step} to {entry.last_step}"
    if entry.begin >= entry.end:
        return f"positions {entry.begin} to {entry.end}"
    if entry.rank >= entry.world:
        return f"rank {entry.rank} of {entry.world}"
    even = -(-(entry.end - entry.begin) // (entry.batch_size * entry.world))
    if entry.batches > entry.end - entry.begin or (entry.digest and 1 < entry.batches != even):
        return f"{entry.batches} batches of {entry.batch_size} for positions {entry.begin} to {entry.end}"
    if entry.digest and (len(entry.digest) != 2 * DIGEST_BYTES or entry.digest.strip("0123456789abcdef")):
        return f"the digest {entry.digest[:80]!r}"
    return ""


def _to_plain(entry: Entry) -> list[Any]:
    """Without the mark, which belongs to whichever entry of the source is the first when it is saved."""
    values = [getattr(entry, name) for name in Entry.__struct_fields__[:_FORGOTTEN]]
    return [*values[:-2], *_known(values[-2:])]


def _known(flags: list[bool | None]) -> list[bool | None]:
    """None of them where nothing is known: so readers take it, too."""
    return [] if flags == [None] * len(flags) else flags


def _marked(entry: list[Any]) -> list[Any]:
    return [*entry, *[None] * (_FORGOTTEN - len(entry)), True]


def _flag(facts: Mapping[str, Any], name: str) -> bool | None:
    value = facts.get(name)
    return None if value is None else bool(value)


def _number(facts: Mapping[str, Any], name: str) -> int | None:
    value = facts.get(name)
    return None if value is None else int(value)


def _seed(seed: object) -> int | str | None:
    """As JSON can hold it: whole numbers beyond 64 bits are texts."""
    if not isinstance(seed, int):
        return None
    if -_PLAIN_INT <= seed < _PLAIN_INT:
        return int(seed)
    # Longer than any that Python would turn into text at once: not kept, and the samples are not compared.
    return str(seed) if abs(seed) < 10 ** (_MAX_SEED_DIGITS - 1) else None
