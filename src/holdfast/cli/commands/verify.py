"""`holdfast verify`: read every byte and compare it with its digest."""

import argparse
from collections.abc import Sequence

from holdfast.cli.choosing import LATEST, Best, best_of, pick, unreadable_after
from holdfast.cli.exit_codes import NO, OK
from holdfast.cli.output import Output
from holdfast.cli.parser import add_choice, add_run
from holdfast.cli.progress import progress_bar
from holdfast.cli.reading import source_of
from holdfast.cli.runs import Run
from holdfast.cli.table import Style
from holdfast.cli.words import count, size
from holdfast.core.clock import SystemClock
from holdfast.core.errors import HoldfastError, NoCheckpointError, RunError, UsageError
from holdfast.core.values import Checkpoint
from holdfast.engine.marks import DAMAGED, QUARANTINED, VERIFIED, clear_mark, list_marks, set_mark
from holdfast.engine.verify import Verification, verify_checkpoint
from holdfast.policy.lineage import choose, in_order, latest
from holdfast.storage.store import Store

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
Read every byte of a checkpoint and compare it with its digest. What is intact is marked as verified; what is damaged is
marked as that, until it is found intact, and named exactly: file, chunk, and the arrays that have bytes in it. Exit
status 1 where anything is damaged, or cannot be read."""
EXAMPLES = (
    "holdfast verify runs/mnist                     # the latest",
    "holdfast verify runs/mnist 1200",
    "holdfast verify runs/mnist --all --quarantine  # no restore will touch damaged ones",
)
_NAMES_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    add_choice(parser, optional=True)
    parser.add_argument("--all", action="store_true", help="all checkpoints, quarantined ones too")
    parser.add_argument("--quarantine", action="store_true", help="have no restore use damaged ones from now on")
    parser.add_argument("--release", action="store_true", help="take the mark off quarantined ones that are intact")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Verify, mark, report."""
    if arguments.all and arguments.which:
        raise UsageError(f"--all and {arguments.which} exclude each other", hint="leave one of them out")
    which = arguments.which or LATEST
    best = best_of(arguments, *([] if arguments.all else [which]))
    with _open(arguments, out) as opened:
        checkpoints = opened.catalog().checkpoints
        wanted = in_order(checkpoints) if arguments.all else _pick(opened, checkpoints, which, best, arguments.run)
        if not wanted:
            raise NoCheckpointError(f"{arguments.run} has no checkpoints yet", hint="save one first")
        found = _verify(opened, wanted, out, release=arguments.release)
        marked = _mark(opened, found, arguments, out)
    if out.json:
        out.document({"run": arguments.run, "checkpoints": [_document(one, marked) for one in found]})
    else:
        _summarise(found, marked, out)
        _say_what_follows(found, marked, checkpoints, out)
    return OK if all(one.is_intact for one in found) else NO


def _pick(opened: Run, checkpoints: Sequence[Checkpoint], which: str, best: Best, where: str) -> list[Checkpoint]:
    """The one that is asked for. Before the latest, those that would be it, were they not damaged.

    One that is marked as damaged is looked at again: a restore would do that, too.
    """
    if which != LATEST:
        return [pick(checkpoints, which, best=best, where=where)]
    marked = list_marks(opened.store)[QUARANTINED]
    try:
        first = latest(checkpoints)
    except NoCheckpointError:
        # Without one, `pick` raises, and names the run.
        unreadable = unreadable_after(None, checkpoints, quarantined=marked)
        return unreadable or [pick(checkpoints, which, best=best, where=where)]
    return [*unreadable_after(first, checkpoints, quarantined=marked), first]


def _open(arguments: argparse.Namespace, out: Output) -> Run:
    try:
        return Run(arguments.run, writable=True)
    except RunError as error:
        if arguments.quarantine or arguments.release:
            raise
        opened = Run(arguments.run)  # somebody else's, or on a read-only mount
        out.remark(f"{error.message}; so nothing of what is found is noted")
        return opened


def _verify(opened: Run, wanted: Sequence[Checkpoint], out: Output, *, release: bool) -> list[Verification]:
    total_bytes = sum(checkpoint.size_bytes for checkpoint in wanted)
    found: list[Verification] = []
    with progress_bar("verifying", total_bytes, quiet=out.json) as progress:
        source = source_of(opened, progress)
        for checkpoint in wanted:
            try:
                one = verify_checkpoint(source, checkpoint)
            except NoCheckpointError as error:
                if len(wanted) == 1:
                    raise
                out.remark(error.message)
                continue
            found.append(one)
            if not out.json:
                _report(one, out, release=release)
    return found


def _report(one: Verification, out: Output, *, release: bool) -> None:
    verdict = ("intact ", Style.GREEN) if one.is_intact else ("UNREAD " if one.is_unread else "DAMAGED", Style.RED)
    about = f"  step {one.checkpoint.step}  {size(one.read_bytes or one.checkpoint.size_bytes)}  "
    out.pieces(verdict, (about, Style.PLAIN), (one.checkpoint.id, Style.DIM))
    for damage in one.damage:
        out.line(f"         {damage}")
        if damage.leaves:
            more = f" and {len(damage.leaves) - _NAMES_SHOWN} more" if len(damage.leaves) > _NAMES_SHOWN else ""
            out.line(f"         touches {', '.join(damage.leaves[:_NAMES_SHOWN])}{more}")
    if one.is_intact and one.checkpoint.quarantined and not release:
        out.line(f"         quarantined all the same: {one.checkpoint.quarantined} (--release takes the mark off)")


def _mark(opened: Run, found: Sequence[Verification], arguments: argparse.Namespace, out: Output) -> dict[str, str]:
    """Which mark each checkpoint got. A mark that cannot be set does not spoil the answer."""
    marked: dict[str, str] = {}
    if not opened.is_writable:
        return marked
    known = list_marks(opened.store)[QUARANTINED]
    for one in found:
        checkpoint = one.checkpoint
        if one.is_unread:
            continue  # it may be intact, and even the last verified one (I6): a mark would outlast the cause
        try:
            if one.is_intact:
                mark = _mark_intact(opened.store, checkpoint, release=arguments.release)
            else:
                is_known = checkpoint.id in known if arguments.quarantine else bool(checkpoint.quarantined)
                mark = None if is_known else _mark_damaged(opened.store, one, quarantine=arguments.quarantine)
        except HoldfastError as error:
            out.remark(f"{checkpoint.id} cannot be marked: {error.message}")
            break
        if mark is not None:
            marked[checkpoint.id] = mark
    return marked


def _mark_intact(store: Store, checkpoint: Checkpoint, *, release: bool) -> str | None:
    if checkpoint.damaged:
        clear_mark(store, checkpoint.id, DAMAGED)
    if checkpoint.quarantined and not release:
        return None
    if checkpoint.quarantined:
        clear_mark(store, checkpoint.id, QUARANTINED)
    if not checkpoint.verified:
        set_mark(store, checkpoint.id, VERIFIED, reason="holdfast verify", clock=SystemClock())
    return VERIFIED


def _mark_damaged(store: Store, one: Verification, *, quarantine: bool) -> str:
    kind = QUARANTINED if quarantine else DAMAGED
    set_mark(store, one.checkpoint.id, kind, reason=one.reason, clock=SystemClock())
    # I6: from now on it is not the last verified one, and another one is.
    clear_mark(store, one.checkpoint.id, VERIFIED)
    if quarantine:
        clear_mark(store, one.checkpoint.id, DAMAGED)
    return kind


def _summarise(found: Sequence[Verification], marked: dict[str, str], out: Output) -> None:
    damaged = [one for one in found if not (one.is_intact or one.is_unread)]
    unread = [one for one in found if one.is_unread]
    read = size(sum(one.read_bytes for one in found))
    for one in found:
        if _is_released(one, marked):
            was = one.checkpoint.quarantined
            out.line(f"step {one.checkpoint.step} is released, and restores use it again; it was quarantined: {was}")
    if damaged:
        out.line(f"{len(damaged)} of {count(len(found), 'checkpoint')} damaged; {read} read", Style.RED)
    if unread:
        out.line(f"{len(unread)} of {count(len(found), 'checkpoint')} could not be read, and may be intact", Style.RED)
    if not damaged and not unread and len(found) > 1:
        out.line(f"all {count(len(found), 'checkpoint')} intact; {read} read", Style.GREEN)


def _say_what_follows(
    found: Sequence[Verification], marked: dict[str, str], checkpoints: Sequence[Checkpoint], out: Output
) -> None:
    """What a restore does about the damage."""
    damaged = {one.checkpoint.id for one in found if not (one.is_intact or one.is_unread)}
    if not damaged:
        return
    intact = {
        one.checkpoint.id
        for one in found
        if one.is_intact and (not one.checkpoint.quarantined or _is_released(one, marked))
    }
    usable = intact | {c.id for c in checkpoints if c.is_sound and c.id not in damaged}
    try:
        tried = choose(_as_marked(checkpoints, found, marked), LATEST) if usable else []
        elsewhere = "a copy of the run (holdfast cp) may have some"
    except NoCheckpointError as error:
        tried, elsewhere = [], error.hint
    if not tried:
        out.line("none is left that restore() could use: it fails, unless one is found intact", Style.RED)
        out.line(elsewhere)
    elif tried[0].id in usable:
        out.line(f"restore() takes step {tried[0].step}, which is not one of them")
    elif any(c.id in damaged for c in tried):
        then = "takes the next older one" if usable & {c.id for c in tried} else "has no older one to take"
        out.line(f"restore() finds that out, too, and {then}; with --quarantine it does not try")


def _as_marked(
    checkpoints: Sequence[Checkpoint], found: Sequence[Verification], marked: dict[str, str]
) -> list[Checkpoint]:
    """All of them, as a restore sees them from now on: which line is the live one, unusable ones tell as well."""
    now = {one.checkpoint.id: _quarantine_of(one, marked) for one in found}
    return [c._replace(quarantined=now.get(c.id, c.quarantined)) for c in checkpoints]


def _quarantine_of(one: Verification, marked: dict[str, str]) -> str:
    """Why it is quarantined, after marks were set and taken off."""
    if _is_released(one, marked):
        return ""
    return one.reason if marked.get(one.checkpoint.id) == QUARANTINED else one.checkpoint.quarantined


def _is_released(one: Verification, marked: dict[str, str]) -> bool:
    return bool(one.checkpoint.quarantined) and marked.get(one.checkpoint.id) == VERIFIED


def _document(one: Verification, marked: dict[str, str]) -> dict[str, object]:
    return {
        "id": one.checkpoint.id,
        "step": one.checkpoint.step,
        "intact": one.is_intact,
        "read_bytes": one.read_bytes,
        "quarantined": _quarantine_of(one, marked),
        "released": _is_released(one, marked),
        "marked": marked.get(one.checkpoint.id),
        "damage": [damage._asdict() for damage in one.damage],
    }
