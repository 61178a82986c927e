"""The report: one page that needs nothing else, and in which nothing of the program's is obeyed."""

from html.parser import HTMLParser

import pytest

from holdfast.core.errors import StorageError
from holdfast.proving.report import html_of, write_report
from holdfast.proving.verdict import Cause, Difference, Started, Verdict

_VERDICT = Verdict(
    answer="differs",
    command=("python", "train.py", "<b>"),
    runs=("runs/<script>",),
    first_step=1,
    last_step=12,
    interruptions=1,
    wanted=2,
    seed=0,
    took_s=4.2,
    utc_s=1794836856.0,
    points=14,
    leaves=4,
    starts=(
        Started("undisturbed", 1, "", "", None, "", None, 12, 0, 1.0, "ended"),
        Started("interrupted", 1, "at the first step", "SIGKILL", 1, "after save", None, 1, -9, 0.5, "equal", True),
        Started("interrupted", 2, "at random", "SIGTERM", 4, "in step", 1, 2, 87, 0.5, "differs"),
    ),
    step=2,
    at="step",
    differences=(Difference("w", "float64[8]", "float64[8]", 1.25, 0.5, 8, 8),),
    causes=(Cause("generator-not-in-state", "the random generator rng is not in the state", ("seen",), "add it"),),
    tail=("<i>its last line",),
    host="node17",
    versions=(("python", "3.12.1"), ("numpy", "2.4.0")),
)


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("line", "circle"):
            assert self.open.pop() == tag


def test_it_is_well_formed_and_loads_nothing():
    page, tags = html_of(_VERDICT), _Tags()

    tags.feed(page)

    assert tags.open == []
    assert not any({"src", "href"} & attributes.keys() for _, attributes in tags.seen)
    assert "http" not in page
    assert "<b>" not in page.partition("</h1>")[2].partition('<div class="cause">')[0]
    assert "<i>" not in page


def test_it_says_what_was_found():
    page = html_of(_VERDICT)

    for words in ("Not identical", "the runs part at step 2 in w", "generator-not-in-state", "KILL after save 1"):
        assert words in page
    assert "prefers-color-scheme: dark" in page


def test_a_signal_that_did_not_come_is_no_dot_and_the_start_that_differs_is_red():
    page, tags = html_of(_VERDICT), _Tags()
    tags.feed(page)

    assert "before TERM at 4" in page
    assert [attributes["class"] for tag, attributes in tags.seen if tag == "line"] == ["from", "bad"]
    assert len([tag for tag, _ in tags.seen if tag == "circle"]) == 1
    assert "A dot is a signal" in page


def test_it_says_on_what_it_was_proven():
    page = html_of(_VERDICT)

    assert "python 3.12.1, numpy 2.4.0, on node17" in page


def test_a_leaf_that_is_not_saved_any_more_is_said_in_the_first_sentence():
    cause = Cause("rebound", "`w` stands for another array")
    page = html_of(_VERDICT._replace(differences=(), causes=(cause,), leaf="w", step=1, at=""))

    assert "steps 1 to 12: `w` stands for another array." in page


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StorageError, match="cannot be written"):
        write_report(str(tmp_path), _VERDICT)
