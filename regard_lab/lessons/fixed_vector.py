"""Lesson: a sentence in one vector: how much of a text reaches a decoder without attention, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from regard_lab.lessons.figures import FAINT, Axes, Figure, begin, draw_line, label_axes, legend_below
from regard_lab.lessons.report import Report, read_report
from regard_lab.lessons.taught import Claim, Estimate, Lecture, Settings, Table, every
from regard_lab.lessons.words import normal, seeded
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.models.recurrent import RecurrentConfig
from regard_lab.models.translation_transformer import TranslationConfig

if TYPE_CHECKING:
    from regard_lab.models.base import TextModel

VOCABULARY, DIM = 24, 8  # the source vector has DIM numbers, as each word has
LENGTHS = (1, 2, 4, 8, 12)
NEGLIGIBLE = 1e-10  # a direction counts if it moves the scores by more than this share of the strongest one
TRAINED = {
    "none": "one vector",
    "bahdanau": "Bahdanau's attention",
    "luong-general": "Luong's attention",
    "transformer": "Transformer",
}
LIVE = ("none", "bahdanau", "transformer")
RIGHT, WRONG = 0.9, 0.2  # shares of texts that are reversed without a mistake

CODE = """\
import torch
from regard_lab.models import RecurrentTranslator

for attention in ("none", "bahdanau"):
    config = RecurrentTranslator.Config(vocab_size=100, dim=64, hidden=64, attention=attention)
    model = RecurrentTranslator(config).eval()
    for words in (5, 50):
        state = model.start(torch.randint(4, 100, (1, words)))  # all that the decoder reads of the source
        print(attention, words, tuple(state.memory.values.shape), state.memory.nbytes)"""


def teach(settings: Settings) -> Lecture:
    """Count the directions of a source that reach the logits, the bytes that a decoder reads, and read the report."""
    report = read_report("length_story")
    directions = {name: [reaching(name, length, settings.seed) for length in LENGTHS] for name in LIVE}
    numbers = {
        "lengths": list(LENGTHS), "vector": DIM, "directions": directions,
        "bytes": {name: [_bytes(name, length, settings.seed) for length in LENGTHS] for name in LIVE},
        "trained": _shares(report), "tests": report.figures["recipe"]["tests"], "source": report.source,
    }  # fmt: skip
    return numbers, (
        "The first encoder-decoders read a sentence into one vector, and the decoder writes the translation from "
        "this vector alone. Its size does not depend on the sentence, so long sentences lose words. With attention "
        "the decoder keeps the states of all words and computes new weights for them at each word that it writes.",
        f"Untrained models show how much can reach the decoder. A source of n words enters as n · {DIM} numbers. The "
        "first table counts the independent directions in which a change of these numbers can change what the decoder "
        f"writes (computed as the rank of the matrix of gradients). Through a vector of {DIM} numbers at most {DIM} "
        "directions pass, whatever the weights are. With attention nearly as many pass as there are numbers. Not all: "
        f"the last norm of the Transformer's encoder fixes mean and variance of each word, which leaves {DIM - 2} of "
        f"{DIM} per word; and a direction with less than {NEGLIGIBLE:g} of the strongest effect is not counted, which "
        "is why Bahdanau's attention can lack one.",
        f"The second table counts bytes; a number in float32 takes 4. One vector of {DIM} numbers takes {4 * DIM}. "
        f"Bahdanau's encoder reads in two directions and keeps {2 * DIM} numbers for each word, and the "
        f"Transformer keeps a key and a value in each of its layers.",
        f"Trained models show what this costs. They learn to reverse texts of 3 to 12 symbols. {report.source}",
        "No model does well on texts longer than those it was trained on: attention removes the limit of the vector, "
        "but models still need to be trained on such lengths. Source: Cho et al. 2014, section 2.2; Bahdanau et al. "
        "2015, section 5.1 and figure 2.",
    )


def new_model(name: str, seed: int) -> TextModel:
    """An untrained translator, in float64."""
    if name == "transformer":
        config = TranslationConfig(vocab_size=VOCABULARY, dim=DIM, heads=2, dropout=0.0)
        return seeded(seed, TranslationTransformer, config).eval()
    recurrent = RecurrentConfig(vocab_size=VOCABULARY, dim=DIM, hidden=DIM, attention=name, dropout=0.0)
    return seeded(seed, RecurrentTranslator, recurrent).eval()


def reaching(name: str, length: int, seed: int) -> int:
    """The rank of the gradients of the target's logits with respect to the source's embeddings."""
    jacobian = gradients(new_model(name, seed), length, seed)
    sizes = torch.linalg.svdvals(jacobian)
    return int((sizes > NEGLIGIBLE * sizes[0]).sum())


def gradients(model: Any, length: int, seed: int) -> torch.Tensor:
    """Gradients of random mixtures of all logits, (mixtures, length · DIM); one more mixture than numbers."""
    source, target = _ids(length, seed), _ids(length, seed + 1)
    entered: list[torch.Tensor] = []
    first = model.encoder if isinstance(model, RecurrentTranslator) else model.encoder[0]
    hook = first.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    scores = model(source, target).flatten()
    hook.remove()
    rows = [
        torch.autograd.grad(scores @ mixture, entered[0], retain_graph=True)[0].flatten()
        for mixture in normal(seed + 2, length * DIM + 1, len(scores))
    ]
    return torch.stack(rows).detach()


def _ids(length: int, seed: int) -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def _bytes(name: str, length: int, seed: int) -> int:
    """What the decoder reads of a source, in float32."""
    model: Any = new_model(name, seed).float()
    state = model.start(_ids(length, seed))
    return state.sources.nbytes if name == "transformer" else state.memory.nbytes


def _shares(report: Report) -> dict[str, dict[str, list[float]]]:
    """For each model and length, the shares of all seeds in order."""
    rows = report.figures["rows"]
    lengths = rows[0]["accuracy"]
    return {
        name: {length: sorted(row["accuracy"][length] for row in rows if row["model"] == name) for length in lengths}
        for name in TRAINED
    }


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    live = [TRAINED[name] for name in LIVE]
    directions, held, trained = numbers["directions"], numbers["bytes"], numbers["trained"]
    yield Table(
        "Directions in which the source can change the logits",
        ("words", "numbers in the source", *live),
        tuple(
            (str(length), str(length * DIM), *(str(directions[name][at]) for name in LIVE))
            for at, length in enumerate(LENGTHS)
        ),
    )
    yield Table(
        "Bytes of the source that the decoder reads, float32, for one text",
        ("words", *live),
        tuple((str(length), *(f"{held[name][at]:,}" for name in LIVE)) for at, length in enumerate(LENGTHS)),
    )
    yield Table(
        "Trained: texts reversed without a mistake, median over seeds (lowest to highest)",
        ("model", *(f"{length} symbols" for length in trained["none"])),
        tuple((TRAINED[name], *map(_spread, trained[name].values())) for name in TRAINED),
    )


def _spread(shares: list[float]) -> str:
    return f"{median(shares):.3f} ({shares[0]:.3f} to {shares[-1]:.3f})"


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    directions, held, trained = numbers["directions"], numbers["bytes"], numbers["trained"]
    short, _, longest, beyond = trained["none"]
    attentive = [name for name in TRAINED if name != "none"]

    def share(name: str, length: str, rank: int) -> Estimate:
        """Of the lowest seed (0) or the highest (-1)."""
        return Estimate.share(trained[name][length][rank], numbers["tests"])

    lowest = min((share(name, short, 0) for name in TRAINED), key=lambda one: one.value)
    least = min((share(name, longest, 0) for name in attentive), key=lambda one: one.value)
    most = share("none", longest, -1)
    farthest = max((share(name, beyond, -1) for name in TRAINED), key=lambda one: one.value)
    yield Claim(
        f"Through one vector of {DIM} numbers, at most {DIM} directions of a source reach the decoder.",
        max(directions["none"]) <= DIM,
        f"{directions['none'][-1]} of {LENGTHS[-1] * DIM} for {LENGTHS[-1]} words",
    )
    yield Claim(
        "With attention, every further word adds directions that reach the decoder.",
        all(
            all(one < two for one, two in pairwise(counts)) and counts[-1] > 2 * DIM
            for counts in (directions[name] for name in LIVE[1:])
        ),
        f"{directions['bahdanau'][-1]} and {directions['transformer'][-1]} of {LENGTHS[-1] * DIM} for "
        f"{LENGTHS[-1]} words",
    )
    yield Claim(
        "Without attention the decoder reads as many bytes of a long source as of a short one.",
        len(set(held["none"])) == 1,
        f"{held['none'][0]} bytes",
    )
    yield Claim(
        "With attention the bytes grow in proportion to the length.",
        all(
            count * LENGTHS[0] == held[name][0] * length
            for name in LIVE[1:]
            for count, length in zip(held[name], LENGTHS, strict=True)
        ),
        f"{held['bahdanau'][0]:,} to {held['bahdanau'][-1]:,} and {held['transformer'][0]:,} to "
        f"{held['transformer'][-1]:,} bytes",
    )
    yield Claim(
        "Trained models with and without attention reverse short texts.",
        lowest.above(RIGHT),
        f"at least {lowest} of {numbers['tests']} texts at length {short}",
    )
    yield Claim(
        "At the longest training length only the models with attention still reverse texts, with every seed.",
        every(least.above(RIGHT), most.below(WRONG)),
        f"at least {least} with attention and at most {most} with one vector at length {longest}",
    )
    yield Claim(
        "Beyond the training lengths all fail, the Transformer too.",
        farthest.below(0.5),
        f"at most {farthest} at length {beyond}; the Transformer {trained['transformer'][beyond][-1]:.3f}",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, f"One vector of {DIM} numbers passes {DIM} directions, however long the text is", 11.0, 4.9)
    reached, learned = figure.subplots(1, 2)
    _draw_directions(reached, numbers)
    for number, (name, label) in enumerate(TRAINED.items()):
        shares = numbers["trained"][name]
        draw_line(learned, list(map(int, shares)), [median(values) for values in shares.values()], number, label)
    learned.axvspan(12, 16.6, color=FAINT, alpha=0.12, linewidth=0)
    learned.text(13.4, 0.22, "longer than\nin training", fontsize=8, color=FAINT, ha="center")
    learned.set(ylim=(-0.04, 1.06), xlim=(3.4, 16.6))
    learned.set_xticks([4, 8, 12, 16])
    label_axes(learned, "Trained: texts reversed without a mistake", "symbols of the source", "share of 200 texts")
    legend_below(learned)


def _draw_directions(axes: Axes, numbers: dict[str, Any]) -> None:
    numbers_in = [length * DIM for length in LENGTHS]
    axes.plot(LENGTHS, numbers_in, color=FAINT, linestyle="--", linewidth=1.2, label="numbers in the source")
    for number, (name, label) in enumerate(TRAINED.items()):
        if name in LIVE:
            draw_line(axes, LENGTHS, numbers["directions"][name], number, label)
    axes.set(xlim=(0.4, LENGTHS[-1] + 0.6), ylim=(0, 1.05 * numbers_in[-1]))
    axes.set_xticks(LENGTHS)
    label_axes(axes, "Untrained: what can reach the decoder", "words of the source", "directions")
    legend_below(axes)
