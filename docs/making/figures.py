"""Pictures that know which numbers they draw: these stand in the file."""

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
    """A picture of the site.

    Args:
        name: its file in docs/.
        numbers: what it draws, as values of JSON; without those that depend on the machine.
        draw: writes the picture.
    """

    name: str
    numbers: Any
    draw: Callable[[Path], object]

    @property
    def path(self) -> Path:
        """Where it lies."""
        return DOCS / self.name

    def is_fresh(self) -> bool:
        """Does the file draw today's numbers?"""
        return self.path.exists() and close(written_numbers(self.path), rounded(self.numbers))

    def write(self) -> None:
        """Draw it, and note its numbers in the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.draw(self.path)
        note = PngImagePlugin.PngInfo()
        note.add_text(KEY, json.dumps(rounded(self.numbers), sort_keys=True), zip=True)
        with Image.open(self.path) as picture:
            picture.load()
            few = picture.convert("RGB").quantize(256)  # a third of the size, and no difference to be seen
        few.save(self.path, pnginfo=note, optimize=True)


def rounded(numbers: Any) -> Any:
    """The same as values of JSON, with every number to six digits, and what is tiny as 0.

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


def written_numbers(path: Path) -> Any:
    """The numbers that a picture carries; None where it carries none."""
    with Image.open(path) as picture:
        try:
            return json.loads(picture.info.get(KEY, "null"))
        except json.JSONDecodeError:  # what an earlier version noted
            return None
