"""The encoder of a TranslationTransformer as one program, for the few ids of short sources; see `ModelProgram`.

Its last operations project what the decoder's layers read of a source, so that a translation begins with one call.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from regard.backends.native.bands import NO_STOP, RowBand, row_band_of
from regard.backends.native.program import MOST_ROWS, Attending, Program
from regard.layers import MultiHeadAttention, ProjectedContext
from regard.layers.multi_head import is_plain
from regard.layers.step_program import is_computed, new_attending
from regard.patterns.band import Band
from regard_lab.models.kept_programs import KeptPrograms
from regard_lab.models.layers import EncoderLayer
from regard_lab.models.model_program import ModelProgram, has_known_activation, sizes_of
from regard_lab.models.passed_modules import PassedModules, does_nothing

_KEPT: KeptPrograms[EncoderProgram]


class _SourceHeads(NamedTuple):
    """The buffers of the keys and values that a layer of the decoder reads, and the layer's attention."""

    layer: MultiHeadAttention
    keys: int
    values: int


class EncoderProgram(ModelProgram):
    """The program of an encoder, which does not call its modules; `EncoderProgram.of` makes it."""

    def __init__(self, model: Any, program: Program) -> None:
        first = model.encoder[0]
        super().__init__(program, first.attention, first.feed_forward)
        self._positions = model.positions
        self._attendings: list[Attending] = []
        self._bands: list[RowBand] = []  # by layer: the keys that its queries look at
        self._embedding = program.embed(
            model.embedding.weight, math.sqrt(model.config.dim), self._x
        )
        norm_first: bool = model.config.norm == "pre"
        for layer in model.encoder:
            self._add_layer(layer, norm_first)
        encoded = self._x
        if norm_first:
            self._add_norm(model.encoder_norm, self._x, self._normed)
            encoded = self._normed
        self._source_heads = [
            self._add_source_heads(layer.cross_attention, encoded) for layer in model.decoder
        ]

    @classmethod
    def of(cls, model: Any) -> EncoderProgram | None:
        """The program of an encoder; None if its modules have to be called, or it needs more than a program has."""
        parts = [model.embedding, model.positions, model.dropout, model.encoder]
        parts += [layer.cross_attention for layer in model.decoder]
        if model.config.norm == "pre":
            parts.append(model.encoder_norm)
        elif not does_nothing(model.encoder_norm):
            return None
        modules = PassedModules.of(parts, is_plain)
        if modules is None or not modules.have_norms_at(model.config.norm):
            return None

        def make(program: Program) -> EncoderProgram | None:
            first = model.encoder[0]
            if not all(_is_known(layer, first) for layer in model.encoder):
                return None
            if any(layer.cross_attention.positions is not None for layer in model.decoder):
                return None  # it would rotate the keys of a source
            made = cls(model, program)
            return made if program.finish() else None

        return _KEPT.for_new_texts(model, modules, make)

    def _attend_with(self, attendings: dict[Attending, Attending]) -> None:
        self._attendings = [attendings[attending] for attending in self._attendings]

    def _add_layer(self, layer: EncoderLayer, norm_first: bool) -> None:
        norm = layer.around_attention.norm
        attention = layer.attention
        x = self._begin_part(norm, norm_first)
        self._add_queries_keys_and_values(attention, x)
        attending = new_attending(attention)
        self._program.attend_among_rows(
            self._queries, self._keys, self._values, self._heads, attending
        )
        self._end_part(self._heads, attention.to_output, norm, norm_first)
        band = row_band_of(attention.pattern.canonical())
        assert band is not None
        self._attendings.append(attending)
        self._bands.append(band)

        norm = layer.around_feed_forward.norm
        x = self._begin_part(norm, norm_first)
        self._add_feed_forward(layer.feed_forward, x)
        self._end_part(self._hidden, layer.feed_forward.narrow, norm, norm_first)

    def _add_source_heads(self, layer: MultiHeadAttention, encoded: int) -> _SourceHeads:
        keys = self._program.buffer(layer.kv_heads * layer.head_dim)
        values = self._program.buffer(layer.kv_heads * layer.value_dim)
        self._add_projection(layer.to_k, encoded, keys)
        self._add_projection(layer.to_v, encoded, values)
        return _SourceHeads(layer, keys, values)

    def encode(self, ids: torch.Tensor) -> list[ProjectedContext] | None:
        """What each layer of the decoder reads of sources (batch, source_length) without padding.

        None where PyTorch has to compute it: for many ids, where something watches its operations, for weights that a
        program cannot read, and where an attention is not finite.

        Raises:
            IndexError: an id is not in the table.
        """
        if not self._can_read(ids, MOST_ROWS):
            return None
        texts, length = ids.shape
        program = self._program
        program.stand_at(length)
        if self._rotary is not None:
            cos, sin, around = self._rotary.turns_around(0, self._head_dim)
            if length > len(around):
                return None
            program.rotate_by(cos, sin)
        if self._positions is not None:
            # Kept as an attribute, since the program reads its memory when it runs.
            self._vectors = (
                self._positions(torch.arange(length, device="cpu")).to(torch.float32).contiguous()
            )
            program.add_to_rows(self._embedding, self._vectors)
        for attending, band in zip(self._attendings, self._bands, strict=True):
            attending.read_rows(texts, length, _bounds_of(band.window, length))

        contexts = []
        for layer, *buffers in self._source_heads:
            shape = (texts, length, layer.kv_heads, -1)
            keys, values = (self._give_rows(buffer, texts * length) for buffer in buffers)
            # (batch, kv_heads, source_length, head_dim)
            keys = keys.view(shape).transpose(1, 2)
            contexts.append(ProjectedContext(keys, values.view(shape).transpose(1, 2)))
        return contexts if program.run(texts * length, 0, ids.contiguous()) else None


_KEPT = KeptPrograms()


@lru_cache(maxsize=256)
def _bounds_of(window: Band, length: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The first key of each query and the end of its keys, int32 (length,); None where they are all keys."""
    if window.left is None and window.right is None:
        return None
    lo, hi = RowBand(window, [(0, length)]).listed_bounds(0, length, 0, length)
    return (
        torch.tensor(lo, dtype=torch.int32, device="cpu"),
        torch.tensor(hi, dtype=torch.int32, device="cpu"),
    )


def _is_known(layer: EncoderLayer, first: EncoderLayer) -> bool:
    """Whether a program computes what this layer does, with buffers of the sizes of the first."""
    band = row_band_of(layer.attention.pattern.canonical())
    return (
        sizes_of(layer.attention, layer.feed_forward)
        == sizes_of(first.attention, first.feed_forward)
        and layer.attention.positions == first.attention.positions
        and is_computed(layer.attention)
        and band is not None
        and band.spans == [(0, NO_STOP)]
        and has_known_activation(layer.feed_forward)
    )
