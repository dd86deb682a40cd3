"""Every registered pattern, mechanism, score and feature map can be read from text, is exported, documented and tested.

Each test names everything that is missing, and where it belongs.
"""

import ast
import importlib
import pkgutil
import random
import re
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
# What attention makes of packed documents.
INTERNAL = {"per_document", "packed_documents"}
PUBLIC = sorted(set(KINDS_OF_PATTERN) - INTERNAL)
# A text names them; Python imports them from their modules.
BUILDING_BLOCKS = {"Diagonals", "Lattice", "Summary", "KeySet", "QuerySet"}
BUILDING_BLOCKS |= {"Relu", "SignedSoftmax", "Products"}
WRITTEN = [name for name in PUBLIC if KINDS_OF_PATTERN[name].no_text is None]
OF_MECHANISMS = [*KINDS_OF_MECHANISM.values(), *PARTS.values()]
PUBLIC_PATTERNS = [KINDS_OF_PATTERN[name] for name in PUBLIC]
WITH_FORMULA = sorted(set(PUBLIC) - {"per_head"})  # which is built of other patterns


def examples(name: str) -> list[Pattern]:
    at = Places(2, 2, 9, 9, (0,))
    return [build(plain_leaf(random.Random(seed), name, 9), at) for seed in range(20)]


def test_every_pattern_has_a_formula_for_the_tests():
    missing = [name for name in WITH_FORMULA if name not in LEAVES]
    assert not missing, (
        "write in FORMULA of tests/regard/patterns/test_NAME.py how to draw, mask and build it, as in LEAVES of "
        f"tests/regard/fuzz/meanings.py: {missing}"
    )
    for name in WITH_FORMULA:
        kinds = {type(pattern) for pattern in examples(name)}
        assert kinds == {KINDS_OF_PATTERN[name]}, f"the formula of {name} builds another pattern"


def test_the_text_of_every_pattern_reads_back():
    for name in set(WITH_FORMULA) & set(WRITTEN) & LEAVES.keys():
        for pattern in examples(name):
            assert p.parse(str(pattern)) == pattern
            assert str(p.parse(str(pattern))) == str(pattern)


def test_a_pattern_without_a_text_says_why():
    for name in sorted(set(KINDS_OF_PATTERN) - set(WRITTEN)):
        sentence = f"'{name}' is no pattern that a text can hold: .*it|attention"
        with pytest.raises(ArgumentError, match=sentence):
            p.parse(f"{name}(3)")


def test_every_pattern_with_a_text_is_drawn_for_the_laws():
    not_drawn = set(WRITTEN) - {*pattern_strategies.READABLE, "per_head"}
    assert not not_drawn, "the laws draw none of these"


def test_everything_but_building_blocks_is_exported():
    for package, kinds in ((p, PUBLIC_PATTERNS), (m, OF_MECHANISMS)):
        kind_of = {kind.__name__: kind for kind in kinds}
        exported = kind_of.keys() & set(package.__all__)
        missing = kind_of.keys() - exported - BUILDING_BLOCKS
        assert not missing, f"import and export in {package.__name__}: {missing}"
        assert not exported & BUILDING_BLOCKS
        assert all(getattr(package, name) is kind_of[name] for name in exported)


def test_everything_is_documented():
    """On the page that says what it computes, or on the page that `make figures` writes from docstrings."""
    for package, kinds, page in (
        (p, PUBLIC_PATTERNS, "conventions.md"),
        (m, OF_MECHANISMS, "mechanisms.md"),
    ):
        reference = f"reference/{package.__name__}.md"
        text = "".join((ROOT / "docs" / name).read_text("utf-8") for name in (page, reference))
        rows = set(re.findall(r"^\| `(\w+)", text, re.M))
        shown = rows | set(re.findall(rf"^::: {package.__name__}\.(\w+)$", text, re.M))
        missing = {kind.__name__ for kind in kinds} - shown
        assert not missing, f"run `make figures`, which writes docs/{reference}: {missing}"


def test_every_mechanism_has_a_formula_an_example_and_a_text_that_reads_back():
    drawn = {type(MechanismCall(MechanismCase(0, kind)).mechanism) for kind in KINDS} | {m.Softmax}
    shown = {type(mechanism) for mechanism in MECHANISMS.values()}
    missing = [name for name, kind in KINDS_OF_MECHANISM.items() if kind not in drawn & shown]
    assert not missing, (
        "write in FORMULA of tests/regard/mechanisms/test_NAME.py how to declare it, as in KERNELS of "
        f"tests/regard/fuzz/mechanism_formulas.py: {missing}"
    )
    scores = set()
    for mechanism in MECHANISMS.values():
        assert m.parse(str(mechanism)) == mechanism
        if isinstance(mechanism, m.Softmax):
            scores.add(type(mechanism.score))
    assert not set(SCORES.values()) - scores, "no Softmax of these in MECHANISMS"


# --- patterns answer for themselves ---

# A mask of transformers is taken apart in a graph, where a key mask is replaced by one that is checked when it runs.
ASKING = {"regard/integrations/transformers/substitute.py": ["KeyMask"]}


def asked(source: str) -> list[str]:
    """The pattern classes that a file asks for by `isinstance`."""
    names = {kind.__name__ for kind in KINDS_OF_PATTERN.values()}
    names |= {"Both", "Either", "Many", "Not", "Compound", "TensorPattern"}
    classes = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            used = {getattr(x, "id", getattr(x, "attr", "")) for x in ast.walk(node.args[1])}
            classes += sorted(used & names)
    return classes


def test_no_file_outside_patterns_asks_for_the_class_of_a_pattern():
    asking = {}
    for path in [*(ROOT / "regard").rglob("*.py"), *(ROOT / "regard_lab").rglob("*.py")]:
        classes = [] if "patterns" in path.parts else asked(path.read_text("utf-8"))
        if classes:
            asking[path.relative_to(ROOT).as_posix()] = classes
    assert asking == ASKING, "make the question a method of Pattern, or a function beside it"
    source = "isinstance(x, p.Causal | Prefix) or isinstance(y, (int, Both))"
    assert asked(source) == ["Causal", "Prefix", "Both"]
