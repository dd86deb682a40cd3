"""Tensors whose numbers are not those in their memory are computed right, or refused with a sentence about that."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

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


def negated(x: Tensor) -> Tensor:
    """The numbers of x, with the other sign in memory."""
    return torch._neg_view(-x)


def part_of_conjugate(x: Tensor) -> Tensor:
    """The numbers of x as the imaginary part of a conjugate: every second number in memory, with the other sign."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def zero(x: Tensor) -> Tensor:
    """Zeros without memory, as autograd passes them on."""
    return torch._efficientzerotensor(x.shape, dtype=x.dtype)


def masked(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the class is a prototype
        return torch.masked.masked_tensor(x, torch.ones_like(x, dtype=torch.bool))


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    sizes = ((HEADS, ROWS, DIM), (HEADS, KEYS, DIM), (HEADS, KEYS, DIM))
    q, k, v = (torch.randn(BATCH, *size, generator=generator) for size in sizes)
    return q, k, v


def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """Causal attention whose ends align, in float64."""
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5 + bias
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v.double()


def close(found: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(found.double(), wanted.double(), rtol=0, atol=3e-6)


@pytest.mark.parametrize("view", [negated, part_of_conjugate])
@pytest.mark.parametrize("backend", ALL)
def test_negated_views_have_their_sign_in_the_first_and_later_calls(
    backend: str, view: Callable[[Tensor], Tensor]
) -> None:
    q, k, v = inputs()
    bias = torch.randn(ROWS, KEYS, generator=torch.Generator().manual_seed(5))
    options: dict[str, Any] = {"pattern": "causal", "backend": backend}
    wanted = formula(q, k, v, bias)
    try:
        rg.attention(q, k, v, bias=bias, **options)
    except UnsupportedError:
        return  # the same refusal for every kind of tensor
    for given in (
        (view(q), k, v, bias),
        (q, view(k), v, bias),
        (q, k, view(v), bias),
        (q, k, v, view(bias)),
    ):
        for _ in range(3):
            assert close(rg.attention(*given[:3], bias=given[3], **options), wanted)
            assert close(rg.attention(q, k, v, bias=bias, **options), wanted)


def test_zeros_without_memory_are_zeros_in_calls_with_a_kept_plan() -> None:
    q, k, v = inputs()
    for _ in range(3):
        assert close(rg.attention(q, k, v, pattern="causal"), formula(q, k, v))
        assert close(rg.attention(q, zero(k), v, pattern="causal"), formula(q, 0 * k, v))
        assert close(rg.attention(zero(q), k, v, pattern="causal"), formula(0 * q, k, v))
        assert not rg.attention(q, k, zero(v), pattern="causal").any()


def test_steps_of_decoding_compute_negated_views() -> None:
    q, k, v = inputs()
    q = q[:, :, :1]
    for length in range(1, KEYS + 1):
        past = k[:, :, :length]
        values = v[:, :, :length]
        bias = torch.arange(length) / 7.0
        for key, added in (
            (past, bias),
            (negated(past), bias),
            (past, negated(bias)),
            (past, bias),
        ):
            assert close(
                rg.attention(q, key, values, bias=added, pattern="causal"),
                formula(q, past, values, bias),
            )
        assert close(
            rg.attention(q, Stored(negated(past)), Stored(values), pattern="causal"),
            formula(q, past, values),
        )


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("mechanism", [None, "linear_transformer", "lsh(4)"])
def test_incoming_gradients_may_be_negated_views_or_zeros_without_memory(
    mechanism: str | None, backend: str
) -> None:
    q, k, v = (x.requires_grad_() for x in inputs())
    k = q if mechanism == "lsh(4)" else k[:, :, :ROWS]
    options: dict[str, Any] = {"mechanism": mechanism, "backend": backend, "pattern": "causal"}

    def gradients(sent: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(rg.attention(q, k, v[:, :, :ROWS], **options), (q, v), sent)

    grad = torch.randn(BATCH, HEADS, ROWS, DIM, generator=torch.Generator().manual_seed(7))
    try:
        wanted = gradients(grad)
    except UnsupportedError:
        return  # the same refusal for every gradient
    for view in (negated, part_of_conjugate):
        assert all(map(close, gradients(view(grad)), wanted))
    assert not any(x.any() for x in gradients(zero(grad)))


def test_gradients_of_bias_sink_and_statistics_take_negated_gradients() -> None:
    q, k, v = inputs()
    leaves = [x.requires_grad_() for x in (q, torch.zeros(ROWS, KEYS), torch.zeros(HEADS))]

    def gradients(view: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        detail = rg.attention_detail(
            q, k, v, bias=leaves[1], sink=leaves[2], want=("log_sum_exp", "entropy")
        )
        outputs = detail.output, detail.log_sum_exp, detail.entropy
        return torch.autograd.grad(
            outputs, leaves, [view(torch.full_like(x, 0.5)) for x in outputs]
        )

    assert all(map(close, gradients(negated), gradients(torch.clone)))


def test_compiled_calls_and_pieces_to_merge_take_negated_views() -> None:
    compiled = torch.compile(
        lambda q, k, v: rg.attention(q, k, v, pattern="causal"), backend="aot_eager"
    )
    q, k, v = inputs()
    assert close(compiled(q, negated(k), v), formula(q, k, v))
    assert close(compiled(q, k, v), formula(q, k, v))
    lse = torch.zeros(BATCH, HEADS, ROWS)
    merged = rg.merge_attention([(negated(q), negated(lse)), (q, lse)])
    assert all(map(close, merged, rg.merge_attention([(q, lse)] * 2)))


def test_negated_positions_documents_and_spans_are_read_with_their_sign() -> None:
    q, k, v = inputs()
    start = torch.tensor([8, 5, 3])
    stop = torch.tensor([7, 11, 3])
    ids = torch.arange(KEYS) // 5
    for view in (lambda x: x, negated):
        spans = rg.attention(q, k, v, pattern=p.KeySpan(0, view(stop)), q_start=view(start))
        allowed = torch.arange(KEYS) < stop[:, None, None, None]
        scores = (q.double() @ k.double().mT / DIM**0.5).masked_fill(~allowed, -torch.inf)
        assert close(spans, scores.softmax(-1) @ v.double())
        documents = rg.attention(q, k, v, pattern=p.SameDocument(view(ids)), q_start=view(start))
        allowed = (
            ids.expand(BATCH, -1)[
                torch.arange(BATCH)[:, None], start[:, None] + torch.arange(ROWS)
            ][..., None]
            == ids
        )
        scores = (q.double() @ k.double().mT / DIM**0.5).masked_fill(~allowed[:, None], -torch.inf)
        assert close(documents, scores.softmax(-1) @ v.double())


@pytest.mark.parametrize("kind", ["dynamic", "static", "ring", "paged"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_caches_store_the_numbers_of_negated_views_and_of_zeros(kind: str, dtype: str) -> None:
    _, k, v = inputs()
    capacity = None if kind in ("dynamic", "paged") else 2 * KEYS
    caches = [new_cache(kind, BATCH, HEADS, DIM, dtype=dtype, capacity=capacity) for _ in range(2)]
    caches[0].append(k, v)
    caches[0].append(torch.zeros_like(k), v)
    caches[1].append(negated(k), part_of_conjugate(v))
    caches[1].append(zero(k), negated(v))
    for cache in caches:
        cache.reorder(
            torch.tensor([2, 0, 0]) if cache is caches[0] else negated(torch.tensor([2, 0, 0]))
        )
    for name in ("keys", "values"):
        one, other = (
            x.widened(torch.float32) if isinstance(x, Stored) else x
            for x in (getattr(c, name) for c in caches)
        )
        assert torch.equal(one, other)


def test_a_saved_negated_view_is_not_tied_to_the_tensor_whose_memory_it_has(tmp_path) -> None:
    x = torch.arange(1.0, 4.0)
    save_tensors(tmp_path / "both.safetensors", {"one": x, "other": torch._neg_view(x)})
    assert load_tensors(tmp_path / "both.safetensors")["other"].tolist() == [-1.0, -2.0, -3.0]


@pytest.mark.parametrize("backend", ALL)
def test_an_axis_of_one_number_may_have_any_stride(backend: str) -> None:
    q, k, v = (x[:1, :1] for x in inputs())
    wide = [x.as_strided(x.shape, (2**41, 2**50, *x.stride()[2:])) for x in (q, k, v)]
    leaf = wide[1].detach().requires_grad_()
    try:
        output = rg.attention(wide[0], leaf, wide[2], pattern="causal", backend=backend)
    except UnsupportedError:
        return
    assert close(output, formula(q, k, v))
    output.backward(output.detach().as_strided(output.shape, (2**42, 2**43, *output.stride()[2:])))
    other = k.double().requires_grad_()
    wanted = formula(q, other, v)
    wanted.backward(wanted.detach())
    assert close(leaf.grad, other.grad)


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
    with pytest.raises(
        ShapeError, match=r"MaskedTensor, whose numbers are not those in its memory.*get_data\(\)"
    ) as error:
        CALLS[name](*inputs())
    assert name in str(error.value)


@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_the_causal_objects_of_pytorch_are_refused_as_a_bias_with_the_pattern_to_give(
    make: Callable[..., Any],
) -> None:
    q, k, v = inputs()
    for given in (make(ROWS, KEYS), make(KEYS, KEYS)):
        with pytest.raises(
            ShapeError, match=r"bias is a CausalBias.*pattern='causal', with q_start=0"
        ):
            rg.attention(q, k, v, bias=given)


@pytest.mark.parametrize("number", range(12))
def test_a_float64_cache_continues_a_layer_of_another_dtype(number: int) -> None:
    kind = ("dynamic", "static", "ring", "paged")[number % 4]
    kv_heads = (1, 2, 4)[number // 4]
    dtype = (torch.float32, torch.bfloat16, torch.float16)[(number + number // 4) % 3]
    torch.manual_seed(11)
    layer = rg.MultiHeadAttention(28, 4, kv_heads=kv_heads, pattern="causal").to(dtype)
    x = torch.randn(3, KEYS, 28).to(dtype)
    with torch.no_grad():
        whole = layer(x)
        cache = layer.new_cache(
            3, kind, None if kind in ("dynamic", "paged") else 2 * KEYS, torch.float64
        )
        found = torch.cat([layer(part, cache=cache) for part in x.split((5, 1, 1, 1, 5), 1)], 1)
    bound = {torch.float32: 3e-7, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    assert cache.length == KEYS
    assert (found.double() - whole.double()).abs().max() <= bound
