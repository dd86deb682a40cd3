"""Lesson: the causal mask in three steps, and a check that later words have no effect."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from regard.arguments import count_of
from regard.functional import attention, attention_detail
from regard.patterns import Causal
from regard_lab.lessons.figures import Figure, begin, draw_map, scale_beside
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, embedded, largest, normal, rounded, words_of

TEXT = "Life is short, eat dessert first"
DIM = 16
EXACT = 1e-12
PRINTED = 12  # longest sentence whose weights are printed as a table

CODE = """\
import torch
import regard as rg

q, k, v = torch.randn(3, 1, 1, 6, 16).unbind(0)  # (batch, heads, length, head_dim)
before = rg.attention(q, k, v, pattern="causal")
k[..., 4:, :], v[..., 4:, :] = 0.0, 0.0  # replace the words after the first four
after = rg.attention(q, k, v, pattern="causal")
print((after - before)[..., :4, :].abs().max())"""


def teach(settings: Settings) -> Lecture:
    """Compute softmax, mask and normalisation; the same in one step; and outputs after later words change."""
    words = words_of(settings.text, TEXT)
    q, k, v = _projected(words, settings.seed)
    steps = three_steps(q, k)
    hidden = ~Causal().dense(len(words), len(words))
    at_once = (q @ k.mT / math.sqrt(DIM)).masked_fill(hidden, -torch.inf).softmax(-1)
    detail = attention_detail(q, k, v, pattern="causal", want=["weights"])
    edited = max(1, len(words) * 2 // 3)
    causal, full = (_change(words, edited, pattern, settings.seed) for pattern in ("causal", None))
    numbers = {
        "words": list(words),
        "weights": rounded(steps[0][0, 0]), "masked": rounded(steps[1][0, 0]), "shared_again": rounded(steps[2][0, 0]),
        "steps_against_infinity": largest(steps[2] - at_once) < EXACT,
        "steps_against_regard": largest(steps[2] - detail.weights) < EXACT,
        "edited_from": edited, "past_unmoved": largest(causal[:edited]) < EXACT,
        "change": {"causal": rounded(causal), "full": rounded(full)},
    }  # fmt: skip
    return numbers, (
        "A model that generates a text word by word must not look at later words. The causal mask ensures this. In "
        "three steps: compute the softmax over all words, set the weights of later words to 0, and divide each row "
        "by its remaining sum.",
        "The same in one step: set the scores of later words to minus infinity before the softmax. Their "
        "exponentials are 0, so the softmax covers only the remaining words. This is the meaning of regard's "
        "pattern “causal”, which does not even compute the masked half.",
        f"To test the mask, the words from number {edited + 1} on are replaced, and the outputs of the words "
        f"before them are compared.",
    )


def three_steps(q: torch.Tensor, k: torch.Tensor) -> list[torch.Tensor]:
    """Weights over all words; with later words set to 0; normalised again, (…, length, length) each."""
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    masked = weights.tril()
    return [weights, masked, masked / masked.sum(-1, keepdim=True)]


def _projected(words: tuple[str, ...], seed: int) -> list[torch.Tensor]:
    """Queries, keys and values of one head, (1, 1, length, DIM) each."""
    matrices = normal(seed + 1, 3, DIM, DIM) / math.sqrt(DIM)
    return [(embedded(words, DIM, seed) @ matrix)[:, None] for matrix in matrices]


def _change(words: tuple[str, ...], edited: int, pattern: str | None, seed: int) -> torch.Tensor:
    """How far each word's output moves, (length,), when the words from `edited` on are replaced."""
    before, after = (_projected(words, seed), _projected(words, seed))
    for one in after:
        one[..., edited:, :] = normal(seed + 2, *one[..., edited:, :].shape)
    moved = attention(*after, pattern=pattern) - attention(*before, pattern=pattern)
    return moved[0, 0].norm(dim=-1)


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    words, change = numbers["words"], numbers["change"]
    rows = tuple(
        (str(place + 1), word, "yes" if place >= numbers["edited_from"] else "", f"{causal:.3f}", f"{full:.3f}")
        for place, (word, causal, full) in enumerate(zip(words, change["causal"], change["full"], strict=True))
    )
    if len(words) <= PRINTED:
        weights = tuple(
            (word, *(f"{value:.2f}" for value in row)) for word, row in zip(words, numbers["shared_again"], strict=True)
        )
        yield Table("Causal weights: each row is a query word, each column a key word", ("", *words), weights)
    columns = ("", "word", "replaced", "causal", "no mask")
    yield Table("How far each output moves when later words are replaced", columns, rows)


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    edited, change = numbers["edited_from"], numbers["change"]
    left = [sum(row) for row in numbers["masked"]]
    yield Claim(
        "If weights are masked after the softmax, every row but the last sums to less than 1 until it is normalised "
        "again.",
        all(total < 1 - 1e-3 for total in left[:-1]),
        f"the first row sums to {left[0]:.2f}, the last, in which nothing is masked, to {left[-1]:.2f}",
    )
    yield Claim(
        "The three steps give the same weights as minus infinity before the softmax.",
        numbers["steps_against_infinity"],
        ROUNDING,
    )
    yield Claim("Both are the weights of regard's pattern “causal”.", numbers["steps_against_regard"], ROUNDING)
    yield Claim(
        "Replacing later words changes no earlier output.",
        numbers["past_unmoved"],
        f"the first {count_of(edited, 'words')}, {ROUNDING}",
    )
    yield Claim(
        "Without the mask it changes every earlier output.",
        min(change["full"][:edited]) > 1e-3,
        f"they move by {min(change['full'][:edited]):.3f} to {max(change['full'][:edited]):.3f}",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    words = numbers["words"]
    side = min(max(3.0, 0.13 * len(words)), 8.0)
    begin(figure, "The causal mask in three steps", 3 * side + 2.2, side + 1.9)
    panels = figure.subplots(1, 3)
    later = ~Causal().dense(len(words), len(words))
    steps = (
        ("1. softmax over all words", numbers["weights"], None),
        ("2. later words set to 0", numbers["masked"], later),
        ("3. each row divided by its sum", numbers["shared_again"], later),
    )
    for axes, (title, values, hidden) in zip(panels, steps, strict=True):
        rows = words if axes is panels[0] else ()
        image = draw_map(axes, torch.tensor(values), rows, words, hidden=hidden, cell=side / len(words))
        axes.set_xlabel(title, fontsize=9.5)
    panels[0].set_ylabel("query word ↓, key word →", fontsize=8.5)
    scale_beside(figure, image, panels, "attention weight")
