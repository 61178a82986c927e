"""The protocol of a store: blobs that are written once, listed, read in ranges and removed.

A key is `name` or `group/name`; a group is a checkpoint's directory, `attempts` or `marks`. All stores behave alike;
`holdfast.testing.check_store` says what that means, and every store passes it.
"""

from collections.abc import Callable, Sequence

from holdfast.core.errors import UsageError
from holdfast.core.light_typing import NamedTuple, Protocol
from holdfast.core.names import LOCK_NAME, check_name
from holdfast.storage.files import Space

# As in holdfast/__init__.py: `holdfast ls` is to start at once.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager  # kept off the start of `holdfast ls`

__all__ = ["BlobInfo", "Reader", "Store", "Writer", "split_key"]


class BlobInfo(NamedTuple):
    """One entry of a listing."""

    name: str
    is_group: bool


class Writer(Protocol):
    """A blob in the making. It does not count until `finish` returns; `abandon` forgets it."""

    alignment: int
    """Blocks start at multiples of this, and their lengths are multiples of it, except the last block's."""

    def write_at(self, block: memoryview, offset: int) -> None:
        """Write the whole block. Safe to call from several threads for different blocks."""
        ...

    def finish(self, size_bytes: int) -> None:
        """Make the blob durable with exactly this size, and its name too."""
        ...

    def abandon(self) -> None:
        """Close and remove what was written, as far as possible; never raises."""
        ...


class Reader(Protocol):
    """An open blob."""

    size_bytes: int

    def read_at(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fill all buffers from the offset on, or raise. Safe to call from several threads.

        A buffer that is page-aligned, at a page-aligned offset, may be read past the page cache.
        """
        ...

    def read_checked(self, buffers: Sequence[memoryview], offset: int, chunk_bytes: int) -> Sequence[str] | None:
        """Fill all buffers in one pass, where that is faster, and tell the XXH3-128 of each chunk of what is in them.

        None where it is not, or was not possible; then they hold anything. Safe to call from several threads.
        """
        ...

    def is_cached(self) -> bool:
        """Whether reading through the page cache will be served from memory."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """Where the blobs of one run live."""

    @property
    def location(self) -> str:
        """For messages: the path or URL."""
        ...

    def list(self, group: str = "") -> list[BlobInfo]:
        """The entries of the group (or of the run), sorted by name; nothing where the group is not there.

        The store's own files (its lock, temporaries) are not shown; files that others put there are.
        """
        ...

    def list_heads(self, groups: Sequence[str], name: str, size_bytes: int) -> Sequence[bytes | None]:
        """The first bytes of `group/name` for each group; None where it is not there or not a file. Fast."""
        ...

    def read(self, key: str, limit_bytes: int) -> bytes:
        """The whole blob; BlobMissingError where there is none, IntegrityError where it is larger than the limit."""
        ...

    def open(self, key: str) -> Reader: ...

    def create(self, key: str, size_bytes: int) -> Writer:
        """Begin a blob of that size; its group is made if needed. BlobExistsError where the key is taken."""
        ...

    def publish(self, key: str, data: bytes, *, make_group: bool = True) -> None:
        """Make a small blob exist, whole and durably, in one step; BlobExistsError where it does already.

        Its group is made if needed; BlobMissingError where it is not there and `make_group` is False.
        """
        ...

    def append(self, key: str, line: bytes, *, durable: bool) -> None:
        """Add a line to a log blob; a crash may lose or tear the last lines, never earlier ones that were durable.

        The line ends with a newline, given or added; after a torn line it begins a new one.
        """
        ...

    def read_tail(self, key: str, limit_bytes: int) -> bytes:
        """The last bytes of a log blob; empty where there is none."""
        ...

    def remove(self, key: str) -> None:
        """Remove the blob, durably, if it is there."""
        ...

    def remove_group(self, group: str) -> None:
        """Remove what the group still holds, and the group. Nothing where it is not there."""
        ...

    def space(self) -> Space: ...

    def exclusive(self, deadline_s: float, on_wait: Callable[[], None] | None = None) -> "AbstractContextManager[None]":
        """Hold the run's lock, shared by all processes and threads that commit, delete or take over.

        RunBusyError when it was not free for that many seconds. `on_wait` is called once, when waiting begins.
        """
        ...

    def hold(self, key: str) -> bool:
        """Hold the blob until this process ends or lets go: how a live writer shows that it lives.

        False where it is held already, by whomever. A forked child holds nothing.
        """
        ...

    def is_held(self, key: str) -> bool:
        """Whether a live process (this one included) holds the blob."""
        ...

    def let_go(self, key: str) -> None:
        """Hold the blob no longer, if this store did."""
        ...

    def close(self) -> None: ...


def split_key(key: str) -> tuple[str, str]:
    """Group (empty for the run itself) and name; UsageError where one is not allowed, or is the store's own."""
    group, slash, name = key.rpartition("/")
    if slash:
        check_name(group)
    if key == LOCK_NAME:
        raise UsageError(f"key {key!r} is the store's own lock", hint="use another name")
    return group, check_name(name)
