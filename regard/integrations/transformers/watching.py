"""What a model's attention did: `explain` shows it for each layer, `observe` collects statistics while it runs.

`intervene` lets a function replace what heads return.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from regard.arguments import a_list, count_of, is_whole, kind_of, shown, suggest, whole
from regard.core.plan import AttentionDetail, Plan
from regard.core.result import NAMES, TopKeys, TopKeysFound, Want, WeightsOf, checked_wants
from regard.errors import ArgumentError, RegardError, ShapeError
from regard.integrations.snapshot import unchanged
from regard.integrations.transformers.attending import ModuleCall, Watcher, watchers
from regard.integrations.transformers.masks import PatternMask
from regard.integrations.transformers.modules import layer_names, outside_of, uncalled
from regard.layers.packed import PackedWeights
from regard.reprs import Described, brief

__all__ = [
    "Explained",
    "ExplainedCall",
    "Observed",
    "ObservedCall",
    "explain",
    "intervene",
    "observe",
]

# Of an `AttentionDetail`; other statistics have their own names there.
ATTRIBUTES: dict[type, str] = {TopKeys: "top_keys", WeightsOf: "chosen_weights"}
STATISTICS = (*NAMES, *ATTRIBUTES.values())


@brief
@dataclass(frozen=True)
class ExplainedCall:
    """How one call of an attention module was computed.

    Args:
        layer: the name of the module.
        pattern: which query may look at which key.
        q_len, k_len: sizes of the call.
        backend: what computed it.
        share: pairs computed over all pairs, 0 to 1.
        dense: why every pair of a mask was stored, or None if the mask stayed a pattern.
        options: what each option of the call became, such as "position_bias: bias".
    """

    layer: str
    pattern: str
    q_len: int
    k_len: int
    backend: str
    share: float
    dense: str | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explained:
    """How the attention of a model was computed in one forward pass; its repr is a table.

    Args:
        model: the class of the model.
        calls: the calls in order.
        silent: modules that mix positions and never called regard.
        outside: of those that `attach` knew of, the reason by name.
        differing: how models inside differ from their eager attention, as `attach` found, by class.
        packed: which weights `attach(model, pack=True)` packed; None without it.
    """

    model: str
    calls: tuple[ExplainedCall, ...]
    silent: tuple[str, ...] = ()
    outside: Mapping[str, str] = field(default_factory=dict)
    differing: Mapping[str, str] = field(default_factory=dict)
    packed: PackedWeights | None = None

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("layer", "pattern", "q x k", "backend", "pairs computed", "dense mask", "options")
        ]
        rows += [_row(layers, call) for layers, call in _grouped(self.calls)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"{self.model}: {count_of(len(self.calls), 'calls of attention')} by regard"]
        lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        for reason in dict.fromkeys(self.outside.values()):
            names = [name for name, why in self.outside.items() if why == reason]
            lines.append(f"outside: {_one_name(names)} ({reason})")
        silent = [name for name in self.silent if name not in self.outside]
        if silent:
            lines.append(f"never called regard: {', '.join(silent)}")
        lines += [f"{name}: {how}" for name, how in self.differing.items()]
        if self.packed is not None:
            lines.append(str(self.packed))
        return "\n".join(lines)


def _grouped(calls: Iterable[ExplainedCall]) -> list[tuple[list[str], ExplainedCall]]:
    """The calls that differ in the number of their layer alone, with the names of the layers and the first call."""
    groups: dict[tuple[str, ExplainedCall], tuple[list[str], ExplainedCall]] = {}
    for call in calls:
        layer = re.sub(r"\d+", "#", call.layer)
        alike = layer, replace(call, layer="", share=round(call.share, 3))
        layers, _ = groups.setdefault(alike, ([], call))
        layers.append(call.layer)
    return [*groups.values()]


def _row(layers: list[str], call: ExplainedCall) -> tuple[str, ...]:
    """The row of the table for calls that are alike."""
    return (
        _one_name(layers),
        call.pattern,
        f"{call.q_len} x {call.k_len}",
        call.backend,
        f"{call.share:.1%}",
        call.dense or "no",
        "; ".join(call.options) or "-",
    )


def _one_name(names: list[str]) -> str:
    """One name for layers: their numbers in braces."""
    first = names[0]
    if len(names) == 1:
        return first
    if len(set(names)) == 1:
        return f"{first} ({len(names)} times)"

    numbers_of_names = [[int(digits) for digits in re.findall(r"\d+", name)] for name in names]
    columns = [*zip(*numbers_of_names, strict=True)]
    differing = [index for index, column in enumerate(columns) if len(set(column)) > 1]
    if len(differing) != 1:
        return f"{first} ... {names[-1]}"

    (index,) = differing
    numbers = sorted(set(columns[index]))
    is_run = len(numbers) > 2 and numbers == [*range(numbers[0], numbers[-1] + 1)]
    inside = f"{numbers[0]}..{numbers[-1]}" if is_run else ",".join(map(str, numbers))
    digits = [*re.finditer(r"\d+", first)][index]
    return f"{first[: digits.start()]}{{{inside}}}{first[digits.end() :]}"


class _EveryModule:
    """Asks the modules of a model for no statistics, and knows their names."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}

    def wants(self, module: nn.Module) -> tuple[Want, ...] | None:
        return () if id(module) in self.names else None


class _Explaining(_EveryModule):
    """Collects the calls of one forward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.taken: list[tuple[str, ModuleCall, Plan]] = []

    def take(
        self, module: nn.Module, call: ModuleCall, detail: AttentionDetail, output: torch.Tensor
    ) -> torch.Tensor:
        self.taken.append((self.names[id(module)], call, detail.plan))
        return output


def _explained(layer: str, call: ModuleCall, plan: Plan) -> ExplainedCall:
    return ExplainedCall(
        layer=layer,
        pattern=str(call.pattern),
        q_len=plan.problem.q_len,
        k_len=plan.problem.k_len,
        backend=plan.backend,
        share=plan.share_of_pairs_computed,
        dense=_why_dense(call.mask),
        options=_options(call, plan),
    )


def _why_dense(mask: PatternMask | None) -> str | None:
    """Why every pair of a mask was stored; None if the mask stayed a pattern."""
    if mask is None:
        return None
    if mask.reason is not None:
        return f"yes: {mask.reason}"
    return "yes: the model's own code read its pairs" if mask.written else None


def _options(call: ModuleCall, plan: Plan) -> tuple[str, ...]:
    """What each option became; those that nobody gave are left out."""
    problem = plan.problem
    options = [f"{name}: {became}" for name, became in call.became.items()]
    if call.mechanism is not None:
        options.append(f"mechanism {call.mechanism}")
    if call.scale is not None:
        options.append(f"scale {call.scale:.4g}")
    if call.softcap is not None:
        options.append(f"softcap {call.softcap:g}")
    if call.sink is not None:
        options.append(f"s_aux: sink of {count_of(call.sink.numel(), 'heads')}")
    if call.bias is not None:
        options.append(f"bias {(*call.bias.shape,)}")
    if call.dropout:
        options.append(f"dropout {call.dropout:g}")
    if problem.kv_heads != problem.heads:
        options.append(f"{count_of(problem.heads, 'heads')} over {problem.kv_heads}")
    if problem.v_dim != problem.head_dim:
        options.append(f"head_dim {problem.head_dim}, v_dim {problem.v_dim}")
    return tuple(options)


def explain(model: PreTrainedModel, inputs: Any) -> Explained:
    """Run a model once, and show how the mask and the options of each layer were computed.

    Model and inputs are afterwards as before, also a cache among them.

    Args:
        model: an attached model.
        inputs: what the model takes: a mapping of keywords, such as a tokeniser returns, or the ids as a tensor.

    Returns:
        A record that prints as a table: pattern, backend, share of pairs computed, whether a mask was stored pair by
        pair and why, options, and modules that never called regard.

    Raises:
        RegardError: the model called regard nowhere.

    >>> import transformers
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    >>> from regard.integrations.transformers import attach
    >>> explained = explain(attach(transformers.GPT2Model(config)), torch.tensor([[1, 2, 3]]))
    >>> explained.calls[0].layer, explained.calls[0].pattern, explained.silent
    ('h.0.attn', 'causal', ())
    """
    _check_model(model)
    explaining = _Explaining(model)
    with unchanged(model, inputs), _watching(explaining), torch.no_grad():
        _run(model, inputs)
    if not explaining.taken:
        raise RegardError(_unseen(model, "explain"))
    # After the run, since a mask that layers share may be written out in a later one.
    calls = tuple(_explained(layer, call, plan) for layer, call, plan in explaining.taken)
    return Explained(
        model=type(model).__name__,
        calls=calls,
        silent=tuple(uncalled(model, {call.layer for call in calls})),
        outside=outside_of(model),
        differing=model.__dict__.get("differing", {}),
        packed=model.__dict__.get("packed"),
    )


def _run(model: nn.Module, inputs: Any) -> None:
    if isinstance(inputs, torch.Tensor):
        model(inputs)
    elif isinstance(model, nn.Sequential):
        model(dict(inputs))  # a model of sentence-transformers takes one mapping
    elif isinstance(inputs, Mapping) or hasattr(inputs, "keys"):
        model(**inputs)
    else:
        raise ArgumentError(
            f"inputs are {shown(inputs)}; give a mapping of the model's keywords, or its ids"
        )


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"model is {kind_of(model)}; it needs a model of transformers that attach was given"
        )


def _unseen(model: nn.Module, what: str) -> str:
    return (
        f"{what} saw no attention of {type(model).__name__}: nothing inside called regard; give it to "
        f"attach(model) first, or load it with attn_implementation='regard', and run it uncompiled"
    )


@contextmanager
def _watching(watcher: Watcher) -> Generator[None]:
    token = watchers.set((*watchers.get(), watcher))
    try:
        yield
    finally:
        watchers.reset(token)


@brief
@dataclass(frozen=True)
class ObservedCall:
    """The statistics of one call of an attention module, of the heads that were chosen.

    Args:
        layer: the name of the module.
        heads: the heads, in the order of the second axis.
        q_len, k_len: sizes of the call.
    """

    layer: str
    heads: tuple[int, ...]
    q_len: int
    k_len: int
    _statistics: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getattr__(self, name: str) -> Any:
        """A statistic by its name, as `AttentionDetail` has it."""
        statistics = self.__dict__.get("_statistics", {})
        if name in statistics:
            return statistics[name]
        if name in STATISTICS:
            wanted = ", ".join(statistics) or "nothing"
            raise RegardError(f"{name} was not requested; add it to want= (requested: {wanted})")
        raise AttributeError(f"'ObservedCall' has no attribute {name!r}")


class Observed(Described):
    """The calls that were observed, in order, by the name of the attention module."""

    def __init__(self, model: str, layers: tuple[str, ...]) -> None:
        self.model = model
        self.layers = layers
        self.calls: list[ObservedCall] = []

    def __getitem__(self, layer: str | int) -> list[ObservedCall]:
        """The calls of one layer, by its name or its number."""
        if is_whole(layer) and isinstance(layer, int):
            if not 0 <= layer < len(self.layers):
                raise ArgumentError(
                    f"there is no layer {layer}; {count_of(len(self.layers), 'layers')} are observed"
                )
            layer = self.layers[layer]
        calls = [call for call in self.calls if call.layer == layer]
        if not calls:
            raise ArgumentError(f"no call of {layer!r} was observed; {suggest(layer, self.layers)}")
        return calls

    def __len__(self) -> int:
        return len(self.calls)


class _Observing:
    """Takes the statistics of chosen layers and heads."""

    def __init__(
        self, model: nn.Module, want: tuple[Want, ...], chosen: tuple[str, ...], heads: Any
    ) -> None:
        self.want = want
        self.heads = heads
        self.names = {id(module): name for name, module in model.named_modules() if name in chosen}
        self.observed = Observed(type(model).__name__, chosen)

    def wants(self, module: nn.Module) -> tuple[Want, ...] | None:
        return self.want if id(module) in self.names else None

    def take(
        self, module: nn.Module, call: ModuleCall, detail: AttentionDetail, output: torch.Tensor
    ) -> torch.Tensor:
        problem = detail.plan.problem
        heads = tuple(range(problem.heads)) if self.heads is None else self.heads
        if heads and max(heads) >= problem.heads:
            raise ArgumentError(
                f"head {max(heads)} of {self.names[id(module)]} is wanted, which has heads 0 to {problem.heads - 1}"
            )
        chosen = None if self.heads is None else torch.tensor(heads, device=detail.output.device)
        statistics = {}
        for want in self.want:
            name = want if isinstance(want, str) else ATTRIBUTES[type(want)]
            statistics[name] = _of_heads(getattr(detail, name), chosen)
        layer = self.names[id(module)]
        self.observed.calls.append(
            ObservedCall(layer, heads, problem.q_len, problem.k_len, statistics)
        )
        return output


def _of_heads(statistic: Any, heads: torch.Tensor | None) -> Any:
    """A statistic without its graph, of some heads: (batch, heads, ...)."""
    if isinstance(statistic, TopKeysFound):
        return TopKeysFound(
            _of_heads(statistic.indices, heads), _of_heads(statistic.weights, heads)
        )
    return statistic.detach() if heads is None else statistic.detach().index_select(1, heads)


@contextmanager
def observe(
    model: PreTrainedModel,
    want: Iterable[Want] | Want = ("log_sum_exp", "entropy"),
    *,
    layers: Iterable[str | int] | str | int | None = None,
    heads: Iterable[int] | int | None = None,
) -> Generator[Observed]:
    """Collect statistics of a model's attention while the block runs: a forward pass, training, or `generate`.

    The model's outputs are unchanged. Calls of this thread are observed.

    Args:
        model: an attached model.
        want: statistics, as for `attention_detail`: "entropy", "weights", `top_keys(n)`, `weights_of(rows)`, ...
        layers: numbers or names of attention modules, as `explain` prints them; all by default.
        heads: query heads; all by default.

    Returns:
        A context manager whose `as` target holds the calls in order, and by layer.

    Raises:
        ArgumentError: an unknown statistic, layer or head.
        RegardError: at the end of the block, if nothing was observed.

    >>> import transformers
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    >>> from regard.integrations.transformers import attach
    >>> model = attach(transformers.GPT2Model(config))
    >>> with observe(model, "weights", layers=1, heads=0) as observed:
    ...     output = model(torch.tensor([[1, 2, 3]]))
    >>> observed["h.1.attn"][0].weights.shape
    torch.Size([1, 1, 3, 3])
    """
    _check_model(model)
    chosen_heads = None if heads is None else _checked_heads(heads)
    observing = _Observing(model, checked_wants(want), layer_names(model, layers), chosen_heads)
    with _watching(observing):
        yield observing.observed
    if not observing.observed.calls:
        raise RegardError(_unseen(model, "observe"))


def _checked_heads(heads: Any) -> tuple[int, ...]:
    numbers = [heads] if is_whole(heads) else a_list("heads", heads, int, "whole numbers")
    return tuple(whole("one of heads", number, 0) for number in numbers)


class _Intervening(_EveryModule):
    """Gives the output of each module to a function, and the model what that returns."""

    def __init__(self, model: nn.Module, change: Callable[[str, Tensor], Tensor]) -> None:
        super().__init__(model)
        self.change = change
        self.called = False

    def take(
        self, module: nn.Module, call: ModuleCall, detail: AttentionDetail, output: Tensor
    ) -> Tensor:
        name = self.names[id(module)]
        changed = self.change(name, output)
        self.called = True
        if not isinstance(changed, Tensor) or changed.shape != output.shape:
            raise ShapeError(
                f"change returned {shown(changed)} for {name}; it has to return {(*output.shape,)}"
            )
        return changed


@contextmanager
def intervene(model: PreTrainedModel, change: Callable[[str, Tensor], Tensor]) -> Generator[None]:
    """Let a function replace what heads return, before they are projected, while the block runs in this thread.

    Args:
        model: an attached model.
        change: the name of an attention module, and its output (batch, heads, q_len, v_dim) -> the output that the
            model goes on with, of the same shape.

    Raises:
        ShapeError: the function returns another shape.
        RegardError: at the end of the block, if no attention was called.

    >>> import transformers
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    >>> from regard.integrations.transformers import attach
    >>> model = attach(transformers.GPT2Model(config))
    >>> with intervene(model, lambda name, output: output * torch.tensor([1.0, 0.0])[:, None, None]):  # without head 1
    ...     output = model(torch.tensor([[1, 2, 3]]))
    """
    _check_model(model)
    intervening = _Intervening(model, change)
    with _watching(intervening):
        yield
    if not intervening.called:
        raise RegardError(_unseen(model, "intervene"))
