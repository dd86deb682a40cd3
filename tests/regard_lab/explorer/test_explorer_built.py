"""The built script and style belong to the sources, are small, and name no other host."""

import re
from hashlib import sha256
from pathlib import Path

import pytest

import regard_lab.seeing.explorer as explorer

FOLDER = Path(explorer.__file__).parent
SOURCES = FOLDER / "source"
BUILT = ("explorer.js", "explorer.css")


def digest():
    names = [path.name for path in SOURCES.iterdir() if path.suffix in (".js", ".css", ".mjs")]
    hashed = sha256()
    for name in sorted([*names, "package-lock.json"]):
        hashed.update(name.encode() + b"\0" + (SOURCES / name).read_bytes() + b"\0")
    return hashed.hexdigest()


@pytest.mark.parametrize("name", BUILT)
def test_a_built_file_is_of_these_sources(name):
    first = (FOLDER / name).read_text("utf-8").splitlines()[0]
    assert first == f"/* sources {digest()} */", (
        "the sources have changed: run `make explorer`, and commit what it built"
    )


def test_the_built_script_is_small():
    assert (FOLDER / "explorer.js").stat().st_size <= 100_000


@pytest.mark.parametrize("name", BUILT)
def test_a_built_file_names_no_host_and_cannot_end_its_element(name):
    text = (FOLDER / name).read_text("utf-8")
    assert set(re.findall(r"https?://[\w./]*", text)) <= {"http://www.w3.org/"} | set(
        re.findall(r"http://www\.w3\.org/[\w./]*", text)
    )
    assert not re.search(r"</(script|style)|<!--", text, re.IGNORECASE)


def test_no_source_writes_html_from_text():
    """Text is shown by templates alone, which escape it."""
    for path in SOURCES.glob("*.js"):
        used = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|unsafeHTML|eval\(", path.read_text("utf-8")
        )
        assert not used, f"{path.name} uses {used}"


def test_sources_are_short_enough_to_be_read():
    sizes = {path.name: len(path.read_text("utf-8").splitlines()) for path in SOURCES.glob("*.js")}
    assert sizes
    assert not {name: lines for name, lines in sizes.items() if lines > 320}
