"""Attention that is written out in a model's own code, computed by regard: softmax(factor · q kᵀ + bias) v.

A module still runs its own code, with its projections, caches and positions. Only the product of queries and keys is
not computed: in its place the code gets `_NotedScores`, a tensor that notes what the code does with it. If the code
scales it, adds masks and biases, takes the softmax, applies dropout and multiplies by values, then it computes this
formula, and `regard_attention` computes the output. Code that does anything else with weights is not plain, and is
refused.

`prove_plain` runs a model on tiny inputs, and says which of its modules are plain.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.errors import UnsupportedError
from regard.integrations.snapshot import unchanged
from regard.integrations.transformers.attending import regard_attention
from regard.integrations.transformers.masks import ATTRIBUTES, PatternMask
from regard.integrations.transformers.modules import WRITTEN_OUT, models_inside
from regard.integrations.transformers.tiny_inputs import tiny_inputs

__all__ = ["exchange_written_out", "prove_plain", "restore_written_out"]

LOWEST = -1e3  # scores below it, beside others, have a weight of 0
Verdicts = dict[type[nn.Module], str | None]  # by class why it is not plain; None if it is
_verdicts: ContextVar[Verdicts | None] = ContextVar("verdicts", default=None)


class _NotPlainError(Exception):
    """The code of a module computes something other than plain attention."""


class _Following(TorchFunctionMode):
    """Follows the code of a module: products of two activations become `_NotedScores`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.calls = 0  # of attention
        self.opened: str | None = None  # the function that needed the numbers of scores

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.einsum and len(args) == 2 and isinstance(args[1], list | tuple):
            args = (args[0], *args[1])
        if func is functional.scaled_dot_product_attention:
            return _attend_by_sdpa(self, *args, **kwargs)
        if func in _PRODUCTS and not any(isinstance(x, _Noted) for x in args):
            scores = _scores_of(self, func, args, kwargs)
            if scores is not None:
                return scores
        if func in _SOFTMAXES and type(args[0]) is torch.Tensor and args[0].dim() > 2:
            used = f"{self.opened} of its scores" if self.opened else "scores that are no product"
            raise _NotPlainError(f"its code takes the softmax of {used}")
        return func(*args, **kwargs)


class _Noted(torch.Tensor):
    """A tensor whose numbers are not computed: it notes how they would be."""

    following: _Following

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # ty: ignore[incompatible-method-override]
        raise _NotPlainError(f"its code takes its scores or weights for {_name(func)}")


class _NotedScores(_Noted):
    """factor · q kᵀ + the sum of terms, at allowed pairs, (..., n, m); the code may split or join the axes before n.

    q: (lead..., n, head_dim). k: (lead..., m, head_dim). terms: tensors that were added, each with the shape that the
    scores had then, and the number by which it was multiplied since. masks: booleans, True for allowed pairs, each with
    the shape that the scores had then. zeroed: booleans, False for pairs whose score was multiplied by 0; the code then
    has to add a very low number there.
    """

    @staticmethod
    def __new__(cls, following: Any, q: Any, k: Any, shape: Any, dtype: Any) -> _NotedScores:
        return torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype, device=q.device)

    def __init__(
        self, following: _Following, q: torch.Tensor, k: torch.Tensor, shape: Any, dtype: Any
    ) -> None:
        self.following = following
        self.q = q
        self.k = k
        self.kind = dtype
        self.factor = 1.0
        self.terms: list[tuple[torch.Tensor, tuple[int, ...], float]] = []
        self.masks: list[tuple[torch.Tensor, tuple[int, ...]]] = []
        self.zeroed: torch.Tensor | None = None
        self.leads = [tuple(shape[:-2])]  # the shapes before the last two axes that it had

    def like(self, shape: Any = None, dtype: Any = None) -> _NotedScores:
        """The same scores, which may have another shape or dtype."""
        shape = tuple(self.shape if shape is None else shape)
        scores = _NotedScores(self.following, self.q, self.k, shape, dtype or self.kind)
        scores.set(self)
        scores.leads = [*self.leads, shape[:-2]]
        return scores

    def set(self, other: _NotedScores) -> _NotedScores:
        """Note what other scores have noted, and nothing else."""
        self.q = other.q
        self.k = other.k
        self.factor = other.factor
        self.terms = [*other.terms]
        self.masks = [*other.masks]
        self.zeroed = other.zeroed
        return self

    def numbers(self) -> torch.Tensor:
        """The scores themselves, where the code needs them for something else."""
        product = self.factor * (self.q @ self.k.mT)
        shape: Any = (*self.leads[0], *self.shape[-2:])
        numbers = product.expand(shape)
        for term, at, times in self.terms:
            numbers = numbers.reshape(at) + times * term
        for allowed, at in self.masks:
            lowest = torch.finfo(numbers.dtype).min
            numbers = numbers.reshape(at).masked_fill(~allowed, lowest)
        return numbers.reshape(self.shape).to(self.kind)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ATTRIBUTES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        noted = _noted_in([*args, *kwargs.values()])
        if any(isinstance(x, _NotedWeights) for x in noted):
            return _NotedWeights.__torch_function__(func, types, args, kwargs)
        rule = _RULES.get(func)
        result = NotImplemented
        if rule is not None:
            result = rule(*args, **kwargs)
        if result is not NotImplemented:
            return result
        scores = next(x for x in noted if isinstance(x, _NotedScores))
        if scores.zeroed is not None:
            raise _NotPlainError(f"its code takes masked scores for {_name(func)}")
        scores.following.opened = _name(func)
        return func(*map(_opened, args), **{name: _opened(x) for name, x in kwargs.items()})


def _noted_in(values: Iterable[Any]) -> list[_Noted]:
    """The scores and weights among values, also inside of lists, as `torch.cat` gets them."""
    noted: list[_Noted] = []
    for x in values:
        if isinstance(x, list | tuple):
            noted += _noted_in(x)
        elif isinstance(x, _Noted):
            noted.append(x)
    return noted


def _opened(x: Any) -> Any:
    if type(x) in (list, tuple):
        return type(x)(map(_opened, x))
    return x.numbers() if isinstance(x, _NotedScores) else x


class _NotedWeights(_Noted):
    """The softmax of scores, of which some are dropped."""

    @staticmethod
    def __new__(cls, scores: _NotedScores, dropout: float, shape: Any, dtype: Any) -> _NotedWeights:
        return torch.Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=dtype, device=scores.device
        )

    def __init__(self, scores: _NotedScores, dropout: float, shape: Any, dtype: Any) -> None:
        self.following = scores.following
        self.scores = scores
        self.dropout = dropout
        self.kind = dtype

    def like(self, shape: Any = None, dtype: Any = None) -> _NotedWeights:
        shape = self.shape if shape is None else shape
        return _NotedWeights(self.scores, self.dropout, shape, dtype or self.kind)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ATTRIBUTES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        result = NotImplemented
        if func in _PRODUCTS:
            result = _attend(func, args, kwargs)
        elif func in _RULES_OF_WEIGHTS:
            result = _RULES_OF_WEIGHTS[func](*args, **kwargs)
        if result is NotImplemented:
            raise _NotPlainError(f"its code takes its weights for {_name(func)}")
        return result


def _name(func: Any) -> str:
    """A function in a sentence."""
    return getattr(func, "__name__", str(func)).strip("_")


# --- products ---

_MATMULS = {
    torch.matmul,
    torch.bmm,
    torch.Tensor.matmul,
    torch.Tensor.bmm,
    torch.Tensor.__matmul__,
    torch.Tensor.__rmatmul__,
}
_PRODUCTS = {*_MATMULS, torch.baddbmm, torch.Tensor.baddbmm, torch.einsum}


def _scores_of(
    following: _Following, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _NotedScores | None:
    """The scores that a product of queries and keys would be; None for other products."""
    added = None
    alpha = 1.0
    if func in (torch.baddbmm, torch.Tensor.baddbmm):
        added, q, k = args[:3]
        alpha = kwargs.get("alpha", 1.0)
        k = k.mT
    elif func is torch.einsum:
        operands = _of_einsum(*args)
        if operands is None:
            return None
        q, k = operands
    else:
        if len(args) != 2 or kwargs:
            return None
        q, k = reversed(args) if func is torch.Tensor.__rmatmul__ else args
        if k.dim() < 3:
            return None
        k = k.mT
    if q.dim() not in (3, 4) or q.dim() != k.dim() or not q.is_floating_point():
        return None
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    scores = _NotedScores(following, q, k, (*lead, q.shape[-2], k.shape[-2]), q.dtype)
    scores.factor = alpha
    beta = kwargs.get("beta", 1.0)
    if added is not None and beta and bool(added.any()):
        scores.terms.append((added, tuple(scores.shape), beta))
    return scores


def _of_einsum(equation: Any, *operands: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Queries and keys (batch, heads, n, head_dim) of a product of scores; None for other equations."""
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2 or len(result) != 4:
        return None
    summed = set(terms[0]) & set(terms[1]) - set(result)
    if len(summed) != 1 or any(len(term) != 4 for term in terms):
        return None
    lead, row, column = result[:2], result[2], result[3]
    channel = summed.pop()
    wanted = (f"{lead}{row}{channel}", f"{lead}{column}{channel}")
    if set(wanted[0]) != set(terms[0]) or set(wanted[1]) != set(terms[1]):
        return None
    q, k = (
        x.permute([term.index(axis) for axis in order])
        for x, term, order in zip(operands, terms, wanted, strict=True)
    )
    return q, k


def _attend(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The product of weights and values, computed by regard."""
    if func is torch.einsum:
        return _attend_einsum(*args)
    if func not in _MATMULS or len(args) != 2 or kwargs or not isinstance(args[0], _NotedWeights):
        return NotImplemented
    weights, v = args
    if isinstance(v, _Noted) or v.dim() != weights.dim():
        return NotImplemented
    output = _attend_by_heads(weights, v)
    return output.reshape(*weights.shape[:-1], v.shape[-1])


def _attend_einsum(equation: Any, *operands: Any) -> Any:
    """The same for an equation: of weights (batch, heads, n, m) and values with the same batch, heads and m."""
    if not isinstance(equation, str) or len(operands) != 2:
        return NotImplemented
    if not isinstance(operands[0], _NotedWeights):
        return NotImplemented
    left, _, result = equation.replace(" ", "").partition("->")
    of_weights, of_v = left.split(",")
    weights, v = operands
    batch, heads, row, column = of_weights if len(of_weights) == 4 else "    "
    channel = set(of_v) - set(of_weights)
    if len(channel) != 1 or set(of_v) != {batch, heads, column, *channel}:
        return NotImplemented
    (size,) = channel
    if set(result) != {batch, heads, row, size}:
        return NotImplemented
    v = v.permute([of_v.index(axis) for axis in (batch, heads, column, size)])
    output = _attend_by_heads(weights, v)
    made = [batch, heads, row, size]
    return output.permute([made.index(axis) for axis in result])


def _attend_by_sdpa(
    following: _Following,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """A call of PyTorch's attention, computed by regard."""
    # PyTorch aligns the first query with the first key, and regard the last ones.
    is_aligned = query.shape[-2] == key.shape[-2]
    if query.dim() != 4 or (is_causal and not is_aligned):
        raise _NotPlainError(
            f"its code calls scaled_dot_product_attention on {query.dim()} axes, {query.shape[-2]} queries and "
            f"{key.shape[-2]} keys"
        )
    if attn_mask is not None and not isinstance(attn_mask, PatternMask):
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    following.calls += 1
    with torch._C.DisableTorchFunction():
        output, _ = regard_attention(
            following.module,
            query,
            key,
            value,
            attn_mask,
            scaling=query.shape[-1] ** -0.5 if scale is None else scale,
            dropout=dropout_p,
            is_causal=is_causal,
        )
    return _changeable(output.transpose(1, 2))


def _attend_by_heads(weights: _NotedWeights, v: torch.Tensor) -> torch.Tensor:
    """The output of attention, (batch, heads, n, v_dim)."""
    scores = weights.scores
    following = scores.following
    n, m = scores.shape[-2:]
    batch, heads = _batch_and_heads(scores, weights)
    q, k, v = (
        x.expand(*lead, *x.shape[-2:]).reshape(batch, heads, *x.shape[-2:])
        for x, lead in (
            (scores.q, scores.leads[0]),
            (scores.k, scores.leads[0]),
            (v, weights.shape[:-2]),
        )
    )
    mask, bias = _mask_of(scores, (batch, heads, n, m))
    following.calls += 1
    with torch._C.DisableTorchFunction():
        output, _ = regard_attention(
            following.module,
            q.to(v.dtype),
            k.to(v.dtype),
            v,
            mask,
            scaling=float(scores.factor),
            dropout=weights.dropout,
            is_causal=False,
            position_bias=bias,
        )
    return _changeable(output.transpose(1, 2))


def _changeable(output: torch.Tensor) -> torch.Tensor:
    """An output that code may change in place: a product keeps its factors for gradients, and regard its output."""
    return output.clone() if output.requires_grad else output


def _batch_and_heads(scores: _NotedScores, weights: _NotedWeights) -> tuple[int, int]:
    """The sizes of batch and heads: two axes of a shape that the scores had, or one axis by the module's heads."""
    for lead in (*scores.leads, tuple(weights.shape[:-2])):
        if len(lead) == 2:
            return lead
    (both,) = scores.leads[0]
    module = scores.following.module
    for name in ("num_heads", "n_heads", "num_attention_heads", "n_head"):
        heads = getattr(module, name, None)
        if isinstance(heads, int) and heads and both % heads == 0:
            return both // heads, heads
    return both, 1


def _mask_of(scores: _NotedScores, shape: tuple[int, int, int, int]) -> tuple[Any, Any]:
    """The mask and the bias of a call, as `regard_attention` takes them."""
    mask: Any = None
    bias: Any = None
    for term, at, times in scores.terms:
        if isinstance(term, PatternMask) and times == 1 and mask is None:
            mask = term
            continue
        numbers = _by_heads(term, at, shape)
        numbers = numbers if times == 1 else times * numbers
        bias = numbers if bias is None else bias + numbers
    allowed: Any = None
    for part, at in scores.masks:
        part = _by_heads(part, at, shape)
        allowed = part if allowed is None else allowed & part
    if allowed is not None and (bias is not None or mask is not None):
        numbers = scores.q.new_zeros(()) if bias is None else bias
        bias = torch.where(allowed, numbers, -math.inf)
        allowed = None
    if mask is not None:
        return mask, bias
    return (bias, None) if allowed is None else (allowed, None)


def _by_heads(x: torch.Tensor, at: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor that fits scores of the shape `at`, in the form that fits (batch, heads, n, m)."""
    x = x[(None,) * (len(at) - x.dim())]
    if len(at) == 4:
        return x
    return x[None] if x.shape[0] == 1 else x.reshape(*shape[:2], *x.shape[1:])


# --- what code does with scores ---


def _number(x: Any) -> float | None:
    """A number, also of a tensor without axes; None for everything else."""
    if isinstance(x, torch.Tensor):
        return None if x.dim() or isinstance(x, _Noted) or x.requires_grad else float(x)
    return float(x) if isinstance(x, int | float) and not isinstance(x, bool) else None


def _scale(scores: Any, number: Any, inverse: bool = False, **others: Any) -> Any:
    if not isinstance(scores, _NotedScores):
        scores, number = number, scores
        if inverse:
            return NotImplemented
    if others or not isinstance(scores, _NotedScores):
        return NotImplemented
    times = _number(number)
    if times is None:
        return NotImplemented if inverse else _zero(scores, number)
    times = 1 / times if inverse else times
    scaled = scores.like()
    scaled.factor *= times
    scaled.terms = [(term, at, before * times) for term, at, before in scores.terms]
    return scaled


def _zero(scores: _NotedScores, ones: Any) -> Any:
    """Scores times a tensor of zeros and ones."""
    if not isinstance(ones, torch.Tensor) or isinstance(ones, _Noted) or scores.zeroed is not None:
        return NotImplemented
    if ones.requires_grad or scores.terms or not bool(((ones == 0) | (ones == 1)).all()):
        return NotImplemented
    zeroed = scores.like()
    zeroed.zeroed = ones != 0
    return zeroed


def _divide(scores: Any, number: Any, **others: Any) -> Any:
    return _scale(scores, number, inverse=True, **others)


def _add(scores: Any, term: Any, **others: Any) -> Any:
    if not isinstance(scores, _NotedScores):
        scores, term = term, scores
    if isinstance(term, _NotedScores) and not others:
        return _add_scores(scores, term)
    if others or isinstance(term, _Noted):
        return NotImplemented
    if not isinstance(term, torch.Tensor):
        return scores if term == 0 else NotImplemented
    if not _fits(term, scores):
        return NotImplemented
    added = scores.like()
    if scores.zeroed is not None:
        lowest = term.expand(scores.shape)[~scores.zeroed.expand(scores.shape)]
        if lowest.numel() and float(lowest.max()) > LOWEST:
            return NotImplemented
        added.masks.append((scores.zeroed, tuple(scores.shape)))
        added.zeroed = None
    added.terms.append((term, tuple(scores.shape), 1.0))
    return added


def _add_scores(scores: _NotedScores, others: _NotedScores) -> Any:
    """The sum of two products, such as those of words and of their places: one product of longer queries and keys."""
    if scores.zeroed is not None or others.zeroed is not None or scores.leads != others.leads:
        return NotImplemented
    if scores.q.shape[:-1] != others.q.shape[:-1] or scores.k.shape[:-1] != others.k.shape[:-1]:
        return NotImplemented
    added = scores.like()
    added.q = torch.cat((scores.factor * scores.q, others.factor * others.q), -1)
    added.k = torch.cat((scores.k, others.k), -1)
    added.factor = 1.0
    added.terms += others.terms
    added.masks += others.masks
    return added


def _fits(x: torch.Tensor, scores: _NotedScores) -> bool:
    """Whether scores keep their shape together with a tensor."""
    if x.dim() > scores.dim():
        return False
    return torch.broadcast_shapes(x.shape, scores.shape) == scores.shape


def _subtract(scores: Any, term: Any, **others: Any) -> Any:
    if not isinstance(scores, _NotedScores) or not isinstance(term, torch.Tensor):
        return NotImplemented
    return _add(scores, -term, **others)


def _fill(scores: Any, masked: Any, value: Any) -> Any:
    number = _number(value)
    if not isinstance(scores, _NotedScores) or number is None or number > LOWEST:
        return NotImplemented
    if isinstance(masked, _Noted) or masked.dtype != torch.bool or not _fits(masked, scores):
        return NotImplemented
    filled = scores.like()
    filled.masks.append((~masked, tuple(scores.shape)))
    return filled


def _where(condition: Any, scores: Any, value: Any) -> Any:
    if isinstance(value, _NotedScores):
        return _fill(value, condition, scores)
    return _fill(scores, ~condition, value)


def _at_least(scores: Any, lowest: Any = None, **others: Any) -> Any:
    """The larger of scores and a number that none of them is below."""
    number = _number(lowest)
    if others or not isinstance(scores, _NotedScores) or number is None:
        return NotImplemented
    return scores if number <= torch.finfo(scores.kind).min else NotImplemented


def _in_place(rule: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(rule)
    def changed(scores: Any, *args: Any, **options: Any) -> Any:
        result = rule(scores, *args, **options)
        if result is NotImplemented or not isinstance(scores, _NotedScores):
            raise _NotPlainError("its code changes its scores in place")
        return scores.set(result)

    return changed


def _softmax(
    scores: Any, dim: Any = None, *, dtype: Any = None, _stacklevel: int = 3, **others: Any
) -> Any:
    if not isinstance(scores, _NotedScores) or others or scores.zeroed is not None:
        return NotImplemented
    if dim not in (-1, scores.dim() - 1):
        raise _NotPlainError("its code takes a softmax that is not over keys")
    return _NotedWeights(scores, 0.0, scores.shape, dtype or scores.kind)


def _dropped(weights: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not isinstance(weights, _NotedWeights):
        return NotImplemented
    if not training or not p:
        return weights
    if weights.dropout:
        return NotImplemented
    return _NotedWeights(weights.scores, p, weights.shape, weights.kind)


def _empty(weights: Any, masked: Any, value: Any) -> Any:
    """Weights set to 0 where their scores are hidden already: only rows without a key change, and regard's are 0."""
    if not isinstance(weights, _NotedWeights) or isinstance(masked, _Noted) or _number(value) != 0:
        return NotImplemented
    scores = weights.scores
    if masked.dtype != torch.bool or weights.dropout or not _fits(masked, scores):
        return NotImplemented
    for allowed, at in scores.masks:
        if at == tuple(weights.shape) and not bool((masked & allowed).any()):
            return weights
    return NotImplemented


# --- what code does with either ---


def _shaped(x: Any, *shape: Any, **others: Any) -> Any:
    """Another shape with the same last two axes."""
    made = torch.empty(x.shape, device="meta").reshape(*shape, **others).shape
    is_known = len(made) in (3, 4) and made[-2:] == x.shape[-2:]
    return x.like(shape=made) if is_known else NotImplemented


def _cast(x: Any, *args: Any, **options: Any) -> Any:
    if not isinstance(x, _Noted):
        return NotImplemented
    dtype = options.get("dtype")
    for argument in args:
        if isinstance(argument, torch.dtype):
            dtype = argument
        elif isinstance(argument, torch.Tensor):
            dtype = argument.dtype
    return x if dtype is None or dtype == x.kind else x.like(dtype=dtype)


def _cast_like(x: Any, other: Any) -> Any:
    if isinstance(x, _Noted):
        return _cast(x, other.dtype)
    return x.to(other.dtype)


def _same(x: Any, **others: Any) -> Any:
    return x


def _expanded(x: Any, other: Any) -> Any:
    return x.expand(other.shape) if not isinstance(x, _Noted) else NotImplemented


def _to(dtype: torch.dtype) -> Callable[..., Any]:
    return lambda x, **others: _cast(x, dtype)


_T = torch.Tensor
_SOFTMAXES = {torch.softmax, functional.softmax, _T.softmax}
_OF_BOTH: dict[Any, Callable[..., Any]] = {
    _T.view: _shaped,
    _T.reshape: _shaped,
    torch.reshape: _shaped,
    _T.to: _cast,
    _T.type: _cast,
    _T.type_as: _cast_like,
    _T.float: _to(torch.float32),
    _T.double: _to(torch.float64),
    _T.half: _to(torch.float16),
    _T.bfloat16: _to(torch.bfloat16),
    _T.contiguous: _same,
    _T.expand_as: _expanded,
}
_RULES: dict[Any, Callable[..., Any]] = {
    **_OF_BOTH,
    **dict.fromkeys((torch.mul, torch.multiply, _T.mul, _T.__mul__, _T.__rmul__), _scale),
    **dict.fromkeys((torch.div, torch.true_divide, _T.div, _T.__truediv__), _divide),
    **dict.fromkeys((torch.add, _T.add, _T.__add__, _T.__radd__), _add),
    **dict.fromkeys((torch.sub, _T.sub, _T.__sub__), _subtract),
    **dict.fromkeys((_T.__imul__, _T.mul_), _in_place(_scale)),
    **dict.fromkeys((_T.__itruediv__, _T.div_), _in_place(_divide)),
    **dict.fromkeys((_T.__iadd__, _T.add_), _in_place(_add)),
    **dict.fromkeys((torch.masked_fill, _T.masked_fill), _fill),
    _T.masked_fill_: _in_place(_fill),
    **dict.fromkeys((torch.where,), _where),
    **dict.fromkeys((torch.max, torch.maximum, _T.max, _T.maximum), _at_least),
    **dict.fromkeys(_SOFTMAXES, _softmax),
    functional.dropout: lambda x, p=0.5, training=True, inplace=False: (
        NotImplemented if training and p else x
    ),
}
_RULES_OF_WEIGHTS: dict[Any, Callable[..., Any]] = {
    **_OF_BOTH,
    functional.dropout: _dropped,
    torch.dropout: _dropped,
    **dict.fromkeys((torch.masked_fill, _T.masked_fill, _T.masked_fill_), _empty),
}


# --- modules ---


def prove_plain(model: nn.Module, modules: Mapping[str, nn.Module]) -> dict[str, str | None]:
    """Why each of these modules is not plain attention, by name; None for those that are.

    The model runs on tiny inputs, as `attach` does; nothing in it changes. A class is plain if all calls of its modules
    were.
    """
    if not modules:
        return {}
    kinds = {name: type(module) for name, module in modules.items()}
    verdicts: Verdicts = {}
    before = _verdicts.get()
    try:
        # Inside, since modules would run twice from then on if an interruption came right after it.
        _verdicts.set(verdicts)
        exchange_written_out(modules.values())
        with unchanged(model) as snapshot, torch.no_grad():
            for part in models_inside(model):
                if verdicts.keys() >= {*kinds.values()}:
                    break
                _run(part, snapshot)
    finally:
        restore_written_out(modules.values())
        _verdicts.set(before)
    unreached = "no tiny input reaches it, so nothing proves that it is plain"
    return {name: verdicts.get(kind, unreached) for name, kind in kinds.items()}


def _run(part: nn.Module, snapshot: Any) -> None:
    """Run a model on the first tiny inputs that it takes."""
    for inputs in tiny_inputs(part):  # ty: ignore[invalid-argument-type]
        for module in part.modules():
            module.training = False
        torch.manual_seed(0)
        try:
            part(**inputs)
        except Exception:
            continue
        else:
            return
        finally:
            snapshot.restore()


def exchange_written_out(modules: Iterable[nn.Module]) -> None:
    """Give modules of plain attention the classes that regard computes."""
    for module in modules:
        if type(module).__module__ != WRITTEN_OUT:
            module.__class__ = _class_for(type(module))


def restore_written_out(modules: Iterable[nn.Module]) -> None:
    """The opposite of `exchange_written_out`."""
    for module in modules:
        if type(module).__module__ == WRITTEN_OUT:
            module.__class__ = type(module).__mro__[1]


@cache
def _class_for(kind: Any) -> type[nn.Module]:
    """The subclass that runs the same code, followed by regard."""

    @wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            raise UnsupportedError(
                f"the code of {kind.__name__} is followed call by call, which torch.compile cannot trace; "
                f"detach(model) before it is compiled"
            )
        verdicts = _verdicts.get()
        if verdicts is not None:
            return _judge(verdicts, kind, self, args, options)
        return _follow(kind, self, args, options)

    # Pickle finds classes by name, and cannot find one that is made here.
    def reduce(self: nn.Module, protocol: Any) -> Any:
        return _new_module, (kind,), self.__dict__

    members = {
        "forward": forward,
        "__reduce_ex__": reduce,
        "__module__": WRITTEN_OUT,
        "__doc__": kind.__doc__,
    }
    return type(f"Regard{kind.__name__}", (kind,), members)


def _new_module(kind: type[nn.Module]) -> nn.Module:
    """A module without attributes, which pickle sets."""
    return object.__new__(_class_for(kind))


def _follow(kind: Any, module: nn.Module, args: Any, options: dict[str, Any]) -> Any:
    """The output of a module, whose attention regard computes; it returns no weights."""
    following = _Following(module)
    try:
        with following:
            output = kind.forward(module, *args, **options)
    except _NotPlainError as reason:
        _refuse(kind, str(reason), reason)
    if not following.calls:
        _refuse(kind, "this call computes no product of weights and values")
    return _without_noted(output)


def _refuse(kind: Any, why: str, cause: BaseException | None = None) -> NoReturn:
    raise UnsupportedError(
        f"{kind.__name__} computes more than plain attention in this call: {why}; call detach(model) for it"
    ) from cause


def _without_noted(output: Any) -> Any:
    """What a module returns, with None in the place of scores and weights."""
    if isinstance(output, _Noted):
        return None
    if type(output) in (tuple, list):
        return type(output)(map(_without_noted, output))
    return output


def _judge(
    verdicts: Verdicts, kind: Any, module: nn.Module, args: Any, options: dict[str, Any]
) -> Any:
    """The output of a module's own code, which then runs again and is followed, to find out whether it is plain."""
    again = _with_copied_caches(args)
    options_again = dict(zip(options, _with_copied_caches(options.values()), strict=True))
    output = kind.forward(module, *args, **options)
    if verdicts.get(kind) is None:
        try:
            _follow(kind, module, again, options_again)
        except UnsupportedError as error:
            verdicts[kind] = str(error.__cause__ or error)
        except Exception as error:
            verdicts[kind] = f"followed by regard it raises {type(error).__name__}: {error}"
        else:
            verdicts.setdefault(kind, None)
    return output


def _with_copied_caches(values: Iterable[Any]) -> list[Any]:
    """Arguments for a second run of a module, with copies of caches: the model's own get their entries once."""
    return [copy.deepcopy(x) if hasattr(x, "get_seq_length") else x for x in values]
