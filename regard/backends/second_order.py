"""Second derivatives of functions whose first derivatives are written by hand.

Autograd cannot differentiate a hand-written backward pass again. `gradients` runs such a pass unchanged in an ordinary
backward pass. With `create_graph=True`, or with several gradients in one batch (`is_grads_batched=True`), it runs the
pass as an operation with a derivative of its own, which computes the function again by plain operations, one piece at a
time, and differentiates each piece twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.core.tensors import in_memory, map_tensors
from regard.errors import UnsupportedError

Tensors = Sequence[torch.Tensor | None]
Gradients = Callable[[Tensors], Tensors]  # from the gradients of the outputs to those of the inputs
Index = Any  # anything that can index a tensor


@dataclass(frozen=True)
class Piece:
    """Part of a function as plain differentiable operations.

    The outputs of the function are the results of all pieces, each added at its index.

    Args:
        compute: a function from this part of each input to this part of each output.
        inputs: the index of its part in each input.
        outputs: the index of its part in each output.
    """

    compute: Callable[..., Tensors]
    inputs: tuple[Index, ...]
    outputs: tuple[Index, ...]


def gradients(
    first: Gradients, pieces: Callable[[], Iterable[Piece]], inputs: Tensors, grads: Tensors
) -> Tensors:
    """The gradients of `inputs` that the backward pass `first` computes; differentiable with `create_graph=True`.

    Args:
        first: the backward pass; it may return None for an input that needs no gradient.
        pieces: the same function in pieces; called when second derivatives are computed.
        inputs: the saved tensors of the function, None for omitted ones.
        grads: the gradients of its outputs, None for outputs without one.
    """

    def backward(grads: Tensors) -> Tensors:
        written = [None if x is None else in_memory("the gradient of an output", x) for x in grads]
        return first(written)

    def differentiable_backward(grads: Tensors) -> Tensors:
        return _First.apply(backward, pieces, len(inputs), *inputs, *grads)

    if not torch.is_grad_enabled():
        return _for_each_member(backward, grads)
    return _for_each_member(differentiable_backward, grads)


def values_by_pieces(
    pieces: Iterable[Piece], inputs: Tensors, outputs: Sequence[torch.Tensor]
) -> None:
    """Write the outputs of a function that plain operations compute, one piece at a time."""
    for piece in pieces:
        parts = (
            None if x is None else x[place] for x, place in zip(inputs, piece.inputs, strict=True)
        )
        found = piece.compute(*parts)
        for into, place, values in zip(outputs, piece.outputs, found, strict=True):
            assert values is not None
            into[place] = values.to(into.dtype)


def by_pieces(pieces: Iterable[Piece], inputs: Tensors, grads: Tensors) -> list[torch.Tensor]:
    """The gradients of `inputs` by autograd through plain operations, one piece at a time, in the dtypes of the inputs.

    It is slower than a backward pass that is written by hand, and computes what such a pass cannot.
    """
    sums = [
        torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
        for x in inputs
        if x is not None
    ]
    for piece in pieces:
        parts = [
            None if x is None else x[place].detach()
            for x, place in zip(inputs, piece.inputs, strict=True)
        ]
        with torch.enable_grad():
            parts = map_tensors(torch.Tensor.requires_grad_, parts)
            outputs = piece.compute(*parts)
        pairs = [
            (x, g[place].to(x.dtype))
            for x, g, place in zip(outputs, grads, piece.outputs, strict=True)
            if x is not None and g is not None and x.requires_grad
        ]
        if not pairs:
            continue
        asked: Any = [x for x in parts if x is not None]
        found = torch.autograd.grad(
            [x for x, _ in pairs], asked, [g for _, g in pairs], allow_unused=True
        )
        places = [place for x, place in zip(inputs, piece.inputs, strict=True) if x is not None]
        for into, place, sent in zip(sums, places, found, strict=True):
            if sent is not None:
                into[place] += sent.to(into.dtype)
    like = [x for x in inputs if x is not None]
    return [x.to(of.dtype) for x, of in zip(sums, like, strict=True)]


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` for calls outside of torch.func: it leaves out what prepares transforms, which takes time."""
    return super(torch.autograd.Function, function).apply  # ty: ignore[missing-attribute]


def one_by_one(
    function: Callable[..., Any], size: int, dims: Sequence[int | None], *args: Any
) -> tuple[Any, ...]:
    """A function of each member of a batch, stacked; `dims` has the batch axis of each argument."""
    results = []
    for number in range(size):
        member = []
        for x, dim in zip(args, dims, strict=True):
            member.append(x if dim is None else x.select(dim, number))
        results.append(function(*member))
    by_output = zip(*results, strict=True)
    return tuple(None if parts[0] is None else torch.stack(parts) for parts in by_output)


def _for_each_member(function: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors:
    """A function of tensors, called once for each member if autograd passes a batch of gradients."""
    for x in tensors:
        if x is not None and torch._C._functorch.is_legacy_batchedtensor(x):
            return _for_each_member_of_batch(function, tensors)
    return function(tensors)


def _for_each_member_of_batch(function: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors:
    dims: list[int | None] = []
    for x in tensors:
        batched = x is not None and torch._C._functorch.is_legacy_batchedtensor(x)
        dims.append(0 if batched else None)
    # PyTorch has no function that only reads the level.
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    whole: list[Any] = []
    for x, dim in zip(tensors, dims, strict=True):
        if x is not None and dim is not None:
            x = torch._remove_batch_dim(x, level, 1, dim)
        whole.append(x)
    members = len(whole[dims.index(0)])
    results = one_by_one(lambda *member: function(member), members, dims, *whole)
    return tuple(map_tensors(lambda x: torch._add_batch_dim(x, 0, level), results))


class _First(torch.autograd.Function):
    """The hand-written backward pass, as a function of the inputs and the gradients of the outputs."""

    @staticmethod
    def forward(
        ctx: Any, first: Gradients, pieces: Any, count: int, *tensors: torch.Tensor | None
    ) -> Any:
        ctx.save_for_backward(*tensors)
        ctx.pieces, ctx.count = pieces, count
        ctx.set_materialize_grads(False)
        return tuple(first(tensors[count:]))

    @staticmethod
    def backward(ctx: Any, *seconds: torch.Tensor | None) -> Any:
        pieces = ctx.pieces
        count = ctx.count
        needs = ctx.needs_input_grad[3:]
        tensors = ctx.saved_tensors

        def second_derivative(seconds: Tensors) -> Tensors:
            return _Second.apply(pieces, count, needs, *tensors, *seconds)

        return None, None, None, *_for_each_member(second_derivative, seconds)


class _Second(torch.autograd.Function):
    """The derivative of `_First`, piece by piece."""

    @staticmethod
    def forward(
        ctx: Any, pieces: Any, count: int, needs: Sequence[bool], *tensors: torch.Tensor | None
    ) -> Any:
        ctx.set_materialize_grads(False)
        size = len(needs)
        inputs = tensors[:count]
        grads = tensors[count:size]
        seconds = tensors[size:]
        return tuple(_derivative(pieces(), inputs, grads, seconds, needs))

    @staticmethod
    def backward(ctx: Any, *thirds: torch.Tensor | None) -> Any:
        raise UnsupportedError(
            "only the reference backend computes third derivatives of attention; pass backend='reference'"
        )


def _derivative(
    pieces: Iterable[Piece],
    inputs: Tensors,
    grads: Tensors,
    seconds: Tensors,
    needs: Sequence[bool],
) -> list[torch.Tensor | None]:
    """The gradient of Σ seconds · gradients with respect to every input and every gradient of an output."""
    whole = (*inputs, *grads)
    sums: list[torch.Tensor | None] = []
    for x, need in zip(whole, needs, strict=True):
        if x is None or not need:
            sums.append(None)
        else:
            dtype = torch.promote_types(x.dtype, torch.float32)
            sums.append(torch.zeros_like(x, dtype=dtype))

    for piece in pieces:
        indices = (*piece.inputs, *piece.outputs)
        parts: list[torch.Tensor | None] = []
        for x, index in zip(whole, indices, strict=True):
            if x is None:
                parts.append(None)
            else:
                part = x[index].detach()
                parts.append(part.requires_grad_(part.is_floating_point()))
        with torch.enable_grad():
            total = _weighted_sum(piece, parts[: len(inputs)], parts[len(inputs) :], seconds)
        if total is not None and total.requires_grad:
            _add_gradients(total, parts, sums, indices)

    results: list[torch.Tensor | None] = []
    for x, summed in zip(whole, sums, strict=True):
        results.append(None if x is None or summed is None else summed.to(x.dtype))
    return results


def _add_gradients(
    total: torch.Tensor,
    parts: Sequence[torch.Tensor | None],
    sums: Sequence[torch.Tensor | None],
    indices: Sequence[Index],
) -> None:
    """Add the gradients of `total` with respect to the parts to the sums at these indices."""
    wanted = []
    for part, summed, index in zip(parts, sums, indices, strict=True):
        if part is not None and summed is not None:
            wanted.append((part, summed, index))
    if not wanted:
        return
    sent = torch.autograd.grad(total, [part for part, _, _ in wanted], allow_unused=True)
    for gradient, (_, summed, index) in zip(sent, wanted, strict=True):
        if gradient is not None:
            summed[index] += gradient.to(summed.dtype)


def _weighted_sum(
    piece: Piece, inputs: Tensors, grads: Tensors, seconds: Tensors
) -> torch.Tensor | None:
    """Σ seconds · gradients of one piece, differentiable; None if no input gets a gradient."""
    outputs = []
    grads_of_outputs = []
    for output, grad in zip(piece.compute(*inputs), grads, strict=True):
        if output is not None and grad is not None and output.requires_grad:
            outputs.append(output)
            grads_of_outputs.append(grad.to(output.dtype))

    learning = []
    seconds_of_learning = []
    for x, second, index in zip(inputs, seconds[: len(inputs)], piece.inputs, strict=True):
        if x is not None and second is not None:
            learning.append(x)
            seconds_of_learning.append(second[index])
    if not outputs or not learning:
        return None

    firsts = torch.autograd.grad(
        outputs, learning, grads_of_outputs, create_graph=True, allow_unused=True
    )
    terms = []
    for first, second in zip(firsts, seconds_of_learning, strict=True):
        if first is not None:
            terms.append((first * second.to(first.dtype)).sum())
    return sum(terms[1:], terms[0]) if terms else None


def first_order_only(name: str, *outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The outputs of a backend without second derivatives; their backward pass refuses `create_graph=True`."""
    return _Once.apply(name, *outputs)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, *outputs: torch.Tensor) -> Any:
        ctx.name = name
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                f"backend {ctx.name!r} has no second derivatives, which create_graph=True needs; name another one, "
                f"such as backend='streamed'"
            )
        return None, *grads
