"""The built site: nothing from elsewhere, no broken link, every page in its navigation, formulas as MathML."""

from __future__ import annotations

import html
import re

import pytest

from docs.making.explorations import ENDINGS, NOUNS
from docs.making.rendering import with_mathml
from regard_lab.lessons import CHAPTERS, LESSONS


def loaded_from_outside(text):
    """Addresses on other hosts that a page or style sheet loads by itself; ordinary links are not included."""
    loaded = [match[1] for match in re.finditer(r"""\bsrc(?:set)?=["']?((?:https?:)?//[^"'\s>]+)""", text)]
    loaded += [match[1] for match in re.finditer(r"""<link\b[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)""", text)]
    return loaded + [match[1] for match in re.finditer(r"""url\(["']?((?:https?:)?//[^"')]+)""", text)]


def test_no_page_loads_anything_from_another_host(site):
    read = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(read) > 30
    for path in read:
        assert not loaded_from_outside(path.read_text("utf-8")), path


def test_every_page_is_reached_from_the_first(site):
    """By the menu, as `file://` would open it: relative addresses of files that are there."""
    first = (site / "index.html").read_text("utf-8")
    reached = {match[1] for match in re.finditer(r'href="([\w./-]+\.html)(?:#[^"]*)?"', first)}
    assert all((site / address).exists() for address in reached)
    written = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    missing = written - reached - {"index.html", "404.html"}
    embedded = {"explorations/reaction.html": "atom-maps", "explorations/document.html": "long-documents"}
    for address, page in embedded.items():
        assert f"../{address}" in (site / "recipes" / f"{page}.html").read_text("utf-8")
    assert missing == set(embedded)


def test_the_index_of_the_search_is_a_script(site):
    """A page opened from the file system may not fetch it."""
    assert (site / "search" / "search_index.js").read_text("utf-8").startswith("var __index = ")


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/a.js">',
        "<img src=http://a.example/x.png>",
        "<link rel=x href='//b.example'>",
        "@import url('https://fonts.example/css')",
        '<img srcset="https://a.example/x.png 2x">',
    ],
)
def test_what_is_loaded_from_outside_is_seen(text):
    assert len(loaded_from_outside(text)) == 1


def test_a_link_to_follow_loads_nothing():
    assert not loaded_from_outside('<a href="https://a.example">there</a> <img src="assets/x.png">')


def test_formulas_are_mathml_and_no_latex_is_left(site):
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    assert sum("<math" in text for text in pages.values()) > 25
    for path, text in pages.items():
        visible = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\$\$|\\(frac|operatorname|text|sum|cdot|sqrt)\b|arithmatex", visible), path


def test_a_formula_with_an_unknown_command_stops_the_build():
    with pytest.raises(ValueError, match=r"\\frobnicate, which latex2mathml does not convert"):
        with_mathml(r'<div class="arithmatex">\[\frobnicate{q}\]</div>')


def test_the_menu_says_what_a_page_is_about(site):
    first = (site / "index.html").read_text("utf-8")
    tabs = re.findall(r'class="md-tabs__link">\s*(.*?)\s*</a>', first, re.DOTALL)
    assert tabs == [
        "Start", "Lessons", "Guides", "Choose attention", "Exact semantics", "Commands", "API reference",
        "Results", "Project",
    ]  # fmt: skip
    titles = {html.unescape(one) for one in re.findall(r'<span class="md-ellipsis">\s*(.*?)\s*</span>', first)}
    assert len(titles) > 60
    wrong = [one for one in titles if "=" in one or len(one) > 45 or one in ("Contract", "House", "Measured")]
    assert not wrong


def test_the_chapters_of_the_lessons_are_in_the_menu(site):
    page = (site / "lessons" / "index.html").read_text("utf-8")
    titles = re.findall(r'<span class="md-ellipsis">\s*(.*?)\s*</span>', page)
    assert list(dict.fromkeys(one for one in titles if one in CHAPTERS)) == list(CHAPTERS)
    assert re.findall(r'<img alt="" src="(\w+)-1\.svg"', page) == list(LESSONS)
    for name in LESSONS:
        shown = (site / "lessons" / f"{name}.html").read_text("utf-8")
        assert f'src="{name}-1.svg"' in shown
        assert "<strong>Holds</strong>" in shown


def test_cells_of_tables_are_marked_by_what_they_hold(site):
    page = (site / "reports" / "mechanisms_cpu" / "bench.html").read_text("utf-8")
    assert '<td class="number">139 ms (125 ms to 149 ms)</td>' in page
    assert '<td class="long">' in page
    style = (site / "assets" / "site.css").read_text("utf-8")
    assert re.search(r":first-child \{[^}]*position: sticky", style)
    assert re.search(r"\.md-typeset__scrollwrap \{[^}]*overflow-x: auto", style)


def test_every_choice_of_the_first_page_shows_one_translation(site):
    page = (site / "index.html").read_text("utf-8")
    style = (site / "assets" / "site.css").read_text("utf-8")
    for noun in range(len(NOUNS)):
        for ending in range(len(ENDINGS)):
            assert page.count(f'class="case noun-{noun} ending-{ending}"') == 1
            assert f".try:has(#noun-{noun}:checked):has(#ending-{ending}:checked) .noun-{noun}.ending-{ending}" in style
