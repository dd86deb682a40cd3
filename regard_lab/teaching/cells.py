"""The cells of a lesson's file, in the percent format that jupytext reads."""

import re
from dataclasses import dataclass

CELL = re.compile(
    r"^# %%(?P<markdown> \[markdown\])?(?: tags=\[(?P<tags>[^\]]*)\])?$", re.MULTILINE
)


@dataclass(frozen=True)
class Cell:
    """A cell: its text, whether it is Markdown or code, its tags, and the line where its text begins."""

    text: str
    markdown: bool
    tags: frozenset[str]
    line: int

    @property
    def is_typed(self) -> bool:
        """Whether it is code that a reader types; code with a tag is folded."""
        return not (self.markdown or self.tags)


def cells_of(text: str) -> tuple[Cell, ...]:
    """The cells of a file, Markdown without its comment signs."""
    headings = list(CELL.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    cells = []
    for heading, end in zip(headings, ends, strict=True):
        is_markdown = heading["markdown"] is not None
        body = text[heading.end() + 1 : end].rstrip()
        if is_markdown:
            body = re.sub(r"^# ?", "", body, flags=re.MULTILINE)
        tags = frozenset(re.findall(r'"(\w+)"', heading["tags"] or ""))
        line = text.count("\n", 0, heading.end()) + 1
        cells.append(Cell(body, is_markdown, tags, line))
    return tuple(cells)
