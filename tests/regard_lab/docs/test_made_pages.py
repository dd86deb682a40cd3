"""Pages and pictures that come from reports, lessons and declarations say what those say today."""

from __future__ import annotations

import doctest
import inspect
import json
import re
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from docs.making import choosing, comparing, measured
from docs.making.figures import DOCS, Figure, rounded, written
from docs.making.formulas import DOCSTRINGS, PLAIN
from docs.making.freshness import alike, close
from docs.making.pages import MARKED, PARTS, filled, is_fresh, made_figures, made_pages, write_page
from docs.making.reference import ROOMS, documented

MODULES = ("blocks", "docstrings", "figures", "formulas", "freshness", "mathml", "site", "tables")


@pytest.fixture(scope="module")
def pages():
    return made_pages()


def test_every_made_page_is_fresh(pages):
    stale = [name for name, text in pages.items() if not is_fresh(name, text)]
    assert not stale, f"make figures, and read what changed in {', '.join(stale)}"


def test_every_picture_draws_the_numbers_of_today():
    stale = [figure.name for figure in made_figures() if not figure.is_fresh()]
    assert not stale, f"make figures, and look at {', '.join(stale)}"


def test_every_made_part_has_a_page_and_every_mark_its_part(pages):
    marked = {match[2] for text in pages.values() for match in MARKED.finditer(text)}
    assert marked == PARTS.keys()


def test_every_picture_of_a_page_is_there():
    for page in DOCS.rglob("*.md"):
        for name in shown_pictures(page.read_text("utf-8")):
            assert (page.parent / name).exists(), f"{page} shows {name}"


def shown_pictures(text: str) -> list[str]:
    return re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)


def test_a_number_changed_in_a_page_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.making.pages.DOCS", tmp_path)
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


def test_a_picture_carries_its_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.making.figures.DOCS", tmp_path)
    figure = Figure("curves.png", choosing.curves(), choosing.draw_curves)
    assert not figure.is_fresh()
    figure.write()
    assert figure.is_fresh()
    assert written(figure.path) == rounded(choosing.curves())
    assert not Figure("curves.png", {**choosing.curves(), "window": [(256, 2.0)]}, choosing.draw_curves).is_fresh()


def test_rounding_makes_no_picture_stale_and_a_digit_that_is_shown_does():
    """Also where it falls on the edge between two digits: numbers are compared, not what they are rounded to."""
    assert close(rounded([1 / 3, 1e-17, 0.1234565 - 1e-9]), rounded([1 / 3 + 1e-7, 0.0, 0.1234565 + 1e-9]))
    assert not close([0.333], [0.334])
    assert not close(rounded({"a": [1.0, "x"]}), rounded({"a": [1.0, "y"]}))
    assert not close(rounded([1.0]), rounded([1.0, 1.0]))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.10", "0.11", True),
        ("0.10", "0.12", False),
        ("0.10", "0.1", False),  # digits are text
        ("-0.00 m", "0.00 m", True),
        ("-0.50", "0.50", False),
        ("2.8e-16", "2.2e-16", True),
        ("0.0e+00", "2.2e-16", True),
        ("1.4e-05", "1.5e-05", True),
        ("1.4e-05", "1.6e-05", False),
        ("2e-05", "3e-04", False),
        ("3 keys", "4 keys", False),
        ("3 keys", "3 rows", False),
    ],
)
def test_numbers_of_pages_are_compared_as_numbers_and_text_as_text(one, other, same):
    assert alike(one, other) is alike(other, one) is same


def test_losses_are_those_of_the_reports():
    """Counted here from the files alone: every contest in which another was faster by more than 3 %."""
    lost = 0
    for report in measured.BENCHES:
        found = json.loads((measured.RESULTS / report / "bench.json").read_text("utf-8"))
        for case in found["cases"].values():
            for contest in case["contests"]:
                times = {name: one["cpu"]["median"] for name, one in contest["contenders"].items() if "cpu" in one}
                ours = times.get(contest["ours"], 0.0)
                lost += sum(time < 0.97 * ours for name, time in times.items() if not name.startswith("regard"))
    assert len(comparing.losses().splitlines()) - 2 == lost > 0


def test_the_table_tells_the_crossings_of_the_report():
    report = (measured.RESULTS / "complexity_cpu" / "complexity.md").read_text("utf-8")
    for choice in choosing.choices():
        title = measured.ROWS[choice.row].title
        (row,) = [line for line in report.splitlines() if line.startswith(f"| {title} | n·")]
        assert row.split("|")[-2].strip() == measured.cheaper_from(choice.row)
        start = measured.cheaper_from(choice.row).removeprefix("cheaper from ").removesuffix(" on")
        assert f"| {start} |" in choosing.decision_table()


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_what_makes_the_pages_run(name):
    found = doctest.testmod(import_module(f"docs.making.{name}"), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted
    assert not found.failed


def test_the_pages_that_stood_before_the_site_still_stand():
    """Others link to them."""
    assert {"bench.md", "compare.md", "conventions.md", "decoding.md", "demo.md", "mechanisms.md"} <= {
        path.name for path in Path(DOCS).glob("*.md")
    }


def test_every_formula_of_a_docstring_has_its_latex():
    """Indented text of a public docstring that is no example is a formula, or listed as text."""
    seen = set()
    for room in ROOMS:
        for path, value in documented(import_module(room)).values():
            for paragraph in indented(inspect.getdoc(value) or ""):
                seen.add(paragraph)
                assert paragraph in DOCSTRINGS or paragraph.startswith(PLAIN), f"{path}: {paragraph}"
    assert not [one for one in DOCSTRINGS if one not in seen], "formulas of no docstring"
    assert all(any(paragraph.startswith(one) for paragraph in seen) for one in PLAIN)


def indented(text: str) -> list[str]:
    """Paragraphs of which every line is indented, except examples."""
    paragraphs = [part.split("\n") for part in text.split("\n\n")]
    whole = [part for part in paragraphs if all(line.startswith("    ") for line in part)]
    return [textwrap.dedent("\n".join(part)).strip() for part in whole if not part[0].strip().startswith(">>>")]


def test_a_written_page_keeps_only_last_digits(tmp_path):
    (path := tmp_path / "page.md").write_text("# One\n\n0.125\n", encoding="utf-8")
    write_page(path, "# Two\n\n0.126\n")
    assert path.read_text("utf-8") == "# Two\n\n0.125\n"
