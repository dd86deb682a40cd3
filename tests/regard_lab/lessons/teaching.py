"""What the tests of lessons share: a lesson runs with wrong values, and the claims that notice are returned.

    failing("scale", KINDS={"unscaled": None, "scaled": 1.0})

runs the lesson *scale*; wherever a cell assigns to `KINDS`, the given value is stored in its place. The cells after it,
and the rest of the cell, read the wrong value. A name may be a constant, a variable, a function that the lesson defines
or something that it imports. A value that is to be computed is given as a function of names of the lesson:

    failing("causal", masked=Computed(lambda weights: weights))
    failing("one_sentence", contexts=Computed(lambda contexts: 2 * contexts))

The parameters of the function are names that the lesson has assigned so far; the name itself stands for the right
value. Whatever a cell calls from regard or torch is broken with pytest's `monkeypatch` as in other tests, and figures
of reports with `changed_report`. A name that no cell assigns is an error, so a test cannot break nothing unnoticed.

A test is one sentence: what is broken, and the beginnings of the claims that must come out differently, and no others.

    assert starting(failing("scale", KINDS=...), "Unscaled scores spread", "The entropy of unscaled")

`test_every_lesson.py` asks for such a test for each claim.
"""

import ast
import inspect
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regard_lab.teaching
from regard_lab.lessons import find_lesson
from regard_lab.teaching import LessonPage

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Computed:
    """A wrong value that is a function of the lesson's names."""

    function: Callable[..., Any]

    def value(self, names):
        return self.function(*(names[name] for name in inspect.signature(self.function).parameters))


class WrongNames(dict):
    """The namespace of a lesson, in which some names always get other values than the lesson assigns."""

    def __init__(self, names, wrong):
        super().__init__(names)
        self.wrong = wrong
        self.unassigned = set(wrong)

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        if name not in self.wrong:
            return

        self.unassigned.discard(name)
        wrong = self.wrong[name]
        super().__setitem__(name, wrong.value(self) if isinstance(wrong, Computed) else wrong)


@dataclass(frozen=True)
class BrokenPage(LessonPage):
    """A lesson that runs with wrong values."""

    wrong: dict[str, Any]
    namespaces: list[WrongNames] = field(default_factory=list)

    def new_names(self):
        self.namespaces.append(WrongNames(super().new_names(), self.wrong))
        return self.namespaces[-1]


def failing(name, **wrong):
    """The sentences of the claims that come out differently from what the lesson expects.

    Args:
        name: of the lesson.
        wrong: for each name that is broken, its wrong value, or `Computed(function)`.
    """
    lesson = find_lesson(name)
    page = BrokenPage(lesson.path, lesson.text, wrong)
    claims = page.claims(lenient=True)

    (names,) = page.namespaces
    unassigned = names.unassigned
    assert not unassigned, f"no cell of lesson {name} assigns {', '.join(sorted(unassigned))}"
    return [claim.sentence for claim in claims if claim.holds is not claim.expected]


def starting(sentences, *beginnings):
    """Is there exactly one sentence for each beginning, and no other?"""
    for beginning in beginnings:
        if sum(sentence.startswith(beginning) for sentence in sentences) != 1:
            return False
    return len(sentences) == len(beginnings)


def changed_report(monkeypatch, name):
    """The figures of a report that a test may change; every lesson then reads them."""
    read_report = regard_lab.teaching.read_report
    changed = deepcopy(read_report(name))

    def read_changed_report(asked):
        return changed if asked == name else read_report(asked)

    monkeypatch.setattr(regard_lab.teaching, "read_report", read_changed_report)
    return changed.figures


def broken_claims():
    """For each lesson, the texts in tests that break it, as regular expressions; an f-string inserts anything."""
    expressions = {}
    for path in HERE.glob("test_breaking_*.py"):
        for test in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(test, ast.FunctionDef):
                continue
            nodes = list(ast.walk(test))
            texts = {_expression(node) for node in nodes if isinstance(node, TEXTS)}
            for node in nodes:
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "failing":
                    lesson = ast.literal_eval(node.args[0])
                    expressions.setdefault(lesson, set()).update(texts)
    return expressions


TEXTS = (ast.JoinedStr, ast.Constant)


def _expression(text):
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    expression = ""
    for part in parts:
        expression += re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+"
    return expression


def never_broken(sentences, expressions):
    """The sentences that begin with none of the texts; one word is too short, and a text must fit one sentence only.

    An f-string may fit several, since it is another text for each.
    """
    broken = set()
    for expression in expressions:
        if " " not in expression:
            continue
        fitting = [sentence for sentence in sentences if re.match(expression, sentence)]
        if len(fitting) == 1 or ".+" in expression:
            broken.update(fitting)
    return [sentence for sentence in sentences if sentence not in broken]
