"""Scores every head of two small models trained on English prose by the relations between words that it shows.

python benchmarks/relations.py [--work DIR]

The text is the documentation of the standard library of the Python that runs this (`benchmarks/library_text.py`). A
language model looks at earlier words only, an encoder of masked words at both sides; both are trained here in minutes.
For each relation the head is chosen on validation texts and scored on test texts, beside a fixed offset (chosen on
validation texts too), a random choice, the same model before training, and random labels. A trained model is stored in
`--work`, so the command can be stopped and repeated. The lesson `relations` reads the report that this writes.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.library_text import PARTS, LibraryDocument, library_documents
from benchmarks.relation_scores import (
    Gathered,
    relation_figures,
    sentence_figures,
    spread,
    texts_of,
)
from benchmarks.report import options, trained, write_lesson_report
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.text import Tokeniser
from regard_lab.training.events import Validated
from regard_lab.training.recipes import LanguageTask, MaskedWordTask

KINDS = ("causal", "encoder")
SEED = 0
LENGTH = 128  # ids of a text


@dataclass(frozen=True)
class RelationsRecipe:
    """The settings of both models."""

    vocab_size: int = 2_500
    dim: int = 128
    layers: int = 3
    heads: int = 8
    hidden_dim: int = 256
    batch_tokens: int = 1_024
    causal_steps: int = 2_600
    encoder_steps: int = 3_400
    learning_rate: float = 3e-3
    dropout: float = 0.1
    texts: int = 200  # of each part, to choose heads and to score them


def new_model(kind: str, recipe: RelationsRecipe, vocab_size: int) -> LanguageModel | TextEncoder:
    """The untrained model of a kind; the same weights each time."""
    sizes = {
        "vocab_size": vocab_size,
        "dim": recipe.dim,
        "layers": recipe.layers,
        "heads": recipe.heads,
        "hidden_dim": recipe.hidden_dim,
        "activation": "gelu",
        "positions": "rotary",
        "dropout": recipe.dropout,
    }
    torch.manual_seed(SEED)
    if kind == "causal":
        return LanguageModel(LanguageConfig(**sizes))
    return TextEncoder(EncoderConfig(**sizes))


def new_task(
    kind: str, recipe: RelationsRecipe, texts: tuple[list[str], list[str], Tokeniser]
) -> LanguageTask | MaskedWordTask:
    """What the model of a kind learns: texts to learn from and to validate on, and their tokeniser."""
    if kind == "causal":
        return LanguageTask(*texts, block=LENGTH, batch_tokens=recipe.batch_tokens, seed=SEED)
    return MaskedWordTask(*texts, longest=LENGTH, batch_tokens=recipe.batch_tokens, seed=SEED)


def print_validation(event: Any) -> None:
    """Print validations; steps are in the folder's log."""
    if isinstance(event, Validated):
        print(event, flush=True)


def documents_of(documents: list[LibraryDocument], part: str) -> list[LibraryDocument]:
    return [document for document in documents if document.part == part]


def whole_texts(documents: list[LibraryDocument], part: str) -> list[str]:
    return [document.text for document in documents_of(documents, part)]


def measure(
    kind: str,
    recipe: RelationsRecipe,
    tokeniser: Tokeniser,
    documents: list[LibraryDocument],
    work: Path,
) -> dict[str, Any]:
    """Train the model of a kind, or load it, and score its heads."""
    training = whole_texts(documents, "train")
    validation = whole_texts(documents, "valid")
    model = new_model(kind, recipe, tokeniser.vocab_size)
    untrained = new_model(kind, recipe, tokeniser.vocab_size)
    steps = recipe.causal_steps if kind == "causal" else recipe.encoder_steps
    result = trained(
        model,
        new_task(kind, recipe, (training, validation, tokeniser)),
        steps,
        recipe.learning_rate,
        SEED,
        min(100, steps // 5),
        work,
        print_validation,
        validate_every=max(1, steps // 4),
        save_every=None,
    )

    def gather(part: str) -> Gathered:
        texts = list(texts_of(documents_of(documents, part), tokeniser, LENGTH - 2))
        return Gathered((model, untrained), tokeniser, spread(texts, recipe.texts))

    valid = gather("valid")
    test = gather("test")
    relations = relation_figures(valid, test)
    heads = sorted({tuple(relation["head"]) for relation in relations.values()})
    return {
        "layers": recipe.layers,
        "heads": recipe.heads,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": result.steps,
        "predicted": result.tokens,
        "cpu_seconds": round(result.cpu_seconds),
        "valid_loss": round(result.valid_loss or float("nan"), 3),
        "ids": {"valid": valid.ids, "test": test.ids},
        "relations": relations,
        **sentence_figures(model, tokeniser, heads),
    }


def corpus_figures(documents: list[LibraryDocument]) -> dict[str, Any]:
    """How much was found, by part."""
    figures = {}
    for part in PARTS:
        of_part = documents_of(documents, part)
        figures[part] = {
            "documents": len(of_part),
            "paragraphs": sum(len(document.paragraphs) for document in of_part),
            "words": sum(len(document.text.split()) for document in of_part),
        }
    return figures


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--work", type=Path, default=Path("runs/relations"), help="trained models; made if missing"
    )
    asked = parser.parse_args()
    recipe = RelationsRecipe()
    torch.set_num_threads(1)
    documents = library_documents()
    tokeniser = Tokeniser.train(whole_texts(documents, "train"), recipe.vocab_size)
    figures: dict[str, Any] = {
        "recipe": asdict(recipe),
        "corpus": corpus_figures(documents),
        "models": {},
    }
    print(figures["corpus"], flush=True)
    for kind in KINDS:
        figures["models"][kind] = measure(kind, recipe, tokeniser, documents, asked.work / kind)
    print(write_lesson_report("relations", "python benchmarks/relations.py", figures))


if __name__ == "__main__":
    main()
