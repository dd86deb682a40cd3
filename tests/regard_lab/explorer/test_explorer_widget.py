"""The page as a notebook widget: the closed frame shows it, and Python and the page share what is chosen."""

import json
import sys

import pytest
import torch

from regard.errors import MissingPackageError
from regard_lab.seeing.explorer import show
from regard_lab.seeing.explorer.page import _read

from .browsing import Opened

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
        outer, inner = opened.page, opened.page.frame_locator("iframe")
        assert outer.locator("iframe").get_attribute("sandbox") == "allow-scripts allow-downloads"
        inner.get_by_role("button", name="Heat map", exact=True).click()
        outer.wait_for_function("() => window.values.chosen.view === 'map' && window.saved > 0")
        outer.evaluate("window.fromPython({view: 'links', head: '1', theme: 'no such theme', other: 'x'})")
        inner.locator("button[aria-current=page]", has_text="Links").wait_for()
        outer.wait_for_function("() => window.values.chosen.head === '1' && window.values.chosen.theme === 'system'")
        assert outer.evaluate("'other' in window.values.chosen") is False
        assert outer.evaluate("window.ran") is None
        outer.evaluate("window.end()")
        assert outer.evaluate("window.listening()") == 0
        assert not opened.complaints
