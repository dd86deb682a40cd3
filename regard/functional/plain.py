"""The operation `regard::attention` in PyTorch's own operations, for what lowers an exported program.

ONNX, OpenVINO, ExecuTorch and AOTInductor know no operation of regard. `compiled.py` registers `plain_attention` as its
decomposition, which `ExportedProgram.run_decompositions` uses too. Sizes may be symbols, so that one program serves
every batch and every length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from regard.backends.recurrence import (
    CHUNK,
    RecurrenceInputs,
    Rule,
    block,
    inputs_of,
    without_unseen,
)
from regard.core.tensors import HALF
from regard.errors import UnsupportedError
from regard.mechanisms import parse as parse_mechanism
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import Causal, Pattern, parse
from regard.patterns.band import Band
from regard.patterns.grid import Grid
from regard.patterns.text import read_together


def plain_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    sink: torch.Tensor | None,
    q_start: torch.Tensor | None,
    dropout_seed: torch.Tensor | None,
    held: list[torch.Tensor] | None,
    parameters: list[torch.Tensor] | None,
    numbers: None = None,  # an exporter makes every float a constant
    *,
    pattern: str,
    mechanism: str | None,
    names: Sequence[str] = (),
    first: Any,
    lowest: Any,
    softcap: float | None,
    scale: float | None,
    dropout: float,
    precise: bool = False,
    **others: Any,
) -> torch.Tensor:
    """What `torch.ops.regard.attention` computes, by PyTorch's fused attention if there is neither softcap nor sink.

    Booleans and a bias of q_len x k_len pairs are made where the pattern is neither full nor causal. A NaN of a key
    that some queries may look at reaches the others too, unlike in regard's own backends on the CPU.

    Raises:
        UnsupportedError: dropout, or a pattern or mechanism that has no plain operations.
    """
    if dropout:
        raise UnsupportedError(
            "dropout is not exported to other runtimes; export the model in eval mode"
        )
    # the fused attention of other runtimes rounds weights to the dtype of v
    if precise and q.dtype in HALF:
        wide = (x.float() for x in (q, k, v))
        return plain_attention(
            *wide,
            bias=bias,
            sink=sink,
            q_start=q_start,
            dropout_seed=dropout_seed,
            held=held,
            parameters=parameters,
            pattern=pattern,
            mechanism=mechanism,
            names=names,
            first=first,
            lowest=lowest,
            softcap=softcap,
            scale=scale,
            dropout=dropout,
            **others,
        ).to(q.dtype)
    heads = q.shape[1]
    q_len = q.shape[2]
    k_len = k.shape[2]
    # canonical() would fix tensors' sizes
    asked = read_together(pattern, held) if held else parse(pattern).canonical()
    start = q_start if q_start is not None else k_len - q_len if first is None else first
    band = None if held or asked.varies_by_head else asked.band()
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    if mechanism is not None:
        declared = parse_mechanism(mechanism)
        padding = [part for part in asked.factors if part != Causal()]
        square = _certain(q_start is None and start == 0) and _certain(q_len == k_len)
        causal = square and Causal() in asked.factors and all(part.query_free for part in padding)
        if not isinstance(declared, Recurrent) or not causal:
            raise UnsupportedError(
                f"{mechanism} with {asked} is not for PyTorch's own operations; only softmax is, and recurrent "
                f"mechanisms over whole causal texts; regard.integrations.torch.whole_attention() keeps the call whole"
            )
        wide = [x.to(torch.promote_types(q.dtype, torch.float32)) for x in (q, k, v)]
        inputs = inputs_of(
            *wide, *declared.gates(dict(zip(names, parameters or [], strict=True)), *wide[1:])
        )
        for part in padding:
            inputs = without_unseen(inputs, _allowed(part, 0, q_len, k_len, q.device)[:, :, 0])
        return _by_chunks(Rule(declared.corrects, scale), inputs).to(q.dtype)
    fused = softcap is None and sink is None
    if fused and bias is None and band is not None:
        square = _certain(q_start is None and start == 0) and _certain(q_len == k_len)
        if band == Band() or (band == Band(right=0) and square):
            k = _for_each_head(k, heads)
            v = _for_each_head(v, heads)
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=band == Band(right=0), scale=scale
            )

    allowed = None if band == Band() else _allowed(asked, start, q_len, k_len, q.device)
    if bias is not None and lowest is not None:
        rows = torch.arange(q_len, device=q.device)[:, None]
        columns = torch.arange(k_len, device=q.device)
        # a table by distance, (heads or 1, distances)
        bias = bias[:, columns - rows - start - lowest]
    if bias is not None:
        bias = _four_axes(bias)
        finite = bias != -math.inf
        allowed = finite if allowed is None else allowed & finite
    row_exists = None  # whether a query may look at any key; None where each certainly may
    if allowed is not None:
        each_query, each_key = _certainly_seen(
            None if bias is not None else band, start, q_len, k_len
        )
        row_exists = None if each_query else allowed.any(-1, keepdim=True)
        k, v = (k, v) if each_key else _without_hidden(k, v, allowed, heads)
    k = _for_each_head(k, heads)
    v = _for_each_head(v, heads)
    if fused:
        mask = allowed
        if bias is not None and allowed is not None:
            mask = bias.to(q.dtype).masked_fill(~allowed, -math.inf)
        # The attention of onnxruntime takes every axis but that of the heads in full.
        mask = None if mask is None else mask.expand(q.shape[0], mask.shape[1], q_len, k_len)
        output = F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    else:
        output = _by_softmax(q, k, v, allowed, bias, sink, softcap, scale)
    return output if row_exists is None else torch.where(row_exists, output, 0.0)


def _by_chunks(rule: Rule, inputs: RecurrenceInputs) -> torch.Tensor:
    """The outputs of a recurrence by the operation `scan` over its chunks, of which a program may have any number."""
    from torch._higher_order_ops.scan import scan_op

    def cut(
        x: torch.Tensor,
    ) -> torch.Tensor:  # (batch, heads, length, ...) -> (chunks, batch, heads, CHUNK, ...)
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, count * CHUNK - length))
        return x.view(*x.shape[:2], count, CHUNK, *x.shape[3:]).movedim(2, 0)

    def step(memory: torch.Tensor, *there: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(there)
        values = [None if x is None else next(rest) for x in by_key]
        output, memory = block(rule, RecurrenceInputs(*values, memory))  # ty: ignore[invalid-argument-type]
        return [memory, output]

    *by_key, memory = inputs
    length = inputs.v.shape[2]
    count = (
        length + CHUNK - 1
    ) // CHUNK + 1  # 2 or more: a tracer takes a size that may be 1 for a case of its own
    _, outputs = scan_op(step, [memory], [cut(x) for x in by_key if x is not None], ())
    return outputs.movedim(0, 2).flatten(2, 3)[:, :, :length]


def _by_softmax(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    allowed: torch.Tensor | None,
    bias: torch.Tensor | None,
    sink: torch.Tensor | None,
    softcap: float | None,
    scale: float,
) -> torch.Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(wide) * scale) @ k.to(wide).transpose(2, 3)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(wide)
    if allowed is not None:
        # The lowest number instead of -inf, which would make a row without keys NaN, also in gradients and checks.
        scores = torch.where(allowed, scores, torch.finfo(wide).min)
    if sink is None:
        return (torch.softmax(scores, -1) @ v.to(wide)).to(q.dtype)
    logit = sink.to(wide)[(None,) * (2 - sink.dim())][:, :, None, None].expand(*q.shape[:3], 1)
    weights = torch.softmax(torch.cat([scores, logit], -1), -1)[..., :-1]
    return (weights @ v.to(wide)).to(q.dtype)


def _allowed(
    pattern: Pattern, start: Any, q_len: Any, k_len: Any, device: torch.device
) -> torch.Tensor:
    """Which pairs a pattern allows, (batch or 1, heads or 1, q_len or 1, k_len)."""
    rows = slice(0, 1) if pattern.query_free else slice(0, q_len)
    # A slice in place of a range, which would turn a symbolic size into a number.
    grid: Any = Grid(q_len, k_len, start, rows, slice(0, k_len), device)  # ty: ignore[invalid-argument-type]
    return _four_axes(pattern.evaluate(grid))


def _four_axes(x: torch.Tensor) -> torch.Tensor:
    return x[(None,) * (4 - x.dim())]


def _for_each_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values, one for each query head."""
    batch, own, length, size = x.shape
    if own == heads:
        return x
    return (
        x[:, :, None]
        .expand(batch, own, heads // own, length, size)
        .reshape(batch, heads, length, size)
    )


def _without_hidden(
    k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values with zeros where no query may look, so that a NaN there does not reach the output."""
    visible = allowed.any(2)  # (batch or 1, heads or 1, k_len)
    if visible.shape[1] != 1 and k.shape[1] != heads:
        visible = visible.unflatten(1, (k.shape[1], heads // k.shape[1])).any(2)
    visible = visible[..., None]
    return torch.where(visible, k, 0.0), torch.where(visible, v, 0.0)


def _certainly_seen(band: Band | None, start: Any, q_len: Any, k_len: Any) -> tuple[bool, bool]:
    """Whether, for every input, each query may look at some key, and each key is visible, by pairs (i, i) alone."""
    if band is None or isinstance(start, torch.Tensor) or band.start or band.stop is not None:
        return False, False
    if min(0 if side is None else side for side in (band.left, band.right)) < 0:
        return False, False
    endless = band.left is None
    stop = start + q_len
    queries = _certain(start >= 0) and (endless or _certain(stop <= k_len))
    return queries, _certain(stop == k_len) and (endless or _certain(start <= 0))


def _certain(relation: Any) -> bool:
    """Whether a relation of sizes holds for every input of the program; asking adds no condition to it."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(relation)
