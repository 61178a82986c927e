"""Nothing that saves, restores and prunes do to the disk bypasses `Files`: strace sees no more than the recorder."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.recording import OpKind

_ROOT = Path(__file__).parents[2]
_CHANGES = (
    "mkdir,mkdirat,open,openat,openat2,creat,write,writev,pwrite64,pwritev,pwritev2,truncate,ftruncate,fallocate,"
    "fsync,fdatasync,sync_file_range,sync,syncfs,msync,rename,renameat,renameat2,link,linkat,symlink,symlinkat,"
    "unlink,unlinkat,rmdir,copy_file_range,sendfile,splice,mknod,mknodat,setxattr,fsetxattr"
)
_CALL = re.compile(r"^(?:\[?\d*\]?\s*)?(?P<name>\w+)\((?P<arguments>.*)\)\s+= (?P<result>-?\d+)")
_SAME = {
    "mkdirat": OpKind.MAKE_DIR,
    "pwrite64": OpKind.WRITE,
    "write": OpKind.WRITE,
    "ftruncate": OpKind.TRUNCATE,
    "renameat2": OpKind.RENAME,
}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_strace_sees_exactly_the_operations_that_the_recorder_sees(tmp_path: Path) -> None:
    run = tmp_path / "disk" / "run"
    run.parent.mkdir()
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-y", "-qq", "-o", str(trace), "-e", f"trace={_CHANGES}", "-e", "signal=none"]
    environment = {**os.environ, "PYTHONPATH": f"{_ROOT}{os.pathsep}{_ROOT / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}

    traced = subprocess.run(
        [*strace, sys.executable, "-m", "tests.crash.workload", str(run)],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    if traced.returncode != 0 and "ptrace" in traced.stderr:
        pytest.skip(f"strace may not trace here: {traced.stderr.splitlines()[0]}")
    assert traced.returncode == 0, traced.stderr
    lines = [line for line in trace.read_text().splitlines() if str(tmp_path) in line]
    seen = [kind for line in lines if (kind := _kind(line, str(run)))]
    recorded = json.loads(traced.stdout)
    assert len(recorded) > 100
    assert seen == recorded


def _kind(line: str, run: str) -> str:
    """What the recorder calls this system call; empty for one that failed or changed nothing."""
    call = _CALL.match(line)
    if call is None or int(call["result"]) < 0:
        return ""
    name, arguments = call["name"], call["arguments"]
    if name in ("open", "openat"):
        return OpKind.CREATE if "O_CREAT" in arguments else ""
    if name == "fsync":
        path = arguments.partition("<")[2].partition(">")[0]
        return OpKind.SYNC_DIR if os.path.isdir(path) or _was_directory(path, run) else OpKind.SYNC
    if name == "unlinkat":
        return OpKind.REMOVE_DIR if "AT_REMOVEDIR" in arguments else OpKind.UNLINK
    return _SAME.get(name, f"{name}, which the recorder does not know")


def _was_directory(path: str, run: str) -> bool:
    """Whether a path that may be gone by now was the run itself, the directory above it, or one directly in it."""
    inside = os.path.relpath(path, run)
    return inside in (".", "..") or (os.sep not in inside and "." not in inside and inside != "lock")
