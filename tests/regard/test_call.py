"""A call as an object: its key tells apart whatever may need another plan, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import regard as rg
from regard.bias import ALiBi, Bias, T5Relative
from regard.core.call import Call
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
    torch.func.vmap(lambda x: (keys.append(CALL._replace(q=x).key()), x)[1])(Q)
    assert keys == [None]
    assert CALL.key() is not None


def test_biases_share_a_key_where_plans_cannot_tell_them_apart():
    key = lambda bias: CALL._replace(bias=bias).key()  # noqa: E731
    heads = Q.shape[1]
    assert key(ALiBi()) == key(ALiBi()) != key(ALiBi([0.5] * heads))
    learning, frozen = T5Relative(heads), T5Relative(heads).requires_grad_(False)
    assert key(learning) == key(T5Relative(heads)) != key(frozen)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_each_call_has_the_numbers_of_its_own_bias(backend):
    heads = Q.shape[1]
    t5 = T5Relative(heads).requires_grad_(False)
    attend = lambda bias: rg.attention(Q, K, V, pattern="causal", bias=bias, backend=backend)  # noqa: E731
    tensor = lambda bias: bias.by_distance(torch.arange(-20, 21), heads).float()  # noqa: E731
    distance = torch.arange(K.shape[2]) - (torch.arange(Q.shape[2]) + K.shape[2] - Q.shape[2])[:, None]
    for bias in (ALiBi(), ALiBi([0.5] * heads), t5, ALiBi(), t5, ALiBi([0.5] * heads)):
        torch.testing.assert_close(attend(bias), attend(tensor(bias)[:, distance + 20]))
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
    bias: Bias = T5Relative(6).requires_grad_(False) if kind == "frozen" else Keyed(drawn.clone())
    bias = Scaled() if kind == "derived from ALiBi" else bias
    for turn in range(3):
        if isinstance(bias, Scaled):
            bias.strength = torch.tensor(1.0 + turn)
        elif isinstance(bias, T5Relative):
            bias.weight.normal_()
        elif isinstance(bias, Keyed):
            bias.numbers.copy_(drawn * turn)
        found = rg.attention(Q, K, V, bias=bias)
        distances = torch.arange(K.shape[2]) - torch.arange(4, 4 + Q.shape[2])[:, None]
        added = bias.by_distance(distances.flatten(), 6).unflatten(1, distances.shape)[None].float()
        torch.testing.assert_close(found, rg.attention(Q, K, V, bias=added), atol=1e-6, rtol=0)


def test_a_bias_that_is_a_module_learns_by_its_parameters():
    class Learned(torch.nn.Module, Bias):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = torch.nn.Parameter(torch.randn(13))

        def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
            return self.numbers[distances % 13][None]

    bias = Learned()
    rg.attention(Q, K, V, bias=bias).square().sum().backward()
    assert bias.numbers.grad is not None
    assert bias.numbers.grad.any()
    assert not bias.requires_grad_(False).learns


def test_a_call_is_not_changed_in_place():
    with pytest.raises(AttributeError):
        CALL.scale = 2.0  # type: ignore[misc]


def test_numbers_of_tensors_become_pythons():
    call = CALL._replace(scale=torch.tensor(0.5), q_start=torch.tensor(4)).in_numbers()
    assert (type(call.scale), call.scale, type(call.q_start), call.q_start) == (float, 0.5, int, 4)
    assert CALL.in_numbers() is CALL


def test_autocast_casts_all_tensors_but_those_of_float64():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = CALL._replace(bias=torch.zeros(11)).cast()
        assert {x.dtype for x in (cast.q, cast.k, cast.v, cast.bias)} == {torch.bfloat16}
        wide = Call(Q.double(), K.double(), V.double(), torch.zeros(11)).cast()
        assert (wide.q.dtype, wide.bias.dtype) == (torch.float64, torch.float32)
    assert CALL.cast() is CALL


def test_a_plan_that_has_seen_dense_tensors_refuses_sparse_ones_of_their_shape():
    plan = rg.plan_attention(Q, K, V)
    plan.run(Q, K, V)
    with pytest.raises(rg.ShapeError, match="layout"):
        plan.run(Q.to_sparse(), K, V)
