"""The operation `regard::attention` in PyTorch's own operations, for what lowers an exported program.

ONNX, OpenVINO, ExecuTorch and AOTInductor know no operation of regard. `compiled.py` registers `plain_attention` as its
decomposition, which `ExportedProgram.run_decompositions` uses too. Sizes may be symbols, so that one program serves
every batch and every length.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from regard.backends.recurrence import (
    CHUNK,
    RecurrenceInputs,
    Rule,
    block,
    inputs_of,
    with_beginnings,
    without_unseen,
)
from regard.backends.scores.factor import divided_factor
from regard.core.tensors import HALF
from regard.errors import UnsupportedError
from regard.functional.operation import OperationOptions, OperationTensors
from regard.mechanisms import parse as parse_mechanism
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import Causal, Pattern, parse
from regard.patterns.band import Band
from regard.patterns.documents import document_ids
from regard.patterns.grid import Grid, four_axes
from regard.patterns.text import read_together


def plain_attention(tensors: OperationTensors, options: OperationOptions) -> torch.Tensor:
    """What `torch.ops.regard.attention` computes, by PyTorch's fused attention if there is neither softcap nor sink.

    Booleans and a bias of q_len x k_len pairs are made where the pattern is neither full nor causal. A NaN of a key
    that some queries may look at reaches the others too, unlike in regard's own backends on the CPU. An exporter makes
    every float a constant, so there are no unknown numbers.

    Raises:
        UnsupportedError: dropout, or a pattern or mechanism that has no plain operations.
    """
    if options.dropout:
        raise UnsupportedError(
            "dropout is not exported to other runtimes; export the model in eval mode"
        )
    if options.precise and tensors.q.dtype in HALF:
        # The fused attention of other runtimes rounds weights to the dtype of v.
        wide = tensors._replace(q=tensors.q.float(), k=tensors.k.float(), v=tensors.v.float())
        output = plain_attention(wide, options._replace(precise=False))
        return output.to(tensors.q.dtype)

    if tensors.held:  # canonical() would fix the sizes of tensors
        pattern = read_together(options.pattern, list(tensors.held))
    else:
        pattern = parse(options.pattern).canonical()
    call = PlainCall(tensors, options, pattern)
    return call.softmax() if options.mechanism is None else call.recurrence(options.mechanism)


class PlainCall:
    """A call of which sizes, and perhaps the position of the first query, are symbols."""

    def __init__(
        self, tensors: OperationTensors, options: OperationOptions, pattern: Pattern
    ) -> None:
        self.tensors = tensors
        self.pattern = pattern
        self.heads = tensors.q.shape[1]
        self.q_len = tensors.q.shape[2]
        self.k_len = tensors.k.shape[2]
        self.softcap = options.softcap
        self.lowest = options.lowest
        self.names = options.names
        self.scale: float = 1 / math.sqrt(tensors.q.shape[3])
        if options.scale is not None:
            self.scale = options.scale
        self.start: Any = self.k_len - self.q_len
        if options.first is not None:
            self.start = options.first
        if tensors.q_start is not None:
            self.start = tensors.q_start
        self.band = None
        if not tensors.held and not pattern.varies_by_head:
            self.band = pattern.band()

    def is_square(self) -> bool:
        """Whether, for every input, query i stands at key i and there are as many queries as keys."""
        if self.tensors.q_start is not None:
            return False
        return _certain(self.start == 0) and _certain(self.q_len == self.k_len)

    def recurrence(self, mechanism: str) -> torch.Tensor:
        """The output of a recurrent mechanism over whole causal texts, and over no other calls."""
        declared = parse_mechanism(mechanism)
        parts = [part for part in self.pattern.factors if part != Causal()]
        documents = [part for part in parts if not part.made_of() and document_ids(part)]
        padding = [part for part in parts if part not in documents]
        is_causal = Causal() in self.pattern.factors and all(part.query_free for part in padding)
        is_known = isinstance(declared, Recurrent) and is_causal and len(documents) <= 1
        if not is_known or not self.is_square():
            raise UnsupportedError(
                f"{mechanism} with {self.pattern} is not for PyTorch's own operations; only softmax is, and recurrent "
                f"mechanisms over whole causal texts; regard.integrations.torch.whole_attention() keeps the call whole"
            )
        q = self.tensors.q
        dtype = torch.promote_types(q.dtype, torch.float32)
        k = self.tensors.k.to(dtype)
        v = self.tensors.v.to(dtype)
        parameters = dict(zip(self.names, self.tensors.parameters or (), strict=True))
        inputs = inputs_of(q.to(dtype), k, v, *declared.gates(parameters, k, v))
        for part in padding:
            allowed = self._allowed(part, 0)
            inputs = without_unseen(inputs, allowed[:, :, 0])
        rule = Rule(declared.corrects, self.scale)
        if not documents:
            return _by_chunks(rule, inputs).to(q.dtype)
        ids = document_ids(self.pattern)[0][..., : self.k_len]
        return _by_documents(rule, inputs, ids.expand(q.shape[0], self.k_len)).to(q.dtype)

    def softmax(self) -> torch.Tensor:
        """The output of softmax over dot products."""
        q = self.tensors.q
        k = self.tensors.k
        v = self.tensors.v
        sink = self.tensors.sink
        is_fused = self.softcap is None and sink is None
        if is_fused and self._needs_no_mask():
            k = _for_each_head(k, self.heads)
            v = _for_each_head(v, self.heads)
            is_causal = self.band == Band(right=0)
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=self.scale)

        allowed = None
        if self.band != Band():
            allowed = self._allowed(self.pattern, self.start)
        bias = self._bias_of_pairs()
        if bias is not None:
            is_finite = bias != -math.inf
            allowed = is_finite if allowed is None else allowed & is_finite
        row_exists = None  # whether a query may look at any key; None where each certainly may
        if allowed is not None:
            # By pairs (i, i) of the pattern alone, which a bias may mask.
            band = self.band if bias is None else None
            every_row_exists, every_key_is_seen = _certainly_seen(
                band, self.start, self.q_len, self.k_len
            )
            if not every_row_exists:
                row_exists = allowed.any(-1, keepdim=True)
            if not every_key_is_seen:
                k, v = _without_hidden(k, v, allowed, self.heads)
        k = _for_each_head(k, self.heads)
        v = _for_each_head(v, self.heads)
        if is_fused:
            mask = self._mask(allowed, bias)
            output = F.scaled_dot_product_attention(q, k, v, mask, scale=self.scale)
        else:
            scores = self._scores(q, k, allowed, bias)
            output = (_weights(scores, sink) @ v.to(scores.dtype)).to(q.dtype)
        return output if row_exists is None else torch.where(row_exists, output, 0.0)

    def _needs_no_mask(self) -> bool:
        """Whether the fused attention computes the call from q, k and v."""
        if self.tensors.bias is not None or self.band is None:
            return False
        return self.band == Band() or (self.band == Band(right=0) and self.is_square())

    def _allowed(self, pattern: Pattern, start: Any) -> torch.Tensor:
        """Which pairs a pattern allows, (batch or 1, heads or 1, q_len or 1, k_len)."""
        # Slices in place of ranges, which would turn a symbolic size into a number.
        rows: Any = slice(0, 1) if pattern.query_free else slice(0, self.q_len)
        keys: Any = slice(0, self.k_len)
        grid = Grid(self.q_len, self.k_len, start, rows, keys, self.tensors.q.device)
        return four_axes(pattern.evaluate(grid))

    def _bias_of_pairs(self) -> torch.Tensor | None:
        """The bias, (batch or 1, heads or 1, q_len or 1, k_len or 1)."""
        bias = self.tensors.bias
        if bias is None:
            return None
        if self.lowest is not None:  # a table by distance, (heads or 1, distances)
            device = self.tensors.q.device
            rows = torch.arange(self.q_len, device=device)[:, None]
            columns = torch.arange(self.k_len, device=device)
            bias = bias[:, columns - rows - self.start - self.lowest]
        return bias[(None,) * (4 - bias.dim())]

    def _mask(self, allowed: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor | None:
        """The mask of the fused attention, with every axis but that of the heads in full, as onnxruntime needs it."""
        if allowed is None:
            return None
        mask = allowed
        if bias is not None:
            mask = bias.to(self.tensors.q.dtype).masked_fill(~allowed, -math.inf)
        return mask.expand(self.tensors.q.shape[0], mask.shape[1], self.q_len, self.k_len)

    def _scores(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        allowed: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """The scores in float32 at least, (batch, heads, q_len, k_len)."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        carried, powers = divided_factor(self.scale)
        scores = (q.to(dtype) * carried) @ k.to(dtype).transpose(2, 3)
        for power in powers:
            scores = scores * power
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if bias is not None:
            scores = scores + bias.to(dtype)
        if allowed is not None:
            # The lowest number instead of -inf, which would make a row without keys NaN, also in gradients and checks.
            scores = torch.where(allowed, scores, torch.finfo(dtype).min)
        return scores


def _weights(scores: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    """The softmax of scores, in which the logits of a sink take part."""
    if sink is None:
        return torch.softmax(scores, -1)
    batch, heads, q_len, _ = scores.shape
    logits = sink.to(scores.dtype)[(None,) * (2 - sink.dim())][:, :, None, None]
    logits = logits.expand(batch, heads, q_len, 1)
    return torch.softmax(torch.cat([scores, logits], -1), -1)[..., :-1]


def _by_chunks(rule: Rule, inputs: RecurrenceInputs) -> torch.Tensor:
    """The outputs of a recurrence by the operation `scan` over its chunks, of which a program may have any number."""
    from torch._higher_order_ops.scan import scan_op

    *by_key, memory = inputs
    length = inputs.v.shape[2]
    # 2 or more, since a tracer takes a size that may be 1 for a case of its own.
    count = (length + CHUNK - 1) // CHUNK + 1

    def in_chunks(x: torch.Tensor) -> torch.Tensor:
        """(batch, heads, length, ...) as (chunks, batch, heads, CHUNK, ...)."""
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, count * CHUNK - length))
        return x.view(*x.shape[:2], count, CHUNK, *x.shape[3:]).movedim(2, 0)

    def step(memory: torch.Tensor, *of_chunk: torch.Tensor) -> list[torch.Tensor]:
        following = iter(of_chunk)
        output, memory = block(rule, inputs.mapped(lambda _: next(following), memory))
        return [memory, output]

    chunks = [in_chunks(x) for x in by_key if x is not None]
    _, outputs = scan_op(step, [memory], chunks, ())
    return outputs.movedim(0, 2).flatten(2, 3)[:, :, :length]


def _by_documents(rule: Rule, inputs: RecurrenceInputs, ids: torch.Tensor) -> torch.Tensor:
    """The outputs of a recurrence within documents, whose positions are brought side by side; ids: (batch, length)."""
    order = ids.argsort(stable=True, dim=-1)
    sorted_ids = ids.gather(-1, order)
    begins = F.pad(sorted_ids[:, 1:] != sorted_ids[:, :-1], (1, 0), value=True)
    inputs = inputs.mapped(lambda x: _at(x, order), inputs.memory)
    output = _by_chunks(rule, with_beginnings(inputs, begins))
    return _at(output, order.argsort(-1))


def _at(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """A tensor (batch, heads, length, ...) with its positions in another order, (batch, length)."""
    index = order.view(order.shape[0], 1, order.shape[1], *(1,) * (x.dim() - 3))
    return x.gather(2, index.expand_as(x))


def _for_each_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values, one for each query head."""
    batch, kv_heads, length, size = x.shape
    if kv_heads == heads:
        return x
    grouped = x[:, :, None].expand(batch, kv_heads, heads // kv_heads, length, size)
    return grouped.reshape(batch, heads, length, size)


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
    if (band.left or 0) < 0 or (band.right or 0) < 0:
        return False, False
    endless = band.left is None
    stop = start + q_len
    queries = _certain(start >= 0) and (endless or _certain(stop <= k_len))
    return queries, _certain(stop == k_len) and (endless or _certain(start <= 0))


def _certain(relation: Any) -> bool:
    """Whether a relation of sizes holds for every input of the program; asking adds no condition to it."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(relation)
