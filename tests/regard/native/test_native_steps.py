"""Steps of decoding are planned once for all lengths of the cache, and equal a planned call bit for bit."""

import math
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.backends.native import kernel
from regard.backends.native.library import load
from regard.core.tensors import Stored
from regard.functional import api
from regard.functional.kept import PLANS
from regard.layers.caches.rounding import rounded

pytestmark = [
    pytest.mark.skipif(isinstance(load(), str), reason="without the library every step is planned"),
    pytest.mark.usefixtures("nothing_planned"),
]
INF = torch.inf
STEPS = {
    "causal": ({"pattern": "causal"}, (1, 1, torch.float32)),
    "window": ({"pattern": p.CausalWindow(7)}, (2, 3, torch.float32)),
    "padding and sinks": (
        {"pattern": p.Causal() & p.KeySpan([0, 3, 9]), "sink": torch.tensor([0.1, -INF, 2.0, 0.0])},
        (3, 2, torch.float32),
    ),
    "both sides": ({"pattern": p.SlidingWindow(8), "sink": 0.3}, (2, 5, torch.bfloat16)),
    "softcap": ({"pattern": "causal", "softcap": 3.0, "scale": 0.2}, (1, 4, torch.float16)),
}


@pytest.fixture
def nothing_planned():
    PLANS.forget()


@pytest.fixture
def planned(monkeypatch):
    """Counts the calls of `attention` that are planned or checked."""
    counted = []
    monkeypatch.setattr(
        api,
        "_output_of_new",
        lambda call, new=api._output_of_new: counted.append(call) or new(call),
    )
    return counted


def tensors(
    batch: int, q_len: int, k_len: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shapes = (batch, 4, q_len, 16), (batch, 2, k_len, 16), (batch, 2, k_len, 8)
    q, k, v = (torch.randn(shape, dtype=torch.float32).to(dtype) for shape in shapes)
    return q, k, v


def whole(*qkv, **options):
    """The output of a call with statistics, which is planned by itself."""
    return rg.attention_detail(*qkv, want="log_sum_exp", backend="native", **options).output


@pytest.mark.parametrize("name", STEPS)
def test_a_step_equals_the_planned_call_bit_for_bit(name, planned):
    options, (batch, q_len, dtype) = STEPS[name]
    q, keys, values = tensors(batch, q_len, 150, dtype)
    lengths = range(2, 150, 5)
    with torch.no_grad():
        for k_len in lengths:
            k = keys[:, :, :k_len]
            v = values[:, :, :k_len]
            for start in (None, max(0, k_len - q_len - 2), torch.randint(-3, k_len + 3, (batch,))):
                found = rg.attention(q, k, v, q_start=start, **options)
                assert torch.equal(found, whole(q, k, v, q_start=start, **options)), (k_len, start)
    assert len(planned) < 40, f"{len(planned)} of {3 * len(lengths)} calls were planned"


def test_a_growing_cache_is_planned_once_between_two_powers_of_two(planned):
    q, k, v = tensors(1, 1, 511, torch.float32)
    with torch.no_grad():
        for k_len in range(256, 512):
            rg.attention(q, k[:, :, :k_len], v[:, :, :k_len], pattern="causal")
    assert len(planned) == 1  # the first; the second plans both ends of the lengths


# Of the length: what a call has beside q, k and v, which changes from step to step.
CHANGING = {
    "spans in a tensor": lambda n: {"pattern": p.Causal() & p.KeySpan(torch.randint(0, n, (2,)))},
    "a window and sinks": lambda n: {
        "pattern": p.Causal() & (p.CausalWindow(20) | p.Prefix(4)),
        "sink": 0.5,
    },
    "a window, sinks and spans": lambda n: {
        "pattern": (p.CausalWindow(9) | p.Prefix(40)) & p.KeySpan(torch.randint(0, n, (2,)))
    },
    "a padded window and sinks by row": lambda n: {
        "pattern": p.KeySpan([n // 7, n // 3])
        & (p.CausalWindow(9) | p.KeySpan([n // 7, n // 3], [n // 7 + 4, n // 2]))
    },
    "lists whose order follows their numbers": lambda n: {
        "pattern": p.SlidingWindow(8) & p.KeySpan([n % 10, 3])
        | p.SlidingWindow(80) & p.KeySpan([-n % 10, n - 20])
    },
    "a bias": lambda n: {"pattern": "causal", "bias": torch.randn(1, 4, 1, n)},
    "a bias that masks": lambda n: {
        "bias": torch.randn(n).masked_fill(torch.rand(n) > 0.7, -INF),
        "softcap": 5.0,
    },
}


SPANS = {
    name: options for name, options in CHANGING.items() if not options(64).keys() & {"bias", "sink"}
}


@pytest.mark.parametrize("options", CHANGING.values(), ids=CHANGING)
def test_one_plan_serves_every_length_and_every_span_and_bias(options, planned):
    """It is the second call that plans both ends of the lengths, as with a growing cache."""
    q, k, v = tensors(2, 1, 511, torch.float32)
    with torch.no_grad():
        for k_len in range(256, 512, 3):
            given = options(k_len)
            keys = k[:, :, :k_len]
            values = v[:, :, :k_len]
            found = rg.attention(q, keys, values, **given)
            assert torch.equal(found, whole(q, keys, values, **given))
    assert len(planned) == 1


@pytest.mark.parametrize("sink", [None, 0.5])
def test_spans_that_leave_more_bands_apart_than_the_first_ones_are_planned(sink):
    """A part that another one implies falls away, here where both spans are equal."""
    q, k, v = tensors(2, 1, 300, torch.float32)
    with torch.no_grad():
        for k_len in range(280, 300):
            spans = (
                p.KeySpan([k_len - 70, 5], [k_len, 9]),
                p.KeySpan([k_len - 70, 5], [k_len - k_len // 290, 9]),
            )
            pattern = p.Causal() & (p.SlidingWindow(20) & spans[0] | spans[1])
            keys = k[:, :, :k_len]
            values = v[:, :, :k_len]
            found = rg.attention(q, keys, values, pattern=pattern, sink=sink)
            expected = rg.attention(
                q, keys, values, pattern=pattern, sink=sink, backend="reference"
            )
            torch.testing.assert_close(found, expected)


def test_padding_that_changes_from_batch_to_batch_is_planned_once(planned):
    q, k, v = tensors(3, 100, 100, torch.float32)
    with torch.no_grad():
        for step in range(8):
            pattern = p.Causal() & p.KeySpan(0, torch.tensor([100 - step, 90 + step, 7 * step]))
            found = rg.attention(q, k, v, pattern=pattern)
            assert torch.equal(found, whole(q, k, v, pattern=pattern))
    assert len(planned) == 1


@pytest.mark.parametrize(
    "options", [lambda n: {"pattern": "causal"}, *SPANS.values()], ids=["causal", *SPANS]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
def test_steps_read_keys_as_a_cache_stores_them(dtype, options, planned):
    q, keys, values = tensors(2, 1, 64, torch.float32)
    with torch.no_grad():
        for k_len in range(33, 64, 3):
            k, v = (Stored(*rounded("x", x[:, :, :k_len], dtype)) for x in (keys, values))
            given = options(k_len)
            found = rg.attention(q, k, v, **given)
            assert torch.equal(found, whole(q, k, v, **given))
    assert len(planned) == 1


@pytest.mark.parametrize("name", ["a window", "spans in a tensor", "a window and sinks", "a bias"])
def test_steps_keep_numbers_that_are_not_finite_to_their_queries(name):
    q, keys, values = tensors(2, 1, 60, torch.float32)
    keys[0, 1, 2], values[1, 0, 39], values[0, 0, 30] = math.nan, math.inf, math.nan
    with torch.no_grad():
        for k_len in (37, 38, 39, 40, 41):
            options = CHANGING.get(name, lambda n: {"pattern": p.CausalWindow(30)})(k_len)
            k = keys[:, :, :k_len]
            v = values[:, :, :k_len]
            found = rg.attention(q, k, v, **options)
            expected = rg.attention(q, k, v, backend="reference", **options)
            torch.testing.assert_close(found, expected, equal_nan=True, atol=1e-5, rtol=1e-5)


def in_threads(function, *given):
    """One thread for each argument; an exception there is raised here."""
    with ThreadPoolExecutor(len(given)) as pool:
        list(pool.map(function, given))


def test_steps_of_threads_do_not_share_their_arrays():
    q, keys, values = tensors(2, 1, 127, torch.float32)
    pattern = p.Causal() & p.KeySpan([0, 9])
    wrong = []

    def decode(offset: int) -> None:
        with torch.no_grad():
            for at in range(200):
                k_len = 64 + (at + offset) % 63
                k = keys[:, :, :k_len]
                v = values[:, :, :k_len]
                if not torch.equal(rg.attention(q, k, v, pattern=pattern), expected[k_len]):
                    wrong.append(k_len)

    with torch.no_grad():
        expected = {
            n: whole(q, keys[:, :, :n], values[:, :, :n], pattern=pattern) for n in range(64, 127)
        }
    in_threads(decode, *(17 * number for number in range(4)))
    assert not wrong


def test_what_a_thread_computes_with_outlives_the_planning_of_another(monkeypatch):
    """Two threads that plan a call at once keep one lowered schedule, as long as their structs point at it."""
    q, k, v = tensors(2, 33, 66, torch.float32)
    together = threading.Barrier(2)
    made = []
    living = []

    def slowly(*args, known=kernel.lower):
        lowered = known(*args)
        made.append(weakref.ref(lowered))
        together.wait(timeout=60)  # each thread has lowered the pattern before either keeps it
        return lowered

    monkeypatch.setattr(kernel, "lower", slowly)
    plan = rg.plan_attention(q, k, v, pattern=p.Causal() & p.KeySpan([0, 9]), backend="native")

    def compute(number: int) -> None:
        with torch.no_grad():
            plan.run(q, k, v)
        together.wait(timeout=60)
        alive = {lowered.address for one in made if (lowered := one()) is not None}
        living.append(all(one.struct.schedule in alive for one in plan._offer.run.__self__._spare))

    in_threads(compute, 0, 1)
    assert len(made) == 2
    assert living == [True, True]


def test_wrong_tensors_are_refused_after_right_ones_too():
    q, k, v = tensors(2, 1, 70, torch.float32)
    with torch.no_grad():
        for k_len in (66, 67, 68):
            rg.attention(q, k[:, :, :k_len], v[:, :, :k_len], pattern="causal")
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
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 67, 8)
    first = 2
    stored = Stored(k[:, :, first:], first=first)
    for _ in range(4):
        with pytest.raises(rg.ArgumentError, match="this cache holds those from 2 on"):
            rg.attention(q, stored, stored, pattern=pattern, q_start=start, backend="native")
