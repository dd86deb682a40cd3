"""The pages of the lessons: what `regard lesson` computes, as Markdown with its picture.

Two lessons look into a trained model, which tests have no time to train: what they found is kept beside their page as
JSON, and page and picture are held against that.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from docs.making.figures import DOCS, Figure
from regard.errors import ArgumentError
from regard.lessons import LESSONS, Claim, Settings, Table, Taught, to_markdown

HEAD = """# Lessons

What the articles teach, shown by running it. Each lesson is a command (`regard lesson NAME`), a page and a test:
what it claims is put to the test whenever the tests run, and its picture is drawn from the numbers it computed.

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
    """The picture of each lesson."""
    return [Figure(f"lessons/{name}.png", without_times(taught(name).numbers), taught(name).draw) for name in shown()]


def keep_trained(run: Path) -> None:
    """Teach the lessons about a trained model, keep what they found, and draw it."""
    for name in LESSONS:
        if needs_run(name):
            found = LESSONS[name].teach(Settings(run=run))
            kept(name).write_text(json.dumps(found.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            Figure(f"lessons/{name}.png", without_times(found.numbers), found.draw).write()


def shown() -> list[str]:
    """The lessons that the site shows: those about a trained model once one was looked into."""
    return [name for name in LESSONS if not needs_run(name) or kept(name).exists()]


def needs_run(name: str) -> bool:
    """Does the lesson look into a trained model?"""
    return "run" in LESSONS[name].takes


def kept(name: str) -> Path:
    """Where it stands what a lesson found in a trained model."""
    return DOCS / "lessons" / f"{name}.json"


@cache
def taught(name: str) -> Taught:
    """What a lesson computes, or found when it had a trained model."""
    if not needs_run(name):
        return LESSONS[name].teach()
    found = json.loads(kept(name).read_text(encoding="utf-8"))
    return Taught(
        lesson=LESSONS[name],
        paragraphs=tuple(found["paragraphs"]),
        tables=tuple(
            Table(one["title"], tuple(one["columns"]), tuple(map(tuple, one["rows"])), one["measured"])
            for one in found["tables"]
        ),
        claims=tuple(Claim(**claim) for claim in found["claims"]),
        code=found["code"],
        numbers=found["numbers"],
        drawing=refuse_to_draw,
    )


def refuse_to_draw(figure: object) -> None:
    """What is kept has numbers but no picture of them."""
    raise ArgumentError(
        "this lesson's picture needs its trained model: make demo, then python -m docs.making runs/demo"
    )


def page(name: str) -> str:
    """One lesson, and how to have it oneself."""
    text = to_markdown(taught(name), f"{name}.png")
    if not needs_run(name):
        return f"{text}\n```sh\nregard lesson {name}\n```\n"
    source = "Found in the translator that `regard demo` trains with seed 0; another training finds other numbers."
    return f"{text}\n```sh\nregard lesson {name} --run runs/demo\n```\n\n{source}\n"


def without_times(numbers: dict[str, Any]) -> dict[str, Any]:
    """Numbers of a lesson but those that depend on the machine."""
    return {key: value for key, value in numbers.items() if key != "measured"}
