"""The audit of a ledger: was every sample of every epoch handed out exactly once, in order? From entries to findings.

Positions are compared: in an epoch, each stands for one sample. That the samples were those of their positions is what
the digests say, which are computed again.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from holdfast.data.order import Order
from holdfast.engine.ledger import Entry
from holdfast.engine.recomputing import Orders, cost_of, is_computable, recomputed_digest

__all__ = ["CHANGED", "DISORDERED", "FOREIGN", "REPEATED", "SKIPPED", "Epoch", "Finding", "SourceAudit", "audit"]

REPEATED, SKIPPED, DISORDERED = "repeated", "skipped", "out of order"
CHANGED, FOREIGN = "order changed", "other samples"

Progress = Callable[[int], None]
"""Told how many more numbers of samples were computed."""

_SAMPLES_SHOWN = 8
# Numbers that are computed for digests: some minutes. What is beyond is left out, and said.
_MOST_COMPUTED = 1 << 30


class Finding(NamedTuple):
    """Something that is not as it should be: which positions, and in which attempt and steps."""

    kind: str
    epoch: int
    begin: int
    end: int
    attempt: int
    first_step: int
    last_step: int
    samples: tuple[int, ...]
    """The numbers of the first few; none where they do not follow from a seed."""
    text: str


class Epoch(NamedTuple):
    """What became of one epoch."""

    number: int
    attempts: tuple[int, ...]
    first_step: int
    last_step: int
    batches: int
    end: int
    """The position that it got to."""
    length: int | None
    left_out: int
    """Of its end, fewer than a batch: on purpose."""
    under_way: bool
    counts: str
    """What its positions are: `samples`, or `items` or `batches` of data without numbers."""


class SourceAudit(NamedTuple):
    """What the ledger says of one source."""

    source: str
    epochs: list[Epoch]
    findings: list[Finding]
    remarks: list[str]
    entries: int
    compared: int
    """Entries whose samples were computed again."""


class _Piece(NamedTuple):
    """Consecutive positions, and the entry that handed them out first."""

    begin: int
    end: int
    entry: Entry


def audit(
    entries: Iterable[Entry],
    *,
    compare: bool = True,
    ended: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> list[SourceAudit]:
    """One result for each source. Without `compare`, the samples are not computed again.

    `ended` is an epoch of each source that is known to be over: of one without a length, the ledger cannot tell.
    """
    by_source: dict[str, list[Entry]] = {}
    for entry in entries:
        by_source.setdefault(entry.source, []).append(entry)
    orders = Orders()
    found = []
    for source, of_source in by_source.items():
        walk = _Walk(of_source, orders, (ended or {}).get(source))
        if compare:
            walk.compare(progress or (lambda _: None))
        findings = sorted(walk.findings, key=lambda finding: (finding.epoch, finding.begin, finding.attempt))
        found.append(SourceAudit(source, walk.epochs, findings, walk.remarks, len(of_source), walk.compared))
    return found


class _Walk:
    """Through the entries of one source, in order of time."""

    def __init__(self, entries: Sequence[Entry], orders: Orders, ended: int | None) -> None:
        self._entries = entries
        self._orders = orders
        self._ended = ended
        self._pieces: dict[int, list[_Piece]] = {}
        self.findings: list[Finding] = []
        self.remarks: list[str] = []
        self.compared = 0
        self._note_begin()
        newest = entries[0].epoch
        # The first of every epoch that was later than all before it, in order of time and of epochs.
        self._advances = [entries[0]]
        for entry in entries:
            if entry.epoch > newest:
                newest = entry.epoch
                self._advances.append(entry)
            self._cover(entry, newest)
        for before, after in pairwise(entries):
            self._note_changes(before, after)
        self.epochs = self._sum_up()
        self._find_gaps()

    def _note_begin(self) -> None:
        """A ledger that does not begin with the training says nothing of what was before."""
        first = self._entries[0]
        self._known_from = (0, 0)
        if (first.forgotten or first.first_step > 1) and (first.epoch or first.begin):
            self._known_from = (first.epoch, first.begin)
            self.remarks.append(
                f"the ledger begins with step {first.first_step}, epoch {first.epoch}, position {first.begin}: "
                "what was before is not known"
            )
        if first.world > 1:
            self.remarks.append(
                f"this is the ledger of rank {first.rank} of {first.world}: positions are those of all ranks, "
                "samples those of this one"
            )
        if not first.digest:
            self.remarks.append("the samples have no numbers: positions only were checked")

    def _cover(self, entry: Entry, newest_epoch: int) -> None:
        """Note its positions: those that were handed out before, and those whose turn was earlier, are findings."""
        pieces = self._pieces.setdefault(entry.epoch, [])
        at = bisect_right(pieces, entry.begin, key=lambda piece: piece.end)
        reached, fresh = entry.begin, []
        for piece in pieces[at:]:
            if piece.begin >= entry.end:
                break
            if piece.begin > reached:
                fresh.append(_Piece(reached, piece.begin, entry))
            begin, reached = max(piece.begin, entry.begin), min(piece.end, entry.end)
            before = f"before that {_when(piece.entry, begin, reached)}"
            self._find(REPEATED, entry, begin, reached, f"repeated {_when(entry, begin, reached)}; {before}")
        if reached < entry.end:
            fresh.append(_Piece(reached, entry.end, entry))
        for piece in fresh:
            late = ""
            if entry.epoch < newest_epoch:
                late = f"after epoch {newest_epoch} had begun"
            elif pieces and piece.begin < pieces[-1].begin:
                late = "after later ones"
            if late:
                text = f"out of order: {_when(entry, piece.begin, piece.end)}, {late}"
                self._find(DISORDERED, entry, piece.begin, piece.end, text)
        for piece in fresh:
            pieces.insert(bisect_right(pieces, piece.begin, key=lambda known: known.begin), piece)

    def _note_changes(self, before: Entry, after: Entry) -> None:
        names = ("seed", "length", "shuffle", "batch_size", "rank", "world", "drop_last", "pad")
        pairs = [(name, getattr(before, name), getattr(after, name)) for name in names]
        # Of the last two, a newer version only says more than an older one.
        what = [
            f"{name} {was} → {now}"
            for name, was, now in pairs
            if was != now and (name not in ("drop_last", "pad") or None not in (was, now))
        ]
        if not what:
            return
        text = f"{', '.join(what)} with step {after.first_step} of attempt {after.attempt}"
        same_order = (before.seed, before.length, before.shuffle) == (after.seed, after.length, after.shuffle)
        if same_order or before.epoch != after.epoch:
            self.remarks.append(text)
        else:
            text = f"another order in the middle of the epoch, which repeats samples and leaves out others: {text}"
            self._find(CHANGED, after, after.begin, after.end, text)

    def _sum_up(self) -> list[Epoch]:
        by_epoch: dict[int, list[Entry]] = {}
        for entry in self._entries:
            by_epoch.setdefault(entry.epoch, []).append(entry)
        # Where a ledger does not say, one shorter last batch is enough: such are not left out on purpose.
        thorough = any(
            entry.drop_last is False or (entry.end == entry.length and (entry.end - entry.begin) % _span(entry))
            for entry in self._entries
        )
        last = max(by_epoch)
        epochs: list[Epoch] = []
        for number, entries in sorted(by_epoch.items()):
            piece = self._pieces[number][-1]
            length = piece.entry.length
            rest = 0 if length is None else length - piece.end
            # A batch that does not fit is left out by the one before it, or by whoever comes there after a restart.
            at_the_end = [piece.entry] if number == last else [piece.entry, self._passed(number)]
            excused = rest > 0 and any(_leaves_out(entry, rest, thorough=thorough) for entry in at_the_end)
            if number == last and piece.entry.drop_last is None:
                # Its rest may be yet to come, unless the epoch before it had none either.
                excused = excused and bool(epochs) and (epochs[-1].length, epochs[-1].left_out) == (length, rest)
            is_over = excused or (number == self._ended if length is None else rest <= 0)
            epochs.append(
                Epoch(
                    number,
                    tuple(sorted({entry.attempt for entry in entries})),
                    min(entry.first_step for entry in entries),
                    max(entry.last_step for entry in entries),
                    sum(entry.batches for entry in entries),
                    piece.end,
                    length,
                    left_out=rest if excused else 0,
                    under_way=number == last and not is_over,
                    counts=_counts(entries),
                )
            )
        return epochs

    def _passed(self, epoch: int) -> Entry:
        """Who went on with a later epoch first."""
        return self._advances[bisect_right(self._advances, epoch, key=lambda entry: entry.epoch)]

    def _find_gaps(self) -> None:
        known_epoch, known_begin = self._known_from
        expected = known_epoch
        for epoch in self.epochs:
            if epoch.number > expected:
                self._find_missing_epochs(expected, epoch.number)
            expected = max(expected, epoch.number + 1)
            if epoch.number < known_epoch:
                continue
            reached = known_begin if epoch.number == known_epoch else 0
            for piece in self._pieces[epoch.number]:
                if piece.begin > reached:
                    self._find_gap(epoch.number, reached, piece.begin, piece.entry)
                reached = max(reached, piece.end)
            length = reached if epoch.length is None else epoch.length
            last = self._pieces[epoch.number][-1].entry
            if reached > length:
                self._find(FOREIGN, last, length, reached, f"beyond the end: the epoch has {length}")
            elif length - reached > epoch.left_out and not epoch.under_way:
                self._find_gap(epoch.number, reached, length, last)

    def _find_missing_epochs(self, first: int, following: int) -> None:
        passed = next(entry for entry in self._entries if entry.epoch >= following)
        last = following - 1
        text = f"epoch {first} is" if first == last else f"epochs {first}–{last} are"
        text += f" missing: attempt {passed.attempt} went on with epoch {passed.epoch} at step {passed.first_step}"
        step, end = passed.first_step, passed.length or 0
        self.findings.append(Finding(SKIPPED, first, 0, end, passed.attempt, step, step, (), text))

    def _find_gap(self, epoch: int, begin: int, end: int, near: Entry) -> None:
        """`near` is an entry of the epoch."""
        passed = next(e for e in self._entries if (e.epoch == epoch and e.begin >= end) or e.epoch > epoch)
        step = passed.first_step
        text = f"skipped: attempt {passed.attempt} went on behind them at step {step}"
        samples = self._samples(near, begin, end)
        self.findings.append(
            Finding(
                SKIPPED, epoch, begin, end, passed.attempt, step, step, samples, _text(epoch, begin, end, text, samples)
            )
        )

    def _find(self, kind: str, entry: Entry, begin: int, end: int, text: str) -> None:
        """Something about positions that the entry handed out."""
        first_step, last_step, _ = _steps(entry, begin, end)
        samples = self._samples(entry, begin, end)
        text = _text(entry.epoch, begin, end, text, samples)
        self.findings.append(
            Finding(kind, entry.epoch, begin, end, entry.attempt, first_step, last_step, samples, text)
        )

    def _samples(self, entry: Entry, begin: int, end: int) -> tuple[int, ...]:
        order = self._orders.of(entry)
        end = min(end, begin + _SAMPLES_SHOWN)
        return () if order is None or end > len(order) else tuple(order.indices(begin, end).tolist())

    def compare(self, progress: Progress) -> None:
        """Compute the samples again, and their digests."""
        spent, left_out, padded = 0, 0, 0
        for entry in filter(is_computable, self._entries):
            order = self._orders.of(entry)
            if order is None or spent + cost_of(entry) > _MOST_COMPUTED:
                left_out += 1
                continue
            spent += cost_of(entry)
            self.compared += 1
            pad = _pad_that_fits(entry, order, progress)
            if pad is None:
                steps = _range("step", entry.first_step, entry.last_step)
                text = f"the samples of {steps} (attempt {entry.attempt}) are not those of seed {entry.seed}"
                self._find(FOREIGN, entry, entry.begin, entry.end, text)
            padded += bool(pad)
        if padded:
            self.remarks.append("shares of the ranks were filled up at the ends of epochs (pad): some samples twice")
        if left_out:
            self.remarks.append(
                f"{left_out} of {len(self._entries)} entries have too many samples to compute again: not compared"
            )


def _span(entry: Entry) -> int:
    """The positions of one batch, of all ranks together."""
    return entry.batch_size * entry.world


def _leaves_out(entry: Entry, rest: int, *, thorough: bool) -> bool:
    """Whether its batches are larger than what is left of the epoch, and it has none that are shorter."""
    return rest < _span(entry) and (not thorough if entry.drop_last is None else entry.drop_last)


def _counts(entries: Sequence[Entry]) -> str:
    if any(entry.digest for entry in entries):
        return "samples"
    one_each = all(entry.batches == entry.end - entry.begin for entry in entries)
    return "batches" if one_each else "items"


def _pad_that_fits(entry: Entry, order: Order, progress: Progress) -> bool | None:
    """Whether shares were filled up so that the samples are those of the order; None where they are not."""
    if (entry.end - entry.begin) % entry.world == 0:
        ways = [False]  # all shares are of the same size
    else:
        ways = [False, True] if entry.pad is None else [entry.pad]
    for pad in ways:
        # What is tried in vain does not count as progress twice.
        told = progress if pad is ways[0] else (lambda _: None)
        if recomputed_digest(entry, order, pad=pad, progress=told) == entry.digest:
            return pad
    return None


def _steps(entry: Entry, begin: int, end: int) -> tuple[int, int, bool]:
    """The steps that these positions of the entry went into; all of its steps where it is not known better."""
    if entry.first_step == entry.last_step:
        return entry.first_step, entry.last_step, True
    if not entry.digest or entry.batches != entry.last_step - entry.first_step + 1:
        return entry.first_step, entry.last_step, False
    first = entry.first_step + (begin - entry.begin) // _span(entry)
    return first, entry.first_step + (end - 1 - entry.begin) // _span(entry), True


def _when(entry: Entry, begin: int, end: int) -> str:
    first, last, exact = _steps(entry, begin, end)
    return f"{'at' if exact else 'within'} {_range('step', first, last)} of attempt {entry.attempt}"


def _text(epoch: int, begin: int, end: int, text: str, samples: Sequence[int]) -> str:
    listed = ", ".join(map(str, samples)) + (", …" if end - begin > len(samples) else "")
    named = f" ({'sample' if end - begin == 1 else 'samples'} {listed})" if samples else ""
    return f"epoch {epoch}, {_range('position', begin, end - 1)}{named}: {text}"


def _range(noun: str, first: int, last: int) -> str:
    return f"{noun} {first}" if first == last else f"{noun}s {first}–{last}"
