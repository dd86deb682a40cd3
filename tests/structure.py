"""How the two packages are built: their modules and imports, DESIGN.md's drawings, and the lines of each package.

`python tests/structure.py` prints a table of packages: files, tokens, and what each imports.
"""

import ast
import importlib
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("regard", "regard_lab")
FOR_TESTS = "regard.testing"  # the oracle and the cases; only what checks results before it times them uses it too
CHECKING = ("regard_lab.bench", "regard_lab.cli")
# tiled hands it the parts of a strided pattern
CALLED_BY_ANOTHER = {"regard.backends.tiled": "regard.backends.native"}

Graph = dict[str, set[str]]


PAGES = ROOT / "regard_lab" / "lessons"  # scripts in cells, which nothing imports


@cache
def modules(package: str) -> dict[str, Path]:
    """The file of each module, by its dotted name; pages are none."""
    files = [
        path
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.parent != PAGES or path.stem == "__init__"
    ]
    paths = [path.relative_to(ROOT) for path in files]
    return {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): ROOT / path
        for path in paths
    }


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imports_of(path: Path) -> set[str]:
    """Modules of both packages that a file imports, inside functions and for types too."""
    known = {name for package in PACKAGES for name in modules(package)}
    imported: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in known else str(node.module) for name in names}
    return {name for name in imported if name in known or name.split(".")[0] in PACKAGES}


def graph(*packages: str) -> Graph:
    """The modules that each module imports."""
    return {
        name: imports_of(path) - {name}
        for package in packages
        for name, path in modules(package).items()
    }


def parts(package: str) -> set[str]:
    """What stands directly in a package: its packages and modules, without `__init__` and `__main__`."""
    return {name.split(".")[1] for name in modules(package) if "." in name} - {"__main__"}


def drawn(package: str, design: str | None = None) -> list[list[str]]:
    """The parts on each line of the package's drawing, from the ground up; a line's names end at its description."""
    design = (ROOT / "DESIGN.md").read_text("utf-8") if design is None else design
    drawing = design.split("```")[1 + 2 * PACKAGES.index(package)]
    lines = []
    for line in drawing.splitlines():
        names: list[str] = []
        for word in line.split():
            if word not in parts(package):
                break
            names.append(word)
        lines += [names] if names else []
    return lines[::-1]


def part_of(module: str) -> str:
    """`regard.backends` of `regard.backends.tiled.views`."""
    return ".".join(module.split(".")[:2])


@cache
def _heights(package: str) -> dict[str, int]:
    return {
        f"{package}.{name}": height for height, names in enumerate(drawn(package)) for name in names
    }


@cache
def _backends() -> set[str]:
    """The module or package of each registered backend."""
    registered = importlib.import_module("regard.backends").BACKENDS.values()
    return {".".join(type(one).__module__.split(".")[:3]) for one in registered}


def wrong_imports(module: str, imported: Iterable[str]) -> list[str]:
    """What the drawings forbid of what a module imports, a sentence for each."""
    return [
        f"{module} imports {other}, {why}"
        for other in sorted(imported)
        if (why := _why_not(module, other))
    ]


def _why_not(module: str, other: str) -> str:
    package = module.split(".")[0]
    part = part_of(module)
    other_part = part_of(other)
    if module == "regard.__main__":
        return ""
    if package == "regard" and other.split(".")[0] == "regard_lab":
        return "which is above the library"
    if other in PACKAGES or part in (package, FOR_TESTS, f"{package}.__main__"):
        return ""
    if other_part == FOR_TESTS:
        return "" if part in CHECKING else "which is for tests"
    inside = [".".join(name.split(".")[:3]) for name in (module, other)]
    if inside[1] in _backends() and inside[0] != inside[1] and part == "regard.backends" != module:
        return (
            ""
            if CALLED_BY_ANOTHER.get(inside[0]) == inside[1]
            else "which is a backend: no backend calls another"
        )
    if package != other.split(".")[0] or part == other_part:
        return ""
    heights = _heights(package)
    if missing := {part, other_part} - set(heights):
        return f"but DESIGN.md does not draw {', '.join(sorted(missing))}"
    if heights[other_part] >= heights[part]:
        return (
            "which DESIGN.md draws above it"
            if heights[other_part] > heights[part]
            else "which stands beside it"
        )
    return ""


def circles(imports: Graph) -> list[set[str]]:
    """Sets of modules of which each reaches every other one (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    closed: set[str] = set()
    components: list[set[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(imports.get(name, ())):
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

    for name in imports:
        if name not in index:
            visit(name)
    return [component for component in components if len(component) > 1]


# A token of Python that is neither a comment, a text nor a sign of layout.
NOT_COUNTED = {
    tokenize.COMMENT,
    tokenize.STRING,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def tokens_of(*paths: Path) -> int:
    """The size of files, and of folders with all that they contain, which no layout changes."""
    count = 0
    for path in paths:
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in files:
            with file.open("rb") as source:
                tokens = tokenize.tokenize(source.readline)
                count += sum(token.type not in NOT_COUNTED for token in tokens)
    return count


def tokens_by_part(package: str) -> dict[str, int]:
    """Tokens of each package in a package; of its own modules together, under the name `*.py`."""
    folders = [name for name in parts(package) if (ROOT / package / name).is_dir()]
    tokens = {name: tokens_of(ROOT / package / name) for name in sorted(folders)}
    return tokens | {"*.py": tokens_of(*(ROOT / package).glob("*.py"))}


def exported(package: str) -> Iterator[tuple[str, Any]]:
    """Modules that export names, with these modules."""
    for name, path in modules(package).items():
        if "__all__" in path.read_text("utf-8") and not path.name.startswith("__main__"):
            yield name, importlib.import_module(name)


def main() -> None:
    for package in PACKAGES:
        imports = graph(package)
        tokens = tokens_of(ROOT / package)
        print(
            f"{package}: {len(imports)} files, {tokens:,} tokens, {len(circles(imports))} circles"
        )
        for part, tokens in tokens_by_part(package).items():
            name = f"{package}.{part}"
            below = set()
            for module, imported in imports.items():
                if part_of(module) == name:
                    below |= {part_of(other) for other in imported}
            below = {
                other.split(".")[-1]
                for other in below
                if other.startswith(f"{package}.") and other != name
            }
            print(f"  {part:<14}{tokens:>8,}  imports {', '.join(sorted(below)) or '-'}")
    for folder in ("benchmarks", "docs", "tests"):
        print(f"{folder}: {tokens_of(ROOT / folder):,} tokens")


if __name__ == "__main__":
    main()
