"""Lesson: sparse patterns: how many pairs they keep, and how many layers carry each word to every other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from regard.functional import attention, attention_detail
from regard.patterns import Causal, Fixed, Full, GlobalTokens, Pattern, RandomBlocks, SlidingWindow, Strided
from regard_lab.lessons.figures import (
    FAINT,
    LINES,
    Axes,
    Figure,
    begin,
    draw_bars,
    draw_cells,
    draw_curves,
    label_axes,
    logarithmic,
)
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, largest, normal

WINDOW, GLOBALS, RANDOM = 8, 1, 3  # neighbours, global words, and random words of each word
DRAWN = 64  # words in the drawn masks
LAYERED = (64, 144, 256)  # lengths whose layers are counted: squares
COUNTED = (16, 64, 256, 1024)  # lengths whose pairs are counted: squares, each 4 times the one before
DIM = 16
EXACT = 1e-12
FEW = 8  # layers
NEAR = 0.03  # relative; a count is so close to its power of n

CODE = """\
import torch
import regard as rg
from regard import patterns as p

big_bird = p.SlidingWindow(8) | p.GlobalTokens([0]) | p.RandomBlocks(3, block=1, seed=0)
q, k, v = torch.randn(3, 1, 1, 64, 16).unbind(0)  # (batch, heads, length, head_dim)
mask = big_bird.dense(64, 64)
by_mask = (q @ k.mT / 4).masked_fill(~mask, -torch.inf).softmax(-1) @ v
print((rg.attention(q, k, v, pattern=big_bird) - by_mask).abs().max(), int(mask.sum()), "of", 64**2, "pairs")"""


def teach(settings: Settings) -> Lecture:
    """Count pairs and layers of the patterns of BigBird and the Sparse Transformer, and compare with dense masks."""
    here = patterns(DRAWN, settings.seed)
    drawn = {name: reached(pattern, DRAWN, 2) for name, pattern in here.items()}
    numbers: dict[str, Any] = {
        "length": DRAWN, "lengths": list(COUNTED), "layered": list(LAYERED),
        "texts": {name: str(pattern) for name, pattern in here.items()},
        "first_reached": {name: _first_layer(drawn[name]).tolist() for name in SHOWN},
        "pairs": {name: [kept(patterns(n, settings.seed)[name], n) for n in COUNTED] for name in drawn},
        "layers": {name: [_layers(patterns(n, settings.seed)[name], n) for n in LAYERED] for name in drawn},
        "undrawn": [_undrawn(patterns(n, settings.seed)["random"], n) for n in LAYERED],
        "from_dense": {name: _from_dense(pattern, settings.seed) < EXACT for name, pattern in here.items()},
        "weights_elsewhere": {name: _weights_elsewhere(pattern, settings.seed) for name, pattern in here.items()},
    }  # fmt: skip
    numbers["counted_alike"] = {
        name: int(stages[0].sum()) == numbers["pairs"][name][COUNTED.index(DRAWN)] for name, stages in drawn.items()
    }
    return numbers, (
        "In full attention each of n words looks at every word, itself too: n² pairs. A sparse pattern keeps a few "
        "pairs for each word. Which pairs it keeps decides how many layers a word needs until it depends on all "
        "others, because a layer passes on only what the words in its pattern have received in the layers below.",
        f"BigBird joins three patterns: a window ({WINDOW // 2} neighbours on each side), a global word that looks at "
        f"all words and that all words look at, and {RANDOM} random words for each word. The Sparse Transformer is "
        "causal. Its strided pattern keeps the last s words and every s-th word before them; its fixed pattern keeps "
        "the word's own block of s words and the last word of every block. With s = √n both keep about n · √n pairs.",
        "The layers are computed from the patterns by boolean products: a word depends on another after two layers if "
        "it looks at a word that looks at it. Residual connections keep what was reached before. Random words alone "
        "never connect all words: each word looks at three, but some words are not drawn by any other word, so no "
        "other word ever depends on them. Source: Zaheer et al. 2020, section 2; Child et al. 2019, section 4.",
    )


def patterns(length: int, seed: int) -> dict[str, Pattern]:
    """The patterns for texts of a length that is a square number; the strides are its root."""
    near, hub = SlidingWindow(WINDOW), GlobalTokens(range(GLOBALS))
    far, stride = RandomBlocks(RANDOM, block=1, seed=seed), math.isqrt(length)
    return {
        "full": Full(), "window": near, "global": hub, "random": far, "window + random": near | far,
        "BigBird": near | hub | far, "strided": Strided(stride) & Causal(), "fixed": Fixed(stride) & Causal(),
    }  # fmt: skip


def reached(pattern: Pattern, length: int, layers: int) -> list[torch.Tensor]:
    """For 1 to `layers` layers: which word depends on which through this pattern and residuals, (length, length)."""
    step = pattern.dense(length, length) | torch.eye(length, dtype=torch.bool)
    stages = [step]
    while len(stages) < layers:
        stages.append(stages[-1].float() @ step.float() > 0)
    return [pattern.dense(length, length), *stages[1:]]


def kept(pattern: Pattern, length: int) -> int:
    """The pairs that a pattern keeps, counted from its structure; in the mask if it depends on the number of keys.

    Random words do: they are drawn among all keys, and their structure takes longer to count than the mask.
    """
    return int(pattern.dense(length, length).sum()) if pattern.by_length else pattern.count(length, length)


def _first_layer(stages: list[torch.Tensor]) -> torch.Tensor:
    """The layer that first connects each pair, 0 for none."""
    first = torch.zeros(stages[0].shape, dtype=torch.long)
    for layer in range(len(stages), 0, -1):
        first[stages[layer - 1]] = layer
    return first


def _layers(pattern: Pattern, length: int) -> int | None:
    """Layers until each word depends on every other, or every earlier one if causal; None if it never does."""
    wanted = torch.ones(length, length, dtype=torch.bool)
    if pattern.reach().ahead == 0:
        wanted = wanted.tril()
    step = (pattern.dense(length, length) | torch.eye(length, dtype=torch.bool)).float()
    reached, layers = step, 1
    while not bool((reached > 0)[wanted].all()):
        further = (reached @ step > 0).float()
        if torch.equal(further, reached):
            return None
        reached, layers = further, layers + 1
    return layers


def _undrawn(pattern: Pattern, length: int) -> int:
    """How many words no other word looks at."""
    others = pattern.dense(length, length) & ~torch.eye(length, dtype=torch.bool)
    return int((~others.any(0)).sum())


def _operands(seed: int) -> tuple[torch.Tensor, ...]:
    return normal(seed + 1, 3, 1, 1, DRAWN, DIM).unbind(0)


def _from_dense(pattern: Pattern, seed: int) -> float:
    """The largest difference between attention with the pattern and the formula with the dense mask."""
    q, k, v = _operands(seed)
    scores = q @ k.mT / math.sqrt(DIM)
    dense = scores.masked_fill(~pattern.dense(DRAWN, DRAWN), -torch.inf).softmax(-1) @ v
    return largest(attention(q, k, v, pattern=pattern) - dense)


def _weights_elsewhere(pattern: Pattern, seed: int) -> int:
    """How many pairs have a weight though the mask has none there, or the other way round."""
    weights = attention_detail(*_operands(seed), pattern=pattern, want=["weights"]).weights
    assert weights is not None
    return int(((weights[0, 0] > 0) != pattern.dense(DRAWN, DRAWN)).sum())


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    last = COUNTED[-1]
    yield Table(
        f"Pairs kept, window {WINDOW}, {GLOBALS} global, {RANDOM} random, s = √n",
        ("pattern", *(f"n = {n:,}" for n in COUNTED), f"share of n² at {last:,}"),
        tuple(
            (name, *(f"{count:,}" for count in pairs), f"{pairs[-1] / last**2:.2%}")
            for name, pairs in numbers["pairs"].items()
        ),
    )
    yield Table(
        "Layers until each word depends on every other (on every earlier one if causal)",
        ("pattern", *(f"n = {n:,}" for n in LAYERED)),
        tuple(
            (name, *("never" if count is None else str(count) for count in layers))
            for name, layers in numbers["layers"].items()
        ),
    )


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    pairs, layers = numbers["pairs"], numbers["layers"]
    side = WINDOW // 2
    rows = [n * (2 * side + 1) - side * (side + 1) for n in COUNTED]
    growth = {name: counts[-1] / counts[-2] for name, counts in pairs.items()}
    roots = [max(pairs[name][at] / n**1.5 for at, n in enumerate(COUNTED)) for name in ("strided", "fixed")]
    steps = [math.ceil((n - 1) / side) for n in LAYERED]
    mixed = layers["window + random"]
    alike = sum(numbers["counted_alike"].values())
    same, weights = sum(numbers["from_dense"].values()), sum(numbers["weights_elsewhere"].values())
    yield Claim(
        "A window keeps n · (w + 1) pairs less those beyond both ends: linear in n.",
        pairs["window"] == rows and growth["window"] < 4 * (1 + NEAR),
        f"{pairs['window'][-1]:,} of {COUNTED[-1]}² pairs",
    )
    yield Claim(
        "Strided and fixed keep at most 2 · n · √n pairs if s = √n.",
        max(roots) <= 2,
        f"at most {roots[0]:.2f} and {roots[1]:.2f} times n · √n",
    )
    yield Claim(
        "4 times as many words cost 4 times the pairs in a window and in BigBird, 8 times in strided and fixed, "
        "16 times in full attention.",
        all(abs(growth[name] / 4 - 1) < NEAR for name in ("window", "BigBird"))
        and all(abs(growth[name] / 8 - 1) < NEAR for name in ("strided", "fixed"))
        and growth["full"] == 16,
        ", ".join(f"{name} {growth[name]:.2f}" for name in ("window", "BigBird", "strided", "fixed", "full"))
        + f" from {COUNTED[-2]:,} to {COUNTED[-1]:,} words",
    )
    yield Claim(
        "A window alone needs (n - 1) / (w / 2) layers, rounded up, until each word depends on every other.",
        layers["window"] == steps,
        f"{', '.join(map(str, layers['window']))} layers for {', '.join(map(str, LAYERED))} words",
    )
    yield Claim(
        f"With {RANDOM} random words for each word, a window needs at most {FEW} layers.",
        all(few is not None and few <= FEW for few in mixed) and layers["window"][-1] > 4 * FEW,
        f"{', '.join(map(str, mixed))} layers for {', '.join(map(str, LAYERED))} words",
    )
    yield Claim(
        "Random words alone never connect all words, because some words are not drawn by any other word.",
        layers["random"] == [None] * len(LAYERED) and min(numbers["undrawn"]) > 0,
        f"{', '.join(map(str, numbers['undrawn']))} words not drawn by any other, of {', '.join(map(str, LAYERED))}",
    )
    yield Claim(
        "Two layers suffice with a global word, and for strided and fixed with s = √n.",
        all(layers[name] == [2] * len(LAYERED) for name in ("global", "BigBird", "strided", "fixed")),
        f"at {', '.join(map(str, LAYERED))} words",
    )
    yield Claim(
        "Sparse attention gives the same output as dense attention with the mask.",
        same == len(pairs) and weights == 0,
        f"{same} of {len(pairs)} patterns {ROUNDING}; weights outside the mask: {weights} pairs",
    )
    yield Claim(
        "The counts are the numbers of pairs in the masks.",
        alike == len(pairs),
        f"{alike} of {len(pairs)} patterns with {DRAWN} words",
    )


SHOWN = {
    "window": "window", "global": "global", "random": "random", "BigBird": "all three: BigBird",
    "strided": "strided, s = 8", "fixed": "fixed, s = 8",
}  # fmt: skip
GROWING = ("full", "strided", "fixed", "BigBird", "window")


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    title = "Which word looks at which. Dark: kept in one layer. Light: reached through two layers. White: not reached."
    begin(figure, title, 13.0, 7.4)
    panels = figure.subplots(2, 4)
    masks = [*panels[0], *panels[1, :2]]
    for axes, (name, title) in zip(masks, SHOWN.items(), strict=True):
        _draw_mask(axes, torch.tensor(numbers["first_reached"][name]), title)
    curves = {name: numbers["pairs"][name] for name in GROWING}
    labels = "Pairs kept", "words n", "pairs"
    draw_curves(panels[1, 2], numbers["lengths"], curves, labels, log="xy", columns=3)
    _draw_layers(panels[1, 3], numbers)


def _draw_mask(axes: Axes, first: torch.Tensor, title: str) -> None:
    """The pairs of one layer dark, those that two layers reach light, the others white."""
    draw_cells(axes, first, ("#ffffff", LINES[0], "#cfe3f1"), "equal")
    kept, two = int((first == 1).sum()), int((first > 0).sum())
    causal = not bool((first.triu(1) > 0).any())
    possible = len(first) * (len(first) + 1) // 2 if causal else first.numel()
    axes.set_title(title, fontsize=11, fontweight="bold")
    axes.set_xlabel(f"keys\n{kept:,} pairs kept;\ntwo layers reach {two:,} of {possible:,}", fontsize=9)
    axes.set_ylabel("queries", fontsize=9)
    axes.spines[:].set_color(FAINT)


def _draw_layers(axes: Axes, numbers: dict[str, Any]) -> None:
    names = ("window", "window + random", "BigBird", "global", "strided", "fixed")
    layers = {name: numbers["layers"][name][-1] for name in names}
    draw_bars(axes, layers, list(map(str, layers.values())))
    label_axes(axes, f"Layers to reach all of {numbers['layered'][-1]:,} words", "layers", "")
    logarithmic(axes, [2**power for power in range(9)])
    axes.set_xlim(1, max(layers.values()) * 2.5)
