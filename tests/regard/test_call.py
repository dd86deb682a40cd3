"""A call, its key, its problem and its plan: equal calls share a plan and are checked once, and no others do."""

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import regard as rg
from regard import patterns as p
from regard.bias import ALiBi, Bias, T5Relative
from regard.core.call import Call, make_problem
from regard.core.problem import PER_ROW
from regard.functional.kept import PLANS
from regard.mechanisms import Softmax
from regard.patterns import Causal
from regard.testing import make_qkv

Q, K, V = make_qkv()
CALL = Call(Q, K, V, pattern="causal", scale=1)


def test_equal_calls_have_equal_keys_whatever_their_numbers_and_seed():
    q, k, v = make_qkv(seed=1, layout="sliced")
    assert Call(q, k, v, dropout_seed=7, pattern="causal", scale=1).key() == CALL.key()


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 1.0},
        {"scale": True},
        {"pattern": None},
        {"strict": True},
        {"precise": True},
        {"backend": "reference"},
        {"want": ("entropy",)},
        {"q_start": 4},
        {"dropout": 0.5},
        {"q": Q.double()},
        {"q": Q.to("meta")},
        {"q": Q.clone().requires_grad_()},
        {"k": torch.nn.Parameter(K)},
        {"k": K[:, :, 1:]},
        {"v": V.to_sparse()},
        {"bias": torch.zeros(11)},
        {"bias": ALiBi()},
        {"bias": T5Relative(Q.shape[1])},
        {"parameters": {"w": torch.zeros(1)}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_call_that_differs_in_one_thing_has_another_key(change):
    assert CALL._replace(**change).key() not in (None, CALL.key())


def test_gradients_switched_off_make_another_key():
    with torch.no_grad():
        without = CALL.key()
    assert without != CALL.key()


def test_no_key_where_equal_properties_may_mean_another_call():
    assert CALL._replace(bias=Bias()).key() is None
    with torch.autocast("cpu"):
        assert CALL.key() is None
    with forward_ad.dual_level():
        assert CALL.key() is None
    keys = []

    def record_key(q):
        keys.append(CALL._replace(q=q).key())
        return q

    torch.func.vmap(record_key)(Q)
    assert keys == [None]
    assert CALL.key() is not None


def test_biases_share_a_key_where_plans_cannot_tell_them_apart():
    def key(bias: Bias) -> Any:
        return CALL._replace(bias=bias).key()

    heads = Q.shape[1]
    assert key(ALiBi()) == key(ALiBi()) != key(ALiBi([0.5] * heads))
    learning = T5Relative(heads)
    frozen = T5Relative(heads).requires_grad_(False)
    assert key(learning) == key(T5Relative(heads)) != key(frozen)


# k_pos - q_pos of every pair, (q_len, k_len); the last query stands at the last key.
DISTANCES = torch.arange(K.shape[2]) - torch.arange(K.shape[2] - Q.shape[2], K.shape[2])[:, None]


def numbers_of(bias: Bias) -> torch.Tensor:
    """A bias by distance as a tensor, (1, heads, q_len, k_len)."""
    numbers = bias.by_distance(DISTANCES.flatten(), Q.shape[1])
    return numbers.unflatten(1, DISTANCES.shape)[None].float()


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_each_call_has_the_numbers_of_its_own_bias(backend):
    heads = Q.shape[1]
    t5 = T5Relative(heads).requires_grad_(False)
    options = {"pattern": "causal", "backend": backend}
    for bias in (ALiBi(), ALiBi([0.5] * heads), t5, ALiBi(), t5, ALiBi([0.5] * heads)):
        output = rg.attention(Q, K, V, bias=bias, **options)
        torch.testing.assert_close(output, rg.attention(Q, K, V, bias=numbers_of(bias), **options))
        with torch.no_grad():
            t5.weight += 1 + torch.arange(heads)  # in place, so the plan of the call stays
            t5.weight[0] -= 1


class Scaled(ALiBi):
    """ALiBi times a number that may change, which its key does not say."""

    strength = torch.ones(())

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return super().by_distance(distances, heads) * self.strength


class Keyed(Bias):
    """A bias that holds its numbers as a tensor, with a key that does not say them."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return self.numbers[distances % len(self.numbers)].expand(heads, -1)

    @property
    def plan_key(self) -> tuple[int]:
        return (len(self.numbers),)


@pytest.mark.parametrize("kind", ["derived from ALiBi", "with a key", "frozen"])
def test_the_numbers_of_a_bias_that_may_change_are_not_kept(kind):
    drawn = torch.randn(7, generator=torch.Generator().manual_seed(1))
    bias: Bias = Keyed(drawn.clone())
    if kind == "frozen":
        bias = T5Relative(6).requires_grad_(False)
    elif kind == "derived from ALiBi":
        bias = Scaled()
    for turn in range(3):
        if isinstance(bias, Scaled):
            bias.strength = torch.tensor(1.0 + turn)
        elif isinstance(bias, T5Relative):
            bias.weight.normal_()
        elif isinstance(bias, Keyed):
            bias.numbers.copy_(drawn * turn)
        output = rg.attention(Q, K, V, bias=bias)
        expected = rg.attention(Q, K, V, bias=numbers_of(bias))
        torch.testing.assert_close(output, expected, atol=1e-6, rtol=0)


def test_a_bias_that_is_a_module_learns_by_its_parameters():
    class BiasModule(torch.nn.Module, Bias):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = torch.nn.Parameter(torch.randn(13))

        def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
            return self.numbers[distances % 13][None]

    bias = BiasModule()
    rg.attention(Q, K, V, bias=bias).square().sum().backward()
    assert bias.numbers.grad is not None
    assert bias.numbers.grad.any()
    assert not bias.requires_grad_(False).learns


def test_numbers_of_tensors_become_pythons():
    call = CALL._replace(scale=torch.tensor(0.5), q_start=torch.tensor(4)).in_numbers()
    assert (type(call.scale), call.scale) == (float, 0.5)
    assert (type(call.q_start), call.q_start) == (int, 4)
    assert CALL.in_numbers() is CALL


def planned(q: Any, k: Any, v: Any, **options: Any) -> rg.Plan:
    plan, _, _ = PLANS.plan(Call(q, k, v, **options))
    return plan


def test_a_call_seen_before_is_not_checked_again(monkeypatch: pytest.MonkeyPatch):
    plan = planned(Q, K, V, pattern="causal", scale=0.5)
    monkeypatch.setattr(Call, "problem", None)
    assert planned(*make_qkv(seed=1, layout="sliced"), pattern="causal", scale=0.5) is plan


def test_a_call_with_a_bias_seen_before_is_not_checked_again_and_another_bias_is(
    monkeypatch: pytest.MonkeyPatch,
):
    bias = torch.randn(2, 1, 1, K.shape[2])
    plan = planned(Q, K, V, bias=bias)
    assert planned(Q, K, V) is not plan
    assert planned(Q, K, V, bias=bias[:1]) is not plan
    assert planned(Q, K, V, bias=bias.clone().requires_grad_()) is not plan
    with pytest.raises(rg.ShapeError):
        planned(Q, K, V, bias=bias[..., :-1])
    with pytest.raises(rg.RegardError):
        planned(Q, K, V, bias=bias.bool())
    for name in ("weak", "strong"):  # the numbers are those of each call
        bias = bias * 10
        expected = rg.attention(Q.double(), K.double(), V.double(), bias=bias.double()).float()
        torch.testing.assert_close(
            plan.run(Q, K, V, bias=bias), expected, atol=1e-5, rtol=0, msg=name
        )
    monkeypatch.setattr(Call, "problem", None)
    assert planned(Q, K, V, bias=bias) is plan


def test_two_ways_of_posing_a_problem_share_its_plan():
    plan = planned(Q, K, V, pattern="causal")
    ways: list[dict[str, Any]] = [{}, {"mechanism": Softmax()}, {"scale": 5**-0.5}, {"q_start": 4}]
    for way in ways:
        assert planned(Q, K, V, pattern="causal", **way) is plan
        assert planned(Q, K, V, pattern=Causal(), **way) is plan


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"scale": 1}, {"scale": True}),
        ({"softcap": 1}, {"softcap": True}),
        ({"dropout": 1}, {"dropout": True}),
        ({"q_start": 1}, {"q_start": True}),
        ({"q_start": 1}, {"q_start": 1.0}),
        ({}, {"pattern": ["causal"]}),
    ],
)
def test_what_equals_a_right_argument_but_is_none_is_refused_after_it(right, wrong):
    planned(Q, K, V, **right)
    with pytest.raises(rg.ArgumentError):
        planned(Q, K, V, **wrong)


@pytest.mark.parametrize(
    "unfitting",
    [
        lambda: (Q.to_sparse(), K, V),
        lambda: (Q, K.double(), V),
        lambda: (Q, K, V.to("meta")),
        lambda: (Q.numpy(), K, V),
        lambda: (Q, K[:, :, :5], V),
    ],
    ids=["sparse", "dtypes", "devices", "numpy", "lengths"],
)
def test_tensors_that_do_not_fit_are_refused_after_those_that_do(unfitting):
    planned(Q, K, V)
    with pytest.raises(rg.ShapeError):
        planned(*unfitting())


def test_a_call_that_needs_gradients_has_a_plan_of_its_own():
    leaf = Q.clone().requires_grad_()
    assert planned(leaf, K, V).problem.needs_grad
    assert not planned(Q, K, V).problem.needs_grad
    with torch.no_grad():
        assert planned(leaf, K, V) is planned(Q, K, V)


def test_the_number_of_plans_kept_is_bounded(monkeypatch: pytest.MonkeyPatch):
    for table in (PLANS.calls, PLANS.problems, PLANS.unequal):
        monkeypatch.setattr(table, "most", 8)
    for start in range(12):
        planned(Q, K, V, q_start=start)
        planned(Q, K, V, pattern=p.KeySpan(torch.tensor([0, start])))
    assert len(PLANS.calls) == len(PLANS.problems) == len(PLANS.unequal) == 8
    last = planned(Q, K, V, q_start=11)
    assert planned(Q, K, V, q_start=11) is last


def test_sizes_start_and_pairs_are_told():
    problem = make_problem(*make_qkv(), pattern="causal")
    assert (problem.group, problem.q_start, problem.pairs) == (2, 4, 2 * 6 * 7 * 11)
    assert problem.kept_pairs == 2 * 6 * (5 + 6 + 7 + 8 + 9 + 10 + 11)
    assert make_problem(*make_qkv(), q_start=torch.tensor([0, 1])).q_start is PER_ROW
    assert str(problem) == (
        "softmax(scaled_dot) of 2 x 6 heads over 3, 7 queries by 11 keys, head_dim 5, float32 on cpu, pattern causal"
    )


def test_a_gate_is_asked_for_with_its_shape():
    """`new_parameters` makes no gates, so that the error does not name it."""
    q, k, v = make_qkv(batch=2, heads=4, kv_heads=2, q_len=5, k_len=5)
    gated = rg.mechanisms.RandomFeature(8, gated=True)
    with pytest.raises(
        rg.ArgumentError, match=r"compute 'gate' of shape \(2, 2, 5\) for each call, and give it"
    ):
        rg.attention(q, k, v, pattern="causal", mechanism=gated)
    gates = {"gate": torch.full((2, 2, 5), 0.5)}
    rg.attention(q, k, v, pattern="causal", mechanism=gated, parameters=gates)
    with pytest.raises(rg.ArgumentError, match=r"make it with mechanism\.new_parameters"):
        rg.attention(q, k, v, mechanism=rg.mechanisms.Softmax(rg.mechanisms.General(5, 5)))


def test_swapped_axes_are_suspected_where_swapping_would_fit():
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    doubt = "are heads and length swapped"
    with pytest.raises(rg.ShapeError, match=doubt):
        rg.attention(q.transpose(1, 2), k, v)
    with pytest.raises(rg.ShapeError, match=doubt):
        rg.attention(q, k.transpose(1, 2), v.transpose(1, 2))
    with pytest.raises(rg.ShapeError, match=r"must be a multiple of kv_heads$"):
        rg.attention(torch.randn(2, 6, 5, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8))


@pytest.mark.parametrize("pattern", [None, p.KeySpan([0, 1], [3, 4])], ids=str)
@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_a_number_in_a_tensor_is_read_in_each_call(name, pattern):
    q, k, v = (torch.randn(2, 2, 4, 8) for _ in range(3))
    number = torch.tensor(0.0)
    for value in (0.5, 0.5, 0.5, 2.0, 7.0):
        number.fill_(value)
        output = rg.attention(q, k, v, pattern=pattern, **{name: number})
        expected = rg.attention(q, k, v, pattern=pattern, **{name: value}, backend="reference")
        torch.testing.assert_close(output, expected)
