"""`regard walkthrough`: a sentence through attention, in the terminal or as JSON."""

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from regard.errors import ArgumentError
from regard_lab.cli.console import out_result, out_width
from regard_lab.cli.options import Json, default, default_note, flag
from regard_lab.walkthrough import Walk, to_json, to_text, walk, walk_whole
from regard_lab.walkthrough import example as options_of_example
from regard_lab.walkthrough.layer import read_weights
from regard_lab.walkthrough.walks import walk_whole_run

DRAWN = "drawn weights have one layer; name a --run for more, or add --whole for a whole model"
WHOLE = "a whole model shows all its layers and heads"
OF_A_RUN = "a run has its own, and all its layers and heads are shown"
OF_THE_COMMAND = ("whole", "as_json")  # options that no walk takes
LARGEST_SEED = 2**63 - 1


def walkthrough(
    text: Annotated[
        str | None,
        Argument(
            metavar="TEXT",
            help="A sentence, in quotes; an --example has its own.",
            show_default=False,
        ),
    ] = None,
    word: Annotated[
        str | None,
        Option(
            help="The word shown in detail, or its number from 1. [default: the second; of a decoder the last]"
        ),
    ] = None,
    context: Annotated[
        str | None, Option(metavar="TEXT", help="Attend to this text instead (cross-attention).")
    ] = None,
    causal: Annotated[
        bool, Option("--causal", help="With a causal mask: no word looks at later words.")
    ] = False,
    heads: Annotated[
        int | None, Option(min=1, max=128, help=f"Query heads. {default_note(walk, 'heads')}")
    ] = None,
    kv_heads: Annotated[int | None, Option(min=1, help="Key/value heads. [default: heads]")] = None,
    head: Annotated[
        int | None,
        Option(min=0, help=f"The head shown in detail, from 0. {default_note(walk, 'head')}"),
    ] = None,
    dim: Annotated[
        int | None,
        Option(min=1, max=1024, help=f"Size of the vectors. {default_note(walk, 'dim')}"),
    ] = None,
    query_dim: Annotated[
        int | None, Option(min=1, help="Size of a query. [default: dim / heads]")
    ] = None,
    key_dim: Annotated[
        int | None, Option(min=1, help="Size of a key; a dot product needs the size of a query.")
    ] = None,
    value_dim: Annotated[
        int | None, Option(min=1, help="Size of a value. [default: dim / heads]")
    ] = None,
    score: Annotated[
        str | None,
        Option(help=f"scaled_dot, dot, general, concat or additive. {default_note(walk, 'score')}"),
    ] = None,
    positions: Annotated[
        str | None,
        Option(
            help=f"none, sinusoidal or rotary. {default_note(walk, 'positions')} --whole: sinusoidal, rotary, learned."
        ),
    ] = None,
    words: Annotated[
        str | None, Option(help=f"all, or letters: drop punctuation. {default_note(walk, 'words')}")
    ] = None,
    draw: Annotated[
        str | None,
        Option(help=f"normal, or uniform weights (0 to 1). {default_note(walk, 'draw')}"),
    ] = None,
    seed: Annotated[
        int | None,
        Option(
            min=0,
            max=LARGEST_SEED,
            help=f"Seed of all random numbers. {default_note(walk, 'seed')}",
        ),
    ] = None,
    weights_seed: Annotated[
        int | None,
        Option(
            min=0, max=LARGEST_SEED, help="Seed of the weights. [default: drawn after the vectors]"
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        Option(metavar="FILE", help="Safetensors with table, W_q, W_k, W_v, W_o, or some of them."),
    ] = None,
    decimals: Annotated[
        int | None,
        Option(
            min=0, max=8, help=f"Decimals of the printed numbers. {default_note(walk, 'decimals')}"
        ),
    ] = None,
    example: Annotated[
        str | None,
        Option("--example", metavar="NAME", help="life-is-short: the numbers that articles print."),
    ] = None,
    run: Annotated[
        Path | None, Option(metavar="RUN", help="Show a whole trained model, up to the next word.")
    ] = None,
    whole: Annotated[
        bool, Option("--whole", help="Show a whole small Transformer, up to the next word.")
    ] = False,
    model: Annotated[
        str | None,
        Option(help="With --whole: decoder, encoder or encoder-decoder. [default: by --context]"),
    ] = None,
    layers: Annotated[
        int | None,
        Option(
            min=1, help=f"With --whole: layers of each side. {default_note(walk_whole, 'layers')}"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what attention does with a sentence, step by step: every number, its formula and its line of PyTorch."""
    arguments = dict(locals())
    options: dict[str, Any] = {}
    for name, value in arguments.items():
        was_typed = value is not None and value is not False
        if was_typed and name not in OF_THE_COMMAND:
            options[name] = value
    if run is not None:
        make_walk: Callable[..., Walk] = walk_whole_run
        reason = OF_A_RUN
    elif whole:
        make_walk = walk_whole
        reason = WHOLE
    else:
        make_walk = walk
        reason = DRAWN
    _check_fitting(options, make_walk, reason)

    if weights is not None:
        options["weights"] = read_weights(weights)
    if example is not None:
        del options["example"]
        options = options_of_example(example) | options
    steps = make_walk(**options)
    width = out_width() or default(to_text, "width")
    out_result(as_json, lambda: to_json(steps), lambda: to_text(steps, width))


def _check_fitting(options: Mapping[str, Any], make_walk: Callable[..., Walk], reason: str) -> None:
    """Raise an ArgumentError if the walk does not take an option, or if there is not exactly one text."""
    accepted = set(signature(make_walk).parameters)
    if make_walk is walk:
        accepted.add("example")
    refused = [flag(name) for name in options if name not in accepted]
    if refused:
        raise ArgumentError(f"leave out {', '.join(refused)}: {reason}")
    if ("text" in options) == ("example" in options):
        raise ArgumentError(
            "give a TEXT or an --example, such as --example life-is-short; not both"
        )
