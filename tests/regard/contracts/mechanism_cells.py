"""Every mechanism with calls that it must compute; those with a FORMULA in their test are found."""

from dataclasses import dataclass
from typing import Any

import torch
from fuzz.mechanism_formulas import FOUND, RECURRENT
from fuzz.mechanisms import MechanismCase

from regard import mechanisms as m
from regard.mechanisms.base import Mechanism, Sizes
from regard.mechanisms.recurrent import Recurrent
from regard.testing import make_qkv

LENGTH = 11  # of the keys, and of the queries but where a test says otherwise


@dataclass(frozen=True)
class MechanismExample:
    """A mechanism with tensors, and parameters if it has any."""

    mechanism: Mechanism
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    parameters: dict[str, torch.Tensor] | None

    @property
    def options(self) -> dict[str, Any]:
        return {"mechanism": self.mechanism, "parameters": self.parameters}

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.q, self.k, self.v

    @property
    def always_causal(self) -> bool:
        if isinstance(self.mechanism, m.RandomFeature):
            return self.mechanism.gated
        return isinstance(self.mechanism, Recurrent)

    @property
    def learning(self) -> list[torch.Tensor]:
        """The tensors that may need a gradient; if queries are the keys, both are one tensor."""
        tensors = (self.q, self.v) if self.mechanism.shares_keys else self.tensors
        return [*tensors, *(self.parameters or {}).values()]


MECHANISMS: dict[str, Mechanism] = {
    "softmax": m.Softmax(),
    "dot": m.Softmax(m.Dot()),
    "general": m.Softmax(m.General(5, 5)),
    "additive": m.Softmax(m.Additive(5, 5, 7)),
    "concat": m.Softmax(m.Concat(5, 5, 7)),
    "local-predictive": m.Softmax(m.LocalPredictive(m.Dot(), window=4, query_dim=5)),
    "linear": m.LinearTransformer(),
    "performer": m.Performer(features=17, seed=1),
    "random-feature": m.RandomFeature(features=19, seed=1),
    "gated-random-feature": m.RandomFeature(features=19, gated=True, seed=1),
    "linformer": m.Linformer(length=LENGTH + 2, rank=3),
    "linformer of heads": m.Linformer(LENGTH + 2, 3, "heads"),
    "linformer of one matrix": m.Linformer(LENGTH + 2, 3, "keys_and_values"),
    "lsh": m.LSH(chunk=3, buckets=4, rounds=2, seed=1),
    **RECURRENT,
    **{name: kernel.declare(MechanismCase(1)) for name, kernel in FOUND.items()},
}


def make_call(
    name: str, *, dtype: torch.dtype = torch.float64, requires_grad: bool = False, **sizes: Any
) -> MechanismExample:
    """A call of this mechanism over LENGTH keys; numbers are the same for equal sizes."""
    mechanism = MECHANISMS[name]
    sizes = {"q_len": LENGTH, "k_len": LENGTH, **sizes}
    if mechanism.shares_keys:
        sizes["kv_heads"] = sizes.get("heads", 6)
    q, k, v = make_qkv(dtype=dtype, requires_grad=requires_grad, **sizes)
    if mechanism.shares_keys:
        q = k if q.shape[2] == k.shape[2] else k[:, :, -q.shape[2] :]

    of_call = Sizes(q.shape[0], q.shape[1], k.shape[1], k.shape[2], k.shape[3])
    drawn = torch.Generator().manual_seed(3)
    parameters = {}
    for parameter, shape in mechanism.parameter_shapes(of_call).items():
        x = torch.randn(shape, generator=drawn, dtype=torch.float64)
        if parameter in ("gate", "strength"):
            x = x.sigmoid() / 3  # of keys that are not of length 1
        if parameter == "log_decay":
            x = -x.abs()
        parameters[parameter] = x.to(dtype).requires_grad_(requires_grad)
    return MechanismExample(mechanism, q, k, v, parameters or None)
