"""A step of a LanguageModel as one program, for a few rows of a small model; see `TextProgram`."""

from __future__ import annotations

from typing import Any

import torch

from regard.backends.native.bands import entries_before
from regard.backends.native.program import Choice, Program, Written, library_of_programs
from regard.layers import MultiHeadAttention
from regard.layers.caches import Cache, RingCache
from regard.layers.caches.entries import HeldEntries
from regard.layers.step_program import is_computed
from regard_lab.models import model_program
from regard_lab.models.layers import Block
from regard_lab.models.model_program import has_known_activation, sizes_of
from regard_lab.models.passed_modules import PassedModules
from regard_lab.models.text_program import TextProgram


class LanguageProgram(TextProgram):
    """The program of a language model, which does not call its modules; `LanguageProgram.of` makes it.

    It reads the parameters of the model themselves, so changed weights take effect at once. A module that is replaced
    takes effect for texts that begin later.
    """

    def __init__(
        self, model: Any, blocks: list[Any], modules: PassedModules, program: Program, factor: float
    ) -> None:
        first = blocks[0]
        table = model.embedding.weight
        super().__init__(
            program, first.attention, first.feed_forward, table, factor, model.positions
        )
        self.model = model
        self._modules = modules
        self._layers = [block.attention for block in blocks]
        for block in blocks:
            self._add_block(block)
        self._add_norm(model.norm, self._x, self._normed)
        if model.to_vocabulary is None:
            program.project(self._normed, self._logits, table, None)
        else:
            self._add_projection(model.to_vocabulary, self._normed, self._logits)

    @classmethod
    def of(cls, model: Any, factor: float) -> LanguageProgram | None:
        """The program of a language model; None if its steps need more than a program has, or there is no library.

        factor: what multiplies the embeddings.
        """
        library = library_of_programs()
        if library is None or "_through_layers" in model.__dict__ or model.config.value_residual:
            return None
        parts = [model.embedding, model.positions, model.dropout, model.blocks, model.norm]
        modules = PassedModules.of([*parts, model.to_vocabulary])
        if modules is None or not modules.have_usual_parameters(torch.float32):
            return None
        if modules.weight_count() > model_program.MOST_WEIGHTS:
            return None
        blocks = list(model.blocks)
        if not blocks or not all(_is_known(block, blocks[0]) for block in blocks):
            return None
        program = Program(library)
        compiled = cls(model, blocks, modules, program, factor)
        return compiled if program.finish() else None

    def _add_block(self, block: Any) -> None:
        self._add_norm(block.attention_norm, self._x, self._normed)
        self._add_text_attention(block.attention, self._normed)
        self._add_projection(block.attention.to_output, self._heads, self._x, adds=True)
        self._add_norm(block.feed_forward_norm, self._x, self._normed)
        self._add_feed_forward(block.feed_forward, self._normed)
        self._add_projection(block.feed_forward.narrow, self._hidden, self._x, adds=True)

    def step(self, ids: torch.Tensor, caches: list[Any]) -> torch.Tensor | None:
        """Logits (batch, vocab_size) after `ids` (batch,), which the caches then hold.

        None where PyTorch has to compute the step: as in `_prepare`, for other kinds of caches, and where an attention
        is not finite. The caches are unchanged then.
        """
        if self._modules.are_watched() or not _are_alike(caches, len(ids)):
            return None
        logits = self._prepare(ids, caches[0].length)
        if logits is None:
            return None
        reserved = self._reserve(caches, 1)
        if reserved is None:
            return None
        if not self._program.run(len(ids), reserved[0].stop - 1, ids.contiguous()):
            return None
        self._hold(caches, reserved)
        return logits

    def write(
        self, ids: torch.Tensor, caches: list[Any], choice: Choice
    ) -> tuple[Written, torch.Tensor | None] | None:
        """What is written after `ids` (batch,), which the caches then hold, and the logits of one step more, if any.

        None where PyTorch has to compute the next step, as in `step`. The caches must be copies, which may change.
        """
        if self._modules.are_watched() or not _are_alike(caches, len(ids)):
            return None
        position = caches[0].length
        steps = self._steps_from(ids, position, choice.steps)
        if steps < 1:
            return None
        if choice.beam is not None:
            # A search step by step would read the entries of a window in other slots.
            if isinstance(caches[0], RingCache):
                return None
            same_rows = torch.arange(len(ids), device="cpu")
            for cache in caches:
                cache.reorder(same_rows)  # the rows change places in memory of their own
        before = caches[0].entries
        reserved = self._reserve(caches, steps)
        if reserved is None:
            return None
        steps = reserved[0].entries - before
        place = reserved[0].stop - steps
        written, logits = self._write(ids, position, place, choice._replace(steps=steps))
        appended = len(written.ids) + written.is_scored
        self._hold(caches, reserved, steps - appended)
        if not appended:
            return None
        return written, logits if written.is_scored else None

    def _reserve(self, caches: list[Cache], most: int) -> list[HeldEntries] | None:
        """Free slots in each cache, into which the attentions write; None unless they are the same in all caches."""
        reserved: list[HeldEntries] = []
        for layer, cache, back in zip(self._layers, caches, self._backs, strict=True):
            cache.refuse_other(layer)
            held = cache.reserve(most)
            if held is None or (held.dropped and back > cache.entries):
                return None
            if reserved and (held.start, held.stop) != (reserved[0].start, reserved[0].stop):
                return None
            if held.planes["k"].device.type != "cpu":
                return None
            reserved.append(held)
        for attending, held in zip(self._text_attentions, reserved, strict=True):
            attending.read_text(held.planes["k"], held.planes["v"])
        return reserved

    def _hold(self, caches: list[Cache], reserved: list[HeldEntries], left: int = 0) -> None:
        for layer, cache, held in zip(self._layers, caches, reserved, strict=True):
            cache.hold(held, left)
            cache.belong_to(layer)


def _are_alike(caches: list[Any], rows: int) -> bool:
    """Whether all caches store float32 numbers for so many texts, and keep and move their entries in step.

    This is checked before slots are reserved, since a slot that is reserved and not used makes the next append move all
    entries.
    """
    first = caches[0]
    for cache in caches:
        if not isinstance(cache, Cache) or not cache.reserves or cache.dtype != torch.float32:
            return False
        if type(cache) is not type(first) or cache.capacity != first.capacity:
            return False
        if cache.batch != rows:
            return False
    return True


def _is_known(block: Any, first: Any) -> bool:
    """Whether a program computes what this block does, with buffers of the sizes of the first."""
    if type(block) is not Block or block.bias is not None:
        return False
    attention = block.attention
    return (
        type(attention) is MultiHeadAttention
        and sizes_of(attention, block.feed_forward) == sizes_of(first.attention, first.feed_forward)
        and attention.positions == first.attention.positions
        and is_computed(attention)
        and entries_before(attention.pattern) is not None
        and has_known_activation(block.feed_forward)
    )
