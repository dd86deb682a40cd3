"""Small pictures that a caption describes: words, drawing, and which caption a picture shows.

A caption names two things and where the first one stands: "a red circle left of a blue square". A picture has
12 x 12 pixels; each thing has 5 x 5 of them and is moved by up to one pixel. What a picture shows is decided by the
nearest of all pictures that can be drawn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch

from regard.errors import ArgumentError

COLOURS = {
    "red": (0.835, 0.369, 0.0),
    "blue": (0.0, 0.447, 0.698),
    "green": (0.0, 0.62, 0.451),
    "yellow": (0.941, 0.894, 0.259),
}
SHAPES = {
    "circle": (".###.", "#...#", "#...#", "#...#", ".###."),
    "square": ("#####", "#####", "#####", "#####", "#####"),
    "triangle": ("..#..", "..#..", ".###.", ".###.", "#####"),
}
OPPOSITE = {"left of": "right of", "above": "below", "right of": "left of", "below": "above"}
RELATIONS = tuple(OPPOSITE)
WORDS = ("a", *COLOURS, *SHAPES, "left", "right", "of", "above", "below")
MOST_WORDS = 8
SIDE, THING = 12, 5  # pixels of a picture, and of a thing
THINGS = tuple(product(COLOURS, SHAPES))
MOVES = (0, 1)
FORM = re.compile(rf"a ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)}) ({'|'.join(RELATIONS)}) "
                  rf"a ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})")  # fmt: skip


@dataclass(frozen=True)
class Caption:
    """Two things, each a colour and a shape, and where the first stands relative to the second.

    >>> str(Caption(("red", "circle"), "left of", ("blue", "square")))
    'a red circle left of a blue square'
    """

    first: tuple[str, str]
    relation: str
    second: tuple[str, str]

    def __str__(self) -> str:
        return f"a {' '.join(self.first)} {self.relation} a {' '.join(self.second)}"

    @property
    def words(self) -> tuple[str, ...]:
        """The words, 7 or 8."""
        return tuple(str(self).split())

    @property
    def reversed(self) -> Caption:
        """The caption that describes the same picture from the second thing.

        >>> str(read_caption("a red circle above a blue square").reversed)
        'a blue square below a red circle'
        """
        return Caption(self.second, OPPOSITE[self.relation], self.first)

    @property
    def scene(self) -> Caption:
        """The one of the two captions of a picture that says "left of" or "above"."""
        return self if self.relation in ("left of", "above") else self.reversed


def read_caption(text: str) -> Caption:
    """Read a caption from text; upper case and repeated spaces do not matter.

    Raises:
        ArgumentError: a text of another form, or with unknown words; the message lists the known ones.

    >>> read_caption("A red circle  left of a blue square").relation
    'left of'
    """
    form = FORM.fullmatch(" ".join(text.lower().split()))
    if form is None:
        unknown = [word for word in text.lower().split() if word not in WORDS]
        reason = f"it does not know {', '.join(map(repr, unknown[:5]))}" if unknown else "that is of another form"
        raise ArgumentError(
            f"this lesson draws captions such as 'a red circle left of a blue square', and {reason}; colours: "
            f"{', '.join(COLOURS)}; shapes: {', '.join(SHAPES)}; between the two things: {', '.join(RELATIONS)}"
        )
    colour, shape, relation, other_colour, other_shape = form.groups()
    return Caption((colour, shape), relation, (other_colour, other_shape))


PARTS = ("colour", "shape", "relation")


def changed(caption: Caption, part: str) -> tuple[Caption, str, str]:
    """The caption with one word replaced, with the old word and the new one.

    The colour or the shape of the first thing becomes the next one that neither thing has, if there is one; "left"
    becomes "right", "above" becomes "below", and the reverse.

    >>> caption, old, new = changed(read_caption("a red circle left of a blue square"), "colour")
    >>> f"{old} -> {new}: {caption}"
    'red -> green: a green circle left of a blue square'
    """
    if part == "relation":
        turned = Caption(caption.first, OPPOSITE[caption.relation], caption.second)
        return turned, caption.relation.split()[0], turned.relation.split()[0]
    place = PARTS.index(part)
    names = tuple((COLOURS, SHAPES)[place])
    old, other = caption.first[place], caption.second[place]
    following = names[names.index(old) + 1 :] + names[: names.index(old)]
    new = next((name for name in following if name != other), following[0])
    first = (new, caption.first[1]) if part == "colour" else (caption.first[0], new)
    return Caption(first, caption.relation, caption.second), old, new


@cache
def every_scene() -> tuple[Caption, ...]:
    """All pictures up to their moves, each once: 2 relations of 12 x 12 pairs of things."""
    every = product(("left of", "above"), THINGS, THINGS)
    return tuple(Caption(first, relation, second) for relation, first, second in every)


@cache
def held_out_scenes() -> tuple[Caption, ...]:
    """The sixth of all scenes that no model is trained on.

    Each thing occurs equally often on each side of both relations, so a model has seen every thing and every relation,
    but not these pairs of things.
    """
    numbers = range(len(THINGS))
    chosen = {
        (relation, first, second)
        for relation, shift in (("left of", 4), ("above", 1))
        for first in numbers
        for second in ((first + shift) % len(THINGS), (first - shift) % len(THINGS))
    }
    return tuple(
        scene
        for scene in every_scene()
        if (scene.relation, THINGS.index(scene.first), THINGS.index(scene.second)) in chosen
    )


@cache
def trained_scenes() -> tuple[Caption, ...]:
    """The scenes that models are trained on: all that are not held out."""
    held_out = set(held_out_scenes())
    return tuple(scene for scene in every_scene() if scene not in held_out)


def word_numbers(captions: list[Caption]) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of the words, (captions, 8), and how many words each caption has, (captions,)."""
    rows = [[WORDS.index(word) for word in caption.words] for caption in captions]
    padded = [row + [0] * (MOST_WORDS - len(row)) for row in rows]
    return torch.tensor(padded), torch.tensor([len(row) for row in rows])


@cache
def _stamps() -> torch.Tensor:
    """The things as colour minus white, (things, 3, 5, 5), with pixels in -1 .. 1."""
    stamps = []
    for colour, shape in THINGS:
        inked = torch.tensor([[pixel == "#" for pixel in row] for row in SHAPES[shape]])
        stamps.append(inked * (2 * torch.tensor(COLOURS[colour]) - 2)[:, None, None])
    return torch.stack(stamps)


def corner(relation: str, second: bool, along: int, across: int) -> tuple[int, int]:
    """Row and column of the upper left pixel of a thing in a scene, with its moves."""
    a, b = SIDE // 2 * second + along, 3 + across
    return (b, a) if relation == "left of" else (a, b)


def drawn(scene: Caption, moves: tuple[int, int, int, int] = (0, 0, 0, 0)) -> torch.Tensor:
    """The picture of a scene, (3, 12, 12), where 1 is white; moves along and across, of the first thing and the second.

    >>> drawn(every_scene()[0]).shape
    torch.Size([3, 12, 12])
    """
    picture = torch.ones(3, SIDE, SIDE)
    for thing, second, along, across in ((scene.first, 0, *moves[:2]), (scene.second, 1, *moves[2:])):
        row, column = corner(scene.relation, bool(second), along, across)
        picture[:, row : row + THING, column : column + THING] += _stamps()[THINGS.index(thing)]
    return picture


def draw_batch(captions: list[Caption], generator: torch.Generator) -> torch.Tensor:
    """A picture for each caption with random moves, (captions, 3, 12, 12)."""
    moves = torch.randint(2, (len(captions), 4), generator=generator).tolist()
    return torch.stack([drawn(caption.scene, tuple(move)) for caption, move in zip(captions, moves, strict=True)])


def shown(pictures: torch.Tensor) -> list[tuple[Caption, float]]:
    """The scene that each picture shows and how far it is from it, of pictures (n, 3, 12, 12).

    That is the scene of the nearest picture that can be drawn (all things, all moves), by squared difference; the
    distance is the root of the mean squared difference of the pixels. Things do not overlap, so each is chosen by
    itself.
    """
    pictures = pictures.detach().double()
    ink = pictures - 1  # 0 where it is white
    best: dict[str, tuple[torch.Tensor, list[torch.Tensor]]] = {}
    for relation in ("left of", "above"):
        things, total = [], ink.square().sum((1, 2, 3))
        for second in (False, True):
            gain, thing = _best_thing(ink, relation, second)
            things.append(thing)
            total = total - gain
        best[relation] = total, things
    results = []
    for number in range(len(pictures)):
        relation = min(best, key=lambda one: float(best[one][0][number]))
        total, things = best[relation]
        first, second = (THINGS[int(thing[number])] for thing in things)
        distance = float(total[number].clamp_min(0) / ink[0].numel()) ** 0.5
        results.append((Caption(first, relation, second), distance))
    return results


def _best_thing(ink: torch.Tensor, relation: str, second: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """How much the best thing in one half explains of the ink, (n,), and its number in THINGS, (n,)."""
    stamps = _stamps().double().flatten(1)  # (things, pixels)
    gains = []
    for along, across in product(MOVES, MOVES):
        row, column = corner(relation, second, along, across)
        patch = ink[:, :, row : row + THING, column : column + THING].flatten(1)  # (n, pixels)
        gains.append(2 * patch @ stamps.mT - stamps.square().sum(-1))  # |patch|² - |patch - stamp|²
    return torch.stack(gains).amax(0).max(-1)
