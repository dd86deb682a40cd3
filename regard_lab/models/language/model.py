"""The language model."""

from __future__ import annotations

from dataclasses import replace

import torch

from regard.core.keywords import OF_MODELS, answering
from regard.errors import ArgumentError
from regard.layers import Projection
from regard_lab.models.base import check_step
from regard_lab.models.language.config import LanguageConfig
from regard_lab.models.language.stack import Stack
from regard_lab.models.language.state import LanguageState, Texts, by_length, end_together, joined, may_begin_at
from regard_lab.models.padding import align
from regard_lab.models.state import LayerCaches, frugal_kind


class LanguageModel(Stack):
    """A decoder-only Transformer: scores of the next id after each id of a text.

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

    @answering("LanguageModel", OF_MODELS)
    def forward(self, ids: torch.Tensor, *, vectors: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the next id at each position.

        Args:
            ids: (batch, length), padded with PAD on either side.
            vectors: (batch, length, dim), read instead of the embeddings of the ids; the ids still decide which
                positions are padding.

        Returns:
            (batch, length, vocab_size): position t scores the id after ids[:, t].
        """
        aligned = align(ids)
        x = self._embed_texts(aligned.ids, torch.arange(ids.shape[1], device=ids.device), aligned.move(vectors))
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
        """Read prompts, and return the state for continuing them; its `next_scores` score the first new ids.

        Prompts of unequal lengths are aligned at their ends. If that would change the outputs (a pattern that counts
        from the beginning of a text; features or hashes of rotated keys), only prompts of equal length are computed
        together, and each length takes steps of its own.

        Args:
            prompts: ids (batch, length), padded with PAD on either side; each batch row has one id or more.
            cache: kind of cache: "dynamic", "static" (up to `capacity`), "ring" (the last `capacity`; by default as far
                as a layer's pattern looks back), "paged" (pages that beams share) or "state" (sums, for mechanisms that
                have them). By default each
                layer uses the kind that is exact in the least memory.
            capacity: the most positions, including the prompt, of "static" and "ring".
            dtype: storage dtype of keys and values, as for `regard.layers.caches.Cache`; that of the weights by
                default.

        Raises:
            ArgumentError: a prompt without ids, or invalid settings of the cache.
            UnsupportedError: a cache that cannot continue the mechanism or the pattern.
        """
        ids, starts = end_together(prompts)
        together = starts is None or all(may_begin_at(starts, block.attention) for block in self._blocks())
        groups, last = [], []
        for rows, first in [(None, 0)] if together else by_length(starts):
            texts = ids if rows is None else ids[rows, first:]  # (texts, length)
            groups.append(Texts(self._caches(len(texts), cache, capacity, dtype), starts if together else None, rows))
            last.append(self._continue_texts(texts, groups[-1])[:, -1])
        return LanguageState(groups, self._score(joined(last, groups)))

    def step(self, ids: torch.Tensor, state: LanguageState) -> torch.Tensor:
        """Append `ids` (batch,) to the texts of the state, and return scores (batch, vocab_size) of the next ids."""
        check_step(ids, state, LanguageState)
        return self._score(self._continue(ids[:, None], state)[:, 0])

    def extend(self, ids: torch.Tensor, state: LanguageState) -> torch.Tensor:
        """Append `ids` (batch, added) to the texts of the state; return scores (batch, added, vocab_size) after each.

        PAD is treated as an ordinary id here.
        """
        check_step(ids, state, LanguageState, axes=2)
        return self._score(self._continue(ids, state))

    def _continue(self, ids: torch.Tensor, state: LanguageState) -> torch.Tensor:
        """(batch, added, dim), before the last norm; after an error the state is unchanged."""
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
            raise ArgumentError(f"capacity={capacity} needs a kind of cache; give cache='static' or cache='ring'")
        caches = []
        for block in self._blocks():
            own = frugal_kind(block.attention) if kind is None else kind
            kept = None if kind is None and own == "state" else dtype  # a state has the dtype of the weights
            caches.append(block.attention.new_cache(batch, own, capacity, kept))
        return LayerCaches(caches)

    def _score(self, x: torch.Tensor) -> torch.Tensor:
        return super()._score(self.norm(x))
