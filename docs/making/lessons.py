"""The pages of the lessons: the results of `regard lesson` as Markdown, with figures.

Two lessons need a trained model, and tests have no time to train one. Their results are stored as JSON beside their
pages, and tests compare page and figure with that file.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from docs.making.figures import DOCS, Figure
from regard.errors import ArgumentError
from regard.studies.lessons import LESSONS, Claim, Settings, Table, Taught, to_markdown

HEAD = """# Lessons

Each lesson checks the claims of well-known articles about attention by running them. A lesson is a command
(`regard lesson NAME`), a page and a test: the test suite checks every claim, and the figure shows the computed numbers.

[The articles, section by section](../articles.md) lists which lesson and which command answers each of their sections.

| lesson | question |
|---|---|
"""
FIRST = (
    "| [One sentence, step by step](walkthrough.md) | How do words become queries, weights and a context vector? |\n"
)


def lesson_pages() -> dict[str, str]:
    """The text of every page by its name in docs/."""
    rows = [f"| [{LESSONS[name].title}]({name}.md) | {LESSONS[name].question} |\n" for name in shown()]
    return {"lessons/index.md": HEAD + FIRST + "".join(rows), **{f"lessons/{name}.md": page(name) for name in shown()}}


def lesson_figures() -> list[Figure]:
    """The figure of each lesson."""
    return [Figure(f"lessons/{name}.png", without_times(taught(name).numbers), taught(name).draw) for name in shown()]


def keep_trained(run: Path) -> None:
    """Run the lessons about a trained model, store their records, and draw their figures."""
    for name in LESSONS:
        if needs_run(name):
            record = LESSONS[name].teach(Settings(run=run))
            kept(name).write_text(json.dumps(record.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            Figure(f"lessons/{name}.png", without_times(record.numbers), record.draw).write()


def shown() -> list[str]:
    """The lessons that the site shows; those about a trained model only if their record is stored."""
    return [name for name in LESSONS if not needs_run(name) or kept(name).exists()]


def needs_run(name: str) -> bool:
    """Whether the lesson needs a trained model."""
    return "run" in LESSONS[name].takes


def kept(name: str) -> Path:
    """The file of the stored record of a lesson about a trained model."""
    return DOCS / "lessons" / f"{name}.json"


@cache
def taught(name: str) -> Taught:
    """The record of a lesson, computed, or read from its file if the lesson needs a trained model."""
    if not needs_run(name):
        return LESSONS[name].teach()
    stored = json.loads(kept(name).read_text(encoding="utf-8"))
    return Taught(
        lesson=LESSONS[name],
        paragraphs=tuple(stored["paragraphs"]),
        tables=tuple(
            Table(one["title"], tuple(one["columns"]), tuple(map(tuple, one["rows"])), one["measured"])
            for one in stored["tables"]
        ),
        claims=tuple(Claim(**claim) for claim in stored["claims"]),
        code=stored["code"],
        numbers=stored["numbers"],
        drawing=refuse_to_draw,
    )


def refuse_to_draw(figure: object) -> None:
    """Refuse to draw: a stored record has no drawing function."""
    raise ArgumentError(
        "the figure of this lesson needs a trained model: run make demo, then python -m docs.making runs/demo"
    )


def page(name: str) -> str:
    """The page of a lesson, with the command that runs it."""
    text = to_markdown(taught(name), f"{name}.png")
    if not needs_run(name):
        return f"{text}\n```sh\nregard lesson {name}\n```\n"
    source = "Computed with the translator that `regard demo` trains with seed 0; another training gives other numbers."
    return f"{text}\n```sh\nregard lesson {name} --run runs/demo\n```\n\n{source}\n"


def without_times(numbers: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a lesson without those that depend on the machine."""
    return {key: value for key, value in numbers.items() if key != "measured"}
