"""The built script and style belong to the sources, are small, and name no other host; colours are those of Python."""

import re
from base64 import b64decode
from hashlib import sha256
from pathlib import Path

import pytest
from matplotlib import colormaps

import regard_lab.seeing.explorer as explorer
from regard_lab.seeing.canvas import COLOURS
from regard_lab.seeing.lenses.record import SIGNED

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


def table(name):
    text = re.search(
        rf"export const {name} = table\((.*?)\);", (SOURCES / "palettes.js").read_text("utf-8"), re.DOTALL
    )[1]
    values = b64decode("".join(re.findall(r'"([^"]*)"', text)))
    return [tuple(values[at : at + 3]) for at in range(0, len(values), 3)]


@pytest.mark.parametrize(("name", "of_matplotlib"), [("cividis", COLOURS), ("viridis", "viridis"), ("signed", SIGNED)])
def test_a_table_equals_that_of_the_pictures(name, of_matplotlib):
    assert table(name) == [tuple(map(int, row[:3])) for row in colormaps[of_matplotlib](range(256), bytes=True)]


@pytest.mark.parametrize("name", ["cividis", "viridis"])
def test_more_weight_is_always_lighter(name):
    def luminance(colour):
        parts = (part / 255 for part in colour)
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    steps = [luminance(colour) for colour in table(name)][::4]
    assert steps == sorted(steps)
