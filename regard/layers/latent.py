"""Latent attention: keys and values of all heads are computed from one short vector for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regard.arguments import count_of, of_kind, one_of, real, shown, whole, whole_or, yes_or_no
from regard.bias import Bias
from regard.core.backend import Cost
from regard.core.keywords import OF_INPUTS, OF_LAYERS, refusing_keywords
from regard.core.problem import checked_q_start
from regard.core.tensors import Stored
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.functional.jagged import jagged, packed_vectors
from regard.layers.attending import AttentionLayer, LayerMechanism
from regard.layers.caches import Cache, new_cache
from regard.layers.projection import Projection, dtype_and_device_of, matrix_of
from regard.mechanisms import Softmax
from regard.patterns import Pattern, as_pattern
from regard.positions import Rotary, as_rotary

FORMS = ("auto", "absorbed", "expanded")
OF_LATENT = {
    **OF_LAYERS,
    "kv_lora_rank": "write latent_dim=",
    "q_lora_rank": "write query_latent_dim=",
    "qk_rope_head_dim": "write rope_dim=",
    "qk_nope_head_dim": "write head_dim=, the part of a query and a key that is not rotated",
    "v_head_dim": "write value_dim=",
    "kv_heads": "leave it out: every head has its own keys and values, computed from one latent",
    "context_dim": "leave it out: latent attention is self-attention here; MultiHeadAttention attends to a context",
    "mechanism": "leave it out: only softmax of dot products can be computed from latents",
}


@dataclass(frozen=True, repr=False)
class FormPlan:
    """The form in which a call of LatentAttention is computed, and what both would cost.

    Args:
        form: the cheaper one, "absorbed" or "expanded".
        q_len, held: queries, and latents that the call reads.
        absorbed, expanded: the cost of each, without the projections that both have.
        device: on which they are compared.
    """

    form: str
    q_len: int
    held: int
    absorbed: Cost
    expanded: Cost
    device: str

    def __repr__(self) -> str:
        return f"FormPlan({self.form!r}, {self.q_len} queries, {self.held} latents)"

    def __str__(self) -> str:
        work = {name: getattr(self, name).work_on(self.device) for name in FORMS[1:]}
        ratio = max(work.values()) / max(1.0, min(work.values()))
        sizes = f"{count_of(self.q_len, 'queries', ',')}, {count_of(self.held, 'latents', ',')}"
        lines = [f"{sizes}: {self.form}, {ratio:.3g} times cheaper"]
        return "\n".join([*lines, *(f"  {name}: {getattr(self, name)}" for name in FORMS[1:])])


class LatentAttention(AttentionLayer):
    """Self-attention whose keys and values are computed from one latent vector for each token.

        c_j = norm(x_j W_c),  r_j = rotate(x_j W_r)
        k_hj = [U_h c_j ; r_j],  v_hj = W_h c_j

    A cache holds c and r alone: latent_dim + rope_dim numbers for each token, whatever the number of heads. The layer
    has two forms, which are equal except for rounding. Expanded, keys and values of all heads are computed. Absorbed,
    queries are projected to latents, and means of latents to values:

        q_h · k_hj = (U_hᵀ q_h) · c_j + q_rotated · r_j
        Σ_j w_hj v_hj = W_h Σ_j w_hj c_j

    So attention has one key/value head, whose values are the first numbers of its keys.
    A call with few queries and many keys is cheaper absorbed, one with as many queries as keys expanded.

    Args:
        dim: size of input and output vectors.
        heads: number of heads.
        latent_dim: size of a latent c.
        rope_dim: size of the rotated part of queries, and of the one rotated key that all heads share; 0 for none.
        head_dim: size of the part of a head's queries and keys that is not rotated.
        value_dim: size of the values of a head; head_dim by default.
        query_latent_dim: size of latents of the queries; by default queries are projected from x.
        pattern: the allowed pairs, a Pattern or its text; a pattern given to a call is ANDed with it.
        positions: the Rotary of the rotated part, "rotary", or None.
        latent_norms: whether latents have RMS norms.
        epsilon: of the norms.
        sinks: whether each head learns the logit of a sink, as the parameter `sinks`, which begins with zeros.
        dropout: share of the weights dropped in training; none in eval mode.
        scale: multiplies the dot products; 1 / sqrt(head_dim + rope_dim) by default.
        softcap, backend, strict, precise: as for `attention`.
        projection_bias: whether the projections of x and of the output have biases; those of latents have none.

    Raises:
        ArgumentError: sizes below 1, or a rotated part that has no pairs.

    Source: DeepSeek-V2, 2024, section 2.1 and appendix C.

    >>> layer = LatentAttention(dim=32, heads=4, latent_dim=16, rope_dim=8, head_dim=12, pattern="causal")
    >>> cache = layer.new_cache(batch=2, kind="static", capacity=100)
    >>> cache.nbytes == 2 * 100 * (16 + 8) * 4, layer(torch.zeros(2, 5, 32), cache=cache).shape
    (True, torch.Size([2, 5, 32]))
    """

    chooser = None

    @refusing_keywords("LatentAttention", OF_LATENT)
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        latent_dim: int = 512,
        rope_dim: int = 64,
        head_dim: int = 128,
        value_dim: int | None = None,
        query_latent_dim: int | None = None,
        pattern: Pattern | str | None = None,
        positions: Rotary | str | None = "rotary",
        latent_norms: bool = True,
        epsilon: float = 1e-6,
        sinks: bool = False,
        dropout: float = 0.0,
        softcap: float | None = None,
        scale: float | None = None,
        projection_bias: bool = False,
        backend: str = "auto",
        strict: bool = False,
        precise: bool = False,
    ) -> None:
        super().__init__()
        self.dim = whole("dim", dim, 1)
        self.heads = whole("heads", heads, 1)
        self.latent_dim = whole("latent_dim", latent_dim, 1)
        self.rope_dim = whole("rope_dim", rope_dim, 0)
        self.head_dim = whole("head_dim", head_dim, 1)
        self.value_dim = whole_or("value_dim", value_dim, self.head_dim, 1)
        self._set_options(
            pattern,
            dropout,
            softcap=softcap,
            scale=scale,
            backend=backend,
            strict=strict,
            precise=precise,
        )
        if scale is None:
            self.options["scale"] = (self.head_dim + self.rope_dim) ** -0.5
        self.positions = as_rotary(positions) if self.rope_dim else None
        if self.positions is not None:
            self.positions.check(self.rope_dim)
        self.mechanism = LayerMechanism(
            Softmax(), self.heads, self.heads, self.head_dim + self.rope_dim, self.dim
        )
        has_norms = yes_or_no("latent_norms", latent_norms)
        bias = yes_or_no("projection_bias", projection_bias)
        self.query_latent_dim = None
        if query_latent_dim is not None:
            self.query_latent_dim = whole("query_latent_dim", query_latent_dim, 1)
        epsilon = real("epsilon", epsilon)

        # Optimisers and training runs know the parameters by their order, which is that of these lines.
        self.to_query_latent = None
        self.query_norm = None
        q_width = self.heads * (self.head_dim + self.rope_dim)
        if self.query_latent_dim is None:
            self.to_q = Projection(self.dim, q_width, bias=bias)
        else:
            self.to_query_latent = Projection(self.dim, self.query_latent_dim, bias=bias)
            if has_norms:
                self.query_norm = nn.RMSNorm(self.query_latent_dim, epsilon)
            self.to_q = Projection(self.query_latent_dim, q_width, bias=False)
        self.to_latent = Projection(self.dim, self.latent_dim + self.rope_dim, bias=bias)
        self.latent_norm = nn.RMSNorm(self.latent_dim, epsilon) if has_norms else None
        self.to_k = Projection(self.latent_dim, self.heads * self.head_dim, bias=False)
        self.to_v = Projection(self.latent_dim, self.heads * self.value_dim, bias=False)
        self.to_output = Projection(self.heads * self.value_dim, self.dim, bias=bias)
        self.sinks = nn.Parameter(torch.zeros(self.heads)) if yes_or_no("sinks", sinks) else None

    @refusing_keywords("an attention layer", OF_INPUTS)
    def forward(
        self,
        x: torch.Tensor,
        *,
        pattern: Pattern | str | None = None,
        bias: torch.Tensor | Bias | None = None,
        q_start: int | torch.Tensor | None = None,
        cache: Cache | None = None,
        form: str = "auto",
    ) -> torch.Tensor:
        """Self-attention of x.

        Args:
            x: (batch, length, dim), or documents as a jagged nested tensor (batch, ragged length, dim).
            pattern: ANDed with the layer's own; give padding as KeySpan.
            bias: added to the scores, broadcastable to (batch, heads, length, keys).
            q_start: position of x's first query, an int or int64 (batch,), where key j has position j; by default the
                length of the cache, or 0.
            cache: x's latents are appended to it, and x attends to all its entries. It belongs to this layer from then
                on. After an exception it is as before, unless x is counted in its `length`.
            form: "absorbed", "expanded", or "auto" for the cheaper one, which `plan` shows. Inside torch.compile and
                torch.export, where sizes are not known, "auto" is absorbed with a cache and expanded without one.

        Returns:
            (batch, length, dim).

        Raises:
            ShapeError, ArgumentError: tensors or options that do not fit.
            UnsupportedError: with a cache, an explicit mask or a pattern that depends on the number of keys; the
                absorbed form where `to_k` or `to_v` is quantised, an adapter, or has hooks. "auto" is expanded there.
        """
        one_of("form", form, FORMS)
        documents = None
        if getattr(x, "is_nested", False):
            x, _, documents = packed_vectors(x, q_start=q_start, cache=cache)
        self._check_inputs(x, cache)
        combined = self.pattern if pattern is None else self.pattern & as_pattern(pattern)
        first = 0 if cache is None else cache.place
        q_start = first if q_start is None else checked_q_start(q_start, x.shape[0])
        q = self._project_queries(x, q_start)
        latents = self._project_latents(x, first)
        if documents is not None:
            combined = documents.pattern(combined, self.mechanism.called, bias)
        if cache is None:
            values = latents[..., : self.latent_dim]
            heads = self._compute_heads(q, latents, values, combined, bias, q_start, form)
            output = self._join(heads)
            return output if documents is None else jagged(output, documents.q_ends, 1)

        self._refuse_with_cache(combined, q_start, first)
        if form == "auto" and torch.compiler.is_compiling() and self._can_absorb():
            form = "absorbed"
        with cache.unless_refused():
            latents, values = cache.append(latents)
            heads = self._compute_heads(q, latents, values, combined, bias, q_start, form)
            output = self._join(heads)
            cache.belong_to(self)
        return output

    def plan(
        self, batch: int, q_len: int, held: int | None = None, dtype: torch.dtype | None = None
    ) -> FormPlan:
        """The form that "auto" chooses for q_len queries at the end of `held` latents, and the costs of both.

        Products and bytes are counted as backends count theirs; each query counts as looking at every key that any of
        the queries may look at.

        Args:
            batch: number of texts.
            q_len: queries of each.
            held: latents of each that the call reads, those of the queries among them; q_len by default.
            dtype: of queries; that of the weights by default.

        >>> layer = LatentAttention(dim=1024, heads=16, pattern="causal")
        >>> [layer.plan(batch=1, q_len=n, held=4096).form for n in (1, 4096)]
        ['absorbed', 'expanded']
        """
        batch = whole("batch", batch, 0)
        q_len = whole("q_len", q_len, 0)
        held = whole_or("held", held, q_len, q_len)
        weights_dtype, weights_device = dtype_and_device_of(self.to_v)
        if dtype is None:
            dtype = weights_dtype
        else:
            dtype = of_kind("dtype", dtype, torch.dtype, "a dtype of torch")
        device = weights_device.type

        # What both forms have. A latent counts as a cache holds it, with its rotated key.
        size = dtype.itemsize
        reached = len(self.pattern.key_range(held - q_len, held - 1, held)) if q_len else 0
        rows = batch * self.heads * q_len
        pairs = rows * reached
        latent = self.latent_dim + self.rope_dim
        up_size = self.latent_dim * (self.head_dim + self.value_dim)  # of to_k and to_v, for a head
        matrices = self.heads * up_size
        # Numbers of a key and a value together, as either form gives them to attention; a query and its output have as
        # many.
        absorbed_pair = latent + self.latent_dim
        expanded_pair = self.head_dim + self.rope_dim + self.value_dim

        absorbed_rows = rows * (2 * absorbed_pair + expanded_pair)
        absorbed = Cost(
            flops=2.0 * rows * up_size + 2.0 * pairs * absorbed_pair,
            bytes=size * (matrices + batch * reached * latent + absorbed_rows),
            peak_bytes=size * rows * absorbed_pair,
            pairs=pairs,
            calls=3,
        )
        expanded_latents = batch * held * (latent + 2 * self.heads * expanded_pair)
        expanded = Cost(
            flops=2.0 * batch * held * matrices + 2.0 * pairs * expanded_pair,
            bytes=size * (matrices + expanded_latents + rows * expanded_pair),
            peak_bytes=size * batch * held * self.heads * expanded_pair,
            pairs=pairs,
            calls=3,
        )
        form = "absorbed" if absorbed.work_on(device) < expanded.work_on(device) else "expanded"
        return FormPlan(form, q_len, held, absorbed, expanded, device)

    def new_cache(
        self,
        batch: int,
        kind: str | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | str | None = None,
        *,
        first_entries: int = 0,
        shared: bool = False,
    ) -> Cache:
        """An empty cache of latents and rotated keys, latent_dim + rope_dim numbers for each token.

        Args:
            batch: number of texts.
            kind: "dynamic" (the default), "static", "ring" or "paged", as for `MultiHeadAttention.new_cache`.
            capacity: the most entries; for a ring, by default as far as the layer's pattern looks back.
            dtype: storage dtype, that of the weights by default. "int8" has one scale for each token; the docstring of
                `Cache` states the largest error of a number, with a the largest magnitude in [c ; r].
            first_entries: for a ring, how many entries at the beginning of the text stay, besides the last ones.
            shared: whether other layers may write to it too; otherwise it belongs to the layer that writes first.

        >>> LatentAttention(dim=32, heads=4, latent_dim=16, rope_dim=8, head_dim=12).new_cache(batch=1)
        GrowingCache(batch=1, kv_heads=1, length=0, head_dim=24, joined v_dim=16, float32)
        """
        kind = self._checked_cache_kind(kind)
        options = self._cache_options(kind, capacity, dtype, shared, first_entries)
        options |= {"v_dim": self.latent_dim, "joined": True}
        cache = new_cache(kind, batch, 1, self.latent_dim + self.rope_dim, **options)
        cache.belong_to(self)
        return cache

    def _query_vectors(self, x: torch.Tensor) -> torch.Tensor:
        """The vectors from which queries are projected: x, or the latents of the queries."""
        if self.to_query_latent is None:
            return x
        return _normed(self.query_norm, self.to_query_latent(x))

    def _project_queries(self, x: torch.Tensor, q_start: int | torch.Tensor) -> torch.Tensor:
        """(batch, heads, length, head_dim + rope_dim), the last rope_dim numbers rotated."""
        q = self._split(self.to_q(self._query_vectors(x)), self.heads)
        if not self.rope_dim:
            return q
        plain, rope = q.split([self.head_dim, self.rope_dim], -1)
        return torch.cat([plain, self._rotate(rope, q_start)], -1)

    def _project_latents(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """What a cache holds of x whose first vector has this position: (batch, 1, length, latent_dim + rope_dim)."""
        c, r = self.to_latent(x)[:, None].split([self.latent_dim, self.rope_dim], -1)
        c = _normed(self.latent_norm, c)
        return torch.cat([c, self._rotate(r, first)], -1) if self.rope_dim else c

    def _compute_heads(
        self,
        q: torch.Tensor,
        latents: torch.Tensor | Stored,
        values: torch.Tensor | Stored,
        pattern: Pattern,
        bias: torch.Tensor | Bias | None,
        q_start: int | torch.Tensor,
        form: str,
    ) -> torch.Tensor:
        """The outputs of the heads, (batch, heads, length, value_dim); `values` are the first numbers of `latents`."""
        if form == "auto":
            form = self._cheaper_form(q, latents)
        if form == "expanded":
            k, v = self._expand(latents, q.dtype)
            return self._attend(q, k, v, pattern, bias, q_start)

        plain, rope = q.split([self.head_dim, self.rope_dim], -1)
        absorbed = torch.einsum("bhqd,hdl->bhql", plain, self._matrices(self.to_k))
        q = torch.cat([absorbed, rope], -1)
        means = self._attend(q, latents, values, pattern, bias, q_start)
        return torch.einsum("bhql,hvl->bhqv", means, self._matrices(self.to_v))

    def _cheaper_form(self, q: torch.Tensor, latents: torch.Tensor | Stored) -> str:
        """The form of a call with "auto"; expanded where a graph does not know the sizes."""
        if torch.compiler.is_compiling() or not self._can_absorb():
            return "expanded"
        held = latents.numbers if isinstance(latents, Stored) else latents
        return self.plan(len(q), q.shape[2], held.shape[2], q.dtype).form

    def _expand(self, latents: torch.Tensor | Stored, dtype: torch.dtype) -> tuple[Any, Any]:
        """Keys (batch, heads, length, head_dim + rope_dim) and values (..., value_dim) of all heads."""
        wide = latents.widened(dtype) if isinstance(latents, Stored) else latents
        c, r = wide[:, 0].split([self.latent_dim, self.rope_dim], -1)  # (batch, length, ...)
        k = self._split(self.to_k(c), self.heads)
        v = self._split(self.to_v(c), self.heads)
        k = torch.cat([k, r[:, None].expand(-1, self.heads, -1, -1).to(k.dtype)], -1)
        if not isinstance(latents, Stored) or not latents.first:
            return k, v
        # Positions were dropped: keys and values stand where their latents do.
        places: dict[str, Any] = {
            "first": latents.first,
            "lead": latents.lead,
            "places": latents.places,
        }
        return Stored(k, **places), Stored(v, **places)

    def _can_absorb(self) -> bool:
        """Whether `to_k` and `to_v` are their matrices: no quantised layers, adapters or hooks."""
        return matrix_of(self.to_k) is not None and matrix_of(self.to_v) is not None

    def _matrices(self, projection: nn.Linear) -> torch.Tensor:
        """The matrices of the heads, (heads, size, latent_dim)."""
        matrix = matrix_of(projection)
        if matrix is None:
            raise UnsupportedError(
                f"the absorbed form computes with the matrices of to_k and to_v, and one of them is a "
                f"{type(projection).__name__} that does more than multiply by its matrix (it is quantised, an adapter, "
                f"or has hooks); use form='expanded' or 'auto', which call it"
            )
        return matrix.unflatten(0, (self.heads, -1))

    def _check_inputs(self, x: torch.Tensor, cache: Cache | None) -> None:
        self._check_vectors("x", x, self.dim)
        if cache is None:
            return
        if not isinstance(cache, Cache):
            raise ArgumentError(f"cache is {shown(cache)}; make one with new_cache(batch=...)")
        if not cache.joined or cache.v_dim != self.latent_dim:
            where = "in" if cache.joined else "beside"
            raise ShapeError(
                f"the cache holds values of {cache.v_dim} numbers {where} the keys, and this layer {self.latent_dim} "
                f"in them; make it by new_cache"
            )
        cache.refuse_other(self)

    def extra_repr(self) -> str:
        words = [
            f"dim={self.dim}",
            f"heads={self.heads}",
            f"latent_dim={self.latent_dim}",
            f"rope_dim={self.rope_dim}",
            f"head_dim={self.head_dim}",
        ]
        if self.value_dim != self.head_dim:
            words.append(f"value_dim={self.value_dim}")
        if self.query_latent_dim is not None:
            words.append(f"query_latent_dim={self.query_latent_dim}")
        words.append(f"pattern={str(self.pattern)!r}")
        if self.positions is not None:
            words.append(f"positions={self.positions}")
        if self.sinks is not None:
            words.append("sinks=True")
        return ", ".join(words)


def _normed(norm: nn.RMSNorm | None, latents: torch.Tensor) -> torch.Tensor:
    """Latents after their norm, which is computed in the dtype of its weights: autocast makes them narrower."""
    return latents if norm is None else norm(latents.to(norm.weight.dtype))
