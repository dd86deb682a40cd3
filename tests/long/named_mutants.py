"""Faults that are written down: an exact change of the code, and the tests that must fail with it.

python -m tests.long.named_mutants         each fault with its number
python -m tests.long.named_mutants 0 17    those faults, with what pytest printed for one that a test missed

`mutants` draws changes and asks whether any test of a room notices. Here each fault has the tests that are meant for
it, so that a test which is rewritten is seen to fail as before. `make test-long` runs all of them.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .mutants import ROOT, copy_of_all, run_tests
from .pytests import FAILED


class NamedMutant(NamedTuple):
    """One change of one file.

    Args:
        path: of the file, below the root.
        text: what stands there exactly once.
        instead: what stands there in the mutant.
        tests: those that must fail, as pytest names them, below `tests`.
    """

    path: str
    text: str
    instead: str
    tests: tuple[str, ...]

    def applied(self, source: bytes) -> bytes:
        text = self.text.encode()
        assert source.count(text) == 1, (
            f"{self.path} has this {source.count(text)} times: {self.text}"
        )
        return source.replace(text, self.instead.encode())

    @property
    def paths_of_tests(self) -> list[str]:
        return [f"tests/{test}" for test in self.tests]

    def __str__(self) -> str:
        return f"{self.path}: {self.text} -> {self.instead}"


def every_mutant() -> list[NamedMutant]:
    """The rows of the table, those of the library first."""
    from .table_of_mutants import LAB, LIBRARY

    return [*_of("regard", LIBRARY), *_of("regard_lab", LAB)]


def _of(side: str, rows: Sequence[tuple[str, str, str, str]]) -> Iterator[NamedMutant]:
    """Mutants of rows: a file and tests below a side's folders, and what stands there before and after."""
    for path, text, instead, tests in rows:
        places = tuple(f"{side}/{test}" for test in tests.split())
        yield NamedMutant(f"{side}/{path}", text, instead, places)


def missed_failures(mutant: NamedMutant, copy: Path) -> tuple[list[str], str]:
    """The named tests that passed although the code is wrong, and what pytest printed."""
    changed = mutant.applied((ROOT / mutant.path).read_bytes())
    done = run_tests(mutant.path, changed, copy, mutant.paths_of_tests, "-rfE", "-m", "not gpu")
    if done is None or done.returncode < 0:
        return [], "the tests took too long, which a test that passes does not"
    failed = FAILED.findall(done.stdout)
    missed = []
    for test in mutant.paths_of_tests:
        if not any(name == test or name.startswith(f"{test}[") for name in failed):
            missed.append(test)
    return missed, done.stdout + done.stderr


def main(words: list[str]) -> None:
    mutants = every_mutant()
    if not words:
        for number, mutant in enumerate(mutants):
            print(f"{number:3} {mutant}")
        return
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        copy = copy_of_all(Path(folder).resolve())
        for number in map(int, words):
            missed, printed = missed_failures(mutants[number], copy)
            verdict = f"missed by {', '.join(missed)}\n{printed}" if missed else "killed"
            print(f"{number:3} {mutants[number]}\n    {verdict}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
