"""The tensors of a call with a mechanism."""

from dataclasses import dataclass

import torch


@dataclass
class MechanismTensors:
    """q (batch, heads, q_len, head_dim), k and v, and the parameters that the mechanism takes."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    parameters: dict[str, torch.Tensor]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.q, self.k, self.v, *self.parameters.values()]
