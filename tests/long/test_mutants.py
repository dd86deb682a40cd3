"""The tool of mutants itself: a mutant that differs is killed, and one that does not survives."""

from dataclasses import replace

import pytest

from tests.long.mutant_sites import sites
from tests.long.mutants import ROOMS, ROOT, Mutant, copy_of_all, judged, mutant, places_of

PATH = "regard/patterns/ranges.py"
SITE = next(one for one in sites((ROOT / PATH).read_bytes()) if one.kind == "comparison")


def test_a_mutant_fails_the_examples_of_its_file_and_leaves_the_copy_as_it_was(tmp_path):
    copy = copy_of_all(tmp_path)
    whole = (copy / PATH).read_bytes()
    for site, verdict in ((SITE, "killed"), (replace(SITE, after=SITE.before), "survived")):
        assert judged(Mutant(0, "patterns", PATH, site), copy, [PATH])[0] == verdict
        assert (copy / PATH).read_bytes() == whole


@pytest.mark.parametrize("number", range(len(ROOMS)))
def test_every_room_has_a_place_and_tests(number):
    one = mutant(number)
    assert (one.room, mutant(number)) == (list(ROOMS)[number], one)
    assert all((ROOT / path).exists() for path in places_of(one))
