"""The table of the steps of the walkthrough, and the page that `regard walkthrough --html` writes."""

from __future__ import annotations

import re
from functools import cache

from regard_lab.lessons.walkthrough import Walk, to_html, walk

SENTENCE = "Life is short, eat dessert first"


@cache
def walked() -> Walk:
    """The walkthrough of the sentence, with weights drawn from seed 0."""
    return walk(SENTENCE)


def walking_pages() -> dict[str, str]:
    """The page of the walkthrough, by its name in docs/."""
    return {"lessons/one-sentence.html": to_html(walked())}


def steps_table() -> str:
    """Every step: its shape, its formula and the line that computes it."""
    lines = ["| step | gives | formula | PyTorch |", "|---|---|---|---|"]
    for step in walked().steps:
        shape = " × ".join(f"{len(axis)} {axis.unit}" for axis in step.axes)
        formula = f"${in_latex(step.formula)}$" if step.formula else ""
        line = step.line.replace("|", "\\|")
        lines.append(f"| {step.title} | {shape} | {formula} | `{line}` |")
    return "\n".join(lines)


def in_latex(formula: str) -> str:
    """A formula in the notation of `regard_lab.lessons.walkthrough.tables` as LaTeX.

    >>> in_latex("α_{ij} = {exp(s_{ij})}/{Σ_l exp(s_{il})}")
    'α_{ij} = \\\\frac{\\\\exp(s_{ij})}{\\\\sum_l \\\\exp(s_{il})}'
    >>> in_latex("s_{ij} = {ω_{ij}}/{√{d}}")
    's_{ij} = \\\\frac{ω_{ij}}{\\\\sqrt{d}}'
    """
    group = r"\{((?:[^{}]|\{[^{}]*\})*)\}"  # with groups inside, but none inside those
    formula = re.sub(rf"(?<![_^]){group}/{group}", r"\\frac{\1}{\2}", formula)
    formula = formula.replace("√", r"\sqrt").replace("Σ", r"\sum").replace("·", r"\cdot").replace("…", r"\ldots")
    formula = re.sub(r'"([^"]*)"', r"\\text{\1}", formula)
    return re.sub(r"(?<![\\\w])(exp|tanh)\b", r"\\\1", formula)


PARTS = {"walkthrough-steps": steps_table}
