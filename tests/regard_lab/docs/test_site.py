"""The built site: nothing from elsewhere, no broken link, formulas as MathML, signatures as Python reports them."""

import ast
import html
import inspect
import re
from importlib import import_module

import pytest
from markdown.extensions.toc import slugify
from page_code import FENCE
from test_code_blocks import PAGES

from docs.making.explorations import ENDINGS, NOUNS
from docs.making.reference import ROOMS, documented
from docs.making.rendering import with_mathml
from docs.making.site import CODE, LINK, LIVE
from regard_lab.lessons import CHAPTERS, LESSONS

built = pytest.mark.slow  # the site is built, which takes a minute


def broken_links(text, page, pages):
    """Links of a page to files that are not there, and to headings that their page does not have."""
    text = CODE.sub("", FENCE.sub("", text))
    for target, anchor in [*LINK.findall(text), *(("", anchor) for anchor in re.findall(r"\]\((#[^)\s]+)\)", text))]:
        path = (page.parent / target).resolve() if target else page
        if path.parent.name == "lessons" and path.stem in LESSONS:
            continue  # made by the build
        titles = re.findall(r"^#+ (.+)$", FENCE.sub("", pages[path]), re.MULTILINE) if path in pages else []
        if not path.exists() or (anchor and titles and anchor[1:] not in {slugify(one, "-") for one in titles}):
            yield target + anchor


def test_every_link_leads_to_a_file_and_a_heading():
    """What the strict build of the site checks, without building it."""
    pages = {page: page.read_text("utf-8") for page in PAGES}
    for page, text in pages.items():
        assert not [*broken_links(text, page, pages)], page
    for link in ("nowhere.md", "#nothing", f"{page.name}#nothing"):
        assert [*broken_links(f"{text} [a]({link})", page, pages)] == [link]


def loaded_from_outside(text):
    """Addresses on other hosts that a page or style sheet loads by itself; ordinary links are not included."""
    loaded = [match[1] for match in re.finditer(r"""\bsrc(?:set)?=["']?((?:https?:)?//[^"'\s>]+)""", text)]
    loaded += [match[1] for match in re.finditer(r"""<link\b[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)""", text)]
    return loaded + [match[1] for match in re.finditer(r"""url\(["']?((?:https?:)?//[^"')]+)""", text)]


@built
def test_no_page_loads_anything_from_another_host(site):
    read = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(read) > 30
    for path in read:
        assert not loaded_from_outside(path.read_text("utf-8")), path


@built
def test_every_page_is_reached_from_the_first(site):
    """By the menu, as `file://` would open it: relative addresses of files that are there."""
    first = (site / "index.html").read_text("utf-8")
    reached = {match[1] for match in re.finditer(r'href="([\w./-]+\.html)(?:#[^"]*)?"', first)}
    assert all((site / address).exists() for address in reached)
    written = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    missing = written - reached - {"index.html", "404.html"}
    embedded = {"explorations/reaction.html": "atom-maps"}
    for address, page in embedded.items():
        assert f"../{address}" in (site / "recipes" / f"{page}.html").read_text("utf-8")
    assert missing == set(embedded)
    assert len(LIVE) == 3
    for name in LIVE:  # what is not seen is not fetched
        assert re.search(
            r'<iframe [^>]*live\.html#[^>]*loading="lazy"', (site / "lessons" / f"{name}.html").read_text("utf-8")
        )


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


@built
def test_formulas_are_mathml_and_no_latex_is_left(site):
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    assert sum("<math" in text for text in pages.values()) > 25
    for path, text in pages.items():
        visible = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\$\$|\\(frac|operatorname|text|sum|cdot|sqrt)\b|arithmatex", visible), path


def test_a_formula_with_an_unknown_command_stops_the_build():
    with pytest.raises(ValueError, match=r"\\frobnicate, which latex2mathml does not convert"):
        with_mathml(r'<div class="arithmatex">\[\frobnicate{q}\]</div>')


@built
def test_the_chapters_of_the_lessons_are_in_the_menu(site):
    page = (site / "lessons" / "index.html").read_text("utf-8")
    titles = re.findall(r'<span class="md-ellipsis">\s*(.*?)\s*</span>', page)
    assert list(dict.fromkeys(one for one in titles if one in CHAPTERS)) == list(CHAPTERS)
    assert re.findall(r'<img alt="Figure: [^"]*" src="(\w+)-1\.svg"', page) == list(LESSONS)
    for name in LESSONS:
        shown = (site / "lessons" / f"{name}.html").read_text("utf-8")
        assert f'src="{name}-1.svg"' in shown
        assert "<strong>Holds</strong>" in shown


@built
def test_every_choice_of_the_first_page_shows_one_translation(site):
    page = (site / "index.html").read_text("utf-8")
    style = (site / "assets" / "site.css").read_text("utf-8")
    for noun in range(len(NOUNS)):
        for ending in range(len(ENDINGS)):
            assert page.count(f'class="case noun-{noun} ending-{ending}"') == 1
            assert f".try:has(#noun-{noun}:checked):has(#ending-{ending}:checked) .noun-{noun}.ending-{ending}" in style


# The reference: complete signatures, equal to those that Python reports

HEADING = r'<h\d id="([\w.]+)" class="doc doc-heading">'
OBJECT = re.compile(rf"{HEADING}(.*?)(?={HEADING}|\Z)", re.DOTALL)
SIGNATURE = re.compile(r'<div class="language-python doc-signature highlight">.*?<pre>(.*?)</pre>', re.DOTALL)
# Classes that are not made by calling them: abstract ones, protocols, and a layer whose parameters are torch's.
NOT_CALLED = {"Pattern", "Mechanism", "FeatureMap", "Score", "Bias", "State", "Writer", "Task", "Change", "Projection",
              "Word", "Chooser"}  # fmt: skip


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


@built
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


@built
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
