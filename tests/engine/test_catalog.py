"""The catalogue: what exists, what is damaged, what is only garbage."""

import errno

import numpy as np
import pytest

import holdfast
from holdfast.engine.catalog import read_catalog
from holdfast.engine.identity import identify
from holdfast.engine.marks import DAMAGED, VERIFIED, set_mark
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore
from holdfast.testing import FakeClock


@pytest.fixture
def ids(tmp_path) -> list[str]:
    with holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(2)}, keep=holdfast.KEEP_ALL) as ckpt:
        return [ckpt.save(step=step, note="n" * 40 * step).wait() for step in (1, 2, 90)]


def catalog_of(tmp_path, files=None):
    store = PosixStore(tmp_path / "run", readonly=True, files=files)
    found = read_catalog(store, identify(store))
    store.close()
    return found


def test_all_checkpoints_are_listed_also_those_with_long_heads(tmp_path, ids):
    found = catalog_of(tmp_path)

    assert [checkpoint.id for checkpoint in found.checkpoints] == ids
    assert [len(checkpoint.note) for checkpoint in found.checkpoints] == [40, 80, 3600]
    assert not any(checkpoint.quarantined for checkpoint in found.checkpoints)
    assert found.garbage == []


def test_where_a_crash_left_both_marks_damaged_counts_and_not_verified(tmp_path, ids):
    store = PosixStore(tmp_path / "run")
    for kind in (VERIFIED, DAMAGED):
        set_mark(store, ids[1], kind, reason="chunk 0 differs", clock=FakeClock())
    store.close()

    _, found, _ = catalog_of(tmp_path).checkpoints

    assert (found.verified, found.damaged, found.is_sound) == (False, "chunk 0 differs", False)


def test_a_directory_without_a_manifest_is_garbage(tmp_path, ids):
    (tmp_path / "run" / ids[1] / "manifest.json").unlink()

    found = catalog_of(tmp_path)

    assert found.garbage == [ids[1]]
    assert [checkpoint.id for checkpoint in found.checkpoints] == [ids[0], ids[2]]


@pytest.mark.parametrize("what", ["link", "directory", "empty", "other run"])
def test_something_else_in_the_manifests_place_is_damage_not_garbage(tmp_path, ids, what):
    manifest = tmp_path / "run" / ids[1] / "manifest.json"
    data = manifest.read_bytes()
    manifest.unlink()
    if what == "link":
        manifest.symlink_to(tmp_path / "run" / ids[0] / "manifest.json")
    elif what == "directory":
        manifest.mkdir()
    else:
        manifest.write_bytes(b"" if what == "empty" else data.replace(ids[1].encode(), ids[0].encode()))

    found = catalog_of(tmp_path)

    assert found.garbage == []
    assert [bool(checkpoint.quarantined) for checkpoint in found.checkpoints] == [False, True, False]
    assert bool(found.unread) == (what in ("link", "directory"))


def test_a_checkpoint_moved_away_behind_a_link_is_damage_not_absence(tmp_path, ids):
    original = tmp_path / "run" / ids[2]
    original.rename(tmp_path / "elsewhere")
    original.symlink_to(tmp_path / "elsewhere")

    found = catalog_of(tmp_path)

    assert [bool(checkpoint.quarantined) for checkpoint in found.checkpoints] == [False, False, True]


class BadSector(Files):
    """The first manifest cannot be opened: not in the common listing, nor when it is asked for alone."""

    def __init__(self) -> None:
        self.left = 2

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        if name == "manifest.json" and self.left:
            self.left -= 1
            raise OSError(errno.EIO, "bad sector")
        return super().open_read(parent, name, direct=direct)


def test_one_unreadable_manifest_does_not_hide_the_others(tmp_path, ids):
    found = catalog_of(tmp_path, BadSector())

    reasons = [checkpoint.quarantined for checkpoint in found.checkpoints]
    assert "cannot be read now" in reasons[0]
    assert reasons[1:] == ["", ""]
    assert found.unread == {ids[0]}


def test_a_history_of_any_length_is_listed_in_order_around_what_cannot_be_read(tmp_path):
    with holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(2)}, keep=holdfast.KEEP_ALL, background="off") as ckpt:
        made = [ckpt.save(step=step).wait() for step in range(70)]
    (tmp_path / "run" / made[40] / "manifest.json").unlink()

    found = catalog_of(tmp_path, BadSector())

    assert [checkpoint.id for checkpoint in found.checkpoints] == made[:40] + made[41:]
    assert [checkpoint.step for checkpoint in found.checkpoints if checkpoint.quarantined] == [0]
    assert found.garbage == [made[40]]


def test_names_that_are_not_ids_are_not_looked_at(tmp_path, ids):
    (tmp_path / "run" / "notes").mkdir()
    (tmp_path / "run" / "000000001-copy").mkdir()

    assert len(catalog_of(tmp_path).checkpoints) == 3
