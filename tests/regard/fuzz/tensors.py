"""The numbers of a case, as they lie in memory, and as float64 for the oracle."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

import regard as rg
from regard import bias as b
from regard.core.tensors import Stored
from regard.layers.caches.rounding import rounded

from .cases import Added, SoftmaxCase, name_of
from .counting import kept_weights
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
    copy = storage.as_strided(x.shape, x.stride(), x.storage_offset())
    for index in np.ndindex(x.shape[:2]):  # where rows share memory they hold the same numbers
        copy[index] = y[index]
    return copy


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
    between = [2.0 ** (-4 * h / n) for h in range(1, 2 * n, 2)]
    return (first + between)[:heads]


def bucket(offset: np.ndarray, bias: Added) -> np.ndarray:
    """T5's bucket of k_pos - q_pos: half of them by one, the others by equal steps of a logarithm."""
    count = bias.buckets // 2 if bias.sides else bias.buckets
    distance = np.abs(offset) if bias.sides else np.maximum(-offset, 0)
    exact = count // 2
    logarithm = np.log(np.maximum(distance, 1) / exact) / np.log(bias.distance / exact)
    steps = np.floor(np.maximum(logarithm * (count - exact), 0)).astype(int)
    buckets = np.where(distance < exact, distance, np.minimum(exact + steps, count - 1))
    return buckets + count * (offset > 0) if bias.sides else buckets


class DrawnNumbers:
    """What draws standard normal numbers, the same for equal seeds."""

    _drawn: torch.Generator

    def seed(self, seed: int) -> None:
        self._drawn = torch.Generator().manual_seed(seed % 2**63)

    def numbers(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._drawn, dtype=torch.float64)


@dataclass
class SoftmaxCall(DrawnNumbers):
    """What a case is called with, and what the oracle is given."""

    case: SoftmaxCase
    device: str = "cpu"  # of what a call is given

    def __post_init__(self) -> None:
        case = self.case
        self.seed(case.seed)
        self.dtype = getattr(torch, case.dtype)
        self.at = case.places
        self.mask = mask_of(case.pattern, self.at)
        sizes = {
            "q": (case.batch, case.heads, case.q_len, case.head_dim),
            "k": (case.batch, case.kv_heads, case.k_len, case.head_dim),
            "v": (case.batch, case.kv_heads, case.k_len, case.v_dim),
        }
        self.given = {}
        for name, layout in zip(sizes, case.layouts, strict=True):
            x = self.numbers(*sizes[name]) * (case.gain if name == "q" else 1.0)
            self.given[name] = laid_out(x.to(self.dtype), layout)
        if case.stored:  # the numbers of a call are those that its cache keeps
            self.unstored = {name: self.given[name] for name in ("k", "v")}
            for name, x in self.unstored.items():
                self.given[name] = self._stored(name, x).widened(torch.float64).cpu()
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

    @property
    def scale(self) -> float:
        return self.case.head_dim**-0.5 if self.case.scale is None else self.case.scale

    def pattern(self) -> Any:
        case = self.case
        pattern = build(case.pattern, self.at)
        leaves = case.pattern.leaves()
        has_text = not leaves & TENSORS and all(LEAVES[leaf].readable for leaf in leaves)
        return str(pattern) if case.spelled and has_text else pattern

    def q_start(self) -> Any:
        if isinstance(self.case.q_start, tuple):
            return torch.tensor(self.at.start, device=self.device)
        return self.case.q_start

    def _stored(self, name: str, x: torch.Tensor) -> Stored:
        return Stored(*rounded(name, x.to(self.device), getattr(torch, self.case.stored)))

    def tensor(self, name: str, bad: bool) -> torch.Tensor | Stored:
        """q, k or v as a leaf of its own; `bad`: keys and values that no query may see hold what must not matter."""
        stored = self.case.stored and name != "q"
        x = self.unstored[name] if stored else self.given[name]
        numbers = x
        if bad and name != "q" and self.hidden.any():
            numbers = x.masked_fill(self.hidden[..., None], BAD[self.case.hidden])
        if stored:
            return self._stored(name, numbers)
        leaf = moved(same_place(x, numbers), self.device).detach()
        return leaf.requires_grad_(name in self.case.learners)

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
        case = self.case
        added = case.bias
        if added is None:
            return None, None
        if added.kind in ("alibi", "slopes"):
            return b.ALiBi(None if added.kind == "alibi" else self.added["slopes"]), None
        learned = self.added["learned"]
        leaf = moved(same_place(learned, learned), self.device)
        leaf = leaf.detach().requires_grad_("bias" in case.learners)
        if added.kind == "tensor":
            return leaf, leaf
        module = b.T5Relative(case.heads, added.buckets, added.distance, added.sides).to(leaf)
        module.weight.data.copy_(leaf.detach())
        module.weight.requires_grad_("bias" in case.learners)
        return module, module.weight

    def _added(self) -> dict[str, Any]:
        """What the bias is made of: `learned`, and how the oracle spreads it over all pairs."""
        added = self.case.bias
        if added is None:
            return {}
        heads = self.case.heads
        if added.kind in ("alibi", "slopes"):
            by_head = slopes(heads) if added.kind == "alibi" else self.numbers(heads).tolist()
            bias = -np.array(by_head).reshape(1, -1, 1, 1) * np.abs(self.at.j - self.at.i)
            return {"slopes": by_head, "whole": self._of_pairs(bias)}
        if added.kind == "t5":
            dtype = torch.float32 if self.case.seed % 2 else self.dtype
            return {
                "learned": self.numbers(added.buckets, heads).to(dtype),
                "places": self._of_pairs(bucket(self.at.j - self.at.i, added)),
                "heads": torch.arange(heads).view(1, -1, 1, 1),
            }
        sizes = zip(added.axes, self.at.shape[4 - len(added.axes) :], strict=True)
        shape = [size if axis else 1 for axis, size in sizes]
        numbers = self.numbers(*shape)
        if added.hides:
            drawn = torch.rand(shape, generator=self._drawn)
            numbers = numbers.masked_fill(drawn < added.hides, -torch.inf)
        dtype = self.dtype if added.dtype == "same" else getattr(torch, added.dtype)
        layout = added.layout if len(shape) == 4 else "contiguous"
        return {"learned": laid_out(numbers.to(dtype), layout)}

    def _of_pairs(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.broadcast_to(x, self.at.shape).copy())

    def _sink(self) -> torch.Tensor | None:
        """The logits of the sinks in float64, from numbers of their own; -inf among them is no sink."""
        case = self.case
        if not case.sink:
            return None
        shapes = {
            "number": (),
            "heads": (case.heads,),
            "rows": (case.batch, case.heads),
            "one": (case.batch, 1),
        }
        drawn = torch.Generator().manual_seed(case.seed % 2**62 + 1)
        logits = 2 * torch.randn(shapes[case.sink], generator=drawn, dtype=torch.float64)
        if case.sink in ("heads", "rows"):
            absent = torch.rand(logits.shape, generator=drawn) < 0.2
            logits = logits.masked_fill(absent, -torch.inf)
        return logits if case.sink == "number" else logits.to(self.dtype).double()

    def given_sink(self) -> Any:
        """The sink as the call gets it; a tensor is a leaf of its own, which may learn."""
        if self.sink is None:
            return None
        if not self.sink.dim():
            return float(self.sink)
        leaf = self.sink.to(self.device, self.dtype, copy=True)
        return leaf.requires_grad_("sink" in self.case.learners)

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
        seed = case.dropout_seed
        k_pos = np.arange(case.k_len)
        kept = kept_weights(case.dropout, seed, case.batch, case.heads, self.at.i, k_pos)
        return torch.from_numpy(np.broadcast_to(kept, self.at.shape) / (1 - case.dropout))

    def wants(self) -> tuple[Any, ...]:
        wants = []
        for statistic in self.case.want:
            if name_of(statistic) == "top_keys":
                wants.append(rg.top_keys(statistic[1]))
            elif name_of(statistic) == "weights_of":
                wants.append(rg.weights_of(*self.rows_and_heads(statistic)))
            else:
                wants.append(statistic)
        return tuple(wants)

    def rows_and_heads(self, weights_of: tuple[Any, ...]) -> tuple[Any, Any]:
        """The rows and heads of chosen weights, reduced to those that there are in a smaller case too."""
        _, rows, heads = weights_of
        q_len = self.case.q_len
        rows = tuple(dict.fromkeys(row % q_len for row in rows)) if q_len else (0,)
        if heads is not None:
            heads = tuple(dict.fromkeys(head % self.case.heads for head in heads))
        return rows, heads

    def chosen(self, x: torch.Tensor, weights_of: tuple[Any, ...]) -> torch.Tensor:
        """The numbers of chosen rows and heads, of those of all pairs."""
        rows, heads = self.rows_and_heads(weights_of)
        of_heads = x if heads is None else x[:, list(heads)]
        return of_heads[:, :, list(rows)]

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
        for statistic in case.want:
            if name_of(statistic) == "top_keys":
                shapes["top_keys"] = (*rows, statistic[1])
            if name_of(statistic) == "weights_of":
                chosen_rows, heads = self.rows_and_heads(statistic)
                chosen_heads = case.heads if heads is None else len(heads)
                shapes["weights_of"] = case.batch, chosen_heads, len(chosen_rows), case.k_len
        of_output = self.numbers(*rows, case.v_dim).to(self.dtype)
        if case.grad_layout == "transposed":
            of_output = of_output.transpose(1, 2).contiguous().transpose(1, 2)
        if case.grad_layout == "one number":
            of_output = torch.full((), 0.75, dtype=self.dtype).expand(of_output.shape)
        cotangents = {"output": of_output}
        for name in case.pulled:
            dtype = torch.promote_types(self.dtype, torch.float32)
            cotangents[name] = self.numbers(*shapes[name]).to(dtype)
        return cotangents
