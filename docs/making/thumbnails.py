"""Small pictures for the index of the lessons: the telling part of each lesson's figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from docs.making.drawing import new_axes, save
from docs.making.figures import TIMES, Figure, written
from docs.making.walking import walked

SMALL = "small"  # their folder beside the pages
SIZE = (480, 300)  # twice the pixels of the index, for sharp screens
# The part of each figure that is shown: left, top, right and bottom as shares of its width and height.
PARTS_OF_FIGURES = {
    "recurrent": (0.77, 0.08, 1.00, 0.80),
    "fixed_vector": (0.49, 0.08, 1.00, 0.90),
    "alignment": (0.04, 0.11, 0.92, 1.00),
    "scale": (0.0, 0.08, 0.50, 0.98),
    "positions": (0.04, 0.09, 0.46, 0.70),
    "causal": (0.42, 0.05, 0.90, 0.95),
    "cross": (0.00, 0.08, 0.625, 0.92),
    "one_head": (0.0, 0.08, 0.62, 0.80),
    "encoder": (0.0, 0.10, 0.44, 0.98),
    "decoder": (0.50, 0.05, 0.98, 0.92),
    "translation": (0.05, 0.05, 0.905, 0.56),
    "generation": (0.0, 0.05, 0.66, 0.52),
    "grouped": (0.0, 0.08, 0.34, 0.92),
    "windows": (0.05, 0.36, 0.88, 0.64),
    "sparse": (0.00, 0.09, 0.52, 0.48),
    "linear": (0.00, 0.06, 0.51, 0.88),
    "approximations": (0.01, 0.09, 0.36, 0.37),
    "complexity": (0.00, 0.05, 0.41, 0.91),
    "relations": (0.03, 0.72, 0.64, 0.96),
    "answer_head": (0.0, 0.08, 0.42, 0.98),
    "heads": (0.335, 0.10, 0.645, 1.0),
    "referent": (0.00, 0.05, 0.57, 0.95),
    "transfer": (0.00, 0.13, 0.44, 0.90),
    "caption": (0.00, 0.05, 0.42, 0.55),
    "imprecise": (0.0, 0.05, 0.49, 0.50),
}


@dataclass(frozen=True, kw_only=True)
class Part(Figure):
    """A part of another figure, which has to show the same measurement."""

    whole: Figure

    def is_fresh(self) -> bool:
        """Whether numbers and times are those of the whole figure."""
        return super().is_fresh() and written(self.path, TIMES) == written(self.whole.path, TIMES)

    def write(self) -> None:
        """Cut the part out of the whole figure, and store its numbers and times."""
        times = written(self.whole.path, TIMES) or ()
        Figure(self.name, self.numbers, self.draw, tuple(times)).write()


def thumbnails(figures: list[Figure]) -> list[Figure]:
    """A small picture of each figure of a lesson, and one of the walkthrough; they carry the same numbers."""
    named = [(Path(figure.name).stem, figure) for figure in figures]
    small = [
        Part(f"lessons/{SMALL}/{name}.png", figure.numbers, _cut(name, figure), figure.times, whole=figure)
        for name, figure in named
    ]
    return [Figure(f"lessons/{SMALL}/walkthrough.png", {"weights": _weights()}, _draw_weights), *small]


def _cut(name: str, figure: Figure) -> Callable[[Path], None]:
    def cut(path: Path) -> None:
        with Image.open(figure.path) as picture:
            left, top, right, bottom = PARTS_OF_FIGURES[name]
            wide, high = picture.size
            box = (round(left * wide), round(top * high), round(right * wide), round(bottom * high))
            part = picture.convert("RGB").crop(box)
        part.thumbnail(SIZE, Image.Resampling.LANCZOS)
        canvas = Image.new("RGB", SIZE, "white")
        canvas.paste(part, ((SIZE[0] - part.width) // 2, (SIZE[1] - part.height) // 2))
        canvas.save(path)

    return cut


def _draw_weights(path: Path) -> None:
    figure, axes = new_axes(4.8, 3.0)
    words = walked().words
    axes.imshow(_weights(), cmap="cividis", vmin=0, aspect="auto")
    axes.set_xticks(range(len(words)), words, rotation=40, ha="left")
    axes.set_yticks(range(len(words)), words)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.grid(visible=False)
    save(figure, path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS)
    small.save(path)


def _weights() -> list[list[float]]:
    """The attention weights of the walkthrough's sentence: a row for each query word."""
    return next(step.value for step in walked().steps if step.name == "weights").tolist()
