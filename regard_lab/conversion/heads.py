"""The heads of an attention layer: pooled or repeated, compared with a reference, and the report of what changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.arguments import is_whole, plain, suggest, whole
from regard.core.tensors import check_tensor
from regard.errors import ArgumentError, RegardError, ShapeError
from regard.functional import attention
from regard.positions import Rotary
from regard.reprs import brief
from regard.storage.tensors import raw_bytes

POOLINGS = ("mean", "first")  # what becomes of one tensor's heads
# With "align", heads are rotated and regrouped first, then pooled by their mean.
METHODS = (*POOLINGS, "align")
TOLERANCE = 1e-6  # largest difference from the reference in float64, for outputs of size 1


def resized(tensor: torch.Tensor, before: int, after: int, method: str = "mean") -> torch.Tensor:
    """A tensor of `before` key/value heads, pooled or repeated to `after` heads.

        fewer   new head j is the mean, or the first, of heads j·g … (j+1)·g - 1, where g = before / after
        more    new head j is head j // r, where r = after / before; the outputs of a model do not change

    Groups are neighbouring heads, since query head h reads key/value head h // (heads // kv_heads).

    Args:
        tensor: (before · size, ...), a projection's weight or bias, or another tensor with the heads in its first axis.
        before, after: key/value heads; one is a multiple of the other.
        method: "mean" or "first"; unused where heads are repeated.

    Returns:
        (after · size, ...) in the tensor's dtype; the mean is computed in float64 and rounded once.

    Raises:
        ArgumentError: numbers of heads that do not divide, or an unknown method.

    Source: GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints, Ainslie et al. 2023,
    sections 2.1 (mean), 2.2 (groups) and 3.3 (for comparison the first head).

    >>> resized(torch.tensor([1.0, 3.0, 5.0, 9.0]), before=4, after=2).tolist()
    [2.0, 7.0]
    >>> resized(torch.tensor([2.0, 7.0]), before=2, after=4).tolist()
    [2.0, 2.0, 7.0, 7.0]
    """
    check_tensor("tensor", tensor)
    before = whole("before", before, 1)
    after = check_heads(before, after, method, POOLINGS)
    if tensor.dim() < 1 or tensor.shape[0] % before:
        raise ShapeError(
            f"tensor has shape {tuple(tensor.shape)}, whose first axis does not divide into {before} key/value heads; "
            f"give the weight or bias of a projection to that many heads"
        )

    heads = tensor.unflatten(0, (before, -1))  # (before, size, ...)
    if after >= before:
        return heads.repeat_interleave(after // before, 0).flatten(0, 1)

    groups = heads.unflatten(0, (after, -1)).double()  # (after, before / after, size, ...)
    pooled = groups.mean(1) if method == "mean" else groups[:, 0]
    return pooled.to(tensor.dtype).flatten(0, 1).contiguous()  # (after · size, ...)


def pooled_by_loops(heads: torch.Tensor, after: int, method: str) -> torch.Tensor:
    """The result of `resized` for heads (before, size, ...), computed group by group."""
    pooled = []
    for group in heads.double().split(max(1, len(heads) // after)):
        pooled.append(group[0] if method == "first" else group.mean(0))
    return torch.stack(pooled)


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


@dataclass(frozen=True)
class KeySpace:
    """Which changes of basis leave the scores of a layer as they are.

    Args:
        rotary: the positions that rotate queries and keys; None for others.
        normed: whether queries and keys are divided by their root mean square and multiplied by weights that all heads
            share. Then only signs can change.
    """

    rotary: Rotary | None = None
    normed: bool = False

    def split(self, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The dimensions that are rotated together, (pairs, 2), and those that no position rotates."""
        if self.rotary is None:
            return torch.zeros(0, 2, dtype=torch.long), torch.arange(head_dim)
        dims = head_dim if self.rotary.dims is None else self.rotary.dims
        rotated = torch.arange(dims)
        pairs = rotated.view(2, -1).T if self.rotary.pairs == "halves" else rotated.view(-1, 2)
        return pairs, torch.arange(dims, head_dim)


@dataclass(frozen=True)
class Projections:
    """Queries, keys, values and output of a layer; the last column of the first three is the bias.

    Args:
        q: (heads, head_dim, dim + 1).
        k: (kv_heads, head_dim, dim + 1).
        v: (kv_heads, v_dim, dim + 1).
        o: (dim, heads, v_dim), without the bias of the output, which no conversion changes.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor

    @property
    def kv_heads(self) -> int:
        return len(self.k)

    @property
    def members(self) -> int:
        """Query heads that read one key/value head."""
        return len(self.q) // len(self.k)

    def is_finite(self) -> bool:
        tensors = (self.q, self.k, self.v, self.o)
        return all(bool(tensor.isfinite().all()) for tensor in tensors)

    def rounded(self, dtype: torch.dtype) -> Projections:
        """The projections as they are when they were stored in a dtype, in float64."""
        tensors = (self.q, self.k, self.v, self.o)
        return Projections(*(tensor.to(dtype).double() for tensor in tensors))

    def resized(self, kv_heads: int, method: str) -> Projections:
        """The same queries and output with another number of key/value heads, see `resized`."""

        def resize(heads: torch.Tensor) -> torch.Tensor:
            weights, biases = heads.split([heads.shape[-1] - 1, 1], -1)
            weights = resized(weights, len(weights), kv_heads, method)
            biases = resized(biases, len(biases), kv_heads, method)
            return torch.cat([weights, biases], -1)

        return replace(self, k=resize(self.k), v=resize(self.v))

    def repeated(self) -> Projections:
        """The same layer with one key/value head for each query head, by loops and without `resized`."""
        read = [head // self.members for head in range(len(self.q))]
        k = torch.stack([self.k[kv_head] for kv_head in read])
        v = torch.stack([self.v[kv_head] for kv_head in read])
        return replace(self, k=k, v=v)

    def outputs(
        self, x: torch.Tensor, space: KeySpace | None = None, norms: Sequence[torch.Tensor] = ()
    ) -> torch.Tensor:
        """Causal attention of x (1, length, dim), without the bias of the output: (1, length, dim).

        Args:
            space: with its positions; without it nothing is rotated.
            norms: weights (head_dim,) of the norms of queries and keys, if they have norms.
        """
        x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        q = torch.einsum("bni,hdi->bhnd", x, self.q)
        k = torch.einsum("bni,hdi->bhnd", x, self.k)
        v = torch.einsum("bni,hdi->bhnd", x, self.v)
        if norms:
            q_norm, k_norm = norms
            q = _normed(q, q_norm)
            k = _normed(k, k_norm)
        if space is not None and space.rotary is not None:
            positions = torch.arange(x.shape[1])
            q = space.rotary.rotate(q, positions)
            k = space.rotary.rotate(k, positions)
        z = attention(q, k, v, pattern="causal")
        return torch.einsum("bhnd,ohd->bno", z, self.o)


def _normed(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """x divided by its root mean square over the last axis, times weights."""
    return x * x.square().mean(-1, keepdim=True).rsqrt() * weights


def rows_of(projection: nn.Module) -> torch.Tensor:
    """The weight of a projection with its bias, or zeros, as the last column: (rows, dim + 1), in float64."""
    weight = projection.get_parameter("weight").double()
    bias = getattr(projection, "bias", None)
    column = weight.new_zeros(len(weight)) if bias is None else bias.double()
    return torch.cat([weight, column[:, None]], 1)


def set_rows(projection: nn.Module, rows: torch.Tensor) -> None:
    """The inverse of `rows_of`, in the dtype of the weight; a projection without a bias gets none."""
    for name, part in (("weight", rows[:, :-1]), ("bias", rows[:, -1])):
        before = getattr(projection, name, None)
        if before is not None:
            setattr(projection, name, nn.Parameter(part.to(before.dtype).contiguous()))


@dataclass(frozen=True)
class HeadedLayer:
    """The modules that project to and from the heads of one attention layer.

    Args:
        q, k, v: the same module for all three if its rows are those of all queries, then keys, then values.
        o: the output.
    """

    q: nn.Module
    k: nn.Module
    v: nn.Module
    o: nn.Module
    heads: int
    kv_heads: int

    @torch.no_grad()
    def read(self) -> Projections:
        """The projections in float64."""
        if self.q is self.k:
            counts = [self.heads, self.kv_heads, self.kv_heads]
            q, k, v = rows_of(self.q).unflatten(0, (sum(counts), -1)).split(counts)
        else:
            q = rows_of(self.q).unflatten(0, (self.heads, -1))
            k = rows_of(self.k).unflatten(0, (self.kv_heads, -1))
            v = rows_of(self.v).unflatten(0, (self.kv_heads, -1))
        o = rows_of(self.o)[:, :-1].unflatten(1, (self.heads, -1))
        return Projections(q, k, v, o)

    @torch.no_grad()
    def write(self, projections: Projections) -> None:
        """Put projections in place of the layer's own; the bias of the output stays."""
        if self.q is self.k:
            rows = torch.cat([projections.q, projections.k, projections.v])
            set_rows(self.q, rows.flatten(0, 1))
        else:
            set_rows(self.q, projections.q.flatten(0, 1))
            set_rows(self.k, projections.k.flatten(0, 1))
            set_rows(self.v, projections.v.flatten(0, 1))
        bias = rows_of(self.o)[:, -1:]
        set_rows(self.o, torch.cat([projections.o.flatten(1), bias], 1))


def largest_difference(output: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference of two outputs, relative to the largest expected number if that is above 1."""
    return float((output - expected).abs().max() / expected.abs().max().clamp(min=1))


def within_rounding(largest: float, fault: str) -> float:
    """The largest difference, if it is one of rounding."""
    if not largest <= TOLERANCE:
        raise RegardError(
            f"{fault} by {largest:.1e} (at most {TOLERANCE:.0e}); nothing was written. This is a bug of regard; please "
            f"report it with the config of the model"
        )
    return largest


def hash_of_tensors(state: Mapping[str, torch.Tensor]) -> str:
    """A SHA-256 of the names and bytes of tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode() + raw_bytes(tensor))
    return digest.hexdigest()


def provenance(method: str, heads: Mapping[str, Any]) -> dict[str, Any]:
    """What a converted model records of its conversion; `heads` are the numbers of heads before and after."""
    groups = "similar heads" if method == "align" else "neighbours"
    return {"conversion": "kv-heads", "method": method, "groups": groups, **heads}


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
        method: "mean", "first", "align", or "repeat" if the number of heads grew; "latent" for latents.
        heads: number of query heads, unchanged.
        kv_heads: changes by setting, such as `decoder_kv_heads`; for latents, the numbers that a token keeps.
        parameters: number of parameters.
        kv_bytes: cache bytes in all layers of one "token"; of a translator, of a "source token" and a "target token";
            of the "state" of mechanisms that keep sums. Empty for models without a cache.
        measured: whether the bytes were counted on a real cache; otherwise they are computed from the sizes.
        difference: largest difference from the reference with repeated heads, in float64; None if not checked.
        invariance: largest difference between the model and itself with rotated and regrouped heads, before they are
            pooled, in float64, or with latents that lose nothing; None for other methods than "align" and "latent".

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

    @property
    def removed(self) -> int:
        """Number of parameters removed; negative if heads were repeated."""
        return self.parameters.before - self.parameters.after

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        values = asdict(self)
        values["kv_heads"] = as_json(self.kv_heads)
        values["kv_bytes"] = as_json(self.kv_bytes)
        values["parameters"] = self.parameters._asdict()
        values["parameters_removed"] = self.removed
        return values

    def __str__(self) -> str:
        lines = [row("", "before", "after")]
        for name, change in self.kv_heads.items():
            lines.append(_row_of_change(name.replace("_", " "), change))
        for name, change in self.kv_bytes.items():
            lines.append(_row_of_change(f"KV bytes per {name}", change))
        before, after = self.parameters
        removed = f"{self.removed:,} removed" if self.removed > 0 else ""
        lines.append(row("parameters", f"{before:,}", f"{after:,}", removed))
        return "\n".join(lines)


def as_json(changes: Mapping[str, Change]) -> dict[str, dict[str, int]]:
    """Numbers before and after by name, as JSON values."""
    return {name: change._asdict() for name, change in changes.items()}


def _row_of_change(name: str, change: Change) -> str:
    before, after = change
    remark = ""
    if after and before > after and before % after == 0:
        remark = f"1/{before // after} of before"
    return row(name, f"{before:,}", f"{after:,}", remark)


def row(name: str, before: str, after: str, remark: str = "") -> str:
    """A line of the table.

    >>> row("parameters", "900", "750", "150 removed")
    'parameters                        900             750   150 removed'
    """
    return f"{name:25} {before:>11} {after:>15}   {remark}".rstrip()
