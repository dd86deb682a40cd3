"""Small pictures that a caption describes, and the caption that a picture shows.

A caption names two things and where the first one stands: "a red circle left of a blue square". A picture has
12 x 12 pixels; each thing has 5 x 5 of them and is moved by up to one pixel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
WORDS = ("a", *COLOURS, *SHAPES, "left", "right", "of", "above", "below")
MOST_WORDS = 8
SIDE = 12  # pixels of a picture
THING = 5  # pixels of a thing
THINGS = tuple(product(COLOURS, SHAPES))
MOVES = tuple(product((0, 1), repeat=4))  # along and across, of the first thing and of the second
NAMED = f"a ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
FORM = re.compile(f"{NAMED} ({'|'.join(OPPOSITE)}) {NAMED}")


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
    def words(self) -> list[str]:
        """The words, 7 or 8."""
        return str(self).split()

    @property
    def reversed(self) -> Caption:
        """The caption that describes the same picture from the second thing."""
        return Caption(self.second, OPPOSITE[self.relation], self.first)

    @property
    def scene(self) -> Caption:
        """The one of the two captions of a picture that says "left of" or "above".

        >>> str(read_caption("a red circle below a blue square").scene)
        'a blue square above a red circle'
        """
        if self.relation in ("left of", "above"):
            return self
        return self.reversed

    @property
    def held_out(self) -> bool:
        """Whether the picture is of the sixth that no model is trained on.

        Each thing occurs equally often on each side of both relations, so a model has seen every thing and every
        relation, but not these pairs of things.
        """
        # From the second thing to the first in a circle of all things, both of these distances
        # are held out, so that the caption and its reverse agree.
        shift = 4 if self.scene.relation == "left of" else 1
        distance = THINGS.index(self.first) - THINGS.index(self.second)
        return distance % len(THINGS) in (shift, len(THINGS) - shift)

    def change_word(self, part: str) -> tuple[Caption, str, str]:
        """The caption with one word replaced, with the old word and the new one.

        The "colour" or the "shape" of the first thing becomes the next one that neither thing has, if there is one;
        the "relation" becomes the opposite.

        >>> caption, old, new = read_caption("a red circle left of a blue square").change_word("colour")
        >>> f"{old} -> {new}: {caption}"
        'red -> green: a green circle left of a blue square'
        """
        if part == "relation":
            opposite = OPPOSITE[self.relation]
            edited = replace(self, relation=opposite)
            return edited, self.relation.split()[0], opposite.split()[0]

        colour, shape = self.first
        colour_of_second, shape_of_second = self.second
        if part == "colour":
            new_colour = _next_name(list(COLOURS), colour, colour_of_second)
            return replace(self, first=(new_colour, shape)), colour, new_colour
        new_shape = _next_name(list(SHAPES), shape, shape_of_second)
        return replace(self, first=(colour, new_shape)), shape, new_shape


def _next_name(names: list[str], name: str, avoided: str) -> str:
    """The first of the names after `name`, in a circle, that is not the avoided one, if there is one."""
    place = names.index(name)
    following = [*names[place + 1 :], *names[:place]]
    allowed = [name for name in following if name != avoided]
    return allowed[0] if allowed else following[0]


def read_caption(text: str) -> Caption:
    """Read a caption from text; upper case and repeated spaces do not matter."""
    words = text.lower().split()
    form = FORM.fullmatch(" ".join(words))
    if form is None:
        unknown = [repr(word) for word in words if word not in WORDS]
        reason = "that is of another form"
        if unknown:
            reason = f"it does not know {', '.join(unknown[:5])}"
        raise ArgumentError(
            f"this lesson draws captions such as 'a red circle left of a blue square', and {reason}; colours: "
            f"{', '.join(COLOURS)}; shapes: {', '.join(SHAPES)}; between the two things: {', '.join(OPPOSITE)}"
        )

    first_colour, first_shape, relation, second_colour, second_shape = form.groups()
    return Caption((first_colour, first_shape), relation, (second_colour, second_shape))


SCENES = tuple(
    Caption(first, relation, second)
    for relation, first, second in product(("left of", "above"), THINGS, THINGS)
)


def draw_scene(scene: Caption, moves: Sequence[int] = (0, 0, 0, 0)) -> torch.Tensor:
    """The picture of a scene, (3, 12, 12), with pixels in -1 .. 1, where 1 is white."""
    first_along, first_across, second_along, second_across = moves
    picture = torch.ones(3, SIDE, SIDE)
    _draw_thing(picture, scene.first, scene.relation, first_along, 3 + first_across)
    _draw_thing(picture, scene.second, scene.relation, 6 + second_along, 3 + second_across)
    return picture


def _draw_thing(
    picture: torch.Tensor, thing: tuple[str, str], relation: str, along: int, across: int
) -> None:
    """Draw a thing at a distance along the line through both things and one across it, in pixels."""
    colour, shape = thing
    left, top = (along, across) if relation == "left of" else (across, along)
    pixels = "".join(SHAPES[shape])
    inside = torch.tensor([pixel == "#" for pixel in pixels]).view(THING, THING)
    # A view: drawing in it draws in the picture.
    box = picture[:, top : top + THING, left : left + THING]
    for channel, value in zip(box, COLOURS[colour], strict=True):
        channel[inside] = 2 * value - 1


@cache
def _every_picture() -> torch.Tensor:
    """All scenes with all moves, (scenes * moves, pixels)."""
    pictures = [draw_scene(scene, moves).flatten() for scene, moves in product(SCENES, MOVES)]
    return torch.stack(pictures).double()


def nearest_scenes(pictures: torch.Tensor) -> list[Caption]:
    """The scene that each picture (n, 3, 12, 12) shows: that of the nearest picture that can be drawn."""
    pixels = pictures.detach().double().flatten(1)
    nearest = torch.cdist(pixels, _every_picture()).argmin(-1)
    return [SCENES[place // len(MOVES)] for place in nearest.tolist()]


def word_numbers(captions: list[Caption]) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of the words, (captions, 8), and how many words each caption has, (captions,)."""
    numbers = torch.zeros(len(captions), MOST_WORDS, dtype=torch.long)
    counts = torch.zeros(len(captions), dtype=torch.long)
    for row, caption in enumerate(captions):
        of_caption = torch.tensor([WORDS.index(word) for word in caption.words])
        numbers[row, : len(of_caption)] = of_caption
        counts[row] = len(of_caption)
    return numbers, counts
