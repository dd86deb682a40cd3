"""`mlx.core.fast.scaled_dot_product_attention`, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from regard.testing.conformance.call import Array, CannotAskError, NeutralCall, Results


def ask_mlx() -> Callable[[NeutralCall], Results]:
    """The function; its one argument for masks is a mask, a bias or "causal"."""

    def attend(call: NeutralCall) -> Results:
        import mlx.core as mx  # ty: ignore[import-not-found]

        mx.set_default_device(mx.cpu)
        words = ("mask", "bias", "causal", "scale", "sink", "gradients")
        dtypes = ("k_dtype", "bias_dtype", "mask_dtype")
        call.refuse_words(*words, "vmap", "jvp", "functional gradient", "compile", *dtypes)
        if (call.mask is not None) + (call.bias is not None) + call.causal > 1:
            raise CannotAskError("two of mask, bias and causal")

        def in_mlx(x: Array, dtype: str = call.dtype) -> Any:
            numpy_dtype = np.float64 if dtype == "float64" else np.float32
            return mx.array(np.ascontiguousarray(x, dtype=numpy_dtype), dtype=getattr(mx, dtype))

        inputs = {
            "q": in_mlx(call.q),
            "k": in_mlx(call.k, call.changed("k_dtype") or call.dtype),
            "v": in_mlx(call.v),
        }
        if call.bias is not None:
            inputs["bias"] = in_mlx(call.bias, call.changed("bias_dtype") or call.dtype)
        if call.sink is not None:
            inputs["sink"] = in_mlx(call.sink)
        mask: Any = "causal" if call.causal else None
        if call.mask is not None:
            dtype = call.changed("mask_dtype") or "bool"
            mask = mx.array(np.ascontiguousarray(call.mask).astype(dtype))
        names = tuple(inputs)

        def compute(*arrays: Any) -> Any:
            by_name = dict(zip(names, arrays, strict=True))
            return mx.fast.scaled_dot_product_attention(
                by_name["q"],
                by_name["k"],
                by_name["v"],
                scale=call.used_scale,
                mask=by_name.get("bias", mask),
                sinks=by_name.get("sink"),
            )

        def with_gradients(*arrays: Any) -> list[Any]:
            if not call.gradients:
                return [compute(*arrays)]
            grad_output = in_mlx(np.asarray(call.grad_output))
            (output,), gradients = mx.vjp(compute, list(arrays), [grad_output])
            by_name = dict(zip(names, gradients, strict=True))
            return [output, *(by_name[name] for name in call.gradients)]

        arrays = list(inputs.values())
        results = ["output", *(f"d{name}" for name in call.gradients)]
        if call.transform == "vmap":
            computed = mx.vmap(with_gradients)(*(mx.stack([x, 2 * x]) for x in arrays))
        elif call.transform == "compile":
            computed = mx.compile(with_gradients)(*arrays)
        elif call.transform == "jvp":
            assert call.directions is not None
            output, tangent = mx.jvp(compute, arrays, [in_mlx(x) for x in call.directions])
            results = ["output", "tangent"]
            computed = [output[0], tangent[0]]
        else:
            computed = with_gradients(*arrays)
        return {name: _numbers(mx, x) for name, x in zip(results, computed, strict=True)}

    return attend


def _numbers(mx: Any, x: Any) -> Array:
    widened = x if x.dtype == mx.float64 else x.astype(mx.float32)
    return np.array(widened, dtype=np.float64)
