"""Runs programs: each call forward and backward, with outputs merged and gradients added.

The axes are those of `views`: q and tensors of its shape are (rows of heads, group, q_len, ...), k and v are (rows of
heads, keys, ...).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from regard.backends import flash
from regard.backends.composed import KeptMasks
from regard.backends.tiled.kernels import Kernels
from regard.backends.tiled.program import Group, Program, Residues
from regard.backends.tiled.views import GatherView, SliceView, StrideView, Tensors, View, WindowView, every
from regard.core.backend import Relative
from regard.patterns.ranges import Ranges, size
from regard.patterns.row_blocks import Answers, shifted

COPIED = 1 << 20  # numbers gathered at once; the backward pass also stores gradients of windows, four times as many

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """What all calls share: the scale, and the bias by distance with its heads.

    With residues the rows of heads are (batch, kv_heads, residues). `masks` are kept with the plan. `calls` are the
    views of its programs by program, device and dtype. `kernels` compute groups and residues in place of fused calls.
    """

    scale: float
    bias: Relative | None
    kv_heads: int
    group: int
    residues: int = 1
    masks: KeptMasks = field(default_factory=KeptMasks)
    calls: dict[Any, list[_Planned]] = field(default_factory=dict)
    kernels: Kernels | None = None

    def within(self, part: Residues) -> Setting:
        """The same settings for the residues of a stride."""
        return replace(self, residues=self.residues * part.count)


@dataclass(frozen=True)
class _Planned:
    """A group with its views, and its call if that is kept."""

    group: Group
    views: tuple[View, ...]
    call: flash.Call | None


def forward(program: Program, tensors: Tensors, setting: Setting) -> None:
    """Fill the output and the log-sum-exp of the tensors."""
    q, k, v, output, log_sum_exp = tensors
    if setting.kernels is not None and program.groups:
        there, sums = setting.kernels.forward(program, q, k[:, None], v[:, None])
        output.copy_(there)
        log_sum_exp.copy_(sums)
    else:
        _fill_groups(program, tensors, setting)
    for part in program.residues:
        if part.kind == "program":
            _merge_inner(part, tensors, setting)
            continue
        if setting.kernels is not None:
            for view in _stride_views(part, setting):
                there = setting.kernels.forward(part.inner, view.rows(q), view.keys(k), view.keys(v))
                _merge(view.rows(output), view.rows(log_sum_exp), *there)
            continue
        for view, call in _stride_calls(part, q, setting):
            _merge(view.rows(output), view.rows(log_sum_exp), *view.attend(tensors, call))
    for group in program.apart:
        if not group.keys:
            for rows in group.rows:
                output[:, :, rows.start : rows.stop] = 0
                log_sum_exp[:, :, rows.start : rows.stop] = -math.inf
    for view, call in _apart_calls(program, q, k, setting):
        view.fill(tensors, call)


def _fill_groups(program: Program, tensors: Tensors, setting: Setting) -> None:
    if not program.covers_rows:
        tensors.output.zero_()
        tensors.log_sum_exp.fill_(-math.inf)
    for one in _planned(program, tensors.q, tensors.k, setting, COPIED):
        call = one.call or _call(program, program.answers, one.group, one.views[0], setting, tensors.q)
        for view in one.views:
            view.fill(tensors, call)


def backward(program: Program, saved: flash.Saved, setting: Setting) -> Gradients:
    """Gradients of q, k and v."""
    wide = saved.log_sum_exp.dtype  # wide, since many small parts are added
    q, k, v = (torch.zeros_like(x, dtype=wide) for x in (saved.q, saved.k, saved.v))
    grads, kept = (q, k, v), saved
    if program.apart:  # exp(0 - inf) = 0, so groups contribute nothing to separate rows, even if these hold NaN
        q, log_sum_exp = saved.q.clone(), saved.log_sum_exp.clone()
        for rows in (rows for group in program.apart for rows in group.rows):
            q[:, :, rows.start : rows.stop] = 0
            log_sum_exp[:, :, rows.start : rows.stop] = math.inf
        kept = replace(saved, q=q, log_sum_exp=log_sum_exp)
    if setting.kernels is not None and program.groups:
        whole = replace(kept, k=kept.k[:, None], v=kept.v[:, None])
        dq, dk, dv = setting.kernels.backward(program, whole)
        for into, more in zip(grads, (dq, dk[:, 0], dv[:, 0]), strict=True):
            into.add_(more)
    else:
        for one in _planned(program, saved.q, saved.k, setting, 4 * COPIED):
            call = one.call or _call(program, program.answers, one.group, one.views[0], setting, saved.q)
            for view in one.views:
                _add(view, grads, kept, partial(flash.backward, call=call))
    for part in program.residues:
        if part.kind == "program":
            _add_inner(part, grads, kept, setting)
            continue
        if setting.kernels is not None:
            for view in _stride_views(part, setting):
                _add(view, grads, kept, partial(setting.kernels.backward, part.inner))
            continue
        for view, call in _stride_calls(part, saved.q, setting):
            _add(view, grads, kept, partial(flash.backward, call=call))
    for view, call in _apart_calls(program, saved.q, saved.k, setting):
        _add(view, grads, saved, partial(flash.backward, call=call))
    return grads


def _planned(program: Program, q: torch.Tensor, k: torch.Tensor, setting: Setting, most: int) -> list[_Planned]:
    """The views of a program's groups. Without a bias they are kept with the plan, and their masks too if small.

    In the forward pass a window is one view. The backward pass stores gradients of its keys, so there it is divided.
    """
    name = id(program), most, q.device, q.dtype
    if setting.bias is None and (known := setting.calls.get(name)) is not None:
        return known
    planned = []
    for group in program.groups:
        blocks = max(1, most // (q.shape[0] * size(group.keys) * k.shape[-1]))
        views = tuple(_views(group, program.grid.keys.start, q.device, blocks, cut_windows=most > COPIED))
        numbers = size(group.rows) * size(group.keys) * setting.group
        keep = setting.bias is None and (group.whole or setting.masks.reserve(numbers))
        call = _call(program, program.answers, group, views[0], setting, q) if keep else None
        planned.append(_Planned(group, views, call))
    if setting.bias is None:
        setting.calls[name] = planned
    return planned


def _views(group: Group, here: int, device: torch.device, blocks: int, cut_windows: bool) -> Iterator[View]:
    """The views of a group's row blocks, each with at most `blocks`; `here` is the first of the operands' keys."""
    if group.members:
        rows, keys = (torch.stack([numbers(one[axis]) for one in group.members]).to(device) for axis in (0, 1))
        for row_index, key_index in zip(rows.long().split(blocks), (keys - here).split(blocks), strict=True):
            yield GatherView(row_index, key_index)
        return
    at, over = group.rows[0], shifted(group.keys[0], -here)
    if group.count == 1:
        yield SliceView(slice(at.start, at.stop), slice(over.start, over.stop))
    else:
        whole = WindowView(at.start, len(at), group.count, over.start, len(over))
        yield from whole.cut(blocks) if cut_windows else (whole,)


def numbers(ranges: Ranges) -> torch.Tensor:
    """The positions of some ranges as one tensor."""
    return torch.cat([torch.arange(one.start, one.stop, dtype=torch.int32, device="cpu") for one in ranges])


def _stride_views(part: Residues, setting: Setting) -> Iterator[View]:
    """The view of each head of a group."""
    for member in range(setting.group):
        yield StrideView(part.stride, part.count, member, part.first, part.size, part.first_key, part.width)


def _stride_calls(part: Residues, q: torch.Tensor, setting: Setting) -> Iterator[tuple[View, flash.Call]]:
    inner = part.inner
    group = Group((inner.grid.rows,), (inner.grid.keys,), part.kind == "all")
    for view in _stride_views(part, setting):
        if part.kind == "causal" and setting.bias is None:
            yield view, flash.Call(None, True, setting.scale)
        else:
            yield view, _call(inner, inner.answers, group, view, setting, q)


def _apart_calls(
    program: Program, q: torch.Tensor, k: torch.Tensor, setting: Setting
) -> Iterator[tuple[View, flash.Call]]:
    for group in program.apart:
        if group.keys:
            assert program.whole is not None
            (view,) = _views(group, program.grid.keys.start, q.device, 1, cut_windows=False)
            yield view, _call(program, program.whole, group, view, setting, q)


@torch.inference_mode(False)  # a kept mask may be used later in a call with gradients
def _call(
    program: Program, answers: Answers, group: Group, view: View, setting: Setting, like: torch.Tensor
) -> flash.Call:
    """The call of a group, with a mask from its pattern and bias."""
    bias = setting.bias
    if bias is None and group.whole:
        return flash.Call(None, False, setting.scale)
    allowed = torch.cat([torch.cat([answers.allowed(rows, keys) for keys in group.keys], 1) for rows in group.rows])
    mask = torch.zeros(1, 1, 1, *allowed.shape, dtype=like.dtype, device=like.device)
    if bias is not None:
        mask = _bias_of(group, answers, program.distance, bias, like)[:, None]  # (heads or 1, 1, rows, keys)
        mask = mask.unflatten(0, (setting.kv_heads, -1)) if len(mask) > 1 else mask[None]
    mask = view.for_groups(mask.masked_fill(~allowed, -math.inf), setting.group)
    if len(mask) > 1:  # one for each key/value head
        mask = mask.repeat_interleave(setting.residues, 0)
        mask = mask.repeat(like.shape[0] // len(mask), 1, 1, 1)
    return flash.Call(mask, False, setting.scale)


def _bias_of(group: Group, answers: Answers, distance: int, bias: Relative, like: torch.Tensor) -> torch.Tensor:
    """The bias (heads or 1, rows, keys) at the distances of these pairs."""
    grid = answers.grid
    q_pos = torch.cat([grid.block(rows, range(0)).q_pos[:, 0] for rows in group.rows])
    k_pos = torch.cat([grid.block(range(0), keys).k_pos for keys in group.keys])
    distances = (k_pos - q_pos[:, None]) * distance - bias.lowest
    return bias.table.detach().to(like.dtype)[:, distances]


def _merge(output: torch.Tensor, log_sum_exp: torch.Tensor, more: torch.Tensor, more_lse: torch.Tensor) -> None:
    """Merge another part into output and log-sum-exp, in place: output += share · (more - output)."""
    total = torch.logaddexp(log_sum_exp, more_lse)
    share = (more_lse - total).exp().nan_to_num_(nan=0.0)  # -inf - -inf if both parts are empty
    output.lerp_(more, share[..., None].to(output.dtype))
    log_sum_exp.copy_(total)


def _merge_inner(part: Residues, tensors: Tensors, setting: Setting) -> None:
    q, k, v = _dense_rows(part, tensors.q), _dense_keys(part, tensors.k), _dense_keys(part, tensors.v)
    there, sums = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3])
    forward(part.inner, Tensors(q, k, v, there, sums), setting.within(part))
    inner = (x.unflatten(0, (-1, part.count)) for x in (there, sums))
    _merge(_lattice_rows(part, tensors.output), _lattice_rows(part, tensors.log_sum_exp), *inner)


def _add(
    view: View, grads: Gradients, saved: flash.Saved, differentiate: Callable[[flash.Saved], tuple[torch.Tensor, ...]]
) -> None:
    rows, keys = view.rows, view.keys
    grad_lse = None if saved.grad_log_sum_exp is None else rows(saved.grad_log_sum_exp)
    here = flash.Saved(
        rows(saved.q), keys(saved.k), keys(saved.v), rows(saved.output), rows(saved.log_sum_exp), rows(saved.grad),
        grad_lse,
    )  # fmt: skip
    dq, dk, dv = differentiate(here)
    view.put(grads[0], rows(grads[0]) + dq)
    view.add_keys(grads[1], dk.to(grads[1].dtype))
    view.add_keys(grads[2], dv.to(grads[2].dtype))


def _add_inner(part: Residues, grads: Gradients, saved: flash.Saved, setting: Setting) -> None:
    rows = {name: _dense_rows(part, getattr(saved, name)) for name in ("q", "output", "log_sum_exp", "grad")}
    grad_lse = None if saved.grad_log_sum_exp is None else _dense_rows(part, saved.grad_log_sum_exp)
    inner = flash.Saved(**rows, k=_dense_keys(part, saved.k), v=_dense_keys(part, saved.v), grad_log_sum_exp=grad_lse)
    dq, dk, dv = backward(part.inner, inner, setting.within(part))
    _lattice_rows(part, grads[0]).add_(dq.unflatten(0, (-1, part.count)))
    for whole, values in ((grads[1], dk), (grads[2], dv)):
        _lattice_keys(part, whole).add_(values.unflatten(0, (-1, part.count)))


def _lattice_rows(part: Residues, x: torch.Tensor) -> torch.Tensor:
    """x (rows of heads, group, q_len, ...) as (rows of heads, residues, group, rows of a residue, ...)."""
    step = x.stride(2)
    return x.as_strided(
        (x.shape[0], part.count, x.shape[1], part.size, *x.shape[3:]),
        (x.stride(0), step, x.stride(1), part.stride * step, *x.stride()[3:]),
        x.storage_offset() + part.first * step,
    )


def _lattice_keys(part: Residues, x: torch.Tensor) -> torch.Tensor:
    """x (rows of heads, keys, ...) as (rows of heads, residues, keys of a residue, ...)."""
    return every(x, part.stride, part.count, part.first_key, part.width)


def _dense_rows(part: Residues, x: torch.Tensor) -> torch.Tensor:
    return _lattice_rows(part, x).flatten(0, 1).contiguous()


def _dense_keys(part: Residues, x: torch.Tensor) -> torch.Tensor:
    return _lattice_keys(part, x).flatten(0, 1).contiguous()
