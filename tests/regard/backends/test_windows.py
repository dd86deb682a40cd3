"""Windows of images, each computed by itself: values, gradients, memory and time."""

import random
import time
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from each_value import slow_except
from measuring import Largest

import regard as rg
from regard import patterns as p
from regard.backends import windows
from regard.bias import ALiBi, GridRelative
from regard.testing.oracle import answer

PRIMES = (2, 3, 5, 7, 11, 13)
MOST_CELLS = 91


@dataclass
class WindowCase:
    """A drawn call as a function of its number: an image or a video, its windows, and a learned bias where it fits."""

    number: int
    shape: tuple[int, ...] = field(init=False)
    window: tuple[int, ...] = field(init=False)
    shift: tuple[int, ...] = field(init=False)
    sizes: dict[str, int] = field(init=False)
    has_bias: bool = field(init=False)
    has_sink: bool = field(init=False)
    scale: float = field(init=False)
    softcap: float | None = field(init=False)

    def __post_init__(self) -> None:
        draw = random.Random(self.number)
        axes = draw.choice((2, 2, 3))
        shape = (MOST_CELLS, 2)
        while prod(shape) > MOST_CELLS:
            shape = tuple(draw.choice(PRIMES) for _ in range(axes))
        window = tuple(draw.randint(1, size) for size in shape)
        self.has_bias = draw.random() < 0.7
        if self.has_bias:
            # The distance gives the offset if a window is at most half of each axis but the first.
            window = (window[0], *(draw.randint(1, (size + 1) // 2) for size in shape[1:]))
        if draw.random() < 0.3:
            # An image that is padded to whole windows.
            sizes_and_widths = zip(shape, window, strict=True)
            shape = tuple(-(-size // width) * width for size, width in sizes_and_widths)
        self.shape = shape
        self.window = window
        self.shift = tuple(draw.randrange(width) for width in window)
        kv_heads = draw.choice((1, 2))
        self.sizes = {
            "batch": draw.choice((1, 2)),
            "heads": kv_heads * draw.choice((1, 3)),
            "kv_heads": kv_heads,
            "head_dim": draw.choice((3, 8)),
            "v_dim": draw.choice((5, 8)),
        }
        self.has_sink = draw.random() < 0.2
        self.scale = draw.choice((0.3, 1.0))
        self.softcap = draw.choice((None, None, 2.0))

    @property
    def pattern(self) -> p.ImageWindows:
        return p.ImageWindows(self.shape, self.window, self.shift)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.manual_seed(self.number)
        sizes = self.sizes
        cells = prod(self.shape)
        q = torch.randn(sizes["batch"], sizes["heads"], cells, sizes["head_dim"])
        k = torch.randn(sizes["batch"], sizes["kv_heads"], cells, sizes["head_dim"])
        v = torch.randn(sizes["batch"], sizes["kv_heads"], cells, sizes["v_dim"])
        return q.double(), k.double(), v.double()

    def allowed(self) -> np.ndarray:
        """The pairs of cells in one window, by numbers of windows on each axis."""
        windows = []
        for cell in product(*map(range, self.shape)):
            numbers = zip(cell, self.shift, self.window, strict=True)
            windows.append(tuple((place - shift) // width for place, shift, width in numbers))
        return np.array([[query == key for key in windows] for query in windows])

    def table_rows(self) -> np.ndarray:
        """The row of the bias table for each pair, (cells, cells); -1 beyond the windows."""
        cells = list(product(*map(range, self.shape)))
        rows = np.full((len(cells), len(cells)), -1)
        for i, query in enumerate(cells):
            for j, key in enumerate(cells):
                row = 0
                for place, other, width in zip(query, key, self.window, strict=True):
                    step = other - place + width - 1
                    if not 0 <= step < 2 * width - 1:
                        row = -1
                        break
                    row = row * (2 * width - 1) + step
                rows[i, j] = row
        return rows


def assert_is_right(case: WindowCase) -> None:
    """Assert that the backend's values and gradients are those of the oracle."""
    q, k, v = (x.requires_grad_() for x in case.tensors())
    heads = case.sizes["heads"]
    inputs = {"q": q, "k": k, "v": v}
    options: dict[str, Any] = {"scale": case.scale, "softcap": case.softcap}
    numbers: dict[str, Any] = {}
    rows = None
    if case.has_bias:
        bias = GridRelative(heads, case.shape, case.window).double()
        torch.nn.init.normal_(bias.weight)
        options["bias"] = bias
        inputs["table"] = bias.weight
        rows = case.table_rows()
        table = bias.weight.detach().numpy().T  # (heads, offsets)
        numbers["bias"] = np.where(rows >= 0, table[:, rows], 0.0)[None]
    if case.has_sink:
        options["sink"] = torch.randn(heads).double()
        numbers["sink"] = options["sink"].numpy()[None]

    output = rg.attention(q, k, v, pattern=case.pattern, backend="windows", **options)
    grad = torch.randn_like(output)
    gradients = torch.autograd.grad((output * grad).sum(), [*inputs.values()])
    right = answer(
        *(x.detach().numpy() for x in (q, k, v)),
        case.allowed(),
        scale=case.scale,
        softcap=case.softcap,
        grad_output=grad.numpy(),
        **numbers,
    )
    expected = {"q": right.dq, "k": right.dk, "v": right.dv}
    if rows is not None:
        of_table = np.zeros((heads, inputs["table"].shape[0]))
        for head in range(heads):
            of_pairs = right.dbias.reshape(-1, heads, *rows.shape)[:, head].sum(0)
            np.add.at(of_table[head], rows[rows >= 0], of_pairs[rows >= 0])
        expected["table"] = of_table.T
    np.testing.assert_allclose(output.detach().numpy(), right.output, atol=1e-11, err_msg=str(case))
    for name, gradient in zip(inputs, gradients, strict=True):
        np.testing.assert_allclose(
            gradient.numpy(), expected[name], atol=1e-10, err_msg=f"{name} of {case}"
        )


def test_fused_calls_compute_the_same_where_the_kernel_is_missing(monkeypatch, fresh_plans):
    monkeypatch.setattr(windows, "offer_of_windows", lambda *_: None)
    for number in range(60):
        case = WindowCase(number)
        case.has_bias = False  # fused calls give it no gradient,
        case.softcap = None  # and have no softcap
        assert_is_right(case)


@pytest.mark.parametrize("first", slow_except(range(0, 300, 50), fast=range(0, 150, 50)))
def test_300_drawn_images_and_videos_have_the_oracles_values_and_gradients(first):
    for number in range(first, first + 50):
        assert_is_right(WindowCase(number))


def test_the_drawn_cases_are_of_all_kinds():
    cases = [WindowCase(number) for number in range(300)]
    assert {len(case.shape) for case in cases} == {2, 3}
    parts = [prod(map(len, case.pattern.divided_grid().axes)) for case in cases]
    assert sum(case.has_bias for case in cases) > 150
    assert sum(any(case.shift) for case in cases) > 150
    assert sum(count > 3 for count in parts) > 60


SHAPE = (56, 56)
CELLS = prod(SHAPE)


def image(heads: int = 3, **options: Any) -> list[torch.Tensor]:
    return [torch.randn(1, heads, CELLS, 32, **options) for _ in range(3)]


@pytest.mark.parametrize("shift", [0, 3])
def test_an_image_of_many_windows_is_planned_so_with_a_learned_bias_too(shift):
    pattern = p.ImageWindows(SHAPE, 7, shift=shift)
    bias = GridRelative(3, SHAPE, 7)
    plan = rg.plan_attention(*image(requires_grad=True), pattern=pattern, bias=bias)
    assert plan.backend == "windows"
    assert (
        plan.cost.pairs
        == plan.problem.kept_pairs
        == plan.problem.heads * pattern.count(CELLS, CELLS)
    )


def test_no_tensor_of_pairs_of_an_image_is_made_forward_or_backward():
    q, k, v = image(requires_grad=True)
    pattern = p.ImageWindows(SHAPE, 7, shift=3)
    bias = GridRelative(3, SHAPE, 7)
    with Largest() as largest:
        rg.attention(q, k, v, pattern=pattern, bias=bias).square().sum().backward()
    assert q.numel() <= largest.held < CELLS * CELLS / 10


@pytest.mark.parametrize(
    ("shape", "window", "heads"),
    [
        ((31, 29), (29, 28), 1),  # row blocks of a window, and several parts of its backward pass
        ((17, 13), (17, 13), 3),
        ((19, 11), (5, 3), 6),  # grouped heads
    ],
)
def test_windows_of_any_size_have_the_values_and_gradients_of_the_reference(shape, window, heads):
    cells = prod(shape)
    q = torch.randn(2, heads, cells, 5, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 1, cells, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    pattern = p.ImageWindows(shape, window, shift=2)
    results = []
    for backend in ("windows", "reference"):
        output = rg.attention(q, k, v, pattern=pattern, bias=ALiBi(), backend=backend)
        gradients = torch.autograd.grad(output.sin().sum(), (q, k, v))
        results.append((output, *gradients))
    torch.testing.assert_close(*results)


def test_threads_change_no_bit_of_values_and_gradients():
    q, k, v = (torch.randn(2, 3, 19 * 17, 8, requires_grad=True) for _ in range(3))
    pattern = p.ImageWindows((19, 17), 5, shift=2)
    bias = GridRelative(3, (19, 17), 5)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            output = rg.attention(q, k, v, pattern=pattern, bias=bias, backend="windows")
            inputs = (q, k, v, bias.weight)
            gradients = torch.autograd.grad(output.square().sum(), inputs)
            results.append((output, *gradients))
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))


def test_the_numbers_of_a_grid_are_those_of_every_distance():
    bias = GridRelative(2, (7, 11), (3, 5))
    for lowest, highest in ((-76, 76), (-3, 40), (30, 60), (-26, 26), (-70, -20)):
        distances = torch.arange(lowest, highest + 1)
        found = bias.in_range(lowest, highest, 2, "cpu")
        assert torch.equal(found, bias.by_distance(distances, 2))


def test_the_log_sum_exp_and_its_gradient_are_those_of_the_reference():
    q, k, v = (torch.randn(2, 2, 35, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    pattern = p.ImageWindows((5, 7), (2, 3), shift=1)
    results = []
    for backend in ("windows", "reference"):
        detail = rg.attention_detail(q, k, v, pattern=pattern, backend=backend)
        loss = detail.output.square().sum() + detail.log_sum_exp.sin().sum()
        results.append((detail.log_sum_exp, *torch.autograd.grad(loss, (q, k, v))))
    torch.testing.assert_close(*results)


def test_second_derivatives_and_transforms_are_those_of_the_reference():
    q, k, v = (torch.randn(1, 2, 35, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    pattern = p.ImageWindows((5, 7), (2, 3), shift=1)
    found = []
    for backend in ("windows", "reference"):
        output = rg.attention(q, k, v, pattern=pattern, backend=backend)
        (dq,) = torch.autograd.grad(output.square().sum(), q, create_graph=True)
        found.append(torch.autograd.grad(dq.sin().sum(), (q, k, v)))
    torch.testing.assert_close(*found)

    def attend(q: torch.Tensor, backend: str) -> torch.Tensor:
        return rg.attention(q, k, v, pattern=pattern, backend=backend)

    members = torch.stack([q, 2 * q]).detach()
    batched = torch.vmap(lambda q: attend(q, "windows"))(members)
    looped = torch.stack([attend(q, "windows") for q in members])
    torch.testing.assert_close(batched, looped)


def test_a_nan_reaches_its_window_alone():
    q, k, v = (torch.randn(1, 2, 35, 4) for _ in range(3))
    pattern = p.ImageWindows((5, 7), (2, 3), shift=1)
    expected = rg.attention(q, k, v, pattern=pattern, backend="windows")
    v[0, 0, 9, 1] = torch.nan
    output = rg.attention(q, k, v, pattern=pattern, backend="windows")
    spoilt = pattern.dense(35, 35)[:, 9]
    assert output[0, 0, spoilt].isnan().any(-1).all()
    assert torch.equal(output[0, 0, ~spoilt], expected[0, 0, ~spoilt])
    assert torch.equal(output[0, 1], expected[0, 1])


def test_half_precision_is_rounded_once():
    q, k, v = (torch.randn(1, 2, 35, 8).bfloat16() for _ in range(3))
    pattern = p.ImageWindows((5, 7), (2, 3), shift=1)
    output = rg.attention(q, k, v, pattern=pattern, backend="windows")
    exact = rg.attention(q.double(), k.double(), v.double(), pattern=pattern, backend="reference")
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), exact, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pattern": "causal"}, "does not divide a grid"),
        ({"pattern": p.ImageWindows((5, 7), 3) & p.Causal()}, "does not divide a grid"),
        ({"pattern": p.ImageWindows((5, 7), 3, offset=1)}, "does not divide a grid"),
        ({"pattern": p.ImageWindows((5, 7), 3), "q_start": 1}, "other positions than the 35 cells"),
        ({"pattern": p.ImageWindows((6, 7), 3)}, "other positions than the 42 cells"),
        ({"pattern": p.ImageWindows((5, 7), 3), "bias": torch.zeros(35, 35)}, "bias tensor"),
        ({"pattern": p.ImageWindows((5, 7), 3), "dropout": 0.1}, "drops no weights"),
    ],
)
def test_what_it_does_not_compute_is_refused_and_computed_by_others(options, sentence):
    q, k, v = (torch.randn(1, 2, 35, 4) for _ in range(3))
    with pytest.raises(rg.UnsupportedError, match=sentence):
        rg.attention(q, k, v, backend="windows", **options)
    assert rg.attention(q, k, v, **options).isfinite().all()


def cpu_seconds(calls: dict[str, Any], turns: int) -> dict[str, float]:
    """The least CPU time of each call, of some turns in which all are called."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(turns):
        for name, call in calls.items():
            start = time.process_time()
            call()
            least[name] = min(least[name], time.process_time() - start)
    return least


@pytest.mark.parametrize("shift", [0, 3])
def test_it_takes_less_than_a_quarter_of_the_time_of_the_masked_dense_call(shift):
    tensors = image(heads=1, requires_grad=True)
    pattern = p.ImageWindows(SHAPE, 7, shift=shift)
    bias = GridRelative(1, SHAPE, 7)
    dense = p.Explicit(pattern.dense(CELLS, CELLS))
    pairs = bias.pairs().detach().requires_grad_()

    def learn(**options: Any) -> None:
        rg.attention(*tensors, **options).sum().backward()

    calls = {
        "windows": lambda: learn(pattern=pattern, bias=bias),
        "dense": lambda: learn(pattern=dense, bias=pairs),
    }
    seconds = cpu_seconds(calls, turns=3)
    assert seconds["windows"] < 0.25 * seconds["dense"]
