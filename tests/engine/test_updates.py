"""Whether an exception left a weight update half done."""

import sys

import pytest
import torch

from holdfast.engine.updates import Updates


class HalfWay(torch.optim.SGD):
    """Changes the first parameter, then fails."""

    def step(self, closure=None):
        with torch.no_grad():
            self.param_groups[0]["params"][0].add_(1.0)
        raise RuntimeError("out of memory")


def raised(function) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function()
    return caught.value


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(3))


def fail() -> None:
    raise ValueError("in the loss")


def test_an_exception_of_the_computation_leaves_no_update_half_done():
    assert not Updates().is_half_done(raised(fail))


def test_one_out_of_a_step_of_an_optimizer_does():
    assert Updates().is_half_done(raised(HalfWay([parameter()], lr=0.1).step))


def test_one_out_of_a_real_optimizer_does():
    weights = parameter()
    weights.grad = torch.zeros(3)
    optimizer = torch.optim.Adam([weights])
    optimizer.step()
    optimizer.state[weights]["exp_avg"] = torch.zeros(7)  # does not fit: fails in the middle

    assert Updates().is_half_done(raised(optimizer.step))


def test_one_under_a_scheduler_that_wraps_the_step_does():
    optimizer = HalfWay([parameter()], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)

    assert Updates().is_half_done(raised(optimizer.step))


def test_steps_of_other_things_are_no_updates():
    class Game:
        def step(self) -> None:
            fail()

    assert not Updates().is_half_done(raised(Game().step))


def test_one_after_the_step_leaves_none_half_done():
    weights = parameter()
    weights.grad = torch.ones(3)

    def train() -> None:
        torch.optim.SGD([weights], lr=0.1).step()
        fail()

    assert not Updates().is_half_done(raised(train))


@pytest.mark.parametrize("how", ["from", "while handling", "from None", "in a group"])
def test_another_exception_that_follows_from_it_hides_nothing(how):
    optimizer = HalfWay([parameter()], lr=0.1)

    def train() -> None:
        try:
            optimizer.step()
        except RuntimeError as error:
            match how:
                case "from":
                    raise ValueError("training failed") from error
                case "from None":
                    raise ValueError("training failed") from None
                case "in a group":
                    raise ExceptionGroup("training failed", [OSError(), error]) from None
                case _:
                    raise ValueError("training failed")  # noqa: B904

    assert Updates().is_half_done(raised(train))


def test_one_that_the_program_dealt_with_does_not_count():
    optimizer = HalfWay([parameter()], lr=0.1)

    def train() -> None:
        try:
            optimizer.step()
        except RuntimeError:
            pass
        fail()

    assert not Updates().is_half_done(raised(train))


def test_an_update_that_the_program_announces_counts():
    updates = Updates()

    def train() -> None:
        with updates.announced():
            fail()

    assert updates.is_half_done(raised(train))


def test_one_that_is_over_does_not():
    updates = Updates()

    def train() -> None:
        with updates.announced():
            pass
        fail()

    assert not updates.is_half_done(raised(train))


def test_an_announced_update_that_failed_is_forgotten_with_the_next():
    updates = Updates()

    def update() -> None:
        with updates.announced():
            fail()

    error = raised(update)
    with updates.announced():
        pass

    assert not updates.is_half_done(error)


def test_exceptions_in_a_circle_are_looked_at_once():
    first, second = ValueError(), KeyError()
    first.__context__, second.__context__ = second, first

    assert not Updates().is_half_done(first)


def test_without_torch_only_what_is_announced_is_known(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")

    assert not Updates().is_half_done(raised(fail))
