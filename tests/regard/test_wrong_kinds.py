"""Whatever is handed over as an argument, the answer is a result or a sentence of the family RegardError."""

import itertools
import math
import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
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
from regard.mechanisms.linear import Relu
from regard.patterns import Causal
from regard.testing import make_qkv


def strided_nested() -> torch.Tensor:
    with warnings.catch_warnings():  # torch warns that this layout is a prototype
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.zeros(2, 3)])


GARBAGE: dict[str, Any] = {
    "None": None,
    "object": object(),
    "text": "x",
    "list": [1, [2]],
    "dict": {"a": 1},
    "nan": math.nan,
    "function": lambda: 0,
    "integers": torch.tensor([[1, 2]]),
    "huge": 10**30,
    "digits": 10**5000,
    "negative": -1,
    "sparse": torch.zeros(2, 2).to_sparse(),
    "nested": strided_nested(),
    "type": int,
    "words": np.array(["a", "b"]),
}

Q, K, V = make_qkv()
LAYER = rg.MultiHeadAttention(8, 2)
LATENT = {"dim": 8, "heads": 2, "latent_dim": 4, "rope_dim": 2, "head_dim": 3}
X = torch.zeros(1, 3, 8)
LINEAR = m.LinearTransformer()
DEFAULTS = {"dropout": 0.0, "backend": "auto", "strict": False}
KV = torch.zeros(1, 2, 3, 4)
QKV = {"q": Q, "k": K, "v": V}
PLAN = rg.plan_attention(Q, K, V)
SIZES = {"batch": 1, "kv_heads": 2, "head_dim": 4}
CACHE = caches.new_cache("dynamic", **SIZES)
OPTIONS = [name for name in signature(rg.attention).parameters if name not in (*QKV, "foreign")]
# By name a function, and arguments that it takes: each of its arguments in turn is replaced by garbage.
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "attention": (rg.attention, QKV),
    "attention_detail": (rg.attention_detail, QKV | dict.fromkeys(OPTIONS) | DEFAULTS),
    "plan_attention": (rg.plan_attention, QKV | dict.fromkeys(OPTIONS) | DEFAULTS),
    "Plan.run": (PLAN.run, QKV),
    "Plan.detail": (PLAN.detail, QKV),
    "q, k, v": (lambda x: rg.attention(x, x, x), {}),
    "merge_attention": (rg.merge_attention, {"pieces": [(Q, Q[..., 0])]}),
    "a piece": (lambda piece: rg.merge_attention([piece]), {}),
    "of a piece": (
        lambda output, log_sum_exp: rg.merge_attention([(Q, Q[..., 0]), (output, log_sum_exp)]),
        {"output": Q, "log_sum_exp": Q[..., 0]},
    ),
    "MultiHeadAttention": (rg.MultiHeadAttention, {"dim": 8, "heads": 2}),
    "layer": (LAYER.forward, {"x": X}),
    "layer.new_cache": (LAYER.new_cache, {"batch": 1}),
    "LatentAttention": (
        rg.LatentAttention,
        LATENT | {"query_latent_dim": 3, "positions": None, "scale": 1.0},
    ),
    "latent layer": (rg.LatentAttention(**LATENT).forward, {"x": X, "form": "auto", "cache": None}),
    "latent layer.plan": (rg.LatentAttention(**LATENT).plan, {"batch": 1, "q_len": 2, "held": 3}),
    "project_context": (LAYER.project_context, {}),
    "record_attention": (
        lambda model, want: layers.record_attention(model, want=want).__enter__(),
        {"model": LAYER, "want": "weights"},
    ),
    "FeedForward": (layers.FeedForward, {"dim": 8, "hidden_dim": 9}),
    "new_cache": (caches.new_cache, {"kind": "dynamic", **SIZES}),
    "append": (lambda k, v: caches.new_cache("dynamic", **SIZES).append(k, v), {"k": KV, "v": KV}),
    "crop": (CACHE.crop, {}),
    "reorder": (CACHE.reorder, {}),
    "save": (lambda path: None if isinstance(path, str) else CACHE.save(path), {}),
    "load_cache": (caches.load_cache, {"path": "x"}),
    "RecurrentState": (caches.RecurrentState, {"mechanism": LINEAR, **SIZES}),
    "attend": (
        lambda **tensors: caches.RecurrentState(LINEAR, **SIZES).attend(**tensors),
        {"q": KV, "k": KV, "v": KV, "pattern": None, "parameters": None},
    ),
    "Stored": (lambda numbers, first: Stored(numbers, first=first), {"numbers": KV, "first": 0}),
    "ALiBi": (b.ALiBi, {}),
    "T5Relative": (b.T5Relative, {"heads": 2}),
    "Rotary": (pos.Rotary, {}),
    "rotate": (pos.Rotary().rotate, {"x": KV, "positions": torch.arange(3)}),
    "Sinusoidal": (pos.Sinusoidal, {"dim": 4}),
    "Learned": (pos.Learned, {"length": 4, "dim": 4}),
    "Performer": (m.Performer, {}),
    "RandomFeature": (m.RandomFeature, {}),
    "Linformer": (m.Linformer, {"length": 4, "rank": 2}),
    "LSH": (m.LSH, {}),
    "LinearTransformer": (m.LinearTransformer, {}),
    "Relu": (Relu, {}),
    "Softmax": (m.Softmax, {}),
    "General": (m.General, {"query_dim": 4, "key_dim": 3}),
    "Additive": (m.Additive, {"query_dim": 4, "key_dim": 3, "hidden": 2}),
    "LocalPredictive": (m.LocalPredictive, {"score": m.Dot(), "window": 4, "query_dim": 3}),
    "new_parameters": (m.Softmax(m.General(4, 3)).new_parameters, {"heads": 1}),
    "top_keys": (top_keys, {}),
    "weights_of": (weights_of, {"rows": [0]}),
}


@pytest.mark.parametrize(("call", "arguments"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_garbage_is_taken_or_refused_by_a_sentence(call, arguments):
    names = set(arguments)
    for parameter in signature(call).parameters.values():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            names.add(parameter.name)
    for argument, (name, value) in itertools.product(
        sorted(names - {"generator"}), GARBAGE.items()
    ):
        try:
            call(**{**arguments, argument: value})
        except rg.RegardError as refusal:
            words = str(refusal)
            assert 20 < len(words) < 1000, (argument, name, words)
            assert "\n" not in words, (argument, name, words)
        except Exception as error:
            raise AssertionError(f"{argument} as {name}") from error


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "parameters": (
        lambda: rg.attention(Q, K, V, parameters="x"),
        "parameters is 'x'; it needs a dict",
    ),
    "strict": (lambda: rg.attention(Q, K, V, strict="no"), "strict is 'no'; it is True or False"),
    "backend": (
        lambda: rg.attention(Q, K, V, backend=3),
        "backend 3 does not exist; there are auto",
    ),
    "want": (lambda: rg.attention_detail(Q, K, V, want=7), "want=7 is no statistic"),
    "seed of a plan": (lambda: rg.plan_attention(Q, K, V, dropout_seed="x"), "dropout_seed is 'x'"),
    "x of integers": (lambda: LAYER(X.long()), "x is a tensor .* of torch.int64; this layer needs"),
    "x of another dtype": (
        lambda: LAYER(X.double()),
        "x has dtype torch.float64 and this layer torch.float32",
    ),
    "x elsewhere": (lambda: LAYER(X.to("meta")), "x is on meta and this layer on cpu"),
    "strided nested x": (
        lambda: LAYER(strided_nested()),
        "x is a nested tensor of layout torch.strided; .*padded",
    ),
    "jagged x": (
        lambda: LAYER(torch.nested.nested_tensor([X[0]], layout=torch.jagged), q_start=1),
        "q_start beside nested",
    ),
    "pattern as truth": (lambda: rg.attention(Q, K, V, pattern=True), "pattern is a bool"),
    "a cache of another kind": (lambda: LAYER(X, cache=Causal()), "cache is Causal.*new_cache"),
}


@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_kind_is_refused_by_its_name(call, words):
    with pytest.raises(rg.RegardError, match=words):
        call()
