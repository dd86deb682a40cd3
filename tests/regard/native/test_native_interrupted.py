"""Calls of the kernel after one that an exception stopped at any instruction, and inside one that has not ended."""

import random
from collections.abc import Callable

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
EACH = 40  # injections of each kind of call
Run = Callable[[], list[torch.Tensor]]


def vectors(
    batch: int, q_len: int, k_len: int, seed: int, views: bool = False
) -> list[torch.Tensor]:
    """q, k and v of 4 heads over 2; as views that lie in memory in another order, or not."""
    made = torch.Generator().manual_seed(seed)
    shapes = (batch, 4, q_len, 16), (batch, 2, k_len, 16), (batch, 2, k_len, 16)
    x = [torch.randn(shape, generator=made) for shape in shapes]
    return [one.transpose(1, 2).contiguous().transpose(1, 2) for one in x] if views else x


def outputs(*given: torch.Tensor | Stored, **options: object) -> Run:
    return lambda: [rg.attention(*given, **options)]


def statistics(*given: torch.Tensor) -> Run:
    want = ["log_sum_exp", "entropy", "received", "weights"]

    def run() -> list[torch.Tensor]:
        found = rg.attention_detail(*given, pattern="causal", want=want, backend="native")
        return [found.output, found.log_sum_exp, found.entropy, found.received, found.weights]

    return run


def gradients(*given: torch.Tensor, bias: torch.Tensor | None = None, **options: object) -> Run:
    def run() -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in (*given, *([] if bias is None else [bias]))]
        learned = {} if bias is None else {"bias": leaves[3]}
        with torch.enable_grad():  # inside of a forward pass it is off
            return [
                *torch.autograd.grad(rg.attention(*leaves[:3], **learned, **options).sum(), leaves)
            ]

    return run


def of_int8(x: torch.Tensor) -> Stored:
    return Stored(
        (x * 30).to(torch.int8),
        torch.rand(*x.shape[:3], 1, generator=torch.Generator().manual_seed(9)),
    )


def two_layouts(of: Callable[..., Run], q_len: int, k_len: int, **options: object) -> list[Run]:
    """The same call with tensors of two layouts, which share the kept struct of one plan."""
    return [
        of(*vectors(2, q_len, k_len, seed, views), **options)
        for seed, views in ((1, False), (2, True))
    ]


def of_steps(**options: object) -> list[Run]:
    return [
        outputs(*vectors(2, 1, k_len, k_len, k_len % 2 == 0), **options) for k_len in (37, 38, 53)
    ]


def kinds() -> dict[str, Callable[[], list[Run]]]:
    """Kinds of calls by name; calls of one kind share a plan or a step, and so what it keeps between calls."""
    bias = torch.randn(4, 1, 53, generator=torch.Generator().manual_seed(5))
    steps = vectors(2, 1, 37, 1), vectors(2, 1, 38, 2)
    starts = torch.tensor([40, 31])
    spans = p.KeySpan(torch.tensor([0, 5]), torch.tensor([37, 30]))
    return {
        "forward": lambda: two_layouts(outputs, 37, 53, pattern="causal"),
        "window with ALiBi": lambda: two_layouts(
            outputs, 37, 53, pattern=p.SlidingWindow(7), bias=rg.bias.ALiBi()
        ),
        "bias, sink and dropout": lambda: two_layouts(
            outputs, 37, 53, bias=bias, sink=0.5, dropout=0.3, dropout_seed=7, backend="native"
        ),
        "statistics": lambda: two_layouts(statistics, 23, 31),
        "backward": lambda: two_layouts(gradients, 37, 53, pattern="causal"),
        "backward with a bias": lambda: two_layouts(gradients, 37, 53, bias=bias, softcap=3.0),
        "step": lambda: of_steps(pattern="causal"),
        "step of two bands": lambda: of_steps(pattern="causal & (causal_window(9) | prefix(4))"),
        "step by batch row": lambda: of_steps(pattern=p.Causal() & spans, q_start=starts),
        "step of int8": lambda: [outputs(q, of_int8(k), of_int8(v)) for q, k, v in steps],
    }


def settled(runs: list[Run]) -> list[list[torch.Tensor]]:
    """What the calls return, each once its plan is kept: a step is kept from the third call on."""
    for _ in range(3):
        expected = [run() for run in runs]
    return expected


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def interrupt() -> None:
    raise KeyboardInterrupt


def wrong_after_exceptions(runs: list[Run], count: int, draw: random.Random) -> int:
    """How many of `count` calls return other bits after one that stopped at a random instruction."""
    expected = settled(runs)
    lengths = [instructions_of(run) for run in runs]
    wrong = done = 0
    while done < count:
        at = draw.randrange(len(runs))
        try:  # it may end before that instruction: calls that are laid out as the one before are shorter
            disturbed(runs[at], draw.randrange(lengths[at]), interrupt)
        except KeyboardInterrupt:
            done += 1
        wrong += not all(
            same(runs[i](), expected[i]) for i in draw.sample(range(len(runs)), len(runs))
        )
    return wrong


def wrong_with_calls_inside(runs: list[Run], count: int, draw: random.Random) -> int:
    """How many of `count` calls return other bits if another one runs at a random instruction, or that one does."""
    expected = settled(runs)
    lengths = [instructions_of(run) for run in runs]
    wrong = done = 0
    while done < count:
        outer = draw.randrange(len(runs))
        inner = draw.randrange(len(runs))
        inside: list[list[torch.Tensor]] = []
        act = lambda run=runs[inner], into=inside: into.append(run())  # noqa: E731
        found = disturbed(runs[outer], draw.randrange(lengths[outer]), act)
        wrong += not (
            same(found, expected[outer]) and all(same(one, expected[inner]) for one in inside)
        )
        done += len(inside)
    return wrong


@pytest.mark.parametrize("name", kinds())
def test_calls_after_an_interrupted_one_return_the_same_bits(name):
    assert wrong_after_exceptions(kinds()[name](), EACH, random.Random(0)) == 0


@pytest.mark.parametrize("name", kinds())
def test_a_call_inside_a_call_changes_neither(name):
    assert wrong_with_calls_inside(kinds()[name](), EACH, random.Random(0)) == 0
