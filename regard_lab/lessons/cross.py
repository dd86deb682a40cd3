"""Lesson: cross-attention between the cells of an image (queries) and the words of a sentence (keys, values)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from regard.arguments import count_of
from regard.errors import UnsupportedError
from regard.layers import MultiHeadAttention, record_attention
from regard_lab.lessons.figures import Figure, begin, draw_cells, draw_map, scale_beside
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, embedded, largest, normal, rounded, seeded

SENTENCE = ("a", "red", "ball", "on", "green", "grass", "under", "a", "blue", "sky")
SHOWN = ("sky", "ball", "grass")  # what a cell of the image can show
HEIGHT, WIDTH = 12, 16
CHANNELS, CONTEXT_DIM, HEADS = 32, 48, 2
THING_COLOURS = ("#56B4E9", "#D55E00", "#009E73")
NOISE = 0.1  # standard deviation, where that of the channels is 1
SHARPNESS = 5.0  # by how much the score of the right word exceeds that of a random word
EXACT = 1e-12

CODE = """\
import torch
import regard as rg

image = torch.randn(1, 32, 12, 16)  # (batch, channels, height, width)
words = torch.randn(1, 10, 48)  # (batch, words, context_dim)
layer = rg.MultiHeadAttention(dim=32, heads=2, context_dim=48)
cells = image.flatten(2).mT  # (batch, height * width, channels)
y = layer(cells, context=words)
print(y.mT.unflatten(2, (12, 16)).shape)  # an image again"""


def teach(settings: Settings) -> Lecture:
    """Compute cross-attention from the cells of an image, (batch, height * width, channels), to a sentence."""
    parts, image = scene(settings.seed)
    words = embedded(SENTENCE, CONTEXT_DIM, settings.seed)
    layer = _taught_layer(parts, words, settings.seed)
    cells = image.flatten(2).mT  # (1, height * width, channels)
    with record_attention(layer) as recording:
        output = layer(cells, context=words)
    weights = recording[""][0].weights[0].mean(0)  # (height * width, words)
    asked = _picture().flatten()
    own = torch.tensor([SENTENCE.index(word) for word in SHOWN])[asked]
    moved = torch.randperm(len(asked), generator=torch.Generator().manual_seed(settings.seed))
    numbers = {
        "words": list(SENTENCE), "grid": [HEIGHT, WIDTH], "channels": CHANNELS, "context_dim": CONTEXT_DIM,
        "shapes": {
            "queries": list(cells.shape), "context": list(words.shape), "output": list(output.shape),
            "weights": list(recording[""][0].weights.shape),
        },
        "weights": rounded(weights.T.unflatten(1, (HEIGHT, WIDTH)), 3),  # (words, height, width)
        "cells_right": int((weights.argmax(-1) == own).sum()),
        "mean_weight": {
            word: rounded(weights[asked == number].mean(0), 3) for number, word in enumerate(SHOWN)
        },
        "rows_sum_to_one": largest(weights.sum(-1) - 1) < EXACT,
        "by_hand": largest(_by_hand(layer, cells, words) - output) < EXACT,
        "cells_apart": largest(layer(cells[:, moved], context=words) - output[:, moved]) < EXACT,
        "refusal": _refusal(layer, cells, words),
    }  # fmt: skip
    return numbers, (
        "In cross-attention the queries come from one sequence, keys and values from another. The two sequences "
        "may differ in length and in vector size, since the projections map both to head_dim. In text-to-image "
        "models, for example, every cell of an image attends to the words of a prompt.",
        f"An image of {CHANNELS} channels on a grid of {HEIGHT} by {WIDTH} is a sequence of {HEIGHT * WIDTH} queries, "
        f"(batch, height * width, channels); the sentence has {count_of(len(SENTENCE), 'words')} of {CONTEXT_DIM} "
        "numbers, so context_dim differs from dim.",
        "Nothing is trained here. The query projection is computed such that a cell that shows sky has a query "
        "similar to the key of “sky”, and so on; keys, values and the noise of the cells are random. Cell 3 and word "
        "3 are unrelated, so “earlier” has no meaning between them, and regard refuses patterns that compare their "
        "positions. Source: Vaswani et al. 2017, section 3.2.3; Rombach et al. 2022, section 3.3.",
    )


def _picture() -> torch.Tensor:
    """The number of the thing that each cell shows, (height, width): sky above, grass below, a ball between."""
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    picture = torch.where(y < HEIGHT // 2, SHOWN.index("sky"), SHOWN.index("grass"))
    return picture.masked_fill((y - 6.5) ** 2 + (x - 5.5) ** 2 < 12, SHOWN.index("ball"))


def scene(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A vector for each thing that can be shown, (things, channels), and the image, (1, channels, height, width)."""
    parts = normal(seed + 1, len(SHOWN), CHANNELS)
    image = parts[_picture()] + NOISE * normal(seed + 2, HEIGHT, WIDTH, CHANNELS)
    return parts, image.permute(2, 0, 1)[None]


def _taught_layer(parts: torch.Tensor, words: torch.Tensor, seed: int) -> MultiHeadAttention:
    """A random layer whose query projection maps what a cell shows to a multiple of the key of its word."""
    layer = seeded(seed, MultiHeadAttention, CHANNELS, HEADS, context_dim=CONTEXT_DIM, projection_bias=False)
    assert layer.to_k is not None
    keys = layer.to_k(words)[0, [SENTENCE.index(word) for word in SHOWN]].detach()  # (things, channels)
    lengths = keys.unflatten(1, (HEADS, -1)).norm(dim=-1, keepdim=True)
    wanted = keys.unflatten(1, (HEADS, -1)) / lengths.square() * SHARPNESS * math.sqrt(layer.head_dim)
    layer.to_q.weight.data = (torch.linalg.pinv(parts) @ wanted.flatten(1)).mT
    return layer


def _by_hand(layer: MultiHeadAttention, cells: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """The formula written out: softmax(q kᵀ / sqrt(head_dim)) v in each head, joined and projected."""
    assert layer.to_k is not None
    q, k, v = (
        projected.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for projected in (layer.to_q(cells), layer.to_k(words), layer.to_v(words))
    )
    weights = (q @ k.mT / math.sqrt(layer.head_dim)).softmax(-1)  # (1, heads, height * width, words)
    return layer.to_output((weights @ v).transpose(1, 2).flatten(2))


def _refusal(layer: MultiHeadAttention, cells: torch.Tensor, words: torch.Tensor) -> str:
    try:
        layer(cells, context=words, pattern="causal")
    except UnsupportedError as error:
        return str(error)
    return ""


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    shapes = numbers["shapes"]
    meanings = {
        "queries": "batch, height * width, channels", "context": "batch, words, context_dim",
        "weights": "batch, heads, height * width, words", "output": "batch, height * width, channels",
    }  # fmt: skip
    yield Table(
        "Shapes",
        ("tensor", "axes", "here"),
        tuple((name, axes, " × ".join(map(str, shapes[name]))) for name, axes in meanings.items()),
    )
    yield Table(
        "Mean weight of each word for the cells that show a thing",
        ("cells of", *numbers["words"]),
        tuple((thing, *(f"{weight:.2f}" for weight in row)) for thing, row in numbers["mean_weight"].items()),
    )


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    shapes = numbers["shapes"]
    yield Claim(
        "The output has the image's shape, and the weights have a row for every cell and a column for every word.",
        shapes["output"] == shapes["queries"] and shapes["weights"][2:] == [HEIGHT * WIDTH, len(SENTENCE)],
        f"cells of {CHANNELS} channels attend to words of {CONTEXT_DIM} numbers",
    )
    yield Claim("The weights of each cell sum to 1.", numbers["rows_sum_to_one"], ROUNDING)
    yield Claim(
        "Every cell gives its largest weight to the word for what it shows.",
        numbers["cells_right"] == HEIGHT * WIDTH,
        f"{numbers['cells_right']} of {HEIGHT * WIDTH} cells",
    )
    yield Claim("The layer computes the formula written out in PyTorch.", numbers["by_hand"], ROUNDING)
    yield Claim(
        "Cells are independent: shuffling the cells shuffles the outputs.",
        numbers["cells_apart"],
        ROUNDING,
    )
    yield Claim(
        "The pattern “causal” between an image and a sentence is refused.",
        bool(numbers["refusal"]),
        numbers["refusal"] or "it was not",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "Cross-attention from the cells of an image to a sentence", 12.0, 4.4)
    rows, columns = 2, len(SENTENCE) // 2
    panels = figure.subplots(rows, columns + 1)
    shown = panels[0, 0]
    draw_cells(shown, _picture(), THING_COLOURS, "equal")
    for thing, x, y in (("sky", 12, 2), ("ball", 5.5, 6.5), ("grass", 12, 9)):
        shown.text(x, y, thing, ha="center", va="center", fontsize=9)
    shown.set_title("what the cells show", fontsize=9)
    panels[1, 0].set_axis_off()
    places = [panels[row, column] for row in range(rows) for column in range(1, columns + 1)]
    for axes, word, weights in zip(places, SENTENCE, numbers["weights"], strict=True):
        image = draw_map(axes, torch.tensor(weights))
        axes.set_title(f"“{word}”", fontsize=10, fontweight="bold" if word in SHOWN else "normal")
    for axes in [shown, *places]:
        axes.set_aspect("equal")
    figure.supxlabel(f"each map: the weight that each of {HEIGHT} × {WIDTH} cells gives to one word", fontsize=9)
    scale_beside(figure, image, panels, "attention weight, mean of the heads")
