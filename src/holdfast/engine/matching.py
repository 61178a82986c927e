"""Comparing a checkpoint with the program's state, and loading it into the program's own objects.

Everything is compared before anything is loaded: the plan lists what to read, straight into the program's arrays, and
`apply` does the rest. A mismatch raises before either.
"""

import collections
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from holdfast.core.errors import FormatError, HoldfastError, StateMismatchError, in_words
from holdfast.engine.adapters import (
    copies_into_own,
    find_restorable,
    is_mutable,
    is_optimizer,
    is_unshaped,
    loads_in_place,
    replace_contents,
    target_memory,
)
from holdfast.engine.comparing import corresponds, difference_of, takes_all, unlike
from holdfast.engine.filling import Filling, Target, fill_targets
from holdfast.engine.objections import objection_to
from holdfast.engine.optimizers import load_groups, load_slots, misfit_slots, needs_groups_only, why_left_alone
from holdfast.engine.renaming import rename_tree
from holdfast.engine.ties import conflicts
from holdfast.format.arrays import Destination, LeafInfo
from holdfast.format.carriers import Refused, array_kind
from holdfast.format.decode import MISSING, PICKLE_HINT, Builder, Late, settle
from holdfast.format.frameworks import loaded
from holdfast.format.generators import put_state, read_state
from holdfast.format.keys import mapping_entries
from holdfast.format.nodes import Node, optional_field
from holdfast.format.paths import is_inside, join
from holdfast.format.registry import type_name
from holdfast.format.select import MAPPING_KINDS, array_paths
from holdfast.format.stateful import is_stateful

__all__ = ["MatchPlan", "match_state"]

_ARRAY_KINDS = frozenset(("array", "tensor", "jax"))
_PLAIN = frozenset((bool, int, float, str, type(None)))
_SEQUENCES = (list, tuple, collections.deque)
_HINT = "strict=False loads what fits, rename={'old.path': 'new.path'} maps names"
_HINT_OF_TORCH = (
    "strict=False loads what fits and leaves an optimizer or scheduler that does not fit as it is, "
    "rename={'old.path': 'new.path'} maps names"
)
_HINT_OF_LISTS = (
    "a list that becomes longer while the program runs has to be empty when it is restored, as by history.clear(): "
    f"then it is filled as it was saved; {_HINT}"
)


class MatchPlan:
    """What to read and where to; `apply` then finishes the load. `skipped` says what was left alone.

    `unknown_classes` are those whose objects become Records, with the first place of each.
    """

    def __init__(
        self, filling: Filling, parts: Sequence[Any], *, skipped: list[str], unknown_classes: dict[str, str]
    ) -> None:
        self.destinations: list[Destination] = filling.destinations
        self.skipped = skipped
        self.unknown_classes = unknown_classes
        self._steps = filling.steps
        self._parts = parts

    def apply(self) -> None:
        """Bring everything to its place: arrays first, then containers, generators and objects with load_state_dict."""
        for step in self._steps:
            step()
        for part in self._parts:
            settle(part)


def match_state(
    tree: Node,
    leaves: Sequence[LeafInfo],
    state: Mapping[str, object],
    *,
    strict: bool = True,
    rename: Mapping[str, str] | None = None,
    allow_pickle: bool = False,
    what: str = "the checkpoint",
) -> MatchPlan:
    """A plan to load the checkpoint into the state; StateMismatchError lists all differences, and nothing is touched.

    Not strict: what does not fit keeps the program's value and is listed in the plan's `skipped`. What an object of the
    program refuses by `check_state_dict` is an error all the same: it would go on from somewhere else. `what` is
    the checkpoint's name in the message.
    """
    matcher = _Matcher(leaves, strict=strict, allow_pickle=allow_pickle)
    if rename:
        tree, problems = rename_tree(tree, state, rename)
        matcher.problems.extend(problems)
    try:
        parts = matcher.match_names(tree, state)
    finally:
        matcher.release()
    matcher.check_sharing()
    if matcher.problems:
        differences = "1 difference" if len(matcher.problems) == 1 else f"{len(matcher.problems)} differences"
        message = f"{what} does not fit the program ({differences}), nothing was loaded:"
        raise StateMismatchError(message, problems=matcher.problems, hint=matcher.whole_hint())
    filling = fill_targets(matcher.targets, matcher.memory)
    return MatchPlan(filling, parts, skipped=matcher.skipped, unknown_classes=matcher.unknown_classes)


class _Matcher(Builder):
    def __init__(self, leaves: Sequence[LeafInfo], *, strict: bool, allow_pickle: bool) -> None:
        super().__init__(leaves, allow_pickle=allow_pickle)
        self.targets: list[Target] = []
        self.skipped: list[str] = []
        self.hint = _HINT
        self._hints_of_objects: list[str] = []
        self._leaves = leaves
        self._strict = strict
        self._fresh = 0
        self._inside_state_dict = 0
        self._hands_over = False
        self._slots: list[str] = []
        self._misfits: set[str] = set()

    def match_names(self, tree: Node, state: Mapping[str, object]) -> list[Any]:
        """The parts of the whole state, by the names at its top."""
        if not isinstance(tree, dict) or tree.get("kind") != "dict":
            raise FormatError("the tree of the checkpoint is not a state: its root is no dictionary")
        stored = dict(mapping_entries(tree, self.frameworks))
        for name in stored:
            if name not in state:
                self.note(f"{name}: extra: the checkpoint has it, the program does not")
        for name in state:
            if name not in stored:
                self.note(f"{name}: missing: the program has it, the checkpoint does not")
        return [self.build_root(stored[name], name, value) for name, value in state.items() if name in stored]

    def check_sharing(self) -> None:
        """Arrays that are one in the program cannot take two different contents."""
        refused = set()
        for first, other in conflicts(self.targets):
            self.note(f"{other.path}: tied to {first.path} in the program, separate in the checkpoint")
            refused.add(id(other))
        if refused:
            self.targets = [target for target in self.targets if id(target) not in refused]

    def note(self, problem: str) -> None:
        """A difference: an error if strict, else something that is left alone."""
        (self.problems if self._strict else self.skipped).append(problem)

    def whole_hint(self) -> str:
        """What helps against all problems; what an object refuses, strict=False does not load either."""
        hint = PICKLE_HINT if any("pickled" in problem for problem in self.problems) else self.hint
        hints = [hint] if len(self.problems) > len(self._hints_of_objects) else []
        return "; ".join([*hints, *dict.fromkeys(filter(None, self._hints_of_objects))])

    def build(self, node: Node, path: str, like: object, depth: int) -> Any:
        if self._misfits and path in self._misfits:
            return like
        if type(node) is dict:
            kind = node.get("kind")
            if kind in _ARRAY_KINDS and array_kind(like) == "tensor":  # nearly all nodes of most states
                self._at = path
                return self.array(node, path, like, depth)
            if like is MISSING or (type(like) is dict and kind in MAPPING_KINDS):  # nothing to compare before its parts
                return super().build(node, path, like, depth)
        elif like is MISSING or (type(node) in _PLAIN and type(like) in _PLAIN):
            return super().build(node, path, like, depth)
        difference = difference_of(node, like)
        if not difference and corresponds(node, like):
            return super().build(node, path, like, depth)
        lost = [f"{place}: missing: the program has {what}" for place, what in find_restorable(like, path)]
        for problem in [f"{path}: {difference}"] if difference else lost:
            self.note(problem)
        return like if lost or difference else super().build(node, path, MISSING, depth)

    def assemble(self, make: Callable[[list[Any]], Any], parts: list[Any], like: object) -> Any:
        # What state_dict gave may be the object's own containers: load_state_dict gets new ones, not their ruins.
        if not self._inside_state_dict and is_mutable(like):
            return Late(lambda: replace_contents(like, make([settle(part) for part in parts])))
        if isinstance(like, tuple) and (type(like) is not tuple or Late in map(type, parts)):
            return Late(lambda: _same_or_new(like, make([settle(part) for part in parts])))
        made = super().assemble(make, parts, like)
        return _same_or_new(like, made) if type(like) is tuple else made

    def leaves_out(self, node: Node, path: str, like: object) -> bool:
        if path in self._misfits:
            return True
        if like is MISSING or not like or self._may_grow(path, like):
            return False
        extra = list(array_paths(node, path))
        for place in extra:
            self._note_length(f"{place}: extra: the checkpoint has it, the program does not", like)
        return bool(extra)

    def keeps(self, like: object, path: str, taken: Container[object]) -> list[tuple[Any, Any]]:
        left = [(key, value) for key, value in _entries(like) if key not in taken]
        kept: list[tuple[Any, Any]] = []
        for key, value in [] if not left or self._may_grow(path, like) else left:
            found = list(find_restorable({key: value}, path))
            for place, what in found:
                self._note_length(f"{place}: missing: the program has {what}, the checkpoint nothing", like)
            kept.extend([(key, value)] if found else [])
        return kept

    def _note_length(self, problem: str, like: object) -> None:
        """A difference of a container's entries. Of a list nobody knows whether it is another program's, or grows."""
        if isinstance(like, list | collections.deque) and self.hint == _HINT:
            self.hint = _HINT_OF_LISTS
        self.note(problem)

    def _may_grow(self, path: str, like: object) -> bool:
        """Whether what is there comes and goes while the program runs: an optimizer's slots, an object's own lists."""
        is_sequence = isinstance(like, _SEQUENCES)
        return bool(self._inside_state_dict and is_sequence) or any(is_inside(path, slots) for slots in self._slots)

    def array(self, node: Node, path: str, like: object, depth: int) -> Any:
        if like is MISSING or is_unshaped(like):
            self._fresh += 1
            return super().array(node, path, like, depth)
        spec = self.memory.spec(node)
        found = target_memory(like)
        problem = unlike(spec, found, like)
        if problem or isinstance(found, Refused):
            self.note(f"{path}: {problem}")
            return like
        flags = found.carrier.flags
        if not flags.writeable or not (flags.forc or takes_all(spec, found.carrier)):
            return self._instead(node, path, like)
        if self._hands_over and found.publish is None:
            # The object's own code may clear its arrays before it reads what it is handed: never the same memory.
            self._fresh += 1
            return super().array(node | {"kind": array_kind(like)}, path, MISSING, 0)
        self.targets.append(Target(path, spec, found))
        return like

    def _instead(self, node: Node, path: str, like: Any) -> Any:
        """For an array that cannot be written: a new one, where something else holds on to it."""
        self._fresh += 1
        if array_kind(like) == "jax":
            made = super().array(node | {"kind": "jax"}, path, MISSING, 0)
            return Late(lambda: loaded("jax").device_put(settle(made), like.sharding))
        if self._inside_state_dict:
            return super().array(node, path, MISSING, 0)
        self.note(f"{path}: read-only, or broadcast: the program's array cannot be written")
        return like

    def state(self, node: Node, path: str, like: object, depth: int) -> Any:
        if is_stateful(like):
            return self._load_into(like, node.get("state"), path, depth, optional_field(node, "type", str, ""))
        if like is MISSING:
            self.note(f"{path}: extra: the state of an object, and the program has none to load it into")
        return self.build(node.get("state"), path, like, depth + 1)

    def mapping(self, node: Node, path: str, like: object, depth: int) -> Any:
        if is_stateful(like):
            return self._load_into(like, node, path, depth)
        return super().mapping(node, path, like, depth)

    def _load_into(self, owner: Any, node: Node, path: str, depth: int, saved_type: str = "") -> Any:
        current = _current(owner, path)
        reasons = why_left_alone(owner, node, current, saved_type=saved_type)
        if reasons:
            self.hint = _HINT_OF_TORCH
            self.note(f"{path}: {'' if self._strict else 'left as it is: '}{'; '.join(reasons)}")
            return owner
        before = self._fresh, len(self.skipped), len(self.problems)
        if is_optimizer(owner):
            self._compare_slots(owner, node, join(path, "state"))
        self._inside_state_dict += 1
        outer, self._hands_over = self._hands_over, not copies_into_own(owner)
        value = self.build(node, path, current, depth + 1)
        self._hands_over = outer
        self._inside_state_dict -= 1
        self._ask(owner, node, current, path)
        complete = before == (self._fresh, len(self.skipped), len(self.problems))
        if complete and loads_in_place(owner, getattr(value, "_metadata", None), current):
            return Late(lambda: owner)
        if complete and is_optimizer(owner) and needs_groups_only(owner, value):
            return Late(lambda: _load(owner, value["param_groups"], path, load_groups))
        load = load_slots if is_optimizer(owner) and copies_into_own(owner) else None
        return Late(lambda: _load(owner, settle(value), path, load))

    def _ask(self, owner: Any, node: Node, current: object, path: str) -> None:
        objection = objection_to(owner, node, current, self._leaves, self.frameworks)
        if objection is not None:
            self.problems.append(f"{path}: {objection.reason}")
            self._hints_of_objects.append(objection.hint)

    def _compare_slots(self, owner: Any, node: Node, path: str) -> None:
        self._slots.append(path)
        for slot, name, problem in misfit_slots(owner, node, self.memory.spec):
            place = join(path, slot)
            self.note(f"{join(place, name)}: {problem}")
            # A slot goes as a whole: an optimizer makes all of it anew, or nothing.
            self._misfits.add(place)

    def generator(self, node: Node, path: str, like: object, depth: int) -> Any:
        if like is MISSING:
            return super().generator(node, path, like, depth)
        state = read_state(node, self.frameworks)
        return Late(lambda: _put(like, node["kind"], state, path))


def _entries(like: object) -> list[tuple[Any, Any]]:
    if isinstance(like, (dict, Mapping)):
        return list(like.items())
    return list(enumerate(like)) if isinstance(like, _SEQUENCES) else []


def _same_or_new(like: tuple[Any, ...], made: Any) -> Any:
    same = type(made) is type(like) and len(made) == len(like) and all(a is b for a, b in zip(made, like, strict=True))
    return like if same else made


def _current(owner: Any, path: str) -> Any:
    try:
        return owner.state_dict()
    except Exception as error:
        what = f"{path}: state_dict of {type_name(type(owner))} failed: {in_words(error)}"
        raise StateMismatchError(what) from error


def _load(owner: Any, value: Any, path: str, load: Callable[[Any, Any], None] | None = None) -> Any:
    try:
        owner.load_state_dict(value) if load is None else load(owner, value)
    except HoldfastError:
        raise
    except Exception as error:
        raise StateMismatchError(
            f"{path}: load_state_dict of {type_name(type(owner))} failed: {in_words(error)}; "
            "the state is now partly loaded",
            hint="restore again after mending the object, or start a new process",
        ) from error
    return owner


def _put(generator: Any, kind: str, state: Any, path: str) -> Any:
    try:
        put_state(generator, kind, state)
    except (ValueError, RuntimeError, TypeError) as error:
        raise StateMismatchError(
            f"{path}: the generator refused its state: {error}; the state is now partly loaded",
            hint="use a generator of the same kind and device",
        ) from error
    return generator
