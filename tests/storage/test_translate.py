"""Errors of the system become errors of ours, with what, where and what next."""

import errno

import pytest

from holdfast.core.errors import (
    BlobExistsError,
    BlobMissingError,
    HoldfastError,
    IntegrityError,
    NoSpaceError,
    StorageError,
)
from holdfast.storage.files import Space
from holdfast.storage.translate import Boundary, translate

_KINDS = [
    (errno.ENOSPC, NoSpaceError, "no space left"),
    (errno.EDQUOT, NoSpaceError, "quota"),
    (errno.ENOENT, BlobMissingError, "does not exist"),
    (errno.EEXIST, BlobExistsError, "exists already"),
    (errno.ELOOP, IntegrityError, "a link"),
    (errno.ENOTDIR, IntegrityError, "in the place of"),
    (errno.EISDIR, IntegrityError, "in the place of"),
    (errno.EROFS, StorageError, "EROFS"),
    (errno.EACCES, StorageError, "EACCES"),
    (errno.EIO, StorageError, "EIO"),
    (errno.ESTALE, StorageError, "ESTALE"),
    (errno.EMFILE, StorageError, "EMFILE"),
]


@pytest.mark.parametrize(("number", "kind", "text"), _KINDS, ids=[errno.errorcode[number] for number, *_ in _KINDS])
def test_each_number_has_its_error_with_place_and_text(number: int, kind: type[HoldfastError], text: str) -> None:
    found = translate(OSError(number, "as the system says it"), "writing", "run/group/blob")

    assert type(found) is kind
    assert text in found.message
    assert "run/group/blob" in found.message
    assert number == errno.ENOENT or found.hint


def test_the_number_is_kept() -> None:
    assert getattr(translate(OSError(errno.EIO, "x"), "reading", "blob"), "errno", None) == errno.EIO


def test_an_error_without_a_number_is_a_storage_error() -> None:
    found = translate(OSError("odd"), "reading", "blob")

    assert type(found) is StorageError
    assert "odd" in found.message


@pytest.mark.parametrize(
    ("space", "text"),
    [(Space(500, 0, 1000), "no inodes left"), (Space(0, 9, 1000), "0 bytes are free"), (None, "no space left")],
)
def test_a_full_disk_is_told_from_one_without_inodes(space: Space | None, text: str) -> None:
    assert text in translate(OSError(errno.ENOSPC, "x"), "writing", "blob", space=space).message


def test_a_boundary_translates_what_the_system_raises_and_keeps_the_cause() -> None:
    cause = OSError(errno.EIO, "x")

    with pytest.raises(StorageError, match="blob: reading failed") as caught, Boundary("reading", "blob"):
        raise cause

    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("error", [IntegrityError("mine"), StorageError("mine"), KeyError("not ours")])
def test_a_boundary_lets_everything_else_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, Boundary("reading", "blob"):
        raise error

    assert caught.value is error


def test_a_full_disk_is_reported_even_when_asking_for_its_space_fails() -> None:
    def fail() -> Space:
        raise OSError(errno.EIO, "x")

    with pytest.raises(NoSpaceError), Boundary("writing", "blob", space=fail):
        raise OSError(errno.ENOSPC, "x")
