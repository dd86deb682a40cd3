"""The table of the steps of the walkthrough, and the page that `regard walkthrough --html` writes."""

from __future__ import annotations

from functools import cache

from regard.studies.walkthrough import Walk, to_html, walk
from regard.studies.walkthrough.formula import formula_text

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
        formula = formula_text(step.formula).replace("|", "\\|")
        line = step.line.replace("|", "\\|")
        lines.append(f"| {step.title} | {shape} | {formula} | `{line}` |")
    return "\n".join(lines)


PARTS = {"walkthrough-steps": steps_table}
