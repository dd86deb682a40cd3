"""A step of a flat decoder as one program of the compiled library, for a few rows of a small model.

A model whose weights fit a processor's caches computes a step in less time than PyTorch needs to be called for each
product. The program computes the same formulas in float32; its sums have another order than those of PyTorch, so
logits differ by rounding.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from regard.backends.native.bands import NO_STOP, row_band_of
from regard.backends.native.program import (
    ACTIVATIONS,
    MOST_ROWS,
    NO_LIMIT,
    Attending,
    HeadSizes,
    Program,
    library_of_programs,
)
from regard.functional.measured import is_unwatched
from regard.patterns import Full, Pattern
from regard.positions import Rotary

if TYPE_CHECKING:
    from regard_lab.models.flat_decoder import (
        Decoding,
        FlatDecoder,
        FlatLayer,
        FlatTarget,
        LinearWeights,
        Norm,
    )

# PyTorch multiplies larger matrices with several threads, and more rows in blocks.
MOST_WEIGHTS = 1 << 22
MOST_ROWS_OF_A_STEP = min(MOST_ROWS, 24)
NOTHING = (None, None, None)
ACTIVATION_OF_GATE = {"swiglu": "silu", "geglu": "gelu"}


class DecoderProgram:
    """The program of a flat decoder; `DecoderProgram.of` makes it."""

    def __init__(self, decoder: FlatDecoder, program: Program, backs: list[int]) -> None:
        self._program = program
        self._rotary = decoder.rotary
        self._head_dim = decoder.head_dim
        self._positions = decoder.model.positions
        # What the attentions read now.
        self._entries: torch.Tensor | None = None
        self._source: tuple[Any, ...] = NOTHING
        # The cosines and sines of these positions.
        self._cos = self._sin = torch.empty(0)
        self._turned = range(0)

        config = decoder.model.config
        dim = config.dim
        self._x = program.buffer(dim)
        self._normed = program.buffer(dim)
        width = decoder.heads * decoder.head_dim
        self._queries = program.buffer(width)
        self._heads = program.buffer(width)
        width = decoder.kv_heads * decoder.head_dim
        self._keys = program.buffer(width)
        self._values = program.buffer(width)
        self._hidden = program.buffer(config.hidden_dim)
        self._gate = program.buffer(config.hidden_dim)
        self._logits = program.buffer(decoder.vocabulary.weight.shape[0])

        self._embedding = program.embed(decoder.table, math.sqrt(dim), self._x)
        self._text_attentions: list[Attending] = []
        self._source_attentions: list[Attending] = []
        for layer, back in zip(decoder.layers, backs, strict=True):
            self._add_layer(decoder, layer, back)
        scored = self._x
        if decoder.last_norm is not None:
            program.norm(self._x, self._normed, *decoder.last_norm[1:])
            scored = self._normed
        program.project(scored, self._logits, *decoder.vocabulary)

    @classmethod
    def of(cls, decoder: FlatDecoder) -> DecoderProgram | None:
        """The program of a decoder; None where there is no library, or the decoder computes anything else."""
        library = library_of_programs()
        model = decoder.model
        if library is None or decoder.table.dtype != torch.float32:
            return None
        if decoder.weight_count() > MOST_WEIGHTS:
            return None
        rotary = decoder.rotary
        if rotary is not None and not rotary.turns_halves(decoder.head_dim):
            return None
        backs = []
        for layer in decoder.layers:
            back = entries_before(layer.target_options["pattern"])
            if back is None or not _reads_everything(layer.source_options["pattern"]):
                return None
            if not all(map(_is_usual, (layer.target_options, layer.source_options))):
                return None
            backs.append(back)
        activation = model.config.activation
        if ACTIVATION_OF_GATE.get(activation, activation) not in ACTIVATIONS:
            return None
        program = Program(library)
        compiled = cls(decoder, program, backs)
        return compiled if program.finish() else None

    def _add_layer(self, decoder: FlatDecoder, layer: FlatLayer, back: int) -> None:
        program = self._program
        heads = decoder.heads
        head_dim = decoder.head_dim
        read_text = _new_attention(
            HeadSizes(heads, decoder.kv_heads, head_dim, head_dim), layer.target_options
        )
        read_source = _new_attention(
            HeadSizes(heads, layer.source_kv_heads, head_dim, head_dim), layer.source_options
        )
        self._text_attentions.append(read_text)
        self._source_attentions.append(read_source)

        x = self._begin_part(decoder, layer.target_norm)
        program.project(x, self._queries, *layer.to_q)
        program.project(x, self._keys, *layer.to_k)
        program.project(x, self._values, *layer.to_v)
        if decoder.rotary is not None:
            program.rotate(self._queries, decoder.head_dim)
            program.rotate(self._keys, decoder.head_dim)
        program.attend_to_text(
            self._queries, self._keys, self._values, self._heads, read_text, back
        )
        self._end_part(decoder, layer.target_norm, self._heads, layer.to_output)

        x = self._begin_part(decoder, layer.source_norm)
        program.project(x, self._queries, *layer.to_source_q)
        program.attend(self._queries, self._heads, read_source)
        self._end_part(decoder, layer.source_norm, self._heads, layer.to_source_output)

        x = self._begin_part(decoder, layer.last_norm)
        activation = decoder.model.config.activation
        program.project(x, self._hidden, *layer.widen)
        if layer.gate is None:
            program.activate(self._hidden, activation)
        else:
            program.project(x, self._gate, *layer.gate)
            program.activate(self._gate, ACTIVATION_OF_GATE[activation])
            program.multiply(self._gate, self._hidden)
        self._end_part(decoder, layer.last_norm, self._hidden, layer.narrow)

    def _begin_part(self, decoder: FlatDecoder, norm: Norm) -> int:
        """The buffer that a part of a layer reads: x, or x after its norm."""
        if not decoder.norm_first:
            return self._x
        self._program.norm(self._x, self._normed, *norm[1:])
        return self._normed

    def _end_part(
        self, decoder: FlatDecoder, norm: Norm, buffer: int, to_output: LinearWeights
    ) -> None:
        """Add the projected output of a part to x, before its norm where norms come last."""
        self._program.project(buffer, self._x, *to_output, adds=True)
        if not decoder.norm_first:
            self._program.norm(self._x, self._x, *norm[1:])

    def step(self, ids: torch.Tensor, target: FlatTarget, sources: Decoding) -> torch.Tensor | None:
        """Logits (batch, vocab_size) after `ids` (batch,), whose keys and values the target gets.

        None where PyTorch has to compute the step: for many rows, for who looks at its operations, and where weights or
        numbers are none that a program computes with.
        """
        rows = len(ids)
        takes_ids = rows <= MOST_ROWS_OF_A_STEP and ids.dtype == torch.int64 and ids.is_contiguous()
        if not takes_ids or not is_unwatched():
            return None
        program = self._program
        if not program.follow_weights():
            return None

        place = target.length
        self._read(target, sources)
        if self._rotary is not None:
            self._turn_to(self._rotary, place)
        if self._positions is not None:
            vector = self._positions(torch.tensor([place])).to(torch.float32)
            program.add_to_rows(self._embedding, vector)
        logits = torch.empty(rows, program.width(self._logits))
        program.give(self._logits, logits)
        return logits if program.run(rows, place, ids) else None

    def _turn_to(self, rotary: Rotary, place: int) -> None:
        """Let the program rotate heads to this position."""
        if place not in self._turned:
            self._cos, self._sin, self._turned = rotary.turns_around(place, self._head_dim)
        row = place - self._turned.start
        self._program.rotate_by(self._cos[row].data_ptr(), self._sin[row].data_ptr())

    def _read(self, target: FlatTarget, sources: Decoding) -> None:
        """Let the attentions read the keys and values of this target and these sources."""
        if target.entries is not self._entries:
            self._entries = None  # until all are written
            for attending, entries in zip(self._text_attentions, target.entries, strict=True):
                attending.read_text(*entries)
            self._entries = target.entries
        source = (sources.contexts, sources.mask, sources.readers)
        if all(map(operator.is_, source, self._source)):
            return
        self._source = NOTHING
        for attending, context in zip(self._source_attentions, sources.contexts, strict=True):
            attending.read(context.keys, context.values, sources.readers, sources.mask)
        self._source = source


def entries_before(pattern: Pattern) -> int | None:
    """How many keys before its own a query of the last position looks at; None if that is not what a pattern says."""
    band = row_band_of(pattern.canonical())
    if band is None or band.spans != [(0, NO_STOP)] or band.window.is_empty:
        return None
    left = band.window.left
    right = band.window.right
    if right is not None and right < 0:
        return None
    if left is None:
        return NO_LIMIT
    return left if left >= 0 else None


def _reads_everything(pattern: Pattern) -> bool:
    return pattern.canonical() == Full()


def _is_usual(options: dict[str, Any]) -> bool:
    """Whether the options of a call ask for nothing but a scale and a softcap."""
    return options["backend"] in ("auto", "native") and not options["strict"]


def _new_attention(sizes: HeadSizes, options: dict[str, Any]) -> Attending:
    scale = options["scale"]
    if scale is None:
        scale = 1 / math.sqrt(sizes.head_dim)
    return Attending(sizes, scale, options["softcap"])
