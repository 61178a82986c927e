"""`make demo`: train, kill with SIGKILL in the middle, resume, and compare with an undisturbed run, bit for bit."""

import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from train_spirals import STEPS  # noqa: E402  after the path is set

DEADLINE_S = 60


def run_training(console: Console, title: str, *arguments: str, kill_at: int | None = None) -> tuple[int, int]:
    """The last step seen, and the step that it resumed from (0: from the start). Killed at `kill_at`, if given."""
    command = [sys.executable, str(HERE / "train_spirals.py"), "--report", *arguments]
    columns = TextColumn("  {task.description:<36}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn()
    step = resumed = 0
    with (
        Progress(*columns, console=console) as progress,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        task = progress.add_task(title, total=STEPS)
        assert process.stdout is not None
        for line in process.stdout:
            word, number = line.split()
            step = int(number)
            if word == "resumed":
                resumed = step
            progress.update(task, completed=step)
            if kill_at is not None and step >= kill_at:
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.close()
        code = process.wait(DEADLINE_S)
    expected = -signal.SIGKILL if kill_at is not None else 0
    if code != expected:
        sys.exit(f"demo: the training ended with status {code}, expected {expected}")
    return step, resumed


def main() -> int:
    console = Console(width=100)
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        run, plain, survived = f"{folder}/run", f"{folder}/plain.npz", f"{folder}/survived.npz"
        kill_at = random.randrange(STEPS // 3, 2 * STEPS // 3)

        run_training(console, "undisturbed, no checkpoints", "--weights", plain)
        killed, _ = run_training(console, f"checkpointed; SIGKILL at step {kill_at}", run, kill_at=kill_at)
        _, resumed = run_training(console, "started again: resumes by itself", run, "--weights", survived)

        console.print()
        subprocess.run([sys.executable, "-m", "holdfast", "ls", run], check=True)
        console.print()
        with np.load(plain) as expected, np.load(survived) as found:
            same = all(expected[name].tobytes() == found[name].tobytes() for name in expected.files)
            count = sum(expected[name].size for name in expected.files)
    if not same or not 0 < resumed <= killed:
        console.print(f"[bold red]FAILED[/]: resumed from step {resumed}; the final weights differ")
        return 1
    console.print(
        f"[bold green]OK[/]: killed after step {killed}, resumed from step {resumed}; "
        f"all {count:,} weights equal the undisturbed run's, bit for bit.",
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
