"""The gated delta, Kimi delta and Mamba-2 layers of hybrid models, computed by regard's recurrent mechanisms.

The code of such a layer calls a function by its name: one for a text, one for a token. A layer gets a class with the
same code, in which these names mean the functions below. Projections, convolutions, norms and caches stay the layer's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from functools import cache, wraps
from types import CellType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from regard.backends.native.recurrence import engine_on
from regard.backends.recurrence import PLAIN, RecurrenceInputs, Rule, scan
from regard.core.plan import AttentionDetail
from regard.core.result import Result
from regard.errors import UnsupportedError
from regard.functional.api import plan_attention
from regard.integrations.transformers.attending import ModuleCall, watchers
from regard.integrations.transformers.modules import RECURRENCES, RECURRING, recurs
from regard.mechanisms.recurrent import SSD, GatedDelta, KimiDelta, Recurrent
from regard.patterns import Causal

__all__ = ["exchange_recurrent", "recurrence", "restore_recurrent"]

NORM = 1e-6  # added to the squared length of queries and keys
# the output, and the memory after the last position
Both = tuple[torch.Tensor, torch.Tensor | None]
_running: ContextVar[nn.Module | None] = ContextVar("running", default=None)


def recurrence(
    mechanism: Recurrent,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    parameters: dict[str, torch.Tensor],
    memory: torch.Tensor | None,
    *,
    scale: float,
    keeps: bool,
    unit: float = 0.0,
    module: nn.Module | None = None,
) -> Both:
    """The output (batch, heads, n, v_dim) of a layer, and the memory (batch, heads, head_dim, v_dim) if it is kept.

    memory: the one before the first position; None for zeros. unit: as in `Rule`. module: which is watched; the running
        one by default.
    """
    engine = PLAIN if torch.compiler.is_compiling() else engine_on(v)
    wide = torch.promote_types(v.dtype, torch.float32)
    if engine is PLAIN:
        q, k, v = (x.to(wide) for x in (q, k, v))
    before = (
        v.new_zeros(*v.shape[:2], k.shape[3], v.shape[3], dtype=wide)
        if memory is None
        else memory.to(wide)
    )
    device = q.device.type
    with (
        torch.autocast(device, enabled=False)
        if torch.is_autocast_enabled(device)
        else nullcontext()
    ):
        inputs = RecurrenceInputs(q, k, v, *mechanism.gates(parameters, k, v), before)
        output, after = scan(engine, Rule(mechanism.corrects, scale, unit), inputs)
    if not torch.compiler.is_compiling() and (watching := watchers.get()):
        module = _running.get() if module is None else module
        call = ModuleCall(Causal(), 0, mechanism=mechanism, scale=scale)
        name = "linear" if engine is PLAIN else "native"
        for one in watching:
            if module is not None and one.wants(module) is not None:
                q, k, v = (x.to(wide) for x in (q, k, v))
                plan = plan_attention(
                    q, k, v, backend=name, parameters=parameters, **call.options()
                )
                output = one.take(module, call, AttentionDetail(Result(output), plan), output)
    return output, after if keeps else None


def _delta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **others: Any,
) -> Both:
    """A delta rule as flash-linear-attention calls it: (batch, n, heads, ...), g the log decays by head or channel."""
    _refuse(others)
    mechanism = GatedDelta() if g.dim() == 3 else KimiDelta()
    q, k, v, log_decay, strength = (x.transpose(1, 2) for x in (query, key, value, g, beta))
    parameters = {"log_decay": log_decay, "strength": strength}
    scale = q.shape[-1] ** -0.5
    unit = NORM if use_qk_l2norm_in_kernel else 0.0
    output, memory = recurrence(
        mechanism,
        q,
        k,
        v,
        parameters,
        initial_state,
        scale=scale,
        keeps=output_final_state,
        unit=unit,
    )
    return output.transpose(1, 2).to(query.dtype).contiguous(), memory


def _ssd(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    *,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    initial_states: torch.Tensor | None = None,
    return_final_states: bool = False,
    **others: Any,
) -> Any:
    """Mamba-2 over a text as mamba-ssm calls it: hidden_states (batch, n, heads, v_dim), B and C for groups of heads.

    Its states are (batch, heads, v_dim, head_dim), the transpose of a memory.
    """
    _refuse(others)
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    dt = (functional.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    wide = torch.promote_types(hidden_states.dtype, torch.float32)
    x = hidden_states.to(wide)
    step = dt.to(wide)
    q, k, v, log_decay, strength = (
        one.transpose(1, 2).to(wide) for one in (C, B, x, A.to(wide) * step, step)
    )
    memory = None if initial_states is None else initial_states.mT
    parameters = {"log_decay": log_decay, "strength": strength}
    output, memory = recurrence(
        SSD(), q, k, v, parameters, memory, scale=1.0, keeps=return_final_states
    )
    output = (
        output.transpose(1, 2) if D is None else output.transpose(1, 2) + D.to(wide)[:, None] * x
    )
    return output.contiguous() if memory is None else (output.contiguous(), memory.mT)


def _ssd_step(
    state: torch.Tensor,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    *,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    z: torch.Tensor | None = None,
    **others: Any,
) -> torch.Tensor:
    """Mamba-2 over one token, (batch, heads, v_dim); the state is changed in place. dt, A and D repeat those of heads.

    z: multiplies the output, (batch, heads, v_dim), through SiLU.
    """
    x, step, b, c = (one[:, None] for one in (hidden_states, dt[..., 0], B, C))
    skip, bias = (None if one is None else one[:, 0] for one in (D, dt_bias))
    options: dict[str, Any] = {
        "D": skip,
        "dt_bias": bias,
        "dt_softplus": dt_softplus,
        "initial_states": state,
    }
    output, after = _ssd(
        x, step, A[:, 0, 0], b, c, 1, return_final_states=True, **options, **others
    )
    state.copy_(after)
    output = output[:, 0] if z is None else output[:, 0] * functional.silu(z)
    return output.to(hidden_states.dtype)


def _refuse(others: dict[str, Any]) -> None:
    for name, what in (
        ("cu_seqlens", "packed texts"),
        ("seq_idx", "packed texts"),
        ("z", "a gate inside"),
    ):
        if others.get(name) is not None:
            raise UnsupportedError(
                f"a recurrent layer is called with {name}= ({what}), which regard does not compute; detach(model), or "
                f"give one text in each batch row"
            )


FUNCTIONS: dict[str, Callable[..., Any]] = dict(
    zip(RECURRENCES, (*4 * (_delta,), _ssd, _ssd_step), strict=True)
)


# --- the classes of layers ---


def exchange_recurrent(model: nn.Module) -> None:
    """Give the recurrent layers of a model the classes that regard computes."""
    for module in model.modules():
        if recurs(module):
            module.__class__ = _exchanged(type(module))


def restore_recurrent(model: nn.Module) -> None:
    """The opposite of `exchange_recurrent`."""
    for module in model.modules():
        if type(module).__module__ == RECURRING:
            module.__class__ = type(module).__mro__[1]


@cache
def _exchanged(kind: Any) -> type[nn.Module]:
    """The subclass whose code calls the functions above."""
    theirs = _with_functions(kind.forward)

    @wraps(theirs)
    def forward(self: nn.Module, *args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling() or not watchers.get():
            return theirs(self, *args, **options)
        token = _running.set(self)
        try:
            return theirs(self, *args, **options)
        finally:
            _running.reset(token)

    def reduced(
        self: nn.Module, protocol: Any
    ) -> Any:  # pickle cannot find a class that was made here
        return _unpickled, (kind,), self.__dict__

    members = {
        "forward": forward,
        "__reduce_ex__": reduced,
        "__module__": RECURRING,
        "__doc__": kind.__doc__,
    }
    return type(f"Regard{kind.__name__}", (kind,), members)


def _unpickled(kind: type[nn.Module]) -> nn.Module:
    return object.__new__(_exchanged(kind))


def _with_functions(function: Any) -> FunctionType:
    """The function, also inside its decorators, with the names of `FUNCTIONS` bound to those of regard."""
    held = dict(function.__dict__)
    names = function.__globals__
    cells = function.__closure__
    if (inner := held.get("__wrapped__")) is None:
        names = {**names, **FUNCTIONS}
    else:
        held["__wrapped__"] = _with_functions(inner)
        cells = tuple(
            CellType(held["__wrapped__"]) if one.cell_contents is inner else one for one in cells
        )
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(held)
    return made
