"""The built site: nothing from elsewhere, no broken link, every page in its navigation, formulas as MathML."""

from __future__ import annotations

import re

import pytest

from docs.making.mathml import with_mathml
from docs.making.site import loaded_from_outside
from docs.making.start import ENDINGS, NOUNS


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
    assert "one-sentence.html" in (site / "lessons" / "walkthrough.html").read_text("utf-8")
    written = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    missing = written - reached - {"index.html", "404.html", "lessons/one-sentence.html"}
    embedded = {"explorations/reaction.html": "atom-maps", "explorations/document.html": "long-documents"}
    for address, page in embedded.items():
        assert f"../{address}" in (site / "recipes" / f"{page}.html").read_text("utf-8")
    assert missing == set(embedded)


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


def test_every_choice_of_the_first_page_shows_one_translation(site):
    page = (site / "index.html").read_text("utf-8")
    style = (site / "assets" / "site.css").read_text("utf-8")
    for noun in range(len(NOUNS)):
        for ending in range(len(ENDINGS)):
            assert page.count(f'class="case noun-{noun} ending-{ending}"') == 1
            assert f".try:has(#noun-{noun}:checked):has(#ending-{ending}:checked) .noun-{noun}.ending-{ending}" in style
