"""The operation ScaledDotProductAttention of OpenVINO, computed in float32 rather than in bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from regard.testing.conformance.call import CannotAskError, NeutralCall, Results


def ask_openvino() -> Callable[[NeutralCall], Results]:
    """A model of one operation. A hint asks for float32; otherwise OpenVINO rounds to bfloat16 on some processors."""

    def attend(call: NeutralCall) -> Results:
        import openvino  # ty: ignore[import-not-found]
        from openvino import opset13  # ty: ignore[import-not-found]

        call.refuse_words("mask", "bias", "causal", "scale", "k_dtype", "bias_dtype")
        if call.mask is not None and call.bias is not None:
            raise CannotAskError("mask and bias together")
        if call.dtype == "bfloat16":
            raise CannotAskError("bfloat16 arrays of NumPy")
        dtype = np.dtype(call.dtype)
        arrays = [
            call.q.astype(dtype),
            call.k.astype(call.changed("k_dtype") or dtype),
            call.v.astype(dtype),
        ]
        if call.mask is not None:
            arrays.append(np.ascontiguousarray(call.mask))
        if call.bias is not None:
            arrays.append(call.bias.astype(call.changed("bias_dtype") or dtype))
        parameters = [opset13.parameter(list(x.shape), x.dtype) for x in arrays]
        inputs = list(parameters)
        if call.scale is not None:
            if len(inputs) == 3:  # the scale is the fifth input, behind the mask
                inputs.append(opset13.constant(np.zeros((), dtype)))
            inputs.append(opset13.constant(np.array(call.scale, dtype)))
        node = opset13.scaled_dot_product_attention(*inputs, causal=call.causal)
        model = openvino.Model([node], parameters)
        hint = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(model, "CPU", hint)
        return {"output": np.asarray(compiled(arrays)[0], dtype=np.float64)}

    return attend
