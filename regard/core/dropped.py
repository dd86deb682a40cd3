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
    k, v, q = call.k, call.v, call.q
    # numbers of the held keys, whatever their positions
    by_held = isinstance(call.bias, Forgetting)
    if not (isinstance(k, Stored) and (k.has_gap or (by_held and k.first))):
        return call
    sizes = bind_attention(q, k, v)
    if (
        not isinstance(v, Stored)
        or (v.lead, v.first) != (k.lead, k.first)
        or v.places is not k.places
    ):
        raise ShapeError(
            "k and v come from caches that dropped other positions; give the keys and values of one"
        )
    start = (
        k.shape[2] - q.shape[2]
        if call.q_start is None
        else checked_q_start(call.q_start, q.shape[0])
    )
    _refuse_counting(call, k, start)
    assert isinstance(start, int)
    pattern = as_pattern(call.pattern).canonical()
    bias = call.bias
    before = k.lead if k.places is None else k.places.shape[2]  # entries before the last gap
    if not _stays(pattern, start, k, before):
        if k.places is None:
            last = start - k.first - before + 1
            first, prefix = (
                (f"the first {k.lead} and ", f" | (causal & prefix({k.lead}))")
                if k.lead
                else ("", "")
            )
            raise UnsupportedError(
                f"pattern {pattern} may look at keys that this cache dropped: it holds {first}the last {last}, which "
                f"includes the first query's own; use a pattern such as 'causal_window({max(last, 1)}){prefix}', or a "
                f"larger cache"
            )
        pattern = _at_places(pattern, start, k, sizes)
    if isinstance(bias, Forgetting):
        bias = bias.by_key()
    elif bias is not None:
        checked_bias(bias, q, sizes)
        bias = _bias_at(bias, start, k, sizes, q.dtype)
    q_start = start - k.first
    k, v = (
        x.numbers if x.scales is None and x.dtype == q.dtype else Stored(x.numbers, x.scales)
        for x in (k, v)
    )
    return call._replace(k=k, v=v, bias=bias, pattern=pattern, q_start=q_start)


def _refuse_counting(call: Call, k: Stored, start: int | torch.Tensor) -> None:
    """Refuse options that need the dropped positions."""
    ring = k.places is None
    mechanism = checked_mechanism(call.mechanism)
    if not (ring or mechanism.is_softmax):
        raise UnsupportedError(
            f"{mechanism}: a cache that dropped keys by keep() works only with softmax; keep all entries"
        )
    given = {
        "bias": ring and call.bias is not None and not isinstance(call.bias, Forgetting),
        "dropout": bool(call.dropout),
    }
    given |= {"q_start by batch row": isinstance(start, torch.Tensor)}
    given |= {str(one): one not in BY_ROW if ring else one == "distance" for one in call.want}
    if names := [name for name, there in given.items() if there]:
        where = (
            (f"behind the first {k.lead}" if k.lead else "at the beginning")
            if ring
            else "by keep()"
        )
        raise UnsupportedError(
            f"{names[0]} counts positions, and this cache dropped {k.first} of them {where}; leave it out, or use a "
            f"cache that keeps all entries"
        )


def _stays(pattern: Pattern, start: int, k: Stored, before: int) -> bool:
    """Whether a pattern allows the same pairs where the held keys and the queries are numbered without gaps.

    Args:
        before: held keys before the last gap.
    """
    lead = k.lead
    last = start - k.first - before + 1
    if k.places is not None:
        moves = all(
            part.period == 1 or (part.of_one_call and part.takes_cache) for part in pattern.factors
        )
        gone = range(before + k.first)
        if (
            moves
            and start >= len(gone)
            and placed(pattern, start, 1).sees_all(start, k.shape[2] - 1, gone)
        ):
            return True
        at_place = k.places == torch.arange(before, device=k.places.device)
        lead = int(at_place.all(0).all(0).cumprod(0).sum())
    kept = kept_keys(pattern)
    return (
        kept is not None
        and kept[0] <= lead
        and kept[1] <= last
        and misplaced(pattern, lead, last) is None
    )


def _places_of(k: Stored, heads: int) -> torch.Tensor:
    """Positions of the held keys for each query head, (batch or 1, heads or 1, 1, held)."""
    positions = k.positions
    group = heads // positions.shape[1] if positions.shape[1] > 1 else 1
    return positions.repeat_interleave(group, 1)[:, :, None]


def _at_places(pattern: Pattern, start: int, k: Stored, sizes: dict[str, int]) -> Pattern:
    """The pattern as a mask of the queries and the held keys."""
    heads = sizes["heads"]
    q_len = sizes["q_len"]
    k_len = sizes["k_len"]
    pattern.check(sizes["batch"], heads, q_len, k_len)
    pattern = placed(pattern, start, heads)
    places = _places_of(k, heads)
    blocks = grids_of_rows(Grid(q_len, k_len, start, range(q_len), range(k_len), k.device))
    parts = [
        torch.take_along_dim(four_axes(pattern.evaluate(block)), places, -1) for block in blocks
    ]
    return Explicit(torch.cat(parts, 2) if parts else places[:, :, :0].bool())


def _bias_at(
    bias: torch.Tensor | Bias, start: int, k: Stored, sizes: dict[str, int], dtype: torch.dtype
) -> torch.Tensor:
    """The numbers of a bias at the held keys."""
    places = _places_of(k, sizes["heads"])
    if isinstance(bias, torch.Tensor):
        bias = bias[(None,) * (4 - bias.dim())]
        return bias if bias.shape[-1] == 1 else torch.take_along_dim(bias, places, -1)
    queries = torch.arange(start, start + sizes["q_len"], device=k.device)[:, None]
    # (batch or 1, heads or 1, pairs)
    lowest, distances = (
        -start - sizes["q_len"],
        (places - queries).flatten(2),
    )
    table = bias.by_distance(
        torch.arange(lowest, k.shape[2] - start + 1, device=k.device), sizes["heads"]
    )
    numbers = torch.take_along_dim(table[None], distances - lowest, -1)
    return numbers.unflatten(2, (sizes["q_len"], -1)).to(dtype)


def at_positions(result: Result, call: Call) -> Result:
    """The result of a call with statistics by key at the positions of the text; those of dropped keys are 0."""
    k = call.k
    top = result.top_keys
    if not (isinstance(k, Stored) and k.has_gap and k.places is not None):
        return result
    places = _places_of(k, result.output.shape[1])
    length = k.shape[2]
    chosen = requested(WeightsOf, call.want)
    of_chosen = (
        places
        if chosen is None or chosen.heads is None or places.shape[1] == 1
        else places[:, chosen.heads]
    )

    def spread(x: torch.Tensor | None, at: torch.Tensor) -> torch.Tensor | None:
        return (
            None
            if x is None
            else x.new_zeros(*x.shape[:-1], length).scatter(-1, at.expand(x.shape), x)
        )

    if top is not None:
        known = top.indices >= 0
        indices = torch.take_along_dim(places, top.indices.clamp(min=0), -1)
        top = TopKeysFound(indices.where(known, -1), top.weights)
    return result._replace(
        received=spread(result.received, places[:, :, 0]),
        weights=spread(result.weights, places),
        top_keys=top,
        chosen_weights=spread(result.chosen_weights, of_chosen),
    )
