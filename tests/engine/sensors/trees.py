"""Trees of small files, like those of /proc and /sys."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["plant"]


def plant(root: Path, files: Mapping[str, object]) -> Path:
    """The files, with their texts, below the root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root
