from dataclasses import replace

import pytest
import torch
from teaching import starting, with_few_sentences

from regard.errors import ArgumentError
from regard_lab.decoding import Translator
from regard_lab.lessons import Settings, find_lesson, referent
from regard_lab.models import RecurrentTranslator
from regard_lab.seeing import it_weights, referents
from regard_lab.text.pronouns import ARTICLE_SENTENCES, make_split, swap_other, swap_referent


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    with_few_sentences(monkeypatch)


def in_german(count=4):
    """Every English sentence that the lesson translates, with what the grammar says in German."""
    sentences = [*ARTICLE_SENTENCES, *make_split("test", count)]
    versions = [*sentences, *map(swap_referent, sentences), *map(swap_other, sentences)]
    return {one.source: one.target for one in versions}


def failing_with(monkeypatch, run, translate):
    monkeypatch.setattr(referent, "_translated", lambda translator, lines: [translate(line) for line in lines])
    taught = find_lesson("referent").teach(Settings(run=run))
    return [claim.sentence for claim in taught.claims if not claim.holds], taught


ENOUGH = 40  # with fewer sentences, nine of ten is undecided


@pytest.fixture
def looking_at(monkeypatch):
    """Makes every head look from *it* at the place that a function chooses for each sentence."""
    for name in ("CHOOSING", "MEASURED", "SWAPPED"):
        monkeypatch.setattr(referent, name, ENOUGH)

    def look(place):
        def looks(*given):
            return [replace(one, weights=torch.eye(len(one.words))[place(one)].expand_as(one.weights))
                    for one in it_weights(*given)]  # fmt: skip

        monkeypatch.setattr(referents, "it_weights", looks)

    return look


def in_some(look):
    """The referent, but only in sentences that begin with it."""
    return min(look.referent, look.other)


def test_a_translator_that_understands_keeps_every_promise(monkeypatch, run_folder, looking_at):
    looking_at(in_some)
    failing, taught = failing_with(monkeypatch, run_folder, in_german(ENOUGH).__getitem__)
    assert failing == []
    assert (taught.numbers["right"], taught.numbers["followed"], taught.numbers["kept"]) == (1.0, 1.0, 1.0)
    assert all(one["asked"] == one["written"] for one in taught.numbers["swapped"])


def test_heads_that_look_at_the_other_noun_are_seen(monkeypatch, run_folder, looking_at):
    looking_at(lambda look: look.other)
    failing, _ = failing_with(monkeypatch, run_folder, in_german(ENOUGH).__getitem__)
    assert starting(failing, "In the chosen head, *it* looks most at its referent")


def test_weights_that_show_as_much_as_the_translation_are_seen(monkeypatch, run_folder, looking_at):
    looking_at(lambda look: look.referent)
    failing, _ = failing_with(monkeypatch, run_folder, in_german(ENOUGH).__getitem__)
    assert starting(failing, "The translation uses the right referent more often")


def test_a_few_sentences_decide_nothing(monkeypatch, run_folder):
    _, taught = failing_with(monkeypatch, run_folder, in_german().__getitem__)
    assert [claim.holds for claim in taught.claims[:3]] == [True, None, None]
    assert taught.claims[1].figures == "1.000 ± 0.153 of 4"


def test_one_that_says_the_same_always_is_seen(monkeypatch, run_folder, looking_at):
    looking_at(in_some)
    failing, _ = failing_with(monkeypatch, run_folder, lambda line: "weil es müde war")
    assert starting(
        failing, "The sentences known", "The pronoun follows", "It stays the same when",
        "The translation uses the right referent",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("swap", "beginning"),
    [(swap_referent, "The pronoun follows its referent"), (swap_other, "It stays the same when the other noun")],
)
def test_a_pronoun_that_is_wrong_after_one_swap_is_seen(monkeypatch, run_folder, looking_at, swap, beginning):
    """The articles' sentences are right, and so is every sentence before its noun is replaced."""
    looking_at(in_some)
    swapped = {swap(one).source for one in make_split("test", ENOUGH)}
    german = in_german(ENOUGH)
    failing, _ = failing_with(
        monkeypatch, run_folder, lambda line: "weil es oder sie müde war" if line in swapped else german[line]
    )
    assert starting(failing, beginning)


def test_one_that_knows_no_sentence_of_the_articles_is_seen(monkeypatch, run_folder, looking_at):
    looking_at(in_some)
    articles, german = {one.source for one in ARTICLE_SENTENCES}, in_german(ENOUGH)
    failing, _ = failing_with(monkeypatch, run_folder, lambda line: "" if line in articles else german[line])
    assert starting(failing, "The sentences known from articles")


def test_what_is_shown_is_what_the_model_looked_at(run_folder):
    numbers = find_lesson("referent").teach(Settings(run=run_folder)).numbers
    translator, (layer, head) = Translator.load(run_folder), numbers["head"]
    for shown in numbers["articles"]:
        sentence = next(one for one in ARTICLE_SENTENCES if one.source == shown["source"])
        (look,) = it_weights(translator.model, translator.tokeniser, [sentence])
        assert shown["words"] == list(look.words)
        assert shown["weights"] == pytest.approx(look.weights[layer, head].tolist(), abs=1e-3)
        assert shown["words"][shown["referent"]] == sentence.referent


def test_words_that_were_looked_at_most_leave_it_out():
    one = {"words": ["the", "cat", "it"], "weights": [0.1, 0.3, 0.6], "it": 2}
    assert referent._most(one) == "cat 0.30, the 0.10"


def test_a_recurrent_translator_is_refused(tmp_path, run_folder):
    translator = Translator.load(run_folder)
    model = RecurrentTranslator(RecurrentTranslator.Config(vocab_size=translator.tokeniser.vocab_size, dim=8, hidden=8))
    model.save(tmp_path / "run", {"tokeniser.json": translator.tokeniser.to_json()})
    with pytest.raises(ArgumentError, match=r"looks at self-attention, and .* holds a RecurrentTranslator"):
        find_lesson("referent").teach(Settings(run=tmp_path / "run"))


def test_each_sentence_is_varied_in_both_ways(run_folder):
    swapped = find_lesson("referent").teach(Settings(run=run_folder)).numbers["swapped"]
    for plain, meant, other in zip(swapped[::3], swapped[1::3], swapped[2::3], strict=True):
        assert len({plain["source"], meant["source"], other["source"]}) == 3
        assert meant["asked"] != plain["asked"] == other["asked"]
