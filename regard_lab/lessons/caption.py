"""Lesson: a picture that follows its caption: a small trained denoiser whose patches attend to words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from regard.layers import MultiHeadAttention, record_attention
from regard_lab.lessons.captions import (
    GRID,
    MOST_WORDS,
    PARTS,
    PATCH,
    PATCHES,
    SIDE,
    STEPS,
    Caption,
    Denoiser,
    changed,
    every_scene,
    load_denoiser,
    read_caption,
    sample,
    shown,
    word_numbers,
)
from regard_lab.lessons.figures import LINES, Axes, Figure, begin, draw_bars, draw_map, label_axes
from regard_lab.lessons.report import Report, read_report
from regard_lab.lessons.taught import Claim, Estimate, Lecture, Settings, Table, every
from regard_lab.lessons.words import ROUNDING, largest, normal, rounded

TEXT = "a red circle left of a blue square"  # of a pair that is held out from training
PICTURES = 3  # of each caption, from the same noise
FRAMES = (0, 4, 8, 11, 13, STEPS)  # steps whose pictures are drawn
FOLLOWS, FEW = 0.95, 0.05  # shares of pictures that show their caption
EXACT = 1e-12

CODE = """\
import torch
import regard as rg
from regard import patterns as p

patches, words = torch.randn(2, 36, 64), torch.randn(2, 8, 32)  # two pictures, two captions of 8 and 7 words
reads = rg.MultiHeadAttention(dim=64, heads=4, context_dim=32)
spoken = p.KeySpan(0, torch.tensor([8, 7]))
with rg.record_attention(reads) as recording:
    patches = patches + reads(patches, context=words, pattern=spoken)
print(recording[""][0].weights.shape)  # (batch, heads, patches, words)
silent = reads(patches, context=words, pattern=p.KeySpan(0, 0))  # no words: only the output bias is added
print((silent - reads.to_output.bias).abs().max())"""


def teach(settings: Settings) -> Lecture:
    """Sample pictures for a caption and for the caption with one word changed; read the shares from the report."""
    caption, model, report = read_caption(settings.text or TEXT), load_denoiser(), read_report("caption")
    edits = [changed(caption, part) for part in PARTS]
    captions = [caption, *(edited for edited, _, _ in edits)]
    stages, weights = sampled(model, captions, settings.seed)
    pictures = stages[-1].unflatten(0, (len(captions), PICTURES))
    numbers: dict[str, Any] = {
        "captions": list(map(str, captions)), "changes": [[old, new] for _, old, new in edits],
        "pictures": rounded(pictures.permute(0, 1, 3, 4, 2), 2),  # (captions, pictures, height, width, 3)
        "frames": rounded(torch.stack([stages[step][0] for step in FRAMES]).permute(0, 2, 3, 1), 2),
        "shown": [[str(scene) for scene, _ in shown(row)] for row in pictures],
        "scenes": [str(one.scene) for one in captions],
        "moved": [rounded(_moved(pictures[0], row, caption), 4) for row in pictures],
        "words": list(caption.words), "weights": rounded(weights[0].T.unflatten(1, (GRID, GRID)), 3),
        "read": [rounded(_read(row, one), 3) for row, one in zip(weights, captions, strict=True)],
        "rows_sum_to_one": largest(weights.sum(-1) - 1) < EXACT,
        "silent": _silent(model) < EXACT,
        "padding": largest(weights[..., 7:]) if len(captions[0].words) < MOST_WORDS else 0.0,
        "report": report.figures,
    }  # fmt: skip
    return numbers, _paragraphs(report)


def sampled(model: Denoiser, captions: list[Caption], seed: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The stages of sampling PICTURES pictures of each caption, and where patches look on average.

    The pictures of all captions start from the same noise. Weights are the mean over steps, blocks, heads and pictures,
    (captions, patches, words).
    """
    noise = normal(seed, PICTURES, 3, SIDE, SIDE).repeat(len(captions), 1, 1, 1)
    words, counts = (numbers.repeat_interleave(PICTURES, 0) for numbers in word_numbers(captions))
    with record_attention(model) as recording:
        stages = sample(model, noise, words, counts)
    details = [detail for name, _ in model.named_modules() if name.endswith("to_words") for detail in recording[name]]
    weights = torch.stack([detail.weights for detail in details if detail.weights is not None]).mean((0, 2))
    return stages, weights.unflatten(0, (len(captions), PICTURES)).mean(1)


def _halves(caption: Caption) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Rows and columns of the halves of a picture, in shares of its side, of the first thing and of the second."""
    near, far = slice(0, SIDE // 2), slice(SIDE // 2, SIDE)
    whole = slice(0, SIDE)
    halves = [(whole, half) if caption.scene.relation == "left of" else (half, whole) for half in (near, far)]
    return (halves[0], halves[1]) if caption.scene is caption else (halves[1], halves[0])


def _moved(before: torch.Tensor, after: torch.Tensor, caption: Caption) -> torch.Tensor:
    """The mean squared change of the pixels in the half of the first thing, and in the other half."""
    change = (after - before).square()
    return torch.stack([change[..., rows, columns].mean() for rows, columns in _halves(caption)])


def _read(weights: torch.Tensor, caption: Caption) -> torch.Tensor:
    """For both things: the weight that patches of its half give to its colour and shape, and to those of the other.

    weights: (patches, words). Returns (2, 2).
    """
    grid = weights.unflatten(0, (GRID, GRID))
    count = len(caption.words)
    own = [[1, 2], [count - 2, count - 1]]  # places of the colours and shapes
    rows = []
    for thing, (y, x) in enumerate(_halves(caption)):
        here = grid[y.start // PATCH : y.stop // PATCH, x.start // PATCH : x.stop // PATCH].mean((0, 1))
        rows.append(torch.stack([here[own[thing]].sum(), here[own[1 - thing]].sum()]))
    return torch.stack(rows)


def _silent(model: Denoiser) -> float:
    """How far the output of cross-attention without words is from its output bias."""
    reads = next(layer for name, layer in model.named_modules() if name.endswith("to_words"))
    assert isinstance(reads, MultiHeadAttention)
    words, counts = torch.zeros(1, MOST_WORDS, reads.context_dim).double(), torch.zeros(1, dtype=torch.long)
    output = reads(normal(0, 1, PATCHES, reads.dim), context=words, pattern=model.spoken(counts))
    return largest(output - reads.to_output.bias)


def _paragraphs(report: Report) -> tuple[str, ...]:
    figures = report.figures
    return (
        "A model that draws what a text says learns to remove noise. It is given a noisy picture and its caption, and "
        "estimates the picture without noise. To draw, it starts from noise alone and removes it in small steps. In "
        "each block, the patches of the picture attend to each other, then to the words of the caption: queries from "
        "the picture, keys and values from the text. Nothing else connects text and picture.",
        f"This denoiser has {figures['parameters']:,} parameters and was trained in {figures['cpu_seconds']} seconds "
        f"of CPU time, on pictures of {SIDE} × {SIDE} pixels with two things each: {PATCHES} patches, 7 or 8 words. Of "
        f"{len(every_scene())} scenes (two things and their relation), {figures['held_out_scenes']} were held out: "
        f"the model can draw them only if it understands each word by itself. To decide what a generated picture "
        f"shows, it is compared with a picture of every scene; the nearest one counts.",
        "The weights of the model are stored with the lesson, so the pictures are drawn when the lesson runs: try "
        "--text with a caption of your own. The shares over many captions are read from a report, for which a second "
        f"model without cross-attention was trained in {figures['without_cpu_seconds']} seconds. {report.source}",
        "The weights show where patches look, not everything that the words say: the word vectors have exchanged "
        "information before the patches read them, and patches that show no thing look at words without content, such "
        "as “of” and “a”. Source: Rombach et al. 2022, section 3.3; Ho et al. 2020; Song et al. 2021.",
    )


SHARES = {
    "held out": "its own caption, held out in training",
    "colour changed": "… with another colour word",
    "shape changed": "… with another shape word",
    "relation changed": "… with the opposite relation",
    "another caption": "the caption of another picture",
    "no caption": "no caption",
    "no cross-attention": "a model without cross-attention",
}


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    shares = numbers["report"]["shares"]
    rows = zip(numbers["captions"], numbers["shown"], numbers["scenes"], numbers["moved"], strict=True)
    yield Table(
        f"{PICTURES} pictures of each caption, from the same noise; mean squared change from the first caption",
        ("caption", "pictures that show it", "change where the first thing was", "change in the other half"),
        tuple(
            (text, f"{sum(one == scene for one in found)} of {PICTURES}", *(f"{change:.3f}" for change in moved))
            for text, found, scene, moved in rows
        ),
    )
    yield Table(
        f"Share of {numbers['report']['pictures']} pictures that show what the caption says (from the report)",
        ("the denoiser is given", "all", "relation", "both colours", "both shapes"),
        tuple((label, *(f"{share:.1%}" for share in shares[name].values())) for name, label in SHARES.items()),
    )


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    report = numbers["report"]
    shares = {name: Estimate.share(row["all"], report["pictures"]) for name, row in report["shares"].items()}
    edited = [shares[f"{part} changed"] for part in PARTS]
    ignoring = [shares[name] for name in ("another caption", "no caption", "no cross-attention")]
    right = sum(
        one == scene
        for row, scene in zip(numbers["shown"], numbers["scenes"], strict=True)
        for one in row
    )  # fmt: skip
    pictures = PICTURES * len(numbers["captions"])
    read = [pair for row in numbers["read"] for pair in row]
    yield Claim(
        "Pictures show what their captions say, for pairs of things that were held out from training.",
        shares["held out"].above(FOLLOWS),
        f"report: {shares['held out']} of {report['pictures']} pictures; chance is 1 in {len(every_scene())}",
    )
    yield Claim(
        "If one word changes, the picture from the same noise shows the changed caption.",
        every(*(share.above(FOLLOWS) for share in edited)),
        "report: " + ", ".join(f"{part} {share}" for part, share in zip(PARTS, edited, strict=True)),
    )
    yield Claim(
        "With another caption, without a caption or without cross-attention, pictures do not show the caption.",
        every(*(share.below(FEW) for share in ignoring)),
        f"report: at most {max(ignoring, key=lambda share: share.value)} of {report['pictures']} pictures",
    )
    yield Claim(
        "The pictures drawn here show their captions.",
        right >= pictures - 2,
        f"{right} of {pictures}",
    )
    yield Claim(
        "Patches read the words of the thing in their half: its colour and shape get at least twice the weight of "
        "those of the other thing.",
        all(own > 2 * other for own, other in read),
        f"at least {min(own for own, _ in read):.2f} against at most {max(other for _, other in read):.2f}",
    )
    yield Claim(
        "The weights of each patch sum to 1, and no weight goes to words after the end of the caption.",
        numbers["rows_sum_to_one"] and numbers["padding"] == 0,
        ROUNDING,
    )
    yield Claim(
        "Without words, cross-attention adds only its output bias.",
        numbers["silent"],
        f"{ROUNDING}: a row with no key has the output zero",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, f"“{numbers['captions'][0]}”: what the words change", 14.0, 8.6)
    columns: Any = figure.subfigures(1, 2, width_ratios=[1, 1.15])
    left, right = columns
    halves: Any = right.subfigures(3, 1, height_ratios=[0.75, 1.5, 1.0])
    _draw_pictures(left, numbers)
    _draw_frames(halves[0], numbers)
    _draw_words(halves[1], numbers)
    _draw_shares(halves[2].subplots(), numbers["report"]["shares"])


def _draw_pictures(part: Any, numbers: dict[str, Any]) -> None:
    texts = [f"“{numbers['captions'][0]}”"]
    texts += [f"{old} → {new}: “{text}”" for (old, new), text in
              zip(numbers["changes"], numbers["captions"][1:], strict=True)]  # fmt: skip
    rows = part.subplots(len(texts), PICTURES)
    for axes, pictures, text in zip(rows, numbers["pictures"], texts, strict=True):
        for one, picture in zip(axes, pictures, strict=True):
            _draw_picture(one, picture)
        axes[PICTURES // 2].set_title(text, fontsize=10.5)
    part.supxlabel("each column starts from the same noise", fontsize=9)


def _draw_frames(part: Any, numbers: dict[str, Any]) -> None:
    part.suptitle("From noise to a picture", fontsize=10)
    for axes, picture, step in zip(part.subplots(1, len(FRAMES)), numbers["frames"], FRAMES, strict=True):
        _draw_picture(axes, picture)
        axes.set_xlabel("noise" if step == 0 else f"step {step}", fontsize=8.5)


def _draw_words(part: Any, numbers: dict[str, Any]) -> None:
    part.suptitle(f"Where the {GRID} × {GRID} patches look: the weight of each word", fontsize=10)
    panels = part.subplots(2, MOST_WORDS // 2)
    weights = torch.tensor(numbers["weights"])[: len(numbers["words"])]
    limits = (0.0, float(weights.max()))
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, word, values in zip(panels.flat, numbers["words"], weights, strict=False):
        axes.set_axis_on()
        image = draw_map(axes, values, limits=limits)
        axes.set_aspect("equal")
        axes.set_title(word, fontsize=10)
    bar = part.colorbar(image, ax=panels, shrink=0.8, aspect=20, pad=0.02)
    bar.ax.tick_params(length=2, labelsize=7.5)


def _draw_shares(axes: Axes, shares: dict[str, dict[str, float]]) -> None:
    bars = {label: shares[name]["all"] for name, label in SHARES.items()}
    label_axes(axes, "Pictures that show the caption (report)", "", "")
    colours = [LINES[0] if value >= FOLLOWS else LINES[1] for value in bars.values()]
    draw_bars(axes, bars, [f"{value:.0%}" for value in bars.values()], colours)
    axes.set_xlim(0, 1.12)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def _draw_picture(axes: Axes, picture: list[list[list[float]]]) -> None:
    axes.imshow((torch.tensor(picture) / 2 + 0.5).clamp(0, 1).numpy(), interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#999999")
