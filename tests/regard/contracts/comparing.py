"""One cell of the grid: the same call to a backend and to the oracle, values and gradients within the budget."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from asking import ask, limit_of
from cell_options import OPTIONS, bucket
from cell_patterns import PATTERNS, Row
from cells import BATCH, Places

import regard as rg
from regard.bias import Bias
from regard.core.call import make_problem
from regard.core.result import checked_wants
from regard.core.tensors import Stored
from regard.layers.caches.entries import kept
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
        cells = dict(sorted(self.cells.items()))
        return {**cells, **{" ".join(key): round(share, 3) for key, share in sorted(self.worst.items())}}

    def __str__(self) -> str:
        return "\n".join(f"{name}: {number}" for name, number in self.record().items())


@dataclass(frozen=True)
class Cell:
    """All properties of one call except its backend. `learning`: gradients are computed; without them keys and
    values may come from a cache that keeps them as `storage`."""

    pattern: str
    option: str
    heads: tuple[int, int]
    lengths: tuple[int, int]
    dtype: torch.dtype
    layout: str = "contiguous"
    dims: tuple[int, int] = (5, 13)
    learning: bool = True
    storage: torch.dtype | None = None
    seed: int = 0
    batch: int = BATCH
    device: str = "cpu"

    @cached_property
    def sizes(self) -> dict[str, int]:
        (heads, kv_heads), (q_len, k_len), (head_dim, v_dim) = self.heads, self.lengths, self.dims
        lengths = {"q_len": q_len, "k_len": k_len, "head_dim": head_dim, "v_dim": v_dim}
        return {"batch": self.batch, "heads": heads, "kv_heads": kv_heads, **lengths}

    @property
    def row(self) -> Row:
        return PATTERNS[self.pattern]

    @cached_property
    def whole(self) -> Places:
        """The places of a call with aligned ends, for Explicit masks and bias tensors."""
        return Places.of(self.batch, self.heads[0], *self.lengths)

    @cached_property
    def made(self) -> dict[str, Any]:
        return OPTIONS[self.option].make(self.whole)

    @cached_property
    def places(self) -> Places:
        return Places.of(self.batch, self.heads[0], *self.lengths, self.made.get("q_start"))

    @cached_property
    def allowed(self) -> np.ndarray:
        return self.row.formula(self.places)

    @property
    def bias_learns(self) -> bool:
        return OPTIONS[self.option].learns

    @property
    def scale(self) -> float:
        return self.made.get("scale", self.dims[0] ** -0.5)

    @cached_property
    def added(self) -> torch.Tensor | None:
        """The bias that the oracle adds to the scores, with four axes."""
        option, bias = OPTIONS[self.option], self.made.get("bias")
        if option.added is not None:
            return torch.from_numpy(np.broadcast_to(option.added(self.places), self.places.shape).copy())
        return None if bias is None else bias.detach()[(None,) * (4 - bias.dim())]

    @cached_property
    def grad(self) -> torch.Tensor:
        shape = (self.batch, self.heads[0], self.lengths[0], self.dims[1])
        return torch.randn(shape, generator=torch.Generator().manual_seed(self.seed + 1)).bfloat16()

    @cached_property
    def tensors(self) -> tuple[Any, Any, Any]:
        """q, k and v as passed to the call."""
        qkv = make_qkv(**self.sizes, dtype=torch.bfloat16, seed=self.seed, layout=self.layout)
        q, k, v = (_like(x, self.dtype, self.device) for x in qkv)
        if self.storage is None:
            return q, k, v
        return q, Stored(*kept("k", k, self.storage)), Stored(*kept("v", v, self.storage))

    @cached_property
    def numbers(self) -> list[torch.Tensor]:
        """The numbers of the tensors in float64, for the oracle."""
        wide = (x.widened(torch.float64) if isinstance(x, Stored) else x.double() for x in self.tensors)
        return [x.cpu() for x in wide]

    @cached_property
    def expected(self) -> Answer:
        made, at = self.made, self.places
        factors = None
        if dropout := made.get("dropout", 0.0):
            rows = at.i.reshape(-1, at.row.size)
            stays = kept_weights(dropout, made["dropout_seed"], self.batch, self.heads[0], rows, at.j.ravel())
            factors = stays / (1 - dropout) if dropout < 1 else np.zeros(())
        return answer(
            *(x.numpy() for x in self.numbers), self.allowed, scale=self.scale, softcap=made.get("softcap"),
            bias=None if self.added is None else self.added.numpy(), factors=factors, sink=made.get("sink"),
            grad_output=self.grad.double().numpy() if self.learning else None,
        )  # fmt: skip

    @cached_property
    def budget(self) -> Budget:
        dropout = self.made.get("dropout", 0.0)
        budget = Budget.of(
            *self.numbers, self.dtype, scale=self.scale, bias=self.added, sink=self.made.get("sink"),
            dropout=dropout if dropout < 1 else 0.0,
            grad_output=self.grad.double() if self.learning else None, answer=self.expected,
        )  # fmt: skip
        if self.learning and self.bias_learns and self._by_distance:
            received = max(1.0, float(self._in_buckets(self.expected.weights).max()))
            budget.units["dweight"] = budget.units["dbias"] * received
        return budget

    @property
    def room(self) -> float:
        """Budgets allowed: the operations on cuda also round weights, their gradients and the output to half precision.

        Differences of these are a gradient; of vectors of 1 to 3 numbers, 2.5 budgets were seen.
        """
        return 3.0 if self.device == "cuda" and self.dtype.itemsize == 2 else 1.0

    def compare(self, backend: str, tally: Tally) -> None:
        """Raise unless the result is within the error budget, or the backend refuses by the limit that it declares."""
        q, k, v = (self._fresh(x) for x in self.tensors)
        options = self._options()
        want = ("log_sum_exp",) if self.seed % 2 else ()
        call = lambda: ask(backend, q, k, v, pattern=pattern, want=want, **options)  # noqa: E731
        with torch.set_grad_enabled(self.learning):
            pattern = self.row.build(self.whole)
            given = {name: x for name, x in options.items() if name != "dropout_seed"}
            problem = make_problem(q, k, v, pattern=pattern, want=checked_wants(want), **given)
            if (limit := limit_of(backend, replace(problem, sink=None, want=()))) is not None:
                with pytest.raises(rg.UnsupportedError, match=re.escape(limit)):
                    call()
                tally.cells[f"{backend} refused: {limit[:20]}"] += 1
                return
            detail = call()
        output = detail.output
        assert output.dtype == self.dtype
        found = {"output": output} | ({"log_sum_exp": detail.log_sum_exp} if want else {})
        expected = dict(self.expected.__dict__)
        if self.learning:
            output.backward(self.grad.to(self.device, self.dtype))
            found |= {"dq": q.grad, "dk": k.grad, "dv": v.grad}
            if self.bias_learns and self._by_distance:
                found["dweight"] = options["bias"].weight.grad
                expected["dweight"] = self._in_buckets(expected["dbias"])
            elif self.bias_learns:
                found["dbias"] = options["bias"].grad
            if isinstance(options.get("sink"), torch.Tensor):
                found["dsink"] = options["sink"].grad
        assert None not in found.values(), f"{self} on {backend}: a gradient is missing"
        errors = {name: self.budget.share(name, x.cpu(), expected[name]) for name, x in found.items()}
        assert max(errors.values()) <= self.room, f"{self} on {backend}: errors over budget {errors}"
        tally.add(backend, self.dtype, errors)

    def _fresh(self, x: Any) -> Any:
        """The same tensor, strides and all, as a leaf of its own."""
        return x.detach().requires_grad_(self.learning) if isinstance(x, torch.Tensor) else x

    @property
    def _by_distance(self) -> bool:
        return isinstance(self.made.get("bias"), Bias)

    def _options(self) -> dict[str, Any]:
        made = OPTIONS[self.option].make(self.whole)
        movable = (torch.Tensor, torch.nn.Module)
        made = {name: x.to(self.device) if isinstance(x, movable) else x for name, x in made.items()}
        if isinstance(made.get("bias"), torch.Tensor):
            made["bias"].requires_grad_(self.bias_learns)
        if isinstance(made.get("sink"), torch.Tensor):
            made["sink"].requires_grad_(self.learning)
        return made

    def _in_buckets(self, pairs: np.ndarray) -> np.ndarray:
        """Sums over the pairs of each bucket, (buckets, heads)."""
        places = np.broadcast_to(bucket(self.places, sides=True), self.places.shape)
        heads = np.broadcast_to(self.places.h, self.places.shape)
        found = np.zeros((self.made["bias"].buckets, self.heads[0]))
        np.add.at(found, (places, heads), np.broadcast_to(pairs, self.places.shape))
        return found


def _like(x: torch.Tensor, dtype: torch.dtype, device: str) -> torch.Tensor:
    """The same numbers and strides in another dtype, on another device."""
    storage = x.new_empty(0).set_(x.untyped_storage()).to(device, dtype)
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())
