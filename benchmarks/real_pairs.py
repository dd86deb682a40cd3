"""Trains Transformers on real sentence pairs by the defaults, English into three languages, and compares with copying.

python benchmarks/real_pairs.py [LANGUAGE ...] [--runs FOLDER] [--report]

The pairs are the program messages of this machine (benchmarks/program_messages.py); no message of a test program was
seen. Each run has one thread. A finished run is not trained again, and an interrupted one goes on; `--report` only
writes the report, from the records that are there.

Copying the source is the baseline: program messages share names, options and placeholders with their translations.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import program_messages
from benchmarks.report import RESULTS, heading, options, write
from regard_lab.decoding import Translator, evaluate
from regard_lab.text import Pair, read_pairs, score
from regard_lab.text.writing import markdown_table
from regard_lab.training.recipes import TranslationTraining

LANGUAGES = {"de": "German", "fr": "French", "zh_CN": "Chinese"}
STEPS = 2_900  # about ten minutes of one thread
TESTS = {"short": "one line, up to 100 characters", "long": "longer, such as help texts"}
BEAMS = 1, 4
# Typography of a language that its writers use: what a translation should have where the reference has it.
MARKS = {"de": "[„“»«‚‘]", "fr": "[\u00a0\u202f«»’]", "zh_CN": "[“”：，。；（）「」]"}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("languages", nargs="*", default=list(LANGUAGES), help=", ".join(LANGUAGES))
    parser.add_argument("--runs", type=Path, default=Path("runs/real_pairs"))
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    for language in () if asked.report else asked.languages:
        pairs = asked.runs / "pairs" / language
        if not pairs.exists():
            program_messages.main(["--out", str(pairs), "--language", language])
        record = json.loads((pairs / "about.json").read_text())
        files = {"data": (f"{pairs}/train.tsv",), "valid": (f"{pairs}/valid.tsv",)}
        record |= trained(asked.runs / language, {**files, "steps": STEPS})
        for name in TESTS:
            test = read_pairs(pairs / f"{name}.tsv").pairs
            copies = score([pair.source for pair in test], [pair.target for pair in test])
            record[f"{name} copying"] = copies.to_dict()
            for beam in BEAMS:
                scores = scored(asked.runs / language, test, beam, MARKS[language])
                record[f"{name} beam {beam}"] = scores
        (asked.runs / f"{language}.json").write_text(json.dumps(record, indent=1) + "\n")
    records = {}
    for language in LANGUAGES:
        path = asked.runs / f"{language}.json"
        if path.exists():
            records[language] = json.loads(path.read_text())
    print(write(RESULTS / "real_pairs_cpu", "real_pairs", {"runs": records}, report(records)))


def trained(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train into the folder, or find it done, and return what it cost.

    Args:
        folder: of the run.
        settings: some of them; the others are chosen by the data and the budget, as the command does.
    """
    torch.set_num_threads(1)
    recipe = TranslationTraining.of(folder, settings, resume=True, cpu=True, tell=print)
    result = recipe.prepare(folder).run(folder, resume=True, cpu=True)
    return {"steps": result.steps, "cpu_seconds": round(result.cpu_seconds, 1)}


def scored(
    folder: Path, pairs: Sequence[Pair], beam: int, marks: str | None = None
) -> dict[str, Any]:
    """The scores of the best model; with `marks`, how many references have some, and how many of their outputs."""
    evaluation = evaluate(Translator.load(folder), pairs, beam=beam)
    record: dict[str, Any] = evaluation.scores.to_dict()
    record["unfinished"] = evaluation.to_dict()["unfinished"]
    if marks is None:
        return record

    marked = 0
    marked_too = 0
    for translation, pair in zip(evaluation.translations, pairs, strict=True):
        if re.search(marks, pair.target):
            marked += 1
            marked_too += re.search(marks, translation.text) is not None
    return record | {"marked": marked, "marked_too": marked_too}


def report(records: dict[str, Any]) -> list[str]:
    """The report in Markdown."""
    rows: list[tuple[str, ...]] = []
    for language, record in records.items():
        for name, what in TESTS.items():
            copying = record[f"{name} copying"]["bleu"]
            greedy, beam = (record[f"{name} beam {beam}"] for beam in BEAMS)
            rows.append(
                (
                    f"{LANGUAGES[language]}, {what}",
                    f"{beam['count']:,}",
                    f"{copying:.2f}",
                    f"{greedy['bleu']:.2f} ({greedy['bleu'] - copying:+.2f})",
                    f"{beam['bleu']:.2f} ({beam['bleu'] - copying:+.2f})",
                    f"{beam['chrf']:.2f}",
                    f"{beam['exact_match']:.3f}",
                    f"{beam['unfinished']}",
                    f"{beam['marked_too']} of {beam['marked']}",
                )
            )
    trainings = []
    for language, record in records.items():
        trainings.append(
            f"{LANGUAGES[language]}: {record['train']:,} pairs of {record['programs']} programs, "
            f"{record['steps']:,} steps in {record['cpu_seconds']:.0f} CPU seconds"
        )
    sizes = "; ".join(trainings)
    signatures = sorted({record["short beam 4"]["bleu_signature"] for record in records.values()})
    title = "Real sentence pairs: the defaults and copying"
    return [
        *heading(title, ", one thread of a shared machine, therefore in CPU seconds"),
        "English messages of programs with their translations, from the message catalogues of the machine. The test "
        f"messages are of programs that the training has no message of. {sizes}.",
        "",
        *markdown_table(
            (
                "test messages",
                "count",
                "copying",
                "greedy (above copying)",
                "beam 4 (above copying)",
                "chrF",
                "exact match",
                "unfinished",
                "typography",
            ),
            rows,
        ),
        "",
        "*Copying*, *greedy* and *beam 4* are BLEU. The last columns are of beam 4: *unfinished* are translations that "
        "reach the longest length, *typography* are references with quotes, spaces or marks of the language whose "
        f"translation has such marks too. BLEU: {', '.join(f'`{signature}`' for signature in signatures)}.",
    ]


if __name__ == "__main__":
    main()
