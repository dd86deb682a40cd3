"""Lines in, lines out."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from sacrebleu import sentence_bleu, sentence_chrf

from regard.errors import ArgumentError, CheckpointError
from regard_lab.decoding import (
    Constraints,
    Generator,
    SearchOptions,
    Translator,
    evaluate,
    perplexity,
)
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.models import (
    LanguageConfig,
    LanguageModel,
    RecurrentTranslator,
    TranslationTransformer,
)
from regard_lab.text import BEGIN, END, Pair, Tokeniser
from regard_lab.text.cleaning import normalise
from regard_lab.text.scores import score_each

LINES = [
    "the animal sleeps",
    "",
    "a street",
    "the old animal did not cross the street",
    "  ",
    "🦊 $x$",
]


@pytest.fixture(scope="module")
def translator():
    tokeniser = Tokeniser.train(LINES, 300)
    torch.manual_seed(0)
    config = TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2)
    model = TranslationTransformer(config)
    with torch.no_grad():
        model.embedding.weight[END] += 0.4 * torch.randn(16)  # so that some translations end
    return Translator(model, tokeniser)


@pytest.mark.parametrize("beam", [1, 3])
def test_each_line_has_one_translation_in_its_place(translator, beam):
    translations = translator.translate(LINES, beam=beam, max_tokens=12)
    assert [translation.source for translation in translations] == LINES
    assert [translation.text == "" for translation in translations][1] is True
    assert translations[4].text == ""
    alone = [translator.translate([line], beam=beam, max_tokens=12)[0].ids for line in LINES]
    assert [translation.ids for translation in translations] == alone


def test_options_in_one_object_and_by_name_are_the_same_search(translator):
    rules = Constraints(min_length=3, no_repeat=2)
    options = SearchOptions(beam=3, count=2, normalisation="average", constraints=rules)
    expected = translator.n_best(
        LINES, beam=3, count=2, normalisation="average", max_tokens=7, min_length=3, no_repeat=2
    )
    assert translator.n_best(LINES, replace(options, max_tokens=7)) == expected
    assert translator.n_best(LINES, options, max_tokens=7) == expected
    without_rules = translator.n_best(LINES, options, max_tokens=7, min_length=0, no_repeat=None)
    assert without_rules != expected


def test_small_batches_change_nothing_and_every_line_is_counted(translator):
    counted = []
    many = translator.translate(LINES, max_tokens=10, batch_tokens=4, progress=counted.append)
    assert [translation.ids for translation in many] == [
        translation.ids for translation in translator.translate(LINES, max_tokens=10)
    ]
    assert sum(counted) == len(LINES)


def test_a_saved_translator_of_either_kind_translates_the_same(translator, tmp_path):
    torch.manual_seed(1)
    config = RecurrentTranslator.Config(
        vocab_size=translator.tokeniser.vocab_size, dim=12, hidden=14
    )
    recurrent = Translator(RecurrentTranslator(config), translator.tokeniser)
    for number, made in enumerate((translator, recurrent)):
        made.model.save(tmp_path / f"run{number}", {TOKENISER_FILE: translator.tokeniser.to_json()})
        loaded = Translator.load(tmp_path / f"run{number}")
        assert type(loaded.model) is type(made.model)
        for beam in (1, 3):
            assert loaded.translate(LINES, beam=beam, max_tokens=9) == made.translate(
                LINES, beam=beam, max_tokens=9
            )


def test_a_model_without_its_tokeniser_is_refused(translator, tmp_path):
    translator.model.save(tmp_path / "run")
    with pytest.raises(CheckpointError, match="holds a model without"):
        Translator.load(tmp_path / "run")
    with pytest.raises(ArgumentError, match="were not trained together"):
        Translator(translator.model, Tokeniser.train(["other words entirely"], 290))


def test_perplexity_is_the_exponent_of_the_mean_cross_entropy(translator):
    pairs = [Pair("a street", "the animal"), Pair("the animal sleeps", "a street sleeps")]
    gains = []
    for pair in pairs:
        gains += by_hand(translator.model, *encoded(translator, pair))
    assert perplexity(translator, pairs) == pytest.approx(
        math.exp(-sum(gains) / len(gains)), rel=1e-5
    )


def encoded(translator, pair):
    """The ids of the target and of the source of a pair, with END."""
    encode = translator.tokeniser.encode
    return [*encode(pair.target), END], torch.tensor([[*encode(pair.source), END]])


def by_hand(model, ids, source=None):
    """The log-probabilities of ids, one pass of the model for each of them."""
    log_probs = []
    for place, identifier in enumerate(ids):
        read = torch.tensor([[BEGIN, *ids[:place]]])
        logits = model(read) if source is None else model(source, read)
        log_probs.append(float(logits[0, -1].detach().double().log_softmax(-1)[identifier]))
    return log_probs


def test_scores_of_translations_and_texts_are_the_sums_of_a_loop(translator):
    pairs = [
        Pair("a street", "the animal"),
        Pair("the animal sleeps", "a street sleeps"),
        Pair("a", "🦊"),
    ]
    precise = Translator(copy.deepcopy(translator.model).double(), translator.tokeniser)
    for pair, scored in zip(pairs, precise.score(pairs, batch_tokens=16), strict=True):
        expected = by_hand(precise.model, *encoded(precise, pair))
        assert scored.gains == pytest.approx(expected, abs=1e-6)
        assert scored.log_probability == pytest.approx(sum(expected), abs=1e-6)
        assert sum(word.log_probability for word in scored.words) == pytest.approx(
            sum(expected), abs=1e-6
        )
        assert scored.words[-1] == ("<end>", pytest.approx(expected[-1], abs=1e-6))
    tokeniser = translator.tokeniser
    writer = LanguageModel(
        LanguageConfig(vocab_size=tokeniser.vocab_size, dim=16, heads=2, layers=1)
    ).double()
    first, empty = Generator(writer, tokeniser).score(["the animal sleeps", ""])
    expected = by_hand(writer, tokeniser.encode("the animal sleeps"))
    assert first.gains == pytest.approx(expected, abs=1e-6)
    assert [word for word, _ in first.words] == ["the", "animal", "sleeps"]
    assert (empty.gains, empty.log_probability) == ((), 0.0)


def test_scores_of_sentences_are_those_of_sacrebleu(translator):
    pairs = [Pair(line, f"{line} the street") for line in LINES if line.strip()]
    rows = evaluate(translator, pairs).rows()
    assert [row["source"] for row in rows] == [pair.source for pair in pairs]
    for row in rows:
        output = normalise(row["output"])
        reference = [normalise(row["reference"])]
        assert row["bleu"] == pytest.approx(sentence_bleu(output, reference).score)
        assert row["chrf"] == pytest.approx(sentence_chrf(output, reference).score)
    for output in ("a b", "a b c d e", "b"):  # shorter than the longest n-gram
        assert score_each([output], ["a b c d"])[0]["bleu"] == pytest.approx(
            sentence_bleu(output, ["a b c d"]).score
        )
    assert score_each(["a b c d"], ["a b c d"])[0]["exact_match"]
    assert not score_each(["a b c"], ["a b c d"])[0]["exact_match"]


def test_an_evaluation_holds_how_it_searched(translator):
    pairs = [Pair("a street", "eine Straße")]
    assert evaluate(translator, pairs).to_dict()["settings"] == {"beam": 1}
    beam = {"beam": 2, "normalisation": "gnmt", "alpha": 0.7}
    assert evaluate(translator, pairs, **beam).to_dict()["settings"] == beam


@pytest.mark.parametrize("tokens", [0, -1, 2.5, "many"])
def test_batches_of_no_tokens_are_refused(translator, tokens):
    with pytest.raises(ArgumentError, match="batch_tokens"):
        perplexity(translator, [Pair("a street", "eine Straße")], tokens)
