"""Programs run: each call forward and backward, merged and added where they belong.

q and what is shaped like it are (rows of heads, group, q_len, ...), k and v are (rows of heads, keys, ...), where the
rows of heads are the key/value heads of every batch row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from regard.kernels import flash
from regard.kernels.tiled.calls import COPIED, Setting, apart_calls, residue_calls, strip_calls
from regard.kernels.tiled.places import Place, Residues
from regard.kernels.tiled.program import Lattices, Program


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
    for place, call in strip_calls(program, q, k, setting, COPIED):
        found.put(place, *flash.forward(place.rows(q), place.keys(k), place.keys(v), call))
    for part in program.lattices:
        if part.kind == "program":
            _merge_inner(part, q, k, v, setting, found)
            continue
        for place, call in residue_calls(part, q, setting):
            more = flash.forward(place.rows(q), place.keys(k), place.keys(v), call)
            _merge(place.rows(found.output), place.rows(found.log_sum_exp), *more)
    for rows in (rows for look in program.apart if not look.keys for rows in look.rows):
        found.output[:, :, rows.start : rows.stop] = 0
        found.log_sum_exp[:, :, rows.start : rows.stop] = -math.inf
    for place, call in apart_calls(program, q, setting):
        found.put(place, *flash.forward(place.rows(q), place.keys(k), place.keys(v), call))


def _merge_inner(
    part: Lattices, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, setting: Setting, found: Found
) -> None:
    inner = _dense_rows(part, q), _dense_keys(part, k), _dense_keys(part, v)
    there = Found(inner[0].new_empty(*inner[0].shape[:3], v.shape[-1]), inner[0].new_empty(inner[0].shape[:3]))
    forward(part.inner, *inner, setting.within(part), there)
    rows = (_lattice_rows(part, found.output), _lattice_rows(part, found.log_sum_exp))
    _merge(*rows, *_as_lattice(part, there.output, there.log_sum_exp))


def backward(program: Program, saved: flash.Saved, setting: Setting) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v."""
    wide = saved.log_sum_exp.dtype  # many small parts are added
    grads = (
        torch.zeros_like(saved.q, dtype=wide),
        torch.zeros_like(saved.k, dtype=wide),
        torch.zeros_like(saved.v, dtype=wide),
    )
    kept = saved
    if program.apart:  # exp(0 - inf) = 0: the strips add nothing to rows that are computed alone, whatever they hold
        q, log_sum_exp = saved.q.clone(), saved.log_sum_exp.clone()
        for rows in (rows for look in program.apart for rows in look.rows):
            q[:, :, rows.start : rows.stop] = 0
            log_sum_exp[:, :, rows.start : rows.stop] = math.inf
        kept = replace(saved, q=q, log_sum_exp=log_sum_exp)
    for place, call in strip_calls(program, saved.q, saved.k, setting, 4 * COPIED):
        _add(place, grads, kept, call)
    for part in program.lattices:
        if part.kind == "program":
            _add_inner(part, grads, kept, setting)
            continue
        for place, call in residue_calls(part, saved.q, setting):
            _add(place, grads, kept, call)
    for place, call in apart_calls(program, saved.q, setting):
        _add(place, grads, saved, call)
    return grads


def _merge(output: torch.Tensor, log_sum_exp: torch.Tensor, more: torch.Tensor, more_lse: torch.Tensor) -> None:
    """Join a part with what stands there, in place: output += share · (more - output)."""
    total = torch.logaddexp(log_sum_exp, more_lse)
    share = (more_lse - total).exp().nan_to_num_(nan=0.0)  # -inf - -inf where neither has a key
    output.lerp_(more, share[..., None].to(output.dtype))
    log_sum_exp.copy_(total)


def _add(
    place: Place, grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor], saved: flash.Saved, call: flash.Call
) -> None:
    rows, keys = place.rows, place.keys
    grad_lse = None if saved.grad_log_sum_exp is None else rows(saved.grad_log_sum_exp)
    here = flash.Saved(
        rows(saved.q), keys(saved.k), keys(saved.v), rows(saved.output), rows(saved.log_sum_exp), rows(saved.grad),
        grad_lse,
    )  # fmt: skip
    dq, dk, dv = flash.backward(here, call)
    place.put(grads[0], rows(grads[0]) + dq)
    place.add_keys(grads[1], dk.to(grads[1].dtype))
    place.add_keys(grads[2], dv.to(grads[2].dtype))


def _add_inner(
    part: Lattices, grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor], saved: flash.Saved, setting: Setting
) -> None:
    rows = {name: _dense_rows(part, getattr(saved, name)) for name in ("q", "output", "log_sum_exp", "grad")}
    grad_lse = None if saved.grad_log_sum_exp is None else _dense_rows(part, saved.grad_log_sum_exp)
    inner = flash.Saved(**rows, k=_dense_keys(part, saved.k), v=_dense_keys(part, saved.v), grad_log_sum_exp=grad_lse)
    dq, dk, dv = backward(part.inner, inner, setting.within(part))
    _lattice_rows(part, grads[0]).add_(_as_lattice(part, dq)[0])
    for whole, found in ((grads[1], dk), (grads[2], dv)):
        _lattice_keys(part, whole).add_(found.unflatten(0, (-1, part.count)))


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
