r"""Formulas of the site as MathML, which browsers and screen readers read without a script.

Pages write LaTeX, `$q \cdot k$` in a line and `$$...$$` on lines of its own, which GitHub shows too. The Markdown
extension arithmatex finds the formulas; here latex2mathml converts them when the site is built.
"""

from __future__ import annotations

import html
import re

FOUND = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
LEFT = re.compile(r"\\[A-Za-z]+|<m[ion]>&<")  # a command or a column mark that was not converted

NAME = re.compile(r"<mo>([A-Za-z]{2,})</mo>")  # as an operator, the name of a function would have space around it
COLOURED = re.compile(
    r"<mi>([QKVq])</mi>|(?<=<msub>)<mi>([kv])</mi>|(?<=<msubsup>)<mi>([kv])</mi>"
)  # k alone is a number
TRANSPOSED = "<mo>&#x022A4;</mo>"  # most fonts draw this sign too high for an exponent


def with_mathml(page: str) -> str:
    r"""Replace every formula in the HTML of a page by MathML.

    Raises:
        ValueError: a formula has a command that latex2mathml does not know.

    >>> '<msub><mi class="q">q</mi><mi>i</mi></msub>' in with_mathml(r'<span class="arithmatex">\(q_i\)</span>')
    True
    """
    return FOUND.sub(lambda found: to_mathml(html.unescape(found[3]).strip(), found[2] == "["), page)


def to_mathml(latex: str, display: bool = False) -> str:
    r"""One formula as a MathML element; `display` sets it on a line of its own.

    Raises:
        ValueError: a command that latex2mathml does not know.

    >>> to_mathml(r"\frobnicate{q}")
    Traceback (most recent call last):
    ...
    ValueError: the formula '\\frobnicate{q}' has \frobnicate, which latex2mathml does not convert
    >>> bars = to_mathml(r"\lvert i - j \rvert")
    >>> [f'form="{side}">&#x0007C;' in bars for side in ("prefix", "postfix")]
    [True, True]
    """
    from latex2mathml.converter import convert  # ty: ignore[unresolved-import]

    paired = latex.replace(r"\lvert", r"\left|").replace(r"\rvert", r"\right|")  # else the two bars differ in height
    element = convert(paired, display="block" if display else "inline")
    if left := LEFT.search(element):
        raise ValueError(f"the formula {latex!r} has {left[0]}, which latex2mathml does not convert")
    element = COLOURED.sub(_coloured, element)
    element = NAME.sub(r"<mi>\1</mi>", element).replace(TRANSPOSED, '<mi mathvariant="normal">T</mi>')
    return f'<div class="formula">{element}</div>' if display else element


def _coloured(name: re.Match[str]) -> str:
    """A query, a key or a value in the colour that it has in every figure."""
    letter = name[1] or name[2] or name[3]
    return f'<mi class="{letter.lower()}">{letter}</mi>'
