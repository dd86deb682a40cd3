"""Masks of transformers are read as patterns, pair by pair the same; what cannot be read is reported."""

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import copy
import pickle
import sys

import hugging_face_checks as checks
import torch
import transformers as tf
from hugging_face_families import BY_NAME
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import masking_utils as theirs
from transformers_versions import CACHE

import regard as rg
from regard.backends.native.library import load
from regard.integrations.transformers import (
    PatternMask,
    UnreadMaskWarning,
    attach,
    detach,
    explain,
    observe,
    regard_mask,
)
from regard.integrations.transformers.attending import regard_attention, warned
from regard.patterns import Explicit

IDS = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 1, 1, 2, 3]])
POSITIONS = torch.tensor([[0, 1, 0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 1, 0, 0]])
HOLES = torch.tensor([[1, 0, 1, 1, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0, 1]]).bool()
LEFT = torch.arange(8) >= torch.tensor([[3], [1]])
RIGHT = torch.arange(8) < torch.tensor([[8], [5]])
CAUSAL = theirs.causal_mask_function
WINDOW = theirs.sliding_window_causal_mask_function(3)
CHUNKS = theirs.chunked_causal_mask_function(3, torch.tensor([0, 2]))
FUNCTIONS = {
    "causal": CAUSAL,
    "full": theirs.bidirectional_mask_function,
    "window": WINDOW,
    "window on both sides": theirs.sliding_window_bidirectional_mask_function(2),
    "chunks": CHUNKS,
    "causal or in one block": theirs.or_masks(CAUSAL, theirs.blockwise_overlay(IDS - 1)),
    "padding as a function": theirs.and_masks(CAUSAL, theirs.padding_mask_function(HOLES)),
}
if hasattr(theirs, "packed_sequence_compatibility_function"):
    MOVED = {"packed": CAUSAL, "packed windows": WINDOW, "packed chunks": CHUNKS}
    FUNCTIONS |= {
        name: theirs.packed_sequence_compatibility_function(function, POSITIONS, IDS)
        for name, function in MOVED.items()
    }
else:  # older versions only hide documents from each other
    FUNCTIONS["packed"] = theirs.and_masks(CAUSAL, theirs.packed_sequence_mask_function(IDS))
PADDINGS = {
    "none": None,
    "left": LEFT,
    "right": RIGHT,
    "holes": HOLES,
    "no padding": torch.ones(2, 8).bool(),
}


def mask_of(function, padding=None, q_length=8, kv_length=8, **offsets):
    return regard_mask(
        2, q_length, kv_length, mask_function=function, attention_mask=padding, **offsets
    )


def dense_of(mask):
    q_len, k_len = mask.shape[2:]
    return mask.pattern.dense(q_len, k_len, q_start=mask.q_start).expand(mask.shape)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_pattern_allows_the_pairs_of_the_mask(function, padding):
    mask = mask_of(FUNCTIONS[function], PADDINGS[padding])
    assert mask.reason is None
    assert not mask.written
    assert not isinstance(mask.pattern, Explicit)
    expected = theirs.sdpa_mask(
        2,
        8,
        8,
        mask_function=FUNCTIONS[function],
        attention_mask=PADDINGS[padding],
        allow_is_causal_skip=False,
    ).expand(2, 1, 8, 8)
    assert torch.equal(dense_of(mask), expected)
    assert torch.equal(mask.pairs(), expected)
    assert mask.written


@pytest.mark.parametrize(
    ("q_offset", "kv_offset", "kv_length"), [(0, 0, 8), (5, 0, 8), (5, 3, 5), (7, 2, 6)]
)
@pytest.mark.parametrize("function", ["window", "chunks", "causal or in one block"])
def test_caches_that_begin_later_and_hold_more_than_the_queries(
    function, q_offset, kv_offset, kv_length
):
    q_length = min(3, 8 - q_offset)
    mask = mask_of(
        FUNCTIONS[function], LEFT, q_length, kv_length, q_offset=q_offset, kv_offset=kv_offset
    )
    assert mask.reason is None
    assert torch.equal(dense_of(mask), mask.pairs())


def test_left_padding_is_one_pattern_for_every_length_of_a_cache():
    patterns = {
        mask_of(CAUSAL, LEFT[:, :length], 1, length, q_offset=length - 1).pattern
        for length in (5, 6, 7, 8)
    }
    assert len(patterns) == 1


def test_a_function_of_the_model_is_used_as_it_is_and_said_once():
    def mine(batch_idx, head_idx, q_idx, kv_idx):
        return (kv_idx <= q_idx) & (kv_idx != 2)

    mask = mask_of(theirs.and_masks(CAUSAL, mine))
    assert "mine" in mask.reason
    allowed = torch.ones(8, 8).tril().bool() & (torch.arange(8) != 2)
    assert torch.equal(dense_of(mask)[0, 0], allowed)

    model = attach(BY_NAME["Llama"].model())
    warned.clear()

    def run():
        hidden = torch.randn(1, 8, 32)
        layer = model.model.layers[0].self_attn
        turned = model.model.rotary_emb(hidden, torch.arange(8)[None])
        layer(hidden, position_embeddings=turned, attention_mask=alone)

    alone = regard_mask(1, 8, 8, mask_function=theirs.and_masks(CAUSAL, mine))
    with pytest.warns(UnreadMaskWarning, match="LlamaAttention.*mine"):
        run()
    run()  # said once: a second warning would be an error


def test_a_mask_behaves_like_eagers_mask_and_stays_a_pattern_where_it_is_cut():
    mask = mask_of(WINDOW, LEFT)
    numbers = theirs.eager_mask(2, 8, 8, mask_function=WINDOW, attention_mask=LEFT)
    assert isinstance(mask, torch.Tensor)
    assert (mask.shape, mask.dim()) == ((2, 1, 8, 8), 4)
    assert (mask.dtype, mask.device.type) == (torch.float32, "cpu")
    assert isinstance(mask[:, :, :, :5], PatternMask)
    assert mask[..., :5].shape == (2, 1, 8, 5)
    assert isinstance(mask[:, :, slice(-3, None), :], PatternMask)
    assert isinstance(mask.to("cpu", torch.float32), PatternMask)
    assert not mask.written
    for part in (mask, mask[..., :5], mask[:, :, 3:], mask[:, :, -1:, :5]):
        assert torch.equal(part.pairs(), dense_of(part))
    assert torch.equal(mask[:, :, 3:, :6].pairs(), mask.pairs()[:, :, 3:, :6])
    assert torch.equal(mask[1], numbers[1])
    assert torch.equal(mask + 1.5, numbers + 1.5)
    assert torch.equal(torch.cat([mask, mask], -1), torch.cat([numbers, numbers], -1))
    assert torch.equal(mask != 0, numbers != 0)
    assert torch.equal(pickle.loads(pickle.dumps(mask)), numbers)
    assert isinstance(copy.deepcopy(mask), PatternMask)
    assert "q_start=0" in repr(mask)


def test_a_mask_of_the_users_own_is_taken_as_it_is():
    """Booleans and numbers of four axes go past transformers' functions."""
    family = BY_NAME["Llama"]
    ids = torch.randint(3, 99, (2, 8))
    allowed = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1)) > 0.4
    allowed |= torch.eye(8).bool()
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    model = family.model()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(ids, attention_mask=added).logits
        attach(model)
        for mask in (allowed, added):
            output = model(ids, attention_mask=mask).logits
            assert checks.farthest(output, expected) <= 1e-5
    explained = explain(model, {"input_ids": ids, "attention_mask": allowed})
    assert "a mask (2, 1, 8, 8) of bool: pattern" in repr(explained)


@pytest.mark.parametrize("name", ["Mistral", "Gemma 2", "gpt-oss", "BERT"])
def test_observed_weights_and_entropy_are_those_of_eager_attention(name):
    model = BY_NAME[name].model()
    ids = torch.randint(3, 99, (2, 14))
    unpadded = torch.ones(2, 14, dtype=torch.long)
    unpadded[0, :5] = 0
    model.set_attn_implementation("eager")
    with torch.no_grad():
        theirs_weights = model(
            input_ids=ids, attention_mask=unpadded, output_attentions=True
        ).attentions
        attach(model)
        with observe(model, ("weights", "entropy")) as observed:
            model(input_ids=ids, attention_mask=unpadded)
    assert len(observed) == len(theirs_weights)
    for number, weights in enumerate(theirs_weights):
        (call,) = observed[number]
        rows = unpadded.bool()[:, None].expand(weights.shape[:3])
        assert float((call.weights - weights)[rows].abs().max()) <= 1e-5
        entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1)
        assert float((call.entropy - entropy)[rows].abs().max()) <= 1e-4


def test_observing_chooses_layers_and_heads_and_refuses_what_is_not_there():
    model = attach(BY_NAME["Llama"].model())
    ids = torch.randint(3, 99, (1, 6))
    names = ["model.layers.1.self_attn", "model.layers.2.self_attn"]
    want = ("weights", rg.top_keys(2))
    with observe(model, want, layers=[names[0], 2], heads=[3, 0]) as observed:
        model.generate(ids, max_new_tokens=3, do_sample=False)
    assert [call.layer for call in observed.calls[:2]] == names
    assert [call.q_len for call in observed[1]] == [6, 1, 1]
    assert observed.calls[0].weights.shape == (1, 2, 6, 6)
    assert observed.calls[0].top_keys.indices.shape == (1, 2, 6, 2)
    with pytest.raises(rg.RegardError, match="entropy was not requested"):
        _ = observed.calls[0].entropy
    for layers in ("model.layers.9.self_attn", 3, [-1]):
        with pytest.raises(rg.ArgumentError), observe(model, layers=layers):
            pass
    with pytest.raises(rg.ArgumentError, match="head 4"), observe(model, heads=4):
        model(ids)


def test_a_block_that_sees_nothing_raises():
    model = detach(attach(BY_NAME["Llama"].model()))
    ids = torch.randint(3, 99, (1, 6))
    with pytest.raises(rg.RegardError, match="attach"), observe(model):
        model(ids)
    with pytest.raises(rg.RegardError, match="attach"):
        explain(model, ids)
    attach(model)
    with pytest.raises(rg.RegardError, match="saw no attention"), observe(model):
        pass


def test_keywords_that_would_change_the_result_are_refused():
    model = attach(BY_NAME["Llama"].model())
    with pytest.raises(rg.UnsupportedError, match="block_indices"):
        model(torch.randint(3, 99, (1, 6)), block_indices=torch.zeros(1))


@pytest.mark.parametrize("name", ["Gemma 2", "ModernBERT"])
def test_a_compiled_model_carries_patterns_in_one_graph_and_gives_the_same_numbers(name):
    """Gemma 2 with padding, ModernBERT without."""
    model = attach(BY_NAME[name].shallow()).eval()
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for length in (12, 17):
        unpadded = torch.ones(2, length, dtype=torch.long)
        unpadded[0, :4] = 0
        unpadded[1, 7] = 0
        inputs = {"input_ids": torch.randint(3, 99, (2, length))}
        if name == "Gemma 2":
            inputs |= {"attention_mask": unpadded, "use_cache": False}
        with torch.no_grad():
            output = compiled(**inputs)[0]
            expected = model(**inputs)[0]
        assert checks.farthest(output, expected, unpadded.bool()) <= 1e-5

    calls = []
    for graph in counter.graphs:
        calls += [node for node in graph.graph.nodes if "regard.attention" in str(node.target)]
    assert counter.frame_count <= 2
    assert calls
    assert all(call.args[3] is None for call in calls), "no mask is added as a bias"
    patterns = {call.kwargs["pattern"] for call in calls}
    if name == "Gemma 2":
        assert all("key_mask" in pattern for pattern in patterns)
    else:
        assert patterns == {"diagonals(3, 3)", "full"}


# One graph for each kind of layer, whose windows transformers counts.
@pytest.mark.parametrize(
    ("name", "graphs"), [pytest.param("Llama", 1, marks=pytest.mark.slow), ("Gemma 2", 2)]
)
@torch.no_grad()
def test_one_graph_serves_every_step_of_a_static_cache(name, graphs):
    model = attach(BY_NAME[name].shallow()).eval()
    ids = torch.randint(3, 99, (2, 40))
    cache = tf.StaticCache(config=model.config, max_cache_len=40)
    counter = CompileCounterWithBackend("eager")
    torch._dynamo.reset()
    step = torch.compile(model, backend=counter, fullgraph=True)
    logits = [model(ids[:, :5], **{CACHE: cache}).logits]
    for position in range(5, 40):
        logits.append(step(ids[:, position : position + 1], **{CACHE: cache}).logits)
    assert checks.farthest(torch.cat(logits, 1), model(ids).logits) <= 1e-5
    assert counter.frame_count == graphs


def test_a_compiled_model_keeps_packed_documents_apart():
    model = attach(BY_NAME["Mistral"].shallow(1)).eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for lengths in ((5, 4, 3), (1, 1, 10)):
        inputs = {
            "input_ids": torch.randint(3, 99, (1, 12)),
            "use_cache": False,
            "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        }
        with torch.no_grad():
            output = compiled(**inputs).logits
            assert checks.farthest(output, model(**inputs).logits) <= 1e-5


def test_a_mask_that_a_graph_cannot_see_is_dense_and_said():
    model = attach(BY_NAME["Llama 4"].shallow()).eval()
    ids = torch.randint(3, 99, (1, 12))
    torch._dynamo.reset()
    with torch.no_grad(), pytest.warns(UnreadMaskWarning, match="which mask a model uses"):
        output = torch.compile(model, backend="eager")(input_ids=ids, use_cache=False).logits
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
    assert checks.farthest(output, expected) <= 1e-5


def test_a_mask_that_hides_nothing_serves_any_number_of_queries_and_another_mask_does_not():
    """BridgeTower of transformers 5.17 gives text queries the mask that it made for image queries."""
    q = torch.randn(2, 3, 5, 7)
    k = torch.randn(2, 3, 11, 7)
    v = torch.randn(2, 3, 11, 7)
    full = regard_mask(2, 11, 11, mask_function=theirs.bidirectional_mask_function)
    output, _ = regard_attention(torch.nn.Module(), q, k, v, full)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    assert checks.farthest(output, expected) <= 1e-5
    causal = regard_mask(2, 11, 11, mask_function=CAUSAL)
    with pytest.raises(rg.ShapeError, match="11 queries and 11 keys beside 5 queries"):
        regard_attention(torch.nn.Module(), q, k, v, causal)


def functions_of_a_call(run):
    """How many functions of Python a call of a model's third layer runs, from regard_attention on."""
    counted = []
    inside = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code is regard_attention.__code__:
            counted.append(0)
            inside.append(frame)
        if event == "call" and inside:
            counted[-1] += 1
        if event == "return" and inside and frame is inside[-1]:
            inside.pop()

    for _ in range(3):
        run()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    assert len(counted) == 3
    return counted[2]


@pytest.mark.parametrize(("way", "most"), [("decoding", 12), ("prompt", 15), ("gradients", 22)])
def test_a_warm_call_runs_few_functions(way, most):
    model = attach(BY_NAME["Llama"].model())
    ids = torch.randint(3, 99, (1, 40))
    options = {"use_cache": False}
    with torch.set_grad_enabled(way == "gradients"):
        if way == "decoding":
            cache = tf.DynamicCache()
            model(ids, **{CACHE: cache})
            ids = ids[:, :1]
            options = {CACHE: cache}
        count = functions_of_a_call(lambda: model(ids, **options))
    without_native = isinstance(load(), str)
    assert count <= most + 2 * without_native


def test_a_head_of_keys_may_serve_several_heads_of_values():
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 6, 7, 8)
    output, _ = regard_attention(torch.nn.Module(), q, k, v, None, is_causal=False)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(output, wanted.transpose(1, 2))
