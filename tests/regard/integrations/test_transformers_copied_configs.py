"""Modules that hold their own copy of a config call regard too, since `attach` sets the copies."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'regard[transformers]'")

from types import SimpleNamespace

import torch
import transformers as tf
from transformers import PreTrainedConfig

import regard as rg
from regard.integrations.transformers import attach, detach, explain
from regard.integrations.transformers.modules import attention_modules

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGE = SIZES | {"image_size": 32, "patch_size": 8}
TEXT = SIZES | {"vocab_size": 99, "projection_dim": 32}
DECODER = {
    "decoder_hidden_size": 32, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 4,
    "decoder_intermediate_size": 64,
}  # fmt: skip
FRAMES = {"num_frames": 2, "mit_hidden_size": 32, "mit_intermediate_size": 64, "mit_num_hidden_layers": 1,
          "mit_num_attention_heads": 4}  # fmt: skip
IDS = torch.randint(3, 98, (2, 7), generator=torch.Generator().manual_seed(2))


def pixels(*shape):
    return torch.randn(*shape, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def video_mae():
    return tf.VideoMAEForPreTraining(tf.VideoMAEConfig(**IMAGE, **DECODER, num_frames=4))


def clip_seg():
    sizes = {"projection_dim": 32, "reduce_dim": 16, "extract_layers": [0, 1], "decoder_num_attention_heads": 4}
    config = tf.CLIPSegConfig(text_config=TEXT, vision_config=IMAGE, decoder_intermediate_size=32, **sizes)
    return tf.CLIPSegForImageSegmentation(config)


CASES = {
    "ViTMAE": (
        lambda: tf.ViTMAEForPreTraining(tf.ViTMAEConfig(**IMAGE, **DECODER)),
        {"pixel_values": pixels(2), "noise": torch.rand(2, 16, generator=torch.Generator().manual_seed(4))},
    ),
    "VideoMAE": (
        video_mae, {"pixel_values": pixels(2, 4), "bool_masked_pos": (torch.arange(32) % 2 == 0).expand(2, 32)},
    ),
    "CLIPSeg": (clip_seg, {"pixel_values": pixels(2), "input_ids": IDS}),
    "X-CLIP": (
        lambda: tf.XCLIPModel(tf.XCLIPConfig(text_config=TEXT, vision_config=IMAGE | FRAMES, projection_dim=32)),
        {"pixel_values": pixels(2, 2), "input_ids": IDS},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    tf.logging.set_verbosity_error()


def model_of(name):
    torch.manual_seed(0)
    model = CASES[name][0]()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval(), CASES[name][1]


def implementations(model):
    """The implementation that each module reads from its config, by name."""
    held = {name: getattr(module, "config", None) for name, module in model.named_modules()}
    return {name: one._attn_implementation for name, one in held.items() if isinstance(one, PreTrainedConfig)}


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_every_layer_calls_regard_and_gives_the_numbers_of_the_models_own_attention(name):
    model, inputs = model_of(name)
    before = implementations(model)
    expected = model(**inputs)[0]
    explained = explain(attach(model), inputs)
    assert explained.silent == ()
    assert {call.layer for call in explained.calls} == set(attention_modules(model))
    assert set(implementations(model).values()) == {"regard"}
    assert float((model(**inputs)[0] - expected).abs().max()) <= 1e-5
    assert implementations(detach(model)) == before
    assert torch.equal(model(**inputs)[0], expected)


@pytest.mark.parametrize("name", ["ViTMAE"])
def test_a_copy_that_cannot_be_set_is_refused_and_nothing_changes(name):
    model, _ = model_of(name)
    model.decoder.decoder_layers[1].attention.config = SimpleNamespace(_attn_implementation="sdpa")
    before = implementations(model)
    with pytest.raises(rg.UnsupportedError, match="cannot be set on ViTMAEAttention inside of ViTMAEForPreTraining"):
        attach(model)
    assert implementations(model) == before
