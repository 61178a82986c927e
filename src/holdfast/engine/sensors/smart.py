"""Drives: what they say of their own health, where `smartctl` is installed and may ask them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.core.clock import Clock, SystemClock
from holdfast.engine.sensors.command import Answer, Command
from holdfast.policy.risk import CALM, SERIOUS, SLIGHT, Lingering, Reading

__all__ = ["SmartSensor"]

_EVERY_S = 300.0
_HOLD_S = 3600.0
_MOST_DRIVES = 8
_CANNOT_ASK = 0b11  # smartctl's exit status: the command line is wrong, or the drive cannot be opened
# Attributes of SATA drives whose raw value counts bad places.
_BAD_SECTORS = {5: "reallocated sectors", 197: "pending sectors", 198: "uncorrectable sectors"}


class SmartSensor:
    """Whether a drive of this machine is failing. One drive is asked at a time."""

    name = "smart"

    def __init__(self, program: str = "smartctl", *, clock: Clock | None = None, every_s: float = _EVERY_S) -> None:
        self._clock = clock or SystemClock()
        self._scan = Command(program, every_s=float("inf"), clock=self._clock)
        self._command = Command(program, every_s=every_s, clock=self._clock)
        self._drives: list[str] | None = None
        self._next = 0
        self._now: dict[str, Reading] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._worse: dict[str, Lingering] = {}

    def missing(self) -> str:
        """Why it cannot be had here; empty where it can."""
        return "" if self._command.path else "smartctl is not installed"

    def read(self) -> Reading:
        now_s = self._clock.monotonic_s()
        if self._drives is None:
            self._find_drives()
        elif self._drives:
            drive = self._drives[self._next]
            answer = self._command.ask(["--json", "--health", "--attributes", "--nocheck=standby", drive])
            if answer is not None:
                self._now[drive] = self._judge(drive, answer, now_s)
                self._next = (self._next + 1) % len(self._drives)
        if not self._now:
            return Reading("no drive has answered" if self._drives != [] else "smartctl knows of no drive")
        worst = max(self._now.values(), key=lambda reading: reading.risk)
        lingering = [trouble.reading(now_s, "") for trouble in self._worse.values()]
        worse = max([worst, *lingering], key=lambda reading: reading.risk)
        return Reading("; ".join(reading.text for reading in self._now.values()), worse.risk, worse.concluded)

    def close(self) -> None:
        """End what is still running."""
        self._scan.stop()
        self._command.stop()

    def _find_drives(self) -> None:
        answer = self._scan.ask(["--json", "--scan"])
        if answer is not None:
            listed = _parse(answer.output).get("devices")
            entries = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
            names = [entry.get("name") for entry in entries]
            self._drives = [name for name in names if isinstance(name, str) and name.startswith("/")][:_MOST_DRIVES]
            self._command.every_s /= max(1, len(self._drives))

    def _judge(self, drive: str, answer: Answer, now_s: float) -> Reading:
        found = _parse(answer.output)
        if answer.status & _CANNOT_ASK or not found:
            return Reading(f"{drive}: cannot be asked")
        counts = dict(_bad_places(found))
        before = self._counts.get(drive, counts)
        self._counts[drive] = counts
        text = f"{drive}: " + (
            ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "no bad places"
        )
        grown = next((what for what, count in counts.items() if count > before.get(what, count)), "")
        if grown:
            trouble = self._worse.setdefault(drive, Lingering(_HOLD_S))
            trouble.happened(now_s, SERIOUS, f"the {grown} of {drive} become more")
        status = found.get("smart_status")
        if isinstance(status, Mapping) and status.get("passed") is False:
            return Reading(f"{text}, health check failed", SERIOUS, f"{drive} says that it is failing")
        warning = _nvme_warning(found)
        if warning:
            return Reading(f"{text}, {warning}", SERIOUS, f"{drive} warns: {warning}")
        bad = any(counts.values())
        return Reading(text, SLIGHT if bad else CALM, f"{drive} has bad places" if bad else "")


def _parse(output: str) -> Mapping[str, Any]:
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _bad_places(found: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """What the drive counts, whichever kind it is."""
    attributes = found.get("ata_smart_attributes")
    table = attributes.get("table") if isinstance(attributes, Mapping) else None
    for row in table if isinstance(table, list) else ():
        if isinstance(row, Mapping) and row.get("id") in _BAD_SECTORS:
            raw = row.get("raw")
            yield _BAD_SECTORS[row["id"]], _count(raw.get("value") if isinstance(raw, Mapping) else None)
    log = found.get("nvme_smart_health_information_log")
    if isinstance(log, Mapping):
        yield "media errors", _count(log.get("media_errors"))
    if "scsi_grown_defect_list" in found:
        yield "grown defects", _count(found["scsi_grown_defect_list"])


def _nvme_warning(found: Mapping[str, Any]) -> str:
    log = found.get("nvme_smart_health_information_log")
    if not isinstance(log, Mapping):
        return ""
    if _count(log.get("critical_warning")):
        return f"critical warning {_count(log['critical_warning'])}"
    spare, least = log.get("available_spare"), log.get("available_spare_threshold")
    if isinstance(spare, int) and isinstance(least, int) and spare < least:
        return f"{spare} % of the spare blocks left"
    return ""


def _count(value: object) -> int:
    # Some drives pack other things into the upper bytes of a raw value.
    return value & 0xFFFFFFFF if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
