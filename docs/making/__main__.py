"""Write generated pages and figures that are stale: `python -m docs.making [RUN] [--check]`.

A picture is redrawn if its numbers changed or if it was deleted. With the folder of a training run, the lessons about
a trained model are computed from it first. With --check nothing is written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.making.figures import DOCS
from docs.making.lessons import keep_trained
from docs.making.pages import is_fresh, made_figures, made_pages


def main(arguments: list[str]) -> int:
    """Return the exit code: 1 with --check if a page or figure is stale, else 0."""
    check = "--check" in arguments
    for run in arguments:
        if run != "--check":
            keep_trained(Path(run))
    stale = []
    for name, text in made_pages().items():
        if not is_fresh(name, text):
            stale.append(name)
            if not check:
                (DOCS / name).write_text(text, encoding="utf-8")
    for figure in made_figures():
        if not figure.is_fresh():
            stale.append(figure.name)
            if not check:
                figure.write()
    for name in stale:
        print(f"{'stale' if check else 'written'}: docs/{name}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
