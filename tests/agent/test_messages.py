"""Messages: typed, bounded, and refused where they make no sense."""

import random

import pytest

from holdfast.agent import messages
from holdfast.agent.messages import (
    MAX_PACKET_BYTES,
    Bye,
    Close,
    Durable,
    Failed,
    Hello,
    NewSlot,
    Progress,
    Ready,
    Removed,
    Write,
    decode_order,
    decode_report,
    encode,
    encode_report,
)
from holdfast.core.errors import FencedError, HoldfastError, ProtocolError, SaveFailedError, StorageError
from holdfast.core.limits import MAX_FORKS, MAX_NAME_BYTES
from holdfast.core.values import Fork

HELLO = Hello(run="/runs/größe", run_id="r", attempt=2, workers=4, keep={"last": 3, "rules": [["best", "loss"]]})
ORDERS = [
    HELLO,
    NewSlot(1),
    Write(0, 7, origin="a", forks=(Fork(1, None), Fork(2, "b")), attempt=3),
    Write(1, 2**63 - 1),
    Close(),
]
REPORTS = [
    Ready(12),
    Progress(7, 1 << 40),
    Durable(7, "000000001-e001-20261115T184201Z-a0001"),
    Failed(7, "NoSpaceError", "full", "remove", 28),
    Removed(("a", "b"), 100),
    messages.Warning("mind"),
    Bye(),
]


@pytest.mark.parametrize("order", ORDERS)
def test_orders_arrive_as_they_were_sent(order):
    assert decode_order(encode(order)) == order


@pytest.mark.parametrize("report", REPORTS)
def test_reports_arrive_as_they_were_sent(report):
    assert [decode_report(packet) for packet in encode_report(report)] == [report]


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_is_no_report(order):
    with pytest.raises(ProtocolError):
        decode_report(encode(order))


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"type":1}',
        b'{"type":"Destroy"}',
        b'{"type":"NewSlot"}',
        b'{"type":"NewSlot","index":-1}',
        b'{"type":"NewSlot","index":64}',
        b'{"type":"NewSlot","index":"1"}',
        b'{"type":"NewSlot","index":1,"more":2}',
        b'{"type":"Write","index":0,"generation":0}',
        b'{"type":"Write","index":0,"generation":1e3}',
        b'{"type":"Write","index":0,"generation":99999999999999999999999999}',
        b'{"type":"Write","index":0,"generation":1,"forks":[[1]]}',
        b'{"type":"Close"}{"type":"Close"}',
        b'{"type":"Clo\xffse"}',
        b"[" * 50_000,
        encode(HELLO)[:-1],
    ],
)
def test_what_makes_no_sense_is_refused(packet):
    with pytest.raises(ProtocolError, match="makes no sense"):
        decode_order(packet)


def test_damaged_packets_are_refused_or_mean_something_valid():
    chance = random.Random(5)
    for _ in range(3000):
        packet = bytearray(encode(chance.choice(ORDERS)))
        for _ in range(chance.randrange(1, 4)):
            packet[chance.randrange(len(packet))] = chance.randrange(256)
        try:
            order = decode_order(bytes(packet))
        except ProtocolError:
            continue
        assert decode_order(encode(order)) == order


def test_the_largest_write_fits_a_packet():
    name = "x" * MAX_NAME_BYTES
    forks = tuple(Fork(10**6, name) for _ in range(MAX_FORKS))

    assert len(encode(Write(0, 1, origin=name, forks=forks))) < MAX_PACKET_BYTES


def test_an_order_that_is_too_long_is_refused_where_it_is_made():
    with pytest.raises(ProtocolError, match="bytes long, expected at most 65536"):
        encode(Hello(run="x" * MAX_PACKET_BYTES, run_id="r", attempt=1, workers=1, keep={}))


def test_long_reports_are_cut_or_divided():
    ids = tuple(f"{number:0200d}" for number in range(1000))
    parts = [decode_report(packet) for packet in encode_report(Removed(ids, 5))]
    [failed] = encode_report(Failed(1, "StateError", "é" * 100_000, "x" * 100_000))

    assert tuple(name for part in parts for name in part.ids) == ids
    assert sum(part.freed_bytes for part in parts) == 5
    assert decode_report(failed).message.endswith("é…")


def test_a_text_that_is_not_unicode_is_reported_all_the_same():
    [packet] = encode_report(messages.Warning("/runs/\udcff"))

    assert decode_report(packet).message == "/runs/\\udcff"


def test_an_error_comes_back_as_itself():
    for error in (FencedError("what", hint="do"), StorageError("what", hint="do", errno=5)):
        [packet] = encode_report(Failed.of(3, error))
        again = decode_report(packet).error()

        assert type(again) is type(error)
        assert (again.message, again.hint) == ("what", "do")
        assert getattr(again, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize("kind", ["OSError", "printable", "HoldfastError", "__doc__", ""])
def test_an_error_that_is_not_ours_comes_back_as_a_failed_save(kind):
    error = Failed(1, kind, "what").error()

    assert isinstance(error, HoldfastError if kind == "HoldfastError" else SaveFailedError)
    assert Failed.of(1, OSError(5, "broken")).errno == 5
