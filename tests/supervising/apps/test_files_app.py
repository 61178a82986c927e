"""Files of a program as checkpoints: when they are copied, and which ones an attempt goes on from."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.core.errors import FencedError, RestoreError, RunBusyError, UsageError
from holdfast.engine.catalog import read_catalog
from holdfast.engine.identity import identify
from holdfast.engine.session import Session
from holdfast.storage.posix import PosixStore
from holdfast.supervising.apps.files_app import FilesApp
from holdfast.supervising.apps.recipe import parse_recipe
from holdfast.testing import FakeClock

SOLVER = ["solve", "--in", "a.in"]
IN_PLACE = """\
[checkpoint]
files = ["state.bin"]
also = ["out.txt"]
growing = ["out.txt"]
settled = "2 s"
keep = 5
[restart]
add = [["--from", "{newest}"]]
[progress]
file = "log.txt"
step = '^step (\\d+)'
total = 100
"""
RENAMED = IN_PLACE.replace('settled = "2 s"', "atomic = true")
_PID = 0


class Program:
    """The traces of a program in its folder, and the app that follows them."""

    def __init__(self, folder: Path, recipe: str = IN_PLACE, command: list[str] = SOLVER) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.app = self.new_app(recipe, command)
        self._written_ns = 10**18

    def new_app(self, recipe: str = IN_PLACE, command: list[str] = SOLVER) -> FilesApp:
        return FilesApp(
            parse_recipe(recipe, "solver.toml"),
            command,
            name="solver",
            run=str(self.folder / "kept"),
            folder=str(self.folder),
            restart_status=85,
            clock=self.clock,
        )

    def write(self, step: int, state: bytes | None = None, name: str = "state.bin") -> None:
        """As the program does it: the log first, then its state, then some output."""
        with open(self.folder / "log.txt", "a") as log:
            log.write(f"step {step}\n")
        self._written_ns += 10**9
        (self.folder / name).write_bytes(b"state of %d" % step if state is None else state)
        os.utime(self.folder / name, ns=(self._written_ns, self._written_ns))
        with open(self.folder / "out.txt", "a") as out:
            out.write(f"result {step}\n")

    def state(self) -> bytes:
        return (self.folder / "state.bin").read_bytes()

    def pass_by(self, seconds: float) -> int | None:
        """Looks before and after that time."""
        self.app.look(_PID)
        self.clock.advance(seconds)
        return self.app.look(_PID)

    def steps(self) -> list[int]:
        store = PosixStore(self.folder / "kept", readonly=True)
        try:
            return sorted(checkpoint.step for checkpoint in read_catalog(store, identify(store)).checkpoints)
        finally:
            store.close()

    def after(self, *steps: int) -> "Program":
        """The program has written these, and was killed."""
        self.app.begin()
        for step in steps:
            self.write(step)
            self.pass_by(3)
        self.app.end(137)
        return self


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.app.close()


def test_the_first_attempt_is_the_command_as_it_is_and_the_next_goes_on_from_the_file(program: Program) -> None:
    first = program.app.begin()
    program.write(10)
    program.pass_by(3)
    program.app.end(137)

    second = program.app.begin()

    assert first == SOLVER
    assert second == [*SOLVER, "--from", "state.bin"]
    assert program.steps() == [10]


def test_a_file_that_is_written_in_place_is_copied_only_once_it_has_not_changed_for_long_enough(
    program: Program,
) -> None:
    program.app.begin()

    program.write(10, b"hal")
    program.pass_by(1.5)
    program.write(10, b"half of it is there")
    program.pass_by(1.5)
    early = program.steps()
    program.pass_by(1)

    assert early == []
    assert program.steps() == [10]


def test_a_file_that_was_being_written_when_the_program_was_killed_is_not_saved_and_not_gone_on_from(
    program: Program,
) -> None:
    program.after(10)
    program.app.begin()
    program.write(20, b"torn")

    program.app.look(_PID)
    program.app.end(137)
    program.app.begin()

    assert program.steps() == [10]
    assert program.state() == b"state of 10"
    assert (program.folder / ".state.bin.aside").read_bytes() == b"torn"


def test_a_file_that_is_renamed_into_place_is_saved_at_once_even_if_the_program_is_killed(tmp_path: Path) -> None:
    program = Program(tmp_path, RENAMED)
    program.app.begin()
    program.write(10)

    program.app.end(137)

    assert program.steps() == [10]
    program.app.close()


def test_a_file_that_was_damaged_without_changing_its_time_is_replaced_from_the_run(program: Program) -> None:
    program.after(10)
    info = os.stat(program.folder / "state.bin")
    (program.folder / "state.bin").write_bytes(b"stXte of 10")
    os.utime(program.folder / "state.bin", ns=(info.st_atime_ns, info.st_mtime_ns))

    program.app.begin()

    assert program.state() == b"state of 10"
    assert os.stat(program.folder / "state.bin").st_mtime_ns == info.st_mtime_ns


def test_files_that_are_gone_are_brought_back_and_the_program_does_not_start_over(program: Program) -> None:
    program.after(10, 20)
    os.remove(program.folder / "state.bin")
    os.remove(program.folder / "out.txt")

    command = program.app.begin()

    assert command[-2:] == ["--from", "state.bin"]
    assert program.state() == b"state of 20"
    assert (program.folder / "out.txt").read_text() == "result 10\nresult 20\n"


def test_an_output_that_has_grown_since_the_checkpoint_stays_and_one_that_was_cut_is_brought_back(
    program: Program,
) -> None:
    program.after(10)
    out = program.folder / "out.txt"

    out.write_text("result 10\nresult 11\n")
    program.app.begin()
    grown = out.read_text()
    out.write_text("resu")
    program.app.begin()

    assert grown == "result 10\nresult 11\n"
    assert out.read_text() == "result 10\n"


def test_older_files_than_those_of_the_run_are_replaced(program: Program) -> None:
    program.after(10, 20)
    (program.folder / "state.bin").write_bytes(b"state of 10")
    os.utime(program.folder / "state.bin", ns=(10**17, 10**17))

    program.app.begin()

    assert program.state() == b"state of 20"


def test_newer_files_that_were_renamed_into_place_are_gone_on_from_and_saved(tmp_path: Path) -> None:
    program = Program(tmp_path, RENAMED)
    program.after(10)
    program.write(20)  # by a program whose supervisor had been killed

    program.app.begin()

    assert program.state() == b"state of 20"
    assert program.steps() == [10, 20]
    program.app.close()


def test_where_the_programs_check_refuses_a_newer_file_that_of_the_run_is_used(tmp_path: Path) -> None:
    program = Program(
        tmp_path, RENAMED.replace("atomic = true", 'atomic = true\ncheck = ["grep", "-q", "state", "{file}"]')
    )
    program.after(10)
    program.write(20, b"nonsense")

    program.app.begin()

    assert program.state() == b"state of 10"
    program.app.close()


def test_where_no_checkpoint_of_the_run_can_be_used_nothing_is_started(program: Program) -> None:
    program.after(10)
    program.app.close()
    for shard in (program.folder / "kept").glob("0*/rank-*.safetensors"):
        data = bytearray(shard.read_bytes())
        data[-20] ^= 1
        shard.write_bytes(data)
    program.app = program.new_app()

    with pytest.raises(RestoreError, match="none of 1 checkpoints can be used"):
        program.app.begin()


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(program: Program) -> None:
    program.after(10, 20)
    program.app.close()
    shard = next((program.folder / "kept").glob("*20-e*/rank-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1
    shard.write_bytes(data)
    os.remove(program.folder / "state.bin")
    program.app = program.new_app()

    program.app.begin()

    assert program.state() == b"state of 10"


def test_a_checkpoint_from_which_the_program_never_gets_further_is_passed_over_after_three_tries(
    program: Program,
) -> None:
    program.after(10, 20)

    states = []
    for _ in range(4):
        program.app.begin()
        states.append(program.state())
        program.app.end(139)

    assert states == [b"state of 20"] * 3 + [b"state of 10"]


@pytest.mark.parametrize(
    ("step", "status", "outcome", "final"),
    [(100, 0, "done", 0), (50, 0, "again", 85), (50, 85, "again", 85), (50, 139, "failed", 139), (100, 1, "failed", 1)],
)
def test_what_an_end_means_follows_from_status_and_step(
    program: Program, step: int, status: int, outcome: str, final: int
) -> None:
    program.app.begin()
    program.write(step)

    ending = program.app.end(status)

    assert (ending.outcome, ending.status, ending.from_step, ending.step) == (outcome, final, 0, step)


def test_a_program_that_ends_well_without_being_done_or_getting_further_has_failed(program: Program) -> None:
    program.after(10)
    program.app.begin()

    ending = program.app.end(0)

    assert (ending.outcome, ending.status, ending.from_step) == ("failed", 75, 10)


def test_the_end_says_done_only_by_what_this_attempt_wrote(tmp_path: Path) -> None:
    recipe = IN_PLACE.replace("total = 100\n", "[end]\ndone = 'all done'\n")
    program = Program(tmp_path, recipe)
    (tmp_path / "log.txt").write_text("all done\n")
    program.app.begin()
    program.write(10)
    early = program.app.end(0)
    program.app.begin()
    program.write(20)
    with open(tmp_path / "log.txt", "a") as log:
        log.write("all done\n")

    late = program.app.end(0)

    assert (early.outcome, late.outcome) == ("again", "done")
    program.app.close()


@pytest.mark.parametrize("rule", ["total = 100\n", "[end]\ndone = '^step 100$'\n"])
def test_a_program_that_does_not_end_its_last_line_is_done_all_the_same(tmp_path: Path, rule: str) -> None:
    program = Program(tmp_path, IN_PLACE.replace("total = 100\n", rule))
    program.app.begin()
    program.write(90)
    with open(tmp_path / "log.txt", "a") as log:
        log.write("step 100")

    ending = program.app.end(0)

    assert (ending.outcome, ending.step) == ("done", 100)
    program.app.close()


def test_a_program_that_says_that_it_was_stopped_is_not_done_whatever_its_step_and_status(tmp_path: Path) -> None:
    program = Program(tmp_path, IN_PLACE + "[end]\nagain = '^stopped'\n")
    program.app.begin()
    program.write(100)
    with open(tmp_path / "log.txt", "a") as log:
        log.write("stopped\n")
    stopped = [program.app.end(1)]
    program.app.begin()
    # Cut and written on, as programs do that append: what stays of it is of the attempt before.
    (tmp_path / "log.txt").write_text("step 100\nstopped\nstep 110\n")

    ended = program.app.end(0)

    assert [(ending.outcome, ending.status) for ending in stopped] == [("again", 85)]
    assert (ended.outcome, ended.status) == ("done", 0)
    program.app.close()


def test_a_last_checkpoint_that_could_not_be_saved_reaches_the_status(program: Program) -> None:
    program.app.begin()
    program.write(100)

    with files_of_at_most(4):
        ending = program.app.end(0)

    assert (ending.outcome, ending.status) == ("done", 74)


def test_a_checkpoint_that_could_not_be_saved_is_tried_again_later(program: Program) -> None:
    program.app.begin()
    program.write(10)

    with files_of_at_most(4):
        program.pass_by(3)
    program.pass_by(3)
    early = program.steps()
    program.pass_by(30)

    assert early == []
    assert program.steps() == [10]


def test_once_the_run_belongs_to_another_nothing_is_saved_any_more(program: Program) -> None:
    program.after(10)
    program.app.begin()
    other = Session(PosixStore(program.folder / "kept"), program.clock, takeover=True, fresh=False, workers=2)
    program.write(20)

    with pytest.raises(FencedError):
        program.pass_by(3)

    assert program.steps() == [10]
    other.close()


def test_a_run_that_another_supervisor_holds_is_refused(program: Program) -> None:
    program.after(10)
    second = program.new_app()

    with pytest.raises(RunBusyError):
        second.begin()

    second.close()


def test_a_run_with_files_of_another_program_is_refused(program: Program) -> None:
    program.after(10)
    program.app.close()
    program.app = program.new_app(IN_PLACE.replace("state.bin", "other.bin"))

    with pytest.raises(UsageError, match=r"other files than this command writes: state\.bin"):
        program.app.begin()


def test_a_checkpoint_that_lacks_a_file_that_the_recipe_wants_by_now_does_not_start_the_program_over(
    program: Program,
) -> None:
    program.after(10)
    program.app.close()
    program.write(20, b"torn")
    program.write(20, b"torn", name="grid.bin")
    program.app = program.new_app(IN_PLACE.replace('["state.bin"]', '["state.bin", "grid.bin"]'))

    with pytest.raises(RestoreError, match=r"step 10 lacks grid\.bin, which the recipe wants"):
        program.app.begin()

    assert program.state() == b"torn"  # it is where it was


def test_outputs_that_are_too_large_together_are_left_out_and_the_checkpoint_says_so(tmp_path: Path) -> None:
    program = Program(tmp_path, IN_PLACE.replace("keep = 5", "keep = 5\nalso_max_bytes = 5"))
    program.after(10)
    store = PosixStore(tmp_path / "kept", readonly=True)

    notes = [checkpoint.note for checkpoint in read_catalog(store, identify(store)).checkpoints]

    assert notes == ["without out.txt"]
    store.close()
    program.app.close()


def test_of_numbered_files_the_newest_whole_one_is_kept_and_its_name_tells_the_step(tmp_path: Path) -> None:
    recipe = IN_PLACE.replace('files = ["state.bin"]', "files = [\"state.*\"]\nnewest = true\nstep_in_name = '(\\d+)$'")
    program = Program(tmp_path, recipe)
    program.app.begin()
    for step in (10, 20, 30):
        program.write(step, name=f"state.{step}")
        program.pass_by(3)
    program.write(40, b"torn", name="state.40")
    program.app.look(_PID)
    program.app.end(137)

    command = program.app.begin()

    assert program.steps() == [10, 20, 30]
    assert command[-1] == "state.30"
    program.app.close()


def test_of_numbered_files_only_the_one_that_was_being_written_is_lost_when_the_supervisor_is_killed_too(
    tmp_path: Path,
) -> None:
    recipe = IN_PLACE.replace('files = ["state.bin"]', "files = [\"state.*\"]\nnewest = true\nstep_in_name = '(\\d+)$'")
    program = Program(tmp_path, recipe)
    program.app.begin()
    program.write(10, name="state.10")
    program.pass_by(3)
    program.app.close()
    for step, data in ((20, b"whole"), (30, b"whole"), (40, b"torn")):
        program.write(step, data, name=f"state.{step}")
    program.app = program.new_app(recipe)

    command = program.app.begin()

    assert command[-1] == "state.30"
    assert program.steps() == [10, 30]
    assert (tmp_path / ".state.40.aside").read_bytes() == b"torn"
    program.app.close()


def test_of_numbered_files_that_never_got_into_the_run_the_one_before_the_torn_one_is_gone_on_from(
    tmp_path: Path,
) -> None:
    program = Program(tmp_path, IN_PLACE.replace('files = ["state.bin"]', 'files = ["state.*"]\nnewest = true'))
    program.app.begin()
    for step, data in ((10, b"whole"), (20, b"torn")):
        program.write(step, data, name=f"state.{step}")
    program.app.end(137)

    command = program.app.begin()

    assert command[-1] == "state.10"
    program.app.close()


@pytest.mark.parametrize(
    ("tool", "step"), [('["cat", "{file}"]', 7), ('["no-such-tool", "{file}"]', 10), ('["true", "{file}"]', 10)]
)
def test_the_step_that_a_tool_finds_in_the_file_goes_before_that_of_the_log(
    tmp_path: Path, tool: str, step: int
) -> None:
    recipe = IN_PLACE.replace("keep = 5", f"keep = 5\nstep_command = {tool}\nstep_output = 'of (\\d+)'")
    program = Program(tmp_path, recipe)
    program.app.begin()

    program.write(10, b"state of 7\n" + b"and much more\n" * 100_000)
    program.pass_by(3)

    assert program.steps() == [step]
    program.app.close()


def test_the_program_is_asked_for_a_checkpoint_by_a_file_as_often_as_the_recipe_says(tmp_path: Path) -> None:
    program = Program(tmp_path, IN_PLACE + '[ask]\ntouch = "CHECKPOINT"\nevery = "10 min"\n')
    program.app.begin()

    program.pass_by(599)
    early = (tmp_path / "CHECKPOINT").exists()
    program.pass_by(2)

    assert not early
    assert (tmp_path / "CHECKPOINT").exists()
    program.app.close()


def test_a_program_that_is_asked_more_often_than_it_may_be_copied_is_copied_all_the_same(tmp_path: Path) -> None:
    recipe = IN_PLACE.replace("keep = 5", 'keep = 5\npause = "20 min"')
    program = Program(tmp_path, recipe + '[ask]\ntouch = "CHECKPOINT"\nevery = "10 min"\n')
    program.app.begin()

    for minute in range(60):
        if (tmp_path / "CHECKPOINT").exists():
            (tmp_path / "CHECKPOINT").unlink()
            program.write(minute)
        program.pass_by(60)

    assert program.steps() == [10, 30, 50]
    program.app.close()


def test_what_a_command_was_asked_for_and_came_back_with_is_saved_at_once(tmp_path: Path) -> None:
    recipe = IN_PLACE + '[ask]\ncommands = [["sh", "-c", "echo whole > state.bin"]]\nevery = "10 min"\n'
    program = Program(tmp_path, recipe)
    program.app.begin()

    program.pass_by(601)

    assert len(program.steps()) == 1
    program.app.close()


def test_what_a_command_wrote_that_had_the_program_stop_is_saved_and_gone_on_from(tmp_path: Path) -> None:
    recipe = IN_PLACE + '[stop]\ncommands = [["sh", "-c", "echo step 20 >> log.txt; echo whole > state.bin"]]\n'
    program = Program(tmp_path, recipe)
    program.app.begin()
    program.write(10)
    program.pass_by(3)

    program.app.ask_to_stop(_PID)
    program.app.end(143)
    program.app.close()
    program.app = program.new_app(recipe)
    command = program.app.begin()

    assert program.steps() == [10, 20]
    assert program.state() == b"whole\n"
    assert command == [*SOLVER, "--from", "state.bin"]
    program.app.close()


def test_the_journal_of_the_run_tells_of_a_stop(program: Program) -> None:
    program.app.begin()
    program.write(10)
    program.app.ask_to_stop(os.getpid())
    program.app.end(143)

    events = [
        json.loads(line)["event"] for line in (program.folder / "kept" / "journal.jsonl").read_text().splitlines()
    ]

    assert "stopped" in events


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_program_that_tells_no_steps_and_was_asked_to_stop_is_not_taken_for_done(tmp_path: Path) -> None:
    program = Program(tmp_path, IN_PLACE.partition("[progress]")[0] + '[stop]\ntouch = "STOP"\n')
    program.app.begin()
    program.write(10)
    program.app.ask_to_stop(_PID)
    asked = program.app.end(0)
    program.app.begin()

    by_itself = program.app.end(0)

    assert (asked.outcome, asked.status) == ("again", 85)
    assert (by_itself.outcome, by_itself.status) == ("done", 0)
    program.app.close()
