"""Mutants by their numbers, with what pytest printed for those that were not killed.

python -m tests.long.mutants NUMBER ... [--quiet]
"""

import sys

from .judging import mutant, outcome, workplace


def main(words: list[str]) -> int:
    """0 if every mutant was killed."""
    quiet = "--quiet" in words
    survived = 0
    with workplace() as (copy, callers):
        for number in [int(word) for word in words if word != "--quiet"]:
            one = mutant(number)
            verdict, why = outcome(one, copy, callers)
            print(f"{one}\n    {verdict}: {why}", flush=True)
            if not quiet and verdict != "killed":
                print((copy / "pytest.txt").read_text())
            survived += verdict in ("survived", "untested")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
