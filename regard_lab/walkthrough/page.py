"""Writes a walkthrough as a self-contained HTML page, without scripts or network access, in light and dark colours.

Text of the user is escaped, and the content security policy of the page allows only its own style sheet.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from importlib.resources import files

import torch

from regard.arguments import count_of, of_kind
from regard_lab.seeing.terminal import visible, visible_text
from regard_lab.walkthrough.steps import Axis, Step, Walk, opening_code
from regard_lab.walkthrough.tables import (
    DARK_WEIGHTS,
    LEVELS,
    NEGATIVE,
    POSITIVE,
    WEIGHTS,
    Gap,
    NumberTable,
    elsewhere,
    formula_mathml,
    kept,
    largest,
    shade,
    shown,
    signed_colours,
    tables,
    weight_colours,
    whose,
)

ROW, FITTING = 10, 12  # a single row of more than FITTING columns is divided into tables of ROW columns
NUMBERS, BRIEF, HEADS = (
    64,
    20,
    16,
)  # the most columns of numbers (in a brief page) and the most heads; words are never omitted


def to_html(walk: Walk) -> str:
    """Write a walkthrough as a self-contained HTML page.

    >>> from regard_lab.walkthrough import walk
    >>> page = to_html(walk(["a", "<script>"]))
    >>> "&lt;script&gt;" in page, "<script" in page
    (True, False)
    """
    of_kind("walk", walk, Walk, "a Walk, as walk and walk_run return it")
    style = files("regard_lab.walkthrough").joinpath("page.css").read_text(encoding="utf-8") + _palette()
    rules = f"default-src 'none'; style-src '{_digest(style)}'; base-uri 'none'; form-action 'none'"
    title = f"{_heading(walk)}: {_text(' '.join(walk.words))}"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{rules}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>",
            '<a class="skip" href="#steps">To the steps</a>',
            *_opening(walk),
            '<main id="steps">',
            *_sections(walk),
            "</main>",
            *_closing(walk),
            "</body>\n</html>\n",
        ]
    )


def _opening(walk: Walk) -> Iterator[str]:
    yield f"<header>\n<h1>{_heading(walk)}</h1>"
    yield _word_list("The words", Axis("words", walk.words, walk.word))
    if walk.context:
        yield "<p>They attend to:</p>"
        yield _word_list("The context", Axis("words", walk.context))
    chosen = f"Word {walk.word + 1}, “<bdi>{_word(walk.chosen)}</bdi>”, is"
    if walk.brief:
        yield f"<p>{chosen} followed through every layer; open a part to see its steps. The attention weights are "
        yield f"those of all words, other numbers those of this word{_text(elsewhere(walk))}; JSON contains all. "
    else:
        yield f"<p>{chosen} shown in detail first. Every number is shown, and "
    yield ("E" if walk.brief else "e") + "very line of code below is the line that computed it.</p>"
    *warned, counting = (_text(note) for note in walk.notes) if walk.notes else ("",)
    yield from (f'<p class="note">{note}</p>' for note in warned)
    yield f"<p>{counting}</p>" if counting else ""
    yield f'<p class="faint">{_text(walk.described)}</p>\n<details><summary>Given variables</summary>\n<table>'
    for one in walk.given:
        what = " × ".join(map(str, one.value.shape)) if isinstance(one.value, torch.Tensor) else ""
        said = _text(one.described)
        yield f'<tr><th scope="row"><code>{_text(one.name)}</code></th><td>{what}</td><td>{said}</td></tr>'
    yield "</table>"
    if walk.call is not None:
        code = "\n".join(escape("\n".join(lines)) for lines in opening_code(walk.call))
        yield f"<p>To run the lines below in Python, run these two first:</p>\n<pre><code>{code}</code></pre>"
    yield "</details>\n</header>\n<nav aria-label='Parts'><ol>"
    sections = dict.fromkeys(step.section for step in walk.steps)
    yield from (f'<li><a href="#part-{at}">{_text(name)}</a></li>' for at, name in enumerate(sections, start=1))
    yield "</ol></nav>"


def _sections(walk: Walk) -> Iterator[str]:
    section = number = 0
    current: str | None = None
    for step in walk.steps:
        if step.section != current:
            if current is not None:
                yield "</details></section>" if walk.brief else "</section>"
            section, number, current = section + 1, 0, step.section
            heading = f'<h2 id="part-{section}">{section}. {_text(current)}</h2>'
            if walk.brief:
                heading = f'<details class="part"{_opened(walk, current)}>\n<summary>{heading}</summary>'
            yield f'<section aria-labelledby="part-{section}">\n{heading}'
        number += 1
        yield from _step(step, f"{section}.{number}", walk)
    yield "</details></section>" if walk.brief else "</section>"


def _heading(walk: Walk) -> str:
    return "A Transformer, step by step" if walk.brief else "Attention, step by step"


def _opened(walk: Walk, section: str) -> str:
    """The last part, with the output, is open at first; the layers are folded."""
    return " open" if section == walk.steps[-1].section else ""


def _step(step: Step, number: str, walk: Walk) -> Iterator[str]:
    brief = walk.brief and not (step.scale == "weights" and step.axes[-1].unit == "words")
    word = whose(step) if brief else None
    of = "" if word is None else f"; of “<bdi>{_word(word)}</bdi>”"
    name = f"step-{number.replace('.', '-')}"
    yield f'<article class="step" aria-labelledby="{name}">\n<div>'
    yield f'<h3 id="{name}"><small>{number}</small>{_text(step.title)}</h3>'
    if step.says:
        yield f"<p>{_text(step.says)}</p>"
    if step.formula:
        yield formula_mathml(step.formula)
    yield f'<pre><code>{_code(step.line)}</code></pre>\n<p class="faint">{step.shape}{of}</p>\n</div>\n<div>'
    if isinstance(step.value, torch.Tensor):
        deepest = largest(step)
        all_tables = list(tables(step, brief))
        for table in all_tables[:HEADS]:
            yield from _table(table, step, deepest, walk)
        if (more := len(all_tables) - HEADS) > 0:
            yield f'<p class="faint">… {count_of(more, "more heads")}</p>'
        yield from _legend(step, deepest)
    else:
        yield _word_list(step.title, step.axes[0])
    yield "</div>\n</article>"


def _code(line: str) -> str:
    """A line of code that may be wrapped after opening brackets."""
    return re.sub(r"([(\[])", r"\1<wbr>", escape(line))


def _table(table: NumberTable, step: Step, deepest: float, walk: Walk) -> Iterator[str]:
    caption = f"{step.title}, {table.title}" if table.title else step.title
    room = len(table.columns) if table.columns.unit == "words" else BRIEF if walk.brief else NUMBERS
    columns = kept(table.columns, room)
    labelled = table.rows.unit != ""
    at_once = len(columns) if labelled or len(columns) <= FITTING else ROW
    yield f'<div class="scroll" role="region" tabindex="0" aria-label="{_text(caption)}">'
    for start in range(0, len(columns), at_once):
        some = columns[start : start + at_once]
        yield f"<table><caption>{_text(table.title)}</caption>" if table.title else "<table>"
        corner = "<td></td>" if labelled else ""
        yield f"<thead><tr>{corner}{''.join(_heads(table.columns, some))}</tr></thead>\n<tbody>"
        for place, values in enumerate(table.values.tolist()):
            head = _head(table.rows, place, "row") if labelled else ""
            cells = (_gap() if isinstance(at, Gap) else _cell(values[at], deepest, step, walk.decimals) for at in some)
            yield f"<tr>{head}{''.join(cells)}</tr>"
        yield "</tbody>\n</table>"
    yield "</div>"


def _heads(axis: Axis, columns: list[int | Gap]) -> Iterator[str]:
    for at in columns:
        yield f'<th scope="col">{at.count} more</th>' if isinstance(at, Gap) else _head(axis, at, "col")


def _head(axis: Axis, place: int, scope: str) -> str:
    chosen = ' class="chosen"' if place == axis.chosen else ""
    label = _word(axis.labels[place])
    if axis.unit != "words":
        return f'<th scope="{scope}"{chosen}>{label}</th>'
    return f'<th scope="{scope}"{chosen}>{place + 1} <bdi title="{label}">{label}</bdi></th>'


def _cell(value: float, deepest: float, step: Step, decimals: int) -> str:
    colour = shade(value, deepest, step.scale)
    name = "" if colour is None else f' class="{colour[0]}{colour[1] if colour[0] != "h" else ""}"'
    return f"<td{name}>{shown(value, decimals)}</td>"


def _gap() -> str:
    return '<td class="gap">…</td>'


def _legend(step: Step, deepest: float) -> Iterator[str]:
    if step.scale == "weights":
        yield '<p class="legend"><span>0</span><i class="weights"></i><span>1</span></p>'
    elif step.scale == "signed" and deepest:
        yield f'<p class="legend"><span>{shown(-deepest)}</span><i class="signed"></i><span>{shown(deepest)}</span></p>'


def _word_list(label: str, axis: Axis) -> str:
    items = (
        f"<li{' class=chosen aria-current=true' if place == axis.chosen else ''}><small>{place + axis.first}</small> "
        f"<bdi>{_word(word)}</bdi></li>"
        for place, word in enumerate(axis.labels)
    )
    return f'<ol class="words" aria-label="{_text(label)}">{"".join(items)}</ol>'


def _closing(walk: Walk) -> Iterator[str]:
    yield "<footer>\n<h2>Checks</h2>\n<p>These expressions compute results of the steps above in another way.</p>\n<ul>"
    for one in walk.checks:
        yield f"<li><code>{escape(one.line)}</code> equals <code>{one.name}</code>; the largest difference is "
        yield f"{one.difference:.1e}.</li>"
    yield "</ul>\n</footer>"


def _palette() -> str:
    """The style sheet of the cell colours, one class for each shade."""
    rules, dark = [], []
    for level in range(len(WEIGHTS)):
        for place, colours in ((rules, weight_colours(level)), (dark, weight_colours(level, dark=True))):
            place.append(".w{}{{background:#{};color:#{}}}".format(level, *colours))
    for letter in "pn":
        for level in range(1, LEVELS + 1):
            colour, share = signed_colours(letter, level)
            rules.append(f".{letter}{level}{{background:#{colour}{round(255 * share):02x}}}")
    weights = ",".join(f"#{colour}" for colour in WEIGHTS)
    (blue, share), (orange, _) = signed_colours("n", LEVELS), signed_colours("p", LEVELS)
    ends = [f"#{colour}{round(255 * share):02x}" for colour in (blue, orange)]
    rules.append(f".weights{{background:linear-gradient(90deg,{weights})}}")
    dark.append(f".weights{{background:linear-gradient(90deg,{','.join(f'#{colour}' for colour in DARK_WEIGHTS)})}}")
    rules.append(
        f".signed{{background:linear-gradient(90deg,{ends[0]},#{NEGATIVE}00 50%,#{POSITIVE}00 50%,{ends[1]})}}"
    )
    return "\n".join([*rules, "@media (prefers-color-scheme: dark) {", *dark, "}"])


def _digest(style: str) -> str:
    return f"sha256-{b64encode(sha256(style.encode()).digest()).decode()}"


def _text(text: str) -> str:
    """Text of a user, with invisible characters and markup escaped."""
    return escape(visible_text(text))


def _word(text: str) -> str:
    """A word likewise; an empty one is shown as a sign."""
    return escape(visible(text))
