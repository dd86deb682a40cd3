"""Jagged nested tensors: every document attends to its own keys, as if each was computed alone."""

from typing import Any

import pytest
import torch

import regard as rg
from regard import bias as b
from regard import mechanisms as m
from regard import patterns as p
from regard.layers import Difference
from regard.patterns.documents import PerDocument

LENGTHS = (5, 0, 1, 9, 4)


def jagged(
    lengths: tuple[int, ...], heads: int, size: int = 4, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """(batch, heads, ragged length, size), with documents of these lengths."""
    documents = [torch.randn(length, heads, size, dtype=dtype) for length in lengths]
    return torch.nested.nested_tensor(documents, layout=torch.jagged, requires_grad=True)


def loop(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: Any, **options: Any
) -> list[torch.Tensor]:
    """The output of each document (heads, length, size), called by itself."""
    outputs = []
    documents = zip(*(x.transpose(1, 2).unbind() for x in (q, k, v)), strict=True)
    for number, document in enumerate(documents):
        alone = [x[None] for x in document]
        of_document = pattern.for_row(number)
        output = rg.attention(*alone, pattern=of_document, backend="reference", **options)
        outputs.append(output[0])
    return outputs


def assert_each_close(output: torch.Tensor, expected: list[torch.Tensor]) -> None:
    """Assert that a jagged output has these documents."""
    for document, expected_document in zip(output.unbind(), expected, strict=True):
        torch.testing.assert_close(document, expected_document)


PATTERNS = (
    p.Full(),
    p.Causal(),
    p.CausalWindow(3),
    p.SlidingWindow(4),
    p.Causal() & p.Strided(2),
    p.Prefix(2),
    p.Fixed(3),
    p.GlobalTokens([0]) | p.CausalWindow(2),
    p.RandomBlocks(1, block=2, seed=1),
    p.KeySpan(1),
    ~p.Causal(),
    p.KeySpan(0, torch.tensor([3, 0, 1, 5, 0])),
    p.PerHead([p.Causal(), p.Prefix(1), p.Full(), p.Strided(2)]),
    p.Where(lambda i, j: (i + j) % 2 == 0),
    p.SameDocument(torch.arange(9) // 3) & p.Causal(),
)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("k_lengths", [LENGTHS, (7, 2, 3, 2, 0)], ids=["self", "cross"])
def test_jagged_attention_is_that_of_each_document(pattern, k_lengths):
    q = jagged(LENGTHS, 4)
    k = jagged(k_lengths, 2)
    v = jagged(k_lengths, 2, size=3)
    expected = loop(q, k, v, pattern)
    output = rg.attention(*(x.transpose(1, 2) for x in (q, k, v)), pattern=pattern)
    assert (output.layout, output.shape[1:2], output.shape[-1]) == (torch.jagged, (4,), 3)
    assert torch.equal(output.offsets(), q.offsets())
    assert_each_close(output, expected)

    weights = torch.randn_like(output.values())
    expected_loss = (torch.cat(expected, 1) * weights).sum()
    expected_gradients = torch.autograd.grad(expected_loss, (q, k, v))
    gradients = torch.autograd.grad((output.values() * weights).sum(), (q, k, v))
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient.values(), expected_gradient.values())


@pytest.mark.parametrize("pattern", [p.Causal(), p.Full(), p.Prefix(3), p.KeySpan(0, 6)], ids=str)
@pytest.mark.parametrize("backend", ["fused", "streamed", "reference"])
def test_every_backend_computes_the_packed_row(backend, pattern):
    x = jagged((70, 1, 40), 2)
    heads = x.transpose(1, 2)
    bias = b.ALiBi()
    output = rg.attention(heads, heads, heads, pattern=pattern, backend=backend, bias=bias)
    assert_each_close(output, loop(x, x, x, pattern, bias=bias))


@pytest.mark.parametrize("pattern", [p.Causal(), p.Full()], ids=str)
def test_mechanisms_of_features_take_documents(pattern):
    x = jagged(LENGTHS, 2)
    heads = x.transpose(1, 2)
    mechanism = m.LinearTransformer()
    output = rg.attention(heads, heads, heads, pattern=pattern, mechanism=mechanism)
    assert_each_close(output, loop(x, x, x, pattern, mechanism=mechanism))


def test_the_cost_of_documents_is_that_of_their_pairs_and_never_that_of_the_packed_square():
    """400 documents of 50: a million pairs a head, where the packed square has 400 million."""
    edges = tuple(range(0, 20_001, 50))
    pattern = PerDocument(p.Full(), edges, edges)
    assert pattern.count(20_000, 20_000) == 400 * 50 * 50
    x = torch.empty(1, 1, 20_000, 8)
    plan = rg.plan_attention(x, x, x, pattern=pattern, q_start=0)
    assert plan.cost.pairs <= 8 * 400 * 50 * 50
    assert plan.cost.peak_bytes < 20 * 2**20


def test_dropout_is_that_of_the_packed_row_in_every_backend():
    x = jagged(LENGTHS, 2).transpose(1, 2)
    options = {"pattern": "causal", "dropout": 0.5, "dropout_seed": 1}
    streamed = rg.attention(x, x, x, backend="streamed", **options)
    expected = rg.attention(x, x, x, backend="reference", **options)
    torch.testing.assert_close(streamed.values(), expected.values())


@pytest.mark.parametrize(
    "pattern", [p.CausalWindow(3), p.Prefix(2), PATTERNS[11], PATTERNS[12]], ids=str
)
@pytest.mark.parametrize("k_lengths", [None, (7, 2, 3, 2, 0)], ids=["self", "cross"])
def test_packed_tensors_are_computed_as_jagged_ones(pattern, k_lengths):
    q = jagged(LENGTHS, 4)
    k = jagged(k_lengths or LENGTHS, 2, size=4)
    v = jagged(k_lengths or LENGTHS, 2, size=3)
    options = {"pattern": pattern, "softcap": 2.0, "sink": 0.3}
    expected = rg.attention(*(x.transpose(1, 2) for x in (q, k, v)), **options).values()

    packed = [x.values().detach().requires_grad_() for x in (q, k, v)]
    ends = [q.offsets().int()]
    if k_lengths is not None:
        ends.append(k.offsets())
    output = rg.attention_varlen(*packed, *ends, **options)
    torch.testing.assert_close(output, expected.transpose(0, 1))
    gradients = torch.autograd.grad(output.square().sum(), packed)
    expected_gradients = torch.autograd.grad(expected.square().sum(), (q, k, v))
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient.values())


def refusals() -> dict[str, tuple[Any, str]]:
    x = jagged(LENGTHS, 2).transpose(1, 2)
    dense = torch.zeros(5, 2, 9, 4, dtype=torch.float64)
    packed = (torch.zeros(9, 2, 4, dtype=torch.float64),) * 3
    starts = torch.tensor([0, 1])
    lengths = torch.tensor([2, 3])
    gaps = torch.nested.narrow(
        torch.zeros(2, 6, 2, 4), 1, starts, lengths, layout=torch.jagged
    ).transpose(1, 2)
    return {
        "dense keys": (
            lambda: rg.attention(x, dense, dense),
            r"k is a dense tensor .* nested alike",
        ),
        "gaps": (lambda: rg.attention(gaps, gaps, gaps), "gaps between its documents.*contiguous"),
        "values": (
            lambda: rg.attention(x, x, jagged((1,) * 5, 2).transpose(1, 2)),
            "k and v .* different lengths",
        ),
        "bias": (
            lambda: rg.attention(x, x, x, bias=torch.zeros(9, 9)),
            "a bias tensor .*regard.bias",
        ),
        "explicit": (
            lambda: rg.attention(x, x, x, pattern=p.Explicit(torch.ones(9, 9).bool())),
            r"\(9, 9\).*this call has",
        ),
        "plan": (lambda: rg.plan_attention(x, x, x), "a plan and a detail do not.*SameDocument"),
        "linear": (
            lambda: rg.attention(x, x, x, pattern=p.Prefix(2), mechanism=m.LinearTransformer()),
            "per_document",
        ),
        "dense packed": (
            lambda: rg.attention_varlen(dense, dense, dense, torch.tensor([0, 5])),
            r"q is .*packed tensors",
        ),
        "packed ends": (
            lambda: rg.attention_varlen(*packed, torch.tensor([0, 5, 4])),
            "ends at 9",
        ),
        "packed documents": (
            lambda: rg.attention_varlen(*packed, torch.tensor([0, 9]), torch.tensor([0, 4, 9])),
            "cu_seqlens_q has 1 document and cu_seqlens_k 2",
        ),
        "packed start": (
            lambda: rg.attention_varlen(*packed, torch.tensor([0, 9]), q_start=1),
            "q_start",
        ),
        "tensors of the wrong size": (
            lambda: rg.attention(x, x, jagged(LENGTHS, 1).transpose(1, 2)),
            "kv_heads",
        ),
    }


@pytest.mark.parametrize("name", refusals())
def test_what_jagged_tensors_do_not_do_is_refused_by_a_sentence(name):
    call, words = refusals()[name]
    with pytest.raises(rg.RegardError, match=words):
        call()


LAYERS = {
    "grouped": rg.MultiHeadAttention(
        12, 4, kv_heads=2, pattern="global_tokens(0) | causal_window(2)"
    ),
    "context": rg.MultiHeadAttention(12, 4, context_dim=7),
    "rotary": rg.MultiHeadAttention(
        12, 2, positions="rotary", pattern="causal", qk_norm=True, output_gate=True
    ),
    "two parts": rg.MultiHeadAttention(12, 2, differential=Difference(0.3), sinks=True),
    "forgetting": rg.MultiHeadAttention(12, 4, kv_heads=2, pattern="causal", forgetting=True),
    "state": rg.MultiHeadAttention(12, 2, pattern="causal", mechanism=m.GatedDelta()),
    "latent": rg.LatentAttention(
        12, 3, latent_dim=5, rope_dim=2, head_dim=4, pattern="causal & strided(3)"
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_documents_of_different_lengths(name):
    layer = LAYERS[name].double()
    inputs = [vectors(LENGTHS, 12)]
    if name == "context":
        inputs.append(vectors((7, 2, 3, 2, 0), 7))
    forms: list[dict[str, Any]] = [{}]
    if name == "latent":
        forms = [{"form": "absorbed"}, {"form": "expanded"}, {"form": "auto"}]
    leaves = (*inputs, *layer.parameters())
    for options in forms:
        documents = zip(*(x.unbind() for x in inputs), strict=True)
        alone = []
        for document in documents:
            output_of_document = layer(*(x[None] for x in document), **options)
            alone.append(output_of_document[0])
        expected = torch.cat(alone)
        output = layer(*inputs, **options)
        assert torch.equal(output.offsets(), inputs[0].offsets())
        torch.testing.assert_close(output.values(), expected)
        gradients = torch.autograd.grad(output.values().square().sum(), leaves)
        expected_gradients = torch.autograd.grad(expected.square().sum(), leaves)
        for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(plain(gradient), plain(expected_gradient))


def vectors(lengths: tuple[int, ...], dim: int) -> torch.Tensor:
    """(batch, ragged length, dim), with documents of these lengths."""
    documents = [torch.randn(length, dim, dtype=torch.float64) for length in lengths]
    return torch.nested.nested_tensor(documents, layout=torch.jagged, requires_grad=True)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.values() if x.is_nested else x


@torch.no_grad()
def test_forget_gates_of_many_documents_keep_their_digits():
    layer = rg.MultiHeadAttention(12, 4, pattern="causal", forgetting=True)
    rows = torch.randn(1000, 5, 12)
    layer.to_forget.bias.fill_(-2)  # their logarithms sum to -10,000
    output = layer(torch.nested.nested_tensor([*rows], layout=torch.jagged)).values()
    torch.testing.assert_close(output.view_as(rows), layer(rows), rtol=0, atol=1e-5)


def test_a_layer_refuses_what_documents_have_no_place_for():
    x = torch.nested.nested_tensor([torch.randn(3, 12), torch.randn(2, 12)], layout=torch.jagged)
    layer = rg.MultiHeadAttention(12, 2, pattern="causal")
    with pytest.raises(rg.UnsupportedError, match="cache beside nested tensors"):
        layer(x, cache=layer.new_cache(2))
    with pytest.raises(rg.ShapeError, match=r"context is a tensor .* beside a nested tensor"):
        layer(x, torch.randn(2, 4, 12))
    context = torch.nested.nested_tensor([torch.randn(4, 12)], layout=torch.jagged)
    with pytest.raises(rg.ShapeError, match="x holds 2 documents and its context 1"):
        rg.MultiHeadAttention(12, 2)(x, context)
    with pytest.raises(rg.UnsupportedError, match="give a bias by distance"):
        layer(x, bias=torch.zeros(3, 3))
    second = layer(x, bias=b.ALiBi()).unbind()[1]
    torch.testing.assert_close(second, layer(x.unbind()[1][None], bias=b.ALiBi())[0])
