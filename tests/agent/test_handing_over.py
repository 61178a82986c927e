"""A snapshot that cannot be given to the agent is a failed save, and nobody waits for it."""

import numpy as np
import pytest

import holdfast
from holdfast.agent import background


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
