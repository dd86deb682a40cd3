"""A call of attention that belongs to no library, and its right answer, which the oracle computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.reprs import brief
from regard.testing.oracle import answer

Array = NDArray[Any]
Results = Mapping[
    str, Array
]  # "output", "log_sum_exp", "weights", and gradients: "dq", "dk", "dv", "dbias", "dsink"
Gradient = Literal["q", "k", "v", "bias", "sink"]
Transform = Literal["vmap", "jvp", "second derivatives", "functional gradient", "compile"]


class CannotAskError(Exception):
    """The interface of a library has no argument for a part of a call; the message names the part."""


@brief
@dataclass(frozen=True)
class NeutralCall:
    """A call of attention: arrays of float64 numbers that are exact in `dtype`, and options by their meaning.

    Args:
        q: (batch, heads, q_len, head_dim).
        k: (batch, kv_heads, k_len, head_dim).
        v: (batch, kv_heads, k_len, v_dim).
        dtype: the dtype of q, k and v: "float64", "float32", "bfloat16" or "float16".
        mask: booleans that broadcast to (batch, heads, q_len, k_len); True = the query may look at the key.
        bias: numbers added to the scores; its axes broadcast to (batch, heads, q_len, k_len).
        causal: each query may look at the keys up to its own position; the last query has that of the last key.
        window: how many keys before its own position and after it a query may look at; None for no limit.
        key_lengths: the number of keys of each batch row; the others are padding.
        first_positions: the position of the first query of each batch row, among the keys.
        scale: multiplies the dot products; None for 1 / sqrt(head_dim).
        softcap: scores become softcap · tanh(scores / softcap).
        sink: the logit of each head that takes part in the sum of the weights, (heads,).
        dropout: share of the weights that is dropped.
        seed: chooses the dropped weights.
        gradients: the inputs whose gradients are computed.
        grad_output: the gradient of the loss by the output.
        transform: how the function is called: "vmap" over a new axis, whose first entry is q, k, v and whose second is
            2 q, 2 k, 2 v; "jvp", the tangent of the output along `directions`; "second derivatives", the gradients
            of Σ dq · directions[0]; "functional gradient", by a transform of functions and not by a tape; "compile".
        directions: of q, k and v, for a transform that takes derivatives along them.
        wants: beside the output "log_sum_exp", "weights", or "changed inputs": how many numbers of q, k, v and the mask
            the call has changed.
        layout: how q, k and v lie in memory: "contiguous", or one of `LAYOUTS`.
        changes: what differs from an ordinary call: the dtype of k ("k_dtype"), of the bias ("bias_dtype"), or of the
            mask ("mask_dtype"), or the layout of the mask ("mask_layout").
    """

    q: Array
    k: Array
    v: Array
    dtype: str = "float32"
    mask: Array | None = None
    bias: Array | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    key_lengths: tuple[int, ...] | None = None
    first_positions: tuple[int, ...] | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: Array | None = None
    dropout: float = 0.0
    seed: int = 0
    gradients: tuple[Gradient, ...] = ()
    grad_output: Array | None = None
    transform: Transform | None = None
    directions: tuple[Array, Array, Array] | None = None
    wants: tuple[str, ...] = ()
    layout: str = "contiguous"
    changes: Mapping[str, str] | None = None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """batch, heads, q_len and k_len."""
        batch, heads, q_len, _ = self.q.shape
        return batch, heads, q_len, self.k.shape[2]

    @property
    def used_scale(self) -> float:
        """What multiplies the dot products: the scale, or 1 / sqrt(head_dim)."""
        return self.q.shape[3] ** -0.5 if self.scale is None else self.scale

    def changed(self, name: str) -> str | None:
        """The dtype or layout of this name in `changes`; None where it is the ordinary one."""
        return None if self.changes is None else self.changes.get(name)

    def refuse_words(self, *known: str) -> None:
        """Raise a CannotAskError for an option of this call that is not among the known ones."""
        asked = {
            "mask": self.mask is not None,
            "bias": self.bias is not None,
            "causal": self.causal,
            "window": self.window is not None,
            "key_lengths": self.key_lengths is not None,
            "first_positions": self.first_positions is not None,
            "scale": self.scale is not None,
            "softcap": self.softcap is not None,
            "sink": self.sink is not None,
            "dropout": self.dropout != 0,
            "gradients": bool(self.gradients),
            "layout": self.layout != "contiguous",
            **dict.fromkeys(self.wants, True),
        }
        if self.transform is not None:
            asked[self.transform] = True
        if self.changes is not None:
            asked |= dict.fromkeys(self.changes, True)
        for word, is_asked in asked.items():
            if is_asked and word not in known:
                raise CannotAskError(word)


LAYOUTS = ("transposed", "sliced", "offset", "expanded", "negated")


# The pairs that the contract allows, by formulas of their own


def allowed_pairs(
    call: NeutralCall,
    *,
    aligned: Literal["last", "first"] = "last",
    wider: int = 0,
    use_causal: bool = True,
    use_window: bool = True,
    use_mask: bool = True,
    use_lengths: bool = True,
) -> Array:
    """Booleans (batch, heads, q_len, k_len): the pairs that a call allows, or that another reading of it allows.

    Args:
        aligned: "last" if the last query has the position of the last key, "first" if the first has that of the first.
        wider: how many keys are added to each limited side of a window; negative to take some away.
        use_causal, use_window, use_mask, use_lengths: False for a reading that ignores this option.
    """
    batch, heads, q_len, k_len = call.sizes
    first = np.full(batch, k_len - q_len if aligned == "last" else 0)
    if call.first_positions is not None:
        first = np.array(call.first_positions)
    i = (first[:, None] + np.arange(q_len))[:, None, :, None]  # positions of queries
    j = np.arange(k_len)

    allowed = np.ones((batch, 1, q_len, k_len), dtype=bool)
    if call.causal and use_causal:
        allowed = allowed & (j <= i)
    if call.window is not None and use_window:
        back, ahead = call.window
        if back is not None:
            allowed = allowed & (j >= i - back - wider)
        if ahead is not None:
            allowed = allowed & (j <= i + ahead + (wider if ahead else 0))
    if call.key_lengths is not None and use_lengths:
        lengths = np.array(call.key_lengths)[:, None, None, None]
        allowed = allowed & (j < lengths)
    if call.mask is not None and use_mask:
        allowed = allowed & call.mask.astype(bool)
    return np.broadcast_to(allowed, (batch, heads, q_len, k_len))


def right_results(call: NeutralCall, allowed: Array | None = None) -> dict[str, Array]:
    """The results of a call in float64, by the contract or, with other allowed pairs, by another reading."""
    if allowed is None:
        allowed = allowed_pairs(call)
    if call.transform == "vmap":
        return _mapped_results(call, allowed)
    if call.transform == "jvp":
        slope = _slope(replace(call, transform=None), allowed)["output"]
        return _plain_results(call, allowed) | {"tangent": slope}
    if call.transform == "second derivatives":
        return _second_derivatives(call, allowed)
    return _plain_results(call, allowed)


def _mapped_results(call: NeutralCall, allowed: Array) -> dict[str, Array]:
    """The results of q, k, v and those of 2 q, 2 k, 2 v, along a new axis."""
    doubled = replace(call, q=2 * call.q, k=2 * call.k, v=2 * call.v)
    first = _plain_results(call, allowed)
    second = _plain_results(doubled, allowed)
    return {name: np.stack([first[name], second[name]]) for name in first}


def _second_derivatives(call: NeutralCall, allowed: Array) -> dict[str, Array]:
    """The gradients of Σ dq · u by q, k and v.

    Derivatives commute, so they are the slopes of dq, dk and dv as q moves along u.
    """
    assert call.directions is not None
    along_q = call.directions[0]
    slope = _slope(
        replace(call, directions=(along_q, np.zeros_like(call.k), np.zeros_like(call.v))), allowed
    )
    derivatives = {f"d{name}": x for name, x in slope.items() if name in ("dq", "dk", "dv")}
    return {"output": _plain_results(call, allowed)["output"], **derivatives}


def _slope(call: NeutralCall, allowed: Array) -> dict[str, Array]:
    """How fast the results change as q, k and v move along their directions, by central differences."""
    assert call.directions is not None
    step = 1e-5  # errors of the differences and of rounding are both near 1e-10
    moved = []
    for sign in (1, -1):
        q, k, v = (
            getattr(call, name) + sign * step * along
            for name, along in zip("qkv", call.directions, strict=True)
        )
        moved.append(_plain_results(replace(call, q=q, k=k, v=v), allowed))
    ahead, behind = moved
    return {name: (ahead[name] - behind[name]) / (2 * step) for name in ahead}


def _plain_results(call: NeutralCall, allowed: Array) -> dict[str, Array]:
    """The results of a call without a transform."""
    sink = None if call.sink is None else call.sink[None]
    bias = call.bias
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    grad_output = call.grad_output if call.gradients else None
    with np.errstate(all="ignore"):  # a clause may ask for infinite scores
        computed = answer(
            call.q,
            call.k,
            call.v,
            allowed,
            scale=call.used_scale,
            softcap=call.softcap,
            bias=bias,
            sink=sink,
            grad_output=grad_output,
        )
    results: dict[str, Array] = {"output": computed.output}
    for name in call.gradients:
        gradient = getattr(computed, f"d{name}")
        assert gradient is not None
        if name == "bias" and call.bias is not None:
            gradient = gradient.reshape(call.bias.shape)
        results[f"d{name}"] = gradient[0] if name == "sink" else gradient
    for name in call.wants:
        results[name] = getattr(computed, name)
    return results


# Other readings of a call, which a library may follow on purpose

Reading = Callable[[NeutralCall], Results]


def with_pairs(**how: Any) -> Reading:
    """The reading that allows other pairs; the arguments are those of `allowed_pairs`."""
    return lambda call: right_results(call, allowed_pairs(call, **how))


def without(*options: str) -> Reading:
    """The reading that ignores these options of the call."""

    def read(call: NeutralCall) -> Results:
        defaults = {"causal": False, "dropout": 0.0}
        ignored = {option: defaults.get(option) for option in options}
        return right_results(replace(call, **ignored))

    return read


def empty_rows_are(what: Literal["NaN", "mean", "unmasked"], **how: Any) -> Reading:
    """The reading by which rows without keys are NaN, the mean of all values, or as if no mask were there.

    how: other allowed pairs, as for `allowed_pairs`.
    """

    def read(call: NeutralCall) -> Results:
        allowed = allowed_pairs(call, **how)
        visible = allowed
        if call.bias is not None:
            visible = visible & (np.broadcast_to(call.bias, allowed.shape) != -np.inf)
        empty = ~visible.any(-1, keepdims=True)
        if what == "NaN":
            results = right_results(call, allowed)
            return {
                name: np.where(empty, np.nan, x) if name in ("output", "weights") else x
                for name, x in results.items()
            }
        scale = 0.0 if what == "mean" else call.scale
        # All keys of an empty row count, with equal weights or with those of their scores.
        unmasked = replace(call, mask=None, bias=None, scale=scale)
        of_empty = right_results(unmasked, np.ones(allowed.shape, dtype=bool))
        results = right_results(call, allowed)
        return {
            name: np.where(empty, of_empty[name], x) if name in ("output", "weights") else x
            for name, x in results.items()
        }

    return read


def with_opposite_mask(call: NeutralCall) -> Results:
    """The reading by which True hides a pair."""
    assert call.mask is not None
    return right_results(replace(call, mask=~call.mask.astype(bool)))
