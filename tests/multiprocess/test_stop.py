"""A program that is asked to stop: at its next step, or in the middle of one that takes too long."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import holdfast

PROGRAM = textwrap.dedent(
    """
    import signal, sys, time
    import numpy as np
    import holdfast
    from holdfast.engine import leaving

    leaving._SAY_S = 20.0  # a busy machine may take that for a word
    run, grace_s, long_step = sys.argv[1], None if sys.argv[2] == "-" else float(sys.argv[2]), float(sys.argv[3])
    weights = np.zeros(1000)
    ckpt = holdfast.Checkpointer(run, {"w": weights}, every=10, sensors="off")
    signal.signal(signal.SIGUSR1, lambda *_: ckpt.stop("SIGUSR1", grace_s=grace_s))
    ckpt.restore()
    for count in range(10_000):
        weights += 1
        ckpt.step()
        if count == 14:
            ckpt.wait(60)
            print("ready", flush=True)
            time.sleep(long_step)
            print("the long step is over", flush=True)
        time.sleep(0.01)
    """
)
DEADLINE_S = 60


def stopped_program(run: Path, grace: str, long_step: str) -> tuple[int, str, str]:
    """The status, and what it printed, of a program that gets SIGUSR1 when it is ready."""
    command = [sys.executable, "-c", PROGRAM, str(run), grace, long_step]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.stderr.read() if process.stderr else ""
            process.send_signal(signal.SIGUSR1)
            out, error = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    return process.returncode, out, error


def stop_of(run: Path) -> dict[str, object]:
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return next(event for event in events if event["event"] == "stopped")


def test_the_next_step_saves_and_ends_the_program_with_the_status_that_asks_for_a_restart(tmp_path):
    status, _, error = stopped_program(tmp_path / "run", "-", "0.01")

    assert status == 85, error
    stop = stop_of(tmp_path / "run")
    assert stop["lost_steps"] == 0
    assert bool((holdfast.load(tmp_path / "run")["w"] == stop["step"]).all())
    assert "SIGUSR1" in str(stop["why"])


def test_with_enough_grace_the_step_that_is_being_made_is_saved_too(tmp_path):
    status, out, error = stopped_program(tmp_path / "run", "30", "0.5")

    assert status == 85, error
    assert "the long step is over" in out
    assert stop_of(tmp_path / "run")["lost_steps"] == 0


@pytest.mark.slow
def test_a_step_that_takes_longer_than_the_grace_is_not_waited_for(tmp_path):
    status, out, error = stopped_program(tmp_path / "run", "3", "600")

    assert status == 85, error
    assert "the long step is over" not in out
    stop = stop_of(tmp_path / "run")
    assert (stop["step"], stop["lost_steps"]) == (15, 5)
    assert bool((holdfast.load(tmp_path / "run")["w"] == 10).all())
    assert "5 of them are not saved" in error


def test_what_is_no_time_is_refused_as_grace(tmp_path):
    with holdfast.Checkpointer(tmp_path / "run", {"w": {}}, background="off") as ckpt:
        for grace in (-1, float("nan"), "soon"):
            with pytest.raises(holdfast.UsageError, match="grace_s"):
                ckpt.stop("test", grace_s=grace)


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ("", ""),
        ("sys.exit(3)", ""),
        ("raise KeyboardInterrupt", ""),
        ("raise ValueError('a bad batch')", "ValueError"),
    ],
)
@pytest.mark.parametrize("begins", ["ckpt = open_run()", "with open_run() as ckpt:"])
def test_the_journal_knows_whether_an_exception_ended_the_program(tmp_path, begins, ends, error):
    run = tmp_path / "run"
    program = textwrap.dedent(
        """
        import sys
        import numpy as np
        import holdfast

        def open_run():
            return holdfast.Checkpointer(sys.argv[1], {"w": np.zeros(10)}, background="off")

        """
    )
    program += begins + "\n" + textwrap.indent(f"ckpt.save(step=1)\n{ends}\n", "    " if "with" in begins else "")

    subprocess.run([sys.executable, "-c", program, str(run)], capture_output=True, timeout=DEADLINE_S, check=False)

    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    (closed,) = (event for event in events if event["event"] == "closed")
    assert closed["error"] == error
    assert closed["clean"] is ("with" in begins and not ends)
