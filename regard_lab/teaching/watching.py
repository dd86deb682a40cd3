"""What modules read and returned while a call ran."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Watched:
    """The calls of one module: the first input of each, and what it returned."""

    inputs: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.outputs)

    def add_call(
        self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        """The hook that a module calls after its forward pass."""
        self.inputs.append(inputs[0])
        self.outputs.append(output)


def watch(modules: Mapping[str, nn.Module], call: Callable[[], object]) -> dict[str, Watched]:
    """Run `call` without gradients, and return what each module read and returned, by name.

    >>> layer = nn.Linear(2, 3)
    >>> watch({"layer": layer}, lambda: layer(torch.zeros(1, 2)))["layer"].outputs[0].shape
    torch.Size([1, 3])
    """
    watched = {name: Watched() for name in modules}
    with ExitStack() as hooks, torch.no_grad():
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_hook(watched[name].add_call))
        call()
    return watched
