"""The calls of the table: one text, one head, 64 numbers a position, forward, without the linear maps around it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from regard.bench.complexity.row import Call
from regard.functional import attention, plan_attention
from regard.mechanisms import Mechanism, Softmax
from regard.patterns import Pattern
from regard.testing import make_qkv

DIM = 64
Prepare = Callable[[int], Call]


def attending(
    pattern: Callable[[int], Pattern],
    mechanism: Callable[[int], Mechanism] = lambda n: Softmax(),
    *,
    shares_keys: bool = False,
) -> Prepare:
    """regard's attention with the pattern and mechanism of each length, on the path that the plan chooses."""

    def prepare(n: int) -> Call:
        q, k, v = _tensors(n)
        chosen = mechanism(n)
        learned = chosen.new_parameters(generator=torch.Generator().manual_seed(0))
        run = partial(
            attention, q, q if shares_keys else k, v, pattern=pattern(n), mechanism=chosen,
            parameters={name: x.detach() for name, x in learned.items()},
        )  # fmt: skip
        plan = plan_attention(*run.args, **run.keywords)
        return Call(torch.no_grad()(run), plan.cost.flops, partial(run, backend="reference"))

    return prepare


def written_out(n: int) -> Call:
    """Softmax attention as its formula stands, with every weight in memory at once."""
    q, k, v = _tensors(n)
    return Call(lambda: (q @ k.mT * DIM**-0.5).softmax(-1) @ v, 4.0 * n * n * DIM, partial(attention, q, k, v))


def recurrent(n: int) -> Call:
    """A gated recurrent unit: two products of (dim, 3 dim) a position."""
    torch.manual_seed(0)
    layer = nn.GRU(DIM, DIM, batch_first=True)
    return Call(_without_gradients(layer, _text(n), 0), 12.0 * n * DIM**2)


def convolution(width: int) -> Prepare:
    """A convolution that looks at `width` neighbours: so many products of (dim, dim) a position."""

    def prepare(n: int) -> Call:
        torch.manual_seed(0)
        layer = nn.Conv1d(DIM, DIM, width, padding=width // 2)
        return Call(_without_gradients(layer, _text(n).mT.contiguous()), 2.0 * width * n * DIM**2)

    return prepare


def root(n: int) -> int:
    """The stride of the Sparse Transformer: close to the square root of the length."""
    return max(1, math.isqrt(n))


def _tensors(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return make_qkv(batch=1, heads=1, kv_heads=1, q_len=n, k_len=n, head_dim=DIM, v_dim=DIM)


def _text(n: int) -> torch.Tensor:
    return torch.randn(1, n, DIM, generator=torch.Generator().manual_seed(0))


def _without_gradients(layer: nn.Module, x: torch.Tensor, part: int | None = None) -> Callable[[], torch.Tensor]:
    """Calls the layer; `part` is the output among what it answers."""

    @torch.no_grad()
    def run() -> torch.Tensor:
        answer = layer(x)
        return answer if part is None else answer[part]

    return run
