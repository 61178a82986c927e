"""What made a checkpoint, and what changed since."""

import os
import subprocess
import sys

from holdfast.engine.provenance import begin_provenance, collect_provenance, compare_provenance


def test_provenance_names_versions_host_and_nothing_private(monkeypatch):
    monkeypatch.setenv("SECRET", "canary")

    found = collect_provenance()

    assert found["python"].startswith("3.")
    assert set(found) == {"holdfast", "python", "libraries", "host", "machine", "code"}
    assert "canary" not in str(found)


def test_drift_is_told_field_by_field():
    then = {"python": "3.11", "libraries": {"numpy": "1", "torch": "2"}, "code": None, "host": "a"}
    now = {"python": "3.12", "libraries": {"numpy": "1", "jax": "4"}, "code": None, "host": "a"}

    found = [str(drift) for drift in compare_provenance(then, now)]

    assert found == ["python: 3.11 → 3.12", "libraries.torch: 2 → none", "libraries.jax: none → 4"]


def test_switches_are_read_when_they_are_asked_for_and_a_change_is_drift(monkeypatch):
    ask = begin_provenance()
    then = ask()

    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    now = ask()

    found = [str(drift) for drift in compare_provenance(then, now)]
    assert len(found) == 1
    assert found[0].startswith("determinism.OMP_NUM_THREADS: ")
    assert found[0].endswith(" → 17")


def test_switches_that_one_side_does_not_know_are_no_drift():
    known = begin_provenance()()
    unknown = {name: value for name, value in known.items() if name != "determinism"}

    assert compare_provenance(unknown, known) == compare_provenance(known, unknown) == []


def test_the_commit_and_whether_files_differ_are_recorded(tmp_path):
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True
        )

    script = tmp_path / "train.py"
    script.write_text(
        "from holdfast.engine.provenance import collect_provenance\nprint(collect_provenance()['code'])\n"
    )
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")

    clean = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    script.write_text(script.read_text() + "# changed\n")
    dirty = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout

    assert "'dirty': False" in clean
    assert "'dirty': True" in dirty
    assert clean.split("'")[3] == dirty.split("'")[3]


def test_outside_of_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "x.py"), raising=False)

    assert collect_provenance()["code"] is None


def test_git_is_asked_once_and_leaves_no_process():
    # In a process of its own: other tests of this one may have children.
    program = """
import os
from holdfast.engine.provenance import begin_provenance
ask = begin_provenance()
first = ask()
assert ask()["code"] is first["code"]
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("there is no child to wait for")
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "there is no child to wait for\n"


def test_a_git_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("holdfast.engine.provenance._GIT_DEADLINE_S", 0.2)

    assert collect_provenance()["code"] is None


def test_before_the_first_commit_there_is_none(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "x.py"), raising=False)

    assert collect_provenance()["code"] is None
