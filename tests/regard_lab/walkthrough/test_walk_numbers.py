"""The numbers of a walk, computed without any line of it: by PyTorch's own module, its fused call, and NumPy."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from walk_cases import CONTEXT, SENTENCE, case, given

from regard_lab.lessons.walkthrough import walk


def pytorch_module(found, dim, heads):
    """torch.nn.MultiheadAttention with the weights of a walk."""
    module = torch.nn.MultiheadAttention(dim, heads, bias=False, batch_first=True, dtype=torch.float64)
    parts = given(found)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([parts[name].flatten(0, 1) for name in ("W_q", "W_k", "W_v")]))
        module.out_proj.weight.copy_(parts["W_o"])
    return module


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_self_causal_and_cross_attention_equal_pytorch_s_module(kind):
    found = case(kind)
    dim, heads = found["x"].shape[1], len(found["Q"])
    x, c = found["x"][None], found["c" if kind == "cross" else "x"][None]
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if kind == "causal" else None
    output, weights = pytorch_module(found, dim, heads)(x, c, c, attn_mask=hidden, average_attn_weights=False)
    torch.testing.assert_close(found["all_weights"], weights[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(found["output"], output[0], rtol=0, atol=1e-6)
    followed = {"self": 0, "causal": 1, "cross": 0}[kind]
    torch.testing.assert_close(found["alpha"], weights[0, followed, found.word], rtol=0, atol=1e-6)


def test_grouped_heads_equal_pytorch_s_fused_call():
    found = case("grouped")
    q, k, v = found["Q"][None], found["K"][None], found["V"][None]
    assert (q.shape[1], k.shape[1]) == (6, 2)
    contexts = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0]
    torch.testing.assert_close(found["all_contexts"], contexts, rtol=0, atol=1e-6)
    torch.testing.assert_close(found["contexts"], contexts[4], rtol=0, atol=1e-6)
    output = contexts.transpose(0, 1).flatten(1) @ given(found)["W_o"].T
    torch.testing.assert_close(found["output"], output, rtol=0, atol=1e-6)


def by_pairs(found, score):
    """Output (n, dim) in NumPy, a pair at a time, for a score of a query, a key and a head; mask as the walk's."""
    parts = {name: np.asarray(value) for name, value in given(found).items() if isinstance(value, torch.Tensor)}
    x, c = np.asarray(found["x"]), np.asarray(found["c"] if found.context else found["x"])
    heads, kv_heads = len(parts["W_q"]), len(parts["W_k"])
    causal = found.settings["causal"]
    joined = []
    for head in range(heads):
        own = head // (heads // kv_heads)
        rows = []
        for i, vector in enumerate(x):
            seen = range(i + 1) if causal else range(len(c))
            query = parts["W_q"][head] @ vector
            scores = [score(query, parts["W_k"][own] @ c[j], parts, head) for j in seen]
            shares = np.exp(np.array(scores) - max(scores))
            rows.append(sum(s * (parts["W_v"][own] @ c[j]) for s, j in zip(shares / shares.sum(), seen, strict=True)))
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
    found = case(f"{score.__name__}{form}")
    np.testing.assert_allclose(np.asarray(found["output"]), by_pairs(found, score), rtol=0, atol=1e-6)


def test_rotary_positions_turn_complex_numbers():
    found = case("rotary")
    d = found["q"].shape[1]
    for plain, turned in (("q", "q_turned"), ("k", "k_turned")):
        vectors = np.asarray(found[plain])
        numbers = vectors[:, : d // 2] + 1j * vectors[:, d // 2 :]
        speeds = 10_000.0 ** (-2 * np.arange(d // 2) / d)
        numbers = numbers * np.exp(1j * np.arange(len(vectors))[:, None] * speeds)
        expected = np.concatenate([numbers.real, numbers.imag], axis=1)
        np.testing.assert_allclose(np.asarray(found[turned]), expected, rtol=0, atol=1e-6)


def test_waves_are_those_of_the_paper():
    found = walk(SENTENCE, dim=10, heads=2, positions="sinusoidal")
    for place, vector in enumerate(found["positions"].tolist()):
        for c in range(5):
            angle = place / 10_000 ** (2 * c / 10)
            assert vector[2 * c : 2 * c + 2] == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)
    torch.testing.assert_close(found["x"], found["embeddings"] + found["positions"])


def test_ids_are_places_in_the_vocabulary_of_both_texts():
    found = walk(SENTENCE, context=CONTEXT)
    every = sorted({*found.words, *found.context})
    assert [every[i] for i in found["ids"]] == list(found.words)
    assert [every[i] for i in found["context_ids"]] == list(found.context)
    torch.testing.assert_close(found["x"], given(found)["table"][found["ids"]])
    torch.testing.assert_close(found["c"], given(found)["table"][found["context_ids"]])
