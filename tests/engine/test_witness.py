"""Inside a program that is being proven: it tells what it sees, strikes where the plan says, and changes nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.engine.blocks import BlockPool
from holdfast.engine.catalog import read_catalog
from holdfast.engine.difference import Difference, compare
from holdfast.engine.evidence import PARTED, PLAN_VARIABLE, Interruption, Moments, Plan, Point
from holdfast.engine.identity import identify
from holdfast.engine.loading import Source
from holdfast.storage.posix import PosixStore

_TRAINING = """
import os, random, signal, sys
import numpy as np
import holdfast

background, saves = sys.argv[1], sys.argv[2]
random.seed(1)
np.random.seed(1)
rng = np.random.default_rng(1)
weights = np.zeros(1000)
state = {"weights": weights}
if saves == "everything":
    state["rng"] = rng

with holdfast.Checkpointer("runs/mine", state, every=None, background=background, signals=None) as checkpointer:
    restored = checkpointer.restore()
    first = 0 if restored is None else restored.step
    for step in range(first + 1, 9):
        weights += rng.random(1000) + np.random.random() + random.random()
        checkpointer.step(epoch=step // 4, loss=weights.sum())
print("done", weights.sum(), random.random(), np.random.random())
"""


class _Watch:
    """Runs programs under plans, in one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "proof"
        self.work = root / "work"
        self.work.mkdir()

    def start(
        self, text: str, *arguments: str, trace: str = "trace", is_proven: bool = True, **plan: Any
    ) -> "subprocess.CompletedProcess[str]":
        made = Plan(directory=str(self.directory), trace=str(self.directory / trace), **plan)
        (self.root / "plan.json").write_bytes(msgspec.json.encode(made))
        (self.root / "program.py").write_text(text)
        environment = {**os.environ, PLAN_VARIABLE: str(self.root / "plan.json") if is_proven else ""}
        return subprocess.run(
            [sys.executable, str(self.root / "program.py"), *arguments],
            cwd=self.work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def points(self, trace: str = "trace") -> list[Point]:
        """Not that there was nothing to restore, which is told besides."""
        lines = (self.directory / trace).read_bytes().splitlines()
        points = [msgspec.json.decode(line, type=Point) for line in lines]
        return [point for point in points if point.kind != "nothing"]

    def seen(self, trace: str = "trace") -> list[tuple[str, int]]:
        return [(point.kind, point.step) for point in self.points(trace)]

    def runs(self) -> list[Path]:
        return sorted((self.directory / "runs").iterdir())

    def saved_steps(self) -> list[int]:
        store = PosixStore(self.runs()[0])
        try:
            return sorted(one.step for one in read_catalog(store, identify(store)).checkpoints)
        finally:
            store.close()


@pytest.fixture
def watch(tmp_path: Path) -> _Watch:
    return _Watch(tmp_path)


def test_every_step_is_told_and_the_run_lies_in_the_directory_of_the_proof(watch: _Watch) -> None:
    ran = watch.start(_TRAINING, "off", "everything")

    assert ran.returncode == 0, ran.stderr
    points = watch.points()
    assert watch.seen() == [("began", 0), *[("step", step) for step in range(1, 9)]]
    assert {point.run for point in points} == {"runs/mine"}
    assert [point.epoch for point in points[1:]] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert list(points[1].leaves) == ["weights", "rng", "<random>.python", "<random>.numpy"]
    assert set(points[2].leaves) == {"weights", "rng", "<random>.python", "<random>.numpy"}
    assert float.fromhex(points[8].metrics["loss"]) == float(ran.stdout.split()[1])
    assert not (watch.work / "runs").exists()
    assert [run.name.rpartition("-")[0] for run in watch.runs()] == ["mine"]


def test_only_what_changed_is_told_again(watch: _Watch) -> None:
    watch.start(
        "import holdfast, numpy as np\n"
        "state = {'still': np.zeros(3), 'moves': np.zeros(3), 'count': {'n': 0, 'long': 'x' * 300}}\n"
        "c = holdfast.Checkpointer('r', state, every=None, background='off', random=False)\n"
        "c.step()\nstate['moves'][0] = 1\nstate['count']['n'] = 1\nc.step()\ndel state['count']['n']\nc.step()\n"
    )

    first, second, third = watch.points()[1:]

    assert {path: text[:4] for path, text in first.leaves.items()} == {
        "still": first.leaves["still"][:4],
        "moves": first.leaves["still"][:4],
        "count.n": "=0",
        "count.long": "=b3:",
        "count (order)": "=b3:",
    }
    assert first.leaves["still"] == first.leaves["moves"]
    assert set(second.leaves) == {"moves", "count.n"}
    assert second.leaves["count.n"] == "=1"
    assert (third.leaves, third.gone) == ({}, ("count.n", "count (order)"))


@pytest.mark.parametrize("background", ["off", "thread", "process"])
def test_the_program_cannot_tell_that_it_is_watched(watch: _Watch, background: str) -> None:
    alone = watch.start(_TRAINING, background, "everything", is_proven=False)
    watched = watch.start(_TRAINING, background, "everything")
    assert (alone.returncode, watched.returncode) == (0, 0), alone.stderr + watched.stderr
    assert alone.stdout == watched.stdout
    assert alone.stderr == watched.stderr


@pytest.mark.parametrize("background", ["off", "thread", "process"])
@pytest.mark.parametrize("when", ["before save", "in save", "after save", "in step"])
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM"])
def test_a_program_that_was_struck_goes_on_and_is_the_same(
    watch: _Watch, when: Moments, signal: str, background: str
) -> None:
    undisturbed = watch.start(_TRAINING, background, "everything", trace="reference")
    reference = str(watch.root / "reference")
    os.rename(watch.directory / "reference", reference)
    for run in watch.runs():
        run.rename(watch.root / run.name)
    interruption = Interruption(signal, 5, when)

    struck = watch.start(_TRAINING, background, "everything", save_at=(3, 5), interruption=interruption)
    saved = watch.saved_steps()
    again = watch.start(_TRAINING, background, "everything", trace="second", reference=reference, start=2)

    assert struck.returncode == (-9 if signal == "SIGKILL" else -15), struck.stderr
    assert watch.seen()[-2:] == [("step", 5), ("struck", 5)]
    if when != "in save":  # where both are possible
        assert saved == ([3] if when == "before save" else [3, 5])
    assert again.returncode == 0, again.stderr
    assert watch.seen("second")[1] in [("restored", 3), ("restored", 5)]
    assert watch.seen("second")[-1] == ("step", 8)
    assert again.stdout == undisturbed.stdout


def test_the_first_step_can_be_struck(watch: _Watch) -> None:
    slow = _TRAINING.replace("    weights +=", "    import time; time.sleep(0.5)\n        weights +=")

    ran = watch.start(slow, "off", "everything", interruption=Interruption("SIGKILL", 0, "in step"))

    assert ran.returncode == -9
    assert watch.seen() == [("began", 0), ("struck", 0)]


def test_a_step_that_is_shorter_than_thought_is_struck_at_its_end(watch: _Watch) -> None:
    ran = watch.start(_TRAINING, "off", "everything", interruption=Interruption("SIGKILL", 4, "in step", share=1e6))

    assert ran.returncode == -9
    assert watch.seen()[-2:] == [("step", 4), ("struck", 4)]


def test_a_name_that_stands_for_another_array_is_told_from_the_first_step_on(watch: _Watch) -> None:
    rebinding = _TRAINING.replace("weights += ", "weights = weights + ")

    ran = watch.start(rebinding, "off", "everything")

    assert ran.returncode == 0, ran.stderr
    steps = [point for point in watch.points() if point.kind == "step"]
    told = [[(one.name, one.shown) for one in point.bystanders if one.kind == "rebound"] for point in steps]
    # The entry of the dict that was given is the array that is saved.
    assert told == [[("weights", "weights")]] * 8


def test_the_versions_of_what_computes_are_told(watch: _Watch) -> None:
    watch.start(_TRAINING, "off", "everything")

    assert {"python", "numpy"} <= watch.points()[0].versions.keys()


@pytest.mark.parametrize("background", ["off", "process"])
def test_a_program_does_not_get_away_from_a_strike_in_a_save(watch: _Watch, background: str) -> None:
    interruption = Interruption("SIGKILL", 5, "in save", share=200)

    ran = watch.start(_TRAINING, background, "everything", save_at=(5,), interruption=interruption)

    assert ran.returncode == -9
    assert watch.seen()[-2:] == [("step", 5), ("struck", 5)]


def test_a_strike_in_a_save_that_does_not_come_is_made_all_the_same(watch: _Watch) -> None:
    ran = watch.start(_TRAINING, "off", "everything", interruption=Interruption("SIGKILL", 5, "in save"))

    assert ran.returncode == -9
    assert watch.seen()[-2:] == [("step", 5), ("struck", 5)]


def test_a_program_that_survives_the_signal_is_struck_once(watch: _Watch) -> None:
    """At the end of the step; the thread that was to do it in the middle comes too late."""
    survives = _TRAINING.replace(
        "random.seed(1)\n", "random.seed(1)\nsignal.signal(signal.SIGTERM, lambda *_: print('heard'))\n"
    ).replace("    weights +=", "    import time; time.sleep(0.05)\n        weights +=")

    ran = watch.start(survives, "off", "everything", interruption=Interruption("SIGTERM", 2, "in step", share=2.5))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[:2] == ["heard", "done"]
    assert watch.seen().count(("struck", 2)) == 1
    assert watch.seen()[-1] == ("step", 8)


@pytest.mark.parametrize("background", ["off", "thread", "process"])
def test_after_its_last_step_the_program_ends_and_its_run_is_free(watch: _Watch, background: str) -> None:
    ended = watch.start(_TRAINING, background, "everything", end_step=4, save_at=(4,))
    closed = (watch.runs()[0] / "journal.jsonl").read_text().count('"closed"')
    again = watch.start(_TRAINING, background, "everything", trace="second")

    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert closed == 1
    assert watch.seen()[-2:] == [("step", 4), ("ended", 0)]
    assert again.returncode == 0, again.stderr
    assert watch.seen("second")[1] == ("restored", 4)


def test_where_the_program_differs_it_writes_down_its_state_and_ends(watch: _Watch) -> None:
    watch.start(_TRAINING, "off", "less", trace="reference")
    dumped = watch.start(_TRAINING, "off", "less", dump_at=5, dump=str(watch.root / "expected"), trace="third")
    for run in watch.runs():
        run.rename(watch.root / run.name)
    watch.start(_TRAINING, "off", "less", save_at=(4,), interruption=Interruption("SIGKILL", 4, "after save"))

    ran = watch.start(
        _TRAINING,
        "off",
        "less",
        trace="second",
        reference=str(watch.directory / "reference"),
        dump=str(watch.root / "found"),
    )

    assert dumped.returncode == 0, dumped.stderr
    assert watch.seen("third")[-2:] == [("step", 5), ("ended", 0)]
    assert ran.returncode == PARTED, ran.stderr
    assert watch.seen("second")[-4:] == [("restored", 4), ("step", 5), ("differs", 5), ("ended", 0)]
    assert watch.points("second")[-2].text.split("\n") == ["weights", "metric loss"]
    restored = watch.points("second")[1]
    beside = [(one.kind, one.name) for one in restored.bystanders if one.kind != "variable"]
    assert beside == [("generator", "rng")]
    changes = _compare(watch.root / "expected", watch.root / "found")
    assert [(change.name, change.changed) for change in changes.arrays] == [("weights", 1000)]


def test_a_difference_that_is_ignored_counts_for_nothing(watch: _Watch) -> None:
    clock = _TRAINING.replace('"weights": weights}', '"weights": weights, "clock": {"now": os.getpid()}}')
    watch.start(clock, "off", "everything", trace="reference")
    for run in watch.runs():
        run.rename(watch.root / run.name)
    reference = str(watch.directory / "reference")

    differs = watch.start(clock, "off", "everything", trace="second", reference=reference)
    ignored = watch.start(clock, "off", "everything", trace="third", reference=reference, ignored=("clock.now",))

    assert (differs.returncode, ignored.returncode) == (PARTED, 0)


def test_a_save_by_the_program_is_told_struck_and_compared(watch: _Watch) -> None:
    saving = _TRAINING.replace(
        "checkpointer.step(epoch=step // 4, loss=weights.sum())",
        "step % 2 == 0 and checkpointer.save(step=step, metrics={'loss': weights.sum()})",
    )
    watch.start(saving, "process", "everything", trace="reference")
    for run in watch.runs():
        run.rename(watch.root / run.name)

    struck = watch.start(saving, "process", "everything", interruption=Interruption("SIGKILL", 4, "in save"))
    again = watch.start(
        saving, "process", "everything", trace="second", reference=str(watch.directory / "reference"), start=2
    )

    assert watch.seen("reference") == [("began", 0), *[("save", step) for step in (2, 4, 6, 8)]]
    assert struck.returncode == -9
    assert watch.seen()[-2:] == [("save", 4), ("struck", 4)]
    assert again.returncode == 0, again.stderr
    assert watch.seen("second")[-1] == ("save", 8)


def test_a_tree_that_is_saved_is_told(watch: _Watch) -> None:
    program = (
        "import holdfast, numpy as np\n"
        "c = holdfast.Checkpointer('r', every=None, background='off')\n"
        "tree = c.load() or {'w': np.zeros(3), 'step': 0}\n"
        "for step in range(tree['step'] + 1, 4):\n"
        "    tree = {'w': tree['w'] + 1, 'step': step}\n"
        "    c.save(step=step, tree=tree)\n"
    )
    first = watch.start(program, end_step=2, trace="reference")
    second = watch.start(program, reference=str(watch.directory / "reference"))

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    saved = [point for point in watch.points("reference") if point.kind == "save"]
    assert len([path for path in saved[0].leaves if path.endswith(("w", "step"))]) == 2
    assert [point.text for point in saved] == ["", ""]
    assert watch.seen()[:2] == [("began", 0), ("restored", 2)]
    assert watch.seen()[-1] == ("save", 3)


def test_a_state_that_cannot_be_saved_is_the_programs_own_error(watch: _Watch) -> None:
    ran = watch.start(
        "import holdfast\n"
        "c = holdfast.Checkpointer('r', {'odd': {'x': object()}}, every=None, background='off')\n"
        "c.step()\nprint('went on')\nc.save(step=2)\n"
    )

    assert ran.stdout == "went on\n"
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-3].startswith("holdfast.core.errors.StateError: the state cannot be saved")
    step = watch.points()[1]
    assert step.kind == "step"
    assert step.text.startswith("the state is not known: ")
    assert {path.partition(".")[0] for path in step.leaves} == {"<random>"}


def test_an_object_whose_state_dict_raises_is_heard_of_when_it_is_saved(watch: _Watch) -> None:
    ran = watch.start(
        "import holdfast\n"
        "class Broken:\n"
        "    def state_dict(self): raise KeyError('mine')\n"
        "    def load_state_dict(self, state): pass\n"
        "c = holdfast.Checkpointer('r', {'broken': Broken()}, every=None, background='off')\n"
        "c.step()\nprint('went on')\nc.save(step=2)\n"
    )

    assert (ran.returncode, ran.stdout) == (1, "went on\n")
    assert "StateError: broken: state_dict of __main__.Broken failed: KeyError: 'mine'" in ran.stderr


def test_two_saves_of_one_step_are_compared_each_with_its_own(watch: _Watch) -> None:
    program = (
        "import random, holdfast, numpy as np\n"
        "random.seed(1); np.random.seed(1)\n"
        "w = np.zeros(3)\n"
        "c = holdfast.Checkpointer('r', {'w': w}, every=None, background='off')\n"
        "c.restore()\n"
        "for step in range(int(w[0]) // 2 + 1, 5):\n"
        "    w += 1; c.save(step=step); w += 1; c.save(step=step)\n"
    )
    watch.start(program, trace="reference")
    reference = str(watch.directory / "reference")
    for run in watch.runs():
        run.rename(watch.root / run.name)

    struck = watch.start(program, trace="a", reference=reference, interruption=Interruption("SIGKILL", 3, "after save"))
    other = watch.start(program.replace("range(int(w[0]) // 2 + 1", "range(3"), trace="b", reference=reference)

    assert struck.returncode == -9
    assert watch.seen("b")[1:3] == [("restored", 3), ("save", 3)]
    assert other.returncode == PARTED  # the first save of step 3 is not what it was
    assert watch.points("b")[-2].text == "w"


def test_bad_arguments_are_the_programs_own_error(watch: _Watch) -> None:
    ran = watch.start(
        "import holdfast, numpy as np\n"
        "c = holdfast.Checkpointer('r', {'x': np.zeros(1)}, every=None, background='off')\n"
        "c.step(none=None)\n"
        "c.step(loss=object(), text='x', none=None)\n"
        "for arguments in ({'step': 'x'}, {'step': -1}, {'step': 1, 'metrics': 5}, {'step': np.int64(2)}):\n"
        "    try:\n        c.save(**arguments)\n    except Exception as error:\n        print(type(error).__name__)\n"
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["UsageError"] * 3


def test_two_checkpointers_are_told_apart(watch: _Watch) -> None:
    ran = watch.start(
        "import holdfast, numpy as np\n"
        "rng, other = np.random.default_rng(1), np.random.default_rng(2)\n"
        "one = holdfast.Checkpointer('one', {'rng': rng}, every=None, background='off')\n"
        "two = holdfast.Checkpointer('two', {'rng': other}, every=None, background='off')\n"
        "one.step(); two.step(); rng.random(); one.step(); two.step()\n",
        end_step=2,
    )

    points = watch.points()
    assert ran.returncode == 0, ran.stderr
    assert [(point.run, point.kind, point.step) for point in points] == [
        ("one", "began", 0),
        ("two", "began", 0),
        ("one", "step", 1),
        ("two", "step", 1),
        ("one", "step", 2),
        ("one", "ended", 0),
    ]
    assert set(points[4].leaves) == {"rng"}
    assert all(not point.bystanders for point in points)
    assert len(watch.runs()) == 2


def test_a_forked_child_and_another_process_tell_nothing_and_overwrite_nothing(watch: _Watch) -> None:
    ran = watch.start(
        "import os, subprocess, sys, holdfast, numpy as np\n"
        "c = holdfast.Checkpointer('r', {'x': np.zeros(1)}, every=None, background='off')\n"
        "c.step()\n"
        "if (pid := os.fork()) == 0:\n"
        "    d = holdfast.Checkpointer('child', {'x': np.zeros(1)}, every=None, background='off')\n"
        "    d.step(); d.save(step=5); d.close(); os._exit(0)\n"
        "print(os.waitpid(pid, 0)[1], flush=True)\n"
        "text = \"import holdfast\\nwith holdfast.Checkpointer('other', {'x': {'y': 1}}) as c: c.step()\"\n"
        "print(subprocess.run([sys.executable, '-c', text]).returncode, flush=True)\n"
        "c.step()\n"
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["0", "0"]
    assert watch.seen() == [("began", 0), ("step", 1), ("step", 2)]
    assert [run.name.rpartition("-")[0] for run in watch.runs()] == ["child", "other", "r"]
    assert list(watch.work.iterdir()) == []


def test_a_checkpointer_that_is_dropped_is_let_go(watch: _Watch) -> None:
    ran = watch.start(
        "import gc, weakref, holdfast, numpy as np\n"
        "gc.disable()\n"
        "class Model:\n"
        "    def state_dict(self): return {'x': 1}\n"
        "    def load_state_dict(self, state): pass\n"
        "model = Model()\n"
        "c = holdfast.Checkpointer('r', {'model': model}, every=None, background='off')\n"
        "c.step(); c.step()\n"
        "gone, model_gone = weakref.ref(c), weakref.ref(model)\n"
        "del c, model\n"
        "from holdfast.agent.exiting import wait_for_dropped\n"
        "wait_for_dropped()\n"
        "print(gone() is None, model_gone() is None)\n"
    )
    alone = watch.start((watch.root / "program.py").read_text(), is_proven=False)

    assert ran.stdout == alone.stdout, ran.stderr
    assert ran.stdout.split() == ["True", "True"]


def test_a_plan_that_cannot_be_read_is_said(watch: _Watch) -> None:
    (watch.root / "program.py").write_text("import holdfast\nholdfast.Checkpointer('r', {'x': {}})\n")
    (watch.root / "plan.json").write_text("{}")

    ran = subprocess.run(
        [sys.executable, str(watch.root / "program.py")],
        cwd=watch.work,
        env={**os.environ, PLAN_VARIABLE: str(watch.root / "plan.json")},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ran.returncode == 1
    assert "UsageError: HOLDFAST_PROVE names" in ran.stderr


def test_views_of_shared_memory_are_told_by_their_own_bytes(watch: _Watch) -> None:
    ran = watch.start(
        "import holdfast, numpy as np\n"
        "base = np.arange(6.0)\n"
        "state = {'a': base[:3], 'b': base[2:], 'c': base[::2], 'alone': np.arange(3.0)}\n"
        "c = holdfast.Checkpointer('r', state, every=None, background='off', random=False)\n"
        "c.step(); base[5] = 7; c.step()\n"
    )

    first, second = watch.points()[1:]
    assert ran.returncode == 0, ran.stderr
    assert first.leaves["a"] == first.leaves["alone"]
    assert set(second.leaves) == {"b"}


def test_settings_that_decide_over_bits_are_told_once(watch: _Watch) -> None:
    pytest.importorskip("torch")
    ran = watch.start(
        "import torch, holdfast\n"
        "c = holdfast.Checkpointer('r', {'w': torch.zeros(2, dtype=torch.bfloat16)}, every=None, background='off')\n"
        "c.step()\ntorch.use_deterministic_algorithms(True)\nc.step()\nc.step()\n"
    )

    assert ran.returncode == 0, ran.stderr
    told = [point.determinism.get("torch.use_deterministic_algorithms") for point in watch.points()]
    assert told == ["False", None, "True", None]


def _compare(before: Path, after: Path) -> Difference:
    sides: list[tuple[Source, str]] = []
    for path in (before, after):
        store = PosixStore(path)
        run_id = identify(store)
        sides.append((Source(store, run_id, BlockPool(), 1), read_catalog(store, run_id).checkpoints[0].id))
    found = compare(*sides[0], *sides[1])
    for source, _ in sides:
        source.store.close()
    return found
