"""Lesson: query heads that share keys and values: what this saves in decoding, and how good a mean of heads is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from regard.arguments import count_of
from regard.functional import attention
from regard.layers import MultiHeadAttention
from regard_lab.lessons.figures import Figure, begin, draw_curves, draw_line, label_axes, logarithmic
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, embedded, largest, milliseconds, normal, seeded, words_of

TEXT = "The animal did not cross the street because it was too tired."
DIM, HEADS = 256, 8
KV_HEADS = (8, 4, 2, 1)
NAMES = {8: "multi-head", 4: "grouped", 2: "grouped", 1: "multi-query"}
HELD = 2048  # words in the cache when a decoding step is timed
EXACT = 1e-12
WAYS = {"mean": "the mean of the heads", "first": "the first of the heads", "new": "new random weights"}

CODE = """\
import torch
import regard as rg

for kv_heads in (8, 4, 2, 1):
    layer = rg.MultiHeadAttention(dim=256, heads=8, kv_heads=kv_heads, pattern="causal")
    cache = layer.new_cache(batch=1, kind="static", capacity=2048)
    layer(torch.randn(1, 12, 256), cache=cache)
    print(kv_heads, cache.nbytes)"""


def teach(settings: Settings) -> Lecture:
    """Measure cache size and decoding time by kv_heads, and the error of a layer converted to fewer heads."""
    words = words_of(settings.text, TEXT)
    x = embedded(words, DIM, settings.seed)
    whole = seeded(settings.seed, MultiHeadAttention, DIM, HEADS, pattern="causal")
    alike = fewer_heads(fewer_heads(whole, 2, "first"), HEADS, "repeat")
    steps = {kv_heads: _step(kv_heads, settings.seed) for kv_heads in KV_HEADS}
    numbers = {
        "words": len(words), "held": HELD, "kv_heads": list(KV_HEADS),
        "cache_bytes": [_cache(kv_heads).nbytes for kv_heads in KV_HEADS],
        "errors": {
            way: [round(_error(fewer_heads(whole, kv_heads, way, settings.seed), whole, x), 3) for kv_heads in KV_HEADS]
            for way in WAYS
        },
        "shared_alike": _reads_its_group(settings.seed),
        "kept_alike": largest(fewer_heads(alike, 2, "mean")(x) - alike(x)) < EXACT,
        "measured": {"milliseconds": list(milliseconds(steps).values())},
    }  # fmt: skip
    return numbers, (
        "A model that generates text stores the keys and values of all earlier words for every head, and reads all "
        "of them at every step. A step spends most of its time reading memory, so a smaller cache makes "
        "generation faster.",
        f"In grouped-query attention several query heads share one key/value head: of {HEADS} query heads, head h "
        f"reads key/value head h // ({HEADS} // kv_heads). With a single key/value head it is called multi-query "
        f"attention. The queries still differ, so the heads still attend to different words.",
        "A trained model is converted by averaging the key and value projections of each group, followed by some "
        "further training. Here the heads are random and independent, which is the worst case. The mean is still "
        "closer to the original than the first head of each group or new random heads. Source: Shazeer 2019; "
        "Ainslie et al. 2023, section 2.1 and figure 4.",
    )


def fewer_heads(layer: MultiHeadAttention, kv_heads: int, way: str, seed: int = 0) -> MultiHeadAttention:
    """The layer with another number of key/value heads, by `way`: "mean", "first", "new", or "repeat" for more."""
    made = seeded(seed + 1, MultiHeadAttention, DIM, HEADS, kv_heads=kv_heads, pattern="causal")
    made.to_q, made.to_output = copy.deepcopy(layer.to_q), copy.deepcopy(layer.to_output)
    for name in ("to_k", "to_v"):
        for old, new in zip(getattr(layer, name).parameters(), getattr(made, name).parameters(), strict=True):
            heads = old.detach().unflatten(0, (layer.kv_heads, -1))  # (kv_heads, head_dim, ...)
            if way == "repeat":
                new.data = heads.repeat_interleave(kv_heads // layer.kv_heads, 0).flatten(0, 1)
            elif way != "new":
                groups = heads.unflatten(0, (kv_heads, -1))
                new.data = (groups.mean(1) if way == "mean" else groups[:, 0]).flatten(0, 1)
    return made


def _error(fewer: MultiHeadAttention, whole: MultiHeadAttention, x: torch.Tensor) -> float:
    """The distance between the outputs, relative to the norm of the original output."""
    expected = whole(x).detach()
    return float((fewer(x).detach() - expected).norm() / expected.norm())


def _reads_its_group(seed: int) -> bool:
    """Whether query head h reads key/value head h // (heads // kv_heads), by comparison with one call per head."""
    q, k, v = normal(seed, 1, HEADS, 7, 16), normal(seed + 1, 1, 2, 7, 16), normal(seed + 2, 1, 2, 7, 16)
    apart = [attention(q[:, [h]], k[:, [h // (HEADS // 2)]], v[:, [h // (HEADS // 2)]]) for h in range(HEADS)]
    return largest(attention(q, k, v) - torch.cat(apart, 1)) < EXACT


def _cache(kv_heads: int) -> Any:
    return MultiHeadAttention(DIM, HEADS, kv_heads=kv_heads).new_cache(1, "static", capacity=HELD)


def _step(kv_heads: int, seed: int) -> Callable[[], object]:
    """A function that decodes one more word with a nearly full cache and removes it again."""
    layer = seeded(seed, MultiHeadAttention, DIM, HEADS, kv_heads=kv_heads, pattern="causal").float()
    cache = layer.new_cache(1, "static", capacity=HELD)
    with torch.no_grad():
        layer(normal(seed, 1, HELD - 1, DIM).float(), cache=cache)
    word = normal(seed, 1, 1, DIM).float()

    def step() -> None:
        layer(word, cache=cache)
        cache.crop(HELD - 1)

    return step


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    kib = [f"{nbytes / 1024:,.0f} KiB" for nbytes in numbers["cache_bytes"]]
    labels = [(str(count), NAMES[count]) for count in KV_HEADS]
    errors = zip(*numbers["errors"].values(), strict=True)
    yield Table(
        f"Keys and values of {HELD:,} words, dim {DIM}, float32",
        ("kv_heads", "", "cache"),
        tuple((*label, size) for label, size in zip(labels, kib, strict=True)),
    )
    yield Table(
        "CPU time of one decoding step",
        ("kv_heads", "", "milliseconds"),
        tuple(
            (*label, f"{spent:.2f}") for label, spent in zip(labels, numbers["measured"]["milliseconds"], strict=True)
        ),
        measured=True,
    )
    yield Table(
        f"Relative distance from the output with {count_of(HEADS, 'key/value heads')}, on "
        f"{count_of(numbers['words'], 'words')}",
        ("kv_heads", "", *WAYS.values()),
        tuple((*label, *(f"{error:.3f}" for error in row)) for label, row in zip(labels, errors, strict=True)),
    )


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    sizes, errors = numbers["cache_bytes"], numbers["errors"]
    yield Claim(
        "The cache shrinks in proportion to kv_heads.",
        all(size * HEADS == sizes[0] * kv_heads for size, kv_heads in zip(sizes, KV_HEADS, strict=True)),
        f"{sizes[0]:,} bytes with {KV_HEADS[0]}, {sizes[-1]:,} with {KV_HEADS[-1]}",
    )
    yield Claim(
        "Query head h reads key/value head h // (heads // kv_heads).",
        numbers["shared_alike"],
        f"{HEADS} query heads on 2, compared with one call per head, {ROUNDING}",
    )
    yield Claim(
        "If the heads of a group are equal, their mean does not change the output.",
        numbers["kept_alike"],
        ROUNDING,
    )
    yield Claim(
        "If they differ, their mean is closer to the original than the first head of the group or new heads.",
        all(
            mean < min(first, new)
            for mean, first, new in zip(errors["mean"][1:], errors["first"][1:], errors["new"][1:], strict=True)
        ),
        f"with 2 kv_heads {errors['mean'][2]:.2f}, {errors['first'][2]:.2f} and {errors['new'][2]:.2f}",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, f"{HEADS} query heads share key/value heads", 12.0, 4.3)
    size, speed, quality = figure.subplots(1, 3)
    draw_line(size, KV_HEADS, [nbytes / 2**20 for nbytes in numbers["cache_bytes"]], 0, "cache")
    label_axes(size, f"Cache of {HELD:,} words", "key/value heads", "MiB")
    draw_line(speed, KV_HEADS, numbers["measured"]["milliseconds"], 0, "step")
    label_axes(speed, "One decoding step (measured here)", "key/value heads", "milliseconds of CPU time")
    labels = f"Distance from {HEADS} heads, untrained", "key/value heads", "relative error of the output"
    draw_curves(quality, KV_HEADS, {label: numbers["errors"][way] for way, label in WAYS.items()}, labels)
    for axes in (size, speed, quality):
        logarithmic(axes, KV_HEADS)
        axes.set_ylim(bottom=0)
