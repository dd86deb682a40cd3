"""Whatever is handed over as an argument, the answer is a result or a sentence of the family RegardError."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import regard as rg
from regard import bias as b
from regard import layers
from regard import mechanisms as m
from regard import positions as pos
from regard.core.result import top_keys, weights_of
from regard.core.tensors import Stored
from regard.layers import caches
from regard.patterns import Causal
from regard.testing import make_qkv


def strided_nested() -> torch.Tensor:
    with warnings.catch_warnings():  # torch warns that this layout is a prototype
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.zeros(2, 3)])


GARBAGE: dict[str, Any] = {
    "None": None, "object": object(), "text": "x", "list": [1, [2]], "dict": {"a": 1}, "nan": math.nan,
    "function": lambda: 0, "integers": torch.tensor([[1, 2]]), "huge": 10**30, "digits": 10**5000, "negative": -1,
    "sparse": torch.zeros(2, 2).to_sparse(), "nested": strided_nested(), "type": int,
}  # fmt: skip

Q, K, V = make_qkv()
LAYER = rg.MultiHeadAttention(8, 2)
X = torch.zeros(1, 3, 8)
LINEAR = m.LinearTransformer()
OPTIONS = (
    "pattern", "mechanism", "bias", "softcap", "scale", "dropout", "dropout_seed", "q_start", "backend", "strict",
    "parameters",
)  # fmt: skip
WITH_WANT = (*OPTIONS, "want")
HANDED = ("bias", "q_start", "dropout_seed", "parameters")


def cache(**options: Any) -> caches.Cache:
    return caches.new_cache(options.pop("kind", "dynamic"), **{"batch": 1, "kv_heads": 2, "head_dim": 4, **options})


def state(**options: Any) -> caches.RecurrentState:
    return caches.RecurrentState(**{"mechanism": LINEAR, "batch": 1, "kv_heads": 2, "head_dim": 4, **options})


KV = torch.zeros(1, 2, 3, 4)
PLAN = rg.plan_attention(Q, K, V)
PLACES: dict[str, Callable[[Any], Any]] = {
    **{f"attention({name})": lambda x, name=name: rg.attention(Q, K, V, **{name: x}) for name in OPTIONS},
    **{f"detail({name})": lambda x, name=name: rg.attention_detail(Q, K, V, **{name: x}) for name in WITH_WANT},
    **{f"plan({name})": lambda x, name=name: rg.plan_attention(Q, K, V, **{name: x}) for name in WITH_WANT},
    **{f"run({name})": lambda x, name=name: PLAN.run(Q, K, V, **{name: x}) for name in HANDED},
    **{f"Plan.detail({name})": lambda x, name=name: PLAN.detail(Q, K, V, **{name: x}) for name in HANDED},
    "q": lambda x: rg.attention(x, K, V),
    "k": lambda x: rg.attention(Q, x, V),
    "v": lambda x: rg.attention(Q, K, x),
    "q, k, v": lambda x: rg.attention(x, x, x),
    "run's q": lambda x: PLAN.run(x, K, V),
    "run's k": lambda x: PLAN.run(Q, x, V),
    "run's v": lambda x: PLAN.run(Q, K, x),
    "plan's k": lambda x: rg.plan_attention(Q, x, V),
    "detail's v": lambda x: rg.attention_detail(Q, K, x),
    "pieces": lambda x: rg.merge_attention(x),
    "a piece": lambda x: rg.merge_attention([x]),
    "output of a piece": lambda x: rg.merge_attention([(Q, Q[..., 0]), (x, Q[..., 0])]),
    "log_sum_exp of a piece": lambda x: rg.merge_attention([(Q, x)]),
    **{
        f"layer({name})": lambda x, name=name: rg.MultiHeadAttention(**{"dim": 8, "heads": 2, name: x})
        for name in (
            "dim", "heads", "kv_heads", "head_dim", "context_dim", "pattern", "mechanism", "positions", "dropout",
            "softcap", "scale", "projection_bias", "backend", "strict",
        )
    },
    "x": lambda x: LAYER(x),
    "context": lambda x: LAYER(X, x),
    **{f"x, {name}": lambda x, name=name: LAYER(X, **{name: x}) for name in ("pattern", "bias", "q_start", "cache")},
    "project_context": lambda x: LAYER.project_context(x),
    **{
        f"new_cache({name})": lambda x, name=name: LAYER.new_cache(**{"batch": 1, name: x})
        for name in ("batch", "kind", "capacity", "dtype")
    },
    "a context": lambda x: layers.ProjectedContext(x, KV),
    "record_attention": lambda x: layers.record_attention(x).__enter__(),
    "record_attention's want": lambda x: layers.record_attention(LAYER, want=x).__enter__(),
    **{
        f"feed_forward({name})": lambda x, name=name: layers.FeedForward(**{"dim": 8, "hidden_dim": 9, name: x})
        for name in ("dim", "hidden_dim", "activation", "dropout", "bias")
    },
    "feed_forward's x": lambda x: layers.FeedForward(8, 9)(x),
    **{
        f"cache({name})": lambda x, name=name: cache(**{name: x})
        for name in ("kind", "batch", "kv_heads", "head_dim", "v_dim", "dtype", "device", "capacity")
    },
    "static capacity": lambda x: cache(kind="static", capacity=x),
    "append's k": lambda x: cache().append(x, KV),
    "append's v": lambda x: cache().append(KV, x),
    "crop": lambda x: cache().crop(x),
    "reorder": lambda x: cache().reorder(x),
    "save": lambda x: cache().save(x) if not isinstance(x, str) else None,
    "load": lambda x: caches.load_cache(x),
    "load of a kind": lambda x: caches.GrowingCache.load(x),
    **{
        f"state({name})": lambda x, name=name: state(**{name: x})
        for name in ("mechanism", "batch", "kv_heads", "head_dim", "v_dim", "dtype", "device")
    },
    "state's q": lambda x: state().attend(x, KV, KV),
    "state's pattern": lambda x: state().attend(KV, KV, KV, pattern=x),
    "state's parameters": lambda x: state().attend(KV, KV, KV, parameters=x),
    "state's crop": lambda x: state().crop(x),
    "state's reorder": lambda x: state().reorder(x),
    "state's load": lambda x: caches.RecurrentState.load(x, LINEAR),
    "stored numbers": lambda x: Stored(x),
    "stored scales": lambda x: Stored(KV.to(torch.int8), x),
    "stored first": lambda x: Stored(KV, first=x),
    "slopes": lambda x: b.ALiBi(x),
    "a slope": lambda x: b.ALiBi([x]),
    **{f"t5({name})": lambda x, name=name: b.T5Relative(**{"heads": 2, name: x})
       for name in ("heads", "buckets", "max_distance", "bidirectional")},
    "rotary base": lambda x: pos.Rotary(base=x),
    "rotary dims": lambda x: pos.Rotary(dims=x),
    "rotary pairs": lambda x: pos.Rotary(pairs=x),
    "rotate": lambda x: pos.Rotary().rotate(x, torch.arange(3)),
    "rotate's positions": lambda x: pos.Rotary().rotate(KV, x),
    "sinusoidal": lambda x: pos.Sinusoidal(x),
    "sinusoidal base": lambda x: pos.Sinusoidal(4, x),
    "sinusoidal positions": lambda x: pos.Sinusoidal(4)(x),
    "learned length": lambda x: pos.Learned(x, 4),
    "learned dim": lambda x: pos.Learned(4, x),
    "learned positions": lambda x: pos.Learned(4, 4)(x),
    "performer": lambda x: m.Performer(x),
    "performer seed": lambda x: m.Performer(4, x),
    "orthogonal": lambda x: m.Performer(4, 1, x),
    "random features": lambda x: m.RandomFeature(x),
    "gated": lambda x: m.RandomFeature(4, x),
    "sigma": lambda x: m.RandomFeature(4, sigma=x),
    "linformer": lambda x: m.Linformer(x, 2),
    "linformer's shared": lambda x: m.Linformer(4, 2, x),
    "lsh chunk": lambda x: m.LSH(x),
    "lsh buckets": lambda x: m.LSH(buckets=x),
    "lsh several buckets": lambda x: m.LSH(buckets=(x,)),
    "feature map": lambda x: m.LinearTransformer(x),
    "relu": lambda x: m.Relu(x),
    "shifts": lambda x: m.Products(x),
    "score": lambda x: m.Softmax(x),
    "general": lambda x: m.General(x, 3),
    "additive": lambda x: m.Additive(4, 3, x),
    "projected keys": lambda x: m.Concat(4, 3, 2, x),
    "local score": lambda x: m.LocalPredictive(x, 4, 3),
    "local window": lambda x: m.LocalPredictive(m.Dot(), x, 3),
    "local query_dim": lambda x: m.LocalPredictive(m.Dot(), 4, x),
    "new_parameters": lambda x: m.Softmax(m.General(4, 3)).new_parameters(x),
    "top_keys": lambda x: top_keys(x),
    "weights_of": lambda x: weights_of(x),
    "weights_of heads": lambda x: weights_of([0], x),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_garbage_is_taken_or_refused_by_a_sentence(place):
    for name, value in GARBAGE.items():
        try:
            PLACES[place](value)
        except rg.RegardError as refusal:
            words = str(refusal)
            assert 20 < len(words) < 1000, (name, words)
            assert "\n" not in words, (name, words)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "parameters": (lambda: rg.attention(Q, K, V, parameters="x"), "parameters is 'x'; it needs a dict"),
    "no parameters": (lambda: rg.attention(Q, K, V, parameters=""), "parameters is ''"),
    "strict": (lambda: rg.attention(Q, K, V, strict="no"), "strict is 'no'; it is True or False"),
    "backend": (lambda: rg.attention(Q, K, V, backend=3), "backend 3 does not exist; there are auto"),
    "want": (lambda: rg.attention_detail(Q, K, V, want=7), "want=7 is no statistic"),
    "nothing wanted": (lambda: rg.plan_attention(Q, K, V, want=None), "want=None is no statistic"),
    "seed of a plan": (lambda: rg.plan_attention(Q, K, V, dropout_seed="x"), "dropout_seed is 'x'"),
    "x of integers": (lambda: LAYER(X.long()), "x is a tensor .* of torch.int64; this layer needs"),
    "x of another dtype": (lambda: LAYER(X.double()), "x has dtype torch.float64 and this layer torch.float32"),
    "x elsewhere": (lambda: LAYER(X.to("meta")), "x is on meta and this layer on cpu"),
    "jagged x": (
        lambda: LAYER(torch.nested.nested_tensor([X[0]], layout=torch.jagged)), "x is a nested tensor .*padded",
    ),
    "pattern as truth": (lambda: rg.attention(Q, K, V, pattern=True), "pattern is a bool"),
    "a cache of another kind": (lambda: LAYER(X, cache=Causal()), "cache is Causal.*new_cache"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_kind_is_refused_by_its_name(call, words):
    with pytest.raises(rg.RegardError, match=words):
        call()
