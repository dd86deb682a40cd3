"""Compares single layers, training steps, translators, attached models and kernels of servers with other libraries.

python -m benchmarks.libraries [CASE ...] [--out DIR] [--resume] [--quick]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.libraries.attached import ATTACHED_CASE
from benchmarks.libraries.layers import STEP_CASE, TRAINING_CASE, TRANSLATING_CASE
from benchmarks.libraries.servers import SERVING_CASE
from regard.errors import RegardError
from regard_lab.bench import Results, describe_results
from regard_lab.bench.running import run_cases
from regard_lab.bench.work import Case

OUT = Path("runs") / "libraries"
CASES: dict[str, Case] = {
    case.name: case
    for case in (SERVING_CASE, STEP_CASE, TRANSLATING_CASE, TRAINING_CASE, ATTACHED_CASE)
}


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, measure, and print the results; the exit code is 1 if regard is wrong or fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="CASE", help=f"all by default: {', '.join(CASES)}"
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder of the results (default: %(default)s)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the cases of the folder and measure the others"
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    asked = parser.parse_args(words)

    try:
        results = run_cases(
            CASES,
            asked.names,
            program="python -m benchmarks.libraries",
            quick=asked.quick,
            out=asked.out,
            resume=asked.resume,
            device="cpu",
            tell=lambda line: print(line, file=sys.stderr),
        )
    except RegardError as refusal:
        parser.error(str(refusal))
    except KeyboardInterrupt:
        sys.exit(f"interrupted; finished cases are in {asked.out}, and --resume goes on from there")
    print("\n".join(describe_results(results)))
    print(asked.out / Results.file)
    if results.our_mistakes:
        sys.exit(f"regard was wrong or failed: {'; '.join(results.our_mistakes)}")


if __name__ == "__main__":
    main()
