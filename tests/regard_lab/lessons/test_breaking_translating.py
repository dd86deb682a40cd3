"""Claims of the lessons of chapter "A model that translates" fail when what they are about is broken."""

import torch
from teaching import Computed, changed_report, failing, starting

from regard.layers import FeedForward, MultiHeadAttention
from regard.patterns import Full, KeySpan
from regard_lab.models import LanguageModel, TranslationTransformer, layers


def test_encoder_without_residual_connections(monkeypatch):
    monkeypatch.setattr(layers, "residual", lambda x, part, norm, dropout, **options: part(norm(x)))
    assert starting(failing("encoder"), "At the end, the vector of a word")


def test_encoder_with_a_mask_and_norms_that_do_nothing(monkeypatch):
    forward = MultiHeadAttention.forward
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", lambda self, x: x)
    monkeypatch.setattr(
        MultiHeadAttention,
        "forward",
        lambda self, x, pattern=None, **more: forward(self, x, pattern="causal", **more),
    )
    assert starting(failing("encoder"), "The norms bring", "In self-attention every word")


def test_encoder_with_mixed_words_and_exchanged_residuals(monkeypatch):
    forward = FeedForward.forward
    monkeypatch.setattr(
        FeedForward,
        "forward",
        lambda self, x: forward(self, x) + 0.01 * x.mean(1, keepdim=True),
    )

    def exchange(differences_by_layer):
        return lambda residuals: differences_by_layer(not residuals)

    assert starting(
        failing("encoder", differences_by_layer=Computed(exchange)),
        "The feed-forward network computes",
        "With residual connections",
        "Without residual connections",
    )


def test_norms_in_the_other_place():
    """Sizes and gradients are those of the other place, and nothing but post-norm without warm-up is learned."""

    def exchange_sizes(sizes):
        return {"post": sizes["pre"], "pre": sizes["post"]}

    def exchange_movement(moved):
        return {"post": moved["pre"], "pre": moved["post"]}

    def exchange_gradients(gradients):
        opposite = {"post": "pre", "pre": "post"}
        return {(opposite[place], layers): sizes for (place, layers), sizes in gradients.items()}

    def train_the_other(place, warm_up, seed):
        return [0.1 if (place, warm_up) == ("post", 0) else 2.0] * 10

    broken = failing(
        "norms",
        STACKS=2,
        sizes=Computed(exchange_sizes),
        gradients=Computed(exchange_gradients),
        moved=Computed(exchange_movement),
        train=train_the_other,
    )
    assert starting(
        broken,
        "In post-norm the vectors have",
        "In pre-norm the vectors grow",
        "So the last of many",
        "With four times as many layers",
        "So in a deep stack the last gradient",
        "A small change of all matrices",
        "Post-norm learns more",
        "A Transformer cannot be trained",
    )


def test_decoder_without_a_mask():
    def unmask(model):
        for block in model.blocks:
            block.attention.pattern = Full()
        return model

    assert starting(
        failing("decoder", model=Computed(unmask)),
        "At every position, one pass",
        "Word by word",
        "The gradient of one pass",
        "Replacing the last word",
    )


def test_decoder_that_forgets_and_learns_one_position(monkeypatch):
    def step_without_earlier_words(self, ids, state):
        for texts in state.groups:
            for cache in texts.caches.each:
                cache.crop(0)
        return step(self, ids, state)

    step = LanguageModel.step
    monkeypatch.setattr(LanguageModel, "step", step_without_earlier_words)

    def loss_of_first_position(F, wanted):
        return lambda logits: F.cross_entropy(logits[:1], wanted[:1])

    def without_cache_only(ways):
        return {**ways, "writing": ways["without a cache"]}

    broken = failing(
        "decoder", mean_loss=Computed(loss_of_first_position), ways=Computed(without_cache_only)
    )
    claims = "Word by word with a cache", "Training takes one pass", "All positions learn at once"
    assert starting(broken, *claims)


def test_translation_that_projects_again_and_has_no_mask(monkeypatch):
    def step_projecting_again(self, ids, state):
        for layer in self.decoder:
            dtype = layer.cross_attention.to_v.weight.dtype
            layer.cross_attention.project_context(torch.zeros(1, 3, 32, dtype=dtype))
        return step(self, ids, state)

    step = TranslationTransformer.step
    monkeypatch.setattr(TranslationTransformer, "step", step_projecting_again)

    def unmask(model):
        for block in model.decoder:
            block.self_attention.pattern = Full()
        return model

    assert starting(
        failing("translation", model=Computed(unmask)),
        "The encoder, and the keys",
        "The logits of words written",
        "Replacing a written word changes",
    )


def test_translation_that_reads_one_source_word_and_ignores_it():
    def narrow(model):
        for block in model.encoder:
            block.attention.pattern = KeySpan(0, 1)
        for block in model.decoder:
            torch.nn.init.zeros_(block.cross_attention.to_output.weight)
        return model

    claims = "Every vector of the encoder", "Replacing a source word changes the logits"
    assert starting(failing("translation", model=Computed(narrow)), *claims)


def test_translation_whose_cross_attention_reads_the_decoder(monkeypatch):
    def forward_reading_itself(self, x, context=None, **more):
        return forward(self, x, x if isinstance(context, torch.Tensor) else context, **more)

    forward = MultiHeadAttention.forward
    monkeypatch.setattr(MultiHeadAttention, "forward", forward_reading_itself)
    assert starting(
        failing("translation"),
        "Queries of cross-attention",
        "The logits of words written one by one",
        "Replacing a source word changes the logits",
        "Replacing a written word changes",
    )


def test_subwords_of_a_vocabulary_without_merges():
    """Each word is cut into letters, and one letter is lost when a text is read back."""

    class Letters:
        def encode(self, text):
            return list(text)

        def pieces(self, ids):
            return ids

        def decode(self, ids):
            return "".join(ids[1:])

    tokenisers = Computed(lambda SIZES: dict.fromkeys(SIZES, Letters()))
    assert starting(
        failing("subwords", tokenisers=tokenisers),
        "The pieces of a text give",
        "With every larger vocabulary",
        "Frequent words are one piece",
        "Straße and Straßenbahn share pieces",
    )


def test_heads_that_are_no_better_than_chance(monkeypatch):
    relations = changed_report(monkeypatch, "heads")["relations"]
    for relation in relations.values():
        relation["chosen_share"] = relation["chance"]
    assert starting(
        failing("heads"),
        "The chosen head looks from verb",
        "The chosen head looks from adjective",
        "The chosen head looks from “it”",
        "From “it” to its referent",
    )


def test_heads_that_are_always_right(monkeypatch):
    relations = changed_report(monkeypatch, "heads")["relations"]
    for relation in relations.values():
        relation["chosen_share"] = 1.0
        relation["by_offset"] = 0.5
    claims = "From verb to its", "From adjective to its", "From “it” to its"
    assert starting(failing("heads"), *claims)


def test_referent_of_a_translator_that_guesses(monkeypatch):
    figures = changed_report(monkeypatch, "referent")
    figures.update(right=0.5, followed=0.5, kept=0.5, agreement=0.1)
    figures["cross"]["share"] = 0.2
    figures["varied"][0]["written"] = None
    assert starting(
        failing("referent"),
        "While the pronoun is written",
        "The sentences known",
        "The pronoun follows its",
        "The pronoun stays the same",
        "In the chosen head, “it” looks",
        "It does so more often than the fixed offset",
    )


def test_referent_that_attention_shows_always(monkeypatch):
    changed_report(monkeypatch, "referent")["agreement"] = 0.99
    changed_report(monkeypatch, "english")["it"]["moved"] = 0.9
    assert starting(
        failing("referent"),
        "It does so more often than the fixed offset",
        "The translation uses the right",
        "In a model of English the balance",
    )
