"""The benchmarks run from end to end on tiny sizes. Nothing here looks at a clock: figures are for `make bench`."""

import json
import operator
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.alone import alone

pytest.importorskip("torch")
pytest.importorskip("safetensors")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """What a quick run of everything leaves behind."""
    out = tmp_path_factory.mktemp("out")
    work = tmp_path_factory.mktemp("work")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--dir", str(work), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, out, work


@pytest.fixture(scope="module")
def sections(quick):
    report = json.loads((quick[1] / "latest.json").read_bytes())
    return {section["name"]: section for section in report["sections"]}


def test_a_quick_run_answers_every_question(sections):
    assert list(sections) == [
        *("save", "restore", "leaves", "memory", "history", "command_line"),
        *("stall", "training", "step", "pacing", "frequency", "growth", "resume", "loader", "data_resume", "ledger"),
        "signals",
    ]
    assert all(section["rows"] or section["skipped"] for section in sections.values())


def test_every_row_sums_up_its_times(sections):
    for row in [row for section in sections.values() for row in section["rows"]]:
        assert row["best_s"] == min(row["times_s"])
        assert row["best_s"] <= row["median_s"] <= max(row["times_s"])


def test_save_and_restore_stand_beside_limits_and_all_three_peers(sections):
    for name, groups in (("save", {"save"}), ("restore", {"warm", "cold"})):
        rows = sections[name]["rows"]

        assert {row["group"] for row in rows} == groups
        for group in groups:
            found = {row["name"]: row for row in rows if row["group"] == group}
            assert {"holdfast", "torch", "safetensors", "torch DCP"} <= set(found)
            assert max(row["speed_of_limit_best"] for row in found.values() if row["role"] == "limit") == 1.0


# Peers that torch itself brings; the others are left out where they are not installed.
ALWAYS = {"torch.save + fsync", "DCP async, thread", "DCP async, process", "DCP async, process, overlapped"}
OPTIONAL = {"torchsnapshot async", "Lightning AsyncCheckpointIO", "Orbax async (numpy)"}
OURS = {"holdfast, now", "holdfast, overlapped"}
CORES = ("a core to spare", "all cores computing")


def by_group(section):
    groups = {}
    for row in section["rows"]:
        groups.setdefault(row["group"], {})[row["name"]] = row
    return groups


def test_the_stall_stands_beside_the_bare_copy_and_durable_beside_the_raw_write(sections):
    groups = by_group(sections["stall"])

    limits = {group: [name for name, row in rows.items() if row["role"] == "limit"] for group, rows in groups.items()}
    assert limits == {
        "stall": ["bare copy to warm memory ×1"],
        "durable": ["raw direct write ×1", "raw direct write ×2"],
    }
    for rows in groups.values():
        assert set(rows) >= ALWAYS | OURS


def test_a_training_slows_down_from_the_loop_without_checkpoints(sections):
    groups = by_group(sections["training"])

    assert set(groups) == {f"{cores}{kind}" for cores in CORES for kind in ("", ", stall")}
    for cores in CORES:
        base, *others = groups[cores].values()
        assert (base["name"], base["slowdown_median"]) == ("no checkpoints", 0)
        assert {row["name"] for row in others} >= ALWAYS | OURS
        for row in others:
            assert row["slowdown_median"] == pytest.approx(row["median_s"] / base["median_s"] - 1, abs=1e-3)
        assert any(f"{cores}: " in note and "noise ±" in note for note in sections["training"]["notes"])


def test_a_peer_that_is_not_installed_is_left_out_and_named(sections):
    for name in ("stall", "training"):
        notes = " ".join(sections[name]["notes"])
        measured = {row["name"] for row in sections[name]["rows"]}

        for peer in OPTIONAL:
            assert (peer in measured) != (f"{peer} is not measured: " in notes)


def test_step_is_compared_with_an_empty_method_and_the_agent_with_python(sections):
    groups = by_group(sections["step"])

    assert {group: [row["role"] for row in rows.values()] for group, rows in groups.items()} == {
        "step": ["limit", "holdfast"],
        "agent": ["limit", "holdfast"],
    }
    assert "memory of the agent" in {check["what"] for check in sections["step"]["checks"]}


def test_a_training_that_finds_its_interval_is_measured_loaded_and_killed(sections):
    groups = by_group(sections["pacing"])
    ours, peer = "holdfast, auto(overhead=0.035)", "torch.save + fsync, same interval"

    assert list(groups["a core to spare"]) == ["no checkpoints", ours, peer]
    assert list(groups["disk loaded by others"]) == ["no checkpoints", ours]
    assert {name: len(row["times_s"]) for name, row in groups["lost at a SIGKILL"].items()} == {ours: 2, peer: 2}
    notes = " ".join(sections["pacing"]["notes"])
    assert all(words in notes for words in ("noise ±", "on average of 2 kills", "the interval was", "durable after"))


def test_the_automatic_interval_stands_beside_checkfreq_ten_minutes_and_hindsight(sections):
    (rows,) = by_group(sections["frequency"]).values()

    assert list(rows) == ["holdfast, auto", "CheckFreq", "every 10 min", "best fixed"]
    assert all(row["slowdown_median"] is not None for row in rows.values())


def test_growth_is_by_size_and_by_leaves(sections):
    groups = by_group(sections["growth"])

    assert [group.split()[-1] for group in groups] == ["MB", "MB", "leaves", "leaves"]
    assert all(set(rows) > OURS for rows in groups.values())


def test_a_killed_training_resumes_from_memory_and_from_disk(sections):
    (rows,) = by_group(sections["resume"]).values()

    assert list(rows) == [
        *("interpreter, imports and a raw read", "holdfast, from memory", "holdfast, from disk"),
        "torch.load",
    ]


def test_each_target_says_what_was_found(sections):
    checks = [check for section in sections.values() for check in section["checks"]]

    assert len(checks) > 40
    for check in checks:
        signed = (
            check["found"] - check["target"] if check["relation"] == "at least" else check["target"] - check["found"]
        )
        assert check["met"] == (signed >= 0)


def test_nothing_stays_on_the_measured_storage(quick):
    _, out, work = quick

    assert list(work.iterdir()) == []
    assert {path.name for path in out.iterdir()} == {"latest.json", "latest.md", "latest.png"}


def test_a_function_that_runs_alone_returns_what_it_found_in_another_process():
    found = alone(os.getppid)

    assert found == os.getpid()


def test_what_a_function_prints_alone_is_no_part_of_what_it_returns(capfd):
    found = alone(subprocess.check_call, ["echo", "narrating"])

    assert found == 0
    assert capfd.readouterr() == ("", "")


def test_a_function_that_runs_alone_and_fails_raises_with_its_message():
    with pytest.raises(RuntimeError, match=r"truediv\(1, 0\).* status 1:(?s:.)*ZeroDivisionError: division by zero"):
        alone(operator.truediv, 1, 0)


def test_a_process_that_is_gone_without_an_answer_is_a_failure():
    with pytest.raises(RuntimeError, match="ended with status 0"):
        alone(os._exit, 0)


def test_a_function_that_runs_alone_is_ended_at_its_deadline():
    with pytest.raises(RuntimeError, match=r"did not end within 0\.5 s"):
        alone(signal.pause, deadline_s=0.5)


def test_an_unknown_section_is_refused_with_the_list_of_those_that_exist(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--only", "speed", "--dir", str(tmp_path), "--out", str(tmp_path)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "no such section: speed; there are save, restore" in done.stderr
