"""What stands in for `typing` where a listing starts."""

import copy
import pickle
import typing

from holdfast.core import light_typing


class Light(light_typing.NamedTuple):
    """A place."""

    name: str
    step: int = 7

    def __str__(self) -> str:
        return f"{self.name} at {self.step}"


class Real(typing.NamedTuple):
    """A place."""

    name: str
    step: int = 7

    def __str__(self) -> str:
        return f"{self.name} at {self.step}"


def test_a_light_named_tuple_is_what_typing_would_have_made():
    light, real = Light("run"), Real("run")

    assert light == real == ("run", 7)
    assert (str(light), light._asdict(), light._replace(step=8)) == (str(real), real._asdict(), real._replace(step=8))
    assert repr(light) == repr(real).replace("Real", "Light")
    for name in ("_fields", "_field_defaults", "__annotations__", "__doc__", "__module__", "__bases__"):
        assert getattr(Light, name) == getattr(Real, name)
    assert Light.__qualname__ == "Light"


def test_a_light_named_tuple_can_be_copied_and_pickled():
    light = Light("run", 3)

    assert pickle.loads(pickle.dumps(light)) == light
    assert type(copy.deepcopy(light)) is Light
