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
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

from regard_lab.decoding import Translator, evaluate
from regard_lab.text import read_pairs, score
from regard_lab.training.recipes import TranslationTraining

RESULTS = Path(__file__).parent / "results" / "real_pairs_cpu"
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
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "real_pairs.json").write_text(json.dumps({"runs": records, "copying": copied}, indent=1) + "\n")
    (RESULTS / "real_pairs.md").write_text(report(records, copied, json.loads((pairs / "about.json").read_text())))
    print(RESULTS / "real_pairs.md")


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


def report(records: dict[str, Any], copied: dict[str, Any], about: dict[str, Any]) -> str:
    """The report in Markdown."""
    rows = []
    for split, what in SPLITS.items():
        for kind, words in SETTINGS.items():
            if record := records.get(f"{split}-{kind}"):
                one, four = record["beam 1"], record["beam 4"]
                above = one["bleu"] - copied[split]["bleu"]
                rows.append(
                    f"| {what} | {words} | {one['bleu']:.2f} | {above:+.2f} | {four['bleu']:.2f} | {one['chrf']:.2f} | "
                    f"{one['exact_match']:.3f} | {record['steps']:,} | {record['cpu_seconds']:.0f} |"
                )
        base = copied[split]
        rows.append(
            f"| {what} | copying the source | {base['bleu']:.2f} | | | {base['chrf']:.2f} | {base['exact_match']:.3f} "
            f"| | |"
        )
    sizes = {
        split: f"{about[f'{split} train']:,} to learn from, {about[f'{split} test']:,} to test" for split in SPLITS
    }
    return "\n".join(
        [
            "# Real sentence pairs: defaults, settings fixed by hand, and copying",
            "",
            f"`python benchmarks/real_pairs.py`, {date.today()}, torch {torch.__version__}, Python "
            f"{platform.python_version()}, one thread of a shared machine, therefore in CPU seconds.",
            "",
            f"The data are {about['pairs']:,} short English messages of {about['programs']} programs with their German "
            f"translations, from the message catalogues of the machine. By program: {sizes['programs']}, all of "
            f"programs that the training has no message of. At random: {sizes['random']}.",
            "",
            "| test messages | settings | BLEU | above copying | beam 4 | chrF | exact match | steps | CPU seconds |",
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"Settings fixed by hand: {', '.join(f'{name} {value}' for name, value in FIXED.items())}.",
            "",
            "BLEU and chrF go from 0 to 100, exact match from 0 to 1. *Beam 4* is BLEU with that beam, other scores "
            f"are of greedy search. BLEU: `{copied['random']['bleu_signature']}`.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
