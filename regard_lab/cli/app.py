"""The command line as one table: each command with the file that it is in."""

from __future__ import annotations

from typing import Annotated, ClassVar

import typer

from regard import __version__
from regard_lab.cli.commands import Commands, Source


class TopLevel(Commands):
    SOURCES: ClassVar = {
        "demo": Source("demo", "demo", "Train, evaluate and inspect a translator on the built-in corpus."),
        "translate": Source(
            "translate", "translate", "Translate sentences, one line of output for each line of input."
        ),
        "generate": Source(
            "generate", "generate",
            "Continue prompts with a language model, in the order temperature, top-k, top-p, min-p.",
        ),
        "classify": Source("classify", "classify", "Label texts, one line of output for each line of input."),
        "evaluate": Source(
            "evaluate", "evaluate", "Evaluate a translator (BLEU, chrF, exact match) or a language model (perplexity)."
        ),
        "average": Source(
            "train", "average", "Average the last checkpoints of a training run, which often improves the model."
        ),
        "compare": Source(
            "compare", "compare",
            "Train several models with different attention on the same data, and report quality, time and memory.",
        ),
        "show": Source("show", "show", "Draw a pattern: which query may look at which key."),
        "plan": Source(
            "plan", "plan",
            "Show which backend would compute a call, its cost, and why others are not used; computes nothing.",
        ),
        "approximation": Source(
            "approximation", "approximation",
            "Measure what cheaper attention would lose and save on your own queries, keys and values.",
        ),
        "walkthrough": Source(
            "walkthrough", "walkthrough",
            "Show what attention does with a sentence, step by step: every number, its formula and its line of "
            "PyTorch.",
        ),
        "view": Source(
            "view", "view",
            "Explore the attention of a trained model, and what each word that it wrote depends on, in a local page.",
        ),
        "lesson": Source(
            "lesson", "lesson",
            "Check claims of articles about attention by computing them, with numbers and a figure.",
        ),
        "lenses": Source(
            "lenses", "lenses",
            "Measure which lens finds the words that a trained translator uses; swapped words verify which these are.",
        ),
        "bench": Source(
            "bench", "bench",
            "Compare the speed of regard with other installed libraries; results are checked before timing.",
        ),
        "doctor": Source("bench", "doctor", "Print versions, and check every backend on small problems."),
    }  # fmt: skip


class Train(Commands):
    SOURCES: ClassVar = {
        "translation": Source("train", "translation", "Train a translator on pairs of sentences."),
        "language-model": Source("train", "language_model", "Train a language model on running text."),
        "masked-words": Source(
            "train", "masked_words", "Train an encoder to predict hidden words in texts, one per line."
        ),
        "classifier": Source("train", "classifier", "Train an encoder to sort texts by their labels."),
    }


class Convert(Commands):
    SOURCES: ClassVar = {
        "kv-heads": Source(
            "convert", "kv_heads",
            "Give a trained model fewer key/value heads (pooled), or more (repeated), and report what it "
            "saves.",
        ),
    }  # fmt: skip


app = typer.Typer(
    cls=TopLevel, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
app.add_typer(typer.Typer(cls=Train, help="Train a model.", no_args_is_help=True), name="train")
app.add_typer(typer.Typer(cls=Convert, help="Change a trained model.", no_args_is_help=True), name="convert")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attention for PyTorch: train, translate, evaluate and see what a model looks at."""
