"""Trains models on your own sentence pairs and compares them with copying the source.

python benchmarks/real_pairs.py PAIRS.tsv --out DIR [--steps N] [--models NAME,...]

Runs `regard compare` on the file, then scores the test sources themselves as translations: a meaningful baseline for
languages that share names and technical words. If it is stopped, the same command continues.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from regard.text import read_pairs, score

MODELS = "transformer,none,bahdanau,luong-dot,luong-general,luong-concat"
BETTER_BY = 5.0  # BLEU
MINUTES = 10.0  # of CPU time on one thread; elapsed time depends on other load on the machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--steps", type=int, default=1500)
    asked = parser.parse_args()
    options = ["--data", str(asked.pairs), "--models", asked.models, "--steps", str(asked.steps),
               "--schedule", "cosine", "--dim", "128", "--layers", "2", "--vocab-size", "4000",
               "--batch-tokens", "1500", "--learning-rate", "0.002",
               "--warmup-steps", str(min(200, asked.steps // 5))]  # fmt: skip
    command = [sys.executable, "-c", "from regard.cli import main; main()", "compare", "--out", str(asked.out)]
    if code := subprocess.run([*command, "--resume", *options], stdout=subprocess.DEVNULL).returncode:
        sys.exit(code)  # the command has printed the reason
    record = json.loads((asked.out / "compare.json").read_text())
    lines = judge(asked.out, record["rows"])
    (asked.out / "real_pairs.md").write_text("\n".join(["# Real sentence pairs", "", *lines, ""]))
    print("\n".join(lines))


def judge(out: Path, rows: list[dict]) -> list[str]:
    """BLEU of every model and of copying, and whether the Transformer keeps its promise."""
    test = read_pairs(out / rows[0]["name"] / "test.jsonl").pairs
    copied = score([pair.source for pair in test], [pair.target for pair in test])
    verdict = "The Transformer was not trained, so there is no verdict."
    lines = [
        f"{len(test)} test pairs. Copying the source: BLEU {copied.bleu:.2f}, chrF {copied.chrf:.2f} "
        f"(`{copied.bleu_signature}`).",
        "",
        "| model | BLEU | above copying | chrF | exact match | training, CPU minutes |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        quality, minutes = row["quality"], row["spent"]["cpu_seconds"] / 60
        lines.append(
            f"| {row['name']} | {quality['BLEU']:.2f} | {quality['BLEU'] - copied.bleu:+.2f} | {quality['chrF']:.2f} | "
            f"{quality['exact match']:.3f} | {minutes:.1f} |"
        )
        if row["name"] == "transformer":
            kept = quality["BLEU"] >= copied.bleu + BETTER_BY and minutes <= MINUTES
            gain = f"{quality['BLEU'] - copied.bleu:+.2f} BLEU above copying after {minutes:.1f} CPU minutes"
            verdict = (
                f"Promise {'kept' if kept else 'missed'}: the Transformer is {gain} (promised +{BETTER_BY:.0f} within "
                f"{MINUTES:.0f})."
            )
    return [*lines, "", verdict]


if __name__ == "__main__":
    main()
