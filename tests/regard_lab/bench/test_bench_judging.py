"""Whoever answers wrongly is found out, in every row, gradient and statistic."""

from dataclasses import replace

import pytest

from regard.core.result import top_keys
from regard.errors import ArgumentError
from regard.patterns import CausalWindow
from regard_lab.bench.cases import PLAN_RUN, REGARD, with_statistic
from regard_lab.bench.judging import chosen_rows, judge
from regard_lab.bench.peers import PEERS
from regard_lab.bench.work import (
    BIG_BIRD,
    CAUSAL,
    FULL,
    SMALL_WINDOW,
    STRIDED,
    WINDOW,
    Contender,
    Contest,
    Work,
    allowed_pairs,
)

SMALL = Work(70, heads=2, head_dim=8, pattern=SMALL_WINDOW)
WORKS = {
    "window": SMALL,
    "gradients": replace(SMALL, backward=True),
    "long, so that rows are chosen": replace(SMALL, q_len=700, k_len=700, backward=True),
    "grouped heads and a cache": Work(1, 90, heads=4, kv_heads=2, head_dim=8),
    "a bfloat16 cache": Work(1, 90, heads=4, kv_heads=2, head_dim=8, cache_dtype="bfloat16"),
    "a bias that learns": replace(SMALL, learned_bias=True, backward=True),
    "dropout": replace(SMALL, dropout=0.2, backward=True),
    "random blocks": Work(640, heads=1, head_dim=8, pattern=BIG_BIRD),
}


def contest(work):
    return Contest("here", work, (REGARD,))


def spoiled(change, work=SMALL):
    """regard, with its output changed."""

    def prepare(given, tensors):
        attend = REGARD.prepare(given, tensors)
        return lambda: change(attend(), tensors)

    return judge(contest(work), Contender("spoiled", prepare))


@pytest.mark.parametrize("name", WORKS)
def test_regard_is_right(name):
    for contender in (REGARD, PLAN_RUN):
        verdict = judge(contest(WORKS[name]), contender)
        assert verdict.right, verdict
    assert set(verdict.errors) >= {"output", "dq", "dk", "dv"} or not WORKS[name].backward
    assert ("dbias" in verdict.errors) is WORKS[name].learned_bias


@pytest.mark.parametrize("want", ["log_sum_exp", "entropy", "received", top_keys(3)])
@pytest.mark.parametrize("length", [70, 600])
def test_statistics_are_judged(want, length):
    verdict = judge(contest(SMALL.as_long_as(length)), with_statistic(want))
    assert verdict.right, verdict
    assert len(verdict.errors) == 2


def test_one_wrong_number_is_found():
    def change(output, tensors):
        output = output.clone()
        output[0, 1, 69, 3] += 1e-3
        return output

    verdict = spoiled(change)
    assert not verdict.right
    assert "output" in str(verdict)


def test_a_wrong_pattern_is_found():
    other = Contender("other", lambda work, tensors: REGARD.prepare(replace(work, pattern=CAUSAL), tensors))
    assert not judge(contest(SMALL), other).right


def test_a_wrong_gradient_is_found_though_the_output_is_right():
    def change(output, tensors):
        return output + (tensors.k.sum() - tensors.k.sum().detach()) * 1e-3

    verdict = spoiled(change, replace(SMALL, backward=True))
    assert verdict.errors["output"] <= 1
    assert verdict.errors["dk"] > 1
    assert verdict.errors["dq"] <= 1


def test_a_gradient_that_is_not_finite_is_wrong():
    verdict = spoiled(
        lambda output, tensors: output + 0 * (tensors.q - tensors.q.detach()).sqrt(), replace(SMALL, backward=True)
    )
    assert not verdict.right


def test_wrong_statistics_are_found():
    def prepare(work, tensors):
        attend = with_statistic("received").prepare(work, tensors)
        return lambda: {name: x * 1.001 if name == "received" else x for name, x in attend().items()}

    verdict = judge(contest(SMALL), Contender("spoiled", prepare))
    assert verdict.errors["output"] <= 1 < verdict.errors["received"]


def test_own_dropout_is_judged_without():
    work = replace(SMALL, pattern=FULL, dropout=0.4)
    assert judge(contest(work), PEERS["SDPA"]).right
    assert not judge(contest(work), replace(PEERS["SDPA"], own_dropout=False)).right


def test_peers_of_torch_are_right():
    assert judge(contest(replace(SMALL, pattern=CAUSAL, backward=True)), PEERS["SDPA"]).right
    assert judge(contest(replace(SMALL, backward=True)), PEERS["SDPA bool mask"]).right
    for name in ("SDPA enable_gqa", "SDPA repeat_interleave"):
        assert judge(contest(WORKS["grouped heads and a cache"]), PEERS[name]).right


def test_rows_of_a_long_call_hold_its_edges():
    rows = chosen_rows(10_000)
    assert {0, 1, 4999, 5000, 9998, 9999} <= set(rows)
    assert rows == sorted(set(rows))
    assert len(rows) < 30
    assert chosen_rows(5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("pattern", [FULL, CAUSAL, SMALL_WINDOW, WINDOW, STRIDED, BIG_BIRD], ids=str)
def test_formulas_agree_with_the_patterns(pattern):
    rows = [0, 1, 63, 64, 300, 700, 1279]
    assert (allowed_pairs(pattern, rows, 1280, 1280) == pattern.dense(1280, 1280)[rows].numpy()).all()


def test_a_pattern_without_formula_is_refused():
    with pytest.raises(ArgumentError, match="no formula is known for causal_window"):
        allowed_pairs(CausalWindow(3), [0], 4, 4)
