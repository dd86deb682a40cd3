"""The built site: nothing from elsewhere, no broken link, and every page of docs/ in its navigation.

The builder is not part of the test environment; `make docs` installs it, and then these run too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.making.site import loaded_from_outside

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed; make docs installs it")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed; make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_no_page_loads_anything_from_another_host(site):
    read = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(read) > 30
    for path in read:
        assert not loaded_from_outside(path.read_text("utf-8")), path


def test_every_page_is_reached_from_the_first(site):
    """By the menu, as `file://` would open it: relative addresses of files that are there."""
    first = (site / "index.html").read_text("utf-8")
    reached = {match[1] for match in re.finditer(r'href="([\w./-]+\.html)(?:#[^"]*)?"', first)}
    assert all((site / address).exists() for address in reached)
    assert "one-sentence.html" in (site / "lessons" / "walkthrough.html").read_text("utf-8")
    written = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    missing = written - reached - {"index.html", "404.html", "lessons/one-sentence.html"}
    assert not missing


def test_the_index_of_the_search_is_a_script(site):
    """A page opened from the file system may not fetch it."""
    assert (site / "search" / "search_index.js").read_text("utf-8").startswith("var __index = ")


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
