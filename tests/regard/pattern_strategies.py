"""Hypothesis strategies for the enrolled patterns of regard: written by hand, or drawn as the formulas are drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from fuzz.meanings import LEAVES, TENSORS, Places, build, plain_leaf
from hypothesis import strategies as st

from regard import patterns as p

LONGEST = 9  # positions that the drawn numbers are for
Strategies = dict[str, st.SearchStrategy[p.Pattern]]


def completed(by_hand: Mapping[str, st.SearchStrategy[p.Pattern]], fits: Callable[[type], bool]) -> Strategies:
    """Strategies by the name of the pattern: those given, and one for every other pattern with a formula that fits."""
    others = {
        name: _drawn(name)
        for name, kind in p.Pattern.registry.of_package("regard").items()
        if name in LEAVES and name not in TENSORS and name not in by_hand and fits(kind)
    }
    return {**by_hand, **others}


def _drawn(name: str) -> st.SearchStrategy[p.Pattern]:
    at = Places(1, 1, LONGEST, LONGEST, (0,))
    return st.builds(lambda seed: build(plain_leaf(random.Random(seed), name, LONGEST), at), st.integers(0, 9999))
