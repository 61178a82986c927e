"""What becomes of a run whose checkpoints an agent writes: pipelined, retried, killed, adopted, taken over."""

from collections.abc import Callable
from contextlib import nullcontext

from holdfast.core.errors import SaveFailedError
from holdfast.core.limits import PAGE_BYTES
from holdfast.policy.keep import keep
from holdfast.testing.recording import OpKind
from tests.crash.agent_life import AgentLife, Copy
from tests.crash.agents import Halt
from tests.crash.life import ACK, FORBIDDEN

__all__ = ["AGENT_SEQUENCES"]


def _pipelined(life: AgentLife) -> None:
    """One snapshot is being written, one waits, and a third one waits for its place in memory."""
    life.new_process(retain=keep(last=1))
    life.save(1)
    for first_step in (2, 5):
        life.agent.before_write = halt = Halt()
        life.stage(first_step)
        halt.wait_until_reached()
        life.stage(first_step + 1)
        life.begin()
        life.agent.numbers.append(life.newest)
        life.agent.let_go()
        life.checkpointer.save(step=first_step + 2)
        life.settle()


def _written_again(life: AgentLife) -> None:
    """The medium gives an error, once for the shard and once for the manifest."""
    life.new_process(retain=keep(last=2))
    life.save(1)
    life.agent.files.fail_next_sync()
    life.save(2)
    life.agent.files.after(OpKind.SYNC, 1, life.agent.files.fail_next_sync)
    life.save(3)
    life.save(4)


def _agent_dies(life: AgentLife) -> None:
    """Another one starts again on what the first has half written, or written whole without saying so."""
    life.new_process(retain=keep(last=2))
    life.save(1)
    for step, (kind, count) in enumerate(_DEATHS, 2):
        life.agent.files.after(kind, count, life.agent.die)
        life.save(step)


_DEATHS = ((OpKind.MAKE_DIR, 1), (OpKind.WRITE, 2), (OpKind.SYNC, 1), (OpKind.RENAME, 1), (OpKind.SYNC_DIR, 3))


def _adoption(life: AgentLife) -> None:
    """All die while a snapshot is in memory only; the next attempt on the machine makes it durable."""
    life.new_process()
    life.save(1)
    life.agent.before_write = halt = Halt()
    life.stage(2)
    halt.wait_until_reached()
    life.new_process(adopts=2, retain=keep(last=2))
    life.save(3)
    life.agent.files.after(OpKind.WRITE, 2, life.agent.die)
    life.save(4)


def _agent_finishes(life: AgentLife) -> None:
    """The training dies, its agent does not: what was staged is there when the next attempt restores."""
    life.new_process()
    life.save(1)
    life.agent.before_write = halt = Halt()
    life.stage(2)
    halt.wait_until_reached()
    dead = life.trainer
    life.kill(dead, with_agent=False)
    dead.agent.let_go()
    life.bury(dead)
    life.new_process(kill=False, retain=keep(last=1))
    assert life.program.saved() == 2, f"the agent had finished save 2, {life.program.saved()} was restored (I5)"
    life.save(3)


def _agent_held(life: AgentLife) -> None:
    """The training dies, its agent hangs in the midst of a shard; when it goes on, the run is somebody else's."""
    life.new_process()
    life.save(1)
    halt = Halt()
    life.agent.files.after(OpKind.WRITE, 2, halt.stop_here)
    life.stage(2)
    halt.wait_until_reached()
    dead = life.trainer
    life.kill(dead, with_agent=False)
    life.new_process(kill=False, adopts=2, retain=keep(last=2))
    life.save(3)
    halt.let_go()
    life.bury(dead)
    assert 2 in dead.agent.failures, "the agent of an older attempt was let through by the fence (I11)"
    life.save(4)


def _zombie(life: AgentLife) -> None:
    """An older attempt and its agent, both alive when a newer one has taken the run: what they do must not count."""
    life.new_process()
    life.save(1)
    zombie = life.trainer
    life.new_process(kill=False, takeover=True)
    life.save(2)
    zombie.program.become(FORBIDDEN)
    zombie.agent.numbers.append(FORBIDDEN)
    pending = zombie.checkpointer.save(step=9)
    life.settle_all()
    assert not pending.durable, f"the agent of an older attempt was let through by the fence: {pending} (I11)"
    life.save(3)


def _memory_changes(life: AgentLife) -> None:
    """Something writes to the memory of a snapshot before the agent does: it must not become a checkpoint."""
    life.new_process()
    life.save(1)
    life.agent.before_write = halt = Halt()
    life.program.become(FORBIDDEN)
    life.agent.numbers.append(FORBIDDEN)
    pending = life.checkpointer.save(step=2)
    halt.wait_until_reached()
    life.flip_bit_in_memory()
    life.agent.let_go()
    life.settle()
    assert not pending.durable, f"memory that changed since it was copied was written as the state: {pending} (I4)"
    life.save(3)


def _both_write(life: AgentLife) -> None:
    """There is no memory for a snapshot, so the training process writes while its agent prunes."""
    life.new_process(retain=keep(last=1))
    life.save(1)
    agent = life.agent
    agent.before_prune = halt = Halt()
    life.stage(2)
    halt.wait_until_reached()

    def let_the_agent_prune() -> None:
        agent.let_go()
        life.settle()

    life.trainer.files.after(OpKind.WRITE, 2, let_the_agent_prune)
    life.begin()
    with life.no_memory():
        pending = life.checkpointer.save(step=3)
    assert pending.durable, f"without a fault the save of step 3 failed: {pending.error}"
    life.mark(ACK, life.newest)
    life.save(4)


def _written_ahead(life: AgentLife) -> None:
    """What is copied is written while more is; agents die in the midst of it."""
    life.new_process(retain=keep(last=2))
    with life.copying():
        life.save(1)
        life.save(2)
        for step, (kind, count) in enumerate(_DEATHS_AHEAD, 3):
            life.agent.files.after(kind, count, life.agent.die)
            life.save(step)


def _dies_after_giving_up(life: AgentLife) -> None:
    """Agents that have given up what they had begun die before they have written it again: the next knows no names."""

    life.new_process(retain=keep(last=2))
    life.save(1)
    with life.copying(_say_too_early(life)):
        for step, (kind, count) in enumerate(_DEATHS_AFTER_GIVING_UP, 2):
            life.agent.files.after(kind, count, life.agent.die)
            life.save(step)


_DEATHS_AFTER_GIVING_UP = ((OpKind.UNLINK, 1), (OpKind.REMOVE_DIR, 1), (OpKind.MAKE_DIR, 2), (OpKind.SYNC, 1))


def _written_ahead_again(life: AgentLife) -> None:
    """The medium gives an error when what was written ahead is synced, and when its manifest is."""
    life.new_process(retain=keep(last=2))
    with life.copying():
        life.save(1)
        life.agent.files.fail_next_sync()
        life.save(2)
        life.agent.files.after(OpKind.SYNC, 1, life.agent.files.fail_next_sync)
        life.save(3)


_DEATHS_AHEAD = ((OpKind.MAKE_DIR, 1), (OpKind.WRITE, 1), (OpKind.WRITE, 3), (OpKind.SYNC, 1), (OpKind.RENAME, 1))


def _half(image: memoryview) -> int:
    """In whole pages: what is written at a time."""
    return len(image) // 2 // PAGE_BYTES * PAGE_BYTES


def _copy_given_up(life: AgentLife) -> None:
    """A copy fails when the agent has written half of it; the step is saved again."""

    def fail(make: Callable[[], list[str]], image: memoryview, note_filled: Callable[[int], None]) -> list[str]:
        del make
        life.fill(_half(image), note_filled)
        raise SaveFailedError("the state cannot be copied")

    life.new_process(retain=keep(last=2))
    with life.copying():
        life.save(1)
    for step in (2, 3):
        with life.copying(fail):
            pending = life.checkpointer.save(step=step)
        assert pending.error is not None, f"a copy that failed is taken for a good one: {pending} (I8)"
        life.settle()  # the agent removes what it has written
        with life.copying() if step == 2 else nullcontext():
            life.save(step)


def _say_too_early(life: AgentLife) -> Copy:
    """The agent is told that memory is filled, and writes what is there, before it is."""

    def copy(make: Callable[[], list[str]], image: memoryview, note_filled: Callable[[int], None]) -> list[str]:
        image[:] = bytes(len(image))
        life.fill(len(image), note_filled)
        return make()

    return copy


def _copy_is_not_what_was_said(life: AgentLife) -> None:
    """The agent is told that memory is filled before it is: what it wrote by then must not become a checkpoint."""

    life.new_process(retain=keep(last=2))
    life.save(1)
    with life.copying(_say_too_early(life)):
        life.save(2)
        life.save(3)


def _training_dies_copying(life: AgentLife) -> None:
    """The agent has written half of a snapshot that never became one."""

    def die(make: Callable[[], list[str]], image: memoryview, note_filled: Callable[[int], None]) -> list[str]:
        del make
        life.fill(_half(image), note_filled)
        raise KeyboardInterrupt

    life.new_process()
    life.save(1)
    dead = life.trainer
    with life.copying(die):
        try:
            life.checkpointer.save(step=2)
        except KeyboardInterrupt:
            pass
    life.kill(dead, with_agent=False)
    life.bury(dead)
    left = [path for path in life.listing() if path.startswith("000000002")]
    assert not left, f"the agent has left {left} of a snapshot that never was"
    life.new_process(kill=False, retain=keep(last=1))
    assert life.program.saved() == 1, f"only save 1 was complete, {life.program.saved()} was restored (I1)"
    with life.copying():
        life.save(3)


AGENT_SEQUENCES: dict[str, tuple[Callable[[AgentLife], None], int]] = {
    "agent: pipelined, pruned": (_pipelined, 1100),
    "agent: written again after an error": (_written_again, 1600),
    "agent: dies, another starts again": (_agent_dies, 1600),
    "agent: adoption of a snapshot": (_adoption, 1600),
    "agent: finishes for a dead training": (_agent_finishes, 1600),
    "agent: held while the run is taken over": (_agent_held, 1600),
    "agent: zombie of an older attempt": (_zombie, 1100),
    "agent: memory changes under a snapshot": (_memory_changes, 1100),
    "agent: prunes while the training writes": (_both_write, 1100),
    "agent: writes what is being copied": (_written_ahead, 1600),
    "agent: writes again what was being copied": (_written_ahead_again, 1600),
    "agent: dies after it has given up": (_dies_after_giving_up, 1600),
    "agent: writes what is given up": (_copy_given_up, 1600),
    "agent: writes what is not yet there": (_copy_is_not_what_was_said, 1600),
    "agent: writes for a training that dies": (_training_dies_copying, 1600),
}
"""Name to what happens, and how many floats the state has."""
