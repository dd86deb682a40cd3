"""The thing to try on the first page: what is stored about a translator, and how it is shown."""

import json
from itertools import product
from pathlib import Path

import torch

from docs.making import explorations as start
from docs.making.english import english_head, words_with_weights
from regard_lab.decoding import Translation, Translator
from regard_lab.models import TranslationTransformer
from regard_lab.text import Tokeniser

NOUNS = {"animal": ("Das Tier", "es"), "dog": ("Der Hund", "er"), "cat": ("Die Katze", "sie")}


def german(line: str) -> str:
    (noun,) = [noun for noun in NOUNS if noun in line]
    name, pronoun = NOUNS[noun]
    reason = f"{pronoun} zu müde" if "tired" in line else "sie verstopft"
    return f"{name} überquerte die Straße nicht, weil {reason} war."


class Told(Translator):
    """Its translations are given; its model was never trained."""

    def translate(self, lines, **options):
        translations = []
        for line in lines:
            ids = tuple(self.tokeniser.encode(german(line)))
            translations.append(Translation(line, german(line), (), ids, 0.0, 0.0, True))
        return translations


def test_every_choice_is_stored_with_the_relevance_of_each_word(tmp_path, monkeypatch):
    torch.manual_seed(0)
    english = []
    for noun, ending in product(NOUNS, start.ENDINGS):
        english.append(f"The {noun} didn't cross the street because it was {ending}.")
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
    choices = [(case["noun"], case["ending"]) for case in stored]
    assert choices == list(product(start.NOUNS, start.ENDINGS))
    for case in stored:
        words, scores = zip(*case["words"], strict=True)
        assert "".join(words) == case["source"].replace(" ", "")
        assert len(set(scores)) > 2
    assert [case["pronoun"] for case in stored] == ["es", "sie", "er", "sie", "sie", "sie"]


def test_the_committed_record_has_every_choice():
    cases = json.loads((start.DOCS / "assets" / "start.json").read_text("utf-8"))["cases"]
    pronouns = {}
    for case in cases:
        pronouns[case["noun"], case["ending"]] = case["pronoun"]
    assert pronouns.keys() == set(product(start.NOUNS, start.ENDINGS))
    for noun, pronoun in (("animal", "es"), ("dog", "er"), ("cat", "sie")):
        assert pronouns[noun, "too tired"] == pronoun


def test_the_weights_of_it_in_the_english_model_are_shown_for_whole_words():
    pieces = ["[CLS]", "the", "cat", "didn", "'", "t", "sit", "because", "it", "was", "tired", "."]
    weights = [0.5, 0.01, 0.2, 0.03, 0.01, 0.02, 0.04, 0.0, 0.1, 0.0, 0.05, 0.04]
    example = {"words": pieces, "weights": {"tired": weights, "wide": weights[::-1]}}
    words = dict(words_with_weights(example, "wide"))
    assert list(words) == ["the", "cat", "didn't", "sit", "because", "it", "was", "wide"]
    assert abs(dict(words_with_weights(example, "tired"))["didn't"] - 0.06) < 1e-9
    assert words["wide"] == 0.01

    page = english_head()
    assert page.index(">tired</span>") < page.index(">wide</span>")
    assert 'style="--share: 1.00"' in page
