"""Every test has arenas of its own, and leaves no agent behind."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.background.rig import agents_of, until, use_root


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where arenas are made, in this process and in programs."""
    from holdfast.agent import background
    from holdfast.engine.outcome import PendingCheckpoint
    from holdfast.tiers import arena, finding

    memory = "/dev/shm"
    made = Path(tempfile.mkdtemp(prefix="test-background-", dir=memory if os.path.isdir(memory) else None))
    monkeypatch.setattr(arena, "DEFAULT_ROOT", made)
    monkeypatch.setattr(finding, "DEFAULT_ROOT", made)
    for name in ("_PATIENCE_S", "_LEAST_AHEAD_BYTES"):
        monkeypatch.setattr(background, name, getattr(background, name))
    monkeypatch.setattr(PendingCheckpoint, "is_awaited", PendingCheckpoint.is_awaited)
    use_root(made)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_agents_left() -> Iterator[None]:
    yield
    until(lambda: not agents_of(os.getpid()))


@pytest.fixture
def usual_patience(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What programs have: for tests of storages and agents that hang."""
    from holdfast.agent import background

    monkeypatch.setattr(background, "_PATIENCE_S", 1.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"
