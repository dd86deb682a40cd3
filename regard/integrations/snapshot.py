"""What a model holds before it is run, and how to give it back: `unchanged` and `Snapshot`.

A forward pass may install hooks, append to a list, fill a buffer or write its config, and do so only once, behind a
flag. A snapshot therefore records objects by identity and by contents, so that a flag and what it stands for go back
together.
"""

from __future__ import annotations

import operator
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch
from torch import nn

__all__ = ["Snapshot", "unchanged"]

Restore = Callable[[], None]
# Objects that never change, or that are shared with the rest of the program.
ATOMS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    ModuleType,
    BuiltinFunctionType,
    torch.dtype,
    torch.device,
    torch.Size,
)
# Packages whose objects belong to the whole program: other threads change them while a model runs.
SHARED = {
    "_thread",
    "_weakref",
    "_weakrefset",
    "asyncio",
    "concurrent",
    "logging",
    "multiprocessing",
    "queue",
    "threading",
    "weakref",
}
FUNCTIONS = (FunctionType, MethodType, partial)
PLAIN = (torch.Tensor, nn.Parameter)  # other tensors keep their numbers in ways of their own
CONTAINERS = (dict, list, set, deque)
MISSING = object()
MOST_CLASSES = 4096  # whose slots were looked up
# Packages whose classes are no model's.
OF_NO_MODEL = {"regard", "torch", *sys.stdlib_module_names}


class Snapshot:
    """Everything that models hold: attributes, hooks, containers, buffers and configs, also inside of each other.

    `restore` puts back what changed since, in place: the same dictionaries and lists get their contents back. Numbers
    of buffers and other tensors are copied; those of parameters are not, since that would take the memory of a second
    model, and no forward pass without gradients is known to change them.

    Args:
        roots: models, and other objects that a forward pass gets, such as a mapping with a cache.
    """

    def __init__(self, *roots: Any) -> None:
        self._restores: list[Restore] = []
        # Keeps what was recorded alive, so that no id is used twice.
        self._recorded: dict[int, Any] = {}
        waiting: list[tuple[Any, bool]] = [(root, True) for root in roots]
        while waiting:
            value, copies = waiting.pop()
            if isinstance(value, ATOMS) or id(value) in self._recorded:
                continue
            self._recorded[id(value)] = value
            for inner in self._record(value, copies):
                # What only a function reaches, such as the closure of a hook, may be as large as a data set.
                waiting.append((inner, copies and not isinstance(value, FUNCTIONS)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<{len(self._recorded):,} objects>)"

    def restore(self) -> None:
        """Put back what was changed, and leave the rest untouched."""
        with torch.no_grad():
            for restore in self._restores:
                restore()

    def _record(self, value: Any, copies: bool) -> Iterable[Any]:
        """Note how a value is restored, and return what it holds."""
        if isinstance(value, type):
            return self._record_class(value)
        if isinstance(value, torch.Tensor):
            return self._record_tensor(value, copies)
        if isinstance(value, tuple | frozenset):
            return value
        if isinstance(value, CellType):
            return self._record_cell(value)
        if isinstance(value, MethodType):
            return (value.__self__, value.__func__)
        if isinstance(value, FunctionType):
            return (*(value.__closure__ or ()), value.__dict__)
        if isinstance(value, partial):
            return (value.func, *value.args, *value.keywords.values())
        if str(type(value).__module__).partition(".")[0] in SHARED:
            return ()
        contents: Iterable[Any] = ()
        if isinstance(value, torch.Generator):
            self._record_generator(value)
        elif isinstance(value, dict):
            contents = self._record_dict(value)
        elif isinstance(value, list | deque):
            contents = self._record_sequence(value)
        elif isinstance(value, set):
            contents = self._record_set(value)
        return (*contents, *self._record_object(value))

    def _record_dict(self, value: dict[Any, Any]) -> Iterable[Any]:
        kind: Any = OrderedDict if isinstance(value, OrderedDict) else dict
        keys = list(kind.keys(value))
        contents = list(kind.values(value))

        def restore() -> None:
            has_same_keys = _are_same(list(kind.keys(value)), keys)
            if has_same_keys and _are_same(list(kind.values(value)), contents):
                return
            kind.clear(value)
            for key, content in zip(keys, contents, strict=True):
                kind.__setitem__(value, key, content)

        self._restores.append(restore)
        return contents

    def _record_sequence(self, value: list[Any] | deque[Any]) -> Iterable[Any]:
        kind: Any = list if isinstance(value, list) else deque
        contents = list(value)

        def restore() -> None:
            if not _are_same(list(value), contents):
                kind.clear(value)
                kind.extend(value, contents)

        self._restores.append(restore)
        return contents

    def _record_set(self, value: set[Any]) -> Iterable[Any]:
        contents = set(value)

        def restore() -> None:
            if value != contents:
                value.clear()
                value.update(contents)

        self._restores.append(restore)
        return contents

    def _record_object(self, value: Any) -> Iterable[Any]:
        """Class, attributes and slots of an object of any class; a module is one."""
        kind = type(value)
        contents: list[Any] = []
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            contents += self._record_dict(attributes)
            if isinstance(value, nn.Module):
                contents += kind.__mro__

            def restore() -> None:
                if type(value) is not kind:
                    value.__class__ = kind
                if value.__dict__ is not attributes:
                    value.__dict__ = attributes

            self._restores.append(restore)
        contents += [self._record_slot(value, name) for name in _slots_of(kind)]
        return contents

    def _record_slot(self, value: Any, name: str) -> Any:
        before = getattr(value, name, MISSING)

        def restore() -> None:
            if getattr(value, name, MISSING) is before:
                return
            if before is MISSING:
                object.__delattr__(value, name)
            else:
                object.__setattr__(value, name, before)

        self._restores.append(restore)
        return before

    def _record_class(self, kind: type) -> Iterable[Any]:
        """The attributes of a class, such as a counter of all its objects."""
        package = kind.__module__.partition(".")[0]
        if package in OF_NO_MODEL:
            return ()
        attributes = dict(vars(kind))

        def restore() -> None:
            now = vars(kind)
            for name in now.keys() - attributes.keys():
                delattr(kind, name)
            for name, before in attributes.items():
                if now.get(name, MISSING) is not before:
                    setattr(kind, name, before)

        self._restores.append(restore)
        return [value for value in attributes.values() if isinstance(value, CONTAINERS)]

    def _record_cell(self, cell: CellType) -> Iterable[Any]:
        try:
            before = cell.cell_contents
        except ValueError:  # it is empty
            return ()

        def restore() -> None:
            cell.cell_contents = before

        self._restores.append(restore)
        return (before,)

    def _record_tensor(self, x: torch.Tensor, copies: bool) -> Iterable[Any]:
        if type(x) not in PLAIN or x.layout != torch.strided:
            return ()
        learns = x.requires_grad
        is_leaf = x.is_leaf
        gradient = x.grad if is_leaf else None
        view = x.detach()  # of the same memory, which an assignment to `x.data` leaves behind
        numbers = None
        if copies and not isinstance(x, nn.Parameter) and not x.is_meta:
            numbers = _each_once(view).clone()

        def restore() -> None:
            if not _is_same_view(x, view):
                x.data = view
            if numbers is not None and not _has_same_numbers(_each_once(view), numbers):
                with torch.inference_mode(view.is_inference()):
                    _each_once(view).copy_(numbers)
            if is_leaf and x.requires_grad != learns:
                x.requires_grad_(learns)
            if is_leaf and x.grad is not gradient:
                x.grad = gradient

        self._restores.append(restore)
        return (x.__dict__,)

    def _record_generator(self, generator: torch.Generator) -> None:
        state = generator.get_state()

        def restore() -> None:
            generator.set_state(state)

        self._restores.append(restore)


@lru_cache(MOST_CLASSES)
def _slots_of(kind: type) -> tuple[str, ...]:
    """The names of the attributes that objects of a class hold outside of their dictionary."""
    names: list[str] = []
    for base in kind.__mro__:
        if "__slots__" in vars(base):
            members = vars(base).items()
            names += [name for name, member in members if isinstance(member, MemberDescriptorType)]
    return tuple(names)


def _are_same(now: list[Any], before: list[Any]) -> bool:
    """Whether two lists hold the same objects in the same order."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _is_same_view(x: torch.Tensor, view: torch.Tensor) -> bool:
    if (x.shape, x.dtype, x.device) != (view.shape, view.dtype, view.device):
        return False
    return x.is_meta or (x.stride() == view.stride() and x.data_ptr() == view.data_ptr())


def _each_once(x: torch.Tensor) -> torch.Tensor:
    """The tensor without the axes along which one number is repeated."""
    return x[tuple(slice(None) if stride else slice(0, 1) for stride in x.stride())]


def _has_same_numbers(x: torch.Tensor, numbers: torch.Tensor) -> bool:
    """Whether two tensors are equal, where NaN equals NaN."""
    if torch.equal(x, numbers):
        return True
    return bool(((x == numbers) | ((x != x) & (numbers != numbers))).all())


@contextmanager
def unchanged(*roots: Any) -> Generator[Snapshot]:
    """A block whose forward passes leave models, random generators and the grad mode as they were.

    Args:
        roots: models, and other objects that a forward pass gets.
    """
    snapshot = Snapshot(*roots)
    grads = torch.is_grad_enabled()
    dtype = torch.get_default_dtype()
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    models = [root for root in roots if isinstance(root, nn.Module)]
    parameters = chain.from_iterable(model.parameters() for model in models)
    devices = {x.device for x in parameters if x.device.type == "cuda"}
    try:
        with torch.random.fork_rng([*devices]):
            yield snapshot
    finally:
        torch.set_grad_enabled(grads)
        torch.set_default_dtype(dtype)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        snapshot.restore()
