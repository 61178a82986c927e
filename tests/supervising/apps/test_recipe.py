"""Recipes, good and bad, and what they make of a command."""

from pathlib import Path

import pytest

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.supervising.apps import APP_NAMES, find_app
from holdfast.supervising.apps.command_line import CommandLine
from holdfast.supervising.apps.recipe import Recipe, parse_recipe, read_recipe

SMALL = '[checkpoint]\nfiles = ["state.bin"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.toml: Object missing required field `checkpoint`"),
        ("[checkpoint", "x.toml: not TOML"),
        ("[checkpoint]\nfiles = []\n", "checkpoint.files names no file"),
        ('[checkpoint]\nfiles = "state.bin"\n', "x.toml in checkpoint.files: Expected `array`, got `str`"),
        ('[checkpoint]\nfile = ["state.bin"]\n', "x.toml in checkpoint: Object contains unknown field `file`"),
        (SMALL + "keep = 0\n", "checkpoint.keep is 0, expected 1 or more"),
        (SMALL + 'settled = "soon"\n', "checkpoint.settled is 'soon', expected a duration"),
        (SMALL + 'also = ["/etc/passwd"]\n', "'/etc/passwd' is not a name inside of the program's folder"),
        (SMALL + 'also = ["../out"]\n', "'../out' is not a name inside of the program's folder"),
        (SMALL + 'previous = ["a", "b"]\n', "checkpoint.previous has 2 names, checkpoint.files 1"),
        (SMALL + 'check = ["true"]\n', "checkpoint.check does not say {file}"),
        (SMALL + 'step_command = ["true"]\n', "checkpoint.step_command and checkpoint.step_output go together"),
        (SMALL + "[progress]\nfile = 'a.log'\nstep = 'step ('\n", "progress.step is not a pattern"),
        (SMALL + "[progress]\nfile = 'a.log'\nstep = 'step'\n", "progress.step has 0 groups in parentheses"),
        (SMALL + "[progress]\nstep = 'step (1)'\n", "progress.step is given without progress.file"),
        (SMALL + "[ask]\n", "ask: expected one of signal, touch and commands, found none"),
        (SMALL + '[stop]\nsignal = "SIGTERM"\ntouch = "STOP"\n', "found signal, touch"),
        (SMALL + '[stop]\nsignal = "SIGNOTHING"\n', "stop.signal is 'SIGNOTHING', expected a name such as SIGUSR1"),
        (SMALL + '[stop]\ntouch = "/STOP"\n', "'/STOP' is not a name inside of the program's folder"),
        (SMALL + "[ask]\ncommands = [[]]\n", "ask.commands has an empty command"),
        (SMALL + "[words]\nDeff = {}\n", "words.Deff: expected small letters"),
        (
            SMALL + '[restart]\nadd = [["-r", "{checkpoint}"]]\n',
            "restart.add: {checkpoint} stands for nothing; known there",
        ),
        (SMALL + '[restart]\ncommand = ["go", "{state}"]\n', "restart.command: {state} stands for nothing"),
        (SMALL + '[start]\nadd = [["-r", "{newest}"]]\n', "start.add: {newest} stands for nothing"),
        (SMALL + '[stop]\ncommands = [["ctl", "{PID}"]]\n', "stop.commands: {PID} stands for nothing"),
        (
            '[checkpoint]\nfiles = ["dump.*"]\n[restart]\nadd = [["-r", "{newest}"]]\n',
            "checkpoint.newest = true makes it the one written last",
        ),
        ("a = " + "[" * 5000, "x.toml: n"),
    ],
)
def test_what_makes_no_sense_in_a_recipe_is_said(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_recipe(text, "x.toml")

    assert message in caught.value.message


def test_a_recipe_that_is_missing_or_no_text_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")

    for name in ("missing.toml", "binary.toml"):
        with pytest.raises(HoldfastError, match=name):
            read_recipe(str(tmp_path / name))


def test_a_name_that_nobody_knows_is_answered_with_the_ones_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        find_app("gromac", ["gmx", "mdrun"], run=None, folder=".", restart_status=85)

    assert all(name in caught.value.message for name in APP_NAMES)
    assert caught.value.hint == "did you mean gromacs?"


def test_a_program_that_a_recipe_needs_and_that_is_missing_is_said(tmp_path: Path) -> None:
    recipe = tmp_path / "x.toml"
    recipe.write_text('needs = ["no-such-program"]\n' + SMALL)

    with pytest.raises(UsageError, match="there is no no-such-program in PATH"):
        find_app(str(recipe), ["x"], run=None, folder=str(tmp_path), restart_status=85)


def test_dmtcp_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UsageError) as caught:
        find_app("dmtcp", ["./a.out"], run=None, folder=str(tmp_path), restart_status=85)

    assert caught.value.message == "--app dmtcp: there is no dmtcp_launch in PATH"


def built_in(name: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setenv("HOLDFAST_TIME_LEFT", "unlimited")
    app = find_app(name, command.split(), run=str(tmp_path / "kept"), folder=str(tmp_path), restart_status=85)
    try:
        return list(app.begin())
    finally:
        app.close()


@pytest.mark.parametrize(
    ("command", "state", "started"),
    [
        ("gmx mdrun", "state.cpt", "gmx mdrun -cpt 5 -cpi state.cpt"),
        ("gmx mdrun -deffnm run -cpt 15", "run.cpt", "gmx mdrun -deffnm run -cpt 15 -cpi run.cpt"),
        ("gmx mdrun -cpo a -maxh 2 -cpt 1", "a.cpt", "gmx mdrun -cpo a -maxh 2 -cpt 1 -cpi a.cpt"),
        ("gmx mdrun -cpt 1 -deffnm a[1]*", "a[1]*.cpt", "gmx mdrun -cpt 1 -deffnm a[1]* -cpi a[1]*.cpt"),
        ("mpirun -n 2 gmx_mpi mdrun -cpt 1", "state.cpt", "mpirun -n 2 gmx_mpi mdrun -cpt 1 -cpi state.cpt"),
        ("mdrun_mpi -cpi own.cpt -cpt 1", "state.cpt", "mdrun_mpi -cpt 1 -cpi state.cpt"),
    ],
)
def test_mdrun_goes_on_from_the_checkpoint_that_its_options_name(
    command: str, state: str, started: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / state).write_bytes(b"of an earlier run")
    monkeypatch.setenv("PATH", str(tmp_path))  # no gmx that could check it

    assert " ".join(built_in("gromacs", command, monkeypatch, tmp_path)) == started


def test_mdrun_is_told_to_end_before_the_time_of_the_job_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_TIME_LEFT", "unlimited")
    monkeypatch.setenv("HOLDFAST_DEADLINE", "")
    without = built_in("gromacs", "gmx mdrun", monkeypatch, tmp_path)
    monkeypatch.setenv("HOLDFAST_TIME_LEFT", "30000 h")
    app = find_app("gromacs", ["gmx", "mdrun"], run=str(tmp_path / "kept"), folder=str(tmp_path), restart_status=85)

    command = list(app.begin())
    app.close()

    assert "-maxh" not in without
    assert 29_000 < float(command[command.index("-maxh") + 1]) < 30_000


@pytest.mark.parametrize("option", ["-noappend", "-multidir"])
def test_options_of_mdrun_that_cannot_work_are_refused_with_the_reason(option: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"gromacs: {option} cannot be used: "):
        find_app("gromacs", ["gmx", "mdrun", option], run=None, folder=str(tmp_path), restart_status=85)


@pytest.mark.parametrize("name", ["/scratch/run", "../run", "a/../../run"])
def test_files_that_the_command_puts_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.cpt is outside of the folder"):
        find_app("gromacs", ["gmx", "mdrun", "-deffnm", name], run=None, folder=str(tmp_path), restart_status=85)


def test_a_command_without_mdrun_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the command has no 'mdrun': gmx grompp"):
        find_app("gromacs", ["gmx", "grompp"], run=None, folder=str(tmp_path), restart_status=85)


def test_a_restart_may_be_another_command_with_all_the_files_in_it(tmp_path: Path) -> None:
    line = CommandLine(
        ["solve", "a.in"],
        recipe_of(
            '[start]\nbefore = ["launch", "-q"]\n[words]\nport = { file = "port" }\n'
            '[restart]\ncommand = ["resume", "{files}", "--port", "{port}"]\n'
        ),
        folder=str(tmp_path),
        name="x",
    )

    assert line.start({}) == ["launch", "-q", "solve", "a.in"]
    assert line.restart(["a.ckpt", "b.ckpt"], {"port": "7"}) == ["resume", "a.ckpt", "b.ckpt", "--port", "7"]


@pytest.mark.parametrize(
    ("given", "restarted"),
    [
        ("-in in.melt -var restart equil.restart -log a", "-in in.melt -log a -var restart melt.restart"),
        ("-var restart a -in in.melt -var restart b", "-in in.melt -var restart melt.restart"),
        ("-var seed 7 -in in.melt", "-var seed 7 -in in.melt -var restart melt.restart"),
        ("-var restart -in in.melt", "-in in.melt -var restart melt.restart"),
        ("-var restart melt.restart", "-var restart melt.restart"),
    ],
)
def test_what_the_user_would_have_the_program_go_on_from_counts_for_the_beginning_only(
    given: str, restarted: str, tmp_path: Path
) -> None:
    recipe = recipe_of('[restart]\nadd = [["-var", "restart", "{newest}"]]\n')
    line = CommandLine(["lmp", *given.split()], recipe, folder=str(tmp_path), name="lammps")

    assert line.start({}) == ["lmp", *given.split()]
    assert line.restart(["melt.restart"], {}) == ["lmp", *restarted.split()]


def test_an_option_of_the_user_stays_where_the_recipe_has_another_for_every_start(tmp_path: Path) -> None:
    recipe = recipe_of('[start]\nadd = [["-cpt", "5"]]\n[restart]\nadd = [["--again"], ["-r", "{newest}"]]\n')
    line = CommandLine(["solve", "-cpt", "15", "--again", "a.in"], recipe, folder=str(tmp_path), name="x")

    assert line.restart(["a.chk"], {}) == ["solve", "-cpt", "15", "--again", "a.in", "-r", "a.chk"]


def test_a_word_may_be_what_a_file_says(tmp_path: Path) -> None:
    line = CommandLine(["x"], recipe_of('[words]\nport = { file = ".port" }\n'), folder=str(tmp_path), name="x")
    before = line.fill("--port={port}")
    (tmp_path / ".port").write_text("7779\n")

    assert before is None
    assert line.fill("--port={port}") == "--port=7779"


def recipe_of(text: str) -> Recipe:
    return parse_recipe(text + SMALL, "x.toml")
