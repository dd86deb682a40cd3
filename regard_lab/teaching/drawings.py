"""The drawing of a model in a lesson: on a page its boxes lead to lessons and classes, in a terminal it is text."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from regard_lab.seeing.architecture import BoxLinks, DrawnModel, draw_svg, public_links, to_text
from regard_lab.seeing.architecture.drawing import is_of_torch, page_of_torch, public_name


def lesson_page(name: str) -> str:
    """The address of a lesson on the site, from the page of another."""
    return f"{name}.html"


def reference_page(owner: type) -> str:
    """The address of a class in the reference, from the page of a lesson.

    >>> from regard import MultiHeadAttention
    >>> reference_page(MultiHeadAttention)
    '../reference/regard.layers.html#regard.layers.MultiHeadAttention'
    """
    if is_of_torch(owner):
        return page_of_torch(owner)
    name = public_name(owner)
    return f"../reference/{name.rpartition('.')[0]}.html#{name}"


@dataclass(frozen=True)
class ModelDrawing:
    """The drawing of a model, and its caption."""

    architecture: DrawnModel
    caption: str

    def __str__(self) -> str:
        return f"{to_text(self.architecture)}\n\n{self.caption}"

    def _repr_svg_(self) -> str:
        return draw_svg(self.architecture, public_links())

    def _repr_markdown_(self) -> str:
        svg = draw_svg(self.architecture, BoxLinks(lesson_page, reference_page))
        caption = f"<figcaption>{escape(self.caption)}</figcaption>"
        return f'<figure class="figure">\n{svg}{caption}\n</figure>'
