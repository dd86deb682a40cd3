"""Checks that a mechanism supports the options of a call and got the parameters that it needs, for all backends."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from regard.arguments import shown
from regard.core.result import TopKeys, Want, WeightsOf
from regard.core.tensors import Outline, refuse_layout
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.mechanisms import Mechanism
from regard.mechanisms.base import OPTIONS, STATISTICS, Sizes
from regard.patterns import Full, Pattern
from regard.patterns.algebra import NOTHING


def check_combination(mechanism: Mechanism, pattern: Pattern, options: Collection[str], want: Collection[Want]) -> None:
    """Raise an UnsupportedError unless the mechanism takes this pattern and these options and has these statistics.

    Args:
        mechanism: its attributes list what it supports.
        pattern: the pattern in its canonical form.
        options: the options that were passed, of OPTIONS.
        want: the requested statistics.
    """
    allowed = mechanism.patterns
    if allowed is not None:
        for part in pattern.factors:
            if part not in (Full(), NOTHING) and not isinstance(part, allowed):
                names = ", ".join(kind.__name__ for kind in (Full, *allowed))
                because = f" ({mechanism.patterns_because})" if mechanism.patterns_because else ""
                raise UnsupportedError(
                    f"{mechanism} takes {names} and combinations of them by &, not {part}{because}; use softmax for it"
                )
    for option in OPTIONS:
        if option in options and option not in mechanism.options:
            raise UnsupportedError(
                f"{mechanism} has no {option}, since its paper defines none; leave {option} out, or use softmax"
            )
    for wanted in want:
        name = {TopKeys: "top_keys", WeightsOf: "weights_of"}.get(type(wanted), str(wanted))
        if name not in mechanism.statistics:
            available = ", ".join(one for one in STATISTICS if one in mechanism.statistics) or "nothing but its output"
            raise UnsupportedError(f"{mechanism} does not compute {name}; it computes {available}")


def named_parameters(given: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """The argument parameters= as a dict; anything but a mapping is refused."""
    if given is None:
        return {}
    if not isinstance(given, Mapping | torch.nn.ParameterDict):
        raise ArgumentError(
            f"parameters is {shown(given)}; it needs a dict of the mechanism's learned tensors by name, as "
            f"mechanism.new_parameters(...) makes them"
        )
    return dict(given.items())


def checked_parameters(
    mechanism: Mechanism, sizes: Sizes, given: Mapping[str, torch.Tensor] | None, q: torch.Tensor | Outline
) -> dict[str, torch.Tensor]:
    """The tensors that the mechanism needs, by name, after a check of names, shapes and devices.

    Raises:
        ArgumentError: a tensor is missing or unknown.
        ShapeError: a tensor has another shape or device.
    """
    shapes = mechanism.parameter_shapes(sizes)
    tensors = named_parameters(given)
    if set(tensors) != set(shapes):
        them = "it" if len(shapes) == 1 else "them"
        own = ", ".join(f"{name!r} of shape {shapes[name]}" for name in sorted(mechanism.computed & shapes.keys()))
        raise ArgumentError(
            f"{mechanism} was given the parameters {_names(tensors)} and needs {sorted(shapes)}; "
            + (f"compute {own} for each call" if own else f"make {them} with mechanism.new_parameters(...)")
            + f", and give {them} as parameters="
            if shapes
            else f"{mechanism} learns nothing and was given the parameters {_names(tensors)}; leave them out"
        )
    for name, shape in shapes.items():
        tensor = tensors[name]
        if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
            raise ShapeError(f"parameter {name!r} is no floating-point tensor; {mechanism} needs one of shape {shape}")
        refuse_layout(f"parameter {name!r}", tensor)
        if tuple(tensor.shape[1:]) != shape[1:] or tensor.dim() != len(shape) or tensor.shape[0] not in (1, shape[0]):
            raise ShapeError(
                f"parameter {name!r} has shape {tuple(tensor.shape)}; {mechanism} needs {shape}, or 1 as its first axis"
            )
        if tensor.device != q.device:
            raise ShapeError(f"q is on {q.device} but parameter {name!r} on {tensor.device}; move one of them")
    return tensors


def _names(given: Mapping[str, torch.Tensor]) -> str:
    return shown(sorted(given, key=str))
