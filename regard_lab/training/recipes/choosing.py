"""Settings of a new training run from the amount of data and the budget: what was not given is chosen here.

First come the sizes of models, which can be named (`--size`) too. `choose` is a function of counts alone, so that the
same data and budget give the same settings on every machine of a kind. It returns the settings and a sentence
with what was chosen and for what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from regard.arguments import count_of

WARMUP_STEPS = 200  # at most; of a short training a tenth of the steps
COOLDOWN = 0.6  # share of the training over which the rate falls to zero
# Passes over the data: no dropout below FEW_PASSES, the most dropout from MANY_PASSES on.
FEW_PASSES = 4.0
MANY_PASSES = 40.0
# Ids of a batch; on a CPU, small batches learn more in the same time.
CPU_BATCH = 1_000
ACCELERATED_BATCH = 4_096
CHARACTERS_OF_AN_ID = 3.0  # roughly, in most languages and vocabularies of this size
IDS_A_MINUTE = 300_000  # roughly, for a small model on one thread of a CPU
CPU_MINUTES = 30.0  # that one minute of an accelerator is worth, about
# Steps between validations, where the number of steps is not known.
FEWEST_STEPS_BETWEEN = 50
MOST_STEPS_BETWEEN = 1_000


@dataclass(frozen=True)
class ModelSize:
    """The settings that the name of a size decides; recurrent models have no heads."""

    dim: int
    layers: int
    learning_rate: float
    heads: int | None = None

    def settings(self) -> dict[str, Any]:
        settings = asdict(self)
        if self.heads is None:
            del settings["heads"]
        return settings


Sizes = Mapping[str, ModelSize]  # the smallest first

# Layers are those of a translator's encoder and decoder each. The peak rate is lower for larger models.
TRANSFORMER: Sizes = {
    "tiny": ModelSize(dim=64, layers=2, heads=4, learning_rate=4e-3),
    "small": ModelSize(dim=128, layers=2, heads=4, learning_rate=3e-3),
    "base": ModelSize(dim=256, layers=4, heads=8, learning_rate=1e-3),
}
RECURRENT_TRANSLATOR: Sizes = {
    "tiny": ModelSize(dim=64, layers=1, learning_rate=3e-3),
    "small": ModelSize(dim=128, layers=1, learning_rate=2e-3),
    "base": ModelSize(dim=256, layers=2, learning_rate=1e-3),
}
STACK: Sizes = {
    "tiny": ModelSize(dim=64, layers=2, heads=4, learning_rate=4e-3),
    "small": ModelSize(dim=128, layers=4, heads=4, learning_rate=3e-3),
    "base": ModelSize(dim=256, layers=6, heads=8, learning_rate=1e-3),
}
SIZES = tuple(TRANSFORMER)


@dataclass(frozen=True)
class Worth:
    """The least text and the least training, on a CPU, that make a size worth its time."""

    characters: int
    minutes: float
    steps: int


# Below all of them, tiny.
WORTH = {
    "small": Worth(characters=200_000, minutes=2.0, steps=400),
    "base": Worth(characters=100_000_000, minutes=240.0, steps=50_000),
}


def fitting_size(characters: int, minutes: float | None = None, steps: int | None = None) -> str:
    """The largest size that both the characters of the text and the budget (on a CPU) are worth.

    >>> fitting_size(1_400_000, minutes=10.0), fitting_size(1_400_000, minutes=1.0), fitting_size(20_000)
    ('small', 'tiny', 'tiny')
    """
    best = SIZES[0]
    for name, least in WORTH.items():
        has_text = characters >= least.characters
        has_minutes = minutes is None or minutes >= least.minutes
        has_steps = steps is None or steps >= least.steps
        if has_text and has_minutes and has_steps:
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

    def __str__(self) -> str:
        texts = count_of(self.texts, self.what, ",")
        return f"{texts} ({count_of(self.characters, 'characters', ',')})"


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
        if self.minutes is None:
            return "as long as validation improves"
        minutes = count_of(self.minutes, "minutes", "g")
        if self.unasked:
            return f"{minutes} (no budget was given: --minutes, --steps or --patience)"
        return minutes

    @property
    def batch_tokens(self) -> int:
        """Ids in a batch that suit the device."""
        return ACCELERATED_BATCH if self.accelerated else CPU_BATCH

    @property
    def cpu_minutes(self) -> float | None:
        """The minutes of a CPU that the budget is worth, about; None if no minutes were given."""
        if self.minutes is None:
            return None
        return self.minutes * CPU_MINUTES if self.accelerated else self.minutes

    @property
    def ids(self) -> float | None:
        """About how many ids are read until the end; None if that depends on validation."""
        if self.steps is not None:
            return float(self.steps * self.batch_tokens)
        if self.cpu_minutes is None:
            return None
        return self.cpu_minutes * IDS_A_MINUTE


class ChosenSettings(NamedTuple):
    """Settings of a run, and the sentence about them."""

    settings: dict[str, Any]
    reason: str


# How the sentence about a choice writes each setting.
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


def choose(
    sizes: Sizes,
    amount: Amount,
    budget: TrainingBudget,
    given: Mapping[str, Any],
    *,
    size: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> ChosenSettings:
    """Choose what was not given: without `size`, by the data and the budget; `more` are settings that no size has."""
    budget = budget.completed(amount)
    name = size or _size_of(sizes, amount, budget, given)
    fitting: dict[str, Any] = {
        **sizes[name].settings(),
        "vocab_size": fitting_vocabulary(amount.characters),
        "batch_tokens": budget.batch_tokens,
        "dropout": fitting_dropout(amount, budget),
        **_ending(amount, budget, given),
        **(more or {}),
    }
    if "dim" in given and "heads" in fitting:
        fitting["heads"] = fitting_heads(given["dim"], fitting["heads"])
    chosen = {setting: value for setting, value in fitting.items() if setting not in given}

    values = [text.format(chosen[setting]) for setting, text in SHOWN.items() if setting in chosen]
    asked = ", as asked" if size is not None else ""
    reason = f"chosen for {amount} and {budget}: size {name}{asked} ({', '.join(values)}); each is an option"
    return ChosenSettings(chosen, reason)


def _size_of(sizes: Sizes, amount: Amount, budget: TrainingBudget, given: Mapping[str, Any]) -> str:
    """The size that fits the data and the budget; with a given dim, the largest that is not larger than it."""
    if "dim" not in given:
        return fitting_size(amount.characters, budget.cpu_minutes, budget.steps)
    fitting = [name for name, size in sizes.items() if size.dim <= given["dim"]]
    return fitting[-1] if fitting else next(iter(sizes))


def _ending(amount: Amount, budget: TrainingBudget, given: Mapping[str, Any]) -> dict[str, Any]:
    """Warm-up, schedule, and what ends the training; a schedule that was given has no cooldown of ours."""
    ending: dict[str, Any] = {"warmup_steps": WARMUP_STEPS, "steps": None, "validate_every": None}
    if budget.unasked:
        ending["minutes"] = budget.minutes
    if "schedule" not in given:
        ending |= {"schedule": "constant", "cooldown": COOLDOWN}

    if budget.steps is not None:
        ending["warmup_steps"] = min(WARMUP_STEPS, max(1, budget.steps // 10))
    elif budget.minutes is None:
        epoch = amount.ids / given.get("batch_tokens", budget.batch_tokens)
        ending["validate_every"] = max(FEWEST_STEPS_BETWEEN, min(MOST_STEPS_BETWEEN, round(epoch)))
    return ending


def fitting_minutes(characters: int) -> float:
    """Minutes of training where no budget was given: enough for a first result, on a CPU.

    >>> [fitting_minutes(count) for count in (5_000, 100_000, 400_000, 1_400_000)]
    [1.0, 3.0, 5.0, 10.0]
    """
    if characters < 50_000:
        return 1.0
    if characters < 200_000:
        return 3.0
    if characters < 800_000:
        return 5.0
    return 10.0


def fitting_vocabulary(characters: int) -> int:
    """Pieces at most: few for a small text, in which rare pieces would be learned from a few places each.

    >>> [fitting_vocabulary(count) for count in (20_000, 700_000, 1_400_000, 10_000_000, 100_000_000)]
    [500, 1000, 2000, 4000, 8000]
    """
    if characters < 300_000:
        return 500
    if characters < 800_000:
        return 1_000
    if characters < 3_000_000:
        return 2_000
    if characters < 20_000_000:
        return 4_000
    return 8_000


def passes(amount: Amount, budget: TrainingBudget) -> float:
    """About how often each text is read until the end.

    >>> round(passes(Amount(18_000, 1_400_000, "pairs", 2), TrainingBudget(steps=2_400)), 1)
    10.3
    """
    return FEW_PASSES if budget.ids is None else budget.ids / amount.ids


def fitting_dropout(amount: Amount, budget: TrainingBudget) -> float:
    """The share that is dropped: none of a text that is read a few times, which cannot be learned by heart.

    >>> [fitting_dropout(Amount(1, count), TrainingBudget(minutes=10)) for count in (100_000, 1_400_000, 10_000_000)]
    [0.3, 0.1, 0.0]
    """
    often = passes(amount, budget)
    if often < FEW_PASSES:
        return 0.0
    return 0.1 if often < MANY_PASSES else 0.3


def fitting_heads(dim: int, most: int) -> int:
    """The largest number of heads up to `most` that divides `dim` into even parts.

    >>> fitting_heads(128, 4), fitting_heads(18, 4), fitting_heads(7, 4)
    (4, 3, 1)
    """
    return next((heads for heads in range(most, 1, -1) if dim % (2 * heads) == 0), 1)
