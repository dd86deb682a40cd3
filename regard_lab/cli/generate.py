"""`regard generate`: a prompt, or lines of standard input, each continued."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import ArgumentError
from regard_lab.cli.console import out, out_json, say
from regard_lab.cli.hints import TrainedLength, say_if_unfinished
from regard_lab.cli.lines import INPUT, OUT, wants_file, write_lines
from regard_lab.cli.options import (
    Alpha,
    Beam,
    Cache,
    CacheDtype,
    Json,
    Normalisation,
    Run,
    check_search,
    default,
    default_note,
)
from regard_lab.decoding import Generation, Generator, Sampling
from regard_lab.decoding.generator import OnText
from regard_lab.text import read_lines
from regard_lab.text.seen_words import UnknownWords
from regard_lab.text.terminal import one_line, printable_lines

Written = list[list[Generation]]


def generate(
    run: Run,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="Prompts; without them, lines of standard input.", show_default=False),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help=f"Divides the logits; 0 always takes the most probable id. {default_note(Sampling, 'temperature')}"
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most probable ids.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the most probable ids whose sum reaches p.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Sample from ids at least p times as probable as the best.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help=f"Seed of sampling; the same seed gives the same text. {default_note(Sampling, 'seed')}"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Largest number of sub-words to write.")] = default(
        Generator.generate, "max_tokens"
    ),
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help=r"End before this text; may be repeated. \n is a line end, \t a tab, \\ a backslash.",
        ),
    ] = None,
    beam: Beam = default(Generator.generate, "beam"),
    normalisation: Normalisation = default(Generator.generate, "normalisation"),
    alpha: Alpha = default(Generator.generate, "alpha"),
    cache_kind: Cache = default(Generator.generate, "cache"),
    cache_dtype: CacheDtype = default(Generator.generate, "cache_dtype"),
    source: Annotated[Path | None, INPUT] = None,
    result: Annotated[Path | None, OUT] = None,
    as_json: Json = False,
) -> None:
    """Continue each prompt, showing its text as it is written."""
    check_search(normalisation, beam)
    draws: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    given = {name: value for name, value in draws.items() if value is not None}
    if beam > 1 and given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ArgumentError(
            f"--beam {beam} searches for the most probable text and samples nothing; leave out {names} or --beam"
        )
    options: dict[str, Any] = {"max_tokens": max_tokens, "stop": list(map(_unescaped, stop or [])), "beam": beam}
    options |= {"cache": cache_kind, "cache_dtype": cache_dtype}
    options |= {"normalisation": normalisation, "alpha": alpha, "sampling": None if beam > 1 else Sampling(**given)}
    if wants_file(source, result, prompts or []):
        _file(run, source, result, options, as_json)
        return
    generator = Generator.load(run)
    say_if_unfinished(run)
    unknown, trained = UnknownWords(generator.words, "continuation"), TrainedLength(run)
    by_hand = not prompts and sys.stdin.isatty()
    if by_hand:
        say("one prompt per line; end with Ctrl-D")
    for row, prompt in enumerate(prompts or read_lines(sys.stdin.buffer)):
        options["first_row"] = row  # each line draws for itself, as it would among the others
        if remark := unknown.remark(prompt):
            say(remark)
        trained.say_of(1 + len(generator.tokeniser.encode(prompt)))  # before the model writes, which may take long
        if as_json:
            ((found,),) = generator.generate([prompt], **options)
            out_json(json.dumps(_record(found, options), ensure_ascii=False))
        else:
            read = generator.tokeniser.decode(generator.tokeniser.encode(prompt))  # as the model sees the prompt
            ((found,),) = _show(read, lambda tell, prompt=prompt: generator.generate([prompt], on_text=tell, **options))
        trained.say_of(_length(found))


def _file(run: Path, source: Path | None, result: Path | None, options: dict[str, Any], as_json: bool) -> None:
    """This process's share of the lines of a file, each a prompt; the prompt and what follows stand on one line."""
    assert source is not None
    assert result is not None
    load = cache(Generator.load)  # not before a line is to be continued
    unknown, trained = cache(lambda: UnknownWords(load(run).words, "continuation")), TrainedLength(run)

    def compute(lines: Sequence[str], first: int) -> list[str]:
        written = []
        for row, prompt in enumerate(lines, first):
            generator = load(run)
            if remark := unknown().remark(prompt):
                say(remark)
            ((found,),) = generator.generate([prompt], first_row=row, **options)
            trained.say_of(_length(found))
            if as_json:
                written.append(json.dumps(_record(found, options), ensure_ascii=False))
            else:
                read = generator.tokeniser.decode(generator.tokeniser.encode(prompt))
                written.append(one_line(read + found.text))
        return written

    write_lines(run, source, result, compute, {"command": "generate", "json": as_json, **options})


def _unescaped(text: str) -> str:
    r"""The text with the line ends, tabs and backslashes that a shell passes on as two characters.

    >>> _unescaped(r"a\n\t\\n")
    'a\n\t\\n'
    """
    return re.sub(r"\\[nt\\]", lambda found: {"n": "\n", "t": "\t", "\\": "\\"}[found[0][1]], text)


def _length(found: Generation) -> int:
    return 1 + len(found.prompt_ids) + len(found.ids)  # with BEGIN


def _show(prompt: str, generate: Callable[[OnText], Written]) -> Written:
    """The prompt and what follows, piece by piece, closed by a line end; nothing where nothing could be written."""
    clean = printable_lines if sys.stdout.isatty() else str
    waiting = [prompt]

    def tell(_prompt: int, _text: int, more: str) -> None:
        sys.stdout.write(clean("".join([*waiting, more])))
        sys.stdout.flush()
        waiting.clear()

    try:
        written = generate(tell)
        tell(0, 0, "")  # a text may have no words
        return written
    finally:
        if not waiting:
            out("")


def _record(found: Generation, options: dict[str, Any]) -> dict[str, Any]:
    sampling = options["sampling"]
    settings = {"beam": options["beam"]} if sampling is None else asdict(sampling)
    return {**asdict(found), "settings": settings}
