"""A headless Chromium for tests of the explorer: what a page requested and what it complained about are kept."""

import shutil
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
)
AXE = (
    Path(__file__).parents[3] / "regard_lab/seeing/explorer/source/node_modules/axe-core/axe.min.js"
)

needs_axe = pytest.mark.skipif(
    not AXE.exists(), reason="`make explorer` or `make pages` installs axe-core"
)


def written(p):
    """A probability as the page writes it above a word."""
    if p < 0.0005:
        return "<0.001"
    return "1.000" if p >= 0.9995 else f"{p:.3f}"


def said(p):
    """A probability as the first screen writes it in a sentence."""
    return "under 0.001" if p < 0.0005 else written(p)


def head_name(number):
    """A head as the page names it: "1.3" is head 3 of layer 1."""
    layer, head = number.split(".")
    return f"head {head} of layer {layer}"


@contextmanager
def chromium():
    """A running browser; the test is skipped where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="tests of pages need the package playwright"
    )
    executables = list(filter(None, map(shutil.which, NAMES)))
    if not executables:
        pytest.skip(
            f"tests of pages need a browser: none of {', '.join(NAMES)} is installed (apt install chromium)"
        )
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=executables[0], args=list(ARGUMENTS))
        try:
            yield Tabs(browser)
        finally:
            browser.close()


# Colours that change at once: each fades in many frames, which took a fifth of the CPU time of a page.
STILL = {"reduced_motion": "reduce"}


class Tabs:
    """The tabs of a browser: one that a test has left shows the page of the next test.

    A tab of its own is a process, whose start takes twice the CPU time of opening a page in it.
    """

    def __init__(self, browser):
        self._browser = browser
        self.version = browser.version
        self._left = defaultdict(list)  # by the options of their contexts

    def take(self, options):
        """An empty tab with these options of a context."""
        left = self._left[_key(options)]
        return left.pop() if left else self.open_another(options)

    def open_another(self, options):
        """A tab that no test has used."""
        context = self._browser.new_context(**options)
        # a busy machine; what is measured has limits of its own
        context.set_default_timeout(120_000)
        return context.new_page()

    def leave(self, tab, options):
        """End what runs in a tab, so that the next test finds it empty."""
        tab.goto("about:blank")
        tab.mouse.move(0, 0)
        self._left[_key(options)].append(tab)


def _key(options):
    return tuple(sorted(options.items()))


# What axe-core may say of the colours of a page and of nothing else.
OF_COLOURS = ("color-contrast", "link-in-text-block")


def assert_accessible(opened, name, part="document", rules=()):
    """axe-core has nothing to say about a part of the page; a test that asks it is marked `needs_axe`.

    `rules` are those that it asks, instead of all: in another colour scheme only the colours are others.
    """
    if not opened.page.evaluate("'axe' in window"):
        opened.page.add_script_tag(path=str(AXE))
    # Only violations are described in full, and no style sheet is fetched again: a page has all of its own.
    options = {"resultTypes": ["violations"], "preload": False}
    if rules:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    violations = opened.page.evaluate(
        f"(options) => axe.run({part}, options).then(({{violations}}) => violations)", options
    )
    wrong = []
    for violation in violations:
        for node in violation["nodes"]:
            wrong.append((violation["id"], node["target"], node["failureSummary"]))
    assert not wrong, (name, wrong)


class Opened:
    """A page that was opened in the browser, with every request and complaint since.

    Args:
        tabs: of the browser.
        url: the address of the page.
        width, height: of the window.
        fresh: whether no test has used the tab, so that its process has done nothing else.
        options: of the context of the tab; without `reduced_motion="no-preference"` nothing fades.
    """

    def __init__(self, tabs, url, *, width=1200, height=900, fresh=False, **options):
        self._tabs = tabs
        self._options = options = {**STILL, **options}
        self._fresh = fresh
        self.page = tabs.open_another(options) if fresh else tabs.take(options)
        self.requests = []
        self.complaints = []
        self._listeners = {
            "request": self._note_request,
            "console": self._note_message,
            "pageerror": self._note_error,
            "dialog": self._note_dialog,
        }
        for event, listener in self._listeners.items():
            self.page.on(event, listener)
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.goto(url)
        self.page.wait_for_selector("[data-ready]")

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        # what a page does after a test failed in it is unknown
        if self._fresh or error is not None:
            self.page.context.close()
            return
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self._tabs.leave(self.page, self._options)

    def _note_request(self, request):
        self.requests.append(request.url)

    def _note_message(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _note_error(self, error):
        self.complaints.append(str(error))

    def _note_dialog(self, dialog):
        self.complaints.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def nodes(self):
        return self.page.evaluate("document.querySelectorAll('*').length")

    def cpu_seconds(self):
        """The processor time of the page since it was opened, which does not depend on what else the machine does.

        In a tab that another page had, that page's time counts as well: such a test opens a fresh one.
        """
        session = self.page.context.new_cdp_session(self.page)
        session.send("Performance.enable")
        for metric in session.send("Performance.getMetrics")["metrics"]:
            if metric["name"] == "ProcessTime":
                return metric["value"]
        raise AssertionError("the browser has no ProcessTime")

    def view(self, name):
        self.page.get_by_role("tab", name=name, exact=True).click()
        self.settle()

    def write(self, text):
        """Write another text into the form of the first screen."""
        if not self.page.locator("#sentence").count():
            self.page.locator(".plain").click()
        self.page.locator("#sentence").fill(text)

    def settle(self):
        """Wait until what was asked for is drawn: a second frame has begun, and what follows it was done."""
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 20))))"
        )
