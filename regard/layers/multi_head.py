"""Multi-head attention: projections around the one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.caches import Cache, new_cache
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.functional import attention, attention_detail
from regard.layers.context import ProjectedContext
from regard.layers.recording import RecordedLayer, current_recording
from regard.mechanisms import Mechanism
from regard.patterns import Explicit, Pattern, as_pattern
from regard.patterns.algebra import Many, Not
from regard.positions import Rotary
from regard.problem import checked_q_start
from regard.stored import Stored


class MultiHeadAttention(RecordedLayer):
    """Projects to heads, attends in each, and projects the joined heads back: `concat(head_1 … head_h) Wo`.

    Args:
        dim: size of the vectors that come and go.
        heads: query heads.
        kv_heads: key/value heads, which `heads` is a multiple of; as many as `heads` by default (multi-head),
            fewer for grouped-query, 1 for multi-query attention.
        head_dim: size of a head; dim // heads by default.
        context_dim: size of the vectors of a context; `dim` by default.
        pattern: who may look at whom, a Pattern or its text; a pattern given to a call is ANDed with it.
        mechanism: how scores become weights; softmax by default.
        positions: a Rotary that turns q and k, or None.
        dropout: share of the weights dropped in training; eval drops nothing.
        softcap, scale, backend, strict: as for `attention`.
        projection_bias: do the four projections have biases?

    Raises:
        ArgumentError: sizes that do not divide, or positions of another kind.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.2; grouped queries: Ainslie et al. 2023.

    >>> layer = MultiHeadAttention(dim=32, heads=4, kv_heads=2, pattern="causal", positions=Rotary())
    >>> layer(torch.zeros(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        context_dim: int | None = None,
        pattern: Pattern | str | None = None,
        mechanism: Mechanism | None = None,
        positions: Rotary | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        scale: float | None = None,
        projection_bias: bool = True,
        backend: str = "auto",
        strict: bool = False,
    ) -> None:
        super().__init__()
        self.dim, self.heads, self.kv_heads = dim, heads, heads if kv_heads is None else kv_heads
        if min(dim, heads, self.kv_heads, head_dim or 1) < 1 or head_dim == 0 or heads % self.kv_heads:
            raise ArgumentError(
                f"dim {dim}, heads {heads}, kv_heads {self.kv_heads}, head_dim {head_dim}: all are 1 or more, and "
                f"heads is a multiple of kv_heads"
            )
        if head_dim is None and dim % heads:
            raise ArgumentError(f"dim {dim} does not divide into {heads} heads; give head_dim, or another dim or heads")
        if positions is not None and not isinstance(positions, Rotary):
            raise ArgumentError(
                f"positions={type(positions).__name__} is added to embeddings, not to heads; add it before the layer "
                f"(the layer itself takes Rotary)"
            )
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.context_dim = dim if context_dim is None else context_dim
        self.pattern = as_pattern(pattern)
        self.positions = positions
        if positions is not None:
            positions.check(self.head_dim)
        self.dropout = dropout
        self.options: dict[str, Any] = {
            "mechanism": mechanism, "softcap": softcap, "scale": scale, "backend": backend, "strict": strict,
        }  # fmt: skip
        self.to_q = nn.Linear(dim, heads * self.head_dim, bias=projection_bias)
        self.to_k = nn.Linear(self.context_dim, self.kv_heads * self.head_dim, bias=projection_bias)
        self.to_v = nn.Linear(self.context_dim, self.kv_heads * self.head_dim, bias=projection_bias)
        self.to_output = nn.Linear(heads * self.head_dim, dim, bias=projection_bias)
        self.learned = None if mechanism is None else mechanism.new_parameters(heads, self.kv_heads)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | ProjectedContext | None = None,
        *,
        pattern: Pattern | str | None = None,
        bias: torch.Tensor | None = None,
        q_start: int | torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Self-attention of x, or cross-attention from x to a context.

        Args:
            x: (batch, length, dim).
            context: (batch, context_length, context_dim), or what `project_context` made of it.
            pattern: ANDed with the layer's own; padding arrives here as KeySpan.
            bias: added to the scores, broadcastable to (batch, heads, length, keys).
            q_start: position of x's first query, where key j stands at position j: a number or int64 (batch,); after
                a cache's entries, or 0, by default.
            cache: x's keys and values are appended to it, and x attends to all it holds.

        Returns:
            (batch, length, dim).

        Raises:
            ShapeError, ArgumentError: what does not fit together.
            UnsupportedError: with a context, a pattern that compares positions without q_start; a mask of one
                call's rows with a cache; a cache with a context.
        """
        self._check(x, context, cache)
        whole = self.pattern & as_pattern(pattern)
        q = self._split(self.to_q(x), self.heads)  # (batch, heads, length, head_dim)
        if context is None:
            first_key = cache.length if cache is not None else 0
            q_start = first_key if q_start is None else checked_q_start(q_start, len(x))
            self._refuse_rows(whole, cache)
            k, v = self._keys_of_self(x, first_key)
            q = self._turned(q, q_start)
            if cache is not None:
                self._refuse_moved(q_start, cache)
                return self._with_cache(cache, q, k, v, whole, bias, q_start)
        else:
            self._refuse_unrelated(whole, q_start)
            if q_start is not None:
                q = self._turned(q, checked_q_start(q_start, len(x)))
            projected = context if isinstance(context, ProjectedContext) else self.project_context(context)
            k, v = projected.keys, projected.values
        return self._join(self._attend(q, k, v, whole, bias, q_start))

    def project_context(self, context: torch.Tensor) -> ProjectedContext:
        """The keys and values of a context (batch, context_length, context_dim), to be used many times."""
        self._check_vectors("context", context, self.context_dim)
        keys = self._turned(self._split(self.to_k(context), self.kv_heads), 0)
        return ProjectedContext(keys, self._split(self.to_v(context), self.kv_heads))

    def new_cache(
        self,
        batch: int,
        kind: str = "dynamic",
        capacity: int | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> Cache:
        """An empty cache for `batch` texts that this layer will continue.

        Args:
            batch: texts continued side by side.
            kind: "dynamic" grows, "static" has an end, "ring" keeps the last entries.
            capacity: entries there is room for; a ring's is as far as this layer's pattern looks back by default.
            dtype: how numbers are kept, that of the weights by default; torch.bfloat16 or "int8" take less room.

        >>> layer = MultiHeadAttention(dim=8, heads=2, pattern="causal_window(64)")
        >>> layer.new_cache(batch=1, kind="ring", dtype="int8")
        RingCache(batch=1, kv_heads=2, length=0, head_dim=4, int8, capacity=63)
        """
        weight = self.to_k.weight
        if kind == "ring" and capacity is None:
            back = self.pattern.reach().back
            if back is None:
                raise ArgumentError(
                    f"a ring without capacity= keeps as much as the layer's pattern looks back, and {self.pattern} "
                    f"looks back without end; give a capacity, or the layer a window"
                )
            capacity = max(1, back)
        options: dict[str, Any] = {} if capacity is None else {"capacity": capacity}
        dtype = weight.dtype if dtype is None else dtype
        return new_cache(kind, batch, self.kv_heads, self.head_dim, dtype=dtype, device=weight.device, **options)

    def _with_cache(
        self,
        cache: Cache,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
        bias: torch.Tensor | None,
        q_start: int | torch.Tensor | None,
    ) -> torch.Tensor:
        with cache.unless_refused():
            keys, values = cache.append(k, v)
            return self._join(self._attend(q, keys, values, pattern, bias, q_start))

    def _join(self, heads: torch.Tensor) -> torch.Tensor:
        return self.to_output(heads.transpose(1, 2).flatten(2))  # (batch, length, dim)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | Stored,
        v: torch.Tensor | Stored,
        pattern: Pattern,
        bias: torch.Tensor | None,
        q_start: int | torch.Tensor | None,
    ) -> torch.Tensor:
        options: dict[str, Any] = {**self.options, "pattern": pattern, "bias": bias, "q_start": q_start}
        options["dropout"] = self.dropout if self.training else 0.0
        options["parameters"] = dict(self.learned) if self.learned else None
        recording = current_recording(self)
        if recording is None:
            return attention(q, k, v, **options)  # (batch, heads, length, head_dim)
        detail = attention_detail(q, k, v, want=recording.want, **options)
        recording.add(self, detail)
        return detail.output

    def _keys_of_self(self, x: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.context_dim != self.dim:
            raise ShapeError(f"this layer reads contexts of {self.context_dim} and x has {self.dim}: give a context")
        k = self._turned(self._split(self.to_k(x), self.kv_heads), first)
        return k, self._split(self.to_v(x), self.kv_heads)

    def _turned(self, heads: torch.Tensor, start: int | torch.Tensor) -> torch.Tensor:
        if self.positions is None:
            return heads
        steps = torch.arange(heads.shape[2], device=heads.device)
        return self.positions.rotate(heads, steps + (start[:, None] if isinstance(start, torch.Tensor) else start))

    def _split(self, joined: torch.Tensor, heads: int) -> torch.Tensor:
        return joined.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)  # (batch, heads, length, head_dim)

    def _check(self, x: torch.Tensor, context: torch.Tensor | ProjectedContext | None, cache: Cache | None) -> None:
        self._check_vectors("x", x, self.dim)
        if context is None:
            return
        if cache is not None:
            raise UnsupportedError(
                "a cache keeps x's own keys and a context brings its own; give one of them (project_context keeps a "
                "context's keys)"
            )
        rows = context.keys.shape[0] if isinstance(context, ProjectedContext) else len(context)
        if rows != len(x):
            raise ShapeError(f"axis 'batch' is {len(x)} in x {tuple(x.shape)} but {rows} in the context")

    def _check_vectors(self, name: str, vectors: torch.Tensor, size: int) -> None:
        if vectors.dim() != 3 or vectors.shape[-1] != size:
            raise ShapeError(f"{name} has shape {tuple(vectors.shape)}; this layer needs (batch, length, {size})")

    def _refuse_unrelated(self, pattern: Pattern, q_start: int | torch.Tensor | None) -> None:
        if q_start is not None:
            return
        if pattern.compares_positions:
            raise UnsupportedError(
                f"pattern {pattern} compares positions, and those of x and of a context have no common origin; give "
                f"q_start to say where x's first vector stands among the context's"
            )
        if self.positions is not None:
            raise UnsupportedError(
                "Rotary compares positions, and those of x and of a context have no common origin; use a layer "
                "without positions for cross-attention, or give q_start"
            )

    def _refuse_rows(self, pattern: Pattern, cache: Cache | None) -> None:
        if cache is not None and _holds_mask(pattern):
            raise UnsupportedError(
                f"pattern {pattern} holds a mask whose rows are those of one call, and a cache makes many calls of "
                f"one text; say it by positions (Where, KeySpan, ...)"
            )

    def _refuse_moved(self, q_start: int | torch.Tensor, cache: Cache) -> None:
        if isinstance(q_start, torch.Tensor) or q_start != cache.length:
            raise UnsupportedError(
                f"q_start={q_start} with a cache of {cache.length} entries: what is appended stands right behind them, "
                f"so leave q_start out"
            )

    def extra_repr(self) -> str:
        heads = f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}"
        return f"dim={self.dim}, {heads}, pattern={str(self.pattern)!r}"


def _holds_mask(pattern: Pattern) -> bool:
    if isinstance(pattern, Many):
        return any(_holds_mask(part) for part in pattern.parts)
    return isinstance(pattern, Explicit) or (isinstance(pattern, Not) and _holds_mask(pattern.part))
