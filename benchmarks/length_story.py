"""Compares decoders with and without attention by the length of the source, at small scale.

python benchmarks/length_story.py [--seeds 0 1 2] [--steps 1200] [--out DIR]

The task is to reverse texts of 3 to 12 symbols out of 20. The encoder is a bidirectional GRU, the decoder a GRU with or
without attention; without it the whole source must fit into one vector. Each finished model is stored, so the command
can be stopped and repeated. The promise: with attention at least 0.8 of the longest training texts are right, without
it at most 0.1. Bahdanau and Luong are not ranked, since their order beyond the training lengths varies with the seed.

Source: Bahdanau et al. 2015, section 5.1 and figure 2.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from regard.decoding import greedy_search
from regard.models import RecurrentTranslator
from regard.models.recurrent import RecurrentConfig
from regard.text import BEGIN, END, PAD
from regard.text.batches import pad

ATTENTIONS = ("none", "bahdanau", "luong-general")
SYMBOLS, FIRST = 20, 4  # ids 0 to 3 are special
SHORTEST, LONGEST = 3, 12  # lengths of the training texts
LENGTHS = (4, 8, 12, 16)  # tested lengths; the last is longer than all training texts
WITH, WITHOUT = 0.8, 0.1  # promised shares at the longest training length
HERE = Path(__file__).parent / "results" / "length_story_cpu"


@dataclass(frozen=True)
class Recipe:
    """The settings, the same for all models."""

    steps: int = 1200
    batch: int = 48
    dim: int = 64
    hidden: int = 96
    learning_rate: float = 3e-3
    tests: int = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--attentions", nargs="+", choices=ATTENTIONS, default=ATTENTIONS)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    recipe = Recipe(steps=asked.steps)
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = kept_rows(asked.out / "length_story.json", recipe)
    for seed in asked.seeds:
        for attention in asked.attentions:
            if not any(row["attention"] == attention and row["seed"] == seed for row in rows):
                rows.append(measure(attention, seed, recipe))
                print(rows[-1], file=sys.stderr)
                write(asked.out, recipe, rows)
    write(asked.out, recipe, rows)
    print(asked.out / "length_story.md")


def measure(attention: str, seed: int, recipe: Recipe) -> dict[str, Any]:
    """Train one model and measure the share of texts of each length that it reverses without a mistake."""
    began = time.process_time()
    model = learn(attention, seed, recipe)
    seconds = time.process_time() - began
    accuracy = {str(length): sequence_accuracy(model, length, recipe.tests) for length in LENGTHS}
    return {"attention": attention, "seed": seed, "accuracy": accuracy, "cpu_seconds": round(seconds, 1)}


def learn(attention: str, seed: int, recipe: Recipe) -> RecurrentTranslator:
    torch.manual_seed(seed)
    model = RecurrentTranslator(
        RecurrentConfig(
            vocab_size=FIRST + SYMBOLS, dim=recipe.dim, hidden=recipe.hidden, attention=attention, dropout=0.0
        )
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps)
    generator = torch.Generator().manual_seed(seed)  # the same texts in the same order for every attention
    for _ in range(recipe.steps):
        texts = reversible(recipe.batch, SHORTEST, LONGEST, generator)
        backwards = [text[::-1] for text in texts]
        source, target, following = sources(texts), pad([[BEGIN, *text] for text in backwards]), sources(backwards)
        loss = F.cross_entropy(model(source, target).flatten(0, 1), following.flatten(), ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval()


def sequence_accuracy(model: RecurrentTranslator, length: int, count: int) -> float:
    """The share of new texts of a length that greedy search reverses without a mistake."""
    texts = reversible(count, length, length, torch.Generator().manual_seed(1_000_003 + length))
    outputs = greedy_search(model, sources(texts), max_length=length + 2)
    return sum(list(one.ids) == text[::-1] and one.finished for one, text in zip(outputs, texts, strict=True)) / count


def reversible(count: int, shortest: int, longest: int, generator: torch.Generator) -> list[list[int]]:
    """Random texts, each of a random length."""
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(FIRST, FIRST + SYMBOLS, (length,), generator=generator).tolist() for length in lengths]


def sources(texts: Sequence[list[int]]) -> torch.Tensor:
    return pad([[*text, END] for text in texts])


def kept_rows(path: Path, recipe: Recipe) -> list[dict[str, Any]]:
    """The rows of an earlier call with the same settings."""
    if not path.exists():
        return []
    kept = json.loads(path.read_text())
    return kept["rows"] if kept["recipe"] == asdict(recipe) else []


def verdict(rows: list[dict[str, Any]]) -> tuple[bool, str]:
    """Whether every seed keeps the promise, and a sentence with the figures."""
    at = str(LONGEST)
    attentive = [row["accuracy"][at] for row in rows if row["attention"] != "none"]
    alone = [row["accuracy"][at] for row in rows if row["attention"] == "none"]
    if not attentive or not alone:
        return False, "nothing to compare yet"
    kept = min(attentive) >= WITH and max(alone) <= WITHOUT
    return kept, (
        f"{'kept' if kept else 'missed'}: at length {at}, the longest in training, attention has at least "
        f"{min(attentive):.3f} (promised {WITH}) and one vector at most {max(alone):.3f} (promised {WITHOUT})"
    )


def write(out: Path, recipe: Recipe, rows: list[dict[str, Any]]) -> None:
    """The report and its numbers."""
    (out / "length_story.json").write_text(json.dumps({"recipe": asdict(recipe), "rows": rows}, indent=1) + "\n")
    lines = [
        "# The length story",
        "",
        f"The task is to reverse texts of {SHORTEST} to {LONGEST} symbols out of {SYMBOLS}; {recipe.steps:,} steps of "
        f"{recipe.batch} texts, the same for all models. Share of {recipe.tests} new texts without a mistake: "
        "median over seeds (lowest to highest).",
        "",
        f"| attention | {' | '.join(f'length {length}' for length in LENGTHS)} | CPU seconds | seeds |",
        "|---" * (len(LENGTHS) + 3) + "|",
    ]
    for attention in ATTENTIONS:
        own = [row for row in rows if row["attention"] == attention]
        if own:
            cells = [spread([row["accuracy"][str(length)] for row in own]) for length in LENGTHS]
            seconds = statistics.median(row["cpu_seconds"] for row in own)
            lines.append(f"| {attention} | {' | '.join(cells)} | {seconds:.0f} | {len(own)} |")
    lines += [
        "",
        f"Promise {verdict(rows)[1]}.",
        "",
        f"Length {LENGTHS[-1]} does not occur in training. Bahdanau and Luong are not ranked against each other.",
        "",
        f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads.",
    ]
    (out / "length_story.md").write_text("\n".join(lines) + "\n")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
