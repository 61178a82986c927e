"""Where a stream comes from: something that can be begun anew for every epoch, and may be able to say where it is."""

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from holdfast.core.errors import UsageError
from holdfast.data.forward import warn_of_first_state

__all__ = ["CalledFeed", "Feed", "IteratedFeed", "Start", "has_state", "load_or_start", "loses_samples", "tell_epoch"]


class Feed(Protocol):
    """Gives items, one after the other."""

    in_process: bool
    """Whether the items are made by whoever asks for them, and not by workers."""
    batches: int | None
    """How many items an epoch has, where that is known."""
    drop_last: bool | None
    """Whether it makes batches itself, and leaves a last one out that is short; None where it makes none."""
    carries_over: bool
    """Whether its state at the end of an epoch says what the next one is like."""

    @property
    def shape(self) -> dict[str, object]:
        """What must be the same after a restart, or its items would be others."""

    def begin(self, epoch: int, state: Any, *, continues: bool) -> Iterator[Any]:
        """The items of the epoch: all of them, or those after that state.

        `continues` says that it has come to the end of an epoch by itself, and nobody has moved it since.
        """

    def state(self) -> Any:
        """Where it is, after the item that was given last; None where it cannot say."""

    @property
    def instead(self) -> str:
        """What the user could do so that it can say."""


def has_state(thing: object) -> bool:
    """Whether it can say where it is, and go on from there."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def tell_epoch(thing: Any, epoch: int) -> None:
    """Say which epoch begins, if it wants to know."""
    if callable(set_epoch := getattr(thing, "set_epoch", None)):
        set_epoch(epoch)


class Start:
    """Where something with a state was before it was iterated over for the first time."""

    def __init__(self) -> None:
        self._kept: list[Any] | None = None
        self._was_loaded = False
        self._warned = False

    def note_load(self) -> None:
        """It was told where to be, which some remember for every epoch after it."""
        self._was_loaded = True

    def go(self, thing: Any, *, continues: bool) -> None:
        """An epoch begins with nothing else being said of where: it is there again, unless it came there by itself."""
        if self._kept is None:
            self.keep(thing)
        elif self._kept and not (continues and not self._was_loaded):
            if self._was_loaded and not self._warned and not callable(getattr(thing, "set_epoch", None)):
                self._warned = self._warn_if_elsewhere(thing, self._kept[0])
            thing.load_state_dict(copy.deepcopy(self._kept[0]))

    def _warn_if_elsewhere(self, thing: Any, kept: Any) -> bool:
        try:
            is_elsewhere = bool(thing.state_dict() != kept)
        except Exception:  # noqa: BLE001 - states of arrays, or none at all: nothing is known, and the data goes on
            return False
        if is_elsewhere:
            warn_of_first_state(type(thing).__name__)
        return is_elsewhere

    def keep(self, thing: Any) -> None:
        """Before anything moves it."""
        if self._kept is None:
            try:
                self._kept = [copy.deepcopy(thing.state_dict())]
            except Exception:  # noqa: BLE001 - some have no state before they were iterated over, and need none then
                self._kept = []


def loses_samples(thing: object) -> bool:
    """Whether its state leaves something out: an iterable of Hugging Face with a buffer in which it shuffles."""
    parts = [getattr(thing, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            return True
        parts += [inner for inner in (getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())) if inner]
    return False


class IteratedFeed:
    """Over something that can be iterated again and again."""

    in_process = True

    def __init__(self, thing: Any, *, carries_over: bool = False) -> None:
        # Not by calling iter(): a loader would start its workers, and draw.
        if hasattr(thing, "__next__") and not has_state(thing):
            raise UsageError(
                f"{type(thing).__name__} is an iterator: it can be used up once, and not begun anew",
                hint="give a function that makes one, e.g. resumable(lambda epoch: read(files, epoch))",
            )
        self.batches: int | None = None
        self.drop_last: bool | None = None
        self.carries_over = carries_over
        self._thing = thing
        self._current: Any = None
        self._exact = has_state(thing) and not loses_samples(thing)
        self._start = Start()

    @property
    def shape(self) -> dict[str, object]:
        return {}

    def begin(self, epoch: int, state: Any, *, continues: bool) -> Iterator[Any]:
        tell_epoch(self._thing, epoch)
        if has_state(self._thing):
            load_or_start(self._thing, state, None if self.carries_over else self._start, continues=continues)
            if state is None:
                tell_epoch(self._thing, epoch)  # the state at first may have an epoch of its own
        self._current = iter(self._thing)
        if state is not None and not has_state(self._thing):
            self._current.load_state_dict(state)
        return self._current  # type: ignore[no-any-return]

    def state(self) -> Any:
        if self._exact:
            return self._thing.state_dict()
        return self._current.state_dict() if has_state(self._current) and not has_state(self._thing) else None

    @property
    def instead(self) -> str:
        if loses_samples(self._thing):
            return "its state would lose the samples in the shuffle buffer; without shuffle() it is used, and quick"
        return "with state_dict() and load_state_dict() it would be there at once"


def load_or_start(thing: Any, state: Any, start: Start | None, *, continues: bool) -> None:
    """It is where that state says; without one, where it was at first."""
    if state is None:
        if start is not None:
            start.go(thing, continues=continues)
        return
    if start is not None:
        start.keep(thing)
        start.note_load()
    thing.load_state_dict(state)


class CalledFeed:
    """Over a function that makes an iterator for an epoch."""

    in_process = True
    batches: int | None = None
    drop_last: bool | None = None
    carries_over = False

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._takes_epoch = _takes_epoch(make)
        self._current: Any = None

    @property
    def shape(self) -> dict[str, object]:
        return {}

    def begin(self, epoch: int, state: Any, *, continues: bool) -> Iterator[Any]:  # noqa: ARG002 - a new one each time
        made = self._make(epoch) if self._takes_epoch else self._make()
        try:
            current = iter(made)
        except TypeError:
            raise UsageError(
                f"the function made {type(made).__name__} for epoch {epoch}, expected something to iterate over"
            ) from None
        if current is self._current:
            raise UsageError(
                "the function gave the same iterator as before, which is used up",
                hint="it is called for every epoch, and whenever one is begun anew; make a new one each time",
            )
        self._current = current
        if state is not None:
            if not has_state(current):
                raise UsageError("the function makes iterators without load_state_dict(), and those before had one")
            current.load_state_dict(state)
        return current  # type: ignore[no-any-return]

    def state(self) -> Any:
        return self._current.state_dict() if has_state(self._current) else None

    @property
    def instead(self) -> str:
        return (
            "iterators with state_dict() and load_state_dict(), or data that can be asked for by number, "
            "would be there at once"
        )


def _takes_epoch(make: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one for one in positional if one.default is one.empty]
    if len(needed) > 1:
        raise UsageError(
            f"the function needs {', '.join(one.name for one in needed)}, expected nothing or the epoch",
            hint="bind the rest with functools.partial",
        )
    return bool(needed) or bool(positional and positional[0].name == "epoch")
