"""One cell of the grid: the same call to a backend and to the oracle, values and gradients within the budget."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from cells import BATCH, OPTIONS, PATTERNS, Places

import regard as rg
from regard.testing import Answer, Budget, answer, kept_weights, make_qkv


@dataclass
class Tally:
    """Cells compared and refused, and the worst error in units of the budget, by backend and dtype."""

    cells: Counter[str] = field(default_factory=Counter)
    worst: dict[tuple[str, str, str], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, backend: str, dtype: torch.dtype, errors: dict[str, float]) -> None:
        self.cells[f"{backend} computed"] += 1
        for name, error in errors.items():
            key = (backend, str(dtype).removeprefix("torch."), name)
            self.worst[key] = max(self.worst[key], error)

    def record(self) -> dict[str, float]:
        """Every number by name."""
        return {**self.cells, **{" ".join(key): round(share, 3) for key, share in sorted(self.worst.items())}}

    def __str__(self) -> str:
        return "\n".join(f"{name}: {number}" for name, number in self.record().items())


@dataclass(frozen=True)
class Cell:
    """Everything about one call but its backend and dtype; its numbers are exact in every dtype."""

    pattern: str
    option: str
    heads: tuple[int, int]
    lengths: tuple[int, int]
    layout: str
    seed: int = 0
    batch: int = BATCH

    def __post_init__(self) -> None:
        (heads, kv_heads), (q_len, k_len) = self.heads, self.lengths
        sizes = {"batch": self.batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "k_len": k_len}
        qkv = make_qkv(**sizes, dtype=torch.bfloat16, seed=self.seed, layout=self.layout)
        shape = (self.batch, heads, q_len, qkv[2].shape[3])
        grad = torch.randn(shape, generator=torch.Generator().manual_seed(self.seed + 1)).bfloat16()
        at = Places.of(self.batch, heads, q_len, k_len)
        made = OPTIONS[self.option].make(at)
        start = made.get("q_start")
        places = Places.of(self.batch, heads, q_len, k_len, start)
        self.__dict__.update(
            sizes=sizes, grad=grad, made=made, places=places, model=PATTERNS[self.pattern][0](at),
            numbers=[x.double() for x in qkv],
        )  # fmt: skip

    def expected(self) -> Answer:
        q, k, v = (x.numpy() for x in self.numbers)
        made, at = self.made, self.places
        bias, dropout = made.get("bias"), made.get("dropout", 0.0)
        factors = None
        if dropout:
            rows = at.i.reshape(-1, at.row.size)
            kept = kept_weights(dropout, made["dropout_seed"], self.batch, self.heads[0], rows, at.j.ravel())
            factors = kept / (1 - dropout)
        return answer(
            q, k, v, PATTERNS[self.pattern][1](at), scale=made.get("scale", q.shape[-1] ** -0.5),
            softcap=made.get("softcap"), bias=None if bias is None else four_axes(bias).numpy(), factors=factors,
            grad_output=self.grad.double().numpy(),
        )  # fmt: skip

    def tensors(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        qkv = make_qkv(**self.sizes, dtype=torch.bfloat16, seed=self.seed, layout=self.layout)
        if dtype == torch.bfloat16:
            return tuple(x.requires_grad_() for x in qkv)
        return tuple(_like(x, dtype).requires_grad_() for x in qkv)

    def options(self) -> dict[str, Any]:
        made = dict(self.made)
        if "bias" in made:
            made["bias"] = made["bias"].clone().requires_grad_(OPTIONS[self.option].learns)
        return made

    def compare(self, backend: str, dtype: torch.dtype, expected: Answer, tally: Tally) -> None:
        """Raise unless the backend answers within the budget, or refuses in the documented words."""
        q, k, v = self.tensors(dtype)
        options = self.options()
        words = OPTIONS[self.option].fused_says if backend == "fused" else None
        if words is not None:
            with pytest.raises(rg.UnsupportedError, match=words):
                rg.attention(q, k, v, pattern=self.model, backend=backend, **options)
            tally.cells[f"{backend} refused: {words}"] += 1
            return
        output = rg.attention(q, k, v, pattern=self.model, backend=backend, **options)
        assert output.dtype == dtype
        output.backward(self.grad.to(dtype))
        bias = options.get("bias")
        learns = bias is not None and bias.requires_grad
        budget = Budget.of(
            *self.numbers, dtype, scale=options.get("scale", q.shape[-1] ** -0.5), bias=bias,
            grad_output=self.grad.double(), dropout=options.get("dropout", 0.0), answer=expected,
        )  # fmt: skip
        found = {"output": output, "dq": q.grad, "dk": k.grad, "dv": v.grad} | ({"dbias": bias.grad} if learns else {})
        assert None not in found.values(), f"{self} on {backend}: a gradient is missing"
        errors = {name: budget.share(name, x, getattr(expected, name)) for name, x in found.items()}
        assert max(errors.values()) <= 1, f"{self} on {backend} in {dtype}: errors over budget {errors}"
        tally.add(backend, dtype, errors)


def four_axes(bias: torch.Tensor) -> torch.Tensor:
    return bias.detach()[(None,) * (4 - bias.dim())]


def _like(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same numbers and strides in another dtype."""
    storage = x.new_empty(0).set_(x.untyped_storage()).to(dtype)
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())
