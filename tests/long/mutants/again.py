"""Survivors once more, each against the test that was written because of it."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from ..goals import rows
from ..results import RESULTS, changing, read
from .answers import killer
from .copies import ROOT, copy_of_all, import_heavy
from .judging import Mutant, met
from .sites import sites

SENTENCE = re.compile(r"mutant (\d+), (.+?):(\d+): (.*) \((survived|untested): .*\)", re.DOTALL)
SECONDS = 120.0  # of CPU, for one test


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


def judge_survivors(path: Path = RESULTS) -> int:
    """Count as killed what its test kills; 1 if a test does not."""
    import_heavy()
    alive = 0
    with tempfile.TemporaryDirectory(prefix="mutants") as name:
        copy = copy_of_all(Path(name).resolve())
        for sentence in read(path)["runs"]["mutants"]["noted"]:
            if (test := killer(sentence)) is None:
                continue
            one, file = found(sentence), place(test)
            code = met(one, copy, ["-x", file, "-k", test], object(), SECONDS) if one and file else None
            print(f"{sentence}\n    {test}: {'kills it' if code == 1 else f'does not kill it ({code})'}", flush=True)
            alive += code != 1
            if code == 1:
                _killed(sentence, path)
    return int(alive > 0)


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
