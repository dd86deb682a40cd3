"""What a translator looks at: the links are those of the grammar, and measured figures agree with each other."""

from types import SimpleNamespace

import pytest

from regard.errors import ArgumentError, CheckpointError, DataError
from regard_lab.decoding import Translator
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.lessons import find_lesson
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.teaching.looking import links_of, measure_heads, measure_referent
from regard_lab.text import Tokeniser
from regard_lab.text.pronouns import (
    ARTICLE_SENTENCES,
    ChoiceProbabilities,
    make_split,
    swap_other,
    swap_referent,
)

HELPERS = ("did", "not", "was", "didn't", "wasn't")


@pytest.mark.parametrize(
    "sentence", make_split("test", 60, weights=ChoiceProbabilities(attribute=0.6))
)
def test_the_links_are_those_of_the_grammar(sentence):
    words = [*sentence.source.replace(",", " ,").replace(".", " .").split(), "<end>"]
    lower = [word.lower() for word in words]
    derivation = sentence.derivation
    links = links_of(sentence, words)

    ((verb, (subject,)),) = links["verb to subject"]
    assert lower[subject] == derivation.subject.english
    assert all(word in HELPERS for word in words[subject + 1 : verb])
    assert words[verb] not in HELPERS

    described = []
    if derivation.subject_attribute:
        described.append(derivation.subject.english)
    if derivation.object_attribute:
        described.append(derivation.object.english)
    assert [lower[noun] for _, (noun,) in links["adjective to noun"]] == described

    ((it, (referent,)),) = links["it to referent"]
    assert (lower[it], lower[referent]) == ("it", sentence.referent)


def test_words_without_a_noun_of_the_sentence_are_refused():
    with pytest.raises(DataError, match=r"'animal' of .* is not among the words"):
        links_of(ARTICLE_SENTENCES[0], ["a", "cat"])


def test_words_without_a_verb_of_the_sentence_are_refused():
    words = [
        "The",
        "animal",
        "didn",
        "'",
        "t",
        "see",
        "the",
        "street",
        "because",
        "it",
        "was",
        "too",
        "tired",
    ]
    with pytest.raises(DataError, match=r"no verb of .* is among the words The animal"):
        links_of(ARTICLE_SENTENCES[0], words)


@pytest.fixture
def run(tmp_path):
    """A translator with random weights, trained on nothing."""
    texts = []
    for sentence in make_split("train", 40):
        texts += [sentence.source, sentence.target]
    tokeniser = Tokeniser.train(texts, 420)
    config = TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2)
    TranslationTransformer(config).save(tmp_path, {TOKENISER_FILE: tokeniser.to_json()})
    return tmp_path


def test_the_share_of_a_chosen_head_is_one_of_the_shares(run):
    for relation in measure_heads(run, sentences=4)["relations"].values():
        layer, head = relation["chosen"]
        assert relation["chosen_share"] == relation["shares"][layer][head]


def test_a_translator_that_writes_the_german_of_the_grammar_is_always_right(run, monkeypatch):
    german = {}
    for sentence in [*ARTICLE_SENTENCES, *make_split("test", 4), *make_split("valid", 4)]:
        for variant in (sentence, swap_referent(sentence), swap_other(sentence)):
            german[variant.source] = variant.target

    def translate(self, lines):
        translations = []
        for line in lines:
            ids = self.tokeniser.encode(german[line])
            translations.append(SimpleNamespace(text=german[line], ids=ids))
        return translations

    monkeypatch.setattr(Translator, "translate", translate)
    measured = measure_referent(run, sentences=4)
    assert measured["right"] == measured["followed"] == measured["kept"] == 1.0
    assert measured["agreement"] <= measured["in_reach"]
    for example, sentence in zip(measured["cross"]["examples"], ARTICLE_SENTENCES, strict=False):
        assert example["words"][example["referent"]] == sentence.referent
        assert sum(example["weights"]) == pytest.approx(1, abs=0.02)


def test_a_run_that_cannot_be_measured_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        find_lesson("heads").claims({"RUN": "nowhere"}, lenient=True)

    tokeniser = Tokeniser.train(["a street"], 300)
    config = RecurrentTranslator.Config(vocab_size=260, dim=4, hidden=4)
    RecurrentTranslator(config).save(tmp_path, {TOKENISER_FILE: tokeniser.to_json()})
    with pytest.raises(ArgumentError, match="looks at self-attention"):
        find_lesson("referent").claims({"RUN": str(tmp_path)}, lenient=True)
