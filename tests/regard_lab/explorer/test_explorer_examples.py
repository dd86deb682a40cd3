"""The stored examples of the site: small, whole, and they open in a browser without a request or a complaint."""

import json
from pathlib import Path

import pytest

from docs.making.explorations import EXAMPLES, RECORDS, example_page
from regard_lab.seeing.explorer.page import unpacked

from .browsing import Opened

ROOT = Path(__file__).parents[3]


def stored(name):
    return json.loads((RECORDS / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_small(name):
    assert len(example_page(name).html.encode()) < 1e6


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_opens_without_a_request_or_a_complaint(browser, tmp_path, name):
    path = tmp_path / f"{name}.html"
    example_page(name).save(path)
    with Opened(browser, path.as_uri() + EXAMPLES[name][0]) as opened:
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
