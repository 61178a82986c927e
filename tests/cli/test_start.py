"""How the command starts: fast, and without a traceback whatever happens."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.commands import ls
from holdfast.cli.dispatch import COMMANDS
from holdfast.cli.exit_codes import EXIT_CODES, code_of
from holdfast.cli.main import main
from holdfast.cli.parser import make_parser
from holdfast.core import errors

_SOURCE = str(Path(holdfast.__file__).parents[1])
_HEAVY = (
    "numpy",
    "msgspec",
    "rich",
    "dataclasses",
    "inspect",
    "subprocess",
    "ctypes",
    "logging",
    "socket",
    "uuid",
    "psutil",
)


def _modules_after(*arguments: object) -> set[str]:
    code = "import sys\nfrom holdfast.cli.main import main\nmain(sys.argv[1:])\nprint('\\nMODULES', *sys.modules)\n"
    # -S: what the environment's own .pth files import is not ours.
    command = [sys.executable, "-S", "-c", code, *map(str, arguments)]
    path = os.pathsep.join([_SOURCE, *(entry for entry in sys.path if entry.endswith("site-packages"))])
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def test_the_version_is_said_without_a_parser_and_without_typing():
    loaded = _modules_after("--version")

    assert not loaded & {"argparse", "typing", "json", *_HEAVY}


def test_a_listing_loads_nothing_heavy(run):
    plain, with_options = _modules_after("ls", run), _modules_after("ls", run, "-n", 1)

    assert not plain & {"argparse", "contextlib", "importlib", *_HEAVY}
    assert sys.version_info >= (3, 14) or "typing" not in plain
    assert "argparse" in with_options
    assert not with_options & set(_HEAVY)


@pytest.mark.parametrize("arguments", [[], ["run"], [""], ["a run:latest"]])
def test_a_listing_without_options_takes_what_the_parser_would_have_made_of_it(arguments):
    parser = make_parser("ls", summary="", examples=())
    ls.add_arguments(parser)

    plain = ls.parse_plain(arguments)

    assert plain is not None
    assert vars(plain) == vars(parser.parse_args(arguments))


@pytest.mark.parametrize("arguments", [["--ids"], ["-h"], ["run", "--json"], ["run", "another"], ["--", "run"], ["-"]])
def test_a_listing_leaves_everything_else_to_the_parser(arguments):
    assert ls.parse_plain(arguments) is None


def test_every_command_explains_itself_with_examples(holdfast_command, capsys):
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])

        said = capsys.readouterr().out
        assert stopped.value.code == 0
        assert f"usage: holdfast {command}" in said
        assert "examples:\n  holdfast " in said


def test_the_help_names_all_commands_and_exit_codes(holdfast_command):
    answer = holdfast_command("--help")

    assert answer.code == 0
    assert all(f"  {command} " in answer.out for command in COMMANDS)
    assert all(meaning in answer.out for meaning in EXIT_CODES.values())


def test_without_a_command_the_help_is_shown_and_it_counts_as_misuse(holdfast_command):
    answer = holdfast_command()

    assert answer.code == 2
    assert answer.out.startswith("usage: holdfast COMMAND")


def test_an_unknown_command_gets_a_suggestion(holdfast_command):
    answer = holdfast_command("verfy", "run")

    assert answer.code == 2
    assert "there is no command 'verfy'" in answer.err
    assert "holdfast verify" in answer.err


@pytest.mark.parametrize("arguments", [("lss", "--json"), ("--json", "ls", "run")])
def test_an_unknown_command_is_a_document_too_where_one_is_asked_for(holdfast_command, arguments):
    answer = holdfast_command(*arguments)

    error = json.loads(answer.out)["error"]
    assert (answer.code, error["exit_code"], error["kind"]) == (2, 2, "UsageError")
    assert error["message"] in answer.err


def test_an_option_before_the_command_is_told_where_to_go(holdfast_command):
    misplaced = holdfast_command("--json", "ls", "run")
    unknown = holdfast_command("--quiet")

    assert (misplaced.code, unknown.code) == (2, 2)
    assert "--json goes behind the command\n  hint: holdfast ls … --json" in misplaced.err
    assert "there is no option --quiet without a command" in unknown.err


def test_an_unknown_option_is_misuse_and_not_abbreviated(run, holdfast_command):
    answer = holdfast_command("ls", "run", "--id")

    assert answer.code == 2
    assert answer.err.startswith("holdfast: error: holdfast ls: unrecognized arguments: --id\n  hint: ")


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("ls run --id", "--ids"),
        ("ls run --jsn", "--json"),
        ("export run --too x.npz", "--to"),
        ("prune run --max-siz=1G --keep-last 1", "--max-size"),
        ("prune run --keep-every 3", "--keep-every-steps or --keep-every-epochs"),
        ("ls run --bogus", None),
        ("ls run -n 0", None),
    ],
)
def test_for_an_option_that_is_not_known_a_close_one_is_suggested(run, holdfast_command, command, meant):
    answer = holdfast_command(*command.split())

    assert answer.code == 2
    hint = answer.err.partition("\n  hint: ")[2]
    assert hint.startswith("`holdfast " if meant is None else f"did you mean {meant}? `holdfast ")


def test_an_error_says_what_and_what_to_do_and_in_json_too(tmp_path, holdfast_command):
    answer = holdfast_command("ls", tmp_path / "nowhere", "--json")

    assert answer.code == 3
    assert answer.err.startswith("holdfast: error: ")
    assert "\n  hint: " in answer.err
    assert json.loads(answer.out)["error"]["exit_code"] == 3


def test_a_fault_of_our_own_is_one_line_unless_debugging(run, holdfast_command, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("somewhere\x1b[31m deep")

    monkeypatch.setattr("holdfast.cli.commands.ls.states_of", broken)

    answer = holdfast_command("ls", "run")

    assert answer.code == 70
    expected = (
        "holdfast: error: unexpected ZeroDivisionError: somewhere\\x1b[31m deep\n  hint: run with HOLDFAST_DEBUG=1"
    )
    assert answer.err.startswith(expected)

    monkeypatch.setenv("HOLDFAST_DEBUG", "1")

    with pytest.raises(ZeroDivisionError):
        main(["ls", "run"])


def test_an_interrupt_is_quiet_and_says_so_in_the_exit_status(run, holdfast_command, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.commands.ls.states_of", interrupted)

    answer = holdfast_command("ls", "run")

    assert answer.code == 128 + signal.SIGINT
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("module", ["holdfast.core.errors", "holdfast.cli.output", "argparse", "numpy"])
def test_an_interrupt_while_modules_are_imported_is_as_quiet(run, module):
    code = f"""
import sys

class Interrupting:
    def find_spec(name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting)
from holdfast.cli.main import run
run()
"""
    command = [sys.executable, "-c", code, "show", str(run)]

    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": _SOURCE})

    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "\nholdfast: interrupted\n"


@pytest.mark.parametrize("registers", ["", "atexit.register(print, 'at the end')"])
def test_a_listing_ends_at_once_but_not_before_all_is_said_and_done(run, registers):
    code = f"""
import atexit, sys
{registers}
sys.argv = ["holdfast", "ls", {str(run)!r}]
from holdfast.cli.main import run
run()
"""
    path = os.pathsep.join([_SOURCE, *(entry for entry in sys.path if entry.endswith("site-packages"))])
    # -S, and no more: what an environment registers itself (coverage does) would hide what happens without it.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )

    assert ("at the end" in done.stdout) is bool(registers)
    assert ", which has ended\n" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", ["--help", "--version", "ls {run}", "show {run} --json", "show missing --json"])
def test_a_reader_that_goes_away_causes_no_noise(run, arguments):
    command = [sys.executable, "-m", "holdfast", *arguments.format(run=run).split()]
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": _SOURCE})
    os.close(writing)

    assert b"Traceback" not in done.stderr
    assert b"ignored" not in done.stderr
    assert done.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("arguments", ["--help", "--version", "ls {run}", "show {run} --json"])
@pytest.mark.parametrize(("output", "code"), [("> /dev/full", 6), (">&-", 0)])
def test_an_output_that_cannot_be_written_is_no_fault_of_our_own(run, arguments, output, code):
    script = f"{sys.executable} -m holdfast {arguments.format(run=run)} {output}"

    done = subprocess.run(
        ["sh", "-c", script], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": _SOURCE}
    )

    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr


def test_every_error_of_ours_has_an_exit_code_of_the_table():
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and kind is not errors.HoldfastError:
            assert code_of(kind("what failed")) in EXIT_CODES, name
            if name != "SaveFailedError":
                assert code_of(kind("what failed")) != 70, name
