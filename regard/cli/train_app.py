"""`regard train ...`: what is trained, and the options that each command has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from regard.cli.train_options import LONGEST, STACK, TEXTS, choice, command, number, training, whole, word, words

Given = Mapping[str, Any]

PAIRS = {
    "data": words("A .tsv or .jsonl of pairs; or given twice, two parallel files; or 'pronouns'.", metavar="FILE"),
    "valid": words("Validation pairs; else split off by a hash of the source.", metavar="FILE"),
}
TRANSLATOR = {
    "model": word("transformer, bahdanau, luong-dot, luong-general, luong-concat or none. [default: transformer]"),
    "attention": word("Of the encoder. [default: full]", metavar="PATTERN"),
    "decoder_attention": word("Of the decoder, ANDed with causal. [default: causal]", metavar="PATTERN"),
    "cross_attention": word("From decoder to encoder. [default: full]", metavar="PATTERN"),
    "kv_heads": whole("Key/value heads everywhere. [default: heads]", min=1),
    "dim": whole("Size of the vectors. [default: 256; 128 if recurrent]", min=2),
    "heads": whole("Query heads. [default: 4]", min=1),
    "layers": whole("Of encoder and decoder each. [default: 3; 1 if recurrent]", min=1),
    "hidden": whole("Inside the feed-forward, or of the recurrent states. [default: 4, or 2, times dim]", min=2),
    "cell": word("Recurrent: gru or lstm. [default: gru]"),
    "reach": word("Luong: global, local-m or local-p. [default: global]"),
    "window": whole("Luong, local: words on either side. [default: 10]", min=1),
    "input_feeding": choice("input-feeding", "Luong: feed on what was looked at. [default: luong-dot does]"),
    "norm": word("pre or post. [default: pre]"),
    "positions": word("sinusoidal, learned or rotary. [default: sinusoidal]"),
    "dropout": number("[default: 0.1]"),
    "vocab_size": whole("Sub-words at most. [default: 8000]", min=260),
    "label_smoothing": number("[default: 0.1]"),
}
LANGUAGE = {
    "block": whole("Ids in a row of a batch. [default: 256]", min=2),
    "norm": word("rms or layer. [default: rms]"),
    "activation": word("Of the feed-forward. [default: swiglu]"),
}
LABELS = {
    "data": words("Lines of label TAB text.", metavar="FILE.tsv"),
    "valid": words("Likewise; else split off by a hash of the text.", metavar="FILE.tsv"),
    "from_run": word("Begin with the encoder of a training on hidden words.", "--from", metavar="RUN"),
    "pooling": word("mean or first. [default: mean]"),
}


def add_commands(app: typer.Typer) -> None:
    """Put the commands of this file under `regard train`."""
    app.command("language-model")(language_model)
    app.command("masked-words")(masked_words)
    app.command("classifier")(classifier)
    app.command("translation")(translation)


SCHEDULED = training("10000", "0.001; 0.002 if recurrent", "400; 200 if recurrent", "inverse_square_root", "0", "2048")


@command(PAIRS, TRANSLATOR, SCHEDULED)
def translation(out: Path, given: Given, **session: bool) -> None:
    """Train a translator on pairs of sentences."""
    from regard.cli.train import run_training

    run_training(out, given, **session, samples=True)


@command(TEXTS, STACK, LANGUAGE, training())
def language_model(out: Path, given: Given, **session: bool) -> None:
    """Train a language model on running text."""
    from regard.cli.train_language import run_language_training

    run_language_training(out, given, **session, samples=True)


@command(TEXTS, STACK, LONGEST, training())
def masked_words(out: Path, given: Given, **session: bool) -> None:
    """Train an encoder to find hidden words again, a text a line."""
    from regard.cli.train_encoder import run_masked_words_training

    run_masked_words_training(out, given, **session, samples=True)


@command(LABELS, STACK, LONGEST, training(steps="1000", rate="0.0003", warmup="100"))
def classifier(out: Path, given: Given, **session: bool) -> None:
    """Train an encoder to sort texts by their labels."""
    from regard.cli.train_encoder import run_classifier_training

    run_classifier_training(out, given, **session, samples=True)
