import pytest
from teaching import run_folder, starting, with_few_sentences

from regard.decoding import Translator
from regard.errors import ArgumentError
from regard.inspection import it_weights
from regard.models import RecurrentTranslator
from regard.studies.lessons import Settings, find_lesson, referent
from regard.text.pronouns import ARTICLE_SENTENCES, make_split, swap_other, swap_referent

__all__ = ["run_folder"]


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
    return [claim.sentence for claim in taught.claims[:3] if not claim.holds], taught


def test_a_translator_that_understands_keeps_what_is_said_of_pronouns(monkeypatch, run_folder):
    enough = 40  # with fewer, nine of ten is undecided
    for name in ("MEASURED", "SWAPPED"):
        monkeypatch.setattr(referent, name, enough)
    german = in_german(enough)
    failing, taught = failing_with(monkeypatch, run_folder, german.__getitem__)
    assert failing == []
    assert (taught.numbers["right"], taught.numbers["followed"], taught.numbers["kept"]) == (1.0, 1.0, 1.0)
    assert all(one["asked"] == one["written"] for one in taught.numbers["swapped"])


def test_a_few_sentences_decide_nothing(monkeypatch, run_folder):
    _, taught = failing_with(monkeypatch, run_folder, in_german().__getitem__)
    assert [claim.holds for claim in taught.claims[:3]] == [True, None, None]
    assert taught.claims[1].figures == "1.000 ± 0.153 of 4"


def test_one_that_says_the_same_always_is_seen(monkeypatch, run_folder):
    failing, _ = failing_with(monkeypatch, run_folder, lambda line: "weil es müde war")
    assert starting(failing, "The sentences known", "The pronoun follows", "It stays the same when")


def test_one_that_follows_the_subject_is_seen(monkeypatch, run_folder):
    def of_subject(line):
        return german[line] if "tired" in line else german[line].replace(" sie ", " es ").replace(" er ", " es ")

    german = in_german()
    failing, _ = failing_with(monkeypatch, run_folder, of_subject)
    assert "The sentences known from articles get the right pronoun." in failing


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
