"""The descriptions that holdfast writes and completes, read by a real HTCondor."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from holdfast.integrations.htcondor_completing import complete
from holdfast.integrations.htcondor_description import Wishes, describe_job
from tests.htcondor.pool import Pool

pytestmark = [pytest.mark.slow, pytest.mark.scheduler]

_NASTY = (
    *("a b", "it's", "'", "''", '"', 'say "hi" it\'s', "", " ", "$HOME", "$(HOME)", "$(ClusterId)", "$ENV(HOME)", "$"),
    *(
        "$RANDOM_CHOICE(1,2)",
        "back\\slash\\",
        "\\",
        "\\n",
        'x\\"',
        "tab\ty",
        "#hash",
        ";",
        "&",
        "|",
        ">",
        "*",
        "~",
        "`id`",
    ),
    *("äö", "%d", "{x}", "[y]", "a=b", "-", "--", "queue", "@end", "x,y", "\u2028"),
)
# Prints its words, and what holdfast finds in the ads beside it.
_PROGRAM = """\
import json, os, sys
from holdfast.engine.condor_settings import checkpoint_settings
from holdfast.engine.jobs import find_job, restart_status
job, settings, status = find_job(os.environ), checkpoint_settings(os.environ), restart_status(None, os.environ)
json.dump([sys.argv[1:], job, settings, status, os.environ["HOLDFAST_TIME_LEFT"]], sys.stdout)
"""


def ads(pool: Pool, description: str, folder: Path) -> dict[str, str]:
    """What HTCondor makes of a description, without running it."""
    (folder / "job.sub").write_text(description)
    printed = pool.run("condor_submit", "-dry-run", "-", "job.sub", folder=folder)
    return dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)


def test_a_job_gets_its_words_and_finds_its_settings(pool: Pool) -> None:
    folder = pool.folder("words")
    (folder / "program.py").write_text(_PROGRAM)
    command = (sys.executable, "program.py", *_NASTY)
    more = {"job_max_vacate_time": "7"}
    wishes = Wishes(command, "words", "words", folder=str(folder), exit_code=77, every_s=3600, more=more)
    description = describe_job(wishes._replace(run="run"))
    (folder / "run").mkdir()
    shutil.chown(folder / "run", pool.user_id, pool.user_id)

    job = pool.submit(description, folder=folder)
    pool.wait_for(lambda: pool.query(job, "JobStatus")[0] in ("4", "5"), "a job to end")

    words, found, settings, status, left = json.loads((folder / f"words-{job.split('.')[0]}.out").read_text())
    assert words == list(_NASTY)
    assert found == ["htcondor", job, job, 0, None, None]
    assert (status, left) == (77, "3600 s")
    exit_code, files, destination, when, transfers, scratch, grace_s = settings
    assert (exit_code, files, destination, when, transfers) == (77, ["run"], "", "ON_EXIT_OR_EVICT", True)
    assert scratch.startswith(str(pool.root / "execute"))
    assert grace_s == 7


def test_a_completed_description_says_the_same_as_one_of_ours(pool: Pool) -> None:
    folder = pool.folder("completed")
    (folder / "train.sh").write_text("#!/bin/sh\n")
    (folder / "runs/mnist").mkdir(parents=True)
    ours = describe_job(Wishes(("./train.sh",), "runs/mnist", "mnist", folder=str(folder)))
    mine = "executable = train.sh\noutput = mnist.out\nwhen_to_transfer_output = ON_EXIT\nqueue\n"

    completed = ads(pool, complete(mine, run="runs/mnist").text, folder)
    written = ads(pool, ours, folder)

    names = ("SuccessCheckpointExitCode", "TransferCheckpoint", "TransferInput", "TransferOutput")
    names += ("WhenToTransferOutput", "ShouldTransferFiles", "PreserveRelativePaths", "WantFTOnCheckpoint")
    assert {name: completed[name] for name in names} == {name: written[name] for name in names}
    assert written["WhenToTransferOutput"] == '"ON_EXIT_OR_EVICT"'


def test_a_destination_and_attributes_come_to_the_ad(pool: Pool) -> None:
    folder = pool.folder("destination")
    more = {"+Project": '"x"', "MY.Note": '"y"', "request_gpus": "1"}
    wishes = Wishes(
        (sys.executable,), "run", "d", folder=str(folder), destination="osdf:///a/b", memory="2GB", more=more
    )

    found = ads(pool, describe_job(wishes), folder)

    assert found["CheckpointDestination"] == '"osdf:///a/b"'
    assert (found["Project"], found["Note"], found["RequestGPUs"]) == ('"x"', '"y"', "1")
    assert found["RequestMemory"] == "2048"


def test_submit_gives_htcondor_the_description_and_tells_the_number(pool: Pool) -> None:
    folder = pool.folder("submitted")
    words = ("-m", "holdfast", "submit", "htcondor", "--json", "--run", "runs/small", "--", "/bin/sh", "-c", "exit 0")

    told = json.loads(pool.run(sys.executable, *words, folder=folder))

    assert (folder / "small.sub").read_text() == told["text"]
    assert (folder / "runs" / "small").is_dir()
    pool.wait_for(lambda: pool.query(told["job"], "JobStatus")[0] in ("4", "5"), "a job to end")
    assert pool.query(told["job"], "JobStatus", "ExitCode") == ["4", "0"]
