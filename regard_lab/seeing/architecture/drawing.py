"""The SVG of an architecture: read from top to bottom, the encoder at the left of the decoder.

Letters stay text, so a drawing can be searched and read aloud, and its colours follow the light or dark scheme of the
page or of the viewer. Lengths are in units of the picture; at a width of 390 pixels a unit is about one pixel.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from regard.arguments import count_of
from regard.reprs import brief
from regard_lab.seeing.architecture.parts import DrawnBox, DrawnModel, DrawnPart, DrawnStack
from regard_lab.seeing.palette import KEY, QUERY, VALUE
from regard_lab.seeing.terminal import visible

COLUMN = 156.0  # width of a box of one side
ALONE = 230.0  # of a stack that stands alone
BYPASS = 7.0  # from a box to the line of the residual connection
FRAME = 13.0  # from a box to the frame around a layer
BETWEEN = 14.0  # between the frames of both sides
MARGIN = 2.0
GAP = 13.0  # from one box to the next
LETTER = 6.3  # width of a letter of the details, on average of a wide font
TITLE_LINE = 16.0
DETAIL_LINE = 14.5
NORM_HEIGHT = 23.0
LARGEST = 1.25  # how many pixels a unit is at most
MOST_LINES = 4  # of details
BADGE = 8.0  # radius of the circle around q, k or v
ROLES = {"q": QUERY, "k": KEY, "v": VALUE}
PYTORCH = "https://docs.pytorch.org/docs/stable/generated/"


@brief
@dataclass(frozen=True)
class BoxLinks:
    """The addresses to which the boxes lead; where there is no page, a box says its name when it is pointed at.

    Args:
        of_lesson: the address of a lesson, by its name.
        of_class: the address of a class.
    """

    of_lesson: Callable[[str], str | None]
    of_class: Callable[[type], str | None]


def public_links() -> BoxLinks:
    """PyTorch's documentation for its own classes, and no address for lessons and the classes of regard.

    So a picture that is saved holds no path of the machine that drew it.
    """

    def of_lesson(name: str) -> None:
        return None

    def of_class(owner: type) -> str | None:
        return page_of_torch(owner) if is_of_torch(owner) else None

    return BoxLinks(of_lesson, of_class)


def is_of_torch(owner: type) -> bool:
    """Whether PyTorch defines a class."""
    return owner.__module__.startswith("torch.")


def public_name(owner: type) -> str:
    """The name by which a class is imported.

    >>> from regard import MultiHeadAttention
    >>> public_name(MultiHeadAttention)
    'regard.layers.MultiHeadAttention'
    """
    package = ".".join(owner.__module__.split(".")[:2])
    return f"{package}.{owner.__name__}"


def page_of_torch(owner: type) -> str:
    """The page of a class of torch.nn in PyTorch's documentation."""
    return f"{PYTORCH}{public_name(owner)}.html"


def draw_svg(architecture: DrawnModel, links: BoxLinks) -> str:
    """The drawing as the text of an SVG, equal for equal architectures and links."""
    sides = len(architecture.stacks)
    box_width = COLUMN if sides == 2 else ALONE
    column = box_width + 2 * FRAME
    width = sides * column + (sides - 1) * BETWEEN + 2 * MARGIN
    pen = _SvgPen(links)
    pen.text(width / 2, 18, architecture.title, "title")
    top = 46.0
    if architecture.owner is not None:
        pen.text(width / 2, 34, architecture.owner.__name__, "owner", pen.owner(architecture.owner))
        top = 62.0

    heights = []
    context = None
    for number, stack in enumerate(architecture.stacks):
        centre = MARGIN + number * (column + BETWEEN) + column / 2
        outward = 1 if number == 1 else -1  # residual connections run at the outer side
        drawn = _StackColumn(pen, centre, box_width, outward, context)
        drawn.draw(stack, top, leaves=number == 0 and sides == 2)
        heights.append(drawn.y)
        if drawn.output is not None:
            context = _EncoderLine(
                right=centre + column / 2 + BETWEEN / 2, y=drawn.output, left=centre
            )
    if context is not None:
        pen.path(
            f"M{context.left:g} {context.y:g}H{context.right:g}V{context.highest:g}", "context"
        )
    return pen.svg(width, max(heights) + 8, _description(architecture))


def _description(architecture: DrawnModel) -> str:
    """What the drawing shows, for readers who do not see it."""
    sentences = []
    for stack in architecture.stacks:
        formulas = ", ".join(part.formula for part in stack.parts)
        sentences.append(
            f"{stack.title} of {count_of(stack.layers, 'layers')}, each of them {formulas}."
        )
    return f"{architecture.title}. {' '.join(sentences)}"


@dataclass
class _EncoderLine:
    """The line that brings the encoder's output to the decoder: where it starts, and where it runs."""

    right: float
    y: float
    left: float
    highest: float = 0.0  # where it reaches the decoder


@dataclass
class _StackColumn:
    """One side of the drawing; `y` is where the next thing is drawn."""

    pen: _SvgPen
    centre: float
    width: float
    outward: int
    context: _EncoderLine | None
    y: float = 0.0
    output: float | None = None  # the height at which the encoder's output leaves

    def draw(self, stack: DrawnStack, top: float, *, leaves: bool) -> None:
        """Draw a stack; with `leaves` its output goes to the decoder."""
        self.y = top
        self.pen.text(self.centre, self.y, stack.title, "heading", self.pen.lesson(stack.lesson))
        self.y += 12
        for box in stack.before:
            self._box(box, "plain")
            self._down()
        self._layer(stack)
        for number, box in enumerate(stack.after):
            self._box(box, "norm" if box.title == "Norm" else "plain")
            if number < len(stack.after) - 1:
                self._down()
        if leaves:
            self.pen.line(self.centre, self.y, self.centre, self.y + 16)
            self.y += 16
            self.output = self.y
            self.pen.text(self.centre, self.y + 16, "the encoder's output", "note")
            self.y += 22

    def _layer(self, stack: DrawnStack) -> None:
        """The parts of one layer in a frame that says how many layers there are."""
        top = self.y
        self.y += 22
        self.pen.line(self.centre, top, self.centre, self.y)
        for part in stack.parts:
            self._part(part)
        self.y += 4
        half = self.width / 2 + FRAME
        self.pen.rectangle(self.centre - half, top, 2 * half, self.y - top, "frame")
        times = count_of(stack.layers, "layers")
        self.pen.text(self.centre - self.outward * (half - 8), top + 16, times, self._at_edge())
        self.pen.line(self.centre, self.y - 4, self.centre, self.y)
        if stack.after:
            self._down()

    def _at_edge(self) -> str:
        """The class of a text at the inner side of the frame."""
        return "times first" if self.outward > 0 else "times last"

    def _part(self, part: DrawnPart) -> None:
        """A part between its norms, and the residual connection around it."""
        begins = self.y
        self.pen.dot(self.centre, begins)
        if part.place in ("pre", "both"):
            self._down()
            self._box(part.norm, "norm")
        if part.keys_from:
            self._heads(part.keys_from)
        else:
            self._down()
        self._box(part.box, "attention" if part.keys_from else "feed-forward")
        if part.place == "both":
            self._down()
            self._box(part.norm, "norm")
        self.pen.line(self.centre, self.y, self.centre, self.y + 9)
        self.y += 16

        edge = self.centre + self.outward * (self.width / 2 + BYPASS)
        beside = self.centre + self.outward * 7
        self.pen.path(
            f"M{self.centre:g} {begins:g}H{edge:g}V{self.y:g}H{beside:g}", "line", arrow=True
        )
        self.pen.plus(self.centre, self.y)
        self.y += 7
        if part.place == "post":
            self._down()
            self._box(part.norm, "norm")
        self.pen.line(self.centre, self.y, self.centre, self.y + 9)
        self.y += 9

    def _heads(self, keys_from: str) -> None:
        """Where queries, keys and values come from: arrows that carry the letters q, k and v."""
        reach = self.width / 4
        places = {"q": -reach, "k": 0.0, "v": reach}
        if keys_from == "encoder":  # which stands at the left
            places = {"k": -reach, "v": 0.0, "q": reach}
        fork = self.y + 7
        crossing = fork + 9 if keys_from == "encoder" else fork  # of the encoder's line
        below = crossing + 2 * BADGE + 20
        self.pen.line(self.centre, self.y, self.centre, fork)
        for letter, offset in places.items():
            x = self.centre + offset
            comes_from_encoder = keys_from == "encoder" and letter in "kv"
            if not comes_from_encoder:
                self.pen.path(f"M{self.centre:g} {fork:g}H{x:g}V{below:g}", "line", arrow=True)
            elif self.context is not None:
                self.pen.path(
                    f"M{self.context.right:g} {crossing:g}H{x:g}V{below:g}", "context", arrow=True
                )
            self.pen.badge(x, (crossing + below) / 2 - 2, letter)
        if keys_from == "encoder" and self.context is not None:
            self.context.highest = crossing
        self.y = below

    def _down(self) -> None:
        """An arrow to the next box."""
        self.pen.line(self.centre, self.y, self.centre, self.y + GAP, arrow=True)
        self.y += GAP

    def _box(self, box: DrawnBox, kind: str) -> None:
        """A box: its title leads to the lesson, the name of its class to the class."""
        left = self.centre - self.width / 2
        if kind == "norm":
            self.pen.rectangle(left, self.y, self.width, NORM_HEIGHT, kind)
            self._name(box, self.centre - 26, self.y + 16, "name last")
            self._owner(box, self.centre - 18, self.y + 16, "owner first")
            self.y += NORM_HEIGHT
            return

        details = _lines(box.details, letters=int((self.width - 10) / LETTER))
        lines = len(details) + (box.owner is not None)
        height = 8 + TITLE_LINE + DETAIL_LINE * lines
        self.pen.rectangle(left, self.y, self.width, height, kind)
        y = self.y + 16
        self._name(box, self.centre, y, "name")
        for line in details:
            y += DETAIL_LINE
            self.pen.text(self.centre, y, line, "detail")
        self._owner(box, self.centre, y + DETAIL_LINE, "owner")
        self.y += height

    def _name(self, box: DrawnBox, x: float, y: float, kind: str) -> None:
        self.pen.text(x, y, box.title, kind, self.pen.lesson(box.lesson))

    def _owner(self, box: DrawnBox, x: float, y: float, kind: str) -> None:
        if box.owner is not None:
            name = box.owner.__name__
            if is_of_torch(box.owner):
                name = f"nn.{name}"
            self.pen.text(x, y, name, kind, self.pen.owner(box.owner))


def _lines(details: Sequence[str], letters: int) -> list[str]:
    """The details, each in lines of at most so many letters; at most MOST_LINES, the last then ends in "…"."""
    lines = []
    for detail in details:
        lines += textwrap.wrap(visible(detail), letters)
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"{lines[MOST_LINES - 1][: letters - 1]}…"]
    return lines


@dataclass
class _BoxName:
    """What a text names, in a few words, and the address of its page if there is one."""

    says: str
    address: str | None

    def around(self, text: str) -> str:
        """The element of a text, which says the name when it is pointed at, within the link to the page."""
        title = f"<title>{escape(self.says)}</title>"
        if self.address is None:
            return f"<g>{title}{text}</g>"
        return f'<a href="{escape(self.address)}">{title}{text}</a>'


@dataclass
class _SvgPen:
    """Writes the elements of the SVG; every text and address is escaped here."""

    links: BoxLinks
    elements: list[str] = field(default_factory=list)

    def lesson(self, name: str) -> _BoxName | None:
        if not name:
            return None
        return _BoxName(f"regard lesson {name}", self.links.of_lesson(name))

    def owner(self, owner: type | None) -> _BoxName | None:
        if owner is None:
            return None
        return _BoxName(public_name(owner), self.links.of_class(owner))

    def text(self, x: float, y: float, text: str, kind: str, name: _BoxName | None = None) -> None:
        written = f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(visible(text))}</text>'
        self.elements.append(written if name is None else name.around(written))

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        # A frame lies below what was drawn inside it.
        where = 0 if kind == "frame" else len(self.elements)
        self.elements.insert(where, f'<rect {place} rx="4" class="{kind}"/>')

    def line(self, x: float, y: float, x_end: float, y_end: float, *, arrow: bool = False) -> None:
        self.path(f"M{x:g} {y:g}L{x_end:g} {y_end:g}", "line", arrow=arrow)

    def path(self, steps: str, kind: str, *, arrow: bool = False) -> None:
        marker = f' marker-end="url(#regard-arrow-{kind})"' if arrow else ""
        self.elements.append(f'<path d="{steps}" class="{kind}"{marker}/>')

    def dot(self, x: float, y: float) -> None:
        self.elements.append(f'<circle cx="{x:g}" cy="{y:g}" r="2" class="dot"/>')

    def plus(self, x: float, y: float) -> None:
        self.elements.append(f'<circle cx="{x:g}" cy="{y:g}" r="7" class="plus"/>')
        self.path(f"M{x - 4:g} {y:g}H{x + 4:g}M{x:g} {y - 4:g}V{y + 4:g}", "line")

    def badge(self, x: float, y: float, letter: str) -> None:
        circle = f'<circle cx="{x:g}" cy="{y:g}" r="{BADGE:g}" fill="{ROLES[letter]}"/>'
        self.elements.append(circle)
        self.text(x, y + 4, letter, "badge")

    def svg(self, width: float, height: float, description: str) -> str:
        """The whole picture."""
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" class="architecture" '
            f'style="max-width: {LARGEST * width:g}px" role="group" aria-label="{escape(description)}">'
        )
        markers = "".join(_marker(kind) for kind in ("line", "context"))
        paper = f'<rect width="{width:g}" height="{height:g}" class="paper"/>'
        parts = [opening, f"<style>{_style()}</style>", f"<defs>{markers}</defs>", paper]
        return "\n".join([*parts, *self.elements, "</svg>"]) + "\n"


def _marker(kind: str) -> str:
    return (
        f'<marker id="regard-arrow-{kind}" viewBox="0 0 6 6" refX="5.5" refY="3" markerWidth="6" markerHeight="6" '
        f'orient="auto"><path d="M0 0L6 3L0 6z" class="head-{kind}"/></marker>'
    )


# Written once, for both schemes; the colours follow.
SHAPES = """
.architecture { display: block; height: auto; margin: 0 auto; width: 100%; }
.architecture text { font-family: system-ui, sans-serif; font-size: 12px; text-anchor: middle; }
.architecture .title { font-size: 14px; font-weight: 600; }
.architecture .heading { font-size: 13.5px; font-weight: 600; }
.architecture .name { font-weight: 600; }
.architecture .owner { font-family: ui-monospace, monospace; font-size: 11.5px; }
.architecture .first { text-anchor: start; }
.architecture .last { text-anchor: end; }
.architecture .badge { font-size: 11.5px; font-weight: 600; }
.architecture .line, .architecture .context { fill: none; stroke-width: 1.3; }
.architecture .context { stroke-width: 1.8; }
.architecture rect { stroke-width: 1; }
.architecture .paper { stroke: none; }
.architecture g { cursor: help; }
.architecture a { text-decoration: none; }
.architecture a:hover text, .architecture a:focus text { text-decoration: underline; }
"""


def _style() -> str:
    """Shapes, and the colours of both schemes: by the viewer's wish, or as a page around the picture has chosen."""
    palette = json.loads(files("regard_lab.seeing").joinpath("palette.json").read_text("utf-8"))
    light = _colours("", palette, "light")
    dark = _colours("", palette, "dark")
    chosen_light = _colours('[data-md-color-scheme="default"] ', palette, "light")
    chosen_dark = _colours('[data-md-color-scheme="slate"] ', palette, "dark")
    by_wish = f"@media (prefers-color-scheme: dark) {{\n{dark}}}\n"
    return f"{SHAPES}{light}{by_wish}{chosen_light}{chosen_dark}"


def _colours(scope: str, palette: dict[str, Any], scheme: str) -> str:
    """The rules that give every kind of element its colour in a scheme, within elements of `scope`."""
    page = palette["page"][scheme]
    weights = palette["weights"][scheme]
    rules = {
        "text": f"fill: {page['ink']}",
        ".detail, {}.note": f"fill: {page['faint']}",
        "a .name, {}a .heading, {}a .owner": f"fill: {page['accent']}",
        ".badge": "fill: #ffffff",
        ".paper": f"fill: {page['paper']}",
        ".plain, {}.norm, {}.feed-forward": f"fill: {page['panel']}; stroke: {page['edge']}",
        ".attention": f"fill: {weights[1]}; stroke: {page['edge']}",
        ".frame": f"fill: none; stroke: {page['edge']}; stroke-dasharray: 4 3",
        ".line": f"stroke: {page['faint']}",
        ".context": f"stroke: {page['depends']}",
        ".plus": f"fill: {page['paper']}; stroke: {page['faint']}",
        ".dot, {}.head-line": f"fill: {page['faint']}; stroke: none",
        ".head-context": f"fill: {page['depends']}; stroke: none",
    }
    where = f"{scope}.architecture "
    lines = [f"{where}{kind.format(where, where)} {{ {rule}; }}" for kind, rule in rules.items()]
    return "\n".join(lines) + "\n"
