"""States to save: a transformer with its optimizer, many small leaves, a few huge ones."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import blake3
import torch

__all__ = ["TorchState", "blank_state", "huge_state", "leaves_state", "parameters_state", "transformer_state"]

_VOCABULARY = 50_257
_POSITIONS = 1024
_HEAD_WIDTH = 64


class TorchState(NamedTuple):
    """The same tensors as each contender wants them."""

    objects: dict[str, Any]
    """What a user gives to a Checkpointer: a module, an optimizer, a dictionary of tensors."""
    nested: dict[str, Any]
    """What a user gives to torch.save: their state_dicts, which share their memory with the objects."""
    flat: dict[str, torch.Tensor]
    """All tensors by name, in the same memory; all that safetensors can hold."""

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.flat.values())

    def wipe(self) -> None:
        """Zero every tensor, in place."""
        for tensor in self.flat.values():
            tensor.zero_()

    def digest(self) -> str:
        """The BLAKE3 of all tensors, in order: equal states have equal ones."""
        digest = blake3.blake3()
        for tensor in self.flat.values():
            digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def transformer_state(*, layers: int, width: int, vocabulary: int = _VOCABULARY) -> TorchState:
    """A GPT-2-like model with separate projections, and its Adam moments after a step."""
    torch.manual_seed(1)
    return _stepped(_Transformer(layers, width, vocabulary))


def parameters_state(count: int, *, floats: int = 256) -> TorchState:
    """About that many leaves: parameters of 1 KB, each with its two Adam moments and its count of steps."""
    torch.manual_seed(4)
    parameters = (torch.nn.Parameter(torch.randn(floats)) for _ in range(max(1, count // 4)))
    return _stepped(torch.nn.ParameterList(parameters))


def blank_state(*, layers: int, width: int, vocabulary: int = _VOCABULARY) -> TorchState:
    """The same tensors as those of transformer_state, but as plain ones, in memory that nobody has touched yet."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in _Transformer(layers, width, vocabulary).named_parameters()}
    return _collect(
        {"tensors": {f"{part}.{name}": torch.empty(shapes[name]) for part in ("model", "m", "v") for name in shapes}}
    )


def leaves_state(count: int, *, floats: int = 256) -> TorchState:
    """That many tensors of 1 KB each, as separate allocations."""
    torch.manual_seed(2)
    return _collect({"tensors": {f"block{i // 100}.leaf{i % 100}": torch.randn(floats) for i in range(count)}})


def huge_state(size_bytes: int, *, tensor_bytes: int) -> TorchState:
    """Tensors of one size that together have the size asked for. Cheap to make: each is one random row, repeated."""
    torch.manual_seed(3)
    row = torch.randn(1 << 18)
    rows = max(1, tensor_bytes // row.nbytes)
    tensors = {f"tensor{i}": row.repeat(rows).add_(i) for i in range(max(1, size_bytes // (rows * row.nbytes)))}
    return _collect({"tensors": tensors})


def _stepped(model: torch.nn.Module) -> TorchState:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return _collect({"model": model, "optimizer": optimizer})


class _Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1 = torch.nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(width, width) for _ in range(4))
        self.norm_2 = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm_1(x)
        query, key, value = (
            part(normed).unflatten(-1, (-1, _HEAD_WIDTH)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        seen = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm_2(x))))


class _Transformer(torch.nn.Module):
    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, width)
        self.positions = torch.nn.Embedding(_POSITIONS, width)
        self.blocks = torch.nn.ModuleList(_Block(width) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def _collect(objects: dict[str, Any]) -> TorchState:
    nested = {name: value if isinstance(value, dict) else value.state_dict() for name, value in objects.items()}
    flat: dict[str, torch.Tensor] = {}
    _flatten("", nested, flat)
    return TorchState(objects, nested, flat)


def _flatten(prefix: str, value: object, out: dict[str, torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        out[prefix] = value.detach()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(f"{prefix}.{key}" if prefix else str(key), item, out)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _flatten(f"{prefix}.{index}", item, out)
