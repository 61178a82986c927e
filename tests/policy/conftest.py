"""Checkpoint values for the policy tests."""

from collections.abc import Callable, Mapping

import pytest

from holdfast.core.names import CheckpointId
from holdfast.core.values import Checkpoint


def _make(
    step: int,
    attempt: int = 1,
    *,
    origin: Checkpoint | None = None,
    epoch: int | None = 0,
    twin: int = 0,
    seq: int | None = None,
    utc_s: float = 0.0,
    size_bytes: int = 10,
    metrics: Mapping[str, float] | None = None,
    pinned: bool = False,
    verified: bool = False,
    quarantined: str = "",
    damaged: str = "",
    suspect: str = "",
) -> Checkpoint:
    name = str(CheckpointId(step, epoch or 0, "20260101T000000Z", attempt, twin))
    origin_id = origin.id if origin is not None else None
    return Checkpoint(
        id=name,
        step=step,
        epoch=epoch,
        attempt=attempt,
        seq=step * 10 + twin + 1 if seq is None else seq,
        parent=None,
        origin=origin_id,
        utc_s=utc_s,
        size_bytes=size_bytes,
        leaves=1,
        world=1,
        metrics=metrics or {},
        note="",
        tags=(),
        pickle=False,
        pinned=pinned,
        verified=verified,
        quarantined=quarantined,
        damaged=damaged,
        suspect=suspect,
    )


@pytest.fixture(scope="session")
def make() -> Callable[..., Checkpoint]:
    """Makes the checkpoint of a step and an attempt; the rest is optional."""
    return _make
