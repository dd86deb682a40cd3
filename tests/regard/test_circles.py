"""No modules import each other in a circle: strongly connected components of all imports, those in functions too."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

import regard

ROOT = Path(regard.__file__).parent
# Packages whose modules still import each other, and how many modules do; empty this list.
STILL: dict[str, int] = {}
# Packages with imports inside functions, which hide circles and cost time at every call.
CLEAN = ("patterns", "mechanisms")

Graph = dict[str, set[str]]


def imports() -> Graph:
    """The modules of regard that each module imports, inside functions and for types too."""
    paths = {_name(path): path for path in sorted(ROOT.rglob("*.py"))}
    return {
        name: _imported(ast.parse(path.read_text(encoding="utf-8")), set(paths)) - {name}
        for name, path in paths.items()
    }


def circles(graph: Graph) -> list[set[str]]:
    """Sets of modules of which each reaches every other one (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    closed: set[str] = set()
    components: list[set[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other not in closed:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component = set(stack[stack.index(name) :])
            del stack[stack.index(name) :]
            closed.update(component)
            components.append(component)

    for name in graph:
        if name not in index:
            visit(name)
    return [component for component in components if len(component) > 1]


def _name(path: Path) -> str:
    return ".".join(("regard", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def _imported(tree: ast.AST, known: set[str]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names.update(one if one in known else node.module for one in inner)
    return names & known


def _packages(component: Iterable[str]) -> str:
    return ", ".join(sorted({".".join(name.split(".")[1:2]) or "regard" for name in component}))


def test_no_modules_import_each_other_in_a_circle():
    found = {_packages(one): one for one in circles(imports())}
    new = {where: sorted(one) for where, one in found.items() if len(one) > STILL.get(where, 0)}
    assert not new, f"these modules import each other: {new}"
    assert set(STILL) == set(found), "a circle is gone: take it out of STILL"


@pytest.mark.parametrize("package", CLEAN)
def test_a_package_imports_at_the_top_of_its_modules(package):
    late = []
    for path in sorted((ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = [
            inner for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.If) for inner in ast.walk(node)
        ]
        late += [f"{path.name}:{one.lineno}" for one in inside if isinstance(one, ast.Import | ast.ImportFrom)]
    assert not late, f"imports inside functions or for types only: {', '.join(late)}"


def test_a_circle_is_seen_and_a_chain_is_not():
    chain: Graph = {"a": {"b"}, "b": {"c"}, "c": set()}
    assert circles(chain) == []
    assert circles({**chain, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
