"""Every registered pattern, mechanism, score and feature map can be read from text, is exported, documented and tested.

Each test names everything that is missing, and where it belongs.
"""

import ast
import importlib
import pkgutil
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pattern_strategies
import pytest
from fuzz.meanings import LEAVES, Places, build, plain_leaf
from fuzz.mechanisms import KINDS, MechanismCall, MechanismCase
from mechanism_cells import MECHANISMS

from regard import mechanisms as m
from regard import patterns as p
from regard.errors import ArgumentError
from regard.mechanisms.base import Mechanism
from regard.patterns.base import Pattern

ROOT = Path(__file__).parents[3]

for package in (p, m):  # a file that its package forgets to import is registered too
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

KINDS_OF_PATTERN = Pattern.registry.of_package("regard")
KINDS_OF_MECHANISM = Mechanism.registry.of_package("regard")
SCORES = m.Score.registry.of_package("regard")
PARTS = SCORES | m.FeatureMap.registry.of_package("regard")
# attention makes it of nested tensors; see test_jagged.py
PUBLIC = sorted(set(KINDS_OF_PATTERN) - {"per_document"})
# A text names them; Python imports them from their modules.
BUILDING_BLOCKS = {"Diagonals", "Lattice", "Summary", "KeySet", "QuerySet"}
BUILDING_BLOCKS |= {"Relu", "SignedSoftmax", "Products"}
WRITTEN = [name for name in PUBLIC if KINDS_OF_PATTERN[name].no_text is None]
OF_MECHANISMS = [*KINDS_OF_MECHANISM.values(), *PARTS.values()]
JUDGED = sorted(set(PUBLIC) - {"per_head"})  # the lists build it of other patterns


def examples(name: str) -> list[Pattern]:
    at = Places(2, 2, 9, 9, (0,))
    return [build(plain_leaf(random.Random(seed), name, 9), at) for seed in range(20)]


def test_every_pattern_has_a_formula_for_the_tests():
    missing = [
        f"FORMULA in tests/regard/patterns/test_{name}.py" for name in JUDGED if name not in LEAVES
    ]
    assert not missing, (
        f"write how to draw, judge and build it, as in LEAVES of tests/regard/fuzz/meanings.py: {missing}"
    )
    wrong = [
        name for name in JUDGED if {type(one) for one in examples(name)} != {KINDS_OF_PATTERN[name]}
    ]
    assert not wrong, f"their formulas build another pattern: {wrong}"


def test_the_text_of_every_pattern_reads_back():
    for pattern in [
        one for name in JUDGED if name in WRITTEN and name in LEAVES for one in examples(name)
    ]:
        assert p.parse(str(pattern)) == pattern
        assert str(p.parse(str(pattern))) == str(pattern)


def test_a_pattern_without_a_text_says_why():
    for name in sorted(set(KINDS_OF_PATTERN) - set(WRITTEN)):
        with pytest.raises(
            ArgumentError, match=f"'{name}' is no pattern that a text can hold: .*it|attention"
        ):
            p.parse(f"{name}(3)")


def test_every_pattern_with_a_text_is_drawn_for_the_laws():
    assert not set(WRITTEN) - {*pattern_strategies.READABLE, "per_head"}, (
        "the laws draw none of these"
    )


def test_everything_but_building_blocks_is_exported():
    for package, kinds in ((p, [KINDS_OF_PATTERN[name] for name in PUBLIC]), (m, OF_MECHANISMS)):
        kind_of = {kind.__name__: kind for kind in kinds}
        exported = kind_of.keys() & set(package.__all__)
        missing = kind_of.keys() - exported - BUILDING_BLOCKS
        assert not missing, f"import and export in {package.__name__}: {missing}"
        assert not exported & BUILDING_BLOCKS
        assert all(getattr(package, name) is kind_of[name] for name in exported)


def test_everything_is_documented():
    """On the page that says what it computes, or on the page that `make figures` writes from docstrings."""
    public = [KINDS_OF_PATTERN[name] for name in PUBLIC]
    for package, kinds, page in (
        (p, public, "conventions.md"),
        (m, OF_MECHANISMS, "mechanisms.md"),
    ):
        made = f"reference/{package.__name__}.md"
        text = "".join((ROOT / "docs" / name).read_text("utf-8") for name in (page, made))
        shown = set(re.findall(r"^\| `(\w+)", text, re.M)) | set(
            re.findall(rf"^::: {package.__name__}\.(\w+)$", text, re.M)
        )
        missing = [kind.__name__ for kind in kinds if kind.__name__ not in shown]
        assert not missing, f"run `make figures`, which writes docs/{made}: {missing}"


def test_every_mechanism_has_a_formula_an_example_and_a_text_that_reads_back():
    made = {type(MechanismCall(MechanismCase(0, kind)).mechanism) for kind in KINDS} | {m.Softmax}
    shown = {type(one) for one in MECHANISMS.values()}
    missing = [
        f"FORMULA in tests/regard/mechanisms/test_{name}.py"
        for name, kind in KINDS_OF_MECHANISM.items()
        if kind not in made or kind not in shown
    ]
    assert not missing, (
        f"write how to declare it, as in KERNELS of tests/regard/fuzz/mechanism_formulas.py: {missing}"
    )
    assert not [one for one in MECHANISMS.values() if m.parse(str(one)) != one]
    scores = {type(one.score) for one in MECHANISMS.values() if isinstance(one, m.Softmax)}
    assert not [name for name, kind in SCORES.items() if kind not in scores], (
        "no Softmax of these in MECHANISMS"
    )


# --- patterns answer for themselves ---

# A mask of transformers is taken apart in a graph, where a key mask is replaced by one that is checked when it runs.
ASKING = {"regard/integrations/transformers/substitute.py": ["KeyMask"]}


def asked(source: str) -> Iterator[str]:
    """The pattern classes that a file asks for by `isinstance`."""
    names = {"Both", "Either", "Many", "Not", "Compound", "TensorPattern"} | {
        kind.__name__ for kind in KINDS_OF_PATTERN.values()
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            used = {getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(node.args[1])}
            yield from sorted(used & names)


def test_no_file_outside_patterns_asks_for_the_class_of_a_pattern():
    found = {}
    for path in [*(ROOT / "regard").rglob("*.py"), *(ROOT / "regard_lab").rglob("*.py")]:
        if "patterns" not in path.parts and (kinds := [*asked(path.read_text("utf-8"))]):
            found[path.relative_to(ROOT).as_posix()] = kinds
    assert found == ASKING, "make the question a method of Pattern, or a function beside it"
    assert [*asked("isinstance(x, p.Causal | Prefix) or isinstance(y, (int, Both))")] == [
        "Causal",
        "Prefix",
        "Both",
    ]
