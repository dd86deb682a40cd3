"""The lines of a walkthrough run; its numbers are those of PyTorch's module and of NumPy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from walk_cases import CASES, SENTENCE, case, check_lines, given

from regard.errors import ArgumentError, RegardError
from regard_lab.walkthrough import layer, walk


@pytest.mark.parametrize("name", CASES)
def test_lines_give_every_step_and_end_where_the_layer_and_the_fused_call_do(name):
    check_lines(case(name))
    checks = case(name).checks
    assert max(check.difference for check in checks) < 1e-12
    assert checks[-1].line.startswith("layer(x[None]")
    fused = any(check.line.startswith("F.scaled_dot_product_attention") for check in checks)
    assert fused == (CASES[name].get("score", "scaled_dot") in ("scaled_dot", "dot"))


def test_a_walk_that_leads_elsewhere_raises(monkeypatch):
    wrong = replace(layer.DOT, heads="{Q} @ {K}.mT * 1.01")
    monkeypatch.setitem(layer.LINES, layer.ScaledDot, wrong)
    with pytest.raises(RegardError, match=r"differ by .* mistake of regard"):
        walk(SENTENCE)


def test_the_seed_decides_the_weights_and_leaves_other_random_numbers_alone():
    before = torch.random.get_rng_state()
    first = walk(SENTENCE, seed=1)
    same = walk(SENTENCE, seed=1)
    second = walk(SENTENCE, seed=2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first["output"], same["output"])
    assert not torch.allclose(first["output"], second["output"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": 3}, "dim 8 is not divisible by 3 heads"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads is 3, by which 4 query heads cannot be divided"),
        ({"head": 2}, "heads 0 to 1"),
        ({"score": "cosine"}, "score is 'cosine'; there are scaled_dot"),
        ({"positions": "learned"}, "positions is 'learned'; there are none, sinusoidal, rotary"),
        ({"draw": "binomial"}, "there are normal, uniform"),
        ({"decimals": 9}, "from 0 to 8"),
        ({"context": "a b", "causal": True}, "no common origin"),
        ({"context": "a b", "positions": "rotary"}, "no common origin"),
        ({"positions": "sinusoidal", "dim": 9, "heads": 1}, "need an even dim"),
        ({"positions": "rotary", "dim": 10, "heads": 2}, "rotates pairs"),
        ({"context": " "}, "the context has no words"),
        ({"word": 8}, "the text has words 1 to 7"),
        ({"word": 0}, "the text has words 1 to 7"),
        ({"word": "-1"}, "the text has words 1 to 7"),
        ({"word": "cake"}, "'cake' is not in the text"),
        (
            {"query_dim": 4, "key_dim": 5},
            "query_dim 4 and key_dim 5 differ, and a dot product needs",
        ),
        (
            {"query_dim": 5, "key_dim": 4, "score": "dot"},
            "choose the score general, concat or additive",
        ),
        (
            {"query_dim": 6, "key_dim": 4, "score": "general", "positions": "rotary"},
            "queries and keys of one size",
        ),
        ({"value_dim": 0}, "value_dim is 0"),
        ({"query_dim": 0}, "query_dim is 0"),
        (
            {"weights": {"W_x": torch.zeros(1)}},
            "there are no weights W_x; this layer has table, W_q, W_k, W_v, W_o",
        ),
        ({"weights": {"U_a": torch.zeros(1)}, "score": "general"}, "this layer has .*W_o, W_a"),
        (
            {"weights": {"W_q": torch.zeros(4, 8)}},
            r"W_q has shape \(4, 8\); .* needs \(2, 4, 8\), which is \(heads",
        ),
        (
            {"weights": {"table": torch.zeros(3, 8)}},
            r"needs \(7, 8\), which is \(words, dim\), for the vocabulary ,",
        ),
        ({"weights": {"W_o": torch.full((8, 8), torch.inf)}}, "not finite"),
        ({"weights": {"W_o": torch.zeros(8, 8).long()}}, "floating-point"),
        ({"weights": [1]}, "tensors by name"),
    ],
)
def test_what_does_not_go_together_is_refused(options, said):
    with pytest.raises(ArgumentError, match=said):
        walk(SENTENCE, **options)


def pytorch_module(walkthrough, dim, heads):
    """torch.nn.MultiheadAttention with the weights of a walk."""
    module = torch.nn.MultiheadAttention(
        dim, heads, bias=False, batch_first=True, dtype=torch.float64
    )
    parts = given(walkthrough)
    with torch.no_grad():
        module.in_proj_weight.copy_(
            torch.cat([parts[name].flatten(0, 1) for name in ("W_q", "W_k", "W_v")])
        )
        module.out_proj.weight.copy_(parts["W_o"])
    return module


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_self_causal_and_cross_attention_equal_pytorch_s_module(kind):
    walkthrough = case(kind)
    dim = walkthrough["x"].shape[1]
    heads = len(walkthrough["Q"])
    x = walkthrough["x"][None]
    c = walkthrough["c" if kind == "cross" else "x"][None]
    hidden = (
        torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if kind == "causal" else None
    )
    output, weights = pytorch_module(walkthrough, dim, heads)(
        x, c, c, attn_mask=hidden, average_attn_weights=False
    )
    torch.testing.assert_close(walkthrough["all_weights"], weights[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(walkthrough["output"], output[0], rtol=0, atol=1e-6)
    followed = {"self": 0, "causal": 1, "cross": 0}[kind]
    torch.testing.assert_close(
        walkthrough["alpha"], weights[0, followed, walkthrough.word], rtol=0, atol=1e-6
    )


def by_pairs(walkthrough, score):
    """Output (n, dim) in NumPy, a pair at a time, for a score of a query, a key and a head; mask as the walk's."""
    parts = {
        name: np.asarray(value)
        for name, value in given(walkthrough).items()
        if isinstance(value, torch.Tensor)
    }
    x = np.asarray(walkthrough["x"])
    c = np.asarray(walkthrough["c"] if walkthrough.context else walkthrough["x"])
    heads = len(parts["W_q"])
    kv_heads = len(parts["W_k"])
    causal = walkthrough.settings["causal"]
    joined = []
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        rows = []
        for i, vector in enumerate(x):
            seen = range(i + 1) if causal else range(len(c))
            query = parts["W_q"][head] @ vector
            scores = [score(query, parts["W_k"][kv_head] @ c[j], parts, head) for j in seen]
            shares = np.exp(np.array(scores) - max(scores))
            rows.append(
                sum(
                    s * (parts["W_v"][kv_head] @ c[j])
                    for s, j in zip(shares / shares.sum(), seen, strict=True)
                )
            )
        joined.append(np.stack(rows))
    return np.concatenate(joined, axis=1) @ parts["W_o"].T


def additive(q, k, parts, head):
    return parts["v_a"][head] @ np.tanh(parts["W_a"][head] @ q + parts["U_a"][head] @ k)


def concat(q, k, parts, head):
    return parts["v_a"][head] @ np.tanh(parts["W_a"][head] @ np.concatenate([q, k]))


def general(q, k, parts, head):
    return q @ parts["W_a"][head] @ k


def dot(q, k, parts, head):
    return q @ k


@pytest.mark.parametrize("form", ["", " grouped", " across", " alone"])
@pytest.mark.parametrize("score", [additive, concat, general, dot])
def test_other_scores_equal_their_papers_formulas_pair_by_pair(score, form):
    walkthrough = case(f"{score.__name__}{form}")
    np.testing.assert_allclose(
        np.asarray(walkthrough["output"]), by_pairs(walkthrough, score), rtol=0, atol=1e-6
    )


def test_rotary_positions_turn_complex_numbers():
    walkthrough = case("rotary")
    d = walkthrough["q"].shape[1]
    for plain, turned in (("q", "q_turned"), ("k", "k_turned")):
        vectors = np.asarray(walkthrough[plain])
        numbers = vectors[:, : d // 2] + 1j * vectors[:, d // 2 :]
        speeds = 10_000.0 ** (-2 * np.arange(d // 2) / d)
        numbers = numbers * np.exp(1j * np.arange(len(vectors))[:, None] * speeds)
        expected = np.concatenate([numbers.real, numbers.imag], axis=1)
        np.testing.assert_allclose(np.asarray(walkthrough[turned]), expected, rtol=0, atol=1e-6)


def test_waves_are_those_of_the_paper():
    walkthrough = walk(SENTENCE, dim=10, heads=2, positions="sinusoidal")
    for place, vector in enumerate(walkthrough["positions"].tolist()):
        for c in range(5):
            angle = place / 10_000 ** (2 * c / 10)
            assert vector[2 * c : 2 * c + 2] == pytest.approx(
                [math.sin(angle), math.cos(angle)], abs=1e-6
            )
    torch.testing.assert_close(
        walkthrough["x"], walkthrough["embeddings"] + walkthrough["positions"]
    )


def test_the_chosen_word_is_the_row_of_all_words():
    walkthrough = walk(SENTENCE, word="eat", causal=True)
    assert walkthrough.word == 4
    for row, every in (
        ("omega", "scores"),
        ("masked", "masked_scores"),
        ("alpha", "weights"),
        ("z", "contexts"),
    ):
        torch.testing.assert_close(walkthrough[row], walkthrough[every][4], rtol=0, atol=1e-12)
