"""Steps of decoding are planned once for all lengths of the cache, and equal a planned call bit for bit."""

import math
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.backends.native import kernel
from regard.backends.native.library import load
from regard.core.tensors import Stored
from regard.layers.caches.rounding import rounded

from .calls import output_of_own_plan

pytestmark = [
    pytest.mark.skipif(isinstance(load(), str), reason="without the library every step is planned"),
    pytest.mark.usefixtures("fresh_plans"),
]


class StepTexts(NamedTuple):
    """Queries of a step, and all keys and values of its batch rows."""

    q: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    def step(self, k_len: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v while the cache holds so many keys."""
        return self.q, self.keys[:, :, :k_len], self.values[:, :, :k_len]


def draw_texts(batch: int, q_len: int, k_len: int, dtype: torch.dtype = torch.float32) -> StepTexts:
    shapes = (batch, 4, q_len, 16), (batch, 2, k_len, 16), (batch, 2, k_len, 8)
    return StepTexts(*(torch.randn(shape).to(dtype) for shape in shapes))


def assert_bits_of_own_plan(*qkv: Any, **options: Any) -> None:
    with torch.no_grad():
        found = rg.attention(*qkv, **options)
        assert torch.equal(found, output_of_own_plan(*qkv, **options)), options


SINKS = torch.tensor([0.1, -torch.inf, 2.0, 0.0])
STEPS = {  # batch, q_len, dtype; options
    "causal": ((1, 1, torch.float32), {"pattern": "causal"}),
    "window": ((2, 3, torch.float32), {"pattern": p.CausalWindow(7)}),
    "padding and sinks": (
        (3, 2, torch.float32),
        {"pattern": p.Causal() & p.KeySpan([0, 3, 9]), "sink": SINKS},
    ),
    "both sides": ((2, 5, torch.bfloat16), {"pattern": p.SlidingWindow(8), "sink": 0.3}),
    "softcap": ((1, 4, torch.float16), {"pattern": "causal", "softcap": 3.0, "scale": 0.2}),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_equals_the_planned_call_bit_for_bit(name, planned):
    (batch, q_len, dtype), options = STEPS[name]
    texts = draw_texts(batch, q_len, 150, dtype)
    steps = 0
    for k_len in range(2, 150, 5):
        by_row = torch.randint(-3, k_len + 3, (batch,))
        for start in (None, max(0, k_len - q_len - 2), by_row):
            assert_bits_of_own_plan(*texts.step(k_len), q_start=start, **options)
            steps += 1
    assert len(planned) < 40 < steps


def spans(k_len: int) -> p.Pattern:
    return p.Causal() & p.KeySpan(torch.randint(0, k_len, (2,)))


def window_and_first(k_len: int) -> p.Pattern:
    return (p.CausalWindow(9) | p.Prefix(40)) & p.KeySpan(torch.randint(0, k_len, (2,)))


def padded_window_and_sinks(k_len: int) -> p.Pattern:
    first_keys = [k_len // 7, k_len // 3]
    sinks = p.KeySpan(first_keys, [k_len // 7 + 4, k_len // 2])
    return p.KeySpan(first_keys) & (p.CausalWindow(9) | sinks)


def lists_whose_order_follows_their_numbers(k_len: int) -> p.Pattern:
    near = p.SlidingWindow(8) & p.KeySpan([k_len % 10, 3])
    return near | p.SlidingWindow(80) & p.KeySpan([-k_len % 10, k_len - 20])


# Of the number of keys: the pattern of a step, which may change from step to step.
PATTERNS: dict[str, Callable[[int], p.Pattern]] = {
    "causal": lambda k_len: p.Causal(),
    "spans in a tensor": spans,
    "a window, first keys and spans": window_and_first,
    "a padded window and sinks by row": padded_window_and_sinks,
    "lists whose order follows their numbers": lists_whose_order_follows_their_numbers,
}
# What a call has beside q, k and v.
CHANGING: dict[str, Callable[[int], dict[str, Any]]] = {
    name: lambda k_len, make=make: {"pattern": make(k_len)} for name, make in PATTERNS.items()
}
CHANGING["a window and sinks"] = lambda k_len: {
    "pattern": p.Causal() & (p.CausalWindow(20) | p.Prefix(4)),
    "sink": 0.5,
}
CHANGING["a bias"] = lambda k_len: {"pattern": "causal", "bias": torch.randn(1, 4, 1, k_len)}
CHANGING["a bias that masks"] = lambda k_len: {
    "bias": torch.randn(k_len).masked_fill(torch.rand(k_len) > 0.7, -torch.inf),
    "softcap": 5.0,
}


@pytest.mark.parametrize("name", CHANGING)
def test_one_plan_serves_every_length_between_two_powers_of_two_and_every_span_and_bias(
    name, planned
):
    """It is the second call that plans both ends of the lengths."""
    texts = draw_texts(2, 1, 511)
    for k_len in range(256, 512, 3):
        assert_bits_of_own_plan(*texts.step(k_len), **CHANGING[name](k_len))
    assert len(planned) <= 1


@pytest.mark.parametrize("sink", [None, 0.5])
def test_spans_that_leave_more_bands_apart_than_the_first_ones_are_planned(sink):
    """A part that another one implies falls away, here where both spans are equal."""
    texts = draw_texts(2, 1, 300)
    for k_len in range(280, 300):
        last = k_len if k_len < 290 else k_len - 1
        one_band = p.KeySpan([k_len - 70, 5], [k_len, 9])
        other_band = p.KeySpan([k_len - 70, 5], [last, 9])
        pattern = p.Causal() & (p.SlidingWindow(20) & one_band | other_band)
        options = {"pattern": pattern, "sink": sink}
        with torch.no_grad():
            found = rg.attention(*texts.step(k_len), **options)
        expected = rg.attention(*texts.step(k_len), **options, backend="reference")
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
def test_steps_read_keys_as_a_cache_stores_them(dtype, name, planned):
    texts = draw_texts(2, 1, 64)
    for k_len in range(33, 64, 3):
        q, *vectors = texts.step(k_len)
        k, v = (Stored(*rounded("x", x, dtype)) for x in vectors)
        assert_bits_of_own_plan(q, k, v, pattern=PATTERNS[name](k_len))
    assert len(planned) <= 1


WITH_BAD_KEYS = {
    "a window": lambda k_len: {"pattern": p.CausalWindow(30)},
    "a window and sinks": CHANGING["a window and sinks"],
    "a bias": CHANGING["a bias"],
}


@pytest.mark.parametrize("name", WITH_BAD_KEYS)
def test_steps_keep_numbers_that_are_not_finite_to_their_queries(name):
    texts = draw_texts(2, 1, 60)
    texts.keys[0, 1, 2] = math.nan
    texts.values[1, 0, 39] = math.inf
    texts.values[0, 0, 30] = math.nan
    for k_len in (37, 38, 39, 40, 41):
        options = WITH_BAD_KEYS[name](k_len)
        with torch.no_grad():
            found = rg.attention(*texts.step(k_len), **options)
        expected = rg.attention(*texts.step(k_len), backend="reference", **options)
        torch.testing.assert_close(found, expected, equal_nan=True, atol=1e-5, rtol=1e-5)


def in_threads(function, *arguments):
    """One thread for each argument; an exception there is raised here."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        list(pool.map(function, arguments))


def test_steps_of_threads_do_not_share_their_arrays():
    texts = draw_texts(2, 1, 127)
    pattern = p.Causal() & p.KeySpan([0, 9])
    expected = {}
    for k_len in range(64, 127):
        expected[k_len] = output_of_own_plan(*texts.step(k_len), pattern=pattern)
    wrong = []

    def decode(offset: int) -> None:
        for turn in range(200):
            k_len = 64 + (turn + offset) % 63
            with torch.no_grad():
                found = rg.attention(*texts.step(k_len), pattern=pattern)
            if not torch.equal(found, expected[k_len]):
                wrong.append(k_len)

    in_threads(decode, 0, 17, 34, 51)
    assert not wrong


def test_what_a_thread_computes_with_outlives_the_planning_of_another(monkeypatch):
    """Two threads that plan a call at once keep one lowered schedule, as long as their structs point at it."""
    texts = draw_texts(2, 33, 66)
    together = threading.Barrier(2)
    lower = kernel.lower
    schedules = []
    all_alive = []

    def lower_together(*arguments):
        lowered = lower(*arguments)
        schedules.append(weakref.ref(lowered))
        together.wait(timeout=60)  # each thread has lowered the pattern before either keeps it
        return lowered

    monkeypatch.setattr(kernel, "lower", lower_together)
    plan = rg.plan_attention(*texts, pattern=p.Causal() & p.KeySpan([0, 9]), backend="native")

    def compute(number: int) -> None:
        with torch.no_grad():
            plan.run(*texts)
        together.wait(timeout=60)
        alive = {lowered.address for ref in schedules if (lowered := ref()) is not None}
        structs = [call.struct for call in plan._offer.run.__self__._spare]
        all_alive.append(all(struct.schedule in alive for struct in structs))

    in_threads(compute, 0, 1)
    assert len(schedules) == 2
    assert all_alive == [True, True]


def test_wrong_tensors_are_refused_after_right_ones_too():
    texts = draw_texts(2, 1, 70)
    q, k, v = texts
    with torch.no_grad():
        for k_len in (66, 67, 68):
            rg.attention(*texts.step(k_len), pattern="causal")
        for wrong in (
            (q, k, v[:, :, :69]),
            (q, k[:, :1], v),
            (q, k[:1], v[:1]),
            (q, k.double(), v.double()),
        ):
            with pytest.raises(rg.ShapeError):
                rg.attention(*wrong, pattern="causal")
        with pytest.raises(rg.ShapeError, match="q_start"):
            rg.attention(q, k, v, pattern="causal", q_start=torch.tensor([1, 2, 3]))


@pytest.mark.parametrize("start", [1, 3, torch.tensor([1]), torch.tensor([3])])
@pytest.mark.parametrize(
    "pattern", ["causal", "causal_window(3)", "causal_window(3) | (causal & prefix(1))"]
)
def test_a_step_that_reaches_a_dropped_key_is_refused_with_the_same_sentence_each_time(
    pattern, start
):
    q = torch.randn(1, 2, 1, 8)
    stored = Stored(torch.randn(1, 2, 65, 8), first=2)
    options = {"pattern": pattern, "q_start": start, "backend": "native"}
    for _ in range(4):
        with pytest.raises(rg.ArgumentError, match="this cache holds those from 2 on"):
            rg.attention(q, stored, stored, **options)
