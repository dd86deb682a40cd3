"""How good a translator is on pairs of sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from regard.arguments import whole
from regard.decoding.translator import Translation, Translator
from regard.kinds import a_list, of_kind
from regard.text import PAD, Pair, Scores, score
from regard.text.translation_batches import batches_in_order, encode_pairs


@dataclass(frozen=True)
class Evaluation:
    """Scores of the translations, perplexity of the references, and how the translations were found."""

    scores: Scores
    perplexity: float
    settings: dict[str, Any]
    translations: list[Translation]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the translations, as JSON values."""
        return {**self.scores.to_dict(), "perplexity": self.perplexity, "settings": self.settings}


def evaluate(
    translator: Translator,
    pairs: Sequence[Pair],
    *,
    beam: int = 1,
    normalisation: str = "gnmt",
    alpha: float = 0.6,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Translate the sources, compare with the targets, and ask how likely the model finds the targets.

    Raises:
        ArgumentError: no pairs, or settings that cannot be.
    """
    of_kind("translator", translator, Translator, "a Translator")
    pairs = a_list("pairs", pairs, Pair, "pairs, as read_pairs gives them")
    lines = [pair.source for pair in pairs]
    found = translator.translate(lines, beam=beam, normalisation=normalisation, alpha=alpha, progress=progress)
    scores = score([translation.text for translation in found], [pair.target for pair in pairs])
    settings: dict[str, Any] = {"beam": beam}
    if beam > 1:
        settings |= {"normalisation": normalisation} | ({"alpha": alpha} if normalisation == "gnmt" else {})
    return Evaluation(scores, perplexity(translator, pairs), settings, found)


@torch.inference_mode()
def perplexity(translator: Translator, pairs: Sequence[Pair], batch_tokens: int = 2048) -> float:
    """exp of the mean cross entropy of the target ids, END included, given all before them."""
    of_kind("translator", translator, Translator, "a Translator")
    pairs = a_list("pairs", pairs, Pair, "pairs, as read_pairs gives them")
    whole("batch_tokens", batch_tokens, 1)
    total, count = 0.0, 0
    device = next(translator.model.parameters()).device
    for _, batch in batches_in_order(encode_pairs(pairs, translator.tokeniser), batch_tokens):
        source, target, following = (part.to(device) for part in batch)
        scores = translator.model(source, target).flatten(0, 1)
        total += float(F.cross_entropy(scores, following.flatten(), ignore_index=PAD, reduction="sum"))
        count += int((following != PAD).sum())
    return math.exp(min(total / count, 700.0)) if count else math.nan
