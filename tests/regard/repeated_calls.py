"""Calls that one function of C computes, and the same calls by Python."""

from pathlib import Path
from typing import Any

from measuring import ROOT, entered
from torch import Tensor

import regard as rg
from regard.functional.repeated import REPEATED


def by_python(*qkv: Tensor, **options: Any) -> Tensor:
    """The output of a call as it is computed where there is no function of C."""
    repeat = REPEATED.repeat
    REPEATED.repeat = None
    try:
        return rg.attention(*qkv, **options)
    finally:
        REPEATED.repeat = repeat


def is_without_python(*qkv: Tensor, **options: Any) -> bool:
    """Whether this one call enters no function of regard but `attention`."""
    paths = entered(lambda: rg.attention(*qkv, **options))
    return len([path for path in paths if Path(path).is_relative_to(ROOT)]) == 1
