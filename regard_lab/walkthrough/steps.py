"""What a walkthrough is made of: its words, its steps, the call that makes it, and the walker that runs its lines.

The lines that are shown are executed, so that the numbers shown are the numbers computed.
"""

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from regard.arguments import a_string, count_of, one_of, whole
from regard.errors import ArgumentError, RegardError
from regard.patterns import parse
from regard.reprs import brief
from regard_lab.seeing.explorer.records import StepAxis
from regard_lab.text.vocabularies import BEGIN, END

# The most words of a walkthrough.
LIMIT = 100

# The units of a text that are kept: all, or only words of letters and digits.
UNITS = ("all", "letters")


def split_words(text: str, kept: str = "all") -> list[str]:
    """Split a text into words, runs of punctuation and runs of symbols; an apostrophe inside a word belongs to it.

    Args:
        text: any text.
        kept: the units that are kept: "all", or "letters" for words of letters and digits only.

    Raises:
        ArgumentError: another kind of unit.

    >>> split_words("Life is short, eat dessert first")
    ['Life', 'is', 'short', ',', 'eat', 'dessert', 'first']
    >>> split_words("Life is short, eat dessert first", "letters")
    ['Life', 'is', 'short', 'eat', 'dessert', 'first']
    >>> split_words("It didn't cost 3€...")
    ['It', "didn't", 'cost', '3', '€', '...']
    """
    one_of("words", kept, UNITS)
    kinds: list[str] = []
    for place, letter in enumerate(a_string("text", text)):
        kinds.append(_kind(letter, text[place + 1 : place + 2], kinds))

    units = []
    start = 0
    for kind, run in groupby(kinds):
        stop = start + len(list(run))
        if kind == "word" or (kept == "all" and kind != "space"):
            units.append(text[start:stop])
        start = stop
    return units


def check_words(words: Sequence[str] | Sequence[int], what: str = "text") -> None:
    """Raise an ArgumentError if there is no word, or more than `LIMIT`."""
    if not words:
        raise ArgumentError(
            f"the {what} has no words; give a sentence, such as 'Life is short, eat dessert first'"
        )
    if len(words) > LIMIT:
        raise ArgumentError(
            f"the {what} has {count_of(len(words), 'words')}; a walkthrough shows every number and takes at most "
            f"{count_of(LIMIT, 'words')}: give a sentence"
        )


def find_word(word: int | str | None, words: Sequence[str]) -> int:
    """The index, from 0, of a word given by its number from 1 or by its text; by default that of the second word.

    >>> find_word(2, ["Life", "is"]), find_word("is", ["Life", "is"])
    (1, 1)
    """
    if word is None:
        return min(1, len(words) - 1)
    if not isinstance(word, str):
        word = whole("word", word)
    is_text = isinstance(word, str)
    wanted = str(word).casefold()
    places = [place for place, other in enumerate(words) if other.casefold() == wanted]
    if is_text and not word.removeprefix("-").isdecimal():
        if not places:
            raise ArgumentError(
                f"word {word[:40]!r} is not in the text; its words are numbered 1 to {len(words)}"
            )
        return places[0]

    number = int(word)
    if 1 <= number <= len(words):
        return number - 1
    # The word "42" of a text with fewer words.
    if is_text and places:
        return places[0]
    raise ArgumentError(f"word {number} does not exist; the text has words 1 to {len(words)}")


def _kind(letter: str, after: str, kinds: list[str]) -> str:
    """The kind of run that a letter belongs to; marks and joiners belong to the run before them."""
    if letter.isspace():
        return "space"
    category = unicodedata.category(letter)
    if (category[0] == "M" or category == "Cf") and kinds and kinds[-1] != "space":
        return kinds[-1]
    if letter.isalnum() or letter == "_" or category[0] == "M":
        return "word"
    if letter in "'’" and kinds and kinds[-1] == "word" and after.isalnum():
        return "word"
    return "punctuation" if category[0] == "P" else "symbol"


class FileWeights(dict[str, torch.Tensor]):
    """Tensors by name that were read from a file, with its path, so that a walkthrough can say how to read them."""

    def __init__(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(tensors)
        self.path = path


def changed(function: Callable[..., Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a function that do not have their defaults, among these values of its parameters.

    >>> changed(sorted, {"iterable": "ba", "key": None, "reverse": True})
    {'reverse': True}
    """
    options = {}
    for name, parameter in signature(function).parameters.items():
        is_option = parameter.kind is Parameter.KEYWORD_ONLY
        if is_option and repr(asked[name]) != repr(parameter.default):
            options[name] = asked[name]
    return options


def call_of(function: Callable[..., Any], asked: Mapping[str, Any]) -> str:
    """The call of a function with these values of its parameters, in Python.

    Weights are read from their file; those that came from no file have to be saved to one first.

    >>> call_of(sorted, {"iterable": "ba", "key": None, "reverse": True})
    "sorted('ba', reverse=True)"
    """
    arguments = []
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is not Parameter.KEYWORD_ONLY:
            arguments.append(_literal(asked[name]))
    for name, value in changed(function, asked).items():
        arguments.append(f"{name}={_literal(value)}")
    return f"{getattr(function, '__name__', '')}({', '.join(arguments)})"


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        path = str(getattr(value, "path", "FILE"))
        return f"read_weights({path!r})"
    if isinstance(value, Path):
        return repr(str(value))
    return repr(value)


def opening_code(call: str) -> tuple[str, str]:
    """The two statements that define what the lines of a walkthrough use.

    >>> print("\\n".join(opening_code("walk('Life is short', causal=True)")))
    from regard_lab.walkthrough import walk
    globals().update(walk('Life is short', causal=True).names())
    """
    names = call.partition("(")[0]
    if "weights=read_weights(" in call:
        names += ", read_weights"
    return f"from regard_lab.walkthrough import {names}", f"globals().update({call}.names())"


@dataclass(frozen=True)
class Axis(StepAxis):
    """One axis of a step, as the explorer shows it."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def followed(self) -> int:
        """The index of the chosen word, of an axis that has one."""
        assert self.chosen is not None
        return self.chosen


@brief
@dataclass(frozen=True, eq=False)
class Step:
    """One step of a walkthrough: a line of PyTorch, an explanation, and the result.

    Args:
        section: the section that the step belongs to.
        name: the variable that the line assigns.
        title, says: a heading, and one or two sentences of explanation.
        formula: in the notation of `formula_elements`; empty if there is none.
        line: `name = …`, using variables that were given or assigned before.
        axes: one for each axis of the value.
        value: a tensor, or words.
        scale: how the explorer colours the numbers: "none", "signed" (around 0) or "weights" (from 0 to 1).
    """

    section: str
    name: str
    title: str
    says: str
    formula: str
    line: str
    axes: tuple[Axis, ...]
    value: torch.Tensor | tuple[str, ...]
    scale: str = "signed"

    @property
    def shape(self) -> str:
        """The sizes with their units, such as "6 words × 8 numbers"."""
        return " × ".join(count_of(len(axis), axis.unit) for axis in self.axes)


@dataclass(frozen=True, eq=False)
class Given:
    """A variable that exists before the first line: its name, a description, its value, and what its axes are."""

    name: str
    says: str
    value: Any = field(repr=False)
    axes: str = ""

    @property
    def described(self) -> str:
        """The axes, if they are known, and the description."""
        return f"({self.axes}) {self.says}" if self.axes else self.says


@dataclass(frozen=True)
class Check:
    """Another way to compute a step, and the largest difference between the two results."""

    line: str
    name: str
    difference: float


@brief
@dataclass(frozen=True, eq=False)
class Walk:
    """All steps of attention for one text, from which text and JSON are written.

    Args:
        words: the words of the queries, or sub-words of a trained model.
        context: the words of the keys in cross-attention, else empty.
        word: the index, from 0, of the word that is shown in detail.
        settings: the options, by name.
        given: the variables that lines may use besides those that earlier lines assign.
        steps: in the order of execution.
        checks: comparisons of the results with other ways to compute them.
        decimals: of the printed numbers; JSON contains all digits.
        brief: the text has the numbers of the followed word only; JSON contains all.
        notes: what a reader should know before the first step.
        call: the call of this package that makes it, in Python.
    """

    words: tuple[str, ...]
    context: tuple[str, ...]
    word: int
    settings: dict[str, Any]
    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    checks: tuple[Check, ...]
    decimals: int = 3
    brief: bool = False
    notes: tuple[str, ...] = ()
    call: str = field(default="", repr=False)

    @property
    def chosen(self) -> str:
        return self.words[self.word]

    @property
    def described(self) -> str:
        """The options in words, as in "heads: 2, size of vectors: 8"."""
        said = []
        for name, value in self.settings.items():
            if isinstance(value, bool):
                value = "yes" if value else "no"
            said.append(f"{LABELS.get(name, name)}: {value}")
        return ", ".join(said)

    def names(self) -> dict[str, Any]:
        """Every name that the lines use without assigning it, with its value: the lines run where these are defined.

        >>> from regard_lab.walkthrough import walk
        >>> steps = walk("Life is short")
        >>> names = steps.names()
        >>> exec(steps.steps[0].line, names)
        >>> names["words"]
        ['Life', 'is', 'short']
        """
        return LANGUAGE | {variable.name: variable.value for variable in self.given}

    def __getitem__(self, name: str) -> Any:
        """The value of a step."""
        values = {step.name: step.value for step in self.steps}
        if name not in values:
            raise ArgumentError(
                f"this walkthrough has no step {name!r}; there are {', '.join(values)}"
            )
        return values[name]


# What an error says where something else was given.
A_WALK = "a Walk, as walk and walk_whole_run return it"

# The options in words.
LABELS = {
    "kv_heads": "key/value heads",
    "head": "head shown",
    "dim": "size of vectors",
    "query_dim": "size of queries",
    "key_dim": "size of keys",
    "value_dim": "size of values",
    "encoder_layers": "encoder layers",
    "decoder_layers": "decoder layers",
    "weights_seed": "seed of the weights",
    "draw": "random weights",
    "given": "given weights",
    "run": "trained model",
}
COUNTING = "Words are counted from 1; heads, layers, ids and the numbers of a vector from 0."

# What a reader has to know first where weights were drawn and not learned.
RANDOM_NOTE = (
    "Nothing here is trained: all weights are random numbers. So it means nothing which word gets most weight; "
    "watch how the numbers are calculated."
)


def numbered(unit: str, count: int) -> Axis:
    """An axis whose labels are its indices, from 0."""
    return Axis(unit, tuple(map(str, range(count))))


# The names that every line may use: PyTorch, and a few functions of regard.
LANGUAGE: dict[str, Any] = {
    "torch": torch,
    "F": F,
    "math": math,
    "parse": parse,
    "split_words": split_words,
    "BEGIN": BEGIN,
    "END": END,
}

# The relative difference up to which two ways to compute a step agree.
TOLERANCE = 1e-6


class Walker:
    """Runs the lines of a walkthrough and records each as a step; a line never contains text of a user.

    With `repeats`, an explanation is given as often as it applies: a walkthrough of one layer is short.
    """

    def __init__(self, section: str, *, repeats: bool = False) -> None:
        self.section = section
        self.repeats = repeats
        self.explained: set[str] = set()
        self.values: dict[str, Any] = dict(LANGUAGE)
        self.given: list[Given] = []
        self.steps: list[Step] = []
        self.checks: list[Check] = []

    def give(self, name: str, value: Any, says: str, axes: str = "") -> None:
        """Make a value available to later lines."""
        self.values[name] = value
        self.given.append(Given(name, says, value, axes))

    def once(self, says: str) -> str:
        """An explanation, or nothing if it was given before."""
        known = says in self.explained and not self.repeats
        self.explained.add(says)
        return "" if known else says

    @torch.no_grad()
    def step(
        self,
        line: str,
        title: str,
        says: str | Callable[[torch.Tensor], str],
        formula: str = "",
        *,
        axes: tuple[Axis, ...],
        scale: str = "signed",
    ) -> str:
        """Run a line, record its result, and return the name it assigns.

        `says` may be a function of the result. A last axis that is not in `axes` counts the numbers of a vector.
        """
        exec(line, self.values)
        name = line.partition(" = ")[0]
        value = self.values[name]
        explanation = says if isinstance(says, str) else says(value)
        if isinstance(value, list):
            value = tuple(value)
        elif value.dim() == len(axes) + 1:
            axes = (*axes, numbered("numbers", value.shape[-1]))

        says = explanation.strip()
        self.steps.append(Step(self.section, name, title, says, formula, line, axes, value, scale))
        return name

    @torch.no_grad()
    def check(self, expression: str, name: str) -> None:
        """Compute a step in another way and record the difference.

        Raises:
            RegardError: the results differ by more than rounding.
        """
        recomputed = eval(expression, self.values)
        value = self.values[name]
        difference = float((recomputed - value).abs().max())
        if not difference <= TOLERANCE * max(1.0, float(value.abs().max())):
            raise RegardError(
                f"{expression} and the step {name} differ by {difference:.1e}; this is a mistake of regard"
            )
        self.checks.append(Check(expression, name, difference))

    def walk(self, words: Axis, context: Axis | None, settings: dict[str, Any], **how: Any) -> Walk:
        """The recorded walkthrough; `how` are the other fields of a `Walk`."""
        notes = (*how.pop("notes", ()), COUNTING)
        return Walk(
            words=words.labels,
            context=() if context is None else context.labels,
            word=words.followed,
            settings=settings,
            given=tuple(self.given),
            steps=tuple(self.steps),
            checks=tuple(self.checks),
            notes=notes,
            **how,
        )
