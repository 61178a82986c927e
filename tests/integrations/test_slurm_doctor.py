"""The doctor for batch scripts: what it finds in scripts as people write them."""

import argparse

import pytest

from holdfast.core.errors import UsageError
from holdfast.engine.doctor import FAIL, OK, WARN, Finding
from holdfast.integrations import slurm_submit
from holdfast.integrations.slurm_doctor import examine_script

_GOOD = """\
#!/bin/bash
#SBATCH --time=1:00:00 --requeue --open-mode=append   # an hour
#SBATCH --signal=USR1@120
trap : TERM
srun python train.py
status=$?
state=$(squeue -h -j $SLURM_JOB_ID -o %T)
if [ $status -eq 85 ] && [ $state = RUNNING ]; then scontrol requeue $SLURM_JOB_ID; fi
exit $status
"""


def examine(text: str, **options: float) -> dict[str, Finding]:
    return {finding.what: finding for finding in examine_script(text, where="job.sh", **options)}


def statuses(text: str, **options: float) -> dict[str, str]:
    return {what: finding.status for what, finding in examine(text, **options).items()}


@pytest.mark.parametrize("words", [[], ["--array", "5"], ["--no-srun"]], ids=["requeue", "array", "no srun"])
def test_scripts_of_holdfast_are_fine(words):
    parser = argparse.ArgumentParser()
    slurm_submit.add_arguments(parser)
    arguments = parser.parse_args(words)
    arguments.options = ["--time=1:00:00"]

    found = statuses(slurm_submit.describe(arguments, ["python", "train.py"]), checkpoint_s=30)

    assert set(found.values()) == {OK}


def test_a_good_script_is_fine():
    assert set(statuses(_GOOD, checkpoint_s=30).values()) == {OK}


@pytest.mark.parametrize(
    ("before", "after", "what", "status", "words"),
    [
        ("#SBATCH --signal=USR1@120\n", "", "signal", WARN, "no --signal"),
        ("USR1@120", "B:USR1@120", "signal", FAIL, "to the batch shell only, which does not pass it on"),
        ("USR1@120\n", "B:USR1@120\ntrap : USR1\n", "signal", FAIL, "whose trap runs when the program has ended"),
        ("USR1@120", "USR1@soon", "signal", FAIL, "is no signal"),
        ("USR1@120\n", "B:USR1@120\nholdfast run -- python train.py\n", "signal", FAIL, "does not pass it on"),
        ("srun python", "python", "signal", FAIL, "nothing is started with srun"),
        ("python train.py", "gmx_mpi mdrun -deffnm water", "signal", FAIL, "gromacs does not save at SIGUSR1"),
        ("python train.py", "lmp -in in.melt", "signal", FAIL, "lammps does not save at SIGUSR1"),
        ("srun python", "python # srun", "signal", FAIL, "nothing is started with srun"),
        ("trap : TERM\n", "", "shell", WARN, "ends at SIGTERM"),
        ("srun python", "exec srun python", "shell", FAIL, "takes the shell's place"),
        (" --requeue", "", "requeue", FAIL, "no --requeue"),
        (" --requeue", " --no-requeue", "requeue", FAIL, "--no-requeue, and scontrol requeue"),
        (" --open-mode=append", "", "output", WARN, "truncated"),
        (" --open-mode=append", " --open-mode=truncate", "output", WARN, "truncated"),
        ("scontrol requeue", "#scontrol requeue", "coming back", WARN, "does not bring the job back"),
        ("$status -eq 85", "$status -ne 0", "coming back", WARN, "whatever the status is"),
        ("squeue", "true", "coming back", WARN, "also where somebody called scancel"),
        (" --time=1:00:00", "", "time limit", WARN, "that of the partition"),
        ("--time=1:00:00", "--time=soon", "time limit", FAIL, "is no time"),
        ("--time=1:00:00", "--time=2", "time limit", FAIL, "the signal comes 2 min before its end"),
        ("train.py", "train.py &", "background", FAIL, "nobody waits for it"),
        ("exit $status", "#SBATCH --mem=5G", "options", FAIL, "line 9: an #SBATCH behind the first command"),
    ],
)
def test_what_is_wrong_is_found_with_advice(before, after, what, status, words):
    assert before in _GOOD

    found = examine(_GOOD.replace(before, after))[what]

    assert found.status == status
    assert words in found.found
    assert found.advice


def test_a_task_of_an_array_that_requeues_the_whole_array_is_found():
    requeued = _GOOD.replace("--requeue", "--requeue -a 1-5")
    alone = requeued.replace("requeue $SLURM_JOB_ID", "requeue ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID")

    assert [f.status for f in examine_script(requeued, where="job.sh") if f.what == "array"] == [WARN, FAIL]
    assert [f.status for f in examine_script(alone, where="job.sh") if f.what == "array"] == [WARN]


def test_a_limit_that_is_shorter_than_a_checkpoint_is_found():
    assert "never get on" in examine(_GOOD, checkpoint_s=3600)["time limit"].advice


def test_a_signal_that_comes_too_late_for_a_checkpoint_is_found():
    found = examine(_GOOD, checkpoint_s=200)["time limit"]

    assert found.status == FAIL
    assert found.advice == "#SBATCH --signal=USR1@400"


@pytest.mark.parametrize(
    "body",
    ["exec holdfast run -- python train.py", "trap 'kill -USR1 $pid' USR1 TERM\npython train.py & pid=$!\nwait $pid"],
)
def test_a_signal_to_the_shell_is_fine_where_the_shell_passes_it_on(body):
    text = _GOOD.replace("USR1@120", "B:USR1@120").replace("srun python train.py", body)

    assert statuses(text)["signal"] == OK


def test_without_a_signal_the_advice_fits_the_program():
    silent = _GOOD.replace("#SBATCH --signal=USR1@120\n", "")

    by_srun = examine(silent)["signal"].advice
    alone = examine(silent.replace("srun python", "python"))["signal"].advice
    gromacs = examine(silent.replace("python train.py", "gmx mdrun"))["signal"].advice

    assert alone == f"{by_srun}, if srun starts it"
    assert "holdfast run --app gromacs" in gromacs


@pytest.mark.parametrize("signal", ["TERM", "INT"])
def test_a_signal_at_which_gromacs_saves_is_fine(signal):
    text = _GOOD.replace("USR1@120", f"{signal}@120").replace("python train.py", "gmx mdrun -cpi state")

    assert statuses(text)["signal"] == OK


def test_a_program_that_holdfast_run_knows_may_have_any_signal():
    text = _GOOD.replace("python train.py", "holdfast run --app gromacs -- gmx mdrun -deffnm water")

    assert statuses(text)["signal"] == OK


def test_a_chain_needs_no_requeue():
    text = _GOOD.replace("--requeue", "--array=1-20%1 --no-requeue").replace("scontrol requeue $SLURM_JOB_ID", "exit 0")

    assert set(statuses(text).values()) == {OK}


@pytest.mark.parametrize("text", ["", "python train.py\n", "#SBATCH --time=5\n#!/bin/bash\n"])
def test_what_sbatch_would_refuse_is_refused(text):
    with pytest.raises(UsageError, match="does not begin with #!"):
        examine(text)


@pytest.mark.parametrize("line", ["#SBATCH --comment='a", "#SBATCH train.py"])
def test_options_that_cannot_be_read_are_refused(line):
    with pytest.raises(UsageError, match=r"not closed|no option of sbatch"):
        examine(f"#!/bin/bash\n{line}\npython train.py\n")


def test_any_text_is_read_without_an_error():
    text = "#!/bin/bash\n" + "'\"\\\n$((<<EOF\n&&&|;;#'\n" * 100

    assert statuses(text)["signal"] == WARN
