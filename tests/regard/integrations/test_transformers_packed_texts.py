"""Packed texts in hybrid models: each document gets what it gets alone, in every layer."""

import random
from functools import cache

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import small_transformers as models
import torch
import transformers
from each_value import slow_except
from torch._dynamo.testing import CompileCounterWithBackend
from transformers_versions import CACHE

import regard as rg
from regard.integrations.transformers import attach, detach, explain
from regard.integrations.transformers.packed import DOCUMENTS

# One of each recurrent mechanism, and short convolutions beside softmax.
KINDS = ("qwen3_next", "kimi_linear", "bamba", "minimax", "lfm2")
NEAR = 1e-5
DRAWS = 12  # packings of each kind


@cache
def attached(kind):
    """A small attached model."""
    if kind == "lfm2":
        config = transformers.Lfm2Config(
            vocab_size=99,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            layer_types=["conv", "full_attention", "conv"],
        )
        return attach(transformers.Lfm2ForCausalLM(config).eval())
    return attach(models.with_memories(kind))


def drawn(seed, rows=1):
    """Ids (rows, length), and the lengths of the documents of each row, drawn from a seed."""
    draw = random.Random(seed)
    length = draw.randint(2, 83)
    lengths = []
    for _ in range(rows):
        cuts = sorted(draw.sample(range(1, length), min(length - 1, draw.randint(0, 5))))
        lengths.append(
            [stop - start for start, stop in zip([0, *cuts], [*cuts, length], strict=True)]
        )
    ids = torch.randint(3, 98, (rows, length), generator=torch.Generator().manual_seed(seed))
    return ids, lengths


def positions_of(lengths):
    rows = [torch.cat([torch.arange(n) for n in of_row]) for of_row in lengths]
    return torch.stack(rows)


def ends_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def alone(model, ids, lengths):
    """The logits of each document, computed by itself."""
    rows = []
    for row, of_row in zip(ids, lengths, strict=True):
        parts = [model(part[None], use_cache=False).logits for part in row.split(of_row)]
        rows.append(torch.cat(parts, 1))
    return torch.cat(rows)


def packed_arguments(form, ids, lengths):
    positions = positions_of(lengths)
    if form == "ends":
        ends = ends_of(lengths[0])
        return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
    if form == "ones":
        return {"position_ids": positions, "attention_mask": torch.ones_like(ids)}
    return {"position_ids": positions}


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_are_computed_as_each_alone(kind):
    """By positions that begin again, beside a mask of ones, and by the ends of documents; with a cache or without."""
    model = attached(kind)
    for seed in range(DRAWS):
        form = ("positions", "ones", "ends")[seed % 3]
        ids, lengths = drawn(seed, rows=1 if form == "ends" else 2)
        arguments = packed_arguments(form, ids, lengths)
        output = model(ids, **arguments, use_cache=bool(seed % 2)).logits
        assert checks.farthest(output, alone(model, ids, lengths)) <= NEAR, (seed, form, lengths)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_padding_stays_hidden_beside_documents(kind):
    model = attached(kind)
    ids, lengths = drawn(5)
    mask = torch.nn.functional.pad(torch.ones_like(ids), (3, 7))
    positions = torch.nn.functional.pad(positions_of(lengths), (3, 7), value=1)
    padded = torch.nn.functional.pad(ids, (3, 7), value=0)
    output = model(padded, position_ids=positions, attention_mask=mask, use_cache=False).logits
    assert checks.farthest(output[:, 3:-7], alone(model, ids, lengths)) <= NEAR


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_goes_on_with_the_last_document(kind):
    """In parts of many ids and of one, of which some begin a document, also of a single id."""
    model = attached(kind)
    ids = torch.randint(3, 98, (2, 31), generator=torch.Generator().manual_seed(3))
    lengths = [[5, 9, 1, 13, 3], [17, 4, 1, 1, 8]]
    positions = positions_of(lengths)
    cached = None
    parts = []
    start = 0
    for stop in (6, 7, 8, 14, 15, 16, 22, 23, 24, 31):
        output = model(
            ids[:, start:stop],
            position_ids=positions[:, start:stop],
            use_cache=True,
            **{CACHE: cached},
        )
        cached = output[CACHE]
        parts.append(output.logits)
        start = stop
    assert checks.farthest(torch.cat(parts, 1), alone(model, ids, lengths)) <= NEAR


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_generation_after_packed_documents_goes_on_with_the_last_one(kind):
    model = attached(kind)
    ids, lengths = drawn(7)
    last = ids[:, -lengths[0][-1] :]
    options = {"max_new_tokens": 5, "do_sample": False}
    expected = model.generate(last, **options)[:, last.shape[1] :]
    words = model.generate(ids, position_ids=positions_of(lengths), **options)[:, ids.shape[1] :]
    assert torch.equal(words, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_packed_documents_are_those_of_each_alone(kind):
    model = attached(kind)
    ids, lengths = drawn(11)

    def gradients(logits):
        model.zero_grad()
        logits.square().sum().backward()
        return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}

    expected = gradients(alone(model, ids, lengths))
    packed = model(ids, position_ids=positions_of(lengths), use_cache=False).logits
    assert checks.relative(gradients(packed), expected) <= checks.GRADIENTS


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", slow_except(["qwen3_next", "bamba", "lfm2"], fast=["qwen3_next", "lfm2"])
)
def test_one_graph_serves_every_packing(kind):
    model = attached(kind)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    inside = torch.compile(model, fullgraph=True, backend=counter, dynamic=True)
    for lengths in ([9, 4, 13], [1, 30, 2, 2], [5, 6], [44], [3, 1, 40, 20], [2, 61, 9]):
        ids = torch.randint(3, 98, (1, sum(lengths)))
        positions = positions_of([lengths])
        output = inside(ids, position_ids=positions, use_cache=False).logits
        assert checks.farthest(output, alone(model, ids, [lengths])) <= NEAR, lengths
    assert counter.frame_count == 1


@torch.no_grad()
def test_explain_shows_documents_in_every_layer():
    model = attached("qwen3_next")
    ids, lengths = drawn(7)
    explained = explain(model, {"input_ids": ids, "position_ids": positions_of(lengths)})
    assert ["same_document" in call.pattern for call in explained.calls] == [True, True]


@torch.no_grad()
def test_what_would_mix_documents_is_refused():
    ids, lengths = drawn(7)
    packed = {"input_ids": ids, "position_ids": positions_of(lengths), "use_cache": False}
    model = attach(models.built("mamba2"))
    with pytest.raises(rg.UnsupportedError, match="passes no keywords on to its layers"):
        model(**packed)
    model = models.built("qwen3_next")
    layer = model.model.layers[0].linear_attn
    layer.forward = layer.forward  # as accelerate sets it
    with pytest.raises(rg.UnsupportedError, match=r"layers\.0\.linear_attn would mix them"):
        attach(model)(**packed)
    ends = torch.tensor([0, 4, ids.shape[1] + 1])
    with pytest.raises(rg.ShapeError, match=r"goes from 0 to \d+; it begins at 0"):
        attached("qwen3_next")(ids, cu_seq_lens_q=ends)
    with pytest.raises(rg.ShapeError, match="it is for one batch row"):
        attached("qwen3_next")(ids.expand(2, -1), cu_seq_lens_q=ends_of(lengths[0]))


@torch.no_grad()
def test_one_document_is_passed_on_as_it_came():
    """Padding on the left, whose positions do not ascend, is none; detached models get nothing."""
    model = attached("qwen3_next")
    seen = []
    hook = model.model.layers[0].register_forward_pre_hook(
        lambda module, args, keywords: seen.append(DOCUMENTS in keywords), with_kwargs=True
    )
    ids, _ = drawn(7)
    mask = torch.ones_like(ids)
    mask[:, :4] = 0
    model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False)
    assert seen == [False] * 3
    detached = detach(attach(models.built("qwen3_next")))
    assert not detached.model._forward_pre_hooks
    hook.remove()
