"""The report has error, mass and spread as NumPy computes them, streams exact attention, and omits nothing silently."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import regard as rg
from regard.errors import ArgumentError
from regard.mechanisms import LSH, Linformer, Performer, RandomFeature
from regard.patterns import KeySpan, RandomBlocks, SlidingWindow
from regard_lab.seeing import Approximation, approximation
from regard_lab.seeing.quality import CandidateRow, LeftOut
from regard_lab.seeing.quality.candidates import as_candidate
from regard_lab.seeing.quality.report import median_seconds

BATCH, HEADS, KV_HEADS, LENGTH, HEAD_DIM, V_DIM = 2, 6, 3, 37, 5, 13
FAST = {"rounds": 1, "seeds": range(3)}


def tensors(q_len=LENGTH, heads=HEADS, kv_heads=KV_HEADS, length=LENGTH, dtype=torch.float64):
    shapes = (heads, q_len, HEAD_DIM), (kv_heads, length, HEAD_DIM), (kv_heads, length, V_DIM)
    return tuple(torch.randn(BATCH, *shape).to(dtype) for shape in shapes)


def weights_of(q, k, allowed, scale=None):
    """Softmax weights in NumPy, (batch, heads, q_len, k_len); allowed broadcasts to them; rows without a key are 0."""
    q, k = (x.double().numpy() for x in (q, k))
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    scores = np.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    powers = np.where(allowed, np.exp(scores), 0)
    return powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)


def output_of(weights, v):
    return np.einsum("bhij,bhjd->bhid", weights, np.repeat(v.double().numpy(), weights.shape[1] // v.shape[1], axis=1))


def error_of(estimate, exact):
    return np.linalg.norm(estimate - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("q_len", [LENGTH, 23])
@pytest.mark.parametrize("pattern", [None, "causal", KeySpan(0, torch.tensor([29, 11]))])
def test_error_worst_row_and_mass_of_a_pattern_are_those_of_its_weights(q_len, pattern):
    q, k, v = tensors(q_len)
    i, j = LENGTH - q_len + np.arange(q_len)[:, None], np.arange(LENGTH)
    own = {None: j >= 0, "causal": j <= i}.get(pattern) if not isinstance(pattern, KeySpan) else None
    own = j < np.array([29, 11]).reshape(2, 1, 1, 1) if own is None else own
    row = approximation(q, k, v, pattern=pattern, mechanisms=["strided(7)"], **FAST).rows[0]

    exact = weights_of(q, k, own)
    kept = (abs(i - j) < 7) | ((i - j) % 7 == 0)
    estimate, answer = output_of(weights_of(q, k, own & kept), v), output_of(exact, v)
    wrong = np.linalg.norm(estimate - answer, axis=-1)
    assert row.error == pytest.approx(error_of(estimate, answer), rel=1e-10)
    assert row.worst_row == pytest.approx(wrong.max() / np.sqrt((answer**2).sum(-1).mean()), rel=1e-10)
    assert row.mass == pytest.approx((exact * kept).sum(-1).mean(), rel=1e-10)
    assert row.spread is None


def test_rows_that_see_no_key_do_not_count_into_the_mass():
    q, k, v = tensors()
    half = KeySpan(0, torch.tensor([LENGTH, 0]))
    row = approximation(q, k, v, pattern=half, mechanisms=["strided(7)"], **FAST).rows[0]
    alone = approximation(*(x[:1] for x in (q, k, v)), mechanisms=["strided(7)"], **FAST).rows[0]
    assert row.mass == pytest.approx(alone.mass, rel=1e-12)
    assert row.error == pytest.approx(alone.error, rel=1e-12)


def test_mean_and_spread_are_those_over_the_seeds():
    q, k, v = tensors()
    seeds = (3, 1, 4, 15)
    report = approximation(q, k, v, mechanisms=[Performer(16), RandomBlocks(2, block=8)], seeds=seeds, rounds=1)
    exact = rg.attention(q, k, v).numpy()
    calls = [{"mechanism": Performer(16, seed=seed)} for seed in seeds]
    blocks = [{"pattern": RandomBlocks(2, block=8, seed=seed)} for seed in seeds]
    for row, asked in zip(report.rows, (calls, blocks), strict=True):
        errors = [error_of(rg.attention(q, k, v, **one).numpy(), exact) for one in asked]
        assert row.error == pytest.approx(np.mean(errors), rel=1e-10)
        assert row.spread == pytest.approx(np.std(errors, ddof=1), rel=1e-10)
    assert report.rows[0].mass is None
    assert 0 < report.rows[1].mass < 1


def test_seeds_reach_random_blocks_inside_other_patterns():
    q, k, v = tensors()
    pattern = SlidingWindow(4) | RandomBlocks(2, block=8, seed=9)
    row = approximation(q, k, v, mechanisms=[pattern], **FAST).rows[0]
    assert row.spread > 0
    assert row.family == "sliding_window | random_blocks"


def test_lsh_in_one_chunk_is_its_own_exact_attention():
    q, k, v = tensors(kv_heads=HEADS)
    for pattern in (None, "causal", KeySpan(0, torch.tensor([29, 1])), KeySpan(3, 30)):
        row = approximation(q, k, v, pattern=pattern, mechanisms=[LSH(chunk=64, buckets=4)], **FAST).rows[0]
        assert row.against == "keys that are the queries"
        assert row.error < 1e-12
        assert row.mass == pytest.approx(1, abs=1e-12)


def test_the_mass_of_lsh_is_the_exact_weight_on_the_pairs_it_sees():
    q, k, v = tensors(kv_heads=HEADS)
    mechanism = LSH(chunk=4, buckets=8, rounds=1)
    row = approximation(q, k, v, mechanisms=[mechanism], seeds=[0], rounds=1).rows[0]
    found = rg.attention_detail(q, q, v, mechanism=mechanism, want="weights").weights.numpy() > 0
    others = ~np.eye(LENGTH, dtype=bool)
    unit = q / q.norm(dim=-1, keepdim=True)
    assert row.mass == pytest.approx((weights_of(q, unit, others) * found).sum(-1).mean(), rel=1e-10)
    assert row.mass < 0.9


def test_random_feature_is_told_against_the_call_and_against_its_own_kernel():
    q, k, v = tensors()
    report = approximation(q, k, v, mechanisms=[RandomFeature(128, sigma=1.5)], **FAST)
    call, own = report.rows
    assert (call.against, own.against) == ("the call", "unit q, k; sigma 1.5")
    estimates = [rg.attention(q, k, v, mechanism=RandomFeature(128, sigma=1.5, seed=seed)).numpy() for seed in range(3)]
    unit_q, unit_k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    exact = output_of(weights_of(unit_q, unit_k, True, 1.5**-2), v)
    assert own.error == pytest.approx(np.mean([error_of(estimate, exact) for estimate in estimates]), rel=1e-9)
    exact = output_of(weights_of(q, k, True), v)
    assert call.error == pytest.approx(np.mean([error_of(estimate, exact) for estimate in estimates]), rel=1e-9)


def test_a_scale_goes_to_those_that_have_one():
    q, k, v = tensors()
    report = approximation(q, k, v, scale=0.3, mechanisms=["strided(7)", Performer(16), RandomFeature(16)], **FAST)
    assert not report.left_out
    i, j = np.arange(LENGTH)[:, None], np.arange(LENGTH)
    exact = output_of(weights_of(q, k, True, 0.3), v)
    estimate = output_of(weights_of(q, k, (abs(i - j) < 7) | ((i - j) % 7 == 0), 0.3), v)
    assert report.rows[0].error == pytest.approx(error_of(estimate, exact), rel=1e-10)


def test_a_mechanism_that_learned_brings_its_parameters():
    q, k, v = tensors()
    eye = {"projection": torch.eye(LENGTH, dtype=torch.float64)[None]}
    given = (Linformer(LENGTH, LENGTH, "keys_and_values"), eye)
    report = approximation(q, k, v, mechanisms=[given], **FAST)
    assert report.rows[0].error < 1e-12


def test_what_has_to_learn_is_drawn_and_marked_as_untrained():
    q, k, v = tensors()
    report = approximation(q, k, v, mechanisms=["linformer(37, 4)"], seeds=[5], rounds=1)
    parameters = Linformer(LENGTH, 4).new_parameters(HEADS, KV_HEADS, torch.Generator().manual_seed(5))
    parameters = {name: one.detach().double() for name, one in parameters.items()}
    estimate = rg.attention(q, k, v, mechanism=Linformer(LENGTH, 4), parameters=parameters)
    exact = output_of(weights_of(q, k, True), v)
    assert report.rows[0].error == pytest.approx(error_of(estimate.numpy(), exact), rel=1e-10)
    assert report.rows[0].name.endswith("(untrained)")
    assert "says nothing about a trained model" in str(report)
    wide = approximation(q, k, v, mechanisms=["linformer(37, 4)"], seeds=[5], rounds=1, tolerance=1e6)
    assert list(wide.suggestions.values()) == [
        "linformer: none; its parameters have to be learned, and here they are random"
    ]


def test_that_no_named_candidate_applies_is_an_error():
    with pytest.raises(ArgumentError, match=r"no candidate applies to this call: linformer.* mixes all positions"):
        approximation(*tensors(), pattern="causal", mechanisms=["linformer(37, 4)"], **FAST)


def test_whatever_does_not_apply_is_listed_with_the_reason():
    q, k, v = tensors()
    report = approximation(
        q, k, v, pattern="causal", mechanisms=[Linformer(LENGTH, 4), "sliding_window(512)", LSH(), "strided(7)"], **FAST
    )
    assert [row.name for row in report.rows] == ["strided(7)"]
    reasons = [one.reason for one in report.left_out]
    assert "mixes all positions" in reasons[0]
    assert "so it is exact attention" in reasons[1]
    assert "it needs equal queries and keys" in reasons[2]
    assert all(reason in str(report) for reason in reasons)


@pytest.mark.parametrize("pattern", [None, "causal"])
def test_the_sweep_names_every_family_once_compared_or_left_out(pattern):
    q, k, v = tensors(q_len=160, heads=2, kv_heads=2, length=160, dtype=torch.float32)
    report = approximation(q, k, v, pattern=pattern, rounds=1, seeds=[0])
    window = "causal window" if pattern else "sliding window"
    told = {row.family for row in report.rows} | {one.family for one in report.left_out}
    assert told == {window, "BigBird", "strided", "fixed", "LinearTransformer", "Performer", "RandomFeature", "LSH",
                    "Linformer"}  # fmt: skip
    names = [row.name for row in report.rows] + [one.name for one in report.left_out]
    assert f"{window} 512" in names
    texts = [as_candidate(row.text).what for row in report.rows]  # the text has all that the name leaves out
    assert [str(what) for what in texts] == [row.text for row in report.rows]
    assert all("chunk" in row.text or "64" in row.text for row in report.rows if row.family in ("LSH", "BigBird"))
    assert all(math.isfinite(row.error) for row in report.rows)


class Largest(TorchDispatchMode):
    """The most numbers that one tensor held while it was on."""

    found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.found = max([self.found, *(x.numel() for x in tree_iter(result) if isinstance(x, torch.Tensor))])
        return result


def test_no_tensor_grows_with_the_square_of_the_length():
    length = 2048
    q, k, v = (torch.randn(1, 1, length, 8) for _ in range(3))
    with Largest() as largest:
        approximation(q, k, v, mechanisms=["sliding_window(64)", "strided(64)"], rounds=1)
    assert largest.found < length**2 / 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [0.5]}, "a seed is 0.5"),
        ({"tolerance": 0}, "tolerance is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"mechanisms": [3]}, "cannot replace exact attention"),
    ],
)
def test_wrong_arguments_are_refused(given, words):
    with pytest.raises(ArgumentError, match=words):
        approximation(*tensors(), **given)


def test_times_on_the_cpu_are_those_of_one_thread_and_threads_are_as_before():
    seen = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        median_seconds([lambda: seen.append(torch.get_num_threads())], rounds=2, device=torch.device("cpu"))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def made_row(**changes):
    """A row as a comparison makes it."""
    given = CandidateRow("window 8", "window", "8", "the call", "tiled", 0.5, None, 1.0, 0.5, 0.1, 0.5, 100.0, 1.0)
    return replace(given, **changes)


def report(*rows, **changes):
    given = {"problem": "softmax of 1 x 1 heads", "backend": "fused", "seconds": 0.2, "bytes": 1e6, "tolerance": 0.1,
             "seeds": 5, "rows": rows, "left_out": ()}  # fmt: skip
    return Approximation(**given | changes)


def test_the_fastest_within_the_tolerance_is_suggested():
    rows = [
        made_row(name="a", error=0.3, time_ratio=0.1),
        made_row(name="b", error=0.09, time_ratio=0.4),
        made_row(name="c", error=0.01, time_ratio=0.6),
        made_row(name="d", error=math.nan, time_ratio=0.01),
    ]
    assert report(*rows).suggested("window").name == "b"
    assert "window: b, error 0.09 in 0.40 of the exact time" in str(report(*rows))
    assert report(*rows, tolerance=0.05).suggested("window").name == "c"
    assert report(*rows, tolerance=0.5).suggested("window").name == "a"


def test_that_none_is_within_the_tolerance_is_said_with_the_nearest():
    found = report(made_row(name="a", error=math.nan), made_row(name="b", error=0.3), made_row(name="c", error=0.2))
    assert found.suggested("window") is None
    assert found.suggestions == {"window": "window: none; the closest is c with 0.2"}


def test_json_holds_everything_and_no_number_that_json_lacks():
    found = report(made_row(), made_row(error=math.nan, spread=math.inf), left_out=(LeftOut("x", "x", "too long"),))
    record = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert record["rows"][1]["error"] is record["rows"][1]["spread"] is None
    assert record["rows"][0]["mass"] == 0.5
    assert record["left_out"] == [{"name": "x", "family": "x", "reason": "too long"}]
    assert set(record) == {"problem", "backend", "seconds", "bytes", "tolerance", "seeds", "rows", "left_out",
                           "suggestions"}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), [(lambda x: x * 0, "zero"), (lambda x: x + math.nan, "not finite"),
                                               (lambda x: x[:, :, :0], "zero")])  # fmt: skip
def test_tensors_without_an_exact_answer_are_refused(change, words):
    q, k, v = tensors()
    with pytest.raises(ArgumentError, match=words):
        approximation(q, change(k) if change(v).shape != v.shape else k, change(v), mechanisms=["strided(7)"])


def test_half_types_are_compared_in_float32():
    q, k, v = tensors(dtype=torch.bfloat16)
    row = approximation(q, k, v, mechanisms=["strided(7)"], **FAST).rows[0]
    exact = output_of(weights_of(q, k, True), v)
    estimate = rg.attention(q, k, v, pattern="strided(7)").double().numpy()
    assert row.error == pytest.approx(error_of(estimate, exact), rel=1e-4)


def test_what_is_slower_than_exact_attention_is_not_recommended():
    found = report(made_row(error=0.01, time_ratio=1.2))
    assert found.suggestions["window"].endswith("so exact attention is the better choice here")


def test_a_family_is_judged_against_the_call_where_it_is_compared_with_it():
    found = report(made_row(error=0.3), made_row(error=0.01, against="unit q, k; sigma 1"))
    assert found.suggested("window") is None
    assert report(made_row(error=0.01, against="keys that are the queries")).suggested("window") is not None
