"""Ads of HTCondor are text of others: read as HTCondor writes them, and harmless whatever is in them."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.job_ads import read_ad, read_ad_numbers


def ad(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "ad"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"run"', "run"),
        ('""', ""),
        (r'"a b\' it\'\'\'\'s \"dq\""', r"a b\' it\'\'\'\'s " + '"dq"'),
        # A backslash means something before a quote only, also where it is the last character.
        (r'"C:\new\table"', r"C:\new\table"),
        (r'"two \\ and \n"', r"two \\ and \n"),
        ('"the last is \\"', "the last is \\"),
        ('"$(HOME) #no comment; ö"', "$(HOME) #no comment; ö"),
        ("true", True),
        ("FALSE", False),
        ("85", 85.0),
        ("-1.5e3", -1500.0),
        ("10 * 60", 600.0),
    ],
)
def test_values_are_read_as_they_are_written(written: str, meant: object, tmp_path: Path) -> None:
    assert read_ad(ad(tmp_path, f"Some = {written}\n")) == {"some": meant}


@pytest.mark.parametrize(
    "written",
    [
        "",
        "undefined",
        "error",
        '"half',
        'half"',
        '"a" == "b"',
        'TARGET.Arch == "X86_64"',
        "10 + 60",
        "ifThenElse(true, 1, 2)",
        "[ A = 1 ]",
        "1e999",
        "1e300 * 1e300",
        "0x10",
        "9" * 200_000,
        "1 *",
        "nan",
        "$(rm -rf /)",
    ],
)
def test_what_is_no_plain_value_is_left_out(written: str, tmp_path: Path) -> None:
    assert read_ad(ad(tmp_path, f"Some = {written}\nOther = 1\n")) == {"other": 1}


def test_names_are_read_in_any_case_and_the_last_counts(tmp_path: Path) -> None:
    assert read_ad(ad(tmp_path, "ClusterId = 1\r\nclusterid=2\nF\n")) == {"clusterid": 2}


def test_a_value_does_not_make_lines_of_its_own(tmp_path: Path) -> None:
    found = read_ad(ad(tmp_path, 'Note = "x\u2028SuccessCheckpointExitCode = 1\x0b\x85B = 2"\n'))

    assert list(found) == ["note"]


def test_only_numbers_are_numbers(tmp_path: Path) -> None:
    assert read_ad_numbers(ad(tmp_path, 'A = 1\nB = "2"\nC = true\n')) == {"a": 1}


@pytest.mark.parametrize("path", [None, "", "none", ".", "a\0b", "/proc/self/mem"])
def test_without_an_ad_there_is_nothing(path: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert read_ad(path) == {}


def test_of_an_endless_ad_the_beginning_is_read() -> None:
    assert read_ad("/dev/zero") == {}


def test_an_ad_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ad")

    assert read_ad(str(tmp_path / "ad")) == {}


@given(st.binary(max_size=500))
def test_no_bytes_do_harm(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    found = read_ad(ad(tmp_path_factory.getbasetemp(), content))

    assert all(isinstance(value, bool | float | str) for value in found.values())
