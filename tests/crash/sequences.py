"""The lives that are explored: what a program does that saves in the foreground; those with an agent come along."""

from collections.abc import Callable

from holdfast.core.clock import SystemClock
from holdfast.core.errors import FencedError
from holdfast.engine.commit import remove_checkpoint
from holdfast.engine.marks import PINNED, clear_mark, set_mark
from holdfast.policy.keep import keep
from tests.crash.agent_life import AgentLife
from tests.crash.agent_sequences import AGENT_SEQUENCES
from tests.crash.life import FORBIDDEN, REMOVE, REMOVED, Life, Recorded, reused_names

__all__ = ["SEQUENCES", "record"]


def _first_save(life: Life) -> None:
    life.new_process()
    life.save(1)


def _several_saves(life: Life) -> None:
    life.new_process()
    for step in (5, 6, 9):
        life.save(step)


def _save_and_prune(life: Life) -> None:
    life.new_process(retain=keep(last=1))
    for step in (1, 2, 3, 4):
        life.save(step)


def _takeover(life: Life) -> None:
    life.new_process()
    life.save(1)
    life.new_process()
    life.save(2)
    life.new_process(retain=keep(last=2))
    life.save(3)


def _repair(life: Life) -> None:
    life.new_process()
    life.save(1)
    life.save(2)
    life.damage_newest()
    life.new_process(retain=keep(last=1))
    life.save(2)
    life.save(3)


def _pin_and_unpin(life: Life) -> None:
    life.new_process()
    life.save(1)
    store = life.store()
    set_mark(store, life.ids[1], PINNED, reason="best so far", clock=SystemClock())
    life.new_process(retain=keep(last=1))
    life.save(2)
    life.save(3)
    clear_mark(life.store(), life.ids[1], PINNED)
    life.save(4)


def _remove(life: Life) -> None:
    life.new_process()
    for step in (1, 2, 3):
        life.save(step)
    for number in (3, 1):
        store = life.store()
        life.mark(REMOVE, number)
        remove_checkpoint(store, life.ids[number], attempt=None)
        life.mark(REMOVED, number)
    life.new_process()
    life.save(7)


def _zombie(life: Life) -> None:
    """An older attempt that still lives when a newer one has taken the run: whatever it does must not count."""
    zombie, program = life.new_process(), life.program
    life.save(1)
    life.new_process(kill=False, takeover=True)
    life.save(2)
    program.become(FORBIDDEN)
    try:
        pending = zombie.save(step=9)
    except FencedError:
        pass
    else:
        raise AssertionError(f"an older attempt was let through by the fence: {pending} (I11)")
    life.save(3)


def record(name: str) -> Recorded:
    """Run the sequence once and write it down."""
    if name in AGENT_SEQUENCES:
        drive_agent, floats = AGENT_SEQUENCES[name]
        with AgentLife(floats=floats) as life:
            drive_agent(life)
            return _written_down(name, life, floats)
    drive, floats = _SEQUENCES[name]
    plain = Life(floats=floats)
    drive(plain)
    return _written_down(name, plain, floats)


def _written_down(name: str, life: Life, floats: int) -> Recorded:
    reused = reused_names(life.operations)
    assert not reused, f"names were given twice: {reused} (I3)"
    return Recorded(name, life.initial, life.operations, floats)


_SEQUENCES: dict[str, tuple[Callable[[Life], None], int]] = {
    "first save": (_first_save, 3000),
    "several saves": (_several_saves, 3000),
    "save and prune": (_save_and_prune, 1600),
    "takeover of a dead attempt": (_takeover, 1600),
    "damage, fallback, save, prune": (_repair, 1600),
    "pin and unpin": (_pin_and_unpin, 1600),
    "remove by hand": (_remove, 1600),
    "zombie of an older attempt": (_zombie, 1600),
}
"""Name to what happens, and how many floats the state has (512 of them are one block)."""

SEQUENCES = (*_SEQUENCES, *AGENT_SEQUENCES)
"""The names of all."""
