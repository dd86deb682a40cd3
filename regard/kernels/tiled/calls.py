"""The fused calls of a program: where each finds its queries and keys, and its mask."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from regard.kernels import flash
from regard.kernels.tiled.places import Block, Gathered, Place, Residues, Windows
from regard.kernels.tiled.program import Lattices, Look, Program, numbers
from regard.operands import Relative
from regard.patterns.row_blocks import Answers as Blocks

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


def strip_calls(
    program: Program, q: torch.Tensor, k: torch.Tensor, setting: Setting, most: int
) -> Iterator[tuple[Place, flash.Call]]:
    here = program.grid.keys.start
    for part in program.strips:
        look = part.look
        mask = _Masks(program.blocks, program.distance, setting, q)
        pieces = max(1, most // (q.shape[0] * sum(map(len, look.keys)) * k.shape[-1]))
        if not part.steady:
            index = part.row_index.to(q.device).long(), part.key_index.to(q.device) - here
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


def residue_calls(part: Lattices, q: torch.Tensor, setting: Setting) -> Iterator[tuple[Place, flash.Call]]:
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


def apart_calls(program: Program, q: torch.Tensor, setting: Setting) -> Iterator[tuple[Place, flash.Call]]:
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
