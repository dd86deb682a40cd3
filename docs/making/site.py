"""A hook of MkDocs: pages from outside docs/ (lessons, reports, DESIGN and CONTRIBUTING), and figures of lessons.

Links in the sources work in the repository; the hook rewrites them for the site. Every lesson is run.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from docs.making.explorations import EXAMPLES, example_page
from docs.making.reference import ROOMS
from docs.making.rendering import with_kinds_of_cells, with_mathml
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
"""
HOW_TO_RUN = """
## Run it

```sh
regard lesson {name}   # this page in the terminal
jupytext --to notebook regard_lab/lessons/{name}.py --output {name}.ipynb   # in a clone
```
"""


def on_config(config: Any) -> Any:
    """Add to the navigation: the pages of lessons and reference below their first page."""
    chapters = [
        {chapter: [{find_lesson(name).title: f"lessons/{name}.md"} for name in names]}
        for chapter, names in CHAPTERS.items()
    ]
    for section in config.nav:
        for title, first in section.items():
            if title == "Lessons":
                section[title] = [first, *chapters, {"Articles, section by section": "articles.md"}]
            elif title == "API reference":
                section[title] = [first, *({name: f"reference/{name}.md"} for name in ROOMS)]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add files from outside docs/, and files that are made here."""
    from mkdocs.structure.files import File  # ty: ignore[import-not-found]

    paths = [*(ROOT / name for name in ROOT_PAGES), *sorted((ROOT / RESULTS).rglob("*"))]
    for path in paths:
        if path.suffix in (".md", ".png"):
            files.append(
                File.generated(config, in_site(in_repository(path)), abs_src_path=str(path))
            )
    examples = {f"explorations/{name}.html": example_page(name).html for name in EXAMPLES}
    for name, content in {**lesson_files(), **examples}.items():
        files.append(File.generated(config, name, content=content))
    return files


@cache
def lesson_files() -> dict[str, str]:
    """The page of every lesson and its figures, by their names in the site."""
    files = {}
    for name in LESSONS:
        text, pictures = find_lesson(name).markdown()
        address, says = LIVE.get(name, ("", ""))
        text += FRAME.format(address=address, says=says) if says else ""
        files[f"lessons/{name}.md"] = text + HOW_TO_RUN.format(name=name)
        files |= {f"lessons/{file}": picture._repr_svg_() for file, picture in pictures.items()}
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that leave docs/ to the pages of the site, and write the cards of the lessons."""
    path = page.file.abs_src_path
    text = without_escapes(led(markdown, in_repository(Path(path)))) if path else markdown
    return text.replace(CARDS, cards()) if CARDS in text else text


def cards() -> str:
    """A card for each lesson, with its figure and its question."""
    parts = []
    for number, (chapter, names) in enumerate(CHAPTERS.items(), 1):
        parts.append(f'\n## {number}. {chapter}\n\n<div class="cards" markdown>\n')
        for name, page in zip(names, map(find_lesson, names), strict=True):
            link = f"[![Figure: {page.title}]({name}-1.svg)]({name}.md)\n\n**[{page.title}]({name}.md)**"
            parts.append(f'<div class="card" markdown>\n\n{link}\n\n{page.question}\n\n</div>\n')
        parts.append("</div>")
    return "\n".join(parts)


def on_page_content(html: str, **_: Any) -> str:
    """Convert formulas to MathML, and mark the cells of tables by what they hold."""
    return with_kinds_of_cells(with_mathml(html))


def led(markdown: str, source: str) -> str:
    """Rewrite the links of the repository's page `source` for the site.

    >>> led("[report](../benchmarks/results/a/b.md#c) and [word](conventions.md)", "docs/demo.md")
    '[report](reports/a/b.md#c) and [word](conventions.md)'
    >>> led("[the contract](docs/conventions.md)", "DESIGN.md")
    '[the contract](conventions.md)'
    >>> led("[a lesson](../../regard_lab/lessons/scale.py)", "docs/recipes/images.md")
    '[a lesson](../lessons/scale.md)'
    """
    here = PurePosixPath(in_site(source)).parent

    def link(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(source).parent / match[1])
        return f"]({os.path.relpath(in_site(target), here)}{match[2] or ''})"

    return LINK.sub(link, markdown)


def without_escapes(markdown: str) -> str:
    r"""GitHub needs `\|` in the code of a table's cell; MkDocs would show the backslash.

    >>> without_escapes(r"| `a \| b` | c \| d |")
    '| `a | b` | c \\| d |'
    """
    lines = (
        CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in markdown.split("\n")
    )
    return "\n".join(lines)


def in_repository(path: Path) -> str:
    """A file's path from the root of the repository."""
    return path.absolute().relative_to(ROOT).as_posix()


def in_site(path: str) -> str:
    """The path in the site of a file of the repository; other paths are returned unchanged, and MkDocs reports them."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if (lesson := LESSON.fullmatch(path)) and lesson[1] in LESSONS:
        return f"lessons/{lesson[1]}.md"  # its file in the repository, its page in the site
    if pages := sorted((ROOT / path).glob("*.md")) if (ROOT / path).is_dir() else []:
        return in_site(in_repository(pages[0]))  # a folder of results is shown by its report
    for folder, shown in ((DOCS, PurePosixPath()), (RESULTS, PurePosixPath("reports"))):
        if PurePosixPath(path).is_relative_to(folder):
            return (shown / PurePosixPath(path).relative_to(folder)).as_posix()
    return path
