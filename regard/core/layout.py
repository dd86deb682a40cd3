"""The order of the axes of q, k, v and the output, as a caller gives and gets them.

Everything inside computes tensors (batch, heads, length, dim). Those in another order are transposed on their way in
and out, as views: the kernels read strides, and write an output in the memory order (batch, length, heads, dim) anyway.
"""

from __future__ import annotations

from typing import Any

import torch

from regard.arguments import shown
from regard.core.problem import checked_mechanism
from regard.core.tensors import HEADS_FIRST, LENGTH_FIRST, Stored, bind_attention
from regard.errors import ArgumentError, ShapeError
from regard.mechanisms import Mechanism


def checked_layout(layout: Any) -> str:
    """The layout, if it is one of the two.

    >>> checked_layout("nhd")
    Traceback (most recent call last):
    regard.errors.ArgumentError: layout is 'nhd'; it is 'bhnd' for (batch, heads, length, dim) or 'bnhd' for (batch, \
length, heads, dim)
    """
    if not isinstance(layout, str) or layout not in (HEADS_FIRST, LENGTH_FIRST):
        raise ArgumentError(
            f"layout is {shown(layout)}; it is 'bhnd' for (batch, heads, length, dim) or 'bnhd' for (batch, length, "
            f"heads, dim)"
        )
    return layout


def swapped(x: Any) -> Any:
    """A tensor of four axes with heads and length swapped; anything else, such as what a cache stores, as it is."""
    if not isinstance(x, torch.Tensor) or x.dim() != 4:
        return x
    return x.transpose(1, 2)


def refusal_as_given(
    error: ShapeError,
    layout: str,
    q: torch.Tensor,
    k: torch.Tensor | Stored,
    v: torch.Tensor | Stored,
    mechanism: Mechanism | str | None,
) -> ShapeError:
    """The refusal of a call whose q, k and v were transposed, with their shapes as the caller gave them.

    layout: a letter for each axis that the caller gave, which for packed tensors are those without the b.
    """
    if getattr(q, "is_nested", False):
        return ShapeError(
            f"{error} (these are axes of layout='bhnd'; layout={layout!r} has (batch, ragged length, heads, size))"
        )
    mechanism = checked_mechanism(mechanism)
    own_key_dim = mechanism.own_key_dim
    groups_values = mechanism.groups_values
    try:
        bind_attention(q, k, v, own_key_dim, groups_values, layout=layout)
    except ShapeError as error_as_given:
        return error_as_given
    return error
