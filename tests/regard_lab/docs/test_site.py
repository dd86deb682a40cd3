"""The built site: nothing from elsewhere, no broken link, formulas as MathML, signatures as Python reports them."""

import ast
import html
import inspect
import json
import re
from importlib import import_module
from xml.etree import ElementTree

import pytest
from markdown.extensions.toc import slugify
from page_code import FENCE
from test_code_blocks import PAGES, ROOT

import regard
from docs.making.cards import DRAWINGS, HEIGHT, WIDTH, card
from docs.making.explorations import ENDINGS, NOUNS
from docs.making.reference import ROOMS, documented
from docs.making.rendering import with_mathml
from docs.making.site import CODE, LINK, LIVE, REFERENCE_BOOST
from regard_lab.lessons import CHAPTERS, LESSONS

built = pytest.mark.slow  # the site is built, which takes a minute


def broken_links(text, page, pages):
    """Links of a page to files that are not there, and to headings that their page does not have."""
    text = CODE.sub("", FENCE.sub("", text))
    links = LINK.findall(text)
    links += [("", anchor) for anchor in re.findall(r"\]\((#[^)\s]+)\)", text)]
    for target, anchor in links:
        path = (page.parent / target).resolve() if target else page
        headings = headings_of(pages[path]) if path in pages else set()
        heading_is_missing = anchor and headings and anchor[1:] not in headings
        if heading_is_missing or not path.exists():
            yield target + anchor


def headings_of(text):
    """The headings of a page as its links name them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {slugify(title, "-") for title in titles}


def test_every_link_leads_to_a_file_and_a_heading():
    """In a clone, where nothing is built; the strict build of the site checks the same links there."""
    pages = {page: page.read_text("utf-8") for page in PAGES}
    assert {ROOT / "README.md", ROOT / "docs" / "articles.md"} <= set(pages)
    for page, text in pages.items():
        assert not [*broken_links(text, page, pages)], page
    # its headings are made by the build
    for of_reference in (ROOT / "docs" / "reference").glob("*.md"):
        broken = broken_links(of_reference.read_text("utf-8"), of_reference, pages)
        assert not [link for link in broken if "#" not in link], of_reference
    for link in ("nowhere.md", "#nothing", f"{page.name}#nothing"):
        assert [*broken_links(f"{text} [a]({link})", page, pages)] == [link]


def loaded_from_outside(text):
    """Addresses on other hosts that a page or style sheet loads by itself; ordinary links are not included."""
    loaded = re.findall(r"""\bsrc(?:set)?=["']?((?:https?:)?//[^"'\s>]+)""", text)
    loaded += re.findall(r"""<link\b[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)""", text)
    loaded += re.findall(r"""url\(["']?((?:https?:)?//[^"')]+)""", text)
    return loaded


@built
def test_no_page_loads_anything_from_another_host(site):
    paths = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(paths) > 30
    for path in paths:
        assert not loaded_from_outside(path.read_text("utf-8")), path


@built
def test_every_page_is_reached_from_the_first(site):
    """By the menu, as `file://` would open it: relative addresses of files that are there."""
    first = (site / "index.html").read_text("utf-8")
    reached = set(re.findall(r'href="([\w./-]+\.html)(?:#[^"]*)?"', first))
    for address in reached:
        assert (site / address).exists(), address
    written = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    missing = written - reached - {"index.html", "404.html"}
    embedded = {"explorations/reaction.html": "atom-maps"}
    for address, page in embedded.items():
        assert f"../{address}" in (site / "recipes" / f"{page}.html").read_text("utf-8")
    assert missing == set(embedded)
    assert len(LIVE) == 3
    for name in LIVE:  # what is not seen is not fetched
        lesson = (site / "lessons" / f"{name}.html").read_text("utf-8")
        assert re.search(r'<iframe [^>]*live\.html#[^>]*loading="lazy"', lesson)


def test_what_is_loaded_from_outside_is_seen_and_a_link_to_follow_loads_nothing():
    for text in (
        '<script src="https://cdn.example/a.js">',
        "<img src=http://a.example/x.png>",
        "<link href='//b.example'>",
        "@import url('https://fonts.example/css')",
        '<img srcset="https://a.example/x.png 2x">',
    ):
        assert len(loaded_from_outside(text)) == 1, text
    assert not loaded_from_outside('<a href="https://a.example">there</a> <img src="assets/x.png">')


@built
def test_formulas_are_mathml_and_no_latex_is_left(site):
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    assert sum("<math" in text for text in pages.values()) > 25
    latex = r"\$\$|\\(frac|operatorname|text|sum|cdot|sqrt)\b|arithmatex"
    for path, text in pages.items():
        visible = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(latex, visible), path


def test_a_formula_with_an_unknown_command_stops_the_build():
    with pytest.raises(ValueError, match=r"\\frobnicate, which latex2mathml does not convert"):
        with_mathml(r'<div class="arithmatex">\[\frobnicate{q}\]</div>')


@built
def test_the_chapters_of_the_lessons_are_in_the_menu(site):
    page = (site / "lessons" / "index.html").read_text("utf-8")
    titles = re.findall(r'<span class="md-ellipsis">\s*(.*?)\s*</span>', page)
    chapters = [title for title in titles if title in CHAPTERS]
    assert list(dict.fromkeys(chapters)) == list(CHAPTERS)
    assert re.findall(r'<img alt="Picture: [^"]*" src="cards/(\w+)\.svg"', page) == list(LESSONS)
    for name in LESSONS:
        assert (site / "lessons" / "cards" / f"{name}.svg").exists()
        shown = (site / "lessons" / f"{name}.html").read_text("utf-8")
        assert f'src="{name}-1.svg"' in shown
        assert 'class="claim"' in shown


def test_every_lesson_has_a_card_of_one_size_and_no_other_card_is_drawn():
    assert set(DRAWINGS) == set(LESSONS)
    for name in LESSONS:
        root = ElementTree.fromstring(card(name))
        assert root.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"
        assert len(root) > 3, name
        for drawn in root:
            left, top = float(drawn.get("x", 0)), float(drawn.get("y", 0))
            right = left + float(drawn.get("width", 0))
            bottom = top + float(drawn.get("height", 0))
            assert 0 <= left <= right <= WIDTH, name
            assert 0 <= top <= bottom <= HEIGHT, name
    with pytest.raises(KeyError, match="the lesson 'nothing' has no card"):
        card("nothing")


@built
def test_the_search_reads_no_folded_code_and_puts_the_reference_first(site):
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    in_lessons = ""
    for entry in index["docs"]:
        boosted = entry.get("boost") == REFERENCE_BOOST
        assert boosted == entry["location"].startswith("reference/"), entry["location"]
        if entry["location"].startswith("lessons/"):
            in_lessons += entry["text"]
    assert "Sinusoidal" in in_lessons  # code to type is searched
    assert "add_gridspec" not in in_lessons  # code that draws is folded
    assert "add_gridspec" in (site / "lessons" / "positions.html").read_text("utf-8")
    separator = re.compile(index["config"]["separator"])
    assert separator.split("SlidingWindow") == ["Sliding", "Window"]
    assert separator.split("regard.patterns sliding_window") == [
        "regard",
        "patterns",
        "sliding",
        "window",
    ]


@built
def test_every_choice_of_the_first_page_shows_one_translation(site):
    page = (site / "index.html").read_text("utf-8")
    style = (site / "assets" / "site.css").read_text("utf-8")
    for noun in range(len(NOUNS)):
        for ending in range(len(ENDINGS)):
            assert page.count(f'class="case noun-{noun} ending-{ending}"') == 1
            chosen = f".try:has(#noun-{noun}:checked):has(#ending-{ending}:checked)"
            assert f"{chosen} .noun-{noun}.ending-{ending}" in style


@built
@pytest.mark.parametrize("name", ROOMS)
def test_every_name_of_the_reference_is_shown_with_its_signature(site, name):
    page = (site / "reference" / f"{name}.html").read_text("utf-8")
    signatures = page.count('<div class="language-python doc-signature highlight">')
    functions = 0
    for path, value in documented(import_module(name)).values():
        if inspect.isfunction(value):
            functions += 1
            assert f'id="{path}"' in page
    assert signatures >= functions


@built
def test_every_parameter_of_the_call_has_its_type(site):
    page = (site / "reference" / "regard.html").read_text("utf-8")
    _, _, from_the_call = page.partition('id="regard.functional.api.attention"')
    signature = r'doc-signature highlight">.*?<pre>(.*?)</pre>'
    shown = re.search(signature, from_the_call, re.DOTALL)[1]
    text = html.unescape(re.sub(r"<[^>]+>", "", shown))
    parsed = ast.parse(f"def {text.strip()}: pass").body[0].args
    arguments = [*parsed.args, *parsed.kwonlyargs]
    for argument in arguments:
        assert argument.annotation, argument.arg

    expected = []
    for parameter in inspect.signature(regard.attention).parameters.values():
        if parameter.annotation != "Never":
            expected.append(parameter.name)
    assert [argument.arg for argument in arguments] == expected
