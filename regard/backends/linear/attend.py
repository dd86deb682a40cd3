"""How a call is arranged for its walks: the whole text in one, or documents of similar length side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from regard.backends.linear.function import follow, follow_on
from regard.backends.linear.sight import Sight, live_keys, shown
from regard.backends.linear.walk import Tensors, Walk
from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.mechanisms.base import joined
from regard.mechanisms.features import Features, Kernelised
from regard.patterns import Causal, SameDocument


@dataclass(frozen=True)
class Pack:
    """Documents at most twice as long as each other.

    places: (documents, longest), where among the positions of all batch rows each stands; a shorter document's last
    place is repeated. real: likewise, False for the repetitions.
    """

    places: torch.Tensor
    real: torch.Tensor

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, heads, positions, ...) to (documents, heads, longest, ...)."""
        found = x.transpose(1, 2).flatten(0, 1).index_select(0, self.places.flatten())
        return found.unflatten(0, self.places.shape).transpose(1, 2)


def pack_documents(ids: Iterable[torch.Tensor], batch: int, length: int, device: torch.device) -> list[Pack]:
    """The documents of a call: positions of one batch row with equal ids, in all of several ids.

    Args:
        ids: each (length or more,) or (batch, length or more).
        batch: rows.
        length: positions.
        device: where.
    """
    names = torch.arange(batch, device=device)[:, None].expand(batch, length)
    for one in ids:
        _, here = torch.unique(one.to(device)[..., :length], return_inverse=True)
        _, names = torch.unique(names * length * batch + here, return_inverse=True)
    names = names.flatten()
    places = names.argsort(stable=True)  # document by document, each in the order of its text
    lengths = torch.bincount(names)
    return list(_by_length(places, lengths, lengths.cumsum(0) - lengths))


def _by_length(places: torch.Tensor, lengths: torch.Tensor, starts: torch.Tensor) -> Iterator[Pack]:
    classes = lengths.double().log2().ceil().long()  # 1, 2, 3 to 4, 5 to 8, ...
    for one in classes.unique().tolist():
        mine = classes == one
        steps = torch.arange(int(lengths[mine].max()), device=places.device)
        last = lengths[mine, None] - 1
        yield Pack(places[starts[mine, None] + steps.minimum(last)], steps <= last)


def put_back(packs: Sequence[Pack], parts: Sequence[torch.Tensor], batch: int) -> torch.Tensor:
    """From each pack's (documents, heads, longest, ...) to (batch, heads, positions, ...)."""
    real = torch.cat([pack.real.flatten() for pack in packs]).nonzero()[:, 0]
    places = torch.cat([pack.places.flatten() for pack in packs])[real]
    source = torch.empty_like(places).index_copy_(0, places, real)
    rows = torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts])
    return rows.index_select(0, source).unflatten(0, (batch, -1)).transpose(1, 2)


Told = tuple[torch.Tensor, torch.Tensor]  # output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len)


def attend(problem: Problem, operands: Operands) -> Told:
    """Output and log-sum-exp of a call, from tensors of the dtype in which it is computed."""
    parts = joined(problem.pattern)
    ids = [part.ids for part in parts if isinstance(part, SameDocument)]
    return _by_document(problem, operands, ids) if ids else _whole(problem, operands)


def is_causal(problem: Problem) -> bool:
    """Does a query see no key behind it?"""
    return Causal() in joined(problem.pattern)


def _whole(problem: Problem, operands: Operands) -> Told:
    keys = operands.grid.keys
    alone, before = 0, len(keys)  # rows that come before the first key; keys that the next row sees beside its own
    if not keys:
        alone = problem.q_len
    elif is_causal(problem):
        assert problem.q_start is not None
        alone = min(max(0, keys.start - problem.q_start), problem.q_len)
        before = problem.q_start + alone - keys.start
    sight = Sight(Walk(problem.q_len - alone, len(keys), before), live_keys(problem.pattern, operands.grid))
    operands = operands._replace(q=operands.q[:, :, alone:])
    if sight.live is None and sight.walk.rows and not _learning(operands):
        output, log = _in_blocks(problem, operands, sight.walk)
    else:
        output, log = _walked(sight, _features(problem, operands, sight.live, sight.empty_rows()), operands.v)
    if not alone:
        return output, log
    return functional.pad(output, (0, 0, alone, 0)), functional.pad(log, (alone, 0), value=-math.inf)


def _in_blocks(problem: Problem, operands: Operands, walk: Walk) -> Told:
    """Without a gradient: features are made a block at a time, so that they stay in cache and never take much room."""
    q_logs: list[torch.Tensor] = []

    def blocks() -> Iterator[tuple[slice, Walk, Tensors]]:
        least = None
        for rows, keys, inner in walk.blocks():
            q, k, handed = operands.q[:, :, rows], operands.k[:, :, keys], _cut(problem, operands, keys)
            here = operands._replace(q=q, k=k, parameters=handed)
            found = _features(problem, here, None, None)
            sight = Sight(inner, None, None, least)
            tensors = sight.tensors(found, operands.v[:, :, keys])
            least = least if found.floor is None else sight.least_after(found.floor, tensors)
            q_logs.extend([] if found.q_log is None else [found.q_log])
            yield rows, inner, tensors

    output, log = follow_on(blocks(), walk.rows)
    return output, log + torch.cat(q_logs, -1) if q_logs else log


def _cut(problem: Problem, operands: Operands, keys: slice) -> dict[str, torch.Tensor]:
    by_key = problem.mechanism.by_key
    return {name: x[..., keys] if name in by_key else x for name, x in operands.parameters.items()}


def _learning(operands: Operands) -> bool:
    tensors = (operands.q, operands.k, operands.v, *operands.parameters.values())
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _by_document(problem: Problem, operands: Operands, ids: list[torch.Tensor]) -> Told:
    batch, length = problem.batch, problem.k_len
    packs = pack_documents(ids, batch, length, operands.q.device)
    live = live_keys(problem.pattern, operands.grid)
    cut = len(operands.grid.keys) < length
    seen = torch.ones(1, 1, len(operands.grid.keys), dtype=torch.bool, device=operands.q.device)
    seen = _on_all(seen if live is None else live, problem, operands).expand(batch, 1, length)
    sights = [_sight(pack, seen, is_causal(problem)) for pack in packs]
    hidden = [rows for one in sights if (rows := one.empty_rows()) is not None]
    empty_rows = put_back(packs, hidden, batch) if cut or live is not None else None
    found = _features(problem, operands, live, empty_rows)
    k, k_log, decay_log = (
        None if x is None else _on_all(x, problem, operands) for x in (found.k, found.k_log, found.decay_log)
    )
    found, v = replace(found, k=k, k_log=k_log, decay_log=decay_log), _on_all(operands.v, problem, operands)
    told = [_walked(sight, _taken(pack, found), pack.take(v)) for pack, sight in zip(packs, sights, strict=True)]
    outputs, logs = zip(*told, strict=True)
    return put_back(packs, outputs, batch), put_back(packs, logs, batch)


def _sight(pack: Pack, seen: torch.Tensor, causal: bool) -> Sight:
    longest = pack.places.shape[1]
    return Sight(Walk(longest, longest, 0 if causal else longest), pack.take(seen) & pack.real[:, None])


def _taken(pack: Pack, found: Features) -> Features:
    tensors = {name: pack.take(x) for name, x in vars(found).items() if isinstance(x, torch.Tensor)}
    return replace(found, **tensors)


def _on_all(x: torch.Tensor, problem: Problem, operands: Operands) -> torch.Tensor:
    """Put back among all keys what was cut to those that can be reached, (·, ·, keys, ...); zeros elsewhere."""
    keys = operands.grid.keys
    if len(keys) == problem.k_len:
        return x
    return functional.pad(x, (0, 0) * (x.dim() - 3) + (keys.start, problem.k_len - keys.stop))


def _features(
    problem: Problem, operands: Operands, live: torch.Tensor | None, empty_rows: torch.Tensor | None
) -> Features:
    assert isinstance(problem.mechanism, Kernelised)
    q = operands.q if empty_rows is None else operands.q.masked_fill(empty_rows[..., None], 0)
    handed = shown(problem.mechanism, operands.parameters, live)
    return problem.mechanism.lift(q, operands.k, problem.scale, handed)


def _walked(sight: Sight, found: Features, v: torch.Tensor) -> Told:
    output, log = follow(sight.walk, sight.tensors(found, v))
    return output, log if found.q_log is None else log + found.q_log
