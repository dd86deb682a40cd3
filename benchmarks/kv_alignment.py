"""Compares the methods that pool key/value heads: mean, first, random and align. Writes a report.

python benchmarks/kv_alignment.py [--seeds 0 1 2] [--texts documentation code] [--quick] [--out DIR]

Two small character-level language models with 8 heads, one shaped like Llama (rotary positions, RMS norms) and one like
GPT-2 (learned positions, layer norms, biases), are trained on the documentation of Python's standard library, and with
the first seed on its code too. Each is converted to 4, 2 and 1 key/value heads by each method, measured on held-out
text, trained for 5 % more steps, and measured again. `align` is also measured without a text to calibrate it on, and
without grouping heads anew.

Source: GQA, Ainslie et al. 2023, section 3.3 (mean, first, random); alignment: arXiv 2412.20677.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
from behaviour.text import code_texts, texts
from kv_heads import bits, held_out, letters_of, trained

from regard_lab.bench.results import environment
from regard_lab.conversion import with_kv_heads
from regard_lab.conversion.own_models import turned
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.text import Tokeniser
from regard_lab.training.recipes.language import LanguageTask

FOLDER = Path(__file__).parent / "results" / "kv_alignment_cpu"
SHAPES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "GPT-2": {"norm": "layer", "positions": "learned", "activation": "gelu-tanh", "biases": True},
}
TEXTS = {"documentation": texts, "code": code_texts}
METHODS = ("mean", "first", "random", "align", "align, no text", "align, neighbours")


@dataclass(frozen=True)
class Recipe:
    """The settings of the experiment."""

    characters: int = 2_000_000
    held_out: int = 30_000
    dim: int = 96
    heads: int = 8
    layers: int = 2
    block: int = 64
    batch_tokens: int = 1_024
    steps: int = 1_200
    uptrain_steps: int = 60
    learning_rate: float = 3e-3
    calibration_batches: int = 8
    kv_heads: tuple[int, ...] = (4, 2, 1)


QUICK = Recipe(characters=60_000, held_out=5_000, dim=32, layers=1, steps=30, uptrain_steps=5, kv_heads=(2,))


@dataclass(frozen=True)
class Row:
    """One conversion: bits per character, and how far the predictions are from the original's."""

    shape: str
    text: str
    seed: int
    kv_heads: int
    method: str
    before: float
    converted: float
    divergence: float  # of the next character's distribution from the original's, in nats
    agreement: float  # share of positions with the same likeliest character
    uptrained: float
    control: float  # the original after as many more steps


@dataclass
class Experiment:
    """One trained model and the data it was trained on."""

    shape: str
    text: str
    seed: int
    recipe: Recipe
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    def run(self) -> None:
        recipe, seed, given = self.recipe, self.seed, TEXTS[self.text]()
        letters = [
            letters_of(ids[:count]) for ids, count in zip(given, (recipe.characters, recipe.held_out), strict=True)
        ]
        tokeniser = Tokeniser.train(letters[:1], 300, "character", verbatim=True)
        self.task = LanguageTask(
            *([text] for text in letters), tokeniser, block=recipe.block, batch_tokens=recipe.batch_tokens, seed=seed
        )
        torch.manual_seed(seed)
        config = LanguageConfig(
            vocab_size=tokeniser.vocab_size, dim=recipe.dim, heads=recipe.heads, layers=recipe.layers,
            max_length=recipe.block, **SHAPES[self.shape],
        )  # fmt: skip
        self.model = LanguageModel(config)
        learned = trained(self.model, self.task, recipe.steps, recipe.learning_rate, seed)
        self.before = bits(self.task, learned)
        control = self._trained_further(deepcopy(self.model))
        self.seconds += learned.cpu_seconds
        for kv_heads in recipe.kv_heads:
            for method in METHODS:
                if (kv_heads, method) != (1, "align, neighbours"):  # one group has all heads
                    self.rows.append(self._row(kv_heads, method, control))
                    print(self.rows[-1], flush=True)

    def _row(self, kv_heads: int, method: str, control: float) -> Row:
        converted = self._converted(kv_heads, method)
        at_once = self.task.bits_per_character(held_out(converted, self.task))
        divergence, agreement = compared(self.model, converted, self.task)
        return Row(
            self.shape, self.text, self.seed, kv_heads, method, self.before, at_once, divergence, agreement,
            self._trained_further(converted), control,
        )  # fmt: skip

    def _converted(self, kv_heads: int, method: str) -> LanguageModel:
        calibration = None if method == "align, no text" else self._read_text
        if method == "align, neighbours":
            rotated = turned(self.model, kv_heads, calibration, regroup=False)[0]
            return with_kv_heads(rotated.float(), kv_heads)
        return with_kv_heads(self.model, kv_heads, method.split(",")[0], calibration=calibration)

    def _read_text(self, model: LanguageModel) -> None:
        for index in range(self.recipe.calibration_batches):
            model(self.task.batch(index).ids)

    def _trained_further(self, model: LanguageModel) -> float:
        result = trained(model, self.task, self.recipe.uptrain_steps, self.recipe.learning_rate, self.seed + 1)
        self.seconds += result.cpu_seconds
        return bits(self.task, result)


@torch.no_grad()
def compared(model: LanguageModel, other: LanguageModel, task: LanguageTask) -> tuple[float, float]:
    """Mean divergence of the other model's predictions from the model's, and the share of equal likeliest ids."""
    divergence = agreement = count = 0.0
    for batch in task.validation_batches():
        kept = batch.next != 0
        first, second = (each.eval()(batch.ids)[kept].log_softmax(-1) for each in (model, other))
        divergence += float((first.exp() * (first - second)).sum())
        agreement += float((first.argmax(-1) == second.argmax(-1)).sum())
        count += len(first)
    return divergence / count, agreement / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=[*TEXTS], help="all but the first: one seed")
    parser.add_argument("--quick", action="store_true", help="small sizes, only to check that it runs")
    parser.add_argument("--out", type=Path, default=FOLDER)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # for such small tensors several threads are slower than one
    recipe = QUICK if asked.quick else Recipe()
    rows: list[Row] = []
    seconds = 0.0
    command = (
        f"python benchmarks/kv_alignment.py --seeds {' '.join(map(str, asked.seeds))} --texts {' '.join(asked.texts)}"
        f"{' --quick' * asked.quick}"
    )
    cases = [(asked.texts[0], seed) for seed in asked.seeds] + [(text, asked.seeds[0]) for text in asked.texts[1:]]
    for text, seed in cases:
        for shape in SHAPES:
            experiment = Experiment(shape, text, seed, recipe)
            experiment.run()
            rows += experiment.rows
            seconds += experiment.seconds
            write(asked.out, recipe, rows, command, seconds)
    print((asked.out / "kv_alignment.md").read_text())


def write(out: Path, recipe: Recipe, rows: Sequence[Row], command: str, seconds: float) -> None:
    """Write both forms of the report."""
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "command": command, "environment": environment(), "recipe": asdict(recipe), "cpu_seconds": seconds,
        "rows": [asdict(row) for row in rows], "verdicts": verdicts(rows),
    }  # fmt: skip
    (out / "kv_alignment.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / "kv_alignment.md").write_text(report(recipe, rows, command, seconds))


def verdicts(rows: Sequence[Row]) -> list[str]:
    """One sentence for each comparison of align with another method."""
    found = {(row.shape, row.text, row.seed, row.kv_heads, row.method): row for row in rows}
    sentences = []
    for shape, text in dict.fromkeys((row.shape, row.text) for row in rows):
        for other in METHODS[:3]:
            pairs = [(row, found[*key[:4], other]) for key, row in found.items()
                     if key[:2] == (shape, text) and key[4] == "align"]  # fmt: skip
            parts = []
            for when in ("converted", "uptrained"):
                wins = sum(getattr(a, when) < getattr(b, when) for a, b in pairs)
                floor = "before" if when == "converted" else "control"
                lost = [
                    sum(getattr(row, when) - getattr(row, floor) for row in side) for side in zip(*pairs, strict=True)
                ]
                words = "before further training" if when == "converted" else "after it"
                parts.append(f"{words} in {wins} of {len(pairs)} ({lost[0] / lost[1]:.0%} as many bits are lost)")
            sentences.append(f"{shape}, {text}: align is better than {other} {', '.join(parts)}")
    return sentences


def report(recipe: Recipe, rows: Sequence[Row], command: str, seconds: float) -> str:
    """The report in Markdown."""
    table = [
        f"| {row.shape} | {row.text} | {row.seed} | {row.kv_heads} | {row.method} | {row.before:.3f} | "
        f"{row.converted:.3f} | {row.divergence:.3f} | {row.agreement:.0%} | {row.uptrained:.3f} | {row.control:.3f} |"
        for row in rows
    ]
    share = recipe.uptrain_steps / recipe.steps
    return "\n".join([
        "# How key/value heads are pooled", "",
        f"`{command}`, {date.today()}, torch {torch.__version__}, {seconds:,.0f} CPU seconds of training.", "",
        f"Character-level language models with {recipe.heads} heads of {recipe.dim // recipe.heads} numbers "
        f"({recipe.layers} layers, dim {recipe.dim}), {recipe.steps:,} steps of {recipe.batch_tokens:,} tokens. "
        f"Figures are bits per character on {recipe.held_out:,} held-out characters; KL is the divergence from the "
        f"original's predictions in nats, and agreement the share of equal likeliest characters. "
        f"Further training is {recipe.uptrain_steps} steps ({share:.0%}), for the original as well. `align` reads "
        f"{recipe.calibration_batches * recipe.batch_tokens:,} tokens of the training text; 'neighbours' rotates heads "
        f"without grouping them anew.", "",
        "| shape | text | seed | heads | method | before | converted | KL | agreement | after training | original "
        "after training |",
        "|---" * 11 + "|",
        *table, "", *(f"- {verdict}" for verdict in verdicts(rows)), "",
        "These models are small and trained briefly on two short texts. Measure your own: `regard convert kv-heads "
        "MODEL --kv-heads 2 --out DIR --text FILE`.", "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
