"""`holdfast prune`: remove what is not to be kept, with the reason for each."""

import argparse
import math
from collections.abc import Sequence

from holdfast.cli.choosing import check_metric
from holdfast.cli.exit_codes import NO, OK
from holdfast.cli.output import Output
from holdfast.cli.parser import add_best, add_run, add_yes, whole
from holdfast.cli.runs import Run
from holdfast.cli.table import Cell, Column, Style
from holdfast.cli.words import count, parse_bytes, size
from holdfast.core.clock import SystemClock
from holdfast.core.errors import UsageError
from holdfast.core.names import parse_checkpoint_id
from holdfast.core.values import Checkpoint
from holdfast.engine.catalog import Catalog
from holdfast.engine.commit import remove_garbage
from holdfast.engine.holders import is_being_written, latest_holder
from holdfast.engine.journal import Journal
from holdfast.engine.pruning import Pruned, plan_prune, remove_planned
from holdfast.policy.keep import KEEP_ALL, Keep, Verdict, keep

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
Remove the checkpoints that no rule keeps, and say for each one why it stays or goes. Rules add up. Pinned and damaged
checkpoints, the newest, the last verified and the last healthy one always stay; so do quarantined ones and the newest
of each abandoned branch, unless --quarantined or --abandoned is given."""
EXAMPLES = (
    "holdfast prune runs/mnist --keep-last 3 --dry-run",
    "holdfast prune runs/mnist --keep-last 3 --keep-best 2 --by val_loss --yes",
    "holdfast prune runs/mnist --max-size 50G",
    "holdfast prune runs/mnist --garbage            # only what crashes left behind",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    parser.add_argument("--keep-last", metavar="N", type=whole(0), help="keep the newest N")
    parser.add_argument("--keep-best", metavar="N", type=whole(0), help="keep the best N by a metric")
    add_best(parser, for_what="--keep-best")
    parser.add_argument("--keep-every-steps", metavar="N", type=whole(1), help="keep the first of every N steps")
    parser.add_argument("--keep-every-epochs", metavar="N", type=whole(1), help="keep the first of every N epochs")
    parser.add_argument("--keep-days", metavar="DAYS", type=_days, help="keep what is younger")
    parser.add_argument("--max-size", metavar="SIZE", help="then give up the oldest until the rest fits, e.g. 50G")
    parser.add_argument("--abandoned", action="store_true", help="remove all that a rollback left behind")
    parser.add_argument("--quarantined", action="store_true", help="remove quarantined ones")
    parser.add_argument("--garbage", action="store_true", help="remove what crashes left behind")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    add_yes(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Decide, explain, ask, remove."""
    rule = _rule(arguments)
    with Run(arguments.run, writable=not arguments.dry_run) as opened:
        catalog = opened.catalog()
        usable = [c for c in catalog.checkpoints if not c.quarantined]
        if arguments.by is not None and usable:
            check_metric(usable, arguments.by, where=arguments.run)
        plan = plan_prune(catalog, rule, SystemClock(), drop_abandoned=arguments.abandoned)
        verdicts = [_spelled(verdict, rule, arguments.max_size) for verdict in plan]
        if arguments.quarantined:
            verdicts = [_without_quarantine(verdict, catalog) for verdict in verdicts]
        garbage = _removable_garbage(opened, catalog) if arguments.garbage else []
        doomed = [verdict.id for verdict in verdicts if not verdict.keep]
        if not out.json:
            _explain(catalog, verdicts, garbage, arguments, out)
        if arguments.dry_run or not (doomed or garbage):
            done = Pruned([], 0)
        elif out.confirm(f"remove {count(len(doomed), 'checkpoint')}?" if doomed else "remove it?", yes=arguments.yes):
            done = remove_planned(opened.store, opened.run_id, catalog, verdicts, attempt=None)
            _remove_garbage(opened, garbage)
            if done.removed:
                Journal(opened.store, SystemClock(), 0).record("pruned", by="holdfast prune", removed=done.removed)
        else:
            out.remark("nothing was removed")
            return NO
    if out.json:
        out.document(_document(arguments, verdicts, garbage, done))
    elif not arguments.dry_run:
        freed = f", {size(done.freed_bytes)} freed" if done.removed else ""
        unfinished = f" and {_unfinished(len(garbage))}" if garbage else ""
        out.line(f"{count(len(done.removed), 'checkpoint')}{unfinished} removed{freed}", Style.BOLD)
    return OK if arguments.dry_run or len(done.removed) == len(doomed) else NO


def _rule(arguments: argparse.Namespace) -> Keep:
    for option in ("by", "mode"):
        if arguments.keep_best is None and getattr(arguments, option) is not None:
            raise UsageError(f"prune: --{option} needs --keep-best", hint="for example --keep-best 2 --by val_loss")
    if arguments.keep_best is not None and arguments.by is None:
        raise UsageError("prune: --keep-best needs --by", hint="for example --keep-best 2 --by val_loss")
    rules = {
        "last": arguments.keep_last,
        "best": arguments.keep_best,
        "by": arguments.by,
        "every_steps": arguments.keep_every_steps,
        "every_epochs": arguments.keep_every_epochs,
        "for_days": arguments.keep_days,
        "max_bytes": None if arguments.max_size is None else parse_bytes(arguments.max_size, option="--max-size"),
    }
    if any(value is not None for value in rules.values()):
        return keep(**rules, mode=arguments.mode or "min")
    if arguments.abandoned or arguments.quarantined or arguments.garbage:
        return KEEP_ALL
    raise UsageError("prune: nothing says what to keep", hint="for example --keep-last 3; --dry-run only shows")


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not math.isfinite(days) or days < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return days


def _spelled(verdict: Verdict, rule: Keep, max_size: str | None) -> Verdict:
    """The verdict in the words of the command line."""
    if max_size is None:
        return verdict
    over, everything = f"over max_bytes={rule.max_bytes}: ", "everything is kept"
    is_over = verdict.reason.startswith(over)
    others = "; ".join(text for text in verdict.reason.removeprefix(over).split("; ") if text != everything)
    if is_over:
        return verdict._replace(reason=f"over --max-size {max_size}" + (f" (but for that: {others})" if others else ""))
    return verdict._replace(reason=others or f"within --max-size {max_size}")


def _without_quarantine(verdict: Verdict, catalog: Catalog) -> Verdict:
    checkpoint = next(c for c in catalog.checkpoints if c.id == verdict.id)
    if not checkpoint.quarantined or checkpoint.pinned:
        return verdict
    if checkpoint.id in catalog.unread:
        # I6: a right or a server that is missing for a while costs nobody an intact checkpoint.
        return verdict._replace(reason=f"{checkpoint.quarantined}; kept, for it may be intact")
    return Verdict(verdict.id, keep=False, reason=f"quarantined: {checkpoint.quarantined}")


def _removable_garbage(opened: Run, catalog: Catalog) -> list[str]:
    """Directories without a manifest that no live writer can be about to finish."""
    holder = latest_holder(opened.store)
    if holder is None:
        return list(catalog.garbage)
    busy = holder.attempt if is_being_written(opened.store, holder.attempt) else holder.attempt + 1
    parsed = [(name, parse_checkpoint_id(name)) for name in catalog.garbage]
    return [name for name, found in parsed if found is not None and found.attempt < busy]


def _remove_garbage(opened: Run, garbage: Sequence[str]) -> None:
    holder = latest_holder(opened.store)
    for name in garbage:
        # With the number of the newest attempt: if another one begins meanwhile, this stops.
        attempt = holder.attempt if holder is not None else 0
        remove_garbage(opened.store, name, attempt=attempt, run_id=opened.run_id)


def _unfinished(number: int) -> str:
    return count(number, "unfinished directory", "unfinished directories")


def _explain(
    catalog: Catalog, verdicts: Sequence[Verdict], garbage: Sequence[str], arguments: argparse.Namespace, out: Output
) -> None:
    by_id = {checkpoint.id: checkpoint for checkpoint in catalog.checkpoints}
    columns = [Column(""), Column("step", right=True), Column("size", right=True), Column("why", shrink=True)]
    # Where a rule or another option has asked, what it keeps is a part of the answer; garbage says nothing of them.
    shown = [verdict for verdict in verdicts if not (_is_for_garbage_only(arguments) and verdict.keep)]
    rows = [_row(verdict, by_id[verdict.id]) for verdict in shown]
    rows += [[Cell("remove", Style.RED), name.partition("-")[0].lstrip("0"), "", "unfinished"] for name in garbage]
    if rows:
        out.table(columns, rows)
        out.line()
    doomed = [by_id[verdict.id] for verdict in verdicts if not verdict.keep]
    kept = len(verdicts) - len(doomed)
    total = size(sum(c.size_bytes for c in doomed))
    unfinished = f" and {len(garbage)} unfinished" if garbage else _no_garbage(catalog) if arguments.garbage else ""
    out.line(f"keep {kept}, remove {len(doomed)} ({total}){unfinished}")


def _is_for_garbage_only(arguments: argparse.Namespace) -> bool:
    return arguments.garbage and not (arguments.abandoned or arguments.quarantined) and _rule(arguments) is KEEP_ALL


def _no_garbage(catalog: Catalog) -> str:
    busy = f": {_unfinished(len(catalog.garbage))} may still be written" if catalog.garbage else ""
    return f"; there is no garbage{busy}"


def _row(verdict: Verdict, checkpoint: Checkpoint) -> list[Cell | str]:
    what = Cell("keep", Style.GREEN) if verdict.keep else Cell("remove", Style.RED)
    return [what, str(checkpoint.step), size(checkpoint.size_bytes), verdict.reason]


def _document(
    arguments: argparse.Namespace, verdicts: Sequence[Verdict], garbage: Sequence[str], done: Pruned
) -> dict[str, object]:
    return {
        "run": arguments.run,
        "dry_run": arguments.dry_run,
        "verdicts": [verdict._asdict() for verdict in verdicts],
        "garbage": list(garbage),
        "removed": done.removed,
        "freed_bytes": done.freed_bytes,
    }
