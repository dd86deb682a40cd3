"""Converts formulas from a one-line notation to plain text or MathML.

    ω_{ij} = {q_i · k_j}/{√{d}}        ω_ij = q_i · k_j / √d        <mfrac> … </mfrac>

`_` and `^` apply to the next sign or group, `{a}/{b}` is a fraction, `√` applies to a group, and words are in double
quotes; everything else is taken literally.
"""

from __future__ import annotations

import re
from html import escape

SIGNS = re.compile(r'"[^"]*"|\{|\}|[_^√/]|[^\W\d_]+|\d+|\S')
FENCES = "()[]|"
OPERATORS = {"Σ": "∑", "-": "−"}
FUNCTIONS = {"norm", "exp", "tanh", "sin", "cos", "relu", "gelu", "silu"}  # names of several letters; "ij" is i and j


def formula_text(formula: str) -> str:
    """The formula as plain text.

    >>> formula_text("ω_{ij} = {q_i · k_j}/{√{d}}")
    'ω_ij = q_i · k_j / √d'
    """
    return formula.replace("}/{", "} / {").translate(str.maketrans("", "", '{}"'))


def formula_mathml(formula: str) -> str:
    """The formula as a MathML element, which browsers and screen readers understand without a script.

    Raises:
        ValueError: a group is not closed.

    >>> formula_mathml("q_i")
    '<math display="block"><msub><mi>q</mi><mi>i</mi></msub></math>'
    """
    return f'<math display="block">{"".join(_Reader(SIGNS.findall(formula)).items())}</math>'


class _Reader:
    """Parses signs from left to right; `_`, `^` and `/` include the element before them."""

    def __init__(self, signs: list[str]) -> None:
        self.signs, self.place = signs, 0

    def items(self, within: bool = False) -> list[str]:
        elements: list[str] = []
        while self.place < len(self.signs):
            sign = self.signs[self.place]
            if sign == "}" and within:
                self.place += 1
                return elements
            if sign in ("_", "^"):
                self.place += 1
                elements.append(_scripted(elements.pop(), sign, self._atom()))
            elif sign == "/":
                self.place += 1
                elements.append(f"<mfrac>{elements.pop()}{self._atom()}</mfrac>")
            else:
                elements.append(self._atom())
        if within:
            raise ValueError(f"a group of {' '.join(self.signs)} is not closed")
        return elements

    def _atom(self) -> str:
        """The next sign or group as one element."""
        sign = self.signs[self.place]
        self.place += 1
        if sign == "{":
            inside = self.items(within=True)
            alone = len(inside) == 1 and inside[0].count("<mi>") <= 1
            return inside[0] if alone else f"<mrow>{''.join(inside)}</mrow>"
        if sign == "√":
            return f"<msqrt>{self._atom()}</msqrt>"
        if sign.startswith('"'):
            return f"<mtext>{escape(sign[1:-1])}</mtext>"
        if sign.isdecimal():
            return f"<mn>{sign}</mn>"
        if sign in FENCES:
            return f'<mo stretchy="false">{sign}</mo>'
        if (sign.isalpha() and sign != "Σ") or sign == "∞":
            return "".join(f"<mi>{name}</mi>" for name in ([sign] if sign in FUNCTIONS else sign))
        return f"<mo>{escape(OPERATORS.get(sign, sign))}</mo>"


def _scripted(base: str, sign: str, script: str) -> str:
    """The base with a subscript or superscript; a base that already has the other one keeps it."""
    if sign == "^" and base.startswith("<msub>"):
        return f"<msubsup>{base.removeprefix('<msub>').removesuffix('</msub>')}{script}</msubsup>"
    name = "msub" if sign == "_" else "msup"
    return f"<{name}>{base}{script}</{name}>"
