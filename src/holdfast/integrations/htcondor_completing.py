"""Completes a submit description for self-checkpointing: adds what is missing, corrects what would lose work.

Everything else stays as it is: comments, order, what is not understood. Each change says why it was made.
"""

import posixpath
import re
from collections.abc import Collection
from typing import NamedTuple

from holdfast.core.errors import UsageError
from holdfast.engine.jobs import RESTART_STATUS
from holdfast.integrations.htcondor_description import SIGN, check_run
from holdfast.integrations.htcondor_language import Statement, read_statements, split_list

__all__ = ["Change", "Completed", "complete"]

_STATUS = ("checkpoint_exit_code", "+successcheckpointexitcode", "my.successcheckpointexitcode")
_LISTS = ("transfer_input_files", "transfer_output_files", "transfer_checkpoint_files")
# What is looked at, and has to be the same for all jobs: where files are transferred, and where they are not.
_COUNT = {*_STATUS, *_LISTS, "preserve_relative_paths", "should_transfer_files", "when_to_transfer_output"}
_COUNT_SHARED = {*_STATUS, "on_exit_remove", "should_transfer_files"}


class Change(NamedTuple):
    """One line that was added, or put in the place of another."""

    name: str
    value: str
    why: str
    was: str | None = None


class Completed(NamedTuple):
    """The description, and what is new in it."""

    text: str
    changes: tuple[Change, ...]


def complete(text: str, *, run: str | None, exit_code: int = 85) -> Completed:
    """The description with what self-checkpointing needs.

    A status that it gives stays, for programs read it from the job. UsageError where the run is not named, neither here
    nor in the description, where a correction would move the user's own files, or where jobs would get in each other's
    way.
    """
    lines = text.splitlines()
    statements = list(read_statements(lines))
    queues = [statement for statement in statements if statement.name == "queue"]
    queue = queues[0] if queues else None
    before = [statement for statement in statements if queue is None or statement.first < queue.first]
    # The last one counts.
    found = {statement.name: statement for statement in before if statement.name}
    if found.get("should_transfer_files", _NONE).value.upper() == "NO":
        changes, names = _shared_changes(found, exit_code), _COUNT_SHARED
    else:
        changes, names = _transfer_changes(found, run, exit_code), _COUNT
        _check_one_run_each(lines, statements, run)
    _check_nothing_after(statements[len(before) :], names)
    for change in changes:
        if change.name in found and found[change.name].depth:
            raise UsageError(
                f"{change.name} is set within an if, line {found[change.name].first + 1}",
                hint=f"make it say {change.name} = {change.value} yourself: {change.why}",
            )
    return Completed(_changed(lines, changes, found, queue), tuple(changes))


_NONE = Statement(-1, -1, "", "")


def _shared_changes(found: dict[str, Statement], exit_code: int) -> list[Change]:
    given, rule = _status(found), found.get("on_exit_remove")
    status = given or exit_code
    changes = []
    if given is None and status != RESTART_STATUS:
        changes.append(Change("+SuccessCheckpointExitCode", str(status), "the program reads it from the job"))
    if rule is None or re.search(rf"(?<!\d){status}(?!\d)", rule.value) is None:
        wanted = f"ExitCode =!= {status}"
        value = wanted if rule is None else f"({rule.value}) && {wanted}"
        why = f"with status {status} the program asks to be started again"
        changes.append(Change("on_exit_remove", value, why, _was(rule)))
    return changes


def _transfer_changes(found: dict[str, Statement], run: str | None, exit_code: int) -> list[Change]:
    files = split_list(found.get("transfer_checkpoint_files", _NONE).value)
    if run is None and not files:
        raise UsageError("which directory is the run?", hint="--run runs/mnist, as the program names it")
    runs = [check_run(run)] if run is not None else files
    changes = []
    if _status(found) is None:
        why = f"with status {exit_code} the program says that there is a checkpoint, and wants to be started again"
        changes.append(Change("checkpoint_exit_code", str(exit_code), why))
    evicted = "else the checkpoint of an eviction is lost"
    others = [
        name for name in split_list(found.get("transfer_output_files", _NONE).value) if not _covers([name], runs[0])
    ]
    if others:
        evicted += f"; HTCondor then holds a job that is evicted before it has made {others[0]}"
    wanted = (
        ("should_transfer_files", "YES", "only then are checkpoints transferred"),
        ("when_to_transfer_output", "ON_EXIT_OR_EVICT", evicted),
    )
    for name, value, why in wanted:
        if found.get(name, _NONE).value.upper() != value:
            changes.append(Change(name, value, why, _was(found.get(name))))
    reasons = {
        "transfer_checkpoint_files": "the run is the checkpoint",
        "transfer_input_files": "a job that is evicted before its first checkpoint would be held without it",
        "transfer_output_files": "only what is named comes home",
    }
    for name, why in reasons.items():
        there = split_list(found.get(name, _NONE).value)
        missing = [path for path in runs if not _covers(there, path)]
        if missing:
            changes.append(Change(name, ", ".join([*there, *missing]), why, _was(found.get(name))))
    return changes + _paths_changes(found, runs)


def _check_one_run_each(lines: list[str], statements: list[Statement], run: str | None) -> None:
    """UsageError where several jobs would bring home one run: the last would replace what the others brought."""
    values: dict[str, str] = {}
    queued: dict[str, int] = {}
    for statement in statements:
        if statement.name != "queue":
            values[statement.name] = statement.value
            continue
        place = values.get("initialdir", "") + ("" if run else values.get("transfer_checkpoint_files", ""))
        if "$(" in place:
            continue  # what HTCondor fills in is another one for each job, as far as can be told here
        text = " ".join(" ".join(lines[statement.first : statement.last + 1]).split())
        if place in queued:
            text = f"queue in lines {queued[place]} and {statement.first + 1}"
        elif text[len("queue") :].strip() in ("", "1"):
            queued[place] = statement.first + 1
            continue
        raise UsageError(
            f"{text}: these jobs would write one run, and each would replace what the others have brought home",
            hint="queue one, and submit it once for each run; or give each a directory: initialdir = job-$(Process)",
        )


def _check_nothing_after(statements: list[Statement], names: Collection[str]) -> None:
    """UsageError where jobs that are queued later would not have what the first have."""
    for statement in statements:
        if statement.name in names:
            raise UsageError(
                f"{statement.name} is set after queue, line {statement.first + 1}: only what is before it is completed",
                hint="set it once, before queue; or write a description for each",
            )


def _paths_changes(found: dict[str, Statement], runs: list[str]) -> list[Change]:
    keeps = found.get("preserve_relative_paths")
    if keeps is not None and keeps.value.lower() in ("true", "yes", "1"):
        return []
    if not any("/" in path for path in runs):
        return []
    own = [
        path
        for name in _LISTS
        for path in split_list(found.get(name, _NONE).value)
        if "/" in path and "://" not in path and not posixpath.isabs(path) and path not in runs
    ]
    if own:
        raise UsageError(
            f"{own[0]} would be elsewhere in the job's directory if the run {runs[0]} kept its place",
            hint="name a run without a slash, or set preserve_relative_paths = True and use full names in the program",
        )
    return [Change("preserve_relative_paths", "True", "the run stays where the program looks for it", _was(keeps))]


def _covers(names: list[str], path: str) -> bool:
    """Whether one of the names is the path, or a directory above it."""
    return any(path == name.rstrip("/") or path.startswith(f"{name.rstrip('/')}/") for name in names)


def _status(found: dict[str, Statement]) -> int | None:
    for name in _STATUS:
        value = found.get(name, _NONE).value
        if value.isdecimal() and 1 <= int(value) <= 255:
            return int(value)
    return None


def _was(statement: Statement | None) -> str | None:
    return statement.value if statement is not None else None


def _changed(lines: list[str], changes: list[Change], found: dict[str, Statement], queue: Statement | None) -> str:
    """The lines with the changes: corrections in their place, additions before `queue`."""
    corrections = {found[change.name].first: change for change in changes if change.name in found}
    additions = [change for change in changes if change.name not in found]
    replaced = {
        number
        for change in corrections.values()
        for number in range(found[change.name].first, found[change.name].last + 1)
    }
    end = queue.first if queue is not None else len(lines)
    result = [f"{SIGN}: completed; what it changed is marked."]
    for number, line in enumerate([*lines, None]):
        if number == end:
            for change in additions:
                result += [f"# holdfast added: {change.why}", f"{change.name} = {change.value}"]
            if queue is None:
                result.append("queue")
        if number in corrections:
            change = corrections[number]
            result += [f"# holdfast: {change.why}; it was {change.was or 'empty'}", f"{change.name} = {change.value}"]
        elif line is not None and number not in replaced:
            result.append(line)
    return "\n".join(result) + "\n"
