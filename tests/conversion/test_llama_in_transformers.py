"""Where transformers is installed: a converted folder loads there, and gives the logits of the repeated heads."""

import pytest
import torch

from regard.conversion import convert_kv_heads

KINDS = {"Llama": {"attention_bias": True}, "Mistral": {"sliding_window": 5}, "Qwen2": {}, "Qwen3": {}}
SIZES = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 8,
    "head_dim": 6, "max_position_embeddings": 64,
}  # fmt: skip


def drawn(transformers, kind, **settings):
    """A model whose logits are far from flat, so that wrong heads show."""
    config = getattr(transformers, f"{kind}Config")(**SIZES, **KINDS[kind], **settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("shard_size", ["10MB", "20KB"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_folder_gives_the_logits_of_the_repeated_heads(tmp_path, kind, groups, shard_size):
    transformers = pytest.importorskip("transformers")
    model = drawn(transformers, kind, num_key_value_heads=8)
    model.save_pretrained(tmp_path / "in", max_shard_size=shard_size)
    assert (tmp_path / "in" / "model.safetensors.index.json").exists() == (shard_size == "20KB")
    report = convert_kv_heads(tmp_path / "in", tmp_path / "out", groups)

    ids = torch.randint(4, 61, (3, 11))
    with torch.no_grad():
        before = model(ids).logits
        for layer in model.model.layers:
            for part in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                for tensor in part.parameters():
                    heads = tensor.view(groups, 8 // groups, 6, -1)
                    heads.copy_(heads.mean(1, keepdim=True).expand_as(heads))
        expected = model(ids).logits
        converted = getattr(transformers, f"{kind}ForCausalLM").from_pretrained(tmp_path / "out", dtype=torch.float64)
        found = converted.eval()(ids, use_cache=True)
    torch.testing.assert_close(found.logits, expected, rtol=1e-10, atol=1e-10)
    assert (before - expected).abs().max() > 0.1
    kept = sum(
        x.numel() * x.element_size() for layer in found.past_key_values.layers for x in (layer.keys, layer.values)
    )
    if kind != "Mistral":  # whose cache forgets what its window has passed
        assert kept == 3 * 11 * report.kv_bytes["token"].after


def test_heads_repeated_change_no_logit(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = drawn(transformers, "Qwen2", num_key_value_heads=2)
    model.save_pretrained(tmp_path / "in")
    convert_kv_heads(tmp_path / "in", tmp_path / "out", 8)
    more = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float64).eval()
    ids = torch.randint(4, 61, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(more(ids).logits, model(ids).logits, rtol=1e-12, atol=1e-12)
