"""The page by keyboard alone, for screen readers, and in every colour scheme."""

import pytest

from regard.inspection.explorer import to_page

from .browsing import AXE, Opened
from .making import VIEWS, translation


@pytest.fixture(scope="module")
def translated(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "translation.html"
    to_page(translation()).save(path)
    return path.as_uri()


def focused(page):
    return page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || ''")


def tab_to(page, wanted, most=60):
    """Press Tab until an element whose name begins so has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page).startswith(wanted):
            return
    raise AssertionError(f"{wanted!r} cannot be reached by Tab")


def test_a_tour_by_keyboard_alone(browser, translated):
    with Opened(browser, translated) as opened:
        page = opened.page
        tab_to(page, "Tier")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('.question').innerText.includes('Why Tier')")
        page.keyboard.press("Home")
        page.reload()
        page.wait_for_selector("[data-ready]")
        tab_to(page, "Heads")
        page.keyboard.press("Enter")
        page.wait_for_selector("canvas.heads")
        tab_to(page, "Heads; arrow keys move")
        page.wait_for_timeout(200)
        page.keyboard.press("ArrowRight")
        page.wait_for_function("() => document.querySelector('[role=status]').innerText.startsWith('Layer 0, head 1')")
        page.keyboard.press("Enter")
        page.wait_for_selector("canvas.heatmap")
        tab_to(page, "Weights; arrow keys move")
        page.wait_for_timeout(200)
        before = page.locator("[role=status]").inner_text()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        page.wait_for_timeout(200)
        assert page.locator("[role=status]").inner_text() != before
        assert "looks at" in page.locator("[role=status]").inner_text()
        place = page.evaluate("new URLSearchParams(location.hash.slice(1))+''")
        assert "head=1" in place
        assert not opened.complaints


@pytest.mark.parametrize(
    ("view", "name", "key", "says"),
    [
        ("Translation", "Steps; up and down", "ArrowDown", "Step "),
        ("What if", "street", "Enter", "Without “street”"),
        ("Pattern", "Pairs; arrow keys move", "ArrowDown", "Query 1 “animal” may look"),
        ("Walk-through", "Left and right arrows change the step", "ArrowRight", "Step 2 of"),
        ("Compare", "Differences; arrow keys move", "ArrowRight", "looks at"),
    ],
)
def test_every_new_view_is_reached_and_used_by_keyboard(browser, translated, view, name, key, says):
    with Opened(browser, translated) as opened:
        page = opened.page
        tab_to(page, view)
        page.keyboard.press("Enter")
        page.wait_for_timeout(300)
        tab_to(page, name)
        page.wait_for_timeout(100)
        page.keyboard.press(key)
        page.wait_for_function("(says) => document.querySelector('.said').innerText.includes(says)", arg=says)
        assert focused(page).startswith(name.split(";")[0])
        assert page.evaluate("document.documentElement.scrollWidth") <= 1200
        assert not opened.complaints


def test_the_address_keeps_what_is_shown(browser, translated):
    with Opened(browser, f"{translated}#view=links&kind=1&layer=2&head=1&row=3&theme=dark") as opened:
        page = opened.page
        assert page.locator("h2").inner_text() == "Links"
        assert page.get_by_role("combobox", name="Layer", exact=True).input_value() == "2"
        assert translation().texts["source"][3] in page.locator(".readout").inner_text()


def test_an_address_that_does_not_fit_shows_what_exists(browser, translated):
    with Opened(
        browser, f"{translated}#view=nothing&kind=9&layer=-4&head=x&row=1e9&palette=__proto__&share=NaN"
    ) as opened:
        assert opened.page.locator("h2").count() == 1
        for view in VIEWS:
            opened.view(view)
        assert not opened.complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_complaint(browser, translated, scheme):
    if not AXE.exists():
        pytest.skip("axe-core is not installed; `make explorer` installs it")
    with Opened(browser, translated, color_scheme=scheme, bypass_csp=True) as opened:
        opened.page.add_script_tag(path=str(AXE))
        for view in VIEWS:
            opened.view(view)
            opened.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            result = opened.page.evaluate("axe.run()")
            wrong = [
                (one["id"], node["target"], node["failureSummary"])
                for one in result["violations"]
                for node in one["nodes"]
            ]
            assert not wrong, view


def test_reduced_motion_and_forced_colours_change_nothing_that_is_needed(browser, translated):
    with Opened(browser, translated, reduced_motion="reduce", forced_colors="active") as opened:
        assert opened.page.locator(".scored").count() > 10
        assert not opened.complaints
