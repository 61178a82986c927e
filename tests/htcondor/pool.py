"""A real HTCondor pool of one's own: eight slots on this machine, in a directory that goes with it.

Its programs are those of the Debian 13 that `tests/trixie` makes. HTCondor refuses jobs of root, so that daemons and
jobs run as another user; the Python of the tests, and the repository, are there under the same names.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

import holdfast

__all__ = ["USER_ID", "Pool", "why_not"]

USER_ID = 30001
"""Of the user that tests/components.d/htcondor makes in the Debian 13."""
_REPOSITORY = Path(__file__).parents[2]
_TRIXIE = str(_REPOSITORY / "tests" / "trixie")
_SOURCES = Path(holdfast.__file__).parents[1]
_DEADLINE_S = 240.0
_PAUSE_S = 0.1
_SLOTS = 8
_CONFIGURATION = """\
RELEASE_DIR = /usr
BIN = /usr/bin
SBIN = /usr/sbin
LIB = /usr/lib/condor
LIBEXEC = /usr/libexec/condor
LOCAL_DIR = {root}
LOG = {root}/log
SPOOL = {root}/spool
EXECUTE = {root}/execute
RUN = {root}/run
LOCK = {root}/lock
DAEMON_LIST = MASTER SHARED_PORT COLLECTOR NEGOTIATOR SCHEDD STARTD
USE_SHARED_PORT = True
SHARED_PORT_PORT = {port}
DAEMON_SOCKET_DIR = {root}/lock/sock
MASTER_ADDRESS_FILE = {root}/log/.master_address
SCHEDD_ADDRESS_FILE = {root}/spool/.schedd_address
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{port}
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = False
ENABLE_IPV6 = False
# Nobody else is on this network.
SEC_DEFAULT_AUTHENTICATION = OPTIONAL
SEC_DEFAULT_AUTHENTICATION_METHODS = FS, CLAIMTOBE
SEC_DEFAULT_ENCRYPTION = NEVER
SEC_DEFAULT_INTEGRITY = NEVER
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_ADMINISTRATOR = *
ALLOW_NEGOTIATOR = *
ALLOW_DAEMON = *
# More slots than cores: the jobs of tests sleep.
NUM_CPUS = {slots}
MEMORY = 4000
SLOT_TYPE_1 = cpus=1
SLOT_TYPE_1_PARTITIONABLE = False
NUM_SLOTS_TYPE_1 = {slots}
START = True
SUSPEND = False
PREEMPT = False
KILL = False
MAX_JOB_RETIREMENT_TIME = 0
MachineMaxVacateTime = {vacate_s}
# Waits for nothing that a test would wait for.
CLAIM_WORKLIFE = 0
NEGOTIATOR_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
NEGOTIATOR_MIN_INTERVAL = 1
SCHEDD_INTERVAL = 1
SCHEDD_MIN_INTERVAL = 1
PERIODIC_EXPR_INTERVAL = 2
UPDATE_INTERVAL = 5
STARTER_UPDATE_INTERVAL = 5
JOB_START_DELAY = 0
MAX_REAPS_PER_CYCLE = 0
RUNBENCHMARKS = False
CREATE_CGROUP_WITHOUT_ROOT = False
BASE_CGROUP =
USE_PID_NAMESPACES = False
STARTER_JOB_ENVIRONMENT = "PYTHONPATH={sources}"
FILETRANSFER_PLUGINS = {root}/place_plugin
"""


def why_not() -> str:
    """Why there can be no pool here; empty where there can."""
    if os.geteuid() != 0:
        return "only root can start HTCondor in a Debian 13 beside this system"
    place = subprocess.run([_TRIXIE, "path"], capture_output=True, text=True, check=True, timeout=_DEADLINE_S)
    if not Path(place.stdout.strip(), "usr/sbin/condor_master").exists():
        return "HTCondor is not installed (as root: tests/components)"
    return ""


class Pool:
    """Runs until `stop`."""

    user_id = USER_ID

    def __init__(self, *, vacate_s: int = 30) -> None:
        # Sockets have short names: not below pytest's own directories, which also are closed to others.
        self.root = Path(tempfile.mkdtemp(prefix="condor-"))
        self._vacate_s = vacate_s
        self._master: subprocess.Popen[bytes] | None = None
        try:
            self._configure()
            self._start()
        except BaseException:
            self.stop()
            raise

    @property
    def environ(self) -> dict[str, str]:
        binds = (sys.base_prefix, sys.prefix, str(_REPOSITORY), str(_SOURCES))
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "HOME": os.path.expanduser("~"),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", ""),
            "TRIXIE_BIND": ":".join(dict.fromkeys(binds)),
        }

    def folder(self, name: str) -> Path:
        """A new directory that jobs can write to."""
        path = self.root / "jobs" / name
        path.mkdir(parents=True)
        os.chown(path, USER_ID, USER_ID)
        return path

    def command(self, *words: str) -> list[str]:
        """What runs these words as the user of the pool."""
        user = ["setpriv", "--reuid", str(USER_ID), "--regid", str(USER_ID), "--clear-groups"]
        inside = ["env", f"HOME={self.root}", f"CONDOR_CONFIG={self.root}/condor_config", f"PYTHONPATH={_SOURCES}"]
        return [_TRIXIE, "run", *user, *inside, *words]

    def run(self, *words: str, folder: Path | None = None) -> str:
        """What the command printed; AssertionError where it failed."""
        done = subprocess.run(
            self.command(*words),
            cwd=folder or self.root,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, description: str, *, folder: Path) -> str:
        """The number of the job, such as `3.0`."""
        (folder / "job.sub").write_text(description)
        return self.run("condor_submit", "-terse", "job.sub", folder=folder).split(" - ")[0]

    def query(self, job: str, *attributes: str) -> list[str]:
        """Of a job in the queue, or of one that has left it; `undefined` where it does not have such an attribute."""
        for program in (["condor_q", "-allusers"], ["condor_history", "-limit", "1"]):
            lines = self.run(*program, job, *(word for name in attributes for word in ("-af:,", name))).splitlines()
            if lines:
                return [word.strip() for word in lines[0].split(",")]
        return ["undefined"] * len(attributes)

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        give_up_s = time.monotonic() + _DEADLINE_S
        while not holds():
            assert time.monotonic() < give_up_s, f"HTCondor: waited for {what}\n{self._said()}"
            time.sleep(_PAUSE_S)

    def stop(self) -> None:
        """End the jobs and the daemons, and remove the directory."""
        if self._master is not None:
            self._master.send_signal(signal.SIGQUIT)
            try:
                self._master.wait(20)
            except subprocess.TimeoutExpired:
                self._master.kill()
                self._master.wait()
        shutil.rmtree(self.root, ignore_errors=True)
        # What a job that was killed left in memory would be taken over by the next one of that user.
        if not any(
            process.info["uids"].real == USER_ID and process.info["status"] != psutil.STATUS_ZOMBIE
            for process in psutil.process_iter(["uids", "status"])
        ):
            shutil.rmtree(f"/dev/shm/holdfast-{USER_ID}", ignore_errors=True)

    def _configure(self) -> None:
        self.root.chmod(0o755)
        for name in ("log", "spool", "execute", "run", "lock", "jobs"):
            (self.root / name).mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        text = _CONFIGURATION.format(root=self.root, port=port, slots=_SLOTS, vacate_s=self._vacate_s, sources=_SOURCES)
        (self.root / "condor_config").write_text(text)
        plugin = self.root / "place_plugin"
        plugin.write_text(f"#!{sys.executable}\n{Path(__file__).with_name('place_plugin.py').read_text()}")
        plugin.chmod(0o755)
        for path in (self.root, *self.root.iterdir()):
            os.chown(path, USER_ID, USER_ID)

    def _start(self) -> None:
        with open(self.root / "log" / "master.out", "ab") as out:
            self._master = subprocess.Popen(
                # Where the tests are killed, the master ends all: SIGQUIT has it do so at once.
                self.command("setpriv", "--pdeathsig", "QUIT", "condor_master", "-f"),
                cwd=self.root,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self.wait_for(self._is_ready, "slots")

    def _is_ready(self) -> bool:
        command = self.command("condor_status", "-af", "Name", "State")
        done = subprocess.run(command, env=self.environ, capture_output=True, timeout=_DEADLINE_S, check=False)
        if done.returncode != 0 or len(done.stdout.splitlines()) < _SLOTS:
            return False
        command = self.command("condor_q")
        return subprocess.run(command, env=self.environ, capture_output=True, timeout=60, check=False).returncode == 0

    def _said(self) -> str:
        logs = sorted(self.root.glob("log/*")) + sorted(self.root.glob("jobs/*/*.*"))
        return "".join(f"== {log}\n{log.read_text(errors='replace')[-800:]}" for log in logs if log.is_file())
