"""A recurrence inside torch.compile: one operation, which the compiler does not trace into.

Traced, a recurrence is unrolled over its chunks, so that each length has a graph of its own. The operation serves every
length and every number of documents, and is computed as outside of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch

from regard.backends.native.recurrence import engine_on
from regard.backends.recurrence import RecurrenceInputs, Rule, scan, scan_texts

__all__ = ["traced_recurrence"]

_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? strength, Tensor memory"
_OPTIONS = "Tensor? begins, *, bool corrects, float scale, float unit, bool[] learns"
torch.library.define(
    "regard::recurrence", f"({_TENSORS}, {_OPTIONS}) -> (Tensor output, Tensor after)"
)
torch.library.define(
    "regard::recurrence_backward",
    f"(Tensor? grad, Tensor? grad_after, {_TENSORS}, {_OPTIONS}) -> Tensor[]",
)
_operation: Any = torch.ops.regard
INPUTS = 6  # the tensors that may learn


def traced_recurrence(
    rule: Rule, inputs: RecurrenceInputs, begins: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of a recurrence in a graph, and the memory after it, as `scan` and `scan_texts` return them.

    q, k and v have the dtype of the memory. An exported program must hold no operation of regard, so this is not called
    while `torch.export` traces.
    """
    grad = torch.is_grad_enabled()
    learns = [grad and x is not None and x.requires_grad for x in inputs]
    return _operation.recurrence(
        *inputs,
        begins,
        corrects=rule.corrects,
        scale=rule.scale,
        unit=rule.unit,
        learns=learns,
    )


def _compute(
    inputs: RecurrenceInputs, begins: torch.Tensor | None, rule: Rule
) -> tuple[torch.Tensor, torch.Tensor]:
    if begins is None:
        return scan(engine_on(inputs.v), rule, inputs)
    return scan_texts(engine_on(inputs.v), rule, inputs, begins)


@torch.library.impl("regard::recurrence", "CompositeExplicitAutograd")
def _forward(
    *tensors: Any, corrects: bool, scale: float, unit: float, learns: Sequence[bool]
) -> tuple[torch.Tensor, torch.Tensor]:
    *inputs, begins = tensors
    with torch.no_grad():
        output, after = _compute(RecurrenceInputs(*inputs), begins, Rule(corrects, scale, unit))
    if not inputs[2].shape[2]:
        after = after.clone()  # without positions it is the memory before
    return output.contiguous(), after.contiguous()


@torch.library.register_fake("regard::recurrence")
def _outputs_like(
    *tensors: Any, corrects: bool, scale: float, unit: float, learns: Sequence[bool]
) -> tuple[torch.Tensor, torch.Tensor]:
    q, _, v, _, _, memory, _ = tensors
    heads = max(q.shape[1], v.shape[1])
    return v.new_empty((v.shape[0], heads, *v.shape[2:])), memory.new_empty(memory.shape)


@torch.library.impl("regard::recurrence_backward", "CompositeExplicitAutograd")
def _backward(
    grad: torch.Tensor | None,
    grad_after: torch.Tensor | None,
    *tensors: Any,
    corrects: bool,
    scale: float,
    unit: float,
    learns: Sequence[bool],
) -> list[torch.Tensor]:
    """Gradients of what learns. The forward pass is computed again."""
    *inputs, begins = tensors
    leaves: list[Any] = []
    for x, needed in zip(inputs, learns, strict=True):
        leaves.append(None if x is None else x.detach().requires_grad_(needed))
    learning = [x for x, needed in zip(leaves, learns, strict=True) if needed]
    with torch.enable_grad():
        outputs = _compute(RecurrenceInputs(*leaves), begins, Rule(corrects, scale, unit))
        given = [x is not None for x in (grad, grad_after)]
        grads_of_outputs = [x for x in (grad, grad_after) if x is not None]
        grads = torch.autograd.grad(
            list(compress(outputs, given)),
            learning,
            grads_of_outputs,
            allow_unused=True,
            materialize_grads=True,
        )
    return [x.contiguous() for x in grads]


@torch.library.register_fake("regard::recurrence_backward")
def _gradients_like(
    grad: Any, grad_after: Any, *tensors: Any, learns: Sequence[bool], **_: Any
) -> list[torch.Tensor]:
    learning = [x for x, needed in zip(tensors[:INPUTS], learns, strict=True) if needed]
    return [x.new_empty(x.shape) for x in learning]


def _save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.options = keyword_only_inputs
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Any, grad_after: Any) -> tuple[Any, ...]:
    learns = ctx.options["learns"]
    if grad is None and grad_after is None:
        return (None,) * (INPUTS + 1)
    gradients = iter(
        _operation.recurrence_backward(grad, grad_after, *ctx.saved_tensors, **ctx.options)
    )
    return *(next(gradients) if needed else None for needed in learns), None


torch.library.register_autograd("regard::recurrence", _differentiate, setup_context=_save)
