"""Attention beside runtimes of exported models: onnxruntime and OpenVINO."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from regard.errors import UnsupportedError
from regard.patterns import Causal
from regard_lab.bench.cases import contest_of
from regard_lab.bench.peers import SDPA, SDPA_GROUPED, is_square_causal
from regard_lab.bench.work import Attend, Case, Contender, Contest, Tensors, Work, unpromised


def _in_float32(
    work: Work, tensors: Tensors, *, grouped: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v for a runtime of exported models, contiguous."""
    options = [work.backward, work.dropout, work.mechanism, work.cache_dtype]
    if any(options) or tensors.bias is not None or work.dtype != "float32":
        raise UnsupportedError(f"it is measured forward in float32, without options, not on {work}")
    if work.group > 1 and not grouped:
        raise UnsupportedError(
            f"it has as many key/value heads as query heads, not those of {work}"
        )
    q, k, v = (x.contiguous() for x in (tensors.q, tensors.k, tensors.v))
    return q, k, v


def _by_threads(session: Callable[[int], Callable[[], object]], output: torch.Tensor) -> Attend:
    """A call by a session, which has a fixed number of threads: one is made for each number that torch is set to."""
    session_of = cache(session)

    def attend() -> torch.Tensor:
        run = session_of(torch.get_num_threads())
        run()
        return output

    return attend


@cache
def _onnx_session(model: bytes, threads: int) -> Any:
    """One session for all tensors of one shape: caches that take turns would slow down those of their own."""
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _node(
    operation: str,
    domain: str,
    inputs: dict[str, torch.Tensor],
    outputs: dict[str, torch.Tensor],
    **attributes: int,
) -> Callable[[int], Callable[[], object]]:
    """A session of onnxruntime for one node, which reads and writes the memory of these tensors."""
    helper: Any = import_module("onnx").helper

    def describe(name: str, x: torch.Tensor) -> Any:
        onnx_dtype = helper.np_dtype_to_tensor_dtype(x.numpy().dtype)
        return helper.make_tensor_value_info(name, onnx_dtype, x.shape)

    described_inputs = [describe(name, x) for name, x in inputs.items()]
    described_outputs = [describe(name, x) for name, x in outputs.items()]
    node = helper.make_node(operation, list(inputs), list(outputs), domain=domain, **attributes)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], operation, described_inputs, described_outputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()

    def session(threads: int) -> Callable[[], object]:
        onnx_session = _onnx_session(model, threads)
        binding = onnx_session.io_binding()
        for name, x in inputs.items():
            binding.bind_input(name, "cpu", 0, x.numpy().dtype, x.shape, x.data_ptr())
        for name, x in outputs.items():
            binding.bind_output(name, "cpu", 0, x.numpy().dtype, x.shape, x.data_ptr())
        return partial(onnx_session.run_with_iobinding, binding)

    return session


def _onnx_attention(work: Work, tensors: Tensors) -> Attend:
    q, k, v = _in_float32(work, tensors, grouped=True)
    output = torch.empty(*q.shape[:3], work.v_dim)
    inputs = {"q": q, "k": k, "v": v}
    session = _node("Attention", "", inputs, {"o": output}, is_causal=int(is_square_causal(work)))
    return _by_threads(session, output)


def _onnx_multi_head(work: Work, tensors: Tensors) -> Attend:
    q, k, v = _in_float32(work, tensors)
    inputs = {"q": _tokens(q), "k": _tokens(k), "v": _tokens(v)}
    output = torch.empty(work.batch, work.q_len, work.heads, work.v_dim)
    outputs = {"o": output.flatten(2)}
    options = {"num_heads": work.heads, "unidirectional": int(is_square_causal(work))}
    session = _node("MultiHeadAttention", "com.microsoft", inputs, outputs, **options)
    return _by_threads(session, output.transpose(1, 2))


def _onnx_grouped(work: Work, tensors: Tensors) -> Attend:
    """Causal attention that adds its own tokens to a cache in place: here those that are its last already."""
    if work.pattern != Causal() and work.q_len > 1:
        raise UnsupportedError(f"it computes causal attention, not {work.pattern}")
    q, k, v = _in_float32(work, tensors, grouped=True)
    output = torch.empty(work.batch, work.q_len, work.heads, work.v_dim)
    total_length = torch.tensor([work.k_len]).int()
    inputs = {
        "q": _tokens(q),
        "k": _tokens(k[:, :, -work.q_len :]),
        "v": _tokens(v[:, :, -work.q_len :]),
        "past_k": k,
        "past_v": v,
        "last": (total_length - 1).repeat(work.batch),
        "whole": total_length,
    }
    outputs = {"o": output.flatten(2), "present_k": k, "present_v": v}
    heads = {"num_heads": work.heads, "kv_num_heads": work.kv_heads}
    session = _node("GroupQueryAttention", "com.microsoft", inputs, outputs, **heads)
    return _by_threads(session, output.transpose(1, 2))


def _tokens(x: torch.Tensor) -> torch.Tensor:
    """(batch, length, heads * size), as onnxruntime's own operations read it."""
    return x.transpose(1, 2).flatten(2).contiguous()


def _openvino(work: Work, tensors: Tensors) -> Attend:
    q, k, v = _in_float32(work, tensors)
    ov = import_module("openvino")
    operations = import_module("openvino.opset13")
    inputs = [operations.parameter(x.shape, np.float32) for x in (q, k, v)]
    attend = operations.scaled_dot_product_attention(*inputs, causal=is_square_causal(work))
    model = ov.Model([attend], inputs)
    output = torch.empty(*q.shape[:3], work.v_dim)

    def session(threads: int) -> Callable[[], object]:
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        request = ov.Core().compile_model(model, "CPU", options).create_infer_request()
        for place, x in enumerate((q, k, v)):
            request.set_input_tensor(place, ov.Tensor(x.numpy(), shared_memory=True))
        request.set_output_tensor(0, ov.Tensor(output.numpy(), shared_memory=True))
        return partial(request.infer, share_outputs=True)

    return _by_threads(session, output)


ONNX = "onnx onnxruntime"
ONNX_ATTENTION = Contender("onnxruntime Attention", _onnx_attention, package=ONNX, device="cpu")
ONNX_MULTI_HEAD = Contender(
    "onnxruntime MultiHeadAttention", _onnx_multi_head, package=ONNX, device="cpu"
)
ONNX_GROUPED = Contender(
    "onnxruntime GroupQueryAttention", _onnx_grouped, package=ONNX, device="cpu"
)
OPENVINO = Contender("OpenVINO", _openvino, package="openvino", device="cpu")
BYTES_SUMMED = Contender(
    "a sum over keys and values",
    lambda work, tensors: lambda: tensors.k.sum() + tensors.v.sum(),
    checked=False,
)
RUNTIMES = (SDPA, ONNX_MULTI_HEAD, ONNX_ATTENTION, OPENVINO)


def _short(q_len: int, k_len: int, heads: int, head_dim: int, bound: float) -> Contest:
    label = f"{q_len:,} x {k_len}, {heads} heads of {head_dim}"
    work = Work(q_len, k_len, heads=heads, head_dim=head_dim)
    return contest_of(label, work, RUNTIMES, dict.fromkeys(RUNTIMES, bound))


def _one_query(kv_heads: int, head_dim: int, k_len: int) -> Contest:
    """One query of 8 heads, whose caches are larger together than that of the processor."""
    work = Work(1, k_len, heads=8, kv_heads=kv_heads, head_dim=head_dim)
    work = replace(work, caches=max(2, 2**27 // work.tensor_bytes))
    label = f"{k_len:,} keys, 8 heads over {kv_heads} of {head_dim}"
    bounds = {ONNX_GROUPED: 1.1, BYTES_SUMMED: 0.8}
    return contest_of(label, work, (SDPA_GROUPED, *bounds), bounds)


_SHORT = (
    _short(64, 64, 8, 64, 1.05),
    _short(128, 128, 8, 64, 1.05),
    _short(256, 256, 8, 64, 1.05),
    _short(197, 197, 12, 64, 1.05),
)
_TEXT = (_short(4096, 77, 8, 40, 1.1), _short(4096, 77, 8, 64, 1.1))
_ONE_QUERY = (
    _one_query(8, 64, 1024),
    _one_query(8, 64, 4096),
    _one_query(8, 64, 16384),
    _one_query(8, 128, 1024),
    _one_query(8, 128, 4096),
    _one_query(8, 128, 16384),
)

RUNTIME_CASES = (
    Case(
        "short",
        "Full attention over few positions, beside runtimes of exported models",
        _SHORT,
        _SHORT[:1],
    ),
    Case("text", "Image positions that look at the words of a text", _TEXT, _TEXT[:1]),
    Case(
        "one-query",
        "One query, caches in turns, beside onnxruntime and a sum over the same bytes",
        (*_ONE_QUERY, _one_query(2, 64, 4096)),
        unpromised(_ONE_QUERY[:1]),
    ),
)
