"""The batch script of a Slurm job that comes back until its work is done: readable, whole in one file. Pure."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.engine.jobs import JOB_VARIABLE, RESTART_STATUS
from holdfast.engine.turns import TURN_VARIABLE
from holdfast.integrations.slurm_options import Option, directive, last_value

__all__ = ["WRITTEN_BY", "Plan", "write_script"]

WRITTEN_BY = "written by `holdfast submit slurm`"
"""In the second line of every script: such a file may be replaced by a newer one."""
JOBS_FOLDER = ".holdfast-jobs"

_SHELL = """\
#!/bin/bash
# {name}: {written_by}.
#
{options}
#
{scheme}
#SBATCH --open-mode=append

say() {{ echo "holdfast: $*" >&2; }}

# One name for all parts of this job: what {{job}} in Checkpointer("runs/example-{{job}}") stands for.
export {variable}={job}
{begin}
{program}

{end}"""

_BY_SRUN = """\
# What ends a job is sent to this shell, too. It waits for the program, which saves.
trap : TERM USR1 USR2

export SLURM_EXPORT_ENV=ALL # what is set here reaches the program, also where sbatch was told --export=NONE
{command}
status=$?"""

_BY_SHELL = """\
# What this shell is told, it tells the program, and waits until that has saved.
{command} &
program=$!
trap 'kill -s TERM "$program"' TERM
trap 'kill -s USR1 "$program"' USR1
while kill -s 0 "$program" 2>/dev/null; do
    wait "$program" # ends early when a signal comes
done
wait "$program"
status=$?"""

_REQUEUED = """\
# {before_s} s before the limit, Slurm sends SIGUSR1 to {whom}.
# It saves, and ends with status {again}; this script then puts the job back into the queue, under the same number.
#SBATCH --signal={signal}
#SBATCH --requeue"""

_REQUEUE = """\
# Done, or failed. Status {again} says: not done, start me again.
[ "$status" -eq {again} ] || exit "$status"

restarts=${{SLURM_RESTART_COUNT:-0}}
if [ "$restarts" -ge {max_restarts} ]; then
    say "started again $restarts times, not done, and not requeued (--max-restarts {max_restarts})"
    exit {again}
fi
if ! command -v scontrol >/dev/null; then
    say "not done, and not requeued, because there is no scontrol here; elsewhere: scontrol requeue $SLURM_JOB_ID"
    exit {again}
fi

# Who stopped it? What Slurm says of the job decides whether it is to come back.
case " $(scontrol --oneliner show job "$SLURM_JOB_ID") " in
*" JobState=RUNNING "*" Restarts=$restarts "*) ;;  # it stopped itself, in time
*" Reason=TimeLimit "*" Restarts=$restarts "*) ;;  # the limit came first
*" Restarts=$restarts "*" PreemptTime="[0-9]*) ;;  # preempted, in a partition that does not requeue
*" Restarts=$restarts "*)                          # somebody called scancel
    say "cancelled, and not requeued"
    exit {again} ;;
*" Restarts="*)                                    # requeued by Slurm: preempted, or its node was lost
    exit {again} ;;
esac
say "not done: goes back into the queue (restarts so far: $restarts)"
for pause_s in 0 1 4 15; do
    sleep "$pause_s"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
done
say "not done, and scontrol could not requeue it; later: scontrol requeue $SLURM_JOB_ID"
exit {again}
"""

_CHAINED = """\
# A chain of tasks, one after the other (%1). {before_s} s before the limit, Slurm sends SIGUSR1 to
# {whom}. It saves, and ends with status {again}; the next task continues.
# A task that was preempted does not come back either: that is what the next one is for.
#SBATCH --array=1-{tasks}%1
#SBATCH --signal={signal}
#SBATCH --no-requeue"""

_LINK = """\
export {turn}="$SLURM_ARRAY_TASK_ID"

# Once the work is done, the rest of the chain has nothing to do.
finished={folder}/{name}-"$SLURM_ARRAY_JOB_ID".done
if [ -e "$finished" ]; then
    say "task $SLURM_ARRAY_TASK_ID: the work is done already"
    exit 0
fi
"""

_CHAIN = """\
case $status in
0)  # Done: no more tasks. Those that start all the same find the file.
    say "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_MAX: done"
    mkdir -p {folder} && touch "$finished" || say "$finished cannot be written: the tasks that follow start the program"
    scancel --state=PENDING "$SLURM_ARRAY_JOB_ID" || say "the tasks that follow are not cancelled: each ends at once"
    exit 0 ;;
{again}) # Not done: the next task continues.
    if [ "$SLURM_ARRAY_TASK_ID" -lt "$SLURM_ARRAY_TASK_MAX" ]; then
        say "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_MAX: not done, the next one continues"
        exit 0
    fi
    say "the last task, and not done; to go on: holdfast submit slurm --job ${variable} ..."
    exit {again} ;;
*)  # Failed. The next task tries again, from the last checkpoint.
    exit "$status" ;;
esac
"""


class Plan(NamedTuple):
    """What the script is to do."""

    command: tuple[str, ...]
    name: str
    tasks: int | None
    """Of a chain; None for one job that is requeued."""
    before_s: int
    """How long before the limit the program is told."""
    max_restarts: int
    job: str | None
    """The name of the job that it belongs to; None: a new one."""
    options: tuple[Option, ...]
    """The user's own, for sbatch."""
    has_srun: bool = True
    """Whether the program is started with srun; else by the shell, on the first node."""


def write_script(plan: Plan) -> str:
    """The script's text."""
    is_chain = plan.tasks is not None
    number = "SLURM_ARRAY_JOB_ID" if is_chain else "SLURM_JOB_ID"
    whom = (
        "the program (to what srun starts, not to this shell)"
        if plan.has_srun
        else "this shell, which tells the program"
    )
    fields = {
        "name": plan.name,
        "written_by": WRITTEN_BY,
        "again": RESTART_STATUS,
        "before_s": plan.before_s,
        "whom": whom,
        "signal": f"{'' if plan.has_srun else 'B:'}USR1@{plan.before_s}",
        "tasks": plan.tasks,
        "max_restarts": plan.max_restarts,
        "folder": JOBS_FOLDER,
        "variable": JOB_VARIABLE,
        "turn": TURN_VARIABLE,
        "job": plan.job if plan.job is not None else f'"{plan.name}-${number}"',
        "options": "\n".join(directive(words) for words in _directives(plan)),
        "command": _command(plan),
    }
    scheme, begin, end = (_CHAINED, _LINK, _CHAIN) if is_chain else (_REQUEUED, "", _REQUEUE)
    program = _BY_SRUN if plan.has_srun else _BY_SHELL
    parts = {"scheme": scheme, "begin": begin, "program": program, "end": end}
    return _SHELL.format_map({**fields, **{name: part.format_map(fields) for name, part in parts.items()}})


def _directives(plan: Plan) -> list[Sequence[str]]:
    """What the user asked for, behind what he would have to ask for: of two, Slurm takes the later."""
    pattern = f"{plan.name}-{'%j' if plan.tasks is None else '%A'}.out"
    defaults = [
        Option("--job-name", plan.name, (f"--job-name={plan.name}",)),
        Option("--output", pattern, (f"--output={pattern}",)),
    ]
    wanted = [option for option in defaults if last_value(plan.options, option.name) is None]
    return [option.words for option in (*wanted, *plan.options)]


def _command(plan: Plan) -> str:
    command = shlex.join(plan.command)
    if plan.command[0] == "srun" or not plan.has_srun:
        return command
    # Since Slurm 22.05, srun does not take this from the job.
    cores = ' --cpus-per-task="$SLURM_CPUS_PER_TASK"' if last_value(plan.options, "--cpus-per-task") else ""
    return f"srun{cores} {command}"
