"""`python -m benchmarks.frequency_slices FILE`: the scenarios of `frequency`, some at a time, and their figures in all.

One process, for so many seconds; called again, it goes on where it was.
"""

import argparse
import time
from pathlib import Path

import msgspec

from benchmarks.sections.frequency import SCENARIOS, UNSEEN, summed_up
from holdfast.testing.scenarios import DRAWS, MACHINE
from holdfast.testing.trials import Trial, trial


def main() -> None:
    """Add to the file, then print what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=170.0, help="0 only prints")
    parser.add_argument("--first", type=int, default=UNSEEN)
    parser.add_argument("--count", type=int, default=SCENARIOS)
    parser.add_argument("--draw", choices=DRAWS, default=MACHINE)
    arguments = parser.parse_args()
    trials = _read(arguments.file)
    ends_s = time.monotonic() + arguments.seconds
    with arguments.file.open("ab") as file:
        for seed in range(arguments.first + len(trials), arguments.first + arguments.count):
            if time.monotonic() >= ends_s:
                break
            found = trial(seed, draw=arguments.draw)
            short = {name: result._replace(intervals=()) for name, result in found.results.items()}
            trials.append(found._replace(results=short))
            file.write(msgspec.json.encode(trials[-1]) + b"\n")
    section = summed_up(trials)
    for check in section.checks:
        print(f"{check.what}: {check.found:.4g} {check.unit} (asked: {check.target:g})")
    print(*section.notes, sep="\n")


def _read(path: Path) -> list[Trial]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Trial) for line in lines]


if __name__ == "__main__":
    main()
