"""What the tests of lessons share: which claims fail, times that cost nothing, and a run that was never trained."""

import ast
import copy
import importlib
import re
from pathlib import Path

import torch

from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.lessons import LESSONS, Settings
from regard_lab.models import TranslationTransformer
from regard_lab.text import Tokeniser
from regard_lab.text.pronouns import make_split

LOOKING = ("heads", "referent")  # need a run
LONG = " ".join(f"word{place}" for place in range(60))


def failing(name, **settings):
    """The sentences of the claims that do not hold."""
    return [claim.sentence for claim in LESSONS[name].teach(Settings(**settings)).claims if not claim.holds]


def starting(sentences, *beginnings):
    """Is there exactly one sentence for each beginning?"""
    return len(sentences) == len(beginnings) and all(
        sum(sentence.startswith(beginning) for sentence in sentences) == 1 for beginning in beginnings
    )


def changed_figures(monkeypatch, name, report=None):
    """Figures that a test may change: the lesson reads a report with them, by default the one of its own name."""
    module = importlib.import_module(f"regard_lab.lessons.{name}")
    changed = copy.deepcopy(module.read_report(report or name))
    monkeypatch.setattr(module, "read_report", lambda _: changed)
    return changed.figures


def breaks(name):
    """The texts in the tests of a lesson that break something, as regular expressions.

    What an f-string inserts may be anything.
    """
    tree = ast.parse((Path(__file__).parent / f"test_lesson_{name}.py").read_text("utf-8"))
    tests = [one for one in tree.body if isinstance(one, ast.FunctionDef) and "starting(" in ast.unparse(one)]
    texts = [text for test in tests for text in ast.walk(test) if isinstance(text, ast.JoinedStr | ast.Constant)]
    return {_expression(text) for text in texts if isinstance(text, ast.JoinedStr) or isinstance(text.value, str)}


def _expression(text):
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in parts)


def never_broken(sentences, texts):
    """The sentences that begin with none of the texts; one word is too short, and a text must fit one sentence only.

    An f-string may fit several, since it is another text for each.
    """
    fitting = {text: [one for one in sentences if re.match(text, one)] for text in texts if " " in text}
    broken = {one for text, those in fitting.items() if len(those) == 1 or ".+" in text for one in those}
    return [one for one in sentences if one not in broken]


def without_timing(monkeypatch):
    """Calls that are timed run once, on short texts where that is slow, and take a millisecond."""

    def at_once(calls):
        with torch.no_grad():
            return {name: (call(), 1.0)[1] for name, call in calls.items()}

    for module in ("generation", "grouped", "linear", "recurrent"):
        monkeypatch.setattr(f"regard_lab.lessons.{module}.milliseconds", at_once)
    monkeypatch.setattr("regard_lab.lessons.generation.LENGTHS", (16, 32))


def with_few_sentences(monkeypatch):
    for name, count in (
        ("heads.SENTENCES", 8),
        ("referent.CHOOSING", 6),
        ("referent.MEASURED", 6),
        ("referent.SWAPPED", 4),
    ):
        monkeypatch.setattr(f"regard_lab.lessons.{name}", count)


def untrained_run(folder):
    """A saved translator whose words are noise and whose maps are real."""
    texts = [text for one in make_split("train", 40) for text in (one.source, one.target)]
    tokeniser = Tokeniser.train(texts, 420)
    torch.manual_seed(0)
    model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    model.save(folder, {TOKENISER_FILE: tokeniser.to_json()})
    return folder
