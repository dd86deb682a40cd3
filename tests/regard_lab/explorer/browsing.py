"""A headless Chromium for tests of the explorer: what a page requested and what it complained about are kept."""

import shutil
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


@contextmanager
def chromium():
    """A running browser; the test is skipped where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="tests of pages need the package playwright"
    )
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(
            f"tests of pages need a browser: none of {', '.join(NAMES)} is installed (apt install chromium)"
        )
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def assert_accessible(opened, name, part="document"):
    """axe-core has nothing to say about a part of the page; a test that asks it is marked `needs_axe`."""
    if not opened.page.evaluate("'axe' in window"):
        opened.page.add_script_tag(path=str(AXE))
    # Only violations are described in full, and no style sheet is fetched again: a page has all of its own.
    options = "{resultTypes: ['violations'], preload: false}"
    violations = opened.page.evaluate(
        f"axe.run({part}, {options}).then(({{violations}}) => violations)"
    )
    wrong = [
        (one["id"], node["target"], node["failureSummary"])
        for one in violations
        for node in one["nodes"]
    ]
    assert not wrong, (name, wrong)


class Opened:
    """A page that was opened in the browser, with every request and complaint since."""

    def __init__(self, browser, url, *, width=1200, height=900, **options):
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        # a busy machine; what is measured has limits of its own
        self.context.set_default_timeout(120_000)
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda one: self.requests.append(one.url))
        self.page.on(
            "console",
            lambda one: one.type in ("error", "warning") and self.complaints.append(one.text),
        )
        self.page.on("pageerror", lambda one: self.complaints.append(str(one)))
        self.page.on(
            "dialog", lambda one: (self.complaints.append(f"dialog {one.message}"), one.dismiss())
        )
        self.page.goto(url)
        self.page.wait_for_selector("[data-ready]")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def nodes(self):
        return self.page.evaluate("document.querySelectorAll('*').length")

    def cpu_seconds(self):
        """The processor time of the page since it was opened, which does not depend on what else the machine does."""
        session = self.context.new_cdp_session(self.page)
        session.send("Performance.enable")
        metrics = {
            one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]
        }
        return metrics["ProcessTime"]

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
