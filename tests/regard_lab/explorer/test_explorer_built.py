"""The built script and style belong to the sources and are small; the stored examples of the site open."""

import json
import re
from base64 import b64decode
from hashlib import sha256
from pathlib import Path

import pytest
from matplotlib import colormaps

import regard_lab.seeing.explorer as explorer
from docs.making.explorations import EXAMPLES, RECORDS, example_page
from regard_lab.seeing.canvas import COLOURS
from regard_lab.seeing.explorer.page import unpacked
from regard_lab.seeing.lenses.record import SIGNED

from .browsing import Opened

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


ROOT = Path(__file__).parents[3]


def stored(name):
    return json.loads((RECORDS / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_small(name):
    assert len(example_page(name).html.encode()) < 1e6


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_opens_without_a_request_or_a_complaint(browser, page_of, name):
    (view,) = {
        view
        for page in (ROOT / "docs").rglob("*.md")
        for view in re.findall(rf'<iframe [^>]*explorations/{name}\.html([^"]*)"', page.read_text("utf-8"))
    }
    with Opened(browser, page_of(example_page(name)) + view) as opened:
        buttons = opened.page.locator("nav button")
        for at in range(buttons.count()):
            buttons.nth(at).click()
            opened.page.wait_for_timeout(200)
        assert len(opened.requests) == 1
        assert not opened.complaints


def test_the_pronoun_depends_on_the_animal_and_its_adjective():
    header = stored("pronoun")["header"]
    erasure = header["explained"][str(header["chosen"])][0]
    assert erasure["word"] == "es"
    largest = sorted(erasure["source"], key=lambda pair: -pair[1])[:2]
    assert {word for word, _ in largest} == {"animal", "tired"}


def test_the_reaction_has_the_weights_of_the_committed_report():
    report = json.loads((ROOT / "benchmarks/results/atom_maps_cpu/atom_maps.json").read_text("utf-8"))
    answer = stored("reaction")
    words, one = answer["header"]["texts"]["text"], answer["header"]["attentions"][0]
    assert one["shape"][:2] == [12, 8]
    packed = unpacked(answer["arrays"], one["bytes"][report["layer"]][report["head"]])
    arrow = words.index(">>")
    atoms = [at for at, word in enumerate(words) if word.strip("[]").isalpha() and word not in ("[CLS]", "[SEP]")]
    reactants, product = [at for at in atoms if at < arrow], [at for at in atoms if at > arrow]
    shown = [[(packed[row * len(words) + column] / 255) ** 2 for column in reactants] for row in product]
    for mine, theirs in zip(shown, report["shown"]["weights"], strict=True):
        assert mine == pytest.approx(theirs, abs=0.005)


@pytest.mark.parametrize("page", ["index.md", "recipes/atom-maps.md", "recipes/long-documents.md"])
def test_a_page_embeds_an_example(page):
    assert '<iframe class="explorer"' in (ROOT / "docs" / page).read_text("utf-8")
