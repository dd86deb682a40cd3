"""Attention layers of a model over a sequence that several processes share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from regard.arguments import kind_of
from regard.distributed.agreement import Announcement, agree, refuse_together
from regard.distributed.api import Division, attention
from regard.distributed.contents import about_weights
from regard.distributed.group import Group
from regard.distributed.layout import Layout, check_division
from regard.errors import ArgumentError, UnsupportedError
from regard.functional.jagged import is_nested
from regard.layers import LatentAttention, MultiHeadAttention
from regard.layers.attending import AttentionLayer
from regard.layers.recording import current_recording


class ContextParallel(ParallelStyle):
    """Makes an attention layer attend over the positions of all processes; other layers see only their own part.

    Rotary positions are those of the whole sequence; so are those of a pattern or bias that is given to the layer's
    call. Weights are the same on every process, which the first call checks. The gradients on each process are its
    part of the sum: add them over the processes (DistributedDataParallel also divides the sum by their number).

    Args:
        layout: "contiguous" or "zigzag": how the vectors that the layer gets are divided.
        form: as for `regard.distributed.attention`.

    Raises:
        ArgumentError: another module than a MultiHeadAttention or LatentAttention, or an unknown layout or form; in the
            first call, weights that differ between processes.
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
        check_division(layout, form)
        self.layout = layout
        self.form = form

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if type(module) not in (*SHARED, *SHARED.values()):
            names = " or ".join(layer.__name__ for layer in SHARED)
            raise ArgumentError(
                f"ContextParallel is for {names} itself and was given "
                f"{kind_of(module)}; name the attention layers in the plan, such as 'layers.*.attention', before "
                f"another style or FSDP2 divides them"
            )
        if module.chooser is not None:
            raise UnsupportedError(
                "ContextParallel divides positions, and a chooser compares all of them; leave it out"
            )

        module.__class__ = SHARED.get(type(module), type(module))
        assert isinstance(module, LayerOverProcesses)
        module.division = Division(device_mesh, self.layout, self.form)
        module.group = Group.of(device_mesh)
        module.weights_agreed = False
        return module

    def __repr__(self) -> str:
        return f"ContextParallel(layout={self.layout!r}, form={self.form!r})"


class LayerOverProcesses(AttentionLayer):
    """What `ContextParallel` makes of an attention layer; its weights, names and state are the same.

    weights_agreed: whether the weights are known to be those of the other processes.
    layout_of_call: how the positions of the present call are divided, once the processes agreed.
    fails_alone: whether a failure now is one that the other processes do not know of.
    """

    group: Group
    division: Division
    weights_agreed: bool
    layout_of_call: Layout | None
    fails_alone: bool

    def forward(self, x: Any, *inputs: Any, **options: Any) -> torch.Tensor:
        group = self.group
        device = group.device_for(x)
        group.begin()
        self.layout_of_call = None
        self.fails_alone = True
        if not self.weights_agreed:
            agree(group, device, Announcement([about_weights(self.parameters())]))
            self.weights_agreed = True

        others = (*inputs, options.get("context"), options.get("cache"))
        try:
            if is_nested(x) or any(other is not None for other in others):
                raise UnsupportedError(
                    "a layer over several processes attends to its own dense sequence, without a context and "
                    "without a cache; regard.distributed.attention takes q, k and v of two sequences"
                )
            return super().forward(x, *inputs, **options)
        except Exception as error:
            if self.fails_alone:
                refuse_together(group, device, error)
            raise

    def _rotate(
        self, heads: torch.Tensor, start: int | torch.Tensor, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        # `positions` are given for the tokens of this process.
        if self.positions is None or positions is not None:
            return super()._rotate(heads, start, positions)

        places = self._layout_for(heads).positions(self.group.rank).to(heads.device)
        first = start[:, None].to(heads.device) if isinstance(start, torch.Tensor) else start
        return self.positions.rotate(heads, places + first)

    def _layout_for(self, heads: torch.Tensor) -> Layout:
        """How the positions of the present call are divided; the processes agree on it when it is first asked for."""
        if self.layout_of_call is None:
            layout = self.division.layout
            words = [f"positions {self.positions}", f"batch {len(heads)}", f"layout {layout}"]
            announcement = Announcement(words, q_len=heads.shape[2])
            self.fails_alone = False
            agreed = agree(self.group, self.group.device_for(heads), announcement)
            self.layout_of_call = Layout(layout, agreed.q_lengths)
            self.fails_alone = True
        return self.layout_of_call

    def _attend(
        self, q: Any, k: Any, v: Any, pattern: Any, bias: Any, q_start: Any, gate: Any = None
    ) -> torch.Tensor:
        if current_recording(self) is not None:
            raise UnsupportedError(
                "a layer over several processes records nothing; record it on one process"
            )

        options: dict[str, Any] = {
            **self.options,
            "pattern": pattern,
            "bias": bias,
            "q_start": q_start,
            "sink": self.sinks,
            "dropout": self.dropout if self.training else 0.0,
            **self.mechanism.options(gate),
        }
        mesh, layout, form = self.division
        self.fails_alone = False
        return attention(q, k, v, mesh, layout=layout, form=form, **options)


class SharedAttention(LayerOverProcesses, MultiHeadAttention):
    """A MultiHeadAttention over the positions of all processes."""


class SharedLatentAttention(LayerOverProcesses, LatentAttention):
    """A LatentAttention over the positions of all processes; "auto" is expanded, alike on all of them."""

    def _compute_heads(
        self, q: Any, latents: Any, values: Any, pattern: Any, bias: Any, q_start: Any, form: str
    ) -> torch.Tensor:
        form = "expanded" if form == "auto" else form
        return super()._compute_heads(q, latents, values, pattern, bias, q_start, form)


SHARED: dict[type, type] = {
    MultiHeadAttention: SharedAttention,
    LatentAttention: SharedLatentAttention,
}
