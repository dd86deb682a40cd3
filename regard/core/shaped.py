"""Calls with tensors without values (the meta device, FakeTensorMode): shapes and dtypes without computing.

No backend is chosen, since the kept pairs may depend on values; the backend of their plan is "shapes". Gradients of any
order have the right shapes too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from regard.bias import Bias
from regard.core.problem import Problem
from regard.core.result import NAMES, Result, TopKeys, TopKeysFound, WeightsOf, requested
from regard.core.tensors import Stored


def has_no_values(*tensors: Any) -> bool:
    """Whether one of these is a tensor without values."""
    for x in tensors:
        if isinstance(x, Stored):
            x = x.numbers
        if isinstance(x, FakeTensor) or (isinstance(x, torch.Tensor) and x.is_meta):
            return True
    return False


def shapes_of(problem: Problem, keys: int, q: torch.Tensor, *others: Any) -> Result:
    """The result of a call in empty tensors like q, connected to all tensors of the call for their gradients.

    Args:
        problem: the problem of the call.
        keys: columns of the statistics that have one for each key.
        q: the queries; others: keys, values, bias and parameters of the call.
    """
    rows = (problem.batch, problem.heads, problem.q_len)
    shapes: dict[str, tuple[int, ...]] = {"output": (*rows, problem.v_dim)}
    for name in NAMES:
        if name in problem.want:
            shapes[name] = rows
    if "received" in shapes:
        shapes["received"] = (problem.batch, problem.heads, keys)
    if "weights" in shapes:
        shapes["weights"] = (*rows, keys)
    top = requested(TopKeys, problem.want)
    if top is not None:
        shapes["top_keys"] = (*rows, top.count)
    chosen = requested(WeightsOf, problem.want)
    if chosen is not None:
        heads = problem.heads if chosen.heads is None else len(chosen.heads)
        shapes["chosen_weights"] = (problem.batch, heads, len(chosen.rows), keys)
    of_statistics = torch.promote_types(problem.dtype, torch.float32)
    dtypes = [problem.dtype] + [of_statistics] * (len(shapes) - 1)

    tensors: list[torch.Tensor] = []
    for argument in others:
        tensors += _differentiable_tensors(argument)
    made = _Shapes.apply(list(zip(shapes.values(), dtypes, strict=True)), q, *tensors)
    results: dict[str, Any] = dict(zip(shapes, made, strict=True))
    if top is not None:
        indices = q.new_empty(shapes["top_keys"], dtype=torch.int64)
        results["top_keys"] = TopKeysFound(indices, results["top_keys"])
    return Result(**results)


def _differentiable_tensors(argument: Any) -> list[torch.Tensor]:
    """The tensors behind an argument that gradients may reach."""
    if isinstance(argument, Stored):
        argument = argument.numbers
    if isinstance(argument, Bias) and isinstance(argument, torch.nn.Module):
        return list(argument.parameters())
    if isinstance(argument, torch.Tensor) and argument.dtype.is_floating_point:
        return [argument]
    return []


class _Shapes(torch.autograd.Function):
    """Empty tensors of given shapes; the gradients are empty tensors made the same way, so they have gradients too."""

    @staticmethod
    def forward(ctx: Any, shapes: list[tuple[Any, torch.dtype]], *tensors: torch.Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        return tuple(tensors[0].new_empty(shape, dtype=dtype) for shape, dtype in shapes)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        tensors = ctx.saved_tensors
        return None, *_Shapes.apply([(x.shape, x.dtype) for x in tensors], *tensors, *grads)
