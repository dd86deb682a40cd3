"""What a page of the explorer contains besides weights: patterns, the steps of a walkthrough, and changed words.

Each record writes itself as JSON values; its arrays are added to those of the page.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from regard.errors import ArgumentError
from regard.reprs import brief
from regard_lab.seeing.lenses.erasing import Changed
from regard_lab.seeing.terminal import visible

LONGEST = 120  # characters of a word
# Of a step whose numbers are all stored; of a larger one those of the followed word.
MOST_NUMBERS = 60_000
FEW_NUMBERS = 1_000  # the same in a page that contains a model, so that the model is most of it
ROUNDING = 0.01  # of the sum of a row: weights rounded to bfloat16 sum to 1 within 0.004

# What is followed while words change: written or next words, words at masked places, or the vectors of words.
Follows = Literal["words", "masked", "vectors"]
Add = Callable[[torch.Tensor], list[int]]  # stores an array in a page and returns its place


def shown_text(text: str, longest: int = LONGEST) -> str:
    """Text as printable characters; only the beginning of a long one, with its length.

    >>> shown_text("a" * 9, 4)
    'aaaa… (9 characters)'
    """
    if len(text) <= longest:
        return visible(text)
    return f"{visible(text[:longest])}… ({len(text):,} characters)"


def shown_sentence(text: str, longest: int) -> str:
    """The same for a sentence; nothing for an empty one."""
    return shown_text(text, longest) if text else ""


def sums_of(weights: torch.Tensor) -> str:
    """A sentence about the sums of the rows where they are not all 1, or an empty text.

    >>> sums_of(torch.tensor([[0.5, 0.5], [0.5, 0.0]]))[:38]
    'Rows sum to 0.50 to 1.00, not all to 1'
    >>> sums_of(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    ''
    """
    least, most = (float(value) for value in weights.sum(-1).aminmax())
    if least >= 1 - ROUNDING and most <= 1 + ROUNDING:
        return ""
    sentence = f"Rows sum to {least:.2f} to {most:.2f}, not all to 1"
    if most > 1 + ROUNDING:
        return f"{sentence}."
    return f"{sentence}: a sink or keys that are not shown have the rest, and a query without keys has 0."


def check_sums(weights: torch.Tensor) -> None:
    """Raise an ArgumentError if some row of an array sums to more than 1, or if the columns sum to 1 in its place."""
    if not sums_of(weights):
        return
    rows = weights.sum(-1)
    least = float(rows.min())
    most = float(rows.max())
    if not sums_of(weights.mT):
        way_out = (
            "the columns sum to 1, so keys come before queries there: give weights.swapaxes(-1, -2)"
        )
    elif most > 1 + ROUNDING:
        way_out = "divide each row by its sum: weights / weights.sum(-1, keepdims=True)"
    else:
        return
    raise ArgumentError(
        f"the rows of weights sum to {least:.3g} to {most:.3g}; after a softmax over the keys "
        f"each sums to 1, or to less with a sink; {way_out}"
    )


@dataclass(frozen=True, eq=False)
class PatternPanel:
    """The pairs of the heads that have the same pattern.

    Args:
        heads: their numbers; empty where all heads are alike.
        text: what they allow.
        states: (rows, columns) uint8, one for each tile of pairs: 0 none is allowed, 1 some are, 2 all are.
        pairs: how many pairs are allowed.
    """

    heads: tuple[int, ...]
    text: str
    states: torch.Tensor
    pairs: int

    def to_json(self, add: Add) -> dict[str, Any]:
        """JSON values; the states are added to the arrays of the page."""
        return {
            "heads": list(self.heads),
            "text": shown_sentence(self.text, 400),
            "pairs": self.pairs,
            "shape": list(self.states.shape),
            "place": add(self.states),
        }


@dataclass(frozen=True)
class Growth:
    """How many pairs a pattern allows at one length, and how many a backend computes.

    Args:
        length: number of queries and of keys.
        pairs, of: allowed pairs, and all pairs, of all heads that differ.
        computed: the share of all pairs that the backend computes; None where nothing is computed pair by pair.
        backend: the one that is chosen on this machine.
    """

    length: int
    pairs: int
    of: int
    computed: float | None
    backend: str


@brief
@dataclass(frozen=True, eq=False)
class PatternMap:
    """Which query may look at which key, with one pattern at one size.

    Args:
        name: where the pattern is used, such as "Encoder self-attention, layers 0 to 1".
        text: the pattern as text.
        rows, columns: the words of queries and keys; empty for positions alone.
        q_len, k_len, q_start: the sizes, and the position of the first query.
        tile: how many queries and keys one state stands for.
        panels: one for each set of heads that are alike.
        growth: counts at this and other lengths.
        note: a sentence on what the drawing leaves out.
    """

    name: str
    text: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    q_len: int
    k_len: int
    q_start: int
    tile: int
    panels: tuple[PatternPanel, ...]
    growth: tuple[Growth, ...]
    note: str = ""

    def to_json(self, add: Add) -> dict[str, Any]:
        """JSON values; the states are added to the arrays of the page."""
        return {
            "name": self.name,
            "text": shown_sentence(self.text, 400),
            "note": self.note,
            "tile": self.tile,
            "rows": list(map(shown_text, self.rows)),
            "columns": list(map(shown_text, self.columns)),
            "q_len": self.q_len,
            "k_len": self.k_len,
            "q_start": self.q_start,
            "panels": [panel.to_json(add) for panel in self.panels],
            "growth": [vars(size) for size in self.growth],
        }


@dataclass(frozen=True)
class StepAxis:
    """One axis of a step.

    Args:
        unit: what the axis counts.
        labels: one for each index.
        chosen: the index of the word that is followed.
    """

    unit: str
    labels: tuple[str, ...]
    chosen: int | None = None

    def to_json(self, labels: dict[tuple[str, ...], int]) -> dict[str, Any]:
        """JSON values; labels that are new, and no plain numbers, are added to `labels`."""
        is_counted = self.labels == tuple(map(str, range(len(self.labels))))
        return {
            "unit": self.unit,
            "size": len(self.labels),
            "chosen": self.chosen,
            "labels": None if is_counted else labels.setdefault(self.labels, len(labels)),
        }


MAIN_STEPS = 30
IS_MAIN = re.compile(
    "^Words$|with positions|queries|keys|values|: scores|weights|context vectors|output|next word|Distribution"
    "|likeliest"
)
IS_LATER = re.compile("layer [1-9]", re.IGNORECASE)


@brief
@dataclass(frozen=True, eq=False)
class ShownStep:
    """One step of a walkthrough.

    Args:
        section, title, says: headings, and an explanation.
        formula: a MathML element in nested lists: its name, then its text or the elements inside; None for no formula.
        line: the line of PyTorch that computed the value.
        axes: one for each axis of the value.
        value: a tensor, or words.
        scale: "none", "signed" (around 0) or "weights" (from 0 to 1).
    """

    section: str
    title: str
    says: str
    formula: list[Any] | None
    line: str
    axes: tuple[StepAxis, ...]
    value: torch.Tensor | tuple[str, ...]
    scale: str = "signed"

    def to_json(
        self, add: Add, labels: dict[tuple[str, ...], int], most: int = MOST_NUMBERS
    ) -> dict[str, Any]:
        """JSON values; a tensor is added to the arrays of the page as float32, and labels that are new to `labels`."""
        record: dict[str, Any] = {
            "section": self.section,
            "title": self.title,
            "says": shown_sentence(self.says, 1000),
            "line": self.line,
            "formula": self.formula,
            "axes": [axis.to_json(labels) for axis in self.axes],
            "scale": self.scale,
        }
        if not isinstance(self.value, torch.Tensor):
            return record | {"words": list(map(shown_text, self.value))}

        value = self.value
        if value.numel() > most and len(self.axes) > 1:
            for number, axis in enumerate(self.axes):
                if axis.chosen is not None:
                    value = value.select(number, axis.chosen)
                    record["only"] = number  # this axis has the followed word alone
                    break
        return record | {"place": add(value.detach().float().cpu())}


@brief
@dataclass(frozen=True, eq=False)
class ShownWalk:
    """A walkthrough of a whole model.

    Args:
        steps: in the order of execution; none if there is no walkthrough.
        words, word: the words that are followed, and the one that is shown first.
        note: what to know before the first step, or why there are no steps.
        checks: how many results were compared with another way to compute them.
        difference: the largest difference that they had.

    >>> from dataclasses import replace
    >>> step = ShownStep("Layer 1", "Self-attention: scores", "", None, "q @ k.mT", (), ("a",))
    >>> ShownWalk((replace(step, title="Words"), *[step] * 40)).main
    (0,)
    """

    steps: tuple[ShownStep, ...]
    words: tuple[str, ...] = ()
    word: int = 0
    note: str = ""
    checks: int = 0
    difference: float = 0.0

    @property
    def main(self) -> tuple[int, ...]:
        """The steps that a page walks until all are asked for: all of a short record, else at most 30.

        They are the vectors, attention and outputs of the first layers, and what the model answers.
        """
        if len(self.steps) <= MAIN_STEPS:
            return tuple(range(len(self.steps)))
        main = [0]
        for number, step in enumerate(self.steps[1:], start=1):
            if IS_MAIN.search(step.title) and not IS_LATER.search(step.section):
                main.append(number)
        if len(main) > MAIN_STEPS:
            main = [*main[: MAIN_STEPS - 3], *main[-3:]]
        return tuple(main)

    def to_json(self, add: Add, most: int = MOST_NUMBERS) -> dict[str, Any]:
        """JSON values; labels of axes are stored once, however many steps have them."""
        labels: dict[tuple[str, ...], int] = {}
        steps = [step.to_json(add, labels, most) for step in self.steps]
        return {
            "steps": steps,
            "main": list(self.main),
            "labels": [list(map(shown_text, of_axis)) for of_axis in labels],
            "word": self.word,
            "words": list(map(shown_text, self.words)),
            "note": shown_sentence(self.note, 1000),
            "checks": self.checks,
            "difference": self.difference,
        }


def rounded(values: Iterable[float]) -> list[float | None]:
    """Numbers with the six digits that a page stores; None for NaN, as of heads that were not measured."""
    return [None if math.isnan(value) else float(f"{value:.6g}") for value in values]


def changed_to_json(changed: Changed) -> dict[str, Any]:
    """What a model does with a changed text, as JSON values."""
    likeliest = []
    for place in changed.likeliest:
        likeliest.append([[shown_text(word), *rounded([chance])] for word, chance in place])
    return {
        "probabilities": rounded(changed.probabilities),
        "likeliest": likeliest,
        "translation": list(map(shown_text, changed.translation)),
        "similarities": rounded(changed.similarities),
    }


def changes_to_json(
    changes: Mapping[int | None, Changed], follows: Follows = "words"
) -> dict[str, Any]:
    """What a model does with the text as it is (None), and without each word, as JSON values."""
    unchanged = changed_to_json(changes[None])
    erased = {}
    for place, changed in changes.items():
        if place is not None:
            erased[place] = changed_to_json(changed)
    return {"follows": follows, "unchanged": unchanged, "erased": erased}
