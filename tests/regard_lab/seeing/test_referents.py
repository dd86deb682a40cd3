"""Where *it* looks, and whether the pronoun of a translation follows its noun."""

import re
from dataclasses import replace

import pytest
import torch
from small_models import TOKENISER, small_model

from regard.errors import ArgumentError, DataError
from regard_lab.seeing import look
from regard_lab.seeing import referents as room
from regard_lab.seeing.referents import (
    Agreement,
    HeadChoice,
    ItWeights,
    SwapCheck,
    choose_head,
    it_weights,
    referent_agreement,
    swap_check,
)
from regard_lab.text import Tokeniser
from regard_lab.text.pronouns import ARTICLE_SENTENCES, NOUN_BY_ENGLISH, PRONOUNS, make_split
from regard_lab.text.pronouns.sentences import PRONOUN_OF_GENDER

VALID = make_split("valid", 6)
TEST = make_split("test", 12)


def row(values, it=2, referent=0, second=1):
    """One sentence, one layer, one head."""
    return ItWeights(
        tuple("abcdefgh"[: len(values)]), torch.tensor([[values]]), it, referent, second
    )


def answer_with(monkeypatch, rows):
    monkeypatch.setattr(room, "it_weights", lambda *arguments: rows)


@pytest.mark.parametrize("kind", ["bpe", "character"])
def test_words_of_the_corpus_are_found_whatever_the_sub_words(kind):
    tokeniser = Tokeniser.train([sentence.source for sentence in VALID], 400, kind)
    model = small_model()
    model = type(model)(replace(model.config, vocab_size=tokeniser.vocab_size)).eval()
    sentences = [*ARTICLE_SENTENCES, *make_split("test", 150), *make_split("valid", 50)]
    for sentence, weights in zip(sentences, it_weights(model, tokeniser, sentences), strict=True):
        assert weights.words[weights.it].lower() == "it"
        assert weights.words[weights.referent].lower() == sentence.referent
        assert weights.words[weights.other].lower() == sentence.other
        assert weights.words[-1] == "<end>"
        assert weights.weights.shape == (2, 2, len(weights.words))


@pytest.mark.parametrize("budget", [2048, 1])
def test_the_row_of_it_is_the_merged_encoder_map_of_the_sentence(budget):
    model = small_model(encoder_layers=3, decoder_layers=1)
    for sentence, weights in zip(TEST, it_weights(model, TOKENISER, TEST, budget), strict=True):
        maps = look(model, TOKENISER, sentence.source, []).merged()
        assert weights.words == maps.source_words
        torch.testing.assert_close(
            weights.weights, maps.encoder[:, :, weights.it], rtol=1e-5, atol=1e-6
        )


def test_a_word_that_is_not_where_the_sentence_says_is_refused():
    wrong = replace(TEST[0], source="No words but dots ... ... ... ... ... ...", it_index=6)
    with pytest.raises(DataError, match="word 6 of"):
        it_weights(small_model(), TOKENISER, [wrong])


def test_shares_are_counted_by_hand(monkeypatch):
    answer_with(
        monkeypatch,
        [
            row([0.4, 0.1, 0.3, 0.2]),  # the referent beats all: agrees, prefers
            row([0.3, 0.1, 0.2, 0.4]),  # a full stop beats it: prefers only
            row([0.2, 0.2, 0.6, 0.0]),  # a tie with the other noun: neither
            # *it* itself does not count as a rival; this referent stands one word before it
            row([0.1, 0.2, 0.5, 0.1, 0.1], referent=1, second=0),
        ],
    )
    measured = referent_agreement(small_model(), TOKENISER, TEST[:4], (0, 0))
    assert measured == Agreement(
        agreement=0.5,
        preference=0.75,
        count=4,
        chance=(1 / 3 + 1 / 3 + 1 / 3 + 1 / 4) / 4,
        offset=-2,
        by_offset=0.75,
    )


def test_the_head_that_was_planted_is_chosen(monkeypatch):
    rows = []
    for place in range(6):
        weights = torch.full((2, 3, 4), 0.25)
        weights[1, 2] = (
            torch.tensor([0.7, 0.1, 0.1, 0.1]) if place else torch.tensor([0.1, 0.7, 0.1, 0.1])
        )
        weights[0, 1] = (
            torch.tensor([0.1, 0.7, 0.1, 0.1]) if place else torch.tensor([0.7, 0.1, 0.1, 0.1])
        )
        rows.append(ItWeights(("a", "b", "it", "<end>"), weights, 2, 0, 1))
    answer_with(monkeypatch, rows)
    assert choose_head(small_model(), TOKENISER, VALID) == HeadChoice(
        layer=1, head=2, agreement=5 / 6
    )


def test_agreement_on_the_sentences_of_the_choice_is_that_of_the_choice():
    model = small_model(heads=4)
    choice = choose_head(model, TOKENISER, VALID)
    assert referent_agreement(model, TOKENISER, VALID, choice).agreement == choice.agreement
    every = []
    for layer in range(2):
        for head in range(4):
            every.append(referent_agreement(model, TOKENISER, VALID, (layer, head)).agreement)
    assert choice.agreement == max(every)
    assert every.index(max(every)) == 4 * choice.layer + choice.head


SIXTY = make_split("test", 60)


def nouns_in(line):
    """The nouns of an English line in their order."""
    return [
        NOUN_BY_ENGLISH[word]
        for word in re.findall(r"[a-z-]+", line.lower())
        if word in NOUN_BY_ENGLISH
    ]


def perfect(lines):
    """Reads the truth off the nouns' classes: the pronoun follows the noun that the drawback fits."""
    senses = {sentence.source: sentence.derivation.referent.sense for sentence in SIXTY}
    originals = lines[: len(SIXTY)]
    answers = []
    for place, line in enumerate(lines):
        sense = senses[originals[place % len(SIXTY)]]
        meant = next(noun for noun in nouns_in(line) if noun.sense == sense)
        answers.append(f"weil {PRONOUN_OF_GENDER[meant.gender]} müde war")
    return answers


def test_a_translator_that_knows_the_referent_follows_always_and_one_answer_for_all_never():
    assert swap_check(perfect, SIXTY) == SwapCheck(1.0, 1.0, 1.0, 60)
    share = sum(sentence.pronoun == "es" for sentence in SIXTY) / 60
    assert swap_check(lambda lines: ["weil es müde war"] * len(lines), SIXTY) == SwapCheck(
        share, 0.0, share, 60
    )


def test_shares_are_counted_over_all_sentences_by_hand():
    sentences = SIXTY[:3]

    def translate(lines):
        assert len(lines) == 9
        right = [f"weil {sentence.pronoun} war" for sentence in sentences]
        wrong = "weil nichts war"
        follows = [f"weil {third(sentence)} war" for sentence in sentences]
        return [
            right[0],
            right[1],
            wrong,
            follows[0],
            wrong,
            follows[2],
            right[0],
            right[1],
            right[2],
        ]

    assert swap_check(translate, sentences) == SwapCheck(2 / 3, 1 / 3, 2 / 3, 3)


def third(sentence):
    """The pronoun of the gender that neither noun has."""
    derivation = sentence.derivation
    unused = set(PRONOUNS)
    unused.discard(PRONOUN_OF_GENDER[derivation.subject.gender])
    unused.discard(PRONOUN_OF_GENDER[derivation.object.gender])
    (pronoun,) = unused
    return pronoun


def test_each_swap_changes_one_noun_to_the_third_gender_and_nothing_else():
    seen = []
    swap_check(lambda lines: seen.extend(lines) or [""] * len(lines), SIXTY)
    for place, sentence in enumerate(SIXTY):
        referent, second = sentence.derivation.referent, sentence.derivation.other
        for block, changed in ((1, referent), (2, second)):
            line = seen[block * 60 + place]
            old = sentence.source.lower().split()
            new = line.lower().split()
            assert [
                index for index, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]
            ] == [sentence.referent_index if changed is referent else sentence.other_index]
            fresh = next(noun for noun in nouns_in(line) if noun not in (referent, second))
            assert fresh.sense == changed.sense
            assert PRONOUN_OF_GENDER[fresh.gender] == third(sentence)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        *(
            (
                lambda split=split: choose_head(
                    small_model(), TOKENISER, [*VALID, *make_split(split, 2)]
                ),
                "2 of 8 sentences are not of the validation split",
            )
            for split in ("test", "train")
        ),
        (lambda: choose_head(small_model(), TOKENISER, []), "0 sentences"),
        (lambda: referent_agreement(small_model(), TOKENISER, [], (0, 0)), "0 sentences"),
        *(
            (
                lambda head=head: referent_agreement(small_model(), TOKENISER, TEST, head),
                "layers 0 to 1 and heads 0 to 1",
            )
            for head in ((2, 0), (0, 2), (-1, 0))
        ),
        (lambda: swap_check(lambda lines: lines, []), "0 sentences"),
        (lambda: swap_check(lambda lines: lines[1:], SIXTY[:1]), "2 translations for 3 lines"),
    ],
)
def test_what_cannot_be_counted_is_refused(call, says):
    with pytest.raises(ArgumentError, match=says):
        call()
