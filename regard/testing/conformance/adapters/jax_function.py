"""`jax.nn.dot_product_attention`, whose axes are (batch, length, heads, head_dim)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from regard.testing.conformance.call import Array, CannotAskError, NeutralCall, Results


def ask_jax() -> Callable[[NeutralCall], Results]:
    """The function, compiled by XLA for the CPU, with 64-bit numbers enabled."""

    def attend(call: NeutralCall) -> Results:
        import jax  # ty: ignore[import-not-found]

        jax.config.update("jax_enable_x64", True)
        words = ("mask", "bias", "causal", "scale", "window", "key_lengths", "gradients")
        transforms = ("vmap", "jvp", "second derivatives", "functional gradient", "compile")
        dtypes = ("k_dtype", "bias_dtype", "mask_dtype")
        call.refuse_words(*words, "log_sum_exp", *transforms, *dtypes)
        if call.dtype == "int32":
            raise CannotAskError("integers")
        options = _options(jax, call)

        def compute(inputs: dict[str, Any]) -> Any:
            q, k, v = (inputs[name].swapaxes(1, 2) for name in "qkv")
            results = jax.nn.dot_product_attention(q, k, v, bias=inputs.get("bias"), **options)
            if call.wants:
                return results[0].swapaxes(1, 2), results[1].swapaxes(1, 2)
            return results.swapaxes(1, 2)

        inputs = _inputs(jax, call)
        return {name: _numbers(x) for name, x in _by_transform(jax, call, compute, inputs).items()}

    return attend


def _options(jax: Any, call: NeutralCall) -> dict[str, Any]:
    options: dict[str, Any] = {"is_causal": call.causal, "scale": call.scale}
    if call.mask is not None:
        mask = call.mask.reshape((1,) * (4 - call.mask.ndim) + call.mask.shape)
        options["mask"] = jax.numpy.asarray(mask.astype(call.changed("mask_dtype") or "bool"))
    if call.window is not None:
        back, ahead = call.window
        if back is None or ahead is None:
            raise CannotAskError("a window without a limit")
        options["local_window_size"] = (back, ahead)
    if call.key_lengths is not None:
        options["key_value_seq_lengths"] = jax.numpy.asarray(call.key_lengths, dtype="int32")
    if call.wants:
        options["return_residual"] = True
    return options


def _inputs(jax: Any, call: NeutralCall) -> dict[str, Any]:
    dtypes = {"q": call.dtype, "k": call.changed("k_dtype") or call.dtype, "v": call.dtype}
    inputs = {
        name: jax.numpy.asarray(getattr(call, name)).astype(dtype) for name, dtype in dtypes.items()
    }
    if call.bias is not None:
        bias = jax.numpy.asarray(call.bias)
        inputs["bias"] = bias.astype(call.changed("bias_dtype") or call.dtype)
    return inputs


def _by_transform(
    jax: Any, call: NeutralCall, compute: Any, inputs: dict[str, Any]
) -> dict[str, Any]:
    """The results by name; JAX has gradients only as transforms of functions."""
    if call.wants:
        output, log_sum_exp = compute(inputs)
        return {"output": output, "log_sum_exp": log_sum_exp}

    def with_gradients(inputs: dict[str, Any]) -> dict[str, Any]:
        if not call.gradients:
            return {"output": compute(inputs)}
        output, pull = jax.vjp(compute, inputs)
        (gradients,) = pull(jax.numpy.asarray(call.grad_output).astype(output.dtype))
        return {"output": output} | {f"d{name}": gradients[name] for name in call.gradients}

    if call.transform == "vmap":
        doubled = {name: jax.numpy.stack([x, 2 * x]) for name, x in inputs.items()}
        return jax.vmap(with_gradients)(doubled)
    if call.transform == "compile":
        return jax.jit(with_gradients)(inputs)
    if call.transform is None or call.transform == "functional gradient":
        return with_gradients(inputs)

    assert call.directions is not None
    along = {
        name: jax.numpy.asarray(x).astype(inputs[name].dtype)
        for name, x in zip("qkv", call.directions, strict=True)
    }
    fixed = {name: x for name, x in inputs.items() if name not in along}
    moving = {name: inputs[name] for name in "qkv"}
    if call.transform == "jvp":
        output, tangent = jax.jvp(lambda qkv: compute(qkv | fixed), (moving,), (along,))
        return {"output": output, "tangent": tangent}

    def along_dq(qkv: dict[str, Any]) -> Any:
        return (with_gradients(qkv | fixed)["dq"] * along["q"]).sum()

    second = jax.grad(along_dq)(moving)
    return {"output": compute(inputs)} | {f"dd{name}": second[name] for name in "qkv"}


def _numbers(x: Any) -> Array:
    return np.asarray(x, dtype=np.float64)
