"""How far rounding may take an answer from the oracle's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.arguments import real
from regard.errors import ArgumentError, ShapeError
from regard.kinds import a_string, of_kind, shown
from regard.shapes import DTYPES, check_tensor
from regard.testing.asked import numbers
from regard.testing.oracle import Answer, Array


@dataclass(frozen=True)
class Budget:
    """Bounds on the error of values and gradients: rounding while computing, and rounding of the result.

    With Q, K the largest norms of a row of q and k, B the largest |bias|, D the largest |grad · v| of any pair,
    R the most weight that one key (or one entry of the bias) receives over all queries, and
    L = 1 + |scale| Q K + B (how far rounding moves a weight, in units of eps), errors stay below
    eps(result) · max|result| + eps(computing) times

        output  L max|v|        log_sum_exp  L        dq  2 L D |scale| K
        dv  L R max|grad|       dk  2 L D |scale| Q R        dbias  2 L D R

    where eps(computing) is that of float32 for half types and the dtype's own otherwise. Machines that multiply
    bfloat16 themselves round the weights, and the bias, to it before they use them: the same once more with
    eps(bfloat16) and L = 1 + B.

    >>> q = torch.ones(1, 1, 1, 4)
    >>> Budget.of(q, q, q, torch.float32, scale=0.5).bound("output", np.ones(1)) == 4 * torch.finfo(torch.float32).eps
    True
    """

    rounding: float
    units: dict[str, float]

    @classmethod
    def of(
        cls,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dtype: torch.dtype,
        *,
        scale: float,
        bias: torch.Tensor | None = None,
        grad_output: torch.Tensor | None = None,
        dropout: float = 0.0,
        answer: Answer | None = None,
    ) -> Budget:
        """The budget of a call; gradients need the oracle's answer. Kept weights grow by 1 / (1 - dropout)."""
        _check(dtype, q=q, k=k, v=v, bias=bias, grad_output=grad_output)
        of_kind("answer", answer, (Answer, type(None)), "the oracle's Answer, or None")
        scale, dropout = real("scale", scale), real("dropout", dropout)
        if not 0 <= dropout < 1:
            raise ArgumentError(f"dropout is {dropout}; a budget takes 0 or more, below 1")
        grown = 1 / (1 - dropout)
        largest_bias = 0.0 if bias is None else _largest(torch.where(bias.isfinite(), bias, 0))
        computing = torch.promote_types(dtype, torch.float32)
        score = (1 + abs(scale) * _norm(q) * _norm(k) + largest_bias) * torch.finfo(computing).eps
        if dtype == torch.bfloat16:
            score += (1 + largest_bias) * torch.finfo(dtype).eps
        units = {"output": score * _largest(v) * grown, "log_sum_exp": score}
        if grad_output is not None and answer is not None:
            repeated = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1).double()
            pull = 2 * score * grown * _largest(grad_output.double() @ repeated.mT)
            received = max(1.0, _most(answer.weights.sum(2)) * q.shape[1] / k.shape[1])
            units |= {
                "dq": pull * abs(scale) * _norm(k),
                "dk": pull * abs(scale) * _norm(q) * received,
                "dv": score * grown * _largest(grad_output) * received,
            }
            if bias is not None:
                axes = tuple(axis for axis, size in enumerate((1,) * (4 - bias.dim()) + tuple(bias.shape)) if size == 1)
                units["dbias"] = pull * max(1.0, _most(answer.weights.sum(axes)))
        return cls(torch.finfo(dtype).eps, units)

    def bound(self, name: str, expected: Array) -> float:
        """The largest error that the result called `name` may have where the oracle says `expected`."""
        if a_string("name", name) not in self.units:
            raise ArgumentError(f"name is {name!r}; this budget has bounds for {', '.join(self.units)}")
        expected = numbers("expected", expected)
        finite = expected[np.isfinite(expected)]
        return self.units[name] + self.rounding * _most(np.abs(finite))

    def share(self, name: str, found: torch.Tensor, expected: Array) -> float:
        """The error over its bound: 1 or less is within the budget; inf where only one side is finite."""
        check_tensor("found", found)
        expected, allowed = numbers("expected", expected), self.bound(name, expected)
        if found.numel() != expected.size:
            raise ShapeError(f"found has shape {tuple(found.shape)} and expected {expected.shape}; they need one size")
        got = found.detach().double().cpu().numpy().reshape(expected.shape)
        equal = got == expected  # infinities included
        if equal.all():
            return 0.0
        gap = np.abs(got[~equal] - expected[~equal]).max()
        return float(gap / allowed) if np.isfinite(gap) else float("inf")


def _check(dtype: torch.dtype, **named: Any) -> None:
    """Raise a RegardError unless q, k, v, and what else is given, are dense tensors that fit each other."""
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype is {shown(dtype)}; it needs one of {', '.join(map(str, DTYPES))}")
    for name, tensor in named.items():
        if tensor is not None or name in ("q", "k", "v"):
            check_tensor(name, tensor)
            if name != "bias" and tensor.dim() != 4:
                raise ShapeError(f"{name} has shape {tuple(tensor.shape)}; it needs four axes")


def _norm(x: torch.Tensor) -> float:
    return float(x.detach().double().norm(dim=-1).max()) if x.numel() else 0.0


def _largest(x: torch.Tensor) -> float:
    return float(x.detach().double().abs().max()) if x.numel() else 0.0


def _most(x: Array) -> float:
    return float(np.max(x)) if x.size else 0.0
