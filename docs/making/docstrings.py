r"""Docstrings as Markdown: formulas become LaTeX, examples that begin with `>>>` become blocks of code.

A docstring writes its formula as an indented line of plain text, so that `help()` shows it: `w_j = a_j g_j / Σ_i a_i`.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe  # ty: ignore[import-not-found]

SIGNS = {
    "·": r"\cdot ",
    "Σ": r"\sum ",
    "∘": r"\circ ",
    "²": "^2",
    "ᵀ": r"^\top ",
    "ĉ": r"\hat{c}",
    "...": r"\ldots ",
    "<=": r"\le ",
    " ~ ": r" \sim ",
}
WORD = r"(?:v_dim|[A-Za-z]{2,}(?:_[A-Za-z]{2,})*)(?![A-Za-z])"
NOTATION = re.compile(
    rf"""sqrt\((?P<root>[^()]*)\)
    | \|(?P<bars>[^|]+)\|
    | (?<=[a-z])\[(?P<index>[^]]*)\]
    | \b(?P<function>(?:log|exp)\b|{WORD}(?=\())
    | (?P<text>(?:(?<=[\w)\]])\ )?\b{WORD}(?!\()(?:\ {WORD}(?!\())*(?:\ (?=[\w([|]))?)
    | _(?:\{{(?P<script>[^}}]*)\}}|(?P<letter>pos|\w~?))
    | (?P<tilde>\w)~
    | (?<=[A-Za-z])(?P<digit>\d)
    | (?P<product>(?<=[^\WΣ]|[)\]ᵀ])\ (?=[\w([]))
    | (?P<sign>{"|".join(map(re.escape, SIGNS))})""",
    re.VERBOSE,
)
LATEX = {
    "root": r"\sqrt{%s}",
    "bars": r"\lvert %s \rvert",
    "index": "_{%s}",
    "function": r"\operatorname{%s}",
    "text": r"\text{%s}",
    "script": "_{%s}",
    "letter": "_{%s}",
    "tilde": r"\tilde{%s}",
    "digit": "_%s",
    "product": r" \,%s",
}
NESTED = re.compile(r"\([^()]*\)|\[[^][]*\]|\{[^{}]*\}|\|[^|]*\|")
LONG = 80  # letters from which formulas that stand side by side get lines of their own


class Examples(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every object of a file."""
        if isinstance(obj, griffe.Function):
            for parameter in list(obj.parameters):
                # It only catches keywords of other libraries, to refuse them.
                if str(parameter.annotation) == "Never":
                    del obj.parameters[parameter.name]
        if obj.docstring is not None:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = fenced("\n\n".join(map(with_latex, paragraphs)))


def is_formula(paragraph: str) -> bool:
    """Whether a paragraph of a docstring is an indented formula, and no list of arguments, example or small table.

    >>> is_formula("    output = Σ w_j v_j"), is_formula("    >>> output = 3")
    (True, False)
    """
    indented = all(re.match(r" {4}\S", line) for line in paragraph.split("\n"))
    text = textwrap.dedent(paragraph)
    in_columns = re.search(r"[^, ] {2,}", text)
    return indented and not in_columns and bool(re.match(r"(?!>>>).* = |softmax\(|act\(", text))


def with_latex(paragraph: str) -> str:
    r"""The paragraph; if it is a formula, as LaTeX on lines of its own.

    >>> with_latex("    w_j = a_j g_j / Σ_i a_i").split("\n")[2]
    'w_{j} = \\frac{a_{j} \\, g_{j}}{\\sum _{i} \\, a_{i}}'
    """
    if not is_formula(paragraph):
        return paragraph
    shown = []
    for line in textwrap.dedent(paragraph).replace("`", "").split("\n"):
        formulas = [_equation(part) for part in re.split(r", {2,}", line)]
        if len(line) > LONG:
            shown += formulas
        else:
            shown.append(r", \qquad ".join(formulas))
    return "".join(f"\n$$\n{formula}\n$$\n" for formula in shown)


def _equation(plain: str) -> str:
    """One equation; a side that is one quotient becomes a fraction."""
    return " = ".join(map(_side, plain.split(" = ")))


def _side(plain: str) -> str:
    outside = _without_brackets(plain)
    quotient = re.fullmatch(r"([^/]+) / ([^/]+?)((?: over| where|,|;) .*)?", outside)
    if not quotient or re.search(" [-+] ", quotient[1] + quotient[2]):
        return to_latex(plain)

    above = plain[slice(*quotient.span(1))]
    below = plain[slice(*quotient.span(2))]
    # A side that is one pair of parentheses needs none in a fraction.
    if set(quotient[1]) == {"#"} and above.startswith("("):
        above = above[1:-1]
    if set(quotient[2]) == {"#"} and below.startswith("("):
        below = below[1:-1]
    rest = plain[quotient.end(2) :].strip()
    after = rf" \quad {to_latex(rest)}" if rest else ""
    return rf"\frac{{{to_latex(above)}}}{{{to_latex(below)}}}{after}"


def _without_brackets(plain: str) -> str:
    """The text with a # for each letter of what stands in brackets or bars, innermost first."""
    outside = plain
    while True:
        hidden = NESTED.sub(lambda brackets: "#" * len(brackets[0]), outside)
        if hidden == outside:
            return outside
        outside = hidden


def to_latex(plain: str) -> str:
    r"""A formula of plain text as LaTeX.

    >>> to_latex("Σ_i |a_i| sqrt(head_dim)")
    '\\sum _{i} \\lvert a_{i} \\rvert \\sqrt{\\text{head\\_dim}}'
    """
    return NOTATION.sub(_latex, plain)


def _latex(notation: re.Match[str]) -> str:
    name = str(notation.lastgroup)
    inside = notation[name]
    if name == "sign":
        return SIGNS[inside]
    if name in ("root", "bars", "index", "script", "letter"):
        return LATEX[name] % to_latex(inside)
    return LATEX[name] % inside.replace("_", r"\_")


def fenced(text: str) -> str:
    """The text with a fence around each run of lines that begins with `>>>` and ends with an empty line.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2\\n\\nEnd.").splitlines()[2::3]
    ['```pycon', '```']
    """
    return re.sub(
        r"^( *)(>>> .*(?:\n.*\S.*)*)", r"\1```pycon\n\1\2\n\1```", text, flags=re.MULTILINE
    )
