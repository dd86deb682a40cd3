"""Warnings about calls that are computed as written, and are often meant differently: each once for its shapes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable
from pathlib import Path

import torch

from regard.arguments import count_of
from regard.core.call import Call
from regard.core.newest import Newest
from regard.core.problem import Problem
from regard.errors import AmbiguousBiasWarning, EmptyRowsWarning

ROOT = str(Path(__file__).parents[1])
_warned: Newest[bool] = Newest(512)  # the shapes of calls that a caller was warned of


def warn_of_doubtful(call: Call, problem: Problem) -> None:
    """Warn, once for its shapes, of a new call that is often meant differently."""
    _warn_of_empty_rows(call, problem)
    _warn_of_ambiguous_bias(call, problem)


def _warn_of_empty_rows(call: Call, problem: Problem) -> None:
    """Warn if queries stand before the first key, and the caller did not say where they stand."""
    missing = problem.q_len - problem.k_len
    if missing <= 0 or call.q_start is not None or not problem.k_len or not problem.batch:
        return
    if problem.pattern.reach().ahead != 0:  # a query before the first key may look ahead
        return
    if not _is_first((tuple(call.q.shape), tuple(call.k.shape))):
        return
    message = (
        f"{missing:,} of {count_of(problem.q_len, 'queries')} stand before the first key and may look at none, so "
        f"their outputs are zeros: there are {count_of(problem.k_len, 'keys')}, the ends of queries and keys align, "
        f"and the pattern {problem.pattern} does not look ahead. If heads and length are swapped, give the other "
        f"layout: layout='bnhd' takes (batch, length, heads, head_dim), and layout='bhnd', the default, (batch, heads, "
        f"length, head_dim). If this is meant, give q_start={-missing}"
    )
    warnings.warn(message, EmptyRowsWarning, stacklevel=_depth_of_caller())


def _warn_of_ambiguous_bias(call: Call, problem: Problem) -> None:
    """Warn if the first of three axes of a bias could be the batch as well as the heads."""
    bias = call.bias
    if not isinstance(bias, torch.Tensor) or bias.dim() != 3 or bias.shape[0] == 1:
        return
    if not bias.shape[0] == problem.batch == problem.heads:
        return
    if not _is_first(("bias", tuple(bias.shape))):
        return
    message = (
        f"bias {tuple(bias.shape)} has three axes, and this call has as many batch rows as heads: its first axis is "
        f"read as the heads, as broadcasting to (batch, heads, q_len, k_len) does. Give bias[None] if that is meant, "
        f"and bias[:, None] for one bias for each batch row"
    )
    warnings.warn(message, AmbiguousBiasWarning, stacklevel=_depth_of_caller())


def _is_first(shapes: Hashable) -> bool:
    """Whether no call of these shapes was warned of; remembers that one is now."""
    if shapes in _warned:
        return False
    _warned.keep(shapes, True)
    return True


def _depth_of_caller() -> int:
    """The number of frames up to the first one outside of regard, as the function that warns counts them."""
    depth = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ROOT):
        frame = frame.f_back
        depth += 1
    return depth
