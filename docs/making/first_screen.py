"""The picture that a phone shows in place of the explorer: `python -m docs.making.first_screen CHROMIUM`.

CHROMIUM is the path of the browser. Run this again when the first screen of the explorer has changed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright  # ty: ignore[unresolved-import]

from docs.making.explorations import DOCS, example_page

PICTURE = DOCS / "assets" / "explorer-phone.png"
WIDTH = 390  # of a phone
HEIGHT = 1200  # more than the part that is stored
SHARP = 1.5  # pixels of the picture for each pixel of the phone


def shoot(chromium: str) -> None:
    """Store the first screen of the page that computes, down to the translation."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        page = Path(folder) / "live.html"
        page.write_text(example_page("live").html, encoding="utf-8")
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        size = {"width": WIDTH, "height": HEIGHT}
        shown = browser.new_page(viewport=size, device_scale_factor=SHARP, color_scheme="light")
        shown.goto(page.as_uri())
        shown.wait_for_selector(".try button:enabled")  # what is computed last
        shown.wait_for_timeout(1000)  # links glide to their places
        # the controls below would look as if the picture had them
        below = "document.querySelector('.stage .tools').getBoundingClientRect().top"
        height = int(shown.evaluate(below))
        shown.screenshot(path=PICTURE, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        browser.close()


if __name__ == "__main__":
    shoot(*sys.argv[1:])
