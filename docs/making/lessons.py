"""The pages of the lessons: the results of `regard lesson` as Markdown, with figures.

Two lessons need a trained model, and tests have no time to train one. Their results are stored as JSON beside their
pages, and tests compare page and figure with that file.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from docs.making import formulas
from docs.making.figures import DOCS, TIMES, Figure, written
from docs.making.freshness import timed, with_times
from docs.making.thumbnails import SMALL, thumbnails
from regard.errors import ArgumentError
from regard_lab.lessons import LESSONS, Claim, Settings, Table, Taught, to_markdown

HEAD = """# Lessons

Each lesson answers one question about attention by computing the answer: a picture, the numbers, and the claims of
well-known articles, checked. Every lesson is also a command, `regard lesson NAME`, and a test; the first page is the
command `regard walkthrough "your sentence"`. "Equal except for rounding" means that two results, computed with 64-bit
numbers, differ by less than a billionth. In the lessons a word is what stands between two spaces, with its punctuation;
the walkthrough takes punctuation marks as words of their own.

The first three chapters lead from one sentence to a model that translates. Read the other chapters in any order. If you
come from an article, [the articles, section by section](../articles.md) lists the lesson for each of its sections.
"""
WALKTHROUGH = (
    "walkthrough",
    "One sentence, step by step",
    "How do words become queries, weights and a context vector?",
)
CHAPTERS: dict[str, tuple[str, ...]] = {
    "Why attention": ("walkthrough", "recurrent", "fixed_vector", "alignment"),
    "Inside one layer": ("scale", "positions", "causal", "cross", "one_head"),
    "A model that translates": ("encoder", "decoder", "translation", "heads", "referent"),
    "Writing text quickly": ("generation", "grouped"),
    "Longer texts": ("windows", "sparse", "linear", "approximations", "complexity"),
    "Beyond translation": ("relations", "answer_head", "transfer", "caption", "imprecise"),
}


def lesson_pages() -> dict[str, str]:
    """The text of every page by its name in docs/."""
    return {"lessons/index.md": index(), **{f"lessons/{name}.md": page(name) for name in shown()}}


def index() -> str:
    """The first page: a card for each lesson, with a picture and its question."""
    told = {name: (name, LESSONS[name].title, LESSONS[name].question) for name in shown()}
    told["walkthrough"] = WALKTHROUGH
    parts = [HEAD]
    for number, (chapter, names) in enumerate(CHAPTERS.items(), 1):
        parts += [f"\n## {number}. {chapter}\n", '<div class="cards" markdown>']
        parts += [card(*told[name]) for name in names if name in told]
        parts.append("\n</div>")
    return "\n".join(parts) + "\n"


def card(name: str, title: str, question: str) -> str:
    """A lesson in the index."""
    return (
        f'\n<div class="card" markdown>\n\n[![]({SMALL}/{name}.png)]({name}.md)\n\n**[{title}]({name}.md)**\n\n'
        f"{question}\n\n</div>"
    )


def lesson_figures() -> list[Figure]:
    """The figure of each lesson, and the small pictures of the index, which are cut from them."""
    figures = list(map(lesson_figure, shown()))
    return [*figures, *thumbnails(figures)]


def lesson_figure(name: str) -> Figure:
    """The figure of a lesson, with the times that its page shows."""
    record = taught(name)
    return Figure(f"lessons/{name}.png", without_times(record.numbers), record.draw, timed(computed(name)))


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
    """The page of a lesson, with the times that its picture shows; with new times if the picture has to be redrawn."""
    text, figure = computed(name), lesson_figure(name)
    return with_times(text, written(figure.path, TIMES) or ()) if figure.is_fresh() else text


def computed(name: str) -> str:
    """The page of a lesson as it was computed now, with the command that runs it."""
    text = formulas.with_inline(to_markdown(taught(name), f"{name}.png"))
    if name in formulas.LESSONS:
        head, question, rest = text.split("\n\n", 2)
        text = "\n\n".join([head, question, formulas.displayed(formulas.LESSONS[name]).strip("\n"), rest])
    if not needs_run(name):
        return f"{text}\n```sh\nregard lesson {name}\n```\n"
    source = "Computed with the translator that `regard demo` trains with seed 0; another training gives other numbers."
    return f"{text}\n```sh\nregard lesson {name} --run runs/demo\n```\n\n{source}\n"


def without_times(numbers: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a lesson without those that depend on the machine."""
    return {key: value for key, value in numbers.items() if key != "measured"}
