import math

import pytest
import torch
from teaching import failing, starting, without_timing

from regard.functional import attention
from regard_lab.lessons import find_lesson, linear
from regard_lab.lessons.words import normal


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    without_timing(monkeypatch)


def by_loops(q, k, v, causal):
    def feature(x):
        return [value + 1 if value > 0 else math.exp(value) for value in x]

    rows = []
    for i, query in enumerate(q):
        seen = range(i + 1) if causal else range(len(k))
        weights = [sum(a * b for a, b in zip(feature(query), feature(k[j]), strict=True)) for j in seen]
        rows.append(
            [sum(w * v[j][c] for w, j in zip(weights, seen, strict=True)) / sum(weights) for c in range(len(v[0]))]
        )
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(("order", "causal"), [("left", False), ("right", False), ("left", True)])
def test_both_orders_are_the_formula(order, causal):
    q, k, v = normal(0, 3, 1, 1, 7, 5).unbind(0)
    expected = by_loops(*(x[0, 0].tolist() for x in (q, k, v)), causal)
    torch.testing.assert_close(linear.multiplied(q, k, v, order, causal)[0, 0], expected, atol=1e-12, rtol=0)


def test_operations_are_those_of_the_formula():
    numbers = find_lesson("linear").teach().numbers
    d = linear.DIM
    assert numbers["operations"]["left"] == [2 * n * n * d + 2 * n * n * (d + 1) for n in linear.LENGTHS]
    assert numbers["operations"]["right"] == [2 * 2 * n * d * (d + 1) for n in linear.LENGTHS]


def test_softmax_in_its_place_is_seen(monkeypatch):
    monkeypatch.setattr(linear, "attention", lambda q, k, v, mechanism=None: attention(q, k, v))
    assert starting(failing("linear"), "regard's LinearTransformer", "The result differs from softmax")


def test_brackets_that_change_the_result_are_seen(monkeypatch):
    real = linear.multiplied

    def wrong(q, k, v, order, causal=False):
        return real(q, k, v, order, causal) * (1.001 if order == "right" else 1)

    monkeypatch.setattr(linear, "multiplied", wrong)
    assert starting(failing("linear"), "Both orders", "regard's LinearTransformer")


def test_brackets_that_save_nothing_are_seen(monkeypatch):
    real = linear.multiplied
    monkeypatch.setattr(linear, "multiplied", lambda q, k, v, order, causal=False: real(q, k, v, "left", causal))
    assert starting(failing("linear"), "Twice as many words")


def test_brackets_that_are_computed_twice_are_seen(monkeypatch):
    real = linear.multiplied

    def twice(q, k, v, order, causal=False):
        result = real(q, k, v, order, causal)
        return result if order == "left" else (result + real(q, k, v, order, causal)) / 2

    monkeypatch.setattr(linear, "multiplied", twice)
    assert starting(failing("linear"), "The costs are equal")


def test_a_state_that_forgets_is_seen(monkeypatch):
    real = linear.RecurrentState

    class Forgetful(real):
        def attend(self, q, k, v, **options):
            self.__init__(linear.LinearTransformer(), 1, 1, linear.DIM, dtype=q.dtype)
            return super().attend(q, k, v, **options)

    monkeypatch.setattr(linear, "RecurrentState", Forgetful)
    assert starting(failing("linear"), "Decoding word by word")


def test_a_state_that_grows_is_seen(monkeypatch):
    real = linear._state_after
    monkeypatch.setattr(
        linear, "_state_after", lambda length: type("Grown", (), {"nbytes": real(length).nbytes + length})
    )
    assert starting(failing("linear"), "These sums")
