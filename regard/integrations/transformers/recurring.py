"""The gated delta, Kimi delta and Mamba-2 layers of hybrid models, computed by regard's recurrent mechanisms.

The code of such a layer calls a function by its name: one for a text, one for a token. A layer gets a class with the
same code, in which these names mean the functions below. Projections, norms and caches stay the layer's, and so do
convolutions, unless a batch row holds several documents (`packed`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2FN

from regard.arguments import count_of
from regard.backends.native.recurrence import engine_on
from regard.backends.recurrence import PLAIN, RecurrenceInputs, Rule, scan, scan_texts
from regard.core.plan import AttentionDetail
from regard.core.result import Result
from regard.errors import ShapeError, UnsupportedError
from regard.exporting import exporting
from regard.functional.api import plan_attention
from regard.functional.compiled_recurrence import traced_recurrence
from regard.integrations.rebinding import with_functions
from regard.integrations.transformers.attending import ModuleCall, watchers
from regard.integrations.transformers.caches import cache_among
from regard.integrations.transformers.modules import (
    CONVOLUTION,
    RECURRENCES,
    RECURRING,
    convolves,
    recurrences,
    recurs,
)
from regard.integrations.transformers.packed import CACHES, DOCUMENTS, DocumentsOfPass
from regard.integrations.transformers.rewinding import (
    recording,
    recording_layer,
    shifts_inputs,
    tape_of_call,
)
from regard.mechanisms.recurrent import SSD, GatedDelta, KimiDelta, Recurrent
from regard.patterns import Causal, Pattern, SameDocument

__all__ = ["RecurrentCall", "compute_recurrence", "exchange_recurrent", "restore_recurrent"]

NO_DOCUMENT = -2  # of positions before the first key
NORM = 1e-6  # added to the squared length of queries and keys
# Keywords that would change the result of a call, and what they ask for; they are refused. Those of packed texts are
# not, if a layer got the same documents from `packed`.
PACKED = {"cu_seqlens": "packed texts", "seq_idx": "packed texts"}
REFUSED = {"z": "a gate inside"}
# The output, and the memory after the last position.
OutputAndMemory = tuple[torch.Tensor, torch.Tensor | None]
_running: ContextVar[nn.Module | None] = ContextVar("running", default=None)


class RecurrentCall(NamedTuple):
    """The call of a recurrent layer, by heads (batch, heads, n, ...).

    memory: (batch, heads, head_dim, v_dim) before the first position; None for zeros. unit: as in `Rule`.
    begins: (batch, n), True where a document begins, without a memory; None if each batch row goes on.
    """

    mechanism: Recurrent
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    parameters: dict[str, torch.Tensor]
    memory: torch.Tensor | None
    scale: float
    unit: float = 0.0
    begins: torch.Tensor | None = None

    def in_dtype(self, dtype: torch.dtype) -> RecurrentCall:
        return self._replace(q=self.q.to(dtype), k=self.k.to(dtype), v=self.v.to(dtype))


def compute_recurrence(
    call: RecurrentCall, *, keeps_memory: bool, module: nn.Module | None = None
) -> OutputAndMemory:
    """The output (batch, heads, n, v_dim) of a layer, and the memory (batch, heads, head_dim, v_dim) if it is kept.

    module: the one that is watched; the running one by default.
    """
    is_compiling = torch.compiler.is_compiling()
    engine = PLAIN if is_compiling else engine_on(call.v)
    dtype = torch.promote_types(call.v.dtype, torch.float32)
    if engine is PLAIN:
        call = call.in_dtype(dtype)
    q, k, v = call.q, call.k, call.v
    shape = (*v.shape[:2], k.shape[3], v.shape[3])
    if call.memory is None:
        memory = v.new_zeros(shape, dtype=dtype)
    elif not is_compiling and call.memory.shape != shape:
        # The kernel trusts this shape, and a cache of other texts may be given by mistake.
        raise ShapeError(
            f"a recurrent layer got a memory {tuple(call.memory.shape)} from its cache, and this call of "
            f"{count_of(v.shape[0], 'batch rows')} needs {tuple(shape)}; give the cache of these texts, or none"
        )
    else:
        memory = call.memory.to(dtype)

    with _without_autocast(q.device.type):
        inputs = RecurrenceInputs(q, k, v, *call.mechanism.gates(call.parameters, k, v), memory)
        rule = Rule(call.mechanism.corrects, call.scale, call.unit)
        if not is_compiling:
            _record(call, rule, inputs)
        if is_compiling and not exporting():
            output, after = traced_recurrence(rule, inputs, call.begins)
        elif call.begins is None:
            output, after = scan(engine, rule, inputs)
        else:
            output, after = scan_texts(engine, rule, inputs, call.begins)
    if not is_compiling and watchers.get():
        module = _running.get() if module is None else module
        backend = "linear" if engine is PLAIN else "native"
        output = _show(call.in_dtype(dtype), output, backend, module)
    return output, after if keeps_memory else None


def _record(call: RecurrentCall, rule: Rule, inputs: RecurrenceInputs) -> None:
    tape = tape_of_call.get()
    if tape is not None:
        # The memories of Mamba-2 are transposed in caches of transformers, see `_ssd`.
        tape.note(rule, inputs, transposed=isinstance(call.mechanism, SSD))


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _show(
    call: RecurrentCall, output: torch.Tensor, backend: str, module: nn.Module | None
) -> torch.Tensor:
    """Show a call to the watchers of its module; the output, which they may have changed."""
    for watcher in watchers.get():
        if module is None or watcher.wants(module) is None:
            continue
        pattern: Pattern = Causal()
        if call.begins is not None:
            pattern = pattern & SameDocument(call.begins.to(torch.int64).cumsum(-1))
        shown = ModuleCall(pattern, 0, mechanism=call.mechanism, scale=call.scale)
        plan = plan_attention(
            call.q,
            call.k,
            call.v,
            backend=backend,
            parameters=call.parameters,
            **shown.options(),
        )
        output = watcher.take(module, shown, AttentionDetail(Result(output), plan), output)
    return output


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
) -> OutputAndMemory:
    """A delta rule as flash-linear-attention calls it: (batch, n, heads, ...), g the log decays by head or channel."""
    _refuse(others)
    mechanism = GatedDelta() if g.dim() == 3 else KimiDelta()
    q, k, v, log_decay, strength = (x.transpose(1, 2) for x in (query, key, value, g, beta))
    parameters = {"log_decay": log_decay, "strength": strength}
    scale = q.shape[-1] ** -0.5
    unit = NORM if use_qk_l2norm_in_kernel else 0.0
    begins = _beginnings(others)
    call = RecurrentCall(mechanism, q, k, v, parameters, initial_state, scale, unit, begins)
    output, memory = compute_recurrence(call, keeps_memory=output_final_state)
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
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = functional.softplus(dt)
    dtype = torch.promote_types(hidden_states.dtype, torch.float32)
    step = dt.clamp(*dt_limit).to(dtype)
    x = hidden_states.to(dtype)
    q, k, v, log_decay, strength = (
        tensor.transpose(1, 2).to(dtype) for tensor in (C, B, x, A.to(dtype) * step, step)
    )
    parameters = {"log_decay": log_decay, "strength": strength}
    memory = None if initial_states is None else initial_states.mT
    begins = _beginnings(others)
    call = RecurrentCall(SSD(), q, k, v, parameters, memory, scale=1.0, begins=begins)
    output, memory = compute_recurrence(call, keeps_memory=return_final_states)
    output = output.transpose(1, 2)
    if D is not None:
        output = output + D.to(dtype)[:, None] * x
    output = output.contiguous()
    return output if memory is None else (output, memory.mT)


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
    output, after = _ssd(
        hidden_states[:, None],
        dt[:, None, :, 0],
        A[:, 0, 0],
        B[:, None],
        C[:, None],
        1,
        D=None if D is None else D[:, 0],
        dt_bias=None if dt_bias is None else dt_bias[:, 0],
        dt_softplus=dt_softplus,
        initial_states=state,
        return_final_states=True,
        **others,
    )
    state.copy_(after)
    output = output[:, 0]
    if z is not None:
        output = output * functional.silu(z)
    return output.to(hidden_states.dtype)


def _convolve(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    """A short convolution within documents, as causal-conv1d calls it.

    It has no defaults: torch.compile reads those of the function whose place it takes, which has none.
    """
    named: dict[str, Any] = dict(zip(("hidden_states", "weight", "bias"), tensors, strict=False))
    known = ("hidden_states", "weight", "bias", "activation")
    named |= {name: options[name] for name in known if name in options}
    return _convolve_within(options[DOCUMENTS], **named)


def _convolve_within(
    documents: DocumentsOfPass,
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """The convolution (batch, dim, n) in which no position sees those of another document; weight (dim, width).

    The last of the n positions are those of the call; those before come from a cache.
    """
    n = hidden_states.shape[2]
    x = hidden_states.to(weight.dtype)
    ids = _last(documents.ids, n)[:, None]
    width = weight.shape[-1]
    output = x * weight[:, -1:]
    for back in range(1, width):
        shifted = functional.pad(x, (back, 0))[:, :, :n]
        ids_back = functional.pad(ids, (back, 0), value=NO_DOCUMENT)[:, :, :n]
        term = shifted * weight[:, width - 1 - back, None]
        output = output + torch.where(ids_back == ids, term, 0.0)
    if bias is not None:
        output = output + bias[:, None]
    if activation is not None:
        output = ACT2FN[activation](output)
    return output.to(hidden_states.dtype)


def _last(ids: torch.Tensor, n: int) -> torch.Tensor:
    """The documents of the last n positions, (batch, n); NO_DOCUMENT at positions before the first key."""
    if n <= ids.shape[1]:
        return ids[:, ids.shape[1] - n :]
    return functional.pad(ids, (n - ids.shape[1], 0), value=NO_DOCUMENT)


def _beginnings(keywords: dict[str, Any]) -> torch.Tensor | None:
    documents = keywords.get(DOCUMENTS)
    return None if documents is None else documents.begins


def _refuse(keywords: dict[str, Any]) -> None:
    refused = REFUSED if keywords.get(DOCUMENTS) is not None else REFUSED | PACKED
    for name, what in refused.items():
        if keywords.get(name) is not None:
            raise UnsupportedError(
                f"a recurrent layer is called with {name}= ({what}), which regard does not compute; detach(model), or "
                f"give one text in each batch row"
            )


FUNCTIONS: dict[str, Callable[..., Any]] = dict(
    zip(RECURRENCES, (_delta, _delta, _delta, _delta, _ssd, _ssd_step), strict=True)
)
WITHIN_DOCUMENTS = {**FUNCTIONS, CONVOLUTION: _convolve}


# --- the classes of layers ---


def exchange_recurrent(model: nn.Module) -> None:
    """Give the recurrent layers and short convolutions of a model the classes that regard computes."""
    for module in model.modules():
        if recurs(module) or convolves(module):
            module.__class__ = _class_for(type(module))


def restore_recurrent(model: nn.Module) -> None:
    """The opposite of `exchange_recurrent`."""
    for module in model.modules():
        if type(module).__module__ == RECURRING:
            module.__class__ = type(module).__mro__[1]


@cache
def _class_for(kind: Any) -> type[nn.Module]:
    """The subclass whose code calls the functions above."""
    theirs = with_functions(kind.forward, FUNCTIONS)
    within_documents = with_functions(kind.forward, WITHIN_DOCUMENTS)
    has_memory = bool(recurrences(kind))
    shifts = shifts_inputs(kind)

    @wraps(theirs)
    def forward(self: nn.Module, *args: Any, **options: Any) -> Any:
        documents = options.get(DOCUMENTS)
        if documents is None:
            return record(self, args, options)
        documents.readers.append(self)
        _clear_before(self, documents, options)
        output = compute(within_documents, self, args, options)
        _clear_after(self, documents, options)
        return output

    def record(self: nn.Module, args: Any, options: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling() or not has_memory:
            return compute(theirs, self, args, options)
        layer = recording_layer(self, [*args, *options.values()])
        if layer is None:
            return compute(theirs, self, args, options)
        hidden_states = options["hidden_states"] if "hidden_states" in options else args[0]
        with recording(layer, shifts=shifts and hidden_states.shape[1] == 1):
            return compute(theirs, self, args, options)

    def compute(function: Any, self: nn.Module, args: Any, options: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling() or not watchers.get():
            return function(self, *args, **options)
        token = _running.set(self)
        try:
            return function(self, *args, **options)
        finally:
            _running.reset(token)

    # Pickle finds classes by name, and cannot find one that is made here.
    def reduce(self: nn.Module, protocol: Any) -> Any:
        return _new_module, (kind,), self.__dict__

    members = {
        "forward": forward,
        "__reduce_ex__": reduce,
        "__module__": RECURRING,
        "__doc__": kind.__doc__,
    }
    return type(f"Regard{kind.__name__}", (kind,), members)


def _clear_before(module: Any, documents: DocumentsOfPass, options: dict[str, Any]) -> None:
    """Empty the inputs that a cache keeps for a convolution, in batch rows whose first position begins a document."""
    state = _convolved(module, options)
    if state is not None:
        state.masked_fill_(documents.begins[:, 0, None, None], 0)


def _clear_after(module: Any, documents: DocumentsOfPass, options: dict[str, Any]) -> None:
    """Empty the inputs that a cache keeps for a convolution, except those of the last document."""
    state = _convolved(module, options)
    if state is not None:
        ids = _last(documents.ids, state.shape[2])
        state.masked_fill_((ids != ids[:, -1:])[:, None], 0)


def _convolved(module: Any, options: dict[str, Any]) -> torch.Tensor | None:
    """The last inputs of a layer's convolution, (batch, dim, width), which its cache keeps; None without any."""
    cache = cache_among(*(options.get(name) for name in CACHES))
    return None if cache is None else cache.get_conv_state(module.layer_idx, state_idx=0)


def _new_module(kind: type[nn.Module]) -> nn.Module:
    """A module without attributes, which pickle sets."""
    return object.__new__(_class_for(kind))
