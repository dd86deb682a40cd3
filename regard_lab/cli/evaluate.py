"""`regard evaluate`, `compare` and `score`: the quality of a model; `regard lenses`: which lens shows what it uses."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from regard.arguments import count_of
from regard.errors import ArgumentError, DataError, OccupiedError
from regard.storage.files import replace_file
from regard_lab.cli.console import (
    StoppedError,
    check_place,
    counting,
    keeping,
    note,
    out_data,
    out_json,
    out_result,
)
from regard_lab.cli.options import (
    Alpha,
    Beam,
    Json,
    KeepPlaceholders,
    Normalisation,
    Run,
    check_search,
    default,
    flag,
    listed,
)
from regard_lab.cli.running import remark_on_training
from regard_lab.decoding import Generator, SearchOptions, Translator
from regard_lab.decoding.lines import sharing
from regard_lab.decoding.scoring import ScoredText
from regard_lab.models import LanguageModel
from regard_lab.models.encoder import TextEncoder
from regard_lab.models.storage import kind_of_model
from regard_lab.seeing.lens_study import study_lenses
from regard_lab.text import Pair, read_lines
from regard_lab.text.pairs import read_each
from regard_lab.text.remarks import silent
from regard_lab.text.tables import EMPTY_LINE, LineFault
from regard_lab.training.recipes import comparing
from regard_lab.training.recipes.evaluation import (
    ClassScores,
    PartlyEvaluated,
    RunScores,
    evaluate_classifier,
    evaluate_encoder,
    evaluate_run,
    evaluate_text,
    uncounted,
)
from regard_lab.training.recipes.run_folder import memory_settings

OUT = Option(
    "--out",
    metavar="FILE",
    help="Also write each sentence or text with its scores: a .tsv with a header, or a .jsonl.",
)
ROWS = (".tsv", ".jsonl")
# Columns by which a table that `evaluate` wrote is recognised: of a translator, and of an encoder.
COLUMNS = ((b"reference", b"output", b"exact_match"), (b"label", b"given", b"probability"))
LONGEST_HEADER = 100_000  # bytes
LINES_AT_ONCE = 256
UNSCORED = "unscored"  # begins the row of a line that has no score


def evaluate(
    run: Run,
    test: Annotated[
        list[str] | None,
        Argument(
            metavar="TEST",
            help="Files of pairs, or of labels and texts [default: the run's own test split]; of a language model or "
            "an encoder, files of text.",
        ),
    ] = None,
    beam: Beam = default(SearchOptions, "beam"),
    normalisation: Normalisation = default(SearchOptions, "normalisation"),
    alpha: Alpha = default(SearchOptions, "alpha"),
    keep_placeholders: KeepPlaceholders = None,
    out: Annotated[Path | None, OUT] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a translator (BLEU, chrF, exact match), a language model (perplexity), a classifier (accuracy)."""
    check_search(normalisation, beam)
    search = {"beam": beam, "normalisation": normalisation, "alpha": alpha}
    if out is not None:
        check_rows_name(out)
    # `torchrun` divides sentences, or batches of text, among processes; the first one prints.
    with sharing() as share:
        first = share is None or share.rank == 0
        if first:
            note(remark_on_training(run))
        common: dict[str, Any] = {"tell": note if first else silent}
        kind = kind_of_model(run)
        sorts = kind == TextEncoder.KIND and TextEncoder.load(run).config.head == "classes"
        translates = kind not in (LanguageModel.KIND, TextEncoder.KIND)
        if not translates:
            _check_no_translator(run, kind, search)
            if out is not None and not sorts:
                raise ArgumentError(
                    f"--out {out} is for translators and classifiers; a text has no rows: leave it out"
                )
        common["counting"] = uncounted
        if first:
            what = "translating" if translates else "evaluating"
            common["counting"] = partial(counting, what)
        if kind == LanguageModel.KIND:
            evaluate_kind = partial(evaluate_text, share=share)
        elif kind == TextEncoder.KIND:
            evaluate_kind = evaluate_classifier if sorts else evaluate_encoder
        else:
            evaluate_kind = partial(
                evaluate_run, keep_placeholders=keep_placeholders, share=share, **search
            )
        try:
            with counting("evaluating") if first else nullcontext():
                scores: Any = evaluate_kind(run, test or [], **common)
        except PartlyEvaluated as stopped:
            sentence = f"interrupted; {stopped}"
            if first and out is not None and stopped.rows:
                write_rows(stopped.rows, out)
                sentence += f", and {out} has them with their scores"
            raise StoppedError(sentence) from None
    if not first:
        return
    if out is not None and isinstance(scores, RunScores | ClassScores):
        rows = scores.rows()
        write_rows(rows, out)
        note(f"{out} has each of {count_of(len(rows), 'rows', ',')} with its scores")
    out_result(as_json, scores.to_dict, scores.lines)


def _check_no_translator(run: Path, kind: str, search: dict[str, Any]) -> None:
    """Refuse what is for translators."""
    changed = [name for name, value in search.items() if value != default(SearchOptions, name)]
    if changed:
        what = "a language model" if kind == LanguageModel.KIND else "an encoder"
        raise ArgumentError(
            f"{' and '.join(map(flag, changed))} is for translators, and {run} is {what}; leave it "
            f"out"
        )


def check_rows_name(path: Path) -> None:
    """Raise before any work if rows cannot be written there."""
    if path.suffix.lower() not in ROWS:
        raise ArgumentError(f"--out {path} is a table: give it a name that ends in .tsv or .jsonl")
    check_place(path, "table")
    if not path.exists():
        return
    with path.open("rb") as file:
        first_line = file.readline(LONGEST_HEADER)
    for columns in COLUMNS:
        if all(column in first_line for column in columns):
            return
    raise OccupiedError(
        f"--out {path} exists and is not a table that evaluate wrote; name another file"
    )


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows that have the same names, whole or not at all; tabs and line ends of a `.tsv` become spaces."""
    if path.suffix.lower() == ".jsonl":
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    else:
        lines = [_tab_separated(rows[0].keys())]
        lines += [_tab_separated(row.values()) for row in rows]
    replace_file(path, "".join(f"{line}\n" for line in lines).encode())


def _tab_separated(cells: Iterable[Any]) -> str:
    return "\t".join(" ".join(str(cell).split()) for cell in cells)


def compare(
    runs: Annotated[
        str, Option("--runs", metavar="RUN,RUN,...", help="Runs or saved models, two or more.")
    ],
    data: Annotated[
        list[str], Option("--data", metavar="FILE", help="Pairs or texts; may be repeated.")
    ],
    out: Annotated[Path, Option(metavar="DIR", help="Folder for the report.")],
    as_json: Json = False,
) -> None:
    """Evaluate several models on the same files, such as one before and after a fine-tuning."""
    report = out / comparing.JSON
    before = file_state(report)

    def what_is_reported() -> str | None:
        if file_state(report) in (None, before):
            return None
        return f"{out} has the report of what was evaluated"

    with counting("evaluating"), keeping(what_is_reported):
        markdown, record = comparing.compare_runs(
            listed(runs), data, out, tell=note, counting=partial(counting, "translating")
        )
    out_result(as_json, lambda: record.rstrip("\n"), lambda: markdown.rstrip("\n"))


def file_state(path: Path) -> tuple[int, int, int] | None:
    """Numbers of a file that change whenever it is written; None where there is no file.

    They are compared with each other, not with the clock: a system may date a file some milliseconds before its clock.
    """
    if not path.exists():
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def score(
    run: Run,
    texts: Annotated[
        list[str],
        Argument(
            metavar="PAIRS", help="Files of pairs; of a language model one file, each line a text."
        ),
    ],
    keep_placeholders: KeepPlaceholders = None,
    as_json: Json = False,
) -> None:
    """Print how probable a model finds given translations or lines: by line, id and word."""
    note(remark_on_training(run))
    items: list[Pair | str | LineFault]
    scored: Callable[..., Sequence[ScoredText]]
    if kind_of_model(run) == LanguageModel.KIND:
        if len(texts) > 1:
            raise ArgumentError(
                f"{len(texts)} files were given; a language model scores the lines of one"
            )
        items = []
        for number, line in enumerate(read_lines(texts[0]), start=1):
            items.append(line if line.strip() else LineFault(EMPTY_LINE, texts[0], number))
        scored = Generator.load(run).score
    else:
        memory = memory_settings(run)
        if keep_placeholders is not None:
            memory["keep_placeholders"] = keep_placeholders
        lines = read_each(*texts, **memory)
        note(lines.read.report("unscored"))
        items = list(lines.rows)
        scored = Translator.load(run).score
    done = 0

    def what_is_printed() -> str | None:
        return f"{count_of(done, 'lines', ',')} printed" if done else None

    with keeping(what_is_printed), counting("scoring", len(items)) as progress:
        for start in range(0, len(items), LINES_AT_ONCE):
            chunk = items[start : start + LINES_AT_ONCE]
            readable: list[Any] = [item for item in chunk if not isinstance(item, LineFault)]
            scores = iter(scored(readable))
            for item in chunk:
                _write_score(item if isinstance(item, LineFault) else next(scores), as_json)
            done += len(chunk)
            progress(len(chunk))

    faults = sum(isinstance(item, LineFault) for item in items)
    if faults:
        have = "has" if faults == 1 else "have"
        row = '{"unscored": why, ...}' if as_json else f"{UNSCORED} TAB why"
        raise DataError(
            f"{faults:,} of {count_of(len(items), 'lines', ',')} {have} no score, and the row {row} "
            f"instead; mend or remove what they name"
        )


def _write_score(scored: ScoredText | LineFault, as_json: bool) -> None:
    """Write the row of one line: its score with its texts, or why it has none."""
    if isinstance(scored, LineFault):
        if as_json:
            out_json({UNSCORED: scored.reason, "file": scored.file, "line": scored.number})
        else:
            out_data(f"{UNSCORED}\t{scored.reason}\t{scored.file} line {scored.number}")
        return
    if as_json:
        out_json(scored.to_dict())
        return
    sides = [scored.text] if scored.source is None else [scored.source, scored.text]
    cells = [f"{scored.log_probability:.6f}", *(side.replace("\t", " ") for side in sides)]
    out_data("\t".join(cells))


def lenses(
    run: Run,
    sentences: Annotated[int, Option(min=1, help="Number of test sentences.")] = default(
        study_lenses, "sentences"
    ),
    seed: Annotated[int, Option(min=0, help="Seed of the corpus and of the swaps.")] = default(
        study_lenses, "seed"
    ),
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Write the report into this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure which lens finds the words that a trained translator uses; swapped words verify which these are."""
    translator = Translator.load(run)
    with counting("measuring"):
        report = study_lenses(
            translator, sentences=sentences, seed=seed, out=out, name=run.name, tell=note
        )
    out_result(as_json, report.to_dict, lambda: "\n".join(report.markdown()))
    if out is not None:
        note(f"the report is in {out}")
