"""DeepSeek's lightning indexer, which chooses keys by small scores of its own, and the loss by which it learns them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from regard.arguments import shown, whole
from regard.errors import ArgumentError, UnsupportedError
from regard.layers.choosing import Attend, Chooser, best_columns, positions_of_rows, row_blocks
from regard.layers.rotation import rotate_heads
from regard.patterns import Causal, ChosenKeys, Pattern
from regard.patterns.grid import Grid, four_axes
from regard.patterns.visible import visible_keys
from regard.positions import Rotary, as_rotary


class LightningIndexer(Chooser):
    """DeepSeek's lightning indexer: a small attention without values scores all keys, and each query looks at `top`.

        I_ts = Σ_h w_th · relu(q_th · k_s),   with w, q and k projected from x

    It learns by its own loss alone, the divergence between the attention's weights and `softmax(I)`: see `loss` and
    `choice_losses`. All heads of the layer share a choice. Caches keep its keys with those of the layer.

    Args:
        top: keys that a query looks at.
        heads, head_dim: of the indexer; head_dim is a multiple of the layer's kv_heads.
        positions: a Rotary that rotates its queries and keys, "rotary", or None.

    Set the attribute `dense` to True to let the layer look at all keys, as in the paper's warm-up.

    Source: DeepSeek-V3.2-Exp, DeepSeek-AI 2025, section 2.1, equations 1 to 4.

    >>> from regard.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention(dim=16, heads=4, kv_heads=2, chooser=LightningIndexer(top=3))
    >>> layer(torch.zeros(1, 7, 16)).shape
    torch.Size([1, 7, 16])
    """

    def __init__(
        self, top: int, heads: int = 4, head_dim: int = 32, positions: Rotary | str | None = None
    ) -> None:
        super().__init__()
        self.top = whole("LightningIndexer's top", top, 1)
        self.heads = whole("LightningIndexer's heads", heads, 1)
        self.head_dim = whole("LightningIndexer's head_dim", head_dim, 1)
        self.positions = as_rotary(positions)
        self.dense = False
        if self.positions is not None:
            self.positions.check(self.head_dim)

    def build(
        self, dim: int, heads: int, kv_heads: int, head_dim: int, value_dim: int, scale: float
    ) -> None:
        if self.head_dim % kv_heads:
            raise ArgumentError(
                f"LightningIndexer's head_dim is {self.head_dim} and must be a multiple of kv_heads, {kv_heads}: a "
                f"cache stores an equal part of each indexer key with each key/value head"
            )
        self.scale = scale
        self.extra_dim = self.head_dim // kv_heads
        self.to_q = nn.Linear(dim, self.heads * self.head_dim, bias=False)
        self.to_k = nn.Linear(dim, self.head_dim, bias=False)
        self.k_norm = nn.LayerNorm(self.head_dim)
        self.to_weights = nn.Linear(dim, self.heads, bias=False)

    def _rotate(self, x: torch.Tensor, start: int) -> torch.Tensor:
        return x if self.positions is None else rotate_heads(self.positions, x, start)

    def _index_queries(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """(batch, heads, length, head_dim)."""
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self._rotate(q, start)

    def _head_weights(self, x: torch.Tensor) -> torch.Tensor:
        """The weight of each head for each query, (batch, heads, length, 1)."""
        return self.to_weights(x).mT[..., None] * (self.heads * self.head_dim) ** -0.5

    def _index_keys(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """(batch, 1, length, head_dim)."""
        return self._rotate(self.k_norm(self.to_k(x))[:, None], start)

    def cached_keys(self, x: torch.Tensor, k: torch.Tensor, start: int) -> torch.Tensor:
        with torch.no_grad():
            index_keys = self._index_keys(x, start)[:, 0]  # (batch, length, head_dim)
            by_kv_head = index_keys.unflatten(-1, (-1, self.extra_dim)).transpose(1, 2)
        return torch.cat([k, by_kv_head.to(k.dtype)], -1)

    @torch.no_grad()
    def choose(self, x: torch.Tensor, keys: torch.Tensor) -> ChosenKeys:
        """The keys that the last queries of a text look at, given the indexer's keys (batch, 1, k_len, head_dim)."""
        batch, length, _ = x.shape
        k_len = keys.shape[2]
        start = k_len - length
        weights = self._head_weights(x)
        q = self._index_queries(x, start)
        columns = torch.arange(k_len, device=x.device)

        def scores_of(rows: slice) -> torch.Tensor:
            by_head = torch.relu(q[:, :, rows] @ keys.mT) * weights[:, :, rows]
            scores = by_head.sum(1, keepdim=True)
            later = columns > positions_of_rows(rows, start, x.device)
            return scores.masked_fill_(later, -torch.inf)

        rows = row_blocks(length, batch * self.heads * k_len)
        return ChosenKeys(best_columns(rows, scores_of, self.top))

    def forward(
        self,
        attend: Attend,
        x: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
    ) -> torch.Tensor:
        by_kv_head = k[..., -self.extra_dim :]
        k = k[..., : -self.extra_dim]
        pattern = pattern & Causal()
        if not self.dense:
            index_keys = by_kv_head.transpose(1, 2).flatten(2)[:, None]
            pattern = pattern & self.choose(x, index_keys)
        return attend(q, k, v, pattern)

    def loss(
        self, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, pattern: Pattern
    ) -> torch.Tensor:
        """The divergence `Σ KL(p_t || softmax(I_t))` over the batch and the queries of a text, in nats.

        p_t is the mean of the weights of the layer's heads. Both range over the keys that the pattern allows: of the
        chosen ones, or while `dense` of all up to t. A position at whose key no query may look is
        padding, and its query does not count. The gradient reaches the indexer alone. Only these pairs are computed,
        some rows at a time, and again in the backward pass.

        Args:
            x: (batch, length, dim).
            q, k: the layer's queries and keys of x, (batch, heads or kv_heads, length, head_dim).
            pattern: of the layer and the call.
        """
        batch, length, _ = x.shape
        pattern = pattern & Causal()
        grid = Grid.whole(length, length, 0, x.device)
        visible = visible_keys(pattern, grid)
        if visible is None:
            padding = x.new_zeros(1, length, dtype=torch.bool)
        else:
            padding = ~visible.any(1)

        x = x.detach().masked_fill(padding[..., None], 0)
        k = k.detach()
        index_keys = self._index_keys(x, 0).masked_fill(padding[:, None, :, None], 0)
        weights = self._head_weights(x)
        index_q = self._index_queries(x, 0)
        q_groups = q.detach().unflatten(1, (k.shape[1], -1))
        chosen = None if self.dense else self.choose(x, index_keys).keys
        divergence = _Divergence(
            q_groups, k, pattern, grid, padding, chosen, self.scale, self.softcap
        )

        numbers = length  # of one row and head
        if chosen is not None:
            numbers = chosen.shape[-1] * (1 + self.head_dim // 4)
        heads = max(self.heads, q.shape[1])
        parts: list[Any] = [index_keys.sum() * 0]  # the loss of a text without rows has a graph too
        for rows in row_blocks(length, batch * heads * numbers):
            tensors = (index_q, weights, index_keys)
            parts.append(checkpoint(divergence.of_rows, rows, *tensors, use_reentrant=False))
        return torch.stack(parts).sum()

    def extra_repr(self) -> str:
        return f"top={self.top}, heads={self.heads}, head_dim={self.head_dim}"


@dataclass(frozen=True)
class _Divergence:
    """The divergence of an indexer's scores from the weights of its layer, for some queries of a text at a time.

    Args:
        q: of the layer, by groups, (batch, kv_heads, group, length, head_dim).
        k: of the layer, (batch, kv_heads, length, head_dim).
        pattern: which pairs are allowed, before a choice.
        grid: where queries and keys stand.
        padding: (batch or 1, length), positions that do not count.
        chosen: the keys that are compared, (batch, 1, length, top), -1 for none; None for all.
        scale, softcap: of the layer.
    """

    q: torch.Tensor
    k: torch.Tensor
    pattern: Pattern
    grid: Grid
    padding: torch.Tensor
    chosen: torch.Tensor | None
    scale: float
    softcap: float | None

    def of_rows(
        self,
        rows: slice,
        index_q: torch.Tensor,
        weights: torch.Tensor,
        index_keys: torch.Tensor,
    ) -> torch.Tensor:
        """`Σ KL(p_t || softmax(I_t))` over these rows, a number.

        Args:
            rows: of the text.
            index_q: (batch, index heads, length, dim of the indexer).
            weights: of its heads, (batch, index heads, length, 1).
            index_keys: (batch, 1, length, dim of the indexer).
        """
        hidden = self._hidden_pairs(rows)  # (batch or 1, heads or 1, rows, keys)
        hidden_from_all = hidden.all(1, keepdim=True)
        empty_rows = hidden_from_all.all(-1, keepdim=True)

        scores = self._index_products(index_q[:, :, rows], index_keys, rows)
        scores = (torch.relu(scores) * weights[:, :, rows]).sum(1, keepdim=True)
        scores = scores.masked_fill(hidden_from_all & ~empty_rows, -torch.inf)
        log_choice = scores.log_softmax(-1).masked_fill(hidden_from_all, 0)

        p = self._mean_weights(rows, hidden)  # zeros in an empty row
        return (torch.xlogy(p, p) - p * log_choice).sum()

    def _hidden_pairs(self, rows: slice) -> torch.Tensor:
        """The pairs that are not allowed, of all keys or of the chosen ones."""
        some_rows = self.grid.block(range(rows.start, rows.stop), self.grid.keys)
        hidden = ~four_axes(self.pattern.evaluate(some_rows))
        if self.chosen is None:
            return hidden
        keys = self.chosen[:, :, rows]  # (batch, 1, rows, top)
        shape = (len(self.k), hidden.shape[1], *keys.shape[2:])
        of_all_keys = hidden.expand(*shape[:3], -1)
        return of_all_keys.gather(-1, keys.clamp(min=0).expand(shape)) | (keys < 0)

    def _index_products(
        self, index_q: torch.Tensor, index_keys: torch.Tensor, rows: slice
    ) -> torch.Tensor:
        """(batch, index heads, rows, keys)."""
        if self.chosen is None:
            return torch.einsum("bhrd,bokd->bhrk", index_q, index_keys)
        keys_of_rows = _take_keys(index_keys, self.chosen[:, :, rows])
        return torch.einsum("bhrd,borkd->bhrk", index_q, keys_of_rows)

    def _mean_weights(self, rows: slice, hidden: torch.Tensor) -> torch.Tensor:
        """The weights of the layer, their mean over its heads, (batch, 1, rows, keys)."""
        q = self.q[:, :, :, rows]
        if self.chosen is None:
            products = torch.einsum("bvgrd,bvkd->bvgrk", q, self.k)
        else:
            keys_of_rows = _take_keys(self.k, self.chosen[:, :, rows])
            products = torch.einsum("bvgrd,bvrkd->bvgrk", q, keys_of_rows)
        logits = self.scale * products.flatten(1, 2)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0)
        return weights.mean(1, keepdim=True).masked_fill(self.padding[:, None, rows, None], 0)


def _take_keys(keys: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The keys that are listed for each row, (batch, heads, rows, top, dim), of keys (batch, heads, length, dim)."""
    batch = torch.arange(keys.shape[0], device=keys.device)
    heads = torch.arange(keys.shape[1], device=keys.device)
    return keys[batch[:, None, None, None], heads[:, None, None], chosen]


@contextmanager
def choice_losses(model: nn.Module) -> Generator[list[torch.Tensor]]:
    """Collect the losses of the indexers of a model while the `with` block runs; add them to the model's loss.

    >>> from regard.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention(dim=8, heads=2, chooser=LightningIndexer(top=3))
    >>> with choice_losses(layer) as losses:
    ...     loss = layer(torch.randn(1, 5, 8)).square().sum()
    >>> (loss + sum(losses)).backward()
    >>> layer.chooser.to_q.weight.grad is not None
    True
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"choice_losses takes a module with attention layers, not {shown(model)}"
        )
    losses: list[torch.Tensor] = []

    def add_loss(layer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if options.get("cache") is not None:
            raise UnsupportedError(
                "an indexer learns from whole texts; leave out cache=, or choice_losses"
            )
        if options.get("bias") is not None:
            raise UnsupportedError(
                "an indexer learns weights without a bias; leave out bias=, or choice_losses"
            )
        if torch._C._current_graph_task_id() >= 0:
            return  # a checkpoint computes the layer again in the backward pass

        names = ("x", "positions", "pattern")
        taken = {name: options[name] for name in names if name in options}
        # Inside these hooks a checkpoint around the layer does not repeat the loss.
        with saved_tensors_hooks(lambda x: x, lambda x: x):
            losses.append(layer.choice_loss(*arguments[:1], **taken))

    handles = []
    try:
        for layer in model.modules():
            if isinstance(getattr(layer, "chooser", None), LightningIndexer):
                handles.append(layer.register_forward_pre_hook(add_loss, with_kwargs=True))
        yield losses
    finally:
        for handle in handles:
            handle.remove()
