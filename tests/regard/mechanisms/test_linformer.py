"""Linformer is equation 7 of its paper: mixed keys and values, hidden ones without a trace, memory linear in length."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from measuring import Largest
from mechanism_tensors import MechanismTensors

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


@dataclass
class LinformerCall(MechanismTensors):
    """Tensors for a Linformer that has room for more keys than there are."""

    mechanism: Linformer

    def detail(self, **options):
        return rg.attention_detail(
            self.q,
            self.k,
            self.v,
            mechanism=self.mechanism,
            parameters=self.parameters,
            **options,
        )


def draw_call(kv_heads=3, k_len=K_LEN, shared="none"):
    mechanism = Linformer(LENGTH, RANK, shared)
    parameters = mechanism.new_parameters(HEADS, kv_heads)
    return LinformerCall(
        mechanism=mechanism,
        q=torch.randn(BATCH, HEADS, Q_LEN, HEAD_DIM, dtype=torch.float64),
        k=torch.randn(BATCH, kv_heads, k_len, HEAD_DIM, dtype=torch.float64),
        v=torch.randn(BATCH, kv_heads, k_len, V_DIM, dtype=torch.float64),
        parameters={name: x.detach().double() for name, x in parameters.items()},
    )


def formula(call, scale):
    """softmax(q (E k)ᵀ · scale) (F v) in NumPy, head by head, and its log-sum-exp."""
    q, k, v = (x.numpy() for x in (call.q, call.k, call.v))
    matrices = [x.numpy() for x in call.parameters.values()]
    E = matrices[0]
    F = matrices[-1]  # the same one where keys and values share it
    group = HEADS // k.shape[1]
    output = np.zeros((BATCH, HEADS, Q_LEN, V_DIM))
    log_sum_exp = np.full((BATCH, HEADS, Q_LEN), -np.inf)
    for row, head in np.ndindex(BATCH, HEADS):
        kv_head = head // group
        keys = E[min(kv_head, len(E) - 1)][:, : k.shape[2]] @ k[row, kv_head]
        values = F[min(kv_head, len(F) - 1)][:, : k.shape[2]] @ v[row, kv_head]
        powers = np.exp(q[row, head] @ keys.T * scale)
        output[row, head] = powers / powers.sum(1, keepdims=True) @ values
        log_sum_exp[row, head] = np.log(powers.sum(1))
    return output, log_sum_exp


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("kv_heads", [6, 3, 1])
def test_it_is_equation_7(backend, shared, kv_heads):
    call = draw_call(kv_heads, shared=shared)
    for scale in (None, 0.9, 0.0, -0.7):
        detail = call.detail(scale=scale, backend=backend)
        output, log_sum_exp = formula(call, HEAD_DIM**-0.5 if scale is None else scale)
        assert np.abs(detail.output.numpy() - output).max() < 1e-10
        assert np.abs(detail.log_sum_exp.numpy() - log_sum_exp).max() < 1e-10


def test_columns_beyond_the_text_change_nothing_and_get_no_gradient():
    call = draw_call()
    matrices = [matrix.requires_grad_() for matrix in call.parameters.values()]
    loss = call.detail(pattern=KeySpan(2, 9)).output.sum()
    for grad in torch.autograd.grad(loss, matrices):
        assert grad[..., 2:9].any()
        assert not grad[..., :2].any()
        assert not grad[..., 9:].any()


def test_the_fast_form_is_chosen_also_when_strict():
    assert draw_call().detail(strict=True).plan.backend == "linformer"


def test_cost_and_memory_are_linear_in_the_length():
    costs = []
    for length in (4096, 8192):
        mechanism = Linformer(length, 64)
        x = torch.empty(1, 8, length, 64, device="meta")
        parameters = {name: y.to("meta") for name, y in mechanism.new_parameters(8).items()}
        problem = make_problem(x, x, x, mechanism=mechanism, parameters=parameters)
        costs.append(Projected().assess(replace(problem, device="cpu")).cost)
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
    options = {"mechanism": mechanism, "parameters": parameters, "backend": "linformer"}
    with Largest() as largest:
        rg.attention(x, x, x, **options).sum().backward()
    assert largest.held <= 2 * max(rank * length, batch * length * dim)


def test_more_keys_than_columns_are_refused_with_the_way_out():
    call = draw_call(k_len=LENGTH + 2)
    with pytest.raises(rg.UnsupportedError, match=r"19 keys, .* each of 17; .* length=19 or more"):
        call.detail()


def test_a_causal_pattern_is_refused_since_mixtures_hold_the_future():
    with pytest.raises(rg.UnsupportedError, match="mixes all positions, the future too"):
        draw_call().detail(pattern="causal")


@pytest.mark.parametrize(
    "wrong", [{"length": 0}, {"rank": 0}, {"rank": True}, {"shared": "layers"}, {"rank": 2.0}]
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(rg.ArgumentError):
        Linformer(**{"length": 5, "rank": 3} | wrong)


def test_new_parameters_are_those_of_one_head_of_so_many_or_of_the_key_heads():
    for options, heads in (({}, 1), ({"heads": 5}, 5), ({"heads": 6, "kv_heads": 3}, 3)):
        for matrices in Linformer(11, 7).new_parameters(**options).values():
            assert matrices.shape == (heads, 7, 11)


def test_new_parameters_keep_the_size_of_a_key():
    """Variance 1 / length: the sum of 512 independent keys of variance 1 has variance 1 again."""
    deviations = []
    for _ in range(50):
        key_projection = Linformer(512, 8).new_parameters(4)["key_projection"]
        mixtures = key_projection @ torch.randn(512, 16)
        deviations.append(mixtures.std().item())
    assert abs(np.mean(deviations) - 1) < 0.05
