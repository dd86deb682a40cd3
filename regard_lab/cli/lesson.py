"""`regard lesson`: a page that teaches, run and printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard_lab.cli.console import (
    check_name,
    counting,
    keeping,
    note,
    out,
    out_console,
    out_json,
    spoken,
    writable,
)
from regard_lab.cli.options import Json, options_set
from regard_lab.lessons import CHAPTERS, LESSONS, find_lesson

if TYPE_CHECKING:
    from rich.console import Console

    from regard_lab.teaching.board import LessonTable, Shown
    from regard_lab.teaching.page import Cell, LessonPage


def lesson(
    name: Annotated[
        str | None, Argument(metavar="NAME", help="The lesson; without it, all are listed.")
    ] = None,
    run: Annotated[
        Path | None,
        Option(
            metavar="RUN", help="The run of a trained translator, for lessons that can read one."
        ),
    ] = None,
    text: Annotated[
        str | None, Option(help="Use this text instead of the lesson's own sentence.")
    ] = None,
    seed: Annotated[
        int | None, Option(min=0, max=2**32 - 1, help="Seed of all random numbers.")
    ] = None,
    png: Annotated[
        Path | None,
        Option(metavar="FILE", help="Also draw the first figure, into this PNG, SVG or PDF."),
    ] = None,
    list_all: Annotated[bool, Option("--list", help="List all lessons instead.")] = False,
    as_json: Json = False,
) -> None:
    """Check claims of articles about attention by computing them, with numbers and a figure."""
    if list_all and name is not None:
        raise ArgumentError(f"--list prints all lessons; leave it out for lesson {name!r}")
    if name is None:
        of_a_lesson = options_set({"--png": png, "--run": run, "--text": text, "--seed": seed})
        if of_a_lesson:
            raise ArgumentError(
                f"{', '.join(of_a_lesson)} needs the name of a lesson; give one, or leave the "
                f"option out to list the lessons"
            )
        _list_lessons(as_json)
        return
    page = find_lesson(name)
    if png is not None:
        check_name(png)

    parameters: dict[str, Any] = {}
    if text is not None:
        parameters["TEXT"] = text
    if seed is not None:
        parameters["SEED"] = seed
    if run is not None:
        parameters["RUN"] = str(run)
    console = None if as_json else out_console(width=100)
    shown: list[Shown] = []
    # A text that is refused is refused before anything is printed.
    waiting: list[tuple[Cell, list[Shown]]] = []
    parts = len(page.cells)
    printed = 0

    def what_is_printed() -> str | None:
        if printed == 0:
            return None
        return f"{printed} of {count_of(parts, 'parts')} of the lesson printed"

    with counting("computing part", parts) as progress, keeping(what_is_printed):
        for cell, things in page.run(parameters, lenient=bool(parameters)):
            progress(1)
            shown += things
            waiting.append((cell, things))
            while shown and waiting and console is not None:
                _print_cell(*waiting.pop(0), console)
                printed += 1
                spoken()
    if png is not None:
        from regard_lab.seeing.canvas import save
        from regard_lab.teaching.board import Picture

        first_picture = next(thing for thing in shown if isinstance(thing, Picture))
        save(first_picture.figure, png)
    if as_json:
        record = _record(page, shown)
        if png is not None:
            record["png"] = str(png)
        out_json(record)
    if png is not None:
        note(f"drawn in {png}")


def _list_lessons(as_json: bool) -> None:
    questions = {name: find_lesson(name).question for name in LESSONS}
    longest = max(map(len, LESSONS))
    if as_json:
        out_json(questions)
        return
    for number, (chapter, names) in enumerate(CHAPTERS.items(), 1):
        out(f"{number}. {chapter}")
        for name in names:
            out(f"   {name:<{longest}}  {questions[name]}")


def _record(page: LessonPage, shown: list[Shown]) -> dict[str, Any]:
    """What a lesson showed, as JSON values."""
    from regard_lab.teaching.board import VERDICTS, Claim, LessonTable

    tables = []
    claims = []
    for thing in shown:
        if isinstance(thing, LessonTable):
            tables.append(vars(thing))
        elif isinstance(thing, Claim):
            verdict = VERDICTS[thing.holds]
            figures = thing.figures
            claims.append({"sentence": thing.sentence, "verdict": verdict, "figures": figures})
    return {
        "lesson": page.name,
        "title": page.title,
        "question": page.question,
        "tables": tables,
        "claims": claims,
    }


def _print_cell(cell: Cell, things: list[Shown], console: Console) -> None:
    """Print Markdown as text, code that is not folded, and what the cell shows."""
    from rich.markdown import Markdown
    from rich.syntax import Syntax
    from rich.text import Text

    from regard_lab.teaching.board import VERDICTS, Claim, LessonTable

    if cell.markdown:
        console.print(Markdown(writable(in_words(cell.text))))
    elif not cell.tags:
        style: dict[str, Any] = {"theme": "ansi_light", "background_color": "default"}
        console.print(Syntax(writable(cell.text), "python", word_wrap=True, **style))
    for thing in things:
        if isinstance(thing, Claim):
            words = Text(VERDICTS[thing.holds], COLOURS[thing.holds])
            words.append(writable(f"  {thing.sentence} ({thing.figures})"), "default")
            console.print(words)
        elif isinstance(thing, LessonTable):
            _print_table(thing, console)
        else:
            console.print(writable(str(thing)).rstrip("\n"), highlight=False, style="dim")
    if things or not cell.markdown:
        console.print()


COLOURS = {True: "green", False: "red", None: "yellow"}  # of verdicts

SIGNS = {
    "cdot": "·",
    "le": "≤",
    "ge": "≥",
    "ll": "≪",
    "approx": "≈",
    "sim": "~",
    "in": "∈",
    "circ": "∘",
    "odot": "⊙",
    "sum": "Σ",
    "prod": "Π",
    "sqrt": "√",
    "top": "ᵀ",
    "quad": "  ",
    "qquad": "    ",
    "lvert": "|",
    "rvert": "|",
    "lfloor": "⌊",
    "rfloor": "⌋",
    "ldots": "...",
    "times": "×",
    "mid": "|",
    "alpha": "α",
    "tilde": "~",
    "infty": "∞",
}


IN_BRACES = r"\{((?:[^{}]|\{[^{}]*\})*)\}"  # with braces inside, one deep


def in_words(markdown: str) -> str:
    r"""Markdown whose formulas a terminal can print.

    >>> in_words(r"It costs $n \cdot w$, not $\frac{n^2}{2}$.")
    'It costs `n · w`, not `n^2/2`.'
    >>> in_words(r"$\frac{a + b}{\sqrt{d / H}}$")
    '`(a + b)/√(d / H)`'
    """

    def fraction(match: re.Match[str]) -> str:
        return f"{_one_factor(match[1])}/{_one_factor(match[2])}"

    def root(match: re.Match[str]) -> str:
        return f"√{_one_factor(match[1])}"

    def formula(match: re.Match[str]) -> str:
        text = re.sub(r"\\(?:text|operatorname|mathrm)\{([^{}]*)\}", r"\1", match[1] or match[2])
        text = re.sub(rf"\\frac{IN_BRACES}{IN_BRACES}", fraction, text)
        text = re.sub(r"\\sqrt\{([^{}]*)\}", root, text)
        text = re.sub(r"\\(?:left|right|displaystyle|[,;! ])", "", text)
        text = re.sub(r"\\([a-zA-Z]+)", lambda sign: SIGNS.get(sign[1], sign[1]), text)
        text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text).strip()
        is_displayed = match[1] is not None
        return f"\n```text\n{text}\n```\n" if is_displayed else f"`{text}`"

    return re.sub(r"\$\$(.+?)\$\$|(?<!\\)\$([^$\n]+)\$", formula, markdown, flags=re.DOTALL)


def _one_factor(formula: str) -> str:
    """The formula in parentheses, unless it is a letter, a number or a root."""
    factor = formula.strip()
    alone = re.fullmatch(rf"\w+(\^\w)?|\\sqrt{IN_BRACES}", factor)
    return factor if alone else f"({factor})"


def _print_table(table: LessonTable, console: Console) -> None:
    """Print a table; where columns would cut words, a block of lines for each row."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console.print(writable(table.title), style="bold")
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(table.columns):
        numeric = all(row[number][:1].isdigit() for row in table.rows)
        drawn.add_column(Text(writable(column)), justify="right" if numeric else "left")
    for row in table.rows:
        drawn.add_row(*(Text(writable(cell)) for cell in row))
    with console.capture() as captured:
        console.print(drawn)
    words = []
    for row in [table.columns, *table.rows]:
        for cell in row:
            words += writable(cell).split()
    if all(word in captured.get() for word in words):
        console.print(drawn)
        return
    for row in table.rows:
        console.print()
        for column, cell in zip(table.columns, row, strict=True):
            console.print(writable(f"{column}: {cell}" if column else cell))
