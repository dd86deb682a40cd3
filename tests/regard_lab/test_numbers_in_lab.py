"""Wherever a number is meant, NumPy's scalars and 0-d tensors are numbers; what is kept is Python's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from regard import bias as b
from regard import mechanisms as m
from regard import patterns as p
from regard import positions as pos
from regard.arguments import a_list, of_kind
from regard.core.result import top_keys, weights_of
from regard_lab.decoding.search import SpecialIds
from regard_lab.models import LanguageConfig
from regard_lab.text import Pair, TokenBatches, split_by_hash

WHOLE: tuple[Callable[[int], Any], ...] = (np.int64, np.int8, np.array, torch.tensor, lambda n: torch.tensor(n).int())
REAL: tuple[Callable[[float], Any], ...] = (np.float64, np.float32, np.array, torch.tensor, lambda x: torch.tensor(x))

# what is declared with whole numbers, written with Python's
DECLARED: dict[str, Callable[[Callable[[int], Any]], Any]] = {
    "sliding_window": lambda n: p.SlidingWindow(n(4)),
    "causal_window": lambda n: p.CausalWindow(n(4)),
    "dilated_window": lambda n: p.DilatedWindow(n(4), n(2)),
    "global_tokens": lambda n: p.GlobalTokens([n(0), n(5)]),
    "random_blocks": lambda n: p.RandomBlocks(n(2), block=n(4), seed=n(3)),
    "strided": lambda n: p.Strided(n(3)),
    "fixed": lambda n: p.Fixed(n(4), summary=n(2)),
    "prefix": lambda n: p.Prefix(n(3)),
    "key_span": lambda n: p.KeySpan(n(1), n(3)),
    "diagonals": lambda n: p.Diagonals(n(2), n(1)),
    "same_block": lambda n: p.SameBlock(n(3)),
    "lattice": lambda n: p.Lattice(n(3)),
    "summary": lambda n: p.Summary(n(4), n(2)),
    "performer": lambda n: m.Performer(n(8), n(1)),
    "random_feature": lambda n: m.RandomFeature(n(8), seed=n(1)),
    "linformer": lambda n: m.Linformer(n(8), n(2)),
    "lsh": lambda n: m.LSH(n(8), n(4), n(2), n(1)),
    "lsh of several": lambda n: m.LSH(buckets=(n(4), n(2))),
    "products": lambda n: m.LinearTransformer(m.Products(n(2))),
    "general": lambda n: m.Softmax(m.General(n(4), n(3))),
    "additive": lambda n: m.Softmax(m.Additive(n(4), n(3), n(2))),
    "local": lambda n: m.Softmax(m.LocalPredictive(m.Dot(), n(4), n(3))),
    "rotary": lambda n: pos.Rotary(base=n(100), dims=n(4)),
    "top_keys": lambda n: top_keys(n(3)),
    "weights_of": lambda n: weights_of([n(0), n(2)], [n(1)]),
    "slopes": lambda n: b.ALiBi([n(1), n(2)]),
}


def test_arguments_that_mean_a_number_take_any_kind_of_number():
    pairs = [Pair(f"source {n}", f"target {n}") for n in range(40)]
    lengths = [3, 9, 4, 8, 3]
    special = SpecialIds(2, 3, (0, 1))
    for n in WHOLE:
        assert TokenBatches(lengths, 18, n(5)).at(0) == TokenBatches(lengths, 18, 5).at(0)
        config = LanguageConfig(vocab_size=50, dim=16, heads=2, hidden_dim=n(24))
        assert type(config.hidden_dim) is int
        assert config.hidden_dim == 24
        found = SpecialIds(n(2), n(3), [n(0), n(1)])
        assert (found, repr(found)) == (special, repr(special))
        assert a_list("rows", [n(0), n(1)], int, "whole numbers") == [0, 1]
        assert of_kind("max_words", n(3), int, "a whole number") == 3
    for x in REAL:
        assert split_by_hash(pairs, x(0.25), x(0.25)) == split_by_hash(pairs, 0.25, 0.25)
