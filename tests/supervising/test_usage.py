"""What `holdfast run` says of command lines that make no sense; nothing is started then."""

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is no command to run"),
        (["--"], "there is no command to run"),
        (["--", ""], "there is no command to run"),
        (["python", "train.py"], "put -- before the command: holdfast run -- python train.py"),
        (["oops", "--", "true"], "before -- are only options, not oops"),
        (["--hang", "0", "--", "true"], "--hang is 0"),
        (["--hang", "soon", "--", "true"], "--hang is 'soon', expected a duration"),
        (["--grace", "-1", "--", "true"], "--grace"),
        (["--backoff", "nan", "--", "true"], "--backoff"),
        (["--max-restarts", "-1", "--", "true"], "--max-restarts"),
        (["--max-crashes", "0", "--", "true"], "--max-crashes"),
        (["--exit-code", "256", "--", "true"], "exit_code is 256"),
        (["--until-done", "--max-crashes", "3", "--", "true"], "--until-done has no limits"),
        (["--run", "runs/x", "--", "true"], "--run says where the files of an --app are saved"),
        (["--on-85", "perhaps", "--", "true"], "--on-85"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2

    assert words in capsys.readouterr().err


def test_with_json_the_refusal_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", "--"]) == 2

    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "UsageError"


def test_a_log_that_cannot_be_written_is_said_before_anything_starts(supervise, tmp_path: Path) -> None:
    job = supervise("--log", str(tmp_path / "nowhere" / "log"), command=["touch", str(tmp_path / "started")])

    assert job.end() == 6

    assert "No such file or directory" in job.err.read_text()
    assert not (tmp_path / "started").exists()
