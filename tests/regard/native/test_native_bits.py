"""An output row of the native backend has the same bits in any batch, with any number of threads, at once or continued
with a cache, and on either side of padding; gradients do not depend on the number of threads."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch

import regard as rg
from regard import patterns as p

from .calls import AVX2, AVX512, BEST, outputs_and_gradients, threads

CASES = 30  # of every promise; each is a call of its own
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


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: p.Pattern | str
) -> torch.Tensor:
    return rg.attention(q, k, v, pattern=pattern, backend="native")


@dataclass(frozen=True)
class BitsCase:
    """Tensors and pattern of a call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pattern: str

    @property
    def length(self) -> int:
        return self.q.shape[2]

    @property
    def output(self) -> torch.Tensor:
        return attend(self.q, self.k, self.v, self.pattern)

    def outputs_and_gradients(self) -> torch.Tensor:
        leaves = [x.clone().requires_grad_() for x in (self.q, self.k, self.v)]
        return outputs_and_gradients(attend(*leaves, self.pattern), leaves)

    def __str__(self) -> str:
        return f"{self.pattern} on {tuple(self.q.shape)} {self.q.dtype}"


def draw_case(draw: random.Random, patterns: tuple[str, ...]) -> BitsCase:
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
    k = torch.randn(batch, kv_heads, length, head_dim).to(dtype)
    v = torch.randn(batch, kv_heads, length, v_dim).to(dtype)
    return BitsCase(q, k, v, draw.choice(patterns))


# Of a case: two ways of computing the same numbers.
Pair = tuple[torch.Tensor, torch.Tensor]
Promise = Callable[[BitsCase, random.Random], Pair]


def alone_in_its_batch(case: BitsCase, draw: random.Random) -> Pair:
    row = draw.randrange(len(case.q))
    q, k, v = (x[row : row + 1] for x in (case.q, case.k, case.v))
    return attend(q, k, v, case.pattern), case.output[row : row + 1]


def in_threads(case: BitsCase, draw: random.Random) -> Pair:
    with threads(draw.choice([2, 3, 4])):
        output = case.output
    return output, case.output


def continued(case: BitsCase, draw: random.Random) -> Pair:
    first = draw.randrange(case.length)
    end = min(case.length, first + draw.choice([1, 2, 20]))
    part = attend(case.q[:, :, first:end], case.k[:, :, :end], case.v[:, :, :end], case.pattern)
    return part, case.output[:, :, first:end]


def beside_padding(case: BitsCase, draw: random.Random) -> Pair:
    before = draw.randint(0, 70)
    after = draw.randint(0, 70)
    text = slice(before, before + case.length)

    def padded(x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], before + case.length + after, x.shape[3])
        whole = torch.randn(shape, dtype=torch.float64).to(x.dtype)
        whole[:, :, text] = x
        return whole

    starts = torch.full((len(case.q),), before)
    pattern = p.parse(case.pattern) & p.KeySpan(starts, starts + case.length)
    output = attend(padded(case.q), padded(case.k), padded(case.v), pattern)
    return output[:, :, text], case.output


def gradients_in_threads(case: BitsCase, draw: random.Random) -> Pair:
    with threads(draw.choice([2, 3, 4])):
        gradients = case.outputs_and_gradients()
    return gradients, case.outputs_and_gradients()


def in_the_keys(case: BitsCase, draw: random.Random) -> Pair:
    """Values that are the first numbers of the keys, as in latent attention, and the same values apart from them."""
    v_dim = draw.randint(1, case.k.shape[-1])

    def results(values_of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        leaves = [x.clone().requires_grad_() for x in (case.q, case.k)]
        q, k = leaves
        v = values_of(k)
        whole = outputs_and_gradients(attend(q, k, v, case.pattern), leaves)
        with torch.no_grad():
            last_row = attend(q[:, :, -1:], k, v, case.pattern)
        return torch.cat([whole, last_row.flatten()])

    return results(lambda k: k[..., :v_dim].clone()), results(lambda k: k[..., :v_dim])


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
) -> Iterator[str]:
    """The cases whose bits differ."""
    for number in range(first, first + cases):
        draw = random.Random(number)
        torch.manual_seed(number)
        case = draw_case(draw, patterns)
        found, expected = promise(case, draw)
        if not torch.equal(found, expected):
            yield f"{number}: {case}"


@pytest.mark.parametrize("name", PROMISES)
def test_bits_are_equal(name):
    assert not [*broken(*PROMISES[name], CASES)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISES)
def test_bits_are_equal_in_thousands_of_cases(name):
    assert not [*broken(*PROMISES[name], 40 * CASES, first=CASES)]


def test_instruction_sets_give_equal_bits(native):
    def with_each(case: BitsCase, draw: random.Random) -> Pair:
        results = []
        for instructions in (BEST, AVX512, AVX2):
            native.handle.rg_use_instructions(instructions)
            # A call without gradients is computed by other functions of the kernel.
            results.append(torch.cat([case.output.flatten(), case.outputs_and_gradients()]))
        return torch.stack(results), results[0].expand(3, -1)

    assert not [*broken(with_each, PATTERNS, CASES)]
