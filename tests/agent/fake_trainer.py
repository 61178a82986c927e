"""A program that is a training process with an agent, and dies or misbehaves on demand.

    fake_trainer.py PLACE MODE POINT [WISH=VALUE …]

`sent` in PLACE tells which snapshots it has ordered. At POINT (see fake_agent) it kills itself.
"""

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from holdfast.core.errors import UsageError
from tests.agent.fake_agent import kill_at
from tests.agent.rig import Bye, Durable, Rig


def main(place: Path, mode: str, point: str, wishes: dict[str, object]) -> None:
    (place / "trainer-mark").touch()
    kill_at(str(place / "trainer-mark"), point)
    made = Rig(place, linger_s=float(wishes.pop("linger_s", 50)), **wishes)
    MODES[mode](made, place)


def order(made: Rig, place: Path, *generations: int) -> None:
    for generation in generations:
        made.write_with_hints(generation)
        with (place / "sent").open("a") as file:
            file.write(f"{generation}\n")


def whole(made: Rig, place: Path) -> None:
    """From the start to the end."""
    made.start()
    order(made, place, 1, 2)
    made.heard.wait_for(Durable, 2)
    made.close()
    made.heard.wait_for(Bye)


def in_a_thread(made: Rig, place: Path) -> None:
    """Started by a thread that ends at once."""
    thread = threading.Thread(target=made.start)
    thread.start()
    thread.join()
    order(made, place, 1, 2)
    made.heard.wait_for(Durable, 2)
    made.close()


def left_open(made: Rig, place: Path) -> None:
    """Ends as a program that has forgotten to close."""
    made.start()
    order(made, place, 1, 2)


def killed(made: Rig, place: Path) -> None:
    made.start()
    order(made, place, 1, 2)
    os.kill(os.getpid(), signal.SIGKILL)


def killed_with_reports_unread(made: Rig, place: Path) -> None:
    """Reports wait that nobody will read, and an order that the agent, stopped, has not read yet."""
    made.start()
    order(made, place, 1)
    made.heard.wait_for(Durable)
    channel = made.agent._process.channel
    channel.receive = lambda: time.sleep(3600)
    order(made, place, 2)
    select.select([channel._end], [], [])
    os.kill(made.agent.pid, signal.SIGSTOP)
    order(made, place, 3)
    os.kill(os.getpid(), signal.SIGKILL)


def killed_with_its_end_held(made: Rig, place: Path) -> None:
    """Somebody else has the socket's other end, as a child forked by a library may."""
    made.start()
    end = made.agent._process.channel._end.fileno()
    holder = subprocess.Popen(["sleep", "3600"], pass_fds=[end], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (place / "holder").write_text(str(holder.pid))
    order(made, place, 1, 2)
    os.kill(os.getpid(), signal.SIGKILL)


def forked(made: Rig, place: Path) -> None:
    """A forked child stays behind, tries to use the agent, and must not be able to."""
    made.start()
    order(made, place, 1)
    if os.fork() == 0:
        verdict = []
        for use in (made.agent.start, lambda: made.write(3), lambda: made.agent.send_slot(0, made.slots[0])):
            try:
                use()
            except UsageError as error:
                verdict.append("belongs to process" in str(error))
        verdict += [not made.agent.alive, made.agent.pid is None, made.agent.close(10) == []]
        verdict.append(not any(kind in link for kind in ("socket:", "eventfd", "pidfd", "agent") for link in _links()))
        (place / "child").write_text(f"{os.getpid()} {verdict}")
        time.sleep(3600)
    while not (place / "child").exists():
        time.sleep(0.01)
    order(made, place, 2)
    os._exit(0)


def _links() -> list[str]:
    """What this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass  # the listing itself
    return found


def with_a_forked_trainer(made: Rig, place: Path) -> None:
    """A child of `multiprocessing` has an agent of its own beside its parent's."""
    made.start()
    order(made, place, 1)
    for method in ("fork", "spawn"):
        inner = place / method
        inner.mkdir()
        process = multiprocessing.get_context(method).Process(target=_inner, args=(inner,))
        process.start()
        process.join()
        assert process.exitcode == 0
    order(made, place, 2)
    made.heard.wait_for(Durable, 2)
    made.close()


def _inner(place: Path) -> None:
    whole(Rig(place), place)


MODES = {
    mode.__name__: mode
    for mode in (
        whole,
        in_a_thread,
        left_open,
        killed,
        killed_with_reports_unread,
        killed_with_its_end_held,
        forked,
        with_a_forked_trainer,
    )
}

if __name__ == "__main__":
    directory, wanted, at, *rest = sys.argv[1:]
    main(Path(directory), wanted, at, dict(wish.split("=", 1) for wish in rest))
