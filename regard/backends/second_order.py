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

from regard.core.tensors import in_memory
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

    def written(grads: Tensors) -> Tensors:
        return first(
            [None if x is None else in_memory("the gradient of an output", x) for x in grads]
        )

    if not torch.is_grad_enabled():
        return _each(written, grads)
    return _each(lambda grads: _First.apply(written, pieces, len(inputs), *inputs, *grads), grads)


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` for calls outside of torch.func: it leaves out what prepares transforms, which takes time."""
    return super(torch.autograd.Function, function).apply  # ty: ignore[missing-attribute]


def one_by_one(
    function: Callable[..., Any], size: int, dims: Sequence[int | None], *args: Any
) -> tuple[Any, ...]:
    """A function of each member of a batch, stacked; `dims` has the batch axis of each argument."""
    found = []
    for at in range(size):
        members = (
            x if dim is None else x.select(dim, at) for x, dim in zip(args, dims, strict=True)
        )
        found.append(function(*members))
    return tuple(
        None if parts[0] is None else torch.stack(parts) for parts in zip(*found, strict=True)
    )


def _each(function: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors:
    """A function of tensors, called once for each member if autograd passes a batch of gradients."""
    dims = [
        0 if x is not None and torch._C._functorch.is_legacy_batchedtensor(x) else None
        for x in tensors
    ]
    if 0 not in dims:
        return function(tensors)
    level = (
        torch._C._vmapmode_increment_nesting() - 1
    )  # PyTorch has no function that only reads the level
    torch._C._vmapmode_decrement_nesting()
    whole: list[Any] = [
        x if x is None or dim is None else torch._remove_batch_dim(x, level, 1, dim)
        for x, dim in zip(tensors, dims, strict=True)
    ]
    found = one_by_one(lambda *members: function(members), len(whole[dims.index(0)]), dims, *whole)
    return tuple(None if x is None else torch._add_batch_dim(x, 0, level) for x in found)


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
        sent = _each(
            lambda seconds: _Second.apply(pieces, count, needs, *tensors, *seconds), seconds
        )
        return None, None, None, *sent


class _Second(torch.autograd.Function):
    """The derivative of `_First`, piece by piece."""

    @staticmethod
    def forward(
        ctx: Any, pieces: Any, count: int, needs: Sequence[bool], *tensors: torch.Tensor | None
    ) -> Any:
        ctx.set_materialize_grads(False)
        size = len(needs)
        return tuple(
            _derivative(pieces(), tensors[:count], tensors[count:size], tensors[size:], needs)
        )

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
    sums = [
        torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
        if x is not None and need
        else None
        for x, need in zip(whole, needs, strict=True)
    ]
    for piece in pieces:
        places = (*piece.inputs, *piece.outputs)
        parts = [
            None if x is None else x[place].detach() for x, place in zip(whole, places, strict=True)
        ]
        with torch.enable_grad():
            parts = [None if x is None else x.requires_grad_(x.is_floating_point()) for x in parts]
            total = _weighted(piece, parts[: len(inputs)], parts[len(inputs) :], seconds)
        asked = [
            x for x, into in zip(parts, sums, strict=True) if into is not None and x is not None
        ]
        if total is None or not asked or not total.requires_grad:
            continue
        found = iter(torch.autograd.grad(total, asked, allow_unused=True))
        for into, place in zip(sums, places, strict=True):
            if into is not None and (sent := next(found)) is not None:
                into[place] += sent.to(into.dtype)
    return [
        None if x is None or into is None else into.to(x.dtype)
        for x, into in zip(whole, sums, strict=True)
    ]


def _weighted(
    piece: Piece, inputs: Tensors, grads: Tensors, seconds: Tensors
) -> torch.Tensor | None:
    """Σ seconds · gradients of one piece, differentiable; None if no input gets a gradient."""
    outputs = piece.compute(*inputs)
    pairs = [
        (x, g)
        for x, g in zip(outputs, grads, strict=True)
        if x is not None and g is not None and x.requires_grad
    ]
    learning = [(x, at) for at, x in enumerate(inputs) if x is not None and seconds[at] is not None]
    if not pairs or not learning:
        return None
    firsts = torch.autograd.grad(
        [x for x, _ in pairs],
        [x for x, _ in learning],
        [g.to(x.dtype) for x, g in pairs],
        create_graph=True,
        allow_unused=True,
    )
    terms = []
    for sent, (_, at) in zip(firsts, learning, strict=True):
        second = seconds[at]
        if sent is not None and second is not None:
            terms.append((sent * second[piece.inputs[at]].to(sent.dtype)).sum())
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
