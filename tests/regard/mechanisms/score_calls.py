"""Calls with every score, on sizes that cannot be mistaken for one another."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mechanism_tensors import MechanismTensors

from regard import mechanisms as m
from regard.backends import BACKENDS
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.core.result import checked_wants
from regard.mechanisms.base import Sizes

BATCH = 2
Q_LEN = 7
K_LEN = 11
QUERY_DIM = 5
KEY_DIM = 3
V_DIM = 13
HIDDEN = 17
WINDOW = 3
HEADS = ((6, 6), (6, 3), (6, 1))
SCORES: dict[str, m.Score] = {
    "dot": m.Dot(),
    "general": m.General(QUERY_DIM, KEY_DIM),
    "additive": m.Additive(QUERY_DIM, KEY_DIM, HIDDEN),
    "concat": m.Concat(QUERY_DIM, KEY_DIM, HIDDEN),
}
for name, score in tuple(SCORES.items()):
    SCORES[f"local {name}"] = m.LocalPredictive(score, WINDOW, QUERY_DIM)


def as_array(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().numpy()


@dataclass
class ScoreCall(MechanismTensors):
    """Tensors for one score."""

    name: str
    score: m.Score

    @property
    def formula(self) -> str:
        """The oracle's name of it."""
        return self.name.removeprefix("local ")

    @property
    def window(self) -> int | None:
        return WINDOW if self.name.startswith("local") else None

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        q, k, v = (as_array(x) for x in (self.q, self.k, self.v))
        return q, k, v, {name: as_array(x) for name, x in self.parameters.items()}

    def ask(self, backend: str = "auto", want: Any = (), **options: Any) -> Any:
        """What a backend returns, planned again."""
        seed = options.pop("dropout_seed", None)
        options |= {"mechanism": m.Softmax(self.score), "parameters": self.parameters}
        problem = make_problem(self.q, self.k, self.v, want=checked_wants(want), **options)
        start = options.get("q_start")
        return make_plan(problem, BACKENDS, backend).detail(
            self.q,
            self.k,
            self.v,
            bias=options.get("bias"),
            parameters=self.parameters,
            dropout_seed=seed,
            q_start=start if isinstance(start, torch.Tensor) else None,
        )


def make_call(
    name: str,
    heads: tuple[int, int] = (6, 3),
    lengths: tuple[int, int] = (Q_LEN, K_LEN),
    dtype: torch.dtype = torch.float64,
    learns: bool = False,
    shared: bool = False,
) -> ScoreCall:
    """Numbers for a score; with `shared` all heads share every parameter."""
    score = SCORES[name]
    query_heads, kv_heads = heads
    q_len, k_len = lengths
    key_dim = KEY_DIM if score.own_key_dim else QUERY_DIM
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        return numbers.to(dtype).requires_grad_(learns)

    q = draw(BATCH, query_heads, q_len, QUERY_DIM)
    k = draw(BATCH, kv_heads, k_len, key_dim)
    v = draw(BATCH, kv_heads, k_len, V_DIM)
    parameters = {}
    shapes = score.parameter_shapes(Sizes(BATCH, query_heads, kv_heads, k_len))
    for parameter, (parameter_heads, *dims) in shapes.items():
        parameters[parameter] = draw(1 if shared else parameter_heads, *dims)
    return ScoreCall(q, k, v, parameters, name, score)
