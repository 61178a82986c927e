"""CheckpointedTask with law, whose tasks are luigi's."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integrations.luigi_tasks.training import undisturbed
from tests.integrations.luigid import DEADLINE_S, need_luigi

need_luigi()

pytestmark = [pytest.mark.slow, pytest.mark.scheduler]

_TASKS = Path(__file__).parent / "luigi_tasks"
_CONFIG = """
[luigi_scheduler]
retry_delay: 0.1
[luigi_worker]
keep_alive: True
wait_interval: 0.1
wait_jitter: 0
"""


@pytest.fixture(autouse=True)
def _need_law() -> None:
    if find_spec("law") is None:
        reason = "law is not installed: pip install law"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def law_run(folder: Path, *arguments: str) -> str:
    """What it said."""
    (folder / "law.cfg").write_text(_CONFIG)
    environment = {
        **os.environ,
        "LAW_HOME": str(folder / ".law"),
        "LAW_CONFIG_FILE": str(folder / "law.cfg"),
        "PYTHONPATH": os.pathsep.join([str(_TASKS), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "law", "run", *arguments, "--local-scheduler", "True"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_task_of_law_that_is_killed_stopped_and_fails_finishes_as_if_it_had_not_been(tmp_path: Path) -> None:
    said = law_run(tmp_path, "law_tasks.LawTrain")

    assert "succeeded in a retry" in said
    assert (tmp_path / "one.model").read_bytes() == undisturbed(60, 1)
    starts = [int(line.split()[1]) for line in (tmp_path / "notes.txt").read_text().splitlines() if "begins" in line]
    assert starts == sorted(starts)
    assert len(starts) >= 4


def test_each_branch_of_a_local_workflow_has_a_run_of_its_own(tmp_path: Path) -> None:
    law_run(tmp_path, "law_tasks.LawBranches", "--workers", "2")

    assert (tmp_path / "branch-0.model").read_bytes() == undisturbed(60, 1)
    assert (tmp_path / "branch-1.model").read_bytes() == undisturbed(60, 2)
    assert len(os.listdir(tmp_path / "checkpoints")) == 2
