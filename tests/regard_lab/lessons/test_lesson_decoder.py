"""The decoder's claims, each seen to fail when what it is about is broken."""

import pytest
import torch
from teaching import failing, starting

from regard.patterns import Full
from regard_lab.lessons import decoder, find_lesson
from regard_lab.models import LanguageModel


def test_the_distributions_before_training_are_those_of_the_model():
    numbers = find_lesson("decoder").teach().numbers
    count = len(numbers["vocabulary"])
    model = decoder.new_model(decoder.BEGIN + count, 0)
    ids = [decoder.BEGIN, *(decoder.BEGIN + numbers["vocabulary"].index(word) for word in numbers["words"])]
    for place in range(len(numbers["words"])):
        with torch.no_grad():
            scores = model(torch.tensor([ids[: place + 1]]))[0, -1, decoder.BEGIN :]
        powers = scores.exp()
        assert (powers / powers.sum()).tolist() == pytest.approx(numbers["before"][place], abs=1e-4)


def test_every_claim_holds_for_words_that_repeat():
    assert failing("decoder", seed=4, text="a a a b") == []


def test_a_lost_mask_is_seen(monkeypatch):
    real = decoder.new_model

    def unmasked(vocab_size, seed):
        model = real(vocab_size, seed)
        for block in model.blocks:
            block.attention.pattern = Full()
        return model

    monkeypatch.setattr(decoder, "new_model", unmasked)
    beginnings = ("At every position, one pass", "Word by word", "The gradient of one pass", "Replacing the last word")
    assert starting(failing("decoder"), *beginnings)


def test_a_cache_that_forgets_is_seen(monkeypatch):
    real = LanguageModel.step

    def forgetful(self, ids, state):
        for texts in state.groups:
            for cache in texts.caches.each:
                cache.crop(0)
        return real(self, ids, state)

    monkeypatch.setattr(LanguageModel, "step", forgetful)
    assert starting(failing("decoder"), "Word by word with a cache")


def test_writing_without_a_cache_is_seen(monkeypatch):
    def again(model, read):
        return torch.stack([model(read[:, :stop])[0, -1] for stop in range(1, read.shape[1] + 1)])

    monkeypatch.setattr(decoder, "_cached", again)
    assert starting(failing("decoder"), "Training takes one pass")


def test_training_that_learns_one_position_is_seen(monkeypatch):
    real = decoder.F.cross_entropy
    monkeypatch.setattr(
        decoder.F, "cross_entropy",
        lambda scores, wanted, **more: real(scores, wanted, **more) if more else real(scores[:1], wanted[:1]),
    )  # fmt: skip
    assert starting(failing("decoder"), "All positions learn at once")
