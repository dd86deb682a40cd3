"""The budget of rounding errors that a result may have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from regard.reprs import brief
from regard.testing.oracle import Answer, Array


@brief
@dataclass(frozen=True)
class Budget:
    """Bounds on the rounding error of outputs and gradients.

    With Q, K the largest norms of a row of q and k, B the largest |bias| plus the largest |sink|,
    D the largest |grad · v| of any pair, R the most weight that one key (or one entry of bias or sink) receives over
    all queries, and
    L = 1 + |scale| Q K + B (how far rounding moves a weight, in units of eps), errors stay below
    eps(result) · max|result| + eps(computing) times

        output  L max|v|        log_sum_exp  L        dq  2 L D |scale| K
        dv  L R max|grad|       dk  2 L D |scale| Q R        dbias, dsink  2 L D R

    where eps(computing) is that of float32 for half dtypes and float32, and twice that of float64 for float64, because
    the expected numbers are rounded in float64 too. Hardware that multiplies bfloat16 rounds the weights and the bias
    to bfloat16 first, which adds the same once more with eps(bfloat16) and
    L = 1 + B.

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
        sink: torch.Tensor | float | None = None,
        grad_output: torch.Tensor | None = None,
        dropout: float = 0.0,
        answer: Answer | None = None,
    ) -> Budget:
        """The budget of a call; bounds on gradients need the oracle's answer."""
        grown = 1 / (1 - dropout)
        largest_bias = 0.0 if bias is None else _largest(torch.where(bias.isfinite(), bias, 0))
        if sink is not None:
            largest_bias += _largest(torch.as_tensor(sink).nan_to_num(neginf=0))
        computing = torch.promote_types(dtype, torch.float32)
        # the oracle rounds too
        eps = torch.finfo(computing).eps * (2 if computing == torch.float64 else 1)
        score = (1 + abs(scale) * _norm(q) * _norm(k) + largest_bias) * eps
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
                axes = tuple(
                    axis
                    for axis, size in enumerate((1,) * (4 - bias.dim()) + tuple(bias.shape))
                    if size == 1
                )
                units["dbias"] = pull * max(1.0, _most(answer.weights.sum(axes)))
            if isinstance(sink, torch.Tensor) and answer.sink is not None:
                shape = (1,) * (2 - sink.dim()) + tuple(sink.shape)
                axes = tuple(axis for axis, size in enumerate((*shape, 1)) if size == 1)
                units["dsink"] = pull * max(1.0, _most(answer.sink.sum(axes)))
        return cls(torch.finfo(dtype).eps, units)

    def bound(self, name: str, expected: Array) -> float:
        """The largest error that the result `name` may have when the oracle's is `expected`."""
        finite = expected[np.isfinite(expected)]
        return self.units[name] + self.rounding * _most(np.abs(finite))

    def share(self, name: str, found: torch.Tensor, expected: Array) -> float:
        """The largest error over its bound: at most 1 is within the budget; inf if only one result is finite."""
        allowed = self.bound(name, expected)
        got = found.detach().double().cpu().numpy().reshape(expected.shape)
        equal = got == expected  # infinities included
        if equal.all():
            return 0.0
        gap = np.abs(got[~equal] - expected[~equal]).max()
        return float(gap / allowed) if np.isfinite(gap) else float("inf")


def _norm(x: torch.Tensor) -> float:
    return float(x.detach().double().norm(dim=-1).max()) if x.numel() else 0.0


def _largest(x: torch.Tensor) -> float:
    return float(x.detach().double().abs().max()) if x.numel() else 0.0


def _most(x: Array) -> float:
    return float(np.max(x)) if x.size else 0.0
