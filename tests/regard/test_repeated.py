"""A warm call that one function of C computes: same bits, and PyTorch still sees what it must see."""

import gc
import math
import resource
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from measuring import NotedFunctions, NotedOperations, entered, frames
from repeated_calls import by_python, interruptions_of
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

import regard as rg
from regard import patterns as p
from regard.backends.native.kept_calls import kept_calls
from regard.core.tensors import BEFORE_AUTOGRAD
from regard.errors import RegardError
from regard.functional.kept import PLANS

pytestmark = [
    pytest.mark.skipif(kept_calls() is None, reason="only Python computes calls here"),
    pytest.mark.usefixtures("fresh_plans"),
]
MOST_KEPT = 256
MIB = 1 << 20


def tensors(q_len: int = 5, k_len: int = 7, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    q = torch.randn(3, 4, q_len, 16, dtype=dtype)
    k = torch.randn(3, 2, k_len, 16, dtype=dtype)
    v = torch.randn(3, 2, k_len, 11, dtype=dtype)
    return [q, k, v]


def is_repeated(*qkv: Tensor, **options: Any) -> bool:
    """Whether a warm call enters no function of regard but `attention`."""
    return len(frames(lambda: rg.attention(*qkv, **options))) == 1


def turned(x: Tensor) -> Tensor:
    """The same numbers, where heads and positions are exchanged in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "text": {"pattern": "causal"},
    "window": {"pattern": p.Causal() & p.CausalWindow(3)},
    "union": {"pattern": p.Causal() & (p.CausalWindow(2) | p.Prefix(1))},
    "scale": {"scale": 0.7},
    "softcap": {"softcap": 3.5},
    "start": {"pattern": "causal", "q_start": 1},
    "named": {"backend": "native", "precise": True},
    "softmax": {"mechanism": "softmax", "strict": True},
}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_repeated_call_has_the_bits_of_one_that_python_computes(name, dtype):
    options = OPTIONS[name]
    for change in (torch.clone, turned):
        qkv = [change(x) for x in tensors(dtype=dtype)]
        assert is_repeated(*qkv, **options)
        others = [change(torch.randn_like(x)) for x in qkv]
        assert torch.equal(rg.attention(*others, **options), by_python(*others, **options))


def test_an_output_lies_in_memory_as_one_that_python_computes_and_is_an_ordinary_tensor():
    qkv = tensors()
    assert is_repeated(*qkv)
    output = rg.attention(*qkv)
    expected = by_python(*qkv)
    assert output.stride() == expected.stride()
    assert output.untyped_storage().resizable()
    assert not output.requires_grad
    with torch.inference_mode():
        assert rg.attention(*qkv).is_inference()


@pytest.mark.parametrize("k_len", [1, 4])
def test_one_query_over_few_keys_is_repeated(k_len):
    q, k, v = tensors(q_len=1, k_len=k_len)
    assert is_repeated(q, k, v)
    assert torch.equal(rg.attention(q, k, v), by_python(q, k, v))


def test_keys_that_a_window_never_reaches_are_left_out_of_a_repeated_call():
    q, k, v = tensors(q_len=2, k_len=23)
    pattern = p.Causal() & p.CausalWindow(4)
    assert is_repeated(q, k, v, pattern=pattern)
    assert torch.equal(rg.attention(q, k, v, pattern=pattern), by_python(q, k, v, pattern=pattern))
    k[:, :, :9] = math.nan
    output = rg.attention(q, k, v, pattern=pattern)
    assert output.isfinite().all()
    assert torch.equal(output, by_python(q, k, v, pattern=pattern))


def test_a_nan_in_a_repeated_call_reaches_only_queries_that_may_look_at_it():
    q, k, v = tensors(q_len=7)
    assert is_repeated(q, k, v, pattern="causal")
    v[:, :, 4, 3] = math.nan
    output = rg.attention(q, k, v, pattern="causal")
    assert output[:, :, :4].isfinite().all()
    assert output[:, :, 4:, 3].isnan().all()
    assert torch.equal(output.isnan(), by_python(q, k, v, pattern="causal").isnan())


# ---- what PyTorch must see


class NotingTensor(Tensor):
    """A tensor that notes the functions it is given to."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.seen.append(getattr(function, "__name__", ""))
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.fixture
def warm() -> list[Tensor]:
    """Tensors like which a call was made that is repeated."""
    qkv = tensors()
    assert is_repeated(*qkv)
    return qkv


def test_a_profiler_sees_the_call(warm):
    with profile() as profiler:
        rg.attention(*warm)
    assert "regard::attention" in [event.name for event in profiler.events()]


def test_a_flop_counter_counts_the_call(warm):
    with FlopCounterMode(display=False) as counter:
        rg.attention(*warm)
    assert counter.get_total_flops() == 2 * 3 * 4 * 5 * 7 * (16 + 11)


def test_a_dispatch_mode_sees_operations(warm):
    with NotedOperations() as operations:
        rg.attention(*warm)
    assert operations.names


def test_a_function_mode_sees_what_it_sees_of_a_call_that_python_computes(warm):
    with NotedFunctions() as functions:
        rg.attention(*warm)
    with NotedFunctions() as functions_of_python:
        by_python(*warm)
    assert functions.names == functions_of_python.names


@pytest.mark.parametrize("place", range(3))
def test_a_subclass_sees_what_it_sees_of_a_call_that_python_computes(warm, place):
    qkv = [x.as_subclass(NotingTensor) if i == place else x for i, x in enumerate(warm)]
    for _ in range(3):
        rg.attention(*qkv)
    NotingTensor.seen.clear()
    output = rg.attention(*qkv)
    seen = [*NotingTensor.seen]
    NotingTensor.seen.clear()
    assert type(output) is type(by_python(*qkv))
    assert seen == NotingTensor.seen != []


@pytest.mark.parametrize("place", range(3))
def test_gradients_are_recorded(warm, place):
    leaf = warm[place].clone().requires_grad_()
    qkv = [leaf if i == place else x for i, x in enumerate(warm)]
    rg.attention(*qkv).sum().backward()
    assert leaf.grad is not None
    with torch.no_grad():
        assert torch.equal(rg.attention(*qkv), rg.attention(*warm))


def test_autocast_computes_in_its_dtype(warm):
    with torch.autocast("cpu", torch.bfloat16):
        assert rg.attention(*warm).dtype == torch.bfloat16
    assert rg.attention(*warm).dtype == torch.float32


def test_transforms_differentiate_and_batch(warm):
    q, k, v = warm

    def total(q: Tensor) -> Tensor:
        return rg.attention(q, k, v).square().sum()

    leaf = q.clone().requires_grad_()
    total(leaf).backward()
    assert torch.equal(torch.func.grad(total)(q), leaf.grad)

    several = torch.stack([q, -q])
    outputs = torch.func.vmap(lambda q: rg.attention(q, k, v))(several)
    assert torch.equal(outputs[1], rg.attention(-q, k, v))

    _, tangent = torch.func.jvp(total, (q,), (q,))
    torch.testing.assert_close(tangent, (leaf.grad * q).sum())


def test_a_tangent_is_carried_on(warm):
    q, k, v = warm
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        output = forward_ad.unpack_dual(rg.attention(dual, k, v))
        assert output.tangent is not None


def test_a_compiled_graph_holds_the_call(warm):
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda q, k, v: rg.attention(q, k, v) + 1, backend=keep, fullgraph=True
    )
    torch.testing.assert_close(compiled(*warm), rg.attention(*warm) + 1)
    torch._dynamo.reset()
    assert any("regard" in str(node.target) for graph in graphs for node in graph.graph.nodes)


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_recorded_graph_holds_the_call(warm, pre_dispatch):
    recorded = make_fx(lambda q, k, v: rg.attention(q, k, v), pre_dispatch=pre_dispatch)(*warm)
    assert any("regard" in str(node.target) for node in recorded.graph.nodes)


def test_a_call_is_left_to_python_where_a_tracer_may_record_before_autograd(warm):
    def call() -> Tensor:
        with torch._C._IncludeDispatchKeyGuard(BEFORE_AUTOGRAD):
            return rg.attention(*warm)

    assert len(frames(call)) > 1


@pytest.mark.filterwarnings("ignore:.torch.jit.trace.:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_tracing_is_refused(warm):
    with pytest.raises(RegardError, match=r"torch\.jit\.trace"):
        torch.jit.trace(lambda q, k, v: rg.attention(q, k, v), tuple(warm))


@pytest.mark.parametrize("place", range(3))
def test_numbers_that_are_not_in_memory_are_read(warm, place):
    negated = [torch._neg_view(x) if i == place else x for i, x in enumerate(warm)]
    written = [-x if i == place else x for i, x in enumerate(warm)]
    assert torch.equal(rg.attention(*negated), by_python(*written))

    wide = torch._efficientzerotensor((3, 9, *warm[place].shape[2:]))
    zeros = wide[
        :, 3 : 3 + warm[place].shape[1]
    ]  # behind the beginning of a memory that does not exist
    expected = torch.empty(3, 9, *warm[place].shape[2:])[:, : zeros.shape[1]].zero_()
    for _ in range(3):
        known = rg.attention(*[expected if i == place else x for i, x in enumerate(warm)])
    assert torch.equal(
        rg.attention(*[zeros if i == place else x for i, x in enumerate(warm)]), known
    )


# ---- which calls are the same


@pytest.mark.parametrize(
    ("kept", "given"),
    [
        ({"scale": 1.0}, {"scale": True}),
        ({"softcap": 1.0}, {"softcap": "1.0"}),
        ({"strict": False}, {"strict": 0.5}),
        ({"backend": "native"}, {"backend": "natives"}),
        ({"pattern": "causal"}, {"pattern": "causally"}),
        ({"q_start": 1}, {"q_start": 1.5}),
    ],
)
def test_an_option_that_is_refused_is_refused_after_a_call_like_it(kept, given):
    qkv = tensors()
    assert is_repeated(*qkv, **kept)
    with pytest.raises(RegardError):
        rg.attention(*qkv, **given)


def test_options_decide_which_call_is_repeated():
    qkv = tensors(q_len=7)
    kinds = [{}, {"pattern": "causal"}, {"scale": 0.5}, {"pattern": p.CausalWindow(2)}]
    for _ in range(3):
        for options in kinds:
            assert torch.equal(rg.attention(*qkv, **options), by_python(*qkv, **options))


def test_a_pattern_that_is_equal_to_a_kept_one_is_repeated():
    qkv = tensors()
    equal_patterns = [p.CausalWindow(3) for _ in range(3)]
    assert len(frames(lambda: rg.attention(*qkv, pattern=equal_patterns.pop()))) == 1


def test_sizes_strides_and_dtypes_decide_which_call_is_repeated():
    qkv = tensors()
    assert is_repeated(*qkv)
    for others in (
        tensors(q_len=6),
        tensors(k_len=8),
        tensors(dtype=torch.float64),
        [turned(x) for x in qkv],
    ):
        for _ in range(3):
            assert torch.equal(rg.attention(*others), by_python(*others))
        sparse_rows = [
            torch.cat([x, x], -1)[..., ::2] for x in others
        ]  # the last axis is not dense
        for _ in range(3):
            assert torch.equal(rg.attention(*sparse_rows), by_python(*sparse_rows))


def test_layouts_of_equal_hash_are_told_apart():
    """An axis of one number may have any stride, and this one makes up in the hash for one key more."""

    def factor(size_or_stride: int) -> int:
        return 0x9E3779B97F4A7C15 + size_or_stride * 2 * 0xD1B54A32D192ED03

    # The layout is 12 sizes of q, k and v, then their 12 strides.
    of_k_len, of_v_len, of_q_stride = factor(6), factor(10), factor(12)
    step = (of_k_len + of_v_len) * pow(of_q_stride, -1, 2**64) % 2**64
    strides = (step, 0) if step < 2**63 else (0, 2**64 - step)
    numbers = torch.randn(2, 3, 16)
    keys = torch.randn(1, 2, 8, 16)

    def call(k_len: int, stride: int) -> list[Tensor]:
        q = torch.as_strided(numbers, (1, 2, 3, 16), (stride, 48, 16, 1))
        return [q, keys[:, :, :k_len], keys[:, :, :k_len]]

    assert is_repeated(*call(7, strides[0]))
    others = call(8, strides[1])
    assert torch.equal(rg.attention(*others), by_python(*others))


def test_tensors_that_do_not_fit_are_refused_after_a_call_that_fits():
    q, k, v = tensors()
    assert is_repeated(q, k, v)
    for wrong in (
        [q, k, v[:, :, 1:]],
        [q, k.double(), v],
        [q[0], k, v],
        [q, k.to("meta"), v],
        [q, k, None],
    ):
        with pytest.raises(RegardError):
            rg.attention(*wrong)


def test_a_mask_that_is_changed_in_place_is_read_again():
    q, k, v = tensors()
    bias = torch.zeros(5, 7)
    for number in range(4):
        bias.fill_(0)[:, number] = -math.inf
        expected = by_python(q, k, v, bias=bias)
        assert torch.equal(rg.attention(q, k, v, bias=bias), expected)


# ---- memory, threads and exceptions


def test_the_newest_calls_are_kept_and_hold_no_more_than_their_options():
    q, k, v = tensors()
    pattern = p.CausalWindow(5)
    assert is_repeated(q, k, v, pattern=pattern)
    held = weakref.ref(pattern)
    del pattern
    rg.attention(q, k, v)
    for number in range(MOST_KEPT + 1):
        for _ in range(2):  # the second one is kept
            rg.attention(q, k, v, scale=0.5 + number)
    assert len(entered(lambda: rg.attention(q, k, v, scale=0.5 + MOST_KEPT))) == 4
    PLANS.forget()
    gc.collect()
    assert held() is None


def test_references_of_arguments_and_outputs_are_given_back():
    qkv = tensors()
    options = {"pattern": p.CausalWindow(3), "scale": 0.31}
    assert is_repeated(*qkv, **options)
    objects = [*qkv, options["pattern"], options["scale"], None]
    before = [sys.getrefcount(x) for x in objects[:-1]]
    for _ in range(1_000):
        output = rg.attention(*qkv, **options)
    assert [sys.getrefcount(x) for x in objects[:-1]] == before
    assert sys.getrefcount(output) == 2


def test_memory_does_not_grow_over_100000_calls():
    q, k, v = (torch.randn(1, 2, 3, 8) for _ in range(3))
    assert is_repeated(q, k, v)
    for _ in range(10_000):
        rg.attention(q, k, v)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for _ in range(100_000):
        rg.attention(q, k, v)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < 2 * MIB


def test_the_memory_of_an_output_that_was_freed_is_not_written():
    qkv = tensors()
    assert is_repeated(*qkv)
    reused = 0
    for _ in range(50):
        outputs = [rg.attention(*qkv) for _ in range(20)]
        shape = outputs[0].shape
        addresses = {x.data_ptr() for x in outputs}
        del outputs
        mine = [torch.full(shape, 7.0) for _ in range(40)]
        reused += any(x.data_ptr() in addresses for x in mine)
        rg.attention(*qkv)
        assert all((x == 7.0).all() for x in mine)
    assert reused > 10


def computed_in_threads(calls: list[Callable[[], Tensor]], seconds: float) -> list[bool]:
    """Whether each of several calls, made again and again by a thread of its own, always gave the same bits."""
    expected = [call() for call in calls]
    until = time.monotonic() + seconds
    same = [True] * len(calls)

    def work(number: int) -> None:
        while time.monotonic() < until and same[number]:
            same[number] = torch.equal(calls[number](), expected[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return same


def test_threads_repeat_calls_of_different_and_of_equal_shapes_at_once():
    one, other = tensors(), tensors(q_len=9, k_len=13)
    same_shape = tensors()
    calls = [
        lambda: rg.attention(*one),
        lambda: rg.attention(*other, pattern=p.Causal()),
        lambda: rg.attention(*same_shape),
    ]
    for call in calls:
        assert len(frames(call)) <= 3
    assert all(computed_in_threads(calls, 0.4))


def test_threads_compute_while_another_one_forgets_all_plans():
    one, other = tensors(), tensors(q_len=9, k_len=13)

    def forget_and_compute() -> Tensor:
        PLANS.forget()
        return rg.attention(*one, pattern=p.CausalWindow(2))

    calls = [
        lambda: rg.attention(*one, pattern=p.Causal()),
        lambda: rg.attention(*other, pattern=p.Causal()),
        forget_and_compute,
    ]
    assert all(computed_in_threads(calls, 0.6))


def test_calls_after_interruptions_have_the_same_bits():
    qkv = tensors()
    expected = by_python(*qkv, pattern=p.Causal())
    assert is_repeated(*qkv, pattern=p.Causal())

    def call() -> Tensor:
        return rg.attention(*qkv, pattern=p.Causal())

    assert interruptions_of(call, expected, after=1e-4, seconds=0.3) > 10


def test_a_repeated_call_has_the_same_bits_with_any_number_of_threads():
    q, k, v = (torch.randn(2, 4, 128, 64) for _ in range(3))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert is_repeated(q, k, v)
        expected = rg.attention(q, k, v)
        torch.set_num_threads(2)
        assert torch.equal(rg.attention(q, k, v), expected)
    finally:
        torch.set_num_threads(before)


def test_a_call_with_dropout_draws_one_seed_each_time() -> None:
    """A seed that is drawn to keep a call would change the masks of all later calls."""
    q, k, v = tensors()
    torch.manual_seed(3)
    for _ in range(4):
        rg.attention(q, k, v, dropout=0.5)
    after_calls = torch.get_rng_state()
    torch.manual_seed(3)
    for _ in range(4):
        by_python(q, k, v, dropout=0.5)
    assert torch.equal(after_calls, torch.get_rng_state())
