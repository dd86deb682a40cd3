"""Trains a Transformer on real sentence pairs by the defaults and by fixed settings, and compares both with copying.

python benchmarks/real_pairs.py [NAME ...] [--runs FOLDER] [--report]

The pairs are the program messages of this machine (benchmarks/program_messages.py), in two splits: at random, and by
program, so that no message of a test program was seen. Each run has one thread. A finished run is not trained again,
and an interrupted one goes on; `--report` only writes the report, from the records that are there.

Copying the source is the baseline: program messages share names, options and placeholders with their translations.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import RESULTS, heading, write
from regard_lab.bench.report import markdown_table
from regard_lab.decoding import Translator, evaluate
from regard_lab.text import read_pairs, score
from regard_lab.training.recipes import TranslationTraining

# What the defaults are compared with: settings that were found by hand for 20,000 pairs, before there was a choice.
FIXED = {
    "dim": 128, "layers": 2, "heads": 4, "vocab_size": 4_000, "batch_tokens": 1_500, "learning_rate": 2e-3,
    "warmup_steps": 200, "schedule": "cosine", "positions": "sinusoidal", "dropout": 0.1, "label_smoothing": 0.1,
    "steps": 1_500, "trim_vocabulary": False,
}  # fmt: skip
DEFAULTS = {"steps": 2_400}  # about the time of the fixed settings, in smaller batches
RUNS = {
    "programs-defaults": ("programs", DEFAULTS),
    "programs-hidden": ("programs", FIXED),
    "random-defaults": ("random", DEFAULTS),
    "random-hidden": ("random", FIXED),
}
SPLITS = {"programs": "programs that were never seen", "random": "messages of the same programs"}
FORMS = "{:.2f}", "{:+.2f}", "{:.2f}", "{:.2f}", "{:.3f}"
SETTINGS = {"defaults": "defaults", "hidden": "fixed by hand"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(RUNS), help=", ".join(RUNS))
    parser.add_argument("--runs", type=Path, default=Path("runs/real_pairs"))
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    pairs = asked.runs / "pairs"
    if not pairs.exists():
        script = Path(__file__).with_name("program_messages.py")
        subprocess.run([sys.executable, str(script), "--out", str(pairs)], check=True)
    for name in () if asked.report else asked.names:
        split, given = RUNS[name]
        files = {"data": (f"{pairs}/{split}/train.tsv",), "valid": (f"{pairs}/{split}/valid.tsv",)}
        record = trained(asked.runs / name, {**files, **given}, pairs / split / "test.tsv")
        (asked.runs / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    records = {name: json.loads((asked.runs / f"{name}.json").read_text()) for name in RUNS
               if (asked.runs / f"{name}.json").exists()}  # fmt: skip
    copied = {split: copying(pairs / split / "test.tsv") for split in SPLITS}
    page = report(records, copied, json.loads((pairs / "about.json").read_text()))
    print(write(RESULTS / "real_pairs_cpu", "real_pairs", {"runs": records, "copying": copied}, page))


def trained(folder: Path, given: dict[str, Any], test: Path | None = None) -> dict[str, Any]:
    """Train into the folder, or find it done; the scores of the best model on the test, and what it cost.

    Args:
        folder: of the run.
        given: settings; the others are chosen by the data and the budget, as the command does.
        test: a file of pairs; by default the run's own test split.
    """
    torch.set_num_threads(1)
    recipe = TranslationTraining.of(folder, given, resume=True, cpu=True, tell=print)
    training = recipe.prepare(folder)
    result = training.run(folder, resume=True, cpu=True)
    pairs = list(training.test) if test is None else read_pairs(test).pairs
    record: dict[str, Any] = {"steps": result.steps, "cpu_seconds": round(result.cpu_seconds, 1)}
    for beam in (1, 4):
        scores = evaluate(Translator.load(folder), pairs, beam=beam).scores
        record[f"beam {beam}"] = scores.to_dict()
    return record


def copying(test: Path) -> dict[str, Any]:
    """The scores of the sources themselves."""
    pairs = read_pairs(test).pairs
    return score([pair.source for pair in pairs], [pair.target for pair in pairs]).to_dict()


def report(records: dict[str, Any], copied: dict[str, Any], about: dict[str, Any]) -> list[str]:
    """The report in Markdown."""
    rows: list[tuple[str, ...]] = []
    for split, what in SPLITS.items():
        for kind, words in SETTINGS.items():
            if record := records.get(f"{split}-{kind}"):
                one, four = record["beam 1"], record["beam 4"]
                scores = one["bleu"], one["bleu"] - copied[split]["bleu"], four["bleu"], one["chrf"], one["exact_match"]
                shown = (form.format(x) for form, x in zip(FORMS, scores, strict=True))
                rows.append((what, words, *shown, f"{record['steps']:,}", f"{record['cpu_seconds']:.0f}"))
        base = copied[split]
        scores = f"{base['bleu']:.2f}", "", "", f"{base['chrf']:.2f}", f"{base['exact_match']:.3f}"
        rows.append((what, "copying the source", *scores, "", ""))
    sizes = {
        split: f"{about[f'{split} train']:,} to learn from, {about[f'{split} test']:,} to test" for split in SPLITS
    }
    title = "Real sentence pairs: defaults, settings fixed by hand, and copying"
    return [
        *heading(title, ", one thread of a shared machine, therefore in CPU seconds"),
        f"The data are {about['pairs']:,} short English messages of {about['programs']} programs with their German "
        f"translations, from the message catalogues of the machine. By program: {sizes['programs']}, all of "
        f"programs that the training has no message of. At random: {sizes['random']}.",
        "",
        *markdown_table(("test messages", "settings", "BLEU", "above copying", "beam 4", "chrF", "exact match", "steps",
                "CPU seconds"), rows),
        "",
        f"Settings fixed by hand: {', '.join(f'{name} {value}' for name, value in FIXED.items())}.",
        "",
        "BLEU and chrF go from 0 to 100, exact match from 0 to 1. *Beam 4* is BLEU with that beam, other scores "
        f"are of greedy search. BLEU: `{copied['random']['bleu_signature']}`.",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
