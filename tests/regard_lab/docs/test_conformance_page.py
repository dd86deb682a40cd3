"""The page about conformance: its script filters the tables and shows a cell, and without it all answers are there."""

from pathlib import Path

import markdown
import pytest
from explorer.browsing import Opened

from docs.making.conformance import script_of_cells
from regard.testing.conformance import CLAUSES
from regard.testing.conformance.clause import Reply
from regard.testing.conformance.report import group_lines
from regard.testing.conformance.running import Column

SCRIPT = Path(__file__).parents[3] / "docs" / "assets" / "conformance.js"
ROWS = ".conformance tbody tr:visible td:first-child"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of two libraries; one answers a clause in another way."""
    agreeing = {name: Reply(name, "agrees", error=1e-7) for name in CLAUSES}
    reading = Reply("causal-square", "alternative", "causal <ignored>", 0.5)
    columns = [
        Column("sdpa", "version 1", agreeing | {"causal-square": reading}),
        Column("jax", "version 2", agreeing),
    ]
    text = "\n".join(group_lines(columns))
    tables = markdown.markdown(text, extensions=["tables", "md_in_html", "fenced_code"])
    path = tmp_path_factory.mktemp("site") / "page.html"
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>page</title><body data-ready>"
        f"{script_of_cells(columns)}<div class='conformance'>{tables}</div>"
        f"<script>{SCRIPT.read_text('utf-8')}</script></body></html>",
        "utf-8",
    )
    return path.as_uri()


def test_rows_are_filtered_by_words_answers_and_libraries(browser, page):
    with Opened(browser, page) as opened:
        rows = opened.page.locator(ROWS)
        assert rows.count() == len(CLAUSES)

        opened.page.fill("input[type=search]", "LOOK rows")
        wanted = []
        for name, clause in CLAUSES.items():
            text = f"{name} {clause.sentence}".lower()
            if "look" in text and "rows" in text:
                wanted.append(name)
        assert rows.all_inner_texts() == wanted
        assert opened.page.inner_text("output") == f"{len(wanted)} of {len(CLAUSES)} clauses"

        opened.page.fill("input[type=search]", "")
        opened.page.locator("select").nth(1).select_option("other than the contract")
        assert rows.all_inner_texts() == ["causal-square"]
        assert opened.page.locator(".conformance h2:visible").all_inner_texts() == ["Causal"]
        opened.page.click("summary:has-text('Libraries')")
        opened.page.uncheck("input[name=sdpa]")
        assert rows.count() == 0

        opened.page.locator("select").nth(1).select_option("any answer")
        assert opened.page.locator("thead th:visible", has_text="sdpa").count() == 0
        assert not opened.complaints
        assert opened.requests == [page]


def test_a_cell_shows_its_clause_its_call_and_its_answer(browser, page):
    with Opened(browser, page) as opened:
        row = opened.page.locator(".conformance tbody tr", has_text="causal-square")
        row.locator("button").first.click()
        dialog = opened.page.locator("dialog")
        said = dialog.inner_text()
        assert CLAUSES["causal-square"].sentence in said
        assert "another reading, which has a name: causal <ignored>" in said
        assert "F.scaled_dot_product_attention (version 1)" in said
        assert 'IMPLEMENTATIONS["sdpa"].new()' in said
        exec(dialog.locator("code").inner_text(), {})  # what is pasted runs

        dialog.get_by_text("Close").click()
        row.locator("button").nth(1).click()
        assert "as the contract; the largest error is 1.0e-7" in dialog.inner_text().replace(
            "e-07", "e-7"
        )


def test_without_scripts_every_answer_and_call_is_on_the_page(browser, page):
    with Opened(browser, page, java_script_enabled=False) as opened:
        assert opened.page.locator(ROWS).count() == len(CLAUSES)
        assert opened.page.locator("details").count() > 15
        assert "causal <ignored>" in opened.page.inner_text(".conformance")
