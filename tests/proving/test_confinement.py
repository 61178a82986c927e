"""Whatever the command is, and whatever it starts, only the directories of the proof are written to."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.engine.guarding import landlock_version
from holdfast.proving.processes import adopting

_SCRIPTS = Path(__file__).parent / "scripts"
_needs_landlock = pytest.mark.skipif(landlock_version() < 2, reason="this kernel has no Landlock")


class _Mine:
    """A working directory of the user's, with a training and a large file in it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys
        shutil.copy(_SCRIPTS / "correct_numpy.py", root / "train.py")
        self.big = root / "big.log"
        self.big.write_bytes(b"mine" * (1 << 19))  # more than what is copied

    def prove(self, *command: str, options: tuple[str, ...] = ()) -> tuple[int, dict[str, object]]:
        self._capsys.readouterr()
        code = main(["prove", "--json", "--interruptions", "1", *options, "--", *command])
        found: dict[str, object] = json.loads(self._capsys.readouterr().out)
        return code, found

    def script(self, text: str) -> str:
        (self.root / "program.py").write_text(text)
        return "program.py"

    def is_untouched(self, *more: str) -> bool:
        names = {path.name for path in self.root.iterdir()} - {"program.py", *more}
        return names == {"train.py", "big.log"} and self.big.read_bytes() == b"mine" * (1 << 19)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[_Mine]:
    work = tmp_path / "mine"
    work.mkdir()
    monkeypatch.chdir(work)
    # Those of tests have long names, and a directory for temporary files must have a short one.
    with tempfile.TemporaryDirectory() as temporary:
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield _Mine(work, capsys)


def _message(found: dict[str, object]) -> str:
    error = found["error"]
    assert isinstance(error, dict)
    return str(error["message"])


@_needs_landlock
@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-ec", "echo x >> big.log"],
        ["bash", "-ec", "rm ORIGIN/big.log"],
        ["bash", "-ec", "cp train.py ORIGIN/new.py"],
        ["env", "-i", sys.executable, "-c", "open('ORIGIN/new', 'w')"],
        ["env", "PYTHONPATH=.", sys.executable, "-c", "open('ORIGIN/new', 'w')"],
        [sys.executable, "-I", "-c", "open('ORIGIN/new', 'w')"],
    ],
)
def test_a_command_without_our_hook_cannot_write_to_what_is_the_users(mine: _Mine, command: list[str]) -> None:
    code, found = mine.prove(*(word.replace("ORIGIN", str(mine.root)) for word in command))

    assert code == 2
    assert "writes outside of its directory" in _message(found)
    assert "ermission denied" in _message(found)
    assert mine.is_untouched()


@_needs_landlock
@pytest.mark.parametrize(
    "write",
    [
        "import sqlite3; sqlite3.connect(mine + '/new.db').execute('create table t (x)')",
        "os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=os.open(mine, os.O_RDONLY))",
        "subprocess.run(['cp', 'train.py', mine + '/new.py'], check=True)",
        "os.link(mine + '/big.log', 'linked'); open('linked', 'w')",
        "import ctypes; assert ctypes.CDLL(None).creat((mine + '/new').encode(), 0o600) >= 0",
    ],
)
def test_what_the_hook_does_not_see_is_refused_among_temporary_files_too(mine: _Mine, write: str) -> None:
    code, _ = mine.prove(
        sys.executable, mine.script(f"import os, subprocess\nmine = {str(mine.root)!r}\n{write}\nimport train\n")
    )

    assert code == 2
    assert mine.is_untouched()


def test_the_program_has_temporary_files_of_its_own_and_they_go_with_the_proof(mine: _Mine) -> None:
    program = mine.script(
        "import os, tempfile, train\nfile, name = tempfile.mkstemp()\nassert '/now/tmp/' in name, name\n"
    )

    code, found = mine.prove(sys.executable, program)

    assert (code, found.get("answer")) == (0, "identical")
    assert not any(path.name.startswith("tmp") for path in Path(os.environ["TMPDIR"]).iterdir())


def test_a_command_that_cannot_be_started_is_named(mine: _Mine) -> None:
    code, found = mine.prove("no-such-command")

    assert code == 2
    assert "no-such-command cannot be started: No such file" in _message(found)


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(mine: _Mine) -> None:
    code, found = mine.prove("no-such-command", options=("--report", str(mine.root)))

    assert code == 2
    assert "is a directory" in _message(found)


def test_the_verdict_is_told_though_the_report_could_not_be_written(mine: _Mine) -> None:
    (mine.root / "full").symlink_to("/dev/full")

    code, found = mine.prove(sys.executable, "train.py", options=("--report", "full"))

    assert (code, found.get("answer")) == (6, "identical")
    remarks = found["remarks"]
    assert isinstance(remarks, list)
    assert "the report full cannot be written: No space left on device" in remarks


def test_nothing_is_not_a_place_that_can_be_allowed(mine: _Mine) -> None:
    code, found = mine.prove("no-such-command", options=("--allow", ""))

    assert code == 2
    assert "--allow names nothing" in _message(found)


def test_an_allowed_path_may_have_the_separator_of_paths_in_it(mine: _Mine) -> None:
    place = mine.root / "a:b"
    place.mkdir()
    program = mine.script(f"open({str(place / 'x')!r}, 'w').close()\nimport train\n")

    code, _ = mine.prove(sys.executable, program, options=("--allow", "a:b"))

    assert code == 0
    assert (place / "x").exists()


def test_the_large_file_that_a_program_writes_anew_becomes_its_own(mine: _Mine) -> None:
    program = mine.script(
        "import os, train\nassert os.path.islink('big.log')\n"
        "with open('big.log', 'a') as log:\n    log.write('theirs')\n"
        "assert os.path.getsize('big.log') == (4 << 19) + 6\n"
        "with open('big.log', 'wb') as log:\n    log.write(b'theirs')\n"
    )

    code, found = mine.prove(sys.executable, program)

    assert (code, found.get("answer")) == (0, "identical"), found
    assert mine.is_untouched()


def test_of_what_a_program_says_without_end_only_the_last_is_kept(
    mine: _Mine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.proving.running._OUTPUT_BYTES", 1 << 20)
    program = mine.script(
        "import os, sys, time, train\n"
        "print('x' * (2 << 20), flush=True)\n"
        "while os.fstat(1).st_size > 1 << 20:\n    time.sleep(0.01)\n"
        "print('the end')\n"
    )

    mine.prove(sys.executable, program, options=("--dir", str(tmp_path / "kept"), "--time-limit", "20s"))

    said = (tmp_path / "kept" / "undisturbed" / "output-1.txt").read_text()
    assert said.startswith("[the beginning is left out]\nxxx")
    assert said.endswith("xxx\nthe end\n")
    assert len(said) < 1 << 20


@pytest.mark.parametrize("place", ["ORIGIN", "ABOVE", "HOME"])
def test_a_variable_that_names_a_cache_does_not_open_what_is_much_more(
    mine: _Mine, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(mine.root.parent / "home"))
    named = {"ORIGIN": mine.root, "ABOVE": mine.root.parent, "HOME": mine.root.parent / "home"}[place]
    named.mkdir(exist_ok=True)
    monkeypatch.setenv("HF_HOME", str(named))

    code, found = mine.prove(sys.executable, mine.script(f"import train\nopen({str(named / 'new')!r}, 'w')\n"))

    assert code == 2
    assert "outside of its directory" in _message(found)
    assert not (named / "new").exists()


def test_what_is_allowed_because_of_a_variable_is_told(mine: _Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = mine.root.parent / "cache"
    cache.mkdir()
    monkeypatch.setenv("HF_HOME", str(cache))

    code, found = mine.prove(sys.executable, mine.script(f"import train\nopen({str(cache / 'new')!r}, 'w')\n"))

    assert code == 0
    assert f"HF_HOME is set, so the program may write to {cache}" in str(found["remarks"])


def test_a_child_that_hides_is_ended_with_the_proof(mine: _Mine) -> None:
    told = Path(os.environ["TMPDIR"]) / "pid"
    told.touch()
    program = mine.script(
        "import subprocess, train\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True, env={})\n"
        f"with open({str(told)!r}, 'a') as file:\n    print(child.pid, file=file)\n"
    )

    code, _ = mine.prove(sys.executable, program, options=("--allow", str(told)))

    assert code == 0
    pids = told.read_text().split()
    assert pids
    assert not any(Path("/proc", pid).exists() for pid in pids)


def test_a_proof_that_is_killed_takes_the_program_with_it_and_the_next_removes_its_directory(mine: _Mine) -> None:
    told = Path(os.environ["TMPDIR"]) / "pid"
    os.mkfifo(told)
    program = mine.script(
        f"import os, time\nwith open({str(told)!r}, 'w') as file:\n    file.write(str(os.getpid()))\ntime.sleep(1000)\n"
    )
    command = [sys.executable, "-m", "holdfast", "prove", "--allow", str(told), "--", sys.executable, program]
    proof = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pid = int(told.read_text())

    with adopting():  # so that it can be waited for
        proof.kill()
        proof.wait()
        assert os.waitid(os.P_PID, pid, os.WEXITED) is not None

    left = [path.name for path in told.parent.iterdir() if path.name.startswith("holdfast-prove-")]
    assert len(left) == 1
    mine.prove("no-such-command")
    assert not (told.parent / left[0]).exists()


def test_a_directory_that_was_kept_is_no_leftover(mine: _Mine) -> None:
    mine.prove(sys.executable, "train.py", options=("--keep-files",))
    mine.prove("no-such-command")

    kept = [path for path in Path(os.environ["TMPDIR"]).iterdir() if path.name.startswith("holdfast-prove-")]
    assert len(kept) == 1
    assert (kept[0] / "undisturbed" / "work").is_dir()
