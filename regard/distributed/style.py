"""Layers of attention inside a model whose sequence is divided among processes, as a style of `parallelize_module`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from regard.arguments import kind_of
from regard.distributed.api import attention
from regard.distributed.group import Group, about_weights, agree, refuse_together
from regard.distributed.layout import Layout
from regard.distributed.needs import Needs
from regard.errors import ArgumentError, UnsupportedError
from regard.layers import MultiHeadAttention
from regard.layers.recording import current_recording


class ContextParallel(ParallelStyle):
    """Makes a `MultiHeadAttention` attend over the positions of all processes; other layers see only their own part.

    Rotary positions are those of the whole sequence; so are those of a pattern or bias that is given to the layer's
    call. Weights are the same on every process, which the first call checks. The gradients on each process are its
    part of the sum: add them over the processes (DistributedDataParallel also divides the sum by their number).

    Args:
        layout: "contiguous" or "zigzag": how the vectors that the layer gets are divided.
        form: as for `regard.distributed.attention`.

    Raises:
        ArgumentError: a module that is no MultiHeadAttention, or an unknown layout or form; in the first call,
            weights that differ between processes.
        UnsupportedError: in a call, with a context, a cache or a recording.

    >>> from torch.distributed.tensor.parallel import parallelize_module
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun starts several
    >>> mesh = init_device_mesh("cpu", (1,))
    >>> model = nn.Sequential(MultiHeadAttention(dim=32, heads=4, pattern="causal"), nn.Linear(32, 32))
    >>> model = parallelize_module(model, mesh, {"0": ContextParallel(layout="zigzag")})
    >>> model(torch.zeros(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    >>> dist.destroy_process_group()
    """

    def __init__(self, layout: str = "contiguous", form: str = "auto") -> None:
        Layout(layout, (0,))
        Needs.check_form(form)
        self.layout, self.form = layout, form

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if type(module) not in (MultiHeadAttention, SharedAttention):
            raise ArgumentError(
                f"ContextParallel is for MultiHeadAttention itself and was given {kind_of(module)}; name the attention "
                f"layers in the plan, such as 'layers.*.attention', before another style or FSDP2 divides them"
            )
        module.__class__ = SharedAttention
        assert isinstance(module, SharedAttention)
        module.shared, module.agreed = (Group.of(device_mesh), device_mesh, self.layout, self.form), False
        return module

    def __repr__(self) -> str:
        return f"ContextParallel(layout={self.layout!r}, form={self.form!r})"


class SharedAttention(MultiHeadAttention):
    """What `ContextParallel` makes of a MultiHeadAttention; its weights, names and state are the same."""

    shared: tuple[Group, Any, str, str]
    agreed: bool  # whether the weights are known to be those of the other processes
    asked: list[Layout]  # of the call that is computed: how its positions are divided, once the processes agreed
    refuses_alone: bool  # whether a failure here is one that the other processes do not know of

    def forward(self, x: Any, *inputs: Any, **options: Any) -> torch.Tensor:
        """This process's part (batch, length, dim) -> (batch, length, dim)."""
        self.shared[0].begin()
        self.asked, self.refuses_alone = [], True
        if not self.agreed:
            self._agree_on_weights(x)
        try:
            return super().forward(x, *inputs, **options)
        except Exception as error:
            if self.refuses_alone:
                refuse_together(self.shared[0], self.shared[0].device_for(x), error)
            raise

    def _agree_on_weights(self, x: Any) -> None:
        """Raise an ArgumentError on every process if their weights differ, for example because their seeds do."""
        group = self.shared[0]
        agree(group, 0, 0, False, 0, [about_weights(self.parameters())], group.device_for(x))
        self.agreed = True

    def _rotated(self, heads: torch.Tensor, start: int | torch.Tensor) -> torch.Tensor:
        if self.positions is None:
            return heads
        group, _, layout, _ = self.shared
        if not self.asked:
            self.refuses_alone = False
            words = [f"positions {self.positions}", f"batch {len(heads)}", f"layout {layout}"]
            held = heads.shape[2]
            lengths = agree(group, held, held, False, 0, words, group.device_for(heads)).q_lengths
            self.asked.append(Layout(layout, lengths))
            self.refuses_alone = True
        places = self.asked[0].positions(group.rank).to(heads.device)
        first = start[:, None].to(heads.device) if isinstance(start, torch.Tensor) else start
        return self.positions.rotate(heads, places + first)

    def _attend(self, q: Any, k: Any, v: Any, pattern: Any, bias: Any, q_start: Any, gate: Any) -> torch.Tensor:
        if current_recording(self) is not None:
            raise UnsupportedError("a layer over several processes records nothing; record it on one process")
        _, mesh, layout, form = self.shared
        options: dict[str, Any] = {**self.options, "pattern": pattern, "bias": bias, "q_start": q_start}
        options |= {**self.mechanism.options(gate), "dropout": self.dropout if self.training else 0.0}
        self.refuses_alone = False
        return attention(q, k, v, mesh, layout=layout, form=form, sink=self.sinks, **options)

    def _check(self, x: Any, context: Any, cache: Any) -> None:
        super()._check(x, context, cache)
        if context is not None or cache is not None:
            raise UnsupportedError(
                "a layer over several processes attends to its own sequence, without a context and without a cache; "
                "regard.distributed.attention takes q, k and v of two sequences"
            )
