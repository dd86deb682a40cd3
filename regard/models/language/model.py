"""A Transformer that writes: a decoder alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from regard.errors import ArgumentError
from regard.layers import Projection
from regard.models.base import check_step
from regard.models.language.config import LanguageConfig
from regard.models.language.stack import Stack
from regard.models.language.state import LanguageState, Texts, by_length, end_together, joined, may_begin_at
from regard.models.padding import align
from regard.models.state import LayerCaches, frugal_kind


class LanguageModel(Stack):
    """Scores of the next id after each id of a text: embeddings, blocks of causal attention, a norm, the vocabulary.

    Source: Improving Language Understanding by Generative Pre-Training, Radford et al. 2018, section 3.1; norms first
    as in Language Models are Unsupervised Multitask Learners, Radford et al. 2019, section 2.3; "rms", "swiglu" and
    "rotary" as in LLaMA, Touvron et al. 2023, section 2.2.

    >>> model = LanguageModel(LanguageConfig(vocab_size=100, dim=32, heads=4)).eval()
    >>> model(torch.tensor([[5, 6, 7]])).shape
    torch.Size([1, 3, 100])
    >>> state = model.start(torch.tensor([[5, 6, 7]]))
    >>> next_ids = state.next_scores.argmax(-1)
    >>> model.step(next_ids, state).shape
    torch.Size([1, 100])
    """

    KIND = "language-model"
    Config = LanguageConfig

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__(config)
        self.to_vocabulary = None if config.tied else Projection(config.dim, config.vocab_size, bias=False)
        self._initialise()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of what follows each id.

        Args:
            ids: (batch, length), padded with PAD on either side.

        Returns:
            (batch, length, vocab_size): place t scores the id that follows ids[:, t].
        """
        aligned = align(ids)
        x = self._embed_texts(aligned.ids, torch.arange(ids.shape[1], device=ids.device))
        for block in self._blocks():
            x = self._through(block, x, aligned.span)  # (batch, length, dim)
        return aligned.put_back(self._score(x))

    def start(
        self,
        prompts: torch.Tensor,
        cache: str | None = None,
        *,
        capacity: int | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> LanguageState:
        """The state from which prompts are continued; its `next_scores` are those of what follows them.

        Args:
            prompts: ids (batch, length), padded with PAD on either side; each row holds one or more.
            cache: what keeps the past: "dynamic", "static" (up to `capacity`), "ring" (the last `capacity`; as far as a
                layer looks back by default) or "state" (sums, for mechanisms that have them); by default what is
                exact in the least memory, for each layer by itself.
            capacity: positions there is room for, prompt included, in the kinds that have an end.
            dtype: how keys and values are kept, as for `regard.layers.caches.Cache`; that of the weights by default.

        Raises:
            ArgumentError: a prompt without ids, or a cache that cannot be.
            UnsupportedError: a cache that cannot continue the mechanism or the pattern.

        Prompts of unequal lengths are laid to end together. Where that would change what is seen (a pattern that
        counts from the beginning of a text; features or hashes of rotated keys), those of one length go on together,
        and each length costs steps of its own.
        """
        ids, starts = end_together(prompts)
        together = starts is None or all(may_begin_at(starts, block.attention) for block in self._blocks())
        groups, last = [], []
        for rows, first in [(None, 0)] if together else by_length(starts):
            own = ids if rows is None else ids[rows, first:]  # (texts, their length)
            groups.append(Texts(self._caches(len(own), cache, capacity, dtype), starts if together else None, rows))
            last.append(self._continue_texts(own, groups[-1])[:, -1])
        return LanguageState(groups, self._score(joined(last, groups)))

    def step(self, ids: torch.Tensor, state: LanguageState) -> torch.Tensor:
        """Scores (batch, vocab_size) of the next id, after `ids` (batch,) have followed what the state holds."""
        check_step(ids, state, LanguageState)
        return self._score(self._continue(ids[:, None], state)[:, 0])

    def extend(self, ids: torch.Tensor, state: LanguageState) -> torch.Tensor:
        """Scores after each of several ids (batch, added) that follow what the state holds: (batch, added, vocab_size).

        As many for every row: they are taken as they are, PAD too.
        """
        check_step(ids, state, LanguageState, axes=2)
        return self._score(self._continue(ids, state))

    def _continue(self, ids: torch.Tensor, state: LanguageState) -> torch.Tensor:
        """(batch, added, dim), before the last norm; a refused call leaves the state as it was."""
        groups = [replace(texts, caches=texts.caches.copy()) for texts in state.groups]
        x = joined([self._continue_texts(texts.of(ids), texts) for texts in groups], groups)
        state.groups, state.next_scores = groups, None
        return x

    def _continue_texts(self, ids: torch.Tensor, texts: Texts) -> torch.Tensor:
        x = self._embed_texts(ids, texts.places(ids.shape[1], ids.device))
        for block, cache in zip(self._blocks(), texts.caches.each, strict=True):
            x = block(x, texts.live, cache)  # (texts, added, dim)
        return x

    def _caches(
        self, batch: int, kind: str | None, capacity: int | None, dtype: torch.dtype | str | None
    ) -> LayerCaches:
        if kind is None and capacity is not None:
            raise ArgumentError(f"capacity={capacity} belongs to a kind of cache; give cache='static' or cache='ring'")
        caches = []
        for block in self._blocks():
            own = frugal_kind(block.attention) if kind is None else kind
            kept = None if kind is None and own == "state" else dtype  # sums keep to the dtype of the weights
            caches.append(block.attention.new_cache(batch, own, capacity, kept))
        return LayerCaches(caches)

    def _score(self, x: torch.Tensor) -> torch.Tensor:
        return super()._score(self.norm(x))
