"""Mutants by their numbers, or the survivors once more, each against every test that calls its function.

python -m tests.long.mutants NUMBER ... [--quiet]    with what pytest printed, if it was not killed
python -m tests.long.mutants --survivors [TEXT]      written to the result file: those that a test kills
"""

from __future__ import annotations

import sys

from .again import judge_survivors
from .judging import mutant, outcome, workplace


def main(words: list[str]) -> int:
    """0 if every mutant was killed."""
    if words[:1] == ["--survivors"]:
        return judge_survivors(only=" ".join(words[1:]))
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
