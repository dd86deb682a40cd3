"""What all attention layers have: a mechanism, options, positions, recorded statistics, checks, options of caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.arguments import a_string, count_of, real, whole, yes_or_no
from regard.backends import BACKENDS
from regard.bias import Bias
from regard.core.backend import check_backend
from regard.core.problem import checked_dropout, checked_softcap
from regard.core.tensors import Place, Stored
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.functional import attention, attention_detail
from regard.layers.gates import RecurrentGates
from regard.layers.projection import apply_projection, dtype_and_device_of
from regard.layers.recording import RecordedLayer, current_recording
from regard.layers.rotation import rotate_heads
from regard.layers.vectors import check_vectors
from regard.mechanisms import Mechanism
from regard.mechanisms.base import Sizes, takes
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import Causal, Pattern, as_pattern
from regard.patterns.dropping import kept_keys
from regard.positions import Rotary

GATE = "gate"  # a parameter that is computed from each input vector instead of learned
# RandomFeature has one for each key; recurrent mechanisms have decays and strengths, by name.
Gate = torch.Tensor | dict[str, torch.Tensor] | None


class LayerMechanism(nn.Module):
    """A mechanism inside a layer: the declaration, its learned parameters and its projection of the keys.

    `declared` is the mechanism of the user, `called` the one of each call: a score has projected its keys before.

    Args:
        declared: the mechanism as the user gave it.
        heads, kv_heads, head_dim: of the layer.
        context_dim: size of the vectors that are projected to keys.
    """

    def __init__(
        self, declared: Mechanism, heads: int, kv_heads: int, head_dim: int, context_dim: int
    ) -> None:
        super().__init__()
        self.declared = declared
        self.key_dim = declared.key_dim(head_dim)  # before a score projects the keys
        if declared.shares_keys and kv_heads != heads:
            raise ArgumentError(
                f"{declared}: its queries are its keys, so kv_heads {kv_heads} must be heads {heads}; leave it out"
            )
        declared.check_dims(head_dim, self.key_dim)
        # Keys are projected once, so that a cache holds the projected ones.
        self.called = declared.with_projected_keys()
        self.learned = declared.new_parameters(heads, kv_heads)
        self.needed = tuple(self.called.parameter_shapes(Sizes(1, heads, kv_heads, 1)))
        self.to_gate = nn.Linear(context_dim, kv_heads) if GATE in self.needed else None
        self.gates = None
        if isinstance(declared, Recurrent):
            self.needed = ()
            if declared.takes_strength or not declared.optional:
                self.gates = RecurrentGates(declared, context_dim, kv_heads, head_dim)

    def extra_repr(self) -> str:
        return str(self.declared)

    def keys(self, k: torch.Tensor) -> torch.Tensor:
        """Keys (batch, kv_heads, length, key_dim) as the mechanism compares and caches them: (..., kept_dim)."""
        if isinstance(self.declared, Recurrent):
            return _of_length_1(k) if self.declared.corrects else k
        return self.declared.project_keys(k, dict(self.learned.items()))

    def queries(self, q: torch.Tensor) -> torch.Tensor:
        """Queries (batch, heads, length, head_dim) as the mechanism takes them: of length 1 for a delta rule."""
        corrects = isinstance(self.declared, Recurrent) and self.declared.corrects
        return _of_length_1(q) if corrects else q

    @property
    def cached_key_dim(self) -> int:
        """The size of a key as caches hold it, which is that of `keys` of no vectors."""
        like = next(iter(self.learned.values()), torch.empty(1, device="cpu"))
        no_keys = like.new_empty(1, like.shape[0], 0, self.key_dim)
        return self.keys(no_keys).shape[-1]

    @property
    def reason_against_caches(self) -> str | None:
        """The reason why a cache of keys cannot continue a text with this mechanism, or None."""
        if self.to_gate is not None:
            return "its gates scale the past, and a cache of keys holds no gates; use kind='state'"
        if isinstance(self.declared, Recurrent):
            return "its memory needs the decays and strengths of all keys, which a cache lacks; use kind='state'"
        if not takes(self.declared, Causal):
            return "it is not causal, so later tokens would change earlier outputs"
        if self.declared.counts_keys:
            return "its score depends on the number of keys, so later tokens would change earlier outputs"
        return None

    def gate(self, vectors: torch.Tensor) -> Gate:
        """The share of the past that each vector (batch, length, dim) keeps, 0 to 1: (batch, kv_heads, length).

        For recurrent mechanisms the decays and strengths by name.
        """
        if self.gates is not None:
            return self.gates(vectors)
        if self.to_gate is None:
            return None
        return torch.sigmoid(self.to_gate(vectors)).transpose(1, 2)

    def options(self, gate: Gate) -> dict[str, Any]:
        """The options `mechanism` and `parameters` for a call of `attention`."""
        parameters = {name: self.learned[name] for name in self.needed if name != GATE}
        if isinstance(gate, dict):
            parameters |= gate
        elif gate is not None:
            parameters[GATE] = gate
        return {"mechanism": self.called, "parameters": parameters or None}


def _of_length_1(heads: torch.Tensor) -> torch.Tensor:
    """Queries or keys, each divided by its length."""
    return nn.functional.normalize(heads, dim=-1)


class AttentionLayer(RecordedLayer):
    """Base class of the attention layers; a subclass projects x to queries, keys and values."""

    dim: int
    heads: int
    mechanism: LayerMechanism
    positions: Rotary | None
    sinks: nn.Parameter | None
    chooser: Any
    to_v: Any
    to_output: Any

    def _set_options(
        self,
        pattern: Pattern | str | None,
        dropout: float,
        *,
        softcap: float | None,
        scale: float | None,
        backend: str,
        strict: bool,
        precise: bool,
    ) -> None:
        """Check and keep the pattern and the options of every call."""
        self.pattern = as_pattern(pattern)
        self.dropout = checked_dropout(dropout)
        check_backend(backend, BACKENDS)
        self.options: dict[str, Any] = {
            "softcap": checked_softcap(softcap),
            "scale": scale if scale is None else real("scale", scale),
            "backend": backend,
            "strict": yes_or_no("strict", strict),
            "precise": yes_or_no("precise", precise),
        }

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | Stored,
        v: torch.Tensor | Stored,
        pattern: Pattern,
        bias: torch.Tensor | Bias | None,
        q_start: int | torch.Tensor | None,
        gate: Gate = None,
    ) -> torch.Tensor:
        options: dict[str, Any] = {
            **self.options,
            **self.mechanism.options(gate),
            "pattern": pattern,
            "bias": bias,
            "q_start": q_start,
            "sink": self.sinks,
            "dropout": self.dropout if self.training else 0.0,
        }
        recording = current_recording(self)
        if recording is None:
            return attention(q, k, v, **options)  # (batch, heads, length, v_dim)
        detail = attention_detail(q, k, v, want=recording.want, **options)
        recording.add(self, detail)
        return detail.output

    def _join(self, heads: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        """The output (batch, length, dim) of the heads' outputs, multiplied by gates of their size."""
        joined = heads.transpose(1, 2).flatten(2)  # (batch, length, heads · v_dim)
        return apply_projection(self.to_output, joined if gate is None else joined * gate)

    def _split(self, joined: torch.Tensor, heads: int) -> torch.Tensor:
        batch, length, size = joined.shape
        separate = joined.view(batch, length, heads, size // heads)
        return separate.transpose(1, 2)  # (batch, heads, length, size of a head)

    def _rotate(
        self, heads: torch.Tensor, start: int | torch.Tensor, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rotate heads from their first positions on, a number or (batch,), or to the positions of their tokens."""
        if self.positions is None:
            return heads
        if positions is not None:
            return self.positions.rotate(heads, positions)
        if isinstance(start, Place):
            start = start.first
        if not isinstance(start, torch.Tensor):
            return rotate_heads(self.positions, heads, start)
        numbers = torch.arange(heads.shape[2], device=heads.device)
        return self.positions.rotate(heads, start.to(heads.device)[:, None] + numbers)

    def _check_vectors(self, name: str, vectors: torch.Tensor, size: int) -> None:
        check_vectors(name, vectors, getattr(self.to_v, "weight", None))
        if vectors.dim() != 3 or vectors.shape[-1] != size:
            raise ShapeError(
                f"{name} has shape {tuple(vectors.shape)}; this layer needs (batch, length, {size})"
            )

    def _refuse_with_cache(self, pattern: Pattern, q_start: int | torch.Tensor, place: Any) -> None:
        """Refuse what a cache cannot continue at this place: a mask, a pattern by length, and another position."""
        if not pattern.takes_cache:
            raise UnsupportedError(
                f"pattern {pattern} holds a mask for the rows of one call, and with a cache a text takes several "
                f"calls; use a pattern of positions (Where, KeySpan, ...)"
            )
        if pattern.by_length:
            raise UnsupportedError(
                f"pattern {pattern} depends on the number of keys, which grows with a cache, so continuing a text "
                f"would differ from computing it at once; use RandomBlocks(..., past=True)"
            )
        if q_start is place:
            return
        if isinstance(q_start, torch.Tensor) or q_start != place:
            held = "a graph" if isinstance(place, Place) else count_of(place, "entries")
            raise UnsupportedError(
                f"q_start={q_start} with a cache of {held}: new entries follow the cached ones, so leave q_start out"
            )

    @property
    def default_cache_kind(self) -> str:
        """The kind of cache that `new_cache` makes by default: "state" if the mechanism has one, else "dynamic"."""
        return "state" if self.mechanism.declared.has_state else "dynamic"

    def _checked_cache_kind(self, kind: str | None) -> str:
        return self.default_cache_kind if kind is None else a_string("kind", kind)

    def _cache_options(
        self,
        kind: str,
        capacity: int | None,
        dtype: torch.dtype | str | None,
        shared: bool,
        first_entries: int,
    ) -> dict[str, Any]:
        """The options of `regard.layers.caches.new_cache`, with the defaults of this layer."""
        first_entries = whole("first_entries", first_entries, 0)
        weights_dtype, device = dtype_and_device_of(self.to_v)
        options: dict[str, Any] = {
            "dtype": weights_dtype if dtype is None else dtype,
            "device": device,
            "shared": shared,
        }
        if kind == "ring" and capacity is None:
            capacity = self._ring_capacity(first_entries)
        if capacity is not None:
            options["capacity"] = capacity
        if first_entries:
            options["first_entries"] = first_entries
        return options

    def _ring_capacity(self, first_entries: int) -> int:
        """How many last entries the pattern needs beside so many first ones."""
        back = self.pattern.reach().back
        needed = kept_keys(self.pattern.canonical()) if first_entries else None
        if needed is not None:
            first_keys, last_keys = needed
            if first_keys <= first_entries:
                back = last_keys - 1  # the query's own key is new
        if back is None:
            raise ArgumentError(
                f"a ring without capacity= keeps as many entries as the pattern looks back, and {self.pattern} has no "
                f"limit; give capacity=, or a pattern with a window"
            )
        return max(1, back)
