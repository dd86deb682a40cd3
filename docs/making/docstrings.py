"""Docstrings as Markdown: formulas become LaTeX, examples that begin with `>>>` become blocks of code."""

from __future__ import annotations

from typing import Any

import griffe  # ty: ignore[import-not-found]

from docs.making.formulas import as_latex


class Examples(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every object of a file."""
        if isinstance(obj, griffe.Function):
            for parameter in [one for one in obj.parameters if str(one.annotation) == "Never"]:
                del obj.parameters[parameter.name]  # it only catches keywords of other libraries, to refuse them
        if obj.docstring is not None:
            obj.docstring.value = fenced(with_formulas(obj.docstring.value))


def with_formulas(text: str) -> str:
    """The text with LaTeX in the place of each indented paragraph that is a formula.

    >>> "sum_p" in with_formulas(
    ...     "Adds.\\n\\n    log_sum_exp = log Σ exp(lse_p),   output = Σ exp(lse_p - log_sum_exp) · output_p\\n\\nEnd.")
    True
    """
    return "\n\n".join(as_latex(paragraph) or paragraph for paragraph in text.split("\n\n"))


def fenced(text: str) -> str:
    """The text with a fence around each run of lines that begins with `>>>` and ends with an empty line.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2\\n\\nEnd.").splitlines()[2::3]
    ['```pycon', '```']
    """
    lines, inside = [], False
    for line in [*text.splitlines(), ""]:
        if not inside and line.lstrip().startswith(">>> "):
            margin = line[: len(line) - len(line.lstrip())]
            lines.append(f"{margin}```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append(f"{margin}```")
            inside = False
        lines.append(line)
    return "\n".join(lines[:-1])
