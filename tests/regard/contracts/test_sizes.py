"""CallSizes of 0 and 1 in every dimension give results or refusals, and never crash the process."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch

import regard as rg
from regard.backends import BACKENDS
from regard.core.call import make_problem

WANT = ["log_sum_exp", "entropy", "received", "weights", rg.top_keys(2)]
REFUSALS = ("head_dim is 0", "multiple of kv_heads", "nothing to compute")


class CallSizes(NamedTuple):
    batch: int
    kv_heads: int
    group: int
    q_len: int
    k_len: int
    head_dim: int
    v_dim: int

    @property
    def heads(self) -> int:
        return self.group * self.kv_heads

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return (
            torch.randn(self.batch, self.heads, self.q_len, self.head_dim, requires_grad=True),
            torch.randn(self.batch, self.kv_heads, self.k_len, self.head_dim, requires_grad=True),
            torch.randn(self.batch, self.kv_heads, self.k_len, self.v_dim, requires_grad=True),
        )


def some_sizes() -> Iterator[CallSizes]:
    """A fifth of all sizes in which at most one is 0."""
    for numbers in itertools.product((0, 1, 3), repeat=7):
        if numbers.count(0) <= 1 and sum(min(number, 2) for number in numbers) % 5 == 0:
            yield CallSizes(*numbers)


def backends_here() -> list[str]:
    """Those that compute on this machine."""
    one = torch.zeros(1, 1, 2, 1, requires_grad=True)
    small = make_problem(one, one, one)
    return [
        name
        for name, backend in BACKENDS.items()
        if not any(limit(small) for limit in backend.limits)
    ]


def assert_refused_in_words(sizes: CallSizes, backend: str, refusal: str) -> None:
    assert 0 in sizes, (backend, refusal)
    assert any(words in refusal for words in REFUSALS), (sizes, backend, refusal)
    assert backend not in ("auto", "reference") or "nothing to" not in refusal, (sizes, refusal)


def assert_has_the_shapes_and_gradients(detail: rg.AttentionDetail, sizes: CallSizes) -> None:
    rows = sizes.batch, sizes.heads, sizes.q_len
    assert detail.output.shape == (*rows, sizes.v_dim)
    assert detail.output.isfinite().all(), sizes
    assert detail.weights.shape == (*rows, sizes.k_len)
    assert detail.received.shape == (sizes.batch, sizes.heads, sizes.k_len)
    assert detail.top_keys.indices.shape == (*rows, 2)
    if sizes.k_len == 0:
        assert (detail.output == 0).all()
        assert (detail.log_sum_exp == -torch.inf).all()


def test_zero_and_one_in_every_dimension_answer_or_refuse():
    """A crash would end the process of the test."""
    here = backends_here()
    computed = 0
    refused = 0
    for sizes in some_sizes():
        # every second backend and pattern, in turns
        turn = sum(sizes)
        for number, backend in enumerate(("auto", *here[turn // 2 % 2 :: 2]), start=turn):
            pattern = None if number % 2 == 0 else "causal_window(2)"
            q, k, v = sizes.tensors()
            try:
                detail = rg.attention_detail(q, k, v, pattern=pattern, backend=backend, want=WANT)
            except rg.RegardError as refusal:
                assert_refused_in_words(sizes, backend, str(refusal))
                refused += 1
                continue
            assert_has_the_shapes_and_gradients(detail, sizes)
            detail.output.sum().backward()
            for x in (q, k, v):
                assert x.grad is not None, sizes
                assert x.grad.isfinite().all(), sizes
            computed += 1
    assert computed > 150
    assert refused > 40


# Memory that nobody has written


TAKEN = {
    "empty": lambda like: torch.empty(3, dtype=like.dtype),
    "empty_like": torch.empty_like,
    "new_empty": lambda like: like.new_empty(3),
    "empty_strided": lambda like: torch.empty_strided((3,), (1,), dtype=like.dtype),
    "resize_": lambda like: torch.zeros(0, dtype=like.dtype).resize_(3),
}


@pytest.mark.parametrize("name", TAKEN)
def test_fresh_memory_is_poisoned(name):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        assert TAKEN[name](torch.zeros(3, dtype=dtype)).isnan().all()
    assert (TAKEN[name](torch.zeros(3, dtype=torch.int64)) == torch.iinfo(torch.int64).max).all()
