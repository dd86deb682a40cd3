"""Write generated pages, figures and help that are stale: `python -m docs.making [RUN] [--check]`.

A picture is redrawn if its numbers changed or if it was deleted. With the folder of a training run, what the first page
and the explorer show of it is computed first. With --check nothing is written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.making.command_help import is_help_fresh, write_help
from docs.making.explorations import keep_explorations
from docs.making.figures import DOCS
from docs.making.pages import is_fresh, made_figures, made_pages, write_page
from docs.making.start import keep_start


def main(arguments: list[str]) -> int:
    """Return the exit code: 1 with --check if something is stale, else 0."""
    check = "--check" in arguments
    for run in arguments:
        if run != "--check":
            keep_start(Path(run))
            keep_explorations(Path(run))
    stale = []
    for name, text in made_pages().items():
        if not is_fresh(name, text):
            stale.append(f"docs/{name}")
            if not check:
                write_page(DOCS / name, text)
    for figure in made_figures():
        if not figure.is_fresh():
            stale.append(f"docs/{figure.name}")
            if not check:
                figure.write()
    if not is_help_fresh():
        stale.append("regard_lab/cli/help.json")
        if not check:
            write_help()
    for name in stale:
        print(f"{'stale' if check else 'written'}: {name}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
