"""Programs run: each call forward and backward, merged and added where they belong.

q and what is shaped like it are (rows of heads, group, q_len, ...), k and v are (rows of heads, keys, ...), where the
rows of heads are the key/value heads of every batch row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from regard.kernels import flash
from regard.kernels.tiled.lowering import Lattices, Look, Program, numbers
from regard.kernels.tiled.places import Block, Gathered, Place, Residues, Windows
from regard.operands import Relative
from regard.patterns.narrowing import Blocks

COPIED = 1 << 20  # numbers gathered, or gradients of windows held, at once


@dataclass(frozen=True)
class Setting:
    """What all calls share: the scale, and the bias by distance with the heads that it tells apart.

    Rows of heads count residues last: (batch, kv_heads, residues).
    """

    scale: float
    bias: Relative | None
    kv_heads: int
    group: int
    residues: int = 1

    def within(self, part: Lattices) -> Setting:
        """The same inside the residues of a lattice."""
        return replace(self, residues=self.residues * part.count)


@dataclass(frozen=True)
class Found:
    """Results being written: output (rows of heads, group, q_len, v_dim), log_sum_exp (rows of heads, group, q_len)."""

    output: torch.Tensor
    log_sum_exp: torch.Tensor

    def put(self, place: Place, output: torch.Tensor, log_sum_exp: torch.Tensor) -> None:
        """Write these rows."""
        place.put(self.output, output)
        place.put(self.log_sum_exp, log_sum_exp)


def forward(
    program: Program, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, setting: Setting, found: Found
) -> None:
    """Fill `found` with what the program computes."""
    if program.strip_rows < q.shape[2]:  # else every row is written
        found.output.zero_()
        found.log_sum_exp.fill_(-math.inf)
    for place, call in _strip_calls(program, q, k, setting, COPIED):
        found.put(place, *flash.forward(place.rows(q), place.keys(k), place.keys(v), call))
    for part in program.lattices:
        if part.kind == "program":
            _merge_inner(part, q, k, v, setting, found)
            continue
        for place, call in _residue_calls(part, q, setting):
            more = flash.forward(place.rows(q), place.keys(k), place.keys(v), call)
            _merge(place.rows(found.output), place.rows(found.log_sum_exp), *more)
    for rows in (rows for look in program.apart if not look.keys for rows in look.rows):
        found.output[:, :, rows.start : rows.stop] = 0
        found.log_sum_exp[:, :, rows.start : rows.stop] = -math.inf
    for place, call in _apart_calls(program, q, setting):
        found.put(place, *flash.forward(place.rows(q), place.keys(k), place.keys(v), call))


def _merge_inner(
    part: Lattices, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, setting: Setting, found: Found
) -> None:
    inner = _dense_rows(part, q), _dense_keys(part, k), _dense_keys(part, v)
    there = Found(inner[0].new_empty(*inner[0].shape[:3], v.shape[-1]), inner[0].new_empty(inner[0].shape[:3]))
    forward(part.inner, *inner, setting.within(part), there)
    rows = (_lattice_rows(part, found.output), _lattice_rows(part, found.log_sum_exp))
    _merge(*rows, *_as_lattice(part, there.output, there.log_sum_exp))


@dataclass(frozen=True)
class Saved:
    """What a backward pass needs: inputs, results, and the gradients that arrived."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    output: torch.Tensor
    log_sum_exp: torch.Tensor
    grad: torch.Tensor
    grad_log_sum_exp: torch.Tensor | None


def backward(program: Program, saved: Saved, setting: Setting) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v."""
    grads = torch.zeros_like(saved.q), torch.zeros_like(saved.k), torch.zeros_like(saved.v)
    kept = saved
    if program.apart:  # exp(score - inf) = 0: the strips add nothing to rows that are computed alone
        log_sum_exp = saved.log_sum_exp.clone()
        for look in program.apart:
            for rows in look.rows:
                log_sum_exp[:, :, rows.start : rows.stop] = math.inf
        kept = Saved(**{**saved.__dict__, "log_sum_exp": log_sum_exp})
    for place, call in _strip_calls(program, saved.q, saved.k, setting, 4 * COPIED):
        _add(place, grads, kept, call)
    for part in program.lattices:
        if part.kind == "program":
            _add_inner(part, grads, kept, setting)
            continue
        for place, call in _residue_calls(part, saved.q, setting):
            _add(place, grads, kept, call)
    for place, call in _apart_calls(program, saved.q, setting):
        _add(place, grads, saved, call)
    return grads


def _merge(output: torch.Tensor, log_sum_exp: torch.Tensor, more: torch.Tensor, more_lse: torch.Tensor) -> None:
    """Join a part with what stands there, in place: output += share · (more - output)."""
    total = torch.logaddexp(log_sum_exp, more_lse)
    share = (more_lse - total).exp().nan_to_num_(nan=0.0)  # -inf - -inf where neither has a key
    output.lerp_(more, share[..., None].to(output.dtype))
    log_sum_exp.copy_(total)


def _add(place: Place, grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor], saved: Saved, call: flash.Call) -> None:
    rows, keys = place.rows, place.keys
    grad_lse = None if saved.grad_log_sum_exp is None else rows(saved.grad_log_sum_exp)
    dq, dk, dv = flash.backward(
        rows(saved.grad), grad_lse, rows(saved.q), keys(saved.k), keys(saved.v), rows(saved.output),
        rows(saved.log_sum_exp), call,
    )  # fmt: skip
    place.put(grads[0], rows(grads[0]) + dq)
    place.add_keys(grads[1], dk)
    place.add_keys(grads[2], dv)


def _add_inner(
    part: Lattices, grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor], saved: Saved, setting: Setting
) -> None:
    rows = {name: _dense_rows(part, getattr(saved, name)) for name in ("q", "output", "log_sum_exp", "grad")}
    grad_lse = None if saved.grad_log_sum_exp is None else _dense_rows(part, saved.grad_log_sum_exp)
    inner = Saved(**rows, k=_dense_keys(part, saved.k), v=_dense_keys(part, saved.v), grad_log_sum_exp=grad_lse)
    dq, dk, dv = backward(part.inner, inner, setting.within(part))
    _lattice_rows(part, grads[0]).add_(_as_lattice(part, dq)[0])
    for whole, found in ((grads[1], dk), (grads[2], dv)):
        _lattice_keys(part, whole).add_(found.unflatten(0, (-1, part.count)))


def _strip_calls(
    program: Program, q: torch.Tensor, k: torch.Tensor, setting: Setting, most: int
) -> Iterator[tuple[Place, flash.Call]]:
    here = program.grid.keys.start
    for part in program.strips:
        look = part.look
        mask = _Masks(program.blocks, program.distance, setting, q)
        pieces = max(1, most // (q.shape[0] * sum(map(len, look.keys)) * k.shape[-1]))
        if part.row_index is not None and part.key_index is not None:
            index = part.row_index.to(q.device).long(), part.key_index.to(q.device)
            call = None
            for rows, keys in zip(*(one.split(pieces) for one in index), strict=True):
                place = Gathered(rows, keys)
                call = call or mask.call(look, place)
                yield place, call
        elif part.count == 1:
            place = Block(look.rows[0], _moved(look.keys[0], -here))
            yield place, mask.call(look, place)
        else:
            keys = look.keys[0]
            whole = Windows(look.rows[0].start, len(look.rows[0]), part.count, keys.start - here, len(keys))
            call = mask.call(look, whole)
            yield from ((place, call) for place in whole.cut(part.count if most == COPIED else pieces))


def _residue_calls(part: Lattices, q: torch.Tensor, setting: Setting) -> Iterator[tuple[Place, flash.Call]]:
    grid = part.inner.grid
    mask = _Masks(part.inner.blocks, part.inner.distance, setting, q)
    look = Look((grid.rows,), (grid.keys,), part.kind != "masked")
    for member in range(setting.group):
        place = Residues(part.stride, part.count, member, part.first, part.size, part.first_key, part.width)
        if part.kind == "causal" and setting.bias is None:
            yield place, flash.Call(None, True, setting.scale)
        else:
            shown = Look(look.rows, look.keys, part.kind == "all")
            yield place, mask.call(shown, place)


def _apart_calls(program: Program, q: torch.Tensor, setting: Setting) -> Iterator[tuple[Place, flash.Call]]:
    here = program.grid.keys.start
    assert program.whole is not None
    mask = _Masks(program.whole, program.distance, setting, q)
    for look in program.apart:
        if not look.keys:
            continue
        if len(look.rows) == 1 and len(look.keys) == 1:
            place: Place = Block(look.rows[0], _moved(look.keys[0], -here))
        else:
            rows, keys = (numbers(ranges)[None].to(q.device) for ranges in (look.rows, look.keys))
            place = Gathered(rows.long(), keys - here)
        yield place, mask.call(look, place)


@dataclass(frozen=True)
class _Masks:
    """Makes the mask of a call from what the pattern allows and what the bias adds."""

    blocks: Blocks
    distance: int
    setting: Setting
    like: torch.Tensor

    def call(self, look: Look, place: Place) -> flash.Call:
        setting = self.setting
        if setting.bias is None and look.sure:
            return flash.Call(None, False, setting.scale)
        allowed = self._allowed(look)  # (rows, keys)
        mask = torch.zeros(1, 1, 1, *allowed.shape, dtype=self.like.dtype, device=self.like.device)
        if setting.bias is not None:
            mask = self._bias(look, setting.bias)[:, None]  # (heads or 1, 1, rows, keys)
            mask = mask.unflatten(0, (setting.kv_heads, -1)) if len(mask) > 1 else mask[None]
        mask = place.for_groups(mask.masked_fill(~allowed, -math.inf), setting.group)
        if len(mask) > 1:  # one for each key/value head
            mask = mask.repeat_interleave(setting.residues, 0)
            mask = mask.repeat(self.like.shape[0] // len(mask), 1, 1, 1)
        return flash.Call(mask, False, setting.scale)

    def _allowed(self, look: Look) -> torch.Tensor:
        return torch.cat([torch.cat([self.blocks.allowed(rows, keys) for keys in look.keys], 1) for rows in look.rows])

    def _bias(self, look: Look, bias: Relative) -> torch.Tensor:
        """(heads or 1, rows, keys) at the distances of these pairs."""
        grid = self.blocks.grid
        q_pos = torch.cat([grid.block(rows, range(0)).q_pos[:, 0] for rows in look.rows])
        k_pos = torch.cat([grid.block(range(0), keys).k_pos for keys in look.keys])
        distances = (k_pos - q_pos[:, None]) * self.distance - bias.lowest
        return bias.table.detach().to(self.like.dtype)[:, distances]


def _moved(keys: range, by: int) -> range:
    return range(keys.start + by, keys.stop + by)


def _lattice_rows(part: Lattices, x: torch.Tensor) -> torch.Tensor:
    """x (rows of heads, group, q_len, ...) as (rows of heads, residues, group, rows of a residue, ...)."""
    step = x.stride(2)
    return x.as_strided(
        (x.shape[0], part.count, x.shape[1], part.size, *x.shape[3:]),
        (x.stride(0), step, x.stride(1), part.stride * step, *x.stride()[3:]),
        x.storage_offset() + part.first * step,
    )


def _lattice_keys(part: Lattices, x: torch.Tensor) -> torch.Tensor:
    """x (rows of heads, keys, ...) as (rows of heads, residues, keys of a residue, ...)."""
    return Residues(part.stride, part.count, 0, part.first, part.size, part.first_key, part.width).keys(x)


def _dense_rows(part: Lattices, x: torch.Tensor) -> torch.Tensor:
    return _lattice_rows(part, x).flatten(0, 1).contiguous()


def _dense_keys(part: Lattices, x: torch.Tensor) -> torch.Tensor:
    return _lattice_keys(part, x).flatten(0, 1).contiguous()


def _as_lattice(part: Lattices, *found: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x.unflatten(0, (-1, part.count)) for x in found)
