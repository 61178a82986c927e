"""Whether all ranks of a parallel training mean the same data."""

import os
import sys
from collections.abc import Mapping
from types import ModuleType

from holdfast.core.errors import UsageError

__all__ = ["agree", "rank_and_world"]


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """As given; else of torch.distributed, where it is initialised; else of the launcher; else the only one."""
    if rank is not None or world is not None:
        if rank is None or world is None:
            raise UsageError(
                f"rank is {rank} and world is {world}: one of them is missing", hint="give both, or neither"
            )
        return rank, world
    distributed = _distributed()
    if distributed is not None:
        return distributed.get_rank(), distributed.get_world_size()
    found = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not any(found):
        return 0, 1
    try:
        return int(found[0]), int(found[1])
    except ValueError:
        raise UsageError(
            f"the environment has RANK={found[0]!r} and WORLD_SIZE={found[1]!r}, expected two whole numbers",
            hint="they come from the launcher, e.g. torchrun; or give rank= and world=",
        ) from None


def agree(facts: Mapping[str, object], what: str) -> None:
    """UsageError on every rank, with the same text, where the ranks of torch.distributed differ in what they say.

    Costs one exchange of a few bytes, and happens where a loop begins: all ranks come there. Data of a rank alone
    (`world` is 1) is not compared: others may not have it, e.g. that of an evaluation on one rank.
    """
    distributed = _distributed()
    if distributed is None or distributed.get_world_size() == 1 or facts["world"] == 1:
        return
    size = distributed.get_world_size()
    everyone: list[dict[str, object]] = [{} for _ in range(size)]
    try:
        distributed.all_gather_object(everyone, dict(facts))
    except RuntimeError as error:  # of torch, of which there is no kind for a rank that does not come
        raise UsageError(
            f"{what}: the ranks could not be compared: {error}",
            hint="does every rank loop over it, and as often? with world=1, a rank is alone with its data",
        ) from error
    # Only now: whoever raises before the others have come leaves them waiting.
    if problem := _problem(everyone, size):
        raise UsageError(
            f"{what}: the ranks do not agree: {problem}",
            hint="give all ranks the same data, seed and batch size, and the checkpoint of the same step",
        )


def _problem(everyone: list[dict[str, object]], size: int) -> str:
    first = everyone[0]
    differing = [name for name in first if name != "rank" and any(one.get(name) != first[name] for one in everyone)]
    if differing:
        return "; ".join(f"{name} is {_on_ranks(everyone, name)}" for name in differing)
    world = first["world"]
    if not isinstance(world, int) or world > size:
        return f"world is {world}, and there are {size} ranks"
    # There may be fewer shares than ranks: where a model is spread over some, they have the same.
    if {one["rank"] for one in everyone} != set(range(world)):
        return f"the world is {world}, and rank= is {_on_ranks(everyone, 'rank')}"
    return ""


def _on_ranks(everyone: list[dict[str, object]], name: str) -> str:
    return ", ".join(f"{one.get(name)} on rank {rank}" for rank, one in enumerate(everyone))


def _distributed() -> ModuleType | None:
    torch = sys.modules.get("torch.distributed")
    return torch if torch is not None and torch.is_available() and torch.is_initialized() else None
