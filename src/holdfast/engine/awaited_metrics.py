"""Says early that a trigger waits for a metric that no step has: it may be called by another name."""

import logging
from collections.abc import Iterable

from holdfast.policy.functions import in_short
from holdfast.policy.triggers import Trigger, metrics_in

__all__ = ["AwaitedMetrics"]

_log = logging.getLogger("holdfast")

# After so many steps that had metrics, but not this one: where one of them has nearly the same name, it is misspelt.
_LIKELY_STEPS = 10
# Else it may be given only now and then, at the end of each epoch.
_STEPS = 100
_ALIKE = 0.85
# A program may name each of its metrics anew.
_MOST_NAMES = 100


class AwaitedMetrics:
    """Of those that a trigger waits for, remembers which no step has had yet. Steps without metrics do not count."""

    def __init__(self, trigger: Trigger) -> None:
        self._missing = self._unsaid = list(metrics_in(trigger))
        self._seen: dict[str, None] = {}
        self._steps = 0

    def note_known(self, names: Iterable[str]) -> None:
        """There are metrics of these names."""
        if not self._missing:
            return
        found = set(names)
        self._missing = [name for name in self._missing if name not in found]
        self._unsaid = [name for name in self._unsaid if name not in found]
        if len(self._seen) < _MOST_NAMES:
            self._seen.update(dict.fromkeys(found))

    def note(self, step: int, names: Iterable[str]) -> None:
        """Those of a step. Each that is awaited and does not come is said, once."""
        names = list(names)
        if not self._missing or not names:
            return
        self.note_known(names)
        self._steps += 1
        if self._steps in (_LIKELY_STEPS, _STEPS):
            from difflib import get_close_matches  # which takes its time, and is hardly ever needed

            alike = {name: get_close_matches(name, self._seen, n=1, cutoff=_ALIKE) for name in self._unsaid}
            for name in [name for name in self._unsaid if alike[name] or self._steps == _STEPS]:
                _tell(name, step, names, alike[name])
                self._unsaid = [other for other in self._unsaid if other != name]

    @property
    def instead(self) -> str:
        """What the steps had instead, where one that is awaited never came; else empty."""
        if not self._missing:
            return ""
        return f"the steps had {_listed(self._seen)}" if self._seen else "no step had any metrics"


def _tell(name: str, step: int, names: Iterable[str], alike: list[str]) -> None:
    _log.warning(
        "on_best(%r) follows a metric that no step has had so far, and asks for no checkpoint before; step %d has %s%s",
        name,
        step,
        _listed(names),
        f" (did you mean {alike[0]!r}?)" if alike else "",
    )


def _listed(names: Iterable[str]) -> str:
    return in_short(", ".join(sorted(names)))
