"""The formula of the conversion: what a group of key/value heads becomes."""

from __future__ import annotations

import torch

from regard.arguments import is_whole, plain, whole
from regard.errors import ArgumentError, ShapeError
from regard.shapes import check_tensor

METHODS = ("mean", "first")


def resized(tensor: torch.Tensor, before: int, after: int, method: str = "mean") -> torch.Tensor:
    """What belongs to `before` key/value heads, for `after` of them.

        fewer   new head j is the mean, or the first, of the heads j·g … (j+1)·g - 1, where g = before / after
        more    new head j is head j // r, where r = after / before: nothing that a model says changes

    Neighbours make a group, because query head h reads key/value head h // (heads // kv_heads).

    Args:
        tensor: (before · size, ...), a projection's weight or bias, or what else has the heads in its first axis.
        before, after: key/value heads; one is a multiple of the other.
        method: "mean" or "first"; both are the same where heads are repeated.

    Returns:
        (after · size, ...) in the tensor's dtype; the mean is computed in float64 and rounded once.

    Raises:
        ArgumentError: numbers of heads that do not divide, or another method.

    Source: GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints, Ainslie et al. 2023,
    sections 2.1 (mean; the first head, for comparison, section 3.3) and 2.2 (groups).

    >>> resized(torch.tensor([1.0, 3.0, 5.0, 9.0]), before=4, after=2).tolist()
    [2.0, 7.0]
    >>> resized(torch.tensor([2.0, 7.0]), before=2, after=4).tolist()
    [2.0, 2.0, 7.0, 7.0]
    """
    check_tensor("tensor", tensor)
    before = whole("before", before, 1)
    after = check(before, after, method)
    if tensor.dim() < 1 or tensor.shape[0] % before:
        raise ShapeError(
            f"tensor has shape {tuple(tensor.shape)}, whose first axis does not divide into {before} key/value heads; "
            f"give the weight or the bias of a projection to so many"
        )
    heads = tensor.unflatten(0, (before, -1))  # (before, size, ...)
    if after >= before:
        return heads.repeat_interleave(after // before, 0).flatten(0, 1)
    groups = heads.unflatten(0, (after, -1))  # (after, before / after, size, ...)
    pooled = groups[:, 0] if method == "first" else groups.double().mean(1).to(tensor.dtype)
    return pooled.flatten(0, 1).contiguous()  # (after · size, ...)


def check(before: int, after: int, method: str) -> int:
    """The key/value heads after the conversion; an ArgumentError for one that cannot be."""
    if method not in METHODS:
        raise ArgumentError(f"method is {method!r}; there are {', '.join(METHODS)}")
    after = plain("the number of key/value heads", after)
    if not is_whole(after) or after < 1 or max(before, after) % min(before, after):
        raise ArgumentError(
            f"{before} key/value heads cannot become {after!r}: neighbours make groups of one size, so one number is "
            f"a multiple of the other"
        )
    return whole("the number of key/value heads", after)
