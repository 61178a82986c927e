"""A program that is being proven writes to the directories of the proof, and to nothing else; it reads everything."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

import holdfast.engine
from holdfast.engine.evidence import PLAN_VARIABLE, UNGUARDED, Plan, Point
from holdfast.engine.guarding import ALLOW_VARIABLE, ORIGIN_VARIABLE, Guard

_SITE = Path(holdfast.engine.__file__).parent / "guard_site"


class _Proof:
    """A directory of the user's with a file in it, and one of a proof."""

    def __init__(self, root: Path) -> None:
        self.user = root / "user"
        self.user.mkdir()
        (self.user / "data.txt").write_text("mine")
        (self.user / "full").mkdir()
        self.proof = root / "proof"
        self.work = self.proof / "work"
        self.work.mkdir(parents=True)
        (self.work / "data.txt").symlink_to(self.user / "data.txt")
        self.trace = self.proof / "trace.jsonl"
        self.plan = root / "plan.json"
        self.plan.write_bytes(msgspec.json.encode(Plan(directory=str(self.proof), trace=str(self.trace), start=2)))
        self.environment = {
            **os.environ,
            PLAN_VARIABLE: str(self.plan),
            # Tests lie among temporary files, which a program may write otherwise.
            ORIGIN_VARIABLE: str(root),
            "PYTHONPATH": str(_SITE),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, text: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", text, str(self.user), *arguments],
            cwd=self.work,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def refusals(self) -> list[Point]:
        lines = self.trace.read_bytes().splitlines() if self.trace.exists() else []
        return [msgspec.json.decode(line, type=Point) for line in lines]

    def is_untouched(self) -> bool:
        files = sorted(str(path.relative_to(self.user)) for path in self.user.rglob("*"))
        return files == ["data.txt", "full"] and (self.user / "data.txt").read_text() == "mine"


@pytest.fixture
def proof(tmp_path: Path) -> _Proof:
    return _Proof(tmp_path)


@pytest.mark.parametrize(
    "write",
    [
        "open(user + '/new.txt', 'w')",
        "open(user + '/data.txt', 'a')",
        "open(user + '/data.txt', 'r+')",
        "open((user + '/new.txt').encode(), 'xb')",
        "pathlib.Path(user, 'new.txt').write_text('x')",
        "os.open(user + '/new.txt', os.O_CREAT | os.O_WRONLY)",
        "os.open(user + '/new.txt', os.O_CREAT)",
        "os.remove(user + '/data.txt')",
        "os.remove('data.txt', dir_fd=os.open(user, os.O_RDONLY))",
        "os.rename(user + '/data.txt', 'moved.txt')",
        "os.rename('own.txt', user + '/data.txt')",
        "os.replace('own.txt', user + '/data.txt')",
        "os.mkdir(user + '/sub')",
        "os.makedirs(user + '/sub/sub')",
        "os.rmdir(user + '/full')",
        "shutil.rmtree(user)",
        "shutil.rmtree(user + '/full')",
        "shutil.move('own.txt', user)",
        "shutil.copy('own.txt', user)",
        "os.truncate(user + '/data.txt', 0)",
        "os.truncate('data.txt', 0)",
        "os.symlink('own.txt', user + '/link')",
        "os.link('own.txt', user + '/link')",
        "os.chmod(user + '/data.txt', 0)",
        "os.utime(user + '/data.txt')",
    ],
)
def test_a_write_to_what_is_the_users_is_refused_with_a_message(proof: _Proof, write: str) -> None:
    before = (proof.user / "data.txt").stat()

    ran = proof.run(
        "import os, pathlib, shutil, sys\nuser = sys.argv[1]\nopen('own.txt', 'w').close()\n"
        f"try:\n    {write}\nexcept OSError as error:\n    print(type(error).__name__, error.errno, error)\n"
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("StorageError 13 ")
    assert "--allow" in ran.stdout
    assert {point.kind for point in proof.refusals()} == {"refused"}
    assert proof.refusals()[0].start == 2
    assert str(proof.user) in proof.refusals()[0].text
    assert "(<string>:5)" in proof.refusals()[0].text
    assert proof.is_untouched()
    after = (proof.user / "data.txt").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_reading_and_writing_in_the_directories_of_the_proof_is_not_refused(proof: _Proof) -> None:
    ran = proof.run(
        "import os, shutil, subprocess, sys, tempfile, pathlib\n"
        "user = sys.argv[1]\n"
        "print(open(user + '/data.txt').read(), open('data.txt', 'rb').read(), os.listdir(user))\n"
        "os.close(os.open(user + '/data.txt', os.O_RDONLY | os.O_CREAT))\n"
        "os.makedirs('a/b'); pathlib.Path('a/b/c').write_text('x'); os.rename('a/b/c', 'a/d'); shutil.rmtree('a')\n"
        "os.symlink(user, 'link'); os.remove('link'); os.remove('data.txt')\n"
        "with tempfile.TemporaryDirectory(dir='/dev/shm') as place:\n"
        "    pathlib.Path(place, 'x').write_text('x')\n"
        "open(os.devnull, 'w').write('x')\n"
        "subprocess.run(['true'], check=True)\n"
        "open(1, 'w', closefd=False).write('done')\n"
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("done")
    assert proof.refusals() == []
    assert proof.is_untouched()


def test_what_was_allowed_may_be_written(proof: _Proof, tmp_path: Path) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    results.mkdir()
    text = "import sys\nopen(sys.argv[2] + '/x', 'w').write('x')\n"
    allowed = {ALLOW_VARIABLE: json.dumps([str(tmp_path / "nowhere"), str(results)])}

    assert proof.run(text, str(results), **allowed).returncode == 0
    elsewhere.mkdir()
    assert proof.run(text, str(elsewhere), **allowed).returncode == 1

    assert (results / "x").read_text() == "x"
    assert not (elsewhere / "x").exists()


def test_a_program_that_the_program_starts_is_kept_from_it_too(proof: _Proof) -> None:
    inner = "open(__import__('sys').argv[1] + '/new.txt', 'w')"

    ran = proof.run(
        "import os, subprocess, sys\nos.chdir('/')\n"
        f"sys.exit(subprocess.run([sys.executable, '-c', {inner!r}, sys.argv[1]]).returncode)"
    )

    assert ran.returncode == 1
    assert "StorageError" in ran.stderr
    assert proof.is_untouched()


@pytest.mark.parametrize("background", ["off", "process"])
def test_checkpoints_are_written_wherever_the_program_works(proof: _Proof, background: str) -> None:
    ran = proof.run(
        "import os, sys, holdfast, numpy as np\nos.chdir(sys.argv[1])\n"
        "with holdfast.Checkpointer('run', {'x': np.zeros(10)}, every=1, background=sys.argv[2]) as c:\n"
        "    c.step(); c.step(); c.wait(); print(len(c.checkpoints()))\n",
        background,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "2\n"
    assert [point.kind for point in proof.refusals()] == ["began", "step", "step"]
    assert proof.is_untouched()


def test_a_program_whose_command_sets_pythonpath_is_kept_from_it_once_it_has_a_checkpointer(proof: _Proof) -> None:
    text = (
        "import sys, holdfast, numpy as np\n"
        "c = holdfast.Checkpointer('run', {'x': np.zeros(3)}, every=None, background='off')\n"
        "open(sys.argv[1] + '/data.txt', 'w')\n"
    )

    ran = proof.run(text, PYTHONPATH="")
    watched = proof.run(text.replace("open(", "0 and open("))

    assert ran.returncode == 1
    assert "StorageError" in ran.stderr
    assert proof.is_untouched()
    points = proof.refusals()
    assert [point.kind for point in points] == ["began", "refused", "began"]
    assert [point.text for point in points if point.kind == "began"] == [UNGUARDED, ""]
    assert watched.returncode == 0, watched.stderr


@pytest.mark.parametrize("version", ["3.8", "3.9"])
def test_a_python_that_is_too_old_for_holdfast_is_guarded_all_the_same(proof: _Proof, version: str) -> None:
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no Python {version}")
    text = "try:\n    open(__import__('sys').argv[1] + '/new', 'w')\nexcept PermissionError as error:\n    print(error)"

    ran = subprocess.run(
        [python, "-c", text, str(proof.user)], cwd=proof.work, env=proof.environment, capture_output=True, text=True
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--allow" in ran.stdout
    assert proof.is_untouched()


@pytest.mark.parametrize(("mode", "content"), [("w", ""), ("a", "mine"), ("r+", "mine")])
def test_a_link_to_a_file_of_the_users_becomes_a_file_of_its_own(proof: _Proof, mode: str, content: str) -> None:
    ran = proof.run(f"with open('data.txt', {mode!r}) as f: f.seek(0, 2); f.write('theirs')")

    assert ran.returncode == 0, ran.stderr
    assert (proof.work / "data.txt").read_text() == f"{content}theirs"
    assert proof.is_untouched()


def test_the_same_refusal_is_told_once(proof: _Proof) -> None:
    proof.run(
        "import sys\nfor _ in range(5):\n"
        "    try:\n        open(sys.argv[1] + '/x', 'w')\n    except OSError:\n        pass"
    )

    assert len(proof.refusals()) == 1


def test_nothing_is_refused_where_nobody_proves_anything(proof: _Proof) -> None:
    ran = proof.run("import sys\nopen(sys.argv[1] + '/new.txt', 'w').write('x')", **{PLAN_VARIABLE: ""})

    assert ran.returncode == 0, ran.stderr
    assert (proof.user / "new.txt").read_text() == "x"


def test_the_sitecustomize_that_is_hidden_runs_all_the_same(proof: _Proof, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.found = 'the user own'\n")
    paths = {"PYTHONPATH": os.pathsep.join([str(_SITE), str(tmp_path / "site")])}

    ran = proof.run("import sys, sitecustomize\nprint(sys.found, sitecustomize.__file__)", **paths)

    assert ran.stdout.split() == ["the", "user", "own", str(tmp_path / "site" / "sitecustomize.py")]


def test_nothing_is_imported_that_the_program_did_not_ask_for(proof: _Proof) -> None:
    ran = proof.run("import sys\nprint(*sorted(name.partition('.')[0] for name in sys.modules))")

    assert not {"numpy", "torch", "holdfast", "random", "msgspec"} & set(ran.stdout.split())


def test_the_kernel_refuses_what_python_does_not_see(tmp_path: Path) -> None:
    """In a child that has no hook; the directories are not those of temporary files, where this is not possible."""
    mine, own = tmp_path / "mine", tmp_path / "own"
    mine.mkdir()
    own.mkdir()
    text = (
        "import os, subprocess, sys\n"
        "from holdfast.engine.guarding import _confine\n"
        "mine, own = sys.argv[1:]\n"
        "is_confined = _confine([own, '/dev'])\n"
        "run = lambda *words: subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0\n"
        "open(own + '/a', 'w').close(); os.mkdir(own + '/sub'); os.rename(own + '/a', own + '/sub/a')\n"
        "ours, theirs = run('touch', own + '/x'), run('touch', mine + '/x')\n"
        "print(is_confined, ours, theirs, run('ls', mine), run('rm', mine + '/y'))"
    )
    (mine / "y").touch()

    ran = subprocess.run([sys.executable, "-c", text, str(mine), str(own)], capture_output=True, text=True, timeout=120)

    if ran.stdout.startswith("False"):
        pytest.skip("this kernel has no Landlock")
    assert ran.stdout.split("\n")[-2] == "True True False True False", ran.stderr
    assert [path.name for path in mine.iterdir()] == ["y"]


def test_a_directory_with_a_name_that_begins_alike_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ORIGIN_VARIABLE, str(tmp_path))
    guard = Guard(str(tmp_path / "proof"), str(tmp_path / "proof" / "trace"), 1)

    assert guard.allows(str(tmp_path / "proof" / "x"))
    assert guard.allows(str(tmp_path / "proof"))
    assert not guard.allows(str(tmp_path / "proof2"))


def test_the_wheel_has_the_file_that_python_runs_first(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        timeout=300,
    )

    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()

    assert "holdfast/engine/guard_site/sitecustomize.py" in names
    assert "holdfast/engine/guarding.py" in names
