"""Measures what fewer key/value heads save and lose, and how much further training recovers. Writes a report.

python benchmarks/kv_heads.py [--seeds 0] [--quick] [--out DIR]

A small character-level language model with 8 heads is trained on the docstrings of Python's standard library. It is
converted to 4, 2 and 1 key/value heads, by the mean of each group or by its first head, and measured on held-out text.
Then it is trained for 5 % more steps and measured again. For comparison the original is trained for as many more steps.

Source: GQA, Ainslie et al. 2023: mean-pooled heads (section 2.1), trained for 5 % of the original steps (section 3.1).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from behaviour.learning import texts

from regard.arguments import count_of
from regard_lab.bench.results import environment
from regard_lab.conversion import load_converted
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.text import Tokeniser
from regard_lab.training import TrainingConfig, TrainingResult, train
from regard_lab.training.recipes.language import LanguageTask

FOLDER = Path(__file__).parent / "results" / "kv_heads_cpu"
MOST = 0.5  # more than this share of the lost bits counts as most of them


@dataclass(frozen=True)
class Recipe:
    """The settings of the experiment."""

    characters: int = 2_000_000
    held_out: int = 30_000
    dim: int = 64
    heads: int = 8
    layers: int = 2
    block: int = 64
    batch_tokens: int = 1_024
    steps: int = 2_000
    uptrain_steps: int = 100
    learning_rate: float = 3e-3
    uptrain_rate: float = 3e-3
    kv_heads: tuple[int, ...] = (4, 2, 1)
    methods: tuple[str, ...] = ("mean", "first")


QUICK = Recipe(characters=60_000, held_out=5_000, dim=32, layers=1, steps=30, uptrain_steps=5, kv_heads=(2,))


@dataclass(frozen=True)
class Row:
    """One conversion: bytes per token, and bits per character on the held-out text."""

    seed: int
    kv_heads: int
    method: str
    kv_bytes: int
    kv_bytes_before: int
    parameters_removed: int
    difference: float  # from the model with its heads repeated
    before: float
    converted: float
    uptrained: float
    control: float  # the original after as many more steps
    cpu_seconds: float

    @property
    def recovered(self) -> float:
        """The share of the lost bits that training recovered."""
        return (self.converted - self.uptrained) / (self.converted - self.before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, only to check that it runs")
    parser.add_argument("--out", type=Path, default=FOLDER)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # for such small tensors several threads are slower than one
    recipe = QUICK if asked.quick else Recipe()
    rows: list[Row] = []
    seconds = 0.0
    for seed in asked.seeds:
        measured, base_seconds = measure(recipe, seed)
        rows += measured
        seconds += base_seconds + sum(row.cpu_seconds for row in measured)
    command = f"python benchmarks/kv_heads.py --seeds {' '.join(map(str, asked.seeds))}{' --quick' * asked.quick}"
    asked.out.mkdir(parents=True, exist_ok=True)
    content = {
        "command": command, "environment": environment(), "recipe": asdict(recipe), "cpu_seconds": seconds,
        "rows": [{**asdict(row), "recovered": row.recovered} for row in rows], "verdicts": verdicts(rows),
    }  # fmt: skip
    (asked.out / "kv_heads.json").write_text(json.dumps(content, indent=1) + "\n")
    (asked.out / "kv_heads.md").write_text(report(recipe, rows, command, seconds))
    print((asked.out / "kv_heads.md").read_text())


def measure(recipe: Recipe, seed: int) -> tuple[list[Row], float]:
    """Every conversion of one trained model, and the CPU seconds of that model and its control."""
    letters = [
        letters_of(ids[:count]) for ids, count in zip(texts(), (recipe.characters, recipe.held_out), strict=True)
    ]
    tokeniser = Tokeniser.train(letters[:1], 300, "character", verbatim=True)
    task = LanguageTask(
        *([text] for text in letters), tokeniser, block=recipe.block, batch_tokens=recipe.batch_tokens, seed=seed
    )
    torch.manual_seed(seed)
    model = LanguageModel(
        LanguageConfig(vocab_size=tokeniser.vocab_size, dim=recipe.dim, heads=recipe.heads, layers=recipe.layers)
    )
    learned = trained(model, task, recipe.steps, recipe.learning_rate, seed)
    control = trained(deepcopy(model), task, recipe.uptrain_steps, recipe.uptrain_rate, seed + 1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        for kv_heads in recipe.kv_heads:
            for method in recipe.methods:
                converted = load_converted(Path(folder) / "model", kv_heads, method)
                rows.append(row_of(recipe, seed, converted, task, bits(task, learned), bits(task, control)))
                print(rows[-1], flush=True)
    return rows, learned.cpu_seconds + control.cpu_seconds


def row_of(recipe: Recipe, seed: int, converted: Any, task: LanguageTask, before: float, control: float) -> Row:
    """One conversion, measured, trained further and measured again."""
    report = converted.report
    at_once = task.bits_per_character(held_out(converted.after, task))
    result = trained(converted.after, task, recipe.uptrain_steps, recipe.uptrain_rate, seed + 1)
    assert report.difference is not None
    return Row(
        seed=seed, kv_heads=converted.after.config.kv_heads, method=report.method,
        kv_bytes=report.kv_bytes["token"].after, kv_bytes_before=report.kv_bytes["token"].before,
        parameters_removed=report.removed, difference=report.difference, before=before, converted=at_once,
        uptrained=bits(task, result), control=control, cpu_seconds=result.cpu_seconds,
    )  # fmt: skip


def trained(model: torch.nn.Module, task: LanguageTask, steps: int, rate: float, seed: int) -> TrainingResult:
    """Train in place, down to a learning rate of zero."""
    config = TrainingConfig(
        steps=steps, learning_rate=rate, warmup_steps=steps // 10, schedule="cosine", weight_decay=0.01,
        validate_every=steps, save_every=steps, seed=seed,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        return train(model, task, config, folder, cpu=True)


@torch.no_grad()
def held_out(model: torch.nn.Module, task: LanguageTask) -> float:
    """Loss on the held-out text in nats per id."""
    losses = [task.validation_loss(model.eval(), batch) for batch in task.validation_batches()]
    return sum(float(loss) for loss, _ in losses) / sum(count for _, count in losses)


def bits(task: LanguageTask, result: TrainingResult) -> float:
    """Bits per character after training."""
    assert result.valid_loss is not None
    return task.bits_per_character(result.valid_loss)


def letters_of(ids: torch.Tensor) -> str:
    """Ids of 27 symbols as text."""
    return bytes((ids + 96).tolist()).decode().replace("`", " ")


def verdicts(rows: Sequence[Row]) -> list[str]:
    """One sentence for each promise: whether it was kept, with figures."""
    exact = all(row.kv_bytes * Recipe.heads == row.kv_bytes_before * row.kv_heads for row in rows)
    counted = {row.kv_heads: row.kv_bytes for row in rows}
    worst = max(row.difference for row in rows)
    least = min(rows, key=lambda row: row.recovered)
    pairs = {(row.seed, row.kv_heads, row.method): row for row in rows}
    duels = [
        (pairs[key], pairs[*key[:2], "first"]) for key in pairs if key[2] == "mean" and (*key[:2], "first") in pairs
    ]
    wins = [sum(getattr(a, when) < getattr(b, when) for a, b in duels) for when in ("converted", "uptrained")]
    word = {True: "kept", False: "missed"}
    return [
        f"{word[exact]}: bytes of keys and values a token, counted in a real cache, fall in proportion to the heads "
        f"({', '.join(f'{count:,} with {heads}' for heads, count in counted.items())})",
        f"{word[worst <= 1e-6]}: with its heads repeated, each converted model agrees within 1e-6 ({worst:.0e})",
        f"{word[least.recovered > MOST]}: further training recovers most of what was lost: at least "
        f"{least.recovered:.0%} ({count_of(least.kv_heads, 'heads')}, {least.method})",
        f"not promised: the mean is better than the first head in {wins[0]} of {len(duels)} conversions before "
        f"further training, in {wins[1]} after it",
    ]


def report(recipe: Recipe, rows: Sequence[Row], command: str, seconds: float) -> str:
    """The report in Markdown."""
    table = [
        f"| {row.kv_heads} | {row.method} | {row.seed} | {row.kv_bytes:,} | {row.parameters_removed:,} | "
        f"{row.before:.3f} | {row.converted:.3f} | {row.uptrained:.3f} | {row.control:.3f} | {row.recovered:.0%} |"
        for row in rows
    ]
    share = recipe.uptrain_steps / recipe.steps
    return "\n".join([
        "# Fewer key/value heads", "",
        f"`{command}`, {date.today()}, torch {torch.__version__}, {seconds:,.0f} CPU seconds of training.", "",
        f"A character-level language model with {recipe.heads} heads ({recipe.layers} layers, dim {recipe.dim}), "
        f"{recipe.steps:,} steps of {recipe.batch_tokens:,} tokens; {rows[0].kv_bytes_before:,} bytes of keys and "
        f"values a token. Figures are bits per character on {recipe.held_out:,} held-out characters. Further "
        f"training is {recipe.uptrain_steps} steps ({share:.0%}), for the original as well.", "",
        "| heads | method | seed | KV bytes per token | parameters removed | before | converted | after training | "
        "original after training | recovered |", "|---" * 10 + "|",
        *table, "", *(f"- {verdict}" for verdict in verdicts(rows)), "",
        "Pooling makes a model worse until it is trained further. These models are small and trained briefly, with "
        f"heads of {recipe.dim // recipe.heads} numbers, on a single text. Measure your own: `regard convert kv-heads "
        "MODEL --kv-heads 2 --out DIR --text FILE --uptrain-steps N`.", "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
