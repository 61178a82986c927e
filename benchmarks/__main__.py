"""`python -m benchmarks`: measure, print tables, write them as JSON, Markdown and a plot."""

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from rich.console import Console

import holdfast
from benchmarks.machine import describe_machine
from benchmarks.markdown import to_markdown
from benchmarks.plots import plot
from benchmarks.results import Report, Section
from benchmarks.sections import (
    command_line,
    data_resume,
    frequency,
    growth,
    history,
    leaves,
    ledger,
    loader,
    memory,
    pacing,
    resume,
    signals,
    stall,
    step,
    training,
    whole_state,
)
from benchmarks.setting import Setting, cores
from benchmarks.tables import print_machine, print_section

SECTIONS: dict[str, Callable[[Setting], Section]] = {
    "save": whole_state.run_save,
    "restore": whole_state.run_restore,
    "leaves": leaves.run,
    "memory": memory.run,
    "history": history.run,
    "command_line": command_line.run,
    "stall": stall.run,
    "training": training.run,
    "step": step.run,
    "pacing": pacing.run,
    "frequency": frequency.run,
    "growth": growth.run,
    "resume": resume.run,
    "loader": loader.run,
    "data_resume": data_resume.run,
    "ledger": ledger.run,
    "signals": signals.run,
}

_PLAIN_WIDTH = 120  # of a pipe or a log file


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections that are asked for."""
    options = _parse(arguments)
    # Every process that is measured finds holdfast as installed: with compiled modules, which some development
    # environments switch off. Compiling it again and again takes longer than many of the things that are measured.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Peers narrate what they do; the tables are the output here.
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"torch\.")
    torch.set_num_threads(cores())  # torch's own default, which OMP_NUM_THREADS may have changed
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    report = Report(
        version=holdfast.__version__,
        utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        quick=options.quick,
        repeat=options.repeat,
        machine=describe_machine(options.dir),
        sections=[],
    )
    print_machine(console, report)
    for name in options.only:
        section = _run(name, options)
        report.sections.append(section)
        print_section(console, section)
        # After each section: an interrupted run keeps what it has.
        (options.out / "latest.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        (options.out / "latest.md").write_text(to_markdown(report), encoding="utf-8")
    drawn = plot(report, options.out / "latest.png")
    console.print(f"\nwritten to {options.out}: latest.json, latest.md{', latest.png' if drawn else ''}", style="dim")
    return 0


def _run(name: str, options: argparse.Namespace) -> Section:
    begin_s = time.perf_counter()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=options.dir))
    try:
        section = SECTIONS[name](Setting(directory, options.repeat, options.quick))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    section.took_s = round(time.perf_counter() - begin_s, 2)
    return section


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs, measures nothing")
    parser.add_argument(
        "--only", type=_names, default=list(SECTIONS), metavar="NAMES", help=f"of {','.join(SECTIONS)} (all)"
    )
    parser.add_argument("--dir", type=Path, default=Path(), help="on the storage to measure (the current directory)")
    parser.add_argument("--repeat", type=int, default=None, help="repetitions of each contender (5; quick: 1)")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="for latest.json, .md and .png"
    )
    options = parser.parse_args(arguments)
    options.repeat = options.repeat or (1 if options.quick else 5)
    if not options.dir.is_dir():
        parser.error(f"--dir {options.dir} is not a directory")
    return options


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such section: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
