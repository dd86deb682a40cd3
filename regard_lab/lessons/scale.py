"""Lesson: why scores are divided by sqrt(head_dim)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

from regard.arguments import count_of
from regard.functional import attention_detail
from regard_lab.lessons.figures import FAINT, Figure, begin, draw_curves
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import embedded, normal, words_of

TEXT = "The animal did not cross the street because it was too tired."
HEAD_DIMS = tuple(2**power for power in range(1, 9))
DIM, HEADS = 64, 48  # size of a word's vector; number of heads whose results are averaged
STAYS = 0.1  # relative change up to which a value counts as constant

CODE = """\
import torch
import regard as rg

q, k, v = torch.randn(3, 1, 64, 12, 512).unbind(0)  # (batch, heads, length, head_dim)
scaled = rg.attention_detail(q, k, v, want=["entropy"]).entropy.mean()
unscaled = rg.attention_detail(q, k, v, scale=1.0, want=["entropy"]).entropy.mean()
print(scaled, unscaled)"""


def teach(settings: Settings) -> Lecture:
    """Measure the entropy of the weights and the gradient of the scores for several head_dim."""
    words = words_of(settings.text, TEXT)
    x = embedded(words, DIM, settings.seed)
    unscaled, scaled = ([_measured(x, dim, scale, settings.seed) for dim in HEAD_DIMS] for scale in (1.0, None))
    numbers = {
        "words": list(words), "head_dim": list(HEAD_DIMS), "largest_entropy": round(math.log(len(words)), 4),
        "unscaled": _columns(unscaled), "scaled": _columns(scaled),
    }  # fmt: skip
    return numbers, (
        "A score is a dot product: a sum of head_dim products. If the numbers of queries and keys are independent "
        "with variance 1, the sum has variance head_dim, so its size grows with the square root of head_dim.",
        "If scores are large, softmax gives nearly all weight to one word. The entropy says how evenly the weights "
        "are spread: 0 means that one word has all the weight, and equal weights for n words give ln n (its unit "
        "is called nat). With large scores it falls towards 0, the gradient of the scores falls with it, and "
        "training becomes slow. Divided by the square root of head_dim, scores have variance 1 for every head_dim.",
        f"In this lesson every word of “{' '.join(words)}” is a random vector from a seed. {HEADS} heads project "
        f"it to queries, keys and values of each size and attend twice, with scale=1 and with regard's default. "
        f"Source: Vaswani et al. 2017, section 3.2.1, footnote 4.",
    )


def _measured(x: torch.Tensor, head_dim: int, scale: float | None, seed: int) -> tuple[float, float, float]:
    """Standard deviation of the scores, entropy of the weights, and mean absolute gradient of a score."""
    length = x.shape[1]
    projections = normal(seed + 1, 3, HEADS, DIM, head_dim) / math.sqrt(DIM)
    q, k, v = (x[:, None] @ projections[:, None]).unbind(0)  # (1, heads, length, head_dim), of variance 1
    added = torch.zeros(
        1, HEADS, length, length, dtype=torch.float64, requires_grad=True
    )  # its gradient is that of the scores
    detail = attention_detail(q, k, v, scale=scale, bias=added, want=["entropy"])
    arriving = normal(seed + 2, *detail.output.shape) / math.sqrt(head_dim)
    (gradient,) = torch.autograd.grad((detail.output * arriving).sum(), added)
    spread = (q @ k.mT).std() * (scale or head_dim**-0.5)
    return float(spread), float(detail.entropy.detach().mean()), float(gradient.abs().mean())


def _columns(measured: list[tuple[float, float, float]]) -> dict[str, list[float]]:
    names = ("spread", "entropy", "gradient")
    return {
        name: [round(value, 4) for value in values]
        for name, values in zip(names, zip(*measured, strict=True), strict=True)
    }


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    parts = [numbers[kind][name] for name in ("spread", "entropy", "gradient") for kind in ("unscaled", "scaled")]
    columns = (
        "head_dim",
        "spread of scores",
        "spread, scaled",
        "entropy",
        "entropy, scaled",
        "gradient",
        "gradient, scaled",
    )
    rows = tuple(
        (str(dim), *(f"{value:.3f}" for value in values))
        for dim, *values in zip(numbers["head_dim"], *parts, strict=True)
    )
    yield Table("Scores, weights and gradients by head_dim (entropy: 0 = one word only)", columns, rows)


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    plain, scaled = numbers["unscaled"], numbers["scaled"]
    entropy, gradient = plain["entropy"], plain["gradient"]
    falls = all(later < earlier for earlier, later in pairwise(entropy))
    spreads = [spread / math.sqrt(dim) for dim, spread in zip(numbers["head_dim"], plain["spread"], strict=True)]
    yield Claim(
        "Unscaled scores spread with the square root of head_dim.",
        all(abs(ratio - 1) < STAYS for ratio in spreads),
        f"spread / sqrt(head_dim) is {min(spreads):.2f} to {max(spreads):.2f}",
    )
    yield Claim(
        "The entropy of unscaled weights falls with every doubling of head_dim.",
        falls,
        f"from {entropy[0]:.2f} to {entropy[-1]:.2f} nats",
    )
    yield Claim(
        "The gradient that reaches unscaled scores falls to less than half of its largest value.",
        gradient[-1] < max(gradient) / 2,
        f"from {max(gradient):.3f} to {gradient[-1]:.3f}",
    )
    yield from (_stays(name, scaled[name]) for name in ("entropy", "gradient"))


def _stays(name: str, values: list[float]) -> Claim:
    steady = max(values) - min(values) < 2 * STAYS * max(values)
    return Claim(f"Scaled, the {name} stays about the same.", steady, f"{min(values):.3f} to {max(values):.3f}")


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "Scores with and without division by sqrt(head_dim)", 9.0, 4.2)
    left, right = figure.subplots(1, 2)
    panels = (
        (left, "entropy", "Entropy of the weights", "nats"),
        (right, "gradient", "Gradient that reaches a score", "mean absolute value"),
    )
    for axes, name, title, unit in panels:
        curves = {kind: numbers[kind][name] for kind in ("unscaled", "scaled")}
        draw_curves(axes, numbers["head_dim"], curves, (title, "head_dim", unit), log="x")
        axes.set_ylim(bottom=0)
    left.axhline(numbers["largest_entropy"], color=FAINT, linestyle="--", linewidth=1)
    left.annotate(
        f"equal weights for {count_of(len(numbers['words']), 'words')}", (1, numbers["largest_entropy"]), (0, 3),
        color=FAINT, fontsize=8, xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
    )  # fmt: skip
    left.set_ylim(top=1.12 * numbers["largest_entropy"])
