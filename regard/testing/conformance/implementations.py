"""How implementations are asked: for each an adapter of a few lines, from a `NeutralCall` to its own words.

An adapter takes the call, refuses by `call.refuse_words(...)` what the library has no word for, and returns the results
by name. `Torch` does for functions of tensors what all have in common: dtypes, layouts, gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from regard import patterns
from regard.reprs import brief
from regard.testing.conformance.call import (
    Array,
    CannotAskError,
    NeutralCall,
    Results,
    allowed_pairs,
    right_results,
)

WORDS = ("mask", "bias", "causal", "scale", "gradients", "layout")
Tensors = Mapping[str, torch.Tensor | None]  # q, k, v, mask, bias, sink


def attend_with_numpy(call: NeutralCall) -> Results:
    """The contract itself, by its oracle: an example of an adapter without any library."""
    call.refuse_words(*WORDS, "window", "key_lengths", "first_positions", "softcap", "sink")
    return right_results(call)


@brief
@dataclass(frozen=True)
class Torch:
    """A function of tensors as a library.

    Args:
        function: of the call and its tensors by name (q, k, v, mask, bias, sink); it returns the output, or results by
            name.
        words: the options of a NeutralCall that it takes.

    >>> from regard.testing.conformance import CLAUSES, judge
    >>> def attend(call, tensors):
    ...     scale = call.q.shape[3] ** -0.5 if call.scale is None else call.scale
    ...     return torch.softmax(tensors["q"] @ tensors["k"].mT * scale, -1) @ tensors["v"]
    >>> mine = Torch(attend, words=("scale", "gradients", "layout"))
    >>> judge(CLAUSES["scale-given"], mine).status, judge(CLAUSES["no-keys"], mine).status
    ('agrees', 'agrees')
    >>> judge(CLAUSES["causal-square"], mine).detail  # it has no word for that
    'causal'
    """

    function: Callable[[NeutralCall, Tensors], torch.Tensor | dict[str, torch.Tensor]]
    words: tuple[str, ...] = WORDS

    def __call__(self, call: NeutralCall) -> Results:
        call.refuse_words(*self.words)
        tensors = tensors_of(call)
        learning: list[Any] = [tensors[name] for name in call.gradients]
        for x in learning:
            x.requires_grad_()
        torch.manual_seed(call.seed)
        with torch.set_grad_enabled(bool(learning)):
            found = self.function(call, tensors)
        results = found if isinstance(found, dict) else {"output": found}
        if learning:
            assert call.grad_output is not None
            grad = torch.from_numpy(call.grad_output).to(results["output"].dtype)
            gradients = torch.autograd.grad(results["output"], learning, grad)
            results |= {f"d{name}": x for name, x in zip(call.gradients, gradients, strict=True)}
        return {name: x.detach().double().numpy() for name, x in results.items()}


def tensors_of(call: NeutralCall) -> dict[str, torch.Tensor | None]:
    """The tensors of a call in its dtypes and layout."""
    dtype = getattr(torch, call.dtype)
    k_dtype = getattr(torch, call.changed("k_dtype") or call.dtype)
    bias_dtype = getattr(torch, call.changed("bias_dtype") or call.dtype)
    mask_dtype = getattr(torch, call.changed("mask_dtype") or "bool")
    return {
        "q": _in_layout(_tensor(call.q, dtype), call.layout),
        "k": _in_layout(_tensor(call.k, k_dtype), call.layout),
        "v": _in_layout(_tensor(call.v, dtype), call.layout),
        "mask": None if call.mask is None else torch.from_numpy(call.mask.copy()).to(mask_dtype),
        "bias": None if call.bias is None else _tensor(call.bias, bias_dtype),
        "sink": None if call.sink is None else _tensor(call.sink, dtype),
    }


def _tensor(x: Array, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.array(x)).to(dtype)


def _in_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "expanded":
        return x[:1].expand(x.shape)
    if layout == "sliced":
        return torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(-2)[..., ::2]
    if layout == "offset":
        return torch.cat([x.new_full((3,), torch.nan), x.flatten()])[3:].view(x.shape)
    if layout == "negated":
        return torch._neg_view(-x)
    return x


# regard, through each backend


def ask_regard(backend: str) -> Torch:
    """regard by one backend, or by the one that it chooses ("auto")."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor | dict[str, torch.Tensor]:
        pattern: Any = patterns.Full()
        if call.causal:
            pattern = pattern & patterns.Causal()
        if call.window is not None:
            back, ahead = call.window
            pattern = pattern & _band(back, ahead)
        if call.key_lengths is not None:
            pattern = pattern & patterns.KeySpan(0, torch.tensor(call.key_lengths))
        mask = tensors["mask"]
        if mask is not None:
            of_keys = mask.dim() == 4 and mask.shape[1:3] == (1, 1)
            pattern = pattern & (
                patterns.KeyMask(mask[:, 0, 0]) if of_keys else patterns.Explicit(mask)
            )
        options: dict[str, Any] = {
            "pattern": pattern,
            "bias": tensors["bias"],
            "sink": tensors["sink"],
            "scale": call.scale,
            "softcap": call.softcap,
            "backend": backend,
        }
        if call.first_positions is not None:
            options["q_start"] = torch.tensor(call.first_positions)
        if call.dropout:
            options |= {"dropout": call.dropout, "dropout_seed": call.seed}
        qkv: Any = (tensors["q"], tensors["k"], tensors["v"])
        if not call.wants:
            return regard.attention(*qkv, **options)
        detail = regard.attention_detail(*qkv, want=call.wants, **options)
        return {"output": detail.output} | {name: getattr(detail, name) for name in call.wants}

    words = (*WORDS, "window", "key_lengths", "first_positions", "softcap", "sink", "dropout")
    return Torch(attend, (*words, "log_sum_exp", "weights"))


def _band(back: int | None, ahead: int | None) -> Any:
    """The pattern of a window."""
    if back is not None and back < 0:
        return patterns.SlidingWindow(back)
    return patterns.Where(_InBand(back, ahead))


@dataclass(frozen=True)
class _InBand:
    back: int | None
    ahead: int | None

    def __call__(self, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        inside = j == j
        if self.back is not None:
            inside = inside & (j >= i - self.back)
        if self.ahead is not None:
            inside = inside & (j <= i + self.ahead)
        return inside


# PyTorch


def ask_sdpa(kernel: str | None = None) -> Torch:
    """`scaled_dot_product_attention`, by its own choice of kernel or by one."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor:
        mask = tensors["mask"]
        bias = tensors["bias"]
        if mask is not None and bias is not None:
            raise CannotAskError("mask and bias together")
        arguments: dict[str, Any] = {
            "attn_mask": bias if mask is None else mask,
            "is_causal": call.causal,
            "dropout_p": call.dropout,
            "scale": call.scale,
        }
        if call.sizes[1] != call.k.shape[1]:
            arguments["enable_gqa"] = True
        qkv: Any = (tensors["q"], tensors["k"], tensors["v"])
        if kernel is None:
            return F.scaled_dot_product_attention(*qkv, **arguments)
        with sdpa_kernel(getattr(SDPBackend, kernel)):
            return F.scaled_dot_product_attention(*qkv, **arguments)

    return Torch(attend, (*WORDS, "dropout"))


def ask_multihead_attention(need_weights: bool) -> Torch:
    """`nn.MultiheadAttention` with identity matrices as weights, so that it computes attention alone."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor | dict[str, torch.Tensor]:
        q, k, v = (_joined_heads(tensors[name]) for name in "qkv")
        batch, heads, q_len, k_len = call.sizes
        if call.scale is not None:
            raise CannotAskError("scale")
        if call.k.shape[1] != heads:
            raise CannotAskError("grouped heads")
        if call.v.shape[3] != call.q.shape[3]:
            raise CannotAskError("v_dim that is not head_dim")
        dim = q.shape[2]
        layer = nn.MultiheadAttention(dim, heads, bias=False, batch_first=True, dtype=q.dtype)
        identity = torch.eye(dim, dtype=q.dtype)
        layer.in_proj_weight.data = identity.repeat(3, 1)
        layer.out_proj.weight.data = identity
        given = tensors["bias"]
        if call.mask is not None or call.causal:
            if given is not None:
                raise CannotAskError("mask and bias together")
            given = ~torch.tensor(np.array(allowed_pairs(call)))
            if call.changed("mask_dtype"):
                given = tensors["mask"]
        if given is not None:
            given = given.expand(batch, heads, q_len, k_len).reshape(-1, q_len, k_len)
        output, weights = layer(
            q,
            k,
            v,
            attn_mask=given,
            need_weights=need_weights,
            average_attn_weights=False,
        )
        split = output.unflatten(2, (heads, -1)).transpose(1, 2)
        return {"output": split, "weights": weights} if "weights" in call.wants else split

    words = ("mask", "bias", "causal", "scale", "gradients")
    return Torch(attend, (*words, "weights") if need_weights else words)


def _joined_heads(x: torch.Tensor | None) -> torch.Tensor:
    assert x is not None
    return x.transpose(1, 2).flatten(2)  # (batch, length, heads · head_dim)


def ask_flex() -> Torch:
    """FlexAttention, uncompiled: masks and biases are functions of positions."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor | dict[str, torch.Tensor]:
        from torch.nn.attention.flex_attention import flex_attention

        allowed = torch.tensor(np.array(allowed_pairs(call)))
        bias = tensors["bias"]
        shape = allowed.shape
        added = None if bias is None else bias.expand(shape)

        def change(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            if call.softcap is not None:
                score = call.softcap * torch.tanh(score / call.softcap)
            if added is not None:
                score = score + added[b, h, i, j]
            return torch.where(allowed[b, h, i, j], score, -math.inf)

        asks_lse = "log_sum_exp" in call.wants
        qkv: Any = (tensors["q"], tensors["k"], tensors["v"])
        attend_by_flex: Any = flex_attention
        found = attend_by_flex(
            *qkv,
            score_mod=change,
            scale=call.scale,
            enable_gqa=call.sizes[1] != call.k.shape[1],
            return_lse=asks_lse,
        )
        if asks_lse:
            return {"output": found[0], "log_sum_exp": found[1]}
        return found

    words = ("window", "key_lengths", "first_positions", "softcap", "log_sum_exp")
    return Torch(attend, (*WORDS, *words))


def ask_transformers(kind: str) -> Torch:
    """The functions `eager_attention_forward` of Llama and `sdpa_attention_forward` of transformers."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor | dict[str, torch.Tensor]:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.models.llama.modeling_llama import eager_attention_forward

        forward: Any = eager_attention_forward if kind == "eager" else sdpa_attention_forward
        q, k, v = (tensors[name] for name in "qkv")
        assert q is not None
        layer: Any = nn.Module()
        layer.num_key_value_groups = call.sizes[1] // call.k.shape[1]
        layer.is_causal = call.causal
        layer.eval()
        mask = tensors["bias"]
        allowed = torch.tensor(np.array(allowed_pairs(call)))
        if not allowed.all():
            if mask is not None:
                raise CannotAskError("mask and bias together")
            lowest = torch.finfo(q.dtype).min
            mask = torch.where(allowed, 0.0, lowest).to(q.dtype)  # as transformers' masks are
        scale = q.shape[3] ** -0.5 if call.scale is None else call.scale
        output, weights = forward(layer, q, k, v, mask, scaling=scale, dropout=0.0)
        found = {"output": output.transpose(1, 2)}
        if "weights" in call.wants:
            found["weights"] = weights
        return found

    words = (*WORDS, "key_lengths", "window", "first_positions")
    return Torch(attend, (*words, "weights") if kind == "eager" else words)


# Other frameworks


def ask_onnxruntime() -> Callable[[NeutralCall], Results]:
    """The operation Attention of ONNX (opset 23) by onnxruntime."""

    def attend(call: NeutralCall) -> Results:
        import onnx  # ty: ignore[import-not-found]
        import onnxruntime  # ty: ignore[import-not-found]

        call.refuse_words("mask", "bias", "causal", "scale", "softcap")
        if call.mask is not None and call.bias is not None:
            raise CannotAskError("mask and bias together")
        if call.dtype == "bfloat16":
            raise CannotAskError("bfloat16 arrays of NumPy")
        inputs = {name: getattr(call, name).astype(call.dtype) for name in "qkv"}
        if call.mask is not None:
            inputs["mask"] = np.array(np.broadcast_to(call.mask, allowed_pairs(call).shape))
        if call.bias is not None:
            inputs["mask"] = np.array(np.broadcast_to(call.bias, allowed_pairs(call).shape)).astype(
                call.dtype
            )
        attributes: dict[str, Any] = {"is_causal": int(call.causal)}
        if call.scale is not None:
            attributes["scale"] = call.scale
        if call.softcap is not None:
            attributes["softcap"] = call.softcap
        node = onnx.helper.make_node("Attention", list(inputs), ["output"], **attributes)
        described = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
            )
            for name, x in inputs.items()
        ]
        element = onnx.helper.np_dtype_to_tensor_dtype(inputs["q"].dtype)
        output = onnx.helper.make_tensor_value_info("output", element, None)
        graph = onnx.helper.make_graph([node], "attention", described, [output])
        model = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10
        )
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return {"output": session.run(None, inputs)[0].astype(np.float64)}

    return attend


def ask_jax() -> Callable[[NeutralCall], Results]:
    """`jax.nn.dot_product_attention`, whose axes are (batch, length, heads, head_dim)."""

    def attend(call: NeutralCall) -> Results:
        import jax  # ty: ignore[import-not-found]

        jax.config.update("jax_enable_x64", True)
        words = ("mask", "bias", "causal", "scale", "window", "key_lengths", "gradients")
        call.refuse_words(*words)

        def in_jax(x: Array) -> Any:
            return jax.numpy.asarray(x).astype(call.dtype)

        options: dict[str, Any] = {"is_causal": call.causal, "scale": call.scale}
        if call.mask is not None:
            options["mask"] = jax.numpy.asarray(
                np.broadcast_to(call.mask, allowed_pairs(call).shape)
            )
        if call.window is not None:
            back, ahead = call.window
            if back is None or ahead is None:
                raise CannotAskError("a window without a limit")
            options["local_window_size"] = (back, ahead)
        if call.key_lengths is not None:
            options["key_value_seq_lengths"] = jax.numpy.asarray(call.key_lengths)

        def compute(inputs: dict[str, Any]) -> Any:
            q, k, v = (inputs[name].swapaxes(1, 2) for name in "qkv")
            found = jax.nn.dot_product_attention(q, k, v, bias=inputs.get("bias"), **options)
            return found.swapaxes(1, 2)

        inputs = {name: in_jax(getattr(call, name)) for name in "qkv"}
        if call.bias is not None:
            inputs["bias"] = in_jax(call.bias)
        output, pull = jax.vjp(compute, inputs)
        results = {"output": np.asarray(output, dtype=np.float64)}
        if call.gradients:
            assert call.grad_output is not None
            (gradients,) = pull(in_jax(call.grad_output).astype(output.dtype))
            for name in call.gradients:
                results[f"d{name}"] = np.asarray(gradients[name], dtype=np.float64)
        return results

    return attend


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
    "sdpa:math": Implementation(lambda: ask_sdpa("MATH"), ("torch",), "its kernel MATH"),
    "sdpa:flash": Implementation(
        lambda: ask_sdpa("FLASH_ATTENTION"), ("torch",), "its kernel FLASH_ATTENTION"
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
        ask_onnxruntime, ("onnxruntime", "onnx"), "the operation Attention, opset 23"
    ),
    "jax": Implementation(ask_jax, ("jax",), "jax.nn.dot_product_attention"),
}
