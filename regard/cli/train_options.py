"""The options of the commands under `regard train`, each written once; a command names the groups that it has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer

Options = Mapping[str, Any]  # the type of each, with its help; all may be left out but `out`
SESSION_NAMES = ("resume", "tensorboard", "cpu")  # about this session and not about the run


def option(kind: Any, said: str, *names: str, **more: Any) -> Any:
    """An option that may be left out, called `names` where it is not called as its setting."""
    return Annotated[kind | None, typer.Option(*names, help=said, **more)]


def flag(name: str, said: str) -> Any:
    """An option that is there or not."""
    return Annotated[bool, typer.Option(f"--{name}", help=said)]


def choice(name: str, said: str) -> Any:
    """An option that is yes or no, and else what the model takes."""
    return Annotated[bool | None, typer.Option(f"--{name}/--no-{name}", help=said)]


whole, number = partial(option, int), partial(option, float)
word, words = partial(option, str), partial(option, list[str])

OUT: Options = {"out": Annotated[Path, typer.Option(metavar="RUN", help="The folder of the run.")]}

TEXTS: Options = {
    "data": words("UTF-8 text, or a .jsonl with \"text\"; may be repeated; or 'pronouns'.", metavar="FILE"),
    "valid": words("Validation texts; else some are held out.", metavar="FILE"),
}
STACK: Options = {
    "tokeniser": word("bpe, character or byte. [default: bpe]"),
    "vocab_size": whole("Pieces at most. [default: 8000]", min=260),
    "attention": words("Who looks at whom; repeated, the layers take them in turn.", metavar="PATTERN"),
    "mechanism": words("softmax, linear, 'performer(features=256)', ...; likewise.", metavar="NAME"),
    "positions": word("rotary, alibi, learned, sinusoidal or none. [default: rotary]"),
    "dim": whole("Size of the vectors. [default: 256]", min=2),
    "heads": whole("Query heads. [default: 4]", min=1),
    "kv_heads": whole("Key/value heads. [default: heads]", min=1),
    "layers": whole("[default: 4]", min=1),
    "dropout": number("[default: 0.1]"),
    "max_length": whole("Positions that are learned. [default: 1024]", min=2),
}
LONGEST: Options = {"longest": whole("Ids of a text. [default: 256]", min=3)}


def training(
    steps: str = "5000", rate: str = "0.001", warmup: str = "200", schedule: str = "cosine", decay: str = "0.01",
    batch_tokens: str = "4096",
) -> Options:  # fmt: skip
    """What every training has, with the defaults that the command says it has."""
    return {
        "batch_tokens": whole(f"Ids in a batch. [default: {batch_tokens}]", min=16),
        "steps": whole(f"Optimiser steps. [default: {steps}]", min=1),
        "minutes": number("A cap on the time, resumed time included."),
        "learning_rate": number(f"Its peak. [default: {rate}]"),
        "warmup_steps": whole(f"[default: {warmup}]", min=0),
        "schedule": word(f"cosine, inverse_square_root or constant. [default: {schedule}]"),
        "weight_decay": number(f"Of the matrices. [default: {decay}]", min=0),
        "accumulate": whole("Batches in one step. [default: 1]", min=1),
        "validate_every": whole("Steps. [default: 250]", min=1),
        "patience": whole("Validations without gain before stopping.", min=1),
        "keep": whole("Of the last checkpoints, for `regard average`. [default: 1]", min=1),
        "skip_non_finite": whole("Steps in a row with NaN that are passed over. [default: 0]", min=0),
        "gradient_checkpointing": flag("gradient-checkpointing", "Compute layers twice, to hold less memory."),
        "parallel": word("Several processes share: ddp, the batch; fsdp, weights too. [default: ddp]"),
        "precision": word("float32 or bfloat16. [default: float32]"),
        "seed": whole("[default: 0]", min=0),
    }


SESSION: Options = {
    "resume": flag("resume", "Go on with the run, its settings included."),
    "tensorboard": flag("tensorboard", "Write the curves for TensorBoard as well."),
    "cpu": flag("cpu", "Stay on the CPU."),
}


def command(*groups: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command with the options of some groups, in their order.

    The function is called with the folder, the settings that were given (None or absent where they were not), and
    `resume`, `tensorboard` and `cpu` by name.
    """
    options: dict[str, Any] = {}
    for group in (OUT, *groups, SESSION):
        options |= group

    def made(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(**given: Any) -> None:
            from regard.cli.training_runs import together

            out, session = given.pop("out"), {name: given.pop(name) for name in SESSION_NAMES}
            absent = {name for name, value in given.items() if value is False and options[name].__origin__ is bool}
            wanted = {name: None if name in absent else value for name, value in given.items()}
            with together():
                function(out, wanted, **session)

        parameters = [_parameter(name, kind) for name, kind in options.items()]
        run.__annotations__, run.__signature__ = options, inspect.Signature(parameters)  # ty: ignore[missing-attribute]
        return run

    return made


def _parameter(name: str, kind: Any) -> inspect.Parameter:
    default = {Path: inspect.Parameter.empty, bool: False}.get(kind.__origin__)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
