"""The doctor for batch scripts: whether a Slurm job that is stopped saves, and comes back; and what to change."""

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.core.errors import UsageError
from holdfast.engine.doctor import FAIL, OK, WARN, Finding
from holdfast.engine.jobs import RESTART_STATUS
from holdfast.integrations.slurm_options import Notice, Option, last_value, limit_s, notice_of, read_options
from holdfast.policy.durations import words_of

__all__ = ["examine_script"]

_MARK = "#SBATCH"
_WRITES_ONE = "`holdfast submit slurm --dry-run -- COMMAND` shows a script that does"
_TRAP = re.compile(r"\btrap\b(.*)")
_SRUN = re.compile(r"(?:^|[;&|(]|\bexec\b|\bthen\b|\bdo\b|\bif\b|!)\s*(?:\S*/)?srun\b")
_RELAY = re.compile(r"\bholdfast\s+run\b")
# Programs that do not use holdfast: by the app for them, and with the signals at which they save by themselves.
_APPS = {
    "gromacs": (re.compile(r"(?:^|[\s/])mdrun(?:_\w+)?\b"), ("TERM", "INT")),
    "lammps": (re.compile(r"(?:^|[\s/])lmp(?:_\w+)?\s"), ()),
}
_REQUEUE = re.compile(r"\bscontrol\s+requeue(?:hold)?\b")
_ASKS = re.compile(r"\b(?:scontrol\b.*\bshow\s+job|squeue|sacct)\b")
_BACKGROUND = re.compile(r"(?<!&)&\s*(?:$|;|[A-Za-z_]+=\$!)")
_WAIT = re.compile(r"(?:^|[;&|]|\bdo\b|\bthen\b|\bwhile\b|\buntil\b)\s*wait\b")
_EXEC = re.compile(r"^exec\s+(?![<>&\d])\S")
_STATUS = re.compile(rf"(?<!\d){RESTART_STATUS}(?!\d)")
_TASK = re.compile(r"\bscontrol\s+requeue.*SLURM_ARRAY_TASK_ID")
_CHAIN = re.compile(r"%1\Z")


class _Script(NamedTuple):
    options: list[Option]
    late: list[int]
    """Lines whose `#SBATCH` comes too late to count."""
    lines: list[str]
    """What runs: without comments, continued lines as one."""

    def has(self, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(line) for line in self.lines)

    def given(self, name: str) -> bool:
        return any(option.name == name for option in self.options)

    def traps(self, signal: str) -> bool:
        """Whether the shell has a trap for it."""
        caught = (_TRAP.search(line) for line in self.lines)
        return any(re.search(rf"\b(?:SIG)?{signal}\b", match[1]) for match in caught if match)

    @property
    def waits_in_the_background(self) -> bool:
        """Whether the shell can run its traps while the program runs."""
        return self.has(_BACKGROUND) and self.has(_WAIT)

    @property
    def foreign_app(self) -> str | None:
        """The app for its program, which does not use holdfast, and is started without `holdfast run`."""
        apps = (app for app, (program, _) in _APPS.items() if self.has(program))
        return None if self.has(_RELAY) else next(apps, None)

    @property
    def is_chain(self) -> bool:
        return bool(_CHAIN.search(last_value(self.options, "--array") or ""))


def examine_script(text: str, *, where: str, checkpoint_s: float | None = None) -> Iterator[Finding]:
    """Read it as sbatch and bash would, without running anything. `checkpoint_s` is what a checkpoint takes."""
    script = _read(text, where)
    if script.late:
        found = f"line {script.late[0]}: an {_MARK} behind the first command"
        yield Finding("options", FAIL, found, "sbatch does not read it: move it to the top")
    else:
        yield Finding("options", OK, f"{len(script.options)} in lines of {_MARK}")
    yield _signal(script)
    yield _shell(script)
    yield from _coming_back(script)
    yield from _output(script)
    yield _time(script, checkpoint_s)
    yield from _background(script)
    yield from _array(script)


def _signal(script: _Script) -> Finding:
    given = last_value(script.options, "--signal")
    if given is None:
        return _no_signal(script)
    notice = notice_of(given)
    if notice is None:
        return Finding("signal", FAIL, f"--signal={given} is no signal", "for example #SBATCH --signal=USR1@120")
    app = script.foreign_app
    if app is not None and notice.signal not in _APPS[app][1]:
        found = f"--signal={given}: {app} does not save at SIG{notice.signal}"
        return Finding("signal", FAIL, found, _advice_for(app))
    if notice.to_shell_only:
        return _to_shell(script, given, notice)
    if not script.has(_SRUN):
        found = f"--signal={given} goes to what srun starts, and nothing is started with srun"
        return Finding("signal", FAIL, found, "put srun before the program")
    return Finding("signal", OK, f"{notice.signal}, {words_of(notice.before_s)} before the limit, to the program")


def _no_signal(script: _Script) -> Finding:
    found = "no --signal: the program is told when it is killed seconds later"
    if script.foreign_app is not None:
        return Finding("signal", WARN, found, _advice_for(script.foreign_app))
    srun = "" if script.has(_SRUN) else ", if srun starts it"
    advice = f"#SBATCH --signal=USR1@120 tells a program that uses holdfast two minutes before the limit{srun}"
    return Finding("signal", WARN, found, advice)


def _advice_for(app: str) -> str:
    wrapped = f"`holdfast submit slurm --no-srun --dry-run -- holdfast run --app {app} -- COMMAND`"
    return f"{wrapped} shows a script that has it save in time"


def _to_shell(script: _Script, given: str, notice: Notice) -> Finding:
    if script.has(_EXEC):
        return Finding("signal", OK, f"{notice.signal} to the program, which takes the shell's place")
    found = f"--signal={given} goes to the batch shell only, "
    advice = f"leave out B: and start the program with srun: #SBATCH --signal={notice.signal}@{notice.before_s}"
    if not script.traps(notice.signal):
        return Finding("signal", FAIL, found + "which does not pass it on", advice)
    if not script.waits_in_the_background:
        return Finding("signal", FAIL, found + "whose trap runs when the program has ended", advice)
    return Finding("signal", OK, f"{notice.signal} to the shell, which has a trap, and waits")


def _shell(script: _Script) -> Finding:
    ends = next((line for line in script.lines if _EXEC.search(line)), None)
    if ends is not None:
        found = f"{ends[:60]}: the program takes the shell's place, and what stands behind it never runs"
        return Finding("shell", FAIL if script.has(_STATUS) else WARN, found, "leave out exec")
    if not script.traps("TERM"):
        found = "ends at SIGTERM, which comes at the limit and at preemption, and never sees the program's status"
        return Finding("shell", WARN, found, "trap : TERM before the program starts; the shell then waits for it")
    return Finding("shell", OK, "outlives SIGTERM, and waits for the program")


def _coming_back(script: _Script) -> Iterator[Finding]:
    requeues = script.has(_REQUEUE)
    if script.is_chain:
        yield Finding("coming back", OK, "a chain: the next task continues")
    elif not requeues:
        found = f"status {RESTART_STATUS}, which says that there is more to do, does not bring the job back"
        yield Finding("coming back", WARN, found, _WRITES_ONE)
    elif not script.has(_STATUS):
        found = f"requeued, whatever the status is, and not only after {RESTART_STATUS}"
        yield Finding(
            "coming back", WARN, found, f"requeue only where the status is {RESTART_STATUS}, or it never ends"
        )
    elif not script.has(_ASKS):
        found = f"requeued after {RESTART_STATUS}, also where somebody called scancel"
        yield Finding("coming back", WARN, found, f"ask for the job's state first: {_WRITES_ONE}")
    else:
        yield Finding("coming back", OK, f"requeued after status {RESTART_STATUS}")
    if script.given("--no-requeue") and requeues:
        yield Finding("requeue", FAIL, "--no-requeue, and scontrol requeue", "#SBATCH --requeue")
    elif not script.given("--requeue") and not script.is_chain:
        found = "no --requeue: whether the job comes back after preemption, or at all, is up to the cluster's default"
        yield Finding("requeue", FAIL if requeues else WARN, found, "#SBATCH --requeue")


def _output(script: _Script) -> Iterator[Finding]:
    if script.given("--no-requeue") and not script.is_chain:
        return
    mode = last_value(script.options, "--open-mode")
    if mode != "append":
        found = "truncated each time the job comes back"
        yield Finding("output", WARN, found, "#SBATCH --open-mode=append")
    else:
        yield Finding("output", OK, "appended")


def _time(script: _Script, checkpoint_s: float | None) -> Finding:
    given = last_value(script.options, "--time")
    known_s = limit_s(given)
    if given is None:
        return Finding("time limit", WARN, "none: that of the partition", "#SBATCH --time=4:00:00, or as it may be")
    if known_s is None:
        return Finding("time limit", FAIL, f"--time={given} is no time", "minutes, 1:30:00, or 2-00:00:00 for two days")
    notice = notice_of(last_value(script.options, "--signal"))
    before_s = notice.before_s if notice is not None else math.inf
    if notice is not None and before_s >= known_s:
        found = f"{words_of(known_s)}, and the signal comes {words_of(before_s)} before its end"
        return Finding("time limit", FAIL, found, "a longer limit, or a later signal")
    if checkpoint_s is None:
        return Finding("time limit", OK, words_of(known_s))
    took = f"a checkpoint takes {words_of(checkpoint_s)}"
    if known_s <= checkpoint_s:
        return Finding("time limit", FAIL, f"{words_of(known_s)}; {took}", "it would never get on: a longer limit")
    if notice is not None and before_s < checkpoint_s:
        found = f"the signal comes {words_of(before_s)} before its end; {took}"
        return Finding("time limit", FAIL, found, f"#SBATCH --signal={notice.signal}@{math.ceil(2 * checkpoint_s)}")
    return Finding("time limit", OK, f"{words_of(known_s)}; {took}")


def _background(script: _Script) -> Iterator[Finding]:
    if script.has(_BACKGROUND) and not script.has(_WAIT):
        found = "a program is started with &, and nobody waits for it: the job ends with the shell, at once"
        yield Finding("background", FAIL, found, "wait for it at the end, or leave out the &")


def _array(script: _Script) -> Iterator[Finding]:
    given = last_value(script.options, "--array")
    if given is not None and not script.is_chain:
        found = f"--array={given}: its tasks run at the same time, each needs a run of its own"
        yield Finding("array", WARN, found, "%1 makes it a chain, of which each task continues: --array=1-20%1")
    if given is not None and script.has(_REQUEUE) and not script.has(_TASK):
        found = "requeues $SLURM_JOB_ID, which of one of the tasks is the number of the whole array"
        yield Finding("array", FAIL, found, 'scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"')


def _read(text: str, where: str) -> _Script:
    if not text.startswith("#!"):
        raise UsageError(f"{where}: does not begin with #!, so sbatch refuses it", hint="#!/bin/bash in the first line")
    words: list[str] = []
    late: list[int] = []
    lines: list[str] = []
    pending = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(_MARK):
            if lines or pending:
                late.append(number)
            else:
                words += _split(line.removeprefix(_MARK), f"{where}, line {number}")
        elif line.endswith("\\"):
            pending += line[:-1] + " "
        else:
            code = _without_comment(pending + line).strip()
            pending = ""
            if code:
                lines.append(code)
    if pending.strip():
        lines.append(pending.strip())
    return _Script(read_options(words), late, lines)


def _split(line: str, where: str) -> Sequence[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {_MARK}{line}: quotes that are not closed", hint="close them") from error


def _without_comment(line: str) -> str:
    """What stands before a `#` that begins a word, outside of quotes."""
    quote = ""
    for at, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at]
    return line
