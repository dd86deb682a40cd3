"""Measures how time and memory of every layer and mechanism grow with the length, and writes a report.

python -m benchmarks.complexity [ROW ...] [--out DIR] [--resume] [--quick]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.complexity.measuring import run_complexity
from benchmarks.complexity.report import FILE, describe_table
from benchmarks.complexity.rows import ROWS
from regard.errors import RegardError

OUT = Path("runs") / "complexity"


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, measure, and print the table; the exit code is 1 if a row is wrong or fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="ROW", help=f"all by default: {', '.join(ROWS)}"
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder of the results (default: %(default)s)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the rows of the folder and measure the others"
    )
    parser.add_argument(
        "--quick", action="store_true", help="shorter lengths, less accurate: about two minutes"
    )
    asked = parser.parse_args(words)

    try:
        table = run_complexity(
            asked.names,
            quick=asked.quick,
            out=asked.out,
            resume=asked.resume,
            tell=lambda line: print(line, file=sys.stderr),
        )
    except RegardError as refusal:
        parser.error(str(refusal))
    except KeyboardInterrupt:
        sys.exit(f"interrupted; finished rows are in {asked.out}, and --resume goes on from there")
    print("\n".join(describe_table(table)))
    print(asked.out / FILE)
    if table.our_mistakes:
        sys.exit(f"regard was wrong or failed: {'; '.join(table.our_mistakes)}")


if __name__ == "__main__":
    main()
