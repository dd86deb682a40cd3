"""Trains a small U-Net that paints what a text says, and draws which word each place of an image looks at.

    python benchmarks/words_of_images.py --minutes 4

The texts are such as "red square above blue disc"; images have 16 x 16 pixels. Needs diffusers. The picture is
docs/figures/words_of_images.png, which the guide docs/recipes/diffusers.md shows.
"""

import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel
from torch import nn

from benchmarks.report import options
from regard.integrations.diffusers import attach, observe

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "words_of_images.png"
COLOURS = {"red": (1.0, -1.0, -1.0), "green": (-1.0, 1.0, -1.0), "blue": (-1.0, -1.0, 1.0)}
SHAPES = ("square", "disc")
WORDS = (*COLOURS, *SHAPES, "above")
SIDE, STEPS, BATCH = 16, 20, 32


def painted(texts: torch.Tensor) -> torch.Tensor:
    """Images (batch, 3, 16, 16) of texts (batch, 5): two shapes of random place, one above the other, on grey."""
    rows, columns = torch.meshgrid(torch.arange(float(SIDE)), torch.arange(float(SIDE)), indexing="ij")
    images = torch.zeros(len(texts), 3, SIDE, SIDE)
    tints = torch.tensor(list(COLOURS.values()))
    for image, text in zip(images, texts.tolist(), strict=True):
        for top, (colour, shape) in ((3.5, text[:2]), (11.5, text[3:])):
            y, x = rows - top, columns - float(torch.randint(4, 12, ()))
            inside = (y.abs() < 3) & (x.abs() < 3) if WORDS[shape] == "square" else y**2 + x**2 < 10
            image[:, inside] = tints[colour][:, None]
    return images


def drawn_texts(count: int) -> torch.Tensor:
    colours, shapes = (torch.randint(size, (count, 2)) for size in (len(COLOURS), len(SHAPES)))
    shapes, above = shapes + len(COLOURS), torch.full((count,), WORDS.index("above"))
    return torch.stack([colours[:, 0], shapes[:, 0], above, colours[:, 1], shapes[:, 1]], 1)


class Painter(nn.Module):
    """A U-Net of diffusers with embedded words; it predicts the direction from an image to noise."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), dim), nn.Parameter(torch.randn(5, dim) * 0.1)
        self.unet: Any = UNet2DConditionModel(
            sample_size=SIDE, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 64),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), norm_num_groups=8, attention_head_dim=8,
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=dim,
        )  # fmt: skip

    def forward(self, images: torch.Tensor, times: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        return self.unet(images, times * 1000, self.words(texts) + self.places).sample


def train(painter: Painter, minutes: float) -> tuple[int, float]:
    optimiser, begin, step, recent = torch.optim.AdamW(painter.parameters(), lr=2e-3), time.monotonic(), 0, 1.0
    while time.monotonic() - begin < 60 * minutes:
        texts = drawn_texts(BATCH)
        images, noise, times = painted(texts), torch.randn(BATCH, 3, SIDE, SIDE), torch.rand(BATCH)
        mixed = torch.lerp(images, noise, times[:, None, None, None])
        loss = F.mse_loss(painter(mixed, times, texts), noise - images)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step, recent = step + 1, 0.98 * recent + 0.02 * loss.item()
        for group in optimiser.param_groups:  # a rate that falls to zero at the end
            group["lr"] = 2e-3 * max(0.0, 1 - (time.monotonic() - begin) / (60 * minutes))
    return step, recent


@torch.no_grad()
def paint(painter: Painter, texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of texts, and the mean weights (batch, 16, 16, words) of the layers that see every pixel."""
    images, maps = torch.randn(len(texts), 3, SIDE, SIDE), []
    for step in range(STEPS, 0, -1):
        with observe(painter.unet) as seen:
            images = images - painter(images, torch.full((len(texts),), step / STEPS), texts) / STEPS
        maps += [one.weights.mean(1) for one in seen.of("attn2") if one.weights.shape[2] == SIDE**2]
    return images, torch.stack(maps).mean(0).unflatten(1, (SIDE, SIDE))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=4.0)
    minutes = parser.parse_args().minutes
    torch.manual_seed(0)
    painter = Painter()
    steps, loss = train(painter, minutes)
    attach(painter.eval().unet)
    texts = torch.tensor([[WORDS.index(word) for word in text.split()] for text in
                          ("red square above blue disc", "green disc above red square")])  # fmt: skip
    images, maps = paint(painter, texts)
    figure, axes = plt.subplots(len(texts), 6, figsize=(11, 4.2), layout="constrained")
    for row, (text, image, words) in enumerate(zip(texts.tolist(), images, maps, strict=True)):
        axes[row, 0].imshow((image.permute(1, 2, 0).clamp(-1, 1) + 1) / 2)
        axes[row, 0].set_title("painted", fontsize=10)
        for place, word in enumerate(text):
            axes[row, place + 1].imshow(words[..., place], vmin=0, vmax=float(words.max()), cmap="viridis")
            axes[row, place + 1].set_title(f"{WORDS[word]} ({float(words[..., place].mean()):.2f})", fontsize=10)
    for one in axes.flat:
        one.set_axis_off()
    figure.savefig(PICTURE, dpi=100)
    print(f"{steps} steps in {minutes} minutes, loss {loss:.3f}: {PICTURE.name}")


if __name__ == "__main__":
    main()
