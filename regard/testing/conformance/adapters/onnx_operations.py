"""The operations of attention in ONNX and in onnxruntime, each as a graph of one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from regard.testing.conformance.call import Array, CannotAskError, NeutralCall, Results

Ask = Callable[[NeutralCall], Results]
FEWEST_AXES = 4


def ask_attention(runtime: str) -> Ask:
    """The operation Attention of ONNX, opset 23: by onnxruntime, or by onnx's own reference evaluator."""

    def attend(call: NeutralCall) -> Results:
        words = ("mask", "bias", "causal", "scale", "softcap", "k_dtype", "bias_dtype")
        call.refuse_words(*words, "mask_dtype")
        if call.mask is not None and call.bias is not None:
            raise CannotAskError("mask and bias together")
        inputs = _qkv(call)
        if call.mask is not None:
            inputs["mask"] = _full_mask(call).astype(call.changed("mask_dtype") or "bool")
        if call.bias is not None:
            bias = np.broadcast_to(call.bias, (*call.bias.shape[:2], *_pairs(call)))
            inputs["mask"] = bias.astype(_dtype(call.changed("bias_dtype") or call.dtype))
        attributes = {"is_causal": int(call.causal), "scale": call.scale, "softcap": call.softcap}
        run = _run_by_onnxruntime if runtime == "onnxruntime" else _run_by_reference
        return {"output": run("Attention", inputs, attributes)}

    return attend


def ask_multi_head_attention() -> Ask:
    """The operation MultiHeadAttention of onnxruntime, whose heads lie beside each other in the last axis."""

    def attend(call: NeutralCall) -> Results:
        call.refuse_words("mask", "bias", "causal", "scale", "key_lengths", "k_dtype")
        batch, heads, q_len, _ = call.q.shape
        if call.k.shape[1] != heads:
            raise CannotAskError("grouped heads")
        if call.mask is not None and call.key_lengths is not None:
            raise CannotAskError("mask and key lengths together")
        inputs = {name: _joined_heads(x) for name, x in _qkv(call).items()}
        if call.mask is not None:
            mask = _four_axes(call.mask)
            if mask.shape[1] != 1:
                raise CannotAskError("a mask for each head")
            of_queries = np.broadcast_to(mask[:, 0], (batch, *mask.shape[2:]))
            padding = of_queries[:, 0] if mask.shape[2] == 1 else of_queries
            inputs["padding"] = padding.astype("int32")
        if call.key_lengths is not None:
            inputs["padding"] = np.array(call.key_lengths, dtype="int32")
        if call.bias is not None:
            inputs["bias"] = _four_axes(call.bias).astype(_dtype(call.dtype))
        names = ("q", "k", "v", "", "padding", "bias")
        attributes = {
            "num_heads": heads,
            "scale": call.scale,
            "unidirectional": int(call.causal),
        }
        output = _run_by_onnxruntime("MultiHeadAttention", inputs, attributes, names=names)
        return {"output": output.reshape(batch, q_len, heads, call.v.shape[3]).swapaxes(1, 2)}

    return attend


def ask_group_query_attention() -> Ask:
    """The operation GroupQueryAttention of onnxruntime: the last keys belong to the queries, the others to its past."""

    def attend(call: NeutralCall) -> Results:
        words = ("bias", "causal", "window", "softcap", "sink", "scale", "key_lengths", "k_dtype")
        call.refuse_words(*words)
        batch, heads, q_len, head_dim = call.q.shape
        kv_heads, k_len = call.k.shape[1:3]
        past = k_len - q_len
        if call.v.shape != call.k.shape:
            raise CannotAskError("v_dim that is not head_dim")
        if past < 0:
            raise CannotAskError("more queries than keys")
        if call.key_lengths is not None and not call.causal:
            raise CannotAskError("key lengths without a causal mask")
        if call.window is not None and (call.window[0] is None or call.window[1] != 0):
            raise CannotAskError("a window ahead")
        if past and q_len > 1 and batch > 1:
            return _each_batch_row(attend, call)

        inputs = _qkv(call)
        lengths = np.full(batch, k_len) if call.key_lengths is None else np.array(call.key_lengths)
        arguments = {
            "q": _joined_heads(inputs["q"]),
            "k": _joined_heads(inputs["k"][:, :, past:]),
            "v": _joined_heads(inputs["v"][:, :, past:]),
            "past_k": np.ascontiguousarray(inputs["k"][:, :, :past]),
            "past_v": np.ascontiguousarray(inputs["v"][:, :, :past]),
            "last_places": (lengths - 1).astype("int32"),
            "k_len": np.array(k_len, dtype="int32"),
        }
        if call.bias is not None:
            arguments["bias"] = _four_axes(call.bias).astype(_dtype(call.dtype))
        if call.sink is not None:
            arguments["sink"] = call.sink.astype(_dtype(call.dtype))
        names = ("q", "k", "v", "past_k", "past_v", "last_places", "k_len", "", "", "")
        attributes = {
            "num_heads": heads,
            "kv_num_heads": kv_heads,
            "scale": call.scale,
            "softcap": call.softcap,
            "causal": None if call.causal or call.window is not None else 0,
            "local_window_size": None if call.window is None else (call.window[0] or 0) + 1,
        }
        output = _run_by_onnxruntime(
            "GroupQueryAttention", arguments, attributes, names=(*names, "bias", "sink"), outputs=3
        )
        return {"output": output.reshape(batch, q_len, heads, head_dim).swapaxes(1, 2)}

    return attend


def _each_batch_row(attend: Ask, call: NeutralCall) -> Results:
    """A call with a past takes one batch row."""
    rows = []
    for row in range(call.q.shape[0]):
        of_row = slice(row, row + 1)
        bias = call.bias
        if bias is not None and bias.shape[0] > 1:
            bias = bias[of_row]
        lengths = None if call.key_lengths is None else call.key_lengths[of_row]
        alone = replace(
            call,
            q=call.q[of_row],
            k=call.k[of_row],
            v=call.v[of_row],
            bias=bias,
            key_lengths=lengths,
        )
        rows.append(attend(alone)["output"])
    return {"output": np.concatenate(rows)}


def _qkv(call: NeutralCall) -> dict[str, Array]:
    inputs = {name: getattr(call, name).astype(_dtype(call.dtype)) for name in "qkv"}
    inputs["k"] = call.k.astype(_dtype(call.changed("k_dtype") or call.dtype))
    return inputs


def _dtype(name: str) -> Any:
    if name == "bfloat16":
        raise CannotAskError("bfloat16 arrays of NumPy")
    return np.dtype(name)


def _pairs(call: NeutralCall) -> tuple[int, int]:
    return call.sizes[2:]


def _four_axes(x: Array) -> Array:
    return x.reshape((1,) * (FEWEST_AXES - x.ndim) + x.shape)


def _full_mask(call: NeutralCall) -> Array:
    """The mask with all queries and keys, since onnxruntime broadcasts neither of these axes."""
    assert call.mask is not None
    mask = _four_axes(call.mask)
    if mask.shape[2] != 1:
        return mask
    return np.repeat(mask, call.sizes[2], 2)


def _joined_heads(x: Array) -> Array:
    batch, heads, length, dim = x.shape
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(batch, length, heads * dim)


def _model(
    operation: str,
    inputs: Mapping[str, Array],
    attributes: Mapping[str, Any],
    names: tuple[str, ...],
    outputs: int,
) -> Any:
    """A graph of one node; an empty name is an input that is left out."""
    import onnx  # ty: ignore[import-not-found]

    helper = onnx.helper
    domain = "" if operation == "Attention" else "com.microsoft"
    present = [name if name in inputs else "" for name in names or tuple(inputs)]
    while present and not present[-1]:
        present.pop()
    present_attributes = {name: value for name, value in attributes.items() if value is not None}
    output_names = [f"output{number}" for number in range(outputs)]
    node = helper.make_node(operation, present, output_names, domain=domain, **present_attributes)
    described = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    element = helper.np_dtype_to_tensor_dtype(inputs["q"].dtype)
    results = [helper.make_tensor_value_info(name, element, None) for name in output_names]
    graph = helper.make_graph([node], "attention", described, results)
    opsets = [helper.make_opsetid("", 23)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _run_by_onnxruntime(
    operation: str,
    inputs: Mapping[str, Array],
    attributes: Mapping[str, Any],
    names: tuple[str, ...] = (),
    outputs: int = 1,
) -> Array:
    import onnxruntime  # ty: ignore[import-not-found]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = _model(operation, inputs, attributes, names, outputs).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))[0].astype(np.float64)


def _run_by_reference(
    operation: str, inputs: Mapping[str, Array], attributes: Mapping[str, Any]
) -> Array:
    from onnx.reference import ReferenceEvaluator  # ty: ignore[import-not-found]

    model = _model(operation, inputs, attributes, (), 1)
    return np.asarray(ReferenceEvaluator(model).run(None, dict(inputs))[0], dtype=np.float64)
