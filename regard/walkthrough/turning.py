"""Rotary positions in plain PyTorch: queries and keys turned by angles that grow with the place."""

from __future__ import annotations

from regard.errors import UnsupportedError
from regard.positions import Rotary
from regard.walkthrough.steps import Axis, numbered
from regard.walkthrough.walker import Walker


def measure_angles(walker: Walker, rotary: Rotary, words: Axis, size: int) -> None:
    """The step `angles`, (words, size).

    Raises:
        UnsupportedError: a rotation of some dimensions, or of neighbouring ones.
    """
    if rotary.dims is not None or rotary.pairs != "halves":
        raise UnsupportedError(f"{rotary} turns other pairs than a walk shows, which are the halves of all numbers")
    speeds = f"{rotary.base!r} ** (-torch.arange(0, {size}, 2).double() / {size})"
    walker.step(
        f"angles = (torch.arange({len(words)})[:, None] * {speeds}).repeat(1, 2)", "Angles",
        "Each pair of numbers turns at a speed of its own; a word's angles are its place times these speeds.",
        f"θ_{{ic}} = i · {rotary.base:g}^{{-2c/d}}", axes=(words, numbered("numbers", size)),
    )  # fmt: skip


def turned(name: str, size: int) -> str:
    """The expression that turns queries or keys (…, words, size) by the angles."""
    half = size // 2
    return f"{name} * angles.cos() + torch.cat([-{name}[..., {half}:], {name}[..., :{half}]], -1) * angles.sin()"
