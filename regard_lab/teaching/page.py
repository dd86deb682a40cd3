"""A lesson as a page: one Python file of cells in the percent format, which jupytext opens as a notebook.

The first lines of a file are its title (`# # Title`) and its question (`# **Question?**`). Code cells may have tags:
`parameters` sets TEXT, SEED or RUN, which a reader may change; `folded` and `claims` are folded below what they show.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError
from regard_lab.teaching.cells import Cell, cells_of
from regard_lab.teaching.preamble import preambles

if TYPE_CHECKING:  # a page is read without torch, which its cells need
    from regard_lab.teaching.board import Claim, Picture, Shown


@dataclass(frozen=True)
class LessonPage:
    """A lesson.

    Args:
        path: of its file.
        text: of the file.
    """

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> LessonPage:
        return cls(path, path.read_text(encoding="utf-8"))

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return cells_of(self.text)

    @property
    def title(self) -> str:
        return self.cells[0].text.split("\n")[0].removeprefix("# ")

    @property
    def question(self) -> str:
        return self.cells[0].text.split("**")[1].replace("\n", " ")

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """What a reader may change, such as TEXT, SEED or RUN, with the lesson's own values."""
        values: dict[str, Any] = {}
        for cell in self.cells:
            if "parameters" not in cell.tags:
                continue
            for statement in ast.parse(cell.text).body:
                if isinstance(statement, ast.Assign):
                    name = ast.unparse(statement.targets[0])
                    values[name] = ast.literal_eval(statement.value)
        return values

    @cached_property
    def preambles(self) -> dict[int, str]:
        """What a reader types before a cell of code, by the index of the cell."""
        return preambles(self.cells)

    def typed_text(self, index: int) -> str:
        """The code of a cell as a reader types it, after what it needs of folded cells."""
        text = self.cells[index].text
        before = self.preambles.get(index)
        return text if before is None else f"{before}\n\n{text}"

    def new_names(self) -> dict[str, Any]:
        """The namespace in which the cells will run, as that of a script before its first line."""
        return {"__name__": "__main__", "__file__": str(self.path)}

    def run(
        self, changed: Mapping[str, Any] | None = None, *, lenient: bool = False
    ) -> Iterator[tuple[Cell, list[Shown]]]:
        """Each cell and what it shows, computed cell by cell.

        Args:
            changed: other values of parameters.
            lenient: show claims as they come out, for other parameters than the lesson's own.

        Raises:
            ArgumentError: the lesson has no such parameter.
            ClaimError: a claim came out differently from what the lesson expects, and `lenient` is False.
        """
        from regard_lab.teaching.board import collecting

        changed = changed or {}
        for name in changed:
            if name not in self.parameters:
                parameters = ", ".join(self.parameters).lower()
                raise ArgumentError(
                    f"lesson {self.name} has no {name.lower()}; it has "
                    f"{parameters or 'nothing that can be changed'}"
                )

        names = self.new_names()
        for cell in self.cells:
            if cell.markdown:
                yield cell, []
                continue

            # With the lines of the file, which a traceback shows.
            tree = ast.increment_lineno(ast.parse(cell.text), cell.line - 1)
            with collecting(lenient=lenient) as shown, redirect_stdout(_Printed(shown)):
                exec(compile(tree, str(self.path), "exec"), names)
            if "parameters" in cell.tags:
                names |= changed
            yield cell, shown

    def claims(
        self, changed: Mapping[str, Any] | None = None, *, lenient: bool = False
    ) -> list[Claim]:
        """All claims in order."""
        from regard_lab.teaching.board import Claim

        claims: list[Claim] = []
        for _, shown in self.run(changed, lenient=lenient):
            claims += [thing for thing in shown if isinstance(thing, Claim)]
        return claims

    def markdown(self) -> tuple[str, dict[str, Picture]]:
        """The page with all that its cells show, as Markdown, and its pictures by their names in it.

        The code of cells with a tag is folded below what they show.
        """
        parts: list[str] = []
        outputs = _Outputs(self.name)
        waiting: list[str] = []  # code that is folded with the next cell that shows something
        for index, (cell, shown) in enumerate(self.run()):
            if cell.markdown:
                parts.append(cell.text)
                continue

            shown_parts = [outputs.as_markdown(thing) for thing in shown]
            if cell.is_typed:
                parts += [f"```python\n{self.typed_text(index)}\n```", *shown_parts]
                continue
            waiting.append(cell.text)
            if shown:
                code = "```python\n{}\n```".format("\n\n".join(waiting))
                waiting.clear()
                folded = f"<details markdown><summary>Code</summary>\n\n{code}\n\n</details>"
                parts += [*shown_parts, folded]
        if outputs.exercises:
            parts.append(f"To check an answer: `regard lesson {self.name} --exercise 1`")
        return "\n\n".join(parts) + "\n", outputs.pictures


class _Outputs:
    """What the cells of a lesson show, as Markdown; its pictures and its exercises are numbered."""

    def __init__(self, lesson: str) -> None:
        self.lesson = lesson
        self.pictures: dict[str, Picture] = {}
        self.exercises = 0

    def as_markdown(self, thing: Shown) -> str:
        from regard_lab.teaching.board import Picture
        from regard_lab.teaching.exercises import Exercise

        if isinstance(thing, str):
            return f"```{{.text .printed}}\n{thing.rstrip()}\n```"
        if isinstance(thing, Picture):
            name = f"{self.lesson}-{len(self.pictures) + 1}.svg"
            self.pictures[name] = thing
            return _figure(thing, name)
        if isinstance(thing, Exercise):
            self.exercises += 1
            return f"**{self.exercises}.** {thing.as_markdown()}"
        return thing._repr_markdown_()


class _Printed(StringIO):
    """Standard output of a cell: printed lines join what else the cell shows, in order."""

    def __init__(self, shown: list[Shown]) -> None:
        super().__init__()
        self.shown = shown

    def write(self, text: str) -> int:
        if self.shown and isinstance(self.shown[-1], str):
            self.shown[-1] += text
        else:
            self.shown.append(text)
        return len(text)


def _figure(picture: Picture, name: str) -> str:
    from html import escape

    title = escape(picture.title)
    caption = re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", escape(picture.caption))
    return (
        f'<figure class="figure"><img src="{name}" alt="{title}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
