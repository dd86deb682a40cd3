"""A language model's config says GPT-2 and Llama exactly, and refuses what cannot be."""

from __future__ import annotations

import json

import pytest
import torch
from language_by_formulas import scores
from language_models import GPT2, KINDS, SIZES, language_model

import regard as rg
from regard_lab.models import LanguageConfig, LanguageModel

GROUPED = {**SIZES, "dim": 24, "heads": 4, "kv_heads": 2, "layers": 3}


@pytest.mark.parametrize("style", ["gpt2", "llama", "alibi"])
def test_a_model_computes_what_its_papers_write(style):
    torch.manual_seed(5)
    choices = {"gpt2": GPT2, "llama": {"tied": False}, "alibi": {"positions": "alibi"}}[style]
    model = LanguageModel(LanguageConfig(**GROUPED, **choices)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        found = model(torch.tensor([[5, 6, 22, 7, 1]]))[0]
    weights = {name: one.numpy() for name, one in model.state_dict().items()}
    expected = scores(weights, [5, 6, 22, 7, 1], heads=4, kv_heads=2, style=style)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("choices", "count"),
    [
        # 2 · 23 · 24 embeddings and scores; 3 · (q 24², k and v 24 · 12, out 24²; 3 · 24 · 13; two norms), last norm
        ({"tied": False}, 2 * 23 * 24 + 3 * (2 * 24 * 24 + 2 * 24 * 12 + 3 * 24 * 13 + 2 * 24) + 24),
        # 23 · 24 embeddings, 1024 · 24 places; everything has biases
        (GPT2, (23 + 1024) * 24 + 3 * (2 * 25 * 24 + 2 * 25 * 12 + 25 * 13 + 14 * 24 + 4 * 24) + 2 * 24),
    ],
)
def test_the_parameters_are_those_of_the_architecture(choices, count):
    model = LanguageModel(LanguageConfig(**GROUPED, **choices))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_is_the_same(tmp_path, kind):
    model = language_model(kind)
    model.save(tmp_path / "model")
    loaded = LanguageModel.load(tmp_path / "model")
    ids = torch.tensor([[5, 6, 3, 9, 9]])
    assert loaded.config == model.config
    assert torch.equal(loaded(ids), model(ids))
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert not loaded.training


def test_a_config_goes_through_json():
    config = LanguageConfig(**SIZES, pattern=["causal_window(4)", "full"], mechanism=("softmax", "softmax"))
    again = LanguageConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)
    assert config.pattern == ("causal_window(4)", "full")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 21}, "multiple of heads, 2"),
        ({"kv_heads": 3}, "kv_heads is 3"),
        ({"kv_heads": 0}, "kv_heads is 0"),
        ({"dim": 14, "positions": "rotary"}, "head_dim is 7; it must be even"),
        ({"dim": 21, "head_dim": 4, "positions": "sinusoidal"}, "dim is 21; it must be even"),
        ({"positions": "absolute"}, "rotary, alibi, learned"),
        ({"norm": "batch"}, "rms, layer"),
        ({"activation": "swish"}, "swiglu"),
        ({"pattern": "cuasal"}, "there is no pattern 'cuasal'"),
        ({"pattern": ()}, "pattern has 0 texts"),
        ({"pattern": ("full",) * 3}, "3 texts for 2 layers"),
        ({"pattern": "random_blocks(1, block=2, seed=0)"}, "past=true"),
        ({"pattern": "per_head(causal, full, causal)"}, "3"),
        ({"mechanism": "softmx"}, "there is no mechanism 'softmx'; .*softmax"),
        ({"mechanism": "linformer(length=9, rank=2)"}, "mixes all positions"),
        ({"mechanism": "linear", "pattern": "causal_window(4)"}, "takes Full, Causal"),
        ({"mechanism": ("softmax", "linear"), "positions": "alibi"}, "has no bias"),
        ({"mechanism": "linear", "attention_dropout": 0.1}, "has no dropout"),
        ({"mechanism": "lsh", "kv_heads": 1}, "kv_heads must be heads, 2"),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"epsilon": 0}, "epsilon is 0"),
        ({"rotary_base": "10000"}, "rotary_base is '10000'"),
        ({"tied": 1}, "tied is 1"),
        ({"layers": True}, "layers is True"),
    ],
)
def test_a_config_that_cannot_be_is_refused_with_its_numbers(changes, words):
    with pytest.raises(rg.RegardError, match=words):
        LanguageConfig(**{**SIZES, **changes})


def test_weights_of_another_config_are_refused_before_memory_is_taken(tmp_path):
    from regard_lab.models import save_model

    model = language_model("llama")
    for wrong in ({"dim": 40}, {"colour": 1}, {"vocab_size": 10**12}, {"mechanism": "os.system"}, {"pattern": 3}):
        save_model(tmp_path / "model", {**model.config.to_dict(), **wrong}, model.state_dict(), LanguageModel.KIND)
        with pytest.raises(rg.CheckpointError, match="config"):
            LanguageModel.load(tmp_path / "model")
