"""Everything that an encoder layer computes but its attention, as two programs of the compiled library.

The programs read packed weights. On processors with AVX-512, oneDNN packs a matrix of float32 as panels of 64 outputs.
oneDNN does not promise this order, so each packed weight is first compared with the plain one, number by number.
"""

from __future__ import annotations

import ctypes
import operator
from threading import Lock
from typing import Any

import torch
from torch import nn

from regard.backends.native.program import Panels, Program, library_of_programs
from regard.layers.packed import PackedLinear

WIDTH = 64  # outputs of a panel


def panels_of(linear: PackedLinear) -> Panels | None:
    """The packed weight of a layer in panels; None if its numbers lie in another order."""
    packed = linear.weight
    outputs, inputs = linear.out_features, linear.in_features
    operations: Any = torch.ops.mkldnn
    is_read = hasattr(operations, "data_ptr") and hasattr(operations, "_nbytes")
    if not is_read or linear.dtype != torch.float32 or outputs % WIDTH:
        return None
    address, byte_count = operations.data_ptr(packed), operations._nbytes(packed)
    if byte_count != outputs * inputs * 4:
        return None
    plain = packed.detach().to_dense().view(outputs // WIDTH, WIDTH, inputs)
    numbers = (ctypes.c_float * (outputs * inputs)).from_address(address)
    panels = torch.frombuffer(numbers, dtype=torch.float32).view(-1, inputs, WIDTH)
    if not torch.equal(panels, plain.transpose(1, 2)):
        return None
    return Panels(address, outputs, inputs, WIDTH)


class LayerProgram:
    """The two programs of a layer, for few rows; `LayerProgram.of` makes them.

    The first, `heads`, computes queries, keys and values. The second, `outputs`, computes what follows attention. Both
    run in the thread that calls them.

    Args:
        parts: has the modules `query`, `key`, `value`, `mix`, `mixed_norm`, `widen`, `narrow` and `norm`.
    """

    def __init__(self, parts: Any, panels: list[Panels], activation: str, library: Any) -> None:
        query, key, value, mix, widen, narrow = panels
        self._linears: list[PackedLinear] = [*parts.linears()]
        self._addresses = [matrix.address for matrix in panels]
        self._dicts = [
            module._parameters for module in (*self._linears, parts.mixed_norm, parts.norm)
        ]
        self._parameters = self._parameters_now()
        self._norms: list[nn.LayerNorm] = [parts.mixed_norm, parts.norm]
        self._epsilons = [norm.eps for norm in self._norms]
        self._lock = Lock()

        before = Program(library)
        self._x = before.buffer(query.inputs)
        self._heads = [
            before.buffer(width) for width in (query.outputs, key.outputs, value.outputs)
        ]
        for matrix, linear, into in zip(
            (query, key, value), self._linears, self._heads, strict=False
        ):
            before.project_panels(self._x, into, matrix, linear.bias)
        self._before = before

        behind = Program(library)
        self._mixed = behind.buffer(mix.inputs)
        self._y = behind.buffer(mix.outputs)
        self._hidden = behind.buffer(widen.outputs)
        behind.project_panels(self._mixed, self._y, mix, parts.mix.bias, adds=True)
        self._add_norm(behind, parts.mixed_norm)
        behind.project_panels(self._y, self._hidden, widen, parts.widen.bias)
        behind.activate(self._hidden, activation)
        behind.project_panels(self._hidden, self._y, narrow, parts.narrow.bias, adds=True)
        self._add_norm(behind, parts.norm)
        self._behind = behind

    @classmethod
    def of(cls, parts: Any, activation: str) -> LayerProgram | None:
        """The programs of a layer; None where the library cannot read its weights."""
        library = library_of_programs()
        if library is None:
            return None
        panels = [panels_of(linear) for linear in parts.linears()]
        query, _, value, mix, widen, narrow = panels
        if query is None or value is None or mix is None or widen is None or narrow is None:
            return None
        if (mix.outputs, narrow.outputs, widen.inputs) != (query.inputs,) * 3:
            return None
        if mix.inputs != value.outputs or narrow.inputs != widen.outputs:
            return None
        made = cls(parts, [matrix for matrix in panels if matrix is not None], activation, library)
        return made if made._before.finish() and made._behind.finish() else None

    def _add_norm(self, program: Program, norm: nn.LayerNorm) -> None:
        program.norm(self._y, self._y, norm.weight, norm.bias, norm.eps)

    def _parameters_now(self) -> list[Any]:
        return [parameter for held in self._dicts for parameter in held.values()]

    def begin(self) -> bool:
        """Take the programs for this thread; after True the caller has to call `end`.

        Returns:
            False if another thread has them, or if the layer no longer has the weights that they read.
        """
        if not self._lock.acquire(blocking=False):
            return False
        parameters = self._parameters_now()
        addresses = [torch.ops.mkldnn.data_ptr(linear.weight) for linear in self._linears]
        if (
            len(parameters) == len(self._parameters)
            and all(map(operator.is_, parameters, self._parameters))
            and addresses == self._addresses
            and [norm.eps for norm in self._norms] == self._epsilons
            and self._before.follow_weights()
            and self._behind.follow_weights()
        ):
            return True
        self._lock.release()
        return False

    def end(self) -> None:
        """Let other threads use the programs."""
        self._lock.release()

    def heads(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Queries, keys and values, (rows, width) each, of a contiguous x (rows, dim)."""
        program = self._before
        program.give(self._x, x)
        outputs = [torch.empty(len(x), program.width(buffer)) for buffer in self._heads]
        for buffer, output in zip(self._heads, outputs, strict=True):
            program.give(buffer, output)
        program.run(len(x), 0)
        return outputs

    def outputs(self, mixed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The outputs of the layer (rows, dim).

        Args:
            mixed: the outputs of its attention (rows, width), contiguous.
            x: the input of the layer (rows, dim), contiguous.
        """
        y = x.clone()
        program = self._behind
        program.give(self._mixed, mixed)
        program.give(self._y, y)
        program.run(len(x), 0)
        return y
