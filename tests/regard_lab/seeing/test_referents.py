from dataclasses import replace

import pytest
import torch
from small_translator import TOKENISER, small_model

from regard.errors import ArgumentError, DataError
from regard_lab.seeing import (
    HONESTY,
    Agreement,
    HeadChoice,
    ItWeights,
    choose_head,
    it_weights,
    look,
    referent_agreement,
)
from regard_lab.seeing import referents as room
from regard_lab.text import Tokeniser
from regard_lab.text.pronouns import ARTICLE_SENTENCES, make_split

VALID, TEST = make_split("valid", 6), make_split("test", 12)


def row(values, it=2, referent=0, other=1):
    """One sentence, one layer, one head."""
    return ItWeights(tuple("abcdefgh"[: len(values)]), torch.tensor([[values]]), it, referent, other)


def answer_with(monkeypatch, rows):
    monkeypatch.setattr(room, "it_weights", lambda *arguments: rows)


@pytest.mark.parametrize("kind", ["bpe", "character"])
def test_words_of_the_corpus_are_found_whatever_the_sub_words(kind):
    tokeniser = Tokeniser.train([one.source for one in VALID], 400, kind)
    model = small_model()
    model = type(model)(replace(model.config, vocab_size=tokeniser.vocab_size)).eval()
    sentences = [*ARTICLE_SENTENCES, *make_split("test", 150), *make_split("valid", 50)]
    for sentence, found in zip(sentences, it_weights(model, tokeniser, sentences), strict=True):
        assert found.words[found.it].lower() == "it"
        assert found.words[found.referent].lower() == sentence.referent
        assert found.words[found.other].lower() == sentence.other
        assert found.words[-1] == "<end>"
        assert found.weights.shape == (2, 2, len(found.words))


@pytest.mark.parametrize("budget", [2048, 1])
def test_the_row_of_it_is_the_merged_encoder_map_of_the_sentence(budget):
    model = small_model(encoder_layers=3, decoder_layers=1)
    for sentence, found in zip(TEST, it_weights(model, TOKENISER, TEST, budget), strict=True):
        maps = look(model, TOKENISER, sentence.source, []).merged()
        assert found.words == maps.source_words
        torch.testing.assert_close(found.weights, maps.encoder[:, :, found.it], rtol=1e-5, atol=1e-6)


def test_a_word_that_is_not_where_the_sentence_says_is_refused():
    wrong = replace(TEST[0], source="No words but dots ... ... ... ... ... ...", it_index=6)
    with pytest.raises(DataError, match="word 6 of"):
        it_weights(small_model(), TOKENISER, [wrong])


def test_shares_are_counted_by_hand(monkeypatch):
    answer_with(monkeypatch, [
        row([0.4, 0.1, 0.3, 0.2]),  # the referent beats all: agrees, prefers
        row([0.3, 0.1, 0.2, 0.4]),  # a full stop beats it: prefers only
        row([0.2, 0.2, 0.6, 0.0]),  # a tie with the other noun: neither
        row([0.2, 0.1, 0.5, 0.1, 0.1]),  # *it* itself does not count as a rival
    ])  # fmt: skip
    found = referent_agreement(small_model(), TOKENISER, TEST[:4], (0, 0))
    assert found == Agreement(agreement=0.5, preference=0.75, count=4, chance=(1 / 3 + 1 / 3 + 1 / 3 + 1 / 4) / 4)


def test_a_tie_with_any_word_counts_as_no(monkeypatch):
    answer_with(monkeypatch, [row([0.4, 0.1, 0.1, 0.4])])
    found = referent_agreement(small_model(), TOKENISER, TEST[:1], (0, 0))
    assert (found.agreement, found.preference) == (0, 1)


def test_the_head_that_was_planted_is_chosen(monkeypatch):
    rows = []
    for place in range(6):
        weights = torch.full((2, 3, 4), 0.25)
        weights[1, 2] = torch.tensor([0.7, 0.1, 0.1, 0.1]) if place else torch.tensor([0.1, 0.7, 0.1, 0.1])
        weights[0, 1] = torch.tensor([0.1, 0.7, 0.1, 0.1]) if place else torch.tensor([0.7, 0.1, 0.1, 0.1])
        rows.append(ItWeights(("a", "b", "it", "<end>"), weights, 2, 0, 1))
    answer_with(monkeypatch, rows)
    assert choose_head(small_model(), TOKENISER, VALID) == HeadChoice(layer=1, head=2, agreement=5 / 6)


def test_agreement_on_the_sentences_of_the_choice_is_that_of_the_choice():
    model = small_model(heads=4)
    choice = choose_head(model, TOKENISER, VALID)
    assert referent_agreement(model, TOKENISER, VALID, choice).agreement == choice.agreement
    every = [
        referent_agreement(model, TOKENISER, VALID, (layer, head)).agreement for layer in range(2) for head in range(4)
    ]
    assert choice.agreement == max(every)
    assert every.index(max(every)) == 4 * choice.layer + choice.head


def test_a_head_is_never_chosen_on_test_or_training_sentences():
    for split in ("test", "train"):
        with pytest.raises(ArgumentError, match="2 of 8 sentences are not of the validation split"):
            choose_head(small_model(), TOKENISER, [*VALID, *make_split(split, 2)])


def test_nothing_to_measure_and_heads_that_are_not_there_are_refused():
    model = small_model()
    with pytest.raises(ArgumentError, match="0 sentences"):
        choose_head(model, TOKENISER, [])
    with pytest.raises(ArgumentError, match="0 sentences"):
        referent_agreement(model, TOKENISER, [], (0, 0))
    for head in ((2, 0), (0, 2), (-1, 0)):
        with pytest.raises(ArgumentError, match="layers 0 to 1 and heads 0 to 1"):
            referent_agreement(model, TOKENISER, TEST, head)


def test_the_page_says_what_attention_is_not():
    assert "Attention alone is not an explanation" in HONESTY
    assert HONESTY.count(". ") + 1 == 3
