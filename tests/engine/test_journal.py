"""The journal helps and is never trusted."""

from holdfast.engine.journal import Journal, read_events, read_journal


def test_events_come_back_in_order(store, clock):
    journal = Journal(store, clock, attempt=3)

    journal.record("committed", id="x", step=7)
    journal.record("closed", durable=True)

    assert [(e["event"], e["attempt"]) for e in read_events(store)] == [("committed", 3), ("closed", 3)]


def test_no_journal_is_no_events(store):
    assert read_events(store) == []


def test_torn_and_damaged_lines_are_skipped(tmp_path, store, clock):
    journal = Journal(store, clock, attempt=1)
    journal.record("committed", step=1)
    with open(tmp_path / "run" / "journal.jsonl", "ab") as file:
        file.write(b'\xff\x00{"event"\n[]\n{"event": 7}\n' + b"[" * 100_000 + b'\n{"event": "to')

    journal.record("committed", step=2)

    assert [event["step"] for event in read_events(store)] == [1, 2]
    assert read_journal(store)[1] == 5


def test_the_end_of_a_line_whose_beginning_is_not_read_is_not_counted(store, clock):
    journal = Journal(store, clock, attempt=1)
    for step in range(4):
        journal.record("committed", step=step, note="x" * 300_000)

    events, unread = read_journal(store)

    assert [event["step"] for event in events] == [1, 2, 3]
    assert unread == 0


def test_a_journal_that_cannot_be_written_is_a_warning(tmp_path, store, clock, caplog):
    (tmp_path / "run" / "journal.jsonl").mkdir()

    Journal(store, clock, attempt=1).record("committed", step=1)

    assert "cannot be written" in caplog.text
