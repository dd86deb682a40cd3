"""What can be changed in a source file: one place, its text before and after.

Only code that computes is changed. Messages, docstrings, annotations, imports, reprs and decorators stay as they are.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
COMBINED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.MatMult: "+",
}
EXCHANGED = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
}
EXCHANGED |= {"amin": "amax", "amax": "amin", "clamp_min": "clamp_max", "clamp_max": "clamp_min"}
REPRS = {"__repr__", "__str__", "brief", "describe"}


@dataclass(frozen=True)
class Site:
    """One change: a line, and the text between two byte offsets."""

    line: int
    start: int
    stop: int
    before: str
    after: str
    kind: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.stop :]

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{before} -> {after}"


def sites(source: bytes) -> list[Site]:
    """Every change of a file, in the order of the file; some do not compile."""
    walk = _Walk(source)
    return [*walk.inside(walk.tree)]


def compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


class _Walk:
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.tree = ast.parse(source)
        self.starts = [0]  # of the lines, in bytes
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def _place(self, node: ast.AST) -> tuple[int, int]:
        """Where the text of a node starts and stops, in bytes."""
        start = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        stop = self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, stop

    def inside(self, node: ast.AST) -> Iterator[Site]:
        """The changes in a node."""
        for child in self._children(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name in REPRS:
                continue
            for before, after, kind in self._changes(child):
                start, stop = self._place(before)
                was = self.source[start:stop].decode()
                if after != was:
                    yield Site(before.lineno, start, stop, was, after, kind)  # type: ignore[attr-defined]
            yield from self.inside(child)

    def _children(self, node: ast.AST) -> Iterator[ast.AST]:
        """The parts of a node that compute: neither annotations nor messages, and nothing inside an f-string."""
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom | ast.Assert):
            return
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST) and not _is_text(part) and not _names_exports(part):
                    yield part

    def _text(self, node: ast.AST) -> str:
        start, stop = self._place(node)
        return self.source[start:stop].decode()

    def _part(self, node: ast.expr) -> str:
        """The text of an operand, in parentheses where it has operators of its own."""
        plain = isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Subscript | ast.Call)
        return self._text(node) if plain else f"({self._text(node)})"

    def _joined(self, left: ast.expr, sign: str, right: ast.expr) -> str:
        return f"({self._part(left)} {sign} {self._part(right)})"

    def _computes(self, node: ast.BinOp) -> bool:
        return type(node.op) in COMBINED and not _holds_text(node)

    def _changes(self, node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
        text = self._text
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                yield node, self._joined(left, COMPARED[type(op)], right), "comparison"
            case ast.BinOp(left=left, op=op, right=right) if self._computes(node):
                yield node, self._joined(left, COMBINED[type(op)], right), "operator"
            case ast.BoolOp(op=op, values=[first, second]):
                word = "or" if isinstance(op, ast.And) else "and"
                yield node, self._joined(first, word, second), "and, or"
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
                yield node, f"({text(operand)})", "sign"
            case ast.Constant(value=bool(value)):
                yield node, str(not value), "constant"
            case ast.Constant(value=int(value)):
                yield node, str(value + 1), "constant"
            case ast.Constant(value=float(value)):
                yield node, repr(value * 2 + (value == 0)), "constant"
            case ast.If(test=test) if not _holds_text(test):
                yield test, f"(not ({text(test)}))", "condition"
            case ast.Call(func=ast.Name(id=name) as func) if name in EXCHANGED:
                yield func, EXCHANGED[name], "name"
            case ast.Attribute(value=value, attr=name) if name in EXCHANGED and isinstance(
                node.ctx, ast.Load
            ):
                yield node, f"{self._part(value)}.{EXCHANGED[name]}", "name"
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
                yield node, "pass", "statement"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield node, "pass", "statement"
        if isinstance(node, ast.Call):
            yield from self._fewer(node)

    def _fewer(self, node: ast.Call) -> Iterator[tuple[ast.AST, str, str]]:
        """A call without its last keyword, and one with its first two arguments exchanged."""
        function = self._text(node.func)
        arguments = [*map(self._text, node.args), *map(self._keyword, node.keywords)]
        if node.keywords and node.keywords[-1].arg is not None:
            yield node, f"{function}({', '.join(arguments[:-1])})", "keyword"
        if len(node.args) == 2 and all(isinstance(argument, ast.Name) for argument in node.args):
            first, second, *others = arguments
            yield node, f"{function}({', '.join([second, first, *others])})", "order"

    def _keyword(self, keyword: ast.keyword) -> str:
        value = self._text(keyword.value)
        return f"{keyword.arg}={value}" if keyword.arg else f"**{value}"


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _holds_text(node: ast.AST) -> bool:
    """Whether strings are joined here; what they say is not tested."""
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            return True
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            return True
    return False


def _names_exports(node: ast.AST) -> bool:
    """Whether it assigns to a name such as `__all__`."""
    if not isinstance(node, ast.Assign):
        return False
    return any(isinstance(name, ast.Name) and name.id.startswith("__") for name in node.targets)
