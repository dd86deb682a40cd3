"""`attach(model, pack=True)`: packed weights in whole models, said in the report, undone by `detach`."""

import copy

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import torch
import transformers as tf
from hugging_face_families import BY_NAME, SIZES

from regard.errors import UnsupportedError
from regard.integrations.transformers import attach, detach, explain
from regard.integrations.transformers import attaching as attaching_module
from regard.layers import pack_weights
from regard.layers.packed import PackedLinear

IDS = torch.randint(3, 98, (2, 9), generator=torch.Generator().manual_seed(2))


def bert(**settings):
    torch.manual_seed(0)
    return tf.BertModel(tf.BertConfig(**{**SIZES, **settings})).eval()


def outputs(model, **inputs):
    with torch.inference_mode():
        return model(IDS, **inputs)[0]


def packed_layers(model):
    return [module for module in model.modules() if isinstance(module, PackedLinear)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_encoder_gives_the_same_numbers_and_names_what_is_packed(dtype):
    model = bert().to(dtype)
    expected = outputs(attach(copy.deepcopy(model)))
    attach(model, pack=True)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(outputs(model), expected, rtol=tolerance, atol=tolerance)
    assert len(packed_layers(model)) == len(model.packed.layers) > 0
    assert model.packed.bytes == sum(
        layer.out_features * layer.in_features * dtype.itemsize for layer in packed_layers(model)
    )
    assert repr(explain(model, IDS)).endswith(f"{model.packed}")


@pytest.mark.parametrize("name", ["T5", "Bloom", "Whisper", "ViT", "Mixtral"])
def test_a_family_gives_the_same_numbers(name):
    """`attach` compares each with itself before it was packed."""
    model = attach(BY_NAME[name].model(), pack=True)
    assert packed_layers(model)
    assert not packed_layers(detach(model))


def test_latent_attention_keeps_its_matrices_plain():
    model = attach(BY_NAME["DeepSeek-V3"].model(), pack=True)
    left = {name: why for name, why in model.packed.plain.items() if name.endswith("kv_b_proj")}
    assert set(left.values()) == {"latent attention multiplies queries by its matrix"}


def test_generated_ids_are_the_same():
    model = attach(BY_NAME["Llama"].model())
    options = {"max_new_tokens": 7, "do_sample": False}
    expected = model.generate(IDS, **options)
    attach(model, pack=True)
    assert torch.equal(model.generate(IDS, **options), expected)


def test_detach_gives_the_plain_weights_back():
    model = bert()
    before = {name: x.clone() for name, x in model.named_parameters()}
    state = model.state_dict()
    attach(model, pack=True)
    assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items())
    detach(model)
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert "packed" not in vars(model)
    assert outputs(model).isfinite().all()
    model(IDS)[0].sum().backward()
    assert after["encoder.layer.0.attention.self.query.weight"].grad is not None


def test_packed_weights_are_saved_and_loaded(tmp_path):
    model = attach(bert(), pack=True)
    expected = outputs(model)
    model.save_pretrained(tmp_path)
    other = attach(tf.BertModel.from_pretrained(tmp_path), pack=True)
    torch.testing.assert_close(outputs(other), expected)


def test_copies_of_a_packed_model_are_packed():
    model = attach(bert(), pack=True)
    other = copy.deepcopy(model)
    assert len(packed_layers(other)) == len(packed_layers(model))
    torch.testing.assert_close(outputs(other), outputs(model))


def test_a_model_that_trains_is_refused_and_stays_as_it_was():
    model = bert().train()
    with pytest.raises(UnsupportedError, match=r"in training mode.*\.eval\(\)"):
        attach(model, pack=True)
    assert model.config._attn_implementation == "sdpa"
    attach(model.eval(), pack=True)
    with pytest.raises(UnsupportedError, match="packed weights give no gradients"):
        model(IDS)


def test_a_model_whose_numbers_change_is_refused_and_stays_as_it_was(monkeypatch):
    def packs_wrongly(model):
        packed = pack_weights(model)
        with torch.no_grad():
            packed_layers(model)[-2].weight.mul_(1.5)  # the last layer's output
        return packed

    monkeypatch.setattr(attaching_module, "pack_weights", packs_wrongly)
    model = bert()
    with pytest.raises(UnsupportedError, match="BertModel differs with packed weights in last_hid"):
        attach(model, pack=True)
    assert model.config._attn_implementation == "sdpa"
    assert not packed_layers(model)
