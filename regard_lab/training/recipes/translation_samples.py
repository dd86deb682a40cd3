"""What a translator in training makes of a few validation pairs: lines of text, and a picture of its attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from regard.errors import RegardError
from regard_lab.decoding import Translation, Translator
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.seeing import draw_maps, look
from regard_lab.text import Pair, Tokeniser, tidy, tidy_target
from regard_lab.training.recipes.recipe import Samples

SAMPLES, LONGEST_SAMPLE = 4, 120  # validation texts that are shown, and their characters at most


def translation_samples(tokeniser: Tokeniser, pairs: Sequence[Pair]) -> Samples:
    """The first few short pairs: source, reference, translation; and the attention of the first as a picture."""
    shown = [pair for pair in pairs if len(pair.source) <= LONGEST_SAMPLE][:SAMPLES]

    def samples(model: torch.nn.Module, picture: Path) -> list[str]:
        assert isinstance(model, TranslationTransformer | RecurrentTranslator)
        translator = Translator(model, tokeniser)
        translations = translator.translate([pair.source for pair in shown])
        lines = []
        for pair, translation in zip(shown, translations, strict=True):
            parts = {"source": pair.source, "should be": pair.target, "is": tidy_target(translation.text)}
            lines += [*(f"{name:<9}  {text}" for name, text in parts.items()), ""]
        return [*lines, *_draw(translator, translations[:1], picture)]

    return samples


def _draw(translator: Translator, shown: Sequence[Translation], picture: Path) -> list[str]:
    """Draw the attention of a translation, or say why not."""
    try:
        for one in shown:
            maps = look(translator.model, translator.tokeniser, one.source, one.ids)
            draw_maps(maps, picture, title=f"{tidy(one.source)} → {tidy_target(one.text)}")
    except Exception as error:  # whatever a drawing library says: a picture stops no training
        return [f"no picture: {error if isinstance(error, RegardError) else f'{type(error).__name__}: {error}'}"]
    return []
