"""A real luigi for tests: a central scheduler on a port of its own, and workers, each in a directory of the test."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["ALREADY_RUNNING", "DEADLINE_S", "TASK_FAILED", "Luigi", "need_luigi"]

DEADLINE_S = 120
TASK_FAILED = 30
ALREADY_RUNNING = 10
"""What a worker ends with, as it is configured here; without that, with 0."""
_TASKS = Path(__file__).parent / "luigi_tasks"
_PORTS_TRIED = 5


def need_luigi() -> None:
    """Skip where it is not installed; where everything has to be there, fail."""
    if find_spec("luigi") is None:
        reason = "luigi is not installed: pip install luigi"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason, allow_module_level=True)


class Luigi:
    """Its configuration, and what was started with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._options: dict[str, dict[str, object]] = {
            # Luigi refuses to run two equal commands at a time, which tests side by side may well have.
            "core": {"default_scheduler_host": "127.0.0.1", "lock_pid_dir": folder / "locks"},
            "scheduler": {
                "retry_delay": 0.1,
                "prune_on_get_work": "true",
                "state_path": folder / "state.pickle",
                # Workers ping every second; one that is only slow must not be taken for dead.
                "worker_disconnect_delay": 8,
            },
            "worker": {"keep_alive": "true", "wait_interval": 0.1, "wait_jitter": 0},
            "retcode": {
                "task_failed": TASK_FAILED,
                "already_running": ALREADY_RUNNING,
                "not_run": 25,
                "scheduling_error": 35,
            },
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def configure(self, section: str, **options: object) -> None:
        """For what is started from now on."""
        self._options.setdefault(section, {}).update(options)

    def start_scheduler(self) -> None:
        """luigid; returns when it answers."""
        for _ in range(_PORTS_TRIED):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            self.configure("core", default_scheduler_port=port)
            process = self._start(
                [sys.executable, "-c", "from luigi.cmdline import luigid; luigid()", "--port", str(port)]
            )
            if _answers(process, f"http://127.0.0.1:{port}/api/graph"):
                return
        raise AssertionError("luigid does not start: " + self.log())

    def start(self, *arguments: str, local: bool = False) -> subprocess.Popen[bytes]:
        """A worker with a task of `luigi_tasks`, in a process group of its own."""
        scheduler = ["--local-scheduler"] if local else []
        return self._start([sys.executable, "-m", "luigi", "--module", "luigi_tasks", *arguments, *scheduler])

    def start_python(self, script: str) -> subprocess.Popen[bytes]:
        """A program that lies beside the tasks."""
        return self._start([sys.executable, str(_TASKS / script)])

    def run(self, *arguments: str, local: bool = False) -> int:
        """The same, to its end; its status."""
        return self.start(*arguments, local=local).wait(DEADLINE_S)

    def log(self) -> str:
        """What all of them said."""
        return (self.folder / "luigi.log").read_text()

    def stop(self) -> None:
        """All that was started, and what that started."""
        for process in self._started:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(DEADLINE_S)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        lines = []
        for section, options in self._options.items():
            lines += [f"[{section}]", *(f"{name} = {value}" for name, value in options.items())]
        config = self.folder / "luigi.cfg"
        config.write_text("\n".join(lines))
        path = os.pathsep.join([str(_TASKS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "LUIGI_CONFIG_PATH": str(config), "PYTHONPATH": path}
        with open(self.folder / "luigi.log", "ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._started.append(process)
        return process


def _answers(process: subprocess.Popen[bytes], address: str) -> bool:
    """Whether it does, within the deadline; not where it ends, as it does if the port is taken."""
    give_up_s = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < give_up_s:
        try:
            with urllib.request.urlopen(address, timeout=DEADLINE_S):
                return process.poll() is None
        except urllib.error.URLError:
            time.sleep(0.05)
    return False
