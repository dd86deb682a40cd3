"""Linformer is equation 7 of its paper: mixed keys and values, hidden ones without a trace, memory linear in length."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from measuring import Largest

import regard as rg
from regard.backends.linformer import Projected
from regard.core.call import make_problem
from regard.mechanisms import Linformer
from regard.patterns import KeySpan

BATCH = 2
HEADS = 6
Q_LEN = 7
K_LEN = 11
HEAD_DIM = 5
V_DIM = 13
RANK = 3
LENGTH = 17
BACKENDS = ("linformer", "reference")
SHARED = ("none", "heads", "keys_and_values")


def operands(kv_heads=3, k_len=K_LEN, shared="none", dtype=torch.float64, learning=False):
    """Queries, keys, values and the parameters of a mechanism that has room for more keys than there are."""
    shapes = (HEADS, Q_LEN, HEAD_DIM), (kv_heads, k_len, HEAD_DIM), (kv_heads, k_len, V_DIM)
    q, k, v = (torch.randn(BATCH, *shape).to(dtype).requires_grad_(learning) for shape in shapes)
    mechanism = Linformer(LENGTH, RANK, shared)
    made = mechanism.new_parameters(HEADS, kv_heads)
    return (
        q,
        k,
        v,
        mechanism,
        {name: x.detach().to(dtype).requires_grad_(learning) for name, x in made.items()},
    )


def formula(q, k, v, E, F, scale):
    """softmax(q (E k)ᵀ · scale) (F v) in NumPy, head by head, and its log-sum-exp."""
    q, k, v, E, F = (x.detach().double().numpy() for x in (q, k, v, E, F))
    group = q.shape[1] // k.shape[1]
    output = np.zeros((*q.shape[:3], v.shape[-1]))
    sums = np.full(q.shape[:3], -np.inf)
    for row, head in np.ndindex(q.shape[:2]):
        of = head // group
        keys = E[min(of, len(E) - 1)][:, : k.shape[2]] @ k[row, of]
        values = F[min(of, len(F) - 1)][:, : k.shape[2]] @ v[row, of]
        powers = np.exp(q[row, head] @ keys.T * scale)
        output[row, head] = powers / powers.sum(1, keepdims=True) @ values
        sums[row, head] = np.log(powers.sum(1))
    return output, sums


def matrices(parameters):
    """E and F."""
    return parameters.get("key_projection", parameters.get("projection")), list(
        parameters.values()
    )[-1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("kv_heads", [6, 3, 1])
def test_it_is_equation_7(backend, shared, kv_heads):
    q, k, v, mechanism, parameters = operands(kv_heads, shared=shared)
    for scale in (None, 0.9, 0.0, -0.7):
        found = rg.attention_detail(
            q, k, v, mechanism=mechanism, parameters=parameters, scale=scale, backend=backend
        )
        output, sums = formula(
            q, k, v, *matrices(parameters), HEAD_DIM**-0.5 if scale is None else scale
        )
        assert np.abs(found.output.numpy() - output).max() < 1e-10
        assert np.abs(found.log_sum_exp.numpy() - sums).max() < 1e-10


def test_columns_beyond_the_text_change_nothing_and_get_no_gradient():
    q, k, v, mechanism, parameters = operands(learning=True)
    loss = rg.attention(
        q, k, v, mechanism=mechanism, parameters=parameters, pattern=KeySpan(2, 9)
    ).sum()
    for grad in torch.autograd.grad(loss, list(parameters.values())):
        assert grad[..., 2:9].any()
        assert not grad[..., :2].any()
        assert not grad[..., 9:].any()


def test_the_fast_form_is_chosen_also_when_strict():
    q, k, v, mechanism, parameters = operands()
    long = rg.plan_attention(q, k, v, mechanism=mechanism, parameters=parameters, strict=True)
    assert long.backend == "linformer"


def test_cost_and_memory_are_linear_in_the_length():
    costs = []
    for length in (4096, 8192):
        mechanism = Linformer(length, 64)
        x = torch.empty(1, 8, length, 64, device="meta")
        parameters = {name: y.to("meta") for name, y in mechanism.new_parameters(8).items()}
        problem = replace(
            make_problem(x, x, x, mechanism=mechanism, parameters=parameters), device="cpu"
        )
        costs.append(Projected().assess(problem).cost)
    assert costs[1].flops == 2 * costs[0].flops
    assert costs[1].peak_bytes < 2 * costs[0].peak_bytes


@pytest.mark.parametrize("shared", SHARED)
def test_nothing_grows_with_the_square_of_the_length_nor_with_length_times_rank_times_batch(shared):
    length = 1024
    rank = 64
    dim = 4
    batch = 8
    mechanism = Linformer(length, rank, shared)
    parameters = mechanism.new_parameters(2)
    x = torch.randn(batch, 2, length, dim, requires_grad=True)
    with Largest() as largest:
        rg.attention(
            x, x, x, mechanism=mechanism, parameters=parameters, backend="linformer"
        ).sum().backward()
    assert largest.held <= 2 * max(rank * length, batch * length * dim)


def test_more_keys_than_columns_are_refused_with_the_way_out():
    q, k, v, mechanism, parameters = operands(k_len=LENGTH + 2)
    with pytest.raises(
        rg.errors.UnsupportedError, match=r"19 keys, .* each of 17; .* length=19 or more"
    ):
        rg.attention(q, k, v, mechanism=mechanism, parameters=parameters)
    with pytest.raises(rg.errors.UnsupportedError, match="mixes all positions, the future too"):
        rg.attention(q, k, v, mechanism=mechanism, parameters=parameters, pattern="causal")


@pytest.mark.parametrize(
    "wrong", [{"length": 0}, {"rank": 0}, {"rank": True}, {"shared": "layers"}, {"rank": 2.0}]
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(rg.errors.ArgumentError):
        Linformer(**{"length": 5, "rank": 3} | wrong)


def test_new_parameters_keep_the_size_of_a_key():
    """Variance 1 / length: the sum of 512 independent keys of variance 1 has variance 1 again."""
    spread = torch.stack(
        [
            (Linformer(512, 8).new_parameters(4)["key_projection"] @ torch.randn(512, 16)).std()
            for _ in range(50)
        ]
    )
    assert abs(spread.mean() - 1) < 0.05
