"""What a model in training makes of a few validation texts, kept in the run after each validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from regard.cli.classify import probabilities
from regard.cli.console import say
from regard.decoding import Translation, Translator
from regard.decoding.generator import Generator
from regard.errors import RegardError
from regard.inspection import draw_maps, look
from regard.models import LanguageModel, RecurrentTranslator, TranslationTransformer
from regard.models.encoder import TextEncoder
from regard.storage.files import replace_file
from regard.terminal_text import printable
from regard.text import PAD, Pair, Tokeniser, tidy
from regard.training.encoder import HiddenWords, MaskedWordTask

FOLDER = "samples"
COUNT = 4  # of texts
LONGEST = 120  # characters of a text that is shown
WRITTEN = 40  # ids that a language model writes on

Samples = Callable[[torch.nn.Module, Path], list[str]]
"""Lines about what a model makes of texts; a picture of it may be drawn in the file that is named."""


def write_samples(samples: Samples, model: torch.nn.Module, step: int, run: Path) -> None:
    """Keep lines and picture of a step in `samples/step-000250.txt` and `.png`.

    What cannot be shown (scores that are not finite, a picture without matplotlib) is told there, what cannot be
    written is said, and neither stops anything.
    """
    path = run / FOLDER / f"step-{step:06d}.txt"
    try:
        path.parent.mkdir(exist_ok=True)
        try:
            lines = samples(model, path.with_suffix(".png"))
        except RegardError as error:
            lines = [f"there is nothing to show: {error}"]
        replace_file(path, "".join(f"{printable(line)}\n" for line in lines).encode(), durable=False)
    except OSError as error:
        say(f"no samples: {error.filename or path}: {error.strerror or error}")
    except RegardError as error:
        say(f"no samples: {error}")


def translations(tokeniser: Tokeniser, pairs: Sequence[Pair]) -> Samples:
    """The first few short pairs: source, what it should become, what it does; and what the first looks at."""
    shown = [pair for pair in pairs if len(pair.source) <= LONGEST][:COUNT]

    def samples(model: torch.nn.Module, picture: Path) -> list[str]:
        assert isinstance(model, TranslationTransformer | RecurrentTranslator)
        translator = Translator(model, tokeniser)
        found = translator.translate([pair.source for pair in shown])
        lines = []
        for pair, translation in zip(shown, found, strict=True):
            told = {"source": pair.source, "should be": pair.target, "is": tidy(translation.text)}
            lines += [*(f"{name:<9}  {text}" for name, text in told.items()), ""]
        return [*lines, *_draw(translator, found[:1], picture)]

    return samples


def writings(tokeniser: Tokeniser, texts: Sequence[str]) -> Samples:
    """The beginnings of the first few texts, and how a language model would most likely go on."""
    beginnings = [text[: LONGEST // 4] for text in texts[:COUNT]]

    def samples(model: torch.nn.Module, picture: Path) -> list[str]:
        assert isinstance(model, LanguageModel)
        found = Generator(model, tokeniser).generate(["", *beginnings], max_tokens=WRITTEN)
        return [line for [one] in found for line in (f"prompt      {one.prompt!r}", f"written on  {one.text!r}", "")]

    return samples


def hidden_words(tokeniser: Tokeniser, task: MaskedWordTask) -> Samples:
    """A few validation texts as the model reads them, the words that are asked for, and those that it finds."""

    @torch.no_grad()
    def samples(model: torch.nn.Module, picture: Path) -> list[str]:
        device = next(model.parameters()).device
        batch = HiddenWords(*(part.to(device) for part in task.validation_batches()[0]))
        asked = batch.words.split(batch.places.sum(1).tolist())
        lines = []
        for ids, places, words in list(zip(batch.ids, batch.places, asked, strict=True))[:COUNT]:
            found = model(ids[None], places[None]).argmax(-1)
            for name, row in (("text", ids[ids != PAD]), ("asked", words), ("found", found)):
                lines.append(f"{name:<6} {' '.join(tokeniser.pieces(row.tolist()))}")
            lines.append("")
        return lines

    return samples


def labels(tokeniser: Tokeniser, pairs: Sequence[Pair], classes: Sequence[str], longest: int) -> Samples:
    """The first few short texts, the label of each, and the one that the model gives it."""
    shown = [pair for pair in pairs if len(pair.source) <= LONGEST][:COUNT]

    def samples(model: torch.nn.Module, picture: Path) -> list[str]:
        assert isinstance(model, TextEncoder)
        rows = probabilities(model, tokeniser, [pair.source for pair in shown], longest)
        lines = []
        for pair, row in zip(shown, rows, strict=True):
            best = max(range(len(classes)), key=row.__getitem__)
            told = {"text": pair.source, "should be": pair.target, "is": f"{classes[best]} ({row[best]:.3f})"}
            lines += [*(f"{name:<9}  {text}" for name, text in told.items()), ""]
        return lines

    return samples


def _draw(translator: Translator, shown: Sequence[Translation], picture: Path) -> list[str]:
    """Draw the attention of a translation, or say why not."""
    try:
        for one in shown:
            maps = look(translator.model, translator.tokeniser, one.source, one.ids)
            draw_maps(maps, picture, title=f"{tidy(one.source)} → {tidy(one.text)}")
    except Exception as error:  # whatever a drawing library says: a picture stops no training
        return [f"no picture: {error if isinstance(error, RegardError) else f'{type(error).__name__}: {error}'}"]
    return []
