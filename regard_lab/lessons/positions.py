"""Lesson: without positions attention ignores the order of the words; sinusoidal positions encode it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

from regard.layers import MultiHeadAttention
from regard.positions import Sinusoidal
from regard_lab.lessons.figures import LINES, Figure, begin, draw_map, label_axes, legend_below, scale_beside
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, embedded, largest, rounded, seeded, words_of
from regard_lab.seeing.canvas import label_rows, label_texts

TEXT = "the dog bites the man"
DIM = 64
DRAWN = 60  # positions
SHIFTS = (1, 5, 12)
CLOSE, EXACT = 1e-6, 1e-12  # the waves are float32, the layer is float64
FARTHEST = 1000  # positions from which a shift is checked
WAVES = (0, 4, 8, 12)  # pairs of numbers that are drawn as curves

CODE = """\
import torch
import regard as rg
from regard.positions import Sinusoidal

waves = Sinusoidal(64)(torch.arange(60))  # (60, 64)
layer = rg.MultiHeadAttention(dim=64, heads=4)
x = torch.randn(1, 5, 64)  # five words
turned = layer(x.flip(1)).flip(1)  # the words in reverse order
print((turned - layer(x)).abs().max())  # only rounding differs
moved = layer(x.flip(1) + waves[:5]).flip(1)
print((moved - layer(x + waves[:5])).abs().max())  # with positions the order matters"""


def teach(settings: Settings) -> Lecture:
    """Compute the positions, the matrices that shift them, and the outputs for the reversed sentence."""
    words = words_of(settings.text, TEXT)
    waves = Sinusoidal(DIM)
    numbers = {
        "words": list(words), "dim": DIM,
        "waves": rounded(waves(torch.arange(DRAWN))),  # (positions, dim)
        "wavelengths": [round(length, 1) for length in wavelengths(waves)],
        "shifts_within": {str(shift): shift_error(waves, shift) < CLOSE for shift in SHIFTS},
        "shift_by_one": rounded(shift_matrix(Sinusoidal(4), 1), 6),
        **_reversed(words, waves, settings.seed),
    }  # fmt: skip
    return numbers, (
        "Attention compares every word with every other and sums over all words; its formula does not contain "
        "their order. Reversing a sentence therefore gives every word the same output vector as before.",
        "The Transformer adds sine and cosine waves to the word vectors: components 2c and 2c + 1 are the sine and "
        "the cosine of pos / 10000^(2c / dim). The wavelength of the first pair is 2π words; it grows from pair to "
        "pair towards 10000 · 2π.",
        "Sine and cosine at pos + k are a rotation of those at pos: PE(pos + k) = M_k PE(pos), with a matrix M_k that "
        "does not depend on pos. k may be negative. A linear map can therefore look k words ahead, or back, at every "
        "position. Source: Vaswani et al. 2017, section 3.5.",
    )


def wavelengths(waves: Sinusoidal) -> list[float]:
    """Wavelength of each pair in positions, from its angle between positions 0 and 1."""
    first = waves(torch.tensor([1])).double()[0].unflatten(0, (-1, 2))  # (pairs, sine and cosine)
    return (2 * math.pi / torch.atan2(first[:, 0], first[:, 1])).tolist()


def shift_matrix(waves: Sinusoidal, shift: int) -> torch.Tensor:
    """M_k (dim, dim): a rotation of each pair, whose cosine and sine are the components of PE(k)."""
    sine, cosine = waves(torch.tensor([shift])).double()[0].unflatten(0, (-1, 2)).unbind(-1)
    turns = torch.stack([cosine, sine, -sine, cosine], -1).unflatten(-1, (2, 2))  # (pairs, 2, 2)
    return torch.block_diag(*turns)


def shift_error(waves: Sinusoidal, shift: int) -> float:
    """The largest difference between M_k PE(pos) and PE(pos + k) over many positions."""
    places = torch.arange(FARTHEST)
    moved = waves(places).double() @ shift_matrix(waves, shift).mT
    return largest(moved - waves(places + shift).double())


def _reversed(words: tuple[str, ...], waves: Sinusoidal, seed: int) -> dict[str, Any]:
    """How much the output vector of each word changes when the sentence is reversed."""
    layer = seeded(seed, MultiHeadAttention, DIM, 4)
    x = embedded(words, DIM, seed)
    places = waves(torch.arange(len(words))).double()
    changes: dict[str, Any] = {}
    for name, added in (("without", torch.zeros_like(places)), ("with", places)):
        forwards, backwards = layer(x + added), layer(x.flip(1) + added).flip(1)
        moved = (forwards - backwards)[0].norm(dim=-1) / forwards[0].norm(dim=-1)
        changes |= {f"change_{name}": rounded(moved), f"unmoved_{name}": largest(moved) < EXACT}
    return changes


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    lengths = numbers["wavelengths"]
    pairs = sorted({0, 1, 2, *range(4, len(lengths), 4), len(lengths) - 1})
    yield Table(
        f"Wavelengths in words, dim {DIM}",
        ("pair", "components", "wavelength"),
        tuple((str(pair), f"{2 * pair}, {2 * pair + 1}", f"{lengths[pair]:,.1f}") for pair in pairs),
    )
    yield Table(
        "M_1 for dim 4: PE(pos + 1) = M_1 PE(pos)",
        ("", "sine 0", "cosine 0", "sine 1", "cosine 1"),
        tuple(
            (name, *(f"{value:.4f}" for value in row))
            for name, row in zip(("sine 0", "cosine 0", "sine 1", "cosine 1"), numbers["shift_by_one"], strict=True)
        ),
    )
    yield Table(
        "Relative change of each word's output vector when the sentence is reversed",
        ("word", "without positions", "with positions"),
        tuple(
            (f"{word} (stays in place)" if _stays(place, numbers) else word, f"{without:.3f}", f"{beside:.3f}")
            for place, (word, without, beside) in enumerate(
                zip(numbers["words"], numbers["change_without"], numbers["change_with"], strict=True)
            )
        ),
    )


def _stays(place: int, numbers: dict[str, Any]) -> bool:
    """Whether a word is in the middle, where it stays when the sentence is reversed."""
    return 2 * place == len(numbers["words"]) - 1


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    lengths = numbers["wavelengths"]
    last = 2 * math.pi * 10_000 ** ((DIM - 2) / DIM)
    moved = [change for place, change in enumerate(numbers["change_with"]) if not _stays(place, numbers)]
    ratios = [later / earlier for earlier, later in pairwise(lengths)]
    yield Claim(
        "Wavelengths grow by a constant factor from pair to pair, from 2π towards 10000 · 2π.",
        abs(lengths[0] - 2 * math.pi) < 0.05
        and abs(lengths[-1] / last - 1) < 1e-3
        and max(ratios) - min(ratios) < 0.02,
        f"from {lengths[0]:.1f} to {lengths[-1]:,.0f}; the last pair of dim {DIM} has 10000^({DIM - 2}/{DIM}) · 2π",
    )
    yield Claim(
        f"PE(pos + k) equals M_k PE(pos) to {CLOSE:g}.",
        all(numbers["shifts_within"].values()),
        f"k = {', '.join(map(str, SHIFTS))}, at {FARTHEST:,} positions each",
    )
    yield Claim(
        "Without positions, reversing the sentence does not change the vector of any word.",
        numbers["unmoved_without"],
        ROUNDING,
    )
    yield Claim(
        "With positions, the vector of every moved word changes.",
        min(moved) > 0.01,
        f"smallest change of a word that moves {min(moved):.3f}",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    words = numbers["words"]
    listed = max(2.4, 0.14 * len(words))  # inches
    begin(figure, "Sinusoidal positions", 11.0, 4.6 + listed)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.2, 1), height_ratios=(2.4, listed))
    waves = torch.tensor(numbers["waves"])
    axes = figure.add_subplot(grid[:, 0])
    image = draw_map(axes, waves, limits=(-1.0, 1.0))
    label_axes(axes, "What is added to each word", f"component of the vector, 0 to {DIM - 1}", "position")
    axes.set_xticks(range(0, DIM, 8))
    axes.set_yticks(range(0, DRAWN, 10))
    scale_beside(figure, image, axes, "value")
    axes = figure.add_subplot(grid[0, 1])
    for colour, pair in zip(LINES, WAVES, strict=False):
        axes.plot(waves[:, 2 * pair], color=colour, linewidth=1.4, linestyle=("-", "--", "-.", ":")[WAVES.index(pair)],
                  label=f"sine {pair}: {numbers['wavelengths'][pair]:,.0f} words")  # fmt: skip
    label_axes(axes, "Four of the waves", "position", "value")
    legend_below(axes, columns=2)
    axes = figure.add_subplot(grid[1, 1])
    places = range(len(words))
    axes.barh(places, numbers["change_with"], 0.6, color=LINES[1], label="with positions")
    without = f"without positions, at most {max(numbers['change_without']):.3f}"
    axes.plot(numbers["change_without"], places, "o", color=LINES[0], markersize=4, label=without, clip_on=False)
    label_axes(axes, "Sentence reversed", "relative change of a word's vector", "")
    label_rows(axes, label_texts(words), 8 if len(words) <= 16 else 6)
    axes.set_ylim(len(words) - 0.4, -0.6)
    legend_below(axes)
