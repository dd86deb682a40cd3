"""Tensors without values give the shape, dtype and device of a call with values; the default device is not used."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import regard as rg
from regard import bias as b
from regard import mechanisms as m
from regard import patterns as p
from regard import positions as pos
from regard.backends import BACKENDS
from regard.core.plan import AttentionDetail
from regard.core.result import top_keys, weights_of
from regard.layers import ProjectedContext
from regard.layers.caches.entries import HeldEntries
from regard.testing import make_qkv

WANT = (
    "log_sum_exp",
    "entropy",
    "received",
    "distance",
    "sink",
    "weights",
    top_keys(3),
    weights_of([1, 2], [0]),
)
STATISTICS = (
    "output",
    "log_sum_exp",
    "entropy",
    "received",
    "distance",
    "sink",
    "weights",
    "chosen_weights",
)
LENGTHS = torch.tensor([3, 7])


def empty_qkv(
    q_len: int, k_len: int, kv_heads: int = 3, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = torch.empty(2, 6, q_len, 5, device="meta", **options)
    k = torch.empty(2, kv_heads, k_len, 5, device="meta", **options)
    v = torch.empty(2, kv_heads, k_len, 5, device="meta", **options)
    return q, k, v


def outlines(detail: AttentionDetail) -> dict[str, tuple[Any, ...]]:
    """Shape, dtype and whether it has a gradient, of every statistic."""
    tensors = {name: getattr(detail, name) for name in STATISTICS}
    tensors |= {"indices": detail.top_keys.indices, "top weights": detail.top_keys.weights}
    return {name: (tuple(x.shape), x.dtype, x.requires_grad) for name, x in tensors.items()}


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("learns", [False, True])
def test_a_call_on_meta_has_the_shapes_and_dtypes_of_one_with_values(dtype, learns):
    tensors = [x.to(dtype).requires_grad_(learns) for x in make_qkv()]
    shaped = [x.detach().to("meta").requires_grad_(learns) for x in tensors]
    options = {"pattern": "causal & causal_window(3)", "bias": b.ALiBi(), "sink": 0.5}
    detail = rg.attention_detail(*shaped, want=WANT, **options)
    assert outlines(detail) == outlines(rg.attention_detail(*tensors, want=WANT, **options))
    plan = rg.plan_attention(*shaped, **options)
    output = plan.run(*shaped, bias=options["bias"], sink=0.5)
    assert (plan.backend, output.device.type, output.dtype) == ("shapes", "meta", dtype)


PATTERNS = (
    p.SlidingWindow(4),
    p.GlobalTokens([0]),
    p.RandomBlocks(1, block=2),
    p.KeySpan(0, LENGTHS),
    p.SameDocument(torch.arange(20) // 5),
    p.Explicit(torch.ones(7, 11).bool()),
    p.Where(lambda i, j: i > j),
    p.KeySpan(0, LENGTHS.to("meta")),
    p.SameDocument((torch.arange(20) // 5).to("meta")),
)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_no_pattern_needs_a_value_on_meta(pattern):
    q, k, v = empty_qkv(7, 11)
    assert rg.attention(q, k, v, pattern=pattern).shape == q.shape
    options = {"q_start": LENGTHS.to("meta"), "dropout": 0.5}
    assert rg.attention(q, k, v, pattern=pattern, **options).shape == q.shape


def test_gradients_on_meta_have_shapes_to_any_order():
    qkv = [x.to("meta").requires_grad_() for x in make_qkv()]
    bias = torch.zeros(7, 11, device="meta", requires_grad=True)
    leaves = [*qkv, bias]
    outputs = (rg.attention(*qkv, bias=bias),)
    for _ in range(3):
        total = sum(x.sum() for x in outputs)
        outputs = torch.autograd.grad(total, leaves, create_graph=True)
        assert [x.shape for x in outputs] == [x.shape for x in leaves]
        assert [x.dtype for x in outputs] == [x.dtype for x in leaves]
        assert {x.device.type for x in outputs} == {"meta"}


MECHANISMS = (
    m.LinearTransformer(),
    m.Performer(8),
    m.LSH(chunk=4, buckets=2),
    m.Linformer(11, 3),
    m.Softmax(m.General(5, 5)),
)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_every_mechanism_has_a_shape_on_meta(mechanism):
    q, k, v = empty_qkv(11, 11, kv_heads=6, requires_grad=True)
    learned = {name: x.to("meta") for name, x in mechanism.new_parameters(6).items()}
    leaves = [q, k, v, *learned.values()]
    output = rg.attention(q, k, v, mechanism=mechanism, parameters=learned)
    gradients = torch.autograd.grad(output.sum(), leaves)
    assert output.shape == q.shape
    assert [x.shape for x in gradients] == [x.shape for x in leaves]


def test_fake_tensors_have_shapes_and_leave_no_plan_behind():
    real = make_qkv()
    expected = rg.attention(*real, pattern="causal")
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x).requires_grad_() for x in real]
        span = p.KeySpan(0, torch.tensor([3, 7]))
        detail = rg.attention_detail(*fake, pattern=span, sink=0.5, want=WANT)
        output = rg.attention(*fake, pattern="causal")
        layer = rg.MultiHeadAttention(8, 2, positions=pos.Rotary(), pattern="causal")
        assert layer(torch.zeros(1, 3, 8)).shape == (1, 3, 8)
        gradients = torch.autograd.grad(output.sum(), fake)
    assert output.shape == expected.shape
    assert (output.device.type, type(output)) == ("cpu", type(fake[0]))
    assert [x.shape for x in gradients] == [x.shape for x in real]
    leaves = [x.requires_grad_() for x in real]
    assert outlines(detail) == outlines(rg.attention_detail(*leaves, sink=0.5, want=WANT))
    assert torch.equal(rg.attention(*make_qkv(), pattern="causal"), expected)


def test_a_plan_of_shapes_computes_nothing_and_a_plan_of_values_takes_shapes_of_its_device_alone():
    real = make_qkv()
    shaped = [x.to("meta") for x in real]
    with FakeTensorMode() as mode:
        plan = rg.plan_attention(*(mode.from_tensor(x) for x in real))
    with pytest.raises(rg.UnsupportedError, match="made for tensors without values"):
        plan.run(*real)
    with pytest.raises(rg.ArgumentError, match=r"device cpu and was given .*device meta"):
        rg.plan_attention(*real).run(*shaped)
    with pytest.raises(rg.ArgumentError, match="backend 'gpu' does not exist"):
        rg.attention(*shaped, backend="gpu")


@pytest.mark.parametrize("kind", ["dynamic", "static", "ring"])
@pytest.mark.parametrize("dtype", [None, "int8", torch.bfloat16], ids=str)
def test_a_layer_and_its_cache_go_on_meta(kind, dtype):
    pattern = "causal & causal_window(3)"
    layer = rg.MultiHeadAttention(8, 2, positions=pos.Rotary(), pattern=pattern).to("meta")
    x = torch.empty(2, 1, 8, device="meta")
    options: dict[str, Any] = {}
    if kind == "dynamic" or dtype is not None:
        options["dtype"] = dtype
    if kind != "dynamic":
        options["capacity"] = 5
    with torch.no_grad():
        cache = layer.new_cache(2, kind, **options)
        for _ in range(3):
            assert layer(x, cache=cache).shape == x.shape
    cache.reorder(torch.tensor([1, 0], device="meta"))
    assert cache.length == 3


@pytest.mark.parametrize("recorded", [False, True])
def test_starts_and_orders_on_the_cpu_are_moved_to_the_device_of_a_layer_and_its_cache(recorded):
    layer = rg.MultiHeadAttention(8, 2, positions=pos.Rotary(), pattern="causal")
    with FakeTensorMode(), torch.set_grad_enabled(recorded):
        start = order = torch.tensor([1, 0])
        # A device that no build needs.
        heads = torch.empty(2, 2, 3, 4, device="lazy", requires_grad=recorded)
        turned = layer._rotate(heads, start)
        held = HeldEntries({"k": heads, "v": heads}, 0, 3).reordered(order)
        context = ProjectedContext(heads, heads, None).reorder(order)
        moved = (turned, held.planes["k"], context.keys)
        assert [x.device.type for x in moved] == ["lazy"] * 3


@pytest.fixture
def _default_device_without_values() -> Iterator[None]:
    """Every tensor that is made without a device has no values, so that using one as a number fails."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


DEFAULTED = (
    "causal",
    p.SlidingWindow(6),
    p.DilatedWindow(4, 2),
    p.GlobalTokens([0, 5]) | p.CausalWindow(2),
    p.RandomBlocks(1, block=2, seed=3),
    p.Causal() & p.Strided(3),
    p.Fixed(4, summary=2),
    p.KeySpan(0, LENGTHS),
    p.SameDocument(torch.arange(150) // 50),
    p.PerHead([p.Causal()] * 3 + [p.Strided(2)] * 3),
    p.Where(lambda i, j: (i + j) % 3 == 0),
    ~p.Full(),
)


@pytest.mark.usefixtures("_default_device_without_values")
@pytest.mark.parametrize("pattern", DEFAULTED, ids=str)
def test_no_backend_makes_a_tensor_on_the_default_device(pattern):
    compute_on_every_backend(pattern, q_len=130, k_len=130, learns=True, backends=("auto",))
    compute_on_every_backend(pattern, q_len=7, k_len=11, learns=True, backends=tuple(BACKENDS))
    compute_on_every_backend(pattern, q_len=2, k_len=11, learns=False, backends=("auto",))


def compute_on_every_backend(
    pattern: Any, q_len: int, k_len: int, learns: bool, backends: tuple[str, ...]
) -> None:
    """Compute outputs, gradients and statistics by the backends that offer to."""
    q = torch.randn(2, 6, q_len, 8, device="cpu", requires_grad=learns)
    k = torch.randn(2, 3, k_len, 8, device="cpu", requires_grad=learns)
    v = torch.randn(2, 3, k_len, 8, device="cpu", requires_grad=learns)
    many_options = {"softcap": 3.0, "dropout": 0.25, "bias": b.ALiBi()}
    for backend, options in product(backends, ({}, many_options)):
        try:
            rg.plan_attention(q, k, v, pattern=pattern, backend=backend, **options)
        except rg.UnsupportedError:
            continue
        output = rg.attention(q, k, v, pattern=pattern, backend=backend, **options)
        assert output.device.type == "cpu"
        if learns:
            output.sum().backward()
    want = WANT if q_len > 2 else "entropy"
    rg.attention_detail(q, k, v, pattern=pattern, want=want)


@pytest.mark.usefixtures("_default_device_without_values")
def test_mechanisms_layers_and_caches_make_no_tensor_on_the_default_device():
    q, k, v = (torch.randn(1, 2, 40, 4, device="cpu", requires_grad=True) for _ in range(3))
    mechanisms = (
        m.LinearTransformer(),
        m.Performer(8),
        m.RandomFeature(8),
        m.LSH(chunk=8, buckets=4),
    )
    for mechanism, pattern in product(mechanisms, ("full", "causal", p.KeySpan(2, 30))):
        keys = q if isinstance(mechanism, m.LSH) else k
        rg.attention(q, keys, v, pattern=pattern, mechanism=mechanism).sum().backward()
    with torch.device("cpu"):
        pattern = "causal & causal_window(4)"
        layer = rg.MultiHeadAttention(8, 2, positions=pos.Rotary(), pattern=pattern)
        x = torch.zeros(2, 1, 8)
        index = torch.tensor([1, 0])
    with torch.no_grad():
        for kind in ("dynamic", "ring"):
            cache = layer.new_cache(2, kind, dtype="int8")
            for _ in range(3):
                assert layer(x, cache=cache).device.type == "cpu"
            cache.reorder(index)
