"""What a proof found, as values: for people, for programs, and to be stored with the run."""

from typing import NamedTuple

from holdfast.core.errors import UsageError

__all__ = [
    "DIFFERS",
    "HARMLESS",
    "IDENTICAL",
    "UNFINISHED",
    "CannotProveError",
    "Cause",
    "Difference",
    "Started",
    "Verdict",
]

IDENTICAL = "identical"
DIFFERS = "differs"
UNFINISHED = "unfinished"
HARMLESS = ("wall-clock", "value-of-this-start")
"""The causes that nothing else depends on: all else is compared."""


class CannotProveError(UsageError):
    """The program gives nothing to prove: it fails by itself, or never calls the checkpointer."""


class Cause(NamedTuple):
    """Why the runs are likely to part."""

    kind: str
    """One of the names in docs/how-to/prove-a-resume.md."""
    what: str
    """In a sentence."""
    evidence: tuple[str, ...] = ()
    advice: str = ""


class Started(NamedTuple):
    """One start of the program."""

    case: str
    """`undisturbed`, `undisturbed again`, `interrupted`."""
    number: int
    why: str
    """What is nasty about the interruption, or nothing."""
    signal: str
    step: int | None
    """Of the interruption."""
    when: str
    from_step: int | None
    """The step that was restored; None where it began anew."""
    to_step: int | None
    """How far it came."""
    status: int | None
    took_s: float
    outcome: str
    """`equal`, `differs`, or what else became of it."""
    was_struck: bool = False
    """Whether the signal was sent: it may have parted, or ended, before."""

    @property
    def struck_words(self) -> str:
        """`KILL in save 4`; nothing where no signal was meant for it."""
        if not self.signal:
            return ""
        name = self.signal.removeprefix("SIG")
        if not self.was_struck:
            return f"before {name} at {self.step}"
        return f"{name} {'in the step after' if self.when == 'in step' else self.when} {self.step}"


class Difference(NamedTuple):
    """One leaf or metric at the point where the runs part."""

    path: str
    before: str
    """In the undisturbed program, as far as it can be shown."""
    after: str
    max_abs: float | None = None
    max_rel: float | None = None
    changed: int | None = None
    elements: int | None = None


class Verdict(NamedTuple):
    """The answer, and what it rests on."""

    answer: str
    command: tuple[str, ...]
    runs: tuple[str, ...]
    first_step: int
    last_step: int
    interruptions: int
    """That were made."""
    wanted: int
    seed: int
    took_s: float
    utc_s: float
    points: int
    """That were compared, each with all its leaves."""
    leaves: int
    unseen: int = 0
    """Of the points: those at which the state could not be had, so that only metrics and generators were compared."""
    starts: tuple[Started, ...] = ()
    step: int | None = None
    """The first at which the runs part."""
    at: str = ""
    """What was looked at there: `restored`, `step` or `save`."""
    undisturbed: bool = False
    """These are two runs without interruptions: what differs is never the same."""
    differences: tuple[Difference, ...] = ()
    more_differences: int = 0
    causes: tuple[Cause, ...] = ()
    remarks: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    """The last lines of a start that failed."""
    leaf: str = ""
    """The one that is meant, where no difference was seen in it."""
    host: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    """Of Python and of the libraries, in the program."""

    @property
    def path(self) -> str:
        """The first leaf that differs."""
        return self.differences[0].path if self.differences else self.leaf

    def document(self) -> dict[str, object]:
        """For programs."""
        return {
            **self._asdict(),
            "path": self.path,
            "versions": dict(self.versions),
            "starts": [start._asdict() for start in self.starts],
            "differences": [difference._asdict() for difference in self.differences],
            "causes": [cause._asdict() for cause in self.causes],
        }
