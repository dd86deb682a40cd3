"""Checks at small scale what papers state their mechanisms can and cannot learn, and writes a report.

python -m benchmarks.behaviour [NAME ...] [--out DIR] [--resume] [--quick]
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.behaviour.duplication import DUPLICATION
from benchmarks.behaviour.recall import CHOOSING, OVERWRITING, RECALL
from benchmarks.behaviour.study import REPORT, BehaviourResults, Experiment, write_report

EXPERIMENTS = (DUPLICATION, RECALL, OVERWRITING, CHOOSING)
OUT = Path(__file__).parents[1] / "results" / "behaviour_cpu"


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line and run."""
    names = [experiment.name for experiment in EXPERIMENTS]
    parser = argparse.ArgumentParser(
        description="Published behaviour of attention mechanisms at small scale."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(names)}"
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder of the results (default: %(default)s)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep what the folder holds and train what is missing"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one seed, a fiftieth of the updates: does it run?"
    )
    asked = parser.parse_args(words)
    unknown = set(asked.names) - set(names)
    if unknown:
        parser.error(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen_names = asked.names or names
    chosen = [experiment for experiment in EXPERIMENTS if experiment.name in chosen_names]
    torch.set_num_threads(1)
    try:
        run(chosen, asked.out, resume=asked.resume, quick=asked.quick)
    except KeyboardInterrupt:
        sys.exit(
            f"interrupted; every training that was finished is in {asked.out}, and --resume goes on from there"
        )
    print(asked.out / REPORT)


def run(chosen: Sequence[Experiment], out: Path, *, resume: bool, quick: bool) -> BehaviourResults:
    """Train the missing contenders of the chosen experiments; without resume, earlier records of these are dropped."""
    results = BehaviourResults.load(out, quick)
    experiments = list(EXPERIMENTS)
    if quick:
        experiments = [replace(one, seeds=one.seeds[:1]) for one in EXPERIMENTS]
    names = {experiment.name for experiment in chosen}
    try:
        for experiment in experiments:
            if experiment.name not in names:
                continue
            if not resume:
                results.records.pop(experiment.name, None)
            for contender, seed in results.missing(experiment):
                results.add(experiment, contender, seed, experiment.run(contender, seed, quick))
                results.save(out)
    finally:
        write_report(results, experiments, out)
    return results


if __name__ == "__main__":
    main()
