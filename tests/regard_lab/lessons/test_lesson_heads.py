import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from teaching import failing, starting, with_few_sentences

from regard.errors import DataError
from regard_lab.lessons import Settings, find_lesson, heads, referent
from regard_lab.lessons.heads import links_of
from regard_lab.seeing import AttentionMaps
from regard_lab.text.pronouns import ARTICLE_SENTENCES, Weights, make_split

SENTENCES = make_split("test", 60, weights=Weights(attribute=0.6))


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    with_few_sentences(monkeypatch)


def words_apart(source):
    """As a tokeniser sees it: punctuation apart, "<end>" last."""
    return source.replace(",", " ,").replace(".", " .").split() + ["<end>"]


def test_the_links_are_those_of_the_grammar():
    for sentence in SENTENCES:
        check_links(sentence)


def check_links(sentence):
    words = words_apart(sentence.source)
    links, made = links_of(sentence, words), sentence.derivation
    pairs = {name: [(word, *others) for word, others in those] for name, those in links.items()}
    ((verb, subject),) = pairs["verb to subject"]
    assert words[subject].lower() == made.subject.english
    between = words[subject + 1 : verb]  # the verb is the first word after its subject that is no helper
    assert all(word in ("did", "not", "was", "didn't", "wasn't") for word in between)
    assert words[verb] not in ("did", "not", "was", "didn't", "wasn't")
    described = [
        noun for noun, told in ((made.subject, made.subject_attribute), (made.object, made.object_attribute)) if told
    ]
    assert [words[noun].lower() for _, noun in pairs["adjective to noun"]] == [noun.english for noun in described]
    assert all(noun == adjective + 1 for adjective, noun in pairs["adjective to noun"])
    ((it, referent),) = pairs["it to referent"]
    assert (words[it].lower(), words[referent].lower()) == ("it", sentence.referent)


def test_words_of_another_sentence_are_refused():
    with pytest.raises(DataError, match=r"'animal' of .* is not among the words"):
        links_of(ARTICLE_SENTENCES[0], ["a", "cat"])


MANY = 40  # enough sentences to decide every claim


def looking(at):
    """Maps of a model of two layers and two heads, the first of which looks at what `at(word, linked)` says."""

    def look_batch(model, tokeniser, sentences):
        grammar = {
            one.source: one
            for split in ("valid", "test")
            for sentences in heads.split_of(split, 0).values()
            for one in sentences
        }
        found = []
        for source, _ in sentences:
            words = words_apart(source)
            weights = torch.full((2, 2, len(words), len(words)), 1 / len(words))
            for pairs in links_of(grammar[source], words).values():
                for word, (other,) in pairs:
                    weights[0, 0, word] = torch.eye(len(words))[at(word, other)]
            found.append(AttentionMaps(tuple(words), ("<end>",), weights, torch.ones(1, 2, 1, 1), weights[:, :, :1]))
        return found

    return look_batch


def test_a_model_that_knows_the_grammar_keeps_every_promise(monkeypatch, run_folder):
    monkeypatch.setattr(heads, "SENTENCES", MANY)
    monkeypatch.setattr(heads, "look_batch", looking(lambda word, other: other))
    taught = find_lesson("heads").teach(Settings(run=run_folder))
    found = taught.numbers["relations"]
    assert {one["chosen_share"] for one in found.values()} == {1.0}
    assert all(one["chosen"] == [0, 0] and one["shares"] == [[1.0, 0.0], [0.0, 0.0]] for one in found.values())
    # What always stands at one place needs no grammar: an adjective before its noun.
    assert starting([claim.sentence for claim in taught.claims if not claim.holds], "For adjective")


def test_a_model_that_looks_beside_it_keeps_none(monkeypatch, run_folder):
    monkeypatch.setattr(heads, "look_batch", looking(lambda word, other: word))
    assert starting(
        failing("heads", run=run_folder), "The chosen head looks from verb", "For verb",
        "The chosen head looks from adjective", "For adjective", "The chosen head looks from *it*", "For *it*",
    )  # fmt: skip


def test_a_head_that_looks_at_a_fixed_offset_is_seen(monkeypatch, run_folder):
    """At the offset that is right most often: more often right than by chance, and without grammar."""
    monkeypatch.setattr(heads, "SENTENCES", MANY)
    monkeypatch.setattr(heads, "look_batch", looking(lambda word, other: word + 1 if other > word else word - 2))
    taught = find_lesson("heads").teach(Settings(run=run_folder))
    assert all(one["chosen_share"] == one["by_offset"] for one in taught.numbers["relations"].values())
    assert starting(
        [claim.sentence for claim in taught.claims if not claim.holds], "For verb", "For adjective", "For *it*"
    )


def test_a_head_is_chosen_on_validation_and_read_off_on_test(monkeypatch, run_folder):
    asked = []
    monkeypatch.setattr(
        heads, "make_split", lambda split, *given, **more: asked.append(split) or make_split(split, *given, **more)
    )
    numbers = find_lesson("heads").teach(Settings(run=run_folder)).numbers
    assert asked == ["valid", "valid", "test", "test"]
    for one in numbers["relations"].values():
        layer, head = one["chosen"]
        assert one["chosen_share"] == one["shares"][layer][head]


def test_the_pronouns_are_those_of_the_lesson_referent(monkeypatch, run_folder):
    """So that both lessons measure one head on the same sentences, and find the same share."""
    monkeypatch.setattr(heads, "SENTENCES", MANY)
    for name in ("CHOOSING", "MEASURED"):
        monkeypatch.setattr(f"regard_lab.lessons.referent.{name}", MANY)
    one = find_lesson("heads").teach(Settings(run=run_folder)).numbers["relations"][heads.PRONOUN]
    other = find_lesson("referent").teach(Settings(run=run_folder)).numbers
    assert one["chosen"] == other["head"]
    assert one["chosen_share"] == other["agreement"]
    assert one["chance"] == other["chance"]


@pytest.mark.parametrize(("share", "shown"), [(0.365, "0.365"), (0.9996, "0.999")])
def test_the_pictures_of_both_lessons_show_a_share_alike(share, shown):
    """With two decimals one share was 0.37 in one picture and 0.36 in the other."""
    relation = {"shares": [[share]], "chance": 0.075, "offset": -2, "by_offset": share}
    of_heads = {"layers": 1, "heads": 1, "relations": dict.fromkeys(heads.RELATIONS, relation)}
    article = {"words": ["cat", "street", "it"], "weights": [0.1, 0.2, 0.7], "referent": 0, "other": 1, "it": 2}
    bars = dict.fromkeys(("agreement", "right", "followed", "kept"), share)
    of_referent = {"articles": [article], "chance": 0.075, **bars}
    cells_and_labels = 2 * len(heads.RELATIONS)
    for lesson, numbers, count in ((heads, of_heads, cells_and_labels), (referent, of_referent, len(bars))):
        lesson.draw(numbers, figure := Figure())
        assert " ".join(text.get_text() for text in figure.findobj(Text)).count(shown) == count
