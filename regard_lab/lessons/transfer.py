"""Lesson: transfer learning: an encoder that learned from texts without labels needs fewer labels."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, stdev
from typing import Any

import torch

from regard.arguments import count_of
from regard_lab.lessons.figures import FAINT, INK, LINES, Axes, Figure, begin, label_axes, legend_below
from regard_lab.lessons.report import read_report
from regard_lab.lessons.taught import Claim, Estimate, Lecture, Settings, Table, every
from regard_lab.lessons.words import seeded
from regard_lab.models import TextEncoder
from regard_lab.models.encoder import EncoderConfig

VOCABULARY, CLASSES = 2_000, 11

CODE = """\
# regard train masked-words --data texts.txt --out words               texts without labels
# regard train classifier --data labels.tsv --from words --out kinds   a line is: label TAB text
# regard classify kinds "The animal did not cross the street because it was too tired."
from regard_lab.models import TextEncoder

encoder = TextEncoder(TextEncoder.Config(vocab_size=2000, dim=64, layers=2))  # or TextEncoder.load("words")
classifier = encoder.changed(head="classes", classes=11)  # the same encoder with a new head
trained, copied = encoder.state_dict(), classifier.state_dict()
for name, tensor in copied.items():
    print(name, "copied" if name in trained and trained[name].equal(tensor) else "new", tensor.numel())"""


def teach(settings: Settings) -> Lecture:
    """Count what a classifier takes over from an encoder, and read how much it helps from the report."""
    report = read_report("transfer")
    recipe, records = report.figures["recipe"], report.figures["records"]
    numbers = {
        "labels": recipe["labels"],
        "records": {str(labels): [one for one in records if one["labels"] == labels] for labels in recipe["labels"]},
        "sentences": recipe["sentences"], "tests": recipe["test"], "source": report.source,
        "parts": _parts(recipe["dim"], recipe["layers"], settings.seed),
    }  # fmt: skip
    return numbers, (
        "Labels are expensive, texts without labels are not. An encoder first learns to predict words that were "
        "hidden in such texts. Then its last part, the head, is replaced by a new one for the labels, and training "
        "continues with the few labelled texts. The new model keeps what the encoder learned about the language.",
        f"Here the labels say which of {CLASSES} kinds of thing *it* refers to, as in “The animal did not cross the "
        "street because it was too tired.” The pairs of nouns in the test sentences do not occur in any training "
        "sentence. Both encoders have the same sizes, labels and steps, and each has the learning rate that was best "
        f"for it on validation sentences. One starts from random weights, the other from {recipe['sentences']:,} "
        "sentences without labels.",
        f"{report.source}",
        "The two learning problems share a corpus, so this is an easy case of transfer. The gain shrinks as the "
        "number of labels grows, and with few labels it differs much from seed to seed. Source: Devlin et al. 2019 "
        "(BERT), sections 3.1 and 3.2.",
    )


def _parts(dim: int, layers: int, seed: int) -> dict[str, Any]:
    """Numbers of the classifier by part, and whether each is that of the encoder it was made from."""
    encoder = seeded(seed, TextEncoder, EncoderConfig(vocab_size=VOCABULARY, dim=dim, layers=layers))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed + 1)
        for parameter in encoder.parameters():  # as training would, change also what begins as zeros and ones
            parameter += 0.1 * torch.randn_like(parameter)
        classifier = encoder.changed(head="classes", classes=CLASSES)
    before = encoder.state_dict()
    parts: dict[str, dict[str, int]] = {}
    for name, tensor in classifier.state_dict().items():
        copied = name in before and torch.equal(before[name], tensor)
        part = parts.setdefault(_part_of(name), {"copied": 0, "new": 0})
        part["copied" if copied else "new"] += tensor.numel()
    return parts


def _part_of(name: str) -> str:
    """The part of the encoder that a tensor belongs to.

    >>> _part_of("layers.1.attention.to_q.weight"), _part_of("head.weight")
    ('layer 1', 'head')
    """
    first, *rest = name.split(".")
    return f"layer {rest[0]}" if rest and rest[0].isdigit() else first


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    rows = []
    for labels, records in numbers["records"].items():
        for one in records:
            rows.append(
                (labels, str(one["seed"]), f"{one['scratch']:.3f}", f"{one['transfer']:.3f}", f"{one['margin']:+.3f}",
                 f"{one['commonest']:.3f}")
            )  # fmt: skip
    columns = ("labels", "seed", "from random weights", "from masked words", "margin", "most frequent kind")
    parts = tuple((name, f"{part['copied']:,}", f"{part['new']:,}") for name, part in numbers["parts"].items())
    yield Table("Share of 1,000 test sentences that are right, in the report", columns, tuple(rows))
    yield Table("Numbers of the classifier before its training", ("part", "copied", "new"), parts)


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    few, many = (numbers["records"][str(labels)] for labels in numbers["labels"])
    margins = {"few": [one["margin"] for one in few], "many": [one["margin"] for one in many]}
    tests = numbers["tests"]
    wrong = {
        kind: Estimate.share(1 - fmean(one[kind] for one in many), tests * len(many))
        for kind in ("scratch", "transfer")
    }
    both = [*few, *many]
    copied, new = (sum(part[kind] for part in numbers["parts"].values()) for kind in ("copied", "new"))
    head = numbers["parts"]["head"]

    def spread(values: list[float]) -> str:
        return f"{fmean(values):+.3f} ± {stdev(values):.3f} over {count_of(len(values), 'seeds')}"

    yield Claim(
        "The classifier takes over every tensor of the encoder, and only its head is new.",
        copied > 0 and new == head["new"] > 0,
        f"{copied:,} numbers copied, {new:,} new",
    )
    yield Claim(
        f"With {numbers['labels'][1]} labels the encoder of masked words is better with every seed, by more than "
        f"two standard deviations.",
        min(margins["many"]) > 0 and fmean(margins["many"]) > 2 * stdev(margins["many"]),
        spread(margins["many"]),
    )
    yield Claim(
        "It makes less than half as many mistakes.",
        wrong["transfer"].below(wrong["scratch"].times(0.5)),
        f"{wrong['transfer']} and {wrong['scratch']} of the sentences are wrong",
    )
    yield Claim(
        f"With {numbers['labels'][0]} labels it is better with every seed, but the seeds differ too much to say by "
        f"how much.",
        min(margins["few"]) > 0 and fmean(margins["few"]) <= 2 * stdev(margins["few"]),
        spread(margins["few"]),
    )
    yield Claim(
        "All are far better than always answering the most frequent kind.",
        every(
            *(
                Estimate.share(min(one["scratch"], one["transfer"]), tests).above(
                    Estimate.share(one["commonest"], tests).times(3)
                )
                for one in both
            )
        ),
        f"at least {min(one['scratch'] for one in both):.3f}; the most frequent kind "
        f"{max(one['commonest'] for one in both):.3f}",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "The encoder is copied, and only the head is new", 11.6, 4.6)
    towers, gains = figure.subplots(1, 2, width_ratios=(1, 1.25))
    _draw_towers(towers, list(numbers["parts"]))
    labels, row = [], 0.0
    for count, records in numbers["records"].items():
        for one in records:
            gains.annotate("", (one["transfer"], row), (one["scratch"], row),
                           arrowprops={"arrowstyle": "-|>", "color": FAINT, "shrinkA": 5, "shrinkB": 4})  # fmt: skip
            gains.plot(one["scratch"], row, marker="o", markersize=8, color=LINES[1])
            gains.plot(one["transfer"], row, marker="D", markersize=7, color=LINES[0])
            labels.append((row, f"{count_of(count, 'labels')}, seed {one['seed']}"))
            row -= 1.0
        row -= 0.6
    commonest = max(one["commonest"] for records in numbers["records"].values() for one in records)
    gains.axvline(commonest, color=INK, linestyle="--", linewidth=1, label="most frequent kind")
    for mark, number, label in (("o", 1, "from random weights"), ("D", 0, "from masked words")):
        gains.plot([], [], marker=mark, color=LINES[number], linestyle="", label=label)
    gains.set_yticks(*zip(*labels, strict=True))
    gains.set_xlim(0, 1.03)
    gains.grid(axis="x", alpha=0.25)
    label_axes(gains, "The same labels, two beginnings", "share of test sentences that are right", "")
    legend_below(gains, columns=3)


def _draw_towers(axes: Axes, parts: list[str]) -> None:
    """Two encoders part by part; copied parts have the same colour."""
    from matplotlib.patches import Rectangle

    body = [part for part in parts if part != "head"]
    for left, head, colour, title in (
        (0.0, "head: which word?", LINES[2], "texts without labels"),
        (2.6, "new head: which kind?", LINES[1], "a few labels"),
    ):
        for level, part in enumerate([*body, head]):
            shade = colour if part == head else LINES[0]
            axes.add_patch(Rectangle((left, level), 1.7, 0.86, facecolor=shade, alpha=0.35, edgecolor=INK))
            axes.text(left + 0.85, level + 0.43, part, ha="center", va="center", fontsize=9, color=INK)
        axes.text(left + 0.85, -0.2, title, ha="center", va="top", fontsize=9.5, color=INK)
    for level in range(len(body)):
        axes.annotate("", (2.55, level + 0.43), (1.75, level + 0.43), arrowprops={"arrowstyle": "-|>", "color": INK})
    axes.text(2.15, len(body) - 0.1, "copied", ha="center", va="bottom", fontsize=9, color=INK)
    axes.set(xlim=(-0.1, 4.4), ylim=(-0.6, len(body) + 1.1))
    axes.set_axis_off()
