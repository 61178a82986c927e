"""The verdict that is stored with a run."""

from holdfast.proving.stored import StoredVerdict, read_verdict, store_verdict
from holdfast.storage.memory import MemoryStore

_VERDICT = StoredVerdict("identical", 1794836856.0, 6, 12, None, "", "", "", "python train.py")


def test_the_last_one_counts():
    store = MemoryStore()

    store_verdict(store, _VERDICT)
    store_verdict(store, _VERDICT._replace(answer="differs", step=3))

    assert read_verdict(store) == _VERDICT._replace(answer="differs", step=3)


def test_none_or_one_that_makes_no_sense_is_none():
    assert read_verdict(MemoryStore()) is None
    for nonsense in (b"", b"[]", b'{"answer": 3}', b"\xff"):
        store = MemoryStore()
        store.publish("marks/proof.json", nonsense)

        assert read_verdict(store) is None


def test_a_field_of_another_type_makes_it_none():
    store = MemoryStore()

    store_verdict(store, _VERDICT._replace(interruptions="six"))  # type: ignore[arg-type]

    assert read_verdict(store) is None
