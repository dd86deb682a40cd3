"""Runs the demo with several seeds and reports its cost and the spread of its scores.

python benchmarks/demo_seeds.py [SEED ...]
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import torch

SHOWN = (
    "train_cpu_seconds",
    "bleu",
    "exact_match",
    "pronoun_accuracy",
    "contrast_accuracy",
    "majority_baseline",
    "referent_agreement",
    "referent_chance",
    "swap_followed",
)


def main() -> None:
    seeds = [int(word) for word in sys.argv[1:]] or [0, 1, 2]
    records = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            command = ["regard", "demo", "--json", "--seed", str(seed), "--out", f"{folder}/run"]
            print(" ".join(command[:-2]), file=sys.stderr)
            binary = Path(sys.executable).with_name("regard")
            answer = subprocess.run([str(binary), *command[1:]], stdout=subprocess.PIPE, text=True, check=True)
            records.append(json.loads(answer.stdout.splitlines()[-1]))
    path = Path(__file__).parent / "results" / f"demo_cpu_{date.today():%Y%m}.md"
    path.write_text(report(seeds, records))
    print(path)


def report(seeds: list[int], records: list[dict]) -> str:
    head = f"| | {' | '.join(f'seed {seed}' for seed in seeds)} | median |"
    rule = "|---" * (len(seeds) + 2) + "|"
    rows = []
    for name in SHOWN:
        values = [record[name] for record in records]
        cells = [f"{value:.3f}" if value < 10 else f"{value:.1f}" for value in [*values, statistics.median(values)]]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(
        [
            "# The demo with several seeds",
            "",
            f"`python benchmarks/demo_seeds.py {' '.join(map(str, seeds))}`, {date.today()}.",
            f"{records[0]['steps']:,} steps, torch {torch.__version__}, Python {platform.python_version()}, "
            f"{os.cpu_count()} cores, {torch.get_num_threads()} threads.",
            "",
            "A seed changes the weights, the order of the data and the drawn sentences; the noun pairs held out of",
            "training are the same. Rates are shares from 0 to 1; BLEU is 0 to 100.",
            "",
            head,
            rule,
            *rows,
            "",
            f"BLEU: `{records[0]['bleu_signature']}`.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
