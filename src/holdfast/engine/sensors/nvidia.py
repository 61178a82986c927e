"""NVIDIA: memory errors that the cards count, and Xid messages of their driver in the kernel's log."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from holdfast.core.clock import Clock, SystemClock
from holdfast.engine.sensors.command import Answer, Command
from holdfast.engine.sensors.sensor import whole
from holdfast.policy.risk import IMMINENT, SERIOUS, SLIGHT, Lingering, Reading

__all__ = ["NvidiaSensor"]

_EVERY_S = 60.0
_HOLD_S = 3600.0
_HOT_DEGREES = 90
_QUERY = "index,temperature.gpu,ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total"
_ASK = [f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]

_XID = re.compile(rb"NVRM: Xid \(([^)]*)\): (\d+)")
# By NVIDIA's list. Others (13, 31, 43, 45 …) are mostly faults of the program, and say nothing of the card.
_DEADLY_XIDS = frozenset({48, 62, 64, 79, 95, 119, 120})
_BAD_XIDS = frozenset({61, 63, 74, 92, 94, 140})
_MOST_RECORDS = 1000
_RECORD_BYTES = 8192


class _Card(NamedTuple):
    number: str
    degrees: int | None
    corrected: int | None
    uncorrected: int | None


class NvidiaSensor:
    """Whether a card, or its memory, fails."""

    name = "nvidia"

    def __init__(
        self,
        program: str = "nvidia-smi",
        kernel_log: Path = Path("/dev/kmsg"),
        *,
        clock: Clock | None = None,
        every_s: float = _EVERY_S,
    ) -> None:
        self._clock = clock or SystemClock()
        self._command = Command(program, every_s=every_s, clock=self._clock)
        self._log = -1
        self._kernel_log = kernel_log
        self._cards: list[_Card] = []
        self._xids = 0
        self._trouble = Lingering(_HOLD_S)

    @property
    def is_asking(self) -> bool:
        """Whether the program has been started, and has not answered yet."""
        return self._command.is_running

    def missing(self) -> str:
        """Why it cannot be had here; empty where it can."""
        return "" if self._command.path else "nvidia-smi is not installed"

    def read(self) -> Reading:
        now_s = self._clock.monotonic_s()
        answer = self._command.ask(_ASK)
        if answer is not None:
            self._judge(answer, now_s)
        self._read_log(now_s)
        text = ", ".join(f"card {card.number}: {_told(card)}" for card in self._cards) or "no card has answered"
        return self._trouble.reading(now_s, f"{text}; {self._xids} Xid messages" if self._xids else text)

    def close(self) -> None:
        """End what is still running."""
        self._command.stop()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def _judge(self, answer: Answer, now_s: float) -> None:
        cards = [] if answer.status else _parse(answer.output)
        gone = {card.number for card in self._cards} - {card.number for card in cards}
        if gone:
            self._trouble.happened(now_s, IMMINENT, "a card does not answer any more")
        before = {card.number: card for card in self._cards}
        for card in cards:
            old = before.get(card.number, card)
            if _grew(old.uncorrected, card.uncorrected):
                self._trouble.happened(
                    now_s, IMMINENT, f"memory errors of card {card.number} that could not be corrected"
                )
            elif _grew(old.corrected, card.corrected):
                self._trouble.happened(now_s, SLIGHT, f"card {card.number} corrected errors of its memory")
            elif card.degrees is not None and card.degrees >= _HOT_DEGREES:
                self._trouble.happened(now_s, SLIGHT, f"card {card.number} is hot")
        self._cards = cards or self._cards

    def _read_log(self, now_s: float) -> None:
        """What was added since the last look. Who may not read the log does without."""
        try:
            if self._log < 0:
                self._log = os.open(self._kernel_log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._log, 0, os.SEEK_END)
                return
            for _ in range(_MOST_RECORDS):
                try:
                    record = os.read(self._log, _RECORD_BYTES)  # the kernel gives one message at a time
                except BrokenPipeError:
                    continue  # messages were overwritten before they were read
                if not record:
                    return
                for card, number in _XID.findall(record):
                    self._note_xid(card.decode(errors="replace"), int(number), now_s)
        except (BlockingIOError, OSError):
            return

    def _note_xid(self, card: str, number: int, now_s: float) -> None:
        self._xids += 1
        if number in _DEADLY_XIDS:
            self._trouble.happened(now_s, IMMINENT, f"Xid {number} of {card}: the card is failing")
        elif number in _BAD_XIDS:
            self._trouble.happened(now_s, SERIOUS, f"Xid {number} of {card}: the card has errors")


def _parse(output: str) -> list[_Card]:
    # None stands for the "[N/A]" of cards that do not count.
    rows = [[field.strip() for field in line.split(",")] for line in output.splitlines()]
    return [_Card(row[0], *(whole(field) for field in row[1:])) for row in rows if len(row) == len(_Card._fields)]


def _grew(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before


def _told(card: _Card) -> str:
    parts = [f"{card.degrees} °C" if card.degrees is not None else ""]
    if card.corrected is not None or card.uncorrected is not None:
        parts.append(f"{card.corrected or 0} corrected and {card.uncorrected or 0} uncorrected memory errors")
    return ", ".join(part for part in parts if part) or "it counts no errors"
