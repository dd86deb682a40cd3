"""The lexicon promises that no word gives the pronoun away and that the drawback names exactly one noun."""

from collections import Counter

import pytest

from regard_lab.text.pronouns import (
    ATTRIBUTES,
    DRAWBACKS,
    FRAMES,
    GENDERS,
    LINKS,
    NOUN_BY_ENGLISH,
    NOUNS,
    SENSES,
    TIMES,
    telling_drawbacks,
)


def test_the_lexicon_has_at_least_300_nouns_with_unique_words():
    assert len(NOUNS) >= 300
    assert len({noun.english for noun in NOUNS}) == len(NOUNS)
    assert len({noun.german for noun in NOUNS}) == len(NOUNS)


def test_every_noun_is_one_word_in_both_languages():
    assert all(len(noun.english.split()) == len(noun.german.split()) == 1 for noun in NOUNS)
    assert all(noun.english.islower() and noun.german[0].isupper() for noun in NOUNS)


@pytest.mark.parametrize("gender", GENDERS)
def test_every_gender_holds_a_third_of_every_class(gender):
    of_gender = Counter(noun.sense for noun in NOUNS if noun.gender == gender)
    everyone = Counter(noun.sense for noun in NOUNS)
    assert {sense: 3 * of_gender[sense] for sense in SENSES} == dict(everyone)


def test_only_the_weak_masculine_nouns_change_outside_the_nominative():
    changing = {noun.german: noun.oblique for noun in NOUNS if noun.oblique != noun.german}
    assert changing == {
        "Bär": "Bären",
        "Löwe": "Löwen",
        "Affe": "Affen",
        "Elefant": "Elefanten",
        "Rabe": "Raben",
    }
    assert {noun.gender for noun in NOUNS if noun.german in changing} == {"masculine"}


@pytest.mark.parametrize(
    ("ending", "gender"),
    [("ung", "feminine"), ("erei", "feminine"), ("maschine", "feminine"), ("hörnchen", "neuter"), ("zeug", "neuter")],
)
def test_german_endings_that_fix_the_gender_agree_with_the_lexicon(ending, gender):
    assert {noun.gender for noun in NOUNS if noun.german.endswith(ending)} == {gender}


def test_no_other_word_of_a_sentence_is_a_noun_of_the_lexicon():
    frames = [words for frame in FRAMES for words in (frame.plain, frame.negated)]
    others = [word.english for words in (DRAWBACKS, ATTRIBUTES, LINKS, TIMES) for word in words]
    spoken = {word for words in frames + others for word in words.split()}
    assert spoken.isdisjoint(NOUN_BY_ENGLISH)


def test_drawbacks_have_unique_words_and_at_least_five_for_every_class():
    assert len({drawback.english for drawback in DRAWBACKS}) == len(DRAWBACKS)
    assert len({drawback.german for drawback in DRAWBACKS}) == len(DRAWBACKS)
    assert min(Counter(drawback.sense for drawback in DRAWBACKS).values()) >= 5
    assert {drawback.sense for drawback in DRAWBACKS} == set(SENSES)


def test_no_drawback_is_one_of_the_neutral_attributes():
    assert {drawback.english for drawback in DRAWBACKS}.isdisjoint(attribute.english for attribute in ATTRIBUTES)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.name)
def test_both_nouns_of_every_frame_can_be_meant_in_at_least_two_ways(frame):
    for first, second in frame.class_pairs:
        assert first != second
        assert len(telling_drawbacks(first, second)) >= 2, (first, second)
        assert len(telling_drawbacks(second, first)) >= 2, (first, second)


def test_telling_drawbacks_can_be_said_of_the_referent_alone():
    for referent in SENSES:
        for other in SENSES:
            for drawback in telling_drawbacks(referent, other):
                assert drawback.sense == referent
                assert other not in drawback.also


def test_there_are_at_least_ten_frames_with_unique_names():
    assert len({frame.name for frame in FRAMES}) == len(FRAMES) >= 10
