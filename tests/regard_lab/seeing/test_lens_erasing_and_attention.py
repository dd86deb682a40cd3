"""Erasure equals a recomputation by hand, raw attention equals the recorded maps, rollout a NumPy oracle."""

import numpy
import pytest
import torch
from small_models import (
    CONTRASTS,
    MODELS,
    SENTENCES,
    TOKENISER,
    odds_by_hand,
    recurrent,
    small_model,
    without_words,
)

from regard.errors import ArgumentError, UnsupportedError
from regard_lab.seeing import look, relevance
from regard_lab.seeing.lenses import explain_contrasts
from regard_lab.text import BEGIN, END


def sums_by_word(row, words):
    """What the sub-words of each word have in a row of weights."""
    return [float(row[span.start : span.stop].sum()) for _, span in words]


@pytest.mark.parametrize("name", MODELS)
def test_the_score_of_an_erased_word_is_the_fall_without_it(name):
    model = MODELS[name]().double()
    contrast = CONTRASTS[2]
    (record,) = explain_contrasts(model, TOKENISER, [contrast], "erase")
    target = model.embedding if model.target_embedding is None else model.target_embedding
    before = float(odds_by_hand(model, contrast).detach())
    for side, table, scores in (
        ("source", model.embedding, record.source_scores),
        ("written", target, record.written_scores),
    ):
        ids = getattr(contrast, side)
        spans = getattr(contrast, f"{side}_words")
        vectors = table.weight.detach()[list(ids)]
        _, mean = without_words(vectors, ids)
        for (word, span), score in zip(spans, scores, strict=True):
            changed = vectors.clone()
            if word not in ("<begin>", "<end>"):
                changed[span.start : span.stop] = mean
            after = odds_by_hand(model, contrast, **{f"{side}_vectors": changed[None]})
            assert score == pytest.approx(before - float(after.detach()), abs=1e-9), word
    assert record.passes == 1 + len(record.source_words) + len(record.written_words)
    assert max(map(abs, record.written_scores)) > 1e-4


def target_ids(sentence):
    return TOKENISER.encode(sentence.target)


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (small_model(), None),
        (small_model(), (1, 0)),
        (recurrent(attention="bahdanau"), None),
        (recurrent(attention="luong-dot"), None),
    ],
)
def test_raw_attention_is_the_row_of_the_step_that_writes_the_word(model, head):
    contrast = CONTRASTS[0]
    (record,) = explain_contrasts(model, TOKENISER, [contrast], "attention", head=head)
    maps = look(model, TOKENISER, SENTENCES[0].source, target_ids(SENTENCES[0]))
    step = len(contrast.written) - 1
    rows = {"source": maps.cross[:, :, step], "written": maps.decoder[:, :, step, : step + 1]}
    for side, weights in rows.items():
        expected = []
        if len(weights):  # a recurrent translator has none on written words
            row = weights.mean((0, 1)) if head is None else weights[head]
            expected = sums_by_word(row, getattr(contrast, f"{side}_words"))
        assert getattr(record, f"{side}_scores") == pytest.approx(expected, abs=1e-5)
    assert (
        ("already written" in record.text())
        == bool(record.written_scores)
        == (len(maps.decoder) > 0)
    )
    assert record.passes == 1
    assert ("layer 1, head 0" in record.note) == (head is not None)


def test_rollout_is_the_product_of_the_layers():
    model = small_model(encoder_layers=3)
    contrast = CONTRASTS[1]
    (record,) = explain_contrasts(model, TOKENISER, [contrast], "rollout")
    maps = look(model, TOKENISER, SENTENCES[1].source, target_ids(SENTENCES[1]))
    encoder = maps.encoder.double().numpy().mean(1)
    decoder = maps.decoder.double().numpy().mean(1)
    cross = maps.cross.double().numpy().mean(1)
    count = len(contrast.written)
    s = encoder.shape[-1]

    def mixed(weights):
        return 0.5 * weights + 0.5 * numpy.eye(len(weights))

    read = numpy.linalg.multi_dot([mixed(weights) for weights in encoder[::-1]])
    state = numpy.concatenate([numpy.zeros((count, s)), numpy.eye(count)], 1)
    for of_written, of_source in zip(decoder, cross, strict=True):
        state = mixed(of_written[:count, :count]) @ state
        state = 0.5 * state
        state[:, :s] += 0.5 * of_source[:count] @ read
    for side, row in (("source", state[-1, :s]), ("written", state[-1, s:])):
        expected = sums_by_word(row, getattr(contrast, f"{side}_words"))
        assert getattr(record, f"{side}_scores") == pytest.approx(expected, abs=1e-5)
    assert sum(record.source_scores) + sum(record.written_scores) == pytest.approx(1.0, abs=1e-5)
    assert "weak" in record.note


def test_a_head_of_cross_attention_needs_no_encoder_of_equal_depth():
    deeper = small_model(encoder_layers=1, decoder_layers=3)
    (record,) = explain_contrasts(deeper, TOKENISER, CONTRASTS[:1], "attention", head=(2, 1))
    assert sum(record.source_scores) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ArgumentError, match="there are layers 0 to 2"):
        explain_contrasts(deeper, TOKENISER, CONTRASTS[:1], "attention", head=(3, 1))


def test_a_lens_refuses_a_model_that_has_nothing_to_show():
    with pytest.raises(UnsupportedError, match="attention='none'"):
        explain_contrasts(recurrent(attention="none"), TOKENISER, CONTRASTS[:1], "attention")
    for attention in ("none", "bahdanau"):
        with pytest.raises(UnsupportedError, match="RecurrentTranslator has none"):
            explain_contrasts(recurrent(attention=attention), TOKENISER, CONTRASTS[:1], "rollout")


IDS = TOKENISER.encode("Das Tier schlief, weil es müde war und es alt war.")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"of": "er"}, "'er' was not written"),
        ({"place": None}, "2 times, at places 5, 9"),
        ({"place": 4}, "word 4 is not 'es'"),
        (
            {"instead_of": ("er", "es")},
            "'es' is the written word itself; compare it with other words",
        ),
        ({"instead_of": ("er", "er")}, "'er' is named twice; name it once"),
        ({"instead_of": ("er", "es7")}, "begin with the same sub-word"),
        ({"instead_of": ("der Hund",)}, "one word"),
        ({"target_ids": [*IDS, END]}, "special ids"),
        ({"target_ids": "Das Tier"}, "give its ids"),
        ({"lens": "glasses"}, "no lens 'glasses'"),
        ({"lens": "erase", "steps": 3}, "belongs to lens='gradients'"),
        ({"head": (0, 0)}, "belongs to lens='attention'"),
        ({"lens": "attention", "head": (7, 0)}, "does not exist"),
        ({"source": None}, "needs the text"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_with_a_sentence(changed, words):
    asked = {
        "source": "The animal slept.",
        "target_ids": IDS,
        "of": "es",
        "instead_of": ("er", "sie"),
        "place": 5,
    }
    with pytest.raises(ArgumentError, match=words):
        relevance(small_model(), TOKENISER, **{**asked, **changed})


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_vectors_take_the_place_of_embeddings_whichever_side_is_padded(name, side):
    model = MODELS[name]()
    source = list(CONTRASTS[0].source)
    written = list(CONTRASTS[0].written)
    padded = [0, 0, 0, *source] if side == "left" else [*source, 0, 0, 0]
    sources = torch.tensor([padded, [*source[:3], *source]])
    targets = torch.tensor([written, [BEGIN, *written[:0:-1]]])
    table = model.embedding if model.target_embedding is None else model.target_embedding
    with torch.no_grad():
        expected = model(sources, targets)
        with_vectors = model(
            sources, targets, source_vectors=model.embedding(sources), target_vectors=table(targets)
        )
        with_halves = model(sources, targets, source_vectors=model.embedding(sources) * 0.5)
    torch.testing.assert_close(with_vectors, expected, rtol=0, atol=0)
    assert not torch.equal(with_halves, expected)
    with pytest.raises(ValueError, match="need a tensor"):
        model(sources, targets, source_vectors=model.embedding(sources)[:, 1:])
