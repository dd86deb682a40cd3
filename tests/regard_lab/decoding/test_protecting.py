"""Placeholders in searches: a model that has learned nothing still writes each placeholder of its source once."""

import pytest
import torch

from regard.errors import ArgumentError
from regard_lab.decoding import Constraints, Evaluation, Translation, Translator
from regard_lab.decoding.constraints import Once
from regard_lab.decoding.protecting import (
    PlaceholderCounts,
    SourcePlaceholders,
    UnprotectedPlaceholders,
)
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.models.recurrent import RecurrentConfig
from regard_lab.text import Pair, Tokeniser, score

SOURCES = [
    "Copy %s to %(name)s at <b>http://a.b/c</b> 🎉 {0} {} {} 12,5",
    "%s of %d files, 100%% of <i><b>the</b></i>",
    "the {name}",
    "the %*d file %s",
    "存檔 the Łodz",
    "the file",
]


@pytest.fixture(scope="module")
def tokeniser():
    targets = ["Kopiere sie in die Datei"] * 2
    return Tokeniser.train(["Copy it to the file"] * 2, 400, targets=targets, protect=True)


@pytest.fixture(scope="module", params=["transformer", "recurrent"])
def translator(request, tokeniser):
    torch.manual_seed(5)
    size = tokeniser.vocab_size
    if request.param == "transformer":
        config = TranslationTransformer.Config(vocab_size=size, dim=16, heads=2)
        return Translator(TranslationTransformer(config), tokeniser)
    return Translator(RecurrentTranslator(RecurrentConfig(vocab_size=size, dim=16)), tokeniser)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_model_that_has_learned_nothing_writes_each_placeholder_once(translator, beam):
    for translation in translator.translate(SOURCES, beam=beam):
        assert_has_each_once(translator, translation)


def assert_has_each_once(translator, translation):
    """By ids, since what has learned nothing may write a letter beside a number, which is no placeholder then."""
    originals = translator.tokeniser.originals(translation.source)
    first_ordinary = translator.tokeniser.vocabulary.first_ordinary
    assert sorted(i for i in translation.ids if i < first_ordinary) == sorted(originals)
    assert all(original in translation.text for original in originals.values())


def test_words_with_an_unknown_letter_are_passed_through(translator):
    (translation,) = translator.translate(["存檔 the Łodz"])
    assert "存檔" in translation.text
    assert "Łodz" in translation.text


def test_a_limit_that_was_given_and_a_prefix_hold(translator):
    sources = SOURCES[1:3]
    for translation in translator.translate(sources, max_tokens=17, prefix="die Datei"):
        assert len(translation.ids) <= 17
        assert translation.text.startswith("die Datei")
        assert_has_each_once(translator, translation)


def test_the_best_of_several_translations_has_them(translator):
    for best in translator.n_best(SOURCES[:2], beam=3, count=3):
        assert len(best) == 3
        assert_has_each_once(translator, best[0])


def test_a_text_without_words_is_its_own_translation(translator):
    texts = ["🎉", "12:30", "{0}: %s", "<br/>"]
    assert [translation.text for translation in translator.translate(texts)] == texts


def test_placeholders_of_one_source_are_never_written_for_another(translator):
    together = translator.translate(SOURCES, beam=2)
    for source, translation in zip(SOURCES, together, strict=True):
        (alone,) = translator.translate([source], beam=2)
        assert alone.text == translation.text


def test_scores_of_a_pair_count_placeholders_as_their_ids(translator):
    (scored,) = translator.score([Pair("the {0} of 12", "12 {0}")])
    reserved = [i for i in scored.ids if i < translator.tokeniser.vocabulary.first_ordinary]
    assert len(reserved) == 2


def test_ids_are_allowed_in_order_and_pairs_nested():
    once = Once((4, 5, 6, 7, 8), after={5: 4}, closes={7: 6})
    assert once.allowed(()) == [4, 6, 8]
    assert once.allowed((4, 6)) == [5, 7, 8]
    nested = Once((1, 2, 3, 4), closes={2: 1, 4: 3})
    assert nested.allowed((1, 3)) == [4]


def test_a_source_says_which_placeholders_keep_their_order_and_which_are_pairs(tokeniser):
    row = SourcePlaceholders.of(tokeniser, "%s of {} <b>the</b> %d {}, {name}")
    first, first_brace, opening, closing, second, second_brace, _ = row.originals
    assert row.once.after == {second: first, second_brace: first_brace}
    assert row.once.closes == {closing: opening}


def test_signs_that_begin_placeholders_are_written_only_if_the_source_has_them_in_another_meaning(
    tokeniser,
):
    signs = {mark: set(tokeniser.ids_with(mark)) for mark in "%{}"}
    assert all(signs.values())
    without = SourcePlaceholders.of(tokeniser, "%s of {}")
    assert set(without.once.banned) == signs["%"] | signs["{"] | signs["}"]
    with_percent = SourcePlaceholders.of(tokeniser, "5 % of {}")
    assert signs["%"].isdisjoint(with_percent.once.banned)
    assert signs["{"] <= set(with_percent.once.banned)
    logits = torch.zeros(1, tokeniser.vocab_size)
    constraints = Constraints(reserved=range(4, 64), once=(without.once,))
    chosen = constraints.constrained(logits, logits.logsumexp(1, keepdim=True), [(0, ())], 3)
    assert {i for i in without.once.banned if chosen[0, i] > -torch.inf} == set()


def test_a_missing_placeholder_takes_the_place_of_the_end():
    logits = torch.tensor([[0.0, 9.0, 1.0, 2.0, 5.0]])  # END is 1, and 2 and 3 are reserved
    constraints = Constraints(reserved=range(2, 5), once=(Once((2, 3)),), complete=True)
    chosen = constraints.constrained(logits, logits.logsumexp(1, keepdim=True), [(0, ())], 1)
    assert chosen[0].tolist() == [0.0, -torch.inf, 1.0, 9.0, -torch.inf]
    free = Constraints(reserved=range(2, 5), once=(Once((2, 3)),))
    chosen = free.constrained(logits, logits.logsumexp(1, keepdim=True), [(0, (3,))], 1)
    assert chosen[0].tolist() == [0.0, 9.0, 1.0, -torch.inf, -torch.inf]


def test_rows_and_kinds_of_constraints_are_checked():
    with pytest.raises(ArgumentError, match="1 of once for 2 texts"):
        Constraints(once=(Once(()),)).limits([3, 3], given=False)
    with pytest.raises(ArgumentError, match="reserved"):
        Constraints(reserved=3)  # ty: ignore[invalid-argument-type]


def test_an_evaluation_counts_translations_of_sources_with_placeholders_and_those_that_have_each_once():
    texts = [("{0} a", "b {0}"), ("{0} %s", "%s"), ("a", "b"), ("<b>", "<b> <b>")]
    translations = [Translation(*text, (5,), (5,), -1.0, -1.0, True) for text in texts]
    scores = score([text for _, text in texts], [text for text, _ in texts])
    values = Evaluation(scores, 2.0, {}, translations).to_dict()
    assert values["placeholders"] == {"texts": 3, "kept": 1}
    assert "placeholders" not in Evaluation(scores, 2.0, {}, translations[2:3]).to_dict()


def test_counts_name_the_first_translation_that_differs(tokeniser):
    counts = PlaceholderCounts([("{0} a", "b {0}"), ("a", "b"), ("%s", "b"), ("<b>", "b")])
    assert (counts.texts, counts.kept, counts.by_kind["variable"]) == (3, 1, 2)
    assert "2 of 3 translations do not have" in str(counts.remark())
    assert PlaceholderCounts([("a", "b")]).remark() is None
    assert UnprotectedPlaceholders(tokeniser).remark("{0}") is None
