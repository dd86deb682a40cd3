"""Calls of the kernel after one that an exception stopped at any instruction, and inside one that has not ended."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from injections import disturbed, instructions_of

import regard as rg
from regard import patterns as p
from regard.backends.native.library import load
from regard.core.tensors import Stored

pytestmark = [
    pytest.mark.skipif(isinstance(load(), str), reason="they are about its library"),
    pytest.mark.usefixtures("fresh_plans"),
]
INJECTIONS = 40  # of each kind of call
Run = Callable[[], list[torch.Tensor]]


def tensors(batch: int, q_len: int, k_len: int, seed: int, views: bool) -> list[torch.Tensor]:
    """q, k and v of 4 heads over 2; as views that lie in memory in another order, or not."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, 4, q_len, 16), (batch, 2, k_len, 16), (batch, 2, k_len, 16)
    qkv = [torch.randn(shape, generator=generator) for shape in shapes]
    if not views:
        return qkv
    return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv]


def outputs(*qkv: torch.Tensor | Stored, **options: Any) -> Run:
    return lambda: [rg.attention(*qkv, **options)]


def statistics(*qkv: torch.Tensor, **options: Any) -> Run:
    want = ["log_sum_exp", "entropy", "received", "weights"]

    def run() -> list[torch.Tensor]:
        found = rg.attention_detail(*qkv, want=want, backend="native", **options)
        return [found.output, *(getattr(found, name) for name in want)]

    return run


def gradients(*qkv: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> Run:
    def run() -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in qkv]
        if bias is not None:
            leaves.append(bias.detach().requires_grad_())
        q, k, v, *learned = leaves
        with torch.enable_grad():  # inside of a forward pass it is off
            output = rg.attention(q, k, v, bias=learned[0] if learned else None, **options)
            return [*torch.autograd.grad(output.sum(), leaves)]

    return run


def in_int8(x: torch.Tensor) -> Stored:
    generator = torch.Generator().manual_seed(9)
    return Stored((x * 30).to(torch.int8), torch.rand(*x.shape[:3], 1, generator=generator))


def in_two_layouts(make: Callable[..., Run], q_len: int, k_len: int, **options: Any) -> list[Run]:
    """The same call with tensors of two layouts, which share the kept struct of one plan."""
    return [
        make(*tensors(2, q_len, k_len, seed=1, views=False), **options),
        make(*tensors(2, q_len, k_len, seed=2, views=True), **options),
    ]


def steps(**options: Any) -> list[Run]:
    return [
        outputs(*tensors(2, 1, k_len, seed=k_len, views=k_len % 2 == 0), **options)
        for k_len in (37, 38, 53)
    ]


def steps_of_int8() -> list[Run]:
    runs = []
    for k_len, seed in ((37, 1), (38, 2)):
        q, k, v = tensors(2, 1, k_len, seed, views=False)
        runs.append(outputs(q, in_int8(k), in_int8(v)))
    return runs


BIAS = torch.randn(4, 1, 53, generator=torch.Generator().manual_seed(5))
SPANS = p.Causal() & p.KeySpan(torch.tensor([0, 5]), torch.tensor([37, 30]))
MASK = torch.rand(2, 53, generator=torch.Generator().manual_seed(6)) < 0.7
PADDINGS = (p.KeyMask(MASK), p.KeyMask(MASK.flip(1)), p.KeyMask(torch.arange(53) < 40))
DROPOUT = {"dropout": 0.3, "dropout_seed": 7}
# Calls of one kind share a plan or a step, and so what it keeps between calls.
KINDS: dict[str, Callable[[], list[Run]]] = {
    "forward": lambda: in_two_layouts(outputs, 37, 53, pattern="causal"),
    "window with ALiBi": lambda: in_two_layouts(
        outputs, 37, 53, pattern=p.SlidingWindow(7), bias=rg.bias.ALiBi()
    ),
    "bias, sink and dropout": lambda: in_two_layouts(
        outputs, 37, 53, bias=BIAS, sink=0.5, backend="native", **DROPOUT
    ),
    "statistics": lambda: in_two_layouts(statistics, 23, 31, pattern="causal"),
    "backward": lambda: in_two_layouts(gradients, 37, 53, pattern="causal"),
    "backward with a bias": lambda: in_two_layouts(gradients, 37, 53, bias=BIAS, softcap=3.0),
    "masks": lambda: [
        run for mask in PADDINGS for run in in_two_layouts(outputs, 37, 53, pattern=mask)
    ],
    "backward with masks": lambda: [
        run
        for mask in PADDINGS
        for run in in_two_layouts(gradients, 37, 53, pattern=p.Causal() & mask)
    ],
    "step": lambda: steps(pattern="causal"),
    "step of two bands": lambda: steps(pattern="causal & (causal_window(9) | prefix(4))"),
    "step by batch row": lambda: steps(pattern=SPANS, q_start=torch.tensor([40, 31])),
    "step of int8": steps_of_int8,
}


def results_of_kept_plans(runs: list[Run]) -> list[list[torch.Tensor]]:
    """What the calls return, each once its plan is kept: a step is kept from the third call on."""
    for _ in range(3):
        results = [run() for run in runs]
    return results


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def interrupt() -> None:
    raise KeyboardInterrupt


def wrong_after_exceptions(runs: list[Run], count: int, draw: random.Random) -> int:
    """How many of `count` calls return other bits after one that stopped at a random instruction."""
    expected = results_of_kept_plans(runs)
    lengths = [instructions_of(run) for run in runs]
    wrong = 0
    stopped = 0
    while stopped < count:
        number = draw.randrange(len(runs))
        try:  # it may end before that instruction: calls that are laid out as the one before are shorter
            disturbed(runs[number], draw.randrange(lengths[number]), interrupt)
        except KeyboardInterrupt:
            stopped += 1
        order = draw.sample(range(len(runs)), len(runs))
        wrong += not all(same(runs[number](), expected[number]) for number in order)
    return wrong


def wrong_with_calls_inside(runs: list[Run], count: int, draw: random.Random) -> int:
    """How many of `count` calls return other bits if another one runs at a random instruction, or that one does."""
    expected = results_of_kept_plans(runs)
    lengths = [instructions_of(run) for run in runs]
    wrong = 0
    nested = 0
    while nested < count:
        outer = draw.randrange(len(runs))
        inner = draw.randrange(len(runs))
        results: list[list[torch.Tensor]] = []

        def call_inside(run: Run = runs[inner], results: list = results) -> None:
            results.append(run())

        found = disturbed(runs[outer], draw.randrange(lengths[outer]), call_inside)
        wrong += not same(found, expected[outer])
        wrong += not all(same(result, expected[inner]) for result in results)
        nested += len(results)
    return wrong


@pytest.mark.parametrize("name", KINDS)
def test_calls_after_an_interrupted_one_return_the_same_bits(name):
    assert wrong_after_exceptions(KINDS[name](), INJECTIONS, random.Random(0)) == 0


@pytest.mark.parametrize("name", KINDS)
def test_a_call_inside_a_call_changes_neither(name):
    assert wrong_with_calls_inside(KINDS[name](), INJECTIONS, random.Random(0)) == 0
