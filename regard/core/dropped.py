"""Calls with the keys of a cache that dropped some positions: the keys held are numbered without gaps.

A ring drops positions itself, so a pattern that may look at one is refused. `Cache.keep` drops what its caller chose,
so there the dropped keys are hidden. Statistics by key have the positions of the text.
"""

from __future__ import annotations

import torch

from regard.bias import Bias, Forgetting
from regard.core.call import Call
from regard.core.problem import checked_bias, checked_mechanism, checked_q_start
from regard.core.result import Result, TopKeysFound, WeightsOf, requested
from regard.core.tensors import Stored, bind_attention
from regard.errors import ShapeError, UnsupportedError
from regard.patterns import Explicit, Pattern, as_pattern
from regard.patterns.dropping import kept_keys, misplaced
from regard.patterns.grid import Grid, four_axes, grids_of_rows
from regard.patterns.one_call import placed

BY_ROW = ("log_sum_exp", "entropy", "sink")  # statistics that do not depend on positions


def without_gaps(call: Call) -> Call:
    """The call with the held keys numbered one after the other, and its queries, pattern and bias to match.

    A pattern stays as it is if it allows no key next to a gap, or all keys before the queries, as a causal one does.
    After `keep` any other pattern becomes a mask of the queries and the keys held, and a bias a tensor for them.

    Raises:
        UnsupportedError: an option that counts positions, or, with a ring, a pattern that may look at a dropped key.
    """
    k = call.k
    v = call.v
    q = call.q
    if not isinstance(k, Stored):
        return call
    # The sums of forget gates are those of the held keys, whatever their positions.
    is_forgetting = isinstance(call.bias, Forgetting)
    if not k.has_gap and not (is_forgetting and k.first):
        return call

    sizes = bind_attention(q, k, v)
    if not isinstance(v, Stored) or not _dropped_alike(k, v):
        raise ShapeError(
            "k and v come from caches that dropped other positions; give the keys and values of one"
        )
    start: int | torch.Tensor = k.shape[2] - q.shape[2]
    if call.q_start is not None:
        start = checked_q_start(call.q_start, q.shape[0])
    _refuse_counting(call, k, start)
    assert isinstance(start, int)

    pattern = as_pattern(call.pattern).canonical()
    if not _stays(pattern, start, k):
        if k.places is None:
            raise _refusal_of_pattern(pattern, start, k)
        pattern = _at_places(pattern, start, k, sizes)
    bias = call.bias
    if isinstance(bias, Forgetting):
        bias = bias.by_key()
    elif bias is not None:
        checked_bias(bias, q, sizes)
        bias = _bias_at(bias, start, k, sizes, q.dtype)
    return call._replace(
        k=_numbered_from_zero(k, q.dtype),
        v=_numbered_from_zero(v, q.dtype),
        bias=bias,
        pattern=pattern,
        q_start=start - k.first,
    )


def _dropped_alike(k: Stored, v: Stored) -> bool:
    return v.lead == k.lead and v.first == k.first and v.places is k.places


def _numbered_from_zero(x: Stored, dtype: torch.dtype) -> torch.Tensor | Stored:
    """The held vectors without their positions, as a tensor where they have the dtype of the queries."""
    if x.scales is None and x.dtype == dtype:
        return x.numbers
    return Stored(x.numbers, x.scales)


def _refuse_counting(call: Call, k: Stored, start: int | torch.Tensor) -> None:
    """Refuse options that need the dropped positions."""
    is_ring = k.places is None
    mechanism = checked_mechanism(call.mechanism)
    if not is_ring and not mechanism.is_softmax:
        raise UnsupportedError(
            f"{mechanism}: a cache that dropped keys by keep() works only with softmax; keep all entries"
        )

    counting = []
    if is_ring and call.bias is not None and not isinstance(call.bias, Forgetting):
        counting.append("bias")
    if call.dropout:
        counting.append("dropout")
    if isinstance(start, torch.Tensor):
        counting.append("q_start by batch row")
    for statistic in call.want:
        if (is_ring and statistic not in BY_ROW) or statistic == "distance":
            counting.append(str(statistic))
    if not counting:
        return

    where = "by keep()"
    if is_ring:
        where = f"behind the first {k.lead}" if k.lead else "at the beginning"
    raise UnsupportedError(
        f"{counting[0]} counts positions, and this cache dropped {k.first} of them {where}; leave it out, or use a "
        f"cache that keeps all entries"
    )


def _held_before_gap(k: Stored) -> int:
    """How many held keys come before the last gap."""
    return k.lead if k.places is None else k.places.shape[2]


def _stays(pattern: Pattern, start: int, k: Stored) -> bool:
    """Whether a pattern allows the same pairs where the held keys and the queries are numbered without gaps."""
    before = _held_before_gap(k)
    lead = k.lead  # the first held keys, which stand at their positions
    last = start - k.first - before + 1  # held keys from the last gap up to the first query's own
    if k.places is not None:
        if _sees_all_until_gap(pattern, start, k):
            return True
        at_place = k.places == torch.arange(before, device=k.places.device)
        lead = int(at_place.all(0).all(0).cumprod(0).sum())
    needed = kept_keys(pattern)
    if needed is None:
        return False
    needed_first, needed_last = needed
    if needed_first > lead or needed_last > last:
        return False
    return misplaced(pattern, lead, last) is None


def _sees_all_until_gap(pattern: Pattern, start: int, k: Stored) -> bool:
    """Whether a pattern moves along with positions, and every query may look at all up to the end of the last gap."""
    for part in pattern.factors:
        if part.period != 1 and not (part.of_one_call and part.takes_cache):
            return False
    positions = range(_held_before_gap(k) + k.first)
    if start < len(positions):
        return False
    return placed(pattern, start, 1).sees_all(start, k.shape[2] - 1, positions)


def _refusal_of_pattern(pattern: Pattern, start: int, k: Stored) -> UnsupportedError:
    """The refusal of a pattern that may look at a key which a ring dropped."""
    last = start - k.first - k.lead + 1
    first = ""
    prefix = ""
    if k.lead:
        first = f"the first {k.lead} and "
        prefix = f" | (causal & prefix({k.lead}))"
    return UnsupportedError(
        f"pattern {pattern} may look at keys that this cache dropped: it holds {first}the last {last}, which "
        f"includes the first query's own; use a pattern such as 'causal_window({max(last, 1)}){prefix}', or a "
        f"larger cache"
    )


def _places_of(k: Stored, heads: int) -> torch.Tensor:
    """Positions of the held keys for each query head, (batch or 1, heads or 1, 1, held)."""
    positions = k.positions
    if positions.shape[1] > 1:
        positions = positions.repeat_interleave(heads // positions.shape[1], 1)
    return positions[:, :, None]


def _at_places(pattern: Pattern, start: int, k: Stored, sizes: dict[str, int]) -> Pattern:
    """The pattern as a mask of the queries and the held keys."""
    heads = sizes["heads"]
    q_len = sizes["q_len"]
    k_len = sizes["k_len"]
    pattern.check(sizes["batch"], heads, q_len, k_len)
    pattern = placed(pattern, start, heads)
    places = _places_of(k, heads)
    masks = []
    for block in grids_of_rows(Grid.whole(q_len, k_len, start, k.device)):
        allowed = four_axes(pattern.evaluate(block))
        masks.append(torch.take_along_dim(allowed, places, -1))
    if not masks:
        return Explicit(places[:, :, :0].bool())
    return Explicit(torch.cat(masks, 2))


def _bias_at(
    bias: torch.Tensor | Bias, start: int, k: Stored, sizes: dict[str, int], dtype: torch.dtype
) -> torch.Tensor:
    """The numbers of a bias at the held keys."""
    places = _places_of(k, sizes["heads"])
    if isinstance(bias, torch.Tensor):
        bias = bias[(None,) * (4 - bias.dim())]
        return bias if bias.shape[-1] == 1 else torch.take_along_dim(bias, places, -1)
    queries = torch.arange(start, start + sizes["q_len"], device=k.device)[:, None]
    distances = (places - queries).flatten(2)  # (batch or 1, heads or 1, pairs)
    lowest = -start - sizes["q_len"]
    every_distance = torch.arange(lowest, k.shape[2] - start + 1, device=k.device)
    table = bias.by_distance(every_distance, sizes["heads"])
    numbers = torch.take_along_dim(table[None], distances - lowest, -1)
    return numbers.unflatten(2, (sizes["q_len"], -1)).to(dtype)


def at_positions(result: Result, call: Call) -> Result:
    """The result of a call with statistics by key at the positions of the text; those of dropped keys are 0."""
    k = call.k
    if not isinstance(k, Stored) or not k.has_gap or k.places is None:
        return result

    places = _places_of(k, result.output.shape[1])
    places_of_chosen = places
    chosen = requested(WeightsOf, call.want)
    if chosen is not None and chosen.heads is not None and places.shape[1] > 1:
        places_of_chosen = places[:, chosen.heads]
    top = result.top_keys
    if top is not None:
        exists = top.indices >= 0
        indices = torch.take_along_dim(places, top.indices.clamp(min=0), -1)
        top = TopKeysFound(indices.where(exists, -1), top.weights)
    length = k.shape[2]
    return result._replace(
        received=_spread(result.received, places[:, :, 0], length),
        weights=_spread(result.weights, places, length),
        top_keys=top,
        chosen_weights=_spread(result.chosen_weights, places_of_chosen, length),
    )


def _spread(
    statistic: torch.Tensor | None, places: torch.Tensor, length: int
) -> torch.Tensor | None:
    """A statistic by held key as one by position, with zeros at the positions that were dropped."""
    if statistic is None:
        return None
    by_position = statistic.new_zeros(*statistic.shape[:-1], length)
    return by_position.scatter(-1, places.expand(statistic.shape), statistic)
