"""The page in a real browser: what it shows, that it needs nothing, and that its pixels are those of the tables."""

import json
import sys

import numpy as np
import pytest
import torch

from regard.errors import MissingPackageError
from regard_lab.seeing.canvas import colours
from regard_lab.seeing.explorer import explore_translation, show
from regard_lab.seeing.explorer.page import _read
from regard_lab.seeing.explorer.server import ExplorerServer

from .browsing import Opened
from .making import OTHER, SOURCE, TARGET, TOKENISER, VIEWS, translation, translator, weights

OF_WEIGHTS = ("Heads", "Heat map", "Compare")


def test_the_reader_shows_the_lens_beside_raw_attention_and_explains_what_is_chosen(
    browser, translated
):
    with Opened(browser, translated) as opened:
        page = opened.page
        lens = translation().explained[translation().chosen][0]
        panels = page.locator(".panel")
        assert [panels.nth(panel).get_attribute("data-lens") for panel in range(2)] == [
            "erase",
            "attention",
        ]
        shown = panels.first.locator(".scored").all_inner_texts()
        scores = [*lens.source_scores, *lens.written_scores]
        words = [*lens.source_words, *lens.written_words]
        for text, word, score in zip(shown, words, scores, strict=True):
            label, number = text.split("\n")
            assert label == word
            assert float(number.replace("−", "-")) == pytest.approx(score, abs=0.0051)
        assert "Why es rather than er or sie?" in page.locator(".question").inner_text()
        # what introduces buttons stands before some
        introduces = page.locator(".outcome").inner_text().endswith(":")
        assert introduces == (page.locator(".try button").count() > 0)
        page.locator(".written").get_by_text("Tier", exact=True).click()
        page.get_by_role("combobox", name="Lens", exact=True).select_option("gradients")
        place = translation().texts["target"].index("Tier")
        lens = next(lens for lens in translation().explained[place] if lens.lens == "gradients")
        assert "Why Tier rather than" in page.locator(".question").inner_text()
        first = page.locator(".panel").first.locator(".scored small").first.inner_text()
        assert float(first.replace("−", "-")) == pytest.approx(lens.source_scores[0], abs=0.0051)


def test_every_view_fits_the_screen_without_a_request_or_a_complaint(browser, translated):
    width = 360
    with Opened(browser, translated, width=width) as opened:
        for view in VIEWS:
            opened.view(view)
            assert opened.page.locator("main h2").count() == 1
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert opened.requests == [translated]
        assert not opened.complaints


def pixels(page, row, column):
    """The colour in the middle of a cell of the heat map."""
    script = """([row, column]) => {
        const canvas = document.querySelector("canvas.heatmap"), {left, top, cell, ratio} = canvas.place;
        const at = (place, offset) => Math.floor((offset + (place + 0.5) * cell) * ratio);
        return [...canvas.getContext("2d").getImageData(at(column, left), at(row, top), 1, 1).data];
    }"""
    return tuple(page.evaluate(script, [row, column]))


def test_pixels_are_those_of_the_python_table(browser, page_of):
    attention_weights = weights(1, 1, 12, seed=3)
    attention_weights[0, 0, 0] = torch.eye(12)[0]  # both ends of the scale
    expected = colours()(attention_weights[0, 0].numpy(), bytes=True)
    with Opened(browser, f"{page_of(show(attention_weights))}#view=map") as opened:
        opened.settle()
        shown = np.zeros((12, 12, 4), dtype=int)
        for row, column in np.ndindex(12, 12):
            shown[row, column] = pixels(opened.page, row, column)
        assert np.abs(shown - expected.astype(int)).max() <= 1  # rounding between two colours


def test_heads_are_sorted_by_their_measures(browser, page_of):
    attention_weights = torch.stack(
        [torch.eye(8), torch.full((8, 8), 1 / 8), torch.eye(8)[[0] * 8]]
    )
    orders = {
        "layer": "012",
        "entropy": "021",
        "distance": "012",
        "first": "012",
        "received": "012",
    }
    with Opened(browser, f"{page_of(show(attention_weights))}#view=heads") as opened:
        opened.page.locator(".twin summary").click()
        for sort, order in orders.items():
            opened.page.get_by_role("combobox", name="Sort by", exact=True).select_option(sort)
            opened.settle()
            shown = "".join(opened.page.locator("tbody th").all_inner_texts()).replace(" ", "")
            assert shown == order, sort


@pytest.mark.parametrize("layers", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_layers_of_twelve_heads_and_512_tokens_stay_light_and_answer_at_once(
    browser, tmp_path, layers
):
    path = tmp_path / "large.html"
    show(weights(layers, 12, 512, causal=True), [f"word{word}" for word in range(512)]).save(path)
    assert path.stat().st_size <= 20e6
    with Opened(browser, f"{path.as_uri()}#view=heads", fresh=True) as opened:
        assert opened.cpu_seconds() <= 2
        assert opened.nodes() <= 2000
        for view in OF_WEIGHTS:
            opened.view(view)
            opened.settle()
            assert opened.nodes() <= 2000, view
        opened.view("Heat map")
        took = opened.page.evaluate("""() => {
            const canvas = document.querySelector("canvas.heatmap"), box = canvas.getBoundingClientRect();
            const times = [];
            for (let at = 0; at < 40; at += 1) {
                const start = performance.now();
                canvas.dispatchEvent(new PointerEvent("pointermove", {bubbles: true,
                    clientX: box.left + 60 + 5 * at, clientY: box.top + 80 + 7 * at}));
                document.body.offsetHeight;
                times.push(performance.now() - start);
            }
            return times.sort((a, b) => a - b)[20];
        }""")
        assert took <= 50
        assert " look" in opened.page.locator("[data-readout]").inner_text()
        assert len(opened.requests) == 1
        assert not opened.complaints


def test_words_that_were_chosen_in_one_sentence_are_not_those_of_the_next(browser):
    next_sentence = explore_translation(translator(), TOKENISER, OTHER, TOKENISER.encode(TARGET))
    with (
        ExplorerServer(
            translation(), lambda text: next_sentence, text=SOURCE, label="Sentence"
        ).start() as server,
        Opened(browser, server.url) as opened,
    ):
        page = opened.page
        page.locator(".written").get_by_text("Tier", exact=True).click()
        opened.view("What if")
        without = page.get_by_role("combobox", name="Without", exact=True)
        without.select_option("street")
        page.get_by_role("button", name="Read this text").click()
        page.locator(".given").get_by_text("road", exact=True).wait_for()
        least = min(
            (place for place in next_sentence.changes if place is not None),
            key=lambda place: next_sentence.changes[place].probabilities[0],
        )
        assert next_sentence.chosen == 0
        chosen = without.locator("option:checked").inner_text().strip()
        assert chosen == next_sentence.texts["source"][least]
        opened.view("Reader")
        assert (
            f"Why {next_sentence.texts['target'][0]} rather"
            in page.locator(".question").inner_text()
        )
        assert not opened.complaints


def test_a_layer_of_heads_begins_at_the_left(browser, page_of):
    width = 360
    heads = 7
    across = 4
    with Opened(
        browser, f"{page_of(show(weights(2, heads, 6)))}#view=heads&scale=largest", width=width
    ) as opened:
        page = opened.page
        page.wait_for_function("() => document.querySelector('canvas.heads').grid")
        assert page.evaluate("document.querySelector('canvas.heads').grid.across") == across
        assert page.get_by_role("img", name="Colours from 0 to 1").count() == 1
        assert (
            "largest weight of each row"
            not in page.get_by_role("combobox", name="Scale").inner_text()
        )
        side, tall = page.evaluate(
            "(({side, tall}) => [side, tall])(document.querySelector('canvas.heads').grid)"
        )
        column = heads % across
        row = heads // across
        page.locator("canvas.heads").click(
            position={"x": (side + 14) * (column + 0.5), "y": (tall + 29) * (row + 0.5)}
        )
        page.locator("canvas.heatmap").wait_for()
        chosen = [
            page.get_by_role("combobox", name=name, exact=True).input_value()
            for name in ("Layer", "Head")
        ]
        assert chosen == ["1", "0"]


@pytest.mark.parametrize(("view", "count"), [("map", 24), ("compare", 600)])
def test_maps_and_their_words_are_not_wider_than_the_page(browser, page_of, view, count):
    address = page_of(
        show(weights(1, 2, count), [f"word number {place}" for place in range(count)])
    )
    sizes = """(count) => {
        const canvas = document.querySelector("main canvas"), {left, cell} = canvas.place;
        return [left + count * cell, canvas.offsetWidth, canvas.parentElement.clientWidth];
    }"""
    with Opened(browser, f"{address}#view={view}", width=360) as opened:
        opened.page.wait_for_function("() => document.querySelector('main canvas').place")
        ends, canvas, page = opened.page.evaluate(sizes, count)
        assert ends + 28 <= canvas <= page  # the last word, or the bars of distances


# What a notebook's front end does with a widget: a model with values, and a call of render.
FRONT_END = """<!doctype html><title>notebook</title><div id="cell"></div><script type="module">
const listeners = new Set();
const values = {html: %s, height: 500, chosen: {}};
window.values = values;
window.saved = 0;
const model = {
  get: (name) => values[name],
  set: (name, value) => { values[name] = value; },
  save_changes: () => { window.saved += 1; },
  on: (name, call) => listeners.add(call),
  off: (name, call) => listeners.delete(call),
};
window.fromPython = (chosen) => { values.chosen = chosen; listeners.forEach((call) => call()); };
const source = %s;
const widget = (await import(URL.createObjectURL(new Blob([source], {type: "text/javascript"})))).default;
window.end = widget.render({model, el: document.getElementById("cell")});
window.listening = () => listeners.size;
document.body.dataset.ready = "yes";
</script>"""


def page():
    words = ["a", "</script><script>window.ran=1</script>", "c", "d"]
    return show(torch.eye(4).softmax(-1)[None].repeat(2, 1, 1), words)


def test_without_anywidget_a_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(MissingPackageError, match=r"pip install '.*\[notebook\]'"):
        page().widget()


def test_the_widget_has_the_page_and_traits_that_are_shared():
    pytest.importorskip("anywidget", reason="the widget needs the extra notebook")
    shown = page()
    widget = shown.widget()
    assert widget.html == shown.html
    assert {"html", "height", "chosen"} <= set(widget.get_state())
    seen = []
    widget.observe(lambda change: seen.append(change["new"]), "chosen")
    widget.set_state({"chosen": {"view": "map"}})  # as from the front end
    assert widget.chosen == {"view": "map"}
    assert seen == [{"view": "map"}]
    with pytest.raises(Exception, match="chosen"):
        widget.chosen = {"layer": 3}


def test_python_and_the_page_share_what_is_chosen(browser, tmp_path):
    path = tmp_path / "notebook.html"
    texts = [json.dumps(text).replace("<", "\\u003c") for text in (page().html, _read("widget.js"))]
    path.write_text(FRONT_END % tuple(texts), encoding="utf-8")
    with Opened(browser, path.as_uri()) as opened:
        outer = opened.page
        inner = opened.page.frame_locator("iframe")
        assert outer.locator("iframe").get_attribute("sandbox") == "allow-scripts allow-downloads"
        inner.get_by_role("tab", name="Heat map", exact=True).click()
        outer.wait_for_function("() => window.values.chosen.view === 'map' && window.saved > 0")
        outer.evaluate(
            "window.fromPython({view: 'compare', head: '1', theme: 'no such theme', unknown: 'x'})"
        )
        inner.locator("button[aria-selected=true]", has_text="Compare").wait_for()
        outer.wait_for_function(
            "() => window.values.chosen.head === '1' && window.values.chosen.theme === 'system'"
        )
        assert outer.evaluate("'unknown' in window.values.chosen") is False
        assert outer.evaluate("window.ran") is None
        outer.evaluate("window.end()")
        assert outer.evaluate("window.listening()") == 0
        assert not opened.complaints
