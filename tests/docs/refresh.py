"""Put what the commands print now into the pages: `python -m tests.docs.refresh PAGE…`. Then read the difference."""

import os
import re
import socket
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.running import Session, run_page

__all__ = ["refresh"]


def refresh(path: Path) -> None:
    """Run the page, and write the output of each of its commands that shows some."""
    lines = path.read_text().splitlines()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("examples").symlink_to(ROOT / "examples")
        sessions = list(run_page(path))
        os.chdir(ROOT)
    for session in reversed(sessions):
        if any(session.shown):
            lines[session.line : session.line + len(session.shown)] = _anonymous(session)
    path.write_text("\n".join(lines) + "\n")


def _anonymous(session: Session) -> list[str]:
    """What was printed, as if by a machine of the readers'."""
    replaced = {
        rf"\bon {re.escape(socket.gethostname())}\b": "on node17",
        r"\bpid \d+": "pid 4711",
        r", code \w+.*": "",
    }
    lines = session.printed
    for found, instead in replaced.items():
        lines = [re.sub(found, instead, line) for line in lines]
    return lines


if __name__ == "__main__":
    for name in sys.argv[1:]:
        refresh(Path(name).resolve())
