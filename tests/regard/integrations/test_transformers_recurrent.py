"""The recurrent layers of hybrid models: numbers, caches and gradients are those of the layers' own functions."""

import copy
import io

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import small_transformers as models
import torch
from each_value import slow_except
from transformers_versions import CACHE

import regard as rg
from regard.integrations.transformers import attach, detach, explain, modules, observe, recurring
from regard.mechanisms import Retention

MECHANISMS = {
    "qwen3_next": "gated_delta",
    "qwen3_5_text": "gated_delta",
    "olmo_hybrid": "gated_delta",
    "kimi_linear": "kimi_delta",
    "bamba": "ssd",
    "falcon_h1": "ssd",
    "granitemoehybrid": "ssd",
    "nemotron_h": "ssd",
    "zamba2": "ssd",
    "mamba2": "ssd",
    "minimax": "lightning(rate=0)",
}
EACH = ("qwen3_next", "kimi_linear", "bamba", "minimax")  # one of each mechanism
LENGTH = 70  # more than a chunk of regard's and of transformers'
CUT = 41  # ids of a prompt's first part
IDS = torch.randint(3, 98, (3, LENGTH), generator=torch.Generator().manual_seed(2))


def built(kind):
    """A small model with its own attention."""
    model = models.with_memories(kind)
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")  # which float64 needs
    return model


def attention_mask(padding):
    mask = torch.ones(len(IDS), LENGTH, dtype=torch.long)
    if padding == "left":
        mask[0, :9] = 0
        mask[1, :33] = 0
    elif padding == "right":
        mask[0, -9:] = 0
        mask[1, -33:] = 0
    return mask


def logits(model, **options):
    return model(IDS, **options).logits


def continued(model):
    """The logits of a prompt in three parts with one cache: many ids, more ids, one id at a time."""
    of_mamba = model.config.model_type == "mamba2" and CACHE != "cache"
    keyword = "cache_params" if of_mamba else CACHE
    cache = None
    parts = []
    start = 0
    for stop in (CUT, LENGTH - 3, LENGTH - 2, LENGTH - 1, LENGTH):
        output = model(IDS[:, start:stop], use_cache=True, **{keyword: cache})
        cache = output[keyword]
        start = stop
        parts.append(output.logits)
    return torch.cat(parts, 1)


@torch.no_grad()
@pytest.mark.parametrize("kind", slow_except(MECHANISMS, fast=(*EACH, "mamba2")))
def test_logits_and_caches_are_those_of_the_layers_own_functions(kind):
    model = built(kind)
    kinds = {name: type(module) for name, module in model.named_modules()}
    paddings = ("none", "left", "right")
    expected = {
        padding: logits(model, attention_mask=attention_mask(padding)) for padding in paddings
    }
    in_parts = continued(model)
    words = model.generate(IDS, max_new_tokens=4, do_sample=False)
    attach(model)
    assert (model.outside, model.unchecked) == ({}, ())
    for padding, theirs in expected.items():
        ours = logits(model, attention_mask=attention_mask(padding))
        assert checks.farthest(ours, theirs, attention_mask(padding).bool()) <= 1e-5, padding
    assert checks.farthest(continued(model), in_parts) <= 1e-5
    assert torch.equal(model.generate(IDS, max_new_tokens=4, do_sample=False), words)
    explained = explain(model, IDS)
    assert explained.silent == ()
    assert all(0 < call.share <= 1 for call in explained.calls)
    option = f"mechanism {MECHANISMS[kind]}"
    recurrent = [call for call in explained.calls if option in call.options]
    assert recurrent
    assert len(recurrent) + len(modules.attention_modules(model)) == len(explained.calls)
    assert {name: type(module) for name, module in detach(model).named_modules()} == kinds


def gradients(model):
    model.zero_grad()
    logits(model).square().mean().backward()
    return {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


@pytest.mark.parametrize("kind", EACH)
def test_gradients_are_those_of_the_layers_own_functions(kind):
    model = built(kind).train()
    expected = gradients(model)
    assert checks.relative(gradients(attach(model)), expected) <= checks.GRADIENTS


@torch.no_grad()
@pytest.mark.parametrize("kind", EACH)
def test_float64_bfloat16_copies_and_files(kind):
    """In float64 the layers' own functions compute in float32."""
    model = built(kind)
    theirs = logits(model)
    ours = logits(attach(model))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for copied in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert torch.equal(logits(copied), ours)
        homes = {type(module).__module__ for module in copied.modules()}
        assert (modules.RECURRING in homes) == (kind != "minimax")
    exact = logits(model.double())
    assert float((exact - ours).norm() / exact.norm()) <= 1e-5
    our_half = logits(model.bfloat16()).float()
    their_half = logits(detach(model)).float()
    assert float((our_half - theirs).norm()) <= 1.5 * float((their_half - theirs).norm())


@torch.no_grad()
def test_an_attached_hybrid_compiles_in_one_graph():
    model = attach(built("olmo_hybrid"))
    expected = logits(model, use_cache=False)
    torch._dynamo.reset()
    output = torch.compile(model, fullgraph=True, backend="eager")(IDS, use_cache=False).logits
    assert checks.farthest(output, expected) <= 1e-5


def test_a_stuck_memory_fails_the_comparison(monkeypatch):
    """Otherwise the comparisons above would prove nothing."""
    model = attach(built("qwen3_next"))
    with torch.no_grad():
        expected = continued(model)
        inputs_of = recurring.RecurrenceInputs

        def without_memory(*tensors):
            *others, memory = tensors
            return inputs_of(*others, torch.zeros_like(memory))

        monkeypatch.setattr(recurring, "RecurrenceInputs", without_memory)
        assert float((continued(model) - expected).abs().max()) > 1e-3


def test_what_another_library_runs_stays_and_is_named():
    model = built("qwen3_next")
    layer = model.model.layers[0].linear_attn
    layer.forward = layer.forward  # as accelerate sets it
    assert "which has no softmax" in attach(model).outside["model.layers.0.linear_attn"]
    assert type(layer).__module__ != modules.RECURRING


def test_observers_watch_layers_with_weights_and_packed_texts_are_refused():
    model = attach(built("kimi_linear"))
    with torch.no_grad(), observe(model, "entropy") as observed:
        logits(model)
    assert len(observed.calls) == 1
    x = torch.rand(1, 4, 2, 8)
    function = recurring.FUNCTIONS["torch_chunk_gated_delta_rule"]
    with pytest.raises(rg.UnsupportedError, match="packed texts"):
        function(x, x, x, g=x[..., 0], beta=x[..., 0], cu_seqlens=torch.tensor([0, 2, 4]))


def test_the_memory_of_other_texts_is_refused():
    """As from a cache of two texts beside three; the kernel would write beside it."""
    x = torch.rand(3, 4, 1, 8)
    memory = torch.zeros(2, 4, 8, 8)
    call = recurring.RecurrentCall(Retention(), x, x, x, {}, memory, scale=1.0)
    with pytest.raises(rg.ShapeError, match=r"memory \(2, .* of 3 batch rows needs \(3, "):
        recurring.compute_recurrence(call, keeps_memory=True)


@pytest.mark.parametrize("kind", ["qwen3_next", "bamba"])
def test_weights_of_a_hybrid_are_those_of_its_softmax_layers_and_the_others_say_so(kind):
    model = attach(built(kind))
    recurrent, softmax = (call.layer for call in explain(model, {"input_ids": IDS}).calls)
    with observe(model, "weights") as observed:
        model(input_ids=IDS)
    assert [call.layer for call in observed.calls] == [softmax]
    rows = observed[softmax][0].weights.sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))
    with (
        pytest.raises(rg.ArgumentError, match="it has no softmax over pairs of queries and keys"),
        observe(model, "weights", layers=recurrent),
    ):
        model(input_ids=IDS)
    with (
        pytest.raises(rg.ArgumentError, match=r"so there is nothing to record; .* observe"),
        rg.record_attention(model),
    ):
        model(input_ids=IDS)
