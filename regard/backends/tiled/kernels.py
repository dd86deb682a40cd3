"""The native kernel in place of fused calls: a whole program, or a residue class, in one call without masks.

A program with residues gains by this: the kernel computes the pairs near the diagonal by their band, and each residue
class on strided views of the tensors. Without the library, and for a bias, `execution` makes the fused calls of groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from regard.backends import flash
from regard.backends.native.backend import PACE
from regard.backends.native.kernel import Kernel
from regard.backends.native.library import Library, load
from regard.backends.tiled.program import Program
from regard.core.backend import Operands
from regard.core.problem import Problem


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of the programs of one problem, made when they are first used."""

    library: Library
    problem: Problem
    known: dict[tuple[int, tuple[int, ...]], Kernel] = field(default_factory=dict)

    def forward(
        self, program: Program, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp over the pattern of a program's groups.

        Args:
            program: its pattern and grid say what is computed; its groups are not read.
            q: (batch, heads, rows of the grid, head_dim).
            k: (batch, kv_heads, keys of the grid, head_dim).
            v: (batch, kv_heads, keys of the grid, v_dim).
        """
        operands = Operands(q, k, v, None, program.grid, 0)
        kernel = self._of(program, q, k)
        return kernel.compute(operands, kernel.wide, summed=True)[:2]

    def backward(self, program: Program, saved: flash.Saved) -> tuple[torch.Tensor, ...]:
        """Gradients of q, k and v."""
        operands = Operands(saved.q, saved.k, saved.v, None, program.grid, 0)
        return self._of(program, saved.q, saved.k).backward(operands, saved)

    def _of(self, program: Program, q: torch.Tensor, k: torch.Tensor) -> Kernel:
        name = id(program), (q.shape[0], q.shape[1], k.shape[1])
        if (found := self.known.get(name)) is None:
            grid = program.grid
            problem = replace(
                self.problem, batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], q_len=grid.q_len,
                k_len=grid.k_len, pattern=program.answers.pattern, q_start=grid.q_start, dtype=q.dtype,
                storage=k.dtype, want=(), sink=None, sink_learns=False,
            )  # fmt: skip
            found = self.known[name] = Kernel(self.library, problem)
        return found


def kernels_for(problem: Problem) -> Kernels | None:
    """The kernels for a problem, or None where fused calls compute it."""
    library = load()
    if isinstance(library, str) or problem.device != "cpu" or problem.bias is not None:
        return None
    return Kernels(library, problem)


def pace_of(kernels: Kernels | None) -> float:
    """The time of an operation relative to that of the fused calls."""
    if kernels is None or kernels.problem.dtype == torch.float64:
        return 1.0
    return PACE[kernels.library.instructions]
