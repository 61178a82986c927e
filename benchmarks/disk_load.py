"""`python -m benchmarks.disk_load DIRECTORY`: another job on the same disk, until its stdin is closed."""

import mmap
import os
import sys
import threading
from pathlib import Path

__all__ = ["THREADS"]

THREADS = 8
_BLOCK_BYTES = 4 << 20
_FILE_BYTES = 64 << 20


def main(directory: Path) -> None:
    """Threads that write past the page cache, each to a file of its own, over and over, with an fsync a round."""
    directory.mkdir(exist_ok=True)
    stop = threading.Event()
    threads = [threading.Thread(target=_load, args=(directory / str(index), stop)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()


def _load(path: Path, stop: threading.Event) -> None:
    block = mmap.mmap(-1, _BLOCK_BYTES)  # page-aligned, as direct writes want it
    block.write(os.urandom(_BLOCK_BYTES))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        while not stop.is_set():
            for offset in range(0, _FILE_BYTES, _BLOCK_BYTES):
                os.pwrite(descriptor, block, offset)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
