"""Writes the golden files anew. Run it only to add a vector: what is there must stay readable as it is.

python -m tests.vectors.make_v1 NAME
"""

import json
import sys
from pathlib import Path
from unittest import mock

import holdfast
from holdfast.testing import FakeClock
from tests.vectors.states import STATES, register_classes

HERE = Path(__file__).parent / "v1"
RUN_ID = "00112233445566778899aabbccddeeff"
PROVENANCE = {
    "holdfast": "0.1.0",
    "python": "3.11.7",
    "libraries": {},
    "host": "golden",
    "machine": "x86_64",
    "code": None,
}


def make(name: str) -> None:
    run = HERE / name
    with (
        mock.patch("holdfast.checkpointer.begin_provenance", return_value=lambda: PROVENANCE),
        mock.patch("uuid.uuid4", return_value=mock.Mock(hex=RUN_ID)),
        holdfast.Checkpointer(run, STATES[name](), random=False, clock=FakeClock(utc_s=1794854521.0)) as ckpt,
    ):
        ckpt.save(step=1200, epoch=3, metrics={"loss": 0.125, "bad": float("nan")}, note="golden", tags=["v1"])
    (run / "attempts" / "000001.json").write_text(json.dumps({"attempt": 1, "host": "golden", "pid": 1, "job": ""}))
    (run / "journal.jsonl").unlink()


if __name__ == "__main__":
    register_classes()
    make(sys.argv[1])
