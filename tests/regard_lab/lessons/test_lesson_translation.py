"""The claims about encoder and decoder, each seen to fail when what it is about is broken."""

import pytest
import torch
from teaching import failing, starting

from regard.layers import MultiHeadAttention
from regard.patterns import Full, KeySpan
from regard_lab.lessons import find_lesson, translation
from regard_lab.models import TranslationTransformer


def changed(monkeypatch, change):
    """The lesson with a model that `change` was applied to."""
    real = translation.new_model

    def new(seed):
        model = real(seed)
        change(model)
        return model

    monkeypatch.setattr(translation, "new_model", new)
    return failing("translation")


def test_the_dependence_is_that_of_single_edits():
    numbers = find_lesson("translation").teach().numbers
    model = translation.new_model(0)
    source, target = (
        translation._ids(translation.SOURCE, closes=True),
        translation._ids(translation.TARGET[:-1], opens=True),
    )
    edited = source.clone()
    edited[0, 2] = translation.OTHER
    with torch.no_grad():
        moved = (model(edited, target) - model(source, target))[0].norm(dim=-1)
    assert [row[2] for row in numbers["decoder"]] == pytest.approx(moved.tolist(), abs=1e-6)


def test_keys_and_values_computed_again_for_each_word_are_seen(monkeypatch):
    real = TranslationTransformer.step

    def again(self, ids, state):
        for layer in self.decoder:
            layer.cross_attention.project_context(torch.zeros(1, 3, translation.DIM, dtype=torch.float64))
        return real(self, ids, state)

    monkeypatch.setattr(TranslationTransformer, "step", again)
    assert starting(failing("translation"), "The encoder, and the keys")


def test_a_decoder_without_its_mask_is_seen(monkeypatch):
    def unmask(model):
        for layer in model.decoder:
            layer.self_attention.pattern = Full()

    assert starting(
        changed(monkeypatch, unmask), "The logits of words written one by one", "Replacing a written word changes"
    )


def test_cross_attention_to_one_word_only_is_seen(monkeypatch):
    def narrow(model):
        for layer in model.encoder:
            layer.attention.pattern = KeySpan(0, 1)

    assert starting(changed(monkeypatch, narrow), "Every vector of the encoder")


def test_a_decoder_that_does_not_look_at_the_source_is_seen(monkeypatch):
    def ignore(model):
        for layer in model.decoder:
            torch.nn.init.zeros_(layer.cross_attention.to_output.weight)

    assert starting(changed(monkeypatch, ignore), "Replacing a source word changes the logits")


def test_keys_from_the_decoder_are_seen(monkeypatch):
    real = MultiHeadAttention.forward

    def own(self, x, context=None, **more):
        return real(self, x, x if isinstance(context, torch.Tensor) else context, **more)

    monkeypatch.setattr(MultiHeadAttention, "forward", own)
    assert starting(
        failing("translation"), "Queries of cross-attention", "The logits of words written one by one",
        "Replacing a source word changes the logits", "Replacing a written word changes",
    )  # fmt: skip
