"""Streaming never holds all scores, and its second pass computes statistics by blocks; values are the fuzzer's."""

import pytest
import torch
from asking import ask, cut
from measuring import Largest, NotedResults

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.backends import BACKENDS
from regard.backends.scores import blocking
from regard.backends.scores.blocks import BlockedScores
from regard.bias import T5Relative
from regard.core.call import make_problem
from regard.core.plan import Plan, make_plan
from regard.core.result import checked_wants, weights_of
from regard.testing import Budget, answer, make_qkv

BY_BLOCKS = ("streamed", "fused", "reference")


class OneBiasForAllHeads(rg.bias.Bias):
    """A learned number for each distance, which every head adds."""

    learns = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(40, dtype=torch.float64, requires_grad=True)

    def by_distance(self, distances, heads):
        return self.weight[distances % 40][None]


def test_a_bias_that_all_heads_share_gets_the_sum_of_their_gradients():
    bias = OneBiasForAllHeads()

    def gradient(backend: str) -> torch.Tensor:
        output = ask(backend, *make_qkv(dtype=torch.float64), bias=bias).output
        return torch.autograd.grad(output.sin().sum(), bias.weight)[0]

    torch.testing.assert_close(gradient("streamed"), gradient("reference"), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("q_len", "k_len"), [(300, 613), (613, 300)])
def test_many_short_runs_of_keys_round_the_log_sum_exp_once(q_len, k_len):
    q, k, v = make_qkv(heads=2, kv_heads=1, q_len=q_len, k_len=k_len, dtype=torch.float64)
    found = ask("streamed", q, k, v, pattern="fixed(4, summary=1)", scale=0, want="log_sum_exp")
    expected = answer(q, k, v, p.Fixed(4).dense(q_len, k_len).numpy(), scale=0)
    budget = Budget.of(q, k, v, torch.float64, scale=0)
    assert budget.share("log_sum_exp", found.log_sum_exp, expected.log_sum_exp) <= 1
    assert budget.share("output", found.output, expected.output) <= 1


# Memory


def largest_tensor(length: int, backend: str = "streamed", **options) -> int:
    """The numbers of the largest tensor of a forward and a backward pass with statistics."""
    q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        found = ask(backend, q, k, v, pattern="causal", want=("entropy", "received"), **options)
        (found.output.sum() + found.entropy.sum()).backward()
    return largest.held


def test_no_tensor_is_larger_than_a_block_or_the_inputs():
    limit = max(blocking.PAIRS + 1024, 2 * 2048 * 8)
    options = {"dropout": 0.1, "dropout_seed": 3, "softcap": 9.0}
    assert largest_tensor(2048, **options) <= limit
    # With a bias by distance, the padded copy of one block's gradient.
    assert largest_tensor(2048, **options, bias=T5Relative(2)) <= 2 * limit
    assert limit * 2 < 2 * 2048 * 2048 / 8


def test_the_tanh_of_all_pairs_is_never_in_memory_at_once():
    mechanism = m.Softmax(m.Additive(8, 8, 64))
    options = {"mechanism": mechanism, "parameters": dict(mechanism.new_parameters())}
    assert largest_tensor(512, **options) <= 1 << 17
    assert largest_tensor(128, "reference", **options) >= 128 * 128 * 64


@pytest.mark.parametrize("learns", [False, True])
def test_a_plan_prefers_streaming_a_tanh_of_all_pairs_and_knows_what_the_formula_would_hold(learns):
    q, k, v = (torch.randn(1, 1, 2048, 128, requires_grad=learns) for _ in range(3))
    mechanism = m.Softmax(m.Additive(128, 128, 128))
    parameters = {name: x.detach() for name, x in mechanism.new_parameters().items()}
    plan = rg.plan_attention(q, k, v, mechanism=mechanism, parameters=parameters)
    assert plan.backend == "streamed"
    assert plan.cost.peak_bytes <= 64 * 2**20
    assert dict(plan.others)["reference"].peak_bytes >= 4 * 2048 * 2048 * 128


class StoragesOf(NotedResults):
    """The addresses of storages of so many bytes or more."""

    def __init__(self, least_bytes: int) -> None:
        super().__init__()
        self.least_bytes = least_bytes
        self.addresses: set[int] = set()

    def note(self, x: torch.Tensor, is_new: bool) -> None:
        storage = x.untyped_storage()
        if storage.nbytes() >= self.least_bytes:
            self.addresses.add(storage.data_ptr())


def test_the_gradient_of_a_bias_is_the_only_tensor_of_its_size():
    length = 1024
    bias = torch.zeros(2, length, length, requires_grad=True)
    q, k, v = (torch.randn(1, 2, length, 8) for _ in range(3))
    with StoragesOf(8 * length**2) as large:
        ask("streamed", q, k, v, bias=bias).output.sum().backward()
    assert len(large.addresses - {bias.untyped_storage().data_ptr()}) == 1


# Plans


def plan_by_blocks(q, k, v, backend: str = "auto", **options) -> Plan:
    backends = {name: BACKENDS[name] for name in BY_BLOCKS}
    return make_plan(make_problem(q, k, v, **options), backends, backend)


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ({"softcap": 5.0}, "streamed"),
        ({"dropout": 0.1}, "streamed"),
        ({"bias": torch.zeros(2048, 2048, requires_grad=True)}, "streamed"),
        ({"bias": T5Relative(8)}, "streamed"),
        ({}, "fused"),
    ],
)
def test_it_is_chosen_for_what_fused_operations_do_not_compute(options, backend):
    q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    assert plan_by_blocks(q, k, v, **options).backend == backend


def test_strict_refuses_what_computes_too_many_pairs():
    q, k, v = (torch.randn(1, 1, 2048, 4) for _ in range(3))
    options = {"backend": "streamed", "strict": True}
    assert plan_by_blocks(q, k, v, pattern="causal", **options).cost.pairs < 1.3 * 2048 * 2049 / 2
    with pytest.raises(rg.UnsupportedError, match="strict=True, and it computes"):
        plan_by_blocks(q, k, v, pattern="causal_window(3)", **options)


# The second pass


def test_top_keys_are_found_across_tiles_and_groups():
    """Many keys, so that they are dealt out to groups, and several tiles, so that the largest meet."""
    qkv = make_qkv(batch=1, heads=2, kv_heads=1, q_len=300, k_len=2500)
    want = (rg.top_keys(8), "weights")
    found = ask("streamed", *qkv, pattern="causal", want=want)
    expected = ask("reference", *qkv, pattern="causal", want=want)
    keys, weights = found.top_keys.indices, found.top_keys.weights
    torch.testing.assert_close(weights, expected.top_keys.weights)
    torch.testing.assert_close(found.weights.gather(-1, keys), weights)
    assert keys.sort(-1).values.diff(dim=-1).min() > 0  # no key twice


def test_blocks_without_a_chosen_row_are_not_computed(monkeypatch):
    cut(monkeypatch)
    rows_computed = set()
    compute = BlockedScores.compute

    def compute_block(scores, block, *arguments, **options):
        rows_computed.add(block.rows)
        return compute(scores, block, *arguments, **options)

    monkeypatch.setattr(BlockedScores, "compute", compute_block)
    ask("fused", *make_qkv(q_len=9, k_len=14), want=weights_of([2, 3], heads=[0]))
    assert rows_computed == {range(2, 4)}


@pytest.mark.parametrize("backend", BY_BLOCKS)
@pytest.mark.parametrize(
    ("chosen", "words"), [({"rows": [7]}, "row 7"), ({"rows": [0], "heads": [6]}, "head 6")]
)
def test_a_row_or_head_that_is_not_there_is_refused(backend, chosen, words):
    with pytest.raises(rg.ArgumentError, match=f"requests {words}"):
        ask(backend, *make_qkv(), want=weights_of(**chosen))


@pytest.mark.parametrize("rows", [[], [-1], [1, 1], [True], ["a"], [1.0]])
def test_a_list_that_names_no_rows_is_refused(rows):
    with pytest.raises(rg.ArgumentError, match="weights_of"):
        weights_of(rows)


def test_a_second_list_of_rows_is_refused():
    with pytest.raises(rg.ArgumentError, match="weights_of twice"):
        checked_wants([weights_of([1]), weights_of([2])])


@pytest.mark.parametrize("backend", BY_BLOCKS)
@pytest.mark.parametrize(("q_start", "distances"), [(2**40, [2**40 - 1, 2**40]), (1, [2 / 3, 1])])
def test_distance_is_the_mean_distance_however_far_out_the_positions_are(
    backend, q_start, distances
):
    q = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    k = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    found = ask(backend, q, k, k, q_start=q_start, want="distance").distance
    assert found[0, 0].tolist() == pytest.approx(distances, rel=1e-15)


@pytest.mark.parametrize("others", [(), ("entropy",)])
def test_a_bias_that_learns_by_chosen_weights_alone_gets_zeros_elsewhere(others):
    """Its gradient is made of the blocks of chosen rows; what stands elsewhere must not be left as it was found."""
    qkv = make_qkv(batch=1, heads=1, kv_heads=1, q_len=7, k_len=11, dtype=torch.float64)
    bias = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)

    def gradient(backend: str) -> torch.Tensor:
        want = (rg.weights_of(rows=[1], heads=[0]), *others)
        chosen = ask(backend, *qkv, bias=bias, want=want).chosen_weights
        return torch.autograd.grad(chosen[..., :3].sum(), bias)[0]

    torch.testing.assert_close(gradient("streamed"), gradient("reference"))
