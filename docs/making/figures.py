"""Figures that store the numbers they draw in the image file, so that a stale one is detected."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from docs.making.freshness import close

DOCS = Path(__file__).parents[1]
KEY = "regard:numbers"


@dataclass(frozen=True)
class Figure:
    """A figure of the site.

    Args:
        name: its file in docs/.
        numbers: the numbers it draws, as JSON values, without those that depend on the machine.
        draw: writes the figure to a path.
    """

    name: str
    numbers: Any
    draw: Callable[[Path], object]

    @property
    def path(self) -> Path:
        """The path of the file."""
        return DOCS / self.name

    def is_fresh(self) -> bool:
        """Whether the file shows the current numbers."""
        return self.path.exists() and close(written(self.path), rounded(self.numbers))

    def write(self) -> None:
        """Draw the figure and store its numbers in the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.draw(self.path)
        note = PngImagePlugin.PngInfo()
        note.add_text(KEY, json.dumps(rounded(self.numbers), sort_keys=True), zip=True)
        with Image.open(self.path) as picture:
            picture.load()
            small = picture.convert("RGB").quantize(256)  # a third of the size, without a visible difference
        small.save(self.path, pnginfo=note, optimize=True)


def rounded(numbers: Any) -> Any:
    """The numbers as JSON values, rounded to six digits, with tiny ones replaced by 0.

    >>> rounded({"a": (1.00000001, 2), 3: 1e-17})
    {'a': [1.0, 2], '3': 0.0}
    """
    if isinstance(numbers, dict):
        return {str(name): rounded(value) for name, value in numbers.items()}
    if isinstance(numbers, list | tuple):
        return [rounded(value) for value in numbers]
    if isinstance(numbers, float):
        return 0.0 if abs(numbers) < 1e-6 else float(f"{numbers:.6g}")
    return numbers


def written(path: Path) -> Any:
    """The numbers stored in an image file; None if there are none."""
    with Image.open(path) as picture:
        try:
            return json.loads(picture.info.get(KEY, "null"))
        except json.JSONDecodeError:  # written by an earlier version
            return None
