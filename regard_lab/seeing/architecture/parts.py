"""What a drawing of a model shows: its stacks of layers, the parts of a layer, and the boxes around them; as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from regard.arguments import count_of
from regard.reprs import brief
from regard_lab.seeing.terminal import visible

# Where the norm of a part stands: before it, after the sum, or on both sides of the part.
PLACES = {
    "pre": "x + {part}(norm(x))",
    "post": "norm(x + {part}(x))",
    "both": "x + norm({part}(norm(x)))",
}
WIDTH = 78  # characters of a line of text where no width is known
NAME = 34  # characters of the formula of a part


@brief
@dataclass(frozen=True)
class DrawnBox:
    """A part of a model.

    Args:
        title: its name.
        details: what was chosen for it: sizes, numbers of heads, a pattern.
        lesson: the name of the lesson about it.
        owner: its class; None where it has none in regard or torch.
    """

    title: str
    details: tuple[str, ...] = ()
    lesson: str = ""
    owner: type | None = None


@brief
@dataclass(frozen=True)
class DrawnPart:
    """A part of a layer with its residual connection and its norm.

    Args:
        box: the attention or feed-forward.
        norm: its norm.
        place: where the norm stands, one of PLACES.
        keys_from: where keys and values come from: "itself", "encoder", or "" for a part without attention.
    """

    box: DrawnBox
    norm: DrawnBox
    place: str
    keys_from: str = ""

    @property
    def formula(self) -> str:
        """The sum that it computes, such as `x + attention(norm(x))`."""
        return PLACES[self.place].format(part=self.box.title.lower())


@brief
@dataclass(frozen=True)
class DrawnStack:
    """Layers of one kind with what comes before and after them.

    Args:
        title: "Encoder" or "Decoder".
        layers: how many there are.
        before: from the ids to the vectors that the first layer reads.
        parts: of each layer.
        after: from the vectors of the last layer to the output.
        lesson: the name of the lesson about it.
    """

    title: str
    layers: int
    before: tuple[DrawnBox, ...]
    parts: tuple[DrawnPart, ...]
    after: tuple[DrawnBox, ...]
    lesson: str


@brief
@dataclass(frozen=True)
class DrawnModel:
    """A model: a title, its class, and one stack, or an encoder followed by a decoder that reads its output."""

    title: str
    stacks: tuple[DrawnStack, ...]
    owner: type | None = None

    def boxes(self) -> Iterator[DrawnBox]:
        """Every box, in reading order."""
        for stack in self.stacks:
            yield from stack.before
            for part in stack.parts:
                yield part.norm
                yield part.box
            yield from stack.after


def to_text(architecture: DrawnModel, width: int | None = None) -> str:
    """The drawing as text of lines of at most `width` characters.

    >>> from regard_lab.models import LanguageConfig
    >>> from regard_lab.seeing.architecture import architecture_of
    >>> print(to_text(architecture_of(LanguageConfig(vocab_size=100, dim=32, heads=4, layers=2)), 70))
    Language model
    Decoder
      Embedding: 100 ids; vectors of 32
      each of 2 layers:
        x + masked self-attention(norm(x))
          q, k and v from x; 4 heads of 8; pattern causal; rotary
            positions
        x + feed-forward(norm(x))
          32 to 88 to 32; swiglu
      Norm: RMSNorm
      Scores of the words: 100 ids; by the embeddings
      Softmax: the next word
    """
    width = WIDTH if width is None else max(width, 30)
    lines = [visible(architecture.title)]
    for stack in architecture.stacks:
        lines.append(stack.title)
        for box in stack.before:
            lines += _wrapped(_line_of(box), width, 2)
        lines.append(f"  each of {count_of(stack.layers, 'layers')}:")
        for part in stack.parts:
            lines += _wrapped(part.formula, width, 4)
            lines += _wrapped("; ".join([*_sources(part), *part.box.details]), width, 6)
        for box in stack.after:
            lines += _wrapped(_line_of(box), width, 2)
    return "\n".join(lines)


def to_record(architecture: DrawnModel) -> dict[str, Any]:
    """The drawing as JSON values."""
    stacks = []
    for stack in architecture.stacks:
        parts = []
        for part in stack.parts:
            sums = {"formula": part.formula, "keys_from": part.keys_from or None}
            parts.append(_box_record(part.box) | sums)
        stacks.append(
            {
                "title": stack.title,
                "layers": stack.layers,
                "before": [_box_record(box) for box in stack.before],
                "parts": parts,
                "after": [_box_record(box) for box in stack.after],
            }
        )
    return {"title": architecture.title, "stacks": stacks}


def _box_record(box: DrawnBox) -> dict[str, Any]:
    owner = None if box.owner is None else box.owner.__name__
    return {
        "name": box.title,
        "details": list(box.details),
        "lesson": box.lesson,
        "class": owner,
    }


def _sources(part: DrawnPart) -> Sequence[str]:
    """Where queries, keys and values come from."""
    if part.keys_from == "itself":
        return ["q, k and v from x"]
    if part.keys_from == "encoder":
        return ["q from x, k and v from the encoder's output"]
    return []


def _line_of(box: DrawnBox) -> str:
    details = box.details
    if not details and box.owner is not None:
        details = (box.owner.__name__,)
    return f"{box.title}: {'; '.join(details)}" if details else box.title


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    """The lines of a text, each behind spaces; later ones further in."""
    return textwrap.wrap(
        visible(text), width, initial_indent=indent * " ", subsequent_indent=(indent + 2) * " "
    )
