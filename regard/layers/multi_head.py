"""Multi-head attention: projections around `regard.attention`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from regard.arguments import a_string, count_of, in_memory, real, shown, whole, yes_or_no
from regard.bias import Bias, Forgetting
from regard.core.keywords import OF_INPUTS, OF_LAYERS, refusing_keywords
from regard.core.problem import checked_mechanism, checked_q_start
from regard.core.tensors import Stored
from regard.errors import ArgumentError, KeywordError, ShapeError, UnsupportedError
from regard.functional.jagged import jagged, packed_vectors
from regard.layers.attending import AttentionLayer, Gate, LayerMechanism
from regard.layers.caches import Cache, RecurrentState, new_cache
from regard.layers.caches.base import Entries
from regard.layers.choosing import Chooser
from regard.layers.feed_forward import Projection, place_of
from regard.layers.from_pytorch import hinting_at_pytorch, settings_of, weights_of
from regard.layers.gates import log_forget_gates, new_forget_gates
from regard.layers.recording import current_recording
from regard.mechanisms import Mechanism, Softmax
from regard.patterns import Grid, Pattern, as_pattern
from regard.patterns.visible import visible_keys
from regard.positions import Rotary, as_rotary
from regard.reprs import brief

MOST_LISTED = 1_024  # heads whose divisors a message lists
EPSILON = 1e-6  # of the norms of queries and keys


@brief
@dataclass(frozen=True)
class ProjectedContext:
    """Projected keys (batch, kv_heads, context_length, head_dim) and values (..., v_dim) of a context, for one layer.

    `MultiHeadAttention.project_context` makes it once; decoding passes it as the context of every step. `gate`
    (batch, kv_heads, context_length) is for mechanisms that have one.
    """

    keys: torch.Tensor
    values: torch.Tensor
    gate: torch.Tensor | None = None

    def __post_init__(self) -> None:
        parts = {"keys": (self.keys, 4), "values": (self.values, 4)}
        if self.gate is not None:
            parts["gate"] = (self.gate, 3)
        for name, (part, axes) in parts.items():
            if not isinstance(part, torch.Tensor) or part.dim() != axes:
                raise ShapeError(
                    f"a context's {name} is {shown(part)}; it needs a tensor of {axes} axes"
                )

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        parts = [self.keys, self.values]
        if self.gate is not None:
            parts.append(self.gate)
        return sum(part.numel() * part.element_size() for part in parts)

    def without(self, hidden: torch.Tensor) -> ProjectedContext:
        """The same with zeros at hidden vectors, (batch, context_length), so that NaN cannot reach the output."""
        hidden = hidden[:, None, :, None]  # (batch, 1, context_length, 1)
        keys = self.keys.masked_fill(hidden, 0)
        values = self.values.masked_fill(hidden, 0)
        return ProjectedContext(keys, values, self.gate)

    def reorder(self, index: torch.Tensor) -> ProjectedContext:
        """The context whose batch row i is batch row `index[i]` of this one."""
        index = in_memory("the index of rows", index).to(self.keys.device)
        gate = None if self.gate is None else self.gate.index_select(0, index)
        keys = self.keys.index_select(0, index)
        values = self.values.index_select(0, index)
        return ProjectedContext(keys, values, gate)


class Difference(nn.Module):
    """`norm(head_1 - λ · head_2) · (1 - λ_init)` for outputs (batch, 2 · heads, length, v_dim).

    Source: Differential Transformer, Ye et al. 2024, equations 1 to 3.
    """

    def __init__(self, head_dim: int, value_dim: int, lambda_init: float) -> None:
        super().__init__()
        self.lambda_init = real("differential", lambda_init)
        if not 0 < self.lambda_init < 1:
            raise ArgumentError(
                f"differential is {self.lambda_init}; it is the first λ, a number between 0 and 1"
            )
        self.vectors = nn.Parameter(0.1 * torch.randn(4, head_dim))  # λ_q1, λ_k1, λ_q2, λ_k2
        self.norm = nn.RMSNorm(value_dim, 1e-5)

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        exp_1, exp_2 = (self.vectors[0::2] * self.vectors[1::2]).sum(-1).exp()
        weight = exp_1 - exp_2 + self.lambda_init  # λ
        first, second = heads.chunk(2, 1)
        return self.norm(first - weight * second) * (1 - self.lambda_init)


class MultiHeadAttention(AttentionLayer):
    """Multi-head self- and cross-attention: `concat(head_1 … head_h) Wo`.

    Args:
        dim: size of input and output vectors.
        heads: number of query heads.
        kv_heads: number of key/value heads, a divisor of `heads`: equal to it by default (multi-head), fewer for
            grouped-query, 1 for multi-query attention.
        head_dim: size of the queries and keys of a head; dim // heads by default.
        value_dim: size of the values of a head; head_dim by default. Caches keep it as their `v_dim`.
        context_dim: size of the context vectors; `dim` by default.
        pattern: the allowed pairs, a Pattern or its text; a pattern given to a call is ANDed with it.
        mechanism: how scores become weights, a Mechanism or its text; softmax by default. Its learned parameters
            belong to the layer.
        positions: a Rotary that rotates q and k, "rotary", or None.
        sinks: whether each head learns the logit of a sink, as the parameter `sinks`, which begins with zeros.
        qk_norm: whether each head's queries and keys have an RMS norm, before positions rotate them.
        output_gate: whether each number of the heads' outputs is multiplied by `sigmoid(W x)`, before `to_output`.
        value_residual: whether a call takes the values of an earlier layer, `first_values`, and adds them to its own:
            `v = mix_0 · v + mix_1 · first_values`, with the learned `value_mix`, which begins with (1/2, 1/2).
        differential: each head subtracts the output of a second one with queries and keys of its own:
            `norm(head_1 - λ · head_2) · (1 - differential)`, with the learned
            `λ = exp(λ_q1 · λ_k1) - exp(λ_q2 · λ_k2) + differential`; the paper's layers have 0.2 to 0.8. Values have
            2 · head_dim numbers by default. A call, its pattern, bias, sinks, statistics and cache then have 2 · heads
            heads: all first heads, then all second ones.
        forgetting: whether each head forgets keys by gates of its own, `bias_ij = Σ log sigmoid(W x_t + b)` over j < t
            <= i, as `bias.Forgetting`; for causal self-attention by softmax. b begins with zeros.
        chooser: a module that decides by content which keys each query looks at, such as MoBA, NSA or LightningIndexer
            of `regard.layers`; for causal self-attention by softmax.
        dropout: share of the weights dropped in training; none in eval mode.
        softcap, scale, backend, strict, precise: as for `attention`.
        projection_bias: whether the projections have biases.

    Raises:
        ArgumentError: sizes that do not divide, or positions that are not Rotary.
        UnsupportedError: sinks with a mechanism that has none; forgetting with sinks or without softmax.

    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.2; grouped queries: Ainslie et al. 2023; norms:
    Query-Key Normalization for Transformers, Henry et al. 2020; gates: Gated Attention for Large Language Models, Qiu
    et al. 2025, section 2.2; value residual: Value Residual Learning, Zhou et al. 2024; differences: Differential
    Transformer, Ye et al. 2024, section 2.1; forget gates: Forgetting Transformer, Lin et al. 2025, section 3.

    >>> layer = MultiHeadAttention(dim=32, heads=4, kv_heads=2, pattern="causal", positions=Rotary())
    >>> layer(torch.zeros(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    @refusing_keywords("MultiHeadAttention", OF_LAYERS)
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        context_dim: int | None = None,
        pattern: Pattern | str | None = None,
        mechanism: Mechanism | str | None = None,
        positions: Rotary | str | None = None,
        sinks: bool = False,
        qk_norm: bool = False,
        output_gate: bool = False,
        value_residual: bool = False,
        differential: float | None = None,
        forgetting: bool = False,
        chooser: Chooser | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        scale: float | None = None,
        projection_bias: bool = True,
        backend: str = "auto",
        strict: bool = False,
        precise: bool = False,
    ) -> None:
        super().__init__()
        sizes = _sizes(dim, heads, kv_heads, head_dim, context_dim)
        self.dim, self.heads, self.kv_heads, self.head_dim, self.context_dim = sizes
        self.parts = 1 if differential is None else 2  # heads that are computed for each head
        if value_dim is None:
            self.value_dim = self.parts * self.head_dim
        else:
            self.value_dim = whole("value_dim", value_dim, 1)
        self.difference = None
        if differential is not None:
            self.difference = Difference(self.head_dim, self.value_dim, differential)
        self._set_options(
            pattern,
            dropout,
            softcap=softcap,
            scale=scale,
            backend=backend,
            strict=strict,
            precise=precise,
        )
        self.positions = as_rotary(positions)
        if self.positions is not None:
            self.positions.check(self.head_dim)
        projection_bias = yes_or_no("projection_bias", projection_bias)
        compared = self.parts * self.heads, self.parts * self.kv_heads
        self.mechanism = LayerMechanism(checked_mechanism(mechanism), *compared, *sizes[3:])
        if yes_or_no("sinks", sinks) and "sink" not in self.mechanism.declared.options:
            raise UnsupportedError(
                f"{self.mechanism.declared} has no sinks, since its weights are no softmax over the keys; leave out "
                f"sinks=True, or use softmax"
            )
        self.sinks = nn.Parameter(torch.zeros(compared[0])) if sinks else None
        self.to_forget = None
        if yes_or_no("forgetting", forgetting):
            if sinks or "bias" not in self.mechanism.declared.options:
                raise UnsupportedError(
                    f"forgetting adds a bias to the scores of a softmax without a sink; use it without "
                    f"{'sinks=True' if sinks else self.mechanism.declared}"
                )
            self.to_forget = new_forget_gates(self.dim, compared[0])
        if chooser is not None:
            self._build_chooser(chooser)
        self.chooser = chooser
        key_dim = self.mechanism.key_dim
        shares = self.mechanism.declared.shares_keys
        self.to_q = Projection(self.dim, compared[0] * self.head_dim, bias=projection_bias)
        keys = None  # where the mechanism uses the queries as keys
        if not shares:
            width = self.stored_heads * key_dim
            keys = Projection(self.context_dim, width, bias=projection_bias)
        self.to_k = keys
        valued = self.stored_heads // self.parts
        self.to_v = Projection(self.context_dim, valued * self.value_dim, bias=projection_bias)
        self.to_output = Projection(self.heads * self.value_dim, self.dim, bias=projection_bias)
        normed = yes_or_no("qk_norm", qk_norm)
        gated = yes_or_no("output_gate", output_gate)
        self.q_norm = nn.RMSNorm(self.head_dim, EPSILON) if normed else None
        self.k_norm = nn.RMSNorm(key_dim, EPSILON) if normed and not shares else None
        width = self.heads * self.value_dim
        self.to_output_gate = Projection(self.dim, width, bias=projection_bias) if gated else None
        mixed = yes_or_no("value_residual", value_residual)
        self.value_mix = nn.Parameter(torch.full((2,), 0.5)) if mixed else None

    @property
    def stored_heads(self) -> int:
        """Heads of projected keys, and of a cache."""
        return self.parts * self.kv_heads * (1 if self.chooser is None else self.chooser.branches)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **options: Any) -> Self:
        """A layer with the weights, dtype, device and mode of a `torch.nn.MultiheadAttention`.

        Args:
            module: with `batch_first=True`; its weights are copied.
            options: as for the constructor, such as `pattern`.

        Returns:
            The layer: `layer(x)` is `module(x, x, x)[0]`, and `layer(x, context)` is `module(x, context, context)[0]`.

        Raises:
            ArgumentError, UnsupportedError: a module that cannot be represented.

        >>> module = torch.nn.MultiheadAttention(16, 4, batch_first=True)
        >>> x = torch.randn(2, 5, 16)
        >>> torch.allclose(MultiHeadAttention.from_torch(module)(x), module(x, x, x)[0], atol=1e-5)
        True
        """
        layer = cls(**(settings_of(module) | options))
        weights = weights_of(module)
        layer.to(module.out_proj.weight).load_state_dict(weights)
        return layer.train(module.training)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As `torch.nn.Module`; an error about weights of `torch.nn.MultiheadAttention` names the ways to load them."""
        with hinting_at_pytorch(state_dict):
            return super().load_state_dict(state_dict, strict, assign)

    @refusing_keywords("an attention layer", OF_INPUTS)
    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | ProjectedContext | None = None,
        *more: Any,
        pattern: Pattern | str | None = None,
        bias: torch.Tensor | Bias | None = None,
        q_start: int | torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        first_values: torch.Tensor | None = None,
        cache: Cache | RecurrentState | None = None,
    ) -> torch.Tensor:
        """Self-attention of x, or cross-attention from x to a context.

        Args:
            x: (batch, length, dim). A jagged nested tensor (batch, ragged length, dim) holds documents of different
                lengths, each computed like a separate call; the output is jagged alike.
            context: (batch, context_length, context_dim), or its ProjectedContext; beside jagged documents jagged too.
            pattern: ANDed with the layer's own; give padding as KeySpan.
            bias: added to the scores, broadcastable to (batch, heads, length, keys).
            q_start: position of x's first query, an int or int64 (batch,), where key j has position j; by default the
                length of the cache, or 0.
            positions: for self-attention, the positions to which Rotary rotates the queries and keys of x, int64
                (length,) or (batch, length), or with axes (batch, length, axes); by default they count from q_start.
                Patterns and biases compare places in the sequence, whatever these positions are.
            first_values: for a layer with value_residual, the values of the first layer, `layers[0].values(x)`.
            cache: x's keys and values are appended to it, and x attends to all its entries. It belongs to this layer
                from then on. After an exception it is as before, unless x is counted in its `length`.

        Returns:
            (batch, length, dim).

        Raises:
            ShapeError, ArgumentError: tensors or options that do not fit.
            UnsupportedError: a pattern that compares positions, with a context and without q_start; with a cache, an
                explicit mask or a pattern that depends on the number of keys; a cache with a context.
        """
        if more:
            raise KeywordError(
                "an attention layer takes x and a context: layer(x) in place of layer(x, x, x), and layer(x, context) "
                "in place of layer(x, context, context)"
            )
        documents = None
        if getattr(x, "is_nested", False) or getattr(context, "is_nested", False):
            others = {
                "q_start": q_start,
                "positions": positions,
                "first_values": first_values,
                "cache": cache,
            }
            x, context, documents = packed_vectors(x, context, **others)
        self._check(x, context, cache)
        combined = self.pattern if pattern is None else self.pattern & as_pattern(pattern)
        q = self._queries(x)
        if context is None:
            first_key = cache.place if cache is not None else 0
            q_start = first_key if q_start is None else checked_q_start(q_start, x.shape[0])
            self._check_positions(positions)
            q = self.mechanism.queries(self._rotated(q, q_start, positions))
            gate = self.mechanism.gate(x)
            log_forget = None
            if self.to_forget is not None:
                log_forget = log_forget_gates(self.to_forget, x)
            if log_forget is not None and bias is not None:
                raise UnsupportedError(
                    "forgetting is the bias of this layer's calls, so leave bias out"
                )
            k, v = self._keys_of_self(x, q, first_key, positions, first_values)
            if cache is not None:
                self._refuse_with_cache(combined, q_start, first_key)
                return self._append_and_attend(cache, x, q, k, v, combined, bias, gate, log_forget)
            if log_forget is not None:
                if documents is None:
                    bias = Forgetting(log_forget)
                else:
                    bias = documents.forgetting(log_forget)
        else:
            self._refuse_for_context(positions, first_values)
            if q_start is None:
                self._refuse_unrelated(combined)
            else:
                q = self._rotated(q, checked_q_start(q_start, x.shape[0]))
            if not isinstance(context, ProjectedContext):
                context = self.project_context(context)
            k = context.keys
            v = context.values
            gate = context.gate
        if documents is not None:
            if self.chooser is not None:
                raise UnsupportedError(
                    "a chooser compares all keys of a row; call the layer for each jagged document"
                )
            combined = documents.pattern(combined, self.mechanism.called, bias)
            q_start = 0
        heads = self._compute_heads(x, q, k, v, combined, bias, q_start, gate)
        output = self._output(heads, x)
        return output if documents is None else jagged(output, documents.q_ends, 1)

    def choice_loss(
        self,
        x: torch.Tensor,
        *,
        pattern: Pattern | str | None = None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The loss by which a chooser learns, a number, for a call of x: see `LightningIndexer.loss`. x gets no
        gradient. `choice_losses` collects the losses of a model."""
        self._check(x, None, None)
        combined = self.pattern if pattern is None else self.pattern & as_pattern(pattern)
        with torch.no_grad():
            q = self._rotated(self._queries(x), 0, positions)
            k = self._keys(x, 0, positions)
        return (Chooser() if self.chooser is None else self.chooser).loss(x, q, k, combined)

    def _build_chooser(self, chooser: Chooser) -> None:
        if not isinstance(chooser, Chooser) or chooser.built:
            what = (
                "another layer has this chooser"
                if isinstance(chooser, Chooser)
                else f"chooser is {shown(chooser)}"
            )
            raise ArgumentError(f"{what}; make one of regard.layers, such as MoBA(block=64, top=8)")
        fits = {
            "softmax without parameters": self.mechanism.declared == Softmax(),
            "no sinks": self.sinks is None,
            "no differential": self.parts == 1,
            "no forgetting": self.to_forget is None,
            "context_dim equal to dim": self.context_dim == self.dim,
            "no softcap": chooser.branches == 1 or self.options["softcap"] is None,
        }
        if missing := [name for name, fit in fits.items() if not fit]:
            raise UnsupportedError(
                f"the chooser {type(chooser).__name__} needs a layer with {', '.join(missing)}"
            )
        scale = self.head_dim**-0.5 if self.options["scale"] is None else self.options["scale"]
        chooser.build(self.dim, self.heads, self.kv_heads, self.head_dim, self.value_dim, scale)
        chooser.built, chooser.softcap = True, self.options["softcap"]

    def _queries(self, x: torch.Tensor) -> torch.Tensor:
        q = self._split(self.to_q(x), self.parts * self.heads)  # (batch, heads, length, head_dim)
        return q if self.q_norm is None else self.q_norm(q)

    def _compute_heads(
        self,
        x: torch.Tensor,
        q: torch.Tensor,
        k: Entries,
        v: Entries,
        pattern: Pattern,
        bias: torch.Tensor | Bias | None,
        q_start: int | torch.Tensor | None,
        gate: Gate,
    ) -> torch.Tensor:
        """The outputs of the heads, with the keys that a chooser chooses or with all."""
        chooser = self.chooser
        start = k.shape[2] - q.shape[2]
        if chooser is None:
            return self._attend(q, k, v, pattern, bias, q_start, gate)
        if (
            isinstance(q_start, torch.Tensor)
            or q_start != start
            or (isinstance(k, Stored) and k.first)
        ):
            raise UnsupportedError(
                "a chooser chooses among all keys of a text; leave out q_start, and use a cache that keeps all entries"
            )
        if chooser.branches > 1 and (bias is not None or current_recording(self) is not None):
            raise UnsupportedError(
                f"{type(chooser).__name__} adds {chooser.branches} attentions, one of which has compressed keys, so it "
                f"supports neither bias nor statistics"
            )
        keys, values = (x.widened(q.dtype) if isinstance(x, Stored) else x for x in (k, v))
        visible = visible_keys(pattern, Grid.whole(q.shape[2], k.shape[2], start, q.device))
        if visible is not None:
            hidden = ~visible.any(1, keepdim=True)[..., None]
            keys = keys.masked_fill(hidden, 0)
            values = values.masked_fill(hidden, 0)
        return chooser(
            lambda q, k, v, pattern: self._attend(q, k, v, pattern, bias, start),
            x,
            q,
            keys,
            values,
            pattern,
        )

    def values(self, x: torch.Tensor) -> torch.Tensor:
        """The values of x (batch, length, dim), as `first_values` of later layers: (batch, kv_heads, length, v_dim)."""
        self._check_vectors("x", x, self.context_dim)
        return self._split(self.to_v(x), self.stored_heads // self.parts)

    def _output(self, heads: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The output (batch, length, dim) of the outputs of heads."""
        if self.difference is not None:
            heads = self.difference(heads)
        if self.to_output_gate is None:
            return self._join(heads)
        return self._join(heads, torch.sigmoid(self.to_output_gate(x)))

    def _values(
        self, vectors: torch.Tensor, first_values: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Values (batch, kv_heads, length, v_dim), with those of the first layer added, for each of the parts."""
        v = self._split(self.to_v(vectors), self.stored_heads // self.parts)
        v = self._add_first_values(v, first_values)
        return v if self.parts == 1 else torch.cat([v, v], 1)

    def project_context(self, context: torch.Tensor) -> ProjectedContext:
        """The projected keys and values of a context (batch, context_length, context_dim), for repeated use."""
        self._check_vectors("context", context, self.context_dim)
        if self.chooser is not None:
            raise UnsupportedError(
                "a chooser chooses in one text, so a layer with one cannot attend to a context"
            )
        if self.to_k is None:
            raise UnsupportedError(
                f"{self.mechanism.declared}: it uses the queries as keys, so it cannot attend to a context"
            )
        gate = self.mechanism.gate(context)
        if isinstance(gate, dict) or self.mechanism.declared.groups_values:
            raise UnsupportedError(
                f"{self.mechanism.declared}: its memory is written by the positions that read it, so it cannot attend "
                f"to a context; use softmax or a linear mechanism"
            )
        keys = self._split(self.to_k(context), self.parts * self.kv_heads)
        keys = self._rotated(keys if self.k_norm is None else self.k_norm(keys), 0)
        return ProjectedContext(self.mechanism.keys(keys), self._values(context), gate)

    def new_cache(
        self,
        batch: int,
        kind: str | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | str | None = None,
        *,
        first: int = 0,
        shared: bool = False,
    ) -> Cache | RecurrentState:
        """An empty cache in which this layer continues `batch` texts; each layer of a stack needs its own.

        With a causal pattern the result is that of the whole text at once. A pattern that looks ahead sees only the
        entries that the cache holds when a query is computed.

        Args:
            batch: number of texts.
            kind: "dynamic" (grows), "static" (fixed capacity), "ring" (the last entries), "paged" (beams share
                pages) or "state" (sums in constant memory). The default is "state" for mechanisms that have one, else
                "dynamic".
            capacity: the most entries; for a ring, by default as far as the layer's pattern looks back.
            dtype: storage dtype, that of the weights by default; torch.bfloat16 and "int8" need less memory.
            first: for a ring, how many entries at the beginning of the text stay, besides the last ones.
            shared: whether other layers may write to it too; otherwise it belongs to the layer that writes first.

        >>> layers = [MultiHeadAttention(dim=8, heads=2, pattern="causal_window(64)") for _ in range(3)]
        >>> caches, x = [layer.new_cache(batch=1) for layer in layers], torch.zeros(1, 5, 8)
        >>> for layer, cache in zip(layers, caches):
        ...     x = layer(x, cache=cache)
        >>> layers[0].new_cache(batch=1, kind="ring", dtype="int8")
        RingCache(batch=1, kv_heads=2, length=0, head_dim=4, int8, capacity=63)
        """
        declared = self.mechanism.declared
        kind = (
            ("state" if declared.has_state else "dynamic")
            if kind is None
            else a_string("kind", kind)
        )
        if kind == "state":
            if not declared.has_state:
                raise UnsupportedError(
                    f"{declared} has no recurrent state; use another kind of cache"
                )
            if capacity is not None or dtype is not None or first:
                raise ArgumentError(
                    "a state has a fixed size and the dtype of the weights; leave out capacity, dtype and first"
                )
            sizes = batch, self.parts * self.kv_heads, self.head_dim, self.value_dim
            of_weights, device = place_of(self.to_v)
            dtype = torch.promote_types(of_weights, torch.float32)
            return RecurrentState(declared, *sizes, dtype=dtype, device=device, shared=shared)
        if (reason := self.mechanism.reason_against_caches) is not None:
            raise UnsupportedError(f"{declared}: {reason}")
        options = self._cache_options(kind, capacity, dtype, shared, first)
        if kind == "ring" and self.chooser is not None:
            raise UnsupportedError(
                "a chooser chooses among all keys; use a cache that keeps all entries"
            )
        kept = self.mechanism.kept_dim + (0 if self.chooser is None else self.chooser.extra_dim)
        if self.to_forget is not None:
            options["forgetting"] = self.heads // self.kv_heads
        cache = new_cache(kind, batch, self.stored_heads, kept, v_dim=self.value_dim, **options)
        cache.belong_to(self)
        return cache

    def _append_and_attend(
        self,
        cache: Cache | RecurrentState,
        x: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
        bias: torch.Tensor | Bias | None,
        gate: Gate,
        log_forget: torch.Tensor | None,
    ) -> torch.Tensor:
        start = cache.place
        summed = isinstance(cache, RecurrentState)
        if summed and (bias is not None or current_recording(self) is not None):
            raise UnsupportedError(
                "a state holds sums, so it supports neither bias nor statistics; use kind='dynamic'"
            )
        with cache.unless_refused():
            if isinstance(cache, RecurrentState):
                options = {
                    "scale": self.options["scale"],
                    "parameters": self.mechanism.options(gate)["parameters"],
                }
                heads = cache.attend(q, k, v, pattern=pattern, **options)
            else:
                keys, values, forgets = cache.append_gated(k, v, log_forget)
                bias = bias if forgets is None else forgets
                heads = self._compute_heads(x, q, keys, values, pattern, bias, start, gate)
            output = self._output(heads, x)
            cache.belong_to(self)
        return output

    def _keys_of_self(
        self,
        x: torch.Tensor,
        q: torch.Tensor,
        first: int,
        positions: torch.Tensor | None,
        first_values: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.context_dim != self.dim:
            raise ShapeError(
                f"this layer's contexts have size {self.context_dim} and x has {self.dim}, so it needs a context"
            )
        v = self._values(x, first_values)
        if self.to_k is None:
            return q, v
        k = self._keys(x, first, positions)
        return (k if self.chooser is None else self.chooser.cached_keys(x, k, first)), v

    def _keys(self, x: torch.Tensor, first: int, positions: torch.Tensor | None) -> torch.Tensor:
        k = self._split(self.to_k(x), self.stored_heads)  # ty: ignore[not-callable]
        if self.k_norm is not None:
            k = self.k_norm(k)
        return self.mechanism.keys(self._rotated(k, first, positions))

    def _add_first_values(self, v: torch.Tensor, first_values: torch.Tensor | None) -> torch.Tensor:
        """Values with those of the first layer added."""
        if self.value_mix is None:
            if first_values is not None:
                raise ArgumentError("first_values are for layers made with value_residual=True")
            return v
        if first_values is None:
            raise ArgumentError(
                "this layer has value_residual, so it needs first_values=layers[0].values(x)"
            )
        if first_values.shape != v.shape:
            raise ShapeError(
                f"first_values have shape {tuple(first_values.shape)}, and the values {tuple(v.shape)}"
            )
        return self.value_mix[0] * v + self.value_mix[1] * first_values

    def _check_positions(self, positions: torch.Tensor | None) -> None:
        if positions is not None and self.positions is None:
            raise ArgumentError(
                "positions= are for Rotary, and this layer has none; make it with positions='rotary'"
            )

    def _refuse_for_context(
        self, positions: torch.Tensor | None, first_values: torch.Tensor | None
    ) -> None:
        if any(
            one is not None for one in (positions, first_values, self.value_mix, self.to_forget)
        ):
            raise UnsupportedError(
                "positions=, first_values=, value_residual and forgetting are for self-attention: the keys and values "
                "of a context are not at the places of x"
            )

    def _check(
        self,
        x: torch.Tensor,
        context: torch.Tensor | ProjectedContext | None,
        cache: Cache | RecurrentState | None,
    ) -> None:
        self._check_vectors("x", x, self.dim)
        if cache is not None:
            if context is not None:
                raise UnsupportedError(
                    "a cache holds x's own keys and a context brings its own; give one of them (project_context "
                    "projects a context once)"
                )
            if not isinstance(cache, Cache | RecurrentState):
                raise ArgumentError(f"cache is {shown(cache)}; make one with new_cache(batch=...)")
            cache.refuse_other(self)
        if context is not None:
            if not isinstance(context, ProjectedContext):
                self._check_vectors("context", context, self.context_dim)
            rows = (
                context.keys.shape[0] if isinstance(context, ProjectedContext) else context.shape[0]
            )
            if rows != x.shape[0]:
                raise ShapeError(
                    f"axis 'batch' is {x.shape[0]} in x {tuple(x.shape)} but {rows} in the context"
                )

    def _refuse_unrelated(self, pattern: Pattern) -> None:
        """Refuse a pattern or Rotary that compares positions with those of a context whose origin is not known."""
        if pattern.compares_positions:
            raise UnsupportedError(
                f"pattern {pattern} compares positions, and x and its context have no common origin; give q_start, "
                f"the position of x's first vector among the context's"
            )
        if self.positions is not None:
            raise UnsupportedError(
                "Rotary compares positions, and x and its context have no common origin; use a layer without "
                "positions for cross-attention, or give q_start"
            )

    def extra_repr(self) -> str:
        heads = f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}"
        heads += "" if self.value_dim == self.head_dim else f", value_dim={self.value_dim}"
        rest = "" if self.positions is None else f", positions={self.positions}"
        rest += "" if self.difference is None else f", differential={self.difference.lambda_init}"
        given = {
            "sinks": self.sinks,
            "qk_norm": self.q_norm,
            "output_gate": self.to_output_gate,
            "value_residual": self.value_mix,
            "forgetting": self.to_forget,
        }
        rest += "".join(f", {name}=True" for name, one in given.items() if one is not None)
        return f"dim={self.dim}, {heads}, pattern={str(self.pattern)!r}{rest}"


def _sizes(
    dim: int, heads: int, kv_heads: int | None, head_dim: int | None, context_dim: int | None
) -> tuple[int, int, int, int, int]:
    """The sizes of an attention layer with defaults filled in; an ArgumentError if they do not fit."""
    dim = whole("dim", dim, 1)
    heads = whole("heads", heads, 1)
    kv_heads = heads if kv_heads is None else whole("kv_heads", kv_heads, 1)
    context_dim = dim if context_dim is None else whole("context_dim", context_dim, 1)
    head_dim = head_dim if head_dim is None else whole("head_dim", head_dim, 1)
    if heads % kv_heads:
        fitting = (
            [str(count) for count in range(1, heads + 1) if heads % count == 0]
            if heads <= MOST_LISTED
            else []
        )
        way_out = f"give one of {', '.join(fitting)}" if fitting else "give a divisor of heads"
        raise ArgumentError(
            f"kv_heads is {kv_heads}, by which {count_of(heads, 'query heads')} cannot be divided into equal groups; "
            f"{way_out}"
        )
    if head_dim is None and dim % heads:
        raise ArgumentError(
            f"dim {dim} does not divide into {count_of(heads, 'heads')}; give head_dim, or another dim or heads"
        )
    return dim, heads, kv_heads, dim // heads if head_dim is None else head_dim, context_dim
