"""`attention` inside torch.compile and torch.export: one operation, which the compiler does not trace into.

While a graph is traced, values and perhaps sizes are unknown, so no plan can be made. The graph contains the operation
`regard::attention` with tensors and plain values: a pattern as its text, a bias by distance as its table. When the
operation runs it makes a plan and computes as outside a graph, so that every backend and every length works. The
tensors that a pattern holds are inputs of the operation, and its text names them by their place. So are floats that
the compiler keeps unknown because they changed between two calls: one graph serves all their values. Whole numbers are
constants of the graph; another window compiles another graph.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from operator import index
from typing import Any, ParamSpec, TypeVar

import torch
from torch._functorch import config as functorch_config
from torch._library.utils import get_layout_constraint_tag
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, proxy_call
from torch.utils.checkpoint import CheckpointPolicy

from regard.arguments import as_input, is_unknown, plain, real, yes_or_no
from regard.backends import BACKENDS
from regard.bias import Bias
from regard.core.backend import check_backend
from regard.core.call import Call
from regard.core.newest import Newest
from regard.core.problem import checked_mechanism, checked_q_start, checked_seed, named_parameters
from regard.core.tensors import Place, Stored, is_recorded, refuse_tracing
from regard.errors import ArgumentError, UnsupportedError
from regard.exporting import exporting
from regard.functional.jagged import is_nested
from regard.functional.kept import PLANS
from regard.functional.operation import (
    MAY_LEARN,
    SCHEMA,
    SINGLE,
    OperationOptions,
    OperationTensors,
)
from regard.functional.plain import plain_attention
from regard.mechanisms import Mechanism, Softmax
from regard.mechanisms import parse as parse_mechanism
from regard.patterns import Pattern, as_pattern, parse
from regard.patterns.held import settled
from regard.patterns.registry import Declared, word
from regard.patterns.text import read_together, written_apart

torch.library.define("regard::attention", f"({SCHEMA}) -> Tensor")
torch.library.define("regard::attention_backward", f"(Tensor grad, {SCHEMA}) -> Tensor[]")
torch.library.define(
    "regard::new_seed",
    "(Tensor? dropout=None, *, Device device, int number=0) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_PLACE_OF_NUMBER = re.compile(r"\bnumber_(\d+)\b")
_MOST_HELD = 1 << 20  # numbers in the tensors of a pattern that is kept
_patterns: Newest[tuple[list[torch.Tensor], Pattern]] = Newest(16)
_operation: Any = torch.ops.regard
_SOFTMAX = Softmax()
_AUTOGRAD = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
_AUTOGRAD |= torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
# Not None while torch.compile would compile the next function call, as between two graphs.
compiler_beside: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback
_OUTSIDE = "call attention outside of torch.compile, where this works"

ArgumentsP = ParamSpec("ArgumentsP")
ReturnT = TypeVar("ReturnT")


def uncompiled(
    function: Callable[ArgumentsP, ReturnT], recorded: Callable[ArgumentsP, ReturnT] | None = None
) -> Callable[ArgumentsP, ReturnT]:
    """A function that is never compiled: it is refused inside a graph and runs as it is between graphs.

    `recorded` takes its place while make_fx records; without it the function is refused there.
    """
    # What the compiler made of the function, once it is needed.
    disabled: list[Callable[ArgumentsP, ReturnT]] = []
    name = getattr(function, "__qualname__", "this")

    @wraps(function)
    def call(*args: ArgumentsP.args, **options: ArgumentsP.kwargs) -> ReturnT:
        if torch.compiler.is_compiling():
            raise UnsupportedError(
                f"{name} is not compiled, only attention itself is; call it outside torch.compile, where it works"
            )
        if recorded is not None and is_recorded():
            return recorded(*args, **options)
        refuse_tracing()
        if compiler_beside() is None:  # importing the compiler takes seconds
            return function(*args, **options)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **options)

    return call


def traced_attention(call: Call) -> torch.Tensor:
    """`attention` as a compiler traces it.

    Raises:
        UnsupportedError: what cannot be written into a graph. The compiler then leaves this call out of its graph or,
            with fullgraph=True, stops and quotes the sentence. Other refusals are raised when the
            operation runs.
    """
    _check_traceable(call)
    softcap = _number("softcap", call.softcap)
    scale = _number("scale", call.scale)
    dropout = _number("dropout", call.dropout)
    yes_or_no("strict", call.strict)
    yes_or_no("precise", call.precise)
    if not isinstance(call.backend, str):
        check_backend(call.backend, BACKENDS)
    call = call.cast()
    q: Any = call.q
    k: Any = call.k
    v: Any = call.v
    bias = call.bias
    numbers = UnknownFloats()
    softcap = numbers.option("softcap", softcap)
    scale = numbers.option("scale", scale)
    dropout_seed = _seed_tensor(dropout, call.dropout_seed)
    dropout = numbers.option("dropout", dropout)
    text, held = _write_pattern(call.pattern, numbers.steady)
    mechanism = _write_mechanism(call.mechanism, numbers.steady)

    slots = isinstance(call.q_start, Place)
    first = None  # where it is a number
    starts = None
    if isinstance(call.q_start, Place):
        starts = call.q_start.first
    elif call.q_start is not None:
        start = checked_q_start(call.q_start, q.shape[0])
        if isinstance(start, torch.Tensor):
            starts = start
        else:
            first = start
    lowest = None
    if isinstance(bias, Bias):
        if starts is not None and not slots:
            raise UnsupportedError(
                "a bias by distance together with a tensor of q_start is not compiled: which distances there are is "
                f"known when it runs; give q_start as a number, or {_OUTSIDE}"
            )
        bias, lowest = tabled(bias, q, k, first)
    sink = call.sink
    if not isinstance(sink, torch.Tensor | None):
        sink = _filled_sink(plain("sink", sink), q)
    parameters = named_parameters(call.parameters)
    return _operation.attention(
        q,
        k,
        v,
        bias,
        sink,
        starts,
        dropout_seed,
        held or None,
        [*parameters.values()] or None,
        numbers.tensor(),
        pattern=text,
        mechanism=mechanism,
        names=[*parameters],
        first=first,
        lowest=lowest,
        softcap=softcap,
        scale=scale,
        dropout=0.0 if dropout is None else dropout,
        strict=call.strict,
        backend=call.backend,
        learns=_which_learn(q, k, v, bias, sink, *parameters.values()),
        slots=slots,
        precise=call.precise,
        numbered=" ".join(numbers.options),
    )


def _which_learn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> list[bool]:
    """Which tensors need a gradient; q, k and v need it together."""
    grad = torch.is_grad_enabled()
    learns = [grad and (q.requires_grad or k.requires_grad or v.requires_grad)] * 3
    for x in others:
        learns.append(grad and isinstance(x, torch.Tensor) and x.requires_grad)
    return learns


def _check_traceable(call: Call) -> None:
    """Refuse transforms, tensors, mechanisms and starts that a graph cannot hold."""
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        raise UnsupportedError(
            f"attention inside torch.func or forward_ad is not compiled, nor recorded by make_fx; {_OUTSIDE}"
        )
    if isinstance(call.k, Stored) or isinstance(call.v, Stored):
        raise UnsupportedError(
            f"keys and values as a cache stores them are not compiled; {_OUTSIDE}"
        )
    if is_nested(call.q, call.k, call.v):
        raise UnsupportedError(f"nested tensors are not compiled; {_OUTSIDE}")
    if isinstance(call.q_start, torch.Tensor) and not call.q_start.dim():
        raise UnsupportedError(
            f"q_start as a tensor of one number is not compiled; give a Python number, or {_OUTSIDE}"
        )


def _number(name: str, value: Any) -> Any:
    """A number as the graph keeps it. What a graph cannot keep is refused now; a wrong number is refused as it runs."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, torch.Tensor):
        raise UnsupportedError(
            f"{name} as a tensor is not compiled; give a Python number, or {_OUTSIDE}"
        )
    return real(name, value)


class UnknownFloats:
    """The floats of a call that the compiler keeps unknown, as inputs of the operation."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.options: list[str] = []

    def option(self, name: str, value: Any) -> Any:
        """An option as the graph keeps it; None if it became an input. Options come before texts."""
        if value is None or not is_unknown(value):
            return value
        self.values.append(as_input(value))
        self.options.append(name)
        return None

    def steady(self, value: Any) -> Any:
        """The same declaration as one that can be written: whole numbers are constants of the graph, and the place of
        an unknown float stands for it."""
        if isinstance(value, Declared):
            steady = object.__new__(type(value))
            for name in getattr(value, "__dataclass_fields__", ()):
                object.__setattr__(steady, name, self.steady(getattr(value, name)))
            return steady
        if isinstance(value, tuple):
            return tuple([self.steady(part) for part in value])
        if isinstance(value, range):
            return range(index(value.start), index(value.stop), index(value.step))
        if isinstance(value, int) and not isinstance(value, bool):
            # A compiler treats whole numbers that change as sizes, which have no text.
            return index(value)
        if not isinstance(value, float) or not is_unknown(value):
            return value
        self.values.append(as_input(value))
        return f"number_{len(self.values) - 1}"

    def tensor(self) -> torch.Tensor | None:
        return torch.stack(self.values) if self.values else None


def _filled_sink(sink: Any, q: torch.Tensor) -> torch.Tensor:
    """A number as the logit of a sink for all heads, which is not rounded to half precision."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    if is_unknown(sink):
        return as_input(sink)[None].to(q.device, dtype)
    return q.new_full((1,), real("sink", sink), dtype=dtype)


def _write_mechanism(mechanism: Mechanism | str | None, steady: Callable[[Any], Any]) -> str | None:
    """The mechanism as a graph keeps it: its text, None for softmax of dot products."""
    if isinstance(mechanism, str):
        return mechanism
    mechanism = checked_mechanism(mechanism)
    _check_named(mechanism)
    return None if mechanism == _SOFTMAX else str(steady(mechanism))


def _check_named(declared: Declared) -> None:
    kind = type(declared)
    if kind.registry.kinds.get(kind.text_name) is not kind:
        raise UnsupportedError(
            f"{kind.__name__} has no text that reads back, so it is not compiled; {_OUTSIDE}"
        )
    for name in getattr(kind, "__dataclass_fields__", ()):
        field = getattr(declared, name)
        if isinstance(field, Declared):
            _check_named(field)


def _write_pattern(
    pattern: Pattern | str | None, steady: Callable[[Any], Any]
) -> tuple[str, list[torch.Tensor]]:
    """The pattern as a graph keeps it: its text, and the tensors that the text names by their place."""
    if isinstance(pattern, str):
        return pattern, []
    return written_apart(as_pattern(pattern), steady)


def text_alone(pattern: Pattern | str | None) -> str | None:
    """The text of a pattern as a graph keeps it; None if it needs tensors, or floats that the graph does not know."""
    numbers = UnknownFloats()
    text, held = _write_pattern(pattern, numbers.steady)
    return None if held or numbers.values else text


def tabled(
    bias: Bias, q: torch.Tensor, k: torch.Tensor | Stored, first: int | None
) -> tuple[torch.Tensor, int]:
    """The bias at every distance of the call, (heads or 1, distances), and the lowest of them."""
    heads = q.shape[1]
    q_len = q.shape[2]
    k_len = k.shape[2]
    bias.check(heads)
    start = k_len - q_len if first is None else first
    # Conditions in place of max(): exporters have no operation for the larger of two sizes.
    lowest = -start
    if q_len > 0:
        lowest = lowest - (q_len - 1)
    if k_len > 0:
        highest = k_len - 1 - start
    else:
        highest = max(lowest, -1 - start)
    distances = torch.arange(lowest, highest + 1, device=q.device)
    return bias.by_distance(distances, heads), lowest


def _seed_tensor(dropout: float, seed: int | None) -> torch.Tensor | None:
    """The seed as a tensor: the graph draws one each time it runs, and its backward pass gets the same one."""
    if seed is None:
        cpu = torch.device("cpu")
        if is_unknown(dropout):
            return _operation.new_seed(as_input(dropout), device=cpu)
        return _operation.new_seed(device=cpu) if dropout > 0 else None
    seed = checked_seed(seed)
    if abs(seed) >= 2**63:  # only the lowest 64 bits are used
        seed = (seed + 2**63) % 2**64 - 2**63
    return torch.full((), seed, dtype=torch.int64, device="cpu")


@torch.library.impl("regard::new_seed", "CompositeExplicitAutograd")
def _new_seed(
    dropout: torch.Tensor | None = None, *, device: torch.device, number: int = 0
) -> torch.Tensor:
    if dropout is not None and dropout.item() <= 0:  # as outside of a graph, where nothing is drawn
        return torch.zeros((), dtype=torch.int64, device=device)
    return torch.randint(2**62, (), device=device)


@torch.library.register_fake("regard::new_seed")
def _seed_like(
    dropout: torch.Tensor | None = None, *, device: torch.device, number: int = 0
) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


@torch.library.register_torch_dispatch("regard::new_seed", ProxyTorchDispatchMode)
def _recorded_seed(mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """The drawing of a seed in a graph, with a number, since equal operations would be merged.

    A compiler that saves memory must not draw again in the backward pass: it keeps the seed or, where it may keep
    nothing, the state of the generator.
    """
    graph = mode.tracer.graph
    number = len(graph.find_nodes(op="call_function", target=function))
    seed = proxy_call(mode, function, mode.pre_dispatch, args, {**kwargs, "number": number})
    meta = graph.find_nodes(op="call_function", target=function)[-1].meta
    # A region with its own budget may keep nothing.
    keeps = functorch_config.activation_memory_budget > 0 and not meta.get("custom")
    meta["recompute"] = CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.MUST_RECOMPUTE
    return seed


class Table(Bias):
    """A bias by distance that is read from a table."""

    def __init__(self, table: torch.Tensor, lowest: int) -> None:
        self.table = table
        self.lowest = lowest

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return self.table[:, distances - self.lowest]

    @property
    def learns(self) -> bool:
        return self.table.requires_grad


@torch.library.impl("regard::attention", "CompositeExplicitAutograd")
def _forward(*args: Any, **options: Any) -> torch.Tensor:
    call_options = OperationOptions(**options)
    tensors = _detached(OperationTensors(*args), call_options.learns)
    return _compute(tensors, call_options, with_graph=False).contiguous()


@torch.library.impl("regard::attention_backward", "CompositeExplicitAutograd")
def _backward(grad: torch.Tensor, *args: Any, **options: Any) -> list[torch.Tensor]:
    """Gradients of what learns, in the order of `learns`. The forward pass is computed again, by any backend."""
    call_options = OperationOptions(**options)
    tensors = _detached(OperationTensors(*args), call_options.learns)
    learning = _learning(tensors, call_options.learns)
    # A mode, as of a FLOP counter, excludes autograd.
    excluded = torch._C._dispatch_tls_local_exclude_set() - _AUTOGRAD
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        output = _compute(tensors, call_options, with_graph=True)
        grads = torch.autograd.grad(output, learning, grad, materialize_grads=True)
    return _in_promised_layout(grads, learning, sum(call_options.learns[:MAY_LEARN]))


def _learning(tensors: OperationTensors, learns: Sequence[bool]) -> list[Any]:
    """The tensors that need a gradient."""
    return [x for x, need in zip(tensors.may_learn, learns, strict=True) if need]


def _detached(tensors: OperationTensors, learns: Sequence[bool]) -> OperationTensors:
    """The tensors with those that may learn detached from their graph; those that do learn are leaves."""
    leaves: list[Any] = []
    for x, need in zip(tensors.may_learn, learns, strict=True):
        if x is not None and (need or x.requires_grad):
            x = x.detach().requires_grad_(need)
        leaves.append(x)
    q, k, v, bias, sink, *parameters = leaves
    return tensors._replace(q=q, k=k, v=v, bias=bias, sink=sink, parameters=parameters)


def _compute(
    tensors: OperationTensors, options: OperationOptions, with_graph: bool
) -> torch.Tensor:
    """The output, with a graph of its gradients or without."""
    call = _call_of(tensors, options)
    is_new = False
    with torch.enable_grad():  # so that the plan equals that of a call outside a graph
        known = PLANS.find(call)
        if known is None and not with_graph:
            output = PLANS.step(call)
            if output is not None:
                return output
        if known is None:
            plan, call_grid, is_new = PLANS.plan(call)
        else:
            plan, call_grid = known
    with torch.set_grad_enabled(with_graph):
        if is_new:
            return plan.compute_first(call, call_grid).output
        return plan.compute(call, call_grid).output


def _call_of(tensors: OperationTensors, options: OperationOptions) -> Call:
    """The call that the operation stands for."""
    text = options.pattern
    mechanism = options.mechanism
    numbers: dict[str, Any] = {
        "softcap": options.softcap,
        "scale": options.scale,
        "dropout": options.dropout,
    }
    if tensors.numbers is not None:
        values = tensors.numbers.tolist()
        text = _with_numbers(text, values)
        if mechanism is not None:
            mechanism = _with_numbers(mechanism, values)
        numbers |= zip(options.numbered.split(), values, strict=False)

    k = tensors.k
    v = tensors.v
    bias = tensors.bias
    q_len = tensors.q.shape[2]
    first = options.first
    starts = tensors.q_start
    if options.slots and starts is not None:
        first = int(starts)
        starts = None
        k = k[:, :, : first + q_len]
        v = v[:, :, : first + q_len]
        if bias is not None and options.lowest is None and bias.shape[-1] > 1:
            bias = bias[..., : k.shape[2]]

    pattern: Pattern | str = text
    if tensors.held:
        queries = None
        if starts is None:
            start = k.shape[2] - q_len if first is None else first
            queries = range(start, start + q_len)
        pattern = _pattern_of(text, tensors.held, queries, k.shape[2])
    table = None
    if bias is not None and options.lowest is not None:
        table = Table(bias, options.lowest)
    seed = tensors.dropout_seed
    return Call(
        tensors.q,
        k,
        v,
        bias if table is None else table,
        dict(zip(options.names, tensors.parameters or (), strict=True)) or None,
        None if seed is None else int(seed.item()),
        tensors.sink,
        pattern,
        mechanism,
        q_start=first if starts is None else starts,
        strict=options.strict,
        backend=options.backend,
        precise=options.precise,
        **numbers,
    )


def _with_numbers(text: str, values: list[float]) -> str:
    """A text with the numbers whose places it names."""
    return _PLACE_OF_NUMBER.sub(lambda place: word(values[int(place[1])]), text)


def _pattern_of(
    text: str, held: Sequence[torch.Tensor], queries: range | None, k_len: int
) -> Pattern:
    """The pattern of a text and its tensors; layers and passes that are given equal tensors share one, and its plans.

    Tensors are compared by their numbers: a graph may write new ones into the memory of old ones.
    """
    key = text, queries, k_len, *((x.shape, x.dtype, x.device) for x in held)
    known = _patterns.get(key)
    if known is not None:
        tensors, pattern = known
        if all(map(torch.equal, tensors, held)):
            return pattern
    pattern = settled(read_together(text, list(held)), queries, k_len)
    if sum(x.numel() for x in held) <= _MOST_HELD:
        _patterns.keep(key, ([x.clone() for x in held], pattern))
    return pattern


@torch.library.register_fake("regard::attention")
def _output_like(*args: Any, pattern: str, mechanism: str | None, **_: Any) -> torch.Tensor:
    tensors = OperationTensors(*args)
    # What holds tensors or unknown numbers was checked when it was made.
    if not tensors.held and not _PLACE_OF_NUMBER.search(pattern):
        _check_readable("pattern", pattern, parse)
    if mechanism is None:
        declared: Any = _SOFTMAX
    elif _PLACE_OF_NUMBER.search(mechanism):
        kinds: dict[str, Any] = Mechanism.registry.kinds
        declared = kinds[mechanism.partition("(")[0]]
    else:
        declared = _check_readable("mechanism", mechanism, parse_mechanism)
    _keep_whole_in_inductor()

    batch, heads, q_len = tensors.q.shape[:3]
    value_heads = tensors.v.shape[1]
    if declared.groups_values and value_heads > heads:
        heads = value_heads
    return tensors.q.new_empty((batch, heads, q_len, tensors.v.shape[3]))


def _check_readable(name: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ArgumentError as reason:
        raise UnsupportedError(
            f"{name} {text!r} is not compiled, since its text cannot be read ({reason}); a {name} of your own "
            f"works outside of torch.compile"
        ) from reason


def _keep_whole_in_inductor() -> None:
    """Let inductor call the operation, which it would refuse, since it also finds the decomposition for exporters.

    The fake operation calls this: inductor traces with fake tensors, and has loaded its lowerings by then.
    """
    lowering: Any = sys.modules.get("torch._inductor.lowering")
    operation = _operation.attention.default
    if lowering is not None and operation not in lowering.lowerings:
        tag = get_layout_constraint_tag(operation, with_default=True)
        layout = lowering.tag_to_layout_constraint(tag)
        lowering.make_fallback(
            operation, layout_constraint=layout, warn=False, override_decomp=True
        )


@torch.library.register_fake("regard::attention_backward")
def _gradients_like(
    grad: torch.Tensor, *args: Any, learns: list[bool], **_: Any
) -> list[torch.Tensor]:
    learning = _learning(OperationTensors(*args), learns)
    grads = [torch.empty_like(x) for x in learning]
    return _in_promised_layout(grads, learning, sum(learns[:MAY_LEARN]))


def _in_promised_layout(
    grads: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], fused: int
) -> list[torch.Tensor]:
    """Gradients in the memory layout that the fake operation promises.

    The first `fused`, of q, k, v, bias and sink, lie as fused operations write them. The others, of parameters, lie as
    these: PyTorch's fake and real element-wise operations agree on the layout of a result if their inputs lie alike.
    """
    laid_out = []
    for grad in grads[:fused]:
        if grad.dim() == 4:
            laid_out.append(grad.transpose(1, 2).contiguous().transpose(1, 2))
        else:
            laid_out.append(grad.contiguous())
    for grad, parameter in zip(grads[fused:], tensors[fused:], strict=True):
        laid_out.append(torch.empty_like(parameter).copy_(grad))
    return laid_out


def _save_call(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: torch.Tensor
) -> None:
    tensors = OperationTensors(*inputs)
    held = tensors.held or ()
    ctx.save_for_backward(*tensors[:SINGLE], tensors.numbers, *held, *(tensors.parameters or ()))
    ctx.call = keyword_only_inputs
    ctx.held = len(held)


def _differentiate_call(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    if torch.is_grad_enabled():  # create_graph=True, outside of a graph of the compiler
        raise UnsupportedError(
            "second derivatives are not compiled; call attention outside of torch.compile, where they are computed"
        )
    single = ctx.saved_tensors[:SINGLE]
    numbers, *others = ctx.saved_tensors[SINGLE:]
    held = others[: ctx.held] or None
    parameters = others[ctx.held :] or None
    of_learning = iter(
        _operation.attention_backward(grad, *single, held, parameters, numbers, **ctx.call)
    )

    grads = []
    for need in ctx.call["learns"]:
        grads.append(next(of_learning) if need else None)
    of_held = None if held is None else [None] * len(held)
    of_parameters = grads[MAY_LEARN:] or None
    return *grads[:MAY_LEARN], None, None, of_held, of_parameters, None


torch.library.register_autograd("regard::attention", _differentiate_call, setup_context=_save_call)


_whole: ContextVar[bool] = ContextVar("whole", default=False)


@contextmanager
def whole_attention() -> Generator[None]:
    """A context in which lowering an exported program keeps each call of attention whole, with regard's backends.

    It is for programs of PyTorch itself, such as those of AOTInductor; they are loaded and run after `import regard`.
    Other runtimes need PyTorch's own operations, to which calls are lowered outside of this context.

    >>> layer, x = torch.nn.Linear(8, 8), torch.zeros(1, 3, 8)
    >>> with whole_attention():
    ...     program = torch.export.export(layer, (x,)).run_decompositions()
    """
    token = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(token)


def _decomposed(*args: Any, **options: Any) -> Any:
    """The operation in PyTorch's own operations, where an exported program is lowered.

    PyTorch also asks for it while it traces and compiles, where the operation stays whole.
    """
    if _whole.get() or not (exporting() and isinstance(args[0], FunctionalTensor)):
        return NotImplemented
    # The layout that the fake operation promises.
    return plain_attention(OperationTensors(*args), OperationOptions(**options)).contiguous()


# A composite kernel enters `torch.export.default_decompositions()`, with which every exporter begins.
_operation.attention.default.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(_decomposed)
# PyTorch warns that it keeps such an operation whole while it exports, which is what is wanted here.
warnings.filterwarnings("ignore", message=r"At pre-dispatch tracing(.|\n)*regard\.attention")
