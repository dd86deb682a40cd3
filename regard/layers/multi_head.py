"""Multi-head attention: projections around `regard.attention`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from regard.arguments import count_of, of_kind, shown, whole, whole_or, yes_or_no
from regard.bias import Bias, Forgetting
from regard.core.keywords import OF_INPUTS, OF_LAYERS, refusing_keywords
from regard.core.problem import checked_mechanism, checked_q_start
from regard.core.tensors import Stored
from regard.errors import ArgumentError, KeywordError, ShapeError, UnsupportedError
from regard.functional.jagged import jagged, packed_vectors
from regard.layers.attending import AttentionLayer, Gate, LayerMechanism
from regard.layers.caches import Cache, RecurrentState, new_cache
from regard.layers.choosing import Chooser
from regard.layers.from_pytorch import hinting_at_pytorch, settings_of, weights_of
from regard.layers.gates import log_forget_gates, new_forget_gates
from regard.layers.projected_context import ProjectedContext
from regard.layers.projection import Projection, apply_projection, dtype_and_device_of
from regard.layers.recording import current_recording
from regard.layers.rotation import rotate_heads
from regard.layers.step_program import step_by_program
from regard.layers.variants import Difference, ValueResidual, mix_values
from regard.mechanisms import Mechanism, Softmax
from regard.patterns import Pattern, as_pattern
from regard.patterns.grid import Grid
from regard.patterns.visible import visible_keys
from regard.positions import Rotary, as_rotary

MOST_HEADS_LISTED = 1_024  # heads whose divisors a message lists
NORM_EPSILON = 1e-6  # of the norms of queries and keys
PLAIN_SOFTMAX = Softmax()
# What a layer may have besides projections, positions and a mechanism.
OPTIONAL_PARTS = (
    "chooser",
    "difference",
    "k_norm",
    "q_norm",
    "sinks",
    "to_forget",
    "to_output_gate",
    "value_mix",
)


@dataclass
class HeadInputs:
    """What the heads of a call are computed of.

    x: the vectors of the queries, (batch, length, dim). q, k, v: of the heads; k and v are `Stored` if a cache rounded
    or dropped some. log_forget: of the keys, (batch, heads, length), for layers with forget gates.
    """

    x: torch.Tensor
    q: torch.Tensor
    k: Any
    v: Any
    pattern: Pattern
    bias: torch.Tensor | Bias | None
    q_start: int | torch.Tensor | None
    gate: Gate = None
    log_forget: torch.Tensor | None = None


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
        value_residual: a ValueResidual, by which a call takes the values of the first layer, `first_values`, and adds
            them to its own.
        differential: a Difference, by which each head subtracts the output of a second one with queries and keys of
            its own. A call, its pattern, bias, sinks, statistics and cache then have 2 · heads heads.
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
    et al. 2025, section 2.2; forget gates: Forgetting Transformer, Lin et al. 2025, section 3.

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
        value_residual: ValueResidual | None = None,
        differential: Difference | None = None,
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
        self._set_sizes(dim, heads, kv_heads, head_dim, context_dim)
        if differential is not None:
            of_kind("differential", differential, Difference, "Difference(lambda_init=...)")
        self.terms = 1 if differential is None else 2  # heads that are computed for each head
        if value_dim is None:
            self.value_dim = self.terms * self.head_dim
        else:
            self.value_dim = whole("value_dim", value_dim, 1)
        self.difference = None
        if differential is not None:
            self.difference = differential.build(self.head_dim, self.value_dim)
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

        computed_heads = self.terms * self.heads
        computed_kv_heads = self.terms * self.kv_heads
        declared = checked_mechanism(mechanism)
        self.mechanism = LayerMechanism(
            declared, computed_heads, computed_kv_heads, self.head_dim, self.context_dim
        )
        if yes_or_no("sinks", sinks) and "sink" not in declared.options:
            raise UnsupportedError(
                f"{declared} has no sinks, since its weights are no softmax over the keys; leave out sinks=True, or "
                f"use softmax"
            )
        self.sinks = nn.Parameter(torch.zeros(computed_heads)) if sinks else None
        if yes_or_no("forgetting", forgetting) and (sinks or "bias" not in declared.options):
            raise UnsupportedError(
                f"forgetting adds a bias to the scores of a softmax without a sink; use it without "
                f"{'sinks=True' if sinks else declared}"
            )
        self.to_forget = new_forget_gates(self.dim, computed_heads) if forgetting else None
        if chooser is not None:
            self._build_chooser(chooser)
        self.chooser = chooser

        # Optimisers and training runs know the parameters by their order, which is that of these lines.
        key_dim = self.mechanism.key_dim
        output_width = self.heads * self.value_dim
        self.to_q = Projection(self.dim, computed_heads * self.head_dim, bias=projection_bias)
        self.to_k = None  # where the mechanism uses the queries as keys
        if not declared.shares_keys:
            key_width = self.stored_heads * key_dim
            self.to_k = Projection(self.context_dim, key_width, bias=projection_bias)
        value_width = self.projected_value_heads * self.value_dim
        self.to_v = Projection(self.context_dim, value_width, bias=projection_bias)
        self.to_output = Projection(output_width, self.dim, bias=projection_bias)
        self.q_norm = None
        self.k_norm = None
        if yes_or_no("qk_norm", qk_norm):
            self.q_norm = nn.RMSNorm(self.head_dim, NORM_EPSILON)
            if not declared.shares_keys:
                self.k_norm = nn.RMSNorm(key_dim, NORM_EPSILON)
        self.to_output_gate = None
        if yes_or_no("output_gate", output_gate):
            self.to_output_gate = Projection(self.dim, output_width, bias=projection_bias)
        self.value_residual = value_residual
        self.value_mix = None
        if value_residual is not None:
            of_kind("value_residual", value_residual, ValueResidual, "ValueResidual()")
            self.value_mix = value_residual.new_mix()

    def _set_sizes(
        self,
        dim: int,
        heads: int,
        kv_heads: int | None,
        head_dim: int | None,
        context_dim: int | None,
    ) -> None:
        """Keep the sizes with their defaults filled in; an ArgumentError if they do not fit."""
        self.dim = whole("dim", dim, 1)
        self.heads = whole("heads", heads, 1)
        self.kv_heads = whole_or("kv_heads", kv_heads, self.heads, 1)
        self.context_dim = self.dim
        if context_dim is not None:
            self.context_dim = whole("context_dim", context_dim, 1)
        if head_dim is not None:
            head_dim = whole("head_dim", head_dim, 1)
        if self.heads % self.kv_heads:
            way_out = "give a divisor of heads"
            if self.heads <= MOST_HEADS_LISTED:
                counts = range(1, self.heads + 1)
                divisors = [str(count) for count in counts if self.heads % count == 0]
                way_out = f"give one of {', '.join(divisors)}"
            raise ArgumentError(
                f"kv_heads is {self.kv_heads}, by which {count_of(self.heads, 'query heads')} cannot be divided into "
                f"equal groups; {way_out}"
            )
        if head_dim is None and self.dim % self.heads:
            raise ArgumentError(
                f"dim {self.dim} does not divide into {count_of(self.heads, 'heads')}; give head_dim, or another dim "
                f"or heads"
            )
        self.head_dim = self.dim // self.heads if head_dim is None else head_dim

    def _build_chooser(self, chooser: Chooser) -> None:
        if not isinstance(chooser, Chooser) or chooser.built:
            reason = f"chooser is {shown(chooser)}"
            if isinstance(chooser, Chooser):
                reason = "another layer has this chooser"
            raise ArgumentError(
                f"{reason}; make one of regard.layers, such as MoBA(block=64, top=8)"
            )
        softcap = self.options["softcap"]
        scale = self.options["scale"]
        needs = {
            "softmax without parameters": self.mechanism.declared == Softmax(),
            "no sinks": self.sinks is None,
            "no differential": self.difference is None,
            "no forgetting": self.to_forget is None,
            "context_dim equal to dim": self.context_dim == self.dim,
            "no softcap": chooser.branches == 1 or softcap is None,
        }
        missing = [name for name, fulfilled in needs.items() if not fulfilled]
        if missing:
            raise UnsupportedError(
                f"the chooser {type(chooser).__name__} needs a layer with {', '.join(missing)}"
            )

        if scale is None:
            scale = self.head_dim**-0.5
        chooser.build(self.dim, self.heads, self.kv_heads, self.head_dim, self.value_dim, scale)
        chooser.built = True
        chooser.softcap = softcap

    @property
    def stored_heads(self) -> int:
        """Heads of projected keys, and of a cache."""
        branches = 1 if self.chooser is None else self.chooser.branches
        return self.terms * self.kv_heads * branches

    @property
    def projected_value_heads(self) -> int:
        """Heads of projected values: both terms of a difference have the same values."""
        return self.stored_heads // self.terms

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
            x, context, documents = packed_vectors(
                x,
                context,
                q_start=q_start,
                positions=positions,
                first_values=first_values,
                cache=cache,
            )
        self._check_inputs(x, context, cache)
        options = (context, pattern, bias, q_start, positions, first_values)
        if isinstance(cache, Cache) and options.count(None) == len(options) and is_simple(self):
            return self._continue_text(x, cache)

        combined = self.pattern if pattern is None else self.pattern & as_pattern(pattern)
        if context is None:
            first_key = 0 if cache is None else cache.place
            q_start = first_key if q_start is None else checked_q_start(q_start, x.shape[0])
            inputs = self._project_self(
                x, combined, bias, q_start, first_key, positions, first_values
            )
            if cache is not None:
                self._refuse_with_cache(combined, q_start, first_key)
                return self._append_and_attend(cache, inputs)
            if inputs.log_forget is not None:
                new_bias = Forgetting if documents is None else documents.forgetting
                inputs.bias = new_bias(inputs.log_forget)
        else:
            self._refuse_for_context(positions, first_values)
            inputs = self._project_with_context(x, context, combined, bias, q_start)
        if documents is not None:
            if self.chooser is not None:
                raise UnsupportedError(
                    "a chooser compares all keys of a row; call the layer for each jagged document"
                )
            inputs.pattern = documents.pattern(combined, self.mechanism.called, inputs.bias)
            # This pattern counts queries and keys from the start of their packed row. Without a q_start the last query
            # of x would stand at the last key of a context.
            inputs.q_start = 0

        heads = self._compute_heads(inputs)
        output = self._compute_output(heads, x)
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
        self._check_inputs(x, None, None)
        combined = self.pattern if pattern is None else self.pattern & as_pattern(pattern)
        with torch.no_grad():
            q = self._rotate(self._project_queries(x), 0, positions)
            k = self._project_keys(x, 0, positions)
        chooser = Chooser() if self.chooser is None else self.chooser
        return chooser.loss(x, q, k, combined)

    def values(self, x: torch.Tensor) -> torch.Tensor:
        """The values of x (batch, length, dim), as `first_values` of later layers: (batch, kv_heads, length, v_dim)."""
        self._check_vectors("x", x, self.context_dim)
        return self._split(apply_projection(self.to_v, x), self.projected_value_heads)

    def project_context(self, context: torch.Tensor) -> ProjectedContext:
        """The projected keys and values of a context (batch, context_length, context_dim), for repeated use."""
        self._check_vectors("context", context, self.context_dim)
        if self.chooser is not None:
            raise UnsupportedError(
                "a chooser chooses in one text, so a layer with one cannot attend to a context"
            )
        declared = self.mechanism.declared
        if self.to_k is None:
            raise UnsupportedError(
                f"{declared}: it uses the queries as keys, so it cannot attend to a context"
            )
        gate = self.mechanism.gate(context)
        if isinstance(gate, dict) or declared.groups_values:
            raise UnsupportedError(
                f"{declared}: its memory is written by the positions that read it, so it cannot attend to a context; "
                f"use softmax or a linear mechanism"
            )
        keys = self._project_keys(context, 0)
        return ProjectedContext(keys, self._project_values(context), gate)

    def new_cache(
        self,
        batch: int,
        kind: str | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | str | None = None,
        *,
        first_entries: int = 0,
        shared: bool = False,
    ) -> Cache | RecurrentState:
        """An empty cache in which this layer continues `batch` texts; each layer of a stack needs its own.

        With a causal pattern the result is that of the whole text at once. A pattern that looks ahead sees only the
        entries that the cache holds when a query is computed.

        Args:
            batch: number of texts.
            kind: "dynamic" (grows), "static" (fixed capacity), "ring" (the last entries), "paged" (beams share
                pages) or "state" (sums in constant memory); `default_cache_kind` by default.
            capacity: the most entries; for a ring, by default as far as the layer's pattern looks back.
            dtype: storage dtype, that of the weights by default; torch.bfloat16 and "int8" need less memory.
            first_entries: for a ring, how many entries at the beginning of the text stay, besides the last ones.
            shared: whether other layers may write to it too; otherwise it belongs to the layer that writes first.

        >>> layers = [MultiHeadAttention(dim=8, heads=2, pattern="causal_window(64)") for _ in range(3)]
        >>> caches, x = [layer.new_cache(batch=1) for layer in layers], torch.zeros(1, 5, 8)
        >>> for layer, cache in zip(layers, caches):
        ...     x = layer(x, cache=cache)
        >>> layers[0].new_cache(batch=1, kind="ring", dtype="int8")
        RingCache(batch=1, kv_heads=2, length=0, head_dim=4, int8, capacity=63)
        """
        kind = self._checked_cache_kind(kind)
        if kind == "state":
            return self._new_state(batch, capacity, dtype, first_entries, shared)
        reason = self.mechanism.reason_against_caches
        if reason is not None:
            raise UnsupportedError(f"{self.mechanism.declared}: {reason}")
        options = self._cache_options(kind, capacity, dtype, shared, first_entries)
        if kind == "ring" and self.chooser is not None:
            raise UnsupportedError(
                "a chooser chooses among all keys; use a cache that keeps all entries"
            )

        key_dim = self.mechanism.cached_key_dim
        if self.chooser is not None:
            key_dim += self.chooser.extra_dim
        if self.to_forget is not None:
            options["forgetting"] = self.heads // self.kv_heads
        options["v_dim"] = self.value_dim
        cache = new_cache(kind, batch, self.stored_heads, key_dim, **options)
        cache.belong_to(self)
        return cache

    def _new_state(
        self,
        batch: int,
        capacity: int | None,
        dtype: torch.dtype | str | None,
        first_entries: int,
        shared: bool,
    ) -> RecurrentState:
        declared = self.mechanism.declared
        if not declared.has_state:
            raise UnsupportedError(f"{declared} has no recurrent state; use another kind of cache")
        if capacity is not None or dtype is not None or first_entries:
            raise ArgumentError(
                "a state has a fixed size and the dtype of the weights; leave out capacity, dtype and first_entries"
            )
        weights_dtype, device = dtype_and_device_of(self.to_v)
        return RecurrentState(
            declared,
            batch,
            self.terms * self.kv_heads,
            self.head_dim,
            self.value_dim,
            dtype=torch.promote_types(weights_dtype, torch.float32),
            device=device,
            shared=shared,
        )

    def _continue_text(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        """A step of a simple layer: what `forward` computes, with fewer calls of Python."""
        output = step_by_program(self, x, cache)
        if output is not None:
            return output
        modules = self._modules
        place = cache.place
        # (batch, heads, length, head_dim)
        q = self._split(apply_projection(modules["to_q"], x), self.heads)
        k = self._split(apply_projection(modules["to_k"], x), self.kv_heads)
        v = self._split(apply_projection(modules["to_v"], x), self.kv_heads)
        if self.positions is not None:
            q = rotate_heads(self.positions, q, place)
            k = rotate_heads(self.positions, k, place)
        with cache.unless_refused():
            keys, values = cache.append(k, v)
            heads = self._attend(q, keys, values, self.pattern, None, place)
            output = self._join(heads)
            cache.belong_to(self)
        return output

    def _project_self(
        self,
        x: torch.Tensor,
        pattern: Pattern,
        bias: torch.Tensor | Bias | None,
        q_start: int | torch.Tensor,
        first_key: Any,
        positions: torch.Tensor | None,
        first_values: torch.Tensor | None,
    ) -> HeadInputs:
        """The inputs of a call of self-attention; `first_key` is the position of the key of x's first vector."""
        q = self._project_queries(x)
        if positions is not None and self.positions is None:
            raise ArgumentError(
                "positions= are for Rotary, and this layer has none; make it with positions='rotary'"
            )
        q = self.mechanism.queries(self._rotate(q, q_start, positions))
        gate = self.mechanism.gate(x)
        log_forget = None
        if self.to_forget is not None:
            log_forget = log_forget_gates(self.to_forget, x)
            if bias is not None:
                raise UnsupportedError(
                    "forgetting is the bias of this layer's calls, so leave bias out"
                )
        if self.context_dim != self.dim:
            raise ShapeError(
                f"this layer's contexts have size {self.context_dim} and x has {self.dim}, so it needs a context"
            )

        v = self._project_values(x, first_values)
        k = q if self.to_k is None else self._project_keys(x, first_key, positions)
        if self.chooser is not None:
            k = self.chooser.cached_keys(x, k, first_key)
        return HeadInputs(x, q, k, v, pattern, bias, q_start, gate, log_forget)

    def _project_with_context(
        self,
        x: torch.Tensor,
        context: torch.Tensor | ProjectedContext,
        pattern: Pattern,
        bias: torch.Tensor | Bias | None,
        q_start: int | torch.Tensor | None,
    ) -> HeadInputs:
        q = self._project_queries(x)
        if q_start is None:
            self._refuse_unrelated(pattern)
        else:
            q = self._rotate(q, checked_q_start(q_start, x.shape[0]))
        if not isinstance(context, ProjectedContext):
            context = self.project_context(context)
        return HeadInputs(x, q, context.keys, context.values, pattern, bias, q_start, context.gate)

    def _project_queries(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, computed heads, length, head_dim), before they are rotated."""
        q = self._split(apply_projection(self.to_q, x), self.terms * self.heads)
        return q if self.q_norm is None else self.q_norm(q)

    def _project_keys(
        self, vectors: torch.Tensor, first: Any, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(batch, stored heads, length, ·), as the mechanism compares and caches them."""
        k = self._split(apply_projection(self.to_k, vectors), self.stored_heads)
        if self.k_norm is not None:
            k = self.k_norm(k)
        return self.mechanism.keys(self._rotate(k, first, positions))

    def _project_values(
        self, vectors: torch.Tensor, first_values: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(batch, stored heads, length, v_dim), with those of the first layer added."""
        v = self._split(apply_projection(self.to_v, vectors), self.projected_value_heads)
        v = mix_values(v, first_values, self.value_mix)
        return v if self.terms == 1 else torch.cat([v, v], 1)

    def _append_and_attend(self, cache: Cache | RecurrentState, inputs: HeadInputs) -> torch.Tensor:
        inputs.q_start = cache.place
        is_state = isinstance(cache, RecurrentState)
        if is_state and (inputs.bias is not None or current_recording(self) is not None):
            raise UnsupportedError(
                "a state holds sums, so it supports neither bias nor statistics; use kind='dynamic'"
            )
        with cache.unless_refused():
            if isinstance(cache, RecurrentState):
                heads = cache.attend(
                    inputs.q,
                    inputs.k,
                    inputs.v,
                    pattern=inputs.pattern,
                    scale=self.options["scale"],
                    parameters=self.mechanism.options(inputs.gate)["parameters"],
                )
            else:
                inputs.k, inputs.v, bias = cache.append_gated(inputs.k, inputs.v, inputs.log_forget)
                if bias is not None:
                    inputs.bias = bias
                heads = self._compute_heads(inputs)
            output = self._compute_output(heads, inputs.x)
            cache.belong_to(self)
        return output

    def _compute_heads(self, inputs: HeadInputs) -> torch.Tensor:
        """The outputs of the heads, with the keys that a chooser chooses or with all."""
        if self.chooser is not None:
            return self._compute_chosen(self.chooser, inputs)
        return self._attend(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.pattern,
            inputs.bias,
            inputs.q_start,
            inputs.gate,
        )

    def _compute_chosen(self, chooser: Chooser, inputs: HeadInputs) -> torch.Tensor:
        q, k, v = inputs.q, inputs.k, inputs.v
        bias = inputs.bias
        start = k.shape[2] - q.shape[2]
        misplaced = isinstance(inputs.q_start, torch.Tensor) or inputs.q_start != start
        if misplaced or (isinstance(k, Stored) and k.first):
            raise UnsupportedError(
                "a chooser chooses among all keys of a text; leave out q_start, and use a cache that keeps all entries"
            )
        if chooser.branches > 1 and (bias is not None or current_recording(self) is not None):
            raise UnsupportedError(
                f"{type(chooser).__name__} adds {chooser.branches} attentions, one of which has compressed keys, so it "
                f"supports neither bias nor statistics"
            )
        if isinstance(k, Stored):
            k = k.widened(q.dtype)
        if isinstance(v, Stored):
            v = v.widened(q.dtype)
        visible = visible_keys(inputs.pattern, Grid.whole(q.shape[2], k.shape[2], start, q.device))
        if visible is not None:
            hidden = ~visible.any(1, keepdim=True)[..., None]
            k = k.masked_fill(hidden, 0)
            v = v.masked_fill(hidden, 0)

        def attend(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: Pattern
        ) -> torch.Tensor:
            return self._attend(q, k, v, pattern, bias, start)

        return chooser(attend, inputs.x, q, k, v, inputs.pattern)

    def _compute_output(self, heads: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The output (batch, length, dim) of the outputs of heads."""
        if self.difference is not None:
            heads = self.difference(heads)
        if self.to_output_gate is None:
            return self._join(heads)
        return self._join(heads, torch.sigmoid(self.to_output_gate(x)))

    def _check_inputs(
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
        if context is None:
            return
        if isinstance(context, ProjectedContext):
            rows = context.keys.shape[0]
        else:
            self._check_vectors("context", context, self.context_dim)
            rows = context.shape[0]
        if rows != x.shape[0]:
            raise ShapeError(
                f"axis 'batch' is {x.shape[0]} in x {tuple(x.shape)} but {rows} in the context"
            )

    def _refuse_for_context(
        self, positions: torch.Tensor | None, first_values: torch.Tensor | None
    ) -> None:
        for_self_alone = (positions, first_values, self.value_mix, self.to_forget)
        if any(option is not None for option in for_self_alone):
            raise UnsupportedError(
                "positions=, first_values=, value_residual and forgetting are for self-attention: the keys and values "
                "of a context are not at the places of x"
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
        words = [
            f"dim={self.dim}",
            f"heads={self.heads}",
            f"kv_heads={self.kv_heads}",
            f"head_dim={self.head_dim}",
        ]
        if self.value_dim != self.head_dim:
            words.append(f"value_dim={self.value_dim}")
        words.append(f"pattern={str(self.pattern)!r}")
        if self.positions is not None:
            words.append(f"positions={self.positions}")
        if self.difference is not None:
            words.append(f"differential={Difference(self.difference.lambda_init)}")
        if self.sinks is not None:
            words.append("sinks=True")
        if self.q_norm is not None:
            words.append("qk_norm=True")
        if self.to_output_gate is not None:
            words.append("output_gate=True")
        if self.value_residual is not None:
            words.append(f"value_residual={self.value_residual}")
        if self.to_forget is not None:
            words.append("forgetting=True")
        return ", ".join(words)


def is_plain(layer: MultiHeadAttention) -> bool:
    """Whether a layer has nothing but projections, positions and a softmax over its pattern."""
    attributes = layer.__dict__  # a part that is a module or a parameter is not among them
    for part in OPTIONAL_PARTS:
        if attributes.get(part, part) is not None:
            return False
    return (
        type(layer) is MultiHeadAttention  # a derived one may compute its heads in another way
        and layer.context_dim == layer.dim
        and layer.mechanism.declared == PLAIN_SOFTMAX
        and not torch.compiler.is_compiling()
    )


def is_simple(layer: MultiHeadAttention) -> bool:
    """Whether a layer is plain and continues texts, so that a step may take a shorter way."""
    return is_plain(layer) and layer.pattern.takes_cache and not layer.pattern.by_length
