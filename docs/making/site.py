"""A hook of MkDocs: pages from outside docs/ (lessons, reports, DESIGN and CONTRIBUTING), and figures of lessons.

Links in the sources work in the repository; the hook rewrites them for the site. Every lesson is run.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from markdown.extensions.toc import slugify  # ty: ignore[unresolved-import]

from docs.making.cards import card
from docs.making.explorations import EXAMPLES, example_page
from docs.making.reference import ROOMS
from docs.making.rendering import with_breaks, with_kinds_of_cells, with_mathml
from regard_lab.lessons import CHAPTERS, LESSONS, find_lesson

ROOT = Path(__file__).parents[2]
DOCS = PurePosixPath("docs")
RESULTS = PurePosixPath("benchmarks/results")
ROOT_PAGES = {
    "DESIGN.md": "design.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"`[^`\n]+`")
LESSON = re.compile(r"regard_lab/lessons/(\w+)\.py")
CARDS = "<!-- lessons -->"
# A lesson folds the code of its figures. What is not seen at first is not found by the search either.
FOLDED = re.compile(r"<details>(?=\s*<summary>)")
REFERENCE_BOOST = 3  # of pages of the reference among what is found: a name leads to its definition
# Lessons that hold a page with a model: what its address shows, and what there is to try.
LIVE = {
    "referent": (
        "view=heads",
        "Hover over *it* and over *animal*; replace *animal* by *dog*, and *es* becomes *er*.",
    ),
    "windows": (
        "view=pattern",
        "Move the window of the encoder, or draw pairs with the mouse, until the pronoun changes.",
    ),
    "scale": (
        "view=map&kind=0&layer=1&factor=0.25",
        "All scores are a quarter of what was learned. Move *Scores ×* from there to 1, and beyond.",
    ),
}
FRAME = """
## Try it

{says}

<iframe class="explorer" src="../explorations/live.html#{address}" title="A page that runs a translator"
  loading="lazy" height="720"></iframe>
<p class="explorer-note"><a href="../explorations/live.html#{address}">Open this page alone</a>.</p>
"""
HOW_TO_RUN = """
## Run it

```sh
regard lesson {name}   # this page in the terminal
jupytext --to notebook regard_lab/lessons/{name}.py --output {name}.ipynb   # in a clone
```
"""


def on_config(config: Any) -> Any:
    """Add to the navigation: the pages of lessons and reference behind the first page of their sections."""
    chapters = []
    for chapter, names in CHAPTERS.items():
        chapters.append(
            {chapter: [{find_lesson(name).title: f"lessons/{name}.md"} for name in names]}
        )
    added = {
        "Lessons": chapters,
        "API reference": [{name: f"reference/{name}.md"} for name in ROOMS],
    }
    for section in config.nav:
        for title in section.keys() & added.keys():
            first, *others = section[title]
            section[title] = [first, *added[title], *others]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add files from outside docs/, and files that are made here."""
    from mkdocs.structure.files import File  # ty: ignore[import-not-found]

    paths = [ROOT / name for name in ROOT_PAGES]
    paths += sorted((ROOT / RESULTS).rglob("*"))
    for path in paths:
        if path.suffix in (".md", ".png"):
            name = in_site(in_repository(path))
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for name, content in lesson_files().items():
        files.append(File.generated(config, name, content=content))
    for name in EXAMPLES:
        content = example_page(name).html
        files.append(File.generated(config, f"explorations/{name}.html", content=content))
    return files


@cache
def lesson_files() -> dict[str, str]:
    """The page of every lesson and its figures, by their names in the site."""
    files = {}
    for name in LESSONS:
        text, pictures = find_lesson(name).markdown()
        if name in LIVE:
            address, says = LIVE[name]
            text += FRAME.format(address=address, says=says)
        files[f"lessons/{name}.md"] = text + in_articles(name) + HOW_TO_RUN.format(name=name)
        for file, picture in pictures.items():
            files[f"lessons/{file}"] = picture._repr_svg_()
        files[f"lessons/cards/{name}.svg"] = card(name)
    return files


def in_articles(lesson: str) -> str:
    """Which sections of which articles a lesson checks, by the rows of docs/articles.md that link to it."""
    sections: dict[str, list[str]] = {}
    article = ""
    for line in (ROOT / DOCS / "articles.md").read_text(encoding="utf-8").split("\n"):
        if line.startswith("## "):
            article = line.removeprefix("## ")
        elif line.startswith("| ") and f"/{lesson}.py)" in line:
            section = line.split(" | ")[0].removeprefix("| ")
            sections.setdefault(article, []).append(section)
    if not sections:
        return ""
    lines = [
        f"- [{title}](../articles.md#{slugify(title, '-')}): {'; '.join(of_title)}"
        for title, of_title in sections.items()
    ]
    return "\n".join(["## In the articles", "", *lines, ""])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that leave docs/ to the pages of the site, and write the cards of the lessons."""
    if page.file.src_uri.startswith("reference/"):
        page.meta["search"] = {"boost": REFERENCE_BOOST}
    path = page.file.abs_src_path
    if path:
        markdown = without_escapes(led(markdown, in_repository(Path(path))))
    return markdown.replace(CARDS, cards()) if CARDS in markdown else markdown


def cards() -> str:
    """A card for each lesson, with its picture and its question."""
    parts = []
    for number, (chapter, names) in enumerate(CHAPTERS.items(), 1):
        parts.append(f'\n## {number}. {chapter}\n\n<div class="cards" markdown>\n')
        for name, page in zip(names, map(find_lesson, names), strict=True):
            picture = f"[![Picture: {page.title}](cards/{name}.svg)]({name}.md)"
            link = f"{picture}\n\n**[{page.title}]({name}.md)**"
            parts.append(f'<div class="card" markdown>\n\n{link}\n\n{page.question}\n\n</div>\n')
        parts.append("</div>")
    return "\n".join(parts)


def on_page_content(html: str, **_: Any) -> str:
    """Convert formulas to MathML; mark the cells of tables, folded code that is not searched, and parts of names."""
    searched = FOLDED.sub("<details data-search-exclude>", html)
    return with_breaks(with_kinds_of_cells(with_mathml(searched)))


def led(markdown: str, source: str) -> str:
    """Rewrite the links of the repository's page `source` for the site.

    >>> led("[report](../benchmarks/results/a/b.md#c) and [word](conventions.md)", "docs/demo.md")
    '[report](reports/a/b.md#c) and [word](conventions.md)'
    >>> led("[the contract](docs/conventions.md)", "DESIGN.md")
    '[the contract](conventions.md)'
    >>> led("[a lesson](../../regard_lab/lessons/scale.py)", "docs/recipes/images.md")
    '[a lesson](../lessons/scale.md)'
    """
    folder = PurePosixPath(in_site(source)).parent

    def link(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(source).parent / match[1])
        return f"]({os.path.relpath(in_site(target), folder)}{match[2] or ''})"

    return LINK.sub(link, markdown)


def without_escapes(markdown: str) -> str:
    r"""GitHub needs `\|` in the code of a table's cell; MkDocs would show the backslash.

    >>> without_escapes(r"| `a \| b` | c \| d |")
    '| `a | b` | c \\| d |'
    """
    lines = []
    for line in markdown.split("\n"):
        if line.startswith("|"):
            line = CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
        lines.append(line)
    return "\n".join(lines)


def in_repository(path: Path) -> str:
    """A file's path from the root of the repository."""
    return path.absolute().relative_to(ROOT).as_posix()


def in_site(path: str) -> str:
    """The path in the site of a file of the repository; other paths are returned unchanged, and MkDocs reports them."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    lesson = LESSON.fullmatch(path)
    if lesson and lesson[1] in LESSONS:
        return f"lessons/{lesson[1]}.md"  # its file in the repository, its page in the site
    if (ROOT / path).is_dir():
        pages = sorted((ROOT / path).glob("*.md"))
        if pages:  # a folder of results is shown by its report
            return in_site(in_repository(pages[0]))
    inside = PurePosixPath(path)
    if inside.is_relative_to(DOCS):
        return inside.relative_to(DOCS).as_posix()
    if inside.is_relative_to(RESULTS):
        return ("reports" / inside.relative_to(RESULTS)).as_posix()
    return path
