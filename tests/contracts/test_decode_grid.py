"""The decode backend answers as the oracle does for every pattern, option, head layout and storage."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cells import DTYPES, HEADS, OPTIONS, PATTERNS
from comparing import Cell, Tally

from regard.caches.numbers import kept
from regard.kernels.decode import Decode
from regard.kernels.reference import Reference
from regard.plan import make_plan
from regard.problem import make_problem
from regard.statistics import top_keys
from regard.stored import Stored
from regard.testing import LAYOUTS, Budget

LENGTHS = ((7, 11), (11, 7), (1, 5), (1, 40), (16, 17))
STORAGES = (None, torch.bfloat16, torch.float16, torch.int8)
WANTS = ((), ("log_sum_exp",), ("log_sum_exp", "entropy", "received", "weights", top_keys(3)))


def stored(x: torch.Tensor, storage: torch.dtype | None) -> tuple[torch.Tensor | Stored, torch.Tensor]:
    """Keys or values as a cache of this dtype hands them over, and the numbers they stand for."""
    if storage is None or storage == x.dtype:
        return x, x.double()
    numbers, scales = kept("x", x, storage)
    found = Stored(numbers, scales)
    return found, found.widened(torch.float64)


def results(backend, cell: Cell, dtype: torch.dtype, storage: torch.dtype | None, want: tuple):
    """A backend's answer to a cell without gradients, and the numbers that its keys and values stand for."""
    q, k, v = (x.detach() for x in cell.tensors(dtype))
    (k, plain_k), (v, plain_v) = stored(k, storage), stored(v, storage)
    made = cell.options()
    options = {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in made.items()}
    seed = options.pop("dropout_seed", None)
    problem = make_problem(q, k, v, pattern=cell.model, want=want, **options)
    start = options.get("q_start")
    given = {"bias": options.get("bias"), "q_start": start if isinstance(start, torch.Tensor) else None}
    plan = make_plan(problem, {backend.name: backend}, backend.name)
    return plan.detail(q, k, v, **given, dropout_seed=seed), [q.double(), plain_k, plain_v]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_every_cell_without_gradient_equals_the_oracle(lengths):
    tally = Tally()
    for number, (pattern, option) in enumerate(itertools.product(PATTERNS, OPTIONS)):
        heads = list(HEADS.values())[(number + number // 3) % 3]
        layout = LAYOUTS[(number + number // len(OPTIONS)) % len(LAYOUTS)]
        dtype, storage, want = DTYPES[number % 3], STORAGES[number // 2 % 4], WANTS[number // 5 % 3]
        cell = Cell(pattern, option, heads, lengths, layout, seed=number)
        found, cell.numbers[:] = results(Decode(), cell, dtype, storage, want)
        compare(cell, found, dtype, want, tally)
    assert tally.cells["decode computed"] == len(PATTERNS) * len(OPTIONS)


def compare(cell: Cell, found, dtype: torch.dtype, want: tuple, tally: Tally) -> None:
    expected = cell.expected()
    budget = Budget.of(
        *cell.numbers, dtype, scale=cell.made.get("scale", cell.numbers[0].shape[-1] ** -0.5),
        bias=cell.made.get("bias"), dropout=cell.made.get("dropout", 0.0),
    )  # fmt: skip
    assert found.output.dtype == dtype
    errors = {"output": budget.share("output", found.output, expected.output)}
    if "log_sum_exp" in want:
        errors["log_sum_exp"] = budget.share("log_sum_exp", found.log_sum_exp, expected.log_sum_exp)
    assert max(errors.values()) <= 1, f"{cell}: errors over budget {errors}"
    if len(want) > 1:
        check_statistics(found, expected.weights, 1e-12 if dtype == torch.float64 else 3e-5)
    tally.add("decode", dtype, errors)


def check_statistics(found, weights: np.ndarray, close: float) -> None:
    got = found.weights.double().numpy()
    assert np.abs(got - weights).max(initial=0) <= close
    entropy = -np.sum(weights * np.log(np.maximum(weights, 1e-300)), -1)
    assert np.abs(found.entropy.double().numpy() - entropy).max(initial=0) <= 20 * close
    assert np.abs(found.received.double().numpy() - weights.sum(2)).max(initial=0) <= 16 * close
    largest = -np.sort(-weights, -1)[..., :3]
    assert np.abs(found.top_keys.weights.double().numpy()[..., : largest.shape[-1]] - largest).max() <= close


@pytest.mark.parametrize("pattern", ["causal_window(3)", "causal & (causal_window(2) | key_span(0, 2))"])
def test_statistics_stand_where_the_reference_puts_them(pattern):
    cell = Cell("full", "plain", (6, 3), (2, 11), "contiguous")
    object.__setattr__(cell, "model", pattern)
    (found, _), (wanted, _) = (results(one, cell, torch.float64, None, WANTS[2]) for one in (Decode(), Reference()))
    assert torch.equal(found.top_keys.indices, wanted.top_keys.indices)
    for name in ("weights", "received", "entropy"):
        assert torch.allclose(getattr(found, name), getattr(wanted, name), rtol=0, atol=1e-14)
