"""`regard translate`: sentences, or lines of standard input, each to one line; --why explains one written word."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import Annotated, Any

from typer import Argument, Option

from regard.arguments import count_of, suggest
from regard.errors import ArgumentError
from regard_lab.cli.console import (
    StoppedError,
    check_name,
    counting,
    keeping,
    note,
    out_data,
    out_encoding,
    out_json,
    out_lines,
    out_text,
    out_width,
)
from regard_lab.cli.options import (
    Alpha,
    Beam,
    Cache,
    CacheDtype,
    Compile,
    Json,
    MaxLength,
    MinLength,
    NoRepeat,
    Normalisation,
    Penalty,
    Run,
    check_compiled,
    check_search,
    compiling,
    default,
    default_note,
    flag,
    listed,
    options_set,
)
from regard_lab.cli.running import (
    INPUT,
    OUT,
    Lengths,
    check_no_document,
    check_one_process,
    files_of,
    is_typed,
    read_texts,
    remark_on_arguments,
    remark_on_training,
    write_lines,
)
from regard_lab.decoding import Constraints, SearchOptions, Translation, Translator
from regard_lab.decoding.documents import (
    InterruptedDocument,
    check_output,
    translate_document,
    without_codes,
)
from regard_lab.decoding.protecting import PlaceholderCounts, UnprotectedPlaceholders
from regard_lab.decoding.translator import Ends
from regard_lab.seeing import LENSES, Relevance, draw_maps, draw_relevance, look, relevance
from regard_lab.seeing.lenses.explaining import check_options
from regard_lab.seeing.lenses.record import LEAST_WIDTH
from regard_lab.seeing.maps import KINDS, AttentionMaps, check_attends
from regard_lab.seeing.picture import WORDING
from regard_lab.seeing.terminal import terminal_map, visible
from regard_lab.text.cleaning import normalise, tidy, tidy_target
from regard_lab.text.exchange import WritingOptions, is_document, open_document
from regard_lab.text.pronouns import PRONOUNS
from regard_lab.text.seen_words import UnknownWords
from regard_lab.text.terminal import one_line

LINES_AT_ONCE = 256  # with a beam fewer, so that a chunk is about the same work
WIDTH = 100  # characters of a line where none are known
LEAST_MAP = 24  # characters of a line that a map needs
OF_THE_SOURCE = ("source", "source_ids", "unknown_words")  # the same in each translation of a line
Instead = Annotated[
    str | None,
    Option(
        metavar="WORDS",
        help="With --why: the words it is compared with, as in er,sie. [default: the three that the model found most "
        "probable]",
    ),
]
Place = Annotated[
    int | None,
    Option(metavar="N", min=0, help="With --why: which occurrence, as an index of words from 0."),
]


def translate(
    run: Run,
    sentences: Annotated[
        list[str] | None,
        Argument(
            metavar="SENTENCE",
            help="Sentences; without them, lines of standard input.",
            show_default=False,
        ),
    ] = None,
    beam: Beam = default(SearchOptions, "beam"),
    count: Annotated[
        int,
        Option(metavar="N", min=1, help="Translations of each line, at most --beam, with scores."),
    ] = default(SearchOptions, "count"),
    normalisation: Normalisation = default(SearchOptions, "normalisation"),
    alpha: Alpha = default(SearchOptions, "alpha"),
    min_length: MinLength = default(Constraints, "min_length"),
    max_length: MaxLength = default(SearchOptions, "max_tokens"),
    no_repeat: NoRepeat = default(Constraints, "no_repeat"),
    repetition_penalty: Penalty = default(Constraints, "repetition_penalty"),
    prefix: Annotated[
        str,
        Option(
            metavar="WORDS", help="Words that each translation begins with.", show_default=False
        ),
    ] = default(Translator.n_best, "prefix"),
    align: Annotated[
        bool,
        Option(
            "--align", help="Also print the pairs i-j of words that cross-attention links, from 0."
        ),
    ] = False,
    cache_kind: Cache = default(SearchOptions, "cache"),
    cache_dtype: CacheDtype = default(SearchOptions, "cache_dtype"),
    compiled: Compile = False,
    picture: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Draw the attention of one sentence, or what --why shows: PNG, SVG or PDF.",
        ),
    ] = None,
    drawn: Annotated[
        str | None,
        Option(
            "--map",
            metavar="KIND",
            help=f"Draw attention in the terminal: {', '.join(sorted(KINDS))}.",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        Option(metavar="N", min=0, help="With --map: the layer, from 0. [default: the last]"),
    ] = None,
    head: Annotated[
        int | None,
        Option(metavar="N", min=0, help="With --map: the head, from 0. [default: the mean of all]"),
    ] = None,
    why: Annotated[
        str | None,
        Option(metavar="WORD", help="Explain why this word of one translation was written."),
    ] = None,
    instead: Instead = None,
    lens: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help=f"With --why: {', '.join(LENSES)}. {default_note(relevance, 'lens')}",
        ),
    ] = None,
    place: Place = None,
    source: Annotated[Path | None, INPUT] = None,
    result: Annotated[Path | None, OUT] = None,
    to_language: Annotated[
        str | None,
        Option(
            "--to",
            metavar="LANG",
            help="With a file of messages: the language of the translations, where the file does not name it.",
        ),
    ] = None,
    from_language: Annotated[
        str | None,
        Option(
            "--from",
            metavar="LANG",
            help="With a .tmx: the language to translate from. [default: that of its header]",
        ),
    ] = None,
    again: Annotated[
        bool,
        Option(
            "--again",
            help="With a file of messages: translate also those that have a translation, but for confirmed ones.",
        ),
    ] = False,
    confirmed: Annotated[
        bool,
        Option(
            "--confirmed",
            help="With a file of messages: write translations as confirmed, not as fuzzy or to be reviewed.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Translate sentences, one line of output for each line of input; or a file of messages (XLIFF, TMX, PO)."""
    check_search(normalisation, beam)
    sentences = sentences or []
    if result is not None and source is None and len(sentences) == 1 and is_document(sentences[0]):
        source = Path(sentences[0])
        sentences = []
    if compiled:
        cache_kind = check_compiled(beam, cache_kind, cache_dtype)
    constraints = Constraints(
        min_length=min_length, no_repeat=no_repeat, repetition_penalty=repetition_penalty
    )
    options = SearchOptions(
        beam=beam,
        count=count,
        normalisation=normalisation,
        alpha=alpha,
        max_tokens=max_length,
        cache=cache_kind,
        cache_dtype=cache_dtype,
        constraints=constraints,
    )
    search: dict[str, Any] = {"options": options, "prefix": prefix}
    if compiled:
        search["batch_tokens"] = 1  # several texts at once would need a graph of their own
    _check_count(count, beam, picture=picture, map=drawn, why=why, out=None if as_json else result)
    files = files_of(source, result, sentences, picture=picture, why=why, map=drawn)
    writing = WritingOptions(language=to_language, again=again, confirmed=confirmed)
    if files is not None and is_document(files[0]):
        _check_document_options(json=as_json, align=align, count=count > 1, prefix=prefix)
        _translate_messages(run, files, writing, from_language, search, compiled)
        return
    document_options = {
        "--to": to_language,
        "--from": from_language,
        "--again": again,
        "--confirmed": confirmed,
    }
    check_no_document(sentences, document_options)
    if files is not None:
        _translate_file(run, files, search, as_json, align, compiled)
        return
    question = _question(why, instead, lens, place, sentences)
    if picture is not None:
        check_name(picture)
        if len(sentences) != 1:
            raise ArgumentError(
                f"--picture draws one sentence and {len(sentences)} were given; give one as an argument"
            )
    _check_map(drawn, layer, head, as_json)
    translator = compiling(Translator.load(run), compiled)
    if align or drawn is not None or (picture is not None and not question):
        check_attends(translator.model)  # before any work
    note(remark_on_training(run))
    note(remark_on_arguments(run, sentences))
    unknown = UnknownWords(translator.words, "translation", translator.tokeniser.reads)
    lengths = Lengths(run)
    ends = Ends()
    unprotected = UnprotectedPlaceholders(translator.tokeniser)
    placeholders = PlaceholderCounts()
    done = 0

    def what_is_printed() -> str | None:
        return f"{count_of(done, 'translations', ',')} printed" if done else None

    with keeping(what_is_printed):
        for chunk in read_texts(sentences, "sentence", max(1, LINES_AT_ONCE // beam)):
            for line in chunk:
                note(lengths.remark(line))
                note(unprotected.remark(line))
            for best in _each_best(translator, chunk, search):
                translation = best[0]
                ends.add([translation])
                if translator.tokeniser.protects:
                    placeholders.add(translation.source, translation.text)
                note(unknown.remark(translation.source))
                explained = None
                if question:
                    explained = explain_why(translator, translation, **question)
                if as_json:
                    record = _record(translator, best, align, count)
                    if explained is not None:
                        record["why"] = explained.to_dict()
                    out_json(record)
                else:
                    number = done if count > 1 else None
                    for candidate in best:
                        out_data(_line(translator, candidate, align, number))
                    if drawn is not None:
                        out_lines(_map(translator, translation, drawn, layer, head))
                    if explained is not None:
                        show_relevance(explained)
                if picture is not None:
                    draw_translation(translator, translation, explained, picture)
                done += 1
            if is_typed(sentences):
                note(ends.remark())
                note(placeholders.remark())
                ends = Ends()
                placeholders = PlaceholderCounts()
    note(ends.remark())
    note(placeholders.remark())


def _each_best(
    translator: Translator, lines: list[str], search: dict[str, Any]
) -> Iterator[list[Translation]]:
    """The translations of each line; after Ctrl-C those of the first lines that are all done, then the interruption."""
    best_of_line: dict[int, list[Translation]] = {}
    try:
        with counting("translating") as progress:
            translator.n_best(lines, progress=progress, kept=best_of_line, **search)
    finally:
        for number in range(len(lines)):
            if number not in best_of_line:
                break
            yield best_of_line[number]


def _check_count(count: int, beam: int, **others: object) -> None:
    """Raise an ArgumentError where several translations cannot be searched, or shown as was asked."""
    if count > beam:
        raise ArgumentError(
            f"--count is {count} and --beam {beam}; a beam keeps as many as its size: give --beam {count}"
        )
    of_one_translation = [flag(name) for name in options_set(others)]
    if count > 1 and of_one_translation:
        way = "leave one of them out"
        if of_one_translation == ["--out"]:
            way = "add --json, which writes all on one line"
        raise ArgumentError(
            f"--count {count} gives several translations of a sentence, and {of_one_translation[0]} takes one; {way}"
        )


def _translate_file(
    run: Path,
    files: tuple[Path, Path],
    search: dict[str, Any],
    as_json: bool,
    align: bool,
    compiled: bool,
) -> None:
    """This process's share of the lines of a file."""
    ends = Ends()
    lengths = Lengths(run)
    placeholders = PlaceholderCounts()

    @cache  # loaded when the first line is to be translated, and then once
    def load() -> tuple[Translator, UnknownWords, UnprotectedPlaceholders]:
        translator = compiling(Translator.load(run), compiled)
        unknown = UnknownWords(translator.words, "translation", translator.tokeniser.reads)
        return translator, unknown, UnprotectedPlaceholders(translator.tokeniser)

    def compute(lines: Sequence[str], first: int) -> list[str]:
        translator, unknown, unprotected = load()
        for line in lines:
            note(lengths.remark(line))
            note(unknown.remark(line))
            note(unprotected.remark(line))
        translations = translator.n_best(list(lines), **search)
        ends.add(best[0] for best in translations)
        if translator.tokeniser.protects:
            for best in translations:
                placeholders.add(best[0].source, best[0].text)
        if not as_json:
            return [one_line(_line(translator, best[0], align, None)) for best in translations]
        count = search["options"].count
        records = [_record(translator, best, align, count) for best in translations]
        return [json.dumps(record, ensure_ascii=False) for record in records]

    # By these values a command that goes on is recognised as the same.
    settings = {name: value for name, value in search.items() if name != "options"}
    settings |= {"command": "translate", "json": as_json, "align": align}
    settings |= search["options"].to_dict()
    settings["max_length"] = settings.pop("max_tokens")  # as the option of the command is called
    write_lines(run, files, compute, **settings)
    note(ends.remark())
    note(placeholders.remark())


def _check_document_options(**others: object) -> None:
    """Refuse options that say how lines are printed."""
    of_lines = [f"--{name}" for name, value in others.items() if value]
    if of_lines:
        raise ArgumentError(
            f"{of_lines[0]} is for lines of text, and a file of messages stays in its format; leave it out"
        )


def _translate_messages(
    run: Path,
    files: tuple[Path, Path],
    writing: WritingOptions,
    from_language: str | None,
    search: dict[str, Any],
    compiled: bool,
) -> None:
    """Write a copy of a file of messages with translations."""
    path, out = files
    check_one_process()
    check_output(path, out)
    document = open_document(path, writing, from_language)
    for remark in document.remarks:
        note(remark)
    translator = compiling(Translator.load(run), compiled)
    note(remark_on_training(run))
    unprotected = UnprotectedPlaceholders(translator.tokeniser)
    unknown = UnknownWords(translator.words, "translation", translator.tokeniser.reads)
    for text in map(without_codes, document.texts):
        note(unprotected.remark(text))
        note(unknown.remark(text))

    messages = count_of(len(document.messages), "messages", ",")
    note(f"{path} has {messages} to translate")
    try:
        with counting("translating", len(document.texts)) as progress:
            report = translate_document(translator, document, out, progress=progress, **search)
    except InterruptedDocument as interrupted:
        report = interrupted.report
        if not report.translated:
            raise KeyboardInterrupt from None
        raise StoppedError(
            f"interrupted; {report.lines()[0]}, and {count_of(report.waiting, 'messages', ',')} "
            f"without; the same command with {out} as its input goes on"
        ) from None
    for line in report.lines():
        note(line)


def _record(
    translator: Translator, best: Sequence[Translation], align: bool, count: int
) -> dict[str, Any]:
    """The best translation as JSON values; with `n_best`, where several were asked for, all of them."""
    records = []
    for translation in best:
        record: dict[str, Any] = asdict(translation)
        record["text"] = _written(translator, translation)
        record["words"] = [word._asdict() for word in translation.words]
        if align:
            record["alignment"] = _alignment(translator, translation)
        records.append(record)
    if count == 1:
        return records[0]

    n_best = []
    for record in records:
        n_best.append({name: record[name] for name in record if name not in OF_THE_SOURCE})
    return records[0] | {"n_best": n_best}


def _line(translator: Translator, translation: Translation, align: bool, number: int | None) -> str:
    """As Moses and Marian write a translation: `text ||| pairs`, or one of several as `number ||| text ||| score`."""
    parts = [_written(translator, translation)]
    if align:
        parts.append(" ".join(f"{i}-{j}" for i, j in _alignment(translator, translation)))
    if number is not None:
        parts = [str(number), *parts, f"{translation.score:.6f}"]
    return " ||| ".join(parts)


def _written(translator: Translator, translation: Translation) -> str:
    """The text of a translation in one form of Unicode and spaces, but for placeholders, which stay as they are."""
    if translator.tokeniser.protects:
        return translation.text.strip()
    return tidy_target(translation.text)


def _alignment(translator: Translator, translation: Translation) -> list[tuple[int, int]]:
    if not translation.ids:
        return []
    return _look(translator, translation).merged().alignment()


def _look(translator: Translator, translation: Translation) -> AttentionMaps:
    model = translator.model
    return look(model, translator.tokeniser, translation.source, translation.ids)


def draw_translation(
    translator: Translator, translation: Translation, explained: Relevance | None, picture: Path
) -> None:
    """Draw the attention of a translation, or the relevance for the word of --why."""
    title = f"{tidy(translation.source)} → {tidy_target(translation.text)}"
    if explained is not None:
        draw_relevance(explained, picture, title=title)
        note(f"the words with their relevance are drawn in {picture}")
    else:
        draw_maps(_look(translator, translation), picture, title=title)
        note(f"the attention is drawn in {picture}")


def _check_map(drawn: str | None, layer: int | None, head: int | None, as_json: bool) -> None:
    """Raise an ArgumentError for a kind that does not exist, or an option that needs --map or does not go with it."""
    if drawn is None:
        of_a_map = options_set({"--layer": layer, "--head": head})
        if of_a_map:
            verb = "needs" if len(of_a_map) == 1 else "need"
            raise ArgumentError(f"{' and '.join(of_a_map)} {verb} --map, such as --map cross")
    elif drawn not in KINDS:
        raise ArgumentError(f"--map {drawn!r} does not exist; {suggest(drawn, sorted(KINDS))}")
    elif as_json:
        raise ArgumentError("--map draws characters, and --json prints JSON; leave one of them out")


def _map(
    translator: Translator, translation: Translation, kind: Any, layer: int | None, head: int | None
) -> str:
    """The weights between words as a map of characters that fits the terminal, with a line that names them."""
    maps = _look(translator, translation).merged()
    layers = len(getattr(maps, kind))
    if layer is None:
        layer = layers - 1
    weights = maps.matrix(kind, layer, head)

    name, columns, rows = WORDING[kind]
    which = "mean of all heads" if head is None else f"head {head}"
    title = (
        f"{name}, layer {layer} (of 0 to {layers - 1}), {which}; rows: {rows}, columns: {columns}"
    )
    width = max(out_width() or WIDTH, LEAST_MAP)
    drawing = terminal_map(weights, *maps.labels(kind), width, out_encoding())
    return "\n".join([*wrap(title, width), drawing])


def explain_why(
    translator: Translator,
    translation: Translation,
    of: str,
    instead_of: Sequence[str],
    lens: Any,
    place: int | None,
) -> Relevance:
    """The relevance for a word of a translation; an ArgumentError if it was not written, or several times."""
    source, ids, written = translation.source, translation.ids, translation.text
    instead = _written_instead(of, translation)
    if instead or normalise(of).lower() not in normalise(written).lower():
        raise ArgumentError(
            f"--why {of}: the translation is {tidy_target(written)!r}, and {of!r} is not in it{instead}"
        )
    explained = relevance(
        translator.model, translator.tokeniser, source, ids, of, instead_of, lens, place=place
    )
    if not instead_of:
        alternatives = ", ".join(map(visible, explained.others))
        note(
            f"compared with {alternatives}, the most probable alternatives to "
            f"{visible(explained.word)}; --instead names other words"
        )
    return explained


def _written_instead(word: str, translation: Translation) -> str:
    """For a word that is in the source only, the option for a written one, by preference a pronoun."""
    written = re.findall(r"\w+", translation.text)
    source = re.findall(r"\w+", translation.source.lower())
    is_written = word.lower() in [name.lower() for name in written]
    if word.lower() not in source or is_written or not written:
        return ""
    pronouns = [name for name in written if name.lower() in PRONOUNS]
    example = [*pronouns, *written][0]
    return f"; it is a word of the source. Ask about a written word, e.g. --why {quote(example)}"


def _question(
    word: str | None,
    instead: str | None,
    lens: str | None,
    place: int | None,
    sentences: Sequence[str],
) -> dict[str, Any]:
    """What --why and its options ask about one sentence, as arguments of `explain_why`; empty without --why."""
    check_goes_with_why(word, {"--instead": instead, "--lens": lens, "--place": place})
    if word is None:
        return {}
    lens = default(relevance, "lens") if lens is None else lens
    check_options(lens)
    others = words_instead(instead)
    if len(sentences) != 1:
        raise ArgumentError(
            f"--why explains one sentence and {len(sentences)} were given; give one as an argument"
        )
    return {"of": word, "instead_of": others, "lens": lens, "place": place}


def check_goes_with_why(word: str | None, options: Mapping[str, Any]) -> None:
    """Refuse options, by their names, that were given without --why."""
    of_why = options_set(options)
    if word is None and of_why:
        verb = "belongs" if len(of_why) == 1 else "belong"
        raise ArgumentError(
            f"{' and '.join(of_why)} {verb} to --why; give the written word to explain"
        )


def words_instead(instead: str | None) -> tuple[str, ...]:
    """The words of --instead; without it none, which means the most probable ones."""
    others = tuple(listed(instead))
    if instead is not None and not others:
        raise ArgumentError(
            "--instead is empty; name the words to compare with, as in --instead er,sie, or leave it out"
        )
    return others


def show_relevance(explained: Relevance) -> None:
    """Print the relevance; sentences and bars fit the terminal."""
    width = out_width()
    text = explained.text() if width is None else explained.text(max(width, LEAST_WIDTH))
    for line in text.splitlines():
        if width is None or len(line) <= width:
            out_lines(line)
        else:
            out_text(line)
