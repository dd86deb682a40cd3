"""`regard evaluate`, `compare` and `score`: the quality of a model; `regard lenses`: which lens shows what it uses."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import time_ns
from typing import Annotated, Any

from typer import Argument, Option

from regard.arguments import count_of
from regard.errors import ArgumentError, OccupiedError
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
    Normalisation,
    Run,
    check_search,
    default,
    listed,
)
from regard_lab.cli.running import remark_on_training
from regard_lab.decoding import Generator, Translator, sharing
from regard_lab.models import LanguageModel
from regard_lab.models.encoder import TextEncoder
from regard_lab.models.storage import kind_of_model
from regard_lab.seeing.lens_study import study_lenses
from regard_lab.text import read_lines, read_pairs
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
from regard_lab.training.recipes.run_folder import silent

OUT = Option(
    "--out",
    metavar="FILE",
    help="Also write each sentence or text with its scores: a .tsv with a header, or a .jsonl.",
)
ROWS = (".tsv", ".jsonl")
NAMES = (
    (b"reference", b"output", b"exact_match"),
    (b"label", b"given", b"probability"),
)  # of columns
LINES_AT_ONCE = 256


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
    beam: Beam = default(Translator.n_best, "beam"),
    normalisation: Normalisation = default(Translator.n_best, "normalisation"),
    alpha: Alpha = default(Translator.n_best, "alpha"),
    out: Annotated[Path | None, OUT] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a translator (BLEU, chrF, exact match), a language model (perplexity), a classifier (accuracy)."""
    check_search(normalisation, beam)
    search = {"beam": beam, "normalisation": normalisation, "alpha": alpha}
    if out is not None:
        check_rows_name(out)
    with (
        sharing() as share
    ):  # torchrun divides sentences, or batches of text, among processes; the first one prints
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
        common["counting"] = (
            partial(counting, "translating" if translates else "evaluating") if first else uncounted
        )
        scores: Any
        try:
            with counting("evaluating") if first else nullcontext():
                if kind == LanguageModel.KIND:
                    scores = evaluate_text(run, test or [], share=share, **common)
                elif kind == TextEncoder.KIND:
                    scores = (evaluate_classifier if sorts else evaluate_encoder)(
                        run, test or [], **common
                    )
                else:
                    scores = evaluate_run(run, test or [], share=share, **common, **search)
        except PartlyEvaluated as stopped:
            kept = ""
            if first and out is not None and stopped.rows:
                write_rows(stopped.rows, out)
                kept = f", and {out} has them with their scores"
            raise StoppedError(f"interrupted; {stopped}{kept}") from None
    if not first:
        return
    if out is not None and isinstance(scores, RunScores | ClassScores):
        rows = scores.rows()
        write_rows(rows, out)
        note(f"{out} has each of {count_of(len(rows), 'rows', ',')} with its scores")
    out_result(as_json, scores.to_dict, scores.lines)


def _check_no_translator(run: Path, kind: str, search: dict[str, Any]) -> None:
    """Refuse what is for translators."""
    if given := [
        f"--{name}" for name, value in search.items() if value != default(Translator.n_best, name)
    ]:
        what = "a language model" if kind == LanguageModel.KIND else "an encoder"
        raise ArgumentError(
            f"{' and '.join(given)} is for translators, and {run} is {what}; leave it out"
        )


def check_rows_name(path: Path) -> None:
    """Raise before any work if rows cannot be written there."""
    if path.suffix.lower() not in ROWS:
        raise ArgumentError(f"--out {path} is a table: give it a name that ends in .tsv or .jsonl")
    check_place(path, "table")
    if path.exists():
        with path.open("rb") as file:
            first = file.readline(100_000)
        if not any(all(name in first for name in names) for names in NAMES):
            raise OccupiedError(
                f"--out {path} exists and is not a table that evaluate wrote; name another file"
            )


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows that have the same names, whole or not at all; tabs and line ends of a `.tsv` become spaces."""
    if path.suffix.lower() == ".jsonl":
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    else:
        cells = [list(rows[0]), *(list(row.values()) for row in rows)]
        lines = ["\t".join(" ".join(str(cell).split()) for cell in row) for row in cells]
    replace_file(path, "".join(f"{line}\n" for line in lines).encode())


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
    begun = time_ns()
    kept = f"{out} has the report of what was evaluated"
    with (
        counting("evaluating"),
        keeping(lambda: kept if report.exists() and report.stat().st_mtime_ns >= begun else None),
    ):
        markdown, record = comparing.compare_runs(
            listed(runs), data, out, tell=note, counting=partial(counting, "translating")
        )
    out_result(as_json, lambda: record.rstrip("\n"), lambda: markdown.rstrip("\n"))


def score(
    run: Run,
    texts: Annotated[
        list[str],
        Argument(
            metavar="PAIRS", help="Files of pairs; of a language model one file, each line a text."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Print how probable a model finds given translations or lines: by line, id and word."""
    note(remark_on_training(run))
    done = 0
    with keeping(lambda: f"{count_of(done, 'lines', ',')} printed" if done else None):
        if kind_of_model(run) == LanguageModel.KIND:
            if len(texts) > 1:
                raise ArgumentError(
                    f"{len(texts)} files were given; a language model scores the lines of one"
                )
            lines = [line for line in read_lines(texts[0]) if line.strip()]
            items = lines
            scored = Generator.load(run).score
        else:
            read = read_pairs(*texts)
            note(read.report())
            items = read.pairs
            scored = Translator.load(run).score
        with counting("scoring", len(items)) as progress:
            for start in range(0, len(items), LINES_AT_ONCE):
                chunk: Any = items[start : start + LINES_AT_ONCE]
                for one in scored(chunk):
                    if as_json:
                        out_json(one.to_dict())
                    else:
                        sides = [one.text] if one.source is None else [one.source, one.text]
                        out_data(
                            "\t".join(
                                [
                                    f"{one.log_probability:.6f}",
                                    *(side.replace("\t", " ") for side in sides),
                                ]
                            )
                        )
                done += len(chunk)
                progress(len(chunk))


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
