"""Streaming never holds all scores, and its second pass computes statistics by blocks; values are the fuzzer's."""

import pytest
import torch
from asking import ask, cut
from measuring import Largest
from torch.utils._python_dispatch import TorchDispatchMode

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.backends import BACKENDS
from regard.backends.scores import blocking
from regard.bias import T5Relative
from regard.core.call import make_problem
from regard.core.plan import Plan, make_plan
from regard.core.result import checked_wants, weights_of
from regard.testing import Budget, answer, make_qkv

BLOCKWISE = ("streamed", "fused", "reference")


def test_one_number_a_distance_shared_by_all_heads_gets_their_gradients_together():
    class Shared(rg.bias.Bias):
        learns = True
        weight = torch.randn(40, dtype=torch.float64, requires_grad=True)

        def by_distance(self, distances, heads):
            return self.weight[distances % 40][None]

    found = []
    for backend in ("reference", "streamed"):
        output = ask(backend, *make_qkv(dtype=torch.float64), bias=Shared()).output
        found += torch.autograd.grad(output.sin().sum(), Shared.weight)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("q_len", "k_len"), [(300, 613), (613, 300)])
def test_many_short_runs_of_keys_round_the_log_sum_exp_once(q_len, k_len):
    q, k, v = make_qkv(heads=2, kv_heads=1, q_len=q_len, k_len=k_len, dtype=torch.float64)
    found = ask("streamed", q, k, v, pattern="fixed(4, summary=1)", scale=0, want="log_sum_exp")
    expected = answer(q, k, v, p.Fixed(4).dense(q_len, k_len).numpy(), scale=0)
    budget = Budget.of(q, k, v, torch.float64, scale=0)
    assert budget.share("log_sum_exp", found.log_sum_exp, expected.log_sum_exp) <= 1
    assert budget.share("output", found.output, expected.output) <= 1


# Memory


def held(length: int, backend: str = "streamed", **options) -> int:
    """The largest tensor of a forward and a backward pass with statistics."""
    q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
    with Largest() as seen:
        found = ask(backend, q, k, v, pattern="causal", want=("entropy", "received"), **options)
        (found.output.sum() + found.entropy.sum()).backward()
    return seen.held


def test_no_tensor_is_larger_than_a_block_or_the_inputs():
    limit = max(blocking.PAIRS + 1024, 2 * 2048 * 8)
    options = {"dropout": 0.1, "dropout_seed": 3, "softcap": 9.0}
    assert held(2048, **options) <= limit
    # the padded copy of one block's gradient
    assert held(2048, **options, bias=T5Relative(2)) <= 2 * limit
    assert limit * 2 < 2 * 2048 * 2048 / 8


def test_the_tanh_of_all_pairs_is_never_in_memory_at_once():
    mechanism = m.Softmax(m.Additive(8, 8, 64))
    given = {"mechanism": mechanism, "parameters": dict(mechanism.new_parameters())}
    assert held(512, **given) <= 1 << 17
    # the measure sees what the formula holds
    assert held(128, "reference", **given) >= 128 * 128 * 64


@pytest.mark.parametrize("learns", [False, True])
def test_a_plan_prefers_streaming_a_tanh_of_all_pairs_and_knows_what_the_formula_would_hold(learns):
    q, k, v = (torch.randn(1, 1, 2048, 128, requires_grad=learns) for _ in range(3))
    mechanism = m.Softmax(m.Additive(128, 128, 128))
    parameters = {name: x.detach() for name, x in mechanism.new_parameters().items()}
    found = rg.plan_attention(q, k, v, mechanism=mechanism, parameters=parameters)
    assert found.backend == "streamed"
    assert found.cost.peak_bytes <= 64 * 2**20
    assert dict(found.others)["reference"].peak_bytes >= 4 * 2048 * 2048 * 128


def test_the_gradient_of_a_bias_is_the_only_tensor_of_its_size():
    length = 1024
    bias = torch.zeros(2, length, length, requires_grad=True)
    q, k, v = (torch.randn(1, 2, length, 8) for _ in range(3))
    large = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            if (
                isinstance(found, torch.Tensor)
                and found.untyped_storage().nbytes() >= 8 * length**2
            ):
                large.append(found.untyped_storage().data_ptr())
            return found

    with Made():
        ask("streamed", q, k, v, bias=bias).output.sum().backward()
    assert len(set(large) - {bias.untyped_storage().data_ptr()}) == 1


# Plans


def plan(q, k, v, backend: str = "auto", **options) -> Plan:
    return make_plan(
        make_problem(q, k, v, **options), {name: BACKENDS[name] for name in BLOCKWISE}, backend
    )


def test_it_is_chosen_for_what_only_the_reference_did():
    q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    bias = torch.zeros(2048, 2048, requires_grad=True)
    for options in ({"softcap": 5.0}, {"dropout": 0.1}, {"bias": bias}, {"bias": T5Relative(8)}):
        assert plan(q, k, v, **options).backend == "streamed"
    assert plan(q, k, v).backend == "fused"


def test_strict_refuses_what_computes_too_many_pairs():
    q, k, v = (torch.randn(1, 1, 2048, 4) for _ in range(3))
    pairs = plan(q, k, v, pattern="causal", backend="streamed", strict=True).cost.pairs
    assert pairs < 1.3 * 2048 * 2049 / 2
    with pytest.raises(rg.UnsupportedError, match="strict=True, and it computes"):
        plan(q, k, v, pattern="causal_window(3)", backend="streamed", strict=True)


# The second pass


def test_top_keys_are_found_across_tiles_and_groups():
    """Many keys, so that they are dealt out to groups, and several tiles, so that the largest meet."""
    q, k, v = make_qkv(batch=1, heads=2, kv_heads=1, q_len=300, k_len=2500)
    top, whole = (
        ask(backend, q, k, v, pattern="causal", want=(rg.top_keys(8), "weights"))
        for backend in ("streamed", "reference")
    )
    torch.testing.assert_close(top.top_keys.weights, whole.top_keys.weights)
    torch.testing.assert_close(top.weights.gather(-1, top.top_keys.indices), top.top_keys.weights)
    assert top.top_keys.indices.sort(-1).values.diff(dim=-1).min() > 0  # no key twice


def test_blocks_without_a_chosen_row_are_not_computed(monkeypatch):
    cut(monkeypatch)
    q, k, v = make_qkv(q_len=9, k_len=14)
    computed = []
    from regard.backends.scores.blocks import Scores

    plain = Scores.compute
    monkeypatch.setattr(
        Scores, "compute", lambda *a, **b: computed.append(a[1].rows) or plain(*a, **b)
    )
    ask("fused", q, k, v, want=weights_of([2, 3], heads=[0]))
    assert set(computed) == {range(2, 4)}


@pytest.mark.parametrize(
    ("asked", "words"), [({"rows": [7]}, "row 7"), ({"rows": [0], "heads": [6]}, "head 6")]
)
def test_a_row_or_head_that_is_not_there_is_refused(asked, words):
    for backend in BLOCKWISE:
        with pytest.raises(rg.ArgumentError, match=f"requests {words}"):
            ask(backend, *make_qkv(), want=weights_of(**asked))


def test_a_list_that_names_no_rows_is_refused_and_so_is_a_second_one():
    for rows in ([], [-1], [1, 1], [True], ["a"], [1.0]):
        with pytest.raises(rg.ArgumentError, match="weights_of"):
            weights_of(rows)
    with pytest.raises(rg.ArgumentError, match="weights_of twice"):
        checked_wants([weights_of([1]), weights_of([2])])


def test_distance_is_the_mean_distance_however_far_out_the_positions_are():
    q = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    k = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    for backend in BLOCKWISE:
        far = ask(backend, q, k, k, q_start=2**40, want="distance").distance
        assert far[0, 0].tolist() == pytest.approx([2**40 - 1, 2**40], rel=1e-15)
        near = ask(backend, q, k, k, q_start=1, want="distance").distance
        assert near[0, 0].tolist() == pytest.approx([2 / 3, 1])


@pytest.mark.parametrize("want", ["chosen", "chosen among others"])
def test_a_bias_that_learns_by_chosen_weights_alone_gets_zeros_elsewhere(want):
    """Its gradient is made of the blocks of chosen rows; what stands elsewhere must not be left as it was found."""
    q, k, v = make_qkv(batch=1, heads=1, kv_heads=1, q_len=7, k_len=11, dtype=torch.float64)
    asked = (rg.weights_of(rows=[1], heads=[0]), *(() if want == "chosen" else ("entropy",)))
    found = []
    for backend in ("reference", "streamed"):
        bias = torch.randn(
            7, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        ).requires_grad_()
        chosen = ask(backend, q, k, v, bias=bias, want=asked).chosen_weights
        found += torch.autograd.grad(chosen[..., :3].sum(), bias)
    torch.testing.assert_close(*found)
