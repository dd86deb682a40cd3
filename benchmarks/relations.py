"""Scores every head of two small models trained on English prose by the relations between words that it shows.

python benchmarks/relations.py [--kinds causal encoder] [--work DIR] [--out DIR] [--quick]

The text is the documentation of the standard library of the Python that runs this (`benchmarks/library_text.py`). A
language model looks at earlier words only, an encoder of masked words at both sides; both are trained here in minutes.
For each relation the head is chosen on validation texts and scored on test texts, beside a fixed offset (chosen on
validation texts too), a random choice, the same model before training, and random labels. A trained model is stored in
`--work`, so the command can be stopped and repeated. The lesson `relations` reads the report that this writes.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.library_text import PARTS, Document, library_documents
from benchmarks.relation_scores import Gathered, relation_figures, sentence_figures, spread, texts_of
from benchmarks.report import RESULTS, options, trained
from regard_lab.bench.report import markdown_table
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.teaching.report import REPORTS, write_report
from regard_lab.text import Tokeniser
from regard_lab.training.recipes import LanguageTask, MaskedWordTask
from regard_lab.training.record import Validated

HERE = RESULTS / "relations_cpu"
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


QUICK = RelationsRecipe(vocab_size=400, dim=32, causal_steps=10, encoder_steps=10, texts=20)


def new_model(kind: str, recipe: RelationsRecipe, vocab_size: int) -> LanguageModel | TextEncoder:
    """The untrained model of a kind; the same weights each time."""
    sizes = {
        "vocab_size": vocab_size, "dim": recipe.dim, "layers": recipe.layers, "heads": recipe.heads,
        "hidden_dim": recipe.hidden_dim, "activation": "gelu", "positions": "rotary", "dropout": recipe.dropout,
    }  # fmt: skip
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


def measure(
    kind: str, recipe: RelationsRecipe, tokeniser: Tokeniser, documents: list[Document], work: Path
) -> dict[str, Any]:
    """Train the model of a kind, or load it, and score its heads."""
    parts = {part: [one for one in documents if one.part == part] for part in PARTS}
    train, validate = ([one.text for one in parts[part]] for part in ("train", "valid"))
    model, untrained = (new_model(kind, recipe, tokeniser.vocab_size) for _ in range(2))
    steps = recipe.causal_steps if kind == "causal" else recipe.encoder_steps
    result = trained(
        model, new_task(kind, recipe, (train, validate, tokeniser)), steps, recipe.learning_rate, SEED,
        min(100, steps // 5), work, print_validation, validate_every=max(1, steps // 4), save_every=None,
    )  # fmt: skip
    valid, test = (
        Gathered(
            (model, untrained), tokeniser, spread(list(texts_of(parts[part], tokeniser, LENGTH - 2)), recipe.texts)
        )
        for part in ("valid", "test")
    )
    relations = relation_figures(valid, test)
    heads = sorted({tuple(one["head"]) for one in relations.values()})
    return {
        "layers": recipe.layers, "heads": recipe.heads, "parameters": sum(p.numel() for p in model.parameters()),
        "steps": result.steps, "predicted": result.tokens, "cpu_seconds": round(result.cpu_seconds),
        "valid_loss": round(result.valid_loss or float("nan"), 3), "ids": {"valid": valid.ids, "test": test.ids},
        "relations": relations, **sentence_figures(model, tokeniser, heads),
    }  # fmt: skip


def corpus_figures(documents: list[Document]) -> dict[str, Any]:
    """How much was found, by part."""
    return {
        part: {
            "documents": sum(one.part == part for one in documents),
            "paragraphs": sum(len(one.paragraphs) for one in documents if one.part == part),
            "words": sum(len(one.text.split()) for one in documents if one.part == part),
        }
        for part in PARTS
    }


def main() -> None:
    parser = options(__doc__, out=HERE)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--work", type=Path, default=Path("runs/relations"), help="trained models; made if missing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    recipe = QUICK if asked.quick else RelationsRecipe()
    documents = library_documents()
    tokeniser = Tokeniser.train([one.text for one in documents if one.part == "train"], recipe.vocab_size)
    figures: dict[str, Any] = {"recipe": asdict(recipe), "corpus": corpus_figures(documents), "models": {}}
    print(figures["corpus"], flush=True)
    for kind in asked.kinds:
        kept = asked.work / f"{kind}.json"
        if not kept.exists():
            measured = measure(kind, recipe, tokeniser, documents, asked.work / kind)
            kept.write_text(json.dumps(measured), encoding="utf-8")
        figures["models"][kind] = json.loads(kept.read_text(encoding="utf-8"))
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "relations.md").write_text(page(figures), encoding="utf-8")
    if not asked.quick and asked.kinds == list(KINDS):
        REPORTS.mkdir(exist_ok=True)
        print(write_report("relations", "python benchmarks/relations.py", figures))
    print(page(figures))


def page(figures: dict[str, Any]) -> str:
    """The scores as a page of Markdown."""
    lines = ["# Relations between words, by head", "", "`python benchmarks/relations.py`", ""]
    for kind, model in figures["models"].items():
        lines += [f"## {kind}", ""]
        lines += [
            f"{model['layers']} layers of {model['heads']} heads. {model['steps']:,} steps, {model['predicted']:,} ids "
            f"predicted, {model['cpu_seconds']} CPU seconds, validation loss {model['valid_loss']} nats.",
            "",
        ]
        lines += [*markdown_table(COLUMNS, (row(name, one) for name, one in model["relations"].items())), ""]
    return "\n".join(lines)


COLUMNS = (
    "relation", "links", "head", "share", "± error", "mass", "fixed offset", "random choice", "untrained",
    "from the neighbour", "random labels, over chance", "beyond every baseline",
)  # fmt: skip


def row(name: str, one: dict[str, Any]) -> list[str]:
    base, control = one["baselines"], one["random_labels"]
    near = "" if one["neighbours"] is None else f"{one['neighbours']:.3f}"
    return [
        name, f"{one['links']:,}", "{}.{}".format(*one["head"]), f"{one['share']:.3f}", f"{one['error']:.3f}",
        f"{one['mass']:.3f}", f"{base['fixed offset']:.3f} ({one['offset']:+d})", f"{base['random choice']:.3f}",
        f"{base['untrained']:.3f}", near, f"{control['over_chance']:+.3f} ± {control['error']:.3f}",
        "yes" if one["beyond"] else "no",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
