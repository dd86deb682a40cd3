"""Quantised caches, chunked prompts, assistants, checkpoints and compiled training give eager attention's numbers."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'regard[transformers]'")

import hugging_face_checks as checks
import torch
import transformers as tf
from hugging_face_families import BY_NAME, VOCAB
from transformers_versions import CACHE

from regard.integrations.transformers import attach, explain, observe

IDS = torch.randint(3, VOCAB, (3, 20), generator=torch.Generator().manual_seed(8))
LIVE = torch.ones(3, 20, dtype=torch.long)
LIVE[0, :6], LIVE[1, :1] = 0, 0


class Int8(tf.cache_utils.QuantizedLayer):
    """transformers' own cache for quantised keys and values, in 8 bits with one scale for each row."""

    def _quantize(self, tensor, axis):
        scale = tensor.abs().amax(-1, keepdim=True) / 127
        return (tensor / scale).round().to(torch.int8), scale

    def _dequantize(self, stored):
        return stored[0] * stored[1]


def quantised(model):
    cache = tf.DynamicCache(config=model.config)
    cache.layers = [Int8(residual_length=4) for _ in cache.layers or range(model.config.num_hidden_layers)]
    return cache


def test_a_quantised_cache_gives_the_logits_of_eager_attention_and_rounds():
    family = BY_NAME["Llama"]
    model = family.model()

    def run(cache):
        for start in (0, 8, 14):  # the second part is quantised, the third reads what was stored
            part = slice(start, {0: 8, 8: 14, 14: 20}[start])
            logits = model(IDS[:, part], attention_mask=LIVE[:, : part.stop], **{CACHE: cache}).logits
        return logits

    expected, found = checks.both(family, model, lambda: run(quantised(model)))
    assert checks.farthest(found, expected) <= checks.TOLERANCE
    with torch.no_grad():
        exact = run(tf.DynamicCache(config=model.config))
    assert 1e-4 < checks.farthest(found, exact) < 1.0


@pytest.mark.parametrize("name", ["Mistral", "gpt-oss"])
def test_a_prompt_that_generate_reads_in_chunks(name):
    family = BY_NAME[name]
    model = family.model()
    given = {"attention_mask": LIVE, "max_new_tokens": 8, "do_sample": False, "disable_compile": True}
    expected, found = checks.both(family, model, lambda: model.generate(IDS, prefill_chunk_size=6, **given))
    assert torch.equal(expected, found)
    with torch.no_grad(), observe(model, "log_sum_exp", layers=0) as observed:
        whole = model.generate(IDS, prefill_chunk_size=6, **given)
    assert torch.equal(whole, found)
    assert [call.q_len for call in observed.calls][:4] == [6, 6, 6, 2]


@pytest.mark.parametrize("name", ["Llama", "Gemma 2"])
def test_a_model_with_an_assistant_writes_what_it_writes_alone(name):
    family, assistant = BY_NAME[name], BY_NAME["GPT-2"].model()
    model = family.model()
    given = {"max_new_tokens": 12, "do_sample": False}
    alone, found = checks.both(family, model, lambda: model.generate(IDS[1:2, 1:], **given))
    assert torch.equal(alone, found)
    attach(assistant)
    with torch.no_grad(), observe(model, "log_sum_exp", layers=0) as observed:
        assisted = model.generate(IDS[1:2, 1:], assistant_model=assistant, **given)
    assert torch.equal(assisted, alone)
    assert max(call.q_len for call in observed.calls[1:]) > 1  # several ids of the assistant in one call


@pytest.mark.parametrize("name", ["Mistral", "BERT", "T5"])
def test_checkpointed_gradients_are_those_of_eager_attention(name):
    """Not only those of regard without checkpoints."""
    family = BY_NAME[name]
    model = family.model()
    expected = checks._gradients(family, model, "eager")
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for rate in ("dropout", "attention_dropout", "dropout_rate"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    checks.switch_checkpointing(model, "enable")
    assert checks._relative(checks._gradients(family, model, "regard"), expected) <= checks.GRADIENTS


@pytest.mark.parametrize("name", ["Gemma 2", "BERT"])
def test_a_compiled_model_has_the_gradients_of_eager_attention(name):
    family = BY_NAME[name]
    model = family.shallow()
    given = {"input_ids": IDS, "attention_mask": LIVE} | ({"use_cache": False} if name != "BERT" else {})
    chosen = torch.randn(3, 20, VOCAB, generator=torch.Generator().manual_seed(9)) * LIVE[..., None]

    def gradients(run):
        model.zero_grad()
        output = checks.output_of(run, given)
        (output * chosen[..., : output.shape[-1]]).sum().backward()
        return {key: one.grad.clone() for key, one in model.named_parameters() if one.grad is not None}

    checks.use(family, model, "eager")
    expected = gradients(model)
    checks.use(family, model, "regard")
    torch._dynamo.reset()
    assert checks._relative(gradients(torch.compile(model, backend="aot_eager")), expected) <= checks.GRADIENTS
    assert explain(model, given).silent == ()


@pytest.mark.parametrize("name", ["ViT", "T5", "Marian"])
def test_a_compiled_model_has_the_outputs_of_eager_attention(name):
    """Without masks, with a bias by distance, and with masks of two sequences: one graph each, forward."""
    family = BY_NAME[name]
    model = family.model()
    inputs, live = checks.inputs_of(family, "right" if "right" in checks.paddings_of(family) else "none")
    given = inputs | ({} if name == "ViT" else {"use_cache": False})
    checks.use(family, model, "eager")
    graphs = []

    def counting(graph, _):
        graphs.append(sum("regard.attention" in str(node.target) for node in graph.graph.nodes))
        return graph

    with torch.no_grad():
        expected = checks.output_of(model, given)
        checks.use(family, model, "regard")
        layers = len(explain(model, given).calls)
        torch._dynamo.reset()
        found = checks.output_of(torch.compile(model, backend=counting, fullgraph=True), given)
    assert graphs == [layers]
    assert checks.farthest(found, expected, live) <= checks.TOLERANCE
