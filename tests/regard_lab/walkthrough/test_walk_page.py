"""The page: real tables and headings, no script, no network, and words that stay words."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from explorer.browsing import Opened
from walk_cases import CONTEXT, HOSTILE, SENTENCE, VIEWED, case

from regard_lab.seeing.terminal import visible
from regard_lab.walkthrough import to_html, walk

LONG = " ".join(["The animal did not cross the street because it was too tired"] * 5)
VOID = {"meta", "link", "br", "wbr", "input"}


class Outline(HTMLParser):
    """What a page is made of; fails on a tag that is closed in the wrong place."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)


@pytest.mark.parametrize("name", VIEWED)
def test_every_step_has_its_heading_line_formula_and_numbers(name):
    found = case(name)
    page = Outline(to_html(found))
    headings = page.tags.count("h3")
    assert headings == len(found.steps) == page.tags.count("pre") - 1 == page.tags.count("article")  # one to paste
    assert page.tags.count("h1") == 1
    assert page.tags.count("math") == sum(step.formula != "" for step in found.steps)
    text = " ".join("".join(page.texts).split())
    for step in found.steps:
        assert step.line in text
        assert step.shape in text


def test_tables_are_tables_with_headings_for_rows_and_columns_and_can_be_reached_by_keys():
    page = Outline(to_html(walk(SENTENCE, causal=True)))
    assert page.tags.count("table") == page.tags.count("thead") + 1  # one lists what was given
    assert {one.get("scope") for tag, one in page.attributes if tag == "th"} == {"row", "col"}
    regions = [one for tag, one in page.attributes if one.get("role") == "region"]
    assert regions
    assert all(one["tabindex"] == "0" and one["aria-label"] for one in regions)
    ids = [one["id"] for _, one in page.attributes if "id" in one]
    assert len(ids) == len(set(ids))
    wanted = {one["href"][1:] for tag, one in page.attributes if tag == "a"}
    wanted |= {one["aria-labelledby"] for _, one in page.attributes if "aria-labelledby" in one}
    assert wanted <= set(ids)


def test_words_are_text_and_never_markup():
    found = walk(HOSTILE, context=["</table><img src=x onerror=alert(1)>", "b"], word=1)
    source = to_html(found)
    page = Outline(source)
    assert not {"script", "img", "iframe", "object", "form"} & set(page.tags)
    assert not [name for _, one in page.attributes for name in one if name.startswith("on") or name == "style"]
    text = "".join(page.texts)
    for word in (*found.words, *found.context):
        assert visible(word) in text
    assert "\u202e" not in source
    assert "\x1b" not in source


def test_nothing_but_its_own_style_is_admitted():
    source = to_html(walk(HOSTILE))
    style = re.search(r"<style>(.*?)</style>", source, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    rules = re.search(r'Content-Security-Policy" content="([^"]*)"', source)[1]
    assert rules == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"https?:|url\(|@import|src=", source)


def opened(browser, folder, found, width=1280, dark=False):
    """The page of a walk in a browser."""
    path = folder / "page.html"
    path.write_text(to_html(found), encoding="utf-8")
    return Opened(browser, path.as_uri(), width=width, ready="h1", color_scheme="dark" if dark else "light")


@pytest.mark.parametrize(
    ("options", "dark"),
    [({"text": LONG, "word": 30, "causal": True}, True), ({"text": HOSTILE, "context": CONTEXT}, False)],
)
def test_a_browser_shows_it_and_asks_for_nothing(browser, tmp_path, options, dark):
    found = walk(**options)
    with opened(browser, tmp_path, found, dark=dark) as shown:
        run = shown.page.evaluate
        assert shown.requests == [shown.page.url]
        assert shown.complaints == []
        assert run("document.scripts.length") == 0
        assert run("document.documentElement.scrollWidth <= innerWidth")  # tables scroll, the page does not
        assert run("document.querySelector('tbody th.chosen bdi').textContent") == visible(found.chosen)
        paper = run("getComputedStyle(document.querySelector('.step')).backgroundColor")
        assert paper == ("rgb(21, 23, 28)" if dark else "rgb(255, 255, 255)")
        assert run("getComputedStyle(document.querySelector('td[class^=w]')).backgroundColor") != paper
