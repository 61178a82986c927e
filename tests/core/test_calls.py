"""Calls that public functions cannot be called with: errors of our own, which say what was likely meant."""

import inspect
from collections.abc import Callable

import pytest

import holdfast
from holdfast.core.calls import public_call


@pytest.mark.parametrize(
    ("call", "name", "meant"),
    [
        (lambda: holdfast.auto(overhed=0.02), "holdfast.auto has no option 'overhed'", "overhead"),
        (lambda: holdfast.keep(lst=1), "holdfast.keep has no option 'lst'", "last"),
        (lambda: holdfast.every(step=100), "holdfast.every has no option 'step'", "steps"),
        (lambda: holdfast.on_best("loss", mod="max"), "holdfast.on_best has no option 'mod'", "mode"),
        (lambda: holdfast.load("run", whch=5), "holdfast.load has no option 'whch'", "which"),
        (lambda: holdfast.prefetch("run", rn=1), "holdfast.prefetch has no option 'rn'", "run"),
        (lambda: holdfast.register(nam="x"), "holdfast.register has no option 'nam'", "name"),
        (lambda: holdfast.when(function=bool, functon=1), "holdfast.when has no option 'functon'", "function"),
        (
            lambda: holdfast.data.resumable([1], seed=1, batchsize=3),
            "holdfast.data.resumable has no option 'batchsize'",
            "batch_size",
        ),
    ],
)
def test_an_option_that_is_nearly_right_is_recognised(call: Callable[[], object], name: str, meant: str) -> None:
    with pytest.raises(holdfast.UsageError) as caught:
        call()

    assert caught.value.message == name
    assert caught.value.hint.startswith(f"did you mean {meant!r}? help(holdfast.")


@pytest.mark.parametrize(
    ("method", "option", "meant"),
    [
        ("save", {"metric": {"loss": 1.0}}, "metrics"),
        ("restore", {"strikt": True}, "strict"),
        ("load", {"lik": None}, "like"),
        ("over", {"epoch": 3}, "epochs"),
        ("stop", {"grace": 3}, "grace_s"),
        ("wait", {"timeout": 3}, "timeout_s"),
        ("pin", {"notes": "x"}, "note"),
        ("prune", {"dryrun": True}, "dry_run"),
    ],
)
def test_so_is_one_of_a_method(tmp_path, method: str, option: dict[str, object], meant: str) -> None:
    with holdfast.Checkpointer(tmp_path / "run", {"values": [1]}, background="off") as ckpt:
        data = ([1, 2],) if method == "over" else ()

        with pytest.raises(holdfast.UsageError, match=f"holdfast.Checkpointer.{method} has no option") as caught:
            getattr(ckpt, method)(*data, **option)

    assert f"did you mean {meant!r}?" in caught.value.hint


def test_so_is_one_of_what_a_method_returned(tmp_path) -> None:
    with holdfast.Checkpointer(tmp_path / "run", {"values": [1]}, background="off") as ckpt:
        for pending in (ckpt.save(step=1), holdfast.prefetch(tmp_path / "run")):
            with pytest.raises(holdfast.UsageError, match=r"\.wait has no option 'timeout'") as caught:
                pending.wait(timeout=3)  # type: ignore[call-arg]

            assert "did you mean 'timeout_s'?" in caught.value.hint


def test_a_method_is_not_given_what_has_a_name(tmp_path) -> None:
    with pytest.raises(holdfast.UsageError, match=r"holdfast.Checkpointer takes no 500 without a name") as caught:
        holdfast.Checkpointer(tmp_path / "run", {}, 500)  # type: ignore[misc]
    assert caught.value.hint.startswith("name it: every=, keep=, ")
    with pytest.raises(holdfast.UsageError, match=r"holdfast.Checkpointer: missing a required argument: 'run'"):
        holdfast.Checkpointer()  # type: ignore[call-arg]

    with holdfast.Checkpointer(tmp_path / "run", {"values": [1]}, background="off") as ckpt:
        with pytest.raises(holdfast.UsageError, match=r"holdfast.Checkpointer.save takes no 5 without a name"):
            ckpt.save(5)  # type: ignore[misc]
        assert ckpt.checkpoints() == []


def test_an_option_that_is_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(holdfast.UsageError, match="no option 'x', 'y'") as caught:
        holdfast.prefetch("run", x=1, y=2)

    assert caught.value.hint == "help(holdfast.prefetch) lists the options"


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (
            lambda: holdfast.every(100),
            "holdfast.every takes no 100 without a name",
            "name it: steps=, seconds=, minutes=, hours= or epochs=",
        ),
        (
            lambda: holdfast.auto(0.02),
            "holdfast.auto takes no 0.02 without a name",
            "name it: overhead=, lose_at_most=, at_least_every_steps= or mtbf=",
        ),
        (
            lambda: holdfast.register(None, "x"),
            "holdfast.register takes no 'x' without a name",
            "name it: name=",
        ),
        (
            lambda: holdfast.never(1),
            "holdfast.never takes no 1 without a name",
            "help(holdfast.never) says what it takes",
        ),
        (
            lambda: holdfast.on_best(),
            "holdfast.on_best: missing a required argument: 'metric'",
            "help(holdfast.on_best) lists the options",
        ),
    ],
)
def test_a_value_without_its_name_or_a_missing_one_is_refused(
    call: Callable[[], object], message: str, hint: str
) -> None:
    with pytest.raises(holdfast.UsageError) as caught:
        call()

    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.__suppress_context__


def test_a_type_error_of_the_function_itself_stays_as_it_is() -> None:
    @public_call("add")
    def add(first: object, *, second: object) -> object:
        return first + second  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        add(1, second="2")


def test_the_signature_and_the_docstring_are_those_of_the_function() -> None:
    assert list(inspect.signature(holdfast.keep).parameters)[:2] == ["last", "best"]
    assert (holdfast.keep.__name__, holdfast.keep.__module__) == ("keep", "holdfast.policy.keep")
    assert (inspect.getdoc(holdfast.keep) or "").startswith("What stays")
