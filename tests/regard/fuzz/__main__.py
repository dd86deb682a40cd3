"""The fuzzer from the command line; the next seed is printed whenever it ends."""

import argparse
import sys

from .running import Tally, case_of, run


def main(arguments: list[str] | None = None) -> int:
    """0 if every case was right or refused, 1 if one was off."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.regard.fuzz", description="Random calls against the contract."
    )
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for smaller cases")
    parser.add_argument(
        "--describe", action="store_true", help="print each case and compute nothing"
    )
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.cases)
    if options.describe:
        for seed in seeds:
            print(case_of(seed))
        return 0
    tally = Tally()
    following = options.first
    try:
        for seed in run(seeds, tally, shrink=not options.no_shrink, progress=True):
            following = seed + 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(tally)
    print(f"next: --from {following}")
    return 1 if tally.off else 0


if __name__ == "__main__":
    sys.exit(main())
