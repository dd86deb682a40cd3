"""`attention` inside torch.func: grad, vjp, jacrev and vmap, and combinations such as per-sample gradients.

A transform treats a call as one operation, whose derivative is again such an operation. Inside it the tensors are
plain, so every backend works. vmap's axis is merged with the batch axis if nothing differs by batch row; otherwise its
members are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from regard.backends.second_order import one_by_one
from regard.bias import Bias
from regard.core.call import Call
from regard.core.result import Result, TopKeysFound
from regard.core.tensors import Stored, map_tensors
from regard.errors import UnsupportedError
from regard.functional.compiled import Table, tabled, uncompiled
from regard.patterns import Pattern, as_pattern

Tensors = tuple[torch.Tensor | None, ...]
_STATISTICS = (
    "log_sum_exp",
    "entropy",
    "received",
    "weights",
    "distance",
    "chosen_weights",
    "sink",
)


def transforming() -> bool:
    """Whether this call is inside a transform of torch.func without forward-mode derivatives.

    Forward-mode derivatives are computed by the plain operations of the reference and need no rule here.
    """
    return (
        torch._C._functorch.peek_interpreter_stack() is not None and forward_ad._current_level < 0
    )


def transformed(call: Call, compute: Callable[[Call], Result]) -> Result:
    """The result of `compute(call)`, as torch.func differentiates and batches it."""
    pattern = _checked_pattern(call)
    bias = call.bias
    lowest = None
    if isinstance(bias, Bias) and not isinstance(call.q_start, torch.Tensor):
        bias, lowest = tabled(bias, call.q, call.k, call.q_start)
    parameters = dict(call.parameters or {})
    arguments: dict[str, Any] = {
        "q": call.q,
        "k": call.k,
        "v": call.v,
        "bias": bias,
        "q_start": call.q_start,
        "sink": call.sink,
        **parameters,
    }
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    names: list[str] = []  # of the statistics that the call returned

    def run(*plain_tensors: Any) -> Tensors:
        plain: dict[str, Any] = {**arguments, **dict(zip(tensors, plain_tensors, strict=True))}
        learned = {name: plain.pop(name) for name in parameters}
        if lowest is not None:
            plain["bias"] = Table(plain["bias"], lowest)
        result = compute(call._replace(**plain, parameters=learned or None))
        names[:] = [name for name in _STATISTICS if getattr(result, name) is not None]
        outputs = [result.output, *(getattr(result, name) for name in names)]
        if result.top_keys is not None:
            outputs += [result.top_keys.weights, result.top_keys.indices]
        return tuple(outputs)

    # Only q, k and v are tensors, and nothing differs by batch row, so that vmap's axis can be merged with the batch.
    folds = len(tensors) == 3 and not call.dropout and not pattern.varies_by_row
    output, *rest = _Run.apply(run, folds, *tensors.values())
    statistics = dict(zip(names, rest, strict=False))
    top = None
    if len(rest) > len(names):
        weights, indices = rest[-2:]
        top = TopKeysFound(indices, weights)
    return Result(output, top_keys=top, **statistics)


def _checked_pattern(call: Call) -> Pattern:
    """The pattern of a call, after checks that a transform supports the call."""
    if isinstance(call.k, Stored) or isinstance(call.v, Stored):
        raise UnsupportedError(
            "keys and values of a cache are not supported inside torch.func; give plain tensors"
        )
    if call.dropout and call.dropout_seed is None:
        raise UnsupportedError(
            f"dropout={call.dropout} inside torch.func draws its seed where no number can be read; give dropout_seed="
        )
    pattern = as_pattern(call.pattern)
    if _holds_wrapped(pattern):
        raise UnsupportedError(
            f"{pattern} holds a tensor that torch.func batches; make the pattern outside of vmap, or give "
            f"bias= instead, 0 where a query may look and -inf elsewhere"
        )
    return pattern


class _Run(torch.autograd.Function):
    """A function of plain tensors with the rules that torch.func needs."""

    @staticmethod
    def forward(
        function: Callable[..., Tensors], folds: bool, *tensors: torch.Tensor | None
    ) -> Tensors:
        return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.function, ctx.folds, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(x for x in output if x is not None and not x.is_floating_point())
        )

    @staticmethod
    @uncompiled  # torch.compile, which left the call out of its graph, meets its rules again in the backward pass
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        tensors = ctx.saved_tensors
        derivative = partial(_derivative, ctx.function, len(tensors))
        grads_of_inputs = _Run.apply(derivative, ctx.folds, *tensors, *grads)
        return None, None, *grads_of_inputs[: len(tensors)]

    @staticmethod
    @uncompiled
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        function, folds, *tensors = args
        dims = in_dims[2:]
        size = info.batch_size
        if folds:
            folded = [_folded(x, dim, size) for x, dim in zip(tensors, dims, strict=True)]
            outputs = _unfolded(_Run.apply(function, folds, *folded), size)
        else:
            outputs = one_by_one(partial(_Run.apply, function, folds), size, dims, *tensors)
        return outputs, tuple(None if x is None else 0 for x in outputs)


def _folded(x: torch.Tensor | None, dim: int | None, size: int) -> torch.Tensor | None:
    """(batch of vmap, batch, ...) as one axis."""
    if x is None:
        return None
    members = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return members.flatten(0, 1)


def _unfolded(outputs: Tensors, size: int) -> Tensors:
    """Outputs with vmap's axis of this size before their batch axis again."""
    return tuple(map_tensors(lambda x: x.unflatten(0, (size, -1)), outputs))


def _derivative(
    function: Callable[..., Tensors], count: int, *tensors_and_grads: torch.Tensor | None
) -> Tensors:
    """The gradients of the `count` tensors of a function, from these tensors and the gradients of what it returns."""
    again = torch.is_grad_enabled()  # whether the result may be differentiated again
    with torch.enable_grad():
        tensors = [_fresh(x, again) for x in tensors_and_grads[:count]]
        learning = [x for x in tensors if x is not None and x.is_floating_point()]
        outputs: list[torch.Tensor] = []
        grads: list[torch.Tensor] = []
        for output, grad in zip(function(*tensors), tensors_and_grads[count:], strict=True):
            if output is not None and grad is not None and output.requires_grad:
                outputs.append(output)
                grads.append(grad)
        if outputs:
            grads_of_learning = torch.autograd.grad(
                outputs,
                learning,
                grads,
                create_graph=again,
                allow_unused=True,
                materialize_grads=True,
            )
        else:
            grads_of_learning = tuple(torch.zeros_like(x) for x in learning)

    following = iter(grads_of_learning)
    grads_of_inputs = []
    for x in tensors:
        learns = x is not None and x.is_floating_point()
        grads_of_inputs.append(next(following) if learns else None)
    return tuple(grads_of_inputs)


def _fresh(x: torch.Tensor | None, again: bool) -> torch.Tensor | None:
    """A tensor with the same numbers and a gradient of its own, even if it was computed from another of the call."""
    if x is None or not x.is_floating_point():
        return x
    if again and x.requires_grad:
        return x.view_as(x)
    return x.detach().requires_grad_()


def _holds_wrapped(value: Any) -> bool:
    """Whether a pattern holds a tensor that a transform of torch.func made."""
    if isinstance(value, torch.Tensor):
        return torch._C._functorch.is_functorch_wrapped_tensor(value)
    parts: list[Any] = []
    if isinstance(value, tuple | list):
        parts = list(value)
    elif isinstance(value, Pattern):
        parts = [getattr(value, name) for name in getattr(value, "__dataclass_fields__", ())]
    return any(_holds_wrapped(part) for part in parts)
