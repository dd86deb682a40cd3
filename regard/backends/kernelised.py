"""Mechanisms of features as recurrences: the memory holds sums over the keys, with a column for the denominators.

    total_i = Σ_j e_ij (q_i · k_j) [v_j, 1],   e_ij = exp(k_log_j + Σ decay_log_t over j < t <= i)

The last entry of a total is the denominator of its row; the others divided by it are the output. The memory holds the
sums divided by exp(M_i), where M_i = max(M_{i-1} + decay_log_i, k_log_i) is the largest log e_ij so far. So key i
decays the memory by exp(M_{i-1} + decay_log_i - M_i) and is written with strength exp(k_log_i - M_i). Neither is above
1: nothing overflows, and no later key affects an earlier total.

Source: Transformers are RNNs, Katharopoulos et al. 2020, equations 16 to 20.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.nn import functional

from regard.backends.documents import (
    is_causal,
    leading_rows,
    pack_documents,
    padded_to_all_keys,
    put_back,
    unpadded_keys,
)
from regard.backends.recurrence import CHUNK, RecurrenceInputs, Rule, ScanEngine, longer_on, scan
from regard.core.backend import Cost, Operands
from regard.core.problem import Problem
from regard.core.result import Result
from regard.devices import in_float64
from regard.mechanisms.features import Features, Kernelised
from regard.patterns.documents import document_ids

BLOCK = 512  # positions whose features are in memory at once where nothing learns: they stay in the processor's cache
FAINTEST = -1e30  # in place of -inf, the logarithm of 0, since -inf - -inf is NaN
RULE = Rule(corrects=False, scale=1.0)


class Sums(NamedTuple):
    """The sums over the keys so far, divided by exp(log) where log is given.

    total: (batch, kv_heads, features, v_dim + 1). log: (batch, kv_heads, 1). mass: Σ_j e_ij, (batch, kv_heads, 1, 1),
    for mechanisms whose denominators have a lower bound.
    """

    total: torch.Tensor
    log: torch.Tensor | None
    mass: torch.Tensor | None


class Totals(NamedTuple):
    """Totals of rows divided by exp(log), (batch, heads, n, v_dim + 1), and likewise `mass`, (batch, kv_heads, n, 1).

    log: (batch, kv_heads, n or 1); None for 0.
    """

    rows: torch.Tensor
    log: torch.Tensor | None
    mass: torch.Tensor | None


def changed_by_key(
    parameters: Mapping[str, torch.Tensor],
    by_key: Collection[str],
    change: Callable[[torch.Tensor], torch.Tensor],
) -> dict[str, torch.Tensor]:
    """The parameters of a call, with a change of those that have a number for each key."""
    return {name: change(x) if name in by_key else x for name, x in parameters.items()}


class Text(NamedTuple):
    """What is computed: row r may look at the visible keys up to key `before + r`.

    q: (batch, heads, rows, head_dim). k, v: (batch, kv_heads, keys, ·). visible: (batch or 1, 1, keys), or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    parameters: Mapping[str, torch.Tensor]
    visible: torch.Tensor | None = None
    before: int = 0

    def without_unseen(self, by_key: Collection[str], met: torch.Tensor | None) -> Text:
        """The same with zeros for hidden keys, and for rows that may look at no key: both may hold NaN."""
        if self.visible is None:
            return self
        seen = self.visible.cumsum(-1) > 0
        last = torch.arange(self.before, self.before + self.q.shape[2], device=seen.device)
        seen = seen[..., last.clamp_max(max(0, seen.shape[-1] - 1))]
        if met is not None:
            seen = seen | met
        hidden = ~self.visible
        return self._replace(
            q=self.q.masked_fill(~seen[..., None], 0),
            k=self.k.masked_fill(hidden[..., None], 0),
            v=self.v.masked_fill(hidden[..., None], 0),
            parameters=changed_by_key(self.parameters, by_key, lambda x: x.masked_fill(hidden, 0)),
        )

    def blocks(self, by_key: Collection[str], block: int) -> Iterator[tuple[slice, Text]]:
        """Blocks with keys alone, then with as many rows as keys, then with rows alone; with the rows of each."""
        rows = self.q.shape[2]
        keys = self.k.shape[2]
        before = min(self.before, keys)
        both = min(rows, keys - before)
        row_counts: list[int] = []
        key_counts: list[int] = []
        for count in _block_lengths(before, block):
            row_counts.append(0)
            key_counts.append(count)
        for count in _block_lengths(both, block):
            row_counts.append(count)
            key_counts.append(count)
        for count in _block_lengths(rows - both, block):
            row_counts.append(count)
            key_counts.append(0)
        blocks = len(row_counts)
        if keys > before + both:  # keys after the last row
            key_counts.append(keys - before - both)

        # Split, since the gradients of slices would each be as long as the whole.
        q = self.q.split(row_counts, 2)
        k = self.k.split(key_counts, 2)
        v = self.v.split(key_counts, 2)
        visible = None if self.visible is None else self.visible.split(key_counts, -1)
        split_parameters = {}
        for name, x in self.parameters.items():
            if name in by_key:
                split_parameters[name] = x.split(key_counts, 2)

        row = 0
        for number in range(blocks):
            parameters = dict(self.parameters)
            for name, parts in split_parameters.items():
                parameters[name] = parts[number]
            part = Text(q[number], k[number], v[number], parameters)
            if visible is not None:
                part = part._replace(visible=visible[number])
            yield slice(row, row + row_counts[number]), part
            row += row_counts[number]


def _block_lengths(length: int, size: int) -> Iterator[int]:
    return (min(size, length - first) for first in range(0, length, size))


def follow(
    mechanism: Kernelised,
    engine: ScanEngine,
    scale: float,
    text: Text,
    sums: Sums | None = None,
    met: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, Sums | None]:
    """Outputs (batch, heads, rows, v_dim), the logarithms of their denominators, and the sums after the text.

    sums: those before it. met: (batch or 1, 1, 1), whether a key came before; None if none did.
    """
    text = text.without_unseen(mechanism.by_key, met)
    batch, heads, rows, _ = text.q.shape
    v_dim = text.v.shape[3]
    # Where nothing learns, the outputs are written into one tensor.
    whole = None if _learns(text, sums) else text.v.new_empty(batch, heads, rows, v_dim)
    outputs = [text.v.new_empty(batch, heads, 0, v_dim)]
    logs = [text.v.new_empty(batch, heads, 0)]
    positions = BLOCK * longer_on(text.q.device.type, batch * heads)
    for block, part in text.blocks(mechanism.by_key, positions):
        features = mechanism.lift(part.q, part.k, scale, part.parameters)
        features = _without_hidden(features, part.visible)
        totals, sums = _after_block(engine, features, part, sums)
        if not part.q.shape[2]:
            continue
        lowest = None
        if totals.mass is not None and features.floor is not None:
            lowest = _for_query_heads(features.floor * totals.mass[..., 0], totals.rows)
        out = None if whole is None else whole[:, :, block]
        output, denominator = normalised(totals.rows, lowest, out)
        outputs.append(output)
        none = vanishing(denominator)
        log = denominator.masked_fill(none, 1).log()
        if totals.log is not None:
            log = log + _for_query_heads(totals.log, log)
        if features.q_log is not None:
            log = log + features.q_log
        logs.append(log.masked_fill(none, -math.inf))
    output = torch.cat(outputs, 2) if whole is None else whole
    return output, torch.cat(logs, 2), sums


def _learns(text: Text, sums: Sums | None) -> bool:
    if sums is not None and sums.total.requires_grad:
        return True
    tensors = (text.q, text.k, text.v, *text.parameters.values())
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _for_query_heads(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What belongs to key/value heads, for each query head, in the dtype of `like`."""
    return x.repeat_interleave(like.shape[1] // x.shape[1], 1).to(like.dtype)


def _without_hidden(features: Features, visible: torch.Tensor | None) -> Features:
    """The features with both logarithms or neither, and hidden keys that neither count nor decay."""
    k, k_log, decay_log = features.k, features.k_log, features.decay_log
    if decay_log is not None:  # a stronger decay would leave nothing either
        decay_log = decay_log.clamp_min(math.log(torch.finfo(k.dtype).tiny))
    hides_mass = visible is not None and features.floor is not None
    if k_log is None and (decay_log is not None or hides_mass):
        k_log = k.new_zeros(k.shape[:3])
    if decay_log is None and k_log is not None:
        decay_log = torch.zeros_like(k_log)
    if visible is not None:
        k = k.masked_fill(~visible[..., None], 0)
        if k_log is not None and decay_log is not None:
            k_log = k_log.masked_fill(~visible, -math.inf)
            decay_log = decay_log.masked_fill(~visible, 0)
    return replace(features, k=k, k_log=k_log, decay_log=decay_log)


def _after_block(
    engine: ScanEngine, features: Features, part: Text, sums: Sums | None
) -> tuple[Totals, Sums]:
    """The totals of a block's rows, and the sums after its keys."""
    q, k = features.q, features.k
    ones = k.new_ones(()).expand(*k.shape[:3], 1)
    has_log = features.k_log is not None or (sums is not None and sums.log is not None)
    if sums is None:
        total = k.new_zeros(*k.shape[:2], k.shape[3], part.v.shape[3] + 1)
        mass = None if features.floor is None else total.new_zeros(*k.shape[:2], 1, 1)
        sums = Sums(total, None, mass)
    if has_log and sums.log is None:
        sums = sums._replace(log=k.new_full((*k.shape[:2], 1), FAINTEST))
    if not k.shape[2]:
        return Totals(_read(q, sums.total), sums.log, sums.mass), sums

    gates, log = _gates(features, sums.log)
    last_log = None if log is None else log[..., -1:]
    v = torch.cat((part.v, ones), -1)
    mass = sums.mass
    if not q.shape[2]:
        total = _add_keys(k, v, gates, sums.total)
        if mass is not None:
            mass = _add_keys(ones, ones, gates, mass)
        return Totals(q, None, None), Sums(total, last_log, mass)

    rows, total = scan(engine, RULE, RecurrenceInputs(q, k, v, *gates, sums.total))
    mass_of_rows = None
    if mass is not None:
        mass_of_rows, mass = scan(engine, RULE, RecurrenceInputs(ones, ones, ones, *gates, mass))
    return Totals(rows, log, mass_of_rows), Sums(total, last_log, mass)


Gates = tuple[torch.Tensor | None, torch.Tensor | None]


def _gates(features: Features, before: torch.Tensor | None) -> tuple[Gates, torch.Tensor | None]:
    """Log decays and strengths of the recurrence, (batch, kv_heads, keys), and M_i likewise; None where M is 0.

    In float64, since sums of strong decays are large and their rounding errors would be those of the weights. M cancels
    in every result, so it needs no gradient.
    """
    k_log, decay_log = features.k_log, features.decay_log
    if before is None or k_log is None or decay_log is None:
        return (None, None), None
    k_log = in_float64(k_log)
    decay_log = in_float64(decay_log)
    decayed = decay_log.detach().cumsum(-1)
    first = in_float64(before.detach())
    # M_i - decayed_i, which never falls
    highest = torch.maximum(first, (k_log.detach() - decayed).cummax(-1).values)
    fall = torch.cat((first, highest[..., :-1]), -1) - highest
    log = highest + decayed
    # the value of `fall`, with the gradient of decay_log
    log_decay = decay_log + (fall - decay_log.detach())
    strength = (k_log - log).exp()
    k = features.k
    log_decay, strength, log = (x.to(k.dtype).to(k.device) for x in (log_decay, strength, log))
    return (log_decay, strength), log


def _add_keys(k: torch.Tensor, v: torch.Tensor, gates: Gates, memory: torch.Tensor) -> torch.Tensor:
    """The memory after keys that no row reads one by one."""
    log_decay, strength = gates
    if log_decay is None or strength is None:
        return memory + k.mT @ v
    later = functional.pad(log_decay[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
    whole = log_decay.sum(-1).exp()[..., None, None]
    return whole * memory + (k * (later.exp() * strength)[..., None]).mT @ v


def _read(q: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """The totals (batch, heads, n, v_dim + 1) of queries after the last key."""
    grouped = q.unflatten(1, (total.shape[1], -1))
    grouped = grouped.flatten(2, 3)  # (batch, kv_heads, group · n, features)
    return (grouped @ total).view(*q.shape[:3], total.shape[3])


def normalised(
    totals: torch.Tensor, lowest: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """From totals (..., v_dim + 1): the outputs (..., v_dim) and the denominators (...), raised to `lowest`.

    A row whose denominator is below the smallest normal number gets zeros.
    """
    sums, denominator = totals.split((totals.shape[-1] - 1, 1), -1)
    denominator = denominator[..., 0]
    if lowest is not None:
        denominator = torch.where(denominator < lowest, lowest, denominator)
    inverse = denominator.masked_fill(vanishing(denominator), math.inf).reciprocal()
    return torch.mul(sums, inverse[..., None], out=out), denominator


def vanishing(denominator: torch.Tensor) -> torch.Tensor:
    """Which denominators are too small to divide by; NaN is not."""
    return denominator < torch.finfo(denominator.dtype).tiny


# --- a call ---


def run(problem: Problem, engine: ScanEngine, operands: Operands) -> Result:
    """The output of a call and its log-sum-exp, computed in float32 at least."""
    wide = torch.promote_types(problem.dtype, torch.float32)
    text = Text(
        operands.q.to(wide),
        operands.k.to(wide),
        operands.v.to(wide),
        operands.parameters,
        visible=unpadded_keys(problem.pattern, operands.grid),
    )
    compute = _by_document if document_ids(problem.pattern) else _whole
    output, log = compute(problem, engine, operands, text)
    return Result(output.to(problem.dtype), problem.wanted_sums(log))


def _whole(
    problem: Problem, engine: ScanEngine, operands: Operands, text: Text
) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(problem.mechanism, Kernelised)
    leading, before = leading_rows(problem, operands.grid.keys)
    text = text._replace(q=text.q[:, :, leading:], before=before)
    output, log, _ = follow(problem.mechanism, engine, problem.scale, text)
    if not leading:
        return output, log
    output = functional.pad(output, (0, 0, leading, 0))
    return output, functional.pad(log, (leading, 0), value=-math.inf)


def _by_document(
    problem: Problem, engine: ScanEngine, operands: Operands, text: Text
) -> tuple[torch.Tensor, torch.Tensor]:
    mechanism = problem.mechanism
    length = problem.k_len
    device = text.q.device
    assert isinstance(mechanism, Kernelised)
    packs = pack_documents(document_ids(problem.pattern), problem.batch, length, device)
    visible = text.visible
    if visible is None:
        visible = torch.ones(1, 1, len(operands.grid.keys), dtype=torch.bool, device=device)
    visible = padded_to_all_keys(visible, problem, operands).expand(problem.batch, 1, length)
    k = padded_to_all_keys(text.k, problem, operands)
    v = padded_to_all_keys(text.v, problem, operands)
    by_key = {}
    for name, x in text.parameters.items():
        if name in mechanism.by_key:
            by_key[name] = padded_to_all_keys(x, problem, operands).expand(problem.batch, -1, -1)

    outputs = []
    logs = []
    for pack in packs:
        parameters = dict(text.parameters)
        for name, x in by_key.items():
            parameters[name] = pack.take(x)
        seen = pack.take(visible) & pack.real[:, None]
        before = 0 if is_causal(problem) else pack.places.shape[1]
        part = Text(pack.take(text.q), pack.take(k), pack.take(v), parameters, seen, before)
        output, log, _ = follow(mechanism, engine, problem.scale, part)
        outputs.append(output)
        logs.append(log)
    return put_back(packs, outputs, problem.batch), put_back(packs, logs, problem.batch)


def cost(problem: Problem) -> Cost:
    """The cost of a call by plain operations."""
    assert isinstance(problem.mechanism, Kernelised)
    causal = is_causal(problem)
    keys = len(problem.reachable_keys)
    times = 2 if document_ids(problem.pattern) else 1  # padding at most doubles them
    features = problem.mechanism.feature_dim(problem.head_dim)
    # of the memory: one for each number of a value, and the denominator
    columns = problem.v_dim + 1
    rows = problem.batch * problem.heads * problem.q_len * times
    added = problem.batch * problem.kv_heads * keys * times
    longer = longer_on(problem.device, problem.batch * problem.heads)
    pairs = rows * min(longer * CHUNK, keys) if causal else 0
    chunks = -(-keys // (longer * (CHUNK if causal else BLOCK)))
    width = problem.computed_bytes
    vectors = (rows + added) * (problem.head_dim + 2 * features + columns)
    products = pairs * (features + columns) + (rows + added) * features * columns
    times_computed = times_moved = 1
    if problem.needs_grad:
        times_computed = 3
        times_moved = 2.5
    return Cost(
        flops=2 * products * times_computed,
        bytes=width * vectors * times_moved,
        peak_bytes=width * ((rows + added) * features + added * features * columns // CHUNK),
        pairs=min(pairs, problem.pairs),
        calls=(4 + 2 * chunks) * times_computed,
    )
