"""Survivors once more: each meets the test that was written because of it, or every test that calls its function."""

from __future__ import annotations

import re
from pathlib import Path

from ..goals import rows
from ..results import RESULTS, changing, read
from .answers import is_equal, killer
from .calling import Callers
from .copies import ROOT
from .judging import Mutant, met, outcome, workplace
from .sites import sites

SENTENCE = re.compile(r"mutant (\d+), (.+?):(\d+): (.*) \((survived|untested): .*\)", re.DOTALL)
SECONDS = 120.0  # of CPU: ten times what a mutant gets at first


def found(sentence: str) -> Mutant | None:
    """The mutant of a survivor's sentence in the code as it is now; `None` where the changed text is gone.

    A number says which mutant it was in the code of that day, so the place and the change are looked for.
    """
    match = SENTENCE.fullmatch(sentence)
    if match is None or not (ROOT / match[2]).exists():
        return None
    bare = str.maketrans("", "", "()")  # an earlier form of the tool wrote fewer parentheses
    change = match[4].translate(bare)
    alike = [one for one in sites((ROOT / match[2]).read_bytes()) if str(one).translate(bare) == change]
    nearest = min(alike, key=lambda one: abs(one.line - int(match[3])), default=None)
    return nearest and Mutant(int(match[1]), match[2].split("/")[1], match[2], nearest)


def place(test: str) -> str | None:
    """The file that defines a test."""
    files = (ROOT / "tests").rglob("test_*.py")
    return next((one.relative_to(ROOT).as_posix() for one in files if f"def {test}(" in one.read_text("utf-8")), None)


def judge_survivors(path: Path = RESULTS, only: str = "") -> int:
    """Count as killed what a test kills, where it can be killed at all; 1 if one lives on.

    Args:
        path: the file of results.
        only: a part of the sentences of the survivors to judge; all without it.
    """
    alive = 0
    with workplace() as (copy, callers):
        for sentence in [one for one in read(path)["runs"]["mutants"]["noted"] if only in one and not is_equal(one)]:
            verdict, why = judged(sentence, copy, callers)
            print(f"{sentence}\n    {verdict}: {why}", flush=True)
            alive += verdict not in ("killed", "timed out")
            if verdict in ("killed", "timed out"):
                _killed(sentence, path)
    return int(alive > 0)


def judged(sentence: str, copy: Path, callers: Callers) -> tuple[str, str]:
    """The outcome of a survivor: for the test that its answer names, or for all that call its function."""
    if (one := found(sentence)) is None:
        return "gone", "the code that it changes is not there any more"
    if (test := killer(sentence)) is None:
        return outcome(one, copy, callers, SECONDS)
    if (file := place(test)) is None:
        return "survived", f"there is no {test}"
    code = met(one, copy, ["-x", file, "-k", test], object(), SECONDS)
    if code < 0:
        return "timed out", f"{test}: signal {-code}"
    return ("killed" if code == 1 else "survived"), f"{test}: pytest ended with {code}"


def _killed(sentence: str, path: Path) -> None:
    """Move a survivor to the killed."""
    match = SENTENCE.fullmatch(sentence)
    assert match is not None
    with changing(path) as content:
        record = content["runs"]["mutants"]
        record["noted"].remove(sentence)
        record["counts"][match[5]] -= 1
        record["counts"]["killed"] += 1
        content["goals"] = rows(content["runs"])
