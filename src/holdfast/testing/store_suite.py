"""The conformance suite of stores: `STORE_CHECKS` lists what every store does, `check_store` runs it all.

Under pytest: `@pytest.mark.parametrize("check", STORE_CHECKS, ids=str)`, then `check(open_store)`.
"""

from collections.abc import Callable

from holdfast.core.errors import HoldfastError
from holdfast.testing import store_blob_checks, store_lock_checks
from holdfast.testing.store_check import OpenStore, StoreCheck

__all__ = ["STORE_CHECKS", "OpenStore", "StoreCheck", "check_store"]

STORE_CHECKS: list[StoreCheck] = [
    value
    for module in (store_blob_checks, store_lock_checks)
    for value in vars(module).values()
    if isinstance(value, StoreCheck)
]


def check_store(make_place: Callable[[], OpenStore]) -> None:
    """Run all checks, each in a new place; AssertionError at the first behaviour that differs.

    `make_place()` makes an empty place and gives the function that opens it, as often as it is called.
    """
    for check in STORE_CHECKS:
        try:
            check(make_place())
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"{check.name}: {error}") from error
