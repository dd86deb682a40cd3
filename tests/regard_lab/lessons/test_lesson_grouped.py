import pytest
import torch
from teaching import failing, starting, without_timing

from regard.functional import attention
from regard.layers import MultiHeadAttention
from regard_lab.lessons import find_lesson, grouped
from regard_lab.lessons.words import seeded


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    without_timing(monkeypatch)
    monkeypatch.setattr(grouped, "HELD", 64)


def test_every_claim_holds_and_bytes_are_two_vectors_a_word_and_head():
    assert failing("grouped") == []
    sizes = find_lesson("grouped").teach().numbers["cache_bytes"]
    assert sizes == [2 * 64 * kv_heads * (grouped.DIM // grouped.HEADS) * 4 for kv_heads in grouped.KV_HEADS]


def test_a_pooled_head_is_the_mean_of_its_group():
    whole = seeded(0, MultiHeadAttention, grouped.DIM, grouped.HEADS)
    pooled = grouped.fewer_heads(whole, 2, "mean")
    head_dim, group = grouped.DIM // grouped.HEADS, grouped.HEADS // 2
    for name in ("to_k", "to_v"):
        old, new = getattr(whole, name), getattr(pooled, name)
        for head in range(2):
            members = [old.weight[(head * group + one) * head_dim :][:head_dim] for one in range(group)]
            torch.testing.assert_close(new.weight[head * head_dim :][:head_dim], sum(members) / group)
        torch.testing.assert_close(new.bias.mean(), old.bias.mean())


def test_heads_dealt_out_in_turn_are_seen(monkeypatch):
    def in_turn(q, k, v):
        order = torch.arange(q.shape[1]) % k.shape[1]
        return attention(q, k[:, order], v[:, order])

    monkeypatch.setattr(grouped, "attention", in_turn)
    assert starting(failing("grouped"), "Query head h reads")


def test_a_cache_that_does_not_shrink_is_seen(monkeypatch):
    real = grouped._cache
    monkeypatch.setattr(grouped, "_cache", lambda kv_heads: real(grouped.HEADS))
    assert starting(failing("grouped"), "The cache shrinks")


@pytest.mark.parametrize(
    ("instead", "claims"),
    [("new", ("If the heads of a group", "If they differ")), ("first", ("If they differ",))],
)
def test_a_mean_that_is_none_is_seen(monkeypatch, instead, claims):
    real = grouped.fewer_heads

    def wrong(layer, kv_heads, way, seed=0):
        return real(layer, kv_heads, instead if way == "mean" else way, seed)

    monkeypatch.setattr(grouped, "fewer_heads", wrong)
    assert starting(failing("grouped"), *claims)
