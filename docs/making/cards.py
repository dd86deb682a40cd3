"""The picture on the card of each lesson, drawn for its size: one idea, in the colours of the lessons' figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from regard_lab.seeing.palette import EDGES, FAINT, INK, KEY, LINES, PALE, QUERY, VALUE

WIDTH, HEIGHT = 240, 160
BLUE, ORANGE, GREEN, PINK = LINES[:4]
LETTER = 14  # pixels of the letters; no card is shown smaller than half of its size
CELL = 18

Point = tuple[float, float]
Drawing = Callable[[], Iterable[str]]
DRAWINGS: dict[str, Drawing] = {}


def card(lesson: str) -> str:
    """The picture of a lesson as SVG.

    Raises:
        KeyError: no picture is drawn for this lesson.
    """
    if lesson not in DRAWINGS:
        raise KeyError(f"the lesson {lesson!r} has no card: draw one in docs/making/cards.py")
    parts = "\n".join(DRAWINGS[lesson]())
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    size = f' width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif">'
    return (
        f'{head}{size}\n<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{parts}\n</svg>\n'
    )


def drawn(lesson: Drawing) -> Drawing:
    """Register a function as the card of the lesson of its name."""
    DRAWINGS[lesson.__name__] = lesson
    return lesson


def box(x: float, y: float, width: float, height: float, fill: str, edge: str = "none") -> str:
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} rx="2" fill="{fill}" stroke="{edge}" stroke-width="1.5"/>'


def word(x: float, y: float, text: str, colour: str = INK) -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="middle"'
    return f'<text {place} font-size="{LETTER}" fill="{colour}">{escape(text)}</text>'


def line(points: Sequence[Point], colour: str = INK, width: float = 1.5) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def arrow(start: Point, end: Point, colour: str = INK) -> str:
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    tips = [
        (end[0] - 7 * math.cos(angle + turn), end[1] - 7 * math.sin(angle + turn))
        for turn in (-0.5, 0.5)
    ]
    return line([start, end], colour) + line([tips[0], end, tips[1]], colour)


def arc(start: Point, end: Point, colour: str = INK, width: float = 1.5) -> str:
    """A link above two words of one line."""
    top = start[1] - 0.45 * abs(end[0] - start[0])
    bend = f"C{start[0]:g},{top:g} {end[0]:g},{top:g} {end[0]:g},{end[1]:g}"
    path = f"M{start[0]:g},{start[1]:g} {bend}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def cells(
    x: float, y: float, rows: int, columns: int, fill: Callable[[int, int], str], size: float = CELL
) -> list[str]:
    """A map; `fill` gives the colour of the cell in a row and a column."""
    made = []
    for row in range(rows):
        for column in range(columns):
            made.append(
                box(x + size * column, y + size * row, size - 2, size - 2, fill(row, column))
            )
    return made


def chosen(allowed: Callable[[int, int], bool], colour: str = BLUE) -> Callable[[int, int], str]:
    return lambda row, column: colour if allowed(row, column) else EDGES


def shade(weight: float, colour: str = BLUE) -> str:
    """A colour mixed with white: 1 is the colour, 0 is white."""
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(255 + (part - 255) * weight):02x}" for part in parts)


@drawn
def one_sentence() -> Iterable[str]:
    for place, (text, width) in enumerate((("Life", 8), ("is", 2), ("short", 4))):
        x = 45 + 75 * place
        yield line([(x, 112), (120, 48)], BLUE, width)
        yield box(x - 26, 112, 52, 26, "white", FAINT)
        yield word(x, 130, text)
    yield box(86, 22, 68, 28, VALUE)
    yield word(120, 41, "context", "white")


@drawn
def recurrent() -> Iterable[str]:
    for place in range(5):
        x = 28 + 42 * place
        yield box(x - 10, 22, 20, 20, ORANGE)
        if place:
            yield arrow((x - 30, 32), (x - 12, 32))
        for column in range(5):
            yield line([(x, 92), (28 + 42 * column, 128)], shade(0.5), 1)
    for place in range(5):
        yield box(18 + 42 * place, 78, 20, 20, BLUE)
        yield box(18 + 42 * place, 124, 20, 20, BLUE)


@drawn
def fixed_vector() -> Iterable[str]:
    for place in range(6):
        y = 18 + 22 * place
        yield line([(44, y + 8), (108, 80)], FAINT, 1)
        yield line([(132, 80), (196, y + 8)], FAINT, 1)
        yield box(20, y, 24, 16, BLUE)
        yield box(196, y, 24, 16, GREEN)
    yield box(106, 64, 28, 32, ORANGE)


@drawn
def alignment() -> Iterable[str]:
    order = (0, 2, 1, 3, 4)
    yield from cells(
        66, 22, 5, 5, lambda row, column: shade(max(0.05, 1 - 0.45 * abs(order[row] - column))), 24
    )


@drawn
def scale() -> Iterable[str]:
    for place, (sharp, flat) in enumerate(((2, 18), (90, 42), (4, 26), (2, 14))):
        yield box(24 + 20 * place, 122 - sharp, 16, sharp, ORANGE)
        yield box(144 + 20 * place, 122 - flat, 16, flat, BLUE)
    yield word(62, 146, "q·k")
    yield word(182, 146, "q·k / √d")


@drawn
def positions() -> Iterable[str]:
    for number, (waves, colour) in enumerate(((6, BLUE), (3, ORANGE), (1.2, GREEN))):
        middle = 32 + 48 * number
        points = [
            (16 + step, middle - 18 * math.sin(2 * math.pi * waves * step / 208))
            for step in range(0, 209, 2)
        ]
        yield line(points, colour, 2.5)


@drawn
def causal() -> Iterable[str]:
    yield from cells(57, 17, 6, 6, chosen(lambda row, column: column <= row), 21)


@drawn
def cross() -> Iterable[str]:
    for query in range(3):
        for key in range(5):
            width = 5 if key == 2 * query else 1
            yield line([(50 + 70 * query, 46), (32 + 44 * key, 112)], shade(0.6, FAINT), width)
    for query in range(3):
        yield box(34 + 70 * query, 24, 32, 24, QUERY)
    for key in range(5):
        yield box(16 + 44 * key, 110, 32, 24, KEY)


@drawn
def one_head() -> Iterable[str]:
    for head, colour in enumerate((BLUE, ORANGE, GREEN, PINK)):
        x, y = 128 + 52 * (head % 2), 28 + 54 * (head // 2)
        looked = {
            0: lambda r, c: c == r,
            1: lambda r, c: c == max(r - 1, 0),
            2: lambda r, c: c == 0,
            3: lambda r, c: c == 3 - r,
        }
        yield from cells(x, y, 4, 4, chosen(looked[head], colour), 12)
    yield from cells(
        16, 32, 4, 4, lambda row, column: shade((0.3, 0.5, 0.4)[(row + 2 * column) % 3], INK), 25
    )


@drawn
def subwords() -> Iterable[str]:
    for y, pieces in ((34, ("Straß", "e")), (92, ("Straßen", "bahn"))):
        x = 24.0
        for number, piece in enumerate(pieces):
            width = 14 + 10 * len(piece)
            yield box(x, y, width, 34, (PALE, shade(0.3, ORANGE))[number])
            yield word(x + width / 2, y + 22, piece)
            x += width + 6


@drawn
def encoder() -> Iterable[str]:
    yield arrow((120, 152), (120, 10))
    yield box(66, 94, 108, 30, PALE, BLUE)
    yield word(120, 114, "attention")
    yield box(66, 36, 108, 30, shade(0.25, ORANGE), ORANGE)
    yield word(120, 56, "feed-forward")
    for top, bottom in ((82, 138), (24, 80)):
        yield line([(120, bottom), (196, bottom), (196, top)], FAINT)
        yield arrow((196, top), (126, top), FAINT)


@drawn
def decoder() -> Iterable[str]:
    sentence = ("The", "dog", "was", "tired")
    for row in range(4):
        for place in range(row + 1):
            newest = place == row
            x, y = 18 + 52 * place, 16 + 34 * row
            yield box(
                x,
                y,
                48,
                28,
                "white" if not newest else shade(0.25, ORANGE),
                ORANGE if newest else EDGES,
            )
            yield word(x + 24, y + 19, sentence[place])


@drawn
def norms() -> Iterable[str]:
    """Both places of the norm: after the sum, and before the part."""
    for x, parts in ((64, ("norm", "+", "part")), (176, ("+", "part", "norm"))):
        yield arrow((x, 150), (x, 10))
        for row, part in enumerate(parts):
            y = 28 + 38 * row
            if part == "+":
                yield f'<circle cx="{x}" cy="{y + 13}" r="11" fill="white" stroke="{INK}"/>'
                yield word(x, y + 18, "+")
            else:
                pale, edge = (shade(0.25, ORANGE), ORANGE) if part == "norm" else (PALE, BLUE)
                yield box(x - 30, y, 60, 26, pale, edge)
                yield word(x, y + 18, part)
        # the residual connection, from the input of the layer to the sum
        height = 28 + 38 * parts.index("+") + 13
        yield line([(x, 142), (x + 42, 142), (x + 42, height)], FAINT)
        yield arrow((x + 42, height), (x + 12, height), FAINT)


@drawn
def translation() -> Iterable[str]:
    for x, title, colour, below in ((20, "encoder", BLUE, "it"), (136, "decoder", GREEN, "es")):
        yield box(x, 34, 84, 64, shade(0.2, colour), colour)
        yield word(x + 42, 71, title)
        yield word(x + 42, 140, below)
        yield arrow((x + 42, 124), (x + 42, 100))
    yield arrow((104, 66), (134, 66), INK)
    yield arrow((178, 34), (178, 12))


@drawn
def heads() -> Iterable[str]:
    looks = [
        lambda row, column: column == row,
        lambda row, column: column == max(row - 1, 0),
        lambda row, column: column == min(row + 1, 4),
        lambda row, column: column == 0,
        lambda row, column: column == 4,
        lambda row, column: abs(row - column) < 2,
    ]
    for number, look in enumerate(looks):
        yield from cells(18 + 72 * (number % 3), 16 + 68 * (number // 3), 5, 5, chosen(look), 12)


@drawn
def referent() -> Iterable[str]:
    yield arc((196, 104), (48, 104), BLUE, 6)
    yield arc((196, 104), (122, 104), shade(0.5, FAINT), 1.5)
    for x, text in ((48, "animal"), (122, "street"), (196, "it")):
        yield word(x, 124, text)


@drawn
def generation() -> Iterable[str]:
    def fill(row: int, column: int) -> str:
        if column > row:
            return "white"
        return ORANGE if column == row else shade(0.45)

    yield from cells(57, 17, 6, 6, fill, 21)


@drawn
def sampling() -> Iterable[str]:
    for place, height in enumerate((104, 62, 38, 22, 12, 7, 4)):
        yield box(22 + 29 * place, 132 - height, 24, height, BLUE if place < 3 else EDGES)
    yield line([(107, 16), (107, 144)], ORANGE, 2.5)


@drawn
def grouped() -> Iterable[str]:
    for head in range(8):
        x = 18 + 26 * head
        yield line([(x + 11, 46), (69 + 104 * (head // 4), 108)], FAINT, 1)
        yield box(x, 26, 22, 22, QUERY)
    for group in range(2):
        yield box(46 + 104 * group, 106, 22, 26, KEY)
        yield box(70 + 104 * group, 106, 22, 26, VALUE)


@drawn
def latent() -> Iterable[str]:
    for part in range(8):
        yield box(24, 16 + 16 * part, 34, 14, FAINT)
        yield box(182, 16 + 16 * part, 34, 14, KEY if part < 4 else VALUE)
    for part in range(2):
        yield box(103, 64 + 16 * part, 34, 14, ORANGE)
    yield arrow((64, 79), (98, 79))
    yield arrow((142, 79), (177, 79))


@drawn
def windows() -> Iterable[str]:
    for layer in range(4):
        for place in range(9):
            seen = abs(place - 4) <= 3 - layer
            yield box(20 + 23 * place, 122 - 34 * layer, 17, 17, BLUE if seen else EDGES)
            if seen and layer:
                for step in (-1, 0, 1):
                    x = 28.5 + 23 * place
                    yield line([(x, 139 - 34 * layer), (x + 23 * step, 156 - 34 * layer)], BLUE, 1)


@drawn
def sparse() -> Iterable[str]:
    drawn_at_random = {(1, 6), (3, 8), (5, 2), (6, 9), (8, 3), (9, 5)}

    def fill(row: int, column: int) -> str:
        if abs(row - column) < 2:
            return BLUE
        if row == 0 or column == 0:
            return ORANGE
        return GREEN if (row, column) in drawn_at_random else EDGES

    yield from cells(55, 15, 10, 10, fill, 13)


@drawn
def choosing() -> Iterable[str]:
    for block in range(6):
        x, taken = 16 + 36 * block, block in (1, 4)
        if taken:
            yield line([(120, 52), (x + 14, 100)], KEY, 3)
        for key in range(3):
            yield box(x, 100 + 14 * key, 28, 12, KEY if taken else EDGES)
    yield box(104, 22, 32, 30, QUERY)
    yield word(120, 42, "q", "white")


@drawn
def linear() -> Iterable[str]:
    yield from cells(22, 30, 6, 6, lambda row, column: shade(0.4, ORANGE), 15)
    yield word(66, 142, "n × n")
    yield from cells(160, 60, 2, 2, lambda row, column: BLUE, 15)
    yield word(174, 142, "d × d")
    yield arrow((122, 74), (148, 74))


@drawn
def overwriting() -> Iterable[str]:
    for row, (key, old, new) in enumerate((("cat", "3", "7"), ("dog", "5", ""), ("cow", "2", ""))):
        y = 20 + 42 * row
        yield box(28, y, 74, 34, shade(0.2, KEY), KEY)
        yield word(65, y + 22, key)
        yield box(108, y, 104, 34, shade(0.2, VALUE), VALUE)
        yield word(140, y + 22, old, FAINT if new else INK)
        if new:
            yield line([(130, y + 17), (150, y + 17)], ORANGE, 2.5)
            yield word(180, y + 22, new)


@drawn
def approximations() -> Iterable[str]:
    weights = ((9, 1, 0, 0), (3, 6, 1, 0), (0, 2, 7, 1), (1, 0, 3, 6))
    noise = ((-3, 2, 1, 1), (1, -2, 2, 1), (2, 1, -3, 1), (1, 2, -1, -2))
    yield from cells(
        16, 40, 4, 4, lambda row, column: shade(max(0.06, weights[row][column] / 9)), 22
    )
    yield from cells(
        140,
        40,
        4,
        4,
        lambda row, column: shade(
            max(0.06, (weights[row][column] + noise[row][column]) / 9), ORANGE
        ),
        22,
    )
    yield f'<text x="120" y="90" text-anchor="middle" font-size="24" fill="{INK}">≈</text>'


@drawn
def complexity() -> Iterable[str]:
    yield line([(30, 14), (30, 134), (222, 134)], FAINT)
    steps = [step / 40 for step in range(41)]
    yield line([(30 + 160 * step, 134 - 112 * step**2) for step in steps], ORANGE, 3)
    yield line([(30 + 160 * step, 134 - 44 * step) for step in steps], BLUE, 3)
    yield word(206, 30, "n²", ORANGE)
    yield word(206, 94, "n", BLUE)


@drawn
def relations() -> Iterable[str]:
    places = {"the": 36, "old": 88, "cat": 140, "slept": 200}
    for start, end, colour in (
        ("the", "cat", GREEN),
        ("old", "cat", ORANGE),
        ("slept", "cat", BLUE),
    ):
        yield arc((places[start], 98), (places[end], 98), colour, 3)
    for text, x in places.items():
        yield word(x, 118, text)


@drawn
def answer_head() -> Iterable[str]:
    right = (2, 0, 4, 1, 3)
    yield from cells(
        60, 20, 5, 5, lambda row, column: shade(0.85 if right[row] == column else 0.12), 24
    )
    for row, column in enumerate(right):
        yield box(59 + 24 * column, 19 + 24 * row, 24, 24, "none", ORANGE)


@drawn
def transfer() -> Iterable[str]:
    for part in range(4):
        y = 24 + 30 * part
        yield box(30, y, 66, 24, shade(0.5) if part else EDGES)
        yield box(144, y, 66, 24, shade(0.5) if part else ORANGE)
        if part:
            yield arrow((100, y + 12), (138, y + 12))


@drawn
def caption() -> Iterable[str]:
    yield box(75, 12, 90, 90, shade(0.25))
    yield f'<circle cx="120" cy="57" r="30" fill="{ORANGE}"/>'
    yield arrow((84, 126), (104, 70))
    yield arrow((140, 126), (132, 90))
    for x, text, colour in ((52, "a", INK), (84, "red", ORANGE), (142, "circle", INK)):
        yield word(x, 142, text, colour)


@drawn
def imprecise() -> Iterable[str]:
    for row, (length, wrong) in enumerate(((176, False), (120, True), (196, False), (92, False))):
        yield box(22, 26 + 32 * row, length, 10, ORANGE if wrong else EDGES)
    yield line([(16, 63), (150, 63)], INK, 2)
    yield f'<text x="172" y="72" font-size="28" fill="{ORANGE}">?</text>'
