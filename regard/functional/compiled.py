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
from torch._functorch import config as functorch
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
from regard.functional.plain import plain_attention
from regard.mechanisms import Mechanism, Softmax
from regard.mechanisms import parse as parse_mechanism
from regard.patterns import Pattern, as_pattern, parse
from regard.patterns.held import settled
from regard.patterns.registry import Declared, word
from regard.patterns.text import read_together, written_apart

# `first` is the position of the first query. With `lowest` the bias is a table by distance that begins there.
# `names` belong to the mechanism's parameters. `learns`: which of q, k, v, bias, sink and parameters need a gradient.
# `slots`: k and v are all slots of a cache, free behind the queries, and q_start is one number.
# `numbers`: floats that change between calls, in float64; the first belong to the options that `numbered` names, and
# the texts name the others by their place, such as number_1.
_CALL = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sink, Tensor? q_start, Tensor? dropout_seed, Tensor[]? held, "
    "Tensor[]? parameters, Tensor? numbers, *, str pattern, str? mechanism, str[] names, "
    "SymInt? first, SymInt? lowest, Scalar? softcap, Scalar? scale, Scalar dropout, bool strict, str backend, "
    "bool[] learns, bool slots=False, bool precise=False, str numbered=''"
)
torch.library.define("regard::attention", f"({_CALL}) -> Tensor")
torch.library.define("regard::attention_backward", f"(Tensor grad, {_CALL}) -> Tensor[]")
torch.library.define(
    "regard::new_seed",
    "(Tensor? dropout=None, *, Device device, int number=0) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_HELD = 7  # place of the tensors of the pattern, before those of the mechanism
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

Given = ParamSpec("Given")
Found = TypeVar("Found")


def uncompiled(
    function: Callable[Given, Found], recorded: Callable[Given, Found] | None = None
) -> Callable[Given, Found]:
    """A function that is never compiled: it is refused inside a graph and runs as it is between graphs.

    `recorded` takes its place while make_fx records; without it the function is refused there.
    """
    apart: list[Callable[Given, Found]] = []
    name = getattr(function, "__qualname__", "this")

    @wraps(function)
    def call(*args: Given.args, **options: Given.kwargs) -> Found:
        if torch.compiler.is_compiling():
            raise UnsupportedError(
                f"{name} is not compiled, only attention itself is; call it outside torch.compile, where it works"
            )
        if recorded is not None and is_recorded():
            return recorded(*args, **options)
        refuse_tracing()
        if compiler_beside() is None:  # importing the compiler takes seconds
            return function(*args, **options)
        if not apart:
            apart.append(torch.compiler.disable(function))
        return apart[0](*args, **options)

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
    q, k, v, bias = call.q, call.k, call.v, call.bias
    place = call.q_start.at if isinstance(call.q_start, Place) else None
    numbers = _Numbers()
    softcap = numbers.option("softcap", softcap)
    scale = numbers.option("scale", scale)
    dropout_seed = _drawn(dropout, call.dropout_seed)
    dropout = numbers.option("dropout", dropout)
    text, held = _written(call.pattern, numbers.steady)
    mechanism = _text_of(call.mechanism, numbers.steady)
    start = (
        None
        if call.q_start is None or place is not None
        else checked_q_start(call.q_start, q.shape[0])
    )
    rows, first = (start, None) if isinstance(start, torch.Tensor) else (None, start)
    lowest = None
    if isinstance(bias, Bias):
        if rows is not None:
            raise UnsupportedError(
                "a bias by distance together with a tensor of q_start is not compiled: which distances there are is "
                f"known when it runs; give q_start as a number, or {_OUTSIDE}"
            )
        bias, lowest = tabled(bias, q, k, first)
    sink = (
        call.sink
        if isinstance(call.sink, torch.Tensor | None)
        else _filled_sink(plain("sink", call.sink), q)
    )
    parameters = named_parameters(call.parameters)
    grad = torch.is_grad_enabled()
    vectors = grad and (q.requires_grad or k.requires_grad or v.requires_grad)
    others = (bias, sink, *parameters.values())
    return _operation.attention(
        q,
        k,
        v,
        bias,
        sink,
        rows if place is None else place,
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
        learns=[vectors] * 3
        + [grad and isinstance(x, torch.Tensor) and x.requires_grad for x in others],
        slots=place is not None,
        precise=call.precise,
        numbered=" ".join(numbers.options),
    )


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


class _Numbers:
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
            same = object.__new__(type(value))
            for name in getattr(value, "__dataclass_fields__", ()):
                object.__setattr__(same, name, self.steady(getattr(value, name)))
            return same
        if isinstance(value, tuple):
            return tuple([self.steady(one) for one in value])
        if isinstance(value, range):
            return range(index(value.start), index(value.stop), index(value.step))
        if isinstance(value, int) and not isinstance(value, bool):
            # a compiler treats whole numbers that change as sizes, without text
            return index(value)
        if not isinstance(value, float) or not is_unknown(value):
            return value
        self.values.append(as_input(value))
        return f"number_{len(self.values) - 1}"

    def tensor(self) -> torch.Tensor | None:
        return torch.stack(self.values) if self.values else None


def _filled_sink(sink: Any, q: torch.Tensor) -> torch.Tensor:
    """A number as the logit of a sink for all heads, which is not rounded to half precision."""
    wide = torch.promote_types(q.dtype, torch.float32)
    if is_unknown(sink):
        return as_input(sink)[None].to(q.device, wide)
    return q.new_full((1,), real("sink", sink), dtype=wide)


def _text_of(mechanism: Mechanism | str | None, steady: Callable[[Any], Any]) -> str | None:
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
        if isinstance(field := getattr(declared, name), Declared):
            _check_named(field)


def _written(
    pattern: Pattern | str | None, steady: Callable[[Any], Any]
) -> tuple[str, list[torch.Tensor]]:
    """The pattern as a graph keeps it: its text, and the tensors that the text names by their place."""
    if isinstance(pattern, str):
        return pattern, []
    return written_apart(as_pattern(pattern), steady)


def text_alone(pattern: Pattern | str | None) -> str | None:
    """The text of a pattern as a graph keeps it; None if it needs tensors, or floats that the graph does not know."""
    numbers = _Numbers()
    text, held = _written(pattern, numbers.steady)
    return None if held or numbers.values else text


def tabled(
    bias: Bias, q: torch.Tensor, k: torch.Tensor | Stored, first: int | None
) -> tuple[torch.Tensor, int]:
    """The bias at every distance of the call, (heads or 1, distances), and the lowest of them."""
    bias.check(q.shape[1])
    start = k.shape[2] - q.shape[2] if first is None else first
    # Conditions in place of max(): exporters have no operation for the larger of two sizes.
    lowest = -start - (q.shape[2] - 1 if q.shape[2] > 0 else 0)
    highest = k.shape[2] - 1 - start if k.shape[2] > 0 else max(lowest, -1 - start)
    return bias.by_distance(torch.arange(lowest, highest + 1, device=q.device), q.shape[1]), lowest


def _drawn(dropout: float, seed: int | None) -> torch.Tensor | None:
    """The seed as a tensor: the graph draws one each time it runs, and its backward pass gets the same one."""
    if seed is None:
        cpu = torch.device("cpu")
        if is_unknown(dropout):
            return _operation.new_seed(as_input(dropout), device=cpu)
        return _operation.new_seed(device=cpu) if dropout > 0 else None
    seed = checked_seed(seed)
    # only the lowest 64 bits are used
    folded = (seed + 2**63) % 2**64 - 2**63 if abs(seed) >= 2**63 else seed
    return torch.full((), folded, dtype=torch.int64, device="cpu")


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
    # where a region has its own budget
    keeps = functorch.activation_memory_budget > 0 and not meta.get("custom")
    meta["recompute"] = CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.MUST_RECOMPUTE
    return seed


class Table(Bias):
    """A bias by distance that is read from a table."""

    def __init__(self, table: torch.Tensor, lowest: int) -> None:
        self.table, self.lowest = table, lowest

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return self.table[:, distances - self.lowest]

    @property
    def learns(self) -> bool:
        return self.table.requires_grad


@torch.library.impl("regard::attention", "CompositeExplicitAutograd")
def _forward(*tensors: Any, learns: list[bool], **call: Any) -> torch.Tensor:
    leaves, _ = _leaves(tensors, learns)
    return _output(*leaves, with_graph=False, **call).contiguous()


@torch.library.impl("regard::attention_backward", "CompositeExplicitAutograd")
def _backward(
    grad: torch.Tensor, *tensors: Any, learns: list[bool], **call: Any
) -> list[torch.Tensor]:
    """Gradients of what learns, in the order of `learns`. The forward pass is computed again, by any backend."""
    leaves, learning = _leaves(tensors, learns)
    # a mode, as of a FLOP counter, excludes autograd
    excluded = torch._C._dispatch_tls_local_exclude_set() - _AUTOGRAD
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        output = _output(*leaves, with_graph=True, **call)
        found = torch.autograd.grad(output, learning, grad, materialize_grads=True)
    return _laid_out(found, learning, sum(learns[:5]))


def _learning(tensors: tuple[Any, ...]) -> list[Any]:
    """q, k, v, bias, sink and the parameters of the mechanism, among the tensors of an operation."""
    return [*tensors[:5], *(tensors[_HELD + 1] or ())]


def _leaves(tensors: tuple[Any, ...], learns: list[bool]) -> tuple[list[Any], list[torch.Tensor]]:
    """The tensors of an operation, those that may learn detached from their graph, and those that need gradients."""
    pairs = [*zip(_learning(tensors), learns, strict=True)]
    leaves = [
        x.detach().requires_grad_(need) if need or (x is not None and x.requires_grad) else x
        for x, need in pairs
    ]
    learning = [leaf for leaf, need in zip(leaves, learns, strict=True) if need]
    return [*leaves[:5], *tensors[5 : _HELD + 1], leaves[5:], *tensors[_HELD + 2 :]], learning


def _output(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    sink: torch.Tensor | None,
    q_start: torch.Tensor | None,
    dropout_seed: torch.Tensor | None,
    held: list[torch.Tensor] | None,
    parameters: list[torch.Tensor],
    numbers: torch.Tensor | None = None,
    *,
    pattern: str,
    mechanism: str | None,
    names: list[str],
    first: int | None,
    lowest: int | None,
    with_graph: bool,
    slots: bool = False,
    numbered: str = "",
    **options: Any,
) -> torch.Tensor:
    if numbers is not None:
        values = numbers.tolist()
        pattern = _with_numbers(pattern, values)
        mechanism = None if mechanism is None else _with_numbers(mechanism, values)
        options |= zip(numbered.split(), values, strict=False)
    if slots and q_start is not None:
        first = int(q_start)
        q_start = None
        k, v = (x[:, :, : first + q.shape[2]] for x in (k, v))
        bias = (
            bias
            if bias is None or lowest is not None or bias.shape[-1] == 1
            else bias[..., : k.shape[2]]
        )
    added = bias if bias is None or lowest is None else Table(bias, lowest)
    seed = None if dropout_seed is None else int(dropout_seed.item())
    start = first if q_start is None else q_start
    same: Pattern | str = pattern
    if held:
        at = k.shape[2] - q.shape[2] if first is None else first
        same = _pattern_of(
            pattern, held, None if q_start is not None else range(at, at + q.shape[2]), k.shape[2]
        )
    named = dict(zip(names, parameters, strict=True)) or None
    call = Call(q, k, v, added, named, seed, sink, same, mechanism, q_start=start, **options)
    with torch.enable_grad():  # so that the plan equals that of a call outside a graph
        kept = PLANS.find(call)
        if kept is None and not with_graph and (output := PLANS.step(call)) is not None:
            return output
        plan, here = kept or PLANS.plan(call)
    with torch.set_grad_enabled(with_graph):
        return (plan.compute(call, here) if kept else plan.compute_first(call, here)).output


def _with_numbers(text: str, values: list[float]) -> str:
    """A text with the numbers whose places it names."""
    return _PLACE_OF_NUMBER.sub(lambda place: word(values[int(place[1])]), text)


def _pattern_of(text: str, held: list[torch.Tensor], queries: range | None, k_len: int) -> Pattern:
    """The pattern of a text and its tensors; layers and passes that are given equal tensors share one, and its plans.

    Tensors are compared by their numbers: a graph may write new ones into the memory of old ones.
    """
    name = text, queries, k_len, *((x.shape, x.dtype, x.device) for x in held)
    kept = _patterns.get(name)
    if kept is not None and all(map(torch.equal, kept[0], held)):
        return kept[1]
    pattern = settled(read_together(text, held), queries, k_len)
    if sum(x.numel() for x in held) <= _MOST_HELD:
        _patterns.keep(name, ([x.clone() for x in held], pattern))
    return pattern


@torch.library.register_fake("regard::attention")
def _output_like(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *others: Any,
    pattern: str,
    mechanism: str | None,
    **_: Any,
) -> torch.Tensor:
    # What holds tensors or unknown numbers was checked when it was made.
    if not others[_HELD - 3] and not _PLACE_OF_NUMBER.search(pattern):
        _check_readable("pattern", pattern, parse)
    if mechanism is None:
        declared: Any = _SOFTMAX
    elif _PLACE_OF_NUMBER.search(mechanism):
        kinds: dict[str, Any] = Mechanism.registry.kinds
        declared = kinds[mechanism.partition("(")[0]]
    else:
        declared = _check_readable("mechanism", mechanism, parse_mechanism)
    _keep_whole_in_inductor()
    heads = v.shape[1] if declared.groups_values and v.shape[1] > q.shape[1] else q.shape[1]
    return q.new_empty((q.shape[0], heads, q.shape[2], v.shape[3]))


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
        layout = lowering.tag_to_layout_constraint(
            get_layout_constraint_tag(operation, with_default=True)
        )
        lowering.make_fallback(
            operation, layout_constraint=layout, warn=False, override_decomp=True
        )


@torch.library.register_fake("regard::attention_backward")
def _gradients_like(
    grad: torch.Tensor, *tensors: Any, learns: list[bool], **_: Any
) -> list[torch.Tensor]:
    learning = [x for x, need in zip(_learning(tensors), learns, strict=True) if need]
    return _laid_out([torch.empty_like(x) for x in learning], learning, sum(learns[:5]))


def _laid_out(
    grads: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], alone: int
) -> list[torch.Tensor]:
    """Gradients in the memory layout that the fake operation promises.

    The first `alone`, of q, k, v, bias and sink, lie as fused operations write them. The others, of parameters, lie as
    these: PyTorch's fake and real element-wise operations agree on the layout of a result if their inputs lie alike.
    """
    fused = (
        x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x.contiguous()
        for x in grads[:alone]
    )
    return [
        *fused,
        *map(lambda x, like: torch.empty_like(like).copy_(x), grads[alone:], tensors[alone:]),
    ]


def _keep(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: torch.Tensor
) -> None:
    held = inputs[_HELD] or ()
    parameters = inputs[_HELD + 1] or ()
    ctx.save_for_backward(*inputs[:_HELD], inputs[_HELD + 2], *held, *parameters)
    ctx.call = keyword_only_inputs
    ctx.held = len(held)


def _send_back(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    if torch.is_grad_enabled():  # create_graph=True, outside of a graph of the compiler
        raise UnsupportedError(
            "second derivatives are not compiled; call attention outside of torch.compile, where they are computed"
        )
    first, numbers, others = (
        ctx.saved_tensors[:_HELD],
        ctx.saved_tensors[_HELD],
        ctx.saved_tensors[_HELD + 1 :],
    )
    held = list(others[: ctx.held])
    parameters = list(others[ctx.held :])
    found = iter(
        _operation.attention_backward(
            grad, *first, held or None, parameters or None, numbers, **ctx.call
        )
    )
    every = [next(found) if need else None for need in ctx.call["learns"]]
    of_held = [None] * len(held) if held else None
    return *every[:5], None, None, of_held, every[5:] or None, None


torch.library.register_autograd("regard::attention", _send_back, setup_context=_keep)


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
    # the layout that the fake operation promises
    return plain_attention(*args, **options).contiguous()


# A composite kernel enters `torch.export.default_decompositions()`, with which every exporter begins.
_operation.attention.default.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(_decomposed)
warnings.filterwarnings("ignore", message=r"At pre-dispatch tracing(.|\n)*regard\.attention")
