"""Claims of the lessons encoder, decoder and translation fail when what they are about is broken."""

import torch
from teaching import failing, starting

from regard.layers import FeedForward, MultiHeadAttention
from regard_lab.models import LanguageModel, TranslationTransformer, layers


def test_encoder(monkeypatch):
    with monkeypatch.context() as broken:  # no residual connections
        broken.setattr(layers, "residual", lambda x, part, norm, dropout, **options: part(norm(x)))
        assert starting(failing("encoder"), "At the end, the vector of a word")
    with monkeypatch.context() as broken:  # norms that do nothing, and a mask
        real = MultiHeadAttention.forward
        broken.setattr("torch.nn.LayerNorm.forward", lambda self, x: x)
        broken.setattr(
            MultiHeadAttention, "forward", lambda self, x, pattern=None, **more: real(self, x, pattern="causal", **more)
        )
        assert starting(failing("encoder"), "The norms bring", "In self-attention every word")
    mixed = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: mixed(self, x) + 0.01 * x.mean(1, keepdim=True))
    swapped = ("kept, lost = differences(residuals=True), differences(residuals=False)",
               "lost, kept = differences(residuals=True), differences(residuals=False)")  # fmt: skip
    claims = "The feed-forward network computes", "With residual connections", "Without residual connections"
    assert starting(failing("encoder", swapped), *claims)


def test_decoder(monkeypatch):
    unmasked = "PASSES = 60\nimport regard.patterns\nfor block in model.blocks:\n    block.attention.pattern = "
    beginnings = "At every position, one pass", "Word by word", "The gradient of one pass", "Replacing the last word"
    assert starting(failing("decoder", ("PASSES = 60", unmasked + "regard.patterns.Full()")), *beginnings)
    real = LanguageModel.step

    def forgetful(self, ids, state):
        for texts in state.groups:
            for cache in texts.caches.each:
                cache.crop(0)
        return real(self, ids, state)

    monkeypatch.setattr(LanguageModel, "step", forgetful)
    one_position = ("cross_entropy(logits[-1], wanted)", "cross_entropy(logits[-1][:1], wanted[:1])")
    no_cache = ('"writing": lambda: with_cache(read)', '"writing": lambda: without_cache(read)')
    claims = "Word by word with a cache", "Training takes one pass", "All positions learn at once"
    assert starting(failing("decoder", one_position, no_cache), *claims)


def test_translation(monkeypatch):
    with monkeypatch.context() as broken:  # keys and values computed again for each word, and no mask
        step = TranslationTransformer.step

        def again(self, ids, state):
            for layer in self.decoder:
                layer.cross_attention.project_context(
                    torch.zeros(1, 3, 32, dtype=layer.cross_attention.to_v.weight.dtype)
                )
            return step(self, ids, state)

        broken.setattr(TranslationTransformer, "step", again)
        claims = "The encoder, and the keys", "The logits of words written", "Replacing a written word changes"
        unmask = "for block in model.decoder:\n    block.self_attention.pattern = Full()\n"
        unmask = f"from regard.patterns import Full\n{unmask}parts = {{"
        assert starting(failing("translation", ("parts = {", unmask)), *claims)
    narrow = (
        "from regard.patterns import KeySpan\n"
        "for block in model.encoder:\n    block.attention.pattern = KeySpan(0, 1)\n"
        "for block in model.decoder:\n    torch.nn.init.zeros_(block.cross_attention.to_output.weight)\n"
    )
    claims = "Every vector of the encoder", "Replacing a source word changes the logits"
    assert starting(failing("translation", ("parts = {", narrow + "parts = {")), *claims)
    forward = MultiHeadAttention.forward

    def own(self, x, context=None, **more):
        return forward(self, x, x if isinstance(context, torch.Tensor) else context, **more)

    monkeypatch.setattr(MultiHeadAttention, "forward", own)
    claims = ("Queries of cross-attention", "The logits of words written one by one",
              "Replacing a source word changes the logits", "Replacing a written word changes")  # fmt: skip
    assert starting(failing("translation"), *claims)
