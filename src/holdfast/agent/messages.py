"""What the training process and its agent say to each other: typed, bounded, one packet each."""

from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec

from holdfast.core import errors
from holdfast.core.errors import HoldfastError, ProtocolError, SaveFailedError, StorageError
from holdfast.core.values import CheckpointName, Fork

__all__ = [
    "LINGER_S",
    "MAX_PACKET_BYTES",
    "PROTOCOL",
    "Ahead",
    "Begin",
    "Bye",
    "Close",
    "Durable",
    "Failed",
    "Forget",
    "Hello",
    "NewSlot",
    "Order",
    "Progress",
    "Ready",
    "Removed",
    "Report",
    "Warning",
    "Write",
    "decode_order",
    "decode_report",
    "encode",
    "encode_report",
]

PROTOCOL = 3
MAX_PACKET_BYTES = 64 << 10
LINGER_S = 50.0
"""How long the agent works on after the training process is gone; with what giving up takes, less than a minute."""

_MAX_TEXT_CHARS = 8_000
_MAX_IDS = 250  # of at most MAX_NAME_BYTES each: fits a packet

_Index = Annotated[int, msgspec.Meta(ge=0, le=63)]
_Generation = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """One packet: a JSON object whose `type` is the name of the class."""


class Hello(_Message, frozen=True):
    """The first order: whose checkpoints the agent writes, and how."""

    run: str
    """The run's absolute path."""
    run_id: str
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    workers: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    keep: dict[str, Any]
    nice: Annotated[int, msgspec.Meta(ge=0, le=19)] = 0
    linger_s: Annotated[float, msgspec.Meta(ge=0, le=LINGER_S)] = LINGER_S
    protocol: int = PROTOCOL


class NewSlot(_Message, frozen=True):
    """The memory of one slot; its descriptor comes with the packet, and replaces the one before."""

    index: _Index


class Begin(_Message, frozen=True):
    """The slot is being filled; the snapshot is to be the checkpoint of that name. What is copied may be written.

    Nothing depends on it, and nothing answers: that the snapshot is complete, and what is in it, says Write; that it
    will not be, Forget.
    """

    index: _Index
    id: CheckpointName
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    attempt: Annotated[int, msgspec.Meta(ge=1)]


class Forget(_Message, frozen=True):
    """Nothing comes of what is being filled."""

    index: _Index


class Write(_Message, frozen=True):
    """The slot holds a complete snapshot of that generation: make it durable."""

    index: _Index
    generation: _Generation
    origin: CheckpointName | None = None
    forks: tuple[Fork, ...] = ()
    attempt: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The one that the snapshot belongs to; None for that of Hello. A rollback begins another in the same process."""
    suspect: Annotated[str, msgspec.Meta(max_length=_MAX_TEXT_CHARS)] = ""
    """Why the state may be unhealthy: the checkpoint is marked before it exists."""
    safe_before: _Count | None = None
    """Checkpoints of earlier steps will not be found suspect: the newest of them stays."""
    begun: bool = False
    """Begin was sent before: whoever has not heard that does not know what became of the name."""


class Close(_Message, frozen=True):
    """The last order: finish what was ordered, then end."""


class Ready(_Message, frozen=True):
    """The agent listens."""

    pid: int


class Ahead(_Message, frozen=True):
    """So much of what is in the slot is written, though nobody has ordered that yet."""

    index: _Index
    done_bytes: _Count


class Progress(_Message, frozen=True):
    """So much of the snapshot is written."""

    generation: _Generation
    done_bytes: _Count


class Durable(_Message, frozen=True):
    """The snapshot is a checkpoint now (I5)."""

    generation: _Generation
    id: CheckpointName


class Failed(_Message, frozen=True):
    """The snapshot did not become a checkpoint. `kind` is the name of the error's class."""

    generation: _Generation
    kind: str
    message: str
    hint: str = ""
    errno: int | None = None

    @classmethod
    def of(cls, generation: int, error: BaseException) -> "Failed":
        """The report of an error, of ours or not."""
        kind, number = type(error).__name__, getattr(error, "errno", None)
        if isinstance(error, HoldfastError):
            return cls(generation, kind, error.message, error.hint, number)
        return cls(generation, kind, f"unexpected {kind}: {error}", "", number)

    def error(self) -> HoldfastError:
        """The error again; SaveFailedError for one that is not ours."""
        kind = getattr(errors, self.kind, None) if self.kind in errors.__all__ else None
        if not (isinstance(kind, type) and issubclass(kind, HoldfastError)):
            kind = SaveFailedError
        error = kind(self.message, hint=self.hint)
        if isinstance(error, StorageError):
            error.errno = self.errno
        return error


class Removed(_Message, frozen=True):
    """Retention gave these up."""

    ids: tuple[CheckpointName, ...]
    freed_bytes: _Count


class Warning(_Message, frozen=True):  # noqa: A001  the word for it, and never used together with the builtin
    """Something that the user of the training should read."""

    message: str


class Bye(_Message, frozen=True):
    """All orders are done; the agent ends."""


Order = Hello | NewSlot | Begin | Forget | Write | Close
Report = Ready | Ahead | Progress | Durable | Failed | Removed | Warning | Bye

_T = TypeVar("_T")
_encoder = msgspec.json.Encoder()
_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_reports: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(message: Order | Report) -> bytes:
    """The packet. ProtocolError where it cannot be one."""
    name = type(message).__name__
    try:
        packet = _encoder.encode(message)
    except (TypeError, ValueError) as error:  # a path that is not Unicode, a value of `keep` that is no JSON
        raise ProtocolError(f"{name} cannot be sent to the agent: {error}") from error
    if len(packet) > MAX_PACKET_BYTES:
        raise ProtocolError(f"{name} is {len(packet)} bytes long, expected at most {MAX_PACKET_BYTES}")
    return packet


def encode_report(report: Report) -> Iterator[bytes]:
    """The packets of a report, whatever its size: long texts are cut, long lists are divided."""
    if isinstance(report, Removed) and len(report.ids) > _MAX_IDS:
        for begin in range(0, len(report.ids), _MAX_IDS):
            freed_bytes = report.freed_bytes if begin == 0 else 0
            yield encode(Removed(report.ids[begin : begin + _MAX_IDS], freed_bytes))
        return
    if isinstance(report, Failed | Warning):
        changes = {"message": _cut(report.message)}
        if isinstance(report, Failed):
            changes |= {"kind": _cut(report.kind), "hint": _cut(report.hint)}
        report = msgspec.structs.replace(report, **changes)
    yield encode(report)


def decode_order(packet: bytes) -> Order:
    """What the training process says. ProtocolError where it makes no sense."""
    return _decode(_orders, packet)


def decode_report(packet: bytes) -> Report:
    """What the agent says. ProtocolError where it makes no sense."""
    return _decode(_reports, packet)


def _decode(decoder: msgspec.json.Decoder[_T], packet: bytes) -> _T:
    try:
        return decoder.decode(packet)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a message of {len(packet)} bytes makes no sense: {error}") from error


def _cut(text: str) -> str:
    """Short enough, and free of the halves of characters that JSON has no place for."""
    whole = text if len(text) <= _MAX_TEXT_CHARS else text[: _MAX_TEXT_CHARS - 1] + "…"
    return whole.encode("utf-8", "backslashreplace").decode()
