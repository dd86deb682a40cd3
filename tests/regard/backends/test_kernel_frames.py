"""A kept plan passes few Python frames of the backends, so that small calls stay cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from regard import patterns as p
from regard.backends import BACKENDS
from regard.backends.native.library import load
from regard.core.backend import Offer, Operands, reachable_keys
from regard.core.call import make_problem
from regard.patterns import Grid


def frames(call: Callable[[], Any]) -> list[str]:
    """The functions of the kernels that a call enters, in order."""
    entered: list[str] = []

    def look(frame: Any, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and "/regard/" in path.replace("\\", "/") and "tests" not in path:
            entered.append(f"{path.rsplit('regard', 1)[1]}:{frame.f_code.co_name}")

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize(
    ("backend", "pattern", "length", "most"),
    [
        *([] if isinstance(load(), str) else [("native", p.Causal(), 64, 3), ("native", p.CausalWindow(256), 2048, 3)]),
        ("fused", p.Causal(), 64, 6),
        ("tiled", p.Strided(64), 1024, 70),
    ],
)
def test_a_kept_plan_passes_few_frames(backend: str, pattern: p.Pattern, length: int, most: int) -> None:
    q = torch.randn(1, 4, length, 64)
    problem = make_problem(q, q, q, pattern=pattern)
    offer = BACKENDS[backend].assess(problem)
    assert isinstance(offer, Offer)
    grid = Grid.whole(length, length)
    operands = Operands(q, q, q, None, grid.block(grid.rows, reachable_keys(problem)), 0)
    offer.run(operands)
    entered = frames(lambda: offer.run(operands))
    assert 0 < len(entered) <= most, "\n".join(entered)
