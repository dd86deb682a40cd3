"""The comparison from the command line; `make arm` runs it."""

import argparse
import sys

from . import __doc__ as description
from .comparing import digests, drawn, missing, prepare


def main(words: list[str]) -> int:
    """0 if nothing was wrong or emulation is missing, which is said; else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.arm",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=200, help="how many drawn calls")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first number")
    chosen = parser.parse_args(words)
    if (reason := missing()) is not None:
        print(f"nothing ran on Arm: {reason}")
        return 0
    prepare()
    same, calls = digests()
    print(f"{same} of {calls} fixed calls have the bits of this machine", flush=True)
    found = drawn(chosen.first, chosen.first + chosen.cases)
    for name, number in sorted(found.counts.items()):
        print(f"{number:6}  {name}")
    for name, value in found.largest.items():
        print(f"{value:6.2g}  the largest {name}")
    for sentence in found.wrong:
        print(sentence)
    print(f"{chosen.cases} drawn calls, {len(found.wrong)} wrong")
    return int(same < calls or bool(found.wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
