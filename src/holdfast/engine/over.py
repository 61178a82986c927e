"""The loop over the data of a training: from where it is, epoch by epoch, until all are complete."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sized
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from holdfast.core.errors import UsageError
from holdfast.data.generators import Generator, generators
from holdfast.data.protocol import Data, Handed

__all__ = ["Loop"]

_log = logging.getLogger("holdfast")


class _Running(NamedTuple):
    name: str
    data: Data


class Open(NamedTuple):
    """A batch that was handed out, and belongs to no step yet."""

    name: str
    """Of the data, in the state."""
    data: Data
    handed: Handed
    facts: Mapping[str, Any]


class Loop:
    """One per Checkpointer: which data it goes through, and how many epochs are complete."""

    def __init__(self, state: Mapping[str, object], *, random: bool = True) -> None:
        """`random` says whether the program's random state belongs to its checkpoints."""
        self._state = state
        self._random = _Random() if random else None
        self._running: _Running | None = None
        self.open: list[Open] = []
        """What was handed out since the last step, or save, of the program: a checkpoint that comes at another moment
        must not count it as consumed."""
        self.is_complete = False
        """Whether all epochs that were asked for are complete."""
        self.is_stopped = False
        """Whether the loop is to hand out no more."""
        self._back: int | None = None

    @property
    def completed(self) -> int | None:
        """How many epochs are complete, with the batch that was handed out last; None where there was no loop."""
        if self._running is None:
            return None
        return self._running.data.completed if self._back is None else self._back

    def over(self, data: object, epochs: int) -> Iterator[Any]:
        """The batches that are left. UsageError at once where they could not be resumed."""
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
            raise UsageError(f"epochs is {epochs!r}, expected a whole number from 0 on", hint="over(data, epochs=10)")
        if not isinstance(data, Data):
            raise UsageError(
                f"over() was given a {type(data).__name__}, which does not say where it is in an epoch",
                hint="data = holdfast.data.resumable(data, seed=7), and put that into the state",
            )
        name = _name_of(data, self._state)
        if name is None:
            raise UsageError(
                "the data is not in the state: its position would be lost, and its batches repeated after a restart",
                hint='Checkpointer(run, {"model": model, …, "data": data})',
            )
        if isinstance(data, Sized) and len(data) == 0:
            raise _no_batch(name, data)
        return self._batches(_Running(name, data), epochs)

    def step_of(self, steps: int) -> int:
        """The step that a save belongs to whose program leaves the counting to `step()`. UsageError where none does."""
        if self.open:
            raise UsageError(
                f"save() in the middle of a step: it has its batch, and step() has counted {steps} before it",
                hint="call save() after step(), or give the number: save(step=...)",
            )
        if not steps and self._running is None:
            raise UsageError(
                "save() was not told which step this is, and nobody has counted: step() was not called",
                hint="give the number, save(step=...), or call step() at the end of each step",
            )
        return steps

    @contextmanager
    def put_back(self) -> Iterator[bool]:
        """While it is open, position and random state are those of the last step.

        Gives whether they are: streams cannot go back. What accelerators have drawn stays drawn.
        """
        first: dict[int, Open] = {}
        for batch in self.open:
            first.setdefault(id(batch.data), batch)
        ways = [(getattr(batch.data, "as_before", None), batch.handed) for batch in first.values()]
        with ExitStack() as stack:
            for way, handed in ways:
                if way is not None:
                    stack.enter_context(way(handed))
            is_back = all(way is not None for way, _ in ways)
            if is_back and self.open and self._random is not None:
                stack.enter_context(self._random.as_before())
            self._back = self.open[0].handed.epoch if is_back and self.open else None
            try:
                yield is_back
            finally:
                self._back = None

    def _batches(self, running: _Running, epochs: int) -> Iterator[Any]:
        name, data = running
        self._running, self.is_complete, self.is_stopped = running, False, False
        is_first = True
        while data.epoch < epochs:
            handed, facts = 0, data.facts
            self._note()
            for batch in data:
                handed += 1
                if (last := data.last) is not None:
                    self.open.append(Open(name, data, last, facts))
                held = [batch]
                del batch  # or it would stay in memory while the next one is made
                yield held.pop()
                if self.is_stopped:
                    return
                self._note()
            # The first may have been left at its very end.
            if not handed and not is_first:
                raise _no_batch(name, data)
            is_first = False
        self.is_complete = True
        if self.open:
            count = len(self.open)
            _log.warning("%d batches of %r were used since the last step(), and are in no checkpoint", count, name)

    def _note(self) -> None:
        # Before the next batch is made: one that comes again is also made again, and may draw.
        if self._random is not None and not self.open:
            self._random.note()


class _Random:
    """Where the generators of this process were between two steps."""

    def __init__(self) -> None:
        self._generators: list[Generator] = []
        self._knows_torch: bool | None = None

    def note(self) -> None:
        """For `as_before`."""
        has_torch = "torch" in sys.modules
        if has_torch is not self._knows_torch:
            self._generators, self._knows_torch = generators(), has_torch
        for generator in self._generators:
            generator.note()

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """While it is open, they are there again."""
        now = [generator.look() for generator in self._generators]
        try:
            for generator in self._generators:
                with _unless_another():
                    generator.put_back()
            yield
        finally:
            for generator, state in zip(self._generators, now, strict=True):
                with _unless_another():
                    generator.restore(state)


@contextmanager
def _unless_another() -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # the program has chosen another bit generator meanwhile, which stays its own
        _log.warning("random numbers since the last step cannot be taken back: %s", error)


def _name_of(data: object, value: object, name: str = "", depth: int = 0) -> str | None:
    """Where in the state it is."""
    if value is data:
        return name
    inner: list[tuple[str, object]] = []
    if isinstance(value, Mapping) and depth < 4:  # as deep as people nest what they save
        inner = [(f"{name}.{key}" if name else str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple) and depth < 4:
        inner = [(f"{name}[{index}]", part) for index, part in enumerate(value)]
    found = (_name_of(data, part, place, depth + 1) for place, part in inner)
    return next((place for place in found if place is not None), None)


def _no_batch(name: str, data: Data) -> UsageError:
    facts = ", ".join(f"{fact}={value}" for fact, value in data.facts.items() if value is not None)
    return UsageError(
        f"{name!r} has not a single batch in an epoch ({facts})",
        hint="is it empty, or shorter than a batch with drop_last?",
    )
