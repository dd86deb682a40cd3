"""A whole Transformer, step by step: every line runs, every layer is the model's own, and what is shown is short."""

import shlex

import pytest
import torch
from walk_cases import SENTENCE, SIZES, SOURCE, TEXT, TOKENISER, check_lines, saved

from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.layers import record_attention
from regard_lab.models import (
    EncoderConfig,
    LanguageConfig,
    LanguageModel,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.models.recurrent import RecurrentTranslator
from regard_lab.text import BEGIN, END
from regard_lab.walkthrough import stacks, walk_whole
from regard_lab.walkthrough.steps import LIMIT
from regard_lab.walkthrough.walks import walk_whole_run

CONTEXT = "Das Leben ist kurz"
WHOLE = {
    "decoder": {},
    "encoder": {"model": "encoder", "positions": "learned", "word": 3},
    "encoder-decoder": {"context": CONTEXT, "words": "letters", "layers": 1},
    "grouped and rotary": {
        "heads": 4,
        "kv_heads": 2,
        "dim": 16,
        "positions": "rotary",
        "layers": 1,
    },
    "rotary across": {"context": CONTEXT, "positions": "rotary", "layers": 1, "kv_heads": 1},
}


def run_of(model, folder, seed=0):
    """A saved model whose weights, biases and norms included, are drawn."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return saved(model, folder)


def ids_of(text, opens=False, closes=False):
    return torch.tensor(
        [[*([BEGIN] if opens else []), *TOKENISER.encode(text), *([END] if closes else [])]]
    )


@pytest.mark.parametrize("name", WHOLE)
def test_lines_give_every_step_and_every_layer_is_compared_with_the_model(name):
    walkthrough = walk_whole(SENTENCE, **WHOLE[name])
    check_lines(walkthrough)
    assert len({step.name for step in walkthrough.steps}) == len(
        walkthrough.steps
    )  # no name is used twice
    layers = WHOLE[name].get("layers", 2)
    expected = {
        "encoder": layers + 2,
        "encoder-decoder": 2 * layers + 2,
        "rotary across": 2 * layers + 2,
    }
    assert len(walkthrough.checks) == expected.get(name, layers + 1)
    assert max(check.difference for check in walkthrough.checks) < 1e-9
    assert any(check.line.startswith("model(") for check in walkthrough.checks)


def test_the_parts_of_the_paper_are_all_there():
    walkthrough = walk_whole(SENTENCE, context=CONTEXT)
    titles = {step.title for step in walkthrough.steps}
    assert {
        "Residual",
        "Norm",
        "Feed-forward: hidden layer",
        "Masked self-attention: mask",
        "Distribution",
    } <= titles
    assert {"Self-attention: heads joined", "Cross-attention: heads joined"} <= titles
    sections = list(dict.fromkeys(step.section for step in walkthrough.steps))
    assert [name for name in sections if "layer" in name] == [
        "Encoder, layer 0 of 2 layers",
        "Encoder, layer 1 of 2 layers",
        "Decoder, layer 0 of 2 layers",
        "Decoder, layer 1 of 2 layers",
    ]
    torch.testing.assert_close(walkthrough["h0a"], walkthrough["h0"] + walkthrough["attended_e0"])
    torch.testing.assert_close(
        walkthrough["probabilities"].sum(-1), torch.ones(8, dtype=torch.float64)
    )
    assert bool((walkthrough["weights_d0"].triu(1) == 0).all())
    # <begin> and 7 units of the text, by 4 words and <end>
    assert walkthrough["weights_c0"].shape == (
        2,
        8,
        5,
    )


@pytest.mark.each_value
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu-tanh", "silu", "swiglu", "geglu"])
@pytest.mark.parametrize(("norm", "biases", "tied"), [("rms", False, True), ("layer", True, False)])
def test_a_trained_language_model(tmp_path, activation, norm, biases, tied):
    positions = {"relu": "alibi", "gelu": "learned", "silu": "rotary", "swiglu": "none"}.get(
        activation, "sinusoidal"
    )
    config = LanguageConfig(
        **SIZES,
        heads=3,
        kv_heads=1,
        layers=2,
        positions=positions,
        pattern=("full", "causal_window(3)"),
        norm=norm,
        biases=biases,
        tied=tied,
        activation=activation,
    )
    model = LanguageModel(config)
    walkthrough = walk_whole_run(run_of(model, tmp_path / "run"), TEXT)
    with torch.no_grad(), record_attention(model.double().eval()) as recording:
        scores = model(ids_of(TEXT, opens=True))[0]
    torch.testing.assert_close(walkthrough["scores"], scores, rtol=0, atol=1e-6)
    for layer in (0, 1):
        weights = recording[f"blocks.{layer}.attention"][0].weights[0]
        torch.testing.assert_close(walkthrough[f"weights_{layer}"], weights, rtol=0, atol=1e-6)
    best = scores.softmax(-1)[-1].topk(5)
    assert walkthrough.word == len(walkthrough.words) - 1
    assert walkthrough["likeliest"] == tuple(TOKENISER.pieces(best.indices.tolist()))
    torch.testing.assert_close(walkthrough["chances"], best.values, rtol=0, atol=1e-6)


def test_patterns_by_head_and_words_that_may_look_at_nothing(tmp_path):
    config = LanguageConfig(
        **SIZES, heads=2, layers=1, pattern="per_head(causal_window(2), full) & ~key_set(0)"
    )
    walkthrough = walk_whole_run(run_of(LanguageModel(config), tmp_path / "run"), TEXT)
    assert not walkthrough["contexts_0"][:, 0].any()


@pytest.mark.parametrize(
    ("head", "options"),
    [
        ("words", {"tied": True}),
        ("words", {"tied": False}),
        ("classes", {"classes": 3}),
        ("classes", {"classes": 3, "pooling": "first"}),
        ("none", {}),
    ],
)
def test_a_trained_text_encoder(tmp_path, head, options):
    config = EncoderConfig(**SIZES, heads=2, layers=2, positions="learned", head=head, **options)
    model = TextEncoder(config)
    walkthrough = walk_whole_run(run_of(model, tmp_path / "run"), TEXT, word="animal")
    with torch.no_grad():
        expected = model.double().eval()(ids_of(TEXT, opens=True, closes=True))[0]
    torch.testing.assert_close(
        walkthrough["final" if head == "none" else "scores"], expected, rtol=0, atol=1e-6
    )
    assert walkthrough.chosen == "animal"


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("cross", ["full", "sliding_window(4)"])
def test_a_trained_translator(tmp_path, norm, cross):
    config = TranslationTransformer.Config(
        **SIZES,
        heads=3,
        encoder_layers=2,
        decoder_layers=1,
        norm=norm,
        tied=norm == "pre",
        cross_pattern=cross,
        cross_kv_heads=1,
    )
    model = TranslationTransformer(config)
    walkthrough = walk_whole_run(run_of(model, tmp_path / "run"), TEXT, context=SOURCE)
    with torch.no_grad():
        expected = model.double().eval()(ids_of(SOURCE, closes=True), ids_of(TEXT, opens=True))[0]
    torch.testing.assert_close(walkthrough["scores"], expected, rtol=0, atol=1e-6)
    check_lines(walkthrough)
    assert walkthrough.context == tuple(TOKENISER.pieces(ids_of(SOURCE, closes=True)[0].tolist()))


def test_a_line_that_is_not_the_model_s_raises(monkeypatch):
    monkeypatch.setitem(stacks.ACTIVATED, "relu", "torch.relu({}) * 1.00001")
    with pytest.raises(RegardError, match=r"model\.blocks\[0\].* and the step h1 differ by"):
        walk_whole(SENTENCE)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "gpt"}, "there are decoder, encoder, encoder-decoder"),
        ({"model": "decoder", "context": "a"}, "an encoder-decoder reads a context"),
        ({"model": "encoder-decoder"}, "an encoder-decoder reads a context"),
        ({"heads": 3}, "multiple of heads, 3"),
        ({"positions": "none"}, "there are sinusoidal, rotary, learned"),
        ({"layers": 0}, "layers is 0"),
        ({"word": 99}, "the text has words 1 to 8"),
        ({"words": "some"}, "there are all, letters"),
    ],
)
def test_what_does_not_go_together_is_refused(options, said):
    with pytest.raises(ArgumentError, match=said):
        walk_whole(SENTENCE, **options)


def test_what_a_walk_of_a_run_cannot_show_is_refused(tmp_path):
    run = saved(LanguageModel(LanguageConfig(**SIZES, heads=2, layers=1)), tmp_path / "run")
    with pytest.raises(ArgumentError, match="leave the context out"):
        walk_whole_run(run, TEXT, context=SOURCE)
    translator = TranslationTransformer(TranslationTransformer.Config(**SIZES, heads=2))
    run = saved(translator, tmp_path / "trans lator")
    with pytest.raises(ArgumentError, match="give the source sentence as --context") as refused:
        walk_whole_run(run, "it's late")
    typed = shlex.split(str(refused.value).partition("translation so far: ")[2])
    assert typed == ["regard", "walkthrough", "Das", "--context", "it's late", "--run", str(run)]
    assert walk_whole_run(run, typed[2], context=typed[4])["probabilities"].isfinite().all()
    with pytest.raises(ArgumentError, match="has no words"):
        walk_whole_run(tmp_path / "run", "  ")
    with pytest.raises(ArgumentError, match=f"at most {LIMIT} words"):
        walk_whole_run(tmp_path / "run", "the animal " * 100)
    linear = LanguageModel(
        LanguageConfig(**SIZES, heads=2, layers=1, mechanism="linear", positions="none")
    )
    with pytest.raises(UnsupportedError, match="a walkthrough needs softmax attention"):
        walk_whole_run(saved(linear, tmp_path / "linear"), TEXT)
    recurrent = RecurrentTranslator(
        RecurrentTranslator.Config(vocab_size=TOKENISER.vocab_size, dim=8)
    )
    with pytest.raises(UnsupportedError, match="a walkthrough needs a language-model"):
        walk_whole_run(saved(recurrent, tmp_path / "recurrent"), TEXT)
    with pytest.raises(RegardError):
        walk_whole_run(tmp_path / "nothing", TEXT)
