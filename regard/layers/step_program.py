"""A step of a simple attention layer with a cache as one program: projections, positions, attention and output.

For a small layer, the calls of PyTorch take longer than the computation. The program computes the same formulas in
float32, with sums in another order than PyTorch's.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from regard.backends.native.bands import entries_before
from regard.backends.native.program import Attending, HeadSizes, Program, library_of_programs
from regard.functional.measured import is_unwatched
from regard.layers.caches import Cache
from regard.layers.projection import Projection, hooks_of_all_modules, needs_call
from regard.patterns import Pattern
from regard.positions import Rotary

MOST_ROWS = 24  # PyTorch multiplies more in less time
MOST_WEIGHTS = 1 << 21  # of a layer; PyTorch multiplies by more with several threads
PROJECTIONS = ("to_q", "to_k", "to_v", "to_output")


def is_computed(layer: Any) -> bool:
    """Whether a program computes the attention of a simple layer, whichever keys it reads."""
    rotary = layer.positions
    return (
        layer.options["backend"] in ("auto", "native")
        and not layer.options["strict"]
        and (rotary is None or rotary.turns_halves(layer.head_dim))
    )


def new_attending(layer: Any) -> Attending:
    """The attention of a layer in a program."""
    scale = layer.options["scale"]
    if scale is None:
        scale = 1 / math.sqrt(layer.head_dim)
    sizes = HeadSizes(layer.heads, layer.kv_heads, layer.head_dim, layer.value_dim)
    return Attending(sizes, scale, layer.options["softcap"])


def turn_to(program: Program, rotary: Rotary, position: int, head_dim: int) -> None:
    """Let a program rotate heads to this position."""
    cos, sin, around = rotary.turns_around(position, head_dim)
    row = position - around.start
    program.rotate_by(cos[row], sin[row])


class StepProgram:
    """The program of a layer. `is_of` says whether the layer has changed since the program was made."""

    def __init__(self, layer: Any, program: Program) -> None:
        self._program = program
        self._linears = [layer._modules[name] for name in PROJECTIONS]
        self._weights = [tuple(linear._parameters.values()) for linear in self._linears]
        self._pattern: Pattern = layer.pattern
        self._rotary: Rotary | None = layer.positions
        self._options = dict(layer.options)
        self._head_dim: int = layer.head_dim
        back = entries_before(layer.pattern)
        assert back is not None
        self._back = back

        self._attending = new_attending(layer)
        self._x = program.buffer(layer.dim)
        self._output = program.buffer(layer.dim)
        queries = program.buffer(layer.heads * layer.head_dim)
        keys = program.buffer(layer.kv_heads * layer.head_dim)
        values = program.buffer(layer.kv_heads * layer.value_dim)
        heads = program.buffer(layer.heads * layer.value_dim)
        to_q, to_k, to_v, to_output = self._linears
        for linear, into in ((to_q, queries), (to_k, keys), (to_v, values)):
            program.project(self._x, into, linear.weight, linear.bias)
        if layer.positions is not None:
            program.rotate(queries, layer.head_dim)
            program.rotate(keys, layer.head_dim)
        program.attend_to_text(queries, keys, values, heads, self._attending, back)
        program.project(heads, self._output, to_output.weight, to_output.bias)

    @classmethod
    def of(cls, layer: Any) -> StepProgram | None:
        """The program of a simple layer; None where there is no library, or the layer computes anything else."""
        library = library_of_programs()
        if library is None or entries_before(layer.pattern) is None or not is_computed(layer):
            return None
        for name in PROJECTIONS:
            linear = layer._modules.get(name)
            if (
                type(linear) is not Projection
                or not {"weight", "bias"} <= linear._parameters.keys()
            ):
                return None
        if sum(weight.numel() for weight in layer.parameters()) > MOST_WEIGHTS:
            return None
        program = Program(library)
        step = cls(layer, program)
        return step if program.finish() else None

    def is_of(self, layer: Any) -> bool:
        """Whether the layer has the modules, weights and options that it had when this program was made."""
        if layer.pattern is not self._pattern or layer.positions is not self._rotary:
            return False
        if layer.options != self._options:
            return False
        for name, linear, weights in zip(PROJECTIONS, self._linears, self._weights, strict=True):
            if layer._modules.get(name) is not linear:
                return False
            for weight, own in zip(linear._parameters.values(), weights, strict=True):
                if weight is not own:
                    return False
        return True

    def is_watched(self) -> bool:
        """Whether the projections have to be called, because of hooks, compilers or another `forward`."""
        return hooks_of_all_modules() or any(map(needs_call, self._linears))

    def run(self, layer: Any, x: torch.Tensor, cache: Cache) -> torch.Tensor | None:
        """The output (batch, 1, dim) for x (batch, 1, dim), which the cache then holds; None if it is not finite."""
        program = self._program
        if not program.follow_weights():
            return None
        if self._rotary is not None:
            turn_to(program, self._rotary, cache.length, self._head_dim)
        held = cache.reserve()
        if held is None or (held.dropped and self._back >= held.entries):
            return None
        keys = held.planes["k"]
        if keys.device.type != "cpu":
            return None
        self._attending.read_text(keys, held.planes["v"])
        output = torch.empty_like(x)
        program.give(self._x, x)
        program.give(self._output, output)
        if not program.run(len(x), held.stop - 1):
            return None
        cache.hold(held)
        cache.belong_to(layer)
        return output


# Programs that no call is using, by layer; None for a layer without a program. A call takes one by
# `pop`, which is atomic, and puts it back when it has finished.
_SPARE: weakref.WeakKeyDictionary[Any, list[StepProgram | None]] = weakref.WeakKeyDictionary()


def step_by_program(layer: Any, x: torch.Tensor, cache: Cache) -> torch.Tensor | None:
    """A step of a simple layer for one vector of each text; None where PyTorch has to compute it, or must see it."""
    is_step = x.shape[1] == 1 and 0 < len(x) <= MOST_ROWS
    if not is_step or not cache.reserves or cache.dtype != torch.float32 or cache.batch != len(x):
        return None
    is_plain = type(x) is torch.Tensor and x.dtype == torch.float32 and x.device.type == "cpu"
    if not is_plain or not x.is_contiguous() or x.is_neg() or torch.is_grad_enabled():
        return None
    if torch.is_autocast_enabled("cpu") or not is_unwatched():
        return None
    if layer.recordings or (layer.training and layer.dropout):
        return None

    spare = _SPARE.get(layer)
    if spare is None:
        spare = _SPARE.setdefault(layer, [])
    try:
        step = spare.pop()
    except IndexError:
        step = StepProgram.of(layer)
    if step is not None and not step.is_of(layer):
        step = StepProgram.of(layer)
    output = None if step is None or step.is_watched() else step.run(layer, x, cache)
    spare.append(step)
    return output
