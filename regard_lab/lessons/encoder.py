"""Lesson: what the parts of an encoder layer do to the vector of a word."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from regard_lab.lessons.figures import FAINT, LINES, Axes, Figure, begin, draw_bars, draw_curves, label_axes
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, Watched, largest, rounded, seeded, watch, words_of
from regard_lab.models import EncoderConfig, TextEncoder

TEXT = "The quick brown fox jumps over the lazy dog"
DIM, HEADS, LAYERS = 32, 4, 6
EXACT = 1e-9

CODE = """\
import torch
from regard_lab.models import EncoderConfig, TextEncoder

model = TextEncoder(EncoderConfig(vocab_size=10, dim=32, heads=4, head="none")).eval()
before = model(torch.tensor([[4, 5, 6, 7, 8]]))
after = model(torch.tensor([[4, 5, 6, 7, 9]]))  # another last word
print((after - before)[0].norm(dim=-1))  # every vector has moved, the first one too"""


def teach(settings: Settings) -> Lecture:
    """Run a small encoder, record what each part adds, replace the last word, and leave the residuals out."""
    words = words_of(settings.text, TEXT, least=3)
    ids, model = encode(words), new_model(words, settings.seed)
    seen = _watch(model, ids)
    added = [seen[f"{part} {layer}"].outputs[0][0] for layer in range(LAYERS) for part in ("attention", "feed-forward")]
    start, end = seen["norm 0"].inputs[0][0], seen["last norm"].inputs[0][0]
    edited = ids.clone()
    edited[0, -1] = 4 + len(set(words))  # a word that the text does not have
    other = _watch(model, edited)
    read = torch.stack([seen[f"norm {n}"].outputs[0][0].norm(dim=-1) for n in range(2 * LAYERS)])
    numbers = {
        "words": list(words),
        "start": rounded(start.norm(dim=-1)), "added": [rounded(one.norm(dim=-1)) for one in added],
        "sum": largest(start + sum(added) - end) < EXACT,
        "read": rounded(read), "written": rounded(end.norm(dim=-1)),
        "moved": rounded((other["last norm"].outputs[0] - seen["last norm"].outputs[0])[0].norm(dim=-1)),
        "alone": _moved_by_feed_forward(model, seen["norm 1"].outputs[0]),
        "spread": {"with": _spread(model, start), "without": _spread(model, start, residuals=False)},
    }  # fmt: skip
    return numbers, (
        "An encoder layer has two parts: self-attention, in which every word looks at all words, and a "
        "feed-forward network, which computes each word alone. Around each part are a residual connection and a "
        "norm. The residual connection adds the output of the part to its input, so every part adds to the vector "
        "of a word; the norm scales the input of each part to the same length.",
        f"A small encoder of {LAYERS} layers with random weights shows what each of these is for. Its parts are "
        f"recorded while it reads a sentence; then the last word is replaced, and then the residual connections "
        f"are left out. Layers are counted from 0.",
        "Without residual connections the vectors of all words become the same vector after a few layers, and no "
        "later layer can tell the words apart. Source: Attention Is All You Need, Vaswani et al. 2017, sections "
        "3.1 and 3.3; Attention is Not All You Need, Dong et al. 2021 (vectors without residual connections).",
    )


def encode(words: tuple[str, ...]) -> torch.Tensor:
    """Ids (1, length) of words in their sorted vocabulary, from 4: special ids come first."""
    vocabulary = sorted(set(words))
    return torch.tensor([[4 + vocabulary.index(word) for word in words]])


def new_model(words: tuple[str, ...], seed: int) -> TextEncoder:
    """An encoder with weights drawn from the seed, whose vocabulary has one word more than the text."""
    config = EncoderConfig(
        vocab_size=5 + len(set(words)), dim=DIM, heads=HEADS, layers=LAYERS, head="none", positions="sinusoidal",
        dropout=0.0,
    )  # fmt: skip
    return seeded(seed, TextEncoder, config).eval()


def _watch(model: TextEncoder, ids: torch.Tensor) -> dict[str, Watched]:
    """Norms, parts and the last norm while the model reads ids; norms are numbered through the layers."""
    modules: dict[str, torch.nn.Module] = {"last norm": model.norm}
    for layer, block in enumerate(model.get_submodule("blocks").children()):
        modules[f"attention {layer}"] = block.get_submodule("attention")
        modules[f"feed-forward {layer}"] = block.get_submodule("feed_forward")
        modules[f"norm {2 * layer}"] = block.get_submodule("attention_norm")
        modules[f"norm {2 * layer + 1}"] = block.get_submodule("feed_forward_norm")
    return watch(modules, lambda: model(ids))


def _moved_by_feed_forward(model: TextEncoder, x: torch.Tensor) -> list[float]:
    """How far the first feed-forward network moves each word, (length,), when only the last vector is replaced."""
    edited = x.clone()
    edited[:, -1] = -x[:, -1]
    feed_forward = model.get_submodule("blocks.0.feed_forward")
    with torch.no_grad():
        return rounded((feed_forward(edited) - feed_forward(x))[0].norm(dim=-1), 12)


def _spread(model: TextEncoder, x: torch.Tensor, residuals: bool = True) -> list[float]:
    """How different the vectors of the words are before and after each layer: 0 if all are the same vector.

        ‖X - mean(X)‖ / ‖X‖

    Args:
        model: the encoder.
        x: the vectors that the first layer reads, (length, dim).
        residuals: if False, each part replaces the vectors instead of adding to them.
    """
    spread = [_share(x)]
    with torch.no_grad():
        for block in model.get_submodule("blocks").children():
            for part in ("attention", "feed_forward"):
                more = block.get_submodule(part)(block.get_submodule(f"{part}_norm")(x[None]))[0]
                x = x + more if residuals else more
            spread.append(_share(x))
    return rounded(torch.tensor(spread), 6)


def _share(x: torch.Tensor) -> float:
    return float((x - x.mean(0)).norm() / x.norm())


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    last = len(numbers["words"]) - 1
    middle = last // 2
    rows = [("embedding and position", f"{numbers['start'][middle]:.2f}")]
    for place, lengths in enumerate(numbers["added"]):
        part = "self-attention" if place % 2 == 0 else "feed-forward"
        rows.append((f"layer {place // 2}, {part}", f"{lengths[middle]:.2f}"))
    moved = tuple((word, f"{far:.3f}") for word, far in zip(numbers["words"], numbers["moved"], strict=True))
    spread = tuple(
        (str(layer), f"{kept:.3f}", f"{lost:.3f}")
        for layer, (kept, lost) in enumerate(zip(*numbers["spread"].values(), strict=True))
    )
    yield Table(f"Length of what is added to the vector of “{numbers['words'][middle]}”", ("by", "length"), tuple(rows))
    yield Table("How far each output moves when the last word is replaced", ("word", "moved"), moved)
    yield Table(
        "How different the words' vectors are (0: all the same)",
        ("layers passed", "with residuals", "without"),
        spread,
    )


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    kept, lost = numbers["spread"]["with"], numbers["spread"]["without"]
    read, alone = torch.tensor(numbers["read"]), numbers["alone"]
    off = largest(read / math.sqrt(DIM) - 1)
    yield Claim(
        "A word's vector at the end is its embedding plus what every part added.",
        numbers["sum"],
        f"{2 * LAYERS} parts, {ROUNDING}",
    )
    yield Claim(
        "The norms scale the input of every part to the same length.",
        off < 0.01,
        f"all √{DIM} = {math.sqrt(DIM):.2f}, to {max(off, 1e-4):.1%}; the vectors end with lengths of "
        f"{min(numbers['written']):.1f} to {max(numbers['written']):.1f}",
    )
    yield Claim(
        "In self-attention every word looks at all words: replacing the last one moves every output.",
        min(numbers["moved"]) > 1e-3,
        f"the first word moves by {numbers['moved'][0]:.3f}",
    )
    yield Claim(
        "The feed-forward network computes each word alone: a replaced vector moves no other output.",
        max(alone[:-1]) < EXACT < alone[-1],
        f"the replaced one moves by {alone[-1]:.2f}, the others not at all except for rounding",
    )
    yield Claim(
        "With residual connections the words stay different through all layers.",
        kept[-1] > 0.5 * kept[0],
        f"{kept[0]:.2f} before the first layer, {kept[-1]:.2f} after the last",
    )
    yield Claim(
        "Without them all words end as almost the same vector.",
        lost[-1] < 0.25 * kept[-1],
        f"{lost[0]:.2f} before the first layer, {lost[-1]:.3f} after the last",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "What keeps words apart in an encoder", 11.0, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.25))
    layers = list(range(LAYERS + 1))
    names = {"with": "with residual connections", "without": "without: one vector for all words"}
    curves = {label: numbers["spread"][name] for name, label in names.items()}
    labels = "How different the words' vectors are", "layers passed", "share of the length that differs"
    draw_curves(left, layers, curves, labels, columns=1)
    left.set_ylim(bottom=0)
    _draw_stream(right, numbers)


def _draw_stream(axes: Axes, numbers: dict[str, Any]) -> None:
    """The length of what each part adds to the stream of the middle word."""
    middle = (len(numbers["words"]) - 1) // 2
    lengths = [numbers["start"][middle], *(one[middle] for one in numbers["added"])]
    names = ["embedding", *(f"{part} {layer}" for layer in range(LAYERS) for part in ("attention", "feed-forward"))]
    word = numbers["words"][middle]
    bars = dict(zip(names, lengths, strict=True))
    draw_bars(axes, bars, [f"{length:.2f}" for length in lengths], [FAINT, *([LINES[0], LINES[1]] * LAYERS)])
    label_axes(axes, f"What is added to the vector of “{word}”", "length of the vector", "")
    axes.set_xlim(right=1.15 * max(lengths))
