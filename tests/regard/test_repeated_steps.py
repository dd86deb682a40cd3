"""Steps of decoding that one function of C computes: any number of keys, the same bits, and Python where it must."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from repeated_calls import by_python, is_without_python
from torch import Tensor

import regard as rg
from regard import patterns as p
from regard.backends.native.kept_calls import kept_calls
from regard.errors import RegardError, ShapeError
from regard.functional.repeated import REPEATED

pytestmark = [
    pytest.mark.skipif(kept_calls() is None, reason="only Python computes calls here"),
    pytest.mark.usefixtures("fresh_plans"),
]
ROOM = 67  # entries of a cache
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


class RoomForText:
    """Keys and values in memory that is larger than the text, as a cache holds them."""

    def __init__(
        self, dtype: torch.dtype = torch.float32, room: int = ROOM, batch: int = 3
    ) -> None:
        self.keys = torch.randn(batch, 2, room, 16, dtype=dtype)
        self.values = torch.randn(batch, 2, room, 11, dtype=dtype)

    def first(self, k_len: int) -> tuple[Tensor, Tensor]:
        return self.keys[:, :, :k_len], self.values[:, :, :k_len]


def queries(q_len: int = 1, dtype: torch.dtype = torch.float32, batch: int = 3) -> Tensor:
    return torch.randn(batch, 4, q_len, 16, dtype=dtype)


PATTERNS: dict[str, Any] = {
    "causal": "causal",
    "full": None,
    "window": p.Causal() & p.CausalWindow(5),
    "two-sided": p.SlidingWindow(3),
    "span": p.Causal() & p.KeySpan(2, 41),
    "prefix-like": p.KeySpan(0, 7),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_steps_over_keys_that_were_never_counted_have_the_bits_of_python(name, dtype):
    pattern = PATTERNS[name]
    draw = random.Random(7)
    for q_len in (1, 3):
        cache = RoomForText(dtype)
        for k_len in (35, 36, 37):  # the first is planned, the second is a step, the third is kept
            rg.attention(queries(q_len, dtype), *cache.first(k_len), pattern=pattern)
        for _ in range(12):
            k_len = draw.randint(33, 63)
            start = draw.choice([None, k_len - q_len, draw.randint(0, k_len), k_len + 9])
            q = queries(q_len, dtype)
            options = {"pattern": pattern, "q_start": start}
            expected = by_python(q, *cache.first(k_len), **options)
            assert torch.equal(rg.attention(q, *cache.first(k_len), **options), expected), start
            fresh_q = queries(q_len, dtype)
            assert is_without_python(fresh_q, *cache.first(k_len), **options)


@pytest.mark.parametrize(
    "pattern",
    [p.Causal() | p.KeySpan(0, 3), p.Causal() & (p.CausalWindow(4) | p.Prefix(2))],
    ids=str,
)
def test_steps_of_several_windows_are_left_to_python(pattern):
    cache = RoomForText()
    for k_len in range(35, 50):
        q = queries()
        options = {"pattern": pattern, "q_start": k_len - 5}
        keys, values = cache.first(k_len)
        expected = rg.attention(
            q.double(), keys.double(), values.double(), backend="reference", **options
        )
        torch.testing.assert_close(
            rg.attention(q, keys, values, **options).double(), expected, rtol=1e-5, atol=1e-5
        )


def decode(lengths: range, cache: Callable[[int], RoomForText], **options: Any) -> list[bool]:
    """For each length whether the step was computed without Python."""
    found = []
    for k_len in lengths:
        q = queries()
        keys, values = cache(k_len).first(k_len)
        found.append(is_without_python(q, keys, values, **options, q_start=k_len - 1))
        output = rg.attention(q, keys, values, **options, q_start=k_len - 1)
        assert torch.equal(output, by_python(q, keys, values, **options, q_start=k_len - 1))
    return found


def test_a_text_passes_python_at_its_first_steps_and_between_two_powers_of_two():
    cache = RoomForText(room=64)
    found = decode(range(9, 64), lambda k_len: cache, pattern="causal")
    assert [9 + place for place, done in enumerate(found) if not done] == [9, 10, 16, 17, 32, 33]


def test_a_cache_that_grows_changes_strides_and_no_more():
    caches = {room: RoomForText(room=room) for room in (40, 50, 63)}

    def cache(k_len: int) -> RoomForText:
        return next(caches[room] for room in caches if k_len <= room)

    assert all(decode(range(33, 64), cache, pattern="causal")[2:])


def test_a_single_text_may_have_any_strides_of_its_axes_of_one():
    for room in (40, 50):
        cache = RoomForText(room=room, batch=1)
        for k_len in range(33, 40):
            q = queries(batch=1)
            keys, values = cache.first(k_len)
            expected = by_python(q, keys, values, pattern="causal")
            assert torch.equal(rg.attention(q, keys, values, pattern="causal"), expected)


def warmed(**options: Any) -> RoomForText:
    cache = RoomForText()
    for k_len in (35, 36, 37):
        rg.attention(queries(), *cache.first(k_len), **options)
    assert is_without_python(queries(), *cache.first(50), **options)
    return cache


def test_nan_that_no_query_looks_at_changes_nothing_and_visible_nan_is_seen():
    pattern = p.Causal() & p.CausalWindow(5)
    cache = warmed(pattern=pattern)
    q = queries()
    before = rg.attention(q, *cache.first(49), pattern=pattern)
    cache.keys[:, :, :44] = math.nan
    cache.values[:, :, 49:] = math.inf
    assert torch.equal(rg.attention(q, *cache.first(49), pattern=pattern), before)
    cache.values[1, 1, 46, 3] = math.nan
    output = rg.attention(q, *cache.first(49), pattern=pattern)
    assert output.isnan().nonzero()[:, 0].unique().tolist() == [1]
    assert torch.equal(output.isnan(), by_python(q, *cache.first(49), pattern=pattern).isnan())


def answer_of(call: Callable[[], Tensor]) -> Tensor | str:
    """An output, or the sentence of a refusal."""
    try:
        return call()
    except RegardError as refusal:
        return str(refusal)


@pytest.mark.parametrize("start", [-3, 2**41, 2**70, True, torch.tensor([3, 4, 5])], ids=str)
def test_starts_that_c_does_not_count_with_are_answered_as_python_answers(start):
    cache = warmed(pattern="causal")
    options = {"pattern": "causal", "q_start": start}
    q = queries()
    expected = answer_of(lambda: by_python(q, *cache.first(45), **options))
    found = answer_of(lambda: rg.attention(q, *cache.first(45), **options))
    assert type(found) is type(expected)
    assert torch.equal(found, expected) if isinstance(found, Tensor) else found == expected


def test_values_of_another_length_are_refused_as_ever():
    cache = warmed(pattern="causal")
    with pytest.raises(ShapeError):
        rg.attention(queries(), cache.first(45)[0], cache.first(44)[1], pattern="causal")


def test_gradients_and_other_options_are_not_taken_for_the_kept_step():
    cache = warmed(pattern="causal")
    q = queries().requires_grad_()
    rg.attention(q, *cache.first(46), pattern="causal").sum().backward()
    assert q.grad is not None
    q = queries()
    for options in ({"scale": 0.5}, {"softcap": 3.0}, {"pattern": None}, {"precise": True}):
        options = {"pattern": "causal", **options}
        expected = by_python(q, *cache.first(46), **options)
        assert torch.equal(rg.attention(q, *cache.first(46), **options), expected)


def test_forgotten_steps_are_planned_again():
    cache = warmed(pattern="causal")
    REPEATED.forget()
    assert not is_without_python(queries(), *cache.first(51), pattern="causal")
    assert is_without_python(queries(), *cache.first(52), pattern="causal")
