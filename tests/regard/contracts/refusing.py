"""What each backend refuses, in order and with its words; a backend must compute everything else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from regard.backends.native.library import load
from regard.bias import Bias
from regard.patterns import as_pattern

if TYPE_CHECKING:
    from comparing import Cell

NATIVE = load()  # the library, or the reason why there is none
Rules = tuple[tuple[str, Callable[["Cell"], bool]], ...]


def _softcap(cell: Cell) -> bool:
    return "softcap" in cell.made


def _dropout(cell: Cell) -> bool:
    return "dropout" in cell.made


def _learns(cell: Cell) -> bool:
    return cell.learning and cell.bias_learns


def _bias_of_pairs(cell: Cell) -> bool:
    return "bias" in cell.made and not isinstance(cell.made["bias"], Bias)


def _start_by_row(cell: Cell) -> bool:
    return isinstance(cell.made.get("q_start"), torch.Tensor)


def _nothing_to_skip(cell: Cell) -> bool:
    """Every pair is allowed, and the structure says so: where a row is not sure that it does, it may all the same."""
    if not cell.allowed.all():
        return False
    q_len, k_len = cell.lengths
    start = cell.made.get("q_start", k_len - q_len)
    pattern = as_pattern(cell.row.build(cell.whole)).canonical()
    return cell.row.sure or pattern.sees_all(start, start + q_len - 1, range(k_len))


_FUSED: Rules = (
    ("have no softcap", _softcap),
    ("another random number generator", _dropout),
    ("give a bias no gradient", _learns),
)
DOCUMENTED: dict[str, Rules] = {
    "decode": (
        ("at most 16 queries", lambda cell: cell.lengths[0] > 16),
        ("has no gradient", lambda cell: cell.learning),
    ),
    "fused": _FUSED,
    "tiled": (
        *_FUSED,
        ("a bias tensor has no structure", _bias_of_pairs),
        ("q_start is a tensor", _start_by_row),
        ("only be evaluated pair by pair", lambda cell: not cell.row.structured),
        ("every query may look at every key", _nothing_to_skip),
        ("is open on one side", lambda cell: cell.row.open_ended and "bias" not in cell.made),
    ),
    "native": ((re.escape(NATIVE), lambda cell: True),) if isinstance(NATIVE, str) else (),
    "streamed": (),
    "reference": (),
    "linear": (("it computes linear attention by feature maps", lambda cell: True),),
    "linformer": (("it computes Linformer", lambda cell: True),),
    "lsh": (("it computes LSH attention", lambda cell: True),),
    "flex": (("is for cuda here", lambda cell: True),),
}


def documented(backend: str, cell: Cell) -> str | None:
    """The words with which a backend must refuse a cell, or None if it must compute it."""
    assert backend in DOCUMENTED, f"write down in refusing.py what {backend!r} refuses"
    return next((words for words, refuses in DOCUMENTED[backend] if refuses(cell)), None)
