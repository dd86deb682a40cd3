"""Tensors whose numbers are not those in their memory are computed right, or refused with a sentence about that."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from views import negated, part_of_conjugate, zeros_without_memory

import regard as rg
from regard import patterns as p
from regard.backends import BACKENDS
from regard.core.tensors import Stored
from regard.errors import ShapeError, UnsupportedError
from regard.layers.caches import new_cache
from regard.storage import load_tensors, save_tensors

Tensor = torch.Tensor
BATCH = 3
HEADS = 2
ROWS = 5
KEYS = 13
DIM = 7
ALL = ["auto", *BACKENDS]


def masked(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the class is a prototype
        return torch.masked.masked_tensor(x, torch.ones_like(x, dtype=torch.bool))


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(3))
    q = draw(BATCH, HEADS, ROWS, DIM)
    return q, draw(BATCH, HEADS, KEYS, DIM), draw(BATCH, HEADS, KEYS, DIM)


def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """Causal attention whose ends align, in float64."""
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5 + bias
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v.double()


def close(x: Tensor, expected: Tensor) -> bool:
    return torch.allclose(x.double(), expected.double(), rtol=0, atol=3e-6)


@pytest.mark.parametrize("view", [negated, part_of_conjugate])
@pytest.mark.parametrize("backend", ALL)
def test_negated_views_have_their_sign_in_the_first_and_later_calls(
    backend: str, view: Callable[[Tensor], Tensor]
) -> None:
    tensors = dict(zip("qkv", inputs(), strict=True))
    tensors["bias"] = torch.randn(ROWS, KEYS, generator=torch.Generator().manual_seed(5))
    attend = partial(rg.attention, pattern="causal", backend=backend)
    expected = formula(**tensors)
    try:
        attend(**tensors)
    except UnsupportedError:
        return  # the same refusal for every kind of tensor
    for name, x in tensors.items():
        for _ in range(3):
            assert close(attend(**{**tensors, name: view(x)}), expected)
            assert close(attend(**tensors), expected)


def test_zeros_without_memory_are_zeros_in_calls_with_a_kept_plan() -> None:
    q, k, v = inputs()
    attend = partial(rg.attention, pattern="causal")
    for _ in range(3):
        assert close(attend(q, k, v), formula(q, k, v))
        assert close(attend(q, zeros_without_memory(k), v), formula(q, 0 * k, v))
        assert close(attend(zeros_without_memory(q), k, v), formula(0 * q, k, v))
        assert not attend(q, k, zeros_without_memory(v)).any()


def test_steps_of_decoding_compute_negated_views() -> None:
    q, k, v = inputs()
    q = q[:, :, :1]
    attend = partial(rg.attention, pattern="causal")
    for length in range(1, KEYS + 1):
        keys = k[:, :, :length]
        values = v[:, :, :length]
        bias = torch.arange(length) / 7.0
        expected = formula(q, keys, values, bias)
        assert close(attend(q, keys, values, bias=bias), expected)
        assert close(attend(q, negated(keys), values, bias=bias), expected)
        assert close(attend(q, keys, values, bias=negated(bias)), expected)
        assert close(attend(q, keys, values, bias=bias), expected)
        stored = attend(q, Stored(negated(keys)), Stored(values))
        assert close(stored, formula(q, keys, values))


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("mechanism", [None, "linear_transformer", "lsh(4)"])
def test_incoming_gradients_may_be_negated_views_or_zeros_without_memory(
    mechanism: str | None, backend: str
) -> None:
    q, k, v = (x.requires_grad_() for x in inputs())
    k = q if mechanism == "lsh(4)" else k[:, :, :ROWS]
    options: dict[str, Any] = {"mechanism": mechanism, "backend": backend, "pattern": "causal"}

    def gradients(incoming: Tensor) -> tuple[Tensor, ...]:
        output = rg.attention(q, k, v[:, :, :ROWS], **options)
        return torch.autograd.grad(output, (q, v), incoming)

    grad = torch.randn(BATCH, HEADS, ROWS, DIM, generator=torch.Generator().manual_seed(7))
    try:
        expected = gradients(grad)
    except UnsupportedError:
        return  # the same refusal for every gradient
    for view in (negated, part_of_conjugate):
        assert all(map(close, gradients(view(grad)), expected))
    assert not any(x.any() for x in gradients(zeros_without_memory(grad)))


def test_gradients_of_bias_sink_and_statistics_take_negated_gradients() -> None:
    q, k, v = inputs()
    bias = torch.zeros(ROWS, KEYS)
    sink = torch.zeros(HEADS)
    leaves = [x.requires_grad_() for x in (q, bias, sink)]

    def gradients(view: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        want = ("log_sum_exp", "entropy")
        detail = rg.attention_detail(q, k, v, bias=bias, sink=sink, want=want)
        outputs = [detail.output, detail.log_sum_exp, detail.entropy]
        incoming = [view(torch.full_like(x, 0.5)) for x in outputs]
        return torch.autograd.grad(outputs, leaves, incoming)

    assert all(map(close, gradients(negated), gradients(torch.clone)))


def test_compiled_calls_take_negated_views() -> None:
    attend = partial(rg.attention, pattern="causal")
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: attend(q, k, v), backend="aot_eager")
    q, k, v = inputs()
    assert close(compiled(q, negated(k), v), formula(q, k, v))
    assert close(compiled(q, k, v), formula(q, k, v))


def test_negated_positions_documents_and_spans_are_read_with_their_sign() -> None:
    q, k, v = inputs()
    start = torch.tensor([8, 5, 3])
    stop = torch.tensor([7, 11, 3])
    ids = torch.arange(KEYS) // 5
    scores = q.double() @ k.double().mT / DIM**0.5
    in_span = torch.arange(KEYS) < stop[:, None, None, None]
    id_of_query = ids[start[:, None] + torch.arange(ROWS)]  # (batch, rows)
    in_document = (id_of_query[..., None] == ids)[:, None]
    for view in (torch.clone, negated):
        patterns = [(p.KeySpan(0, view(stop)), in_span), (p.SameDocument(view(ids)), in_document)]
        for pattern, allowed in patterns:
            output = rg.attention(q, k, v, pattern=pattern, q_start=view(start))
            weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
            assert close(output, weights @ v.double())


def test_a_saved_negated_view_is_not_tied_to_the_tensor_whose_memory_it_has(tmp_path) -> None:
    x = torch.arange(1.0, 4.0)
    save_tensors(tmp_path / "both.safetensors", {"one": x, "other": torch._neg_view(x)})
    assert load_tensors(tmp_path / "both.safetensors")["other"].tolist() == [-1.0, -2.0, -3.0]


@pytest.mark.parametrize("backend", ALL)
def test_an_axis_of_one_number_may_have_any_stride(backend: str) -> None:
    def with_strides(x: Tensor, *strides: int) -> Tensor:
        return x.detach().as_strided(x.shape, (*strides, *x.stride()[2:]))

    q, k, v = (x[:1, :1] for x in inputs())
    leaf = with_strides(k, 2**41, 2**50).requires_grad_()
    qkv = (with_strides(q, 2**41, 2**50), leaf, with_strides(v, 2**41, 2**50))
    try:
        output = rg.attention(*qkv, pattern="causal", backend=backend)
    except UnsupportedError:
        return
    assert close(output, formula(q, k, v))
    output.backward(with_strides(output, 2**42, 2**43))
    ordinary = k.double().requires_grad_()
    expected = formula(q, ordinary, v)
    expected.backward(expected.detach())
    assert close(leaf.grad, ordinary.grad)


def test_a_tensor_whose_storage_was_freed_is_refused() -> None:
    q, k, v = inputs()
    k.untyped_storage().resize_(0)
    with pytest.raises(ShapeError, match="has no memory, since its storage was freed"):
        rg.attention(q, k, v)


PROJECTIONS = ("key_projection", "value_projection")
CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "q": lambda q, k, v: rg.attention(masked(q), k, v),
    "k": lambda q, k, v: rg.attention(q, masked(k), v),
    "v": lambda q, k, v: rg.plan_attention(q, k, v).run(q, k, masked(v)),
    "bias": lambda q, k, v: rg.attention(q, k, v, bias=masked(torch.zeros(ROWS, KEYS))),
    "sink": lambda q, k, v: rg.attention(q, k, v, sink=masked(torch.zeros(HEADS))),
    "q_start": lambda q, k, v: rg.attention(
        q, k, v, pattern="causal", q_start=masked(torch.arange(BATCH))
    ),
    "parameter": lambda q, k, v: rg.attention(
        q,
        k,
        v,
        mechanism="linformer(13, 3)",
        parameters=dict.fromkeys(PROJECTIONS, masked(torch.zeros(1, 3, KEYS))),
    ),
    "KeyMask": lambda q, k, v: p.KeyMask(masked(torch.ones(KEYS, dtype=torch.bool))),
    "Explicit": lambda q, k, v: p.Explicit(masked(torch.ones(ROWS, KEYS, dtype=torch.bool))),
    "output": lambda q, k, v: rg.merge_attention([(masked(q), q[..., 0])]),
    "x": lambda q, k, v: rg.MultiHeadAttention(DIM, 1)(masked(q[0])),
    "k ": lambda q, k, v: new_cache("dynamic", BATCH, HEADS, DIM).append(masked(k), v),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_class_that_computes_its_numbers_is_refused_by_name_everywhere(name: str) -> None:
    sentence = r"MaskedTensor, whose numbers are not those in its memory.*get_data\(\)"
    with pytest.raises(ShapeError, match=sentence) as error:
        CALLS[name](*inputs())
    assert name in str(error.value)


@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_the_causal_objects_of_pytorch_are_refused_as_a_bias_with_the_pattern_to_give(
    make: Callable[..., Any],
) -> None:
    q, k, v = inputs()
    sentence = "bias is a CausalBias.*pattern='causal', with q_start=0"
    for bias in (make(ROWS, KEYS), make(KEYS, KEYS)):
        with pytest.raises(ShapeError, match=sentence):
            rg.attention(q, k, v, bias=bias)


@pytest.mark.parametrize("number", range(12))
def test_a_float64_cache_continues_a_layer_of_another_dtype(number: int) -> None:
    kind = ("dynamic", "static", "ring", "paged")[number % 4]
    kv_heads = (1, 2, 4)[number // 4]
    dtype = (torch.float32, torch.bfloat16, torch.float16)[(number + number // 4) % 3]
    torch.manual_seed(11)
    layer = rg.MultiHeadAttention(28, 4, kv_heads=kv_heads, pattern="causal").to(dtype)
    x = torch.randn(3, KEYS, 28).to(dtype)
    capacity = None if kind in ("dynamic", "paged") else 2 * KEYS
    cache = layer.new_cache(3, kind, capacity, torch.float64)
    with torch.no_grad():
        whole = layer(x)
        parts = [layer(part, cache=cache) for part in x.split((5, 1, 1, 1, 5), 1)]
    bound = {torch.float32: 3e-7, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    assert cache.length == KEYS
    assert (torch.cat(parts, 1).double() - whole.double()).abs().max() <= bound
