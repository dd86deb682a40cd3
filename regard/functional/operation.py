"""The arguments of the operation `regard::attention`, which stands for one call in graphs of a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sink, Tensor? q_start, Tensor? dropout_seed, Tensor[]? held, "
    "Tensor[]? parameters, Tensor? numbers, *, str pattern, str? mechanism, str[] names, "
    "SymInt? first, SymInt? lowest, Scalar? softcap, Scalar? scale, Scalar dropout, bool strict, str backend, "
    "bool[] learns, bool slots=False, bool precise=False, str numbered=''"
)
MAY_LEARN = 5  # q, k, v, bias and sink, which come first; the parameters may learn too
SINGLE = 7  # the tensors before the lists


class OperationTensors(NamedTuple):
    """The tensors of the operation, in the order of its schema.

    bias: by pair, or a table by distance. sink: logits. q_start: (batch,), or with `slots` (1,) for all batch rows.
    held: the tensors of the pattern, which its text names by their place. parameters: those of the mechanism.
    numbers: floats that change between calls, (numbers,) in float64.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None
    sink: torch.Tensor | None
    q_start: torch.Tensor | None
    dropout_seed: torch.Tensor | None
    held: Sequence[torch.Tensor] | None
    parameters: Sequence[torch.Tensor] | None
    numbers: torch.Tensor | None

    @property
    def may_learn(self) -> list[torch.Tensor | None]:
        """The tensors that may need a gradient, in the order of `OperationOptions.learns`."""
        return [self.q, self.k, self.v, self.bias, self.sink, *(self.parameters or ())]


class OperationOptions(NamedTuple):
    """What a graph knows of a call beside its tensors; whole numbers may be symbols.

    pattern, mechanism: their texts; None for softmax of dot products. names: those of the parameters.
    first: the position of the first query. lowest: the first distance of a bias by distance, else None.
    learns: which of q, k, v, bias, sink and parameters need a gradient.
    slots: k and v are all slots of a cache, and those behind the queries are free; q_start is one number.
    numbered: names of options, separated by blanks. The first of the `numbers` are their values; pattern and mechanism
        name the others by their place, such as number_1.
    """

    pattern: str
    mechanism: str | None
    names: Sequence[str]
    first: Any
    lowest: Any
    softcap: float | None
    scale: float | None
    dropout: float
    strict: bool
    backend: str
    learns: Sequence[bool]
    slots: bool = False
    precise: bool = False
    numbered: str = ""
