"""Compares decoders with and without attention by the length of the source, at small scale.

python benchmarks/length_story.py [--seeds 0 1 2]

The task is to reverse texts of 3 to 12 symbols out of 20. In three models the encoder is a bidirectional GRU and the
decoder a GRU with or without attention; without it the whole source must fit into one vector. The fourth is a
Transformer of about as many parameters. The lesson `fixed_vector` shows and judges what this measures. Models with
attention are not ranked, since their order beyond the training lengths varies with the seed.

Source: Bahdanau et al. 2015, section 5.1 and figure 2; Vaswani et al. 2017, section 3.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.report import command, options, write_lesson_report
from regard_lab.decoding import greedy_search
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.models.recurrent import RecurrentConfig
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.text import BEGIN, END, PAD
from regard_lab.text.batches import pad

MODELS = ("none", "bahdanau", "luong-general", "transformer")
SYMBOLS = 20
FIRST = 4  # id of a symbol; ids 0 to 3 are special
SHORTEST = 3  # training text
LONGEST = 12
LENGTHS = (4, 8, 12, 16)  # tested lengths; the last is longer than all training texts
Model = RecurrentTranslator | TranslationTransformer


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
    asked = options(__doc__, seeds=[0, 1, 2]).parse_args()
    recipe = StoryRecipe()
    rows = []
    for seed in asked.seeds:
        for name in MODELS:
            rows.append(measure(name, seed, recipe))
            print(rows[-1], flush=True)
    print(write_lesson_report("length_story", command(), {"recipe": asdict(recipe), "rows": rows}))


def measure(name: str, seed: int, recipe: StoryRecipe) -> dict[str, Any]:
    """Train one model and measure the share of texts of each length that it reverses without a mistake."""
    began = time.process_time()
    model = learn(name, seed, recipe)
    seconds = time.process_time() - began
    accuracy = {str(length): sequence_accuracy(model, length, recipe.tests) for length in LENGTHS}
    return {
        "model": name,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "accuracy": accuracy,
        "cpu_seconds": round(seconds, 1),
    }


def new_model(name: str, recipe: StoryRecipe) -> Model:
    """An untrained model; the Transformer has about as many parameters as the recurrent models."""
    sizes: dict[str, Any] = {"vocab_size": FIRST + SYMBOLS, "dim": recipe.dim, "dropout": 0.0}
    if name == "transformer":
        config = TranslationConfig(**sizes, hidden_dim=2 * recipe.dim)
        return TranslationTransformer(config)
    return RecurrentTranslator(RecurrentConfig(**sizes, hidden=recipe.hidden, attention=name))


def learn(name: str, seed: int, recipe: StoryRecipe) -> Model:
    torch.manual_seed(seed)
    model = new_model(name, recipe)
    optimiser = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps)
    # The same texts in the same order for every model.
    generator = torch.Generator().manual_seed(seed)
    for _ in range(recipe.steps):
        texts = reversible(recipe.batch, SHORTEST, LONGEST, generator)
        backwards = [text[::-1] for text in texts]
        source = sources(texts)
        target = pad([[BEGIN, *text] for text in backwards])
        following = sources(backwards)
        logits = model(source, target).flatten(0, 1)
        loss = F.cross_entropy(logits, following.flatten(), ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval()


def sequence_accuracy(model: Model, length: int, count: int) -> float:
    """The share of new texts of a length that greedy search reverses without a mistake."""
    texts = reversible(count, length, length, torch.Generator().manual_seed(1_000_003 + length))
    outputs = greedy_search(model, sources(texts), max_tokens=length + 2)
    right = 0
    for output, text in zip(outputs, texts, strict=True):
        right += output.finished and list(output.ids) == text[::-1]
    return right / count


def reversible(
    count: int, shortest: int, longest: int, generator: torch.Generator
) -> list[list[int]]:
    """Random texts, each of a random length."""
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    texts = []
    for length in lengths:
        symbols = torch.randint(FIRST, FIRST + SYMBOLS, (length,), generator=generator)
        texts.append(symbols.tolist())
    return texts


def sources(texts: Sequence[list[int]]) -> torch.Tensor:
    return pad([[*text, END] for text in texts])


if __name__ == "__main__":
    main()
