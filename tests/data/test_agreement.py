"""Real processes of a parallel training: they share one order, and say the same where they do not agree."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from holdfast.core.errors import UsageError
from holdfast.data import resumable

rank, world, rendezvous, options, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]), sys.argv[5]
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
mine = {**options["all"], **options.get(str(rank), {})}
loader = DataLoader(TensorDataset(torch.arange(mine["length"])), mine["batch_size"], shuffle=mine["shuffle"])
data = resumable(loader, seed=mine["seed"], **mine.get("more", {}))
if mine["consumed"]:
    data.load_state_dict({**data.state_dict(), "consumed": mine["consumed"]})
try:
    if "again" in mine:
        next(iter(data))
    if mine.get("again"):
        data.load_state_dict({**data.state_dict(), "consumed": 0})
    found = [batch[0].tolist() for batch in data]
except UsageError as error:
    found = str(error)
with open(out, "w") as file:
    json.dump({"facts": data.facts, "found": found}, file)
dist.destroy_process_group()
"""  # noqa: E501
SAME = {"length": 24, "batch_size": 2, "shuffle": True, "seed": 7, "consumed": 0}


def run(tmp_path: Path, world: int, **of_ranks: dict[str, object]) -> list[dict]:
    options = json.dumps({"all": SAME, **of_ranks})
    outs = [tmp_path / f"{rank}.json" for rank in range(world)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(world), str(tmp_path / "meet"), options, str(outs[rank])]
        )
        for rank in range(world)
    ]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0] * world
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads(out.read_text()) for out in outs]


def test_ranks_are_those_of_torch_and_share_each_batch(tmp_path):
    one = run(tmp_path, 2)

    assert [(of_rank["facts"]["rank"], of_rank["facts"]["world"]) for of_rank in one] == [(0, 2), (1, 2)]
    batches = [of_rank["found"] for of_rank in one]
    assert [len(of_rank) for of_rank in batches] == [6, 6]
    assert sorted(number for of_rank in batches for batch in of_rank for number in batch) == list(range(24))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 8}, "seed is 7 on rank 0, 8 on rank 1"),
        ({"length": 25, "consumed": 4}, "length is 24 on rank 0, 25 on rank 1; position is [0, 0] on rank 0, [0, 4]"),
        ({"batch_size": 3, "shuffle": False}, "shuffle is True on rank 0, False on rank 1; batch_size is 2 on rank 0"),
        ({"more": {"drop_last": True}}, "drop_last is False on rank 0, True on rank 1"),
        ({"more": {"pad": True}}, "pad is False on rank 0, True on rank 1"),
        ({"more": {"rank": 0, "world": 2}}, "the world is 2, and rank= is 0 on rank 0, 0 on rank 1"),
        ({"again": True}, "position is [0, 4] on rank 0, [0, 0] on rank 1"),
    ],
    ids=[
        "seed",
        "length and position",
        "batch size and shuffle",
        "drop_last",
        "pad",
        "one rank twice",
        "one goes back",
    ],
)
def test_all_of_them_say_the_same_where_they_do_not_agree(tmp_path, change, message):
    first, second = run(tmp_path, 2, **{"0": {"again": False} if "again" in change else {}, "1": change})

    assert first["found"] == second["found"]
    assert message in first["found"]
    assert "the ranks do not agree" in first["found"]


def test_there_are_no_more_shares_than_ranks(tmp_path):
    more = {str(rank): {"more": {"rank": rank, "world": 4}} for rank in range(2)}
    first, second = run(tmp_path, 2, **more)

    assert first["found"] == second["found"]
    assert "world is 4, and there are 2 ranks" in first["found"]


def test_a_rank_may_be_alone_with_its_data(tmp_path):
    alone = {"more": {"rank": 0, "world": 1}}
    first, second = run(tmp_path, 2, **{"0": alone, "1": {**alone, "length": 6}})

    assert [len(of_rank["found"]) for of_rank in (first, second)] == [12, 3]
