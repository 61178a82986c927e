"""The head of a manifest: what a listing reads."""

import math

import pytest

from holdfast.core.errors import FormatError, FormatVersionError, IntegrityError
from holdfast.core.values import Checkpoint, Fork
from holdfast.format.head import decode_head, encode_head, head_lines, split_head

ID = "000001200-e003-20261115T184201Z-a0002"
RUN = "0123456789abcdef0123456789abcdef"


def checkpoint(**changes: object) -> Checkpoint:
    fields = {
        "id": ID,
        "step": 1200,
        "epoch": 3,
        "attempt": 2,
        "seq": 5,
        "parent": None,
        "origin": "000000900-e002-20261115T164201Z-a0001",
        "utc_s": 1794854521.25,
        "size_bytes": 4096,
        "leaves": 1,
        "world": 1,
        "metrics": {"loss": 0.125, "bad": math.nan, "big": math.inf, "count": 3},
        "note": "first try – mit Ümlaut\nand a line",
        "tags": ("a", "b"),
        "pickle": False,
        "forks": (Fork(2, "000000900-e002-20261115T164201Z-a0001"), Fork(1, None)),
    }
    return Checkpoint(**{**fields, **changes})


def decode(start: bytes, checkpoint_id: str = ID, run_id: str | None = RUN) -> Checkpoint:
    head, _ = split_head(start, "here")
    return decode_head(head, where="here", checkpoint_id=checkpoint_id, run_id=run_id)[0]


def test_a_head_comes_back_as_it_was():
    written = checkpoint()

    read = decode(head_lines(encode_head(written, RUN)))

    assert math.isnan(read.metrics["bad"])
    assert read._replace(metrics={}) == written._replace(metrics={})
    assert {k: v for k, v in read.metrics.items() if k != "bad"} == {"loss": 0.125, "big": math.inf, "count": 3}


def test_a_head_can_be_read_from_the_start_of_a_longer_file():
    lines = head_lines(encode_head(checkpoint(), RUN))

    head, rest = split_head(lines + b'"body":{"cut off', "here")

    assert rest == len(lines)
    assert head.startswith(b'{"format":1')


def test_every_flipped_bit_of_a_head_is_found():
    lines = head_lines(encode_head(checkpoint(), RUN))

    for position in range(len(lines) * 8):
        damaged = bytearray(lines)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(FormatError):
            decode(bytes(damaged))


def test_a_head_in_the_wrong_directory_is_refused():
    lines = head_lines(encode_head(checkpoint(), RUN))

    with pytest.raises(IntegrityError, match="belongs to checkpoint"):
        decode(lines, checkpoint_id="000001300-e003-20261115T184201Z-a0002")


def test_a_head_of_another_run_is_refused():
    lines = head_lines(encode_head(checkpoint(), RUN))

    with pytest.raises(IntegrityError, match="belongs to run"):
        decode(lines, run_id="f" * 32)


def test_a_newer_format_is_named_and_refused():
    head = encode_head(checkpoint(), RUN).replace(b'{"format":1', b'{"format":2')

    with pytest.raises(FormatVersionError, match="format 2"):
        decode(head_lines(head))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b'"step":1200', b'"step":-1'),
        (b'"step":1200', b'"step":"1200"'),
        (b'"step":1200', b'"step":true'),
        (b'"step":1200', b'"step":1201'),
        (b'"metrics":{', b'"metrics":{"x":[],'),
        (b'"note":"first', b'"note":7,"n":"first'),
        (b'"tags":["a","b"]', b'"tags":[1]'),
        (b'"pickle":false', b'"pickle":null'),
        (b'"forks":[[2,', b'"forks":[[2],[2,'),
        (b'"forks":[[2,', b'"forks":[[-2,'),
        (b",null]]", b',"x"]]'),
        (b'"seq":5,', b""),
        (b'"seq":5,', b'"seq":9223372036854775808,'),
        (b'"epoch":3,', b'"epoch":-3,'),
        (b'"epoch":3,', b""),
        (b'"parent":null', b'"parent":"../../etc/passwd"'),
        (b'"parent":null', b'"parent":7'),
        (b'"parent":null,', b""),
        (b'"origin":"', b'"origin":"/'),
        (b'"utc_s":1794854521.25', b'"utc_s":NaN'),
        (b'"utc_s":1794854521.25', b'"utc_s":1e999'),
        (b'"utc_s":1794854521.25', b'"utc_s":' + b"9" * 400),
        (b'"count":3', b'"count":' + b"9" * 400),
        (b'"count":3', b'"count":true'),
        (b'"count":3', b'"count":"three"'),
        (b'"tags":["a","b"]', b'"tags":{}'),
        (b'"format":1', b'"format":0'),
        (b'"forks":[[2,', b'"forks":[[true,'),
    ],
)
def test_a_field_that_makes_no_sense_is_refused_even_with_a_right_digest(field, value):
    head = encode_head(checkpoint(), RUN)
    assert field in head

    with pytest.raises(FormatError):
        decode(head_lines(head.replace(field, value)))


def test_a_head_that_is_not_an_object_or_too_deep_is_refused():
    for text in (b"", b"{}{}", b"[]", b"7", b"[" * 100_000, b'{"a":' * 20_000, b"\xff\xfe"):
        with pytest.raises(FormatError):
            decode(head_lines(text))
