"""What a reader types before the code of a lesson: imports and definitions that stand in folded cells.

A page shows some cells as code to type. They use imports, constants and tensors of cells that are folded. `preambles`
finds the statements that they need, so that everything that is shown runs in a new Python.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Sequence

from regard_lab.teaching.cells import Cell

Import = ast.Import | ast.ImportFrom


def preambles(cells: Sequence[Cell]) -> dict[int, str]:
    """For the index of each cell that a reader types, the statements to type before it; most cells need none."""
    folded: list[_Statement] = []
    typed: set[str] = set(dir(builtins))
    before: dict[int, str] = {}
    for index, cell in enumerate(cells):
        if cell.markdown:
            continue
        statements = list(_statements(cell.text))
        if not cell.is_typed:
            folded += statements
            continue

        needed = _needed(statements, folded, typed)
        for statement in [*needed, *statements]:
            typed |= statement.bound
        if needed:
            before[index] = _text(needed)
    return before


class _Statement:
    """A statement at the top level of a cell: its text, the names that it reads, and those that it binds."""

    def __init__(self, node: ast.stmt, text: str) -> None:
        self.node = node
        self.text = text
        table = symtable.symtable(text, "<cell>", "exec")
        self.bound: set[str] = set()
        for symbol in table.get_symbols():
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
                self.bound.add(symbol.get_name())
        self.read = set(_names_read(table))
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            self.read -= self.bound  # a loop variable, or a function that calls itself


def _statements(text: str) -> Iterator[_Statement]:
    lines = text.split("\n")
    for node in ast.parse(text).body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        yield _Statement(node, "\n".join(lines[first - 1 : node.end_lineno]))


def _names_read(table: symtable.SymbolTable) -> Iterator[str]:
    """The global names that a statement reads, in its functions too."""
    is_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_module or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _names_read(child)


def _needed(
    statements: Sequence[_Statement], folded: Sequence[_Statement], typed: set[str]
) -> list[_Statement]:
    """The folded statements, in their order, that bind what the statements read and was not typed before."""
    bound = set(typed)
    wanted: list[str] = []
    for statement in statements:
        wanted += sorted(statement.read - bound)
        bound |= statement.bound

    chosen: set[int] = set()
    names: dict[int, set[str]] = {}  # that are needed of an import
    while wanted:
        name = wanted.pop()
        if name in typed:
            continue
        binding = [index for index, statement in enumerate(folded) if name in statement.bound]
        for index in binding:
            statement = folded[index]
            names.setdefault(index, set()).add(name)
            if index not in chosen:
                chosen.add(index)
                wanted += sorted(statement.read)
    return [_only(folded[index], names[index]) for index in sorted(chosen)]


def _only(statement: _Statement, names: set[str]) -> _Statement:
    """An import of these names alone; any other statement as it is."""
    node = statement.node
    if not isinstance(node, Import):
        return statement
    kept = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in names]
    if isinstance(node, ast.ImportFrom):
        smaller: ast.stmt = ast.ImportFrom(node.module, kept, node.level)
    else:
        smaller = ast.Import(kept)
    return _Statement(smaller, ast.unparse(smaller))


def _text(statements: Sequence[_Statement]) -> str:
    """Imports first, then the other statements; blank lines around functions and classes."""
    imports = [statement.text for statement in statements if isinstance(statement.node, Import)]
    others = []
    for statement in statements:
        if isinstance(statement.node, ast.FunctionDef | ast.ClassDef):
            others.append(f"\n\n{statement.text}\n\n")
        elif not isinstance(statement.node, Import):
            others.append(statement.text)
    parts = ["\n".join(imports), "\n".join(others).strip("\n")]
    return "\n\n".join(part for part in parts if part)
