"""Random generators: their state as nodes, and putting it back into a generator of the same kind.

A state is only accepted where it has exactly the form that a generator of that kind gives itself: numpy does not check
what it is handed, and a position past the end of its table would read foreign memory.
"""

import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from holdfast.core.errors import UnsupportedError
from holdfast.format.frameworks import Frameworks
from holdfast.format.nodes import Node, base64_field, base64_text, field, malformed
from holdfast.format.plain import decode_plain, encode_plain

__all__ = [
    "GENERATOR_KINDS",
    "encode_generator",
    "fresh_generator",
    "generator_kind",
    "put_state",
    "read_state",
    "why_unreadable",
]

_MERSENNE_WORDS = 625
_MAX_VALUE = {"pos": 624, "buffer_pos": 4, "has_uint32": 1, "has_gauss": 1, "uinteger": 2**32 - 1}
_BIT_GENERATORS: dict[str, Callable[..., Any]] = {
    name: getattr(np.random, name) for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
}
_MAX_SEED_PARTS = 1_000_000
_MAX_SEED_BITS = 1 << 16
_POOL_SIZES = range(4, 1025)

GENERATOR_KINDS = ("python_random", "numpy_generator", "numpy_random_state", "torch_generator")


def generator_kind(value: object, torch: Any) -> str | None:
    """Which of the kinds the value is; None for anything else, subclasses included."""
    if type(value) is random.Random:
        return "python_random"
    if type(value) is np.random.Generator:
        return "numpy_generator" if type(value.bit_generator).__name__ in _BIT_GENERATORS else None
    if type(value) is np.random.RandomState:
        return "numpy_random_state" if value.get_state(legacy=False)["bit_generator"] in _BIT_GENERATORS else None
    return "torch_generator" if torch is not None and type(value) is torch.Generator else None


def why_unreadable(value: Any) -> str:
    """Why a checkpoint with the generator would be refused when it is read; empty where it would not be."""
    seed = value.bit_generator.seed_seq if type(value) is np.random.Generator else None
    if type(seed) is not np.random.SeedSequence:
        return ""
    entropy, key = _flat_seed(seed.entropy), _flat_seed(seed.spawn_key)
    return _seed_problem(key, entropy if isinstance(entropy, list) else [entropy], seed.pool_size)


def encode_generator(value: Any, kind: str) -> Node:
    """The node of a generator's present state."""
    if kind == "python_random":
        version, words, gauss = value.getstate()
        packed = struct.pack(f"<{len(words)}I", *words)
        return {"kind": kind, "version": version, "words": base64_text(packed), "gauss": encode_plain(gauss)}
    if kind == "numpy_random_state":
        return {"kind": kind, "state": _encode_tree(value.get_state(legacy=False))}
    if kind == "torch_generator":
        state = value.get_state().numpy().tobytes()
        return {"kind": kind, "device": str(value.device), "base64": base64_text(state)}
    node = {"kind": kind, "state": _encode_tree(value.bit_generator.state)}
    seed = value.bit_generator.seed_seq
    if type(seed) is np.random.SeedSequence:  # what `spawn` goes on from
        node["seed"] = {
            "entropy": _encode_tree(_flat_seed(seed.entropy)),
            "spawn_key": _encode_tree(_flat_seed(seed.spawn_key)),
            "pool_size": seed.pool_size,
            "spawned": seed.n_children_spawned,
        }
    return node


def read_state(node: Node, frameworks: Frameworks) -> Any:
    """The checked state of a generator node, for `put_state` and `fresh_generator`."""
    if node["kind"] == "python_random":
        return _python_state(node, frameworks)
    if node["kind"] == "torch_generator":
        return base64_field(node)
    found = field(node, "state", dict)
    name = found.get("bit_generator")
    if not isinstance(name, str) or name not in _BIT_GENERATORS:
        raise malformed(node, "a bit generator that numpy has")
    template = _new_numpy(node["kind"], name)
    state = _fit(found, _numpy_state(template), node, "state", frameworks)
    checked = state, _read_seed(node, frameworks) if "seed" in node else None
    try:
        put_state(template, node["kind"], checked)  # what numpy itself refuses, before the program's generator gets it
    except (ValueError, TypeError, OverflowError) as error:
        raise malformed(node, f"a state that numpy takes ({error})") from error
    return checked


def fresh_generator(node: Node, state: Any, frameworks: Frameworks) -> Any:
    """A new generator with that state; bytes stand in for a torch generator where there is no torch."""
    kind = node["kind"]
    if kind == "torch_generator":
        if frameworks.torch is None:
            return state
        try:
            generator = frameworks.torch.Generator(device=field(node, "device", str))
        except RuntimeError as error:
            raise UnsupportedError("a torch generator is of a device that is not here", hint=str(error)) from error
    else:
        generator = random.Random() if kind == "python_random" else _new_numpy(kind, state[0]["bit_generator"])  # noqa: S311  # not for secrets
    put_state(generator, kind, state)
    return generator


def put_state(generator: Any, kind: str, state: Any) -> None:
    """Give the generator that state; ValueError or RuntimeError where it refuses."""
    if kind == "python_random":
        generator.setstate(state)
    elif kind == "torch_generator":
        import torch  # the generator is torch's own, so it is there

        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif kind == "numpy_random_state":
        generator.set_state(state[0])
    else:
        _put_numpy(generator.bit_generator, *state)


def _put_numpy(bit_generator: Any, state: dict[str, Any], seed: "np.random.SeedSequence | None") -> None:
    bit_generator.state = state
    if seed is not None and isinstance(bit_generator.__getstate__(), tuple):
        # The only door to the seed sequence of a living generator; numpy before 1.25 has none.
        bit_generator.__setstate__((bit_generator.state, seed))


def _new_numpy(kind: str, name: str) -> Any:
    bit_generator = _BIT_GENERATORS[name](0)
    return np.random.Generator(bit_generator) if kind == "numpy_generator" else np.random.RandomState(bit_generator)


def _numpy_state(generator: Any) -> dict[str, Any]:
    if isinstance(generator, np.random.RandomState):
        return dict(generator.get_state(legacy=False))
    return dict(generator.bit_generator.state)


def _flat_seed(entropy: Any) -> Any:
    """The numbers that numpy makes of a seed: sequences in it, and numbers as text, count like them in a row."""
    if isinstance(entropy, str):
        return int(entropy, 16 if entropy.startswith("0x") else 10)
    if isinstance(entropy, np.ndarray):
        return entropy.ravel().tolist() if entropy.ndim else entropy.item()
    if not isinstance(entropy, list | tuple | range):
        return entropy
    flat = [_flat_seed(part) for part in entropy]
    return [part for parts in flat for part in (parts if isinstance(parts, list) else [parts])]


def _encode_tree(value: Any) -> Node:
    if isinstance(value, dict):
        return {name: _encode_tree(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        items = value.tolist()
        # Words of 32 bits stand for themselves, and there are hundreds.
        return items if value.dtype == np.uint32 else [encode_plain(item) for item in items]
    if isinstance(value, list | tuple):
        return [_encode_tree(item) for item in value]
    return encode_plain(value.item() if isinstance(value, np.generic) else value)


def _fit(found: Node, template: Any, node: Node, name: str, frameworks: Frameworks) -> Any:
    if isinstance(template, dict):
        if not isinstance(found, dict) or set(found) != set(template):
            raise malformed(node, f"{name} to have the entries {sorted(template)}")
        return {key: _fit(found[key], item, node, key, frameworks) for key, item in template.items()}
    if isinstance(template, np.ndarray):
        if not isinstance(found, list) or len(found) != len(template):
            raise malformed(node, f"{name} to be {len(template)} whole numbers")
        words = [item if type(item) is int else _fit(item, 0, node, name, frameworks) for item in found]
        if words and not 0 <= min(words) <= max(words) <= np.iinfo(template.dtype).max:
            raise malformed(node, f"{name} to fit into {template.dtype}")
        return np.array(words, template.dtype)
    value = decode_plain(found, frameworks)
    if isinstance(template, float):
        if type(value) is not float:
            raise malformed(node, f"{name} to be a float")
    elif isinstance(template, str):
        if type(value) is not str:
            raise malformed(node, f"{name} to be text")
    elif type(value) is not int or not 0 <= value <= _MAX_VALUE.get(name, 2**128 - 1):
        raise malformed(node, f"{name} to be a whole number in its range")
    return value


def _python_state(node: Node, frameworks: Frameworks) -> tuple[int, tuple[int, ...], float | None]:
    packed = base64_field(node, "words")
    gauss = decode_plain(node.get("gauss"), frameworks)
    if len(packed) != 4 * _MERSENNE_WORDS or field(node, "version", int) != 3 or type(gauss) not in (float, type(None)):
        raise malformed(node, "the state of a Mersenne twister, version 3")
    words = struct.unpack(f"<{_MERSENNE_WORDS}I", packed)
    if words[-1] > _MAX_VALUE["pos"]:
        raise malformed(node, "a position in the table")
    return (3, words, gauss)


def _read_seed(node: Node, frameworks: Frameworks) -> "np.random.SeedSequence":
    seed = field(node, "seed", dict)
    key = field(seed, "spawn_key", list)
    entropy = seed.get("entropy")
    pool_size, spawned = field(seed, "pool_size", int), field(seed, "spawned", int)
    parts = entropy if isinstance(entropy, list) else [entropy]
    keys, seeds = ([decode_plain(number, frameworks) for number in numbers] for numbers in (key, parts))
    problem = _seed_problem(keys, seeds, pool_size)
    if problem or not 0 <= spawned < 1 << 32:
        raise malformed(node, f"a seed sequence ({problem or 'of less than 2^32 children'})")
    return np.random.SeedSequence(
        seeds if isinstance(entropy, list) else seeds[0],
        spawn_key=keys,
        pool_size=pool_size,
        n_children_spawned=spawned,
    )


def _seed_problem(key: list[Any], entropy: list[Any], pool_size: int) -> str:
    """What of a seed sequence is beyond what is read; the same when it is saved."""
    if max(len(key), len(entropy)) > _MAX_SEED_PARTS:
        return f"a seed of more than {_MAX_SEED_PARTS:,} numbers"
    if pool_size not in _POOL_SIZES:
        return f"a seed with a pool of {pool_size}, which is not one of {_POOL_SIZES.start} to {_POOL_SIZES.stop - 1}"
    if not all(_is_seed(number) for number in (*key, *entropy) if number is not None):
        return f"a seed that is not made of whole numbers of at most {_MAX_SEED_BITS:,} bits"
    return ""


def _is_seed(number: Any) -> bool:
    is_whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    return is_whole and number >= 0 and int(number).bit_length() <= _MAX_SEED_BITS
