"""Write the pages that are generated, and stale: `python -m docs.making [RUN] [--check]`.

Generated are whole pages, and parts of pages between `<!-- made: NAME -->` and `<!-- end -->`. With the folder of a
training run, what the first page and the explorer show of it is computed first. With --check nothing is written.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docs.making import conformance, english, explorations, speed, studies
from docs.making.command_help import made_help
from docs.making.reference import reference_pages

DOCS = Path(__file__).parents[1]
PARTS = {
    **speed.PARTS,
    **studies.PARTS,
    **conformance.PARTS,
    "thing-to-try": explorations.thing_to_try,
    "english-head": english.english_head,
}
MARKED = re.compile(r"(<!-- made: (\S+) -->\n)(?:(?!<!-- ).*\n)*?(<!-- end -->)")


def main(arguments: list[str]) -> int:
    """Return the exit code: 1 with --check if something is stale, else 0."""
    check = "--check" in arguments
    for run in set(arguments) - {"--check"}:
        explorations.keep_examples(Path(run))
    pages = made_pages()
    if not check:  # the letters of figures differ between versions of matplotlib
        pages |= speed.figures()

    stale = [name for name, text in pages.items() if not is_fresh(name, text)]
    for name in stale:
        if not check:
            (DOCS / name).write_text(pages[name], encoding="utf-8")
        print(f"{'stale' if check else 'written'}: docs/{name}")
    return int(check and bool(stale))


def made_pages() -> dict[str, str]:
    """The current text of every generated page and of the help of commands, by its path from docs/."""
    pages = {}
    for path in DOCS.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        if MARKED.search(text):
            pages[path.relative_to(DOCS).as_posix()] = filled(text)
    pages |= reference_pages()
    pages |= studies.report_pages()
    pages["../regard_lab/cli/help.json"] = made_help()
    return pages


def filled(text: str) -> str:
    """A page with its marked parts regenerated."""
    return MARKED.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n\n{match[3]}", text)


def is_fresh(name: str, text: str) -> bool:
    """Whether the file has the given text."""
    path = DOCS / name
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
