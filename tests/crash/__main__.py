"""`python -m tests.crash`: the whole rig. The last line is one JSON object, the exit status says if all is well.

Most parts use two processors. Those that leave one of them idle most of the time run in a process of their own beside
the others.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.crash.beside import Beside
from tests.crash.damage import flip_every_bit, replace_every_file
from tests.crash.explore import explore
from tests.crash.fuzz import fuzz
from tests.crash.interference import interfere
from tests.crash.memory_damage import flip_bits_in_memory
from tests.crash.mutants import catch_all
from tests.crash.native_damage import damage_natively, damage_natively_in_memory
from tests.crash.outcome import Outcome
from tests.crash.power import cut_many
from tests.crash.slices import WHOLE, Slice
from tests.crash.sweep import sweep

__all__ = ["main"]

_PARTS = ("states", "power_cuts", "calls", "bits", "fuzzed", "mutants")
_MOSTLY_WAITING = ("power_cuts", "mutants")


class Amounts(NamedTuple):
    """How much of what; calls, and bits on the disk, are always done completely."""

    states: int
    power_cuts: int
    fuzzed: int
    bits_in_memory: int
    bits_of_large_chunks: int


_AMOUNTS = {
    "quick": Amounts(1_500, 12, 600, 100, 40),
    "crash": Amounts(100_000, 240, 20_000, 1_000, 400),
    "full": Amounts(1_000_000, 2_000, 400_000, 20_000, 4_000),
}


def main(arguments: list[str]) -> int:
    """Run the parts, print what they found, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--full", action="store_const", dest="amount", const="full", help="ten times as much")
    amount.add_argument("--quick", action="store_const", dest="amount", const="quick", help="a taste, in a minute")
    parser.set_defaults(amount="crash")
    parser.add_argument("--seed", type=int, default=20261115)
    parser.add_argument("--only", choices=_PARTS, action="append", help="only this part (can be repeated)")
    parser.add_argument(
        "--slice", type=Slice.parse, default=WHOLE, metavar="I/N", help="only the i-th of n slices, from 1/n to n/n"
    )
    given = parser.parse_args(arguments)
    wanted = given.only or _PARTS
    beside = [name for name in wanted if name in _MOSTLY_WAITING]
    here = [name for name in wanted if name not in beside]
    if not here or not beside:
        summary = _run(wanted, given.amount, given.seed, given.slice)
    else:
        amount_options = [] if given.amount == "crash" else [f"--{given.amount}"]
        options = [*amount_options, f"--seed={given.seed}", f"--slice={given.slice}"]
        with Beside([*options, *(f"--only={name}" for name in beside)]) as others:
            summary = _run(here, given.amount, given.seed, given.slice)
            for name, count in others.wait().items():
                summary[name] += count
    print(json.dumps(summary), flush=True)
    return int(summary["violations"] > 0 or summary["mutants"] != summary["mutants_caught"])


def _run(only: Sequence[str], amount: str, seed: int, part: Slice) -> dict[str, int]:
    """What the parts found, which is printed as they end."""
    amounts, is_quick = _AMOUNTS[amount], amount == "quick"
    parts: dict[str, Callable[[], Outcome]] = {
        "states": lambda: explore(amounts.states, seed=seed, part=part),
        "power_cuts": lambda: cut_many(amounts.power_cuts, seed=seed, part=part),
        "calls": lambda: _calls(every=10 if is_quick else 1, part=part),
        "bits": lambda: _bits(at_most=2_000 if is_quick else None, amounts=amounts, part=part),
        "fuzzed": lambda: fuzz(amounts.fuzzed, seed=seed, part=part),
    }
    summary: dict[str, int] = dict.fromkeys(("states", "power_cuts", "calls", "bits", "fuzzed", "violations"), 0)
    for name, run in parts.items():
        if name not in only:
            continue
        outcome = _timed(name, run)
        summary[name] = outcome.counted
        summary["violations"] += len(outcome.violations)
    summary["mutants"] = summary["mutants_caught"] = 0
    if "mutants" in only:
        begin_s = time.monotonic()
        summary["mutants"], summary["mutants_caught"], verdicts = catch_all(part=part)
        print(
            f"mutants ({time.monotonic() - begin_s:.0f} s): {summary['mutants_caught']} of {summary['mutants']} caught"
        )
        for verdict in verdicts:
            print(f"  {verdict[:200]}")
    return summary


def _calls(*, every: int, part: Slice) -> Outcome:
    failing, interrupted = sweep(every=every, part=part), interfere(every=every, part=part)
    return Outcome(failing.counted + interrupted.counted, failing.violations + interrupted.violations)


def _bits(*, at_most: int | None, amounts: Amounts, part: Slice) -> Outcome:
    done = (
        flip_every_bit(at_most=at_most, part=part),
        replace_every_file(part=part),
        flip_bits_in_memory(at_most=amounts.bits_in_memory, part=part),
        damage_natively(at_most=amounts.bits_of_large_chunks, part=part),
        damage_natively_in_memory(at_most=amounts.bits_of_large_chunks, part=part),
    )
    return Outcome(
        sum(one.counted for one in done),
        [problem for one in done for problem in one.violations],
        remark=f"of {done[0].counted:,} on the disk {done[0].remark}",
    )


def _timed(name: str, run: Callable[[], Outcome]) -> Outcome:
    begin_s = time.monotonic()
    outcome = run()
    print(f"{name} ({time.monotonic() - begin_s:.0f} s): {outcome}", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
