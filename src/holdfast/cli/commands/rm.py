"""`holdfast rm`: remove checkpoints by hand."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.cli.choosing import BEST, LATEST, Best, best_of, pick, unreadable_after
from holdfast.cli.exit_codes import NO, OK
from holdfast.cli.output import Output
from holdfast.cli.parser import add_choice, add_run, add_yes
from holdfast.cli.runs import Run
from holdfast.cli.words import count, size
from holdfast.core.clock import SystemClock
from holdfast.core.errors import UsageError
from holdfast.core.values import Checkpoint
from holdfast.engine.catalog import Catalog
from holdfast.engine.commit import remove_checkpoint
from holdfast.engine.journal import Journal
from holdfast.engine.marks import QUARANTINED, list_marks
from holdfast.engine.pruning import is_complete, needed_by_a_restart
from holdfast.policy.lineage import healthy_before_suspects, in_order, latest, live_line

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
Remove checkpoints. Pinned ones, the last verified one (the newest that was read back and found intact), the last good
one, and the last healthy one if newer ones are suspect, are refused without --force; then nothing is removed, and the
exit status is 1."""
EXAMPLES = (
    "holdfast rm runs/mnist 1200",
    "holdfast rm runs/mnist 1000 1100 --yes",
)

_STEPS_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    add_choice(parser, several=True)
    parser.add_argument(
        "--force", action="store_true", help="also the last good, verified or healthy one, and pinned ones"
    )
    add_yes(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Check, ask, remove."""
    best = best_of(arguments, *arguments.which)
    with Run(arguments.run, writable=True) as opened:
        catalog = opened.catalog()
        picked = [_pick(opened, catalog, which, best) for which in arguments.which]
        doomed = list({checkpoint.id: checkpoint for checkpoint in picked}.values())
        refused = [] if arguments.force else list(_refusals(opened, catalog.checkpoints, doomed))
        if refused:
            return _refuse(arguments.run, refused, out)
        said = {c.id: best.in_words(c) for c, which in zip(picked, arguments.which, strict=True) if which == BEST}
        if not out.confirm(f"remove {', '.join(_named(c, said) for c in doomed)}?", yes=arguments.yes):
            out.remark("nothing was removed")
            return NO
        removed = [
            checkpoint
            for checkpoint in doomed
            if remove_checkpoint(opened.store, checkpoint.id, attempt=None, spares_pinned=not arguments.force)
        ]
        names = [checkpoint.id for checkpoint in removed]
        Journal(opened.store, SystemClock(), 0).record("removed", by="holdfast rm", removed=names)
    freed_bytes = sum(checkpoint.size_bytes for checkpoint in removed)
    left = [checkpoint for checkpoint in doomed if checkpoint not in removed]
    pinned = [_Refusal(c.id, f"step {c.step} was pinned meanwhile", "") for c in left]
    if out.json:
        refusals = [refusal._asdict() for refusal in pinned]
        out.document({"run": arguments.run, "removed": names, "freed_bytes": freed_bytes, "refused": refusals})
    else:
        which = f": {_summed_up(removed, said)}" if removed else ""
        out.line(f"{count(len(removed), 'checkpoint')} removed, {size(freed_bytes)} freed{which}")
    _say_refused(pinned, out)
    return NO if pinned else OK


def _pick(opened: Run, catalog: Catalog, which: str, best: Best) -> Checkpoint:
    """One of them; not a good one where the newest is damaged, or cannot be read, and may well be meant."""
    picked = pick(catalog.checkpoints, which, best=best, where=opened.path)
    if which != LATEST:
        return picked
    newest = latest(catalog.checkpoints)
    marked = list_marks(opened.store)[QUARANTINED]
    unreadable = unreadable_after(newest, catalog.checkpoints, quarantined=marked)
    if unreadable:
        # By its id: of that step there may be a good one as well.
        newest = unreadable[-1]
        raise _not_the_newest(picked, newest, f"rm {opened.path} {newest.id}", is_unread=newest.id in catalog.unread)
    if newest.id != picked.id:
        raise _not_the_newest(picked, newest, f"rm {opened.path} {newest.step}")
    return picked


def _named(checkpoint: Checkpoint, best: Mapping[str, str]) -> str:
    """Its step and its id, and why it is the best, if that was asked for."""
    why = f", {best[checkpoint.id]}" if checkpoint.id in best else ""
    return f"step {checkpoint.step} ({checkpoint.id}){why}"


def _summed_up(removed: Sequence[Checkpoint], best: Mapping[str, str]) -> str:
    named = [_named(c, best) for c in removed if len(removed) == 1 or c.id in best]
    if len(removed) == 1:
        return named[0]
    steps = sorted(c.step for c in removed)
    more = f" and {len(steps) - _STEPS_SHOWN} more" if len(steps) > _STEPS_SHOWN else ""
    return f"steps {', '.join(map(str, steps[:_STEPS_SHOWN]))}{more}" + "".join(f"; best was {text}" for text in named)


def _not_the_newest(picked: Checkpoint, newest: Checkpoint, command: str, *, is_unread: bool = False) -> UsageError:
    why = "cannot be read now" if is_unread else "is damaged"
    return UsageError(
        f"latest is step {picked.step}, for the newest one, step {newest.step}, {why}; nothing was removed",
        hint=f"say which you mean: holdfast {command}",
    )


class _Refusal(NamedTuple):
    id: str
    reason: str
    hint: str


def _refusals(opened: Run, checkpoints: Sequence[Checkpoint], doomed: Sequence[Checkpoint]) -> Iterator[_Refusal]:
    """Which of them a person or a restart would miss (I6)."""
    left = [c for c in checkpoints if c not in doomed]
    last_good = _last_good(opened, checkpoints, left)
    last_verified = _last_verified(checkpoints)
    healthy = healthy_before_suspects(checkpoints, live_line(checkpoints))
    if last_good is not None and last_good not in doomed:
        yield _passing_over(last_good, doomed)
    for checkpoint in doomed:
        if checkpoint.pinned:
            hint = f"`holdfast unpin {opened.path} {checkpoint.step}` first"
            yield _Refusal(checkpoint.id, f"step {checkpoint.step} is pinned", hint)
        if checkpoint == last_good:
            what = "last good checkpoint" if checkpoint.is_sound else "last checkpoint that a restore would try"
            hint = "a restart would take none of those that are left" if any(c.is_sound for c in left) else ""
            yield _Refusal(checkpoint.id, f"step {checkpoint.step} is the {what} of {opened.path}", hint)
        elif checkpoint.id == last_verified:
            is_newest = in_order([*(c for c in _usable(checkpoints) if c in left), checkpoint])[-1] is checkpoint
            hint = "" if is_newest else f"verify a newer one first: holdfast verify {opened.path}"
            reason = f"step {checkpoint.step} is the last verified checkpoint of {opened.path}"
            yield _Refusal(checkpoint.id, reason, hint)
        elif healthy is not None and checkpoint.id == healthy.id:
            reason = f"step {checkpoint.step} is the last healthy checkpoint of {opened.path}: newer ones are suspect"
            yield _Refusal(checkpoint.id, reason, "")


def _last_good(opened: Run, checkpoints: Sequence[Checkpoint], left: Sequence[Checkpoint]) -> Checkpoint | None:
    """What a restart takes now, if it would take nothing of what is left.

    Where it finds nothing complete as it is: the newest good one, if none that is complete is left.
    """
    taken = needed_by_a_restart(opened.store, opened.run_id, checkpoints)
    if taken:
        is_last = not needed_by_a_restart(opened.store, opened.run_id, left)
        return next(c for c in checkpoints if c.id == taken[-1]) if is_last else None
    usable = in_order(_usable(checkpoints))
    if any(is_complete(opened.store, opened.run_id, c.id) for c in reversed(usable) if c in left):
        return None
    return next((c for c in reversed(usable) if c not in left), None)


def _usable(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    # Where all are damaged, a restore still tries them: the mark may be wrong, and what is gone stays gone.
    return [c for c in checkpoints if c.is_sound] or [c for c in checkpoints if not c.quarantined]


def _passing_over(last_good: Checkpoint, doomed: Sequence[Checkpoint]) -> _Refusal:
    """To an abandoned one a restart goes back only from later steps, be they quarantined."""
    newest = in_order(doomed)[-1]
    reason = f"without step {newest.step} a restart would pass over step {last_good.step}, and find no other"
    return _Refusal(newest.id, reason, "")


def _last_verified(checkpoints: Sequence[Checkpoint]) -> str | None:
    """The one that no pruning takes either (`policy.keep`): on the live line, if there is one."""
    live = live_line(checkpoints)
    verified = [c for c in in_order(checkpoints) if c.verified and c.is_sound]
    found = [c for c in verified if c.id in live] or verified
    return found[-1].id if found else None


def _refuse(run_path: str, refused: Sequence[_Refusal], out: Output) -> int:
    if out.json:
        refusals = [refusal._asdict() for refusal in refused]
        out.document({"run": run_path, "removed": [], "freed_bytes": 0, "refused": refusals})
    _say_refused(refused, out)
    return NO


def _say_refused(refused: Sequence[_Refusal], out: Output) -> None:
    for refusal in refused:
        out.remark(f"holdfast: refused: {refusal.reason}")
        out.remark(f"  hint: {refusal.hint}{'; ' if refusal.hint else ''}--force removes it all the same")
