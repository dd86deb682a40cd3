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
        growth = 1 / (1 - dropout)  # of weights that dropout keeps
        largest_added = 0.0
        if bias is not None:
            largest_added += _largest(torch.where(bias.isfinite(), bias, 0))
        if sink is not None:
            largest_added += _largest(torch.as_tensor(sink).nan_to_num(neginf=0))

        computing = torch.promote_types(dtype, torch.float32)
        eps = torch.finfo(computing).eps
        if computing == torch.float64:  # in which the oracle rounds too
            eps *= 2
        score = (1 + abs(scale) * _largest_norm(q) * _largest_norm(k) + largest_added) * eps
        if dtype == torch.bfloat16:
            score += (1 + largest_added) * torch.finfo(dtype).eps
        units = {"output": score * _largest(v) * growth, "log_sum_exp": score}
        budget = cls(torch.finfo(dtype).eps, units)
        if grad_output is None or answer is None:
            return budget

        repeated = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1).double()
        pair = 2 * score * growth * _largest(grad_output.double() @ repeated.mT)
        received = max(1.0, _highest(answer.weights.sum(2)) * q.shape[1] / k.shape[1])
        units["dq"] = pair * abs(scale) * _largest_norm(k)
        units["dk"] = pair * abs(scale) * _largest_norm(q) * received
        units["dv"] = score * growth * _largest(grad_output) * received
        if bias is not None:
            shape = (1,) * (4 - bias.dim()) + tuple(bias.shape)
            units["dbias"] = pair * _most_received(answer.weights, shape)
        if isinstance(sink, torch.Tensor) and answer.sink is not None:
            shape = (1,) * (2 - sink.dim()) + tuple(sink.shape)
            units["dsink"] = pair * _most_received(answer.sink, (*shape, 1))
        return budget

    def bound(self, name: str, expected: Array) -> float:
        """The largest error that the result `name` may have when the oracle's is `expected`."""
        finite = expected[np.isfinite(expected)]
        return self.units[name] + self.rounding * _highest(np.abs(finite))

    def share(self, name: str, result: torch.Tensor, expected: Array) -> float:
        """The largest error over its bound: at most 1 is within the budget; inf if only one result is finite."""
        numbers = result.detach().cpu().double().numpy().reshape(expected.shape)
        differ = numbers != expected  # equal infinities do not
        if not differ.any():
            return 0.0
        error = np.abs(numbers[differ] - expected[differ]).max()
        return float(error / self.bound(name, expected)) if np.isfinite(error) else float("inf")


def _largest_norm(x: torch.Tensor) -> float:
    return float(x.detach().double().norm(dim=-1).max()) if x.numel() else 0.0


def _largest(x: torch.Tensor) -> float:
    return float(x.detach().double().abs().max()) if x.numel() else 0.0


def _highest(x: Array) -> float:
    return float(np.max(x)) if x.size else 0.0


def _most_received(weights: Array, shape: tuple[int, ...]) -> float:
    """The most weight of an entry of a tensor that was broadcast from this shape, and at least 1."""
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return max(1.0, _highest(weights.sum(repeated)))
