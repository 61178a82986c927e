"""The benchmarks run from end to end on tiny sizes. Nothing here looks at a clock: figures are for `make bench`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert list(sections) == ["save", "restore", "leaves", "memory", "history", "command_line"]
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


def test_each_target_says_what_was_found(sections):
    checks = [check for section in sections.values() for check in section["checks"]]

    assert len(checks) > 20
    for check in checks:
        signed = (
            check["found"] - check["target"] if check["relation"] == "at least" else check["target"] - check["found"]
        )
        assert check["met"] == (signed >= 0)


def test_nothing_stays_on_the_measured_storage(quick):
    _, out, work = quick

    assert list(work.iterdir()) == []
    assert {path.name for path in out.iterdir()} == {"latest.json", "latest.md", "latest.png"}


def test_an_unknown_section_is_refused_with_the_list_of_those_that_exist(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--only", "speed", "--dir", str(tmp_path), "--out", str(tmp_path)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "no such section: speed; there are save, restore" in done.stderr
