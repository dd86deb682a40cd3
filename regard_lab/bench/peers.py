"""The libraries that regard is compared with, each with the best settings of its documentation.

A peer is a `Contender`; if its package is not installed, the report lists it as missing."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.nn.functional import elu, scaled_dot_product_attention

from regard.errors import UnsupportedError
from regard.patterns import Causal, Full
from regard.patterns.band import Band
from regard.testing import serving_kernels as serving
from regard_lab.bench.work import Attend, Contender, Tensors, Work, formula


def _best(work: Work, tensors: Tensors) -> Attend:
    """SDPA without a mask, its fast path; a learned bias is passed as a float mask."""
    q, k, v = _numbers(work, tensors)
    is_causal = _is_causal(work) and tensors.bias is None
    return partial(
        scaled_dot_product_attention,
        q,
        k,
        v,
        attn_mask=tensors.bias,
        dropout_p=work.dropout,
        is_causal=is_causal,
        enable_gqa=work.group > 1,
    )


def _masked(work: Work, tensors: Tensors) -> Attend:
    """SDPA with the pattern as a boolean mask, created in advance."""
    q, k, v = _numbers(work, tensors)
    return partial(
        scaled_dot_product_attention,
        q,
        k,
        v,
        attn_mask=work.pattern.dense(work.q_len, work.k_len).to(work.device),
        dropout_p=work.dropout,
        enable_gqa=work.group > 1,
    )


def _repeated(work: Work, tensors: Tensors) -> Attend:
    """SDPA with keys and values repeated for each query head, as in Hugging Face models."""
    q, k, v = _numbers(work, tensors)
    is_causal = _is_causal(work)

    def attend() -> torch.Tensor:
        keys = k.repeat_interleave(work.group, dim=1)
        values = v.repeat_interleave(work.group, dim=1)
        return scaled_dot_product_attention(q, keys, values, is_causal=is_causal)

    return attend


def _numbers(work: Work, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v in the dtype of the cache: SDPA needs equal dtypes, and widening the cache each time costs more."""
    q, k, v = tensors.q, tensors.k, tensors.v
    if work.cache_dtype is None:
        return q, k, v
    dtype = getattr(torch, work.cache_dtype)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _is_causal(work: Work) -> bool:
    square = work.pattern == Causal() and work.q_len == work.k_len
    if not square and work.pattern != Full():
        raise UnsupportedError(
            f"without a mask it computes full and square causal attention, not {work.pattern}"
        )
    return square


SDPA = Contender("SDPA", _best, own_dropout=True)
SDPA_GROUPED = Contender("SDPA enable_gqa", _best)
SDPA_REPEATED = Contender("SDPA repeat_interleave", _repeated)
SDPA_SOFTMAX = Contender(
    "SDPA, softmax", _best, works_on=lambda work: replace(work, mechanism=None)
)
SDPA_MASK = Contender("SDPA bool mask", _masked)


def _flex(work: Work, tensors: Tensors) -> Attend:
    attend = _compiled()
    block_mask = _block_mask(work)
    return lambda: attend(
        tensors.q, tensors.k, tensors.v, block_mask=block_mask, enable_gqa=work.group > 1
    )


def _compiled() -> Callable[..., Any]:
    """FlexAttention compiled for each work; after too many recompilations it would silently run uncompiled."""
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False)


@cache
def _block_mask(work: Work) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    rule = formula(work.pattern, work.k_len)
    return create_block_mask(
        lambda batch, head, i, j: rule(i, j), None, None, work.q_len, work.k_len, device=work.device
    )


FLEX = Contender("FlexAttention", _flex, compiles=True)


def _broadcast(work: Work, tensors: Tensors) -> Attend:
    learned = tensors.parameters
    is_additive = set(learned) == {"query_weight", "key_weight", "energy"}
    if not is_additive or work.pattern != Full() or work.group > 1:
        raise UnsupportedError(f"it computes full additive attention without groups, not {work}")

    def attend() -> torch.Tensor:
        q = tensors.q @ learned["query_weight"].mT
        k = tensors.k @ learned["key_weight"].mT
        pairs = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (batch, heads, q_len, k_len, hidden)
        scores = torch.einsum("bhqkd,hd->bhqk", pairs, learned["energy"])
        return scores.softmax(-1) @ tensors.v

    return attend


BROADCAST = Contender("tanh of a broadcast sum", _broadcast, judged_at=256)


def one_side(work: Work) -> int:
    """The number of keys on each side in a work's window."""
    band = work.pattern.band()
    if band is None or band.left is None or band != Band(left=band.left, right=band.left):
        raise UnsupportedError(f"it computes sliding windows, not {work.pattern}")
    return band.left


def _local_attention(work: Work, tensors: Tensors) -> Attend:
    attend = import_module("local_attention").LocalAttention(
        window_size=one_side(work),
        look_backward=1,
        look_forward=1,
        exact_windowsize=True,
        autopad=True,
        use_rotary_pos_emb=False,
    )
    return lambda: attend(tensors.q, tensors.k, tensors.v)


LOCAL_ATTENTION = Contender("local-attention", _local_attention, package="local_attention")


def _longformer(work: Work, tensors: Tensors) -> Attend:
    """Longformer's sliding chunks, which need (batch, length, heads, head_dim)."""
    side = one_side(work)
    config = import_module("transformers").LongformerConfig(
        hidden_size=work.heads * work.head_dim,
        num_attention_heads=work.heads,
        attention_window=[2 * side],
        num_hidden_layers=1,
    )
    module = import_module("transformers.models.longformer.modeling_longformer")
    layer = module.LongformerSelfAttention(config, 0)

    def attend() -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (tensors.q, tensors.k, tensors.v))
        scores = layer._sliding_chunks_query_key_matmul(q * work.scale, k, side)
        weights = scores.softmax(-1)
        outputs = layer._sliding_chunks_matmul_attn_probs_value(weights, v, side)
        return outputs.transpose(1, 2)

    return attend


LONGFORMER = Contender("HF Longformer", _longformer, package="transformers")


ADDED = 1e-6  # to a denominator, as fast-transformers does


def _fast_transformers(work: Work, tensors: Tensors) -> Attend:
    if work.pattern != Causal() or work.group > 1:
        raise UnsupportedError(f"it is measured on causal attention without groups, not on {work}")
    product = import_module("fast_transformers.causal_product").causal_dot_product

    def attend() -> torch.Tensor:
        q = elu(tensors.q) + 1
        k = elu(tensors.k) + 1
        denominators = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + ADDED
        return product(q, k, tensors.v) / denominators[..., None]

    return attend


FAST_TRANSFORMERS = Contender("fast-transformers", _fast_transformers, package="fast_transformers")


def _performer(work: Work, tensors: Tensors) -> Attend:
    if work.pattern != Causal() or work.group > 1:
        raise UnsupportedError(f"it is measured on causal attention without groups, not on {work}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from distutils, which it imports
        performer = import_module("performer_pytorch.performer_pytorch")
    attend = performer.causal_linear_attention_noncuda
    return lambda: attend(elu(tensors.q) + 1, elu(tensors.k) + 1, tensors.v)


PERFORMER_PYTORCH = Contender("performer-pytorch", _performer, package="performer_pytorch")


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
    session = _node("Attention", "", inputs, {"o": output}, is_causal=int(_is_causal(work)))
    return _by_threads(session, output)


def _onnx_multi_head(work: Work, tensors: Tensors) -> Attend:
    q, k, v = _in_float32(work, tensors)
    inputs = {"q": _tokens(q), "k": _tokens(k), "v": _tokens(v)}
    output = torch.empty(work.batch, work.q_len, work.heads, work.v_dim)
    outputs = {"o": output.flatten(2)}
    options = {"num_heads": work.heads, "unidirectional": int(_is_causal(work))}
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
    attend = operations.scaled_dot_product_attention(*inputs, causal=_is_causal(work))
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


def _vllm(work: Work, tensors: Tensors) -> Attend:
    """vLLM's kernel over a cache of blocks, which is written in advance."""
    q, k, v = _served(work, tensors, ("float32", "bfloat16"))
    if work.gated:
        raise UnsupportedError(f"its own code has no kernel for {work.mechanism}")
    if work.latent:
        return serving.vllm_latent_call(q, k, work.v_dim, work.scale)
    if work.head_dim not in serving.VLLM_HEAD_DIMS:
        raise UnsupportedError(f"it has no kernel for heads of {work.head_dim}")
    earlier = _keys_before(work)
    return serving.vllm_call(q, k, v, is_causal=True, earlier=earlier, scale=work.scale)


def _sglang(work: Work, tensors: Tensors) -> Attend:
    q, k, v = _served(work, tensors, ("bfloat16",))
    if work.gated:
        gates = tensors.parameters
        return serving.sglang_gated_delta_call(q, k, v, gates["log_decay"], gates["strength"])
    if work.q_len == 1:
        values = None if work.latent else v
        return serving.sglang_decoding_call(q, k, values, work.v_dim, work.scale)
    earlier = _keys_before(work)
    return serving.sglang_call(q, k, v, is_causal=True, earlier=earlier, scale=work.scale)


def _served(
    work: Work, tensors: Tensors, dtypes: tuple[str, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of a call that a server makes."""
    if work.dtype not in dtypes:
        raise UnsupportedError(f"it computes in {' and '.join(dtypes)}, not in {work.dtype}")
    options = [work.backward, work.dropout, work.cache_dtype, work.shares_keys]
    if any(options) or tensors.bias is not None or (work.mechanism and not work.gated):
        raise UnsupportedError(f"it is measured forward, without options, not on {work}")
    return tensors.q, tensors.k, tensors.v


def _keys_before(work: Work) -> int | None:
    """How many keys before its own a query of a causal window may look at; None without a window."""
    if work.pattern == Causal() or work.q_len == 1:
        return None
    band = work.pattern.band()
    if band is None or band.right != 0 or band.left is None:
        raise UnsupportedError(f"it computes causal attention and its windows, not {work.pattern}")
    return band.left


VLLM = Contender("vLLM", _vllm, package="vllm", device="cpu")
SGLANG = Contender("SGLang", _sglang, package="vllm", device="cpu")
GATED_JUDGED_AT = 256  # keys; the formula of the gated delta rule keeps the state after each
SGLANG_GATED = replace(SGLANG, judged_at=GATED_JUDGED_AT)
BYTES_SUMMED = Contender(
    "a sum over keys and values",
    lambda work, tensors: lambda: tensors.k.sum() + tensors.v.sum(),
    checked=False,
)
