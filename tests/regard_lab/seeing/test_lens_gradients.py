"""Integrated gradients: complete, contrastive, by word, independent of the batch, for every model."""

from dataclasses import replace

import pytest
import torch
from small_models import (
    CONTRASTS,
    MODELS,
    SENTENCES,
    TOKENISER,
    language_model,
    odds_by_hand,
    small_model,
    without_words,
)

from regard_lab.seeing import relevance
from regard_lab.seeing.lenses import explain_contrasts, explaining, find_contrast


def tables(model):
    target = model.embedding if model.target_embedding is None else model.target_embedding
    return model.embedding.weight.detach(), target.weight.detach()


@pytest.mark.parametrize("name", MODELS)
def test_the_scores_of_a_side_sum_to_the_change_of_the_log_odds(name):
    model = MODELS[name]().double()
    contrast = CONTRASTS[0]
    (record,) = explain_contrasts(model, TOKENISER, [contrast], "gradients", steps=120)
    (coarse,) = explain_contrasts(model, TOKENISER, [contrast], "gradients", steps=4)
    source_table, target_table = tables(model)
    before = odds_by_hand(model, contrast)
    erased_source, _ = without_words(source_table[list(contrast.source)], contrast.source)
    erased_written, _ = without_words(target_table[list(contrast.written)], contrast.written)
    changes = {
        "source": before - odds_by_hand(model, contrast, source_vectors=erased_source[None]),
        "written": before - odds_by_hand(model, contrast, written_vectors=erased_written[None]),
    }
    errors = []
    for side, scores in (("source", record.source_scores), ("written", record.written_scores)):
        change = float(changes[side].detach())
        assert record.changes[side] == pytest.approx(change, abs=1e-9)
        errors.append(abs(sum(scores) - change))
    assert record.completeness == pytest.approx(max(errors), abs=1e-9)
    assert record.completeness < max(0.5 * coarse.completeness, 1e-4)
    assert any(abs(change) > 1e-3 for change in record.changes.values())


def test_one_step_is_the_gradient_in_the_middle_times_the_way():
    model = small_model().double()
    contrast = CONTRASTS[1]
    (record,) = explain_contrasts(model, TOKENISER, [contrast], "gradients", steps=1)
    x = tables(model)[0][list(contrast.source)]
    start, _ = without_words(x, contrast.source)
    middle = ((x + start) / 2)[None].requires_grad_()
    odds_by_hand(model, contrast, source_vectors=middle).backward()
    by_id = ((x - start) * middle.grad[0]).sum(-1)
    by_word = [float(by_id[span.start : span.stop].sum()) for _, span in contrast.source_words]
    assert record.source_scores == pytest.approx(by_word, abs=1e-10)
    # some word has several sub-words
    assert max(len(span) for _, span in contrast.source_words) > 1
    assert record.source_scores[-1] == 0.0  # <end> is not replaced


@pytest.mark.parametrize("lens", ["gradients", "erase"])
def test_the_same_question_the_other_way_round_has_the_negated_scores(lens):
    model = small_model().double()
    question = replace(CONTRASTS[0], instead_of=CONTRASTS[0].instead_of[:1])
    opposite = replace(question, of=question.instead_of[0], instead_of=(question.of,))
    options = {"steps": 10} if lens == "gradients" else {}
    first, second = explain_contrasts(model, TOKENISER, [question, opposite], lens, **options)
    assert first.log_odds == pytest.approx(-second.log_odds, abs=1e-12)
    for side in ("source_scores", "written_scores"):
        assert getattr(first, side) == pytest.approx(
            [-score for score in getattr(second, side)], abs=1e-9
        )
    assert max(map(abs, first.source_scores)) > 1e-3


@pytest.mark.parametrize("lens", ["gradients", "erase", "attention", "rollout"])
def test_padding_in_a_batch_changes_nothing(lens):
    model = small_model().double()
    assert len({(len(contrast.source), len(contrast.written)) for contrast in CONTRASTS}) > 2
    options = {"steps": 10} if lens == "gradients" else {}
    together = explain_contrasts(model, TOKENISER, CONTRASTS, lens, **options)
    for contrast, record in zip(CONTRASTS, together, strict=True):
        (alone,) = explain_contrasts(model, TOKENISER, [contrast], lens, **options)
        assert record.source_scores == pytest.approx(alone.source_scores, abs=1e-6)
        assert record.written_scores == pytest.approx(alone.written_scores, abs=1e-6)


def test_steps_grow_until_the_completeness_error_is_small(monkeypatch):
    model = small_model().double()
    contrast = CONTRASTS[0]
    monkeypatch.setattr(explaining, "STEPS", 2)
    monkeypatch.setattr(explaining, "MOST_STEPS", 18)
    monkeypatch.setattr(explaining, "ENOUGH", 100.0)
    (coarse,) = explain_contrasts(model, TOKENISER, [contrast], "gradients")
    # the input; for each side 2 and the baseline
    assert (coarse.passes, coarse.backward_passes) == (
        7,
        4,
    )
    monkeypatch.setattr(explaining, "ENOUGH", 0.0)
    (fine,) = explain_contrasts(model, TOKENISER, [contrast], "gradients")
    assert (fine.passes, fine.backward_passes) == (1 + 2 * (2 + 6 + 18 + 1), 52)
    (finest,) = explain_contrasts(model, TOKENISER, [contrast], "gradients", steps=18)
    assert fine.source_scores == pytest.approx(finest.source_scores, abs=1e-12)
    assert fine.completeness < coarse.completeness


def test_words_that_the_model_cannot_read_have_no_score():
    model = small_model().double()
    with torch.no_grad():
        for layer in model.decoder:
            layer.cross_attention.to_output.weight.zero_()
            if layer.cross_attention.to_output.bias is not None:
                layer.cross_attention.to_output.bias.zero_()
    (record,) = explain_contrasts(model, TOKENISER, CONTRASTS[:1], "gradients", steps=10)
    assert record.source_scores == pytest.approx([0.0] * len(record.source_words), abs=1e-12)
    assert max(map(abs, record.written_scores)) > 1e-3


def test_a_language_model_is_explained_by_what_it_had_read():
    model = language_model().double()
    ids = TOKENISER.encode(SENTENCES[0].target)
    why = relevance(
        model,
        TOKENISER,
        None,
        ids,
        SENTENCES[0].pronoun,
        ["wir"],
        "gradients",
        place=CONTRASTS[0].place,
        steps=60,
    )
    assert why.source_words == why.source_scores == ()
    assert why.written_words == tuple(word for word, _ in TOKENISER.words(ids))[: why.place]
    assert abs(sum(why.written_scores) - why.changes["written"]) <= why.completeness + 1e-9
    assert why.completeness < 0.1
    erased = relevance(
        model,
        TOKENISER,
        None,
        ids,
        SENTENCES[0].pronoun,
        ["wir"],
        "erase",
        place=CONTRASTS[0].place,
    )
    assert erased.passes == 1 + len(erased.written_words)


def test_the_model_keeps_its_mode_and_gets_no_gradients():
    model = small_model().train()
    explain_contrasts(model, TOKENISER, CONTRASTS[:2], "gradients", steps=2)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_word_at_the_beginning_of_a_sentence_is_compared_with_capitals():
    ids = TOKENISER.encode("Es war müde, weil es alt war.")
    contrast = find_contrast(TOKENISER, "It was tired.", ids, "es", ["sie"], place=5)
    assert (contrast.word, contrast.others) == ("es", ("sie",))
    contrast = find_contrast(
        TOKENISER, "It was tired.", TOKENISER.encode("Es war alt."), "es", ["sie"]
    )
    assert (contrast.word, contrast.others) == ("Es", ("Sie",))
    assert contrast.instead_of == (TOKENISER.encode("Sie")[0],)
