"""`regard lesson`: a claim of the articles, put to the test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from regard.errors import ArgumentError
from regard_lab.cli.console import check_picture_name, note, out, out_console, out_json, writable
from regard_lab.cli.options import Json
from regard_lab.lessons import LESSONS, Claim, Settings, Table, Taught, find_lesson
from regard_lab.lessons.taught import WALKTHROUGH

if TYPE_CHECKING:
    from rich.console import Console


def lesson(
    name: Annotated[str | None, Argument(metavar="NAME", help="The lesson; without it, all are listed.")] = None,
    run: Annotated[
        Path | None, Option(metavar="RUN", help="The run of a trained translator, for lessons that need one.")
    ] = None,
    text: Annotated[str | None, Option(help="Use this text instead of the lesson's own sentence.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of all random numbers.")] = Settings.seed,
    png: Annotated[Path | None, Option(metavar="FILE.png", help="Also draw the figure into this file.")] = None,
    list_all: Annotated[bool, Option("--list", help="List all lessons instead.")] = False,
    as_json: Json = False,
) -> None:
    """Teach one lesson, or list them."""
    if list_all and name is not None:
        raise ArgumentError(f"--list prints all lessons; leave it out for lesson {name!r}")
    if name is None:
        given = {"--png": png, "--run": run, "--text": text}
        if asked := [option for option, value in given.items() if value is not None]:
            raise ArgumentError(
                f"{', '.join(asked)} needs the name of a lesson; give one, or leave the option out to list the lessons"
            )
        _list_lessons(as_json)
        return
    wanted = find_lesson(name)
    if png is not None:
        check_picture_name(png)
    taught = wanted.teach(Settings(text=text, run=run, seed=seed))
    if png is not None:
        taught.draw(png)
    if as_json:
        out_json(json.dumps(taught.to_dict() | ({} if png is None else {"png": str(png)}), ensure_ascii=False))
    else:
        _show(taught, out_console(width=100))
    if png is not None:
        note(f"drawn in {png}")


def _list_lessons(as_json: bool) -> None:
    if as_json:
        out_json(json.dumps({name: lesson.question for name, lesson in LESSONS.items()}, ensure_ascii=False))
        return
    longest = max(map(len, LESSONS))
    out(f'{WALKTHROUGH:<{longest}}  How does attention treat one sentence? (use: regard walkthrough "your sentence")')
    for name, lesson in LESSONS.items():
        out(f"{name:<{longest}}  {lesson.question}{' (needs --run RUN)' if 'run' in lesson.takes else ''}")


def _show(taught: Taught, console: Console) -> None:
    lesson = taught.lesson
    console.print(writable(lesson.title), style="bold")
    console.print(writable(lesson.question), style="italic")
    for paragraph in taught.paragraphs:
        console.print()
        console.print(writable(paragraph))
    for table in taught.tables:
        console.print()
        _show_table(table, console)
    console.print("\nClaims checked", style="bold")
    _show_claims(taught.claims, console)
    console.print("\nTry it", style="bold")
    for line in taught.code.splitlines():
        console.print(f"    {writable(line)}", soft_wrap=True)


def _show_table(table: Table, console: Console) -> None:
    console.print(writable(table.title) + (" (measured here)" if table.measured else ""), style="bold")
    if _drawn_whole(table, console):
        return
    if all(cell[:1].isdigit() for row in table.rows for cell in row[1:]):  # a matrix keeps its shape in parts
        for room in range(len(table.columns) - 2, 0, -1):
            parts = [_columns(table, first, room) for first in range(1, len(table.columns), room)]
            if all(_fits(part, console) for part in parts):
                for part in parts:
                    _drawn_whole(part, console)
                return
    for row in table.rows:  # columns would cut words: a block of lines for each row
        console.print()
        for column, cell in zip(table.columns, row, strict=True):
            console.print(writable(f"{column}: {cell}" if column else cell))


def _columns(table: Table, first: int, count: int) -> Table:
    """Some columns of a table, and its first one before them."""
    columns, *rows = ((row[0], *row[first : first + count]) for row in (table.columns, *table.rows))
    return replace(table, columns=columns, rows=tuple(rows))


def _fits(table: Table, console: Console) -> bool:
    with console.capture():
        return _drawn_whole(table, console)


def _drawn_whole(table: Table, console: Console) -> bool:
    """Print a table if no word of it has to be cut, and return whether it was printed."""
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(table.columns):
        numeric = all(row[number][:1].isdigit() for row in table.rows)
        drawn.add_column(Text(writable(column)), justify="right" if numeric else "left")
    for row in table.rows:
        drawn.add_row(*(Text(writable(cell)) for cell in row))
    with console.capture() as captured:
        console.print(drawn)
    shown, cells = captured.get(), [*table.columns, *(cell for row in table.rows for cell in row)]
    if not all(word in shown for cell in cells for word in writable(cell).split()):
        return False
    console.print(drawn)
    return True


def _show_claims(claims: tuple[Claim, ...], console: Console) -> None:
    from rich.table import Table as Drawn
    from rich.text import Text

    grid = Drawn.grid(padding=(0, 2, 0, 0))
    for claim in claims:
        colour = {True: "green", False: "red", None: "yellow"}[claim.holds]
        grid.add_row(Text(claim.verdict, colour), Text(writable(f"{claim.sentence} ({claim.figures})")))
    console.print(grid)
