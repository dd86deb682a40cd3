"""Claims of the lessons of chapter "Inside one layer" fail when what they are about is broken."""

import torch
from teaching import changed_report, failing, starting

from regard.positions import Sinusoidal


def test_scale():
    exchanged = failing("scale", ('"unscaled": 1.0, "scaled": None', '"unscaled": None, "scaled": 1.0'))
    assert starting(
        exchanged, "Unscaled scores spread", "The entropy of unscaled weights", "The gradient that reaches unscaled",
        "With scaling, the entropy", "With scaling, the gradient",
    )  # fmt: skip


def test_positions(monkeypatch):
    ordered = failing(
        "positions", ("rg.MultiHeadAttention, DIM, 4)", 'rg.MultiHeadAttention, DIM, 4, pattern="causal")')
    )
    assert starting(ordered, "Without positions, reversing")
    monkeypatch.setattr(Sinusoidal, "forward", lambda self, places: torch.ones(*places.shape, self.dim))
    assert starting(failing("positions"), "Wavelengths grow", "PE(pos + k) equals", "With positions, the vector")


def test_causal():
    unmasked = failing("causal", ("weights.tril()", "weights"))
    assert starting(unmasked, "If weights are masked", "The three steps give", "Both are the weights")
    exchanged = failing("causal", ('moved("causal"), moved(None)', 'moved(None), moved("causal")'))
    assert starting(exchanged, "Replacing later words changes no", "Without the mask, replacing")


def test_cross():
    """Cells may attend to one more key, a zero; a layer that ignores the pattern; noise that hides what is shown."""
    another = "context=torch.cat([words, 0 * words[:, :1]], 1))\nper_head = recording"
    idle = failing(
        "cross",
        ("context=words)\nper_head = recording", another),
        (', pattern="causal")', ")"),
        ("NOISE, SHARPNESS = 0.1", "NOISE, SHARPNESS = 30.0"),
    )
    assert starting(
        idle, "The output has the image's shape", "The layer computes the formula", "Cells are independent",
        "Every cell gives its largest", "The pattern “causal” between",
    )  # fmt: skip
    summed = failing("cross", ("per_head[0].mean(0)", "per_head[0].sum(0)"))
    assert starting(summed, "The weights of each cell sum to 1.")


def test_one_head(monkeypatch):
    """Every head reads "cat" only; heads share their weights; keys on a circle lie on a line; a head with a bias."""
    alike = failing(
        "one_head",
        ("in READ if heads == 1 else READ[head : head + 1]", "in READ[:1]"),
        ("normal(SEED + at, 1, heads, length, DIM // heads)",
         "normal(SEED + at, 1, 1, length, DIM // heads).expand(1, heads, -1, -1)"),
        ("turns.sin()", "0 * turns"),
        ("projection_bias=False", "projection_bias=heads == 2"),
    )  # fmt: skip
    assert starting(
        alike, "One head can attend", "One head returns the mean", "Two heads of half the size",
        "A head of two numbers", "With random weights too", "The number of heads changes",
    )  # fmt: skip
    changed_report(monkeypatch, "one_head")["heads"][0]["exact_match"] = 0.8
    squared = "q, k = torch.cat([q, torch.ones_like(q)], -1), torch.cat([k, -k * k / 2], -1)\nof_three ="
    distances = failing("one_head", ("of_three =", squared))
    assert starting(distances, "A head of one number never", "The trained translator with eight heads")
