"""`regard generate`: a prompt, or lines of standard input, each continued."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.cli.console import out, out_json, say
from regard.cli.translate import check_search
from regard.decoding import Generation, Generator, Sampling
from regard.decoding.generator import OnText
from regard.errors import ArgumentError
from regard.terminal_text import printable_lines
from regard.text import read_lines


def run_generate(
    run: Path,
    prompts: list[str],
    *,
    draws: dict[str, Any],
    max_tokens: int,
    stop: Sequence[str],
    beam: int,
    normalisation: str,
    alpha: float,
    as_json: bool,
) -> None:
    """Continue each prompt, showing its text as it is written.

    Args:
        draws: what was given of temperature, top_k, top_p, min_p and seed; None for what was not.
    """
    check_search(normalisation)
    given = {name: value for name, value in draws.items() if value is not None}
    if beam > 1 and given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ArgumentError(f"--beam {beam} looks for the likeliest text and draws nothing; leave out {names}, or it")
    options: dict[str, Any] = {"max_tokens": max_tokens, "stop": stop, "beam": beam}
    options |= {"normalisation": normalisation, "alpha": alpha, "sampling": None if beam > 1 else Sampling(**given)}
    generator = Generator.load(run)
    alone = not prompts and sys.stdin.isatty()
    if alone:
        say("one prompt a line; end with Ctrl-D")
    for row, prompt in enumerate(prompts or read_lines(sys.stdin.buffer)):
        options["first_row"] = row  # each line draws for itself, as it would among the others
        if as_json:
            ((found,),) = generator.generate([prompt], **options)
            out_json(json.dumps(_record(found, options), ensure_ascii=False))
        else:
            read = generator.tokeniser.decode(generator.tokeniser.encode(prompt))  # as the model sees the prompt
            _show(read, lambda tell, prompt=prompt: generator.generate([prompt], on_text=tell, **options))


def _show(prompt: str, generate: Callable[[OnText], object]) -> None:
    """The prompt and what follows, piece by piece, closed by a line end; nothing where nothing could be written."""
    clean = printable_lines if sys.stdout.isatty() else str
    waiting = [prompt]

    def tell(_prompt: int, _text: int, more: str) -> None:
        sys.stdout.write(clean("".join([*waiting, more])))
        sys.stdout.flush()
        waiting.clear()

    try:
        generate(tell)
        tell(0, 0, "")  # a text may have no words
    finally:
        if not waiting:
            out("")


def _record(found: Generation, options: dict[str, Any]) -> dict[str, Any]:
    sampling = options["sampling"]
    settings = {"beam": options["beam"]} if sampling is None else asdict(sampling)
    return {**asdict(found), "settings": settings}
