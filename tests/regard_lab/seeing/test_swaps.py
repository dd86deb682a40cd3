import re

import pytest

from regard.errors import ArgumentError
from regard_lab.seeing import SwapCheck, swap_check
from regard_lab.text.pronouns import NOUN_BY_ENGLISH, PRONOUNS, make_split
from regard_lab.text.pronouns.sentences import PRONOUN_OF_GENDER

SENTENCES = make_split("test", 60)


def nouns_in(line):
    """The nouns of an English line in their order."""
    return [NOUN_BY_ENGLISH[word] for word in re.findall(r"[a-z-]+", line.lower()) if word in NOUN_BY_ENGLISH]


def pronoun_for(which):
    """A translator that always takes the first (0) or last (1) noun's gender."""
    return lambda lines: [f"weil {PRONOUN_OF_GENDER[nouns_in(line)[-which].gender]} müde war" for line in lines]


def perfect(lines):
    """Reads the truth off the nouns' classes: the pronoun follows the noun that the drawback fits."""
    by_words = {sentence.source: sentence for sentence in SENTENCES}
    senses = {source: sentence.derivation.referent.sense for source, sentence in by_words.items()}
    originals = lines[: len(SENTENCES)]
    answers = []
    for place, line in enumerate(lines):
        sense = senses[originals[place % len(SENTENCES)]]
        meant = next(noun for noun in nouns_in(line) if noun.sense == sense)
        answers.append(f"weil {PRONOUN_OF_GENDER[meant.gender]} müde war")
    return answers


def test_a_translator_that_knows_the_referent_follows_always_and_keeps_always():
    assert swap_check(perfect, SENTENCES) == SwapCheck(1.0, 1.0, 1.0, 60)


def test_one_answer_for_all_never_follows():
    found = swap_check(lambda lines: ["weil es müde war"] * len(lines), SENTENCES)
    assert found.followed == 0
    assert found.right == found.kept == sum(sentence.pronoun == "es" for sentence in SENTENCES) / 60


def test_a_translator_of_the_last_noun_keeps_where_it_is_right_by_luck_only():
    """It follows the noun it clings to, so both shares are the share of sentences that mean this noun."""
    found = swap_check(pronoun_for(1), SENTENCES)
    last = sum(nouns_in(sentence.source)[-1] is sentence.derivation.referent for sentence in SENTENCES) / 60
    assert 0 < last < 1
    assert found == SwapCheck(last, last, last, 60)


def test_shares_are_counted_over_all_sentences_by_hand():
    one, two, three = SENTENCES[:3]

    def translate(lines):
        assert len(lines) == 9
        right = [f"weil {pronoun} war" for pronoun in (one.pronoun, two.pronoun, three.pronoun)]
        wrong = "weil nichts war"
        follows = [f"weil {third(sentence)} war" for sentence in (one, two, three)]
        return [right[0], right[1], wrong, follows[0], wrong, follows[2], right[0], right[1], right[2]]

    assert swap_check(translate, [one, two, three]) == SwapCheck(2 / 3, 1 / 3, 2 / 3, 3)


def third(sentence):
    """The pronoun of the gender that neither noun has."""
    used = {PRONOUN_OF_GENDER[noun.gender] for noun in (sentence.derivation.subject, sentence.derivation.object)}
    return next(pronoun for pronoun in PRONOUNS if pronoun not in used)


def test_each_swap_changes_one_noun_to_the_third_gender_and_nothing_else():
    seen = []
    swap_check(lambda lines: seen.extend(lines) or [""] * len(lines), SENTENCES)
    for place, sentence in enumerate(SENTENCES):
        referent, other = sentence.derivation.referent, sentence.derivation.other
        for block, changed in ((1, referent), (2, other)):
            line = seen[block * 60 + place]
            old, new = sentence.source.lower().split(), line.lower().split()
            assert [index for index, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]] == [
                sentence.referent_index if changed is referent else sentence.other_index
            ]
            fresh = next(noun for noun in nouns_in(line) if noun not in (referent, other))
            assert fresh.sense == changed.sense
            assert PRONOUN_OF_GENDER[fresh.gender] == third(sentence)


def test_the_seed_decides_which_nouns_come_in():
    def lines_of(seed):
        seen = []
        swap_check(lambda lines: seen.extend(lines) or [""] * len(lines), SENTENCES[:10], seed)
        return seen

    assert lines_of(0) == lines_of(0)
    assert lines_of(0)[10:20] != lines_of(1)[10:20]
    assert lines_of(0)[20:] != lines_of(1)[20:]


def test_nothing_to_check_and_lost_lines_are_refused():
    with pytest.raises(ArgumentError, match="0 sentences"):
        swap_check(lambda lines: lines, [])
    with pytest.raises(ArgumentError, match="2 translations for 3 lines"):
        swap_check(lambda lines: lines[1:], SENTENCES[:1])
