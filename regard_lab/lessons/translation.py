"""Lesson: what a decoder takes from the encoder, when it is computed, and what depends on what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from regard.arguments import count_of
from regard_lab.lessons.figures import LINES, Figure, begin, draw_map, scale_beside
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, Watched, largest, rounded, seeded, watch
from regard_lab.models import TranslationTransformer
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.text.vocabularies import BEGIN, END

SOURCE = ("The", "animal", "did", "not", "cross", "the", "street")
TARGET = ("Das", "Tier", "ging", "nicht", "über", "die", "Straße")
VOCABULARY = tuple(sorted({*SOURCE, *TARGET}))
OTHER = END + 1 + len(VOCABULARY)  # a word of neither sentence
DIM, HEADS, LAYERS = 32, 4, 2

CODE = """\
import torch
from regard_lab.models import TranslationTransformer
from regard_lab.models.translation_transformer import TranslationConfig

model = TranslationTransformer(TranslationConfig(vocab_size=20, dim=32, heads=4)).eval()
state = model.start(torch.tensor([[5, 6, 7, 3]]))  # the encoder, and the keys and values of its output: once
for word in (2, 8, 9):
    scores = model.step(torch.tensor([word]), state)  # each word brings its own queries
print([tuple(context.keys.shape) for context in state.contexts])"""


def teach(settings: Settings) -> Lecture:
    """Count what is computed while a sentence is written, and edit each word to see what depends on it."""
    model = new_model(settings.seed)
    source, target = _ids(SOURCE, closes=True), _ids(TARGET[:-1], opens=True)
    whole = _run(model, source, target)
    encoder, decoder = _dependence(model, source, target, whole)
    numbers: dict[str, Any] = {
        "source": [*SOURCE, "<end>"], "written": ["<begin>", *TARGET[:-1]],
        "counts": _count(model, source, target),
        "same": largest(_write(model, source, target) - whole["scores"]) < 1e-9,
        "origins": _origins(model, source, target, whole["watched"]),
        "encoder": rounded(encoder, 12), "decoder": rounded(decoder, 12),
    }  # fmt: skip
    return numbers, (
        "A translator has two stacks. The encoder reads the source sentence: every word looks at all words. The "
        "decoder writes the translation: every written word looks at itself and at earlier written words, and then, "
        "in cross-attention, at the encoder's output. Queries come from the decoder, keys and values from the encoder.",
        "The encoder's output does not depend on what is written. So the encoder runs once for a sentence, and "
        "keys and values of its output are computed once for each layer and used for all written words.",
        "To see what depends on what, each word of a small translator with random weights is replaced, one at a time, "
        "and the outputs are compared. Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.3.",
    )


def new_model(seed: int) -> TranslationTransformer:
    """A translator with weights drawn from the seed."""
    config = TranslationConfig(
        vocab_size=OTHER + 1, dim=DIM, heads=HEADS, encoder_layers=LAYERS, decoder_layers=LAYERS, positions="learned",
        dropout=0.0,
    )  # fmt: skip
    return seeded(seed, TranslationTransformer, config).eval()


def _ids(words: tuple[str, ...], opens: bool = False, closes: bool = False) -> torch.Tensor:
    inner = [END + 1 + VOCABULARY.index(word) for word in words]
    return torch.tensor([[*([BEGIN] if opens else []), *inner, *([END] if closes else [])]])


def _parts(model: TranslationTransformer) -> dict[str, nn.Module]:
    """The first layer of the encoder, its last norm, and the projections of cross-attention in the first layer."""
    cross = "decoder.0.cross_attention"
    parts = {"encoder": "encoder.0", "encoded": "encoder_norm", "decoder": "decoder.0.self_attention"}
    parts |= {"queries": f"{cross}.to_q", "keys": f"{cross}.to_k", "values": f"{cross}.to_v"}
    return {name: model.get_submodule(path) for name, path in parts.items()}


def _run(model: TranslationTransformer, source: torch.Tensor, target: torch.Tensor) -> dict[str, Any]:
    """Logits (written, vocabulary) and the encoder's output (source, dim) of one pass, and what its parts did."""
    kept: list[torch.Tensor] = []
    watched = watch(_parts(model), lambda: kept.append(model(source, target)))
    return {"scores": kept[0][0], "encoded": watched["encoded"].outputs[0][0], "watched": watched}


def _write(model: TranslationTransformer, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The logits (written, vocabulary) when the words are written one by one."""
    with torch.no_grad():
        state = model.start(source)
        return torch.cat([model.step(target[:, place], state) for place in range(target.shape[1])])


def _count(model: TranslationTransformer, source: torch.Tensor, target: torch.Tensor) -> dict[str, int]:
    """How often each part runs while the words are written one by one."""
    return {name: one.calls for name, one in watch(_parts(model), lambda: _write(model, source, target)).items()}


def _origins(
    model: TranslationTransformer, source: torch.Tensor, target: torch.Tensor, whole: dict[str, Watched]
) -> dict[str, list[float]]:
    """How far queries, keys and values of cross-attention move when the first source or written word is replaced."""
    moved = {}
    for what, edited in (("source", (_edit(source, 0), target)), ("written", (source, _edit(target, 1)))):
        other = _run(model, *edited)["watched"]
        parts = ("queries", "keys", "values")
        moved[what] = [round(largest(other[one].outputs[0] - whole[one].outputs[0]), 4) for one in parts]
    return moved


def _edit(ids: torch.Tensor, place: int) -> torch.Tensor:
    edited = ids.clone()
    edited[0, place] = OTHER
    return edited


def _dependence(
    model: TranslationTransformer, source: torch.Tensor, target: torch.Tensor, whole: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """How far every output moves when each word is replaced: (source, inputs) and (written, inputs).

    Inputs are the source words and then the written words; outputs the encoder's vectors and the next word's logits.
    """
    edits = [(_edit(source, place), target) for place in range(source.shape[1])]
    edits += [(source, _edit(target, place)) for place in range(target.shape[1])]
    runs = [_run(model, *edited) for edited in edits]
    moved = [[(one[name] - whole[name]).norm(dim=-1) for one in runs] for name in ("encoded", "scores")]
    return torch.stack(moved[0], 1), torch.stack(moved[1], 1)


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    counts, moved = numbers["counts"], numbers["origins"]
    names = {"encoder": "the encoder", "keys": "keys of its output", "values": "values of its output",
             "decoder": "the decoder", "queries": "queries of cross-attention"}  # fmt: skip
    runs = tuple((says, str(counts[name])) for name, says in names.items())
    origins = tuple((f"a {what} word", *(f"{x:.3f}" for x in moved[what])) for what in ("source", "written"))
    yield Table(
        f"How often the first layer computes while {count_of(len(numbers['written']), 'words')} are written",
        ("part", "times"),
        runs,
    )
    yield Table("How far parts of the first cross-attention move", ("replaced", "queries", "keys", "values"), origins)


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    counts, written, moved = numbers["counts"], len(numbers["written"]), numbers["origins"]
    encoder, decoder = torch.tensor(numbers["encoder"]), torch.tensor(numbers["decoder"])
    read = len(numbers["source"])
    own = decoder[:, read:]
    once, each = [counts[name] for name in ("encoder", "keys", "values")], [counts["decoder"], counts["queries"]]
    yield Claim(
        "Queries of cross-attention come from the decoder, keys and values from the encoder.",
        moved["source"][0] == 0 < min(moved["source"][1:]) and max(moved["written"][1:]) == 0 < moved["written"][0],
        "a source word moves keys and values only, a written word queries only (first layer)",
    )
    yield Claim(
        "The encoder, and the keys and values of its output, are computed once for all written words.",
        once == [1, 1, 1] and each == [written, written],
        f"once each, and {count_of(written, 'times')} the decoder with its queries",
    )
    yield Claim(
        "The logits of words written one by one are the same as those of one pass.",
        numbers["same"],
        ROUNDING,
    )
    yield Claim(
        "Every vector of the encoder depends on every source word and on no written word.",
        float(encoder[:, :read].min()) > 1e-6 and largest(encoder[:, read:]) == 0,
        f"source words move it by {float(encoder[:, :read].min()):.3f} or more, written words by exactly 0",
    )
    yield Claim(
        "Replacing a source word changes the logits at every written position.",
        float(decoder[:, :read].min()) > 1e-6,
        f"by {float(decoder[:, :read].min()):.3f} or more",
    )
    yield Claim(
        "Replacing a written word changes the logits after it, and none before it.",
        float(own[torch.ones_like(own).tril().bool()].min()) > 1e-6 and largest(own.triu(1)) < 1e-9,
        f"by {float(own[torch.ones_like(own).tril().bool()].min()):.3f} or more, and not at all",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    source, written = numbers["source"], numbers["written"]
    begin(figure, "What depends on what in a translator", 8.6, 8.0)
    panels = figure.subplots(2, 1, height_ratios=(len(source), len(written)))
    after = [f"after “{word}”" for word in written]
    titles = "encoder: the vector of each source word", "decoder: the logits of the next word"
    for axes, name, rows, title in zip(panels, ("encoder", "decoder"), (source, after), titles, strict=True):
        moved = torch.tensor(numbers[name])
        values = moved / moved.max().clamp(min=1e-12)
        columns = [*source, *written] if axes is panels[0] else ()
        image = draw_map(axes, values, rows, columns, hidden=moved < 1e-9, cell=0.45)
        axes.axvline(len(source) - 0.5, color=LINES[1], linewidth=2)
        axes.set_ylabel(title, fontsize=9)
    panels[1].set_xlabel("replaced: a source word (left of the line), a written word (right); grey: moves nothing",
                         fontsize=9)  # fmt: skip
    scale_beside(figure, image, panels, "how far the output moves, relative to the largest")
