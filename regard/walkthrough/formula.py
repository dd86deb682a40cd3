"""Formulas written once, in a line, and shown as text or as MathML.

    ω_{ij} = {q_i · k_j}/{√{d}}        ω_ij = q_i · k_j / √d        <mfrac> … </mfrac>

`_` and `^` take the next sign or group, `{a}/{b}` is a fraction, `√` takes a group, words stand in double quotes; all
else stands for itself.
"""

from __future__ import annotations

import re
from html import escape

SIGNS = re.compile(r'"[^"]*"|\{|\}|[_^√/]|[^\W\d_]+|\d+|\S')
FENCES = "()[]|"
OPERATORS = {"Σ": "∑", "-": "−"}
FUNCTIONS = {"norm", "exp", "tanh", "sin", "cos"}  # the only letters that stand together for one thing; "ij" is i and j


def formula_text(formula: str) -> str:
    """The formula as people type it.

    >>> formula_text("ω_{ij} = {q_i · k_j}/{√{d}}")
    'ω_ij = q_i · k_j / √d'
    """
    return formula.replace("}/{", "} / {").translate(str.maketrans("", "", '{}"'))


def formula_mathml(formula: str) -> str:
    """The formula as a MathML element, which browsers draw and screen readers speak without any script.

    Raises:
        ValueError: a group that is not closed.

    >>> formula_mathml("q_i")
    '<math display="block"><msub><mi>q</mi><mi>i</mi></msub></math>'
    """
    return f'<math display="block">{"".join(_Reader(SIGNS.findall(formula)).items())}</math>'


class _Reader:
    """Reads signs from left to right; what `_`, `^` and `/` stand behind is taken back and put inside."""

    def __init__(self, signs: list[str]) -> None:
        self.signs, self.place = signs, 0

    def items(self, within: bool = False) -> list[str]:
        found: list[str] = []
        while self.place < len(self.signs):
            sign = self.signs[self.place]
            if sign == "}" and within:
                self.place += 1
                return found
            if sign in ("_", "^"):
                self.place += 1
                found.append(_scripted(found.pop(), sign, self._atom()))
            elif sign == "/":
                self.place += 1
                found.append(f"<mfrac>{found.pop()}{self._atom()}</mfrac>")
            else:
                found.append(self._atom())
        if within:
            raise ValueError(f"a group of {' '.join(self.signs)} is not closed")
        return found

    def _atom(self) -> str:
        """One sign or group as one element."""
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
    """The base with a script below or above; a base that has the other script keeps it."""
    if sign == "^" and base.startswith("<msub>"):
        return f"<msubsup>{base.removeprefix('<msub>').removesuffix('</msub>')}{script}</msubsup>"
    name = "msub" if sign == "_" else "msup"
    return f"<{name}>{base}{script}</{name}>"
