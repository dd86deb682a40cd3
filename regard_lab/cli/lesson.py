"""`regard lesson`: a page that teaches, run and printed."""

from __future__ import annotations

import re
from dataclasses import replace
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
from regard_lab.cli.exercising import do_exercise
from regard_lab.cli.formulas import in_words
from regard_lab.cli.options import Json, options_set
from regard_lab.lessons import CHAPTERS, LESSONS, find_lesson

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from regard_lab.teaching.board import LessonTable, Picture, Shown
    from regard_lab.teaching.cells import Cell
    from regard_lab.teaching.page import LessonPage


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
        Option(
            metavar="FILE",
            help="Also draw the figures: the first into this PNG, SVG or PDF, the second with -2 "
            "before its ending, and so on.",
        ),
    ] = None,
    exercise: Annotated[
        int | None,
        Option(
            metavar="NUMBER",
            min=1,
            help="Ask this exercise of the lesson instead, and check the answer that is typed.",
        ),
    ] = None,
    answer: Annotated[
        str | None, Option(metavar="TEXT", help="The answer of the exercise, instead of typing it.")
    ] = None,
    solution: Annotated[
        bool, Option("--solution", help="Print a right answer of the exercise instead.")
    ] = False,
    list_all: Annotated[bool, Option("--list", help="List all lessons instead.")] = False,
    as_json: Json = False,
) -> None:
    """Check claims of articles about attention by computing them, with numbers and a figure."""
    if list_all and name is not None:
        raise ArgumentError(f"--list prints all lessons; leave it out for lesson {name!r}")
    if name is None:
        of_a_lesson = options_set(
            {
                "--png": png,
                "--run": run,
                "--text": text,
                "--seed": seed,
                "--exercise": exercise,
                "--answer": answer,
                "--solution": solution or None,
            }
        )
        if of_a_lesson:
            raise ArgumentError(
                f"{', '.join(of_a_lesson)} needs the name of a lesson; give one, or leave the "
                f"option out to list the lessons"
            )
        _list_lessons(as_json)
        return
    page = find_lesson(name)
    if exercise is None and (answer is not None or solution):
        option = "--solution" if answer is None else "--answer"
        raise ArgumentError(f"{option} belongs to an exercise; add --exercise NUMBER")
    if exercise is not None:
        of_the_page = options_set({"--png": png, "--run": run, "--text": text, "--seed": seed})
        if of_the_page:
            raise ArgumentError(
                f"{', '.join(of_the_page)} changes the lesson, whose exercises ask about its own "
                f"values; leave it out"
            )
        do_exercise(page, exercise, answer, solution, as_json)
        return
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
        for index, (cell, things) in enumerate(page.run(parameters, lenient=bool(parameters))):
            progress(1)
            shown += things
            if cell.is_typed:
                cell = replace(cell, text=page.typed_text(index))
            waiting.append((cell, things))
            while shown and waiting and console is not None:
                _print_cell(*waiting.pop(0), console)
                printed += 1
                spoken()
    from regard_lab.teaching.exercises import exercises_in

    pictures = _pictures(shown)
    drawn = [] if png is None else _save(pictures, png)
    exercises = exercises_in(shown)
    if as_json:
        record = _record(page, shown)
        if png is not None:
            record["png"] = drawn[0]
        if len(drawn) > 1:
            record["further_figures"] = drawn[1:]
        out_json(record)
    elif exercises:
        out(f"Answer an exercise: regard lesson {name} --exercise 1")
    if drawn:
        note(f"drawn in {', '.join(drawn)}")
    elif not as_json:
        count = count_of(len(pictures), "figures")
        what = "it" if len(pictures) == 1 else "them"
        note(f"{count}; to draw {what}: regard lesson {name} --png {name}.png")


def _pictures(shown: list[Shown]) -> list[Picture]:
    from regard_lab.teaching.board import Picture

    return [thing for thing in shown if isinstance(thing, Picture)]


def _save(pictures: list[Picture], first: Path) -> list[str]:
    """Draw every figure, and return the names of the files."""
    from regard_lab.seeing.canvas import save

    names = []
    for number, picture in enumerate(pictures, 1):
        path = first if number == 1 else first.with_stem(f"{first.stem}-{number}")
        save(picture.figure, path)
        names.append(str(path))
    return names


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
    from regard_lab.teaching.exercises import exercises_in

    tables = []
    claims = []
    exercises = []
    for thing in shown:
        if isinstance(thing, LessonTable):
            tables.append(vars(thing))
        elif isinstance(thing, Claim):
            verdict = VERDICTS[thing.holds]
            figures = thing.figures
            claims.append({"sentence": thing.sentence, "verdict": verdict, "figures": figures})
    for exercise in exercises_in(shown):
        exercises.append({"question": exercise.question, "answered_with": exercise.kind.asks})
    return {
        "lesson": page.name,
        "title": page.title,
        "question": page.question,
        "tables": tables,
        "claims": claims,
        "exercises": exercises,
    }


def _print_cell(cell: Cell, things: list[Shown], console: Console) -> None:
    """Print Markdown as text, code that is not folded, and what the cell shows."""
    from rich.markdown import Markdown
    from rich.syntax import Syntax
    from rich.text import Text

    from regard_lab.teaching.board import VERDICTS, Claim, LessonTable, Picture
    from regard_lab.teaching.exercises import Exercise

    number = 0  # of the exercise
    if cell.markdown:
        console.print(Markdown(writable(in_words(cell.text))))
    elif cell.is_typed:
        style: dict[str, Any] = {"theme": "ansi_light", "background_color": "default"}
        code = Syntax("", "python", **style).highlight(writable(cell.text))
        code.rstrip()
        # The terminal itself may break a line: what is copied from it is still code that runs.
        console.print(code, soft_wrap=True)
    for thing in things:
        if isinstance(thing, Claim):
            words = Text(VERDICTS[thing.holds], COLOURS[thing.holds])
            words.append(writable(f"  {thing.sentence}"), "default")
            words.append(writable(f" ({thing.figures})"), "dim")
            console.print(words)
        elif isinstance(thing, LessonTable):
            _print_table(thing, console)
        elif isinstance(thing, Exercise):
            number += 1
            question = f"**{number}.** {thing.question} *({thing.kind.asks})*"
            console.print(Markdown(writable(in_words(question))))
        elif isinstance(thing, Picture):
            console.print(_described(thing))
        else:
            console.print(writable(str(thing)).rstrip("\n"), highlight=False, style="dim")
    if things or cell.markdown or cell.is_typed:
        console.print()


def _described(picture: Picture) -> Text:
    """What a figure shows, in one line of text; emphasised words of its caption are printed in italics."""
    from rich.text import Text

    words = Text(style="dim")
    for number, part in enumerate(EMPHASISED.split(writable(str(picture)))):
        # Every second part is what stood between asterisks.
        words.append(part, "italic" if number % 2 else "")
    return words


EMPHASISED = re.compile(r"\*(\w[^*]*)\*")
COLOURS = {True: "green", False: "red", None: "yellow"}  # of verdicts


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
