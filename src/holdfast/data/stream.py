"""Data without numbers: iterators, streams, datasets that can only be iterated. The position counts what was given."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.core.errors import StateError
from holdfast.data.agreement import agree
from holdfast.data.feeds import Feed
from holdfast.data.forward import bar, warn_of_draws, warn_of_forwarding
from holdfast.data.numbers import shown, whole_batch_size, whole_seed
from holdfast.data.per_sample import PerItem
from holdfast.data.protocol import Handed, Turns

__all__ = ["SizedStream", "Stream", "stream_of"]

_FORMAT = 1
_KNOWN = {"stream", "epoch", "consumed", "ended", "seed", "rank", "world", "shape", "own"}


class Stream:
    """Iterating gives what is left of the epoch, and ends with it; the next iteration is the next epoch.

    Where the feed says where it is, that is saved and resumed at once; else what was consumed is counted, and thrown
    away after a restart. Whether a batch is the last one is known when the next is asked for: `ends_epoch`,
    `completed` and `state_dict` look one ahead, which does not move the position.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        seed: int | None,
        rank: int,
        world: int,
        batch_size: int | None = None,
        drop_last: bool = False,
        what: str = "the data",
    ) -> None:
        """With `batch_size`, so many items are handed out together, as a list; positions count items."""
        self._feed = feed
        self._seed = seed = None if seed is None else whole_seed(seed)
        self._rank = rank
        self._world = world
        self._size = None if batch_size is None else whole_batch_size(batch_size)
        self._drop_last = drop_last
        self._what = what
        self._per_item = PerItem(seed)
        self._warned_of_draws = False
        self._turns = Turns(what)
        self._agreed = False
        self._epoch = 0
        self._consumed = 0
        self._last: Handed | None = None
        self._items: Iterator[Any] | None = None
        # The feed's state at the position, where it was asked for; and whether the feed has to be told.
        self._own: Any = None
        self._feed_is_elsewhere = False
        # What was taken from the feed and not handed out yet.
        self._ahead: list[Any] | None = None
        self._ended = False

    @property
    def epoch(self) -> int:
        """The one that is under way, or comes next."""
        return self._epoch

    @property
    def completed(self) -> int:
        """How many whole epochs were consumed."""
        return self._epoch + (self._consumed > 0 and self._is_at_end())

    @property
    def ends_epoch(self) -> bool:
        """Whether the batch that was handed out last is the last of its epoch."""
        return self.completed > (self._epoch if self._last is None else self._last.epoch)

    @property
    def last(self) -> Handed | None:
        """The batch that was handed out last."""
        return self._last

    @property
    def facts(self) -> dict[str, object]:
        """What is known of it."""
        return {
            "seed": self._seed,
            "length": None,
            "shuffle": None,
            "rank": self._rank,
            "world": self._world,
            "batch_size": self._size or self._feed.shape.get("batch_size"),
            "drop_last": self._drop_last if self._size is not None else self._feed.drop_last,
            "pad": None,
        }

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch."""
        turn = self._turns.begin()
        if not self._agreed:
            agree({**self.facts, "position": [self._epoch, self._consumed]}, self._what)
            self._agreed = True
        while not self._is_over():
            taken, self._ahead = self._ahead or [], None
            begin = self._consumed
            self._consumed += len(taken)
            self._last = Handed(self._epoch, begin, self._consumed, None)
            # Nothing here may keep the batch: it would be in memory beside the next one.
            held = taken if self._size is None else [taken]
            del taken
            yield held.pop()
            self._turns.check(turn)
        self._move(self._epoch + 1, 0, self._own if self._feed.carries_over else None)

    def _is_at_end(self) -> bool:
        if self._items is None or self._ended or self._ahead is not None:
            # Before the first batch, and after a load, only what was saved is known: looking would mean to begin.
            return self._ended
        self._own = own = copy.deepcopy(self._feed.state())
        try:
            return self._is_over(ahead=True)
        except Exception:  # noqa: BLE001 - raised again where the next batch is asked for, and not where one saves
            self._own, self._feed_is_elsewhere = own, True
            return False

    def _is_over(self, *, ahead: bool = False) -> bool:
        """Whether nothing is left of the epoch; else there is something in `_ahead`."""
        if self._ahead is None and not self._ended:
            if self._items is None:
                self._items = self._begun()
            self._ahead = self._take(self._size or 1, apart=ahead)
            if not self._ahead or (self._drop_last and self._size and len(self._ahead) < self._size):
                self._ahead, self._ended = None, True
                if self._feed.carries_over:
                    self._own = copy.deepcopy(self._feed.state())
        return self._ended

    def _begun(self) -> Iterator[Any]:
        """The items from the position on."""
        own = self._own if self._feed_is_elsewhere else None
        if not self._consumed or own is not None:
            return self._begin_feed(own)
        warn_of_forwarding(self._what, self._consumed, self._epoch, self._feed.instead)
        self._items = self._begin_feed(None)
        with bar(f"{self._what}: going to where the training was", self._consumed) as show:
            done = 0
            while done < self._consumed:
                step = len(self._take(min(self._size or 1, self._consumed - done), done, apart=True))
                if not step:
                    self._items, self._feed_is_elsewhere = None, True
                    raise StateError(
                        f"{self._what}: epoch {self._epoch} has {done} now, and was left after {self._consumed}",
                        hint="restore the data as it was",
                    )
                done += step
                show(done)
        return self._items

    def _begin_feed(self, own: Any) -> Iterator[Any]:
        per_item = self._per_item
        seen = per_item.look()
        try:
            per_item.begin_epoch(self._epoch, seen)
            begun = per_item.look()
            items = self._feed.begin(self._epoch, own, continues=not self._feed_is_elsewhere)
            if not self._feed.carries_over and per_item.look() != begun:  # what a loader draws is in its state
                self._warn_of_draws()
        finally:
            per_item.restore(seen)
        self._feed_is_elsewhere = False
        return items

    def _warn_of_draws(self) -> None:
        if not self._per_item.seeds and not self._warned_of_draws:
            self._warned_of_draws = True
            warn_of_draws(self._what)

    def _take(self, most: int, begin: int | None = None, *, apart: bool = False) -> list[Any]:
        """The next items; fewer at the end.

        Without a seed they may draw from the training's generators, as in any program, but not `apart` from its steps:
        what is taken ahead or again would leave them elsewhere than in a training that was not saved or interrupted.
        """
        if self._items is None:
            raise AssertionError("not begun")
        begin = self._consumed if begin is None else begin
        taken: list[Any] = []
        per_item, seeds = self._per_item, self._per_item.seeds and self._feed.in_process
        # Looking takes as long as a small item: so without a seed, the first of an epoch shows whether it draws.
        seen = per_item.look() if seeds or apart or not begin else None
        try:
            while len(taken) < most:
                if seeds:
                    per_item.begin(self._epoch, begin + len(taken))
                taken.append(next(self._items))
        except StopIteration:
            pass
        except BaseException:
            # A generator that has raised is at its end, which must not be taken for that of the epoch. And where the
            # feed is now, nobody knows: whoever goes on must count.
            self._items = self._own = None
            self._feed_is_elsewhere = True
            raise
        finally:
            if seen is not None and (seeds or per_item.look() != seen):
                self._warn_of_draws()
                if per_item.seeds or apart:
                    per_item.restore(seen)
        return taken

    def _move(self, epoch: int, consumed: int, own: Any, *, ended: bool = False) -> None:
        self._epoch, self._consumed, self._own, self._ended = epoch, consumed, own, ended
        self._items = self._ahead = None

    def state_dict(self) -> dict[str, object]:
        """Where the training is; what was taken ahead does not count."""
        # Whether the epoch is over belongs to it: some feeds are at their begin again when they have come to their end.
        ended = self._consumed > 0 and self._is_at_end()
        return {
            "stream": _FORMAT,
            "epoch": self._epoch,
            "consumed": self._consumed,
            "ended": ended,
            "seed": self._seed,
            "rank": self._rank,
            "world": self._world,
            "shape": self._feed.shape,
            "own": self._own,
        }

    def check_state_dict(self, state: Mapping[str, object]) -> None:
        """StateError where `load_state_dict` would refuse it; nothing is moved."""
        # The stream's own state may be left out, if it has arrays that were not read yet.
        self._fitting({"own": ..., **state} if isinstance(state, Mapping) else state)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from there. StateError where that is impossible without repeating or leaving out."""
        epoch, consumed, ended = self._fitting(state)
        self._move(epoch, consumed, state["own"], ended=ended)
        self._feed_is_elsewhere = True
        self._last = None
        self._turns.cancel()

    def _fitting(self, state: Mapping[str, object]) -> tuple[int, int, bool]:
        """The epoch, how much of it was consumed, and whether it had ended."""
        if not isinstance(state, Mapping) or set(state) != _KNOWN:
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise StateError(
                f"{self._what}: {found} is not the position of a stream", hint="it was saved by something else"
            )
        if state["stream"] != _FORMAT:
            raise StateError(
                f"{self._what}: its state is of version {state['stream']!r}, this holdfast knows {_FORMAT}",
                hint="update holdfast",
            )
        epoch, consumed, ended = state["epoch"], state["consumed"], state["ended"]
        if type(epoch) is not int or type(consumed) is not int or epoch < 0 or consumed < 0 or type(ended) is not bool:
            raise StateError(f"{self._what}: its position is {consumed!r} of epoch {epoch!r}")
        then = {"seed": state["seed"], "world": state["world"], "shape": dict(_mapping(state["shape"]))}
        now = {"seed": self._seed, "world": self._world, "shape": self._feed.shape}
        if state["own"] is not None:  # what one rank's stream says is of no use to another's
            then["rank"], now["rank"] = state["rank"], self._rank
        if then != now and (consumed or then["seed"] != now["seed"]):
            raise StateError(
                f"{self._what}: its position was saved with {_told(then, now)}, and the program has {_told(now, then)}",
                hint="a stream can only go on as it was begun: give it the same as then",
            )
        return epoch, consumed, ended


class SizedStream(Stream):
    """One whose number of batches is known."""

    def __len__(self) -> int:
        """Of a whole epoch."""
        return self._feed.batches or 0


def stream_of(feed: Feed, **options: Any) -> Stream:
    """With a length where the feed has one. The options are those of `Stream`."""
    return (Stream if feed.batches is None else SizedStream)(feed, **options)


_COUNTED = {"world": "rank", "workers": "worker"}


def _told(these: Mapping[str, object], others: Mapping[str, object]) -> str:
    """What differs, in words."""
    one, other = ({**facts, **_mapping(facts["shape"])} for facts in (these, others))
    names = [name for name in one if name != "shape" and one[name] != other.get(name, one)]
    return " and ".join(_said(name, one[name]) for name in names) or "another kind of stream"


def _said(name: str, value: object) -> str:
    if name in _COUNTED:
        return f"{shown(value)} {_COUNTED[name]}{'' if value == 1 else 's'}"
    word = name.replace("_", " ")
    return f"no {word}" if value is None else f"{word} {shown(value)}"


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
