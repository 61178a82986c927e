"""When a name that stands for something else is the cause, and what is said of it."""

import pytest

from holdfast.engine.evidence import Bystander
from holdfast.proving.rebinding import find_rebound
from tests.proving.traces import trace, work


def _rebound(name="w", path="w", kind="numpy.ndarray", code="w"):
    return Bystander("rebound", kind, name, "train.py", shown=path, code=code)


def _trace(seen_from, *, changes_at=(), steps=8, thing=None):
    return trace(
        *(
            work(
                step,
                {"w": f"b3:{step}"} if step == 1 or step in changes_at else {},
                bystanders=[thing or _rebound()] if step >= seen_from else [],
            )
            for step in range(1, steps + 1)
        )
    )


def test_what_is_saved_and_does_not_change_any_more_is_the_cause():
    found = find_rebound(_trace(4, changes_at=(2, 3, 4)))

    assert [(one.path, one.step, one.cause.kind) for one in found] == [("w", 4, "rebound")]
    assert found[0].cause.what.startswith("`w` stands for another array than the one in the state, since step 4: what")
    assert found[0].cause.advice == "change it in place: w[:] = …, or w -= …"


def test_from_the_first_step_on_two_steps_are_enough():
    assert find_rebound(_trace(1, steps=2))
    assert not find_rebound(_trace(1, steps=1))


@pytest.mark.parametrize(
    "seen",
    [
        _trace(4, changes_at=(2, 6)),  # another name still stands for it
        _trace(7),  # a short while says nothing
        trace(work(1, {"w": "b3:1"}, bystanders=[_rebound()]), *(work(step, {}) for step in range(2, 8))),
    ],
)
def test_it_is_none_where_the_saved_one_changes_or_it_was_only_for_a_while(seen):
    assert find_rebound(seen) == ()


@pytest.mark.parametrize(
    ("kind", "code", "what", "advice"),
    [
        ("torch.Tensor", "self.ema", "`self.ema` stands for another tensor", "self.ema[:] = …, or self.ema -= …"),
        ("dict", "best", "`best` stands for another dict", "best.update(…), or best[key] = …"),
        ("list", "losses", "`losses` stands for another list", "losses[:] = …, or losses.append(…)"),
    ],
)
def test_the_advice_is_written_as_the_program_would(kind, code, what, advice):
    thing = _rebound(name=f"main.{code}", kind=kind, code=code)

    cause = find_rebound(_trace(1, thing=thing))[0].cause

    assert cause.what.startswith(what)
    assert cause.advice == f"change it in place: {advice}"
