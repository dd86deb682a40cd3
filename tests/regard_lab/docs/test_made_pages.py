"""Pages that come from reports and declarations have the numbers of today; docstrings become LaTeX."""

import doctest
import inspect
import json
import re
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from docs.making import speed
from docs.making.__main__ import DOCS, MARKED, PARTS, filled, is_fresh, made_pages
from docs.making.docstrings import is_formula, with_latex
from docs.making.reference import ROOMS, documented
from docs.making.rendering import with_mathml

MODULES = ("docs.making.docstrings", "docs.making.rendering", "docs.making.site", "page_code")
TEXT = (  # indented text of docstrings that is no formula: conditions in words, and small tables
    "i may look at j  if",
    "bfloat16  |x| / 256",
    "decode(encode(text))",
    "warm-up (step <= w)",
    "fewer   new head j",
    "output  L max|v|",
    "expanded    keys and values",
)


@pytest.fixture(scope="module")
def pages():
    return made_pages()


def test_every_made_page_is_fresh(pages):
    stale = [name for name, text in pages.items() if not is_fresh(name, text)]
    assert not stale, f"make figures, and read what changed in {', '.join(stale)}"


def test_every_made_part_has_a_page_and_every_mark_its_part(pages):
    marked = set()
    for text in pages.values():
        marked.update(match[2] for match in MARKED.finditer(text))
    assert marked == PARTS.keys()


def test_a_number_changed_in_a_page_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.making.__main__.DOCS", tmp_path)
    text = filled("# Page\n\n<!-- made: decision-table -->\n<!-- end -->\n")
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    assert is_fresh("page.md", text)
    number = re.search(r"\d+\.\d×", text)[0]  # how many times as fast: whatever was measured last
    (tmp_path / "page.md").write_text(text.replace(number, f"1{number}"), encoding="utf-8")
    assert not is_fresh("page.md", text)


def test_marks_keep_what_stands_between_them():
    page = "<!-- made: losses -->\n<!-- end -->\n\nword\n\n<!-- made: missed-promises -->\nold\n<!-- end -->\n"
    assert filled(page) == filled(filled(page))
    assert "word" in filled(page)
    assert "old" not in filled(page)


def test_losses_are_those_of_the_reports():
    """Counted here from the files alone: every contest in which another was faster by more than 3 %."""
    lost = 0
    for name in speed.BENCHES:
        report = json.loads((speed.RESULTS / name / "bench.json").read_text("utf-8"))
        for case in report["cases"].values():
            lost += sum(map(count_faster, case["contests"]))
    assert len(speed.losses().splitlines()) - 2 == lost > 0


def count_faster(contest: dict) -> int:
    """How many other libraries were faster in a contest."""
    times = {}
    for name, contender in contest["contenders"].items():
        if "cpu" in contender and contender["errors"]:
            times[name] = contender["cpu"]["median"]
    ours = contest["contenders"][contest["ours"]].get("cpu", {"median": 0.0})["median"]
    others = [time for name, time in times.items() if not name.startswith("regard")]
    return sum(time < 0.97 * ours for time in others)


def test_the_table_tells_the_crossings_of_the_report():
    report = (speed.RESULTS / "complexity_cpu" / "complexity.md").read_text("utf-8")
    for choice in speed.choices():
        title = speed.ROWS[choice.row].title
        (row,) = [line for line in report.splitlines() if line.startswith(f"| {title} | n·")]
        assert row.split("|")[-2].strip() == speed.cheaper_from(choice.row)
        start = speed.cheaper_from(choice.row).removeprefix("cheaper from ").removesuffix(" on")
        assert f"| {start} |" in speed.decision_table()


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_what_makes_the_pages_run(name):
    results = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.attempted
    assert not results.failed


def test_the_pages_that_stood_before_the_site_still_stand():
    """Others link to them."""
    names = ("bench", "compare", "conventions", "decoding", "demo", "mechanisms")
    for name in names:
        assert (Path(DOCS) / f"{name}.md").is_file(), name


def test_every_formula_of_a_docstring_becomes_mathml():
    """Indented text of a public docstring that is no example is a formula, or listed as text."""
    seen = []
    for room in ROOMS:
        for _, value in documented(import_module(room)).values():
            seen += indented(value)
    assert sum(map(is_formula, seen)) > 20
    for text in seen:
        assert is_formula(text) is not textwrap.dedent(text).startswith(TEXT), text
        for formula in re.findall(r"\$\$\n(.*)\n\$\$", with_latex(text)):
            with_mathml(f'<div class="arithmatex">\\[{formula}\\]</div>')


def indented(value: object) -> list[str]:
    """Paragraphs of a docstring of which every line is indented, except examples."""
    paragraphs = (inspect.getdoc(value) or "").split("\n\n")
    return [paragraph for paragraph in paragraphs if is_indented_text(paragraph)]


def is_indented_text(paragraph: str) -> bool:
    if paragraph.strip().startswith(">>>"):
        return False
    return all(line.startswith("    ") for line in paragraph.split("\n"))


NOTATION = {
    "σ = D / 2": r"σ = \frac{D}{2}",
    "s = c - (j - p)² / (2 σ²)": r"s = c - (j - p)^2 / (2 \, σ^2)",
    "w = exp(s) / (1 + Σ exp(s)) over all": (
        r"w = \frac{\operatorname{exp}(s)}{1 + \sum  \operatorname{exp}(s)} \quad \text{over all}"
    ),
    "a = slope[head] |k_pos - head_dim|": (
        r"a = \text{slope}_{\text{head}} \lvert k_{\text{pos}} - \text{head\_dim} \rvert"
    ),
    "a = W_h~ h~_{t-1} + W1": r"a = W_{\tilde{h}} \tilde{h}_{t-1} + W_1",
}


def test_notation_of_docstrings():
    for plain, latex in NOTATION.items():
        assert with_latex(f"    {plain}") == f"\n$$\n{latex}\n$$\n"
