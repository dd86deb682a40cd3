"""What the site shows beside docs/: the reports of benchmarks/results and the house's own pages.

A hook of MkDocs. Links are written as they work in the repository, and led to the site's pages here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS, RESULTS = PurePosixPath("docs"), PurePosixPath("benchmarks/results")
HOUSE = {"DESIGN.md": "design.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"`[^`\n]+`")
LISTED = ("lessons/index.md", "reference/index.md")


def on_config(config: Any) -> Any:
    """Below the first page of lessons and reference stand the pages that it links to; new reports join the others."""
    text = repr(config.nav)
    for section in config.nav:
        for title, first in section.items():
            if first in LISTED:
                section[title] = [first, *linked(first)]
            elif title == "Measured":
                first += [report for report in reports() if repr(*report.values()) not in text]
    return config


def reports() -> list[dict[str, str]]:
    """Every report by its heading."""
    found = sorted((ROOT / RESULTS).rglob("*.md"))
    return [
        {path.read_text(encoding="utf-8").split("\n")[0].strip("# "): in_site(in_repository(path))} for path in found
    ]


def linked(name: str) -> list[dict[str, str]]:
    """Pages of the same folder that a page's table links to, with the words of the link."""
    text = (ROOT / DOCS / name).read_text(encoding="utf-8")
    found = re.findall(r"^\| \[`?([^]`]+)`?\]\(([\w.-]+\.md)\)", text, re.MULTILINE)
    return [{words: (PurePosixPath(name).parent / target).as_posix()} for words, target in found]


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside of docs/."""
    from mkdocs.structure.files import File  # ty: ignore[import-not-found]

    found = [*(ROOT / name for name in HOUSE), *sorted((ROOT / RESULTS).rglob("*"))]
    for path in found:
        if path.suffix in (".md", ".png"):
            files.append(File.generated(config, in_site(in_repository(path)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links that leave docs/ to where the site shows their target."""
    return without_escapes(led(markdown, in_repository(Path(page.file.abs_src_path))))


def on_post_build(config: Any) -> None:
    """Fail where a built page would load anything from another host."""
    site = Path(config.site_dir)
    found = [
        f"{path.relative_to(site)} loads {address}"
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".css")
        for address in loaded_from_outside(path.read_text(encoding="utf-8"))
    ]
    if found:
        raise SystemExit("\n".join(found))


def loaded_from_outside(text: str) -> list[str]:
    """Addresses on other hosts that a page or style sheet loads by itself; links to follow are not among them.

    >>> loaded_from_outside('<a href="https://a.org"> <script src="https://b.org/x.js"> <img src="c.png">')
    ['https://b.org/x.js']
    >>> loaded_from_outside('<link rel="stylesheet" href="//d.org/x.css"> @import url(https://e.org/y.css);')
    ['//d.org/x.css', 'https://e.org/y.css']
    """
    found = [match[1] for match in re.finditer(r"""\bsrc(?:set)?=["']?((?:https?:)?//[^"'\s>]+)""", text)]
    found += [match[1] for match in re.finditer(r"""<link\b[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)""", text)]
    return found + [match[1] for match in re.finditer(r"""url\(["']?((?:https?:)?//[^"')]+)""", text)]


def led(markdown: str, source: str) -> str:
    """The text of the repository's page `source` with links as the site needs them.

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
    """Where the site shows a file of the repository; a path that it does not show stays, and MkDocs says so."""
    if path in HOUSE:
        return HOUSE[path]
    if pages := sorted((ROOT / path).glob("*.md")) if (ROOT / path).is_dir() else []:
        return in_site(in_repository(pages[0]))  # a folder of results is shown by its report
    for folder, shown in ((DOCS, PurePosixPath()), (RESULTS, PurePosixPath("reports"))):
        if PurePosixPath(path).is_relative_to(folder):
            return (shown / PurePosixPath(path).relative_to(folder)).as_posix()
    return path
