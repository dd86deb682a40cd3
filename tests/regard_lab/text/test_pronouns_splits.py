"""Splits: a pair of nouns lives in one of them, positions point at the right words, and nothing cheap predicts."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable

import pytest

from regard.errors import ArgumentError
from regard_lab.text.pronouns import (
    ARTICLE_SENTENCES,
    DRAWBACKS,
    LARGEST_COUNT,
    NOUN_BY_ENGLISH,
    NOUNS,
    SPLITS,
    TIMES,
    WEIGHTS,
    PronounSentence,
    Weights,
    make_contrast_pairs,
    make_split,
    split_of_pair,
    write,
)

TRAIN = make_split("train", 12_000)
VALID = make_split("valid", 2_000)
TEST = make_split("test", 4_000)
CONTRAST = make_contrast_pairs(1_000)
EVERYTHING = [*TRAIN, *VALID, *TEST, *(sentence for pair in CONTRAST for sentence in pair), *ARTICLE_SENTENCES]


def noun_pairs(sentences: list[PronounSentence]) -> set[frozenset[str]]:
    return {frozenset((sentence.referent, sentence.other)) for sentence in sentences}


def bare(word: str) -> str:
    return word.strip(".,").lower()


def test_no_pair_of_nouns_occurs_in_two_splits():
    train, valid, test = noun_pairs(TRAIN), noun_pairs(VALID), noun_pairs(TEST)
    assert train.isdisjoint(valid)
    assert train.isdisjoint(test)
    assert valid.isdisjoint(test)


def test_contrast_pairs_use_test_pairs_of_nouns_only():
    contrast = noun_pairs([sentence for pair in CONTRAST for sentence in pair])
    assert {split_of_pair(*(NOUN_BY_ENGLISH[noun] for noun in pair)) for pair in contrast} == {"test"}


def test_the_splits_hold_about_90_4_and_6_percent_of_all_pairs():
    pairs = [(first, second) for first in NOUNS for second in NOUNS if first.english < second.english]
    shares = Counter(split_of_pair(first, second) for first, second in pairs)
    assert shares["train"] / len(pairs) == pytest.approx(0.90, abs=0.01)
    assert shares["valid"] / len(pairs) == pytest.approx(0.04, abs=0.01)
    assert shares["test"] / len(pairs) == pytest.approx(0.06, abs=0.01)


def test_every_noun_and_every_drawback_occurs_in_training():
    assert {sentence.referent for sentence in TRAIN} == {noun.english for noun in NOUNS}
    assert {sentence.other for sentence in TRAIN} == {noun.english for noun in NOUNS}
    assert {sentence.derivation.drawback for sentence in TRAIN} == set(DRAWBACKS)


@pytest.mark.parametrize("sentences", [TRAIN, VALID, TEST], ids=SPLITS)
def test_no_sentence_occurs_twice(sentences):
    assert len({sentence.source for sentence in sentences}) == len(sentences)


def test_one_source_has_one_translation():
    targets = defaultdict(set)
    for sentence in EVERYTHING:
        targets[sentence.source].add(sentence.target)
    assert {len(found) for found in targets.values()} == {1}


@pytest.mark.parametrize("sentences", [VALID, TEST], ids=["valid", "test"])
def test_outside_training_the_two_nouns_always_differ_in_gender(sentences):
    assert all(sentence.derivation.referent.gender != sentence.derivation.other.gender for sentence in sentences)


def test_in_training_few_sentences_share_a_gender():
    same = sum(s.derivation.referent.gender == s.derivation.other.gender for s in TRAIN)
    assert same / len(TRAIN) == pytest.approx(WEIGHTS.same_gender, abs=0.02)


def test_the_drawback_can_be_said_of_exactly_one_of_the_two_nouns():
    for sentence in EVERYTHING:
        drawback = sentence.derivation.drawback
        could_be_said_of = (drawback.sense, *drawback.also)
        assert NOUN_BY_ENGLISH[sentence.referent].sense in could_be_said_of, sentence.source
        assert NOUN_BY_ENGLISH[sentence.other].sense not in could_be_said_of, sentence.source


def test_the_indices_point_at_the_right_words():
    for sentence in EVERYTHING:
        words, german = sentence.source.split(), sentence.target.split()
        assert bare(words[sentence.it_index]) == "it"
        assert bare(words[sentence.referent_index]) == sentence.referent
        assert bare(words[sentence.other_index]) == sentence.other
        assert german[sentence.target_pronoun_index] == sentence.pronoun


def test_it_both_nouns_and_the_pronoun_occur_once_each():
    for sentence in EVERYTHING:
        words = Counter(bare(word) for word in sentence.source.split())
        assert [words["it"], words[sentence.referent], words[sentence.other]] == [1, 1, 1], sentence.source
        german = Counter(bare(word) for word in sentence.target.split())
        assert german["es"] + german["er"] + german["sie"] == german[sentence.pronoun] == 1, sentence.target


def test_a_span_of_time_goes_with_negated_clauses_only():
    spans = [s for s in EVERYTHING if s.derivation.time in [time for time in TIMES if time.is_span]]
    assert spans
    assert all({"nicht", "kein", "keine"} & set(map(bare, sentence.target.split())) for sentence in spans)


def test_too_never_follows_although():
    conceded = [s.source for s in EVERYTHING if "although" in s.source.lower()]
    assert conceded
    assert not [source for source in conceded if " too " in source]


def test_too_and_very_go_with_gradable_drawbacks_and_still_with_the_others():
    for sentence in EVERYTHING:
        derivation = sentence.derivation
        allowed = ("", "too", "very") if derivation.drawback.gradable else ("", "still")
        assert derivation.degree in allowed, sentence.source


def test_contrast_pairs_differ_in_one_word_and_the_pronoun_changes():
    for first, second in CONTRAST:
        changed = [
            (before, after)
            for before, after in zip(first.source.split(), second.source.split(), strict=True)
            if before != after
        ]
        drawbacks = (first.derivation.drawback.english, second.derivation.drawback.english)
        assert [(bare(before), bare(after)) for before, after in changed] == [drawbacks]
        assert first.pronoun != second.pronoun
        assert (first.referent, first.other) == (second.other, second.referent)


def test_contrast_pairs_never_repeat_a_sentence():
    sources = [sentence.source for pair in CONTRAST for sentence in pair]
    assert len(set(sources)) == len(sources)


def test_the_articles_sentences_are_translated_word_for_word():
    translations = {sentence.source: sentence.target for sentence in ARTICLE_SENTENCES}
    straight = {
        "The animal didn't cross the street because it was too tired.": (
            "Das Tier überquerte die Straße nicht, weil es zu müde war."
        ),
        "The animal didn't cross the street because it was too wide.": (
            "Das Tier überquerte die Straße nicht, weil sie zu breit war."
        ),
        "The animal didn't cross the street because it was congested.": (
            "Das Tier überquerte die Straße nicht, weil sie verstopft war."
        ),
    }
    typographic = {source.replace("'", "’"): target for source, target in straight.items()}
    assert translations == straight | typographic


def test_the_articles_nouns_are_never_trained_on_together():
    assert split_of_pair(NOUN_BY_ENGLISH["animal"], NOUN_BY_ENGLISH["street"]) == "test"
    assert frozenset(("animal", "street")) not in noun_pairs(TRAIN) | noun_pairs(VALID)


def share_guessed_by(clue: Callable[[PronounSentence], Hashable]) -> float:
    """The best pronoun accuracy on TEST of any rule that sees the clue alone."""
    pronouns: defaultdict[Hashable, Counter[str]] = defaultdict(Counter)
    for sentence in TEST:
        pronouns[clue(sentence)][sentence.pronoun] += 1
    return sum(max(counts.values()) for counts in pronouns.values()) / len(TEST)


@pytest.mark.parametrize(
    "clue",
    [
        lambda s: s.referent_index < s.other_index,
        lambda s: s.derivation.subject.gender,
        lambda s: s.derivation.object.gender,
        lambda s: (s.derivation.subject.gender, s.derivation.object.gender),
        lambda s: (s.frame, s.derivation.subject.gender, s.derivation.object.gender),
        lambda s: s.derivation.drawback,
        lambda s: (s.derivation.link, s.derivation.link_first, s.derivation.subject_has_no),
    ],
    ids=["order", "first gender", "second gender", "both genders", "frame and genders", "drawback", "link"],
)
def test_no_cheap_clue_predicts_the_pronoun(clue):
    assert share_guessed_by(clue) < 0.65


def test_the_clue_that_is_no_shortcut_predicts_the_pronoun_always():
    assert share_guessed_by(lambda s: s.derivation.referent.gender) == 1.0


@pytest.mark.parametrize("sentences", [TRAIN, VALID, TEST], ids=SPLITS)
def test_the_referent_is_the_subject_about_half_the_time(sentences):
    share = sum(sentence.derivation.refers_to_subject for sentence in sentences) / len(sentences)
    assert 0.4 < share < 0.6


@pytest.mark.parametrize("sentences", [TRAIN, VALID, TEST], ids=SPLITS)
def test_the_three_pronouns_are_about_equally_frequent(sentences):
    counts = Counter(sentence.pronoun for sentence in sentences)
    assert all(count / len(sentences) == pytest.approx(1 / 3, abs=0.03) for count in counts.values())
    assert len(counts) == 3


def test_sentences_stay_short():
    lengths = [len(sentence.source.split()) for sentence in TRAIN]
    assert 11 <= sum(lengths) / len(lengths) <= 14
    assert max(lengths) <= 21


def test_every_noun_is_met_often_enough_to_be_learned():
    met = Counter(noun for sentence in TRAIN for noun in (sentence.referent, sentence.other))
    mean = 2 * len(TRAIN) / len(NOUNS)
    assert min(met.values()) > mean / 2
    assert max(met.values()) < mean * 2


def test_the_training_split_is_the_same_on_every_machine():
    lines = "\n".join(f"{sentence.source}\t{sentence.target}" for sentence in make_split("train", 1000))
    assert hashlib.sha256(lines.encode()).hexdigest() == (
        "407edbe43cdd3e04cc902882b41e512d055dee637404517e3b42e6b0d42911ce"
    )


def test_a_longer_split_begins_with_the_shorter_one():
    assert make_split("valid", 300) == VALID[:300]


def test_another_seed_gives_other_sentences():
    assert not {s.source for s in make_split("test", 100, seed=1)} & {s.source for s in TEST[:100]}


def test_weights_decide_how_often_a_choice_is_made():
    plain = Weights(same_gender=0, attribute=0, time=0, link_first=0, no_subject=0, contracted=0)
    for sentence in make_split("train", 500, weights=plain):
        assert sentence == write(sentence.derivation)
        words = sentence.source.split()
        assert words[0] == "The"
        assert not any("'" in word for word in words)
        assert sentence.derivation.referent.gender != sentence.derivation.other.gender


def test_an_empty_split_is_no_error():
    assert make_split("valid", 0) == []
    assert make_contrast_pairs(0) == []


def test_impossible_requests_are_refused_with_the_numbers():
    with pytest.raises(ArgumentError, match=f"20001 sentences of 'test'.*0 to {LARGEST_COUNT['test']}"):
        make_split("test", 20_001)
    with pytest.raises(ArgumentError, match="-1 sentences of 'train'"):
        make_split("train", -1)
    with pytest.raises(ArgumentError, match=r"no split 'dev'.*train, valid, test"):
        make_split("dev", 1)  # ty: ignore[invalid-argument-type]
    with pytest.raises(ArgumentError, match="1000000 contrast pairs"):
        make_contrast_pairs(1_000_000)
    with pytest.raises(ArgumentError, match=r"'attribute' is 1\.5"):
        Weights(attribute=1.5)
