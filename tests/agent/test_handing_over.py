"""A snapshot that cannot be given to the agent is a failed save, and nobody waits for it."""

import errno

import numpy as np
import pytest

import holdfast
from holdfast.agent import background
from holdfast.agent.channel import Channel


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_where_memory_is_short_for_the_order_the_slot_is_free_for_the_next_save(tmp_path, monkeypatch, kind):
    def no_memory(*_, **__):
        raise MemoryError

    with holdfast.Checkpointer(tmp_path / "run", {"a": np.arange(1000.0)}, background=kind, capture="now") as ckpt:
        with monkeypatch.context() as short:
            short.setattr(background, "Write", no_memory)
            failed = ckpt.save(step=1)
        with pytest.raises(holdfast.SaveFailedError):
            failed.wait()

        assert not ckpt._stager.background.is_busy()
        ckpt.save(step=2).wait()


def test_orders_that_could_not_be_given_are_not_waited_for(tmp_path, monkeypatch):
    def no_buffers(*_, **__):
        raise OSError(errno.ENOBUFS, "No buffer space available")

    with holdfast.Checkpointer(tmp_path / "run", {"a": np.arange(1000.0)}, background="process") as ckpt:
        for step in (1, 2):  # so that the agent has both slots
            ckpt.save(step=step).wait()
        with monkeypatch.context() as short:
            short.setattr(Channel, "_try_send", no_buffers)
            failed = [ckpt.save(step=step) for step in (3, 4)]
        ckpt.save(step=5).wait()

    assert all("No buffer space" in str(pending.error) for pending in failed)
