"""Laws that hold for every expression of patterns: structure, text and algebra agree with the pairs themselves."""

from __future__ import annotations

import torch
from law_examples import law

from regard.patterns import (
    Causal,
    Explicit,
    KeySpan,
)
from regard.patterns.drawing import PLAIN, SIGNS
from regard_lab.text.terminal import stand_in

many = law(300)


NO_PATTERNS = (
    "", "(" * 5000, "~" * 5000 + "causal", "&" * 20000, "causal causal", "key_span(1,)", "sliding_window(-1)",
    "causal_window(" + "9" * 30 + ")", "causal_window", None, 7,
)  # fmt: skip


class TestPatternsThatHoldTensors:
    def test_they_are_equal_only_to_themselves(self):
        mask, stops = torch.ones(2, 2, dtype=torch.bool), torch.tensor([1, 2])
        for make in (lambda: Explicit(mask), lambda: KeySpan(0, stops)):
            one, other = make(), make()
            assert one == one
            assert one != other
            assert len({one, other, one & Causal(), other & Causal()}) == 4

    def test_they_copy_what_they_are_given(self):
        mask, stops = torch.ones(2, 2, dtype=torch.bool), torch.tensor([1, 2])
        explicit, span = Explicit(mask), KeySpan(0, stops)
        mask.zero_()
        stops.zero_()
        assert explicit.count(2, 2) == 4
        assert span.count(1, 2) == 3


def test_plain_signs_are_those_of_the_command_line():
    assert "".join(map(stand_in, SIGNS)) == PLAIN
