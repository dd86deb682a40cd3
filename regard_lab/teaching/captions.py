"""Small pictures that a caption describes, the caption that a picture shows, and a denoiser that draws captions.

A caption names two things and where the first one stands: "a red circle left of a blue square". A picture has
12 x 12 pixels; each thing has 5 x 5 of them and is moved by up to one pixel.

The denoiser is given cos(a) · picture + sin(a) · noise at angle a, and returns its estimate of the picture. Sampling
starts with noise alone (a = 90°) and turns the angle down to 0 in a few steps.

Source: Denoising Diffusion Implicit Models, Song et al. 2021, equation 12 with no new noise; angles: Progressive
Distillation, Salimans and Ho 2022, appendix D; cross-attention to words: Rombach et al. 2022, section 3.3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product

import torch
import torch.nn.functional as F
from torch import nn

from regard.errors import ArgumentError
from regard.layers import FeedForward, MultiHeadAttention
from regard.patterns import KeySpan
from regard.positions import Sinusoidal
from regard.storage.tensors import load_tensors
from regard_lab.teaching.report import REPORTS, read_report

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
        return self if self.relation in ("left of", "above") else self.reversed

    @property
    def held_out(self) -> bool:
        """Whether the picture is of the sixth that no model is trained on.

        Each thing occurs equally often on each side of both relations, so a model has seen every thing and every
        relation, but not these pairs of things.
        """
        shift = 4 if self.scene.relation == "left of" else 1
        apart = THINGS.index(self.first) - THINGS.index(self.second)
        return apart % len(THINGS) in (shift, len(THINGS) - shift)

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
        other_colour, other_shape = self.second
        if part == "colour":
            new = _next_name(list(COLOURS), colour, other_colour)
            return replace(self, first=(new, shape)), colour, new
        new = _next_name(list(SHAPES), shape, other_shape)
        return replace(self, first=(colour, new)), shape, new


def _next_name(names: list[str], name: str, avoided: str) -> str:
    """The first of the names after `name`, in a circle, that is not the avoided one, if there is one."""
    place = names.index(name)
    following = [*names[place + 1 :], *names[:place]]
    return next((name for name in following if name != avoided), following[0])


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

    colour, shape, relation, other_colour, other_shape = form.groups()
    return Caption((colour, shape), relation, (other_colour, other_shape))


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
    x, y = (along, across) if relation == "left of" else (across, along)
    pixels = "".join(SHAPES[shape])
    inside = torch.tensor([pixel == "#" for pixel in pixels]).view(THING, THING)
    for channel, value in zip(picture, COLOURS[colour], strict=True):
        channel[y : y + THING, x : x + THING][inside] = 2 * value - 1


@cache
def _every_picture() -> torch.Tensor:
    """All scenes with all moves, (scenes * moves, pixels)."""
    pictures = [draw_scene(scene, moves).flatten() for scene, moves in product(SCENES, MOVES)]
    return torch.stack(pictures).double()


def nearest_scenes(pictures: torch.Tensor) -> list[Caption]:
    """The scene that each picture (n, 3, 12, 12) shows: that of the nearest picture that can be drawn."""
    distances = torch.cdist(pictures.detach().double().flatten(1), _every_picture())
    return [SCENES[place // len(MOVES)] for place in distances.argmin(-1).tolist()]


def word_numbers(captions: list[Caption]) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of the words, (captions, 8), and how many words each caption has, (captions,)."""
    numbers = torch.zeros(len(captions), MOST_WORDS, dtype=torch.long)
    counts = torch.zeros(len(captions), dtype=torch.long)
    for row, caption in enumerate(captions):
        words = [WORDS.index(word) for word in caption.words]
        numbers[row, : len(words)] = torch.tensor(words)
        counts[row] = len(words)
    return numbers, counts


PATCH = 2  # pixels
GRID = SIDE // PATCH
STEPS = 16  # from noise to a picture


class Block(nn.Module):
    """Self-attention of the patches, cross-attention from patches to words, and a feed-forward network."""

    def __init__(self, dim: int, heads: int, reads: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.among_patches = MultiHeadAttention(dim, heads)
        self.to_words = MultiHeadAttention(dim, heads, context_dim=dim) if reads else None
        self.feed_forward = FeedForward(dim, 2 * dim, "gelu")

    def forward(self, x: torch.Tensor, words: torch.Tensor, of_caption: KeySpan) -> torch.Tensor:
        x = x + self.among_patches(self.norms[0](x))
        if self.to_words is not None:
            x = x + self.to_words(self.norms[1](x), context=words, pattern=of_caption)
        return x + self.feed_forward(self.norms[2](x))


class Denoiser(nn.Module):
    """Estimates the picture from a noisy picture, the angle of the noise and the words of a caption.

    Args:
        dim: size of the vectors of patches and words.
        heads: of every attention layer.
        blocks: number of blocks.
        reads: False leaves out cross-attention, so that the caption has no effect.
    """

    def __init__(self, dim: int = 64, heads: int = 4, blocks: int = 2, reads: bool = True) -> None:
        super().__init__()
        self.patch = nn.Linear(3 * PATCH**2, dim)
        self.place = nn.Parameter(torch.randn(GRID * GRID, dim))
        self.angle = nn.Linear(dim, dim)
        self.waves = Sinusoidal(dim, base=100.0)
        self.word = nn.Embedding(len(WORDS), dim)
        self.order = nn.Parameter(torch.randn(MOST_WORDS, dim))
        self.among_words = MultiHeadAttention(dim, heads)
        self.blocks = nn.ModuleList(Block(dim, heads, reads) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, 3 * PATCH**2)

    def forward(
        self, noisy: torch.Tensor, angle: torch.Tensor, words: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """(batch, 3, 12, 12), angles (batch,) in radians, word numbers (batch, 8) and how many count (batch,).

        Where no word counts, cross-attention has no key to look at and adds zeros (and its output bias).
        """
        angles = (angle * 1000).round().long()
        waves = self.waves(angles).to(noisy.dtype)
        patches = F.pixel_unshuffle(noisy, PATCH).flatten(2).mT  # (batch, 36, 12)
        x = self.patch(patches) + self.place + self.angle(waves)[:, None]

        of_caption = KeySpan(0, counts)  # its words, without the padding
        context = self.word(words) + self.order
        context = context + self.among_words(context, pattern=of_caption)
        for block in self.blocks:
            x = block(x, context, of_caption)

        pixels = self.output(self.norm(x)).mT.unflatten(2, (GRID, GRID))
        return F.pixel_shuffle(pixels, PATCH)


@torch.no_grad()
def sample(
    model: nn.Module,
    noise: torch.Tensor,
    words: torch.Tensor,
    counts: torch.Tensor,
    steps: int = STEPS,
) -> list[torch.Tensor]:
    """The noise (batch, 3, 12, 12) and what it becomes after each step; the last are the pictures.

    The angle is turned from 90° to 0 in equal steps. At each step the estimate of the picture gives an estimate of the
    noise, and both are mixed at the next angle.
    """
    angles = [math.pi / 2 * (1 - step / steps) for step in range(steps + 1)]
    x = noise
    stages = [x]
    for angle, next_angle in pairwise(angles):
        picture = model(x, torch.full((len(x),), angle, dtype=x.dtype), words, counts)
        estimate = (x - math.cos(angle) * picture) / math.sin(angle)  # of the noise
        x = math.cos(next_angle) * picture + math.sin(next_angle) * estimate
        stages.append(x)
    return stages


def load_denoiser() -> Denoiser:
    """The denoiser that `benchmarks/caption.py` trained, in float64, so that every machine draws the same pictures."""
    seal = read_report("caption").figures["weights"]
    weights = load_tensors(REPORTS / "caption.safetensors", seal=seal)
    model = Denoiser().double().eval()
    model.load_state_dict({name: weight.double() for name, weight in weights.items()})
    return model
