"""Lesson: writing a text with a cache, with all, some or one key/value heads: bytes, work, time and quality."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from regard.arguments import count_of
from regard.layers import MultiHeadAttention
from regard_lab.lessons.figures import (
    FAINT,
    LINES,
    Axes,
    Figure,
    begin,
    draw_cells,
    draw_curves,
    draw_line,
    label_axes,
    legend_below,
)
from regard_lab.lessons.report import Report, read_report
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, largest, milliseconds, normal, seeded, watch, words_of
from regard_lab.models import LanguageConfig, LanguageModel

TEXT = "the animal did not cross the street"
DIM, HEADS, LAYERS = 64, 8, 2
KINDS = {8: "multi-head", 2: "grouped-query", 1: "multi-query"}
WRITTEN = 12  # words that are written after the text
HELD = 256  # words of the texts whose caches are compared
TIMED_DIM, LENGTHS = 256, (256, 1024, 4096)  # size of the layer that is timed, and lengths of its texts
EXACT = 1e-10
MOST = 0.5  # share of the lost bits that further training recovers at least

CODE = """\
import torch
from regard_lab.models import LanguageConfig, LanguageModel

model = LanguageModel(LanguageConfig(vocab_size=50, dim=64, heads=8, kv_heads=2, layers=2)).eval()
text = torch.tensor([[7, 8, 9]])  # ids (batch, length)
with torch.no_grad():
    state = model.start(text, "static", capacity=64)  # reads the text once, and keeps its keys and values
    scores = state.next_scores
    for _ in range(5):
        written = scores.argmax(-1)
        text = torch.cat([text, written[:, None]], 1)
        scores = model.step(written, state)  # projects one word
    print((scores - model(text)[:, -1]).abs().max(), state.nbytes)"""


def teach(settings: Settings) -> Lecture:
    """Write a text with a cache and without, count bytes and projections, and read the measured quality."""
    words = words_of(settings.text, TEXT)
    report = read_report("generation")
    ways = {heads: _both_ways(words, heads, settings.seed) for heads in KINDS}
    numbers: dict[str, Any] = {
        "words": len(words), "written": WRITTEN, "kv_heads": list(KINDS), "lengths": list(LENGTHS),
        "same_scores": [way["apart"] < EXACT for way in ways.values()],
        "same_words": [way["same_words"] for way in ways.values()],
        "projected": ways[HEADS]["projected"],
        "bytes": {str(heads): [_nbytes(heads, count) for count in (HELD // 4, HELD // 2, HELD)] for heads in KINDS},
        "held": [HELD // 4, HELD // 2, HELD],
        "report": report.figures,
        "measured": {"milliseconds": _times(settings.seed)},
    }  # fmt: skip
    return numbers, _paragraphs(report)


def _paragraphs(report: Report) -> tuple[str, ...]:
    figures = report.figures
    original = next(iter(_quality(figures["rows"]).values()))
    return (
        "A language model writes one word after another, and each new word attends to all earlier ones. Their keys and "
        "values never change, because no word looks at a later word. A cache keeps them: each step then projects one "
        "word instead of the whole text, and gives the same logits.",
        f"The cache grows by 2 · layers · kv_heads · head_dim numbers with each word, and every step reads all of it. "
        f"With {HEADS} query heads, grouped-query attention with 2 key/value heads keeps a quarter of it, multi-query "
        f"attention an eighth. The model here is random: bytes, projections and equality do not depend on training.",
        f"Quality does depend on training. Trained character models of {figures['heads']} heads were converted to "
        f"fewer key/value heads "
        f"by the mean of each group, and trained for {figures['uptrain_steps'] / figures['steps']:.0%} more steps. "
        f"What the conversion lost is counted from the original as it was converted, which had not seen these steps. "
        f"They change the original too, from {_mean(original['before']):.3f} to {_mean(original['control']):.3f} bits: "
        f"for them the learning rate, which had come down to zero, rises to its peak and comes down again. "
        f"{report.source} Source: Shazeer 2019; Ainslie et al. 2023, sections 2 and 3.",
    )


def _both_ways(words: tuple[str, ...], kv_heads: int, seed: int) -> dict[str, Any]:
    """Write WRITTEN words greedily with a cache, and again by reading the whole text for each word."""
    vocabulary = sorted(set(words))
    config = LanguageConfig(vocab_size=len(vocabulary) + 24, dim=DIM, heads=HEADS, kv_heads=kv_heads, layers=LAYERS)
    model = seeded(seed, LanguageModel, config).eval()
    prompt = torch.tensor([[8 + vocabulary.index(word) for word in words]])
    projected = {way: _counting(model, write, prompt) for way, write in WAYS.items()}
    cached, recomputed = (projected[way][0] for way in WAYS)
    return {
        "apart": largest(cached[1] - recomputed[1]),
        "same_words": bool(torch.equal(cached[0], recomputed[0])),
        "projected": {way: counts for way, (_, counts) in projected.items()},
    }


Written = tuple[torch.Tensor, torch.Tensor]


def with_cache(model: LanguageModel, text: torch.Tensor) -> Written:
    """The text (1, length) with WRITTEN more ids, and the logits (WRITTEN, vocab_size) by which they were chosen."""
    state = model.start(text, "static", capacity=text.shape[1] + WRITTEN)
    assert state.next_scores is not None
    scores = [state.next_scores]
    for _ in range(WRITTEN - 1):
        text = torch.cat([text, scores[-1].argmax(-1, keepdim=True)], 1)
        scores.append(model.step(text[:, -1], state))
    return torch.cat([text, scores[-1].argmax(-1, keepdim=True)], 1), torch.cat(scores)


def without_cache(model: LanguageModel, text: torch.Tensor) -> Written:
    """The same by reading the whole text for each word."""
    scores = []
    for _ in range(WRITTEN):
        scores.append(model(text)[:, -1])
        text = torch.cat([text, scores[-1].argmax(-1, keepdim=True)], 1)
    return text, torch.cat(scores)


WAYS: dict[str, Callable[[LanguageModel, torch.Tensor], Written]] = {"cached": with_cache, "recomputed": without_cache}


def _counting(model: LanguageModel, write: Callable[..., Written], prompt: torch.Tensor) -> tuple[Written, list[int]]:
    """What `write` returns, and how many words the first layer projected to keys and values in each step."""
    layer = next(module for module in model.modules() if isinstance(module, MultiHeadAttention))
    written: list[Written] = []
    parts = {name: layer.get_submodule(name) for name in ("to_k", "to_v")}
    keys, values = watch(parts, lambda: written.append(write(model, prompt))).values()
    counts = [x.shape[1] for x in keys.inputs]
    assert counts == [x.shape[1] for x in values.inputs]
    return written[0], counts


def _nbytes(kv_heads: int, count: int) -> int:
    """Bytes of the caches of a float32 model for a text of `count` words."""
    model = LanguageModel(LanguageConfig(vocab_size=16, dim=DIM, heads=HEADS, kv_heads=kv_heads, layers=LAYERS))
    with torch.no_grad():
        return model.start(torch.tensor([[9]]), "static", capacity=count).nbytes


def _times(seed: int) -> dict[str, list[float]]:
    """Milliseconds of one layer for the next word of a text: from caches, and by reading the whole text."""
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    for length in LENGTHS:
        x = normal(seed, 1, length, TIMED_DIM).float()
        for heads in KINDS:
            layer = seeded(seed, MultiHeadAttention, TIMED_DIM, HEADS, kv_heads=heads, pattern="causal").float()
            calls[str(heads), length] = _step(layer, x)
            if heads == HEADS:
                calls["recomputed", length] = partial(layer, x)
    times = milliseconds(calls)
    return {way: [times[way, length] for length in LENGTHS] for way in ("recomputed", *map(str, KINDS))}


def _step(layer: MultiHeadAttention, x: torch.Tensor) -> Callable[[], object]:
    """A function that appends the last word to a cache of the others and removes it again."""
    before = x.shape[1] - 1
    cache = layer.new_cache(1, "static", capacity=before + 1)
    with torch.no_grad():
        layer(x[:, :before], cache=cache)

    def step() -> None:
        layer(x[:, before:], cache=cache)
        cache.crop(before)

    return step


def _quality(rows: list[dict[str, Any]]) -> dict[int, dict[str, list[float]]]:
    """Bits per character by number of key/value heads, a list over seeds."""
    heads = sorted({row["kv_heads"] for row in rows}, reverse=True)
    names = ("control", "converted", "uptrained", "before")
    return {
        count: {name: [row[name] for row in rows if row["kv_heads"] == count] for name in names} for count in heads
    }  # fmt: skip


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    times, report = numbers["measured"]["milliseconds"], numbers["report"]
    labels = {"recomputed": "the whole text again"} | {
        str(heads): f"cache, {name} ({count_of(heads, 'kv_heads')})" for heads, name in KINDS.items()
    }
    quality = _quality(report["rows"])
    original = next(iter(quality.values()))
    yield Table(
        f"Bytes of keys and values, {LAYERS} layers, dim {DIM}, float32",
        ("kv_heads", "", "for each word", *(f"{count_of(count, 'words')}" for count in numbers["held"])),
        tuple(
            (str(heads), name, f"{sizes[-1] // HELD:,}", *(f"{size:,}" for size in sizes))
            for (heads, name), sizes in zip(KINDS.items(), numbers["bytes"].values(), strict=True)
        ),
    )
    yield Table(
        f"Words that a layer projects to keys and values, to write {WRITTEN} words after {numbers['words']}",
        ("", "first step", "each further step", "in all"),
        tuple(
            (way, str(counts[0]), _ends(counts[1:]), str(sum(counts))) for way, counts in numbers["projected"].items()
        ),
    )
    yield Table(
        f"CPU time of one layer (dim {TIMED_DIM}) for the next word, milliseconds",
        ("", *(f"after {count_of(length, 'words', ',')}" for length in LENGTHS)),
        tuple((labels[way], *(f"{one:.2f}" for one in row)) for way, row in times.items()),
        measured=True,
    )
    yield Table(
        f"Bits per character (lower is better) on {report['held_out']:,} held-out characters, mean of "
        f"{len(original['control'])} seeds",
        ("kv_heads", "before further training", "after further training"),
        (
            (f"{report['heads']} (original)", *(f"{_mean(original[name]):.3f}" for name in ("before", "control"))),
            *(
                (str(heads), f"{_mean(row['converted']):.3f}", f"{_mean(row['uptrained']):.3f}")
                for heads, row in quality.items()
            ),
        ),
    )


def _ends(counts: list[int]) -> str:
    """
    >>> _ends([1, 1]), _ends([8, 9])
    ('1', '8 to 9')
    """
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _recovered(bits: dict[str, Any]) -> float:
    """The share of the bits lost by the conversion that further training wins back."""
    return (bits["converted"] - bits["uptrained"]) / (bits["converted"] - bits["before"])


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    start, projected, sizes = numbers["words"], numbers["projected"], numbers["bytes"]
    steps = range(WRITTEN)
    each = {heads: 2 * LAYERS * heads * (DIM // HEADS) * 4 for heads in KINDS}
    rows = numbers["report"]["rows"]
    least = min(map(_recovered, rows))
    after = [row["uptrained"] for row in _quality(rows).values()]
    worse = [fewer > more for some, others in pairwise(after) for more, fewer in zip(some, others, strict=True)]
    told = ", ".join(f"{_mean(bits):.3f} with {heads}" for heads, bits in zip(_quality(rows), after, strict=True))
    recovered = ", ".join(
        f"{_recovered({name: _mean(bits) for name, bits in row.items()}):.0%} with {count_of(heads, 'kv_heads')}"
        for heads, row in _quality(rows).items()
    )
    control = _mean([row["control"] for row in rows])
    yield Claim(
        "A step with a cache gives the same logits as reading the whole text, so both write the same words.",
        all(numbers["same_scores"]) and all(numbers["same_words"]),
        f"{WRITTEN} words with {', '.join(map(str, KINDS))} kv_heads, {ROUNDING}",
    )
    yield Claim(
        "With a cache each word is projected once; without it, the whole text in every step.",
        projected["cached"] == [start, *(1 for _ in steps[1:])]
        and projected["recomputed"] == [start + step for step in steps],
        f"{sum(projected['cached'])} and {sum(projected['recomputed'])} projections to keys",
    )
    yield Claim(
        "Each word takes 2 · layers · kv_heads · head_dim numbers.",
        all(
            sizes[str(heads)][at] == count * each[heads] for heads in KINDS for at, count in enumerate(numbers["held"])
        ),
        ", ".join(f"{count_of(heads, 'kv_heads')}: {count_of(count, 'bytes', ',')}" for heads, count in each.items()),
    )
    yield Claim(
        "Fewer key/value heads cost quality: the fewer they are, the more bits per character remain after further "
        "training.",
        all(worse) and all(row["uptrained"] > row["control"] for row in rows),
        f"report: {told} key/value heads, {control:.3f} with {numbers['report']['heads']}",
    )
    yield Claim(
        "Further training recovers most of what the conversion lost, in every seed.",
        least > MOST,
        f"report: at least {least:.0%} of the lost bits in one seed; by the means in the table {recovered}",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "Writing a text word by word", 13.5, 7.6)
    panels = figure.subplots(2, 3)
    for axes, (way, title) in zip(panels[0], TITLES.items(), strict=False):
        _draw_steps(axes, numbers["projected"][way], numbers["words"], title, way == "cached")
    _draw_bytes(panels[0, 2], numbers)
    _draw_times(panels[1, 0], numbers, ("recomputed", "8"), "What the cache saves (measured here)")
    _draw_times(panels[1, 1], numbers, tuple(map(str, KINDS)), "What fewer heads save (measured here)")
    _draw_quality(panels[1, 2], numbers["report"])


TITLES = {"recomputed": "Without a cache", "cached": "With a cache"}


def _draw_steps(axes: Axes, counts: list[int], start: int, title: str, kept: bool) -> None:
    """A row for each step, a column for each word: projected in this step (dark), read from the cache (light)."""
    grid = torch.zeros(len(counts), start + len(counts) - 1)
    for step, count in enumerate(counts):
        grid[step, : start + step] = 1 if kept else 0
        grid[step, start + step - count : start + step] = 2
    draw_cells(axes, grid, ("#ffffff", "#cfe3f1", LINES[0]), "auto")
    note = "dark: projected in this step" + "; light: read from the cache" * kept
    label_axes(axes, f"{title}: {sum(counts)} projections", f"words of the text\n({note})", "steps: words written")
    axes.set_xticks([x - 0.5 for x in range(grid.shape[1])], minor=True)
    axes.set_yticks([y - 0.5 for y in range(len(counts))], minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
    axes.set_yticks([0, len(counts) - 1], ["1", str(len(counts))])
    axes.set_xticks([0, start - 1, grid.shape[1] - 1], ["1", str(start), str(grid.shape[1])])


def _draw_bytes(axes: Axes, numbers: dict[str, Any]) -> None:
    sizes = {
        f"{name} ({heads})": [0, *(size / 1024 for size in numbers["bytes"][str(heads)])]
        for heads, name in KINDS.items()
    }
    draw_curves(axes, [0, *numbers["held"]], sizes, ("Keys and values held", "words of the text", "KiB"))
    axes.set(xlim=(0, None), ylim=(0, None))


def _draw_times(axes: Axes, numbers: dict[str, Any], ways: tuple[str, ...], title: str) -> None:
    labels = {"recomputed": "whole text again"} | {str(heads): f"{name} ({heads})" for heads, name in KINDS.items()}
    for way in ways:
        number = len(KINDS) if way == "recomputed" else list(KINDS).index(int(way))
        draw_line(axes, LENGTHS, numbers["measured"]["milliseconds"][way], number, labels[way])
    label_axes(axes, title, "words of the text", "milliseconds for the next word")
    axes.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
    axes.set_ylim(bottom=0)
    legend_below(axes, columns=2)


def _draw_quality(axes: Axes, report: dict[str, Any]) -> None:
    quality = _quality(report["rows"])
    places = range(1, len(quality) + 1)
    names = {"converted": "converted", "uptrained": "after further training"}
    for number, (name, label) in enumerate(names.items()):
        draw_line(axes, places, [_mean(row[name]) for row in quality.values()], number, label)
        for place, row in zip(places, quality.values(), strict=True):
            axes.plot([place] * len(row[name]), row[name], ".", color=LINES[number], markersize=4)
    original = _mean(next(iter(quality.values()))["control"])
    axes.axhline(original, color=FAINT, linestyle="--", linewidth=1, label=f"{report['heads']} heads, as many steps")
    label_axes(axes, "Quality of trained models (report)", "key/value heads", "bits per character (lower is better)")
    axes.set_xticks(places, list(map(str, quality)))
    axes.set_ylim(bottom=0)
    legend_below(axes, columns=2)
