"""`ls`, `show`, `verify` and `diff`: what they say of a run."""

import json
import os
import shutil

import numpy as np
import pytest

import holdfast


def _checkpoint(document, step, attempt):
    (found,) = (c for c in document["checkpoints"] if (c["step"], c["attempt"]) == (step, attempt))
    return found


def test_a_listing_shows_each_checkpoint_oldest_first_with_state_and_metrics(run, holdfast_command):
    answer = holdfast_command("ls", "run")

    lines = answer.out.splitlines()
    assert answer.code == 0
    assert lines[0].split() == ["step", "epoch", "attempt", "age", "size", "loss", "accuracy", "state", "note"]
    assert [line.split()[0] for line in lines[1:7]] == ["10", "20", "30", "40", "30", "50"]
    assert lines[1].endswith("committed          start")
    assert "verified" in lines[2]
    assert "abandoned" in lines[3]
    assert "abandoned" in lines[4]
    assert lines[6].endswith("committed, latest")
    assert lines[8].startswith("6 checkpoints, ")
    assert lines[9].startswith("last written by attempt 2: pid ")


def test_a_listing_can_be_cut_to_the_newest_and_to_the_live_ones(run, holdfast_command):
    newest = json.loads(holdfast_command("ls", "run", "-n", "2", "--json").out)
    live = json.loads(holdfast_command("ls", "run", "--live", "--json").out)

    assert [c["step"] for c in newest["checkpoints"]] == [30, 50]
    assert [(c["attempt"], c["step"]) for c in live["checkpoints"]] == [(1, 10), (1, 20), (2, 30), (2, 50)]


def test_a_listing_shows_ids_when_asked(run, holdfast_command):
    names = sorted(path.name for path in run.glob("0*"))

    answer = holdfast_command("ls", "run", "--ids")

    assert all(name in answer.out for name in names)


def test_a_listing_as_json_holds_all_that_is_known(run, holdfast_command):
    document = json.loads(holdfast_command("ls", "run", "--json").out)

    newest = _checkpoint(document, 50, 2)
    assert newest["states"] == ["committed", "latest"]
    assert newest["metrics"] == {"loss": 0.02, "accuracy": 0.5}
    assert newest["origin"] == _checkpoint(document, 20, 1)["id"]
    assert document["writer"]["alive"] is False
    assert document["total_bytes"] == sum(c["size_bytes"] for c in document["checkpoints"])


def test_a_checkpoint_whose_head_is_damaged_is_listed_with_the_reason(run, holdfast_command):
    folder = next(run.glob("000000050-*"))
    (folder / "manifest.json").write_bytes(b"{}")

    answer = holdfast_command("ls", "run")

    assert answer.code == 0
    (line,) = (line for line in answer.out.splitlines() if line.startswith("  50"))
    assert "quarantined" in line
    assert "does not begin with a head" in line
    assert "committed, latest" in answer.out


def test_what_a_crash_left_behind_is_mentioned(run, holdfast_command):
    next(run.glob("000000040-*/manifest.json")).unlink()

    assert "1 unfinished directory left by a crash" in holdfast_command("ls", "run").out


def test_a_live_writer_is_named(run, holdfast_command):
    with holdfast.Checkpointer(run, {"model": {}}):
        answer = holdfast_command("ls", "run")

    assert f"being written by attempt 3: pid {os.getpid()}" in answer.out


def test_a_directory_of_runs_is_listed_with_those_that_cannot_be_read(run, holdfast_command):
    shutil.copytree(run, "more/deep/copy")
    os.mkdir("broken")
    with open("broken/holdfast.json", "w", encoding="ascii") as file:
        file.write("{}")

    answer = holdfast_command("ls")

    lines = answer.out.splitlines()
    assert answer.code == 0
    assert [line.split()[0] for line in lines[1:]] == ["./broken", "./more/deep/copy", "./run"]
    assert "damaged" in lines[1]
    assert lines[3].split()[1:3] == ["6", "50"]


def test_an_empty_directory_has_no_runs_and_any_other_is_not_a_run(tmp_path, holdfast_command):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()

    assert "no runs here yet" in holdfast_command("ls", tmp_path / "empty").out
    assert holdfast_command("ls", tmp_path / "other").code == 3


def test_show_tells_documents_lineage_and_tree(run, holdfast_command):
    answer = holdfast_command("show", "run")

    assert answer.code == 0
    assert "run  step 50  committed, latest" in answer.out
    assert "metrics     loss 0.02, accuracy 0.5" in answer.out
    assert "parameters  lr=0.1" in answer.out
    assert "origin      000000020-" in answer.out
    assert "  w  float64[4, 8]" in answer.out
    assert "progress.seen  400" in answer.out


def test_show_takes_a_step_best_an_id_and_the_directory_itself(run, holdfast_command):
    folder = next(run.glob("000000040-*"))

    for arguments in (("run", "40"), ("run", "best", "--by", "loss", "--mode", "max"), ("run", folder.name), (folder,)):
        answer = holdfast_command("show", *arguments)
        assert answer.code == 0
        assert f"step {10 if 'best' in arguments else 40}" in answer.out


def test_show_lists_every_leaf_when_asked(run, holdfast_command):
    answer = holdfast_command("show", "run", "--leaves")

    assert "model.b  float64  [8]      64 B" in answer.out


def test_show_compares_with_this_machine_when_asked(run, holdfast_command, monkeypatch):
    monkeypatch.setattr("platform.python_version", lambda: "9.9.9")

    answer = holdfast_command("show", "run", "--drift")

    assert "→ 9.9.9" in answer.out
    assert "numpy" not in answer.out.partition("drift")[2].partition("tree")[0]


def test_show_as_json_holds_leaves_values_and_provenance(run, holdfast_command):
    document = json.loads(holdfast_command("show", "run", "--json").out)

    assert {leaf["name"] for leaf in document["leaves"]} >= {"model.w", "model.b"}
    assert document["values"]["progress.seen"] == "400"
    assert document["hyperparameters"] == {"lr": 0.1}
    assert document["provenance"]["host"]


def test_verify_marks_what_is_intact(run, holdfast_command):
    answer = holdfast_command("verify", "run", "--all")

    assert answer.code == 0
    assert "all 6 checkpoints intact" in answer.out
    states = [c["states"][0] for c in json.loads(holdfast_command("ls", "run", "--json").out)["checkpoints"]]
    assert states == ["verified", "verified", "abandoned", "abandoned", "verified", "verified"]


def test_verify_says_exactly_what_is_damaged(run, damage, holdfast_command):
    name = damage(50)

    answer = holdfast_command("verify", "run")

    assert answer.code == 1
    assert f"DAMAGED  step 50  4.31 KiB  {name}" in answer.out
    assert "rank-00000.safetensors, chunk 0: bytes 0–" in answer.out
    assert "touches model.w, model.b" in answer.out


def test_verify_quarantines_only_when_asked_and_releases_what_is_intact(run, damage, holdfast_command):
    name = damage(50)

    assert holdfast_command("verify", "run", "50").code == 1
    assert _checkpoint(json.loads(holdfast_command("ls", "run", "--json").out), 50, 2)["quarantined"] == ""

    assert holdfast_command("verify", "run", "50", "--quarantine").code == 1
    assert "chunk 0" in _checkpoint(json.loads(holdfast_command("ls", "run", "--json").out), 50, 2)["quarantined"]

    damage(50)  # flips the same bit back

    kept = holdfast_command("verify", "run", name)
    assert kept.code == 0
    assert "quarantined all the same" in kept.out
    assert holdfast_command("verify", "run", name, "--release").code == 0
    assert _checkpoint(json.loads(holdfast_command("ls", "run", "--json").out), 50, 2)["states"] == [
        "verified",
        "latest",
    ]


def test_verify_as_json_lists_the_damage(run, damage, holdfast_command):
    damage(50)

    document = json.loads(holdfast_command("verify", "run", "--all", "--json").out)

    damaged = [one for one in document["checkpoints"] if not one["intact"]]
    assert [one["step"] for one in damaged] == [50]
    assert damaged[0]["damage"][0]["leaves"][:2] == ["model.w", "model.b"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory to somebody else")
def test_somebody_elses_run_can_be_verified_but_not_marked(run, holdfast_command):
    os.chown(run, 12345, 12345)

    assert holdfast_command("verify", "run").code == 0
    assert holdfast_command("verify", "run", "--quarantine").code == 3
    assert holdfast_command("pin", "run", "50").code == 3


def test_diff_of_a_checkpoint_with_itself_is_empty(run, holdfast_command):
    answer = holdfast_command("diff", "run", "50", "latest")

    assert answer.code == 0
    assert "equal, bit for bit" in answer.out


def test_diff_says_what_changed_and_by_how_much(run, holdfast_command):
    answer = holdfast_command("diff", "run", "20", "50")

    assert answer.code == 1
    (line,) = (line for line in answer.out.splitlines() if line.startswith("model.w"))
    assert line.split() == ["model.w", "float64[4,", "8]", "32/32", "3", "0.5", "17", "17"]
    assert "model.b" not in answer.out
    assert "progress.seen  200     400" in answer.out


def test_diff_compares_two_runs(run, holdfast_command):
    with holdfast.Checkpointer("other", {"model": {"w": np.zeros((4, 4)), "extra": np.ones(3)}}) as ckpt:
        ckpt.save(step=1)

    document = json.loads(holdfast_command("diff", "run:10", "other", "--json", "--only", "model").out)

    changes = {change["name"]: change["what"] for change in document["arrays"]}
    assert changes == {"model.w": "shape", "model.b": "removed", "model.extra": "added"}
    assert document["equal"] is False


def test_diff_of_damaged_data_is_an_error_not_a_difference(run, damage, holdfast_command):
    damage(50)

    answer = holdfast_command("diff", "run", "20", "50")

    assert answer.code == 4
    assert "differs from its digest" in answer.err


def test_a_step_that_is_not_there_is_named_with_the_nearest(run, holdfast_command):
    answer = holdfast_command("show", "run", "45")

    assert answer.code == 3
    assert "run: there is no checkpoint of step 45; the nearest of 5: 20, 30, 40, 50" in answer.err
    assert "holdfast ls run" in answer.err
