"""Traces written by hand: what a program would have said of itself."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.engine.evidence import Bystander, Point
from holdfast.proving.reading import Trace, parse_trace

__all__ = ["generator", "trace", "work"]


def trace(*points: Point) -> Trace:
    """As it is read back from a file."""
    return parse_trace(b"".join(msgspec.json.encode(point) + b"\n" for point in points))


def work(
    step: int,
    leaves: Mapping[str, str],
    *,
    kind: str = "step",
    run: str = "run",
    metrics: Mapping[str, float] | None = None,
    bystanders: Sequence[Bystander] = (),
    epoch: int | None = None,
) -> Point:
    """A point at which the state was seen."""
    return Point(
        kind=kind,  # type: ignore[arg-type]
        run=run,
        step=step,
        epoch=epoch,
        metrics={name: float(value).hex() for name, value in (metrics or {}).items()},
        leaves=dict(leaves),
        bystanders=tuple(bystanders),
    )


def generator(digest: str, *, kind: str = "generator", name: str = "rng") -> Bystander:
    """Something beside the state."""
    return Bystander(kind=kind, type=f"lib.{kind.title()}", name=name, where="train.py", digest=digest)
