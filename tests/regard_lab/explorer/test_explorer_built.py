"""The built script and style belong to the sources and are small; the stored examples of the site open."""

import json
import re
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

import regard_lab.seeing.explorer as explorer
from docs.making.explorations import EXAMPLES, RECORDS, example_page
from regard_lab.seeing.explorer.page import unpacked
from regard_lab.seeing.palette import SCALE

from .browsing import Opened

FOLDER = Path(explorer.__file__).parent
SOURCES = FOLDER / "source"
BUILT = ("explorer.js", "engine.js", "explorer.css")


def digest():
    paths = [*SOURCES.iterdir(), *(SOURCES / "engine").iterdir()]
    names = [
        path.relative_to(SOURCES).as_posix()
        for path in paths
        if path.suffix in (".js", ".css", ".mjs")
    ]
    hashed = sha256()
    for name in [*sorted([*names, "package-lock.json"]), "../../palette.json"]:
        hashed.update(name.encode() + b"\0" + (SOURCES / name).read_bytes() + b"\0")
    return hashed.hexdigest()


@pytest.mark.parametrize("name", BUILT)
def test_a_built_file_is_of_these_sources_small_names_no_host_and_cannot_end_its_element(name):
    text = (FOLDER / name).read_text("utf-8")
    changed = "the sources have changed: run `make explorer`, and commit what it built"
    assert text.splitlines()[0] == f"/* sources {digest()} */", changed
    assert len(text.encode()) <= (40_000 if name == "engine.js" else 110_000)
    assert set(re.findall(r"https?://([\w.]*)", text)) <= {"www.w3.org"}
    assert not re.search(r"</(script|style)|<!--", text, re.IGNORECASE)


def test_no_source_writes_html_from_text():
    """Text is shown by templates alone, which escape it."""
    writing = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|unsafeHTML|eval\("
    for path in [*SOURCES.glob("*.js"), *SOURCES.glob("engine/*.js")]:
        assert not re.findall(writing, path.read_text("utf-8")), path.name


def imported(path):
    """The sources that a source imports."""
    names = re.findall(
        r"""^(?:import|export)\b[^;]*?from "(\.[^"]+)";""", path.read_text("utf-8"), re.M
    )
    return [(path.parent / name).resolve() for name in names]


def test_no_two_sources_of_the_page_import_each_other_in_a_circle():
    paths = [*SOURCES.glob("*.js"), *SOURCES.glob("engine/*.js")]
    left = {path.resolve(): set(imported(path)) for path in paths}
    assert sum(map(len, left.values())) > 100
    while left:
        lowest = [path for path, above in left.items() if not above & left.keys()]
        assert lowest, sorted(path.name for path in left)
        left = {path: above for path, above in left.items() if path not in lowest}


def test_the_built_script_and_style_have_the_colours_of_the_pictures():
    palette = json.loads((FOLDER.parent / "palette.json").read_text("utf-8"))
    assert tuple(palette["weights"]["light"]) == SCALE

    script = (FOLDER / "explorer.js").read_text("utf-8")
    for theme in ("light", "dark"):
        for scale in ("weights", "against", "depends"):
            stops = ",".join(f'"{colour}"' for colour in palette[scale][theme])
            assert f"[{stops}]" in script, (scale, theme)

    style = (FOLDER / "explorer.css").read_text("utf-8")
    of_both = variables_of(style, ":root")
    assert of_both == palette["page"]["light"] | palette["page"]["both"]
    of_dark = variables_of(style, ":root[data-theme=dark]")
    assert of_dark == palette["page"]["dark"]
    assert variables_of(style, ":root:not([data-theme=light])") == of_dark


def variables_of(style, rule):
    """The colours by name that a rule of the built style sets."""
    declarations = re.search(rf"{re.escape(rule)}{{(.*?)}}", style).group(1)
    return dict(re.findall(r"--([\w-]+): (#\w+)", declarations))


def test_no_source_of_the_page_writes_a_colour_that_the_palette_has():
    palette = set(re.findall(r"#\w{6}", (FOLDER.parent / "palette.json").read_text("utf-8")))
    for path in [*SOURCES.glob("*.js"), *SOURCES.glob("*.css")]:
        assert not palette & set(re.findall(r"#\w{6}\b", path.read_text("utf-8"))), path.name


ROOT = Path(__file__).parents[3]


def stored(name):
    return json.loads((RECORDS / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_opens_without_a_request_or_a_complaint(browser, page_of, name):
    frame = rf'<iframe [^>]*explorations/{name}\.html([^"]*)"'
    pages = (page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    view = next(match[1] for match in map(partial(re.search, frame), pages) if match)
    with Opened(browser, page_of(example_page(name)) + view) as opened:
        buttons = opened.page.locator("nav button")
        for index in range(buttons.count()):
            buttons.nth(index).click()
            opened.settle()
        assert len([url for url in opened.requests if not url.startswith("blob:")]) == 1
        assert not opened.complaints


def test_the_reaction_has_the_weights_of_the_committed_report():
    report = json.loads(
        (ROOT / "benchmarks/results/atom_maps_cpu/atom_maps.json").read_text("utf-8")
    )
    answer = stored("reaction")
    words = answer["header"]["texts"]["text"]
    attention = answer["header"]["attentions"][0]
    assert attention["shape"][:2] == [12, 8]
    packed = unpacked(answer["arrays"], attention["bytes"][report["layer"]][report["head"]])
    arrow = words.index(">>")
    atoms = [
        place
        for place, word in enumerate(words)
        if word.strip("[]").isalpha() and word not in ("[CLS]", "[SEP]")
    ]
    reactants = [place for place in atoms if place < arrow]
    product = [place for place in atoms if place > arrow]
    for row, expected in zip(product, report["shown"]["weights"], strict=True):
        shown = [(packed[row * len(words) + column] / 255) ** 2 for column in reactants]
        assert shown == pytest.approx(expected, abs=0.005)
