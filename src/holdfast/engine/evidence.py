"""What `holdfast prove` and the program that it watches tell each other: a plan for the one, a trace for the other.

Both are files, so that a program that is killed in the middle of anything has said all it saw before. The trace is one
JSON document a line; its last line may be torn.
"""

from typing import Literal

import msgspec

__all__ = ["PARTED", "PLAN_VARIABLE", "UNGUARDED", "Bystander", "Interruption", "Moments", "Plan", "Point"]

PLAN_VARIABLE = "HOLDFAST_PROVE"
"""Names the file of the plan."""

PARTED = 87
"""The status of a program that ended because it differs from the reference."""

UNGUARDED = "writes before the program made its Checkpointer were not watched: the command sets PYTHONPATH itself"
"""Said by the point "began" of a program in which the guard was not there from the beginning."""

Moments = Literal["before save", "in save", "after save", "in step"]


class Interruption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One signal that the program gets."""

    signal: str
    """As in `signal`: SIGKILL, SIGTERM."""
    step: int
    """At the end of that step, or while that step is saved; "in step": while the one after it is made."""
    when: Moments
    share: float = 0.5
    """How far into the save, or into the step, as they took before."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one start of the program has to do, besides its work."""

    directory: str
    """Runs lie in here, whatever the program calls them."""
    trace: str
    start: int = 1
    """Of how many starts of the same case this is."""
    end_step: int | None = None
    """The program ends after it."""
    save_at: tuple[int, ...] = ()
    """At these steps a checkpoint is made, whatever `every=` says, and made durable before the program goes on."""
    interruption: Interruption | None = None
    reference: str = ""
    """The trace of an undisturbed program. Where this one differs, it writes down its state and ends with the status
    `PARTED`."""
    dump_at: int | None = None
    """The state at the end of that step is written down, and the program ends."""
    dump: str = ""
    """Where a state is written down: a run of its own."""
    ignored: tuple[str, ...] = ()
    """Paths of leaves in which a difference counts for nothing, and metrics ("metric NAME")."""


class Bystander(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that has a state of its own, lives in the program, and is not in the state that is saved."""

    kind: str
    """generator, optimizer, loader, iterator, stateful (has state_dict and load_state_dict), variable; rebound: a name
    that stood for something of the state, and stands for something else now."""
    type: str
    """With its module: numpy.random.Generator."""
    name: str = ""
    """As the program calls it, where that can be found out: `rng`, or `main.rng` for a local variable of main()."""
    where: str = ""
    """The file in which that name is."""
    digest: str = ""
    """Of its state; equal digests, equal states."""
    shown: str = ""
    """Its state, where that is short enough to be shown: "7 batches handed out". Of a rebound one: the path, in the
    state, of what the name stood for."""
    code: str = ""
    """As the program itself writes it, where it is: `rng`, `self.rng`."""


class Point(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was seen at one moment of the program."""

    kind: Literal["began", "restored", "step", "save", "differs", "refused", "struck", "unsaved", "nothing", "ended"]
    """"unsaved": a checkpoint that the plan wants was not made; "nothing": restore() found none."""
    run: str = ""
    """As the program calls it."""
    step: int = 0
    epoch: int | None = None
    start: int = 1
    at_s: float = 0.0
    """Monotonic, since the program began."""
    metrics: dict[str, str] = {}
    """Their bits, as float.hex() writes them; "=" and the digits of a whole number that no float can be."""
    leaves: dict[str, str] = {}
    """Path to the digest of an array ("b3:…") or to a plain value ("=…"): those that are new, or other than at the
    point before of the same start and run."""
    gone: tuple[str, ...] = ()
    """Paths that the point before had."""
    bystanders: tuple[Bystander, ...] = ()
    determinism: dict[str, str] = {}
    versions: dict[str, str] = {}
    """Of Python and of the libraries that decide what the numbers are; where the program began."""
    pid: int = 0
    """The process, where it began and where it got its signal: a shell may start several, one after the other."""
    whole: bool = False
    """The leaves are all that there are, not only those that are other than before."""
    text: str = ""
    """What is to be said: why a write was refused, where the program differs, which signal it is about to get."""
