"""Calibration of Hugging Face folders: the moments are those of the inputs of each layer in transformers' model."""

import pytest
import torch
from families import FAMILIES, HEAD_DIM, HEADS, LAYERS, drawn, heads_of

from regard.errors import ArgumentError, NotFoundError
from regard_lab.conversion import convert_kv_heads
from regard_lab.conversion.folder_conversion import moments_of_folder, row_ids
from regard_lab.conversion.model_folders import ModelFolder

transformers = pytest.importorskip("transformers")
IDS = torch.randint(4, 61, (3, 11), generator=torch.Generator().manual_seed(1))


def new_folder(tmp_path, family, **settings):
    few = {} if family.split()[0] in ("gpt_neox", "gpt2", "opt") else {"num_key_value_heads": HEADS}
    model = drawn(transformers, family, **{**few, **settings}).float()
    model.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    return model


@pytest.mark.parametrize("family", [name for name in FAMILIES if " " not in name])
def test_the_moments_are_those_of_the_whole_model(tmp_path, family):
    model = new_folder(tmp_path, family)
    seen = {}
    source = ModelFolder(tmp_path / "in")
    for number, name in source.layers.items():
        query = model.get_submodule(f"{name}.{source.layout.q}")
        query.register_forward_pre_hook(lambda _, inputs, number=number: seen.update({number: inputs[0].flatten(0, 1)}))
    with torch.no_grad():
        model(IDS)
    moments = moments_of_folder(source, lambda loaded: loaded(IDS))
    assert len(moments) == LAYERS
    for number, moment in moments.items():
        x = torch.cat([seen[number], torch.ones(33, 1)], 1).double()
        expected = x.T @ x / 33
        torch.testing.assert_close(moment, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@torch.no_grad()
def test_a_text_groups_the_heads_that_it_makes_alike(tmp_path):
    """Heads that agree on the inputs of the text, and differ elsewhere, are merged without loss on it only with it."""
    model = drawn(transformers, "llama", num_key_value_heads=HEADS, num_hidden_layers=1)
    rows = model.model.embed_tokens.weight
    rows[:, 4:] = 0  # inputs have 4 numbers; what heads do with the others is not seen
    for layer in heads_of(model, "llama"):
        for weight in (layer.k[0], layer.v[0]):
            copies = weight[:2, :, :4].clone()
            for head in range(HEADS):
                weight[head, :, :4] = copies[head % 2]
                weight[head, :, 4:] = 100 * weight[head // 4, :, 4:]  # neighbours agree on what is not seen
        for bias in (layer.k[1], layer.v[1]):
            bias.zero_()
    model.save_pretrained(tmp_path / "in")
    expected = model(IDS).logits
    found = {}
    for out, calibration in (("text", lambda one: one(IDS)), ("none", None)):
        report = convert_kv_heads(tmp_path / "in", tmp_path / out, 2, method="align", calibration=calibration)
        few = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / out, dtype=torch.float64).eval()
        found[out] = float((few(IDS).logits - expected).abs().max())
        assert report.method == "align"
    assert found["text"] < 1e-6 < 1e-2 < found["none"]
    assert HEAD_DIM == 6


def test_what_cannot_be_calibrated_is_refused(tmp_path):
    new_folder(tmp_path, "llama")
    with pytest.raises(ArgumentError, match=r"the calibration did not run 'layers\.0\.self_attn\.q_proj' of the model"):
        convert_kv_heads(tmp_path / "in", tmp_path / "out", 2, calibration=lambda model: None)
    with pytest.raises(ArgumentError, match="a function that runs the model"):
        convert_kv_heads(tmp_path / "in", tmp_path / "out", 2, calibration="text")
    with pytest.raises(NotFoundError, match="has no tokeniser that transformers can read"):
        row_ids(tmp_path / "in", "text")
    assert not (tmp_path / "out").exists()
