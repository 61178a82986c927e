"""What must be true of a run, whatever happened to its disk."""

import json
import traceback

from blake3 import blake3

from holdfast.core.errors import HoldfastError
from holdfast.core.names import MANIFEST_NAME
from holdfast.policy.keep import KEEP_ALL, keep
from tests.crash.life import Expectation
from tests.crash.observed import ObservedFiles
from tests.crash.outcome import Hang, deadline
from tests.crash.subject import Program, forget_processes, quiet

__all__ = ["check_disk", "describe", "incomplete_checkpoints"]

_DEADLINE_S = 20.0
_NEXT = 1_000_000
_PRUNING = keep(last=1)


def incomplete_checkpoints(disk: ObservedFiles) -> list[str]:
    """The manifests that vouch for bytes that are not there, found without holdfast's own reader (I1, I2)."""
    manifests = [path for path in disk.paths() if path.endswith(f"/{MANIFEST_NAME}")]
    return [path for path in manifests if not _is_whole(disk, path)]


def check_disk(disk: ObservedFiles, expected: Expectation, *, floats: int, thorough: bool) -> str:
    """Open, restore, save and restore again on the disk; what is wrong with it, or nothing.

    `thorough` prunes after the save and restores once more.
    """
    try:
        with deadline(_DEADLINE_S), quiet():
            if not expected.may_quarantine:
                broken = incomplete_checkpoints(disk)
                assert not broken, f"a crash left a checkpoint that is not whole: {broken} (I1, I2)"
            _live_on(disk, expected, floats, thorough=thorough)
    except AssertionError as error:
        return str(error)
    except HoldfastError as error:
        return f"refused: {describe(error)}"
    except Hang as error:
        return f"hung: {error}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"traceback: {type(error).__name__}: {error} at {where.name}:{where.lineno}"
    finally:
        forget_processes()
    return ""


def describe(error: BaseException) -> str:
    """The error on one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def _is_whole(disk: ObservedFiles, path: str) -> bool:
    manifest = disk.peek(path) or b""
    covered, found, digest = manifest.rpartition(b'"blake3":"')
    if not found or digest != blake3(covered).hexdigest().encode() + b'"}\n':
        return False
    for shard in json.loads(manifest)["body"]["shards"]:
        data = disk.peek(path.replace(MANIFEST_NAME, shard["name"])) or b""
        size = shard["chunk_bytes"]
        digests = [blake3(data[at : at + size]).hexdigest() for at in range(0, len(data), size)]
        if (len(data), digests) != (shard["size_bytes"], shard["blake3"]):
            return False
    return True


def _live_on(disk: ObservedFiles, expected: Expectation, floats: int, *, thorough: bool) -> None:
    """What a job does after the crash: restore, compute, save; and its successor: restore."""
    process = disk.another_process()
    program = Program(floats=floats)
    checkpointer = program.checkpointer(process, retain=_PRUNING if thorough else KEEP_ALL)
    restored = checkpointer.restore()
    if restored is None:
        assert expected.may_be_empty, f"started from scratch although {sorted(expected.allowed)} had to be there (I12)"
    else:
        found = program.saved()
        assert found is not None, f"step {restored.step} was restored with other bits than were saved (I4)"
        assert found in expected.allowed, f"restored save {found}, allowed are {sorted(expected.allowed)} (I5)"
    if not expected.may_quarantine:
        marks = [path for path in disk.paths() if ".quarantined." in path]
        assert not marks, f"a crash made a good checkpoint look damaged: {marks}"
    if thorough and restored is not None:
        process.die()
        process = disk.another_process()
        checkpointer = program.checkpointer(process, retain=_PRUNING)
        again = checkpointer.restore()
        assert again is not None, "a second start found nothing (I12)"
        assert again.id == restored.id, f"a second start restored {again.id}, the first {restored.id}"

    program.become(_NEXT)
    pending = checkpointer.save(step=1 if restored is None else restored.step + 1)
    assert pending.durable, f"the next save did not become durable: {pending.error}"
    process.die()

    successor = Program(floats=floats)
    after = successor.checkpointer(disk.another_process()).restore()
    assert after is not None, "the next save was acknowledged, but nothing was restored (I12)"
    assert successor.saved() == _NEXT, f"the next save was acknowledged, but step {after.step} was restored (I5)"
    if thorough:
        left = [path for path in disk.paths() if path.endswith(MANIFEST_NAME)]
        assert left, "pruning left nothing (I6)"
        broken = [] if expected.may_quarantine else incomplete_checkpoints(disk)
        assert not broken, f"after pruning these are not whole: {broken} (I2)"
