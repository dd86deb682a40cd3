"""What the modules of a model read and return while it runs, for lessons that look inside a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Watched:
    """The calls of one module.

    Args:
        inputs: the first input of each call.
        outputs: what each call returned.
    """

    inputs: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.outputs)


def watch(modules: Mapping[str, nn.Module], call: Callable[[], object]) -> dict[str, Watched]:
    """Run `call` without gradients, and return what each module read and returned, by name.

    >>> layer = nn.Linear(2, 3)
    >>> watch({"layer": layer}, lambda: layer(torch.zeros(1, 2)))["layer"].outputs[0].shape
    torch.Size([1, 3])
    """
    watched = {name: Watched() for name in modules}
    handles = []
    for name, module in modules.items():

        def note(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor, name: str = name) -> None:
            watched[name].inputs.append(inputs[0])
            watched[name].outputs.append(output)

        handles.append(module.register_forward_hook(note))
    try:
        with torch.no_grad():
            call()
    finally:
        for handle in handles:
            handle.remove()
    return watched
