"""The lessons on the site: every page is run when the site is built, and its figures are files beside it."""

from __future__ import annotations

from functools import cache

from regard_lab.lessons import CHAPTERS, LESSONS, find_lesson

INDEX = "lessons/index.md"
HEAD = """# Lessons

Each lesson answers one question about attention by computing the answer: a figure, a few words, code to type, and
claims that are checked whenever this page is built. Every lesson is one file: a page, a script, a notebook, and a
command, `regard lesson NAME`.

The first three chapters lead from one sentence to a model that translates. Read the other chapters in any order. If you
come from an article, [the articles, section by section](../articles.md) lists the lesson for each of its sections.
"""
SOURCE = """
## Run it

```sh
regard lesson {name}                                                  # this page in the terminal
jupytext --to notebook regard_lab/lessons/{name}.py --output {name}.ipynb   # as a notebook, in a clone
```
"""


def index_page() -> str:
    """The first page: a card for each lesson, with its figure and its question."""
    parts = [HEAD]
    for number, (chapter, names) in enumerate(CHAPTERS.items(), 1):
        parts += [f"\n## {number}. {chapter}\n", '<div class="cards" markdown>', *map(_card, names), "\n</div>"]
    return "\n".join(parts) + "\n"


def _card(name: str) -> str:
    page = find_lesson(name)
    return (
        f'\n<div class="card" markdown>\n\n[![]({name}-1.svg)]({name}.md)\n\n**[{page.title}]({name}.md)**\n\n'
        f"{page.question}\n\n</div>"
    )


@cache
def lesson_files() -> dict[str, str]:
    """The page of every lesson and its figures, by their names in the site."""
    files = {INDEX: index_page()}
    for name in LESSONS:
        text, pictures = find_lesson(name).markdown()
        files[f"lessons/{name}.md"] = text + SOURCE.format(name=name)
        files |= {f"lessons/{file}": picture._repr_svg_() for file, picture in pictures.items()}
    return files
