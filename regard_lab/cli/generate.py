"""`regard generate` continues prompts; `regard classify` labels texts; both read arguments or standard input."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard_lab.cli.console import counting, keeping, note, out, out_data, out_json, spoken
from regard_lab.cli.options import (
    Alpha,
    Beam,
    Cache,
    CacheDtype,
    Compile,
    Json,
    Normalisation,
    Run,
    check_compiled,
    check_search,
    compiling,
    default,
    default_note,
    flag,
    options_set,
)
from regard_lab.cli.running import (
    INPUT,
    OUT,
    TrainedLength,
    files_of,
    read_texts,
    remark_on_training,
    write_lines,
)
from regard_lab.decoding import Generation, Generator, Sampling, SearchOptions
from regard_lab.decoding.generator import DEFAULT_OPTIONS, MAX_TOKENS
from regard_lab.text.cleaning import tidy
from regard_lab.text.seen_words import UnknownWords
from regard_lab.text.terminal import one_line, printable_lines
from regard_lab.training.recipes import Classifier

LINES_AT_ONCE = 32
Written = list[list[Generation]]


def generate(
    run: Run,
    prompts: Annotated[
        list[str] | None,
        Argument(
            metavar="PROMPT",
            help="Prompts; without them, lines of standard input.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        Option(
            help=f"Divides the logits; 0 always takes the most probable id. {default_note(Sampling, 'temperature')}"
        ),
    ] = None,
    top_k: Annotated[int | None, Option(help="Sample from the k most probable ids.")] = None,
    top_p: Annotated[
        float | None, Option(help="Sample from the most probable ids whose sum reaches p.")
    ] = None,
    min_p: Annotated[
        float | None, Option(help="Sample from ids at least p times as probable as the best.")
    ] = None,
    seed: Annotated[
        int | None,
        Option(
            help=f"Seed of sampling; the same seed gives the same text. {default_note(Sampling, 'seed')}"
        ),
    ] = None,
    max_tokens: Annotated[
        int, Option(min=1, help="Largest number of sub-words to write.")
    ] = MAX_TOKENS,
    stop: Annotated[
        list[str] | None,
        Option(
            metavar="TEXT",
            help=r"End before this text; may be repeated. \n is a line end, \t a tab, \\ a backslash.",
        ),
    ] = None,
    beam: Beam = DEFAULT_OPTIONS.beam,
    normalisation: Normalisation = DEFAULT_OPTIONS.normalisation,
    alpha: Alpha = DEFAULT_OPTIONS.alpha,
    cache_kind: Cache = DEFAULT_OPTIONS.cache,
    cache_dtype: CacheDtype = default(SearchOptions, "cache_dtype"),
    compiled: Compile = False,
    speculate: Annotated[
        str | None,
        Option(
            metavar="lookup",
            help="Propose what followed the same sub-words earlier; one call verifies several.",
        ),
    ] = None,
    draft: Annotated[
        Path | None,
        Option(
            metavar="RUN", help="Propose sub-words by this smaller model with the same vocabulary."
        ),
    ] = None,
    proposals: Annotated[
        int, Option(metavar="N", min=1, help="Most sub-words that are proposed at once.")
    ] = default(Generator.generate, "proposals"),
    branches: Annotated[
        int,
        Option(
            metavar="N", min=1, help="Continuations that are proposed at once, verified as a tree."
        ),
    ] = default(Generator.generate, "branches"),
    source: Annotated[Path | None, INPUT] = None,
    result: Annotated[Path | None, OUT] = None,
    as_json: Json = False,
) -> None:
    """Continue prompts with a language model, in the order temperature, top-k, top-p, min-p."""
    check_search(normalisation, beam)
    draws: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
    }
    draws_set = {name: draws[name] for name in options_set(draws)}
    if beam > 1 and draws_set:
        names = ", ".join(map(flag, draws_set))
        raise ArgumentError(
            f"--beam {beam} searches for the most probable text and samples nothing; leave out {names} or --beam"
        )
    if compiled:
        cache_kind = check_compiled(beam, cache_kind, cache_dtype, speculate=speculate, draft=draft)
    search = SearchOptions(
        beam=beam,
        normalisation=normalisation,
        alpha=alpha,
        max_tokens=max_tokens,
        cache=cache_kind,
        cache_dtype=cache_dtype,
    )
    options: dict[str, Any] = {
        "options": search,
        "stop": list(map(_unescaped, stop or [])),
        "branches": branches,
        "sampling": None if beam > 1 else Sampling(**draws_set),
    }
    if speculate is not None and draft is not None:
        raise ArgumentError("--speculate and --draft both propose sub-words; give one of them")
    if speculate is not None or draft is not None:
        options |= {"speculate": speculate if draft is None else draft, "proposals": proposals}
    files = files_of(source, result, prompts)
    if files is not None:
        _generate_file(run, files, options, as_json, compiled)
        return
    generator = compiling(Generator.load(run), compiled)
    options = _with_draft(options)
    note(remark_on_training(run))
    unknown = UnknownWords(generator.words, "continuation", generator.tokeniser.reads)
    trained = TrainedLength(run)
    counted = ("writing",)
    if beam > 1:
        counted = ("searching ids", max_tokens, generator.model.norm)
    done = 0

    def what_is_written() -> str | None:
        return f"{count_of(done, 'texts', ',')} written" if done else None

    with keeping(what_is_written):
        for (prompt,) in read_texts(prompts, "prompt"):
            options["first_row"] = done  # each line draws for itself, as it would among the others
            note(unknown.remark(prompt))
            ids = generator.tokeniser.encode(prompt)
            note(trained.remark(1 + len(ids)))  # before the model writes, which may take long
            with counting(*counted):
                if as_json:
                    ((generation,),) = generator.generate([prompt], **options)
                else:
                    write = partial(generator.generate, [prompt], **options)
                    as_read = generator.tokeniser.decode(ids)  # as the model sees the prompt
                    ((generation,),) = _show(as_read, write)
            if as_json:
                out_json(_record(generation, options))
            else:
                note(_speed(generation))
            note(trained.remark(_length(generation)))
            done += 1


def _with_draft(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the draft model loaded."""
    folder = options.get("speculate")
    return options | {"speculate": Generator.load(folder)} if isinstance(folder, Path) else options


def _speed(generation: Generation) -> str | None:
    """How many sub-words each call of the model wrote, where they were speculated."""
    rate = generation.tokens_per_step
    if rate is None:
        return None
    return f"{rate:.2f} sub-words for each call of the model (1 without proposals)"


def _generate_file(
    run: Path, files: tuple[Path, Path], options: dict[str, Any], as_json: bool, compiled: bool
) -> None:
    """This process's share of the lines of a file, each a prompt; the prompt and what follows stand on one line."""
    trained = TrainedLength(run)

    @cache  # loaded when the first line is to be continued, and then once
    def load() -> tuple[Generator, dict[str, Any], UnknownWords]:
        generator = compiling(Generator.load(run), compiled)
        unknown = UnknownWords(generator.words, "continuation", generator.tokeniser.reads)
        return generator, _with_draft(options), unknown

    def compute(lines: Sequence[str], first: int) -> list[str]:
        written = []
        for row, prompt in enumerate(lines, first):
            generator, options_with_draft, unknown = load()
            note(unknown.remark(prompt))
            ((generation,),) = generator.generate([prompt], first_row=row, **options_with_draft)
            note(trained.remark(_length(generation)))
            if as_json:
                written.append(json.dumps(_record(generation, options), ensure_ascii=False))
            else:
                as_read = generator.tokeniser.decode(generator.tokeniser.encode(prompt))
                written.append(one_line(as_read + generation.text))
        return written

    # By these values a command that goes on is recognised as the same.
    settings = {name: value for name, value in options.items() if name != "options"}
    settings |= {"command": "generate", "json": as_json}
    if "speculate" in options:
        settings["speculate"] = str(options["speculate"])
    search: SearchOptions = options["options"]
    for name in ("beam", "cache", "cache_dtype", "normalisation", "alpha"):
        settings[name] = getattr(search, name)
    write_lines(run, files, compute, **settings, max_tokens=search.max_tokens)


def _unescaped(text: str) -> str:
    r"""The text with the line ends, tabs and backslashes that a shell passes on as two characters.

    >>> _unescaped(r"a\n\t\\n")
    'a\n\t\\n'
    """
    characters = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}
    return re.sub(r"\\[nt\\]", lambda escape: characters[escape[0]], text)


def _length(generation: Generation) -> int:
    return 1 + len(generation.prompt_ids) + len(generation.ids)  # with BEGIN


def _show(prompt: str, generate: Callable[..., Written]) -> Written:
    """The prompt and what follows, piece by piece, closed by a line end; nothing where nothing could be written.

    Args:
        generate: calls the function `on_text` with each piece, and returns what was written.
    """
    clean = printable_lines if sys.stdout.isatty() else str
    waiting = [prompt]

    def show(_prompt: int, _text: int, more: str) -> None:
        spoken()
        sys.stdout.write(clean("".join([*waiting, more])))
        sys.stdout.flush()
        waiting.clear()

    try:
        written = generate(on_text=show)
        show(0, 0, "")  # a text may have no words
        return written
    finally:
        if not waiting:
            out("")


def _record(generation: Generation, options: dict[str, Any]) -> dict[str, Any]:
    record = asdict(generation)
    if generation.tokens_per_step is None:
        del record["tokens_per_step"]
    if options["sampling"] is None:
        record["settings"] = {"beam": options["options"].beam}
    else:
        record["settings"] = asdict(options["sampling"])
    return record


def classify(
    run: Run,
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="TEXT", help="Texts; without them, lines of standard input.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Label texts, one line of output for each line of input."""
    classifier = Classifier.load(run)
    note(remark_on_training(run))
    unknown = UnknownWords(classifier.words, "label", classifier.tokeniser.reads)
    for chunk in read_texts(texts, "text", LINES_AT_ONCE):
        texts_with_words = [text for text in map(tidy, chunk) if text]
        rows = iter(classifier.probabilities(texts_with_words))
        for text in chunk:
            probabilities = {}
            if tidy(text):
                probabilities = dict(zip(classifier.classes, next(rows), strict=True))
            label = max(probabilities, key=probabilities.__getitem__, default=None)
            note(unknown.remark_on_whole(text))
            if as_json:
                out_json({"text": text, "label": label, "probabilities": probabilities})
            elif label is None:
                out_data("")
            else:
                name = label.replace("\t", "\\t")  # the tab ends it
                out_data(f"{name}\t{probabilities[label]:.3f}")
