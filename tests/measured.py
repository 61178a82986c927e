"""Coverage of programs that tests start: what runs nowhere else is measured there."""

import os

__all__ = ["measured"]


def measured() -> list[str]:
    """The words that run a Python file, or `-m` and a module, and measure it, where `make test` asks for that."""
    data = os.environ.get("COVERAGE_OF_CHILDREN")
    return ["-m", "coverage", "run", "--branch", "--source=holdfast", "-p", f"--data-file={data}"] if data else []
