"""Lesson: how far a stack of narrow windows looks, predicted by `reach` and measured by a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from regard.arguments import count_of
from regard.layers import MultiHeadAttention
from regard.patterns import Pattern, parse
from regard.patterns.drawing import learned
from regard_lab.lessons.figures import LINES, Figure, begin, draw_map, scale_beside
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import embedded, rounded, seeded, words_of

TEXT = (
    "The animal that had walked all day along the dusty road did not cross the wide street because it was far too "
    "tired to hurry home"
)
PATTERNS = ("causal_window(4)", "sliding_window(4)", "dilated_window(3, 3)")
LAYERS = 4
DIM = 16

CODE = """\
import torch
import regard as rg
from regard import patterns as p

stack = torch.nn.Sequential(*[rg.MultiHeadAttention(16, 2, pattern="causal_window(4)") for _ in range(3)])
x = torch.randn(1, 24, 16, requires_grad=True)
stack(x)[0, -1].sum().backward()  # which words does the last word depend on?
reached = x.grad[0].norm(dim=-1) > 0
print(reached.nonzero().flatten().tolist(), p.CausalWindow(4).reach(3))"""


def teach(settings: Settings) -> Lecture:
    """Predict and measure which words each word depends on through 1 to 4 layers."""
    words = words_of(settings.text, TEXT, least=3)
    fields = [_fields(parse(text), words, settings.seed) for text in PATTERNS]
    numbers = {"words": list(words), "layers": list(range(1, LAYERS + 1)), "patterns": fields}
    return numbers, (
        "A layer in which each word looks at w neighbours costs n · w instead of n². Words outside the window "
        "still have an effect, because the neighbours have looked at their own neighbours in the layer below. "
        "Each layer extends the reach by one window.",
        "pattern.reach(layers) returns this reach without computing attention. A gradient measures it: in a stack "
        "of attention layers with random weights, the output of a word has a gradient of exactly 0 with respect to "
        "every word that it cannot depend on.",
        "Per layer, causal_window(w) reaches w - 1 words back and sliding_window(w) w // 2 words to each side. A "
        "dilated window reaches d times as far at the same cost, but skips words. Source: Beltagy et al. 2020, "
        "section 3.1; Jiang et al. 2023 (Mistral 7B), section 2.",
    )


def receptive(pattern: Pattern, x: torch.Tensor, layers: int, seed: int) -> torch.Tensor:
    """How strongly each word's output depends on each input word, (length, length), by the gradient.

    Every batch row holds the same sentence, and only output i of batch row i is differentiated, so that one backward
    pass covers all words.
    """
    length = x.shape[1]
    stack = [seeded(seed + layer, MultiHeadAttention, DIM, 2, pattern=pattern) for layer in range(layers)]
    inputs = x.repeat(length, 1, 1).requires_grad_()  # (length, length, DIM)
    outputs = torch.nn.Sequential(*stack)(inputs)
    asked = outputs.diagonal(dim1=0, dim2=1).sum()
    (gradient,) = torch.autograd.grad(asked, inputs)
    return gradient.norm(dim=-1)


def _fields(pattern: Pattern, words: tuple[str, ...], seed: int) -> dict[str, Any]:
    """For 1 to 4 layers: the words that one word depends on, the farthest dependence of any word, the prediction."""
    length, middle = len(words), _asked(pattern, len(words))
    x = embedded(words, DIM, seed)
    field: dict[str, Any] = {"pattern": str(pattern), "word": middle, "rows": [], "stacks": []}
    away = torch.arange(length)[:, None] - torch.arange(length)
    for layers in range(1, LAYERS + 1):
        strength = receptive(pattern, x, layers, seed)
        seen, reach = strength > 0, pattern.reach(layers)
        field["rows"].append(rounded(strength[middle] / strength[middle].max()))
        field["stacks"].append(
            {
                "predicted": [min(length - 1, far or 0) for far in (reach.back, reach.ahead)],
                "measured": [max(0, int(away[seen].max())), max(0, int((-away[seen]).max()))],
                "middle_sees": seen[middle].nonzero().flatten().tolist(),
                "same_pairs": bool(torch.equal(seen, learned(pattern, length, length, layers))),
            }
        )
    return field


def _asked(pattern: Pattern, length: int) -> int:
    """The last word if a pattern only looks back, else the middle one."""
    return length - 1 if pattern.reach().ahead == 0 else length // 2


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    rows = []
    for field in numbers["patterns"]:
        for layers, stack in zip(numbers["layers"], field["stacks"], strict=True):
            (back, ahead), (far, on) = stack["predicted"], stack["measured"]
            seen = f"{len(stack['middle_sees'])} of {len(numbers['words'])}"
            rows.append((field["pattern"], str(layers), f"{back}, {ahead}", f"{far}, {on}", seen))
    columns = ("pattern", "layers", "reach: back, ahead", "gradient: back, ahead", "words that one word depends on")
    yield Table(f"How far words look in a text of {count_of(len(numbers['words']), 'words')}", columns, tuple(rows))


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    stacks = [stack for field in numbers["patterns"] for stack in field["stacks"]]
    reached = sum(stack["predicted"] == stack["measured"] for stack in stacks)
    same = sum(stack["same_pairs"] for stack in stacks)
    back = [stack["measured"][0] for stack in numbers["patterns"][0]["stacks"]]
    end = len(numbers["words"]) - 1
    yield Claim(
        "reach(layers) is how far the gradient extends back and ahead, within the text.",
        reached == len(stacks),
        f"{reached} of {len(stacks)} stacks",
    )
    yield Claim(
        "The patterns predict exactly which pairs of words depend on each other, skipped words included.",
        same == len(stacks),
        f"all {end + 1}² pairs of {same} of {len(stacks)} stacks",
    )
    yield Claim(
        "Each layer extends the reach by the same number of words.",
        back == [min(end, layers * back[0]) for layers in numbers["layers"]] and back[0] > 0,
        f"{numbers['patterns'][0]['pattern']}: {', '.join(map(str, back))} words back",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    words, fields = numbers["words"], numbers["patterns"]
    width = min(max(7.5, 0.3 * len(words)), 15.0)
    begin(figure, "What one word depends on through a stack of windows", width, 6.2)
    panels = figure.subplots(len(fields), 1)
    for axes, field in zip(panels, fields, strict=True):
        values = torch.tensor(field["rows"])
        unseen = torch.ones_like(values, dtype=torch.bool)
        for row, stack in enumerate(field["stacks"]):
            unseen[row, stack["middle_sees"]] = False
        layers = [f"{count} layer{'s' * (count > 1)}" for count in numbers["layers"]]
        columns = words if axes is panels[0] else ()
        image = draw_map(axes, values, layers, columns, hidden=unseen, cell=0.7 * width / len(words))
        for row, stack in enumerate(field["stacks"]):
            _mark_reach(axes, field["word"], stack["predicted"], row, len(words))
        word = "last" if field["word"] == len(words) - 1 else "middle"
        axes.set_xlabel(f"{field['pattern']}: the {word} word, of {len(words)}", fontsize=9)
    figure.supxlabel("frame: predicted by reach; grey: a gradient of exactly 0", fontsize=8.5, color="#666666")
    scale_beside(figure, image, panels, "gradient, relative to the largest")


def _mark_reach(axes: Any, word: int, reach: list[int], row: int, length: int) -> None:
    left, right = max(0, word - reach[0]) - 0.5, min(length - 1, word + reach[1]) + 0.5
    axes.plot([left, right, right, left, left], [row - 0.5, row - 0.5, row + 0.5, row + 0.5, row - 0.5],
              color=LINES[1], linewidth=1.6, clip_on=False)  # fmt: skip
