"""Users' own submit descriptions: what is missing is added, what would lose work is corrected, the rest stays."""

import pytest

from holdfast.core.errors import UsageError
from holdfast.integrations.htcondor_completing import complete

_MINE = """\
# My training.
Executable   = train.sh
arguments    = a \\
               b
when_to_transfer_output = ON_EXIT
+Project     = "x"   # kept

request_gpus = 1
queue 1
"""


def names(text: str, **options: object) -> list[str]:
    """Which commands were changed."""
    return [change.name for change in complete(text, **{"run": "mnist", **options}).changes]  # type: ignore[arg-type]


def test_everything_else_stays_where_it_was() -> None:
    completed = complete(_MINE, run="mnist").text.splitlines()

    kept = [line for line in _MINE.splitlines() if not line.startswith("when_to")]
    assert [line for line in completed if line in kept] == kept
    assert completed[-1] == "queue 1"


def test_what_is_missing_is_added_and_what_loses_work_is_corrected() -> None:
    completed = complete(_MINE, run="mnist")

    assert [(change.name, change.value, change.was) for change in completed.changes] == [
        ("checkpoint_exit_code", "85", None),
        ("should_transfer_files", "YES", None),
        ("when_to_transfer_output", "ON_EXIT_OR_EVICT", "ON_EXIT"),
        ("transfer_checkpoint_files", "mnist", None),
        ("transfer_input_files", "mnist", None),
        ("transfer_output_files", "mnist", None),
    ]
    for change in completed.changes:
        assert f"{change.why}" in completed.text
        assert f"{change.name} = {change.value}" in completed.text
    assert "= ON_EXIT\n" not in completed.text


def test_what_is_complete_is_not_changed_again() -> None:
    completed = complete(_MINE, run="runs/mnist").text

    assert complete(completed, run="runs/mnist").changes == ()


def test_a_status_that_it_gives_stays() -> None:
    assert "checkpoint_exit_code" not in names(_MINE.replace("queue 1", "checkpoint_exit_code = 77\nqueue"))
    assert "checkpoint_exit_code" not in names(_MINE.replace("queue 1", "+SuccessCheckpointExitCode = 77\nqueue"))


def test_files_that_it_names_stay_named() -> None:
    mine = _MINE.replace("queue 1", "Transfer_Output_Files = plot.png,\\\n  log.txt\nqueue")

    completed = complete(mine, run="mnist")

    assert "transfer_output_files = plot.png, log.txt, mnist" in completed.text
    assert "\n  log.txt" not in completed.text


def test_it_says_what_has_to_be_there_when_a_job_is_evicted() -> None:
    mine = _MINE.replace("queue 1", "transfer_output_files = mnist, plot.png\nqueue")

    assert "evicted before it has made plot.png" in complete(mine, run="mnist").text


def test_a_directory_above_the_run_is_enough() -> None:
    mine = _MINE.replace("queue 1", "transfer_checkpoint_files = runs\nqueue")

    assert "transfer_checkpoint_files" not in names(mine, run="runs/mnist")


def test_the_run_of_the_description_counts_where_none_is_given() -> None:
    mine = _MINE.replace("queue 1", "transfer_checkpoint_files = mnist\nqueue")

    assert "transfer_output_files" in names(mine, run=None)
    with pytest.raises(UsageError, match="which directory is the run"):
        complete(_MINE, run=None)


def test_a_run_further_down_keeps_its_place() -> None:
    assert "preserve_relative_paths" in names(_MINE, run="runs/mnist")
    assert "preserve_relative_paths" not in names(_MINE, run="mnist")


def test_files_of_the_user_are_not_moved_by_it() -> None:
    mine = _MINE.replace("queue 1", "transfer_input_files = data/a.csv\nqueue")

    with pytest.raises(UsageError, match=r"data/a\.csv would be elsewhere"):
        complete(mine, run="runs/mnist")
    assert "preserve_relative_paths" not in names(mine, run="mnist")


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("", "ExitCode =!= 85"),
        ("on_exit_remove = ExitCode == 0\n", "(ExitCode == 0) && ExitCode =!= 85"),
        ("on_exit_remove = ExitCode != 85\n", None),
        ("on_exit_remove = NumJobStarts > 850\n", "(NumJobStarts > 850) && ExitCode =!= 85"),
    ],
)
def test_on_a_shared_file_system_the_status_brings_it_back(rule: str, value: str | None) -> None:
    mine = f"executable = train.sh\nShould_Transfer_Files = no\n{rule}queue\n"

    changes = complete(mine, run=None).changes

    assert [change.value for change in changes] == ([value] if value is not None else [])


@pytest.mark.parametrize(("given", "told"), [("", "77"), ("checkpoint_exit_code = 77\n", None)])
def test_there_the_program_learns_of_another_status_from_the_job(given: str, told: str | None) -> None:
    mine = f"executable = train.sh\nshould_transfer_files = NO\n{given}queue\n"

    changes = {change.name: change.value for change in complete(mine, run=None, exit_code=77).changes}

    assert changes.get("+SuccessCheckpointExitCode") == told
    assert changes["on_exit_remove"] == "ExitCode =!= 77"


@pytest.mark.parametrize("queue", ["queue 10", "Queue  seed from seeds.txt", "queue x in (a, b)"])
def test_several_jobs_that_would_bring_home_the_same_run_are_refused(queue: str) -> None:
    mine = _MINE.replace("queue 1", queue)

    with pytest.raises(UsageError, match="these jobs would write one run"):
        complete(mine, run="mnist")


@pytest.mark.parametrize("more", ["queue", "arguments = b\nQueue 1", "if $(X)\nqueue\nendif"])
def test_more_than_one_queue_for_the_same_run_is_refused(more: str) -> None:
    with pytest.raises(UsageError, match=r"queue in lines 9 and 1\d: these jobs would write one run"):
        complete(f"{_MINE}\n{more}\n", run="mnist")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("initialdir = job-$(Process)", "When_To_Transfer_Output = ON_EXIT"),
        ("initialdir = job-$(Process)", "+SuccessCheckpointExitCode = 3"),
        ("should_transfer_files = NO", "should_transfer_files = YES"),
        ("should_transfer_files = NO", "on_exit_remove = True"),
    ],
)
def test_what_a_later_queue_would_have_otherwise_is_left_to_its_author(before: str, after: str) -> None:
    mine = f"executable = a\n{before}\nqueue\n{after}\nqueue\n"

    with pytest.raises(UsageError, match="is set after queue, line 4"):
        complete(mine, run="mnist")


@pytest.mark.parametrize(
    ("more", "run"),
    [
        ("initialdir = job-$(Process)", "mnist"),
        ("transfer_checkpoint_files = mnist-$(Process)", None),
        ("should_transfer_files = NO", None),  # the run is the program's affair: {job} in its name
    ],
)
def test_several_jobs_with_a_run_each_are_completed(more: str, run: str | None) -> None:
    mine = _MINE.replace("queue 1", f"{more}\nqueue 10")

    assert complete(mine, run=run).text.endswith("\nqueue 10\n")


def test_a_later_queue_in_the_directory_of_an_earlier_one_is_refused() -> None:
    mine = "executable = a\ninitialdir = one\nqueue\ninitialdir = two\nqueue\ninitialdir = one\nqueue\n"

    with pytest.raises(UsageError, match="queue in lines 3 and 7: these jobs would write one run"):
        complete(mine, run="mnist")


@pytest.mark.parametrize(
    ("more", "second"),
    [
        ("initialdir = job-$(Process)", "arguments = b"),
        ("should_transfer_files = NO", "arguments = b"),
        ("initialdir = one", "initialdir = two"),
        ("should_transfer_files = NO", "initialdir = two"),
    ],
)
def test_more_than_one_queue_with_a_run_each_is_completed(more: str, second: str) -> None:
    mine = f"executable = a\n{more}\narguments = a\nqueue\n{second}\nqueue\n"

    completed = complete(mine, run="mnist")

    assert completed.text.endswith(f"\nqueue\n{second}\nqueue\n")
    assert all(completed.text.count(f"\n{change.name} = ") == 1 for change in completed.changes)


def test_a_missing_queue_is_added() -> None:
    assert complete("executable = a", run="mnist").text.endswith("\nqueue\n")


def test_what_is_set_within_an_if_is_left_to_its_author() -> None:
    mine = "if $(X)\nwhen_to_transfer_output = ON_EXIT\nendif\nqueue\n"

    with pytest.raises(UsageError, match="within an if, line 2"):
        complete(mine, run="mnist")
