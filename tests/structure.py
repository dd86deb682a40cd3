"""How the two packages are built: their modules and imports, DESIGN.md's drawings, and the size of each package.

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
# The backends that call another: they give native the parts of a strided pattern, and those of a divided image.
CALLED_BY_ANOTHER = dict.fromkeys(
    ("regard.backends.tiled", "regard.backends.windows"), "regard.backends.native"
)
PAGES = ROOT / "regard_lab" / "lessons"  # scripts in cells, which nothing imports

Graph = dict[str, set[str]]


@cache
def modules(package: str) -> dict[str, Path]:
    """The file of each module, by its dotted name; pages are none."""
    files = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.parent == PAGES and path.stem != "__init__":
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = path
    return files


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def nodes(path: Path, *kinds: type[ast.AST]) -> list[Any]:
    """The nodes of these kinds in the syntax tree of a file."""
    return [node for node in ast.walk(parsed(path)) if isinstance(node, kinds)]


def imports_of(path: Path) -> set[str]:
    """Modules of both packages that a file imports, inside functions and for types too."""
    known = set().union(*map(modules, PACKAGES))
    imported: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in known else str(node.module) for name in names}
    return {name for name in imported if name in known or name.split(".")[0] in PACKAGES}


def graph(package: str) -> Graph:
    """The modules that each module imports."""
    return {name: imports_of(path) - {name} for name, path in modules(package).items()}


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
        if names:
            lines.append(names)
    return lines[::-1]


def part_of(module: str) -> str:
    """`regard.backends` of `regard.backends.tiled.views`."""
    return ".".join(module.split(".")[:2])


def backend_of(module: str) -> str:
    """`regard.backends.tiled` of `regard.backends.tiled.views`."""
    return ".".join(module.split(".")[:3])


@cache
def _heights(package: str) -> dict[str, int]:
    heights = {}
    for height, names in enumerate(drawn(package)):
        heights |= {f"{package}.{name}": height for name in names}
    return heights


@cache
def _backends() -> set[str]:
    """The module or package of each registered backend."""
    registered = importlib.import_module("regard.backends").BACKENDS.values()
    return {backend_of(type(backend).__module__) for backend in registered}


def wrong_imports(module: str, imported: Iterable[str]) -> list[str]:
    """What the drawings forbid of what a module imports, a sentence for each."""
    faults = []
    for name in sorted(imported):
        reason = _why_not(module, name)
        if reason:
            faults.append(f"{module} imports {name}, {reason}")
    return faults


def _why_not(module: str, imported: str) -> str:
    """The reason why a module may not import another one, empty if it may."""
    package = module.split(".")[0]
    part = part_of(module)
    imported_part = part_of(imported)
    if module == "regard.__main__":
        return ""
    if package == "regard" and imported.split(".")[0] == "regard_lab":
        return "which is above the library"
    if imported in PACKAGES or part in (package, FOR_TESTS, f"{package}.__main__"):
        return ""
    if imported_part == FOR_TESTS:
        return "" if part in CHECKING else "which is for tests"
    if part == "regard.backends" != module and backend_of(imported) in _backends():
        backend = backend_of(module)
        if backend_of(imported) in (backend, CALLED_BY_ANOTHER.get(backend)):
            return ""
        return "which is a backend: no backend calls another"
    if package != imported.split(".")[0] or part == imported_part:
        return ""
    heights = _heights(package)
    missing = {part, imported_part} - set(heights)
    if missing:
        return f"but DESIGN.md does not draw {', '.join(sorted(missing))}"
    if heights[imported_part] > heights[part]:
        return "which DESIGN.md draws above it"
    return "which stands beside it" if heights[imported_part] == heights[part] else ""


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


def _parts_below(part: str, imports: Graph) -> list[str]:
    """The names of other parts of its package that a part imports."""
    package = part.split(".")[0]
    imported: set[str] = set()
    for module in imports:
        if part_of(module) == part:
            imported |= {part_of(name) for name in imports[module]}
    imported.discard(part)
    return sorted(name.split(".")[1] for name in imported if name.startswith(f"{package}."))


def main() -> None:
    for package in PACKAGES:
        imports = graph(package)
        tokens = tokens_of(ROOT / package)
        print(
            f"{package}: {len(imports)} files, {tokens:,} tokens, {len(circles(imports))} circles"
        )
        for part, tokens in tokens_by_part(package).items():
            below = ", ".join(_parts_below(f"{package}.{part}", imports))
            print(f"  {part:<14}{tokens:>8,}  imports {below or '-'}")
    for folder in ("benchmarks", "docs", "tests"):
        print(f"{folder}: {tokens_of(ROOT / folder):,} tokens")


if __name__ == "__main__":
    main()
