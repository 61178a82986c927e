"""`ls`, `show`, `verify` and `diff`: what they say of a run."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable

import numpy as np
import pytest

import holdfast
from holdfast.storage.files import Files
from tests.cli.conftest import cut


def _checkpoint(document, step, attempt):
    (found,) = (c for c in document["checkpoints"] if (c["step"], c["attempt"]) == (step, attempt))
    return found


def test_a_listing_shows_each_checkpoint_oldest_first_with_state_and_metrics(run, holdfast_command):
    answer = holdfast_command("ls", "run")

    lines = answer.out.splitlines()
    assert answer.code == 0
    assert lines[0].split() == ["step", "epoch", "attempt", "age", "size", "loss", "accuracy", "where", "state", "note"]
    assert [line.split()[0] for line in lines[1:7]] == ["10", "20", "30", "40", "30", "50"]
    assert lines[1].endswith("committed          start")
    assert "verified" in lines[2]
    assert "abandoned" in lines[3]
    assert "abandoned" in lines[4]
    assert lines[6].endswith("committed, latest")
    assert lines[8].startswith("6 checkpoints, ")
    assert lines[9].startswith("last written by attempt 2: pid ")
    assert lines[9].endswith("Z, which has ended")


def test_a_listing_can_be_cut_to_the_newest_and_to_the_live_ones(run, holdfast_command):
    newest = json.loads(holdfast_command("ls", "run", "-n", "2", "--json").out)
    live = json.loads(holdfast_command("ls", "run", "--live", "--json").out)

    assert [c["step"] for c in newest["checkpoints"]] == [30, 50]
    assert [(c["attempt"], c["step"]) for c in live["checkpoints"]] == [(1, 10), (1, 20), (2, 30), (2, 50)]


def test_a_listing_shows_ids_when_asked(run, holdfast_command):
    names = sorted(path.name for path in run.glob("0*"))

    answer = holdfast_command("ls", "run", "--ids")

    assert all(name in answer.out for name in names)


def test_a_narrow_listing_cuts_the_note_and_keeps_the_metric_of_most(run, holdfast_command, monkeypatch):
    with holdfast.Checkpointer(run, {"x": np.zeros(8)}, keep=holdfast.KEEP_ALL) as ckpt:
        ckpt.restore(strict=False)
        ckpt.save(step=60, epoch=3, metrics={"loss": 0.123456}, note="with half the learning rate, and twice the batch")
    monkeypatch.setenv("COLUMNS", "80")

    at_80 = holdfast_command("ls", "run").out
    monkeypatch.setenv("COLUMNS", "64")
    at_64 = holdfast_command("ls", "run").out

    assert "0.12346" in at_80
    assert "with h" in at_80
    assert "accuracy" in next(line for line in at_80.splitlines() if line.startswith("no room for"))
    assert "0.12346" in at_64
    assert max(map(len, at_64.splitlines()[:8])) <= 64


def test_a_narrow_listing_gives_up_sizes_and_then_ages_before_it_breaks_an_id(run, holdfast_command, monkeypatch):
    names = sorted(path.name for path in run.glob("0*"))

    heads = []
    for width in range(110, 61, -1):
        monkeypatch.setenv("COLUMNS", str(width))
        head, *rows = holdfast_command("ls", "run", "--ids").out.splitlines()[:7]
        heads += [head.split()] if head.split() not in heads else []
        assert all(len(row) <= width for row in rows)
        assert all(any(name in row.split() for row in rows) for name in names)
    monkeypatch.setenv("COLUMNS", "40")
    without_ids = holdfast_command("ls", "run").out.splitlines()[0]

    assert heads[-3:] == [
        ["step", "age", "size", "state", "id"],
        ["step", "age", "state", "id"],
        ["step", "state", "id"],
    ]
    assert {"age", "size"} < set(without_ids.split())


def test_the_lines_below_a_narrow_listing_are_broken_between_words_and_never_in_a_command(
    run, holdfast_command, monkeypatch
):
    (run / "000000060-e000-20261115T184201Z-a0001").mkdir()
    whole = holdfast_command("ls", "run").out.splitlines()
    monkeypatch.setenv("COLUMNS", "48")

    lines = holdfast_command("ls", "run").out.splitlines()

    below = lines[lines.index("") + 1 :]
    assert " ".join(below) == " ".join(whole[whole.index("") + 1 :])
    words = re.findall(r"`[^`]*`\S*|\S+", " ".join(below))  # one of them is the name of this machine
    assert max(map(len, below)) <= max(48, *map(len, words))
    assert any("`holdfast prune run --garbage`" in line for line in below)


def test_a_step_that_was_saved_twice_is_pointed_out_unless_ids_are_shown(run, holdfast_command):
    assert "more than once" not in holdfast_command("ls", "run").out  # step 30 is there twice, by two attempts

    with holdfast.Checkpointer(run, {"x": np.zeros(8)}, keep=holdfast.KEEP_ALL) as ckpt:
        ckpt.restore(strict=False)
        ckpt.save(step=60)
        ckpt.save(step=60, note="with metrics", metrics={"loss": 0.1})

    listed = holdfast_command("ls", "run").out
    assert "step 60 was saved more than once: the number means the newest" in listed
    assert "more than once" not in holdfast_command("ls", "run", "--ids").out
    assert "with metrics" in holdfast_command("show", "run", "60").out


def test_a_listing_as_json_holds_all_that_is_known(run, holdfast_command):
    document = json.loads(holdfast_command("ls", "run", "--json").out)

    newest = _checkpoint(document, 50, 2)
    assert newest["states"] == ["committed", "latest"]
    assert newest["metrics"] == {"loss": 0.02, "accuracy": 0.5}
    assert newest["origin"] == _checkpoint(document, 20, 1)["id"]
    assert document["writer"]["alive"] is False
    assert document["total_bytes"] == sum(c["size_bytes"] for c in document["checkpoints"])


def test_whoever_asks_for_a_damaged_one_is_told_how_to_find_those_that_are_not(run, holdfast_command):
    (manifest,) = run.glob("000000050-*/manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:300])

    answer = holdfast_command("show", "run", "50")

    assert answer.code == 4
    assert "the manifest differs from its digest" in answer.err
    assert "hint: `holdfast verify run --all` says what is intact" in answer.err


@pytest.mark.parametrize("command", ["export run 50 --to x.npz", "diff run 10 50", "diff run:50 other:10"])
def test_the_command_that_says_what_is_intact_can_be_pasted(run, damage, holdfast_command, command):
    shutil.copytree("run", "other")
    damage(50)

    answer = holdfast_command(*command.split())

    assert answer.code == 4
    assert "hint: `holdfast verify run --all` says what is intact; " in answer.err


def test_where_either_of_two_copies_may_be_the_damaged_one_both_commands_are_named(run, holdfast_command):
    shutil.copytree("run", "other")
    (manifest,) = run.glob("000000050-*/manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:300])

    answer = holdfast_command("diff", "run:50", "other:50")

    assert answer.code == 4
    said = "`holdfast verify run --all` and `holdfast verify other --all` say what is intact"
    assert f"hint: {said}" in answer.err


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
    assert "ended" not in answer.out


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


def test_show_breaks_long_facts_between_words_on_a_terminal(run, holdfast_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")

    lines = holdfast_command("show", "run").out.splitlines()

    at = next(number for number, line in enumerate(lines) if line.startswith("  origin "))
    assert max(map(len, lines)) <= 60
    assert lines[at].startswith("  origin      000000020-")
    assert lines[at + 1] == " " * 14 + "the attempt went on from"


def test_show_takes_a_step_best_an_id_and_the_directory_itself(run, holdfast_command):
    folder = next(run.glob("000000040-*"))

    for arguments in (("run", "40"), ("run", "best", "--by", "loss", "--mode", "max"), ("run", folder.name), (folder,)):
        answer = holdfast_command("show", *arguments)
        assert answer.code == 0
        assert f"step {10 if 'best' in arguments else 40}" in answer.out


def test_show_of_the_best_says_by_what_it_is_the_best(run, holdfast_command):
    smallest = holdfast_command("show", "run", "best", "--by", "loss")
    largest = holdfast_command("show", "run", "best", "--by", "loss", "--mode", "max")
    named = holdfast_command("show", "run", "10")

    assert "  best        the smallest loss (0.02) of all\n" in smallest.out
    assert "  best        the largest loss (0.1) of all\n" in largest.out
    assert "best" not in named.out


class _Scheduler:
    """Like a scheduler of torch: some fields of its state are its own business."""

    def state_dict(self):
        return {"last_epoch": 5, "_phases": [{"end": 1.0}, {"end": 2.0}], "_step_count": 6}

    def load_state_dict(self, state):
        raise NotImplementedError


def test_show_folds_the_private_fields_of_objects_and_no_others(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    with holdfast.Checkpointer("run", {"scheduler": _Scheduler(), "progress": {"n": 3, "_a": 1, "_b": 2}}) as ckpt:
        ckpt.save(step=1)

    screen = holdfast_command("show", "run").out.splitlines()
    deep = holdfast_command("show", "run", "--depth", "3").out.splitlines()

    assert "  private fields  … 3 values" in screen
    assert "  _b  2" in screen
    assert "  _step_count  6" not in screen
    assert "  _step_count  6" in deep


def test_show_refuses_two_checkpoints(run, holdfast_command):
    folder = next(run.glob("000000040-*"))

    assert holdfast_command("show", folder, "10").code == 2


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


def test_verify_does_not_pass_over_a_newer_one_that_cannot_be_read(run, holdfast_command):
    (manifest,) = run.glob("000000050-*/manifest.json")
    manifest.write_bytes(bytes(20) + manifest.read_bytes()[20:])

    first = holdfast_command("verify", "run")
    second = holdfast_command("verify", "run", "--quarantine")
    third = holdfast_command("verify", "run")

    assert (first.code, second.code, third.code) == (1, 1, 0)
    for answer in (first, second):
        damaged = next(line for line in answer.out.splitlines() if line.startswith("DAMAGED"))
        assert manifest.parent.name in damaged
        assert "1 of 2 checkpoints damaged" in answer.out
    assert all(answer.out.count("intact   step") == 1 for answer in (first, second, third))
    assert "DAMAGED" not in third.out  # whoever has marked it knows


def test_verify_of_a_run_in_which_nothing_can_be_read_says_what_is_damaged(run, holdfast_command):
    manifests = list(run.glob("0*/manifest.json"))
    for manifest in manifests:
        manifest.write_bytes(b"nothing")

    answer = holdfast_command("verify", "run")

    assert answer.code == 1
    assert answer.out.count("DAMAGED") == len(manifests)


def test_verify_says_what_becomes_of_a_damaged_one_unless_it_is_marked(run, damage, holdfast_command):
    damage(50)

    first = holdfast_command("verify", "run", "50")
    second = holdfast_command("verify", "run", "50", "--quarantine")

    assert "takes the next older one" in first.out
    assert "--quarantine" in first.out
    assert "takes the next older one" not in second.out


@pytest.mark.parametrize("option", [[], ["--quarantine"]], ids=["plain", "quarantine"])
def test_verify_does_not_promise_an_older_one_where_all_are_damaged(run, holdfast_command, option):
    for shard in run.glob("0*/rank-00000.safetensors"):
        shard.unlink()

    answer = holdfast_command("verify", "run", "--all", *option)

    assert "6 of 6 checkpoints damaged" in answer.out
    assert "takes the next older one" not in answer.out
    assert "none is left that restore() could use" in answer.out


def test_verify_says_what_a_restore_takes_where_only_an_older_one_is_damaged(run, damage, holdfast_command):
    damage(10)

    answer = holdfast_command("verify", "run", "--all")

    assert "restore() takes step 50, which is not one of them" in answer.out


def test_verify_says_that_a_restore_stays_on_the_line_of_a_quarantined_rollback(rolled_back, holdfast_command):
    cut(rolled_back, 60)

    answer = holdfast_command("verify", rolled_back, "--quarantine")

    assert "restore() takes step 50, which is not one of them" in answer.out
    with holdfast.Checkpointer(rolled_back, {"w": np.zeros(2000)}) as ckpt:
        assert ckpt.restore().step == 50


@pytest.mark.parametrize("option", [[], ["--quarantine"]], ids=["plain", "quarantine"])
def test_verify_promises_no_abandoned_one_of_a_later_step(rolled_back, holdfast_command, option):
    for step in (30, 40, 50, 60):
        cut(rolled_back, step)

    answer = holdfast_command("verify", rolled_back, "--all", *option)

    assert "4 of 5 checkpoints damaged" in answer.out
    assert "restore() takes" not in answer.out
    said = "none is left that restore() could use" if option else "has no older one to take"
    assert said in answer.out
    assert ("abandoned by a rollback, and usable by id: 000000100-" in answer.out) == bool(option)


def test_verify_says_that_a_restore_takes_what_is_released(run, damage, holdfast_command):
    damage(50)
    holdfast_command("verify", "run", "50", "--quarantine")
    damage(50)  # flips the same bit back
    damage(10)

    answer = holdfast_command("verify", "run", "--all", "--release")

    assert "restore() takes step 50, which is not one of them" in answer.out


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


def test_verify_says_what_it_released(run, damage, holdfast_command):
    name = damage(50)
    marked = json.loads(holdfast_command("verify", "run", "50", "--quarantine", "--json").out)["checkpoints"][0]
    damage(50)  # flips the same bit back
    shutil.copytree(run, "other")

    text = holdfast_command("verify", "run", name, "--release").out
    document = json.loads(holdfast_command("verify", "other", name, "--release", "--json").out)["checkpoints"][0]

    assert "quarantined all the same" not in text
    assert "step 50 is released, and restores use it again; it was quarantined: rank-00000.safetensors, chunk 0" in text
    assert "chunk 0" in marked["quarantined"]
    assert (document["quarantined"], document["released"], document["marked"]) == ("", True, "verified")


def test_damage_that_verify_found_is_remembered_until_it_is_found_intact(run, damage, holdfast_command):
    holdfast_command("verify", "run", "50")
    damage(50)

    assert holdfast_command("verify", "run", "50").code == 1
    listed = _checkpoint(json.loads(holdfast_command("ls", "run", "--json").out), 50, 2)
    assert (listed["states"], listed["verified"]) == (["damaged"], False)
    assert "chunk 0" in holdfast_command("ls", "run").out
    assert "damaged     rank-00000.safetensors, chunk 0" in holdfast_command("show", "run", "50").out
    told = holdfast_command("doctor", "run", "--speed", "0").out
    assert "6, 1 of them found damaged" in told
    assert "all is well" not in told

    damage(50)  # flips the same bit back
    assert holdfast_command("verify", "run", "50").code == 0
    listed = _checkpoint(json.loads(holdfast_command("ls", "run", "--json").out), 50, 2)
    assert (listed["states"], listed["damaged"]) == (["verified", "latest"], "")


def test_the_latest_is_the_newest_that_is_not_known_to_be_damaged(run, damage, holdfast_command):
    name = damage(50)
    holdfast_command("verify", "run")

    listed = json.loads(holdfast_command("ls", "run", "--json").out)
    runs = json.loads(holdfast_command("ls", ".", "--json").out)["runs"]
    shown = json.loads(holdfast_command("show", "run", "--json").out)["checkpoint"]
    exported = holdfast_command("export", "run", "latest", "--to", "latest.npz")

    assert [(c["attempt"], c["step"]) for c in listed["checkpoints"] if "latest" in c["states"]] == [(2, 30)]
    assert runs[0]["latest_step"] == 30
    assert (shown["step"], shown["states"]) == (30, ["committed", "latest"])
    assert exported.code == 0
    assert "of step 30" in exported.out
    assert holdfast_command("diff", "run", "30", "latest").code == 0
    assert name in holdfast_command("verify", "run").out  # it may be intact by now


def test_where_all_are_damaged_none_is_the_latest_and_reading_it_says_why(run, damage, holdfast_command):
    for name in sorted(path.name for path in run.glob("0*-*"))[:-1]:
        holdfast_command("rm", "run", name, "--yes", "--force")
    damage(50)
    holdfast_command("verify", "run")

    (listed,) = json.loads(holdfast_command("ls", "run", "--json").out)["checkpoints"]
    exported = holdfast_command("export", "run", "latest", "--to", "latest.npz")

    assert listed["states"] == ["damaged"]
    assert exported.code == 4
    assert "chunk 0 differs" in exported.err


def test_a_restore_that_reads_all_of_a_checkpoint_takes_back_that_it_is_damaged(run, damage, holdfast_command):
    damage(50)
    holdfast_command("verify", "run", "50")
    damage(50)  # flips the same bit back
    state = {"model": {"w": np.zeros((4, 8)), "b": np.zeros(8)}, "progress": {"seen": 0}}

    with holdfast.Checkpointer(run, state) as ckpt:
        restored = ckpt.restore()

    assert restored is not None
    assert restored.step == 50
    listed = _checkpoint(json.loads(holdfast_command("ls", "run", "--json").out), 50, 2)
    assert listed["states"] == ["verified", "latest"]


def test_the_doctor_says_it_where_no_sound_checkpoint_is_left(run, damage, holdfast_command):
    for name in sorted(path.name for path in run.glob("0*-*"))[:-1]:
        holdfast_command("rm", "run", name, "--yes", "--force")
    damage(50)
    holdfast_command("verify", "run")

    found = json.loads(holdfast_command("doctor", "run", "--speed", "0", "--json").out)["findings"]

    (verified,) = (finding for finding in found if finding["what"] == "verified")
    assert verified["status"] == "warn"
    assert "a restart fails" in verified["advice"]


@pytest.mark.parametrize("option", [[], ["--quarantine"]], ids=["plain", "quarantine"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ETIMEDOUT])
def test_what_could_not_be_read_is_not_marked_and_stays_the_last_verified_one(
    run, holdfast_command, monkeypatch, number, option
):
    holdfast_command("verify", "run", "50")
    with monkeypatch.context() as patched:
        patched.setattr(Files, "open_read", _without_shards(number))
        answer = holdfast_command("verify", "run", "50", *option)

    assert answer.code == 1
    assert "UNREAD   step 50" in answer.out
    assert errno.errorcode[number] in answer.out
    assert "1 of 1 checkpoint could not be read, and may be intact" in answer.out
    listed = _checkpoint(json.loads(holdfast_command("ls", "run", "--json").out), 50, 2)
    assert listed["states"] == ["verified", "latest"]


def test_what_the_device_cannot_read_is_damaged(run, holdfast_command, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Files, "open_read", _without_shards(errno.EIO))
        answer = holdfast_command("verify", "run", "50")

    assert "DAMAGED  step 50" in answer.out
    listed = _checkpoint(json.loads(holdfast_command("ls", "run", "--json").out), 50, 2)
    assert listed["states"] == ["damaged"]


def _without_shards(number: int) -> Callable[..., int]:
    open_read = Files.open_read

    def refuse(files: Files, parent: int, name: str, *, direct: bool = False) -> int:
        if name.startswith("rank-"):
            raise OSError(number, os.strerror(number))
        return open_read(files, parent, name, direct=direct)

    return refuse


def test_quarantine_takes_the_place_of_damaged(run, damage, holdfast_command):
    damage(50)
    holdfast_command("verify", "run", "50")

    holdfast_command("verify", "run", "50", "--quarantine")

    listed = _checkpoint(json.loads(holdfast_command("ls", "run", "--json").out), 50, 2)
    assert (listed["states"], listed["damaged"]) == (["quarantined"], "")


def test_verify_as_json_lists_the_damage(run, damage, holdfast_command):
    damage(50)

    document = json.loads(holdfast_command("verify", "run", "--all", "--json").out)

    damaged = [one for one in document["checkpoints"] if not one["intact"]]
    assert [one["step"] for one in damaged] == [50]
    assert damaged[0]["damage"][0]["leaves"][:2] == ["model.w", "model.b"]
    assert damaged[0]["marked"] == "damaged"


def test_verify_counts_only_what_it_could_read(run, holdfast_command):
    next(run.glob("000000050-*/rank-00000.safetensors")).unlink()

    answer = holdfast_command("verify", "run")

    assert answer.code == 1
    assert "rank-00000.safetensors: is missing" in answer.out
    assert "1 of 1 checkpoint damaged; 0 B read" in answer.out


def test_verify_takes_all_or_one(run, holdfast_command):
    answer = holdfast_command("verify", "run", "20", "--all")

    assert answer.code == 2
    assert "--all and 20 exclude each other" in answer.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory to somebody else")
def test_somebody_elses_run_can_be_verified_but_not_marked(run, holdfast_command):
    os.chown(run, 12345, 12345)

    verified = holdfast_command("verify", "run")
    assert verified.code == 0
    assert "belongs to user 12345, not to user 0; so nothing of what is found is noted" in verified.err
    assert holdfast_command("verify", "run", "--quarantine").code == 3
    assert holdfast_command("pin", "run", "50").code == 3


def test_ls_of_a_directory_that_cannot_be_read_says_so_in_our_own_words(tmp_path, monkeypatch, holdfast_command):
    """As of a run of somebody else, which has no rights for others. Root may read everything: so it is refused here."""
    (tmp_path / "closed").mkdir()

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    answer = holdfast_command("ls", str(tmp_path / "closed"))

    assert answer.code == 3
    assert "unexpected" not in answer.err


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


def test_diff_of_a_part_that_neither_has_is_an_error_with_near_names(run, holdfast_command):
    answer = holdfast_command("diff", "run", "10", "50", "--only", "modle")

    assert answer.code == 3
    assert "the checkpoint has no 'modle'" in answer.err
    assert "it has model" in answer.err


def test_diff_of_a_part_compares_arrays_that_are_tied_to_another_part(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    shared = np.zeros(3)
    with holdfast.Checkpointer("run", {"embedding": shared, "head": {"w": shared}, "seen": {"count": 0}}) as ckpt:
        ckpt.save(step=1)
        shared += 1
        ckpt.save(step=2)

    assert holdfast_command("diff", "run", "1", "2", "--only", "head").code == 1
    assert holdfast_command("diff", "run", "1", "2", "--only", "seen").code == 0


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (("run", "50"), "a second WHICH is missing\n  hint: holdfast diff run 50 latest"),
        (("run:10", "50"), "50 names no run\n  hint: holdfast diff run 10 50"),
        (("run",), "1 argument given"),
        (("run", "10", "20", "30"), "4 arguments given"),
    ],
)
def test_diff_says_what_is_missing(run, holdfast_command, places, said):
    answer = holdfast_command("diff", *places)

    assert answer.code == 2
    assert said in answer.err


def test_diff_of_damaged_data_is_an_error_not_a_difference(run, damage, holdfast_command):
    damage(50)

    answer = holdfast_command("diff", "run", "20", "50")

    assert answer.code == 4
    assert "differs from its checksum" in answer.err


def test_a_step_that_is_not_there_is_named_with_the_nearest(run, holdfast_command):
    answer = holdfast_command("show", "run", "45")

    assert answer.code == 3
    assert "run: there is no checkpoint of step 45; the nearest of 5: 20, 30, 40, 50" in answer.err
    assert "holdfast ls run" in answer.err


@pytest.mark.parametrize(
    "command",
    [
        "show run",
        "show run 10",
        "export run --to x.npz",
        "verify run",
        "verify run --all",
        "pin run 10",
        "unpin run 10",
        "rm run 10 20 --yes",
        "cp run copy",
        "cp run:10 copy",
    ],
)
@pytest.mark.parametrize("option", ["--by loss", "--mode max"])
def test_what_best_means_is_refused_where_nobody_asked_for_best(run, holdfast_command, command, option):
    answer = holdfast_command(*command.split(), *option.split())

    assert answer.code == 2
    assert f"{option.split()[0]} goes with `best`" in answer.err
    assert not os.path.exists("copy")


def test_best_by_what_is_asked_and_answered_in_the_words_of_the_command_line(run, holdfast_command):
    which = holdfast_command("show", "run", "best")
    unknown = holdfast_command("show", "run", "best", "--by", "nope")

    assert (which.code, unknown.code) == (2, 2)
    assert "best by which metric? There are accuracy, loss\n  hint: for example --by accuracy" in which.err
    assert "no checkpoint has a number for --by nope\n  hint: there are accuracy, loss" in unknown.err
    assert "step 50" in holdfast_command("show", "run", "best", "--by", "accuracy", "--mode", "max").out


@pytest.mark.parametrize("options", ["ls run -n 0", "ls run -n -1", "show run --depth -2", "diff run 10 20 --limit -1"])
def test_numbers_that_are_too_small_are_refused(run, holdfast_command, options):
    answer = holdfast_command(*options.split())

    assert answer.code == 2
    assert "is not a whole number of at least" in answer.err
