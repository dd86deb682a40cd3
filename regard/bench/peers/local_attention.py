"""lucidrains' local-attention: windows of the exact size, without rotary positions."""

from __future__ import annotations

from importlib import import_module

from regard.bench.case import Attend, Contender
from regard.bench.work import Tensors, Work
from regard.errors import UnsupportedError
from regard.patterns import SlidingWindow


def one_side(work: Work) -> int:
    """The keys that a work's window shows on each side."""
    if not isinstance(work.pattern, SlidingWindow):
        raise UnsupportedError(f"it computes sliding windows, not {work.pattern}")
    return work.pattern.size // 2


def _prepare(work: Work, tensors: Tensors) -> Attend:
    attend = import_module("local_attention").LocalAttention(
        window_size=one_side(work), look_backward=1, look_forward=1, exact_windowsize=True, autopad=True,
        use_rotary_pos_emb=False,
    )  # fmt: skip
    return lambda: attend(tensors.q, tensors.k, tensors.v)


LOCAL_ATTENTION = Contender("local-attention", _prepare, package="local_attention")
