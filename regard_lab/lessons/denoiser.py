"""A small denoiser: patches of a noisy picture attend to each other and to the words of a caption.

The noisy picture at angle a is `cos(a) · picture + sin(a) · noise`; the denoiser returns its estimate of the picture.
Sampling starts with noise alone (a = 90°) and turns the angle down to 0 in a few steps.

Source: Denoising Diffusion Implicit Models, Song et al. 2021, equation 12 with no new noise; angles: Progressive
Distillation, Salimans and Ho 2022, appendix D; cross-attention to words: Rombach et al. 2022, section 3.3.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn

from regard.layers import FeedForward, MultiHeadAttention
from regard.patterns import KeySpan
from regard.positions import Sinusoidal
from regard.storage.tensors import load_tensors
from regard_lab.lessons.captions import MOST_WORDS, SIDE, WORDS
from regard_lab.lessons.report import REPORTS, read_report

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
