"""The KIT class in a job of a real HTCondor that is evicted twice: it goes on from what HTCondor took along."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.scheduler]

_SOURCES = Path(holdfast.__file__).parents[1]
_STEPS = 150

_TRAINING = """\
import sys
import time
from pathlib import Path
from holdfast.doors.kit import Checkpointer

checkpointer = Checkpointer(
    local_checkpoint_file=Path("checkpoint.txt"),
    checkpoint_function=lambda path, value: path.write_text(str(value)),
    restore_function=lambda path: int(path.read_text()),
    checkpoint_every=10,
    checkpoint_transfer_mode="htcondor")
start = checkpointer.restore(0)
with open(sys.argv[1], "a") as told:
    print("start", start, checkpointer.checkpoint_exit_code, file=told, flush=True)
    for i in range(start, int(sys.argv[2])):
        checkpointer.step(i)
        print(i, file=told, flush=True)
        time.sleep(0.1)
    print("end", file=told, flush=True)
"""

# As the document of the class has it, in a description that HTCondor takes.
_DESCRIPTION = """\
universe                  = vanilla
executable                = {python}
transfer_executable       = false
arguments                 = train.py {folder}/told {steps}
environment               = "PYTHONPATH={sources}"
should_transfer_files     = YES
transfer_input_files      = train.py
transfer_output_files     = checkpoint.txt
when_to_transfer_output   = ON_EXIT_OR_EVICT
checkpoint_exit_code      = 85
transfer_checkpoint_files = checkpoint.txt
error                     = error.txt
log                       = log.txt
queue
"""


@pytest.fixture
def pool() -> Iterator[Any]:
    module = pytest.importorskip("tests.htcondor.pool")
    if reason := module.why_not():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    started = module.Pool()
    yield started
    started.stop()


def test_a_job_that_is_evicted_twice_goes_on_where_it_was_and_finishes(pool: Any) -> None:
    folder = pool.folder("kit")
    (folder / "train.py").write_text(_TRAINING)
    (folder / "told").touch()
    (folder / "told").chmod(0o666)
    description = _DESCRIPTION.format(python=sys.executable, folder=folder, steps=_STEPS, sources=_SOURCES)

    def told() -> list[str]:
        return (folder / "told").read_text().split("\n")[:-1]

    job = pool.submit(description, folder=folder)
    for starts in (1, 2):
        pool.wait_for(lambda starts=starts: sum("start" in line for line in told()) == starts, f"start {starts}")
        steps = len(told())
        pool.wait_for(lambda steps=steps: len(told()) > steps + 15, "fifteen steps")
        pool.run("condor_vacate_job", job)
    pool.wait_for(lambda: "end" in told(), "the end")

    lines = told()
    began = [index for index, line in enumerate(lines) if "start" in line]
    assert len(began) == 3
    for index in began[1:]:
        # The step that followed the signal was kept; no step is lost, and at most that one is repeated.
        assert int(lines[index].split()[1]) - int(lines[index - 1]) in (0, 1)
        assert lines[index].split()[2] == "85"
    assert int(lines[-2]) == _STEPS - 1
