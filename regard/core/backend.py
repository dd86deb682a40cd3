"""The interface of backends: `assess` returns an offer or a refusal, and an offer computes a result from operands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch

from regard.arguments import shown
from regard.core import costs
from regard.core.call import Call
from regard.core.problem import Problem
from regard.core.result import Result
from regard.core.tensors import Stored
from regard.errors import ArgumentError
from regard.patterns import Pattern
from regard.patterns.grid import Grid


@dataclass(frozen=True)
class Relative:
    """A bias by distance: table[h or 0, t] is added to head h's score of the pair with k_pos - q_pos = lowest + t."""

    table: torch.Tensor
    lowest: int

    def block(self, grid: Grid) -> torch.Tensor:
        """The bias of a block of pairs, (batch or 1, heads or 1, rows, keys)."""
        distances = grid.k_pos - grid.q_pos - self.lowest
        bias = self.table[:, distances]
        if grid.per_batch:
            return bias[:, :, 0].transpose(0, 1)  # of (heads or 1, batch, 1, rows, keys)
        return bias[None]  # of (heads or 1, rows, keys)


def numbers_of(bias: torch.Tensor | Relative | None) -> torch.Tensor | None:
    """The tensor of a bias: itself, or its table; None without a bias."""
    return bias.table if isinstance(bias, Relative) else bias


class Operands(NamedTuple):
    """Tensors cut to the keys that the pattern can reach, and the grid of their positions.

    q: (batch, heads, q_len, head_dim), k: (batch, kv_heads, keys, head_dim), v: (batch, kv_heads, keys, v_dim),
    bias: None, or (batch or 1, heads or 1, q_len or 1, keys or 1), or Relative. k and v are Stored only for
    backends whose offer has `takes_stored`. parameters: the tensors of the mechanism by name.
    sink: None, or the logits of the sinks, (batch or 1, heads or 1, 1) in float32 at least.
    pattern: the pattern of the call, where its batch rows have other keys than those of the problem's pattern; only for
    backends whose offer has `takes_row_keys`.
    """

    q: torch.Tensor
    k: Any
    v: Any
    bias: torch.Tensor | Relative | None
    grid: Grid
    dropout_seed: int
    parameters: Mapping[str, torch.Tensor] = MappingProxyType({})
    sink: torch.Tensor | None = None
    pattern: Pattern | None = None

    def bias_block(self, grid: Grid) -> torch.Tensor | None:
        """The bias of a block of pairs, (batch or 1, heads or 1, rows or 1, keys or 1), if there is one."""
        bias = self.bias
        if bias is None:
            return None
        if isinstance(bias, Relative):
            return bias.block(grid)
        if bias.shape[2] > 1:
            bias = bias[:, :, grid.rows.start : grid.rows.stop]
        if bias.shape[3] > 1:
            first_key = self.grid.keys.start
            bias = bias[..., grid.keys.start - first_key : grid.keys.stop - first_key]
        return bias

    def changed_bias(
        self, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor | Relative | None:
        """The bias with its numbers changed by a function."""
        bias = self.bias
        if isinstance(bias, Relative):
            return replace(bias, table=change(bias.table))
        return None if bias is None else change(bias)

    def in_float32(self) -> Operands:
        """The operands with half-precision tensors in float32, so that parts of gradients are added before rounding."""
        bias = self.changed_bias(_in_float32)
        return self._replace(
            q=_in_float32(self.q), k=_in_float32(self.k), v=_in_float32(self.v), bias=bias
        )

    def widened(self) -> Operands:
        """The operands with keys and values as plain tensors in q's dtype."""
        if not isinstance(self.k, Stored) and not isinstance(self.v, Stored):
            return self
        dtype = self.q.dtype
        return self._replace(k=_as_tensor(self.k, dtype), v=_as_tensor(self.v, dtype))


def _in_float32(x: Any) -> Any:
    """A tensor of half precision in float32; anything else, such as stored vectors, as it is."""
    is_half = isinstance(x, torch.Tensor) and x.dtype.itemsize == 2
    return x.float() if is_half else x


def _as_tensor(x: torch.Tensor | Stored, dtype: torch.dtype) -> torch.Tensor:
    """Stored vectors as a tensor of this dtype; a tensor as it is."""
    return x.widened(dtype) if isinstance(x, Stored) else x


@dataclass(frozen=True)
class Cost:
    """The cost of a call: floating-point operations, bytes moved, and the largest memory beside input and output.

    `pairs`: the computed pairs, allowed or masked; `calls`: the operations launched; `estimated`: the numbers are
    estimates from a sample of the row blocks; `pace`: the time of one operation relative to PyTorch's fused one, where
    it was measured; `assumed`: the instructions of a processor for which the pace is assumed, as it was not measured.
    """

    flops: float
    bytes: float
    peak_bytes: float
    pairs: int
    calls: int = 1
    estimated: bool = False
    pace: float = 1.0
    assumed: str = ""

    def work_on(self, device: str) -> float:
        """The number that backends are compared by: operations, bytes and launches, all counted in operations."""
        byte = costs.BYTE.get(device, costs.BYTE["cpu"])
        launch = costs.LAUNCH.get(device, costs.LAUNCH["cpu"])
        return self.pace * self.flops + byte * self.bytes + launch * self.calls

    def __str__(self) -> str:
        about = "about " if self.estimated else ""
        return (
            f"{about}{short(self.flops)}FLOP, {short(self.bytes)}B moved, "
            f"{short(self.peak_bytes)}B beside the tensors"
        )


@dataclass(frozen=True)
class Refusal:
    """Why a backend does not compute a problem."""

    reason: str

    @property
    def cost(self) -> Refusal:
        """The refusal itself, which a plan shows instead of a cost."""
        return self

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Offer:
    """The cost of computing a problem, and the function that computes it.

    `takes_stored`: it reads keys and values as a cache stores them; otherwise they are widened to q's dtype first.
    `steps`: computes calls that differ from the problem in k_len and q_start only, without a plan for each.
    `growing`: a function of a call of `steps`. It returns what all calls like it have in common, so that a compiled
    library can compute them without Python; None where they differ in more than that library knows.
    `takes_row_keys`: it reads the keys of batch rows from the operands, so the problem's pattern may be another one of
    the same structure.
    `repeatable`: the struct of calls that differ from one in the addresses of their tensors only, which a compiled
    library computes without Python; None for a call where more may differ.
    `unrivalled`: no other backend needs less, so the others are assessed only for a plan that is printed.
    """

    cost: Cost
    run: Callable[[Operands], Result]
    takes_stored: bool = False
    steps: Callable[[Call], Result | None] | None = None
    unrivalled: bool = False
    takes_row_keys: bool = False
    repeatable: Callable[[Operands], Any] | None = None
    growing: Callable[[Call], Any] | None = None


class Backend(Protocol):
    """An implementation that computes calls; `assess` returns an offer, or a refusal with the reason.

    It refuses what exceeds its `limits`, functions from a problem to a reason or None, and what `strict` forbids.
    precise: whether it can keep the weights of bfloat16 and float16 calls in float32.
    """

    name: str
    precise: bool

    @property
    def limits(self) -> Iterable[Callable[[Problem], str | None]]: ...

    def assess(self, problem: Problem) -> Offer | Refusal: ...


def check_backend(backend: str, backends: Collection[str]) -> None:
    """Raise an ArgumentError unless it is "auto" or the name of a backend."""
    if not isinstance(backend, str) or (backend != "auto" and backend not in backends):
        raise ArgumentError(
            f"backend {shown(backend)} does not exist; there are auto, {', '.join(backends)}"
        )


def short(number: float) -> str:
    """A number in three digits with a unit prefix.

    >>> short(1_234_567)
    '1.23 M'
    """
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} P"
