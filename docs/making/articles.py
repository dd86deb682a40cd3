"""The tables of the page "The articles, section by section": what answers each section of five articles.

A row names commands and lessons, and a number that is computed when the page is made. Commands and lessons that do not
exist are left out; a test names them.
"""

from __future__ import annotations

import shlex
from typing import Any

import typer.main

from docs.making.article_sections import ARTICLES, Section
from docs.making.lessons import needs_run, shown, taught
from docs.making.worked_examples import NUMBERS, RESULTS
from regard.errors import ArgumentError
from regard_lab.cli.app import app
from regard_lab.lessons import LESSONS
from regard_lab.training.recipes import TranslationTraining
from regard_lab.training.recipes.choosing import fitting_minutes

MANY = 10**9  # characters, for which a training takes as long as any without a budget
TRAINED = "every_model_cpu_202611.md"  # the training of each translator by its defaults


def article_tables() -> str:
    """A heading and a table for each article."""
    return "\n\n".join(f"## {title}\n\n{_table(sections)}" for title, sections in ARTICLES.items())


def _table(sections: tuple[Section, ...]) -> str:
    rows = [row(section) for section in sections if is_answered(section)]
    return "\n".join(["| section | command | lesson | number |", "|---|---|---|---|", *rows])


def row(section: Section) -> str:
    """The row of a section."""
    there = list(dict.fromkeys(name for name, _ in answers(section) if name in shown()))
    commands = [words for words in section.commands if command_exists(words)] or list(map(lesson_command, there))
    code = "<br>".join(f"`regard {words}`".replace("|", "\\|") + time_of(words) for words in commands)
    return f"| {section.title} | {code or '–'} | {pages(section) or '–'} | {number(section)} |"


def time_of(words: str) -> str:
    """How long a command that trains takes, with what a committed report measured of its model; "" for the others.

    >>> time_of("train translation --data pronouns --model none --out run")[:56]
    ' (10 minutes at most; 7 CPU minutes gave an exact match '
    >>> time_of("train classifier --data LABELS.tsv --out run"), time_of("lesson causal")
    (' (10 minutes at most)', '')
    """
    if not words.startswith("train "):
        return ""
    most = f"{fitting_minutes(MANY):g} minutes at most"
    asked = shlex.split(words)
    if asked[1] != "translation" or "--mechanism" in asked:
        return f" ({most})"
    model = asked[asked.index("--model") + 1] if "--model" in asked else TranslationTraining.Config.model
    rows = (line.strip("| ").split(" | ") for line in (RESULTS / TRAINED).read_text("utf-8").splitlines())
    (measured,) = (row for row in rows if row[0] == model)
    minutes = round(int(measured[-1]) / 60)
    report = f"[report](../benchmarks/results/{TRAINED})"
    return f" ({most}; {minutes} CPU minutes gave an exact match of {measured[1]}, {report})"


def pages(section: Section) -> str:
    """Links to the lessons of a section and to its other pages."""
    there = [name for name, _ in answers(section) if name in shown()]
    links = {LESSONS[name].title: f"lessons/{name}.md" for name in there}
    if section.page is not None:
        title, _, path = section.page.partition(": ")
        links[title] = path
    if any(words.startswith("walkthrough") for words in section.commands):
        links["One sentence, step by step"] = "lessons/walkthrough.md"
    return ", ".join(f"[{title}]({path})" for title, path in links.items())


def number(section: Section) -> str:
    """The computed number, or the claims of the first lesson that exists with their figures."""
    if section.number is not None:
        return NUMBERS[section.number]()
    there = [(name, beginning) for name, beginning in answers(section) if name in shown()]
    first = there[0][0]
    return "; ".join(_claim(first, beginning, section) for name, beginning in there if name == first)


def _claim(name: str, beginning: str, section: Section) -> str:
    """The first claim of a lesson that starts so, with its figures, and its verdict unless it holds."""
    for claim in taught(name).claims:
        if claim.sentence.startswith(beginning):
            verdict = "" if claim.holds else f"{claim.verdict}: "
            return f"{verdict}{claim.sentence.removesuffix('.')} ({claim.figures})".replace("|", "\\|")
    raise ArgumentError(f"no claim of lesson {name} starts with {beginning!r}; section {section.title!r} names it")


def answers(section: Section) -> list[tuple[str, str]]:
    """The lessons of a section, each with the beginning of its claim."""
    return [(name, beginning) for name, _, beginning in (one.partition(": ") for one in section.lessons)]


def is_answered(section: Section) -> bool:
    """Whether a section has a number today: a function, or a lesson that exists."""
    return section.number is not None or any(name in shown() for name, _ in answers(section))


def lesson_command(name: str) -> str:
    """The command of a lesson, without the word regard."""
    return f"lesson {name}{' --run runs/demo' if needs_run(name) else ''}"


def command_exists(words: str) -> bool:
    """Whether the command line has this command with these options; nothing is run.

    >>> command_exists("show causal --layers 3"), command_exists("show causal --layer 3"), command_exists("shows x")
    (True, False, False)
    """
    command: Any = typer.main.get_command(app)
    context, name, rest = None, "regard", shlex.split(words)
    try:
        while hasattr(command, "resolve_command"):
            context = command.make_context(name, list(rest), parent=context)
            name, command, rest = command.resolve_command(context, rest)
        command.make_context(name, list(rest), parent=context)
    except Exception as error:  # of classes that typer does not export
        if type(error).__name__ in ("NoSuchOption", "NoSuchCommand", "UsageError", "MissingParameter", "BadParameter"):
            return False
        raise
    return True


PARTS = {"articles": article_tables}
