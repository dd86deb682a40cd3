"""An output row of the native backend has the same bits in any batch, with any number of threads, at once or continued
with a cache, and on either side of padding; gradients do not depend on the number of threads."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.backends.native.library import load

CASES = 30  # of every promise; each is a call of its own
NATIVE: Any = load()
CAUSAL = (
    "causal",
    "causal & sliding_window(64)",
    "causal_window(33)",
    "causal_window(1)",
    "causal_window(300)",
    "causal & (sliding_window(8) | global_tokens(0, 3))",
    "random_blocks(2, 16, 1, past=true) & causal",
    "causal & strided(7)",
)
BANDS = ("causal", "causal_window(33)", "causal_window(300)", "full", "sliding_window(20)")
PATTERNS = (*CAUSAL, "full", "prefix(9) | causal", "sliding_window(30) | global_tokens(2)")


@dataclass(frozen=True)
class Case:
    """Tensors and options of a call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pattern: str

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: p.Pattern | str
    ) -> torch.Tensor:
        return rg.attention(q, k, v, pattern=pattern, backend="native")

    @property
    def output(self) -> torch.Tensor:
        return self.attend(self.q, self.k, self.v, self.pattern)


def make(draw: random.Random, patterns: tuple[str, ...]) -> Case:
    # a chunk has 256 keys
    length = draw.choice([draw.randint(1, 40), draw.randint(40, 300), draw.randint(300, 700)])
    kv_heads = draw.randint(1, 2)
    batch = draw.randint(1, 3)
    heads = kv_heads * draw.choice([1, 2, 4])
    if draw.random() < 0.03:  # more than one span
        length = draw.randint(2100, 4500)
        batch = 1
        heads = 1
        kv_heads = 1
    head_dim = draw.choice([5, 8, 16, 33, 64])
    v_dim = draw.choice([5, 8, 16, 33, 64])
    dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float64])
    q = torch.randn(batch, heads, length, head_dim).to(dtype)
    k, v = (torch.randn(batch, kv_heads, length, dim).to(dtype) for dim in (head_dim, v_dim))
    return Case(q, k, v, draw.choice(patterns))


def alone_in_its_batch(case: Case, draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    row = draw.randrange(len(case.q))
    own = (x[row : row + 1] for x in (case.q, case.k, case.v))
    return case.attend(*own, case.pattern), case.output[row : row + 1]


def in_threads(case: Case, draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    torch.set_num_threads(draw.choice([2, 3, 4]))
    many = case.output
    torch.set_num_threads(1)
    return many, case.output


def continued(case: Case, draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    length = case.q.shape[2]
    first = draw.randrange(length)
    end = min(length, first + draw.choice([1, 2, 20]))
    part = case.attend(
        case.q[:, :, first:end], case.k[:, :, :end], case.v[:, :, :end], case.pattern
    )
    return part, case.output[:, :, first:end]


def beside_padding(case: Case, draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    before = draw.randint(0, 70)
    after = draw.randint(0, 70)
    length = case.q.shape[2]

    def padded(x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], before + length + after, x.shape[3])
        found = torch.randn(shape, dtype=torch.float64).to(x.dtype)
        found[:, :, before : before + length] = x
        return found

    starts = torch.full((len(case.q),), before)
    pattern = rg.patterns.parse(case.pattern) & p.KeySpan(starts, starts + length)
    found = case.attend(padded(case.q), padded(case.k), padded(case.v), pattern)
    return found[:, :, before : before + length], case.output


def gradients_in_threads(case: Case, draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    def gradients(threads: int) -> torch.Tensor:
        torch.set_num_threads(threads)
        leaves = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
        output = case.attend(*leaves, case.pattern)
        found = torch.autograd.grad(output, leaves, case.q.new_ones(()).expand(output.shape))
        torch.set_num_threads(1)
        return torch.cat([x.flatten() for x in found])

    return gradients(draw.choice([2, 3, 4])), gradients(1)


def in_the_keys(case: Case, draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Values that are the first numbers of the keys, as in latent attention, and the same values apart from them."""
    v_dim = draw.randint(1, case.k.shape[-1])

    def results(apart: bool) -> torch.Tensor:
        q, k = leaves = [x.clone().requires_grad_() for x in (case.q, case.k)]
        v = k[..., :v_dim].clone() if apart else k[..., :v_dim]
        output = case.attend(q, k, v, case.pattern)
        gradients = torch.autograd.grad(output, leaves, case.q.new_ones(()).expand(output.shape))
        with torch.no_grad():
            alone = case.attend(q[:, :, -1:], k, v, case.pattern)
        return torch.cat([x.detach().flatten() for x in (output, *gradients, alone)])

    return results(apart=True), results(apart=False)


Promise = Callable[[Case, random.Random], tuple[torch.Tensor, torch.Tensor]]
PROMISES: dict[str, tuple[Promise, tuple[str, ...]]] = {
    "batch": (alone_in_its_batch, PATTERNS),
    "threads": (in_threads, PATTERNS),
    "continued": (continued, CAUSAL),
    "padding": (beside_padding, BANDS),
    "gradients": (gradients_in_threads, PATTERNS),
    "latents": (in_the_keys, CAUSAL),
}


def broken(
    promise: Promise, patterns: tuple[str, ...], cases: int, first: int = 0
) -> Iterator[tuple[int, Case]]:
    """The cases whose bits differ."""
    for number in range(first, first + cases):
        draw = random.Random(number)
        torch.manual_seed(number)
        case = make(draw, patterns)
        one, other = promise(case, draw)
        if not torch.equal(one, other):
            yield number, case


@pytest.mark.parametrize("name", PROMISES)
def test_bits_are_equal(name):
    promise, patterns = PROMISES[name]
    assert not [
        (number, case.pattern, case.q.shape) for number, case in broken(promise, patterns, CASES)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISES)
def test_bits_are_equal_in_thousands_of_cases(name):
    promise, patterns = PROMISES[name]
    assert not [
        (number, case.pattern)
        for number, case in broken(promise, patterns, 40 * CASES, first=CASES)
    ]


def test_instruction_sets_give_equal_bits():
    def results(case: Case) -> torch.Tensor:
        leaves = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
        output = case.attend(*leaves, case.pattern)
        gradients = torch.autograd.grad(output, leaves, output.detach())
        return torch.cat([x.detach().flatten() for x in (case.output, *gradients)])

    def with_fewer(case: Case, draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
        found = [results(case)]
        for instructions in (3, 2):  # AVX-512 without BF16, AVX2
            NATIVE.handle.rg_use_instructions(instructions)
            found.append(results(case))
        NATIVE.handle.rg_use_instructions(0)
        return torch.stack(found), found[0].expand(3, -1)

    assert not list(broken(with_fewer, PATTERNS, CASES))
