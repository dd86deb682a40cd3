"""The embedded corpus: nothing but the referent gives the pronoun away, the German is right, splits share no nouns."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from itertools import chain, combinations, product, starmap
from pathlib import Path

import pytest

from regard.errors import ArgumentError
from regard_lab.text.pronouns import (
    SPLITS,
    WEIGHTS,
    ChoiceProbabilities,
    make_contrast_pairs,
    make_split,
    make_twins,
    swap_referent,
)
from regard_lab.text.pronouns.frames import FRAMES, LINKS, TIMES
from regard_lab.text.pronouns.lexicon import (
    ATTRIBUTES,
    DRAWBACKS,
    GENDERS,
    NOUN_BY_ENGLISH,
    NOUNS,
    SENSES,
)
from regard_lab.text.pronouns.measures import (
    contrast_accuracy,
    majority_baseline,
    pronoun_accuracy,
    pronoun_of,
)
from regard_lab.text.pronouns.sentences import ARTICLE_SENTENCES, Derivation, PronounSentence, write
from regard_lab.text.pronouns.splits import LARGEST_COUNT, split_of_pair

# Lexicon


def test_the_lexicon_has_at_least_300_nouns_of_one_unique_word_in_both_languages():
    assert len(NOUNS) >= 300
    english = {noun.english for noun in NOUNS}
    german = {noun.german for noun in NOUNS}
    assert len(english) == len(german) == len(NOUNS)
    for noun in NOUNS:
        assert len(noun.english.split()) == len(noun.german.split()) == 1
        assert noun.english.islower()
        assert noun.german[0].isupper()


def test_every_gender_holds_a_third_of_every_class():
    counts = Counter((noun.sense, noun.gender) for noun in NOUNS)
    for sense in SENSES:
        of_genders = {counts[sense, gender] for gender in GENDERS}
        assert len(of_genders) == 1, sense


# German agreement, sentence by sentence: every frame with nouns of every gender, read and corrected by hand

# Each line: the choices, the English, the German. The choices read
# subject / frame / object / link / degree and drawback [/ "no", "short" for n't, "link first", a time]
TABLE = Path(__file__).with_name("test_pronouns_goldens.tsv").read_text(encoding="utf-8")
GOLDENS = [line.split("\t") for line in TABLE.splitlines()]


def derive(choices: str) -> Derivation:
    """Read the choices of a golden sentence."""
    subject, frame, object_, link, quality, *extras = choices.split(" / ")
    wanted = set(extras[0].split(", ")) if extras else set()
    times = {time.english: time for time in TIMES}
    attributes = {attribute.english: attribute for attribute in ATTRIBUTES}
    subject_attribute, _, subject_noun = subject.rpartition(" ")
    object_attribute, _, object_noun = object_.rpartition(" ")
    degree, _, drawback_word = quality.rpartition(" ")
    drawback = next(drawback for drawback in DRAWBACKS if drawback.english == drawback_word)
    return Derivation(
        frame=next(known for known in FRAMES if known.name == frame),
        subject=NOUN_BY_ENGLISH[subject_noun],
        object=NOUN_BY_ENGLISH[object_noun],
        refers_to_subject=NOUN_BY_ENGLISH[subject_noun].sense == drawback.sense,
        drawback=drawback,
        degree=degree,  # ty: ignore[invalid-argument-type]
        link=next(known for known in LINKS if known.english == link),
        link_first="link first" in wanted,
        time=next((times[word] for word in wanted if word in times), None),
        subject_attribute=attributes.get(subject_attribute),
        object_attribute=attributes.get(object_attribute),
        subject_has_no="no" in wanted,
        apostrophe="'" if "short" in wanted else "",
    )


def test_every_golden_sentence_is_written_exactly():
    for choices, source, target in GOLDENS:
        sentence = write(derive(choices))
        assert (sentence.source, sentence.target) == (source, target), choices


def test_the_goldens_show_every_frame_with_objects_and_subjects_of_every_gender():
    of_objects = set()
    of_subjects = set()
    for choices, *_ in GOLDENS:
        derivation = derive(choices)
        of_objects.add((derivation.frame.name, derivation.object.gender))
        of_subjects.add((derivation.frame.name, derivation.subject.gender))
    frames = [frame.name for frame in FRAMES]
    assert of_objects == of_subjects == set(product(frames, GENDERS))


# Splits: a pair of nouns lives in one of them, positions point at the right words, and nothing cheap predicts


# Made when a test first asks for them, and not by every process that collects this file.
@cache
def split(name: str) -> list[PronounSentence]:
    return make_split(name, {"train": 8_000, "valid": 2_000, "test": 4_000}[name])


@cache
def contrast() -> list[tuple[PronounSentence, PronounSentence]]:
    return make_contrast_pairs(400)


def sentences_of_contrast() -> list[PronounSentence]:
    return list(chain.from_iterable(contrast()))


def everything() -> list[PronounSentence]:
    splits = chain.from_iterable(map(split, SPLITS))
    return [*splits, *sentences_of_contrast(), *ARTICLE_SENTENCES]


def sources_of(sentences: Iterable[PronounSentence]) -> set[str]:
    return {sentence.source for sentence in sentences}


def bare(word: str) -> str:
    return word.strip(".,").lower()


def changed_words(before: PronounSentence, after: PronounSentence) -> list[tuple[str, str]]:
    changed = []
    for old, new in zip(before.source.split(), after.source.split(), strict=True):
        if old != new:
            changed.append((bare(old), bare(new)))
    return changed


def test_every_pair_of_nouns_is_one_of_its_split():
    for name in SPLITS:
        assert_pairs_are_of(split(name), name)
    assert_pairs_are_of(sentences_of_contrast(), "test")


def assert_pairs_are_of(sentences: list[PronounSentence], name: str) -> None:
    """Every pair of nouns, in either order, is one of this split."""
    pairs = {(sentence.derivation.subject, sentence.derivation.object) for sentence in sentences}
    for subject, direct_object in pairs:
        assert split_of_pair(subject, direct_object) == name
        assert split_of_pair(direct_object, subject) == name


def test_the_splits_hold_about_90_4_and_6_percent_of_all_pairs():
    counts = Counter(starmap(split_of_pair, combinations(NOUNS, 2)))
    for split, share in (("train", 0.90), ("valid", 0.04), ("test", 0.06)):
        assert counts[split] / counts.total() == pytest.approx(share, abs=0.01)


def test_every_noun_and_every_drawback_occurs_in_training():
    referents = set()
    others = set()
    drawbacks = set()
    for sentence in split("train"):
        referents.add(sentence.referent)
        others.add(sentence.other)
        drawbacks.add(sentence.derivation.drawback)
    assert referents == others == {noun.english for noun in NOUNS}
    assert drawbacks == set(DRAWBACKS)


@pytest.mark.parametrize("name", SPLITS)
def test_no_sentence_occurs_twice_and_roles_and_pronouns_are_balanced(name):
    sentences = split(name)
    assert len(sources_of(sentences)) == len(sentences)
    to_subject = sum(sentence.derivation.refers_to_subject for sentence in sentences)
    assert 0.4 < to_subject / len(sentences) < 0.6
    counts = Counter(sentence.pronoun for sentence in sentences)
    assert len(counts) == 3
    for count in counts.values():
        assert count / len(sentences) == pytest.approx(1 / 3, abs=0.03)


def test_one_source_has_one_translation():
    targets = defaultdict(set)
    for sentence in everything():
        targets[sentence.source].add(sentence.target)
    assert set(map(len, targets.values())) == {1}


def test_the_two_nouns_share_a_gender_in_few_sentences_of_training_alone():
    shares = []
    for name in SPLITS:
        sentences = split(name)
        shares.append(sum(map(share_a_gender, sentences)) / len(sentences))
    assert shares == [pytest.approx(WEIGHTS.same_gender, abs=0.02), 0, 0]


def share_a_gender(sentence: PronounSentence) -> bool:
    return sentence.derivation.referent.gender == sentence.derivation.other.gender


def test_the_drawback_can_be_said_of_exactly_one_of_the_two_nouns():
    for sentence in everything():
        drawback = sentence.derivation.drawback
        could_be_said_of = (drawback.sense, *drawback.also)
        assert NOUN_BY_ENGLISH[sentence.referent].sense in could_be_said_of, sentence.source
        assert NOUN_BY_ENGLISH[sentence.other].sense not in could_be_said_of, sentence.source


def test_the_indices_point_at_it_both_nouns_and_the_pronoun_which_occur_once_each():
    for sentence in everything():
        words = [*map(bare, sentence.source.split())]
        german = [*map(bare, sentence.target.split())]
        places = {
            "it": sentence.it_index,
            sentence.referent: sentence.referent_index,
            sentence.other: sentence.other_index,
        }
        for word, place in places.items():
            assert (words[place], words.count(word)) == (word, 1), sentence.source
        assert sentence.target.split()[sentence.target_pronoun_index] == sentence.pronoun
        pronouns = [word for word in german if word in ("es", "er", "sie")]
        assert pronouns == [sentence.pronoun], sentence.target


def test_contrast_pairs_differ_in_one_word_and_the_pronoun_changes():
    assert len(sources_of(sentences_of_contrast())) == 2 * len(contrast())
    for first, second in contrast():
        drawbacks = (first.derivation.drawback.english, second.derivation.drawback.english)
        assert changed_words(first, second) == [drawbacks]
        assert first.pronoun != second.pronoun
        assert (first.referent, first.other) == (second.other, second.referent)


def test_the_articles_sentences_are_translated_word_for_word_and_no_training_has_their_nouns():
    endings = {"too tired": "es zu müde", "too wide": "sie zu breit", "congested": "sie verstopft"}
    expected = {}
    for mark, (english, german) in product("'’", endings.items()):
        source = f"The animal didn{mark}t cross the street because it was {english}."
        expected[source] = f"Das Tier überquerte die Straße nicht, weil {german} war."
    assert {sentence.source: sentence.target for sentence in ARTICLE_SENTENCES} == expected
    assert split_of_pair(NOUN_BY_ENGLISH["animal"], NOUN_BY_ENGLISH["street"]) == "test"


def share_guessed_by(clue: Callable[[PronounSentence], Hashable]) -> float:
    """The best pronoun accuracy on the test split of any rule that sees the clue alone."""
    pronouns: defaultdict[Hashable, Counter[str]] = defaultdict(Counter)
    for sentence in split("test"):
        pronouns[clue(sentence)][sentence.pronoun] += 1
    return sum(max(counts.values()) for counts in pronouns.values()) / len(split("test"))


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
    ids=[
        "order",
        "first gender",
        "second gender",
        "both genders",
        "frame and genders",
        "drawback",
        "link",
    ],
)
def test_no_cheap_clue_predicts_the_pronoun(clue):
    assert share_guessed_by(clue) < 0.65
    assert share_guessed_by(lambda s: s.derivation.referent.gender) == 1.0


def test_the_training_split_is_the_same_on_every_machine():
    sentences = make_split("train", 1000)
    lines = [f"{sentence.source}\t{sentence.target}" for sentence in sentences]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == "407edbe43cdd3e04cc902882b41e512d055dee637404517e3b42e6b0d42911ce"


def test_a_longer_split_begins_with_the_shorter_one_and_another_seed_gives_others():
    assert make_split("valid", 300) == split("valid")[:300]
    assert make_split("valid", 0) == make_contrast_pairs(0) == []
    of_another_seed = sources_of(make_split("test", 100, seed=1))
    assert not of_another_seed & sources_of(split("test")[:100])


def test_weights_decide_how_often_a_choice_is_made():
    plain = ChoiceProbabilities(
        same_gender=0, attribute=0, time=0, link_first=0, no_subject=0, contracted=0
    )
    for sentence in make_split("train", 500, weights=plain):
        assert sentence == write(sentence.derivation)
        assert sentence.source.split()[0] == "The"
        assert "'" not in sentence.source
        assert not share_a_gender(sentence)


def test_impossible_requests_are_refused_with_the_numbers():
    with pytest.raises(
        ArgumentError, match=f"20001 sentences of 'test'.*0 to {LARGEST_COUNT['test']}"
    ):
        make_split("test", 20_001)
    with pytest.raises(ArgumentError, match="-1 sentences of 'train'"):
        make_split("train", -1)
    with pytest.raises(ArgumentError, match="split is 'dev'; there are train, valid, test"):
        make_split("dev", 1)  # ty: ignore[invalid-argument-type]
    with pytest.raises(ArgumentError, match="1000000 contrast pairs"):
        make_contrast_pairs(1_000_000)
    with pytest.raises(ArgumentError, match=r"'attribute' is 1\.5"):
        ChoiceProbabilities(attribute=1.5)


def test_twins_differ_in_the_adjective_and_in_the_referent_and_stay_in_the_training_split():
    groups = make_twins(600)
    twins = [group for group in groups if len(group) == 2]
    assert len(twins) > 0.8 * len(groups)
    for first, second in twins:
        assert len(changed_words(first, second)) == 1
        assert (first.referent, first.other) == (second.other, second.referent)
    sentences = list(chain.from_iterable(groups))
    assert len(sources_of(sentences)) == len(sentences) == 600
    assert_pairs_are_of(sentences, "train")
    assert make_twins(100)[:40] == groups[:40]
    assert make_twins(100, seed=1)[:40] != groups[:40]
    assert make_twins(0) == []


# Swapping the referent: another noun of its class, a third gender, and right German again


def test_swapping_the_referent_changes_its_noun_and_what_agrees_with_it():
    for sentence in [*split("test")[:500], *ARTICLE_SENTENCES]:
        swapped = swap_referent(sentence)
        old = NOUN_BY_ENGLISH[sentence.referent]
        new = NOUN_BY_ENGLISH[swapped.referent]
        assert old.sense == new.sense
        assert swapped.other == sentence.other
        assert len({old.gender, new.gender, NOUN_BY_ENGLISH[sentence.other].gender}) == 3
        assert changed_words(sentence, swapped) == [(old.english, new.english)]


def test_a_swapped_article_sentence_is_right_german():
    tired, wide_sentence, *_ = ARTICLE_SENTENCES
    for sentence, seed in ((tired, 0), (tired, 1), (wide_sentence, 0)):
        swapped = swap_referent(sentence, seed)
        noun = NOUN_BY_ENGLISH[swapped.referent]
        expected = {
            "tired": f"Der {noun.german} überquerte die Straße nicht, weil er zu müde war.",
            "wide": f"Das Tier überquerte den {noun.oblique} nicht, weil er zu breit war.",
        }
        assert swapped.target == expected[sentence.derivation.drawback.english]


# Measures: what counts as the right pronoun in a translator's output, whole or damaged


@pytest.mark.parametrize(
    ("output", "pronoun"),
    [
        ("Das Tier überquerte die Straße nicht, weil es zu müde war.", "es"),
        ("Weil sie zu breit war, überquerte das Tier die Straße nicht.", "sie"),
        ("Der Hund wollte die Straße überqueren, aber er war müde.", "er"),
        ("Obwohl er alt war, hielt der Bus vor dem Haus.", "er"),
        ("das tier überquerte die straße nicht , weil es zu müde war .", "es"),
        ("Das Tier mied das Sofa, DA SIE", "sie"),
        ("Das Tier, weil zu müde es war", "es"),
        ("Es überquerte sie nicht, weil er zu müde war.", "er"),
        ("weil es weil sie", None),
        ("Es sah sie.", None),
        ("Das Tier überquerte die Straße nicht.", None),
        ("weil essen erst siegt", None),
        ("", None),
    ],
)
def test_the_pronoun_of_the_subordinate_clause_is_found(output, pronoun):
    assert pronoun_of(output) == pronoun


def test_accuracy_is_one_for_references_zero_for_silence_and_the_baseline_for_one_pronoun():
    few = split("test")[:300]
    assert pronoun_accuracy(few, [sentence.target for sentence in few]) == 1.0
    assert pronoun_accuracy(few, [""] * 300) == 0.0
    earned = [pronoun_accuracy(few, [f"Weil {word} es sagt"] * 300) for word in ("er", "sie", "es")]
    assert max(earned) == majority_baseline(few) < 0.4


def test_one_answer_for_both_sentences_of_a_contrast_pair_earns_nothing():
    same = []
    exchanged = []
    right = []
    for first, second in contrast():
        same.append((first.target, first.target))
        exchanged.append((second.target, first.target))
        right.append((first.target, second.target))
    assert contrast_accuracy(contrast(), same) == 0.0
    assert contrast_accuracy(contrast(), exchanged) == 0.0
    assert contrast_accuracy(contrast(), right) == 1.0


def test_measures_refuse_outputs_that_do_not_match():
    with pytest.raises(ArgumentError, match="300 sentences came with 1 outputs"):
        pronoun_accuracy(split("test")[:300], [""])
    with pytest.raises(ArgumentError, match="400 sentence pairs came with 0 outputs"):
        contrast_accuracy(contrast(), [])
    for nothing in (
        lambda: majority_baseline([]),
        lambda: pronoun_accuracy([], []),
        lambda: contrast_accuracy([], []),
    ):
        with pytest.raises(ArgumentError, match=r"0 sentence.* to measure"):
            nothing()
