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
    for tensor in tensors:
        x = tensor.numbers if isinstance(tensor, Stored) else tensor
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
    wide = torch.promote_types(problem.dtype, torch.float32)
    own = {"received": (*rows[:2], keys), "weights": (*rows, keys)}
    named = {name: (own.get(name, rows), wide) for name in NAMES if name in problem.want}
    shapes = {"output": ((*rows, problem.v_dim), problem.dtype), **named}
    if (top := requested(TopKeys, problem.want)) is not None:
        shapes["top_keys"] = ((*rows, top.count), wide)
    if (chosen := requested(WeightsOf, problem.want)) is not None:
        heads = problem.heads if chosen.heads is None else len(chosen.heads)
        shapes["chosen_weights"] = ((problem.batch, heads, len(chosen.rows), keys), wide)
    tensors = [x for one in others for x in _learning(one)]
    results: dict[str, Any] = dict(
        zip(shapes, _Shapes.apply(list(shapes.values()), q, *tensors), strict=True)
    )
    if top is not None:
        indices = q.new_empty(shapes["top_keys"][0], dtype=torch.int64)
        results["top_keys"] = TopKeysFound(indices, results["top_keys"])
    return Result(**results)


def _learning(given: Any) -> list[torch.Tensor]:
    """The tensors behind an argument that gradients may reach."""
    if isinstance(given, Stored):
        given = given.numbers
    if isinstance(given, Bias) and isinstance(given, torch.nn.Module):
        return list(given.parameters())
    return [given] if isinstance(given, torch.Tensor) and given.dtype.is_floating_point else []


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
