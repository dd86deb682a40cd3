"""A model and its tokeniser: lines in, lines out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from regard.arguments import whole
from regard.decoding.beam import beam_search
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.loading import TOKENISER_FILE, check_together, load_with_tokeniser
from regard.decoding.writing import greedy_search
from regard.errors import ArgumentError
from regard.kinds import a_list, of_kind, shown
from regard.models.kinds import TranslationModel, translation_model
from regard.text import Tokeniser
from regard.text.translation_batches import batches_in_order

__all__ = ["TOKENISER_FILE", "Translation", "Translator"]


@dataclass(frozen=True)
class Translation:
    """One translation: its text, the ids of both sides (source with END), and how likely the model finds it."""

    source: str
    text: str
    source_ids: tuple[int, ...]
    ids: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool


class Translator:
    """Translates lines of text with a trained model, recurrent or Transformer.

    Args:
        model: put into eval mode.
        tokeniser: the one it was trained with.

    Raises:
        ArgumentError: they were not trained together.
    """

    def __init__(self, model: TranslationModel, tokeniser: Tokeniser) -> None:
        of_kind("model", model, TranslationModel, "a translation model, as load_translation_model gives it")
        check_together(model.config.vocab_size, tokeniser)
        self.model, self.tokeniser = model.eval(), tokeniser

    @classmethod
    def load(cls, folder: str | Path) -> Translator:
        """The best model of a training run, or a saved model, with its tokeniser.

        Raises:
            CheckpointError: missing, damaged, or no model that translates.
        """
        saved, tokeniser = load_with_tokeniser(folder)
        return cls(translation_model(saved, str(folder)), tokeniser)

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam: int = 1,
        normalisation: str = "gnmt",
        alpha: float = 0.6,
        max_length: int | None = None,
        batch_tokens: int = 2048,
        progress: Callable[[int], None] | None = None,
    ) -> list[Translation]:
        """One translation for each line, in their order; a line without text has a translation without text.

        Args:
            lines: sources.
            beam: 1 for greedy search, more for beam search.
            normalisation, alpha, max_length: of `beam_search`.
            batch_tokens: the most source ids translated at once.
            progress: called with the number of lines done since the last call.

        Raises:
            ArgumentError: settings that cannot be.
        """
        lines = a_list("lines", lines, str, "a list of strings, one for each source")
        whole("beam", beam, 1)
        whole("batch_tokens", batch_tokens, 1)
        if progress is not None and not callable(progress):
            raise ArgumentError(f"progress is {shown(progress)}; it needs a function of a number of lines")
        found: list[Translation | None] = [None] * len(lines)
        encoded = [(self.tokeniser.encode(line), [0]) for line in lines]
        for indices, batch in batches_in_order(encoded, batch_tokens):
            for index, hypothesis in zip(
                indices, self._search(batch.source, beam, normalisation, alpha, max_length), strict=True
            ):
                found[index] = self._translation(lines[index], encoded[index][0], hypothesis)
            if progress is not None:
                progress(len(indices))
        return [translation for translation in found if translation is not None]

    def _search(
        self, source: torch.Tensor, beam: int, normalisation: str, alpha: float, max_length: int | None
    ) -> list[Hypothesis]:
        source = source.to(next(self.model.parameters()).device)
        if beam == 1:
            return greedy_search(self.model, source, max_length)
        best = beam_search(self.model, source, beam, normalisation=normalisation, alpha=alpha, max_length=max_length)
        return [row[0] for row in best]

    def _translation(self, line: str, ids: list[int], found: Hypothesis) -> Translation:
        if not ids:
            return Translation(line, "", (), (), 0.0, 0.0, True)
        return Translation(
            line, self.tokeniser.decode(found.ids), tuple(ids), found.ids,
            found.log_probability, found.score, found.finished,
        )  # fmt: skip
