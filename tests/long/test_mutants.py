"""The tool of mutants itself: a mutant that differs is killed, and a fork that hangs is ended."""

import subprocess
import sys
from dataclasses import replace
from types import CodeType

import pytest

from tests.long.mutants.copies import ROOT, copy_of_all, import_heavy
from tests.long.mutants.judging import Mutant, met
from tests.long.mutants.sites import sites

PATH = "regard/patterns/ranges.py"
SITE = next(one for one in sites((ROOT / PATH).read_bytes()) if one.kind == "comparison")


def judge_one(folder):
    import_heavy()
    copy = copy_of_all(folder)
    whole = (copy / PATH).read_bytes()
    for site, code in ((SITE, 1), (replace(SITE, after=SITE.before), 0)):
        assert met(Mutant(0, "patterns", PATH, site), copy, ["-x", PATH], object(), 60) == code
        assert (copy / PATH).read_bytes() == whole


def test_a_mutant_fails_the_examples_of_its_file_and_leaves_the_copy_as_it_was(tmp_path):
    """In a process of its own, as the tool runs; in a fork of this one pytest has ended with signal 11."""
    code = (
        f"from pathlib import Path\nfrom tests.long.test_mutants import judge_one\njudge_one(Path({str(tmp_path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path", ["regard/patterns/tiles.py", "regard/backends/streamed.py", "regard/layers/caches/state.py"]
)
def test_the_function_around_a_place_is_called_as_python_calls_it(path):
    source = (ROOT / path).read_bytes()
    codes, names = [compile(source, path, "exec")], set()
    for code in codes:
        codes += [one for one in code.co_consts if isinstance(one, CodeType)]
        names.add(code.co_qualname)
    inside = {one.function for one in sites(source)} - {""}
    assert len(inside) > 3
    assert inside <= names
