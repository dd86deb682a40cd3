"""Swapping the referent: another noun of its class, a third gender, and right German again."""

from regard_lab.text.pronouns import ARTICLE_SENTENCES, NOUN_BY_ENGLISH, make_split, swap_referent

TEST = make_split("test", 500)


def bare(word: str) -> str:
    return word.strip(".,").lower()


def test_swapping_the_referent_changes_its_noun_and_what_agrees_with_it():
    for sentence in [*TEST, *ARTICLE_SENTENCES]:
        swapped = swap_referent(sentence)
        old, new = NOUN_BY_ENGLISH[sentence.referent], NOUN_BY_ENGLISH[swapped.referent]
        assert old.sense == new.sense
        assert swapped.other == sentence.other
        assert len({old.gender, new.gender, NOUN_BY_ENGLISH[sentence.other].gender}) == 3
        changed = [
            (bare(before), bare(after))
            for before, after in zip(sentence.source.split(), swapped.source.split(), strict=True)
            if before != after
        ]
        assert changed == [(old.english, new.english)]


def test_a_swapped_article_sentence_is_right_german():
    tired, wide, *_ = ARTICLE_SENTENCES
    for sentence, seed in ((tired, 0), (tired, 1), (wide, 0)):
        swapped = swap_referent(sentence, seed)
        noun = NOUN_BY_ENGLISH[swapped.referent]
        expected = {
            "tired": f"Der {noun.german} überquerte die Straße nicht, weil er zu müde war.",
            "wide": f"Das Tier überquerte den {noun.oblique} nicht, weil er zu breit war.",
        }
        assert swapped.target == expected[sentence.derivation.drawback.english]


def test_swapping_is_a_function_of_sentence_and_seed():
    assert swap_referent(TEST[0], seed=3) == swap_referent(TEST[0], seed=3)
    assert len({swap_referent(TEST[0], seed).referent for seed in range(20)}) > 3
