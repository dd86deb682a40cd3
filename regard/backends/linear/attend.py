"""Linear attention of one call: as one walk over all keys, or document by document with SameDocument patterns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from regard.backends.linear.function import follow, follow_on
from regard.backends.linear.sight import Sight, visible_keys, without_hidden
from regard.backends.linear.walk import Tensors, Walk, longer_on
from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.mechanisms.features import Features, Kernelised
from regard.patterns import Causal


@dataclass(frozen=True)
class Pack:
    """Documents of similar length as one batch; the longest is less than twice as long as the shortest.

    places: (documents, longest), the index of each position of a document among the positions of all batch rows; the
    last index of a shorter document is repeated. real: the same shape, False for the repetitions.
    """

    places: torch.Tensor
    real: torch.Tensor

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, heads, positions, ...) to (documents, heads, longest, ...)."""
        taken = x.transpose(1, 2).flatten(0, 1).index_select(0, self.places.flatten())
        return taken.unflatten(0, self.places.shape).transpose(1, 2)


def pack_documents(ids: Iterable[torch.Tensor], batch: int, length: int, device: torch.device) -> list[Pack]:
    """The documents of a call: positions of one batch row whose ids are equal in every tensor of ids.

    Args:
        ids: each (length or more,) or (batch, length or more).
        batch: number of batch rows.
        length: number of positions.
        device: device of the result.
    """
    names = torch.arange(batch, device=device)[:, None].expand(batch, length)
    for one in ids:
        _, here = torch.unique(one.to(device)[..., :length], return_inverse=True)
        _, names = torch.unique(names * length * batch + here, return_inverse=True)
    names = names.flatten()
    places = names.argsort(stable=True)  # document by document, positions in ascending order
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


Outputs = tuple[torch.Tensor, torch.Tensor]  # output (batch, heads, q_len, v_dim) and log-sum-exp (batch, heads, q_len)


def attend(problem: Problem, operands: Operands) -> Outputs:
    """Output and log-sum-exp of a call, from tensors of the dtype in which it is computed."""
    ids = problem.pattern.documents
    return _by_document(problem, operands, ids) if ids else _whole(problem, operands)


def is_causal(problem: Problem) -> bool:
    """Does the pattern mask all keys after a query's own position?"""
    return Causal() in problem.pattern.factors


def _whole(problem: Problem, operands: Operands) -> Outputs:
    keys = operands.grid.keys
    leading, before = 0, len(keys)  # rows before the first key; keys before the next row's own
    if not keys:
        leading = problem.q_len
    elif is_causal(problem):
        assert problem.q_start is not None
        leading = min(max(0, keys.start - problem.q_start), problem.q_len)
        before = problem.q_start + leading - keys.start
    walk = Walk(problem.q_len - leading, len(keys), before, longer_on(problem.device, problem.batch * problem.heads))
    sight = Sight(walk, visible_keys(problem.pattern, operands.grid))
    operands = operands._replace(q=operands.q[:, :, leading:])
    if sight.visible is None and sight.walk.rows and not _learning(operands):
        output, log = _in_blocks(problem, operands, sight.walk)
    else:
        output, log = _walked(sight, _features(problem, operands, sight.visible, sight.empty_rows()), operands.v)
    if not leading:
        return output, log
    return functional.pad(output, (0, 0, leading, 0)), functional.pad(log, (leading, 0), value=-math.inf)


def _in_blocks(problem: Problem, operands: Operands, walk: Walk) -> Outputs:
    """The output without gradients. Features are made block by block, so that they stay in the processor's cache."""
    q_logs: list[torch.Tensor] = []

    def blocks() -> Iterator[tuple[slice, Walk, Tensors]]:
        least = None
        for rows, keys, inner in walk.blocks():
            q, k, parameters = operands.q[:, :, rows], operands.k[:, :, keys], _cut(problem, operands, keys)
            here = operands._replace(q=q, k=k, parameters=parameters)
            features = _features(problem, here, None, None)
            sight = Sight(inner, None, None, least)
            tensors = sight.tensors(features, operands.v[:, :, keys])
            least = least if features.floor is None else sight.least_after(features.floor, tensors)
            q_logs.extend([] if features.q_log is None else [features.q_log])
            yield rows, inner, tensors

    output, log = follow_on(blocks(), walk.rows)
    return output, log + torch.cat(q_logs, -1) if q_logs else log


def _cut(problem: Problem, operands: Operands, keys: slice) -> dict[str, torch.Tensor]:
    by_key = problem.mechanism.by_key
    return {name: x[..., keys] if name in by_key else x for name, x in operands.parameters.items()}


def _learning(operands: Operands) -> bool:
    tensors = (operands.q, operands.k, operands.v, *operands.parameters.values())
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _by_document(problem: Problem, operands: Operands, ids: Iterable[torch.Tensor]) -> Outputs:
    batch, length = problem.batch, problem.k_len
    packs = pack_documents(ids, batch, length, operands.q.device)
    visible = visible_keys(problem.pattern, operands.grid)
    cut = len(operands.grid.keys) < length
    visible_here = torch.ones(1, 1, len(operands.grid.keys), dtype=torch.bool, device=operands.q.device)
    visible_here = _on_all(visible_here if visible is None else visible, problem, operands).expand(batch, 1, length)
    sights = [_sight(problem, pack, visible_here) for pack in packs]
    hidden = [rows for one in sights if (rows := one.empty_rows()) is not None]
    empty_rows = put_back(packs, hidden, batch) if cut or visible is not None else None
    features = _features(problem, operands, visible, empty_rows)
    k, k_log, decay_log = (
        None if x is None else _on_all(x, problem, operands) for x in (features.k, features.k_log, features.decay_log)
    )
    features, v = replace(features, k=k, k_log=k_log, decay_log=decay_log), _on_all(operands.v, problem, operands)
    results = [_walked(sight, _taken(pack, features), pack.take(v)) for pack, sight in zip(packs, sights, strict=True)]
    outputs, logs = zip(*results, strict=True)
    return put_back(packs, outputs, batch), put_back(packs, logs, batch)


def _sight(problem: Problem, pack: Pack, visible_here: torch.Tensor) -> Sight:
    documents, longest = pack.places.shape
    longer = longer_on(problem.device, documents * problem.heads)
    walk = Walk(longest, longest, 0 if is_causal(problem) else longest, longer)
    return Sight(walk, pack.take(visible_here) & pack.real[:, None])


def _taken(pack: Pack, features: Features) -> Features:
    tensors = {name: pack.take(x) for name, x in vars(features).items() if isinstance(x, torch.Tensor)}
    return replace(features, **tensors)


def _on_all(x: torch.Tensor, problem: Problem, operands: Operands) -> torch.Tensor:
    """A tensor of the reachable keys (·, ·, keys, ...) padded with zeros to all keys."""
    keys = operands.grid.keys
    if len(keys) == problem.k_len:
        return x
    return functional.pad(x, (0, 0) * (x.dim() - 3) + (keys.start, problem.k_len - keys.stop))


def _features(
    problem: Problem, operands: Operands, visible: torch.Tensor | None, empty_rows: torch.Tensor | None
) -> Features:
    assert isinstance(problem.mechanism, Kernelised)
    q = operands.q if empty_rows is None else operands.q.masked_fill(empty_rows[..., None], 0)
    parameters = without_hidden(problem.mechanism, operands.parameters, visible)
    return problem.mechanism.lift(q, operands.k, problem.scale, parameters)


def _walked(sight: Sight, features: Features, v: torch.Tensor) -> Outputs:
    output, log = follow(sight.walk, sight.tensors(features, v))
    return output, log if features.q_log is None else log + features.q_log
