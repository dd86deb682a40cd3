"""Runs the demo with several seeds under several processor settings, and reports cost, scores and the worst run.

python benchmarks/demo_seeds.py [SEED ...] [--settings avx2 default] [--jobs N] [--runs FOLDER]

Two processors add in another order, so their last digits differ, and training makes another model of it. PyTorch's
ATEN_CPU_CAPABILITY gives one machine the arithmetic of others: with AVX2, or without vector instructions. Each run's
record is written when the run ends and is not measured again; an interrupted run goes on from its last checkpoint.
The report counts the runs that are there.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import RESULTS, heading
from regard_lab.bench.report import markdown_table
from regard_lab.cli.demo import SETTINGS

PROCESSORS = ("avx2", "default")  # values of ATEN_CPU_CAPABILITY; default: no vector instructions
Record = dict[str, Any]

# What every run is to reach: the worst value of a column is its least, or its greatest where less is better.
BOUNDS = {"train_cpu_seconds": 350, "exact_match": 0.98, "pronoun_accuracy": 0.985, "contrast_accuracy": 0.97}
SHOWN = {
    "train_cpu_seconds": "CPU s",
    "exact_match": "exact",
    "pronoun_accuracy": "pronouns",
    "contrast_accuracy": "contrast",
    "bleu": "BLEU",
    "swap_followed": "swap followed",
    "swap_kept": "swap kept",
    "referent_agreement": "agreement",
    "referent_preference": "preference",
    "lens_agreement": "lens",
}
LESS_IS_BETTER = ("train_cpu_seconds",)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--settings", nargs="+", default=PROCESSORS, help="values of ATEN_CPU_CAPABILITY")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, of one thread each")
    parser.add_argument("--runs", type=Path, default=Path("runs/demo_seeds"), help="where runs and records are kept")
    given = parser.parse_args()
    folder = given.runs / recipe_hash()
    wanted = [(processor, seed) for seed in given.seeds for processor in given.settings]
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda one: measured(folder, *one), wanted))
    path = RESULTS / f"demo_cpu_{date.today():%Y%m}.md"
    path.write_text(report(kept(folder)))
    print(path)


def recipe_hash() -> str:
    """Tells the records of one recipe and one PyTorch from those of others."""
    settings = json.dumps([asdict(SETTINGS), torch.__version__], sort_keys=True, default=str)
    return hashlib.sha256(settings.encode()).hexdigest()[:8]


def run_demo(folder: Path, processor: str, seed: int) -> Record:
    """What `regard demo --json` says, with one thread and the given processor setting."""
    binary = Path(sys.executable).with_name("regard")
    command = [str(binary), "demo", "--json", "--seed", str(seed), "--out", str(folder)]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": processor, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(answer.stdout.splitlines()[-1])


def measured(folder: Path, processor: str, seed: int, run: Callable[[Path, str, int], Record] = run_demo) -> Record:
    """The record of one run: the one that is kept, or a new one, written as soon as it is there."""
    path = folder / f"{processor}-seed-{seed}.json"
    if path.exists():
        return json.loads(path.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{processor}, seed {seed}", file=sys.stderr)
    record = {"processor": processor, "seed": seed, **run(folder / f"{processor}-seed-{seed}", processor, seed)}
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)
    return record


def kept(folder: Path) -> list[Record]:
    """The records in a folder, by processor setting and seed."""
    records = [json.loads(path.read_text()) for path in folder.glob("*-seed-*.json")]
    return sorted(records, key=lambda record: (record["processor"], record["seed"]))


def worst(records: Sequence[Record]) -> Record:
    """The worst value of each column."""
    names = [name for name in SHOWN if all(name in record for record in records)]
    return {name: (max if name in LESS_IS_BETTER else min)(record[name] for record in records) for name in names}


def missed(records: Sequence[Record]) -> list[str]:
    """The bounds that the worst run breaks, in words."""
    values = worst(records)
    return [
        f"{SHOWN[name]} {_cell(values[name])}, and the bound is {bound}"
        for name, bound in BOUNDS.items()
        if (values[name] > bound if name in LESS_IS_BETTER else values[name] < bound)
    ]


def report(records: Sequence[Record]) -> str:
    """The report in Markdown."""
    if not records:
        raise SystemExit("there is no record of a run yet")
    lowest, broken, first = worst(records), missed(records), records[0]
    rows = [(r["processor"], r["seed"], *(_cell(r[name]) for name in lowest)) for r in records]
    rows.append(("**worst**", "", *(f"**{_cell(value)}**" for value in lowest.values())))
    lines = [
        *heading("The demo with several seeds", f": {len(records)} runs of {first['steps']:,} steps, one thread each"),
        "A seed changes the weights, the order of the data and the drawn sentences; the noun pairs held out of",
        "training are the same. A processor setting (ATEN_CPU_CAPABILITY) changes the last digits of every sum:",
        "`avx2` has vector instructions, `default` has none. Rates are shares from 0 to 1; BLEU is 0 to 100.",
        "",
        *markdown_table(("processor", "seed", *(SHOWN[name] for name in lowest)), rows),
        "",
        f"Bounds for every run: {', '.join(f'{SHOWN[name]} {bound}' for name, bound in BOUNDS.items())}.",
        f"Broken by the worst: {'; '.join(broken)}." if broken else "The worst keeps all of them.",
        "",
        f"The most frequent pronoun alone would get {_cell(max(r['majority_baseline'] for r in records))} of the "
        f"pronouns; *agreement* by random choice would be {_cell(first['referent_chance'])}.",
        "",
        f"BLEU: `{first['bleu_signature']}`.",
        "",
    ]
    return "\n".join(lines)


def _cell(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


if __name__ == "__main__":
    main()
