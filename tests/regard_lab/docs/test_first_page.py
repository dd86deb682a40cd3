"""The thing to try on the first page: what is stored about a translator, and how it is shown."""

import json
from pathlib import Path

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
            Translation(
                line, german(line), (), tuple(self.tokeniser.encode(german(line))), 0.0, 0.0, True
            )
            for line in lines
        ]


def test_every_choice_is_stored_with_the_relevance_of_each_word(tmp_path, monkeypatch):
    torch.manual_seed(0)
    english = [
        f"The {noun} didn't cross the street because it was {end}."
        for noun in NOUNS
        for end in start.ENDINGS
    ]
    tokeniser = Tokeniser.train(
        [*english, *map(german, english), *["weil es war, weil er war, weil sie war"] * 9], 500
    )
    model = TranslationTransformer(
        TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2)
    )
    monkeypatch.setattr(start, "CHOICES", tmp_path / "start.json")
    monkeypatch.setattr(start.Translator, "load", lambda run: Told(model, tokeniser))
    start.keep_choices(Path("run"))
    stored = json.loads(start.CHOICES.read_text("utf-8"))["cases"]
    assert [(one["noun"], one["ending"]) for one in stored] == [
        (noun, ending) for noun in start.NOUNS for ending in start.ENDINGS
    ]
    for one in stored:
        assert "".join(word for word, _ in one["words"]) == one["source"].replace(" ", "")
        assert len({score for _, score in one["words"]}) > 2
    assert [one["pronoun"] for one in stored] == ["es", "sie", "er", "sie", "sie", "sie"]


def test_the_committed_record_has_every_choice():
    cases = json.loads((start.DOCS / "assets" / "start.json").read_text("utf-8"))["cases"]
    assert {(one["noun"], one["ending"]) for one in cases} == {
        (n, e) for n in start.NOUNS for e in start.ENDINGS
    }
    tired = {one["noun"]: one["pronoun"] for one in cases if one["ending"] == "too tired"}
    assert tired == {"animal": "es", "dog": "er", "cat": "sie"}
