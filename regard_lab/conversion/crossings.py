"""Families without grouped heads, converted to a family of transformers that has them and computes the same.

    GPT-NeoX -> Phi          any number of key/value heads. NeoX has a norm before the feed-forward of its own, Phi
                             shares one: weight and bias of both norms move into the projections that follow them
    GPT-2    -> GPTBigCode   one key/value head; its weights are not transposed
    OPT      -> GPTBigCode   one key/value head; its table of positions has no offset

Each function receives `read`, so that it gives shapes (from zeros without storage) and values alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard_lab.conversion.layouts import GPT_BIG_CODE, LAYOUTS, Layout, Read
from regard_lab.conversion.projections import Projections

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Crossing:
    """How a family becomes another.

    Args:
        family: `model_type` of the result.
        layout: layout of the result.
        refusal: why a config cannot be converted to a number of key/value heads, or None.
        config: the config of the result.
        others: the tensors that a tensor outside the projections becomes.
        folded: the norm before attention whose weight and bias move into the projections, if any.
    """

    family: str
    layout: Layout
    refusal: Callable[[Mapping[str, Any], int], str | None]
    config: Callable[[Mapping[str, Any], int], dict[str, Any]]
    others: Callable[[str, Read], Tensors]
    folded: str | None = None

    def layer(self, number: str) -> str:
        """The name of a layer of the result."""
        return f"{self.layout.prefix}.{number}"


# GPT-NeoX to Phi

_NEOX = LAYOUTS["gpt_neox"]
_PHI_OUTSIDE = {"embed_in.weight": "model.embed_tokens.weight", "embed_out.weight": "lm_head.weight",
                "lm_head.weight": "lm_head.weight", "final_layer_norm.weight": "model.final_layernorm.weight",
                "final_layer_norm.bias": "model.final_layernorm.bias"}  # fmt: skip
_PHI_INSIDE = {"attention.dense.bias": "self_attn.dense.bias", "mlp.dense_4h_to_h.weight": "mlp.fc2.weight",
               "mlp.dense_4h_to_h.bias": "mlp.fc2.bias"}  # fmt: skip


def _neox_refusal(config: Mapping[str, Any], kv_heads: int) -> str | None:
    if not config.get("use_parallel_residual", True):
        return (
            "transformers has no grouped heads for GPT-NeoX, and Phi, which computes the same with parallel residuals, "
            "has no others; this model has use_parallel_residual=false"
        )
    return None


def _phi_config(config: Mapping[str, Any], kv_heads: int) -> dict[str, Any]:
    rope = {"rope_theta": config.get("rotary_emb_base", 10_000.0), "rope_type": "default"}
    rope |= config.get("rope_parameters") or {}
    rope["partial_rotary_factor"] = _NEOX.share(config)
    kept = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "max_position_embeddings", "initializer_range", "layer_norm_eps", "use_cache", "bos_token_id",
            "eos_token_id", "pad_token_id", "tie_word_embeddings", "attention_dropout", "dtype", "torch_dtype",
            "rope_scaling")  # fmt: skip
    return {
        **{name: config[name] for name in kept if name in config}, "model_type": "phi",
        "architectures": ["PhiForCausalLM"], "hidden_act": config.get("hidden_act", "gelu"), "rope_parameters": rope,
        "num_key_value_heads": kv_heads, "qk_layernorm": False, "resid_pdrop": config.get("hidden_dropout", 0.0),
    }  # fmt: skip


def _neox_to_phi(name: str, read: Read) -> Tensors:
    match = _NEOX.pattern.fullmatch(name)
    tensor = _present(name, read)
    if match is None:
        name = name.removeprefix("gpt_neox.")
        made = {_PHI_OUTSIDE[name]: tensor}
        return made | ({"lm_head.bias": tensor.new_zeros(len(tensor))} if name == "embed_in.weight" else {})
    layer, inside = f"model.layers.{match[2]}", match[3]
    if inside in _PHI_INSIDE:
        return {f"{layer}.{_PHI_INSIDE[inside]}": tensor}
    if inside.startswith("input_layernorm"):  # it normalises, and does nothing else
        plain = torch.ones_like(tensor) if inside.endswith("weight") else torch.zeros_like(tensor)
        return {f"{layer}.{inside}": plain}
    if inside == "mlp.dense_h_to_4h.weight":
        norm, shift = (
            _present(f"{match[1]}.post_attention_layernorm.{kind}", read).double() for kind in ("weight", "bias")
        )
        bias = _present(f"{match[1]}.mlp.dense_h_to_4h.bias", read)
        wide = tensor.double()
        return {
            f"{layer}.mlp.fc1.weight": (wide * norm).to(tensor.dtype),
            f"{layer}.mlp.fc1.bias": (bias.double() + wide @ shift).to(bias.dtype),
        }
    return {}  # part of fc1, or a buffer


def folded(projections: Projections, weight: torch.Tensor, bias: torch.Tensor) -> Projections:
    """Projections of x that give what the projections of `weight · x + bias` give."""

    def moved(heads: torch.Tensor) -> torch.Tensor:
        inputs = heads[..., :-1]
        return torch.cat([inputs * weight, heads[..., -1:] + (inputs @ bias)[..., None]], -1)

    return replace(projections, q=moved(projections.q), k=moved(projections.k), v=moved(projections.v))


# GPT-2 and OPT to GPTBigCode


def _one_head(family: str) -> Callable[[Mapping[str, Any], int], str | None]:
    def refusal(config: Mapping[str, Any], kv_heads: int) -> str | None:
        if kv_heads != 1:
            return (
                f"transformers has no grouped heads for {family}; GPTBigCode, which computes the same, has one "
                f"key/value head or one for each query head, so give 1 instead of {kv_heads}"
            )
        return None

    return refusal


def _opt_refusal(config: Mapping[str, Any], kv_heads: int) -> str | None:
    reasons = {
        "do_layer_norm_before": "norms after each part (do_layer_norm_before=false)",
        "enable_bias": "no biases (enable_bias=false)",
        "layer_norm_elementwise_affine": "norms without weights (layer_norm_elementwise_affine=false)",
    }
    for name, reason in reasons.items():
        if not config.get(name, True):
            return f"GPTBigCode, the class of transformers with one key/value head, cannot represent {reason}"
    if config.get("_remove_final_layer_norm"):
        return "GPTBigCode always has a norm at the end, and this model has none (_remove_final_layer_norm)"
    if config.get("word_embed_proj_dim", config["hidden_size"]) != config["hidden_size"]:
        return "GPTBigCode cannot represent embeddings of another size than the layers (word_embed_proj_dim)"
    return _one_head("OPT")(config, kv_heads)


def _big_code(names: Mapping[str, str], defaults: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """The config of GPTBigCode from names in another config, with the defaults of that family."""

    def made(config: Mapping[str, Any], kv_heads: int) -> dict[str, Any]:
        same = {name: config[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "dtype",
                "torch_dtype", "use_cache", "tie_word_embeddings") if name in config}  # fmt: skip
        renamed = {new: config.get(old, defaults.get(new)) for new, old in names.items()}
        return {
            **same, **renamed, "model_type": "gpt_bigcode", "architectures": ["GPTBigCodeForCausalLM"],
            "multi_query": True,
        }  # fmt: skip

    return made


_OF_GPT_2 = {name: name for name in ("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "activation_function",
             "layer_norm_epsilon", "scale_attn_weights", "resid_pdrop", "embd_pdrop", "attn_pdrop")}  # fmt: skip
_GPT_2_DEFAULTS = {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "scale_attn_weights": True,
                   "n_positions": 1024, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}  # fmt: skip
_OF_OPT = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
           "n_inner": "ffn_dim", "n_positions": "max_position_embeddings",
           "activation_function": "activation_function", "resid_pdrop": "dropout", "attn_pdrop": "attention_dropout",
           "embd_pdrop": "dropout"}  # fmt: skip
_OPT_DEFAULTS = {"activation_function": "relu", "n_positions": 2048, "n_inner": 3072, "resid_pdrop": 0.1,
                 "embd_pdrop": 0.1, "attn_pdrop": 0.0}  # fmt: skip
_OPT_OUTSIDE = {"embed_tokens.weight": "wte.weight", "embed_positions.weight": "wpe.weight",
                "final_layer_norm.weight": "ln_f.weight", "final_layer_norm.bias": "ln_f.bias"}  # fmt: skip
_OPT_INSIDE = {"self_attn_layer_norm": "ln_1", "final_layer_norm": "ln_2", "fc1": "mlp.c_fc", "fc2": "mlp.c_proj",
               "self_attn.out_proj": "attn.c_proj"}  # fmt: skip
OPT_OFFSET = 2  # of its table of positions


def _gpt_2_to_big_code(name: str, read: Read) -> Tensors:
    match = LAYOUTS["gpt2"].pattern.fullmatch(name)
    tensor = _present(name, read)
    if match is None:
        return {name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": tensor}
    if match[3] in LAYOUTS["gpt2"].buffers:
        return {}
    is_weight = tensor.dim() == 2
    return {f"transformer.h.{match[2]}.{match[3]}": tensor.T.contiguous() if is_weight else tensor}


def _opt_to_big_code(name: str, read: Read) -> Tensors:
    match = LAYOUTS["opt"].pattern.fullmatch(name)
    tensor = _present(name, read)
    if match is None:
        name = re.sub(r"^(model\.)?(decoder\.)?", "", name)
        if name == "embed_positions.weight":
            tensor = tensor[OPT_OFFSET:].contiguous()
        return {f"transformer.{_OPT_OUTSIDE[name]}" if name in _OPT_OUTSIDE else name: tensor}
    part, _, kind = match[3].rpartition(".")
    return {f"transformer.h.{match[2]}.{_OPT_INSIDE[part]}.{kind}": tensor}


def _present(name: str, read: Read) -> torch.Tensor:
    tensor = read(name)
    assert tensor is not None, name
    return tensor


CROSSINGS: dict[str, Crossing] = {
    "gpt_neox": Crossing("phi", LAYOUTS["phi"], _neox_refusal, _phi_config, _neox_to_phi, "input_layernorm"),
    "gpt2": Crossing(
        "gpt_bigcode", GPT_BIG_CODE, _one_head("GPT-2"), _big_code(_OF_GPT_2, _GPT_2_DEFAULTS), _gpt_2_to_big_code
    ),
    "opt": Crossing("gpt_bigcode", GPT_BIG_CODE, _opt_refusal, _big_code(_OF_OPT, _OPT_DEFAULTS), _opt_to_big_code),
}
