"""`keras.ops.dot_product_attention`, whose axes are (batch, length, heads, head_dim), on one of Keras' backends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from regard.testing.conformance.adapters.tensors import Tensors, Torch
from regard.testing.conformance.call import CannotAskError, NeutralCall, Results

WORDS = ("mask", "bias", "causal", "scale", "mask_dtype")


def ask_keras(backend: str) -> Callable[[NeutralCall], Results]:
    """The function on a backend, "torch" or "numpy", which Keras chooses once, when it is imported."""
    os.environ["KERAS_BACKEND"] = backend

    def attend(call: NeutralCall, tensors: Any) -> Any:
        import keras  # ty: ignore[import-not-found]

        q, k, v = (tensors[name].swapaxes(1, 2) for name in "qkv")
        mask = tensors["mask"]
        if mask is not None:
            mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
        output = keras.ops.dot_product_attention(
            q,
            k,
            v,
            bias=tensors["bias"],
            mask=mask,
            scale=call.scale,
            is_causal=call.causal,
        )
        return output.swapaxes(1, 2)

    def attend_to_arrays(call: NeutralCall) -> Results:
        call.refuse_words(*WORDS, "k_dtype", "bias_dtype")
        if call.dtype == "bfloat16":
            raise CannotAskError("bfloat16 arrays of NumPy")
        arrays: dict[str, Any] = {name: getattr(call, name).astype(call.dtype) for name in "qkv"}
        arrays["k"] = call.k.astype(call.changed("k_dtype") or call.dtype)
        arrays["mask"] = None
        if call.mask is not None:
            arrays["mask"] = call.mask.astype(call.changed("mask_dtype") or "bool")
        arrays["bias"] = None
        if call.bias is not None:
            arrays["bias"] = call.bias.astype(call.changed("bias_dtype") or call.dtype)
        return {"output": np.asarray(attend(call, arrays), dtype=np.float64)}

    def attend_to_tensors(call: NeutralCall, tensors: Tensors) -> torch.Tensor:
        return attend(call, tensors)

    if backend == "numpy":
        return attend_to_arrays
    return Torch(attend_to_tensors, (*WORDS, "gradients", "layout"))
