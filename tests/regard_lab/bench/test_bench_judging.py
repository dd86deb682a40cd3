"""Results are judged in float64: whoever is wrong in a row, gradient or statistic is found out."""

from dataclasses import replace

import pytest
import torch

from regard.core.result import top_keys
from regard.errors import ArgumentError
from regard.mechanisms import (
    LSH,
    Additive,
    GatedDelta,
    LinearTransformer,
    Linformer,
    Performer,
    RandomFeature,
    Softmax,
)
from regard.patterns import CausalWindow
from regard_lab.bench import peers
from regard_lab.bench.cases import PLAN_RUN, REGARD, with_statistic
from regard_lab.bench.judging import Bound, chosen_rows, judge
from regard_lab.bench.work import (
    BIG_BIRD,
    CAUSAL,
    CAUSAL_WINDOW,
    FULL,
    SMALL_WINDOW,
    STRIDED,
    WINDOW,
    Contender,
    Contest,
    Work,
    allowed_pairs,
    make_tensors,
)

SMALL = Work(70, heads=2, head_dim=8, pattern=SMALL_WINDOW)
SOFTMAX = {
    "window": SMALL,
    "gradients": replace(SMALL, backward=True),
    "long, so that rows are chosen": replace(SMALL, q_len=700, k_len=700, backward=True),
    "grouped heads and a cache": Work(1, 90, heads=4, kv_heads=2, head_dim=8),
    "latents": Work(1, 80, heads=4, kv_heads=1, head_dim=13, v_dim=7, latent=True),
    "a bfloat16 cache": Work(1, 90, heads=4, kv_heads=2, head_dim=8, cache_dtype="bfloat16"),
    "a bias that learns": replace(SMALL, learned_bias=True, backward=True),
    "dropout": replace(SMALL, dropout=0.2, backward=True),
    "random blocks": Work(640, heads=1, head_dim=8, pattern=BIG_BIRD),
}
ADDITIVE = Softmax(Additive(query_dim=8, key_dim=8, hidden=5))
MECHANISMS = {
    "linear": (LinearTransformer(), FULL),
    "causal linear": (LinearTransformer(), CAUSAL),
    "performer": (Performer(features=24), CAUSAL),
    "random features": (RandomFeature(features=24), CAUSAL),
    "linformer": (Linformer(700, rank=6), FULL),
    "hashed": (LSH(chunk=16, buckets=8, rounds=3), FULL),
    "hashed, causal": (LSH(chunk=16, buckets=8, rounds=3), CAUSAL),
    "hashed, one chunk": (LSH(chunk=1000, buckets=8, rounds=3), FULL),
    "additive": (ADDITIVE, CAUSAL),
    "gated delta": (GatedDelta(), CAUSAL),
}
WORKS = SOFTMAX | {
    name: Work(
        130, heads=2, head_dim=8, v_dim=11, pattern=pattern, mechanism=mechanism, backward=True
    )
    for name, (mechanism, pattern) in MECHANISMS.items()
}


def verdict(work, contender=REGARD):
    return judge(Contest("here", work, (REGARD,)), contender)


def spoiled(change, work):
    """The verdict on regard with its output changed."""

    def prepare(work_given, tensors):
        attend = REGARD.prepare(work_given, tensors)
        return lambda: change(attend(), tensors)

    return verdict(work, Contender("spoiled", prepare))


@pytest.mark.parametrize("name", WORKS)
def test_regard_is_right(name):
    # every row, some rows
    for work in (
        WORKS[name],
        *([WORKS[name].as_long_as(600)] if name in MECHANISMS else []),
    ):
        for contender in (REGARD, *([PLAN_RUN] if name in SOFTMAX else [])):
            judged = verdict(work, contender)
            assert judged.right, judged
            gradients = {"dq", "dv"} if "hashed" in name else {"dq", "dk", "dv"}
            gradients |= {f"d{parameter}" for parameter in make_tensors(work).parameters}
            gradients |= {"dbias"} if work.learned_bias else set()
            assert set(judged.errors) == {"output"} | (gradients if work.backward else set())


@pytest.mark.parametrize("want", ["log_sum_exp", "entropy", "received", top_keys(3)])
@pytest.mark.parametrize("length", [70, 600])
def test_statistics_are_judged(want, length):
    judged = verdict(SMALL.as_long_as(length), with_statistic(want))
    assert judged.right, judged
    assert len(judged.errors) == 2


@pytest.mark.parametrize("name", ["gradients", *MECHANISMS])
def test_wrong_values_and_gradients_are_found(name):
    def one_number(output, tensors):
        output = output.clone()
        output[0, 1, -1, 3] += 1e-3
        return output

    judged = spoiled(one_number, WORKS[name])
    assert judged.errors["output"] > 1
    assert "output" in str(judged)
    pulled = spoiled(
        lambda output, tensors: output + 1e-2 * (tensors.v - tensors.v.detach()), WORKS[name]
    )
    assert max(pulled.errors["output"], pulled.errors["dq"]) <= 1 < pulled.errors["dv"]


def test_numbers_that_are_none_are_found_in_outputs_and_gradients():
    work = WORKS["gradients"]
    assert not spoiled(lambda output, tensors: output * torch.nan, work).right
    steep = lambda output, tensors: output + 0 * (tensors.q - tensors.q.detach()).sum().sqrt()  # noqa: E731
    assert not spoiled(steep, work).right


def test_wrong_statistics_are_found():
    def prepare(work, tensors):
        attend = with_statistic("received").prepare(work, tensors)
        return lambda: {
            name: x * 1.001 if name == "received" else x for name, x in attend().items()
        }

    judged = verdict(SMALL, Contender("spoiled", prepare))
    assert judged.errors["output"] <= 1 < judged.errors["received"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("window", {"pattern": CAUSAL}),
        ("causal linear", {"pattern": FULL}),
        ("performer", {"mechanism": Performer(features=24, seed=1)}),
        ("random features", {"mechanism": RandomFeature(features=24, sigma=1.1)}),
        ("hashed", {"mechanism": LSH(chunk=16, buckets=8, rounds=2)}),
        ("hashed", {"mechanism": LSH(chunk=17, buckets=8, rounds=3)}),
    ],
)
def test_another_pattern_or_mechanism_is_found_out(name, changes):
    contender = replace(
        REGARD, prepare=lambda work, tensors: REGARD.prepare(replace(work, **changes), tensors)
    )
    assert verdict(WORKS[name], contender).errors["output"] > 1


def test_parameters_get_their_gradients_checked():
    def pull(output, tensors):
        energy = tensors.parameters["energy"]
        return output + 1e-2 * (energy.sum() - energy.sum().detach())

    judged = spoiled(pull, WORKS["additive"])
    assert judged.errors["output"] <= 1 < judged.errors["denergy"]


def test_own_dropout_is_judged_without():
    work = replace(SMALL, pattern=FULL, dropout=0.4)
    assert verdict(work, peers.SDPA).right
    assert not verdict(work, replace(peers.SDPA, own_dropout=False)).right


def test_peers_of_torch_are_right():
    assert verdict(replace(SMALL, pattern=CAUSAL, backward=True), peers.SDPA).right
    assert verdict(WORKS["gradients"], peers.SDPA_MASK).right
    assert verdict(Work(9, 4, heads=2, head_dim=8), peers.SDPA).right, "more queries than keys"
    for peer in (peers.SDPA_GROUPED, peers.SDPA_REPEATED):
        assert verdict(WORKS["grouped heads and a cache"], peer).right
    assert verdict(replace(WORKS["additive"], pattern=FULL), peers.BROADCAST).right
    with pytest.raises(NotImplementedError, match="full additive attention without groups"):
        verdict(WORKS["additive"], peers.BROADCAST)


def test_softmax_beside_the_linear_transformer_is_judged_as_softmax():
    assert verdict(WORKS["causal linear"], peers.SDPA_SOFTMAX).right
    unchanged = replace(peers.SDPA_SOFTMAX, works_on=lambda work: work)
    assert not verdict(WORKS["causal linear"], unchanged).right


def test_the_bound_leaves_room_for_what_peers_add_and_not_for_more():
    expected = torch.tensor([1.0, 2.0], dtype=torch.float64)
    bound = Bound.of(expected, expected.float())
    assert bound.share(expected * (1 + 0.9e-5)) < 1 < bound.share(expected * (1 + 1.1e-5))
    assert bound.share(expected * torch.inf) == float("inf")


def test_rows_of_a_long_call_hold_its_edges():
    rows = chosen_rows(10_000)
    assert {0, 1, 4999, 5000, 9998, 9999} <= set(rows)
    assert rows == sorted(set(rows))
    assert len(rows) < 30
    assert chosen_rows(5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "pattern", [FULL, CAUSAL, SMALL_WINDOW, WINDOW, CAUSAL_WINDOW, STRIDED, BIG_BIRD], ids=str
)
def test_formulas_agree_with_the_patterns(pattern):
    rows = [0, 1, 63, 64, 300, 700, 1279]
    assert (
        allowed_pairs(pattern, rows, 1280, 1280) == pattern.dense(1280, 1280)[rows].numpy()
    ).all()


def test_a_pattern_without_formula_is_refused():
    with pytest.raises(ArgumentError, match="no formula is known for causal_window"):
        allowed_pairs(CausalWindow(3), [0], 4, 4)
