r"""Tables in Markdown; and what the site changes in the HTML of a page: formulas, and the cells of tables.

Browsers and screen readers read MathML without a script. Pages write LaTeX, `$q \cdot k$` in a line and `$$...$$` on
lines of its own, which GitHub shows too. The Markdown extension arithmatex finds the formulas; latex2mathml converts
them. By the classes of cells the style sheet gives sentences room and keeps numbers on one line.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
LEFT = re.compile(r"\\[A-Za-z]+|<m[ion]>&<")  # a command or a column mark that was not converted
# As an operator, the name of a function would have space around it.
NAME = re.compile(r"<mo>([A-Za-z]{2,})</mo>")
# Letters of queries, keys and values; a k without an index is a number, unless it stands beside a q.
COLOURED = re.compile(r"<mi>([QKVq])</mi>|(?<=<msub>)<mi>([kv])</mi>|(?<=<msubsup>)<mi>([kv])</mi>")
BESIDE_Q = re.compile(r"<mi>([QKVqkv])</mi>")
TRANSPOSED = "<mo>&#x022A4;</mo>"  # most fonts draw this sign too high for an exponent

# Names of packages, classes and functions, alone in a cell or a title.
LONG_NAME = re.compile(
    r"(?<=<code>)[\w.]{12,}(?=</code></a></td>)|(?<=\">)regard[\w.]+(?=<a class=\"headerlink)"
)
PART_OF_NAME = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[._])")
CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)
NUMBER = re.compile(
    r"[-+−±≤<>]?\s*[\d.][\d,.]*(e[-+]?\d+)?\s*(x|×|%|s|ms|µs|KiB|MiB|GiB)?(\s±\s[\d.]+|\s\([^)]*\d[^)]*\))?"
)
LONG = 40  # characters from which a cell is a sentence


def table(columns: str, rows: Iterable[Sequence[object]], left: int = 99) -> str:
    """A table; `columns` are separated by bars, and those from number `left` on are aligned on the right.

    >>> print(table("word | letters", [("cat", 3)], left=1))
    | word | letters |
    |---|---:|
    | cat | 3 |
    """
    count = len(columns.split(" | "))
    on_left = min(left, count)
    lines = [f"| {columns} |", f"|{'---|' * on_left}{'---:|' * (count - on_left)}"]
    for row in rows:
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def with_mathml(page: str) -> str:
    r"""Replace every formula in the HTML of a page by MathML.

    Raises:
        ValueError: a formula has a command that latex2mathml does not know.

    >>> '<msub><mi class="q">q</mi><mi>i</mi></msub>' in with_mathml(r'<span class="arithmatex">\(q_i\)</span>')
    True
    >>> bars = with_mathml(r'<span class="arithmatex">\(\lvert i - j \rvert\)</span>')
    >>> [f'form="{side}">&#x0007C;' in bars for side in ("prefix", "postfix")]
    [True, True]
    """
    return FORMULA.sub(_to_mathml, page)


def _to_mathml(formula: re.Match[str]) -> str:
    from latex2mathml.converter import convert  # ty: ignore[unresolved-import]

    latex = html.unescape(formula[3]).strip()
    alone = formula[2] == "["
    # Without \left and \right the two bars would differ in height.
    paired = latex.replace(r"\lvert", r"\left|").replace(r"\rvert", r"\right|")
    element = convert(paired, display="block" if alone else "inline")
    unknown = LEFT.search(element)
    if unknown:
        raise ValueError(
            f"the formula {latex!r} has {unknown[0]}, which latex2mathml does not convert"
        )
    has_q = "<mi>q</mi>" in element
    element = (BESIDE_Q if has_q else COLOURED).sub(_coloured, element)
    element = NAME.sub(r"<mi>\1</mi>", element)
    element = element.replace(TRANSPOSED, '<mi mathvariant="normal">T</mi>')
    return f'<div class="formula">{element}</div>' if alone else element


def _coloured(name: re.Match[str]) -> str:
    """A query, a key or a value in the colour that it has in every figure."""
    letter = next(filter(None, name.groups()))
    return f'<mi class="{letter.lower()}">{letter}</mi>'


def with_kinds_of_cells(page: str) -> str:
    """The HTML of a page with the class "number" or "long" on cells of tables that are one or the other.

    >>> with_kinds_of_cells("<td>0.125</td><td>word</td>" + f"<td>{'long ' * 9}</td>")[:56]
    '<td class="number">0.125</td><td>word</td><td class="lon'
    """
    return CELL.sub(_marked, page.replace("<th></th>", "<td></td>"))  # an empty heading is none


def with_breaks(page: str) -> str:
    """The HTML of a page whose long names may be broken between their parts, and not within a word.

    >>> with_breaks("<td><a><code>RecurrentTranslator</code></a></td>")
    '<td><a><code>Recurrent<wbr>Translator</code></a></td>'
    """
    return LONG_NAME.sub(lambda name: PART_OF_NAME.sub("<wbr>", name[0]), page)


def _marked(cell: re.Match[str]) -> str:
    text = html.unescape(re.sub(r"<[^>]+>", "", cell[1])).strip()
    if NUMBER.fullmatch(text):
        return f'<td class="number">{cell[1]}</td>'
    if len(text) >= LONG:
        return f'<td class="long">{cell[1]}</td>'
    return cell[0]
