"""A denoiser that draws what a caption says.

It is given cos(a) · picture + sin(a) · noise at angle a, and returns its estimate of the picture. Sampling starts with
noise alone (a = 90°) and turns the angle down to 0 in a few steps.

Source: Denoising Diffusion Implicit Models, Song et al. 2021, equation 12 with no new noise; angles: Progressive
Distillation, Salimans and Ho 2022, appendix D; cross-attention to words: Rombach et al. 2022, section 3.3.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from regard.layers import FeedForward, MultiHeadAttention
from regard.patterns import KeySpan
from regard.positions import Sinusoidal
from regard.storage.tensors import load_tensors
from regard_lab.teaching.captions import MOST_WORDS, SIDE, WORDS
from regard_lab.teaching.report import REPORTS, read_report

PATCH = 2  # pixels
GRID = SIDE // PATCH
STEPS = 16  # from noise to a picture


class DenoiserBlock(nn.Module):
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
        self.blocks = nn.ModuleList(DenoiserBlock(dim, heads, reads) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, 3 * PATCH**2)

    def forward(
        self, noisy: torch.Tensor, angle: torch.Tensor, words: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """(batch, 3, 12, 12), angles (batch,) in radians, word numbers (batch, 8) and how many count (batch,).

        Where no word counts, cross-attention has no key to look at and adds zeros (and its output bias).
        """
        milliradians = (angle * 1000).round().long()
        waves = self.waves(milliradians).to(noisy.dtype)
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
        angle_of_each = torch.full((len(x),), angle, dtype=x.dtype)
        picture = model(x, angle_of_each, words, counts)
        estimated_noise = (x - math.cos(angle) * picture) / math.sin(angle)
        x = math.cos(next_angle) * picture + math.sin(next_angle) * estimated_noise
        stages.append(x)
    return stages


def load_denoiser() -> Denoiser:
    """The denoiser that `benchmarks/caption.py` trained, in float64, so that every machine draws the same pictures."""
    seal = read_report("caption").figures["weights"]
    weights = load_tensors(REPORTS / "caption.safetensors", seal=seal)
    model = Denoiser().double().eval()
    model.load_state_dict({name: weight.double() for name, weight in weights.items()})
    return model
