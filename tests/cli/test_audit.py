"""`holdfast audit`: what it says of sound runs, of ones with a fault planted in them, and of ones without a ledger."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import holdfast
from holdfast.data.source import Source
from holdfast.engine.ledger import Entry
from holdfast.format.manifest import decode_manifest, encode_manifest
from tests.cli.conftest import Answer

Command = Callable[..., Answer]
LENGTH = 20
DIGEST = Entry.__struct_fields__.index("digest")


def train(
    path: Path, *, until: int, rewind: int = 0, which: str | int = "latest", background: str = "off", **options: Any
) -> None:
    """Up to that step, from the last checkpoint; one each two steps. `rewind`: forgets so much of the position."""
    data: Source[Any] = Source(LENGTH, lambda numbers: numbers, **{"seed": 7, "batch_size": 3, **options})
    state = {"w": np.zeros(2), "data": data}
    with holdfast.Checkpointer(path, state, keep=holdfast.KEEP_ALL, random=False, background=background) as ckpt:
        restored = ckpt.restore(which)
        step = 0 if restored is None else restored.step
        if rewind:
            position = data.state_dict()
            data.load_state_dict({**position, "consumed": int(str(position["consumed"])) - rewind})
        for _ in ckpt.over(data, epochs=1000):
            ckpt.step()
            step += 1
            if step % 2 == 0 or step == until:
                ckpt.save(step=step)
            if step >= until:
                return


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("run")


@pytest.mark.parametrize("background", ["off", "process"])
def test_a_run_of_several_attempts_and_a_rollback_is_sound(
    background: str, path: Path, holdfast_command: Command
) -> None:
    train(path, until=9, background=background)
    train(path, until=12, background=background)
    train(path, until=16, which=10, background=background)

    answer = holdfast_command("audit", path)

    assert answer.code == 0
    assert [line.split() for line in answer.out.splitlines()] == [
        ["run", "step", "16,", "attempt", "3"],
        [],
        ["data"],
        ["epoch", "attempt", "steps", "batches", "positions", "verdict"],
        ["0–1", "1–3", "1–14", "14", "20", "of", "20", "each", "once"],
        ["2", "3", "15–16", "2", "6", "of", "20", "each", "once", "so", "far"],
        [],
        "every sample exactly once per epoch, in order, and the samples are those of seed, epoch and position: 16 "
        "batches".split(),
    ]


def test_what_a_crash_lost_is_no_repetition(path: Path, holdfast_command: Command) -> None:
    train(path, until=7)
    lost = sorted(path.glob("00000000[67]-*/manifest.json"))
    for manifest in lost:
        manifest.unlink()

    train(path, until=10)

    assert len(lost) == 2
    answer = holdfast_command("audit", path, "--json")
    (source,) = json.loads(answer.out)["sources"]
    assert (answer.code, source["findings"]) == (0, [])
    assert source["epochs"][0]["attempts"] == [1, 2]


def test_a_repeated_batch_is_found_with_its_attempt_steps_and_samples(path: Path, holdfast_command: Command) -> None:
    train(path, until=4)
    train(path, until=8, rewind=3)

    answer = holdfast_command("audit", path)

    samples = ", ".join(map(str, Source(LENGTH, list, seed=7, batch_size=3).progress.indices_of(range(9, 12))))
    assert answer.code == 1
    assert (
        f"  epoch 0, positions 9–11 (samples {samples}): repeated at step 5 of attempt 2; before that at step 4 of "
        "attempt 1"
    ) in answer.out.splitlines()
    assert answer.out.splitlines()[-1] == "NO: 1 repeated"
    assert holdfast_command("audit", path, 4).code == 0  # the checkpoint before it is sound

    document = json.loads(holdfast_command("audit", path, "--json").out)
    (finding,) = document["sources"][0]["findings"]
    assert document["exactly_once"] is False
    assert [finding[name] for name in ("kind", "attempt", "first_step", "begin", "end")] == ["repeated", 2, 5, 9, 12]


def test_the_verdict_is_broken_between_words_on_a_terminal(
    path: Path, holdfast_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(path, until=4)
    monkeypatch.setenv("COLUMNS", "80")

    lines = holdfast_command("audit", path).out.splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[-2].startswith("every sample exactly once per epoch")
    assert lines[-1].endswith("batches")


def test_a_skipped_batch_is_found(path: Path, holdfast_command: Command) -> None:
    train(path, until=4)
    train(path, until=8, rewind=-3)

    answer = holdfast_command("audit", path, "--quick")

    assert answer.code == 1
    assert "skipped: attempt 2 went on behind them at step 5" in answer.out


def test_what_drop_last_leaves_out_is_said_and_no_fault(path: Path, holdfast_command: Command) -> None:
    train(path, until=13, drop_last=True)

    answer = holdfast_command("audit", path)

    assert answer.code == 0
    assert "each once; the last 2, less than a batch, left out on purpose" in answer.out


def test_samples_that_are_not_those_of_the_seed_are_found_unless_only_positions_are_asked_for(
    path: Path, holdfast_command: Command
) -> None:
    train(path, until=4)
    _change_ledger(path, "000000004", lambda entry: [*entry[:DIGEST], "0" * 32, *entry[DIGEST + 1 :]])

    answer = holdfast_command("audit", path)

    assert answer.code == 1
    assert "the samples of steps 1–4 (attempt 1) are not those of seed 7" in answer.out
    assert answer.out.splitlines()[-1] == "NO: 1 other samples"
    quick = holdfast_command("audit", path, "--quick")
    assert quick.code == 0
    assert quick.out.splitlines()[-1] == "every sample exactly once per epoch, in order, by position: 4 batches"


def test_a_long_list_of_findings_is_cut_except_for_programs(path: Path, holdfast_command: Command) -> None:
    train(path, until=2)
    for attempt in range(25):
        train(path, until=3 + attempt, rewind=3)

    lines = holdfast_command("audit", path).out.splitlines()

    assert lines[-1] == "NO: 25 repeated"
    assert "  and 5 more; --json has all" in lines
    document = json.loads(holdfast_command("audit", path, "--json").out)
    assert len(document["sources"][0]["findings"]) == 25


def test_a_run_without_a_ledger_is_told_how_to_get_one(run: Path, holdfast_command: Command) -> None:
    answer = holdfast_command("audit", "run")

    assert answer.code == 3
    assert "run: the checkpoint of step 50 has no ledger" in answer.err
    assert "ckpt.over(data, epochs=…)" in answer.err


def test_a_ledger_that_makes_no_sense_is_damage_and_no_verdict(path: Path, holdfast_command: Command) -> None:
    train(path, until=4)
    _change_ledger(path, "000000004", lambda entry: [*entry[:1], 0, *entry[2:]])

    answer = holdfast_command("audit", path)

    assert answer.code == 4
    assert "run: step 4: the ledger is not valid" in answer.err


def test_a_manifest_that_is_damaged_is_told_with_the_run_the_step_and_what_to_do(
    path: Path, holdfast_command: Command
) -> None:
    train(path, until=4)
    (file,) = path.glob("000000004-*/manifest.json")
    text = file.read_bytes()
    at = text.index(b'"ledger"') + 30
    file.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])

    answer = holdfast_command("audit", path)

    assert answer.code == 4
    assert "error: run: step 4: " in answer.err
    assert "holdfast audit run STEP" in answer.err
    assert "`holdfast ls run`" in answer.err
    assert holdfast_command("audit", path, 2).code == 0


def test_where_the_latest_is_gone_the_one_that_is_judged_is_named(path: Path, holdfast_command: Command) -> None:
    train(path, until=4)
    (file,) = path.glob("000000004-*/manifest.json")
    file.unlink()

    answer = holdfast_command("audit", path)

    assert answer.out.splitlines()[0] == "run  step 2, attempt 1"


def test_the_verdict_says_of_how_many_entries_the_samples_were_compared(path: Path, holdfast_command: Command) -> None:
    train(path, until=9)
    unseeded = Entry.__struct_fields__.index("seed")
    _change_ledger(
        path, "000000009", lambda entry: [*entry[:unseeded], None, *entry[unseeded + 1 :]] if entry[5] == 1 else entry
    )

    answer = holdfast_command("audit", path)

    assert answer.out.splitlines()[-1] == (
        "every sample exactly once per epoch, in order, by position, and the samples of 1 of 2 entries were compared: "
        "9 batches"
    )
    (source,) = json.loads(holdfast_command("audit", path, "--json").out)["sources"]
    assert (source["entries"], source["compared_entries"]) == (2, 1)


@pytest.mark.parametrize(("batch_size", "positions"), [(None, "14 batches"), (4, "14 items")])
@pytest.mark.parametrize("nested", [False, True])
def test_of_a_stream_it_is_said_what_is_counted_and_whether_its_last_epoch_is_over(
    batch_size: int | None, positions: str, nested: bool, path: Path, holdfast_command: Command
) -> None:
    data = holdfast.data.resumable(lambda: iter(range(14)), batch_size=batch_size)
    state: dict[str, Any] = {"w": np.zeros(2), **({"inner": {"data": data}} if nested else {"data": data})}
    with holdfast.Checkpointer(path, state, keep=holdfast.KEEP_ALL, random=False, background="off") as ckpt:
        for step, _ in enumerate(ckpt.over(data, epochs=3), 1):
            ckpt.step()
            ckpt.save(step=step)

    whole, part = holdfast_command("audit", path), holdfast_command("audit", path, step - 1)

    assert whole.code == part.code == 0
    assert "so far" not in whole.out
    assert positions in whole.out
    assert "each once so far" in part.out
    assert "seed" not in whole.out


def _change_ledger(path: Path, begin: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """Every entry, in a manifest that is as good as before otherwise."""
    (file,) = path.glob(f"{begin}-*/manifest.json")
    name = file.parent.name
    manifest = decode_manifest(file.read_bytes(), where=name, checkpoint_id=name, run_id=None)
    body = msgspec.structs.replace(manifest.body, ledger=[change(entry) for entry in manifest.body.ledger])
    file.write_bytes(encode_manifest(manifest.checkpoint, manifest.run_id, body))
