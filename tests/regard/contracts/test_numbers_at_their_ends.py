"""Numbers at their ends, and what is never broadcast, mixed or written to; test_sizes.py has sizes of 0 and 1."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mechanism_cells import MECHANISMS, make_call

import regard as rg
from regard.backends import BACKENDS
from regard.errors import ShapeError, UnsupportedError
from regard.testing import make_qkv

NAMES = ["auto", *BACKENDS]
SMALL = 1e-41  # a subnormal number of float32


def outputs(*qkv: torch.Tensor, **options: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The output of every backend that computes a call."""
    for name in NAMES:
        try:
            yield name, rg.attention(*qkv, backend=name, **options)
        except UnsupportedError:
            continue


def options_of(name: str) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """q, k and v of a mechanism in float32, and its options."""
    call = make_call(name, dtype=torch.float32)
    pattern = "full" if name.startswith("linformer") else "causal"
    return call.tensors, {**call.options, "pattern": pattern}


def test_batches_are_not_broadcast():
    q, k, v = make_qkv(batch=2)
    for tensors in ((q, k[:1], v[:1]), (q[:1], k, v), (q, k, v[:1])):
        with pytest.raises(ShapeError, match="axis 'batch' is"):
            rg.attention(*tensors)


def test_dtypes_are_not_mixed():
    q, k, v = make_qkv()
    for wrong in ((q, k.double(), v), (q, k, v.bfloat16()), (q.half(), k, v)):
        with pytest.raises(ShapeError, match="dtype"):
            rg.attention(*wrong)


@pytest.mark.parametrize("name", MECHANISMS)
def test_subnormal_values_count_except_in_recurrences_and_linear_mechanisms_of_the_kernel(name):
    (q, k, v), options = options_of(name)
    small = v * SMALL
    expected = rg.attention(q, k, small, backend="reference", **options)
    assert expected.any()
    flushed = options["mechanism"].has_state
    for backend, output in outputs(q, k, small, **options):
        if flushed and backend in ("auto", "native"):
            assert not output.any() or backend == "auto"
            continue
        torch.testing.assert_close(output * 1e38, expected * 1e38, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MECHANISMS)
def test_inputs_are_never_written_to_and_equal_calls_give_equal_bits(name):
    (q, k, v), options = options_of(name)
    parameters = options.get("parameters") or {}
    for backend in NAMES:
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        if options["mechanism"].shares_keys:
            leaves[0] = leaves[1]
        before = [x.detach().clone() for x in (*leaves, *parameters.values())]
        results = []
        try:
            for _ in range(3):
                output = rg.attention(*leaves, backend=backend, **options)
                results.append([output, *torch.autograd.grad(output.sum(), leaves[1:])])
        except UnsupportedError:
            continue
        assert all(map(torch.equal, before, (*leaves, *parameters.values()))), backend
        assert all(map(torch.equal, results[0], results[1])), backend
        assert all(map(torch.equal, results[0], results[2])), backend
