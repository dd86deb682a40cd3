"""A walk through a trained model shows what the model itself does: the same weights, layer by layer."""

import pytest
import torch
from walk_cases import SIZES, SOURCE, TEXT, TOKENISER, check_lines, saved

from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.layers import record_attention
from regard_lab.models import EncoderConfig, LanguageConfig, LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.models.recurrent import RecurrentTranslator
from regard_lab.text import BEGIN, END
from regard_lab.walkthrough import LIMIT, walk_run


def recorded(model, *inputs):
    with torch.no_grad(), record_attention(model) as recording:
        model.double().eval()(*(torch.tensor([ids]) for ids in inputs))
    return recording


def check(found, weights):
    """A walk's weights of all heads, and of the one that is followed, are those of the model."""
    heads = found["all_weights"] if len(weights) > 1 else found["weights"][None]
    torch.testing.assert_close(heads, weights, rtol=0, atol=1e-6)
    torch.testing.assert_close(found["weights"], weights[found.settings["head"]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("positions", ["rotary", "alibi", "learned", "sinusoidal", "none"])
@pytest.mark.parametrize("layer", [0, 2])
def test_a_language_model(tmp_path, positions, layer):
    config = LanguageConfig(
        **SIZES, heads=3, kv_heads=1, layers=3, positions=positions, pattern=("full", "causal_window(3)"), biases=True
    )
    model = LanguageModel(config)
    run = saved(model, tmp_path / "run")
    found = walk_run(run, TEXT, layer=layer, head=1, word="animal")
    ids = [BEGIN, *TOKENISER.encode(TEXT)]
    assert found.words == tuple(TOKENISER.pieces(ids))
    assert found.chosen == "animal"
    check(found, recorded(model, ids)[f"blocks.{layer}.attention"][0].weights[0])


def test_a_pattern_for_each_head_and_words_that_may_look_at_nothing(tmp_path):
    pattern = "per_head(causal_window(2), full) & ~key_set(0)"
    model = LanguageModel(LanguageConfig(**SIZES, heads=2, layers=1, pattern=pattern))
    run = saved(model, tmp_path / "run")
    weights = recorded(model, [BEGIN, *TOKENISER.encode(TEXT)])["blocks.0.attention"][0].weights[0]
    assert not weights[:, 0].any()
    for head in (0, 1):
        found = walk_run(run, TEXT, head=head)
        check(found, weights)
        assert not found["contexts"][0].any()


@pytest.mark.parametrize("positions", ["rotary", "alibi", "learned", "sinusoidal", "none"])
def test_a_text_encoder(tmp_path, positions):
    pattern = "sliding_window(2) | global_tokens(0)"
    config = EncoderConfig(**SIZES, heads=2, layers=2, positions=positions, pattern=pattern)
    model = TextEncoder(config)
    found = walk_run(saved(model, tmp_path / "run"), TEXT, layer=1)
    check(found, recorded(model, [BEGIN, *TOKENISER.encode(TEXT), END])["blocks.1.attention"][0].weights[0])


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_translator_s_encoder_and_its_look_at_the_source(tmp_path, norm, layer):
    config = TranslationTransformer.Config(
        **SIZES, heads=3, encoder_layers=2, decoder_layers=2, norm=norm, tied=norm == "pre", decoder_pattern="full"
    )
    model = TranslationTransformer(config)
    run = saved(model, tmp_path / "run")
    source, target = [*TOKENISER.encode(SOURCE), END], [BEGIN, *TOKENISER.encode(TEXT)]
    recording = recorded(model, source, target)
    check(walk_run(run, SOURCE, layer=layer), recording[f"encoder.{layer}.attention"][0].weights[0])
    found = walk_run(run, TEXT, context=SOURCE, layer=layer, head=2)
    assert found.context == tuple(TOKENISER.pieces(source))
    check(found, recording[f"decoder.{layer}.cross_attention"][0].weights[0])


def test_lines_of_a_run_typed_one_after_the_other_give_every_step(tmp_path):
    model = TranslationTransformer(TranslationTransformer.Config(**SIZES, heads=3, encoder_layers=2, decoder_layers=2))
    check_lines(walk_run(saved(model, tmp_path / "run"), TEXT, context=SOURCE, layer=1))


def test_what_a_walk_cannot_show_is_refused(tmp_path):
    run = saved(LanguageModel(LanguageConfig(**SIZES, heads=2, layers=1)), tmp_path / "run")
    for options, said in (
        ({"layer": 1}, "layers 0 to 0"),
        ({"head": 2}, "heads 0 to 1"),
        ({"context": SOURCE}, "reads a single text"),
        ({"word": 100}, "has words 1 to"),
    ):
        with pytest.raises(ArgumentError, match=said):
            walk_run(run, TEXT, **options)
    with pytest.raises(ArgumentError, match="has no words"):
        walk_run(run, "  ")
    with pytest.raises(ArgumentError, match=f"at most {LIMIT} words"):
        walk_run(run, "the animal " * 100)
    linear = LanguageModel(LanguageConfig(**SIZES, heads=2, layers=1, mechanism="linear", positions="none"))
    with pytest.raises(UnsupportedError, match="a walkthrough needs softmax attention"):
        walk_run(saved(linear, tmp_path / "linear"), TEXT)
    recurrent = RecurrentTranslator(RecurrentTranslator.Config(vocab_size=TOKENISER.vocab_size, dim=8))
    with pytest.raises(UnsupportedError, match="a walkthrough needs a language-model"):
        walk_run(saved(recurrent, tmp_path / "recurrent"), TEXT)
    with pytest.raises(RegardError):
        walk_run(tmp_path / "nothing", TEXT)
