"""A real Slurm of one's own: controller, nodes and authentication on this machine, in a directory that goes with it.

Limits are checked about every 30 s, so a job outlives its limit by up to that. A job that was requeued waits two
minutes unless `scontrol update jobid=… StartTime=now`.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Slurm", "why_not"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
_DEADLINE_S = 60.0
_PAUSE_S = 0.05
_CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.sock
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait={kill_wait_s}
MinJobAge=3600
SlurmdTimeout=20
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
"""
_NODE = (
    "NodeName=node{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
    "CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN\n"
)
# Jobs of `high` preempt those of the others: at once or with a grace, and they are requeued or cancelled.
_PARTITIONS = """\
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE MaxTime=INFINITE State=UP
PartitionName=graced Nodes=ALL Default=NO PriorityTier=1 PreemptMode=REQUEUE GraceTime=40 MaxTime=INFINITE State=UP
PartitionName=cancelled Nodes=ALL Default=NO PriorityTier=1 PreemptMode=CANCEL MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL Default=NO PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no Slurm here; empty where there can."""
    missing = [name for name in _PROGRAMS if _find(name) is None]
    if not missing:
        return ""
    return f"not installed: {', '.join(missing)} (Debian: apt-get install slurmctld slurmd slurm-client munge)"


class Slurm:
    """A cluster that runs until `stop`. Its nodes are virtual, two cores each.

    Jobs of the partition `high` preempt those of `low`, `graced` and `cancelled`.
    """

    def __init__(self, *, nodes: int = 1, kill_wait_s: int = 30) -> None:
        # Sockets have short names: not below pytest's own directories.
        self.root = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SQUEUE"))},
            "SLURM_CONF": str(self.root / "slurm.conf"),
        }
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._of_nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._nodes = nodes
        try:
            self._configure(kill_wait_s)
            self._start()
        except BaseException:
            self.stop()
            raise

    def run(self, *command: str) -> str:
        """What the command printed; AssertionError where it failed."""
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str, folder: Path) -> str:
        """The number of a job that runs the script in the folder; what it prints goes to `NUMBER.out` there."""
        path = folder / f"job-{secrets.token_hex(4)}.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        return self.run("sbatch", "--parsable", f"--chdir={folder}", "--output=%j.out", *options, str(path))

    def state(self, job: str) -> str:
        """`PENDING`, `RUNNING`, `COMPLETED`, `TIMEOUT` …"""
        return self.shown(job)["JobState"]

    def shown(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def lose(self, node: str) -> None:
        """Kill the node's daemon. What runs there goes on; after SlurmdTimeout the node is declared down."""
        daemon = self._of_nodes[node]
        daemon.kill()
        daemon.wait(_DEADLINE_S)

    def processes(self, job: str) -> list[int]:
        """What runs of the job, on whichever node, also on one that the controller has given up."""
        return _processes_with(f"SLURM_CONF={self.environ['SLURM_CONF']}", f"SLURM_JOB_ID={job}")

    def cancel(self) -> None:
        """End every job, and wait until it has ended."""
        self.run("scancel", "--full", "--signal=KILL", "--user", _user())
        self.run("scancel", "--user", _user())
        _wait_for(lambda: self.run("squeue", "--noheader") == "", "jobs to end", self.root)

    def stop(self) -> None:
        """End the jobs and the daemons, and remove the directory."""
        try:
            if len(self._daemons) > 1:
                self.cancel()
        finally:
            for daemon in reversed(self._daemons):
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
            # On a node that was lost, programs have nobody left who would end them.
            for pid in _processes_with(f"SLURM_CONF={self.environ['SLURM_CONF']}"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.root, ignore_errors=True)

    def _configure(self, kill_wait_s: int) -> None:
        self.root.chmod(0o755)
        (self.root / "state").mkdir()
        host, ports = socket.gethostname().split(".")[0], _free_ports(self._nodes + 1)
        text = _CONFIGURATION.format(host=host, port=ports[0], user=_user(), root=self.root, kill_wait_s=kill_wait_s)
        for number, port in enumerate(ports[1:], 1):
            text += _NODE.format(number=number, host=host, port=port)
        (self.root / "slurm.conf").write_text(text + _PARTITIONS)
        key = self.root / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))

    def _start(self) -> None:
        files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        self._begin(
            "munged", "--foreground", "--force", *(f"--{name}={self.root / file}" for name, file in files.items())
        )
        _wait_for((self.root / "munge.sock").exists, "munged", self.root)
        self._begin("slurmctld", "-D", "-c")
        for number in range(1, self._nodes + 1):
            self._begin("slurmd", "-D", "-N", f"node{number}")
            self._of_nodes[f"node{number}"] = self._daemons[-1]
        _wait_for(self._is_idle, "idle nodes", self.root)

    def _begin(self, program: str, *options: str) -> None:
        # The daemons die with the tests, also where those are killed.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with open(self.root / f"{program}.out", "ab") as out:
            command = [*guard, _find(program) or program, *options]
            self._daemons.append(
                subprocess.Popen(command, env=self.environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            )

    def _is_idle(self) -> bool:
        command = ["sinfo", "--noheader", "--Node", "--partition=low", "--states=idle", "--format=%N"]
        done = subprocess.run(command, env=self.environ, capture_output=True, timeout=_DEADLINE_S, check=False)
        return len(done.stdout.split()) == self._nodes


def _find(program: str) -> str | None:
    # Daemons are in directories that users do not have in their path.
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _processes_with(*variables: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if set(map(str.encode, variables)) <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _wait_for(holds: Callable[[], bool], what: str, root: Path) -> None:
    give_up_s = time.monotonic() + _DEADLINE_S
    while not holds():
        if time.monotonic() > give_up_s:
            logs = "".join(
                f"== {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in root.glob("*.[lo][ou]*")
            )
            raise AssertionError(f"Slurm: waited for {what}\n{logs}")
        time.sleep(_PAUSE_S)
