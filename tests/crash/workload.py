"""A short life of a run in a real directory, with a record of what went through `Files`: compared with strace."""

import json
import sys

from holdfast.policy.keep import keep
from holdfast.storage.files import Files
from holdfast.testing.recording import OpKind, RecordingFiles
from tests.crash.subject import Program, small_and_fast

__all__ = ["live"]


def live(path: str) -> list[str]:
    """Save, prune, restore and take over in the directory; the kinds of the recorded operations, in order."""
    files = RecordingFiles(Files())
    with small_and_fast():
        for first_step in (1, 4):
            program = Program(floats=1500)
            with program.checkpointer(files, path, retain=keep(last=2)) as checkpointer:
                checkpointer.restore()
                for step in range(first_step, first_step + 3):
                    program.become(step)
                    checkpointer.save(step=step).wait()
    return [op.kind for op in files.operations if op.kind != OpKind.MARK]


if __name__ == "__main__":
    print(json.dumps(live(sys.argv[1])))
