"""The page by keyboard alone, for screen readers, and in every colour scheme."""

import pytest

from regard.patterns import Causal
from regard_lab.seeing.explorer import explore_text
from regard_lab.seeing.explorer.server import ExplorerServer
from regard_lab.seeing.explorer.sources import explore_pattern, explore_weights

from .browsing import OF_COLOURS, Opened, assert_accessible, needs_axe
from .making import SOURCE, TOKENISER, VIEWS, language_model, translation, walked, weights


def focused(page):
    return page.evaluate(
        "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || ''"
    )


def tab_to(page, wanted):
    """Press Tab until an element whose name begins so has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if focused(page).startswith(wanted):
            return
    raise AssertionError(f"{wanted!r} cannot be reached by Tab")


def test_a_tour_by_keyboard_alone(browser, translated):
    with Opened(browser, translated) as opened:
        page = opened.page
        tab_to(page, "es")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_function(
            "() => document.querySelector('.question').innerText.includes('Why Tier')"
        )
        page.keyboard.press("Home")
        page.reload()
        page.wait_for_selector("[data-ready]")
        tab_to(page, "Reader")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("canvas.heads")
        tab_to(page, "Heads; arrow keys move")
        opened.settle()
        page.keyboard.press("ArrowRight")
        page.wait_for_function(
            "() => document.querySelector('.said').innerText.startsWith('Head 1 of layer 0')"
        )
        page.keyboard.press("Enter")
        page.wait_for_selector("canvas.heatmap")
        tab_to(page, "Weights; arrow keys move")
        opened.settle()
        before = page.locator(".said").inner_text()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        opened.settle()
        said = page.locator(".said").inner_text()
        assert (said != before, "looks at" in said) == (True, True)
        assert "head=1" in page.evaluate("new URLSearchParams(location.hash.slice(1))+''")
        assert not opened.complaints


@pytest.mark.parametrize(
    ("view", "name", "key", "says"),
    [
        ("What if", "The\nanimal", "ArrowDown", "Without “"),
        ("Pattern", "Pairs; arrow keys move", "ArrowDown", "Query 1 “animal” may look"),
        ("Compare", "Differences; arrow keys move", "ArrowRight", "looks at"),
    ],
)
def test_every_new_view_is_reached_and_used_by_keyboard(browser, translated, view, name, key, says):
    with Opened(browser, translated) as opened:
        page = opened.page
        tab_to(page, "Reader")
        for _ in range(VIEWS.index(view)):
            page.keyboard.press("ArrowRight")
        opened.settle()
        tab_to(page, name)
        opened.settle()
        page.keyboard.press(key)
        page.wait_for_function(
            "(says) => document.querySelector('.said').innerText.includes(says)", arg=says
        )
        assert focused(page).startswith(name.split(";")[0])
        assert page.evaluate("document.documentElement.scrollWidth") <= 1200
        assert not opened.complaints


def test_an_address_that_does_not_fit_shows_what_exists(browser, translated):
    unfit = "view=nothing&kind=9&layer=-4&head=x&row=1e9&palette=__proto__&share=NaN"
    with Opened(browser, f"{translated}#{unfit}") as opened:
        assert opened.page.locator("h2").count() == 1
        for view in VIEWS:
            opened.view(view)
        assert not opened.complaints


def assert_every_view_is_accessible(opened, rules=()):
    for view in opened.page.locator("nav button").all_inner_texts():
        opened.view(view)
        opened.page.evaluate(
            "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
        )
        assert_accessible(opened, view, rules=rules)


@needs_axe
@pytest.mark.parametrize(("scheme", "rules"), [("light", ()), ("dark", OF_COLOURS)])
def test_axe_has_no_complaint(browser, translated, scheme, rules):
    with Opened(browser, translated, color_scheme=scheme, bypass_csp=True) as opened:
        assert opened.page.locator("nav button").all_inner_texts() == list(VIEWS)
        assert_every_view_is_accessible(opened, rules)


@pytest.mark.slow
@needs_axe
def test_axe_has_no_complaint_about_any_step(browser, translated):
    with Opened(browser, f"{translated}#view=walk&whole=yes", bypass_csp=True) as opened:
        page = opened.page
        for number in range(1, len(walked().steps) + 1):
            page.wait_for_function(
                f"() => document.querySelector('.badge').innerText.startsWith('step {number} ')"
            )
            page.wait_for_selector(".step .numbers, .step .words")
            assert_accessible(opened, number, "'.step'")
            page.locator(".step").press("ArrowRight")


@pytest.mark.slow
@needs_axe
@pytest.mark.parametrize(
    ("kind", "scheme"),
    [("text", "light"), ("weights", "dark"), ("pattern", "light"), ("live", "dark")],
)
def test_axe_has_no_complaint_about_other_pages(browser, page_of, kind, scheme):
    if kind == "live":
        with (
            ExplorerServer(
                translation(), lambda text: translation(), text="a", label="Text"
            ).start() as server,
            Opened(browser, server.url, color_scheme=scheme, bypass_csp=True) as opened,
        ):
            assert_every_view_is_accessible(opened)
        return
    made = {
        "text": lambda: explore_text(language_model(), TOKENISER, SOURCE),
        "weights": lambda: explore_weights(weights(2, 3, 90, causal=True)),
        "pattern": lambda: explore_pattern(Causal(), length=300),
    }
    with Opened(browser, page_of(made[kind]()), color_scheme=scheme, bypass_csp=True) as opened:
        assert_every_view_is_accessible(opened)
