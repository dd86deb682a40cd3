"""Small pictures that a caption describes, which caption a picture shows, and a denoiser that draws captions.

A caption names two things and where the first one stands: "a red circle left of a blue square". A picture has
12 x 12 pixels; each thing has 5 x 5 of them and is moved by up to one pixel. What a picture shows is decided by the
nearest of all pictures that can be drawn.

The denoiser is given cos(a) · picture + sin(a) · noise at angle a, and returns its estimate of the picture. Sampling
starts with noise alone (a = 90°) and turns the angle down to 0 in a few steps. Patches of the picture attend to each
other and to the words of the caption.

Source: Denoising Diffusion Implicit Models, Song et al. 2021, equation 12 with no new noise; angles: Progressive
Distillation, Salimans and Ho 2022, appendix D; cross-attention to words: Rombach et al. 2022, section 3.3.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

import torch
from torch import nn

from regard.errors import ArgumentError
from regard.layers import FeedForward, MultiHeadAttention
from regard.patterns import KeySpan
from regard.positions import Sinusoidal
from regard.storage.tensors import load_tensors
from regard_lab.lessons.report import REPORTS, read_report

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


PATCH = 2  # pixels
GRID = SIDE // PATCH
PATCHES = GRID * GRID
STEPS = 16  # from noise to a picture


def to_patches(pictures: torch.Tensor) -> torch.Tensor:
    """(batch, 3, 12, 12) -> (batch, 36, 12)."""
    cut = pictures.unflatten(2, (GRID, PATCH)).unflatten(4, (GRID, PATCH))  # (batch, 3, GRID, PATCH, GRID, PATCH)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def to_pictures(patches: torch.Tensor) -> torch.Tensor:
    """(batch, 36, 12) -> (batch, 3, 12, 12).

    >>> pictures = torch.randn(2, 3, 12, 12)
    >>> torch.equal(to_pictures(to_patches(pictures)), pictures)
    True
    """
    cut = patches.unflatten(1, (GRID, GRID)).unflatten(3, (3, PATCH, PATCH))
    return cut.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


class Block(nn.Module):
    """Self-attention of the patches, cross-attention from patches to words, and a feed-forward network."""

    def __init__(self, dim: int, heads: int, reads: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.among_patches = MultiHeadAttention(dim, heads)
        self.to_words = MultiHeadAttention(dim, heads, context_dim=dim) if reads else None
        self.feed_forward = FeedForward(dim, 2 * dim, "gelu")

    def forward(self, x: torch.Tensor, words: torch.Tensor, spoken: KeySpan) -> torch.Tensor:
        x = x + self.among_patches(self.norms[0](x))
        if self.to_words is not None:
            x = x + self.to_words(self.norms[1](x), context=words, pattern=spoken)
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
        self.patch, self.place = nn.Linear(3 * PATCH**2, dim), nn.Parameter(torch.randn(PATCHES, dim))
        self.angle, self.waves = nn.Linear(dim, dim), Sinusoidal(dim, base=100.0)
        self.word, self.order = nn.Embedding(len(WORDS), dim), nn.Parameter(torch.randn(MOST_WORDS, dim))
        self.among_words = MultiHeadAttention(dim, heads)
        self.blocks = nn.ModuleList(Block(dim, heads, reads) for _ in range(blocks))
        self.norm, self.output = nn.LayerNorm(dim), nn.Linear(dim, 3 * PATCH**2)

    def spoken(self, counts: torch.Tensor) -> KeySpan:
        """The pattern in which every patch may look at the first `counts` words of its caption."""
        return KeySpan(0, counts)

    def forward(
        self, noisy: torch.Tensor, angle: torch.Tensor, words: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """(batch, 3, 12, 12), angles (batch,) in radians, word numbers (batch, 8) and how many count (batch,).

        Where no word counts, cross-attention has no key to look at and adds zeros (and its output bias).
        """
        waves = self.waves((angle * 1000).round().long()).to(noisy.dtype)
        x = self.patch(to_patches(noisy)) + self.place + self.angle(waves)[:, None]
        spoken, context = self.spoken(counts), self.word(words) + self.order
        context = context + self.among_words(context, pattern=spoken)
        for block in self.blocks:
            x = block(x, context, spoken)
        return to_pictures(self.output(self.norm(x)))


def noisy(pictures: torch.Tensor, noise: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """`cos(angle) · picture + sin(angle) · noise`, with angles (batch,)."""
    angle = angle[:, None, None, None]
    return angle.cos() * pictures + angle.sin() * noise


@torch.no_grad()
def sample(
    model: nn.Module, noise: torch.Tensor, words: torch.Tensor, counts: torch.Tensor, steps: int = STEPS
) -> list[torch.Tensor]:
    """The noise (batch, 3, 12, 12) and what it becomes after each step; the last are the pictures.

    The angle is turned from 90° to 0 in equal steps. At each step the estimate of the picture gives an estimate of the
    noise, and both are mixed at the next angle.
    """
    angles = [math.pi / 2 * (1 - step / steps) for step in range(steps + 1)]
    stages = [noise]
    for now, then in pairwise(angles):
        x = stages[-1]
        picture = model(x, torch.full((len(x),), now, dtype=x.dtype), words, counts)
        estimate = (x - math.cos(now) * picture) / math.sin(now)
        stages.append(math.cos(then) * picture + math.sin(then) * estimate)
    return stages


def load_denoiser() -> Denoiser:
    """The denoiser that `benchmarks/caption.py` trained, in float64, so that every machine draws the same pictures.

    Raises:
        CheckpointError: the file of its weights is missing, damaged or not the one that the report is about.
    """
    model = Denoiser().double().eval()
    weights = load_tensors(REPORTS / "caption.safetensors", seal=read_report("caption").figures["weights"])
    model.load_state_dict({name: weight.double() for name, weight in weights.items()})
    return model
