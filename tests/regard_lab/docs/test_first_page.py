"""The thing to try on the first page: what is stored about a translator, and how it is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from docs.making import explorations as start
from regard_lab.decoding import Translation, Translator
from regard_lab.models import TranslationTransformer
from regard_lab.text import Tokeniser

NOUNS = {"animal": ("Das Tier", "es"), "dog": ("Der Hund", "er"), "cat": ("Die Katze", "sie")}


def german(line: str) -> str:
    (noun,) = (one for one in NOUNS if one in line)
    name, pronoun = NOUNS[noun]
    ending = "zu müde" if "tired" in line else "verstopft"
    return f"{name} überquerte die Straße nicht, weil {pronoun if 'tired' in line else 'sie'} {ending} war."


class Told(Translator):
    """Its translations are given; its model was never trained."""

    def translate(self, lines, **options):
        return [
            Translation(line, german(line), (), tuple(self.tokeniser.encode(german(line))), 0.0, 0.0, True)
            for line in lines
        ]


@pytest.fixture
def stored(tmp_path, monkeypatch):
    torch.manual_seed(0)
    english = [f"The {noun} didn't cross the street because it was {end}." for noun in NOUNS for end in start.ENDINGS]
    tokeniser = Tokeniser.train([*english, *map(german, english), *["weil es war, weil er war, weil sie war"] * 9], 500)
    model = TranslationTransformer(TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2))
    monkeypatch.setattr(start, "CHOICES", tmp_path / "start.json")
    monkeypatch.setattr(start.Translator, "load", lambda run: Told(model, tokeniser))
    start.keep_choices(Path("run"))
    return json.loads(start.CHOICES.read_text("utf-8"))["cases"]


def test_every_choice_is_stored_with_the_relevance_of_each_word(stored):
    assert [(one["noun"], one["ending"]) for one in stored] == [
        (noun, ending) for noun in start.NOUNS for ending in start.ENDINGS
    ]
    for one in stored:
        assert "".join(word for word, _ in one["words"]) == one["source"].replace(" ", "")
        assert len({score for _, score in one["words"]}) > 2
    assert [one["pronoun"] for one in stored] == ["es", "sie", "er", "sie", "sie", "sie"]


def test_the_words_are_shaded_by_their_share_of_the_largest(stored):
    page = start.thing_to_try()
    assert page.count('class="case ') == len(stored)
    for one, shown in zip(stored, page.split('class="case ')[1:], strict=True):
        shares = [float(share) for share in re.findall(r"--share: ([\d.]+)", shown)]
        largest = max(score for _, score in one["words"])
        assert shares == [pytest.approx(max(score, 0) / largest, abs=0.01) for _, score in one["words"]]
        assert max(shares) == 1.0
        assert f"weil <strong>{one['pronoun']}</strong>" in shown


def test_the_committed_record_has_every_choice():
    cases = json.loads((start.DOCS / "assets" / "start.json").read_text("utf-8"))["cases"]
    assert {(one["noun"], one["ending"]) for one in cases} == {(n, e) for n in start.NOUNS for e in start.ENDINGS}
    tired = {one["noun"]: one["pronoun"] for one in cases if one["ending"] == "too tired"}
    assert tired == {"animal": "es", "dog": "er", "cat": "sie"}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_installation_says_how_to_do_without_cuda(page):
    install = Path(page).read_text("utf-8").partition("pip install")[2]
    assert "install PyTorch's CPU build" in " ".join(install.split())
    assert "--torch-backend cpu" in install


def test_every_page_says_how_many_keys_a_window_of_size_4_allows():
    for page in [Path("README.md"), *Path("docs/recipes").glob("*.md")]:
        text = page.read_text("utf-8")
        if "sliding_window(4)" in text:
            assert "two keys on each side" in " ".join(text.split()), page
