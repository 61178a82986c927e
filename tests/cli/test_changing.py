"""`pin`, `unpin`, `prune`, `rm`, `cp`, `export`, `import` and `doctor`: what they do to a run."""

import contextlib
import errno
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast.engine.file_state import save_files
from holdfast.engine.saving import Document
from holdfast.engine.session import Session
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock
from tests.cli.conftest import cut

_SOURCE = str(Path(holdfast.__file__).parents[1])


@pytest.fixture
def steps(holdfast_command):
    """(attempt, step) of all checkpoints that are there."""

    def listed(path="run"):
        found = json.loads(holdfast_command("ls", path, "--json").out)["checkpoints"]
        return [(c["attempt"], c["step"]) for c in found]

    return listed


def test_a_pinned_checkpoint_outlives_pruning_until_it_is_unpinned(run, holdfast_command, steps):
    assert holdfast_command("pin", "run", "10", "--note", "figure 3").code == 0
    assert "pinned      figure 3" in holdfast_command("show", "run", "10").out

    assert holdfast_command("prune", "run", "--keep-last", "1", "--yes").code == 0
    assert (1, 10) in steps()

    assert "no longer" in holdfast_command("unpin", "run", "10").out
    assert holdfast_command("prune", "run", "--keep-last", "1", "--yes").code == 0
    assert (1, 10) not in steps()


@pytest.mark.parametrize("command", [["prune", "run", "--keep-last", "1"], ["rm", "run", "10"]], ids=["prune", "rm"])
def test_what_is_pinned_while_a_command_waits_for_an_answer_stays(run, holdfast_command, steps, command):
    ours, theirs = pty.openpty()
    variables = {**os.environ, "PYTHONPATH": _SOURCE}
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *command], stdin=theirs, stdout=theirs, stderr=theirs, env=variables
    ) as asking:
        os.close(theirs)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(ours, 1 << 16)

        assert holdfast_command("pin", "run", "10").code == 0
        os.write(ours, b"y\n")
        code = asking.wait()
    os.close(ours)

    assert (1, 10) in steps()
    assert code == 1


def test_a_dry_run_explains_each_decision_and_removes_nothing(run, holdfast_command, steps):
    before = steps()

    answer = holdfast_command("prune", "run", "--keep-last", "1", "--keep-best", "1", "--by", "loss", "--dry-run")

    assert answer.code == 0
    assert "older than the last 1, not among the best 1 by loss" in answer.out
    assert "newest of an abandoned branch" in answer.out
    assert "best 1 by loss (0.02)" in answer.out
    assert "keep 3, remove 3" in answer.out
    assert steps() == before


def test_prune_removes_what_it_said_and_tells_the_journal(run, holdfast_command, steps):
    answer = holdfast_command("prune", "run", "--keep-last", "1", "--yes", "--json")

    document = json.loads(answer.out)
    assert answer.code == 0
    assert len(document["removed"]) == 3
    # The last verified one (20), the tip of the abandoned branch (40), and the newest.
    assert steps() == [(1, 20), (1, 40), (2, 50)]
    assert '"event": "pruned"' in (run / "journal.jsonl").read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("kept", "code", "left"), [(2, 1, [10, 40, 50, 60]), (3, 0, [10, 40, 50, 60])], ids=["old", "new"]
)
def test_prune_spares_what_a_restart_needs_where_the_newest_have_lost_their_shards(
    tmp_path, holdfast_command, caplog, kept, code, left
):
    with holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(3)}, keep=holdfast.KEEP_ALL) as ckpt:
        for step in range(10, 70, 10):
            ckpt.save(step=step)
    for shard in [*(tmp_path / "run").glob("*50-*/rank-*"), *(tmp_path / "run").glob("*60-*/rank-*")]:
        shard.unlink()
    holdfast_command("pin", tmp_path / "run", 10)

    answer = holdfast_command("prune", tmp_path / "run", "--keep-last", kept, "--yes")

    assert answer.code == code
    listed = json.loads(holdfast_command("ls", tmp_path / "run", "--json").out)
    assert sorted(c["step"] for c in listed["checkpoints"]) == left
    assert ("is not pruned, because newer ones are not complete" in caplog.text) == (code == 1)


def test_prune_does_not_take_an_abandoned_one_for_what_a_restart_needs(tmp_path, holdfast_command):
    path, weights = tmp_path / "run", np.zeros(3)
    with holdfast.Checkpointer(path, {"w": weights}, keep=holdfast.KEEP_ALL) as ckpt:
        for step in (500, 1000):
            ckpt.save(step=step)
        ckpt.restore(500)
        for step in (600, 700):
            ckpt.save(step=step)
    holdfast_command("verify", path)
    for shard in [*path.glob("*600-*/rank-*"), *path.glob("*700-*/rank-*")]:
        shard.unlink()

    answer = holdfast_command("prune", path, "--keep-last", 2, "--yes")

    assert answer.code == 1
    with holdfast.Checkpointer(path, {"w": weights}) as ckpt:
        assert ckpt.restore().step == 500


@pytest.fixture
def quarantined(rolled_back, holdfast_command):
    """The run that was rolled back, with the only checkpoint of its second attempt in quarantine."""
    cut(rolled_back, 60)
    holdfast_command("verify", rolled_back, "--quarantine")
    return rolled_back


def test_prune_takes_the_abandoned_branch_for_abandoned_though_all_after_it_are_quarantined(
    quarantined, holdfast_command, steps
):
    answer = holdfast_command("prune", quarantined, "--abandoned", "--yes")

    assert answer.code == 0
    assert steps(quarantined) == [(1, 30), (1, 40), (1, 50), (2, 60)]


def test_prune_spares_what_a_restart_falls_back_to_beside_an_abandoned_one_of_a_later_step(
    quarantined, holdfast_command, steps
):
    cut(quarantined, 50)

    holdfast_command("prune", quarantined, "--keep-last", 1, "--yes")

    assert (1, 40) in steps(quarantined)
    with holdfast.Checkpointer(quarantined, {"w": np.zeros(2000)}) as ckpt:
        assert ckpt.restore().step == 40


def test_prune_counts_a_damaged_rollback_as_the_live_line_too(quarantined, holdfast_command, steps):
    (mark,) = quarantined.glob("marks/*.quarantined.json")
    mark.rename(mark.with_name(mark.name.replace("quarantined", "damaged")))

    answer = holdfast_command("prune", quarantined, "--abandoned", "--yes")

    assert answer.code == 0
    assert (1, 100) not in steps(quarantined)


@pytest.mark.parametrize("also", [[], [100]], ids=["alone", "with the abandoned one"])
def test_rm_refuses_the_last_one_that_a_restart_would_take(quarantined, holdfast_command, steps, also):
    holdfast_command("rm", quarantined, 30, 40, "--yes")
    for mark in quarantined.glob("marks/*.verified.json"):
        mark.unlink()

    answer = holdfast_command("rm", quarantined, 50, *also, "--yes", "--json")

    assert answer.code == 1
    (refused,) = json.loads(answer.out)["refused"]
    assert refused["reason"] == f"step 50 is the last good checkpoint of {quarantined}"
    assert ("a restart would take none of those that are left" in refused["hint"]) == (not also)
    assert len(steps(quarantined)) == 3
    assert holdfast_command("rm", quarantined, 50, "--yes", "--force").code == 0


def test_rm_refuses_what_makes_a_restart_pass_over_the_last_good_one(quarantined, holdfast_command, steps):
    with holdfast.Checkpointer(quarantined, {"w": np.zeros(2000)}, keep=holdfast.KEEP_ALL) as ckpt:
        ckpt.restore(50)
        ckpt.save(step=70)
        ckpt.save(step=110)
    cut(quarantined, 70)
    cut(quarantined, 110)
    holdfast_command("verify", quarantined, "--all", "--quarantine")
    holdfast_command("rm", quarantined, 30, 40, 50, "--yes", "--force")

    answer = holdfast_command("rm", quarantined, 110, "--yes")

    assert answer.code == 1
    assert "without step 110 a restart would pass over step 100, and find no other" in answer.err
    assert len(steps(quarantined)) == 4
    assert holdfast_command("rm", quarantined, 70, "--yes").code == 0


def test_rm_of_the_latest_asks_back_where_the_newest_is_damaged(tmp_path, holdfast_command):
    path = tmp_path / "run"
    with holdfast.Checkpointer(path, {"w": np.zeros(3)}, keep=holdfast.KEEP_ALL) as ckpt:
        for step in (10, 20, 30):
            ckpt.save(step=step)
    (shard,) = path.glob("*30-*/rank-*")
    shard.write_bytes(shard.read_bytes()[:-1])
    holdfast_command("verify", path)

    answer = holdfast_command("rm", path, "latest", "--yes")

    assert answer.code == 2
    assert "latest is step 20, for the newest one, step 30, is damaged; nothing was removed" in answer.err
    assert holdfast_command("rm", path, 30, "--yes").code == 0
    assert holdfast_command("rm", path, "latest", "--yes", "--force").code == 0


def test_rm_of_the_latest_asks_back_where_the_manifest_of_the_newest_makes_no_sense(run, holdfast_command, steps):
    (manifest,) = run.glob("*50-*/manifest.json")
    manifest.write_bytes(bytes(manifest.stat().st_size))
    before = steps()

    answer = holdfast_command("rm", "run", "latest", "--yes", "--force")

    assert answer.code == 2
    assert "latest is step 30, for the newest one, step 50, is damaged; nothing was removed" in answer.err
    assert f"holdfast rm run {manifest.parent.name}" in answer.err
    assert steps() == before
    assert holdfast_command("rm", "run", manifest.parent.name, "--yes").code == 0
    assert holdfast_command("rm", "run", "latest", "--yes", "--force").code == 0


def test_rm_of_the_latest_asks_back_where_the_newest_cannot_be_read_now(run, holdfast_command, steps, monkeypatch):
    with monkeypatch.context() as patched:
        _refuse_manifest(patched, "000000050-", errno.EACCES)
        answer = holdfast_command("rm", "run", "latest", "--yes", "--force")

    assert answer.code == 2
    assert "for the newest one, step 50, cannot be read now; nothing was removed" in answer.err
    assert len(steps()) == 6


@pytest.mark.parametrize("which", [["30"], ["latest"]], ids=["by step", "in quarantine"])
def test_rm_does_not_ask_back_where_it_is_clear_what_is_meant(run, holdfast_command, steps, which):
    (manifest,) = run.glob("*50-*/manifest.json")
    manifest.write_bytes(bytes(manifest.stat().st_size))
    if which == ["latest"]:
        holdfast_command("verify", "run", "--quarantine")

    assert holdfast_command("rm", "run", *which, "--yes", "--force").code == 0

    assert (2, 30) not in steps()


def test_prune_drops_abandoned_and_quarantined_ones_only_when_asked(run, damage, holdfast_command, steps):
    damage(50)
    holdfast_command("verify", "run", "50", "--quarantine")

    assert holdfast_command("prune", "run", "--abandoned", "--yes").code == 0
    assert steps() == [(1, 10), (1, 20), (2, 30), (2, 50)]

    assert holdfast_command("prune", "run", "--quarantined", "--yes").code == 0
    assert steps() == [(1, 10), (1, 20), (2, 30)]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_prune_of_quarantined_ones_spares_what_cannot_be_read_now(
    run, damage, holdfast_command, steps, monkeypatch, number
):
    damage(30)
    holdfast_command("verify", "run", "30", "--quarantine")
    (zeroed,) = run.glob("*40-*/manifest.json")
    zeroed.write_bytes(bytes(zeroed.stat().st_size))
    with monkeypatch.context() as patched:
        _refuse_manifest(patched, "000000050-", number)
        answer = holdfast_command("prune", "run", "--quarantined", "--yes")

    assert answer.code == 0
    assert f"({errno.errorcode[number]}); kept, for it may be intact" in answer.out
    assert steps() == [(1, 10), (1, 20), (1, 30), (2, 50)]


def test_prune_of_quarantined_ones_takes_a_marked_one_that_cannot_be_read_now(
    run, damage, holdfast_command, steps, monkeypatch
):
    damage(50)
    holdfast_command("verify", "run", "50", "--quarantine")
    with monkeypatch.context() as patched:
        _refuse_manifest(patched, "000000050-", errno.EACCES)
        assert holdfast_command("prune", "run", "--quarantined", "--yes").code == 0

    assert (2, 50) not in steps()


def _refuse_manifest(patched, of, number):
    """From now on the manifest cannot be opened."""
    open_read = Files.open_read

    def refuse(files, parent, name, *, direct=False):
        directory = os.path.basename(os.readlink(f"/proc/self/fd/{parent}"))
        if name == "manifest.json" and directory.startswith(of):
            raise OSError(number, os.strerror(number))
        return open_read(files, parent, name, direct=direct)

    patched.setattr(Files, "open_read", refuse)
    patched.setattr(Files, "open_starts", lambda *_: None)  # then they are opened one by one


def test_prune_to_a_size_keeps_the_newest(run, holdfast_command, steps):
    assert holdfast_command("prune", "run", "--max-size", "9K", "--yes").code == 0

    assert steps() == [(1, 20), (2, 50)]


def test_prune_removes_garbage_but_not_what_a_live_writer_may_be_writing(run, holdfast_command):
    manifest = next(run.glob("000000040-*/manifest.json"))
    manifest.unlink()
    ours = run / "000000060-e000-20260101T000000Z-a0003"

    with holdfast.Checkpointer(run, {"model": {}}):
        ours.mkdir(mode=0o700)
        document = json.loads(holdfast_command("prune", "run", "--garbage", "--yes", "--json").out)

    assert document["garbage"] == [manifest.parent.name]
    assert not manifest.parent.exists()
    assert ours.exists()


def test_prune_of_garbage_says_what_there_was_and_nothing_of_each_checkpoint(run, holdfast_command):
    none = holdfast_command("prune", "run", "--garbage", "--yes")
    with_rule = holdfast_command("prune", "run", "--garbage", "--keep-last", "9", "--dry-run")
    next(run.glob("000000040-*/manifest.json")).unlink()
    some = holdfast_command("prune", "run", "--garbage", "--yes")

    assert none.out == "keep 6, remove 0 (0 B); there is no garbage\n0 checkpoints removed\n"
    assert with_rule.out.count("last 9") == 4
    assert some.out.splitlines() == [
        "        step  why",
        "remove    40  unfinished",
        "",
        "keep 5, remove 0 (0 B) and 1 unfinished",
        "0 checkpoints and 1 unfinished directory removed",
    ]


def test_prune_says_of_what_may_still_be_written_that_it_is_no_garbage(run, holdfast_command):
    with holdfast.Checkpointer(run, {"model": {}}):
        (run / "000000060-e000-20260101T000000Z-a0003").mkdir(mode=0o700)

        answer = holdfast_command("prune", "run", "--garbage", "--yes")

    assert "there is no garbage: 1 unfinished directory may still be written" in answer.out


def test_what_the_agent_of_a_dead_writer_is_writing_is_no_garbage(run, holdfast_command):
    ours = run / "000000060-e000-20260101T000000Z-a0003"
    with holdfast.Checkpointer(run, {"model": {}}):
        ours.mkdir(mode=0o700)
    agent = PosixStore(run)
    agent.publish("attempts/000003.agent", b"{}\n")
    agent.hold("attempts/000003.agent")

    pruned = json.loads(holdfast_command("prune", "run", "--garbage", "--yes", "--json").out)
    listed = holdfast_command("ls", "run").out
    doctor = json.loads(holdfast_command("doctor", "run", "--json").out)
    agent.close()

    assert pruned["garbage"] == []
    assert ours.exists()
    assert "which has ended; its agent finishes what it has" in listed
    assert "left by a crash" not in listed
    (leftovers,) = (finding for finding in doctor["findings"] if finding["what"] == "leftovers")
    assert leftovers["status"] == "ok"


def test_prune_without_a_person_needs_yes(run, holdfast_command, steps):
    before = steps()

    answer = holdfast_command("prune", "run", "--keep-last", "1")

    assert answer.code == 2
    assert "--yes" in answer.err
    assert steps() == before


def test_prune_needs_to_know_what_to_keep(run, holdfast_command):
    assert "nothing says what to keep" in holdfast_command("prune", "run", "--yes").err
    assert holdfast_command("prune", "run", "--yes").code == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--keep-best 2", "--keep-best needs --by"),
        ("--keep-last 1 --by loss", "--by needs --keep-best"),
        ("--keep-last 1 --mode max", "--mode needs --keep-best"),
        ("--keep-last -1", "argument --keep-last: '-1' is not a whole number of at least 0"),
        ("--keep-every-steps 0", "argument --keep-every-steps: '0' is not a whole number of at least 1"),
        ("--keep-days nan", "argument --keep-days: 'nan' is not a number of days"),
        ("--max-size much", "--max-size: 'much' is not a size"),
    ],
)
def test_rules_that_make_no_sense_are_refused_in_the_words_of_the_command_line(
    run, holdfast_command, steps, options, said
):
    before = steps()

    answer = holdfast_command("prune", "run", *options.split(), "--yes")

    assert answer.code == 2
    assert said in answer.err
    assert "=" not in answer.err
    assert steps() == before


def test_prune_refuses_a_metric_that_no_checkpoint_has_and_names_those_there_are(run, holdfast_command, steps):
    before = steps()

    answer = holdfast_command("prune", "run", "--keep-best", "1", "--by", "nope", "--yes")

    assert answer.code == 2
    assert "no checkpoint has a number for --by nope" in answer.err
    assert "there are accuracy, loss" in answer.err
    assert steps() == before


def test_prune_to_a_size_says_so_and_never_that_what_it_removes_is_kept(run, holdfast_command):
    answer = holdfast_command("prune", "run", "--max-size", "14K", "--dry-run")

    lines = answer.out.splitlines()
    assert answer.code == 0
    assert [line.split()[0] for line in lines[1:7]] == ["remove", "keep", "remove", "remove", "keep", "keep"]
    assert lines[1].endswith("over --max-size 14K")
    assert lines[4].endswith("over --max-size 14K (but for that: newest of an abandoned branch)")
    assert lines[5].endswith("within --max-size 14K")
    assert "everything is kept" not in answer.out


def test_rm_removes_what_is_named(run, holdfast_command, steps):
    answer = holdfast_command("rm", "run", "10", "40", "--yes")

    assert answer.code == 0
    assert steps() == [(1, 20), (1, 30), (2, 30), (2, 50)]


def test_rm_names_what_it_removed(run, holdfast_command):
    names = {step: next(run.glob(f"{step:09d}-*-a0001")).name for step in (10, 20, 30, 40)}

    one = holdfast_command("rm", "run", "40", "--yes")
    many = holdfast_command("rm", "run", "30", "10", "--force", "--yes")

    assert one.out.endswith(f" freed: step 40 ({names[40]})\n")
    assert many.out.startswith("2 checkpoints removed, ")
    assert many.out.endswith(" freed: steps 10, 30\n")


def test_rm_of_the_best_says_by_what_it_was_the_best(tmp_path, holdfast_command):
    with holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(3)}, keep=holdfast.KEEP_ALL) as ckpt:
        names = {step: ckpt.save(step=step, metrics={"loss": 1 / step}).wait() for step in (10, 20, 40, 50)}

    smallest = holdfast_command("rm", tmp_path / "run", "best", "--yes", "--force")
    largest = holdfast_command("rm", tmp_path / "run", "best", "20", "--mode", "max", "--yes", "--force")

    assert smallest.out.endswith(f"freed: step 50 ({names[50]}), the smallest loss (0.02)\n")
    assert largest.out.endswith(f"freed: steps 10, 20; best was step 10 ({names[10]}), the largest loss (0.1)\n")


@pytest.mark.parametrize("command", [["prune", "run", "--keep-last", "1"], ["rm", "run", "10"]], ids=["prune", "rm"])
def test_whoever_does_not_answer_yes_is_told_that_nothing_was_removed(run, steps, command):
    ours, theirs = pty.openpty()
    variables = {**os.environ, "PYTHONPATH": _SOURCE}
    os.write(ours, b"maybe\n")

    answer = subprocess.run(
        [sys.executable, "-m", "holdfast", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=variables,
        timeout=60,
    )

    os.close(theirs)
    said = _all_of(ours)
    assert answer.returncode == 1
    assert said.endswith("nothing was removed\r\n")
    assert len(steps()) == 6


def _all_of(terminal: int) -> str:
    """What was written to it, to the end: some of it may still be on its way."""
    with open(terminal, "rb", buffering=0) as stream:
        said = b""
        with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
            while part := stream.read(1 << 16):
                said += part
    return said.decode()


def test_rm_refuses_a_pinned_one(run, holdfast_command, steps):
    holdfast_command("pin", "run", "10")

    answer = holdfast_command("rm", "run", "10", "40", "--yes")

    assert answer.code == 1
    assert "step 10 is pinned" in answer.err
    assert "holdfast unpin run 10" in answer.err
    assert len(steps()) == 6
    assert holdfast_command("rm", "run", "10", "--force", "--yes").code == 0


def test_rm_refuses_the_one_that_prune_calls_the_last_verified(run, holdfast_command, steps):
    holdfast_command("verify", "run", "--all")
    plan = json.loads(holdfast_command("prune", "run", "--keep-last", "0", "--dry-run", "--json").out)
    (protected,) = (verdict["id"] for verdict in plan["verdicts"] if "(I6)" in verdict["reason"])

    answer = holdfast_command("rm", "run", protected, "--yes", "--json")

    (refusal,) = json.loads(answer.out)["refused"]
    assert answer.code == 1
    assert refusal["id"] == protected
    assert "is the last verified checkpoint of run" in refusal["reason"]
    assert len(steps()) == 6
    assert holdfast_command("rm", "run", "20", "--yes").code == 0
    assert holdfast_command("rm", "run", protected, "--yes", "--force").code == 0


def test_one_that_was_found_damaged_is_not_the_last_verified_one_any_more(run, damage, holdfast_command, steps):
    holdfast_command("verify", "run", "--all")
    name = damage(50)

    holdfast_command("verify", "run", "50")

    plan = json.loads(holdfast_command("prune", "run", "--keep-last", "0", "--dry-run", "--json").out)
    (protected,) = (verdict["id"] for verdict in plan["verdicts"] if "(I6)" in verdict["reason"])
    assert protected.startswith("000000030-")
    (reason,) = (verdict["reason"] for verdict in plan["verdicts"] if verdict["id"] == name)
    assert reason == "damaged: kept for inspection"
    assert holdfast_command("rm", "run", protected, "--yes").code == 1
    assert holdfast_command("rm", "run", name, "--yes").code == 0


def test_the_last_verified_one_may_go_once_a_newer_one_is_verified(run, holdfast_command):
    refused = holdfast_command("rm", "run", "20", "--yes")
    assert refused.code == 1
    assert "verify a newer one first: holdfast verify run" in refused.err

    holdfast_command("verify", "run")

    assert holdfast_command("rm", "run", "20", "--yes").code == 0


def test_rm_refuses_the_last_good_one(run, holdfast_command, steps):
    names = [c["id"] for c in json.loads(holdfast_command("ls", "run", "--json").out)["checkpoints"]]
    damaged, others = names[-1], names[:-1]
    (run / damaged / "rank-00000.safetensors").unlink()

    answer = holdfast_command("rm", "run", *others, "--yes")

    assert answer.code == 1
    assert "step 30 is the last good checkpoint of run" in answer.err
    assert len(steps()) == 6
    assert holdfast_command("rm", "run", *names, "--yes", "--force").code == 0
    assert steps() == []


def test_rm_refuses_the_last_one_that_a_restore_would_try_though_all_are_damaged(run, damage, holdfast_command, steps):
    names = [c["id"] for c in json.loads(holdfast_command("ls", "run", "--json").out)["checkpoints"]]
    holdfast_command("rm", "run", *names[:-2], "--yes", "--force")
    damaged = [damage(int(name[:9])) for name in names[-2:]]
    holdfast_command("verify", "run", "--all")

    answer = holdfast_command("rm", "run", *damaged, "--yes")

    assert answer.code == 1
    assert "is the last checkpoint that a restore would try of run" in answer.err
    assert len(steps()) == 2
    assert holdfast_command("rm", "run", damaged[0], "--yes").code == 0
    assert holdfast_command("rm", "run", damaged[1], "--yes", "--force").code == 0


def test_a_pin_keeps_its_note_and_says_how_to_change_it(run, holdfast_command):
    holdfast_command("pin", "run", "10", "--note", "figure 3")

    assert holdfast_command("pin", "run", "10").code == 0
    other = holdfast_command("pin", "run", "10", "--note", "figure 4")

    assert other.code == 1
    assert "step 10 is pinned already, with the note 'figure 3'" in other.out
    assert "holdfast unpin run 10" in other.err
    assert json.loads(holdfast_command("pin", "run", "10", "--json").out)["note"] == "figure 3"


def test_a_copy_of_a_run_is_the_same_byte_for_byte_and_can_be_trained_on(run, holdfast_command, steps):
    assert holdfast_command("cp", "run", "copies/run").code == 0

    assert steps("copies/run") == steps("run")
    for path in run.glob("0*/*"):
        assert path.read_bytes() == (run.parent / "copies" / "run" / path.relative_to(run)).read_bytes()
    state = {"model": {"w": np.zeros((4, 8)), "b": np.zeros(8)}, "progress": {"seen": 0}}
    with holdfast.Checkpointer("copies/run", state) as ckpt:
        assert ckpt.attempt == 3
        ckpt.restore()
    assert state["progress"]["seen"] == 400


def test_a_single_checkpoint_is_copied_by_run_and_which(run, holdfast_command, steps):
    assert holdfast_command("cp", "run:best", "copy", "--by", "loss", "--mode", "max").code == 0

    assert steps("copy") == [(1, 10)]


@pytest.mark.parametrize(("source", "target"), [("run", "run/copy"), ("run:10", "run/copy"), ("run", "./link")])
def test_a_copy_into_its_own_run_is_refused(run, holdfast_command, source, target):
    os.symlink("run", "link")
    before = sorted(path.name for path in run.iterdir())

    answer = holdfast_command("cp", source, target)

    assert answer.code == 2
    assert "is inside of run" in answer.err or "is the run itself" in answer.err
    assert sorted(path.name for path in run.iterdir()) == before


def test_a_checkpoint_that_lacks_a_shard_is_damaged_and_not_copied(run, holdfast_command):
    next(run.glob("000000050-*/rank-00000.safetensors")).unlink()

    answer = holdfast_command("cp", "run", "copy")

    assert answer.code == 4
    assert "rank-00000.safetensors is missing" in answer.err
    assert "holdfast verify run --all --quarantine" in answer.err


def test_copying_again_skips_what_is_there(run, holdfast_command):
    holdfast_command("cp", "run:10", "copy")

    document = json.loads(holdfast_command("cp", "run", "copy", "--json").out)

    assert len(document["already_there"]) == 1
    assert len(document["copied"]) == 5


def test_what_was_there_already_is_not_said_to_be_verified(run, holdfast_command):
    first = holdfast_command("cp", "run", "copy").out
    shard = next((run.parent / "copy").glob("000000050-*/rank-00000.safetensors"))
    shard.write_bytes(bytes(shard.stat().st_size))

    again = holdfast_command("cp", "run", "copy").out

    assert first.endswith(", verified\n")
    assert "verified" not in again
    assert "6 were there already and were not read again: `holdfast verify copy --all` does that" in again


def test_a_damaged_checkpoint_is_not_copied(run, damage, holdfast_command):
    damage(50)

    answer = holdfast_command("cp", "run:50", "copy")

    assert answer.code == 4
    assert "chunk 0 differs from its digest" in answer.err
    assert json.loads(holdfast_command("ls", "copy", "--json").out)["checkpoints"] == []


def test_an_export_holds_the_part_that_was_asked_for_and_is_never_overwritten(run, holdfast_command):
    assert holdfast_command("export", "run", "50", "--only", "model", "--to", "model.npz").code == 0

    with np.load("model.npz") as arrays:
        assert set(arrays) == {"w", "b"}
        assert (arrays["w"] == 6.0).all()
    again = holdfast_command("export", "run", "50", "--to", "model.npz")
    assert again.code == 2
    assert "--force" in again.err
    assert holdfast_command("export", "run", "50", "--to", "model.npz", "--force").code == 0
    assert holdfast_command("export", "run", "50", "--to", "model.bin").code == 2


def test_the_files_of_a_checkpoint_of_files_are_exported_to_a_directory(tmp_path, holdfast_command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state.cpt").write_bytes(b"state")
    session = Session(PosixStore("water", create=True), FakeClock(), takeover=False, fresh=True, workers=2)
    save_files(session, ".", ["state.cpt"], Document(7, None, {}, "", (), {}, {}), holdfast.KEEP_ALL)
    session.close()

    first = holdfast_command("export", "water", "latest", "--to", "back/")
    again = holdfast_command("export", "water", "--to", "back/")
    forced = holdfast_command("export", "water", "--to", "back/", "--force", "--json")

    assert (first.code, first.out) == (0, "back/: 1 file of step 7: state.cpt\n")
    assert (tmp_path / "back" / "state.cpt").read_bytes() == b"state"
    assert again.code == 2
    assert "exists already" in again.err
    assert json.loads(forced.out)["files"] == ["state.cpt"]


def test_a_checkpoint_that_holds_no_files_is_not_exported_to_a_directory(run, holdfast_command):
    answer = holdfast_command("export", "run", "50", "--to", "back/")
    with_part = holdfast_command("export", "run", "50", "--to", "back/", "--only", "model")

    assert answer.code == 4
    assert "is not a checkpoint of files" in answer.err
    assert with_part.code == 2


def test_an_export_needs_a_directory_that_exists(run, holdfast_command):
    os.mkdir("folder.npz")

    missing = holdfast_command("export", "run", "--to", "nowhere/model.npz")
    folder = holdfast_command("export", "run", "--to", "folder.npz", "--force")

    assert (missing.code, folder.code) == (3, 2)
    assert "nowhere/model.npz: there is no directory nowhere\n  hint: make it first: mkdir -p nowhere" in missing.err
    assert "folder.npz is a directory" in folder.err


def test_a_part_of_which_a_shard_is_missing_is_named_once(run, holdfast_command):
    folder = next(run.glob("000000050-*"))
    (folder / "rank-00000.safetensors").unlink()

    answer = holdfast_command("export", "run", "--to", "model.npz")

    assert answer.code == 4
    assert answer.err.startswith(f"holdfast: error: rank-00000.safetensors of {folder.name} is missing\n")


def test_an_import_becomes_a_checkpoint_like_any_other(run, holdfast_command, steps):
    holdfast_command("export", "run", "50", "--only", "model", "--to", "model.safetensors")

    made = holdfast_command(
        "import", "model.safetensors", "new", "--step", "7", "--as", "model", "--metric", "loss=0.5"
    )

    assert made.code == 0
    assert steps("new") == [(1, 7)]
    state = {"model": {"w": np.zeros((4, 8)), "b": np.ones(8)}}
    with holdfast.Checkpointer("new", state) as ckpt:
        assert ckpt.restore().metrics == {"loss": 0.5}
    assert (state["model"]["w"] == 6.0).all()
    assert not state["model"]["b"].any()


def test_an_import_follows_the_newest_checkpoint_and_never_goes_back(run, holdfast_command, steps):
    holdfast_command("export", "run", "50", "--to", "all.npz")

    assert holdfast_command("import", "all.npz", "run", "--step", "40").code == 2
    assert holdfast_command("import", "all.npz", "run", "--step", "60").code == 0

    document = json.loads(holdfast_command("ls", "run", "--json").out)
    newest = document["checkpoints"][-1]
    assert newest["states"] == ["committed", "latest"]
    assert newest["origin"] == document["checkpoints"][-2]["id"]
    assert newest["note"] == "imported from all.npz"


def test_an_import_that_is_refused_leaves_the_run_as_it_was(run, holdfast_command):
    holdfast_command("export", "run", "50", "--to", "all.npz")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}

    answer = holdfast_command("import", "all.npz", "run", "--step", "40")

    assert answer.code == 2
    assert "run is at step 50 already, after step 40" in answer.err
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_busy_run_takes_no_import(run, holdfast_command):
    holdfast_command("export", "run", "50", "--to", "all.npz")

    with holdfast.Checkpointer(run, {"model": {}}):
        answer = holdfast_command("import", "all.npz", "run", "--step", "60")

    assert answer.code == 5
    assert f"pid {os.getpid()}" in answer.err


def test_bad_metrics_files_and_names_are_refused(run, holdfast_command, tmp_path):
    (tmp_path / "list.npz").write_bytes(b"nothing")

    assert holdfast_command("import", "missing.npz", "new", "--step", "1").code == 3
    assert holdfast_command("import", "list.npz", "new", "--step", "1").code == 4
    assert holdfast_command("import", "list.npz", "new", "--step", "1", "--metric", "loss").code == 2
    assert holdfast_command("import", "list.npz", "new", "--step", "-1").code == 2
    assert not (tmp_path / "new").exists()


def test_a_text_with_the_name_of_a_safetensors_file_is_called_none(tmp_path, holdfast_command):
    (tmp_path / "fake.safetensors").write_text("is this a file of tensors?")

    answer = holdfast_command("import", tmp_path / "fake.safetensors", tmp_path / "new", "--step", "1")

    assert answer.code == 4
    assert "fake.safetensors: no safetensors file, or a damaged one: a header of " in answer.err
    assert "\n  hint: was it renamed" in answer.err


@pytest.mark.parametrize(
    ("metric", "said"),
    [("loss=abc", "'abc' is not a number"), ("loss=", "'' is not a number"), ("loss", "is not NAME=VALUE")],
)
def test_a_metric_that_is_refused_is_said_to_lack_what_it_lacks(run, holdfast_command, metric, said):
    answer = holdfast_command("import", "list.npz", "new", "--step", "1", "--metric", metric)

    assert answer.code == 2
    assert f"--metric {metric!r}: {said}" in answer.err


def test_the_doctor_finds_a_healthy_run_healthy_and_leaves_nothing_behind(run, holdfast_command):
    before = sorted(path.name for path in run.iterdir())

    answer = holdfast_command("doctor", "run", "--speed", "1M", "--json")

    document = json.loads(answer.out)
    found = {finding["what"]: finding["status"] for finding in document["findings"]}
    assert answer.code == 0
    assert document["healthy"] is True
    assert {"owner", "fsync", "rename", "locks", "write speed", "journal", "leftovers"} <= found.keys()
    assert "fail" not in found.values()
    assert sorted(path.name for path in run.iterdir()) == before


def test_the_doctor_tells_what_is_the_runs_own_first(run, holdfast_command):
    found = json.loads(holdfast_command("doctor", "run", "--speed", "0", "--json").out)["findings"]

    names = [finding["what"] for finding in found]
    assert names.index("writer") < names.index("journal") < names.index("owner") < names.index("memory")


def test_the_doctor_warns_of_leftovers_and_fails_on_open_permissions(run, holdfast_command):
    next(run.glob("000000040-*/manifest.json")).unlink()

    warned = holdfast_command("doctor", "run", "--speed", "1M")
    assert warned.code == 0
    assert "1 directory without a manifest" in warned.out
    assert holdfast_command("doctor", "run", "--speed", "1M", "--strict").code == 1

    (run.parent / "open").mkdir()
    (run.parent / "open").chmod(0o777)
    failed = holdfast_command("doctor", "open", "--speed", "1M")
    assert failed.code == 1
    assert "chmod go-w" in failed.out


def test_the_doctor_takes_a_run_without_its_marker_for_a_run(run, holdfast_command):
    (run / "holdfast.json").unlink()

    found = json.loads(holdfast_command("doctor", "run", "--speed", "0", "--json").out)["findings"]

    assert {finding["what"]: finding["status"] for finding in found}["marker"] == "warn"
    assert "checkpoints" in [finding["what"] for finding in found]


def test_the_doctor_breaks_lines_between_words_on_a_terminal_and_keeps_them_in_their_column(
    run, holdfast_command, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "50")

    lines = holdfast_command("doctor", "run", "--speed", "0").out.splitlines()

    at = next(number for number, line in enumerate(lines) if line.startswith("ok    writer "))
    assert len(lines[at]) <= 50
    assert lines[at + 1][:19].isspace()


def test_the_doctor_names_what_it_cannot_examine_once(tmp_path, holdfast_command):
    (tmp_path / "train.py").touch()

    missing = holdfast_command("doctor", tmp_path / "nope")
    file = holdfast_command("doctor", tmp_path / "train.py")

    assert (missing.code, file.code) == (3, 3)
    assert missing.err.count("nope") == 1
    assert "train.py is a file, not a run or a directory" in file.err


def test_the_doctor_measures_no_speed_where_none_is_asked_for(run, holdfast_command):
    found = json.loads(holdfast_command("doctor", "run", "--speed", "0", "--json").out)["findings"]

    assert not [finding for finding in found if "speed" in finding["what"]]


def test_the_doctor_names_the_option_of_a_size_that_is_none(run, holdfast_command):
    answer = holdfast_command("doctor", "run", "--speed", "abc")

    assert answer.code == 2
    assert "--speed: 'abc' is not a size" in answer.err


def test_the_doctor_names_the_run_in_its_advice(run, holdfast_command):
    shutil.rmtree(run / "marks")

    answer = holdfast_command("doctor", "run", "--speed", "0")

    assert "holdfast verify run --all" in answer.out
