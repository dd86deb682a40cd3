"""Settings of a new training run from the amount of data and the budget: what was not given is chosen here.

First come the sizes of models, which can be named (`--size`) too. `choose` is a function of counts alone, so that the
same data and budget give the same settings on every machine of a kind. It returns the settings and a sentence
with what was chosen and for what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from regard.arguments import count_of

WARMUP_STEPS = 200  # at most; of a short training a tenth of the steps
FEW, MANY = 4.0, 40.0  # passes over the data: no dropout below FEW, the most dropout from MANY on
COOLDOWN = 0.6  # share of the training over which the rate falls to zero
# Ids; on a CPU, small batches learn more in the same time.
BATCH_TOKENS, ACCELERATED_BATCH = 1_000, 4_096
CHARACTERS_OF_AN_ID = 3.0  # roughly, in most languages and vocabularies of this size
IDS_A_MINUTE = 300_000  # roughly, for a small model on one thread of a CPU
VALIDATE_BETWEEN = (50, 1_000)  # steps between validations, where the number of steps is not known


Sizes = Mapping[str, Mapping[str, Any]]  # the settings that a size decides, by its name

# Layers are those of a translator's encoder and decoder each. The peak rate is lower for larger models.
TRANSFORMER: Sizes = {
    "tiny": {"dim": 64, "layers": 2, "heads": 4, "learning_rate": 4e-3},
    "small": {"dim": 128, "layers": 2, "heads": 4, "learning_rate": 3e-3},
    "base": {"dim": 256, "layers": 4, "heads": 8, "learning_rate": 1e-3},
}
RECURRENT_TRANSLATOR: Sizes = {
    "tiny": {"dim": 64, "layers": 1, "learning_rate": 3e-3},
    "small": {"dim": 128, "layers": 1, "learning_rate": 2e-3},
    "base": {"dim": 256, "layers": 2, "learning_rate": 1e-3},
}
STACK: Sizes = {
    "tiny": {"dim": 64, "layers": 2, "heads": 4, "learning_rate": 4e-3},
    "small": {"dim": 128, "layers": 4, "heads": 4, "learning_rate": 3e-3},
    "base": {"dim": 256, "layers": 6, "heads": 8, "learning_rate": 1e-3},
}
SIZES = tuple(TRANSFORMER)

# The least characters of text, minutes and steps that make a size worth its time; below all, tiny.
WORTH = {"small": (200_000, 2.0, 400), "base": (100_000_000, 240.0, 50_000)}
ACCELERATED = 30.0  # how many minutes of a CPU one minute of an accelerator is worth, about


def fitting_size(characters: int, minutes: float | None = None, steps: int | None = None) -> str:
    """The largest size that both the characters of the text and the budget (on a CPU) are worth.

    >>> fitting_size(1_400_000, minutes=10.0), fitting_size(1_400_000, minutes=1.0), fitting_size(20_000)
    ('small', 'tiny', 'tiny')
    """
    best = SIZES[0]
    for name, (text, time, count) in WORTH.items():
        if (
            characters >= text
            and (minutes is None or minutes >= time)
            and (steps is None or steps >= count)
        ):
            best = name
    return best


class Amount(NamedTuple):
    """How much there is to learn from: texts of a kind (`what`), and the characters of all their sides."""

    texts: int
    characters: int
    what: str = "texts"
    sides: int = 1  # two of pairs

    @property
    def ids(self) -> float:
        """About how many ids of batches read all texts once; the sides of a pair share the ids of a batch."""
        return max(1.0, self.characters / self.sides / CHARACTERS_OF_AN_ID)

    @classmethod
    def of(cls, texts: Iterable[str], what: str = "texts", sides: int = 1) -> Self:
        """The amount of texts; of pairs, both `sides` of each are given.

        >>> Amount.of(["It is.", "Es ist."], "pairs", sides=2)
        Amount(texts=1, characters=13, what='pairs', sides=2)
        """
        lengths = [len(text) for text in texts]
        return cls(len(lengths) // sides, sum(lengths), what, sides)


class TrainingBudget(NamedTuple):
    """What ends a training: steps, minutes, or with neither validation that stops improving (patience).

    accelerated: training runs on an accelerator. unasked: the minutes were chosen, not given.
    """

    steps: int | None = None
    minutes: float | None = None
    patience: int | None = None
    accelerated: bool = False
    unasked: bool = False

    def completed(self, amount: Amount) -> Self:
        """This budget, or minutes that fit the data if nothing was given."""
        if self.steps is not None or self.minutes is not None or self.patience is not None:
            return self
        return self._replace(minutes=fitting_minutes(amount.characters), unasked=True)

    def __str__(self) -> str:
        if self.steps is not None:
            return count_of(self.steps, "steps", ",")
        if self.minutes is not None:
            return count_of(self.minutes, "minutes", "g")
        return "as long as validation improves"

    @property
    def batch_tokens(self) -> int:
        """Ids in a batch that suit the device."""
        return ACCELERATED_BATCH if self.accelerated else BATCH_TOKENS

    @property
    def ids(self) -> float | None:
        """About how many ids are read until the end; None if that depends on validation."""
        if self.steps is not None:
            return float(self.steps * self.batch_tokens)
        if self.minutes is not None:
            return self.minutes * IDS_A_MINUTE * (ACCELERATED if self.accelerated else 1.0)
        return None


class Choice(NamedTuple):
    """Settings of a run, and the sentence about them."""

    settings: dict[str, Any]
    reason: str


def choose(
    sizes: Sizes,
    amount: Amount,
    budget: TrainingBudget,
    given: Mapping[str, Any],
    *,
    size: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> Choice:
    """Choose what was not given: without `size`, by the data and the budget; `more` are settings that no size has."""
    budget = budget.completed(amount)
    name = size or _size_of(sizes, amount, budget, given)
    chosen: dict[str, Any] = {
        **sizes[name],
        "vocab_size": fitting_vocabulary(amount.characters),
        "batch_tokens": budget.batch_tokens,
        "dropout": fitting_dropout(amount, budget),
        **_ending(amount, budget, given),
        **({"minutes": budget.minutes} if budget.unasked else {}),
        **(more or {}),
    }
    if "dim" in given and "heads" in chosen:
        chosen["heads"] = fitting_heads(given["dim"], chosen["heads"])
    chosen = {key: value for key, value in chosen.items() if key not in given}
    data = f"{count_of(amount.texts, amount.what, ',')} ({count_of(amount.characters, 'characters', ',')})"
    until = f"{budget}{' (no budget was given: --minutes, --steps or --patience)' if budget.unasked else ''}"
    values = ", ".join(text.format(chosen[key]) for key, text in SHOWN.items() if key in chosen)
    asked = ", as asked" if size is not None else ""
    return Choice(
        chosen, f"chosen for {data} and {until}: size {name}{asked} ({values}); each is an option"
    )


SHOWN = {
    "dim": "dim {}",
    "layers": "layers {}",
    "vocab_size": "vocabulary up to {:,}",
    "batch_tokens": "batches of {:,} ids",
    "learning_rate": "rate {:g}",
    "warmup_steps": "warm-up {}",
    "cooldown": "cooldown {:g}",
    "dropout": "dropout {:g}",
    "label_smoothing": "label smoothing {:g}",
}


def _size_of(sizes: Sizes, amount: Amount, budget: TrainingBudget, given: Mapping[str, Any]) -> str:
    """The size that fits the data and the budget; with a given dim, the largest that is not larger than it."""
    if "dim" in given:
        fitting = [name for name, row in sizes.items() if row["dim"] <= given["dim"]]
        return fitting[-1] if fitting else next(iter(sizes))
    minutes = budget.minutes
    if minutes is not None and budget.accelerated:
        minutes *= ACCELERATED
    return fitting_size(amount.characters, minutes, budget.steps)


def fitting_minutes(characters: int) -> float:
    """Minutes of training where no budget was given: enough for a first result, on a CPU.

    >>> [fitting_minutes(count) for count in (5_000, 100_000, 400_000, 1_400_000)]
    [1.0, 3.0, 5.0, 10.0]
    """
    steps = ((50_000, 1.0), (200_000, 3.0), (800_000, 5.0))
    return next((minutes for most, minutes in steps if characters < most), 10.0)


def fitting_vocabulary(characters: int) -> int:
    """Pieces at most: few for a small text, in which rare pieces would be learned from a few places each.

    >>> [fitting_vocabulary(count) for count in (20_000, 700_000, 1_400_000, 10_000_000, 100_000_000)]
    [500, 1000, 2000, 4000, 8000]
    """
    steps = ((300_000, 500), (800_000, 1_000), (3_000_000, 2_000), (20_000_000, 4_000))
    return next((size for most, size in steps if characters < most), 8_000)


def passes(amount: Amount, budget: TrainingBudget) -> float:
    """About how often each text is read until the end.

    >>> round(passes(Amount(18_000, 1_400_000, "pairs", 2), TrainingBudget(steps=2_400)), 1)
    10.3
    """
    return FEW if budget.ids is None else budget.ids / amount.ids


def fitting_dropout(amount: Amount, budget: TrainingBudget) -> float:
    """The share that is dropped: none of a text that is read a few times, which cannot be learned by heart.

    >>> [fitting_dropout(Amount(1, count), TrainingBudget(minutes=10)) for count in (100_000, 1_400_000, 10_000_000)]
    [0.3, 0.1, 0.0]
    """
    often = passes(amount, budget)
    return 0.0 if often < FEW else 0.1 if often < MANY else 0.3


def fitting_heads(dim: int, most: int) -> int:
    """The largest number of heads up to `most` that divides `dim` into even parts.

    >>> fitting_heads(128, 4), fitting_heads(18, 4), fitting_heads(7, 4)
    (4, 3, 1)
    """
    return next((heads for heads in range(most, 1, -1) if dim % (2 * heads) == 0), 1)


def _ending(amount: Amount, budget: TrainingBudget, given: Mapping[str, Any]) -> dict[str, Any]:
    """Warm-up, schedule, and what ends the training; a schedule that was given has no cooldown of ours."""
    ending: dict[str, Any] = {"warmup_steps": WARMUP_STEPS, "steps": None, "validate_every": None}
    if "schedule" not in given:
        ending |= {"schedule": "constant", "cooldown": COOLDOWN}
    if budget.steps is not None:
        ending["warmup_steps"] = min(WARMUP_STEPS, max(1, budget.steps // 10))
        return ending
    if budget.minutes is None:
        epoch = amount.ids / given.get("batch_tokens", budget.batch_tokens)
        least, most = VALIDATE_BETWEEN
        ending["validate_every"] = max(least, min(most, round(epoch)))
    return ending
