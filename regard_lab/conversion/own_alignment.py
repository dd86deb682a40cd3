"""Rotating and regrouping the key/value heads of regard's models before they are pooled, see `alignment`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.arguments import shown
from regard.errors import ArgumentError, UnsupportedError
from regard.layers import MultiHeadAttention
from regard.mechanisms import Dot, General, ScaledDot, Score, Softmax
from regard.positions import Rotary
from regard_lab.conversion.alignment import align, likeness
from regard_lab.conversion.heads import Likeness
from regard_lab.conversion.projections import KeySpace, Projections

Calibration = Callable[[Any], object]
"""Runs a model on some text, such as `lambda model: model(ids)`."""


def checked_calibration(calibration: object) -> Calibration | None:
    """A calibration, or None.

    Raises:
        ArgumentError: something that cannot be called.
    """
    if calibration is not None and not callable(calibration):
        raise ArgumentError(f"calibration is {shown(calibration)}; it needs a function that runs the model on a text")
    return calibration


class Aligned(NamedTuple):
    """A model with rotated heads, in float64, and how alike the heads of each group are."""

    model: Any
    likeness: tuple[Likeness, ...]


@torch.no_grad()
def aligned(
    model: nn.Module, groups: Mapping[str, int], calibration: Calibration | None, *, regroup: bool = True
) -> Aligned:
    """A copy of a model in float64 whose attention layers have rotated and regrouped heads; its outputs are the same.

    Args:
        model: a model of regard.
        groups: the number of key/value heads after the conversion, by the name of the layer.
        calibration: runs the model on a text; None for closeness without a text.
        regroup: whether heads may be grouped anew, where query heads differ in their projections only.

    Raises:
        UnsupportedError: a mechanism whose results change with the basis of the keys.
        ArgumentError: a calibration that does not run some layer.
    """
    for name in groups:
        _check_rotatable(name, model.get_submodule(name))
    turned = deepcopy(model).double().eval()
    moments = {} if calibration is None else moments_of(turned, groups, calibration)
    found = []
    for name, count in groups.items():
        layer = turned.get_submodule(name)
        assert isinstance(layer, MultiHeadAttention)
        before = projections_of(layer)
        moment = moments.get(name)
        space = KeySpace(layer.positions if isinstance(layer.positions, Rotary) else None)
        may_move = regroup and not differs_by_head(model, layer)
        matrix = layer.mechanism.learned["weight"] if isinstance(score_of(layer), General) else None
        alignment = align(before, count, moment, space, regroup=may_move)
        after = alignment.applied(before, queries=matrix is None)
        if matrix is not None:
            matrix.copy_(alignment.matrices(matrix))
        found.append(likeness(name, before, after, count, moment))
        _assign(layer, after)
    return Aligned(turned, tuple(found))


@torch.no_grad()
def moments_of(model: nn.Module, names: Mapping[str, Any], calibration: Calibration) -> dict[str, torch.Tensor]:
    """The mean of x xᵀ over the inputs x of each layer's keys, with a 1 as last number: (dim + 1, dim + 1)."""
    sums: dict[str, torch.Tensor] = {}
    counts = dict.fromkeys(names, 0)

    def observer(name: str) -> Callable[..., None]:
        def observe(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            product, count = second_moment(inputs[0])
            sums[name] = sums.get(name, 0) + product
            counts[name] += count

        return observe

    handles = [model.get_submodule(f"{name}.to_k").register_forward_pre_hook(observer(name)) for name in names]
    try:
        calibration(model)
    finally:
        for handle in handles:
            handle.remove()
    if missing := [name for name, count in counts.items() if not count]:
        raise ArgumentError(f"the calibration did not run {missing[0]!r} of the model; let it call the model on a text")
    return {name: product / counts[name] for name, product in sums.items()}


def second_moment(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The sum of x xᵀ over all vectors of x (..., dim), with a 1 as last number, in float64; and their number."""
    flat = x.detach().double().flatten(0, -2)
    flat = torch.cat([flat, flat.new_ones(len(flat), 1)], 1)
    return flat.T @ flat, len(flat)


def _check_rotatable(name: str, layer: nn.Module) -> None:
    assert isinstance(layer, MultiHeadAttention)
    score = score_of(layer)
    if not isinstance(score, ScaledDot | Dot | General):
        raise UnsupportedError(
            f"align rotates keys, which changes the results of {layer.mechanism.declared} in {name}; "
            f"use method mean or first"
        )


def score_of(layer: MultiHeadAttention) -> Score | None:
    """The score whose softmax a layer computes; None for another mechanism."""
    declared = layer.mechanism.declared
    return declared.score if isinstance(declared, Softmax) else None


def differs_by_head(model: Any, layer: MultiHeadAttention) -> bool:
    """Whether query heads differ in more than their projections, so that they cannot change places."""
    has_slopes = getattr(model.config, "positions", None) == "alibi"
    return has_slopes or layer.sinks is not None or "per_head" in str(layer.pattern)


def projections_of(layer: MultiHeadAttention) -> Projections:
    """The projections of a layer; for cross-attention those of keys and values have inputs of another size."""

    def part(module: Any, heads: int) -> torch.Tensor:
        weight, bias = module.weight, module.bias
        column = weight.new_zeros(len(weight), 1) if bias is None else bias[:, None]
        return torch.cat([weight, column], 1).unflatten(0, (heads, -1))

    return Projections(
        part(layer.to_q, layer.heads), part(layer.to_k, layer.kv_heads), part(layer.to_v, layer.kv_heads),
        layer.to_output.weight.unflatten(1, (layer.heads, -1)),
    )  # fmt: skip


def _assign(layer: MultiHeadAttention, projections: Projections) -> None:
    for module, heads in ((layer.to_q, projections.q), (layer.to_k, projections.k), (layer.to_v, projections.v)):
        rows = heads.flatten(0, 1)
        assert module is not None
        module.weight.copy_(rows[:, :-1])
        if module.bias is not None:
            module.bias.copy_(rows[:, -1])
    layer.to_output.weight.copy_(projections.o.flatten(1))
