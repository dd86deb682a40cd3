"""How a group of key/value heads is pooled into one, and the report of what a conversion changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from regard.arguments import is_whole, plain, suggest, whole
from regard.core.tensors import check_tensor
from regard.errors import ArgumentError, ShapeError
from regard.reprs import brief

POOLINGS = ("mean", "first", "random")  # what becomes of one tensor's heads
METHODS = (*POOLINGS, "align")  # align: heads are rotated and regrouped first, then pooled by their mean
TOLERANCE = 1e-6  # largest difference from the reference in float64, for outputs of size 1


def resized(tensor: torch.Tensor, before: int, after: int, method: str = "mean", seed: int = 0) -> torch.Tensor:
    """A tensor of `before` key/value heads, pooled or repeated to `after` heads.

        fewer   new head j is the mean, or the first, of heads j·g … (j+1)·g - 1, where g = before / after; or it is
                random, normal with the mean and standard deviation of the tensor
        more    new head j is head j // r, where r = after / before; the outputs of a model do not change

    Groups are neighbouring heads, since query head h reads key/value head h // (heads // kv_heads).

    Args:
        tensor: (before · size, ...), a projection's weight or bias, or another tensor with the heads in its first axis.
        before, after: key/value heads; one is a multiple of the other.
        method: "mean", "first" or "random"; unused where heads are repeated.
        seed: of random heads; give each tensor another.

    Returns:
        (after · size, ...) in the tensor's dtype; the mean is computed in float64 and rounded once.

    Raises:
        ArgumentError: numbers of heads that do not divide, or an unknown method.

    Source: GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints, Ainslie et al. 2023,
    sections 2.1 (mean), 2.2 (groups) and 3.3 (for comparison the first head, or random heads).

    >>> resized(torch.tensor([1.0, 3.0, 5.0, 9.0]), before=4, after=2).tolist()
    [2.0, 7.0]
    >>> resized(torch.tensor([2.0, 7.0]), before=2, after=4).tolist()
    [2.0, 2.0, 7.0, 7.0]
    """
    check_tensor("tensor", tensor)
    before = whole("before", before, 1)
    after = check_heads(before, after, method, POOLINGS)
    seed = whole("seed", seed, 0)
    if tensor.dim() < 1 or tensor.shape[0] % before:
        raise ShapeError(
            f"tensor has shape {tuple(tensor.shape)}, whose first axis does not divide into {before} key/value heads; "
            f"give the weight or bias of a projection to that many heads"
        )
    heads = tensor.unflatten(0, (before, -1))  # (before, size, ...)
    if after >= before:
        return heads.repeat_interleave(after // before, 0).flatten(0, 1)
    groups = heads.unflatten(0, (after, -1))  # (after, before / after, size, ...)
    if method == "random":
        pooled = _drawn_like(groups[:, 0], tensor, seed)
    else:
        pooled = groups[:, 0] if method == "first" else groups.double().mean(1).to(tensor.dtype)
    return pooled.flatten(0, 1).contiguous()  # (after · size, ...)


def _drawn_like(heads: torch.Tensor, tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Normal numbers in the shape of `heads`, with the mean and standard deviation of the tensor."""
    drawn = torch.randn(heads.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    wide = tensor.double()
    return (drawn.to(wide.device) * wide.std(correction=0) + wide.mean()).to(tensor.dtype)


def check_heads(before: int, after: int, method: str, methods: Sequence[str] = METHODS) -> int:
    """The number of key/value heads after the conversion, checked."""
    if method not in methods:
        raise ArgumentError(f"method is {method!r}; {suggest(method, methods)}")
    after = plain("the number of key/value heads", after)
    if not is_whole(after) or after < 1 or max(before, after) % min(before, after):
        raise ArgumentError(
            f"{before} key/value heads cannot become {after!r}: groups have equal size, so one number must be "
            f"a multiple of the other"
        )
    return whole("the number of key/value heads", after)


class Likeness(NamedTuple):
    """How alike the heads of one layer are that were pooled together: the mean cosine of the pairs in a group.

    neighbours: keys and values of neighbouring heads as they are in the model.
    pooled: the same of the groups that were pooled, after their rotation; equal to it if nothing was rotated.
    """

    layer: str
    neighbours: tuple[float, float]
    pooled: tuple[float, float]


class Change(NamedTuple):
    """A number before and after a conversion."""

    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.before:,} -> {self.after:,}"


@brief
@dataclass(frozen=True)
class Conversion:
    """The report of a conversion; `str` gives a table.

    Args:
        kind: kind of model, such as "language-model" or "llama".
        method: "mean", "first", "random", "align", or "repeat" if the number of heads grew.
        heads: number of query heads, unchanged.
        kv_heads: changes by setting, such as `decoder_kv_heads`.
        parameters: number of parameters.
        kv_bytes: cache bytes in all layers of one "token"; of a translator, of a "source token" and a "target token";
            of the "state" of mechanisms that keep sums. Empty for models without a cache.
        measured: whether the bytes were counted on a real cache; otherwise they are computed from the sizes.
        difference: largest difference from the reference with repeated heads, in float64; None if not checked.
        invariance: largest difference between the model and itself with rotated and regrouped heads, before they are
            pooled, in float64; None for other methods than "align".
        likeness: how alike the pooled heads are, by layer.
        became: the kind of model that the result is, if it is another one.

    >>> Conversion("llama", "mean", 8, {"kv_heads": Change(8, 2)}, Change(900, 750), {"token": Change(256, 64)}).removed
    150
    """

    kind: str
    method: str
    heads: int
    kv_heads: dict[str, Change]
    parameters: Change
    kv_bytes: dict[str, Change]
    measured: bool = False
    difference: float | None = None
    invariance: float | None = None
    likeness: tuple[Likeness, ...] = ()
    became: str | None = None

    @property
    def removed(self) -> int:
        """Number of parameters removed; negative if heads were repeated."""
        return self.parameters.before - self.parameters.after

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        changes = {name: {key: change._asdict() for key, change in getattr(self, name).items()} for name in
                   ("kv_heads", "kv_bytes")}  # fmt: skip
        likeness = [one._asdict() for one in self.likeness]
        more = {"parameters": self.parameters._asdict(), "parameters_removed": self.removed, "likeness": likeness}
        return {**asdict(self), **changes, **more}

    def __str__(self) -> str:
        lines = [row("", "before", "after")]
        for name, (before, after) in self._changes():
            fewer = after and before > after and before % after == 0
            lines.append(row(name, f"{before:,}", f"{after:,}", f"1/{before // after} of before" if fewer else ""))
        removed = f"{self.removed:,} removed" if self.removed > 0 else ""
        return "\n".join([*lines, row("parameters", *(f"{count:,}" for count in self.parameters), removed)])

    def _changes(self) -> list[tuple[str, Change]]:
        heads = [(name.replace("_", " "), change) for name, change in self.kv_heads.items()]
        return heads + [(f"KV bytes per {name}", change) for name, change in self.kv_bytes.items()]


def row(name: str, before: str, after: str, remark: str = "") -> str:
    """A line of the table.

    >>> row("parameters", "900", "750", "150 removed")
    'parameters                        900             750   150 removed'
    """
    return f"{name:25} {before:>11} {after:>15}   {remark}".rstrip()
