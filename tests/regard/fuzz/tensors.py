"""The numbers of a case, as they lie in memory, and as float64 for the oracle."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

import regard as rg
from regard import bias as b
from regard.core.tensors import Stored
from regard.layers.caches.rounding import rounded

from .cases import Added, Case
from .counting import kept as not_dropped
from .meanings import LEAVES, TENSORS, build, mask_of

BAD = {"nan": torch.nan, "inf": torch.inf}


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers in another layout; "expanded" repeats the first batch row, "shared heads" the first head."""
    if layout == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "expanded":
        return x[:1].expand(x.shape)
    if layout == "shared heads":
        return x[:, :1].expand(x.shape)
    if layout == "sliced":  # rows of something twice as long
        return torch.stack([x, torch.full_like(x, torch.nan)], 3).flatten(2, 3)[:, :, ::2]
    if layout == "strided":  # a gap behind every number
        return torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(-2)[..., ::2]
    if layout == "offset":
        return torch.cat([x.new_full((3,), torch.nan), x.flatten()])[3:].view(x.shape)
    return x


def same_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The numbers of y laid out in memory as x is."""
    if not y.numel():
        return y.clone()
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    storage = x.new_full((x.storage_offset() + reach,), torch.nan)
    found = storage.as_strided(x.shape, x.stride(), x.storage_offset())
    for at in np.ndindex(x.shape[:2]):  # where rows share memory they hold the same numbers
        found[at] = y[at]
    return found


def moved(x: torch.Tensor, device: str) -> torch.Tensor:
    """The same numbers and strides on another device."""
    storage = x.new_empty(0).set_(x.untyped_storage()).to(device)
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


def slopes(heads: int) -> list[float]:
    """ALiBi's: 2^(-8 h / n) for a power of two; otherwise those of the one below, and every other one of twice it."""
    n = 1
    while 2 * n <= heads:
        n *= 2
    first = [2.0 ** (-8 * h / n) for h in range(1, n + 1)]
    return (first + [2.0 ** (-4 * h / n) for h in range(1, 2 * n, 2)])[:heads]


def bucket(far: np.ndarray, bias: Added) -> np.ndarray:
    """T5's bucket of k_pos - q_pos: half of them by one, the others by equal steps of a logarithm."""
    count = bias.buckets // 2 if bias.sides else bias.buckets
    back = np.abs(far) if bias.sides else np.maximum(-far, 0)
    exact = count // 2
    steps = np.log(np.maximum(back, 1) / exact) / np.log(bias.distance / exact) * (count - exact)
    coarse = np.minimum(exact + np.floor(np.maximum(steps, 0)).astype(int), count - 1)
    return np.where(back < exact, back, coarse) + (count * (far > 0) if bias.sides else 0)


@dataclass
class Made:
    """What a case is called with, and what the oracle is given."""

    case: Case
    device: str = "cpu"  # of what a call is given
    _drawn: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._drawn = torch.Generator().manual_seed(self.case.seed % 2**63)
        case = self.case
        self.dtype = getattr(torch, case.dtype)
        self.at = case.places
        self.mask = mask_of(case.pattern, self.at)
        sizes = {
            "q": (case.batch, case.heads, case.q_len, case.head_dim),
            "k": (case.batch, case.kv_heads, case.k_len, case.head_dim),
            "v": (case.batch, case.kv_heads, case.k_len, case.v_dim),
        }
        gains = {"q": case.gain, "k": 1.0, "v": 1.0}
        self.given = {
            name: laid_out((self.numbers(*shape) * gains[name]).to(self.dtype), layout)
            for (name, shape), layout in zip(sizes.items(), case.layouts, strict=True)
        }
        if case.stored:  # the numbers of a call are those that its cache keeps
            self.unstored = {name: self.given[name] for name in ("k", "v")}
            self.given |= {
                name: self._stored(name, x).widened(torch.float64).cpu()
                for name, x in self.unstored.items()
            }
        self.added = self._added()
        self.cotangents = self._cotangents()
        self.sink = self._sink()
        self.directions = {name: self.numbers(*sizes[name]).to(self.dtype) for name in sizes}
        if case.bias is not None and "bias" in case.learners:
            learned = self.added["learned"]
            self.directions["bias"] = self.numbers(*learned.shape).to(learned.dtype)
        if "sink" in case.learners:
            assert self.sink is not None
            self.directions["sink"] = self.numbers(*self.sink.shape).to(self.dtype)

    def numbers(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._drawn, dtype=torch.float64)

    @property
    def scale(self) -> float:
        return self.case.head_dim**-0.5 if self.case.scale is None else self.case.scale

    def pattern(self) -> Any:
        case = self.case
        leaves = case.pattern.leaves()
        pattern = build(case.pattern, self.at)
        if case.spelled and not leaves & TENSORS and all(LEAVES[one].readable for one in leaves):
            return str(pattern)
        return None if case.pattern.kind == "full" and case.spelled else pattern

    def q_start(self) -> Any:
        by_row = isinstance(self.case.q_start, tuple)
        return torch.tensor(self.at.start, device=self.device) if by_row else self.case.q_start

    def _stored(self, name: str, x: torch.Tensor) -> Stored:
        return Stored(*rounded(name, x.to(self.device), getattr(torch, self.case.stored)))

    def tensor(self, name: str, bad: bool) -> torch.Tensor | Stored:
        """q, k or v as a leaf of its own; `bad`: keys and values that no query may see hold what must not matter."""
        stored = self.case.stored and name != "q"
        x = copied = self.unstored[name] if stored else self.given[name]
        if bad and name != "q" and self.hidden.any():
            copied = x.masked_fill(self.hidden[..., None], BAD[self.case.hidden])
        if stored:
            return self._stored(name, copied)
        copied = moved(same_place(x, copied), self.device)
        return copied.detach().requires_grad_(name in self.case.learners)

    @cached_property
    def hidden(self) -> torch.Tensor:
        """(batch, kv_heads, k_len): no query of the group sees this key, nor any that shares its memory."""
        case = self.case
        grouped = case.batch, case.kv_heads, case.heads // case.kv_heads, case.k_len
        seen = torch.from_numpy(self.mask.any(2).copy()).view(grouped).any(2)
        for layout in case.layouts[1:]:
            if layout == "expanded":
                seen = seen.any(0, keepdim=True).expand_as(seen)
            if layout == "shared heads":
                seen = seen.any(1, keepdim=True).expand_as(seen)
        return ~seen

    def bias(self) -> tuple[Any, torch.Tensor | None]:
        """The bias of a call, and the leaf that learns."""
        case, added = self.case, self.case.bias
        if added is None:
            return None, None
        if added.kind in ("alibi", "slopes"):
            return b.ALiBi(None if added.kind == "alibi" else self.added["slopes"]), None
        leaf = moved(same_place(self.added["learned"], self.added["learned"]), self.device)
        leaf = leaf.detach().requires_grad_("bias" in case.learners)
        if added.kind == "tensor":
            return leaf, leaf
        module = b.T5Relative(case.heads, added.buckets, added.distance, added.sides).to(leaf)
        module.weight.data.copy_(leaf.detach())
        module.weight.requires_grad_("bias" in case.learners)
        return module, module.weight

    def _added(self) -> dict[str, Any]:
        """What the bias is made of: `learned`, and how the oracle spreads it over all pairs."""
        case, added = self.case, self.case.bias
        if added is None:
            return {}
        far = self.at.j - self.at.i
        if added.kind in ("alibi", "slopes"):
            by_head = (
                slopes(case.heads) if added.kind == "alibi" else self.numbers(case.heads).tolist()
            )
            whole = -np.array(by_head).reshape(1, -1, 1, 1) * np.abs(far)
            return {
                "slopes": by_head,
                "whole": torch.from_numpy(np.broadcast_to(whole, self.at.shape).copy()),
            }
        if added.kind == "t5":
            return {
                "learned": self.numbers(added.buckets, case.heads).to(
                    torch.float32 if case.seed % 2 else self.dtype
                ),
                "places": torch.from_numpy(
                    np.broadcast_to(bucket(far, added), self.at.shape).copy()
                ),
                "heads": torch.arange(case.heads).view(1, -1, 1, 1),
            }
        whole = self.at.shape[4 - len(added.axes) :]
        shape = [size if axis else 1 for axis, size in zip(added.axes, whole, strict=True)]
        numbers = self.numbers(*shape)
        if added.hides:
            drawn = torch.rand(shape, generator=self._drawn)
            numbers = numbers.masked_fill(drawn < added.hides, -torch.inf)
        numbers = numbers.to(self.dtype if added.dtype == "same" else getattr(torch, added.dtype))
        layout = added.layout if len(shape) == 4 else "contiguous"
        return {"learned": laid_out(numbers, layout)}

    def _sink(self) -> torch.Tensor | None:
        """The logits of the sinks in float64, from numbers of their own; -inf among them is no sink."""
        case = self.case
        if not case.sink:
            return None
        shape = {
            "number": (),
            "heads": (case.heads,),
            "rows": (case.batch, case.heads),
            "one": (case.batch, 1),
        }
        drawn = torch.Generator().manual_seed(case.seed % 2**62 + 1)
        logits = 2 * torch.randn(shape[case.sink], generator=drawn, dtype=torch.float64)
        if case.sink in ("heads", "rows"):
            logits = logits.masked_fill(torch.rand(logits.shape, generator=drawn) < 0.2, -torch.inf)
        return logits if case.sink == "number" else logits.to(self.dtype).double()

    def given_sink(self) -> Any:
        """The sink as the call gets it; a tensor is a leaf of its own, which may learn."""
        if self.sink is None or not self.sink.dim():
            return None if self.sink is None else float(self.sink)
        return self.sink.to(self.device, self.dtype, copy=True).requires_grad_(
            "sink" in self.case.learners
        )

    def spread_sink(self, sink: torch.Tensor | None) -> torch.Tensor:
        """The logit of the sink in every row, (batch or 1, heads or 1, 1) in float64; -inf without one."""
        if sink is None:
            return torch.full((1, 1, 1), -torch.inf, dtype=torch.float64)
        return sink.view(*(1,) * (2 - sink.dim()), *sink.shape)[..., None]

    def spread(self, learned: torch.Tensor | None) -> torch.Tensor:
        """The bias of every pair in float64, given what it is made of."""
        if "whole" in self.added:
            return self.added["whole"]
        if learned is None:
            return torch.zeros(1, 1, 1, 1, dtype=torch.float64)
        if "places" in self.added:
            return learned[self.added["places"], self.added["heads"]]
        return learned[(None,) * (4 - learned.dim())]

    def factors(self) -> torch.Tensor:
        """What dropout multiplies each weight by."""
        case = self.case
        if not 0 < case.dropout < 1:
            return torch.full((1, 1, 1, 1), 0.0 if case.dropout else 1.0, dtype=torch.float64)
        stays = not_dropped(
            case.dropout,
            case.dropout_seed,
            case.batch,
            case.heads,
            self.at.i,
            np.arange(case.k_len),
        )
        return torch.from_numpy(np.broadcast_to(stays, self.at.shape) / (1 - case.dropout))

    def wants(self) -> tuple[Any, ...]:
        make = {"top_keys": rg.top_keys, "weights_of": rg.weights_of}
        return tuple(
            one if isinstance(one, str) else make[one[0]](*self.reduced(one))
            for one in self.case.want
        )

    def reduced(self, want: tuple[Any, ...]) -> tuple[Any, ...]:
        """Rows and heads that there are in a smaller case too."""
        if want[0] == "top_keys":
            return want[1:]
        rows = (
            tuple(dict.fromkeys(row % self.case.q_len for row in want[1]))
            if self.case.q_len
            else (0,)
        )
        return rows, None if want[2] is None else tuple(
            dict.fromkeys(head % self.case.heads for head in want[2])
        )

    def _cotangents(self) -> dict[str, torch.Tensor]:
        """The gradients that come in, of the output and of statistics."""
        case = self.case
        if not case.learners:
            return {}
        rows = case.batch, case.heads, case.q_len
        shapes: dict[str, tuple[int, ...]] = {
            "log_sum_exp": rows,
            "entropy": rows,
            "distance": rows,
            "received": (case.batch, case.heads, case.k_len),
            "weights": self.at.shape,
        }
        for one in case.want:
            if not isinstance(one, str):
                values = self.reduced(one)
                shapes[one[0]] = (
                    (*rows, values[0])
                    if one[0] == "top_keys"
                    else (
                        case.batch,
                        case.heads if values[1] is None else len(values[1]),
                        len(values[0]),
                        case.k_len,
                    )
                )
        out = self.numbers(*rows, case.v_dim).to(self.dtype)
        if case.grad_layout == "transposed":
            out = out.transpose(1, 2).contiguous().transpose(1, 2)
        if case.grad_layout == "one number":
            out = torch.full((), 0.75, dtype=self.dtype).expand(out.shape)
        wide = torch.promote_types(self.dtype, torch.float32)
        return {"output": out} | {one: self.numbers(*shapes[one]).to(wide) for one in case.pulled}
