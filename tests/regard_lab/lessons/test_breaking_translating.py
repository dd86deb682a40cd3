"""Claims of the lessons of chapter "A model that translates" fail when what they are about is broken."""

from types import SimpleNamespace

import pytest
import torch
from teaching import changed_report, failing, starting

from regard.errors import ArgumentError, CheckpointError, DataError
from regard.layers import FeedForward, MultiHeadAttention
from regard_lab.decoding import Translator
from regard_lab.decoding.loading import TOKENISER_FILE
from regard_lab.lessons import find_lesson
from regard_lab.models import LanguageModel, RecurrentTranslator, TranslationTransformer, layers
from regard_lab.teaching.looking import links_of, measure_heads, measure_referent
from regard_lab.text import Tokeniser
from regard_lab.text.pronouns import (
    ARTICLE_SENTENCES,
    Weights,
    make_split,
    swap_other,
    swap_referent,
)


def test_encoder(monkeypatch):
    with monkeypatch.context() as broken:  # no residual connections
        broken.setattr(layers, "residual", lambda x, part, norm, dropout, **options: part(norm(x)))
        assert starting(failing("encoder"), "At the end, the vector of a word")
    with monkeypatch.context() as broken:  # norms that do nothing, and a mask
        real = MultiHeadAttention.forward
        broken.setattr("torch.nn.LayerNorm.forward", lambda self, x: x)
        broken.setattr(
            MultiHeadAttention,
            "forward",
            lambda self, x, pattern=None, **more: real(self, x, pattern="causal", **more),
        )
        assert starting(failing("encoder"), "The norms bring", "In self-attention every word")
    mixed = FeedForward.forward
    monkeypatch.setattr(
        FeedForward, "forward", lambda self, x: mixed(self, x) + 0.01 * x.mean(1, keepdim=True)
    )
    swapped = (
        "kept, lost = differences(residuals=True), differences(residuals=False)",
        "lost, kept = differences(residuals=True), differences(residuals=False)",
    )
    claims = (
        "The feed-forward network computes",
        "With residual connections",
        "Without residual connections",
    )
    assert starting(failing("encoder", swapped), *claims)


def test_decoder(monkeypatch):
    unmasked = "PASSES = 60\nimport regard.patterns\nfor block in model.blocks:\n    block.attention.pattern = "
    beginnings = (
        "At every position, one pass",
        "Word by word",
        "The gradient of one pass",
        "Replacing the last word",
    )
    assert starting(
        failing("decoder", ("PASSES = 60", unmasked + "regard.patterns.Full()")), *beginnings
    )
    real = LanguageModel.step

    def forgetful(self, ids, state):
        for texts in state.groups:
            for cache in texts.caches.each:
                cache.crop(0)
        return real(self, ids, state)

    monkeypatch.setattr(LanguageModel, "step", forgetful)
    one_position = (
        "cross_entropy(logits[-1], wanted)",
        "cross_entropy(logits[-1][:1], wanted[:1])",
    )
    no_cache = ('"writing": lambda: with_cache(read)', '"writing": lambda: without_cache(read)')
    claims = "Word by word with a cache", "Training takes one pass", "All positions learn at once"
    assert starting(failing("decoder", one_position, no_cache), *claims)


def test_translation(monkeypatch):
    # keys and values computed again for each word, and no mask
    with monkeypatch.context() as broken:
        step = TranslationTransformer.step

        def again(self, ids, state):
            for layer in self.decoder:
                layer.cross_attention.project_context(
                    torch.zeros(1, 3, 32, dtype=layer.cross_attention.to_v.weight.dtype)
                )
            return step(self, ids, state)

        broken.setattr(TranslationTransformer, "step", again)
        claims = (
            "The encoder, and the keys",
            "The logits of words written",
            "Replacing a written word changes",
        )
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
    claims = (
        "Queries of cross-attention",
        "The logits of words written one by one",
        "Replacing a source word changes the logits",
        "Replacing a written word changes",
    )
    assert starting(failing("translation"), *claims)


def test_heads(monkeypatch):
    relations = changed_report(monkeypatch, "heads")["relations"]
    for one in relations.values():
        one["chosen_share"] = one["chance"]
    beginnings = [f"The chosen head looks from {word}" for word in ("verb", "adjective", "“it”")]
    assert starting(failing("heads"), *beginnings, "From “it” to its referent")
    for one in relations.values():
        one["chosen_share"], one["by_offset"] = 1.0, 0.5
    assert starting(
        failing("heads"), "From verb to its", "From adjective to its", "From “it” to its"
    )


def test_referent(monkeypatch):
    figures = changed_report(monkeypatch, "referent")
    figures |= {"right": 0.5, "followed": 0.5, "kept": 0.5, "agreement": 0.1}
    figures["cross"]["share"] = 0.2
    figures["varied"][0]["written"] = None
    assert starting(
        failing("referent"),
        "While the pronoun is written",
        "The sentences known",
        "The pronoun follows its",
        "The pronoun stays the same",
        "In the chosen head, “it” looks",
    )
    figures |= {"right": 1.0, "followed": 1.0, "kept": 1.0, "agreement": 0.99}
    figures["cross"]["share"] = 0.9
    figures["varied"][0]["written"] = figures["varied"][0]["asked"]
    changed_report(monkeypatch, "english")["it"]["moved"] = 0.9
    assert starting(
        failing("referent"), "The translation uses the right", "In a model of English the balance"
    )


def test_the_links_are_those_of_the_grammar():
    for sentence in make_split("test", 60, weights=Weights(attribute=0.6)):
        words = [*sentence.source.replace(",", " ,").replace(".", " .").split(), "<end>"]
        links = links_of(sentence, words)
        made = sentence.derivation
        pairs = {name: [(word, *others) for word, others in those] for name, those in links.items()}
        ((verb, subject),) = pairs["verb to subject"]
        assert words[subject].lower() == made.subject.english
        helpers = ("did", "not", "was", "didn't", "wasn't")
        assert all(word in helpers for word in words[subject + 1 : verb])
        assert words[verb] not in helpers
        told = ((made.subject, made.subject_attribute), (made.object, made.object_attribute))
        described = [noun.english for noun, attribute in told if attribute]
        assert [words[noun].lower() for _, noun in pairs["adjective to noun"]] == described
        ((it, referent),) = pairs["it to referent"]
        assert (words[it].lower(), words[referent].lower()) == ("it", sentence.referent)
    with pytest.raises(DataError, match=r"'animal' of .* is not among the words"):
        links_of(ARTICLE_SENTENCES[0], ["a", "cat"])


def test_both_are_measured_on_a_run(tmp_path, monkeypatch):
    """The translator writes the German of the grammar, and its attention weights are noise."""
    texts = [text for one in make_split("train", 40) for text in (one.source, one.target)]
    tokeniser = Tokeniser.train(texts, 420)
    model = TranslationTransformer(
        TranslationTransformer.Config(vocab_size=tokeniser.vocab_size, dim=16, heads=2)
    )
    model.save(tmp_path, {TOKENISER_FILE: tokeniser.to_json()})
    sentences = [*ARTICLE_SENTENCES, *make_split("test", 4), *make_split("valid", 4)]
    ways = (lambda one: one, swap_referent, swap_other)
    german = {one.source: one.target for way in ways for one in map(way, sentences)}

    def translate(self, lines):
        return [
            SimpleNamespace(text=german[line], ids=self.tokeniser.encode(german[line]))
            for line in lines
        ]

    for one in measure_heads(tmp_path, sentences=4)["relations"].values():
        layer, head = one["chosen"]
        assert one["chosen_share"] == one["shares"][layer][head]
    monkeypatch.setattr(Translator, "translate", translate)
    measured = measure_referent(tmp_path, sentences=4)
    assert measured["right"] == measured["followed"] == measured["kept"] == 1.0
    assert measured["agreement"] <= measured["in_reach"]
    for shown, sentence in zip(measured["cross"]["examples"], ARTICLE_SENTENCES, strict=False):
        assert shown["words"][shown["referent"]] == sentence.referent
        assert sum(shown["weights"]) == pytest.approx(1, abs=0.02)


def test_a_run_that_cannot_be_measured_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        find_lesson("heads").claims({"RUN": "nowhere"}, lenient=True)
    config = RecurrentTranslator.Config(vocab_size=260, dim=4, hidden=4)
    tokeniser = Tokeniser.train(["a street"], 300)
    RecurrentTranslator(config).save(tmp_path, {TOKENISER_FILE: tokeniser.to_json()})
    with pytest.raises(ArgumentError, match="looks at self-attention"):
        find_lesson("referent").claims({"RUN": str(tmp_path)}, lenient=True)
