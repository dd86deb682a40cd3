"""Linear attention by chunks equals the sum over pairs, with gradients, and no later key affects a result."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

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


BACKENDS = ("linear", 4), ("linear", 128), ("native", 4)


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request, monkeypatch):
    """A backend, with short or usual chunks and blocks."""
    name, size = request.param
    monkeypatch.setattr(kernelised, "BLOCK", 3 * size)
    if name == "linear":
        monkeypatch.setattr(recurrence, "CHUNK", size)
        monkeypatch.setattr(recurrence, "BLOCK", 2 * size)
    return name


def tensors(q_len=28, k_len=28, heads=6, kv_heads=3, learn=False):
    shapes = (2, heads, q_len, 5), (2, kv_heads, k_len, 5), (2, kv_heads, k_len, 7)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=learn) for shape in shapes]


def logarithms(kv_heads=3, k_len=28, learn=False):
    k_log = 3 * torch.randn(2, kv_heads, k_len, dtype=torch.float64)
    decay_log = -torch.rand(2, kv_heads, k_len, dtype=torch.float64)
    return {"k_log": k_log.requires_grad_(learn), "decay_log": decay_log.requires_grad_(learn)}


def detail(q, k, v, mechanism=LINEAR, backend="linear", **options):
    return rg.attention_detail(
        q, k, v, mechanism=mechanism, want="log_sum_exp", backend=backend, **options
    )


def computed(places):
    """The numbers of a place and of a backend that computes it, and that backend; the kernel is for causal patterns."""
    for at, (pattern, *_) in enumerate(places):
        for b, name in enumerate(BACKENDS):
            if name[0] == "linear" or CAUSAL in pattern.canonical().factors:
                yield at, b, name


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


@pytest.mark.parametrize(
    ("place", "kv_heads", "backend"),
    [(at, (1, 2, 6)[(at + b) % 3], name) for at, b, name in computed(PLACES)],
    ids=str,
    indirect=["backend"],
)
def test_blocks_and_chunks_equal_the_formula_with_gradients(place, kv_heads, backend):
    pattern, q_len, q_start = PLACES[place]
    # it fades from left to right
    fading = (Fading(), Fading(0.7)) if CAUSAL in pattern.canonical().factors else ()
    for mechanism in (LINEAR, *fading):
        logs = None if mechanism == LINEAR else logarithms(kv_heads, learn=True)
        leaves = [*tensors(q_len, kv_heads=kv_heads, learn=True), *(logs or {}).values()]
        answers = []
        for name in (backend, "reference"):
            options = {"pattern": pattern, "q_start": q_start, "parameters": logs}
            found = detail(*leaves[:3], mechanism, name, **options)
            sums = found.log_sum_exp.masked_fill(found.log_sum_exp.isinf(), 0)
            loss = found.output.sin().sum() + sums.sin().sum() + 0 * sum(x.sum() for x in leaves)
            sent = torch.autograd.grad(loss, leaves)  # of rows that see nobody too
            answers.append([found.output, found.log_sum_exp, *sent])
        torch.testing.assert_close(*answers, **EXACT)


def test_second_derivatives_keep_their_digits_where_gates_are_small():
    leaves = [*(x.float() for x in tensors(131, 131, heads=2, kv_heads=1)), torch.rand(2, 1, 131)]
    leaves[3][..., ::5], leaves[3][..., 0] = 1e-8, 0.5
    directions = [torch.randn_like(x) for x in leaves]

    def seconds(dtype, backend):
        given = [x.to(dtype).requires_grad_() for x in leaves]
        found = rg.attention(
            *given[:3],
            pattern="causal",
            mechanism=m.RandomFeature(16, gated=True),
            parameters={"gate": given[3]},
            backend=backend,
        )
        firsts = torch.autograd.grad(found.square().sum(), given, create_graph=True)
        return torch.autograd.grad(
            sum((x * y).sum() for x, y in zip(firsts, directions, strict=True)), given[:3]
        )

    for found, exact in zip(
        seconds(torch.float32, "linear"), seconds(torch.float64, "reference"), strict=True
    ):
        assert (found - exact).abs().max() / exact.abs().max() < 131 * torch.finfo(
            torch.float32
        ).eps


@pytest.mark.parametrize(
    "mechanism", [LINEAR, m.LinearTransformer(Relu()), m.Performer(23), Fading()], ids=str
)
def test_no_later_key_changes_one_bit_or_flushes_what_came_before(mechanism):
    q, k, v = (x.float() for x in tensors(300, 300))
    logs = (
        {name: x.float() for name, x in logarithms(k_len=300).items()}
        if mechanism == Fading()
        else None
    )
    before = rg.attention(
        q, k, v, pattern=CAUSAL, mechanism=mechanism, parameters=logs, backend="linear"
    )
    k = k.clone()
    v = v.clone()
    # 60: its features are exponentials
    k[:, :, 131], v[:, :, 131] = (
        (1e4 if logs is None else 60.0),
        1e4,
    )
    if logs is not None:
        logs["k_log"][:, :, 131] += 1e4
        logs["decay_log"][:, :, 140] -= 1e4
    after = rg.attention(
        q, k, v, pattern=CAUSAL, mechanism=mechanism, parameters=logs, backend="linear"
    )
    assert torch.equal(before[:, :, :131], after[:, :, :131])
    assert after.isfinite().all()
    assert (after != 0).any(-1).all()


def test_steep_decays_forget_and_stay_finite():
    q, k, v = (x.float() for x in tensors(300, 300))
    logs = {"k_log": torch.zeros(2, 3, 300), "decay_log": torch.full((2, 3, 300), -1000.0)}
    output = rg.attention(
        q, k, v, pattern=CAUSAL, mechanism=Fading(), parameters=logs, backend="linear"
    )
    torch.testing.assert_close(output, v.repeat_interleave(2, 1))


def test_features_that_are_all_zero_give_zeros_and_zero_gradient():
    q, k, v = (x.requires_grad_() for x in tensors())
    found = detail(-q.abs(), k.abs(), v, m.LinearTransformer(Relu(0)), pattern=CAUSAL)
    assert not found.output.any()
    assert (found.log_sum_exp == -torch.inf).all()
    assert not any(x.any() for x in torch.autograd.grad(found.output.sum(), (q, k, v)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pattern": CAUSAL, "q_start": torch.tensor([0, 1])}, "q_start is a tensor"),
        ({"pattern": TEXTS, "q_start": 1}, "at every position"),
        ({"want": ["entropy", "log_sum_exp"]}, "weights, which entropy needs"),
        ({"mechanism": m.Softmax()}, "linear attention by feature maps"),
    ],
)
def test_what_it_does_not_compute_is_refused_with_the_reason_and_answered_by_the_reference(
    options, reason
):
    q, k, v = tensors()
    options = {"mechanism": LINEAR, **options}
    with pytest.raises(rg.UnsupportedError, match=reason):
        rg.plan_attention(q, k, v, backend="linear", **options)
    assert rg.plan_attention(q, k, v, **options).backend != "linear"


def test_it_is_chosen_but_for_tiny_calls():
    long = tensors(200, 200)
    assert rg.plan_attention(*long, pattern=CAUSAL, mechanism=LINEAR).backend in (
        "native",
        "linear",
    )
    assert rg.plan_attention(*long, mechanism=m.Performer(64)).backend == "linear"


def test_q_start_by_row_means_nothing_to_those_who_see_all():
    q, k, v = tensors()
    found = detail(q, k, v, pattern=SPANS, q_start=torch.tensor([4, -3])).output
    torch.testing.assert_close(found, detail(q, k, v, pattern=SPANS).output, **EXACT)


class Held(TorchDispatchMode):
    """The most bytes of results that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, weakref.ref] = {}
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for x in tree_iter(found):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                self.alive[storage._cdata] = weakref.ref(storage)
        storages = {one: ref() for one, ref in self.alive.items()}
        self.alive = {
            one: self.alive[one] for one, storage in storages.items() if storage is not None
        }
        self.most = max(
            self.most, sum(storage.nbytes() for storage in storages.values() if storage is not None)
        )
        return found


@pytest.mark.parametrize("mechanism", [LINEAR, m.Performer(32)], ids=str)
@pytest.mark.parametrize("pattern", [None, "causal"])
def test_twice_the_length_takes_twice_the_memory_forward_and_backward(mechanism, pattern):
    def most(length):
        q, k, v = (torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(3))
        with Held() as seen:
            rg.attention(
                q, k, v, pattern=pattern, mechanism=mechanism, backend="linear"
            ).sum().backward()
        return seen.most

    assert most(2048) <= 2.2 * most(1024)


@pytest.mark.parametrize("pattern", [CAUSAL, CAUSAL & TEXTS, SPANS, CAUSAL & SPANS], ids=str)
def test_longer_chunks_as_on_a_gpu_give_the_same(pattern, monkeypatch):
    monkeypatch.setattr(recurrence, "CHUNK", 2)
    monkeypatch.setattr(recurrence, "BLOCK", 4)
    q, k, v = tensors(learn=True)
    answers = []
    sizes = set()
    plain = recurrence._products
    monkeypatch.setattr(
        recurrence, "_products", lambda rows, k: (sizes.add(k.shape[-2]), plain(rows, k))[1]
    )
    for times in (1, 4):
        for module in (kernelised, recurrence):
            monkeypatch.setattr(module, "longer_on", lambda device, heads, times=times: times)
        found = detail(q, k, v, pattern=pattern)
        gradients = torch.autograd.grad(found.output.square().sum(), (q, k, v))
        with torch.no_grad():
            answers.append(
                [
                    found.output,
                    found.log_sum_exp,
                    *gradients,
                    detail(q, k, v, pattern=pattern).output,
                ]
            )
    if CAUSAL in pattern.canonical().factors:  # chunks inside of documents may be shorter
        assert ({4, 16} <= sizes, max(sizes)) == (True, 16)
    else:
        assert not sizes
    torch.testing.assert_close(*answers, **EXACT)


def test_chunks_are_longer_on_a_gpu_unless_there_are_many_heads():
    longer = recurrence.longer_on
    assert [longer("cpu", 8), longer("cuda", 8), longer("cuda", 512)] == [1, 8, 4]
