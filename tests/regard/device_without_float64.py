"""A stand-in for the GPU of a Mac: tensors on a device of their own, which compute on the CPU.

Like that GPU it refuses float64 and every operation that has no entry for it (MPS) in PyTorch's table of operations.
It changes what regard knows of devices, so tests use it in a process of its own: see `test_device_without_float64`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torchgen
import yaml
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from regard import devices

# A device of PyTorch that no build has, whose backward passes run in the thread that asks for them.
NAME = "lazy"
devices.WITHOUT_FLOAT64.add(NAME)
DEVICE = torch.device(NAME)
NO_FLOAT64 = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64"
)
WIDE = (torch.float64, torch.complex128)

_table = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FUNCTIONS = {
    function["func"].partition("(")[0]: function
    for function in yaml.load(_table.read_text("utf-8"), Loader=_loader)
}
REFUSED: Counter[str] = Counter()  # what was refused, also where the exception was caught


def keys_of(name: str) -> set[str] | None:
    """The kinds of devices that an operation has an entry for; None for one that is not in the table."""
    function = FUNCTIONS.get(name)
    if function is None:
        return None
    if "structured_delegate" in function:
        return keys_of(function["structured_delegate"])
    entries = function.get("dispatch") or {"CompositeImplicitAutograd": ""}
    return {key.strip() for keys in entries for key in keys.split(",")}


def has_entry(function: Any) -> bool:
    """Whether a Mac's GPU has an operation. Variants that PyTorch generates are computed through those of the table."""
    if function.namespace != "aten":
        return True
    schema = function._schema
    overload = f".{schema.overload_name}" if schema.overload_name else ""
    keys = keys_of(schema.name.partition("::")[2] + overload)
    if keys is None:
        return True
    return "MPS" in keys or any(key.startswith("Composite") for key in keys)


class OnDevice(torch.Tensor):
    """A tensor on the stand-in; `numbers` is the tensor on the CPU that computes for it."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, requires_grad: bool = False) -> OnDevice:
        if numbers.dtype in WIDE:
            raise TypeError(NO_FLOAT64)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
            requires_grad=requires_grad,
        )
        made.numbers = numbers
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(function, args, kwargs or {})

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def __repr__(self) -> str:
        return f"OnDevice({self.numbers})"


# regard refuses classes that compute their numbers; this one stands for an ordinary tensor.
OnDevice.__module__ = "torch"


def refuse(what: str, error: Exception) -> Exception:
    REFUSED[what] += 1
    return error


def compute(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on tensors of the stand-in, computed on the CPU after the checks of a device."""
    leaves = tree_leaves((args, kwargs))
    is_ours = any(isinstance(x, OnDevice) for x in leaves)
    device = kwargs.get("device")
    goes_to = torch.device(device).type if device is not None else (NAME if is_ours else "cpu")
    if goes_to == NAME:
        _check(function, args, kwargs, leaves)
    if is_ours:
        _check_one_device(function, leaves)

    def on_cpu(x: Any) -> Any:
        if isinstance(x, OnDevice):
            return x.numbers
        if isinstance(x, torch.device) and x.type == NAME:
            return torch.device("cpu")
        return x

    cpu_kwargs = tree_map(on_cpu, kwargs)
    if cpu_kwargs.get("device") is not None:
        cpu_kwargs["device"] = torch.device("cpu")
    result = function(*tree_map(on_cpu, args), **cpu_kwargs)
    if goes_to != NAME or function is torch.ops.aten._local_scalar_dense.default:
        return result

    known = {id(x.numbers): x for x in leaves if isinstance(x, OnDevice)}

    def on_device(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.dtype in WIDE:
            raise refuse(f"{function} gives float64", TypeError(NO_FLOAT64))
        return known[id(x)] if id(x) in known else OnDevice(x)

    return tree_map(on_device, result)


def _check(function: Any, args: Any, kwargs: dict[str, Any], leaves: list[Any]) -> None:
    """Refuse float64 and operations without an entry."""
    copied = args[0] if args and function is torch.ops.aten._to_copy.default else None
    moves_wide = (
        isinstance(copied, torch.Tensor)
        and not isinstance(copied, OnDevice)
        and copied.dtype in WIDE
        and kwargs.get("dtype") is None
    )
    if moves_wide or any(isinstance(x, torch.dtype) and x in WIDE for x in leaves):
        raise refuse(f"{function} with float64", TypeError(NO_FLOAT64))
    if not has_entry(function):
        sentence = f"The operator '{function}' is not currently implemented for the MPS device"
        raise refuse(f"{function} has no entry", NotImplementedError(sentence))


def _check_one_device(function: Any, leaves: list[Any]) -> None:
    """Refuse tensors of the CPU beside those of the device, as devices do; single numbers and indices may be there."""
    name = str(function)
    if "index" in name or "copy" in name:
        return
    for x in leaves:
        if isinstance(x, torch.Tensor) and not isinstance(x, OnDevice) and x.dim() > 0:
            sentence = (
                f"Expected all tensors to be on the same device, but found at least two: {name}"
            )
            raise refuse(f"{function} with the CPU", RuntimeError(sentence))


class Mode(TorchDispatchMode):
    """Sees operations that make tensors, which have no tensor of the device among their arguments."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(function, args, kwargs or {})


_aten = torch.library.Library("aten", "IMPL")


# Operations make their results by these below the place where a mode sees them.
def _empty(
    size: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    options = {"dtype": dtype, "device": DEVICE}
    return compute(torch.ops.aten.empty.memory_format, (size,), options)


def _empty_strided(
    size: Any,
    stride: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    options = {"dtype": dtype, "device": DEVICE}
    return compute(torch.ops.aten.empty_strided.default, (size, stride), options)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
    to = target.numbers if isinstance(target, OnDevice) else target
    to.copy_(source.numbers if isinstance(source, OnDevice) else source)
    return target


_aten.impl("empty.memory_format", _empty, "Lazy")
_aten.impl("empty_strided", _empty_strided, "Lazy")
_aten.impl("_copy_from", _copy_from, "Lazy")


class _Autocast(torch.autocast):
    """PyTorch's own, which knows a Mac's GPU and not the device that stands for it."""

    def __init__(self, device_type: str, *arguments: Any, **options: Any) -> None:
        known = "cpu" if device_type == NAME else device_type
        super().__init__(known, *arguments, **options)


torch.autocast = _Autocast


def put(x: torch.Tensor, learns: bool = False) -> OnDevice:
    """A tensor on the stand-in with these numbers."""
    return OnDevice(x.detach(), learns)
