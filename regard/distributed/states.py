"""The state of a model and of its optimiser by name, as checkpoints hold it, without a step of the optimiser.

`get_state_dict` of torch lets an optimiser without state make a step with zero gradients, and `set_state_dict` does the
same before it loads: Adam then counts one step more. Here an optimiser is only read, until all of it is known to fit.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Replicate

from regard.arguments import of_kind
from regard.distributed.manifest import OPTIMISER
from regard.errors import ArgumentError, CheckpointError, UnsupportedError
from regard.storage.tensors import DTYPES

STATE, GROUPS = f"{OPTIMISER}state.", f"{OPTIMISER}param_groups."  # before the name of a parameter


class HeldState:
    """What a model and its optimiser hold: `tensors` and `settings` by name, which share their memory.

    Args:
        model: on one process or divided among several.
        optimiser: of its parameters, or None.
    """

    def __init__(self, model: Any, optimiser: Any) -> None:
        of_kind("model", model, nn.Module, "a module")
        self.model, self.optimiser = model, optimiser
        self.groups: list[list[str]] = []  # names of the parameters of each group of the optimiser
        own, of_optimiser = _of_torch(model, optimiser)
        state = {f"model.{name}": one for name, one in own.items()}
        if optimiser is not None:
            self.groups = [group["params"] for group in of_optimiser["param_groups"]]
            for name, kept in of_optimiser["state"].items():
                state |= _flat(f"{STATE}{name}", kept)
            for group in of_optimiser["param_groups"]:
                options = {key: one for key, one in group.items() if key != "params"}
                state |= {f"{GROUPS}{name}.{key}": one for name in group["params"] for key, one in options.items()}
        self._divide(state)

    def _divide(self, state: dict[str, Any]) -> None:
        self.tensors = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
        self.settings = {name: one for name, one in state.items() if name not in self.tensors}
        for name, one in self.tensors.items():
            if one.dtype not in DTYPES.values() or one.layout != torch.strided:
                raise ArgumentError(f"{name} is {one.dtype} with layout {one.layout}; checkpoints hold dense numbers")

    def expect(self, tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]], settings: dict[str, Any]) -> None:
        """Make room for the saved state of parameters that have none here, and leave out what has none there.

        A parameter has state after its first gradient. New tensors are divided among processes as their parameter is.

        Args:
            tensors: dtype and shape of each that was saved.
            settings: what was saved besides them.
        """
        names = [name for group in self.groups for name in group]
        parameters = [one for group in self.optimiser.param_groups for one in group["params"]] if names else []
        by_name = dict(zip(names, parameters, strict=True))
        here = {self._owner(name, by_name) for name in (*self.tensors, *self.settings)}
        saved = {name: self._owner(name, by_name) for name in (*tensors, *settings)}
        there = set(saved.values())
        state = {
            name: one
            for name, one in (self.tensors | self.settings).items()
            if (owner := self._owner(name, by_name)) is None or owner in there
        }
        for name, owner in saved.items():
            if owner is not None and owner not in here:
                state[name] = _room(name, by_name[owner], *tensors[name]) if name in tensors else settings[name]
        self._divide(state)

    def _owner(self, name: str, parameters: dict[str, Any]) -> str | None:
        """The parameter whose state a name belongs to; None for other names."""
        if not name.startswith(STATE):
            return None
        parts = name[len(STATE) :].split(".")
        return next((one for at in range(1, len(parts)) if (one := ".".join(parts[:at])) in parameters), None)

    def check_groups(self, settings: dict[str, Any]) -> None:
        """Raise a CheckpointError unless the parameters of each group have the same saved settings."""
        for at, names in enumerate(self.groups):
            for key in [key for key in self.optimiser.param_groups[at] if key != "params"]:
                saved = [settings.get(f"{GROUPS}{name}.{key}") for name in names]
                if other := [one for one in saved if one != saved[0]]:
                    raise CheckpointError(
                        f"group {at} of the optimiser has parameters that were saved with {key}={saved[0]} and with "
                        f"{key}={other[0]}; divide the parameters into groups as they were when they were saved"
                    )

    def install(self, settings: dict[str, Any]) -> None:
        """Give model and optimiser the tensors, which hold the saved numbers now, and the saved settings."""
        state = {**self.tensors, **{name: _like(settings[name], one) for name, one in self.settings.items()}}
        own = {name.removeprefix("model."): one for name, one in state.items() if name.startswith("model.")}
        set_model_state_dict(self.model, own)
        if self.optimiser is None:
            return
        numbers = {name: at for at, name in enumerate(name for group in self.groups for name in group)}
        groups = []
        for names, group in zip(self.groups, self.optimiser.param_groups, strict=True):
            options = {key: one for key, one in group.items() if key != "params"}
            options |= {key: state[f"{GROUPS}{names[0]}.{key}"] for key in options if names}
            groups.append({**options, "params": [numbers[name] for name in names]})
        kept: dict[int, dict[str, Any]] = {}
        for name, one in state.items():
            if (owner := self._owner(name, numbers)) is not None:
                _put(kept.setdefault(numbers[owner], {}), name[len(f"{STATE}{owner}.") :], one)
        self.optimiser.load_state_dict({"state": kept, "param_groups": groups})


def _of_torch(model: nn.Module, optimiser: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two dictionaries of `get_state_dict`."""
    if optimiser is None:
        return cast(tuple[dict[str, Any], dict[str, Any]], get_state_dict(model, []))
    of_kind("optimiser", optimiser, torch.optim.Optimizer, "an optimiser of torch.optim")
    if FullyShardedDataParallel.fsdp_modules(model):
        raise UnsupportedError(
            "the model is divided by FullyShardedDataParallel (FSDP1), and checkpoints hold optimisers of models that "
            "FSDP2 divided; divide it by shard_model or fully_shard"
        )
    try:
        with _as_it_is(optimiser):
            return cast(tuple[dict[str, Any], dict[str, Any]], get_state_dict(model, optimiser))
    except KeyError as error:  # torch finds no name for one of its parameters
        raise ArgumentError(
            "the optimiser has a parameter that is not one of the model's; give the optimiser that was made of this "
            "model's parameters, after the model was divided"
        ) from error


@contextmanager
def _as_it_is(optimiser: torch.optim.Optimizer) -> Generator[None]:
    """Within it, an optimiser without state has an empty one, with which torch asks it for no step."""
    first = next((one for group in optimiser.param_groups for one in group["params"]), None)
    if optimiser.state or first is None:
        yield
        return
    optimiser.state[first] = {}
    try:
        yield
    finally:
        del optimiser.state[first]


def _flat(name: str, kept: dict[Any, Any]) -> dict[str, Any]:
    """The state of a parameter by name; dictionaries in it add to the name."""
    flat: dict[str, Any] = {}
    for key, one in kept.items():
        if isinstance(one, dict):
            flat |= _flat(f"{name}.{key}", one)
        elif isinstance(one, torch.Tensor | int | float):
            flat[f"{name}.{key}"] = one
        else:
            raise UnsupportedError(
                f"{name}.{key} is {type(one).__name__}; checkpoints of several processes hold the tensors and numbers "
                f"of an optimiser's state, so use another optimiser, or save the model without it"
            )
    return flat


def _put(kept: dict[str, Any], name: str, one: Any) -> None:
    """The inverse of `_flat` for one name."""
    *outer, last = name.split(".")
    for key in outer:
        kept = kept.setdefault(key, {})
    kept[last] = one


def _room(name: str, parameter: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor for the saved state of a parameter, divided among processes as the parameter is if it has its shape."""
    try:
        if not shape and (name.endswith(".step") or parameter.ndim):
            return torch.empty((), dtype=dtype)  # numbers are on the CPU, unless `load_state_dict` moves them
        if shape == tuple(parameter.shape):
            return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        whole = torch.empty(shape, dtype=dtype, device=parameter.device)
    except RuntimeError as error:
        raise CheckpointError(f"there is no memory for {name}, which is {dtype} {shape}") from error
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        return DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole


def _like(value: Any, here: Any) -> Any:
    """A setting as JSON holds it, of the type that it has here."""
    return tuple(value) if isinstance(here, tuple) else value
