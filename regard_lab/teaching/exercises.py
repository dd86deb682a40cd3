"""Exercises of a lesson: a question, and a check of the answer by claims, as those of the lesson are checked.

    @exercise(
        "Queries and keys have 100 numbers of variance 1. How large is the spread of their scores?",
        NUMBER,
        hint="The variance of a sum of independent products is the sum of their variances.",
        answer="10",
    )
    def spread_of_100(spread):
        holds("The scores spread by so much.", abs(spread - 10) < 0.5, f"measured 10, you say {spread}")

The function checks an answer: it claims with `holds` what is true of a right one. The decorated name is the exercise.
`exercise.judge("10")` checks an answer as it is typed, `exercise(10)` one that is a value, as in a notebook.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

from regard.errors import ArgumentError
from regard_lab.teaching.board import Claim, collecting, show


class AnswerKind(Protocol):
    """A kind of answer: `asks` says what to type, `read` converts it."""

    @property
    def asks(self) -> str: ...

    def read(self, typed: str, names: dict[str, Any]) -> Any:
        """The value of what was typed; `names` are those of the lesson."""


@dataclass(frozen=True)
class OneNumber:
    """A number, which may have separators of thousands, a fraction bar or a percent sign."""

    asks = "a number"

    def read(self, typed: str, names: dict[str, Any]) -> float:
        text = typed.strip().replace(",", "").replace(" ", "")
        try:
            if text.endswith("%"):
                return float(text[:-1]) / 100
            numerator, _, denominator = text.partition("/")
            return float(numerator) / (float(denominator) if denominator else 1.0)
        except (ValueError, ZeroDivisionError) as error:
            raise ArgumentError(f"{typed.strip()!r} is not a number; type one, as 12.5") from error


@dataclass(frozen=True)
class WholeNumbers:
    """Whole numbers with blanks or commas between them; the word "none" for no number."""

    asks = "whole numbers with blanks between them, or none"

    def read(self, typed: str, names: dict[str, Any]) -> list[int]:
        words = re.split(r"[\s,]+", typed.strip(" \t\n[](){}"))
        if words in (["none"], [""]):
            return []
        try:
            return [int(word) for word in words]
        except ValueError as error:
            raise ArgumentError(
                f"{typed.strip()!r} are not whole numbers; type them as 2 3 5, or none"
            ) from error


@dataclass(frozen=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    @property
    def asks(self) -> str:
        return f"one of: {', '.join(self.words)}"

    def read(self, typed: str, names: dict[str, Any]) -> str:
        word = " ".join(typed.lower().split())
        if word not in self.words:
            raise ArgumentError(f"{typed.strip()!r} is not among the answers; type {self.asks}")
        return word


@dataclass(frozen=True)
class Code:
    """Python whose last line is an expression; it runs as the lesson's cells do, with their names."""

    asks = "Python; its last line is the answer, and the names of the lesson may be used"

    def read(self, typed: str, names: dict[str, Any]) -> Any:
        try:
            tree = ast.parse(typed.strip())
        except SyntaxError as error:
            raise ArgumentError(f"the answer is not Python: {error.msg}") from error
        if not tree.body or not isinstance(tree.body[-1], ast.Expr):
            raise ArgumentError("the last line of the answer must be an expression, such as `mask`")

        last = tree.body.pop()
        assert isinstance(last, ast.Expr)
        typed_names = dict(names)  # an answer changes no name of the lesson
        try:
            exec(compile(tree, "<answer>", "exec"), typed_names)
            return eval(compile(ast.Expression(last.value), "<answer>", "eval"), typed_names)
        except Exception as error:
            raise ArgumentError(f"the answer raised {type(error).__name__}: {error}") from error


NUMBER = OneNumber()
WHOLE_NUMBERS = WholeNumbers()
CODE = Code()


def one_of(*words: str) -> OneOf:
    """The kind of an answer that is one of these words."""
    return OneOf(words)


@dataclass(frozen=True, repr=False)
class Judgement:
    """Whether an answer is right, and what shows it: the claims of the check, or why there are none."""

    is_right: bool
    claims: tuple[Claim, ...] = ()
    remark: str = ""

    def __str__(self) -> str:
        return "\n".join(["right" if self.is_right else "wrong", *self.reasons])

    __repr__ = __str__  # what a notebook shows

    @property
    def reasons(self) -> list[str]:
        """What shows it, in lines."""
        if self.remark:
            return [self.remark]
        lines = [str(claim) for claim in self.claims]
        return [line[0].upper() + line[1:] for line in lines]


@dataclass(frozen=True, eq=False)
class Exercise:
    """A question about a lesson, and the check of its answer.

    Args:
        question: in Markdown.
        kind: of the answer.
        hint: for a reader who does not know how to begin.
        answer: a right one, as a reader would type it.
        check: gets the answer, and claims with `holds` what is true of a right one.
    """

    question: str
    kind: AnswerKind
    hint: str
    answer: str
    check: FunctionType

    @property
    def name(self) -> str:
        return self.check.__name__

    def judge(self, typed: str) -> Judgement:
        """Judge an answer as it was typed."""
        try:
            answer = self.kind.read(typed, self.check.__globals__)
        except ArgumentError as error:
            return Judgement(False, remark=str(error))
        return self._judge_value(answer)

    def __call__(self, answer: Any) -> Judgement:
        """Judge an answer that is a value, as in a notebook."""
        return self._judge_value(answer)

    def _judge_value(self, answer: Any) -> Judgement:
        try:
            with collecting(lenient=True) as shown:
                self.check(answer)
        except Exception as error:  # of a tensor of another shape, for instance
            remark = f"the answer cannot be checked: {type(error).__name__}: {error}"
            return Judgement(False, remark=remark)
        claims = tuple(thing for thing in shown if isinstance(thing, Claim))
        is_right = all(claim.holds is claim.expected for claim in claims)
        return Judgement(is_right, claims)

    def __str__(self) -> str:
        return f"[exercise {self.name}] {self.question} ({self.kind.asks})"

    def _repr_markdown_(self) -> str:
        return f"{self.as_markdown()}\n\nCheck an answer: `{self.name}(answer)`"

    def as_markdown(self) -> str:
        """Question, hint and answer."""
        answer = f"`{self.answer}`"
        if "\n" in self.answer or "`" in self.answer:
            answer = f"\n\n```python\n{self.answer}\n```"
        return "\n\n".join(
            [
                f"{self.question} *({self.kind.asks})*",
                f"<details markdown><summary>Hint</summary>\n\n{self.hint}\n\n</details>",
                f"<details markdown><summary>Answer</summary>\n\n{answer}\n\n</details>",
            ]
        )


def exercise(
    question: str, kind: AnswerKind, *, hint: str, answer: str
) -> Callable[[FunctionType], Exercise]:
    """Make an exercise of the function that checks its answer, and show it."""

    def decorate(check: FunctionType) -> Exercise:
        made = Exercise(question, kind, hint, answer, check)
        show(made)
        return made

    return decorate


def exercises_in(shown: Sequence[object]) -> list[Exercise]:
    """The exercises among the things that a lesson showed, in order."""
    return [thing for thing in shown if isinstance(thing, Exercise)]
