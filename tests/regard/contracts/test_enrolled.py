"""Every registered pattern, mechanism, score and feature map can be read from text, is documented, tested, exported."""

from __future__ import annotations

import importlib
import pkgutil
import random
import re
from pathlib import Path

import law_patterns
import pytest
from cell_patterns import PATTERNS
from cells import Places
from fuzz.meanings import LEAVES, build, plain_leaf
from fuzz.meanings import Places as FuzzPlaces
from fuzz.mechanisms import KINDS, Case, Made
from mechanism_cells import MECHANISMS

from regard import mechanisms as m
from regard import patterns as p
from regard.errors import ArgumentError
from regard.mechanisms.base import OPTIONS, STATISTICS, Mechanism
from regard.patterns.base import Compound, Pattern
from regard.patterns.registry import Declared

DOCS = Path(__file__).parents[3] / "docs"
CONVENTIONS = (DOCS / "conventions.md").read_text(encoding="utf-8")
PAGE = (DOCS / "mechanisms.md").read_text(encoding="utf-8")

for package in (p, m):  # a file that its package forgets to import is enrolled too
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

KINDS_OF_PATTERN = Pattern.registry.of_package("regard")
KINDS_OF_MECHANISM = Mechanism.registry.of_package("regard")
PARTS_OF_MECHANISMS = m.Score.registry.of_package("regard") | m.FeatureMap.registry.of_package("regard")
INTERNAL = {"per_document"}  # attention makes it of nested tensors; tests/regard/test_jagged.py judges it
OF_OTHERS = {"per_head"}  # the lists build it of other patterns
PUBLIC = sorted(set(KINDS_OF_PATTERN) - INTERNAL)
JUDGED = sorted(set(PUBLIC) - OF_OTHERS)
PARTS = sorted(PARTS_OF_MECHANISMS)


def examples(name: str) -> list[Pattern]:
    at = FuzzPlaces(2, 2, 9, 9, (0,))
    return [build(plain_leaf(random.Random(seed), name, 9), at) for seed in range(20)]


def kinds_within(pattern: Pattern) -> set[type[Pattern]]:
    inner = pattern.made_of() if isinstance(pattern, Compound) else ()
    return {type(pattern)}.union(*map(kinds_within, inner))


# --- patterns ---


@pytest.mark.parametrize("name", JUDGED)
def test_a_pattern_has_a_formula(name):
    assert name in LEAVES, f"add {name!r} to LEAVES in tests/regard/fuzz/meanings.py: how to draw, judge and build it"
    assert {type(one) for one in examples(name)} == {KINDS_OF_PATTERN[name]}


@pytest.mark.parametrize("name", [name for name in JUDGED if KINDS_OF_PATTERN[name].no_text is None])
def test_the_text_of_a_pattern_reads_back(name):
    assert name in LEAVES, f"no examples of {name!r}: add it to LEAVES in tests/regard/fuzz/meanings.py"
    for pattern in examples(name):
        assert p.parse(str(pattern)) == pattern
        assert str(p.parse(str(pattern))) == str(pattern)


@pytest.mark.parametrize("name", [name for name, kind in KINDS_OF_PATTERN.items() if kind.no_text is not None])
def test_a_pattern_without_a_text_says_why(name):
    with pytest.raises(ArgumentError, match=f"'{name}' is no pattern that a text can hold: .*it|attention"):
        p.parse(f"{name}(3)")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_pattern_is_in_the_contract_grid(name):
    at = Places.of(2, 6, 7, 11)
    built = (p.as_pattern(row.build(at)) for row in PATTERNS.values())
    assert KINDS_OF_PATTERN[name] in set().union(*map(kinds_within, built)), f"no row of PATTERNS holds {name!r}"


@pytest.mark.parametrize("name", [name for name in PUBLIC if KINDS_OF_PATTERN[name].no_text is None])
def test_a_pattern_is_drawn_for_the_laws(name):
    assert name in law_patterns.DRAWN, f"the laws draw no {name!r}; give it a formula in tests/regard/fuzz/meanings.py"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_pattern_has_its_line_in_the_conventions(name):
    kind = KINDS_OF_PATTERN[name]
    line = re.search(rf"^\|[^|]*`{kind.__name__}\(", CONVENTIONS, re.M)
    assert line, f"docs/conventions.md has no line `{kind.__name__}(`"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_pattern_is_exported(name):
    assert KINDS_OF_PATTERN[name].__name__ in p.__all__, f"export {KINDS_OF_PATTERN[name].__name__} in regard.patterns"
    assert getattr(p, KINDS_OF_PATTERN[name].__name__) is KINDS_OF_PATTERN[name]


# --- mechanisms ---


@pytest.mark.parametrize("name", KINDS_OF_MECHANISM)
def test_a_mechanism_is_in_the_contract_grid(name):
    of_kind = [one for one in MECHANISMS.values() if type(one) is KINDS_OF_MECHANISM[name]]
    assert of_kind, f"tests/regard/contracts/mechanism_cells.py has no {name!r}"


@pytest.mark.parametrize("name", KINDS_OF_MECHANISM)
def test_the_text_of_a_mechanism_reads_back(name):
    of_kind = [one for one in MECHANISMS.values() if type(one) is KINDS_OF_MECHANISM[name]]
    assert of_kind, f"no example of {name!r}: add it to tests/regard/contracts/mechanism_cells.py"
    for mechanism in of_kind:
        assert m.parse(str(mechanism)) == mechanism


@pytest.mark.parametrize("name", [name for name in KINDS_OF_MECHANISM if name != "softmax"])
def test_a_mechanism_has_a_formula(name):
    made = {type(Made(Case(0, kind)).mechanism) for kind in KINDS}
    assert KINDS_OF_MECHANISM[name] in made, f"tests/regard/fuzz/mechanisms.py has no formula for {name!r}"


@pytest.mark.parametrize("name", KINDS_OF_MECHANISM)
def test_a_mechanism_has_its_row_in_the_docs(name):
    row = docs_row(KINDS_OF_MECHANISM[name])
    assert row in PAGE, f"write this into the table of docs/mechanisms.md:\n{row}"


@pytest.mark.parametrize("name", [*KINDS_OF_MECHANISM, *PARTS])
def test_a_mechanism_or_a_part_of_one_is_exported(name):
    kind = (KINDS_OF_MECHANISM | PARTS_OF_MECHANISMS)[name]
    assert kind.__name__ in m.__all__, f"export {kind.__name__} in regard.mechanisms"
    assert getattr(m, kind.__name__) is kind


@pytest.mark.parametrize("name", PARTS)
def test_a_score_or_feature_map_has_its_row_in_the_docs(name):
    kind = PARTS_OF_MECHANISMS[name]
    assert re.search(rf"^\| `{kind.__name__}\(", PAGE, re.M), f"docs/mechanisms.md has no row `{kind.__name__}(`"


@pytest.mark.parametrize("name", sorted(m.Score.registry.of_package("regard")))
def test_a_score_is_in_the_contract_grid(name):
    scores = {type(one.score) for one in MECHANISMS.values() if isinstance(one, m.Softmax)}
    assert PARTS_OF_MECHANISMS[name] in scores, f"tests/regard/contracts/mechanism_cells.py has no Softmax of {name!r}"


def docs_row(kind: type[Declared]) -> str:
    """The row of a mechanism in docs/mechanisms.md, as its declaration says."""
    assert issubclass(kind, Mechanism)
    patterns = "every pattern" if kind.patterns is None else ", ".join(one.__name__ for one in kind.patterns)
    options = ", ".join(one for one in OPTIONS if one in kind.options) or "none"
    supported = [one for one in STATISTICS if one in kind.statistics]
    missing = [one for one in STATISTICS if one not in kind.statistics]
    every = {(): "all", ("sink",): "all but sink"}.get(tuple(missing))
    statistics = every or ", ".join(supported) or "none"
    return f"| `{kind.__name__}` | {patterns} | {options} | {statistics} | {'yes' if kind.has_state else 'no'} |"
