"""A torch DataLoader over a dataset that can only be iterated: workers say with each batch where they are.

Workers take turns, and each has a stream of its own. So a position is the state of every worker after the last batch of
it that was handed out, and whose turn is next. The randomness of an item comes from seed, epoch, worker and the number
of items that this worker has made before.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.utils.data as torch_data

from holdfast.core.errors import StateError
from holdfast.data.bits import number_at, sample_bits
from holdfast.data.feeds import Start, has_state, load_or_start, loses_samples, tell_epoch
from holdfast.data.per_sample import PerItem

__all__ = ["LoaderFeed"]


class LoaderFeed:
    """Gives what the loader gives: batches, or items where it makes none."""

    carries_over = False

    def __init__(self, loader: "torch_data.DataLoader[Any]", seed: int | None) -> None:
        self.in_process = loader.num_workers == 0
        self.batches: int | None = None
        self.drop_last: bool | None = None if loader.batch_size is None else bool(loader.drop_last)
        try:
            self.batches = len(loader)
        except TypeError:
            pass  # it has none
        self._given = loader
        self._seed = seed
        self._workers = max(1, loader.num_workers)
        self._marked = _Marked(loader.dataset, seed, self._workers)
        self._loader: torch_data.DataLoader[Any] | None = None
        self._marks: dict[int, dict[str, Any]] = {}
        self._turn = -1

    @property
    def shape(self) -> dict[str, object]:
        return {"batch_size": self._given.batch_size, "workers": self._given.num_workers}

    @property
    def instead(self) -> str:
        if loses_samples(self._given.dataset):
            return "its state would lose the samples in the shuffle buffer; without shuffle() it is used, and quick"
        return "a dataset with state_dict() and load_state_dict(), or with numbers, would be there at once"

    def begin(self, epoch: int, state: Any, *, continues: bool) -> Iterator[Any]:
        self._marks, self._turn = _read(state)
        self._marked.begin(epoch, dict(self._marks), self._turn + 1, continues=continues)
        # Workers that persist keep their copy of the dataset, which goes on to the next epoch by itself.
        if self._loader is None or not continues or state is not None:
            self._loader = _with_marks(self._given, self._marked)
        # Where workers draw without a seed of ours: from the epoch, and not from how many this attempt has seen.
        bits = sample_bits(self._seed or 0, epoch, -1, kind="worker")
        self._loader.generator.manual_seed(number_at(*bits) >> 1)
        return self._items(self._loader)

    def _items(self, loader: "torch_data.DataLoader[Any]") -> Iterator[Any]:
        held = []
        for batch, mark in loader:
            self._turn = mark["worker"]
            self._marks[self._turn] = mark
            held.append(batch)
            del batch  # or it would be in memory beside the next one
            yield held.pop()

    def state(self) -> Any:
        if not self._marks or any(mark["state"] is None for mark in self._marks.values()):
            return None
        return {"turn": self._turn, "workers": [self._marks.get(worker) for worker in range(self._workers)]}


def _read(state: Any) -> tuple[dict[int, dict[str, Any]], int]:
    if state is None:
        return {}, -1
    if not isinstance(state, Mapping) or set(state) != {"turn", "workers"}:
        raise StateError(f"the state of the workers is {type(state).__name__}, and none that this holdfast has saved")
    return {worker: dict(mark) for worker, mark in enumerate(state["workers"]) if mark is not None}, state["turn"]


class _Marked(torch_data.IterableDataset):  # type: ignore[misc]  # mypy does not follow torch
    """The dataset, in this process or in a worker, with where it is."""

    def __init__(self, dataset: Any, seed: int | None, workers: int) -> None:
        self.dataset = dataset
        self.mark: dict[str, Any] = {}
        self._workers = workers
        self._per_item = PerItem(seed)
        self._exact = not loses_samples(dataset)
        self._current: Any = None
        self._own_number: int | None = None
        self._epoch, self._first, self._continues = 0, 0, True
        self._marks: dict[int, dict[str, Any]] = {}
        self._start = Start()

    def begin(self, epoch: int, marks: dict[int, dict[str, Any]], first: int, *, continues: bool) -> None:
        """What the next iteration is: the rest after these marks, and which worker comes first."""
        tell_epoch(self.dataset, epoch)
        self._go(epoch, marks, first, continues=continues)

    def _go(self, epoch: int, marks: dict[int, dict[str, Any]], first: int, *, continues: bool) -> None:
        self._epoch, self._continues = epoch, continues
        self._marks = marks
        self._first = first

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        global _of_this_worker
        info = torch_data.get_worker_info()
        if self._own_number is None:
            self._own_number = 0 if info is None else info.id
        worker = (self._own_number + self._first) % self._workers
        if info is not None:
            # The loader always begins with its first worker. It takes the part of the one whose turn it is; datasets
            # look here for the part that is theirs.
            object.__setattr__(info, "id", worker)
            _of_this_worker = self
        epoch, mark, continues = self._epoch, self._marks.get(worker), self._continues
        self._go(epoch + 1, {}, 0, continues=True)
        return self._items(epoch, worker, mark, continues=continues)

    def _items(self, epoch: int, worker: int, mark: dict[str, Any] | None, *, continues: bool) -> Iterator[Any]:
        given = 0 if mark is None else int(mark["given"])
        self.mark = {"worker": worker, "given": given, "ended": False}
        if mark is not None and mark["ended"]:
            return
        self._per_item.begin(epoch, -1, worker)
        current = self._begun(epoch, None if mark is None else mark["state"], continues=continues)
        while True:
            self._per_item.begin(epoch, given, worker)
            try:
                item = next(current)
            except StopIteration:
                self.mark = {"worker": worker, "given": given, "ended": True}
                return
            given += 1
            self.mark = {"worker": worker, "given": given, "ended": False}
            yield item

    def _begun(self, epoch: int, state: Any, *, continues: bool) -> Iterator[Any]:
        # Here, where workers that persist have to be told.
        self._tell(epoch)
        if has_state(self.dataset):
            load_or_start(self.dataset, state, self._start, continues=continues)
            if state is None:
                self._tell(epoch)  # the state at first may have an epoch of its own
        self._current = iter(self.dataset)
        if state is not None and not has_state(self.dataset):
            self._current.load_state_dict(state)
        return self._current  # type: ignore[no-any-return]

    def _tell(self, epoch: int) -> None:
        # Some have memory in common with this process, in which the number is changed in two steps: whoever would tell
        # it at the same time as another would spoil it.
        if getattr(self.dataset, "epoch", None) != epoch:
            tell_epoch(self.dataset, epoch)

    def marked(self) -> dict[str, Any]:
        """Where it is, with the dataset's own state, if it has one that loses nothing."""
        state = None
        if self._exact:
            says = next((one for one in (self.dataset, self._current) if has_state(one)), None)
            state = None if says is None else says.state_dict()
        return {**self.mark, "state": state}


_of_this_worker: _Marked | None = None


class _Collate:
    """With each batch goes where the dataset was after it."""

    def __init__(self, own: Callable[[Any], Any], marked: _Marked) -> None:
        self._own = own
        self._marked = marked

    def __call__(self, items: Any) -> tuple[Any, dict[str, Any]]:
        # A worker has copies of both, which need not know of each other.
        marked = self._marked if torch_data.get_worker_info() is None else _of_this_worker
        if marked is None:
            raise AssertionError("a worker without its dataset")
        mark = marked.marked()
        return self._own(items), mark


class _InitWorker:
    """What the program does in a new worker sees its own dataset, and the number of the part that is its own."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        info: Any = torch_data.get_worker_info()
        marked = info.dataset
        object.__setattr__(info, "dataset", marked.dataset)
        if self._own is not None:
            self._own((worker + marked._first) % marked._workers)


def _with_marks(loader: "torch_data.DataLoader[Any]", marked: _Marked) -> "torch_data.DataLoader[Any]":
    """The same loader otherwise."""
    workers = loader.num_workers
    return torch_data.DataLoader(
        marked,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        num_workers=workers,
        collate_fn=_Collate(loader.collate_fn, marked),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=_InitWorker(loader.worker_init_fn),
        multiprocessing_context=loader.multiprocessing_context if workers else None,
        generator=torch.Generator(),  # of its own, lest it draw from the training's
        prefetch_factor=loader.prefetch_factor if workers else None,
        persistent_workers=loader.persistent_workers,
        pin_memory_device=loader.pin_memory_device,
    )
