"""`regard walkthrough`: a sentence through attention, in the terminal or as JSON."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from regard.errors import ArgumentError
from regard_lab.cli.console import out_console, out_json, out_lines, out_width
from regard_lab.cli.options import Json, default_note
from regard_lab.walkthrough import example as options_of_example
from regard_lab.walkthrough import (
    read_weights,
    to_json,
    to_text,
    walk,
)

LARGEST_SEED = 2**63 - 1


def walkthrough(
    text: Annotated[
        str | None,
        Argument(metavar="TEXT", help="A sentence, in quotes; an --example has its own.", show_default=False),
    ] = None,
    word: Annotated[
        str | None,
        Option(help="The word shown in detail, or its number from 1. [default: the second]"),
    ] = None,
    context: Annotated[
        str | None, Option(metavar="TEXT", help="Attend to this text instead (cross-attention).")
    ] = None,
    causal: Annotated[bool, Option("--causal", help="With a causal mask: no word looks at later words.")] = False,
    heads: Annotated[int | None, Option(min=1, max=128, help=f"Query heads. {default_note(walk, 'heads')}")] = None,
    kv_heads: Annotated[int | None, Option(min=1, help="Key/value heads. [default: heads]")] = None,
    head: Annotated[
        int | None, Option(min=0, help=f"The head shown in detail, from 0. {default_note(walk, 'head')}")
    ] = None,
    dim: Annotated[
        int | None, Option(min=1, max=1024, help=f"Size of the vectors. {default_note(walk, 'dim')}")
    ] = None,
    query_dim: Annotated[int | None, Option(min=1, help="Size of a query. [default: dim / heads]")] = None,
    key_dim: Annotated[
        int | None, Option(min=1, help="Size of a key; a dot product needs the size of a query.")
    ] = None,
    value_dim: Annotated[int | None, Option(min=1, help="Size of a value. [default: dim / heads]")] = None,
    score: Annotated[
        str | None, Option(help=f"scaled_dot, dot, general, concat or additive. {default_note(walk, 'score')}")
    ] = None,
    positions: Annotated[
        str | None,
        Option(help=f"none, sinusoidal or rotary. {default_note(walk, 'positions')}"),
    ] = None,
    words: Annotated[
        str | None, Option(help=f"all, or letters: drop punctuation. {default_note(walk, 'words')}")
    ] = None,
    draw: Annotated[
        str | None, Option(help=f"normal, or uniform weights (0 to 1). {default_note(walk, 'draw')}")
    ] = None,
    seed: Annotated[
        int | None, Option(min=0, max=LARGEST_SEED, help=f"Seed of all random numbers. {default_note(walk, 'seed')}")
    ] = None,
    weights_seed: Annotated[
        int | None, Option(min=0, max=LARGEST_SEED, help="Seed of the weights. [default: drawn after the vectors]")
    ] = None,
    weights: Annotated[
        Path | None, Option(metavar="FILE", help="Safetensors with table, W_q, W_k, W_v, W_o, or some of them.")
    ] = None,
    decimals: Annotated[
        int | None, Option(min=0, max=8, help=f"Decimals of the printed numbers. {default_note(walk, 'decimals')}")
    ] = None,
    example: Annotated[
        str | None, Option("--example", metavar="NAME", help="life-is-short: the numbers that articles print.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Walk, and show the steps in the terminal or as JSON."""
    typed = {name: value for name, value in locals().items() if not (value is None or value is False)}
    options: dict[str, Any] = {name: value for name, value in typed.items() if name != "as_json"}
    if ("text" in options) == ("example" in options):
        raise ArgumentError("give a TEXT or an --example, such as --example life-is-short; not both")
    if weights is not None:
        options["weights"] = read_weights(weights)
    if (name := options.pop("example", None)) is not None:
        options = options_of_example(name) | options
    steps = walk(**options)
    if as_json:
        out_json(to_json(steps))
    else:
        width = out_width()
        out_lines(to_text(steps) if width is None else to_text(steps, out_console(width).width))
