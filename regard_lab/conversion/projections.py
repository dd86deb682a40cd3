"""The four projections of one attention layer in one form, whatever file or module they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from regard.functional import attention
from regard.positions import Rotary
from regard_lab.conversion.heads import resized


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

    def pairs(self, head_dim: int) -> torch.Tensor:
        """The dimensions that are rotated together: (pairs, 2)."""
        if self.rotary is None:
            return torch.zeros(0, 2, dtype=torch.long)
        dims = head_dim if self.rotary.dims is None else self.rotary.dims
        shape = (2, -1) if self.rotary.pairs == "halves" else (-1, 2)
        table = torch.arange(dims).reshape(shape)
        return table.T if self.rotary.pairs == "halves" else table

    def rest(self, head_dim: int) -> torch.Tensor:
        """The dimensions that no position rotates."""
        pairs = self.pairs(head_dim)
        return torch.arange(pairs.numel(), head_dim)


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

    def resized(self, kv_heads: int, method: str, seed: int = 0) -> Projections:
        """The same queries and output with another number of key/value heads, see `resized`."""
        new = [
            torch.cat([
                resized(part, len(part), kv_heads, method, 4 * seed + number)
                for part in heads.split([heads.shape[-1] - 1, 1], -1)  # weights and biases
                for number in [2 * (heads is self.v) + (part.shape[-1] == 1)]
            ], -1)
            for heads in (self.k, self.v)
        ]  # fmt: skip
        return replace(self, k=new[0], v=new[1])

    def repeated(self) -> Projections:
        """The same layer with one key/value head for each query head, by loops and without `resized`."""
        k, v = (torch.stack([heads[h // self.members] for h in range(len(self.q))]) for heads in (self.k, self.v))
        return replace(self, k=k, v=v)

    def outputs(
        self, x: torch.Tensor, space: KeySpace | None = None, norms: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Causal attention of x (1, length, dim), without the bias of the output: (1, length, dim).

        Args:
            x: the inputs.
            space: with its positions; without it nothing is rotated.
            norms: weights (head_dim,) of the norms of queries and keys.
        """
        x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        q, k, v = (torch.einsum("bni,hdi->bhnd", x, heads) for heads in (self.q, self.k, self.v))
        if norms is not None:
            q, k = (a * a.square().mean(-1, keepdim=True).rsqrt() * norm for a, norm in zip((q, k), norms, strict=True))
        if space is not None and space.rotary is not None:
            q, k = (space.rotary.rotate(a, torch.arange(a.shape[2])) for a in (q, k))
        return torch.einsum("bhnd,ohd->bno", attention(q, k, v, pattern="causal"), self.o)
