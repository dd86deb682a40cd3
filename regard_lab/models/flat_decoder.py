"""The decoder of a TranslationTransformer written out flat: a step of decoding that calls no module of a layer.

The modules of a small model take longer to call, and to check what they are given, than to compute. Here the same
operations stand in a row, so the logits have the same bits in half of the time. A model whose modules do more than
their classes say, because of hooks, adapters, recordings or dropout, goes through its modules as ever:
`FlatDecoder.of` finds none, or `is_watched` becomes true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from regard import attention
from regard.backends import flash
from regard.backends.flash import FusedCall
from regard.backends.native.bands import EVERY_KEY_BEFORE, entries_before
from regard.backends.native.library import load
from regard.backends.native.program import Choice
from regard.functional.measured import is_unwatched
from regard.layers import MultiHeadAttention, ProjectedContext
from regard.layers.caches import Cache, RecurrentState
from regard.layers.feed_forward import ACTIVATIONS
from regard.layers.projection import project
from regard.layers.rotation import rotate_heads
from regard.layers.step_program import is_computed
from regard.patterns import Full
from regard.positions import Rotary
from regard_lab.models.base import check_ids
from regard_lab.models.decoder_program import Continued, DecoderProgram
from regard_lab.models.flat_target import Decoding, FlatTarget
from regard_lab.models.layers import DecoderLayer
from regard_lab.models.passed_modules import PassedModules, does_nothing

FIRST_ROOM = 32  # positions of a target for which memory is allocated at first; it doubles when they are full


class LinearWeights(NamedTuple):
    """The parameters of a linear projection, as `project` takes them after x."""

    weight: Any
    bias: Any

    @classmethod
    def of(cls, module: Any) -> LinearWeights:
        return cls(module.weight, module.bias)


class Norm(NamedTuple):
    """The arguments of `torch.layer_norm` after x."""

    shape: tuple[int, ...]
    weight: Any
    bias: Any
    epsilon: float

    @classmethod
    def of(cls, norm: Any) -> Norm:
        return cls(norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class HeadAttention:
    """The attention of a layer between its projections.

    Without the compiled library, one query in float32 reads its keys by PyTorch's fused operation. `attention` would
    find the same operation, in more time than it takes.

    Args:
        back: how many keys before the last one a query looks at; None where it looks at others.
    """

    def __init__(self, layer: MultiHeadAttention, back: int | None) -> None:
        self._options: dict[str, Any] = {
            **layer.options,
            **layer.mechanism.options(None),
            "pattern": layer.pattern,
        }
        self._back = back
        scale = layer.options["scale"]
        self._scale: float = 1 / math.sqrt(layer.head_dim) if scale is None else scale
        self._is_fused = (
            isinstance(load(), str)
            and back is not None
            and is_computed(layer)
            and layer.options["softcap"] is None
            and layer.kv_heads == layer.heads
            and layer.value_dim == layer.head_dim
        )

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        place: int | None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Heads (batch, heads, q_len, head_dim) of queries at `place`; the mask is added to their scores."""
        if not self._is_fused or q.dtype != torch.float32 or not is_unwatched():
            return attention(q, k, v, bias=mask, q_start=place, **self._options)
        assert self._back is not None
        first = max(0, k.shape[2] - 1 - self._back)
        call = FusedCall(mask, causal=False, scale=self._scale, sums=False)
        output, _ = flash.forward(q, k[:, :, first:], v[:, :, first:], call)
        return output


@dataclass(frozen=True)
class FlatLayer:
    """What a decoder layer computes with: its parameters themselves, and the options of its calls of attention."""

    target_norm: Norm
    to_q: LinearWeights
    to_k: LinearWeights
    to_v: LinearWeights
    to_output: LinearWeights
    source_norm: Norm
    to_source_q: LinearWeights
    to_source_output: LinearWeights
    last_norm: Norm
    gate: LinearWeights | None
    widen: LinearWeights
    narrow: LinearWeights
    read_target: HeadAttention
    read_source: HeadAttention

    @classmethod
    def of(cls, layer: DecoderLayer) -> FlatLayer:
        target = layer.self_attention
        source = layer.cross_attention
        feed_forward = layer.feed_forward
        reads_all = source.pattern.canonical() == Full()
        return cls(
            target_norm=Norm.of(layer.around_self_attention.norm),
            to_q=LinearWeights.of(target.to_q),
            to_k=LinearWeights.of(target.to_k),
            to_v=LinearWeights.of(target.to_v),
            to_output=LinearWeights.of(target.to_output),
            source_norm=Norm.of(layer.around_cross_attention.norm),
            to_source_q=LinearWeights.of(source.to_q),
            to_source_output=LinearWeights.of(source.to_output),
            last_norm=Norm.of(layer.around_feed_forward.norm),
            gate=None if feed_forward.gate is None else LinearWeights.of(feed_forward.gate),
            widen=LinearWeights.of(feed_forward.widen),
            narrow=LinearWeights.of(feed_forward.narrow),
            read_target=HeadAttention(target, entries_before(target.pattern)),
            read_source=HeadAttention(source, EVERY_KEY_BEFORE if reads_all else None),
        )


class FlatDecoder:
    """The decoder of a TranslationTransformer as it was when a translation began; `FlatDecoder.of` makes it.

    It reads the parameters of the model themselves, so that changed weights count at once. A module that is exchanged
    counts from the next translation on.
    """

    def __init__(self, model: Any, modules: PassedModules) -> None:
        self.model = model
        attention_layer = model.decoder[0].self_attention
        self.heads: int = attention_layer.heads
        self.kv_heads: int = attention_layer.kv_heads
        self.head_dim: int = attention_layer.head_dim
        self.rotary: Rotary | None = attention_layer.positions
        self.norm_first: bool = model.config.norm == "pre"
        self.activate = ACTIVATIONS[model.config.activation]
        table = model.embedding if model.target_embedding is None else model.target_embedding
        self.table: torch.Tensor = table.weight
        self.modules = modules
        self._program = DecoderProgram.of(model, self.table, modules)

    @cached_property
    def layers(self) -> list[FlatLayer]:
        """Only steps that no program computes read them."""
        return [FlatLayer.of(layer) for layer in self.model.decoder]

    @classmethod
    def of(cls, model: Any) -> FlatDecoder | None:
        """The decoder of a TranslationTransformer; None if a step through its modules may do anything else."""
        if "_through_layers" in model.__dict__:  # `compile_steps` put a compiled one there
            return None
        parts = [model.embedding, model.target_embedding, model.positions, model.dropout]
        parts += [model.decoder, model.to_vocabulary]
        if model.config.norm == "pre":
            parts.append(model.decoder_norm)
        elif not does_nothing(model.decoder_norm):
            return None
        dtype = model.embedding.weight.dtype
        if dtype not in (torch.float32, torch.float64):
            return None
        if any(layer.cross_attention.positions is not None for layer in model.decoder):
            return None  # it would rotate the queries of a source
        modules = PassedModules.of(parts)
        if modules is None or not modules.have_norms_at(model.config.norm):
            return None
        decoder = cls(model, modules)
        is_readable = decoder.has_program or modules.have_usual_parameters(dtype)
        return decoder if is_readable else None

    @property
    def has_program(self) -> bool:
        return self._program is not None

    def is_watched(self) -> bool:
        """Whether the modules must be called now: for hooks, recordings, training mode or what watches the thread."""
        return self.modules.are_watched()

    def new_target(self, batch: int) -> FlatTarget:
        """Empty targets of so many texts."""
        sizes = (len(self.model.decoder), 2, batch, self.kv_heads, FIRST_ROOM, self.head_dim)
        return FlatTarget(self.table.new_empty(sizes))

    def new_caches(self, target: FlatTarget) -> list[Cache | RecurrentState]:
        """The caches that the layers would have after these targets."""
        caches: list[Cache | RecurrentState] = []
        for layer, entries in zip(self.model.decoder, target.entries, strict=True):
            batch = entries.shape[1]
            cache = layer.self_attention.new_cache(batch)
            if target.length:
                # (2, batch, kv_heads, length, head_dim)
                keys, values = entries[:, :, :, : target.length]
                cache.append(keys, values)
            caches.append(cache)
        return caches

    def step(
        self, ids: torch.Tensor, target: FlatTarget, sources: Decoding, source_start: int | None
    ) -> torch.Tensor:
        """Logits (batch, vocab_size) of the ids after `ids` (batch,), whose keys and values the target gets.

        source_start: the position of the ids among those of the source, for a cross pattern that compares them.
        """
        place = target.length
        target.make_room()
        try:
            if self._program is not None:
                logits = self._program.step(ids, target, sources)
                if logits is not None:
                    target.length = place + 1
                    return logits
            x = torch.embedding(self.table, ids)  # (batch, dim)
        except IndexError:
            check_ids(ids, len(self.table))  # names the id
            raise
        x = x * math.sqrt(self.model.config.dim)
        if self.model.positions is not None:
            x = x + self.model.positions(torch.tensor([place])).to(x.dtype)

        for layer, entries, context in zip(
            self.layers, target.entries, sources.contexts, strict=True
        ):
            normed = self._norm_before(x, layer.target_norm)
            x = x + self._read_target(layer, normed, entries, place)
            x = self._norm_after(x, layer.target_norm)

            normed = self._norm_before(x, layer.source_norm)
            x = x + self._read_source(layer, normed, context, sources, source_start)
            x = self._norm_after(x, layer.source_norm)

            normed = self._norm_before(x, layer.last_norm)
            x = x + self._feed_forward(layer, normed)
            x = self._norm_after(x, layer.last_norm)
        logits = self.model._score(x)
        # at last, so that an exception before leaves the target as it was
        target.length = place + 1
        return logits

    def write(
        self, ids: torch.Tensor, target: FlatTarget, sources: Decoding, choice: Choice
    ) -> Continued | None:
        """What is written after `ids` (batch,), greedily or as in a beam; None where a step has to be asked for."""
        if self._program is None:
            return None
        target.make_room()
        try:
            return self._program.write(ids, target, sources, choice)
        except IndexError:
            check_ids(ids, len(self.table))  # names the id
            raise

    def _norm_before(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        return torch.layer_norm(x, *norm) if self.norm_first else x

    def _norm_after(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        return x if self.norm_first else torch.layer_norm(x, *norm)

    def _read_target(
        self, layer: FlatLayer, x: torch.Tensor, entries: torch.Tensor, place: int
    ) -> torch.Tensor:
        """Self-attention of x (batch, dim), the vectors at `place`, whose keys and values become entries."""
        batch = x.shape[0]
        # (batch, heads, 1, head_dim)
        q = project(x, *layer.to_q).view(batch, self.heads, 1, self.head_dim)
        k = project(x, *layer.to_k).view(batch, self.kv_heads, 1, self.head_dim)
        v = project(x, *layer.to_v).view(batch, self.kv_heads, 1, self.head_dim)
        if self.rotary is not None:
            both = rotate_heads(self.rotary, torch.cat([q, k], 1), place)
            q, k = both.split([self.heads, self.kv_heads], 1)

        keys, values = entries.unbind(0)  # (batch, kv_heads, room, head_dim)
        keys[:, :, place : place + 1] = k
        values[:, :, place : place + 1] = v
        keys = keys[:, :, : place + 1]
        values = values[:, :, : place + 1]
        heads = layer.read_target(q, keys, values, place)
        return project(heads.reshape(batch, -1), *layer.to_output)

    def _read_source(
        self,
        layer: FlatLayer,
        x: torch.Tensor,
        context: ProjectedContext,
        sources: Decoding,
        source_start: int | None,
    ) -> torch.Tensor:
        """Cross-attention of x (batch, dim); the batch rows that read one text are its queries."""
        queries = project(x, *layer.to_source_q)
        queries = queries.view(-1, sources.readers, self.heads, self.head_dim)
        heads = layer.read_source(
            queries.transpose(1, 2),  # (texts, heads, readers, head_dim)
            context.keys,
            context.values,
            source_start,
            sources.mask,
        )
        joined = heads.transpose(1, 2).reshape(x.shape[0], -1)
        return project(joined, *layer.to_source_output)

    def _feed_forward(self, layer: FlatLayer, x: torch.Tensor) -> torch.Tensor:
        if layer.gate is None:
            hidden = self.activate(project(x, *layer.widen))
        else:
            hidden = self.activate(project(x, *layer.gate)) * project(x, *layer.widen)
        return project(hidden, *layer.narrow)
