"""What a call holds in memory and how many functions it passes."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import regard

ROOT = Path(regard.__file__).parent


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returns, in numbers stored; of one dtype if it is given."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.dtype = dtype
        self.held = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for x in tree_iter(results):
            if isinstance(x, torch.Tensor) and self.dtype in (None, x.dtype):
                self.held = max(self.held, x.untyped_storage().nbytes() // x.element_size())
        return results


def entered(call: Callable[[], Any]) -> list[str]:
    """The files of the functions of Python that a call enters, in order."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def frames(call: Callable[[], Any]) -> list[str]:
    """The files of regard whose functions a call enters, once its plan is kept."""
    call()
    call()
    return [path for path in entered(call) if Path(path).is_relative_to(ROOT)]
