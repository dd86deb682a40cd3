"""Linear attention by chunks equals the sum over pairs, with gradients, and no later key affects a result."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from measuring import MostAlive

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.backends import kernelised, recurrence
from regard.mechanisms.base import Sizes
from regard.mechanisms.features import Features, Kernelised
from regard.mechanisms.linear import Relu

EXACT = {"rtol": 1e-10, "atol": 1e-10}
LINEAR = m.LinearTransformer()
CAUSAL = p.Causal()
SPANS = p.KeySpan(torch.tensor([2, 0]), torch.tensor([9, 23]))
TEXTS = p.SameDocument(
    torch.tensor([[3, 3, 8, 3, 1, 8, 8] * 4, [5, 5, 5, 5, 5, 5, 5] + [9, 2, 9] * 7])
)


@dataclass(frozen=True)
class Fading(Kernelised):
    """Features as they come, with a weight for each key and a decay; `floor` for features that may be negative."""

    floor: float | None = None
    statistics: ClassVar[frozenset[str]] = frozenset({"log_sum_exp"})
    by_key: ClassVar[frozenset[str]] = frozenset({"k_log", "decay_log"})

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("k_log", "decay_log"), (sizes.batch, sizes.kv_heads, sizes.k_len))

    def lift(
        self, q: torch.Tensor, k: torch.Tensor, scale: float, parameters: Mapping[str, torch.Tensor]
    ) -> Features:
        if self.floor is None:
            q = q.exp()
            k = k.exp()
        return Features(q, k, parameters["k_log"], parameters["decay_log"], self.floor)

    def __str__(self) -> str:
        return "fading"


class Computing(NamedTuple):
    """A backend, and the positions of its chunks."""

    backend: str
    chunk: int


COMPUTING = (Computing("linear", 4), Computing("linear", 128), Computing("native", 4))


def use_short_chunks(monkeypatch, computing: Computing) -> None:
    monkeypatch.setattr(kernelised, "BLOCK", 3 * computing.chunk)
    if computing.backend == "linear":
        monkeypatch.setattr(recurrence, "CHUNK", computing.chunk)
        monkeypatch.setattr(recurrence, "BLOCK", 2 * computing.chunk)


def tensors(q_len=28, k_len=28, heads=6, kv_heads=3, learn=False, dtype=torch.float64):
    shapes = (2, heads, q_len, 5), (2, kv_heads, k_len, 5), (2, kv_heads, k_len, 7)
    return [torch.randn(shape, dtype=dtype, requires_grad=learn) for shape in shapes]


def logarithms(kv_heads=3, k_len=28, learn=False, dtype=torch.float64):
    k_log = 3 * torch.randn(2, kv_heads, k_len, dtype=dtype)
    decay_log = -torch.rand(2, kv_heads, k_len, dtype=dtype)
    return {"k_log": k_log.requires_grad_(learn), "decay_log": decay_log.requires_grad_(learn)}


def detail(q, k, v, mechanism=LINEAR, backend="linear", **options):
    return rg.attention_detail(
        q, k, v, mechanism=mechanism, want="log_sum_exp", backend=backend, **options
    )


def by_linear(q, k, v, mechanism: Any, **options) -> torch.Tensor:
    return rg.attention(q, k, v, mechanism=mechanism, backend="linear", **options)


def is_causal(pattern: p.Pattern) -> bool:
    return CAUSAL in pattern.canonical().factors


PLACES = [  # pattern, q_len, q_start
    (p.Full(), 28, None),
    (p.Full(), 5, None),
    (p.Full() & p.KeySpan(4, 11), 31, None),
    (SPANS, 28, None),
    (CAUSAL, 28, None),
    (CAUSAL, 5, None),
    (CAUSAL, 31, None),
    (CAUSAL, 11, 3),
    (CAUSAL, 11, -4),
    (CAUSAL, 4, -9),
    (CAUSAL, 40, -3),
    (CAUSAL, 3, 90),
    (CAUSAL & SPANS, 28, None),
    (CAUSAL & SPANS, 11, 3),
    (CAUSAL & p.KeySpan(6, 17), 28, None),
    (CAUSAL & p.KeySpan(6, 17), 9, -2),
    (CAUSAL & p.KeySpan(50), 28, None),
    (TEXTS, 28, None),
    (TEXTS & CAUSAL, 28, None),
    (TEXTS & CAUSAL & SPANS, 28, None),
    (TEXTS & p.KeySpan(6, 17), 28, None),
    (TEXTS & SPANS & p.SameDocument(torch.arange(28) % 2), 28, None),
]


def cases_of_places() -> list[tuple[int, int, Kernelised, Computing]]:
    """Each place with each mechanism and backend that compute it; the numbers of key/value heads take turns."""
    cases = []
    for number, (pattern, _, _) in enumerate(PLACES):
        for turn, computing in enumerate(COMPUTING):
            kv_heads = (1, 2, 6)[(number + turn) % 3]
            if is_causal(
                pattern
            ):  # features fade from left to right, and the kernel goes there too
                for mechanism in (LINEAR, Fading(), Fading(0.7)):
                    cases.append((number, kv_heads, mechanism, computing))
            elif computing.backend == "linear":
                cases.append((number, kv_heads, LINEAR, computing))
    return cases


@pytest.mark.parametrize(
    ("place", "kv_heads", "mechanism", "computing"), cases_of_places(), ids=str
)
def test_blocks_and_chunks_equal_the_formula_with_gradients(
    place, kv_heads, mechanism, computing, monkeypatch
):
    use_short_chunks(monkeypatch, computing)
    pattern, q_len, q_start = PLACES[place]
    logs = None if mechanism == LINEAR else logarithms(kv_heads, learn=True)
    qkv = tensors(q_len, kv_heads=kv_heads, learn=True)
    leaves = qkv if logs is None else [*qkv, *logs.values()]

    def results(backend: str) -> list[torch.Tensor]:
        options = {"pattern": pattern, "q_start": q_start, "parameters": logs}
        found = detail(*qkv, mechanism, backend, **options)
        sums = found.log_sum_exp.masked_fill(found.log_sum_exp.isinf(), 0)
        loss = found.output.sin().sum() + sums.sin().sum()
        loss = loss + 0 * sum(x.sum() for x in leaves)  # all take part, also where rows are empty
        return [found.output, found.log_sum_exp, *torch.autograd.grad(loss, leaves)]

    torch.testing.assert_close(results(computing.backend), results("reference"), **EXACT)


def test_second_derivatives_keep_their_digits_where_gates_are_small():
    length = 131
    gate = torch.rand(2, 1, length)
    gate[..., ::5] = 1e-8
    gate[..., 0] = 0.5
    tensors_and_gate = [
        *tensors(length, length, heads=2, kv_heads=1, dtype=torch.float32),
        gate,
    ]
    directions = [torch.randn_like(x) for x in tensors_and_gate]

    def second_derivatives(dtype, backend):
        leaves = [x.to(dtype).requires_grad_() for x in tensors_and_gate]
        q, k, v, gate = leaves
        output = rg.attention(
            q,
            k,
            v,
            pattern="causal",
            mechanism=m.RandomFeature(16, gated=True),
            parameters={"gate": gate},
            backend=backend,
        )
        firsts = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        slopes = [(x * y).sum() for x, y in zip(firsts, directions, strict=True)]
        return torch.autograd.grad(sum(slopes), (q, k, v))

    found = second_derivatives(torch.float32, "linear")
    exact = second_derivatives(torch.float64, "reference")
    bound = length * torch.finfo(torch.float32).eps
    for x, expected in zip(found, exact, strict=True):
        assert (x - expected).abs().max() / expected.abs().max() < bound


@pytest.mark.parametrize(
    "mechanism", [LINEAR, m.LinearTransformer(Relu()), m.Performer(23), Fading()], ids=str
)
def test_no_later_key_changes_one_bit_or_flushes_what_came_before(mechanism):
    q, k, v = tensors(300, 300, dtype=torch.float32)
    fades = mechanism == Fading()
    logs = logarithms(k_len=300, dtype=torch.float32) if fades else None
    options = {"pattern": CAUSAL, "parameters": logs}
    before = by_linear(q, k, v, mechanism, **options)

    k = k.clone()
    v = v.clone()
    k[:, :, 131] = 60.0 if fades else 1e4  # the features of Fading are exponentials
    v[:, :, 131] = 1e4
    if fades:
        logs["k_log"][:, :, 131] += 1e4
        logs["decay_log"][:, :, 140] -= 1e4
    after = by_linear(q, k, v, mechanism, **options)
    assert torch.equal(before[:, :, :131], after[:, :, :131])
    assert after.isfinite().all()
    assert (after != 0).any(-1).all()


def test_steep_decays_forget_and_stay_finite():
    q, k, v = tensors(300, 300, dtype=torch.float32)
    logs = {"k_log": torch.zeros(2, 3, 300), "decay_log": torch.full((2, 3, 300), -1000.0)}
    output = by_linear(q, k, v, Fading(), pattern=CAUSAL, parameters=logs)
    torch.testing.assert_close(output, v.repeat_interleave(2, 1))


def test_features_that_are_all_zero_give_zeros_and_zero_gradient():
    leaves = [x.requires_grad_() for x in tensors()]
    q, k, v = leaves
    found = detail(-q.abs(), k.abs(), v, m.LinearTransformer(Relu(0)), pattern=CAUSAL)
    assert not found.output.any()
    assert (found.log_sum_exp == -torch.inf).all()
    for gradient in torch.autograd.grad(found.output.sum(), leaves):
        assert not gradient.any()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pattern": CAUSAL, "q_start": torch.tensor([0, 1])}, "q_start is a tensor"),
        ({"pattern": TEXTS, "q_start": 1}, "at every position"),
        ({"want": ["entropy", "log_sum_exp"]}, "weights, which entropy needs"),
        ({"mechanism": m.Softmax()}, "linear attention by feature maps"),
    ],
)
def test_what_it_does_not_compute_is_refused_with_the_reason_and_left_to_others(options, reason):
    options = {"mechanism": LINEAR, **options}
    with pytest.raises(rg.UnsupportedError, match=reason):
        rg.plan_attention(*tensors(), backend="linear", **options)
    assert rg.plan_attention(*tensors(), **options).backend != "linear"


def test_it_is_chosen_but_for_tiny_calls():
    long = tensors(200, 200)
    causal = rg.plan_attention(*long, pattern=CAUSAL, mechanism=LINEAR)
    assert causal.backend in ("native", "linear")
    assert rg.plan_attention(*long, mechanism=m.Performer(64)).backend == "linear"


def test_q_start_by_row_means_nothing_to_queries_that_see_all_keys():
    q, k, v = tensors()
    found = detail(q, k, v, pattern=SPANS, q_start=torch.tensor([4, -3])).output
    torch.testing.assert_close(found, detail(q, k, v, pattern=SPANS).output, **EXACT)


@pytest.mark.parametrize("mechanism", [LINEAR, m.Performer(32)], ids=str)
@pytest.mark.parametrize("pattern", [None, "causal"])
def test_twice_the_length_takes_twice_the_memory_forward_and_backward(mechanism, pattern):
    def bytes_at_once(length):
        q, k, v = (torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(3))
        with MostAlive() as most:
            by_linear(q, k, v, mechanism, pattern=pattern).sum().backward()
        return most.held

    assert bytes_at_once(2048) <= 2.2 * bytes_at_once(1024)


@pytest.fixture
def chunk_lengths(monkeypatch) -> set[int]:
    """The numbers of keys in the chunks that are multiplied, which have 2 positions here, or a multiple."""
    monkeypatch.setattr(recurrence, "CHUNK", 2)
    monkeypatch.setattr(recurrence, "BLOCK", 4)
    lengths = set()
    multiply = recurrence._products

    def products(rows, k):
        lengths.add(k.shape[-2])
        return multiply(rows, k)

    monkeypatch.setattr(recurrence, "_products", products)
    return lengths


@pytest.mark.parametrize("pattern", [CAUSAL, CAUSAL & TEXTS, SPANS, CAUSAL & SPANS], ids=str)
def test_longer_chunks_as_on_a_gpu_give_the_same(pattern, chunk_lengths, monkeypatch):
    leaves = tensors(learn=True)

    def results(times_as_long: int) -> list[torch.Tensor]:
        for module in (kernelised, recurrence):
            monkeypatch.setattr(module, "longer_on", lambda device, heads: times_as_long)
        found = detail(*leaves, pattern=pattern)
        gradients = torch.autograd.grad(found.output.square().sum(), leaves)
        with torch.no_grad():
            output = detail(*leaves, pattern=pattern).output
        return [found.output, found.log_sum_exp, *gradients, output]

    torch.testing.assert_close(results(1), results(4), **EXACT)
    if is_causal(pattern):  # chunks inside of documents may be shorter
        assert {4, 16} <= chunk_lengths
        assert max(chunk_lengths) == 16
    else:
        assert not chunk_lengths


def test_chunks_are_longer_on_a_gpu_unless_there_are_many_heads():
    assert recurrence.longer_on("cpu", 8) == 1
    assert recurrence.longer_on("cuda", 8) == 8
    assert recurrence.longer_on("cuda", 512) == 4
