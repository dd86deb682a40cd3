"""`regard lesson NAME --exercise N`: asks an exercise, and checks the answer that is typed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard_lab.cli.console import counting, note, out, out_console, out_json, writable
from regard_lab.cli.formulas import in_words

if TYPE_CHECKING:
    from regard_lab.teaching.exercises import Exercise, Judgement
    from regard_lab.teaching.page import LessonPage


def do_exercise(
    page: LessonPage, number: int, answer: str | None, solution: bool, as_json: bool
) -> None:
    """Run the lesson, ask the exercise of that number, and check one answer; on a terminal, ask until one is right.

    Raises:
        ArgumentError: the lesson has no such exercise.
        SystemExit: no answer is right.
    """
    if answer is not None and solution:
        raise ArgumentError("--answer and --solution exclude each other; leave one out")
    exercise = _exercise_of(page, number)
    if solution:
        _print_solution(exercise, as_json)
        return
    if as_json:
        _judge_as_json(exercise, sys.stdin.read() if answer is None else answer)
        return

    _print_question(exercise)
    if answer is not None:
        is_right = _judge(exercise, answer)
    elif sys.stdin.isatty():
        is_right = _ask(exercise)
    else:
        is_right = _judge(exercise, sys.stdin.read())
    if not is_right:
        note(f"a right answer: regard lesson {page.name} --exercise {number} --solution")
        raise SystemExit(1)


def _exercise_of(page: LessonPage, number: int) -> Exercise:
    from regard_lab.teaching.exercises import exercises_in

    shown = []
    with counting("computing part", len(page.cells)) as progress:
        for _, things in page.run():
            progress(1)
            shown += things
    exercises = exercises_in(shown)
    if number > len(exercises):
        how_many = count_of(len(exercises), "exercises")
        raise ArgumentError(f"lesson {page.name} has {how_many}; there is no exercise {number}")
    return exercises[number - 1]


def _print_question(exercise: Exercise) -> None:
    from rich.markdown import Markdown

    console = out_console(width=100)
    console.print(Markdown(writable(in_words(exercise.question))))
    console.print(f"Type {exercise.kind.asks}.", style="dim")


def _print_solution(exercise: Exercise, as_json: bool) -> None:
    if as_json:
        out_json({"question": exercise.question, "answer": exercise.answer})
        return
    _print_question(exercise)
    for line in exercise.answer.split("\n"):
        out(line)


def _judge_as_json(exercise: Exercise, typed: str) -> None:
    judgement = exercise.judge(typed)
    record = {
        "question": exercise.question,
        "answer": typed.strip(),
        "right": judgement.is_right,
        "reasons": judgement.reasons,
        "hint": exercise.hint,
    }
    out_json(record)
    if not judgement.is_right:
        raise SystemExit(1)


def _judge(exercise: Exercise, typed: str) -> bool:
    """Print whether an answer is right, and why, with the hint if it is not."""
    judgement = exercise.judge(typed)
    _print_judgement(judgement)
    if not judgement.is_right:
        out(f"Hint: {in_words(exercise.hint)}")
    return judgement.is_right


def _print_judgement(judgement: Judgement) -> None:
    from rich.text import Text

    verdict = Text("Right.", "bold green") if judgement.is_right else Text("Wrong.", "bold red")
    for reason in judgement.reasons:
        verdict.append(f" {writable(reason)}", "default")
    out_console(width=100).print(verdict)


def _ask(exercise: Exercise) -> bool:
    """Ask on the terminal until an answer is right; an empty answer, or the end of input, gives up."""
    from regard_lab.teaching.exercises import Code

    is_code = isinstance(exercise.kind, Code)
    if is_code:
        note("end the code with an empty line; an empty answer gives up")
    while True:
        lines: list[str] = []
        while is_code or not lines:
            try:
                line = input("... " if lines else "> ")
            except EOFError:
                break
            if not line.strip():
                break
            lines.append(line)
        if not lines:
            return False
        if _judge(exercise, "\n".join(lines)):
            return True
