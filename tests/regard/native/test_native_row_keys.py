"""The keys of batch rows are data of a call: a mask that was never seen has the bits of its own plan, without one."""

import ctypes
import math
import resource
from functools import partial
from pathlib import Path

import pytest
import torch
from measuring import ROOT, NotedOperations, entered
from repeated_calls import by_python, interruptions_of
from side_by_side import run_in_threads

import regard as rg
from regard import patterns as p
from regard.backends.native.kept_calls import kept_calls
from regard.backends.native.library import CSchedule, load
from regard.backends.native.row_keys import RowSchedules
from regard.core.call import make_problem
from regard.functional import kept, structures
from regard.functional.kept import PLANS
from regard.patterns.bands import Diagonals

from .calls import output_of_own_plan

pytestmark = [
    pytest.mark.skipif(isinstance(load(), str), reason="without the library every mask is planned"),
    pytest.mark.usefixtures("fresh_plans"),
]
needs_interpreter = pytest.mark.skipif(
    kept_calls() is None, reason="only Python computes calls here"
)
BATCH, HEADS, KV_HEADS, Q_LEN, K_LEN, DIM = 3, 4, 2, 13, 17, 8
KINDS = {
    "a mask": lambda draw: p.KeyMask(draw.booleans()),
    "one mask of all batch rows": lambda draw: p.KeyMask(draw.booleans()[0]),
    "a mask without holes": lambda draw: p.KeyMask(torch.arange(draw.k_len) < draw.ends()[:, None]),
    "a span": lambda draw: p.KeySpan(draw.ends() // 3, draw.ends()),
    "a span of lists": lambda draw: p.KeySpan(0, draw.ends().tolist()),
    "causal and a mask": lambda draw: p.Causal() & p.KeyMask(draw.booleans()),
    "a window and two masks": lambda draw: (
        p.SlidingWindow(6) & p.KeyMask(draw.booleans()) & p.KeyMask(draw.booleans()[1])
    ),
    "a gap, a span and a mask": lambda draw: (
        Diagonals(-1, 4) & p.KeySpan(draw.ends() // 4) & p.KeyMask(draw.booleans())
    ),
    "a window of no pair": lambda draw: Diagonals(-3, 1) & p.KeyMask(draw.booleans()),
    "a boolean for each pair": lambda draw: p.Explicit(draw.pairs(1, 1)),
    "one for each pair and head": lambda draw: p.Explicit(draw.pairs(draw.batch, HEADS)),
    "one for each pair, and causal": lambda draw: (
        p.Causal() & p.Explicit(draw.pairs(1, HEADS)) & p.KeyMask(draw.booleans())
    ),
    "a prefix and a mask": lambda draw: p.Prefix(9) & p.KeyMask(draw.booleans()),
}


class DrawnRowKeys:
    """Numbers and booleans of batch rows, from a seed."""

    def __init__(self, seed: int, q_len: int = Q_LEN, k_len: int = K_LEN) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.batch = BATCH
        self.q_len = q_len
        self.k_len = k_len

    def pairs(self, batch: int, heads: int) -> torch.Tensor:
        share = torch.rand(batch, heads, 1, 1, generator=self.generator)
        return torch.rand(batch, heads, self.q_len, self.k_len, generator=self.generator) < share

    def booleans(self) -> torch.Tensor:
        share = torch.rand(self.batch, 1, generator=self.generator)
        return torch.rand(self.batch, self.k_len, generator=self.generator) < share

    def ends(self) -> torch.Tensor:
        return torch.randint(0, self.k_len + 3, (self.batch,), generator=self.generator)

    def vectors(self, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        shapes = (HEADS, self.q_len), (KV_HEADS, self.k_len), (KV_HEADS, self.k_len)
        return [
            torch.randn(self.batch, *shape, DIM, generator=self.generator).to(dtype)
            for shape in shapes
        ]


@pytest.fixture
def problems(monkeypatch):
    """The problems that were planned since."""
    seen = []
    for module in (kept, structures):
        make_plan = module.make_plan
        monkeypatch.setattr(
            module,
            "make_plan",
            lambda problem, *given, make_plan=make_plan: (
                seen.append(problem) or make_plan(problem, *given)
            ),
        )
    return seen


def allowed_pairs(schedule: CSchedule, q_len: int, k_len: int) -> torch.Tensor:
    """The pairs that a schedule allows, read from its arrays as regard_native.h describes them: (q_len, k_len)."""
    allowed = torch.zeros(q_len, k_len, dtype=torch.bool)
    blocks = numbers_at(schedule.block, 4 * schedule.blocks).view(-1, 4)
    runs = numbers_at(schedule.run, 4 * schedule.runs).view(-1, 4)
    lo = numbers_at(schedule.lo, schedule.bounds)
    hi = numbers_at(schedule.hi, schedule.bounds)
    bits = numbers_at(schedule.bits, schedule.words)
    for first_row, end_row, first_run, end_run in blocks.tolist():
        rows = torch.arange(end_row - first_row)[:, None]
        for start, stop, kind, place in runs[first_run:end_run].tolist():
            keys = torch.arange(start, stop)
            part = allowed[first_row:end_row, start:stop]
            if kind == 1:
                part[:] = (lo[place + rows] <= keys) & (keys < hi[place + rows])
            elif kind == 2:
                words_of_row = -(-(stop - start) // 32)
                bit = keys - start
                part[:] = bits[place + rows * words_of_row + bit // 32] >> (bit % 32) & 1
            else:
                part[:] = True
    return allowed


def numbers_at(address: int | None, count: int) -> torch.Tensor:
    """int32 numbers in memory."""
    if not count:
        return torch.zeros(0, dtype=torch.int32)
    return torch.tensor((ctypes.c_int32 * count).from_address(address)[:], dtype=torch.int32)


@pytest.mark.parametrize("q_len", [1, 13, 67, 201])
@pytest.mark.parametrize("name", KINDS)
def test_schedules_allow_the_pairs_of_the_pattern(name, q_len):
    k_len = 77
    x = torch.zeros(BATCH, HEADS, q_len, 4)
    k = torch.zeros(BATCH, HEADS, k_len, 4)
    schedules = RowSchedules(load(), make_problem(x, k, k))
    for seed, start in enumerate((k_len - q_len, -5, torch.tensor([0, 40, -7]))):
        draw = DrawnRowKeys(seed, q_len, k_len)
        pattern = KINDS[name](draw)
        schedules.write(pattern.row_keys, k_len, start)
        numbers = schedules.schedule_of
        if numbers is None:
            numbers = torch.zeros(BATCH * HEADS, dtype=torch.int64)
        found = [
            allowed_pairs(schedules._structs[number], q_len, k_len)
            for number in range(schedules.schedule_count)
        ]
        allowed = torch.stack(found)[numbers.long()].view(BATCH, HEADS, q_len, k_len)
        wanted = pattern.dense(q_len, k_len, q_start=start)
        assert torch.equal(allowed, wanted.expand_as(allowed)), start


DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@pytest.mark.each_value(pairs=[("name", "q_len"), ("q_len", "dtype")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("q_len", [1, 13, 131])
@pytest.mark.parametrize("name", KINDS)
def test_fresh_keys_give_the_bits_of_their_own_plan_and_equal_gradients(name, q_len, dtype):
    starts = (None, 2, torch.tensor([0, 5, -2]))
    for seed in range(3):
        # Three dtypes take three starts in turn, so that every seed meets every start.
        start = starts[(seed + DTYPES.index(dtype)) % 3]
        draw = DrawnRowKeys(seed, q_len, q_len + 4)
        pattern = KINDS[name](draw)
        vectors = draw.vectors(dtype)
        seen = torch.randn(BATCH, HEADS, q_len, DIM, generator=draw.generator).to(dtype)
        results = []
        for compute in (rg.attention, output_of_own_plan):
            leaves = [x.clone().requires_grad_() for x in vectors]
            output = compute(*leaves, pattern=pattern, q_start=start)
            results.append([output, *torch.autograd.grad(output, leaves, seen)])
        with torch.no_grad():
            alone = rg.attention(*vectors, pattern=pattern, q_start=start)
        assert torch.equal(alone, results[0][0])
        for ours, planned_alone in zip(*results, strict=True):
            assert torch.equal(ours, planned_alone), (seed, start)
    has_plan = any(plan is not False for plan in PLANS.structures.kept.values())
    assert has_plan == (name != "a window of no pair")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", [name for name in KINDS if name != "a window of no pair"])
def test_one_plan_serves_every_set_of_keys_and_every_length(name, grad, problems):
    for seed in range(9):
        draw = DrawnRowKeys(seed, Q_LEN, K_LEN + seed)
        q, k, v = (x.requires_grad_(grad) for x in draw.vectors())
        rg.attention(q, k, v, pattern=KINDS[name](draw))
    assert len(problems) == 1


@pytest.mark.each_value(pairs=[("name", "sink")])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("sink", [None, 0.5])
@pytest.mark.parametrize(
    "name",
    [
        "a mask",
        "a span",
        "causal and a mask",
        "one for each pair and head",
        "one for each pair, and causal",
    ],
)
def test_numbers_behind_a_mask_reach_no_output_and_no_gradient(name, sink, bad):
    for seed in range(4):
        draw = DrawnRowKeys(seed)
        pattern = KINDS[name](draw)
        vectors = draw.vectors()
        hidden = ~pattern.dense(Q_LEN, K_LEN).any(2).any(1).expand(BATCH, -1)  # (batch, keys)
        spoilt = [x.clone() for x in vectors]
        for x in spoilt[1:]:
            x.transpose(1, 2)[hidden] = bad
        results = []
        for q, k, v in (vectors, spoilt):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            output = rg.attention(*leaves, pattern=pattern, sink=sink)
            results.append([output, *torch.autograd.grad(output.sum(), leaves)])
        for clean, found in zip(*results, strict=True):
            torch.testing.assert_close(found, clean)
        with torch.no_grad():
            found = rg.attention(*spoilt, pattern=pattern, sink=sink)
        torch.testing.assert_close(found, results[0][0].detach())


def test_a_visible_number_that_is_not_finite_reaches_its_queries_alone():
    for seed in range(6):
        draw = DrawnRowKeys(seed)
        pattern = p.SlidingWindow(6) & p.KeyMask(draw.booleans())
        q, k, v = draw.vectors()
        v[1, 0, 5] = math.nan
        k[2, 1, 7] = math.inf
        found = rg.attention(q, k, v, pattern=pattern)
        wanted = rg.attention(q, k, v, pattern=pattern, backend="reference")
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_second_derivatives_see_the_mask_of_their_call():
    draw = DrawnRowKeys(5)
    patterns = [p.KeyMask(draw.booleans()) for _ in range(2)]
    vectors = draw.vectors(dtype=torch.float64)
    for pattern in patterns:
        leaves = [x.clone().requires_grad_() for x in vectors]
        found = _second_derivatives(leaves, pattern=pattern)
        wanted = _second_derivatives(leaves, pattern=pattern, backend="reference")
        for ours, oracle in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, oracle)


def _second_derivatives(leaves: list[torch.Tensor], **options) -> tuple[torch.Tensor, ...]:
    output = rg.attention(*leaves, **options)
    first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
    return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)


OPTIONS = {
    "a sink": lambda draw: {"sink": torch.randn(HEADS, generator=draw.generator).double()},
    "a bias": lambda draw: {
        "bias": torch.randn(HEADS, Q_LEN, K_LEN, generator=draw.generator).double()
    },
    "a bias that hides": lambda draw: {
        "bias": torch.zeros(BATCH, 1, 1, K_LEN)
        .double()
        .masked_fill(~draw.booleans()[:, None, None], -math.inf)
    },
    "a bias by distance": lambda draw: {"bias": rg.bias.ALiBi()},
    "softcap and scale": lambda draw: {"softcap": 3.0, "scale": 0.3},
    "dropout": lambda draw: {"dropout": 0.3, "dropout_seed": 11},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_hold_beside_fresh_keys(name):
    for seed in range(4):
        draw = DrawnRowKeys(seed)
        pattern = p.Causal() & p.KeyMask(draw.booleans())
        vectors = [x.requires_grad_() for x in draw.vectors(dtype=torch.float64)]
        options = OPTIONS[name](draw)
        found = rg.attention(*vectors, pattern=pattern, **options)
        wanted = rg.attention(*vectors, pattern=pattern, backend="reference", **options)
        torch.testing.assert_close(found, wanted)
        for ours, oracle in zip(
            torch.autograd.grad(found.square().sum(), vectors),
            torch.autograd.grad(wanted.square().sum(), vectors),
            strict=True,
        ):
            torch.testing.assert_close(ours, oracle)


def test_masks_that_do_not_fit_are_refused_after_right_ones():
    draw = DrawnRowKeys(1)
    q, k, v = draw.vectors()
    for _ in range(2):
        rg.attention(q, k, v, pattern=p.KeyMask(draw.booleans()))
    with pytest.raises(rg.ShapeError, match="is for 16 keys and the call has 17"):
        rg.attention(q, k, v, pattern=p.KeyMask(draw.booleans()[:, 1:]))
    with pytest.raises(rg.ShapeError, match="has 2 rows but the batch has 3"):
        rg.attention(q, k, v, pattern=p.KeyMask(draw.booleans()[1:]))
    with pytest.raises(rg.ShapeError, match="KeySpan's stop holds 2 numbers"):
        rg.attention(q, k, v, pattern=p.KeySpan(0, torch.tensor([3, 4])))


def test_positions_that_change_in_place_are_read_anew_and_kept_for_the_backward_pass():
    draw = DrawnRowKeys(2)
    pattern = p.Causal() & p.KeyMask(draw.booleans())
    vectors = [x.requires_grad_() for x in draw.vectors()]
    starts = torch.tensor([0, 3, 6])
    output = rg.attention(*vectors, pattern=pattern, q_start=starts)
    wanted = rg.attention(*vectors, pattern=pattern, q_start=starts.clone(), backend="reference")
    starts.fill_(40)
    for ours, oracle in zip(
        torch.autograd.grad(output.sum(), vectors),
        torch.autograd.grad(wanted.sum(), vectors),
        strict=True,
    ):
        torch.testing.assert_close(ours, oracle)
    found = rg.attention(*vectors, pattern=pattern, q_start=starts)
    wanted = rg.attention(*vectors, pattern=pattern, q_start=starts, backend="reference")
    torch.testing.assert_close(found, wanted)


def test_threads_read_the_keys_of_their_own_calls():
    draws = [DrawnRowKeys(seed) for seed in range(8)]
    cases = []
    for draw in draws:
        masks = [p.Causal() & p.KeyMask(draw.booleans()) for _ in range(5)]
        vectors = draw.vectors()
        cases.append((vectors, masks, [rg.attention(*vectors, pattern=one) for one in masks]))
    wrong = []

    def compute(vectors, masks, wanted):
        for _ in range(40):
            for mask, right in zip(masks, wanted, strict=True):
                if not torch.equal(rg.attention(*vectors, pattern=mask), right):
                    wrong.append(mask)

    raised = run_in_threads([partial(compute, *case) for case in cases])
    assert not raised
    assert not wrong


def test_transforms_and_autocast_see_the_mask():
    draw = DrawnRowKeys(3)
    pattern = p.KeyMask(draw.booleans()[0])
    q, k, v = draw.vectors()
    mapped = torch.func.vmap(
        lambda q, k, v: rg.attention(q[None], k[None], v[None], pattern=pattern)
    )
    for _ in range(2):
        wanted = rg.attention(q, k, v, pattern=pattern)
        torch.testing.assert_close(mapped(q, k, v)[:, 0], wanted)
        with torch.autocast("cpu", torch.bfloat16):
            assert rg.attention(q, k, v, pattern=pattern).dtype == torch.bfloat16


def test_few_plans_and_grids_are_kept_however_many_masks_come():
    for length in range(4, 204):
        draw = DrawnRowKeys(length, 4, length)
        by_python(*draw.vectors(), pattern=p.KeyMask(draw.booleans()))
    (plan,) = PLANS.structures.kept.values()
    assert len(plan._grids) == structures.KEPT_GRIDS
    assert not PLANS.unequal


def enters_patterns_alone(vectors: list[torch.Tensor], pattern: p.Pattern, **options) -> bool:
    """Whether a call enters no file of regard but the one of `attention` and those of the patterns."""
    paths = set(entered(lambda: rg.attention(*vectors, pattern=pattern, **options)))
    rooms = {Path(path).parent for path in paths if Path(path).is_relative_to(ROOT)}
    return rooms <= {ROOT / "functional", ROOT / "patterns"}


@pytest.mark.each_value(pairs=[("name", "q_len")])
@needs_interpreter
@pytest.mark.parametrize("start", [None, 3], ids=str)
@pytest.mark.parametrize("q_len", [1, 13, 131, 601])
@pytest.mark.parametrize("name", [name for name in KINDS if name != "a window of no pair"])
def test_fresh_keys_of_a_known_structure_are_computed_without_python(name, q_len, start):
    """With any number of keys, and with room for few schedules and for many."""
    for seed in range(4):
        draw = DrawnRowKeys(seed, q_len, q_len + 4 + seed)
        vectors = draw.vectors()
        pattern = KINDS[name](draw)
        computed = rg.attention(*vectors, pattern=pattern, q_start=start)
        if seed:
            assert enters_patterns_alone(vectors, KINDS[name](draw), q_start=start)
        assert torch.equal(computed, by_python(*vectors, pattern=pattern, q_start=start))


@needs_interpreter
def test_a_mask_for_one_number_of_queries_and_keys_is_refused_in_other_calls():
    draw = DrawnRowKeys(1)
    mask = draw.pairs(1, 1)
    for _ in range(3):
        rg.attention(*draw.vectors(), pattern=p.Explicit(mask))
    q, k, v = draw.vectors()
    with pytest.raises(rg.ShapeError, match="is for"):
        rg.attention(q, k[:, :, 1:], v[:, :, 1:], pattern=p.Explicit(mask))
    shorter = p.Explicit(mask) & p.KeyMask(draw.booleans()[:, 1:])
    for _ in range(2):
        with pytest.raises(rg.ShapeError, match="is for"):
            rg.attention(q, k[:, :, 1:], v[:, :, 1:], pattern=shorter)


@needs_interpreter
def test_a_dispatch_mode_sees_the_operations_that_it_sees_of_a_call_by_python():
    draw = DrawnRowKeys(4)
    vectors = draw.vectors()
    mask = draw.booleans()
    rg.attention(*vectors, pattern=p.KeyMask(mask))
    assert enters_patterns_alone(vectors, p.KeyMask(mask))
    seen = []
    for compute in (rg.attention, by_python):
        pattern = p.KeyMask(mask)
        with NotedOperations() as noted:
            compute(*vectors, pattern=pattern)
        seen.append(noted.names)
    assert seen[0]
    assert seen[0] == seen[1]


@needs_interpreter
def test_memory_does_not_grow_over_100000_fresh_masks():
    q, k, v = (torch.randn(2, 2, 3, 8) for _ in range(3))
    mask = torch.tensor([[True, False, True], [False, True, True]])

    def calls(count: int) -> int:
        for _ in range(count):
            rg.attention(q, k, v, pattern=p.KeyMask(mask))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = calls(10_000)
    assert calls(100_000) - before < 2048  # KiB


@needs_interpreter
def test_calls_with_fresh_keys_after_interruptions_have_the_same_bits():
    draw = DrawnRowKeys(9)
    vectors = draw.vectors()
    mask = draw.booleans()
    wanted = by_python(*vectors, pattern=p.Causal() & p.KeyMask(mask))

    def call() -> torch.Tensor:
        return rg.attention(*vectors, pattern=p.Causal() & p.KeyMask(mask))

    assert interruptions_of(call, wanted, after=2e-4, seconds=0.4) > 10
