"""A step of a TranslationTransformer's decoder as one program, for a few rows of a small model; see `TextProgram`."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch

from regard.backends.native.bands import entries_before
from regard.backends.native.program import Attending, Choice, Program, Written
from regard.layers import MultiHeadAttention
from regard.layers.step_program import is_computed, new_attending
from regard.patterns import Full
from regard_lab.models.flat_target import Decoding, FlatTarget
from regard_lab.models.kept_programs import KeptPrograms
from regard_lab.models.layers import DecoderLayer
from regard_lab.models.model_program import has_known_activation
from regard_lab.models.passed_modules import PassedModules
from regard_lab.models.text_program import TextProgram

NOTHING = (None, None, None)


class Continued(NamedTuple):
    """What a decoder has written; logits (batch, vocab_size) where one step more is scored; and the target after it."""

    written: Written
    logits: torch.Tensor | None
    target: FlatTarget


_KEPT: KeptPrograms[DecoderProgram]


class DecoderProgram(TextProgram):
    """The program of a decoder, which does not call its modules; `DecoderProgram.of` makes it."""

    def __init__(self, model: Any, table: torch.Tensor, program: Program) -> None:
        first = model.decoder[0]
        factor = math.sqrt(model.config.dim)
        super().__init__(
            program, first.self_attention, first.feed_forward, table, factor, model.positions
        )
        self._norm_first: bool = model.config.norm == "pre"
        self._source_attentions: list[Attending] = []
        # The keys and values that the attentions read now.
        self._entries: torch.Tensor | None = None
        self._source: tuple[Any, ...] = NOTHING

        for layer in model.decoder:
            self._add_layer(layer)
        scored = self._x
        if self._norm_first:
            self._add_norm(model.decoder_norm, self._x, self._normed)
            scored = self._normed
        vocabulary = model.to_vocabulary
        if vocabulary is None:
            program.project(scored, self._logits, model.embedding.weight, None)
        else:
            self._add_projection(vocabulary, scored, self._logits)

    @classmethod
    def of(cls, model: Any, table: torch.Tensor, modules: PassedModules) -> DecoderProgram | None:
        """The program of a decoder; None where there is no library, or the decoder needs more than a program has."""

        def make(program: Program) -> DecoderProgram | None:
            if not all(map(_is_known, model.decoder)):
                return None
            made = cls(model, table, program)
            return made if program.finish() else None

        return _KEPT.for_new_texts(model, modules, make)

    def _attend_with(self, attendings: dict[Attending, Attending]) -> None:
        super()._attend_with(attendings)
        self._source_attentions = [attendings[attending] for attending in self._source_attentions]

    def _add_layer(self, layer: DecoderLayer) -> None:
        norm_first = self._norm_first
        norm = layer.around_self_attention.norm
        x = self._begin_part(norm, norm_first)
        self._add_text_attention(layer.self_attention, x)
        self._end_part(self._heads, layer.self_attention.to_output, norm, norm_first)

        norm = layer.around_cross_attention.norm
        x = self._begin_part(norm, norm_first)
        self._add_source_attention(layer.cross_attention, x)
        self._end_part(self._heads, layer.cross_attention.to_output, norm, norm_first)

        norm = layer.around_feed_forward.norm
        x = self._begin_part(norm, norm_first)
        self._add_feed_forward(layer.feed_forward, x)
        self._end_part(self._hidden, layer.feed_forward.narrow, norm, norm_first)

    def _add_source_attention(self, layer: MultiHeadAttention, source: int) -> None:
        self._add_projection(layer.to_q, source, self._queries)
        attending = new_attending(layer)
        self._program.attend(self._queries, self._heads, attending)
        self._source_attentions.append(attending)

    def step(self, ids: torch.Tensor, target: FlatTarget, sources: Decoding) -> torch.Tensor | None:
        """Logits (batch, vocab_size) after `ids` (batch,), whose keys and values the target gets.

        None where PyTorch has to compute the step: as in `_prepare`, and where an attention is not finite.
        """
        place = target.length
        logits = self._prepare(ids, place)
        if logits is None:
            return None
        self._read(target, sources)
        return logits if self._program.run(len(ids), place, ids.contiguous()) else None

    def write(
        self, ids: torch.Tensor, target: FlatTarget, sources: Decoding, choice: Choice
    ) -> Continued | None:
        """What is written after `ids` (batch,), which the target gets the keys and values of.

        None where PyTorch has to compute the next step: as in `_prepare`, and where an attention is not finite.
        """
        place = target.length
        steps = self._steps_from(ids, place, min(choice.steps, target.room - place))
        if steps < 1:
            return None
        if choice.beam is not None:
            # The rows of a beam change their places.
            target = FlatTarget(target.entries.clone(), place)
        self._read(target, sources)
        written, logits = self._write(ids, place, place, choice._replace(steps=steps))
        appended = len(written.ids) + written.is_scored
        if not appended:
            return None
        target = FlatTarget(target.entries, place + appended)
        return Continued(written, logits if written.is_scored else None, target)

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


_KEPT = KeptPrograms()


def _is_known(layer: DecoderLayer) -> bool:
    """Whether a program computes what this layer does."""
    return (
        is_computed(layer.self_attention)
        and entries_before(layer.self_attention.pattern) is not None
        and is_computed(layer.cross_attention)
        and layer.cross_attention.pattern.canonical() == Full()
        and has_known_activation(layer.feed_forward)
    )
