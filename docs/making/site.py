"""A hook of MkDocs that adds pages from outside docs/: the reports of benchmarks/results, DESIGN and CONTRIBUTING.

Links in the sources work in the repository; the hook rewrites them for the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from docs.making.explorations import EXAMPLES, example_page
from docs.making.lessons import INDEX, lesson_files
from docs.making.mathml import with_mathml
from docs.making.tables import with_kinds_of_cells
from regard_lab.lessons import CHAPTERS, find_lesson

ROOT = Path(__file__).parents[2]
DOCS, RESULTS = PurePosixPath("docs"), PurePosixPath("benchmarks/results")
ROOT_PAGES = {"DESIGN.md": "design.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"`[^`\n]+`")
REFERENCE = "reference/index.md"


def on_config(config: Any) -> Any:
    """Add to the navigation: the pages of lessons and reference below their first page, and new reports."""
    text = repr(config.nav)
    for section in config.nav:
        for title, first in section.items():
            if first == INDEX:
                section[title] = [first, *chapters(), {"Articles, section by section": "articles.md"}]
            elif first == REFERENCE:
                section[title] = [first, *linked(first, source(first))]
            elif title == "Results":
                first += [report for report in reports() if repr(*report.values()) not in text]
    return config


def chapters() -> list[dict[str, list[dict[str, str]]]]:
    """The pages of each chapter of the lessons."""
    return [
        {chapter: [{find_lesson(name).title: f"lessons/{name}.md"} for name in names]}
        for chapter, names in CHAPTERS.items()
    ]


def reports() -> list[dict[str, str]]:
    """Every report by its heading."""
    paths = sorted((ROOT / RESULTS).rglob("*.md"))
    return [
        {path.read_text(encoding="utf-8").split("\n")[0].strip("# "): in_site(in_repository(path))} for path in paths
    ]


def linked(name: str, text: str) -> list[dict[str, str]]:
    """Pages of the same folder to which the bold links and the tables of a text lead, with the words of the link."""
    links = re.findall(r"^(?:\| |\*\*)\[`?([^]`]+)`?\]\(([\w.-]+\.md)\)", text, re.MULTILINE)
    return [{words: (PurePosixPath(name).parent / target).as_posix()} for words, target in links]


def source(name: str) -> str:
    """The Markdown of a page of docs/."""
    return (ROOT / DOCS / name).read_text(encoding="utf-8")


def on_files(files: Any, config: Any) -> Any:
    """Add files from outside docs/."""
    from mkdocs.structure.files import File  # ty: ignore[import-not-found]

    paths = [*(ROOT / name for name in ROOT_PAGES), *sorted((ROOT / RESULTS).rglob("*"))]
    for path in paths:
        if path.suffix in (".md", ".png"):
            files.append(File.generated(config, in_site(in_repository(path)), abs_src_path=str(path)))
    for name, content in lesson_files().items():
        files.append(File.generated(config, name, content=content))
    for name in EXAMPLES:
        files.append(File.generated(config, f"explorations/{name}.html", content=example_page(name).html))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that leave docs/ to the pages of the site."""
    path = page.file.abs_src_path
    return without_escapes(led(markdown, in_repository(Path(path)))) if path else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Convert formulas to MathML, and mark the cells of tables by what they hold."""
    return with_kinds_of_cells(with_mathml(html))


def on_post_build(config: Any) -> None:
    """Fail if a built page would load anything from another host."""
    site = Path(config.site_dir)
    faults = [
        f"{path.relative_to(site)} loads {address}"
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".css")
        for address in loaded_from_outside(path.read_text(encoding="utf-8"))
    ]
    if faults:
        raise SystemExit("\n".join(faults))


def loaded_from_outside(text: str) -> list[str]:
    """Addresses on other hosts that a page or style sheet loads by itself; ordinary links are not included.

    >>> loaded_from_outside('<a href="https://a.org"> <script src="https://b.org/x.js"> <img src="c.png">')
    ['https://b.org/x.js']
    >>> loaded_from_outside('<link rel="stylesheet" href="//d.org/x.css"> @import url(https://e.org/y.css);')
    ['//d.org/x.css', 'https://e.org/y.css']
    """
    loaded = [match[1] for match in re.finditer(r"""\bsrc(?:set)?=["']?((?:https?:)?//[^"'\s>]+)""", text)]
    loaded += [match[1] for match in re.finditer(r"""<link\b[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)""", text)]
    return loaded + [match[1] for match in re.finditer(r"""url\(["']?((?:https?:)?//[^"')]+)""", text)]


def led(markdown: str, source: str) -> str:
    """Rewrite the links of the repository's page `source` for the site.

    >>> led("[report](../benchmarks/results/a/b.md#c) and [word](conventions.md)", "docs/demo.md")
    '[report](reports/a/b.md#c) and [word](conventions.md)'
    >>> led("[the contract](docs/conventions.md)", "DESIGN.md")
    '[the contract](conventions.md)'
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
    if pages := sorted((ROOT / path).glob("*.md")) if (ROOT / path).is_dir() else []:
        return in_site(in_repository(pages[0]))  # a folder of results is shown by its report
    for folder, shown in ((DOCS, PurePosixPath()), (RESULTS, PurePosixPath("reports"))):
        if PurePosixPath(path).is_relative_to(folder):
            return (shown / PurePosixPath(path).relative_to(folder)).as_posix()
    return path
