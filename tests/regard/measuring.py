"""What a call holds in memory, which operations and functions of PyTorch run, and which of Python it enters."""

import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import regard

ROOT = Path(regard.__file__).parent


class NotedOperations(TorchDispatchMode):
    """The names of the operations of PyTorch that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class NotedFunctions(TorchFunctionMode):
    """The names of the functions of PyTorch that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


class NotedResults(TorchDispatchMode):
    """Notes each tensor that an operation returns."""

    def note(self, x: torch.Tensor, is_new: bool) -> None:
        """What to do with a tensor; `is_new` tells whether its storage is none of the operation's arguments."""
        raise NotImplementedError

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        storages = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        results = func(*args, **(kwargs or {}))
        for x in tree_iter(results):
            if isinstance(x, torch.Tensor):
                self.note(x, x.untyped_storage().data_ptr() not in storages)
        return results


class Largest(NotedResults):
    """The largest tensor that any operation returns, in numbers stored; of one dtype if it is given."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.dtype = dtype
        self.held = 0

    def note(self, x: torch.Tensor, is_new: bool) -> None:
        if self.dtype in (None, x.dtype):
            self.held = max(self.held, x.untyped_storage().nbytes() // x.element_size())


class MostAlive(NotedResults):
    """The most bytes of results that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held = 0
        self._storages: dict[int, weakref.ref] = {}

    def note(self, x: torch.Tensor, is_new: bool) -> None:
        storage = x.untyped_storage()
        self._storages[storage._cdata] = weakref.ref(storage)
        alive = 0
        for address, reference in list(self._storages.items()):
            known = reference()
            if known is None:
                del self._storages[address]
            else:
                alive += known.nbytes()
        self.held = max(self.held, alive)


class NewNumbers(NotedResults):
    """Counts the numbers in memory that operations make."""

    made = 0

    def note(self, x: torch.Tensor, is_new: bool) -> None:
        if is_new:
            self.made += x.numel()


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
