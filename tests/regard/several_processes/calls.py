"""What the processes of tests compute, and the same on one process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

import regard
from regard import bias, distributed
from regard import mechanisms as m
from regard import patterns as p
from regard.distributed import Layout
from regard.layers import MultiHeadAttention, record_attention


@dataclass(frozen=True)
class SharedCall:
    """One call: the lengths that each process holds, and options; what holds tensors is made in each process.

    sizes: batch, heads, kv_heads, head_dim, v_dim.
    """

    name: str
    lengths: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    make: str = ""
    k_lengths: tuple[int, ...] | None = None
    layout: str = "contiguous"
    form: str = "auto"
    want: tuple[Any, ...] = ()
    sizes: tuple[int, int, int, int, int] = (2, 4, 2, 5, 3)
    dtype: torch.dtype = torch.float64
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.name}, {self.layout}, {self.form}, {len(self.lengths)} processes"

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        k_lengths = self.k_lengths or self.lengths
        return Layout(self.layout, self.lengths), Layout(self.layout, k_lengths)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The whole q, k, v, and the gradients of output and log-sum-exp."""
        batch, heads, kv_heads, head_dim, v_dim = self.sizes
        q_len, k_len = (layout.length for layout in self.layouts)
        numbers = torch.Generator().manual_seed(7)
        draw = partial(torch.randn, generator=numbers, dtype=torch.float64)
        drawn = {
            "q": draw(batch, heads, q_len, head_dim),
            "k": draw(batch, kv_heads, k_len, head_dim),
            "v": draw(batch, kv_heads, k_len, v_dim),
            "grad": draw(batch, heads, q_len, v_dim),
            "grad_lse": draw(batch, heads, q_len),
        }
        return {name: x.to(self.device, self.dtype) for name, x in drawn.items()}

    def made(self, rank: int | None) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """The options, those with tensors included, and the tensors that learn by name."""
        if not self.make:
            return dict(self.options), {}
        if self.make in PATTERNS:
            batch, heads = self.sizes[:2]
            q_len, k_len = (layout.length for layout in self.layouts)
            pattern = PATTERNS[self.make](batch, heads, q_len, k_len)
            return {**self.options, "pattern": pattern}, {}
        options, learning = MAKERS[self.make](self, rank)
        return {**self.options, **options}, learning


def whole_rows(case: SharedCall, rank: int | None, x: torch.Tensor) -> torch.Tensor:
    """A bias cut to the queries of one process."""
    return x if rank is None else distributed.shard(x, case.layouts[0], rank, dim=-2)


def _every_third(q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
    return (q_pos + 2 * k_pos) % 3 == 0


def _chosen(share: float, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)) < share


def _explicit(batch: int, heads: int, q_len: int, k_len: int) -> p.Pattern:
    mask = _chosen(0.2, 1, heads, q_len, k_len)
    mask[:, :, 4] = False
    return p.Explicit(mask)


# Each is called with batch, heads, q_len and k_len.
PATTERNS: dict[str, Callable[[int, int, int, int], p.Pattern]] = {
    "documents": lambda b, h, q, k: (
        p.Causal() & p.SameDocument(torch.stack([torch.arange(k) // 7, torch.arange(k) // 11]))
    ),
    "explicit": _explicit,
    "where": lambda b, h, q, k: p.Where(_every_third),
    "key_mask": lambda b, h, q, k: p.Causal() & p.KeyMask(_chosen(0.5, b, k)),
    "spans": lambda b, h, q, k: (
        p.Causal() & p.KeySpan(torch.tensor([0, 3]), torch.tensor([k - 5, k]))
    ),
}


def _starts(case: SharedCall, rank: int | None):
    return {"pattern": p.CausalWindow(9), "q_start": torch.tensor([0, 4])}, {}


def _bias(case: SharedCall, rank: int | None):
    q_len, k_len = (layout.length for layout in case.layouts)
    heads = case.sizes[1]
    numbers = torch.Generator().manual_seed(5)
    whole = torch.randn(heads, q_len, k_len, dtype=case.dtype, generator=numbers)
    of_rows = whole_rows(case, rank, whole).clone().to(case.device).requires_grad_()
    return {"bias": of_rows, "pattern": "causal"}, {"bias": of_rows}


def _t5(case: SharedCall, rank: int | None):
    table = bias.T5Relative(case.sizes[1], buckets=8, max_distance=20).to(case.device, case.dtype)
    with torch.no_grad():
        table.weight.copy_(torch.arange(table.weight.numel()).view_as(table.weight) / 10)
    return {"bias": table, "pattern": "sliding_window(20)"}, {"weight": table.weight}


def _sinks(case: SharedCall, rank: int | None):
    heads = case.sizes[1]
    sink = torch.linspace(-1, 2, heads, dtype=case.dtype, device=case.device, requires_grad=True)
    return {"sink": sink, "pattern": p.CausalWindow(6) & p.KeySpan(4, None)}, {"sink": sink}


def _score(case: SharedCall, rank: int | None, kind: str = "general"):
    dim = case.sizes[3]
    score = {"general": m.General(dim, dim), "additive": m.Additive(dim, dim, 4)}[kind]
    mechanism = m.Softmax(score=score)
    torch.manual_seed(11)
    _, heads, kv_heads, _, _ = case.sizes
    parameters = {}
    for name, x in mechanism.new_parameters(heads, kv_heads).items():
        parameters[name] = x.detach().to(case.device, case.dtype).requires_grad_()
    return {"mechanism": mechanism, "parameters": parameters, "pattern": "causal"}, parameters


MAKERS: dict[str, Any] = {
    "starts": _starts,
    "bias": _bias,
    "t5": _t5,
    "sinks": _sinks,
    "general": _score,
    "additive": partial(_score, kind="additive"),
}


@contextmanager
def counted() -> Iterator[list[int]]:
    """The bytes of each message that this process sends point to point, by wrapping torch's own function."""
    plain = dist.batch_isend_irecv
    sent = []

    def counting(ops: list[dist.P2POp]) -> Any:
        sent.extend(op.tensor.nbytes for op in ops if op.op is dist.isend)
        return plain(ops)

    with patch.object(dist, "batch_isend_irecv", counting):
        yield sent


def computed(
    case: SharedCall,
    detail: Any,
    inputs: list[torch.Tensor],
    learning: dict[str, torch.Tensor],
    grads: Any,
) -> Any:
    """Output, statistics and gradients of a call by name, given the gradients of output and log-sum-exp."""
    results = {"output": detail.output, "log_sum_exp": detail.log_sum_exp}
    for name in ("entropy", "received", "distance", "sink"):
        if name in case.want:
            results[name] = getattr(detail, name)
    if not all(isinstance(want, str) for want in case.want):
        results["top_indices"] = detail.top_keys.indices
        results["top_weights"] = detail.top_keys.weights

    finite_lse = detail.log_sum_exp.masked_fill(detail.log_sum_exp == -torch.inf, 0)
    loss = (detail.output * grads[0]).sum() + (finite_lse * grads[1]).sum()
    gradients = torch.autograd.grad(loss, [*inputs, *learning.values()])
    results |= dict(zip(["dq", "dk", "dv", *learning], gradients, strict=True))
    return {name: x.detach().to("cpu", torch.float64) for name, x in results.items()}


def on_processes(case: SharedCall) -> dict[str, Any]:
    """What one process computes of a case, and the bytes that it sent."""
    rank = dist.get_rank()
    q_layout, k_layout = case.layouts
    whole = case.tensors()
    q = distributed.shard(whole["q"], q_layout, rank)
    k = distributed.shard(whole["k"], k_layout, rank)
    v = distributed.shard(whole["v"], k_layout, rank)
    grad = distributed.shard(whole["grad"], q_layout, rank)
    grad_lse = distributed.shard(whole["grad_lse"], q_layout, rank)
    options, learning = case.made(rank)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    with counted() as sent:
        detail = distributed.attention_detail(
            q,
            k,
            v,
            dist.group.WORLD,
            layout=case.layout,
            form=case.form,
            want=("log_sum_exp", *case.want),
            **options,
        )
        sent_in_forward = sum(sent)
        results = computed(case, detail, inputs, learning, (grad, grad_lse))
    arrays: dict[str, Any] = {name: x.numpy() for name, x in results.items()}
    return arrays | {"sent": (sent_in_forward, sum(sent))}


def on_one(case: SharedCall) -> dict[str, torch.Tensor]:
    """The same on one process, by `regard.attention_detail`."""
    whole = case.tensors()
    options, learning = case.made(None)
    inputs = [whole[name].requires_grad_() for name in ("q", "k", "v")]
    detail = regard.attention_detail(*inputs, want=("log_sum_exp", *case.want), **options)
    return computed(case, detail, inputs, learning, (whole["grad"], whole["grad_lse"]))


OF_KEYS = {"dk", "dv", "received"}


def together(case: SharedCall, parts: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The results of all processes as one: parts joined by position, gradients of shared tensors summed."""
    q_layout, k_layout = case.layouts
    _, learning = case.made(None)
    results = {}
    for name in parts[0]:
        if name == "sent":
            continue
        tensors = [torch.from_numpy(part[name]) for part in parts]
        if name == "bias":
            results[name] = distributed.unshard(tensors, q_layout, dim=-2)
        elif name in learning:
            results[name] = torch.stack(tensors).sum(0)
        elif name in OF_KEYS:
            results[name] = distributed.unshard(tensors, k_layout)
        else:
            results[name] = distributed.unshard(tensors, q_layout)
    return results


def on_a_linear_layer(style: ParallelStyle) -> None:
    parallelize_module(nn.Linear(2, 2), init_device_mesh("cpu", (2,)), style)


def with_a_recording(style: ParallelStyle) -> None:
    layer = parallelize_module(
        MultiHeadAttention(dim=16, heads=4), init_device_mesh("cpu", (2,)), style
    )
    with record_attention(layer):
        layer(torch.zeros(1, 3, 16))
