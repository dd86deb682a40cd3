"""How a group of key/value heads is pooled into one, and the report of what a conversion changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from regard.arguments import is_whole, plain, whole
from regard.errors import ArgumentError, ShapeError
from regard.shapes import check_tensor

METHODS = ("mean", "first")
TOLERANCE = 1e-6  # of a conversion beside its oracle, in float64, of an output of size 1


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
    after = check_heads(before, after, method)
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


def check_heads(before: int, after: int, method: str) -> int:
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


class Change(NamedTuple):
    """A number before and after."""

    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.before:,} -> {self.after:,}"


@dataclass(frozen=True)
class Conversion:
    """What a conversion did; `str` makes a table of it.

    Args:
        kind: of model, such as "language-model" or "llama".
        method: how a group's heads became one: "mean", "first", or "repeat" where there are more heads now.
        heads: query heads, which stay.
        kv_heads: by setting, such as `decoder_kv_heads`.
        parameters: numbers of the model.
        kv_bytes: bytes that a "token" takes in the caches of all layers; a translator's "source token" and "target
            token"; the "state" of mechanisms that keep sums. Empty for a model that keeps nothing.
        measured: were the bytes counted on the tensors of a real cache? Otherwise they follow from the sizes.
        difference: the largest between what the new model says and what it says with its heads repeated, in float64;
            None where it was not asked for.

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

    @property
    def removed(self) -> int:
        """Numbers that the model no longer has; below 0 where heads were repeated."""
        return self.parameters.before - self.parameters.after

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        changes = {name: {key: change._asdict() for key, change in getattr(self, name).items()} for name in
                   ("kv_heads", "kv_bytes")}  # fmt: skip
        return {**asdict(self), **changes, "parameters": self.parameters._asdict(), "parameters_removed": self.removed}

    def __str__(self) -> str:
        lines = [row("", "before", "after")]
        for name, (before, after) in self._changes():
            fewer = after and before > after and before % after == 0
            lines.append(row(name, f"{before:,}", f"{after:,}", f"{before // after} times fewer" if fewer else ""))
        removed = f"{self.removed:,} removed" if self.removed > 0 else ""
        return "\n".join([*lines, row("parameters", *(f"{count:,}" for count in self.parameters), removed)])

    def _changes(self) -> list[tuple[str, Change]]:
        heads = [(name.replace("_", " "), change) for name, change in self.kv_heads.items()]
        return heads + [(f"KV bytes a {name}", change) for name, change in self.kv_bytes.items()]


def row(name: str, before: str, after: str, remark: str = "") -> str:
    """A line of the table.

    >>> row("parameters", "900", "750", "150 removed")
    'parameters                        900             750   150 removed'
    """
    return f"{name:25} {before:>11} {after:>15}   {remark}".rstrip()
