"""A real XRootD server of one's own on the loopback, in a directory that goes with it."""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

__all__ = ["XRootD", "why_not"]

_DEADLINE_S = 60.0
_PAUSE_S = 0.05
_CONFIGURATION = """\
all.adminpath {root}/admin
all.pidpath {root}/admin
all.export /data
oss.localroot {root}/export
xrd.port {port}
xrootd.chksum max 2 adler32
xrootd.async off
"""


def why_not() -> str:
    """Why there can be no server here; empty where there can."""
    if shutil.which("xrootd") is None:
        return "not installed: xrootd (Debian: apt-get install xrootd-server)"
    try:
        import XRootD.client  # noqa: F401
    except ImportError:
        return "not installed: the XRootD client (pip install xrootd)"
    return ""


class XRootD:
    """Runs until `stop`. What it exports as `/data` is in the directory `data`."""

    def __init__(self, *, size_bytes: int | None = None) -> None:
        """With a size, on a file system of its own of that size: OSError where none can be mounted."""
        self._root = Path(tempfile.mkdtemp(prefix="hf-xrootd-"))
        self._is_mounted = False
        self._process: subprocess.Popen[bytes] | None = None
        self.data = self._root / "export" / "data"
        try:
            self.data.mkdir(parents=True)
            if size_bytes is not None:
                self._mount(size_bytes)
            for name in ("admin", "log"):
                (self._root / name).mkdir()
            # The server refuses to run as root.
            self._user = ["-R", "nobody"] if os.geteuid() == 0 else []
            if self._user:
                nobody = pwd.getpwnam("nobody")
                for path in (self._root, *self._root.rglob("*")):
                    os.chown(path, nobody.pw_uid, nobody.pw_gid)
            self._start_somewhere()
        except BaseException:
            self.stop()
            raise

    @property
    def name(self) -> str:
        return f"root://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Again, after `kill`."""
        command = ["xrootd", *self._user, "-c", f"{self._root}/xrd.cfg", "-l", f"{self._root}/log/xrd.log", "-I", "v4"]
        with open(self._root / "said", "wb") as said:
            self._process = subprocess.Popen(command, stdout=said, stderr=said, cwd=self._root)
        end_s = time.monotonic() + _DEADLINE_S
        while time.monotonic() < end_s and self._process.poll() is None:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(_PAUSE_S)
        logs = [self._root / "said", *self._root.glob("log/**/xrd.log")]
        said = "\n".join(path.read_text(errors="replace")[-2000:] for path in logs)
        raise AssertionError(f"the XRootD server did not start, status {self._process.poll()}:\n{said}")

    def _start_somewhere(self) -> None:
        """On a port that is free. Not one of those that outgoing connections get: any of them may take it meanwhile."""
        for tries_left in (9, 8, 7, 6, 5, 4, 3, 2, 1, 0):
            self._port = random.randrange(10_000, 32_000)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    continue  # somebody else's
            (self._root / "xrd.cfg").write_text(_CONFIGURATION.format(root=self._root, port=self._port))
            try:
                return self.start()
            except AssertionError:
                self.kill()
                if not tries_left:
                    raise
        raise AssertionError("there is a last try")

    def kill(self) -> None:
        """As a server that is down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_DEADLINE_S)

    def freeze(self) -> None:
        """As a server that takes what it is sent, and does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.kill()
        if self._is_mounted:
            subprocess.run(["umount", "--lazy", self.data], check=False)
        shutil.rmtree(self._root, ignore_errors=True)

    def _mount(self, size_bytes: int) -> None:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(self.data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"no file system can be mounted: {done.stderr.strip()}")
        self._is_mounted = True
