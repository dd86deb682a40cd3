"""What the tests of lessons share: which claims come out differently when something is broken."""

import ast
import re
from dataclasses import replace
from pathlib import Path

from regard_lab.lessons import find_lesson

HERE = Path(__file__).parent


def failing(name, *edits, **changed):
    """The sentences of the claims that come out differently from what the lesson expects.

    Args:
        name: of the lesson.
        edits: pairs of texts; the first stands in the lesson's file and is replaced by the second.
        changed: other parameters.
    """
    page = find_lesson(name)
    for old, new in edits:
        assert old in page.text, f"{old!r} does not stand in lesson {name}"
        page = replace(page, text=page.text.replace(old, new))
    return [
        claim.sentence
        for claim in page.claims(changed, lenient=True)
        if claim.holds is not claim.expected
    ]


def starting(sentences, *beginnings):
    """Is there exactly one sentence for each beginning?"""
    return len(sentences) == len(beginnings) and all(
        sum(sentence.startswith(beginning) for sentence in sentences) == 1
        for beginning in beginnings
    )


def changed_report(monkeypatch, name):
    """The figures of a report that a test may change; every lesson then reads them."""
    from copy import deepcopy

    import regard_lab.teaching as teaching

    real = teaching.read_report
    changed = deepcopy(real(name))
    monkeypatch.setattr(
        teaching, "read_report", lambda asked: changed if asked == name else real(asked)
    )
    return changed.figures


def broken_claims():
    """For each lesson, the texts in tests that break it, as regular expressions; an f-string inserts anything."""
    texts = {}
    for path in HERE.glob("test_breaking_*.py"):
        for test in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(test, ast.FunctionDef):
                continue
            calls = [
                node
                for node in ast.walk(test)
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "failing"
            ]
            for call in calls:
                inside = [
                    part
                    for part in ast.walk(test)
                    if isinstance(part, ast.JoinedStr | ast.Constant)
                ]
                texts.setdefault(ast.literal_eval(call.args[0]), set()).update(
                    map(_expression, inside)
                )
    return texts


def _expression(text):
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(
        re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts
    )


def never_broken(sentences, texts):
    """The sentences that begin with none of the texts; one word is too short, and a text must fit one sentence only.

    An f-string may fit several, since it is another text for each.
    """
    fitting = {
        text: [one for one in sentences if re.match(text, one)] for text in texts if " " in text
    }
    broken = {
        one for text, those in fitting.items() if len(those) == 1 or ".+" in text for one in those
    }
    return [one for one in sentences if one not in broken]
