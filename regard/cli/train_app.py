"""`regard train ...`: the commands for text that is written on, filled in or sorted, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option(metavar="RUN", help="The folder of the run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run, its settings included.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Stay on the CPU.")]
Texts = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="UTF-8 text, or a .jsonl with \"text\"; may be repeated; or 'pronouns'."),
]
Valid = Annotated[list[str] | None, typer.Option(metavar="FILE", help="Validation texts; else some are held out.")]
Attention = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Who looks at whom; repeated, the layers take them in turn."),
]
Mechanism = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="softmax, linear, 'performer(features=256)', ...; likewise.")
]
Kind = Annotated[str | None, typer.Option("--tokeniser", help="bpe, character or byte. [default: bpe]")]
VocabSize = Annotated[int | None, typer.Option(min=260, help="Pieces at most. [default: 8000]")]
Positions = Annotated[str | None, typer.Option(help="rotary, alibi, learned, sinusoidal or none. [default: rotary]")]
Dim = Annotated[int | None, typer.Option(min=2, help="Size of the vectors. [default: 256]")]
Heads = Annotated[int | None, typer.Option(min=1, help="Query heads. [default: 4]")]
KvHeads = Annotated[int | None, typer.Option(min=1, help="Key/value heads. [default: heads]")]
Layers = Annotated[int | None, typer.Option(min=1, help="[default: 4]")]
Dropout = Annotated[float | None, typer.Option(help="[default: 0.1]")]
MaxLength = Annotated[int | None, typer.Option(min=2, help="Positions that are learned. [default: 1024]")]
BatchTokens = Annotated[int | None, typer.Option(min=16, help="Ids in a batch. [default: 4096]")]
Steps = Annotated[int | None, typer.Option(min=1, help="Optimiser steps. [default: 5000]")]
Minutes = Annotated[float | None, typer.Option(help="A cap on the time, resumed time included.")]
LearningRate = Annotated[float | None, typer.Option(help="Its peak. [default: 0.001]")]
Warmup = Annotated[int | None, typer.Option(min=0, help="[default: 200]")]
Schedule = Annotated[str | None, typer.Option(help="cosine, inverse_square_root or constant. [default: cosine]")]
WeightDecay = Annotated[float | None, typer.Option(min=0, help="Of the matrices. [default: 0.01]")]
Accumulate = Annotated[int | None, typer.Option(min=1, help="Batches in one step. [default: 1]")]
ValidateEvery = Annotated[int | None, typer.Option(min=1, help="Steps. [default: 250]")]
Patience = Annotated[int | None, typer.Option(min=1, help="Validations without gain before stopping.")]
Precision = Annotated[str | None, typer.Option(help="float32 or bfloat16. [default: float32]")]
Seed = Annotated[int | None, typer.Option(min=0, help="[default: 0]")]
Longest = Annotated[int | None, typer.Option(min=3, help="Ids of a text. [default: 256]")]
ClassifierSteps = Annotated[int | None, typer.Option(min=1, help="Optimiser steps. [default: 1000]")]
GentleRate = Annotated[float | None, typer.Option("--learning-rate", help="Its peak. [default: 0.0003]")]
ShortWarmup = Annotated[int | None, typer.Option("--warmup-steps", min=0, help="[default: 100]")]

ABOUT_THE_RUN = ("out", "resume", "cpu")


def add_commands(app: typer.Typer) -> None:
    """Put the commands of this file under `regard train`."""
    app.command("language-model")(language_model)
    app.command("masked-words")(masked_words)
    app.command("classifier")(classifier)


def language_model(
    out: Out,
    data: Texts = None,
    valid: Valid = None,
    resume: Resume = False,
    tokeniser: Kind = None,
    vocab_size: VocabSize = None,
    block: Annotated[int | None, typer.Option(min=2, help="Ids in a row of a batch. [default: 256]")] = None,
    attention: Attention = None,
    mechanism: Mechanism = None,
    positions: Positions = None,
    dim: Dim = None,
    heads: Heads = None,
    kv_heads: KvHeads = None,
    layers: Layers = None,
    norm: Annotated[str | None, typer.Option(help="rms or layer. [default: rms]")] = None,
    activation: Annotated[str | None, typer.Option(help="Of the feed-forward. [default: swiglu]")] = None,
    dropout: Dropout = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    steps: Steps = None,
    minutes: Minutes = None,
    learning_rate: LearningRate = None,
    warmup_steps: Warmup = None,
    schedule: Schedule = None,
    weight_decay: WeightDecay = None,
    accumulate: Accumulate = None,
    validate_every: ValidateEvery = None,
    patience: Patience = None,
    precision: Precision = None,
    seed: Seed = None,
    cpu: Cpu = False,
) -> None:
    """Train a language model on running text."""
    given = {name: value for name, value in locals().items() if name not in ABOUT_THE_RUN}
    from regard.cli.train_language import run_language_training

    run_language_training(out, given, resume=resume, cpu=cpu)


def masked_words(
    out: Out,
    data: Texts = None,
    valid: Valid = None,
    resume: Resume = False,
    tokeniser: Kind = None,
    vocab_size: VocabSize = None,
    longest: Longest = None,
    attention: Attention = None,
    mechanism: Mechanism = None,
    positions: Positions = None,
    dim: Dim = None,
    heads: Heads = None,
    kv_heads: KvHeads = None,
    layers: Layers = None,
    dropout: Dropout = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    steps: Steps = None,
    minutes: Minutes = None,
    learning_rate: LearningRate = None,
    warmup_steps: Warmup = None,
    schedule: Schedule = None,
    weight_decay: WeightDecay = None,
    accumulate: Accumulate = None,
    validate_every: ValidateEvery = None,
    patience: Patience = None,
    precision: Precision = None,
    seed: Seed = None,
    cpu: Cpu = False,
) -> None:
    """Train an encoder to find hidden words again, a text a line."""
    given = {name: value for name, value in locals().items() if name not in ABOUT_THE_RUN}
    from regard.cli.train_encoder import run_masked_words_training

    run_masked_words_training(out, given, resume=resume, cpu=cpu)


def classifier(
    out: Out,
    data: Annotated[list[str] | None, typer.Option(metavar="FILE.tsv", help="Lines of label TAB text.")] = None,
    valid: Annotated[
        list[str] | None, typer.Option(metavar="FILE.tsv", help="Likewise; else split off by a hash of the text.")
    ] = None,
    from_run: Annotated[
        str | None, typer.Option("--from", metavar="RUN", help="Begin with the encoder of a training on hidden words.")
    ] = None,
    pooling: Annotated[str | None, typer.Option(help="mean or first. [default: mean]")] = None,
    resume: Resume = False,
    tokeniser: Kind = None,
    vocab_size: VocabSize = None,
    longest: Longest = None,
    attention: Attention = None,
    mechanism: Mechanism = None,
    positions: Positions = None,
    dim: Dim = None,
    heads: Heads = None,
    kv_heads: KvHeads = None,
    layers: Layers = None,
    dropout: Dropout = None,
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    steps: ClassifierSteps = None,
    minutes: Minutes = None,
    learning_rate: GentleRate = None,
    warmup_steps: ShortWarmup = None,
    schedule: Schedule = None,
    weight_decay: WeightDecay = None,
    accumulate: Accumulate = None,
    validate_every: ValidateEvery = None,
    patience: Patience = None,
    precision: Precision = None,
    seed: Seed = None,
    cpu: Cpu = False,
) -> None:
    """Train an encoder to sort texts by their labels."""
    given = {name: value for name, value in locals().items() if name not in ABOUT_THE_RUN}
    from regard.cli.train_encoder import run_classifier_training

    run_classifier_training(out, given, resume=resume, cpu=cpu)
