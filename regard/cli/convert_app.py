"""`regard convert ...`: the commands that change a trained model, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_conversions(app: typer.Typer) -> None:
    """Put the commands of this file under `regard convert`."""
    app.command("kv-heads")(kv_heads)


def kv_heads(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="A run, a saved model, or a Llama-like folder.")],
    kv_heads: Annotated[int, typer.Option("--kv-heads", min=1, help="Key/value heads of each layer.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder, or an earlier conversion.")],
    method: Annotated[str, typer.Option(help="Of a group's heads: their mean, or the first.")] = "mean",
    text: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Measure the loss on its last part; may be repeated.")
    ] = None,
    uptrain_steps: Annotated[
        int | None, typer.Option(min=1, help="Then train so many steps on the rest; the same command goes on.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Its peak; try that of the first training.")] = 1e-3,
    batch_tokens: Annotated[int, typer.Option(min=16, help="Ids in a batch.")] = 4096,
    block: Annotated[int, typer.Option(min=2, help="Ids in a row, for a language model.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of the batches.")] = 0,
    cpu: Annotated[bool, typer.Option("--cpu", help="Stay on the CPU.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with JSON on standard output.")] = False,
) -> None:
    """Give a trained model fewer key/value heads (neighbours pooled), or more (repeated), and say what it saves."""
    from regard.cli.convert import Uptraining, run_convert_kv_heads

    uptraining = Uptraining(
        texts=tuple(text or ()), steps=uptrain_steps, learning_rate=learning_rate, batch_tokens=batch_tokens,
        block=block, seed=seed, cpu=cpu,
    )  # fmt: skip
    run_convert_kv_heads(model, out, kv_heads=kv_heads, method=method, uptraining=uptraining, as_json=as_json)
