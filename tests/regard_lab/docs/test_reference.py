"""The reference in the built site: complete signatures, equal to those that Python reports."""

from __future__ import annotations

import ast
import html
import inspect
import re
from importlib import import_module

import pytest

from docs.making.reference import ROOMS, documented

HEADING = r'<h\d id="([\w.]+)" class="doc doc-heading">'
OBJECT = re.compile(rf"{HEADING}(.*?)(?={HEADING}|\Z)", re.DOTALL)
SIGNATURE = re.compile(r'<div class="language-python doc-signature highlight">.*?<pre>(.*?)</pre>', re.DOTALL)
# Classes that are not made by calling them: abstract ones, protocols, and a layer whose parameters are torch's.
NOT_CALLED = {"Pattern", "Mechanism", "FeatureMap", "Score", "Bias", "State", "Writer", "Task", "Change", "Projection"}


def shown_signatures(page: str) -> dict[str, str]:
    """The text of each signature by the path of its object."""
    found = ((match[1], SIGNATURE.search(match[2])) for match in OBJECT.finditer(page))
    return {path: html.unescape(re.sub(r"<[^>]+>", "", text[1])) for path, text in found if text}


def written(signature: str) -> list[tuple[str, bool, str]]:
    """Name, whether only by keyword, and default ("" for none) of each parameter of a shown signature."""
    arguments = ast.parse(f"def {signature.strip()}: pass").body[0].args
    before = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(before) - len(arguments.defaults)) + arguments.defaults
    rows = [(one.arg, False, ast.unparse(value) if value else "") for one, value in zip(before, defaults, strict=True)]
    rows += [(arguments.vararg.arg, False, "")] if arguments.vararg else []
    rows += [
        (one.arg, True, ast.unparse(value) if value else "")
        for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return rows + ([(arguments.kwarg.arg, False, "")] if arguments.kwarg else [])


def reported(value: object) -> list[tuple[str, bool, object]]:
    """The same as Python reports it, without parameters that only refuse keywords of other libraries."""
    parameters = inspect.signature(value).parameters.values()
    return [(one.name, one.kind is one.KEYWORD_ONLY, one.default) for one in parameters if one.annotation != "Never"]


def same(shown: tuple[str, bool, str], real: tuple[str, bool, object]) -> bool:
    """Whether a shown parameter is the real one; defaults are compared as values if they are literals."""
    if shown[:2] != real[:2] or bool(shown[2]) != (real[2] is not inspect.Parameter.empty):
        return False
    try:
        literal = ast.literal_eval(shown[2])
    except (ValueError, SyntaxError):
        return True  # a name or a call, such as torch.float32
    return literal == real[2]


@pytest.mark.parametrize("name", ROOMS)
def test_every_signature_is_the_one_that_python_reports(site, name):
    shown = shown_signatures((site / "reference" / f"{name}.html").read_text("utf-8"))
    for short, (path, value) in documented(import_module(name)).items():
        if short in NOT_CALLED or (inspect.isclass(value) and issubclass(value, BaseException)):
            continue
        if not reported(value) and path not in shown:
            continue  # a class that takes nothing
        assert path in shown, f"{path} has no signature"
        rows, real = written(shown[path]), reported(value)
        assert len(rows) == len(real), f"{shown[path]} is not {inspect.signature(value)}"
        assert all(map(same, rows, real)), f"{shown[path]} is not {inspect.signature(value)}"


def test_every_parameter_of_the_call_has_its_type(site):
    text = shown_signatures((site / "reference" / "regard.html").read_text("utf-8"))["regard.functional.api.attention"]
    arguments = ast.parse(f"def {text.strip()}: pass").body[0].args
    assert all(one.annotation for one in [*arguments.args, *arguments.kwonlyargs])
    assert "foreign" not in text


def test_a_different_signature_is_seen():
    def right(a, *, b=1):
        """An example."""

    assert all(map(same, written("right(a, *, b=1)"), reported(right)))
    for text in ("right(a, *, b=2)", "right(a, b=1)", "right(a, *, c=1)", "right(a, *, b)"):
        assert not all(map(same, written(text), reported(right)))
