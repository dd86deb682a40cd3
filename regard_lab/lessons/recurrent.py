"""Lesson: why not recurrent: the steps that must wait for each other, counted in what really runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from regard.arguments import count_of
from regard.layers import MultiHeadAttention
from regard_lab.decoding import greedy_search
from regard_lab.decoding.search import SpecialIds
from regard_lab.lessons.figures import FAINT, INK, LINES, Axes, Figure, begin, draw_curves, label_axes
from regard_lab.lessons.stepping import DIM, WIDTH, Recurrent, boxes_of, count_steps, longest_chain, marked_steps
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, embedded, largest, milliseconds, normal, seeded
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.models.recurrent import RecurrentConfig
from regard_lab.models.translation_transformer import TranslationConfig

TEXT = "The animal did not cross the street because it was too tired."
LENGTHS = (4, 8, 16, 32, 64, 128)
TIMED, TIMED_DIM = (64, 256, 1024), 64
WRITTEN = (4, 8, 16)  # words of the target
FORGOTTEN, KEPT = 1e-6, 1e-3  # gradients relative to that of the last word
EXACT = 1e-10

CODE = """\
import torch
import regard as rg

x = torch.randn(1, 50, 16)  # (batch, words, dim)
cell, state, steps = torch.nn.GRUCell(16, 16), torch.zeros(1, 16), 0
for word in x.unbind(1):
    state = cell(word, state)  # needs the state after the word before
    steps += 1
layer = rg.MultiHeadAttention(dim=16, heads=2, pattern="causal")
at_once, cache = layer(x), layer.new_cache(batch=1)  # one step for all words
word_by_word = torch.cat([layer(word, cache=cache) for word in x.split(1, dim=1)], 1)
print(steps, (at_once - word_by_word).abs().max())"""


NAMES = {
    "recurrent": "recurrent network",
    "convolution": f"causal convolutions of width {WIDTH}",
    "dilated": "dilated causal convolutions",
    "attention": "attention layer",
}


def teach(settings: Settings) -> Lecture:
    """Count steps by length for each network, compare one call with step by step, and time both."""
    counts = {name: [count_steps(name, length, settings.seed) for length in LENGTHS] for name in NAMES}
    numbers = {
        "lengths": list(LENGTHS), "steps": {name: [one["steps"] for one in counts[name]] for name in NAMES},
        "paths": {name: [one["path"] for one in counts[name]] for name in NAMES},
        "gradients": {
            name: [float(f"{one['gradient']:.2e}") for one in counts[name]] for name in ("recurrent", "attention")
        },
        "drawn": {name: boxes_of(name, len(TEXT.split()), settings.seed) for name in NAMES},
        "same_cells": largest(_gru_at_once(settings.seed)) < EXACT,
        "written": list(WRITTEN), **_writing(settings.seed),
        "measured": {"timed": list(TIMED), "milliseconds": _times(settings.seed)},
    }  # fmt: skip
    return numbers, (
        "A recurrent network updates one state word by word. The state after word t needs the state after word "
        "t - 1, so a text of n words takes n steps, however many processors there are. An attention "
        "layer computes the outputs of all words from the inputs of all words: one step for any length.",
        f"A causal convolution also computes all words in one step, but each from {WIDTH} words: itself and the "
        f"{WIDTH - 1} before it. So the last word depends on the first only through a stack of about n / {WIDTH - 1} "
        f"layers, or of about log_{WIDTH}(n) layers if each looks {WIDTH} times as far as the one before it.",
        "We count how many calculations must wait for each other, in the record that PyTorch keeps of a run. A "
        "stack of convolutions has as few layers as are needed for the first word to reach the last output.",
        "This is why a Transformer is trained faster: the target is known, so one call predicts every next word. This "
        "call takes five attention layers one after the other, for any length. Counted from 0 they are: "
        "self-attention of encoder layers 0 and 1, cross-attention of decoder layer 0, and self-attention and "
        "cross-attention of decoder layer 1. The self-attention of decoder layer 0 can run beside the encoder. "
        "Generation is different: each word is an input of the next step, so every model writes one word in each "
        "step. Attention costs n² pairs; the lesson complexity measures at which length this costs more than it saves.",
        "The gradients of the table are of random weights. In the recurrent network the influence of the first word "
        "passes through one cell after the other and shrinks in each. In the attention layer it takes one step, "
        "however far away the word is; its size follows from the random vectors of the two words, so it rises and "
        "falls without a trend, and exceeds 1 where the first word has more weight than the last. Source: Vaswani et "
        "al. 2017, section 4 and table 1.",
    )


def _gru_at_once(seed: int) -> torch.Tensor:
    """The difference between torch's GRU and its cell called word by word with the same weights."""
    made, whole = Recurrent(seed), seeded(seed, nn.GRU, DIM, DIM, batch_first=True)
    for name, weight in made.cell.named_parameters():
        getattr(whole, f"{name}_l0").data = weight.data
    x = embedded(TEXT.split(), DIM, seed)
    return whole(x)[0] - torch.stack(made(x.unbind(1)), 1)


def _writing(seed: int) -> dict[str, Any]:
    """Steps of training and writing by length of the target, and whether both compute the same logits."""
    config = TranslationConfig(vocab_size=24, dim=16, heads=2, dropout=0.0)
    model = seeded(seed, TranslationTransformer, config).eval()
    other = seeded(seed, RecurrentTranslator, RecurrentConfig(vocab_size=24, dim=16, hidden=16, dropout=0.0)).eval()
    generator = torch.Generator().manual_seed(seed)
    source, target = (torch.randint(4, 24, (1, length), generator=generator) for length in (8, max(WRITTEN)))
    with torch.no_grad():
        state = model.start(source)
        one_by_one = torch.stack([model.step(ids, state) for ids in target.unbind(1)], 1)
        same = largest(model(source, target) - one_by_one) < EXACT
    layers = [unit for unit in model.modules() if isinstance(unit, MultiHeadAttention)]
    trained = []
    for length in WRITTEN:
        with marked_steps(layers):
            trained.append(longest_chain(model(source, target[:, :length])))
    return {
        "same_scores": same, "trained": trained,
        "writing": {
            kind: [_written(one, source, length) for length in WRITTEN]
            for kind, one in (("recurrent", other), ("transformer", model))
        },
    }  # fmt: skip


def _written(model: Any, source: torch.Tensor, length: int) -> int:
    """How often greedy search calls `step` to write `length` words."""
    calls = []

    class Counted:
        start = staticmethod(model.start)

        @staticmethod
        def step(ids: torch.Tensor, state: Any) -> torch.Tensor:
            calls.append(ids)
            return model.step(ids, state)

    (written,) = greedy_search(Counted(), source, max_length=length, special=SpecialIds(end=None))
    assert len(written.ids) == length
    return len(calls)


def _times(seed: int) -> dict[str, list[float]]:
    """CPU milliseconds of one layer by length, without gradients."""
    layers: dict[str, Callable[[torch.Tensor], Any]] = {
        "recurrent": seeded(seed, nn.GRU, TIMED_DIM, TIMED_DIM, batch_first=True).float(),
        "attention": seeded(seed, MultiHeadAttention, TIMED_DIM, 4, pattern="causal").float(),
    }
    calls = {
        (name, length): partial(layer, normal(seed, 1, length, TIMED_DIM).float())
        for name, layer in layers.items()
        for length in TIMED
    }
    times = milliseconds(calls)
    return {name: [times[name, length] for length in TIMED] for name in layers}


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    writing, gradients = numbers["writing"], numbers["gradients"]
    yield Table(
        "Steps that wait for each other, counted",
        ("words", *NAMES.values()),
        tuple((str(length), *(str(numbers["steps"][name][at]) for name in NAMES)) for at, length in enumerate(LENGTHS)),
    )
    yield Table(
        "Steps for a target of n words",
        ("words", "Transformer in training", "Transformer writing", "recurrent translator writing"),
        tuple(
            (
                str(length),
                f"{count_of(trained, 'layers')}",
                f"{count_of(one, 'calls')}",
                f"{count_of(two, 'calls')}",
            )
            for length, trained, one, two in zip(
                WRITTEN, numbers["trained"], writing["transformer"], writing["recurrent"], strict=True
            )
        ),
    )
    yield Table(
        "How much the last output depends on the first word (1 = as much as on the last word; random weights)",
        ("words", NAMES["recurrent"], NAMES["attention"]),
        tuple(
            (str(length), _plain(one), _plain(two))
            for length, one, two in zip(LENGTHS, gradients["recurrent"], gradients["attention"], strict=True)
        ),
    )
    yield Table(
        f"CPU time of one layer with {TIMED_DIM} numbers per word, 1 thread, milliseconds",
        ("words", "recurrent (torch's GRU)", "causal attention, 4 heads"),
        tuple(
            (f"{length:,}", f"{one:.2f}", f"{two:.2f}")
            for length, one, two in zip(TIMED, *numbers["measured"]["milliseconds"].values(), strict=True)
        ),
        measured=True,
    )


def _plain(share: float) -> str:
    """A share without an exponent.

    >>> _plain(0.8), _plain(1.35), _plain(2e-8)
    ('0.80', '1.35', 'below 0.000001')
    """
    return "below 0.000001" if share < 1e-6 else f"{share:.2f}" if share >= 0.1 else f"{share:.6f}".rstrip("0")


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    counted, gradients = numbers["steps"], numbers["gradients"]
    ends = f"{{}} for {LENGTHS[0]} words, {{}} for {LENGTHS[-1]}"
    yield Claim(
        "A recurrent network takes one step after the other for each word.",
        counted["recurrent"] == list(LENGTHS),
        ends.format(count_of(counted["recurrent"][0], "steps"), counted["recurrent"][-1]),
    )
    yield Claim(
        f"Causal convolutions of width {WIDTH} connect n words after (n - 1) / {WIDTH - 1} layers, rounded up.",
        counted["convolution"] == [-(-(length - 1) // (WIDTH - 1)) for length in LENGTHS],
        ends.format(count_of(counted["convolution"][0], "steps"), counted["convolution"][-1]),
    )
    yield Claim(
        f"Dilated convolutions do so after L layers, where L is the least number with {WIDTH}^L ≥ n.",
        all(
            WIDTH ** (layers - 1) < length <= WIDTH**layers
            for length, layers in zip(LENGTHS, counted["dilated"], strict=True)
        ),
        ends.format(count_of(counted["dilated"][0], "steps"), counted["dilated"][-1]),
    )
    yield Claim(
        "An attention layer takes one step for any length.",
        set(counted["attention"]) == {1},
        ends.format(count_of(counted["attention"][0], "steps"), counted["attention"][-1]),
    )
    yield Claim(
        "There is no shortcut: the first word reaches the last output only through all of these steps.",
        numbers["paths"] == counted,
        f"in each of {sum(map(len, counted.values()))} networks: four kinds, {count_of(len(LENGTHS), 'lengths')}",
    )
    yield Claim("torch's GRU computes the same, word by word.", numbers["same_cells"], ROUNDING)
    yield Claim(
        "A Transformer predicts all words of a known target in one call, with the same results as word by word.",
        numbers["same_scores"],
        f"{max(WRITTEN)} words, {ROUNDING}",
    )
    yield Claim(
        "The steps of this call do not grow with the length.",
        len(set(numbers["trained"])) == 1,
        f"{count_of(numbers['trained'][0], 'attention layers')} for {count_of(WRITTEN[0], 'words')}, "
        f"{numbers['trained'][-1]} for {WRITTEN[-1]}",
    )
    yield Claim(
        "Generation takes one call for each word, in a Transformer and in a recurrent network.",
        all(calls == list(WRITTEN) for calls in numbers["writing"].values()),
        f"{WRITTEN[-1]} words, {numbers['writing']['transformer'][-1]} and {numbers['writing']['recurrent'][-1]} calls",
    )
    yield Claim(
        "With random weights the gradient of the first word nearly vanishes in the recurrent network, but not in "
        "the attention layer.",
        gradients["recurrent"][-1] < FORGOTTEN and gradients["attention"][-1] > KEPT,
        f"{_plain(gradients['recurrent'][-1])} and {_plain(gradients['attention'][-1])} of that of the last word, "
        f"{LENGTHS[-1]} words",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    words = list(map(str, TEXT.split()))
    begin(figure, "How many steps until the last word has read the first?", 12.6, 5.2)
    *panels, curves = figure.subplots(1, 5, width_ratios=(1, 1, 1, 1, 1.25))
    for number, (axes, name) in enumerate(zip(panels, NAMES, strict=True)):
        _draw_steps(axes, numbers["drawn"][name], words, number)
        count = numbers["drawn"][name]["steps"]
        label_axes(axes, f"{NAMES[name]}\n{count} step{'s' * (count > 1)}", "", "step" if number == 0 else "")
    steps = {title: numbers["steps"][name] for name, title in NAMES.items()}
    labels = "Steps by length", "words", "steps one after the other"
    draw_curves(curves, LENGTHS, steps, labels, log="xy", columns=1)
    curves.set_yticks((1, 4, 16, 64), ["1", "4", "16", "64"])


def _draw_steps(axes: Axes, drawn: dict[str, Any], words: list[str], number: int) -> None:
    """A box for each word that a step computes, and the way of the first word to the last output."""
    from matplotlib.patches import Rectangle

    for step, first, last in drawn["boxes"]:
        for place in range(first, last + 1):
            axes.add_patch(
                Rectangle((place - 0.44, step - 0.42), 0.88, 0.84, facecolor=LINES[number], alpha=0.45, linewidth=0)
            )
    way = [0, *accumulate(drawn["moves"])]
    axes.plot([min(place, len(words) - 1) for place in way], range(len(way)), color=INK, linewidth=1.6, marker="o",
              markersize=3.2)  # fmt: skip
    axes.axhline(0.3, color=FAINT, linewidth=0.8)
    axes.set(xlim=(-0.7, len(words) - 0.3), ylim=(-0.5, len(words) + 0.7))
    axes.set_xticks(range(len(words)), words, rotation=90, fontsize=7.5)
    axes.set_yticks(range(0, len(words) + 1, 2), ["words", *map(str, range(2, len(words) + 1, 2))])
