"""What a recurrent state keeps, how more positions are added to it, and how it lies in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from regard.errors import CheckpointError
from regard.kernels.linear.sight import Sight, shown
from regard.kernels.linear.walk import Sums, Walk, shares
from regard.mechanisms.features import Kernelised
from regard.storage import load_tensor_metadata, load_tensors, save_tensors

FORMAT = "1"
SIZES = ("length", "batch", "kv_heads", "head_dim", "v_dim")


@dataclass(frozen=True)
class Summed:
    """Sums over the keys so far.

    total: (batch, kv_heads, features, v_dim + 1), divided by the exponential of log (batch, kv_heads, 1), if any.
    least: (batch, kv_heads, 1), what the denominator's logarithm is at least, for mechanisms that say so.
    met: (batch, 1, 1), whether there was a key that is no padding; None where there was.
    """

    total: torch.Tensor
    log: torch.Tensor | None = None
    least: torch.Tensor | None = None
    met: torch.Tensor | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {one.name: x for one in fields(self) if (x := getattr(self, one.name)) is not None}

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Summed:
        """The same of other tensors."""
        return Summed(**{name: change(x) for name, x in self.tensors.items()})


@dataclass(frozen=True)
class Positions:
    """The next ones: q (batch, heads, n, head_dim), k (batch, kv_heads, n, head_dim), v (batch, kv_heads, n, v_dim).

    live: (batch or 1, 1, n), which keys are no padding; None for all.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    live: torch.Tensor | None


def add(
    mechanism: Kernelised, before: Summed | None, new: Positions, scale: float, parameters: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, Summed]:
    """The outputs (batch, heads, n, v_dim), and the sums that hold the new keys as well."""
    length, batch, live = new.q.shape[2], new.q.shape[0], new.live
    met = None if live is None else _met(before, live)
    sight = Sight(Walk(length, length, 0), live, met, None if before is None else before.least)
    lonely = sight.empty_rows()
    q, k, v = new.q, new.k, new.v
    if live is not None and lonely is not None:  # what nobody sees, and who sees nobody, may be NaN
        q = q.masked_fill(lonely[..., None], 0)
        k, v = (x.masked_fill(~live[..., None], 0) for x in (k, v))
    tensors = sight.tensors(mechanism.lift(q, k, scale, shown(mechanism, parameters, live)), v)
    sums, outputs = tensors.start() if before is None else _unfolded(before), []
    for step in sight.walk.steps():
        chunk = tensors.chunk(sums, step.keys)
        sums = chunk.after()
        found, log = (sums if length == 1 else chunk).answer(tensors.queries(step.rows))
        outputs.append(shares(found, tensors.lowest(log, step.rows))[0])
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)  # (u, g, n, v_dim)
    total, log = (None if x is None else x.unflatten(0, tensors.units) for x in (sums.total, sums.log))
    assert total is not None
    least = None if tensors.least is None else tensors.least[..., -1:]
    now = None if live is None or met is None else (met | live.any(-1, keepdim=True)).expand(batch, 1, 1)
    return output.reshape(batch, q.shape[1], *output.shape[2:]), Summed(total, log, least, now)


def _met(before: Summed | None, live: torch.Tensor) -> torch.Tensor:
    if before is not None and before.met is not None:
        return before.met
    return torch.full((1, 1, 1), before is not None, device=live.device)


def _unfolded(before: Summed) -> Sums:
    return Sums(before.total.flatten(0, 1), None if before.log is None else before.log.flatten(0, 1))


def write(path: Path, mechanism: Kernelised, sizes: Mapping[str, int], summed: Summed | None) -> None:
    """Write what is kept, and the words that say what it is."""
    words = {"state": str(mechanism), "format": FORMAT, **{name: str(size) for name, size in sizes.items()}}
    save_tensors(path, {} if summed is None else summed.tensors, words)


def read(path: Path, mechanism: Kernelised) -> tuple[dict[str, int], Summed | None]:
    """Sizes and sums, after everything the file says was checked.

    Raises:
        CheckpointError: missing, damaged, of another mechanism, or saying what cannot be.
    """
    words, tensors = load_tensor_metadata(path), load_tensors(path)
    if (words.get("format"), words.get("state")) != (FORMAT, str(mechanism)):
        raise CheckpointError(
            f"{path} holds a state of {words.get('state')!r} in format {words.get('format')!r}; asked for was one of "
            f"{str(mechanism)!r} in format {FORMAT}"
        )
    sizes = {name: _number(path, words, name) for name in SIZES}
    summed = Summed(**tensors) if tensors and tensors.keys() <= {one.name for one in fields(Summed)} else None
    if bool(sizes["length"]) != bool(tensors) or (tensors and (summed is None or not _fits(summed, mechanism, sizes))):
        found = {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}
        raise CheckpointError(f"{path} holds {found}, which are not the sums of {mechanism} with {sizes}")
    return sizes, summed


def _fits(summed: Summed, mechanism: Kernelised, sizes: Mapping[str, int]) -> bool:
    batch, kv_heads = sizes["batch"], sizes["kv_heads"]
    dtype = summed.total.dtype
    shapes = {
        "total": (dtype, (batch, kv_heads, mechanism.feature_dim(sizes["head_dim"]), sizes["v_dim"] + 1)),
        "log": (dtype, (batch, kv_heads, 1)),
        "least": (torch.float64, (batch, kv_heads, 1)),
        "met": (torch.bool, (batch, 1, 1)),
    }
    fitting = all((x.dtype, tuple(x.shape)) == shapes[name] for name, x in summed.tensors.items())
    return fitting and dtype in (torch.float32, torch.float64)


def _number(path: Path, words: Mapping[str, str], name: str) -> int:
    text = words.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 18):
        raise CheckpointError(f"{path}: {name} is {text[:40]!r}, not a whole number")
    return int(text)
