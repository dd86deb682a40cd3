"""`regard train translation`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train_translation(
    out: Annotated[Path, typer.Option(metavar="RUN", help="The folder of the run.")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="A .tsv or .jsonl of pairs; or given twice, two parallel files; or 'pronouns'."
        ),
    ] = None,
    valid: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Validation pairs; else split off by a hash of the source.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run, its settings included.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="transformer, bahdanau, luong-dot, luong-general, luong-concat or none. [default: transformer]"
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps. [default: 10000]")] = None,
    minutes: Annotated[float | None, typer.Option(help="A cap on the time, resumed time included.")] = None,
    attention: Annotated[str | None, typer.Option(metavar="PATTERN", help="Of the encoder. [default: full]")] = None,
    decoder_attention: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Of the decoder, ANDed with causal. [default: causal]")
    ] = None,
    cross_attention: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="From decoder to encoder. [default: full]")
    ] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Key/value heads everywhere. [default: heads]")] = None,
    dim: Annotated[
        int | None, typer.Option(min=2, help="Size of the vectors. [default: 256; 128 if recurrent]")
    ] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Query heads. [default: 4]")] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Of encoder and decoder each. [default: 3; 1 if recurrent]")
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(min=2, help="Inside the feed-forward, or of the recurrent states. [default: 4, or 2, times dim]"),
    ] = None,
    cell: Annotated[str | None, typer.Option(help="Recurrent: gru or lstm. [default: gru]")] = None,
    reach: Annotated[str | None, typer.Option(help="Luong: global, local-m or local-p. [default: global]")] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Luong, local: words on either side. [default: 10]")] = None,
    input_feeding: Annotated[
        bool, typer.Option("--input-feeding", help="Luong: feed the attentional vector to the next step.")
    ] = False,
    norm: Annotated[str | None, typer.Option(help="pre or post. [default: pre]")] = None,
    positions: Annotated[str | None, typer.Option(help="sinusoidal, learned or rotary. [default: sinusoidal]")] = None,
    dropout: Annotated[float | None, typer.Option(help="[default: 0.1]")] = None,
    vocab_size: Annotated[int | None, typer.Option(min=260, help="Sub-words at most. [default: 8000]")] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=16, help="Ids on a side of a batch. [default: 2048]")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Its peak. [default: 0.001; 0.002 if recurrent]")] = None,
    warmup_steps: Annotated[int | None, typer.Option(min=0, help="[default: 400; 200 if recurrent]")] = None,
    schedule: Annotated[str | None, typer.Option(help="inverse_square_root, cosine or constant.")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="[default: 0.1]")] = None,
    accumulate: Annotated[int | None, typer.Option(min=1, help="Batches in one step. [default: 1]")] = None,
    validate_every: Annotated[int | None, typer.Option(min=1, help="Steps. [default: 250]")] = None,
    patience: Annotated[int | None, typer.Option(min=1, help="Validations without gain before stopping.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16. [default: float32]")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="[default: 0]")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Stay on the CPU.")] = False,
) -> None:
    """Train a translator on pairs of sentences."""
    given = {name: value for name, value in locals().items() if name not in ("out", "resume", "cpu")}
    given["input_feeding"] = input_feeding or None
    from regard.cli.train import run_training

    run_training(out, given, resume=resume, cpu=cpu)
