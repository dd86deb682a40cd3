"""Compares decoders with and without attention by the length of the source, at small scale.

python benchmarks/length_story.py [--seeds 0 1 2]

The task is to reverse texts of 3 to 12 symbols out of 20. In three models the encoder is a bidirectional GRU and the
decoder a GRU with or without attention; without it the whole source must fit into one vector. The fourth is a
Transformer of about as many parameters. The promise: with attention at least 0.8 of the longest training texts are
right, without it at most 0.1. Models with attention are not ranked, since their order beyond the training lengths
varies with the seed.

The figures are written for `regard lesson fixed_vector`, and a page of them into results/.

Source: Bahdanau et al. 2015, section 5.1 and figure 2; Vaswani et al. 2017, section 3.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.report import RESULTS, command, heading, options
from regard_lab.bench.report import markdown_table
from regard_lab.decoding import greedy_search
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.models.recurrent import RecurrentConfig
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.teaching.report import write_report
from regard_lab.text import BEGIN, END, PAD
from regard_lab.text.batches import pad

MODELS = ("none", "bahdanau", "luong-general", "transformer")
SYMBOLS, FIRST = 20, 4  # ids 0 to 3 are special
SHORTEST, LONGEST = 3, 12  # lengths of the training texts
LENGTHS = (4, 8, 12, 16)  # tested lengths; the last is longer than all training texts
WITH, WITHOUT = 0.8, 0.1  # promised shares at the longest training length
Model = RecurrentTranslator | TranslationTransformer
PAGE = RESULTS / "length_story_cpu" / "length_story.md"


@dataclass(frozen=True)
class StoryRecipe:
    """The settings, the same for all models."""

    steps: int = 1200
    batch: int = 48
    dim: int = 64
    hidden: int = 96
    learning_rate: float = 3e-3
    tests: int = 200


def main() -> None:
    parser = options(__doc__, seeds=[0, 1, 2])
    asked, recipe, rows = parser.parse_args(), StoryRecipe(), []
    for seed in asked.seeds:
        for name in MODELS:
            rows.append(measure(name, seed, recipe))
            print(rows[-1], flush=True)
    write_report("length_story", command(), {"recipe": asdict(recipe), "rows": rows})
    PAGE.write_text("\n".join(page(recipe, rows)) + "\n", "utf-8")


def measure(name: str, seed: int, recipe: StoryRecipe) -> dict[str, Any]:
    """Train one model and measure the share of texts of each length that it reverses without a mistake."""
    began = time.process_time()
    model = learn(name, seed, recipe)
    seconds = time.process_time() - began
    return {
        "model": name, "seed": seed, "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "accuracy": {str(length): sequence_accuracy(model, length, recipe.tests) for length in LENGTHS},
        "cpu_seconds": round(seconds, 1),
    }  # fmt: skip


def new_model(name: str, recipe: StoryRecipe) -> Model:
    """An untrained model; the Transformer has about as many parameters as the recurrent models."""
    vocab_size = FIRST + SYMBOLS
    if name == "transformer":
        return TranslationTransformer(
            TranslationConfig(vocab_size=vocab_size, dim=recipe.dim, hidden_dim=2 * recipe.dim, dropout=0.0)
        )
    return RecurrentTranslator(
        RecurrentConfig(vocab_size=vocab_size, dim=recipe.dim, hidden=recipe.hidden, attention=name, dropout=0.0)
    )


def learn(name: str, seed: int, recipe: StoryRecipe) -> Model:
    torch.manual_seed(seed)
    model = new_model(name, recipe)
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps)
    generator = torch.Generator().manual_seed(seed)  # the same texts in the same order for every model
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


def sequence_accuracy(model: Model, length: int, count: int) -> float:
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


def verdict(rows: list[dict[str, Any]]) -> tuple[bool, str]:
    """Whether every seed keeps the promise, and a sentence with the figures."""
    most, least = ([row["accuracy"][f"{LONGEST}"] for row in rows if (row["model"] == "none") is alone]
                   for alone in (True, False))  # fmt: skip
    kept = min(least) >= WITH and max(most) <= WITHOUT
    return kept, (
        f"{'kept' if kept else 'missed'}: at length {LONGEST}, the longest in training, attention has at least "
        f"{min(least):.3f} (promised {WITH}) and one vector at most {max(most):.3f} (promised {WITHOUT})"
    )


def page(recipe: StoryRecipe, rows: list[dict[str, Any]]) -> list[str]:
    """The report in Markdown."""
    lines = []
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        shares = (sorted(row["accuracy"][f"{length}"] for row in own) for length in LENGTHS)
        cells = (f"{median(one):.3f} ({one[0]:.3f} to {one[-1]:.3f})" for one in shares)
        lines.append((name, *cells, f"{own[0]['parameters']:,}", f"{median(row['cpu_seconds'] for row in own):.0f}",
                      len(own)))  # fmt: skip
    head = ("model", *(f"length {length}" for length in LENGTHS), "parameters", "CPU seconds", "seeds")
    return [
        *heading("Accuracy by text length", given="python benchmarks/length_story.py"),
        f"The task is to reverse texts of {SHORTEST} to {LONGEST} symbols out of {SYMBOLS}; {recipe.steps:,} steps of "
        f"{recipe.batch} texts, the same for all models. Share of {recipe.tests} new texts without a mistake: "
        "median over seeds (lowest to highest).", "",
        *markdown_table(head, lines),
        "", f"Promise {verdict(rows)[1]}.", "",
        f"Length {LENGTHS[-1]} does not occur in training; the Transformer has not been trained on its last positions. "
        "Models with attention are not ranked against each other.",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
