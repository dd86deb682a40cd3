"""Warns of calls whose first queries have no key, since lengths that differ are often axes in a wrong order."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from regard.arguments import count_of
from regard.core.call import Call
from regard.core.newest import Newest
from regard.core.problem import Problem
from regard.errors import EmptyRowsWarning

ROOT = str(Path(__file__).parents[1])
_warned: Newest[bool] = Newest(512)  # shapes of which a caller knows


def warn_of_empty_rows(call: Call, problem: Problem) -> None:
    """Warn once for each shape if queries stand before the first key, and the caller did not say where they stand."""
    missing = problem.q_len - problem.k_len
    if missing <= 0 or call.q_start is not None or not problem.k_len or not problem.batch:
        return
    if problem.pattern.reach().ahead != 0:  # a query before the first key may look ahead
        return
    shapes = tuple(call.q.shape), tuple(call.k.shape)
    if shapes in _warned:
        return
    _warned.keep(shapes, True)
    message = (
        f"{missing:,} of {count_of(problem.q_len, 'queries')} stand before the first key and may look at none, so "
        f"their outputs are zeros: q is {shapes[0]}, k {shapes[1]}, the ends of queries and keys align, and the "
        f"pattern {problem.pattern} does not look ahead. Axes are (batch, heads, length, head_dim): if these are "
        f"(batch, length, heads, head_dim), give q.transpose(1, 2). If this is meant, give q_start={-missing}"
    )
    warnings.warn(message, EmptyRowsWarning, stacklevel=_depth_of_caller())


def _depth_of_caller() -> int:
    """The number of frames up to the first one outside of regard, as the function that warns counts them."""
    depth = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ROOT):
        frame = frame.f_back
        depth += 1
    return depth
