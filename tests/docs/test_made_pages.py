"""Pages and pictures that come from reports, lessons and declarations say what those say today."""

from __future__ import annotations

import doctest
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from docs.making import choosing, comparing, measured
from docs.making.figures import DOCS, Figure, hash_of, written_hash
from docs.making.pages import MARKED, PARTS, filled, is_fresh, made_figures, made_pages

MODULES = ("blocks", "figures", "freshness", "site")


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
    (tmp_path / "page.md").write_text(text.replace("32.5×", "33.5×"), encoding="utf-8")
    assert "32.5×" in text
    assert not is_fresh("page.md", text)


def test_marks_keep_what_stands_between_them():
    page = "<!-- made: losses -->\n<!-- end -->\n\nword\n\n<!-- made: missed-promises -->\nold\n<!-- end -->\n"
    assert filled(page) == filled(filled(page))
    assert "word" in filled(page)
    assert "old" not in filled(page)


def test_a_picture_carries_the_hash_of_its_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.making.figures.DOCS", tmp_path)
    figure = Figure("curves.png", choosing.curves(), choosing.draw_curves)
    assert not figure.is_fresh()
    figure.write()
    assert figure.is_fresh()
    assert written_hash(figure.path) == hash_of(choosing.curves())
    assert not Figure("curves.png", {**choosing.curves(), "window": [(256, 2.0)]}, choosing.draw_curves).is_fresh()


def test_rounding_changes_no_hash_and_a_digit_that_is_shown_does():
    assert hash_of([1 / 3, 1e-17]) == hash_of([1 / 3 + 1e-9, 0.0])
    assert hash_of([0.333]) != hash_of([0.334])


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
        assert f"| {measured.cheaper_from(choice.row)} |" in choosing.decision_table()


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
