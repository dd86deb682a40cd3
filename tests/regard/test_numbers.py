"""Wherever a number is meant, NumPy's scalars and 0-d tensors are numbers; what is kept is Python's own."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from number_kinds import REAL, WHOLE

import regard as rg
from regard import bias as b
from regard import mechanisms as m
from regard import patterns as p
from regard import positions as pos
from regard.arguments import QUOTED_CHARACTERS, a_list, of_kind, plain, real, shown, whole
from regard.core.result import top_keys, weights_of
from regard.layers import caches
from regard.testing import make_qkv

# What is declared with whole numbers; the argument makes them.
DECLARED: dict[str, Callable[[Callable[[int], Any]], Any]] = {
    "sliding_window": lambda n: p.SlidingWindow(n(4)),
    "causal_window": lambda n: p.CausalWindow(n(4)),
    "global_tokens": lambda n: p.GlobalTokens([n(0), n(5)]),
    "random_blocks": lambda n: p.RandomBlocks(n(2), block=n(4), seed=n(3)),
    "key_span": lambda n: p.KeySpan(n(1), n(3)),
    "same_block": lambda n: p.SameBlock(n(3)),
    "performer": lambda n: m.Performer(n(8), n(1)),
    "linformer": lambda n: m.Linformer(n(8), n(2)),
    "lsh": lambda n: m.LSH(n(8), n(4), n(2), n(1)),
    "lsh of several": lambda n: m.LSH(buckets=(n(4), n(2))),
    "general": lambda n: m.Softmax(m.General(n(4), n(3))),
    "local": lambda n: m.Softmax(m.LocalPredictive(m.Dot(), n(4), n(3))),
    "rotary": lambda n: pos.Rotary(base=n(100), dims=n(4)),
    "top_keys": lambda n: top_keys(n(3)),
    "weights_of": lambda n: weights_of([n(0), n(2)], [n(1)]),
    "slopes": lambda n: b.ALiBi([n(1), n(2)]),
}


@pytest.mark.parametrize("declare", DECLARED.values(), ids=DECLARED)
def test_a_declaration_with_any_kind_of_number_is_the_one_with_pythons(declare):
    usual = declare(int)
    for kind in WHOLE:
        declared = declare(kind)
        assert declared == usual
        assert hash(declared) == hash(usual)
        assert str(declared) == str(usual)
        assert repr(declared) == repr(usual)


def test_options_of_a_call_take_any_kind_of_number_and_share_a_plan():
    q, k, v = make_qkv()
    usual = {"softcap": 2.0, "scale": 0.5, "dropout": 0.25, "q_start": 1, "dropout_seed": 7}
    output = rg.attention(q, k, v, **usual)
    plan = rg.plan_attention(q, k, v, **usual)
    for kind in REAL:
        options = {name: kind(x) for name, x in usual.items() if isinstance(x, float)}
        options |= {"q_start": torch.tensor(1), "dropout_seed": np.int64(7)}
        assert torch.equal(rg.attention(q, k, v, **options), output)
        assert torch.equal(rg.attention_detail(q, k, v, **options).output, output)
        of_options = rg.plan_attention(q, k, v, **options)
        assert of_options == plan
        assert json.loads(of_options.to_json()) == json.loads(plan.to_json())


def test_a_0d_tensor_is_read_at_every_call():
    """A plan kept by the tensor itself would not notice that its number has changed."""
    q, k, v = make_qkv()
    scale = torch.tensor(0.5)
    for number in (0.5, 0.25):
        scale.fill_(number)
        assert torch.equal(rg.attention(q, k, v, scale=scale), rg.attention(q, k, v, scale=number))


def test_layers_and_caches_take_any_kind_of_size():
    for kind in WHOLE:
        layer = rg.MultiHeadAttention(
            kind(8), kind(4), kv_heads=kind(2), head_dim=kind(6), dropout=np.float32(0.5)
        )
        sizes = (layer.dim, layer.heads, layer.kv_heads, layer.head_dim)
        assert sizes == (8, 4, 2, 6)
        assert {type(size) for size in sizes} == {int}
        assert type(layer.dropout) is float
        assert layer(torch.zeros(1, 2, 8)).shape == (1, 2, 8)
        cache = layer.new_cache(kind(2), "static", capacity=kind(5))
        assert repr(cache) == repr(layer.new_cache(2, "static", capacity=5))
        cache.crop(kind(0))
        state = caches.RecurrentState(m.LinearTransformer(), kind(1), kind(2), kind(3))
        assert repr(state).startswith("Recurrent")
        assert b.T5Relative(kind(4), kind(8), kind(16)).weight.shape == (8, 4)
        assert pos.Learned(kind(4), kind(6)).weight.shape == (4, 6)
        assert pos.Sinusoidal(kind(6)).dim == 6


@pytest.mark.parametrize(
    "no_number",
    [True, np.True_, torch.tensor(True), "3", None, [3], 3j, torch.tensor([3])],
    ids=str,
)
def test_what_is_no_number_is_refused(no_number):
    for check in (whole, real):
        with pytest.raises(rg.RegardError, match=r"size is .*; it needs a"):
            check("size", no_number)


@pytest.mark.parametrize("kind", [int, (int, float)])
def test_true_is_a_number_in_no_list_and_for_no_kind_of_number(kind):
    with pytest.raises(rg.RegardError, match="count is True; it needs numbers"):
        of_kind("count", True, kind, "numbers")
    with pytest.raises(rg.RegardError, match="counts holds True; it needs numbers"):
        a_list("counts", [1, True], kind, "numbers")
    assert a_list("counts", [np.int64(1), torch.tensor(2)], kind, "numbers") == [1, 2]


def test_a_fraction_is_no_whole_number_and_a_number_beyond_64_bits_no_position():
    for fraction in (3.0, np.float32(3), torch.tensor(3.0)):
        with pytest.raises(rg.RegardError, match="whole number"):
            whole("size", fraction)
    with pytest.raises(rg.RegardError, match="64 bits"):
        whole("size", 10**30)
    with pytest.raises(rg.RegardError, match="finite"):
        real("scale", 10**400)


def test_a_number_that_needs_a_gradient_is_refused_since_it_would_get_none():
    q, k, v = make_qkv()
    scale = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(rg.RegardError, match="scale is a tensor that needs a gradient"):
        rg.attention(q, k, v, scale=scale)
    with torch.no_grad():
        assert torch.equal(rg.attention(q, k, v, scale=scale), rg.attention(q, k, v, scale=0.5))


def test_a_number_that_cannot_be_read_is_refused():
    with pytest.raises(rg.RegardError, match=r"size is a tensor .* cannot be read here"):
        plain("size", torch.tensor(3, device="meta"))


def test_a_message_quotes_a_value_on_one_short_line():
    arrays = [torch.zeros(100, 100), np.zeros((9, 9))]
    for value in (*arrays, "x" * 10_000, [[0] * 1000] * 3, 10**5000, "a\nb"):
        assert len(shown(value)) <= QUOTED_CHARACTERS
        assert "\n" not in shown(value)
