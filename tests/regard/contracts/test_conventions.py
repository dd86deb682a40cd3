"""docs/conventions.md line by line, as pictures and small sums that can be checked by eye."""

import itertools
import math
from functools import partial

import pytest
import torch
from asking import HERE, LEARNING, PLAIN, among, ask, computes, computing

import regard as rg
from regard import patterns as p
from regard.testing import make_qkv

plain = pytest.mark.parametrize("backend", PLAIN)
learning = pytest.mark.parametrize("backend", [name for name in LEARNING if name in PLAIN])


def seen(pattern, q_len: int, k_len: int, **options) -> list[str]:
    """Which pairs have weight, one text for each query; equal for every backend that computes them."""
    q = torch.zeros(1, 1, q_len, 2)
    k = torch.zeros(1, 1, k_len, 2)
    v = torch.eye(k_len)[None, None]
    pictures = []
    for backend in computing(q, k, v, pattern=pattern, **options):
        weights = ask(backend, q, k, v, pattern=pattern, **options).output  # with such values
        pictures.append([picture_of(row) for row in weights[0, 0].tolist()])
    assert all(picture == pictures[0] for picture in pictures)
    return pictures[0]


def picture_of(weights: list[float]) -> str:
    return "".join("x" if weight > 0 else "." for weight in weights)


def test_ends_align_when_lengths_differ():
    assert seen("causal", 2, 5) == ["xxxx.", "xxxxx"]
    assert seen("causal", 5, 2) == ["..", "..", "..", "x.", "xx"]


def test_q_start_places_the_first_query():
    assert seen("causal", 2, 5, q_start=0) == ["x....", "xx..."]
    assert seen("causal", 2, 5, q_start=-1) == [".....", "x...."]
    assert seen("causal", 3, 3, q_start=1) == ["xx.", "xxx", "xxx"]
    assert seen("causal", 2, 3, q_start=7) == ["xxx", "xxx"]
    assert seen("causal", 2, 5, q_start=torch.tensor([2])) == ["xxx..", "xxxx."]


def test_a_sliding_window_shows_half_its_size_on_each_side_and_the_query_itself():
    assert seen(p.SlidingWindow(2), 4, 4) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert seen(p.SlidingWindow(3), 4, 4) == seen(p.SlidingWindow(2), 4, 4)
    assert seen(p.SlidingWindow(1), 3, 3) == ["x..", ".x.", "..x"]


def test_a_causal_window_shows_exactly_size_keys_with_the_querys_own_last():
    assert seen(p.CausalWindow(1), 3, 3) == ["x..", ".x.", "..x"]
    assert seen(p.CausalWindow(3), 5, 5) == ["x....", "xx...", "xxx..", ".xxx.", "..xxx"]


def test_a_key_span_never_moves_the_alignment():
    assert seen(p.Causal() & p.KeySpan(1, 4), 3, 5) == [".xx..", ".xxx.", ".xxx."]


@plain
def test_query_head_h_reads_key_value_head_h_over_group(backend):
    q = torch.zeros(1, 6, 1, 2)
    v = torch.arange(3.0).view(1, 3, 1, 1).expand(1, 3, 4, 1)
    output = rg.attention(q, torch.zeros(1, 3, 4, 2), v, backend=backend)
    assert output.flatten().tolist() == [0, 0, 1, 1, 2, 2]


@plain
def test_the_scale_is_one_over_the_root_of_head_dim_unless_given(backend):
    q = torch.full((1, 1, 1, 16), 1.0)
    k = torch.tensor([[[[1.0] * 16, [0.0] * 16]]])
    v = torch.eye(2)[None, None]
    for scale, difference in ((None, 4.0), (0.125, 2.0), (0, 0.0)):
        output = rg.attention(q, k, v, scale=scale, backend=backend).flatten()
        assert float((output[0] / output[1]).log()) == pytest.approx(difference, abs=1e-5)


def test_softcap_comes_before_bias_and_bias_before_the_pattern():
    q = torch.tensor([[[[8.0]]]])
    k = torch.tensor([[[[1.0], [-1.0], [5.0]]]])
    v = torch.ones(1, 1, 3, 1)
    options = {"scale": 0.5, "softcap": 2.0, "bias": torch.tensor([0.0, 9.0, 99.0])}
    detail = rg.attention_detail(q, k, v, pattern=p.KeySpan(0, 2), want="weights", **options)
    capped = 2 * math.tanh(8 * 0.5 / 2)
    first = 1 / (1 + math.exp((9 - capped) - capped))
    assert detail.weights.flatten().tolist() == pytest.approx([first, 1 - first, 0.0], rel=1e-5)


def test_dropout_comes_last_on_weights_that_are_not_normalised_again():
    q, k, v = make_qkv(q_len=40, k_len=50)
    options = {"dropout": 0.5, "dropout_seed": 3, "want": "weights"}
    units = torch.eye(50).expand(2, 3, 50, 50)
    detail = rg.attention_detail(
        q, k, units, **options
    )  # whose output is the weights that are kept
    factors = (detail.output / detail.weights).round(decimals=4)
    assert set(factors.unique().tolist()) == {0.0, 2.0}
    # Statistics are those before dropout.
    torch.testing.assert_close(detail.weights.sum(-1), torch.ones(2, 6, 40))
    sums = rg.attention_detail(q, k, torch.ones_like(v), **options).output
    assert sums.std() > 0.01


@plain
def test_an_option_equal_to_its_default_changes_no_bit(backend):
    attend = partial(rg.attention, *make_qkv(), pattern="causal", backend=backend)
    plain = attend()
    defaults = {"scale": 5**-0.5, "q_start": 4, "dropout": 0.0, "softcap": None, "dropout_seed": 3}
    for option, default in defaults.items():
        assert torch.equal(attend(**{option: default}), plain), option


@pytest.mark.parametrize("name", ["q", "k", "v", "bias"])
@pytest.mark.parametrize("backend", LEARNING)
def test_an_input_edited_before_the_backward_pass_never_makes_a_wrong_gradient(backend, name):
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "q_len": 600, "k_len": 600}
    leaves = make_qkv(**sizes, requires_grad=True)
    tensors = dict(zip("qkv", (x * 1 for x in leaves), strict=True))
    tensors["bias"] = torch.zeros(600)
    options = {"pattern": "causal_window(8)", **tensors}
    if not computes(backend, **options):
        options = {**options, "pattern": "causal & strided(8)", "bias": None}
    output = rg.attention(**options, backend=backend)
    gradients = torch.autograd.grad(output.sum(), leaves, retain_graph=True)
    with torch.no_grad():
        tensors[name].copy_(torch.randn_like(tensors[name]))
    try:
        again = torch.autograd.grad(output.sum(), leaves)
    except RuntimeError:  # autograd's version counter noticed
        return
    assert all(map(torch.equal, again, gradients))


@learning
def test_q_start_edited_after_the_call_changes_no_gradient(backend):
    qkv = make_qkv(heads=1, kv_heads=1, q_len=1500, k_len=1500, requires_grad=True)
    start = torch.tensor([0, 3])
    pattern = p.Causal() & p.CausalWindow(4)
    output = rg.attention(*qkv, pattern=pattern, q_start=start, backend=backend)
    gradients = torch.autograd.grad(output.sum(), qkv, retain_graph=True)
    start += 2
    assert all(map(torch.equal, torch.autograd.grad(output.sum(), qkv), gradients))


HUGE = 1e30
VALUES = torch.tensor([[[[1.0], [2.0], [4.0]]]])
CAPPED = 1 / (2 + math.exp(2 * 0.0625))
# Keys of a call whose queries are HUGE, options, and the weights of its keys.
OVERFLOWING = {
    "one of three": ([-HUGE, 1.0, 2.0], {}, [0.0, 0.0, 1.0]),
    "one beside two of 0": ([-HUGE, 0.0, 0.0], {}, [0.0, 0.5, 0.5]),
    "every score": ([-HUGE] * 3, {}, [0.0] * 3),
    "every score of a causal row": ([-HUGE] * 3, {"pattern": "causal"}, [0.0] * 3),
    "every score, beside a bias": ([-HUGE] * 3, {"bias": torch.zeros(3)}, [0.0] * 3),
    "every score, by a bias": ([-1e8] * 3, {"bias": torch.full((3,), -3.4e38)}, [0.0] * 3),
    "every score, before a softcap": (
        [-HUGE, -HUGE, HUGE],
        {"softcap": 0.0625},
        [CAPPED, CAPPED, 1 - 2 * CAPPED],
    ),
    "every score, beside a sink": ([-HUGE] * 3, {"sink": 0.5}, [0.0] * 3),
}


@pytest.mark.parametrize("name", OVERFLOWING)
def test_a_score_that_overflows_to_minus_infinity_has_the_weight_0_and_a_row_of_them_is_empty(name):
    keys, options, weights = OVERFLOWING[name]
    empty = not any(weights)
    sink = options.get("sink", -math.inf)
    mean = float(torch.tensor(weights) @ VALUES[0, 0])
    entropy = -sum(w * math.log(w) for w in weights if w)
    want = ("log_sum_exp", "entropy", "received", "distance", "weights", rg.top_keys(2))
    for learning in (False, True):
        q = torch.full((1, 1, 2, 1), HUGE, requires_grad=learning)
        k = torch.tensor(keys).view(1, 1, 3, 1).requires_grad_(learning)
        v = VALUES.clone().requires_grad_(learning)
        for backend in among(HERE, q, k, v, want=want, **options):
            detail = ask(backend, q, k, v, want=want, **options)
            output = ask(backend, q, k, v, **options).output
            assert torch.equal(output, detail.output)
            assert output[0, 0, 1].item() == pytest.approx(mean)
            assert detail.weights[0, 0, 1].tolist() == pytest.approx(weights)
            assert detail.entropy[0, 0, 1].item() == pytest.approx(entropy)
            largest = detail.top_keys.weights[0, 0, 1].tolist()
            assert largest == pytest.approx(sorted(weights)[:0:-1])
            if empty:
                assert detail.log_sum_exp[0, 0].tolist() == pytest.approx([sink] * 2)
                assert detail.top_keys.indices.eq(-1).all()
            if learning:
                loss = (output**2).sum() + detail.entropy.sum()
                first = torch.autograd.grad(loss, [q, k, v], create_graph=True)
                total = sum(x.sum() for x in first)
                second = torch.autograd.grad(total, [q, k, v], materialize_grads=True)
                for x in (*first, *second):
                    assert not (x.any() if empty else x.isnan().any())


@plain
def test_a_row_with_a_score_that_overflows_to_infinity_is_nan_and_no_other_row(backend):
    q, k, v = make_qkv(batch=1, heads=2, kv_heads=1)
    q[..., 0] = 0.0
    q[0, 1, 3, 0] = HUGE
    k[0, 0, 2, 0] = HUGE
    output = rg.attention(q, k, v, backend=backend)
    k[0, 0, 2, 0] = 0.0
    clean = rg.attention(q, k, v, backend=backend)
    assert output[0, 1, 3].isnan().all()
    output[0, 1, 3] = clean[0, 1, 3]
    torch.testing.assert_close(output, clean)


def test_a_query_that_may_look_at_an_infinite_key_is_nan_or_as_without_that_key():
    others = [j for j in range(11) if j != 6]
    reached = torch.zeros(2, 6, 7, dtype=torch.bool)
    reached[1, 2:4] = True  # the queries that read key/value head 1
    for backend in PLAIN:
        occurred = set()
        for seed in range(6):
            q, k, v = make_qkv(seed=seed)
            without_key = rg.attention(q, k[:, :, others], v[:, :, others], backend=backend)
            k[1, 1, 6, 2] = -math.inf if seed % 2 else math.inf
            output = rg.attention(q, k, v, backend=backend)
            finite = rg.attention(q, k.nan_to_num(posinf=0, neginf=0), v, backend=backend)
            torch.testing.assert_close(output[~reached], finite[~reached])
            is_nan = output.isnan().all(-1) & reached
            as_without = reached & ~is_nan
            torch.testing.assert_close(output[as_without], without_key[as_without])
            occurred |= set(is_nan[reached].tolist())
        assert occurred == {True, False}, backend


def test_entropy_is_never_negative():
    for sink, learning in itertools.product((None, 0.3, -30.0), (False, True)):
        leaves = make_qkv(gain=40, q_len=16, k_len=40, requires_grad=learning)
        for backend in among(HERE, *leaves, want="entropy", sink=sink):
            assert ask(backend, *leaves, want="entropy", sink=sink).entropy.min() >= 0


def test_a_bias_of_0_and_1_is_added_as_numbers_and_a_span_may_end_behind_the_keys():
    q, k, v = make_qkv()
    mask = (torch.arange(11) < 8).float()
    weights = rg.attention_detail(q * 0, k, v, bias=mask, want="weights").weights
    torch.testing.assert_close(weights[..., 0] / weights[..., 8], torch.full((2, 6, 7), math.e))
    behind = rg.attention(q, k, v, pattern=p.KeySpan(2, 99))
    assert torch.equal(behind, rg.attention(q, k, v, pattern=p.KeySpan(2, 11)))
    layer = rg.MultiHeadAttention(dim=8, heads=2, pattern="causal")
    x = torch.randn(2, 5, 8)
    padded = p.KeySpan(0, torch.tensor([3, 5]))  # the final lengths, while the cache grows
    cache = layer.new_cache(batch=2)
    steps = [layer(x[:, i : i + 1], pattern=padded, cache=cache) for i in range(5)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x, pattern=padded))


@pytest.mark.parametrize("pattern", [None, "causal", p.SlidingWindow(4), "causal & strided(4)"])
def test_rows_whose_scores_all_overflow_are_empty_and_the_rows_beside_them_are_not(pattern):
    q, k, v = (x.abs() for x in make_qkv(heads=2, kv_heads=1, q_len=16, k_len=16))
    q = q * torch.tensor([1 / HUGE, HUGE]).view(2, 1, 1)
    k = k * -HUGE
    of_first_head = (q[:, :1].double(), k.double(), v.double())
    ordinary = rg.attention(*of_first_head, pattern=pattern, backend="reference")
    for learning in (False, True):
        leaves = [x.clone().requires_grad_(learning) for x in (q, k, v)]
        for backend in among(HERE, *leaves, pattern=pattern):
            detail = ask(backend, *leaves, pattern=pattern, want="log_sum_exp")
            first_head = detail.output[:, :1].double()
            torch.testing.assert_close(first_head, ordinary, atol=1e-5, rtol=1e-4)
            assert not detail.output[:, 1].any()
            assert detail.log_sum_exp[:, 1].eq(-math.inf).all()
            if learning:
                gradients = torch.autograd.grad((detail.output**2).sum(), leaves)
                assert all(x.isfinite().all() for x in gradients)
                assert not gradients[0][:, 1].any()
