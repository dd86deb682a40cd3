"""How each family of models names and joins the projections of its attention layers, and what it can become.

A family without grouped heads becomes one that has them and computes the same:

    GPT-NeoX -> Phi          any number of key/value heads. NeoX has a norm before the feed-forward of its own, Phi
                             shares one: weight and bias of both norms move into the projections that follow them
    GPT-2    -> GPTBigCode   one key/value head; its weights are not transposed
    OPT      -> GPTBigCode   one key/value head; its table of positions has no offset
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from regard.positions import Rotary
from regard_lab.conversion.heads import KeySpace, Projections

Read = Callable[[str], torch.Tensor | None]
"""Reads a tensor by its name; None if there is none."""
Tensors = dict[str, torch.Tensor]


def present(name: str, read: Read) -> torch.Tensor:
    """A tensor that is there."""
    tensor = read(name)
    assert tensor is not None, name
    return tensor


@dataclass(frozen=True)
class HeadSizes:
    """The sizes in a config."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dim: int


@dataclass(frozen=True, kw_only=True)
class FamilyLayout:
    """Names of the tensors of a family, and how queries, keys and values are stored.

    Args:
        layers: name of the list of layers; a part in brackets may be missing.
        q, k, v, o: names of the projections in a layer; the same name for q, k and v if they are one tensor.
        fused: how the rows of this one tensor are ordered: "stacked" (all queries, all keys, all values) or "by head"
            (query, key and value of each head).
        transposed: whether weights are stored as (inputs, outputs).
        kept: other names in a layer.
        outside: names outside the layers, as a regular expression.
        norms: names of the norms of queries and keys, whose weights all heads share.
        buffers: names in a layer that older versions wrote and that hold no parameters.
        rotary: share of a head that positions rotate by default; 0 for other positions.
        config: names in the config: dim, layers, heads, and key/value heads (None if a family has none).
        refused: settings of the config that are not supported, with the reason.
    """

    layers: str = "[model.]layers"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    fused: str | None = None
    transposed: bool = False
    kept: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm",
                             "post_attention_layernorm")  # fmt: skip
    outside: str = r"(?:model\.)?(?:embed_tokens|norm)\.weight|lm_head\.weight"
    norms: tuple[str, str] | None = None
    buffers: tuple[str, ...] = ("self_attn.rotary_emb.inv_freq",)
    rotary: float = 1.0
    config: tuple[str, str, str, str | None] = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    )  # fmt: skip
    refused: Mapping[str, str] | None = None

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the name of a tensor in a layer: layer, its number, the name in it."""
        layers = re.sub(r"\\\[(.+?)\\\]", r"(?:\1)?", re.escape(self.layers))
        return re.compile(rf"({layers}\.(\d+))\.(.+)")

    @property
    def prefix(self) -> str:
        """The name of the list of layers in folders that are written here."""
        return re.sub(r"[\[\]]", "", self.layers)

    @property
    def projections(self) -> tuple[str, ...]:
        """Names in a layer of the tensors that hold queries, keys, values and output."""
        return tuple(dict.fromkeys((self.q, self.k, self.v, self.o)))

    def is_known(self, name: str) -> bool:
        """Whether a tensor of this name belongs to the layout."""
        match = self.pattern.fullmatch(name)
        if match is None:
            return re.fullmatch(self.outside, name) is not None
        part, _, kind = match[3].rpartition(".")
        known = {*self.projections, *self.kept, *(self.norms or ())}
        return match[3] in self.buffers or (part in known and kind in ("weight", "bias"))

    def is_projection(self, name: str) -> bool:
        """Whether a tensor is converted with the heads: weights of the projections, biases of all but the output."""
        match = self.pattern.fullmatch(name)
        part, _, kind = match[3].rpartition(".") if match else ("", "", "")
        return part in self.projections and (kind == "weight" or (kind == "bias" and part != self.o))

    def space(self, config: Mapping[str, Any], head_dim: int) -> KeySpace:
        """Which rotations of keys leave the scores as they are."""
        dims = int(head_dim * self.share(config))
        return KeySpace(Rotary(dims=dims) if dims else None, normed=self.norms is not None)

    def share(self, config: Mapping[str, Any]) -> float:
        """The share of a head that positions rotate."""
        rope = config.get("rope_parameters")
        places = [rope if isinstance(rope, dict) else {}, config]
        names = ("partial_rotary_factor", "rotary_pct", "rope_pct")
        given = [place[name] for place in places for name in names if place.get(name) is not None]
        return float(given[0]) if given and self.rotary else self.rotary

    def shapes(self, sizes: HeadSizes) -> dict[str, list[int]]:
        """The shapes of a layer's projections, weights and biases, by their names in the layer."""
        rows = {self.q: sizes.heads, self.k: sizes.kv_heads, self.v: sizes.kv_heads}
        if self.fused:
            rows = {self.q: sizes.heads + 2 * sizes.kv_heads}
        shapes = {name: [count * sizes.head_dim, sizes.dim] for name, count in rows.items()}
        shapes[self.o] = [sizes.dim, sizes.heads * sizes.head_dim]
        weights = {f"{name}.weight": shape[::-1] if self.transposed else shape for name, shape in shapes.items()}
        return weights | {f"{name}.bias": shape[:1] for name, shape in shapes.items()}

    # Between tensors and projections

    def read(self, layer: str, sizes: HeadSizes, read: Read) -> Projections:
        """The projections of a layer in float64."""

        def weight_of(name: str) -> torch.Tensor:
            weight = present(f"{layer}.{name}.weight", read)
            return (weight.T if self.transposed else weight).double()

        def part(name: str) -> torch.Tensor:
            weight, bias = weight_of(name), read(f"{layer}.{name}.bias")
            column = weight.new_zeros(len(weight), 1) if bias is None else bias.double()[:, None]
            return torch.cat([weight, column], 1)

        counts = [sizes.heads, sizes.kv_heads, sizes.kv_heads]
        if self.fused == "by head":
            q, k, v = part(self.q).unflatten(0, (sizes.heads, 3, -1)).unbind(1)
        else:
            rows = [count * sizes.head_dim for count in counts]
            parts = part(self.q).split(rows) if self.fused else [part(name) for name in (self.q, self.k, self.v)]
            q, k, v = (one.unflatten(0, (count, -1)) for one, count in zip(parts, counts, strict=True))
        return Projections(q, k, v, weight_of(self.o).unflatten(1, (sizes.heads, -1)))

    def write(self, projections: Projections, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The weights and biases of a layer by their names in the layer, except the bias of the output."""
        q, k, v = projections.q, projections.k, projections.v
        if self.fused == "by head":
            joined = {self.q: torch.stack([q, k, v], 1).flatten(0, 2)}
        elif self.fused:
            joined = {self.q: torch.cat([q, k, v]).flatten(0, 1)}
        else:
            joined = {name: one.flatten(0, 1) for name, one in ((self.q, q), (self.k, k), (self.v, v))}
        weights = {name: rows[:, :-1] for name, rows in joined.items()} | {self.o: projections.o.flatten(1)}
        tensors = {f"{name}.weight": weight.T if self.transposed else weight for name, weight in weights.items()}
        tensors |= {f"{name}.bias": rows[:, -1] for name, rows in joined.items()}
        return {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}


LLAMA = FamilyLayout()
_GEMMA_2 = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
_GPT_2 = FamilyLayout(
    layers="[transformer.]h", q="attn.c_attn", k="attn.c_attn", v="attn.c_attn", o="attn.c_proj", fused="stacked",
    transposed=True, kept=("ln_1", "ln_2", "mlp.c_fc", "mlp.c_proj"), rotary=0.0,
    outside=r"(?:transformer\.)?(?:wte\.weight|wpe\.weight|ln_f\.(?:weight|bias))|lm_head\.weight",
    buffers=("attn.bias", "attn.masked_bias"), config=("n_embd", "n_layer", "n_head", None),
    refused={"scale_attn_by_inverse_layer_idx": "scores are divided by the number of the layer, which GPTBigCode does "
             "not do", "add_cross_attention": "layers with cross-attention"},
)  # fmt: skip

LAYOUTS: dict[str, FamilyLayout] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": replace(LLAMA, norms=("self_attn.q_norm", "self_attn.k_norm")),
    "gemma": LLAMA,
    "gemma2": replace(LLAMA, kept=(*LLAMA.kept, *_GEMMA_2)),
    "gemma3_text": replace(LLAMA, kept=(*LLAMA.kept, *_GEMMA_2), norms=("self_attn.q_norm", "self_attn.k_norm")),
    "phi3": replace(
        LLAMA, q="self_attn.qkv_proj", k="self_attn.qkv_proj", v="self_attn.qkv_proj", fused="stacked",
        kept=("mlp.gate_up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"),
    ),
    "phi": replace(
        LLAMA, o="self_attn.dense", kept=("mlp.fc1", "mlp.fc2", "input_layernorm"), rotary=0.5,
        outside=r"model\.(?:embed_tokens\.weight|final_layernorm\.(?:weight|bias))|lm_head\.(?:weight|bias)",
        refused={"qk_layernorm": "queries and keys go through a LayerNorm"},
    ),
    "stablelm": replace(
        LLAMA, rotary=0.25, outside=LLAMA.outside + r"|(?:model\.)?norm\.bias",
        refused={"qk_layernorm": "each head has a LayerNorm of its own, which cannot be pooled"},
    ),
    "gpt_neox": FamilyLayout(
        layers="[gpt_neox.]layers", q="attention.query_key_value", k="attention.query_key_value",
        v="attention.query_key_value", o="attention.dense", fused="by head", rotary=0.25,
        kept=("input_layernorm", "post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        outside=r"(?:gpt_neox\.)?(?:embed_in\.weight|final_layer_norm\.(?:weight|bias))|(?:embed_out|lm_head)\.weight",
        buffers=("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"),
        config=("hidden_size", "num_hidden_layers", "num_attention_heads", None),
    ),
    "gpt2": _GPT_2,
    "opt": FamilyLayout(
        layers="[model.][decoder.]layers", o="self_attn.out_proj", rotary=0.0, buffers=(),
        kept=("self_attn_layer_norm", "final_layer_norm", "fc1", "fc2"),
        outside=r"(?:model\.)?(?:decoder\.)?(?:embed_tokens\.weight|embed_positions\.weight|"
                r"final_layer_norm\.(?:weight|bias))|lm_head\.weight",
        config=("hidden_size", "num_hidden_layers", "num_attention_heads", None),
    ),
}  # fmt: skip
GPT_BIG_CODE = replace(_GPT_2, transposed=False)


@dataclass(frozen=True)
class Crossing:
    """How a family becomes another.

    Args:
        family: `model_type` of the result.
        refusal: why a config cannot be converted to a number of key/value heads, or None.
        others: the tensors that a tensor outside the projections becomes.
        folded: the norm before attention whose weight and bias move into the projections, if any.
    """

    family: str
    layout: FamilyLayout
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
    tensor = present(name, read)
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
            present(f"{match[1]}.post_attention_layernorm.{kind}", read).double() for kind in ("weight", "bias")
        )
        bias = present(f"{match[1]}.mlp.dense_h_to_4h.bias", read)
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


def _one_head(family: str, kv_heads: int) -> str | None:
    if kv_heads == 1:
        return None
    return (
        f"transformers has no grouped heads for {family}; GPTBigCode, which computes the same, has one key/value head "
        f"or one for each query head, so give 1 instead of {kv_heads}"
    )


def _gpt_2_refusal(config: Mapping[str, Any], kv_heads: int) -> str | None:
    return _one_head("GPT-2", kv_heads)


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
    return _one_head("OPT", kv_heads)


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
    tensor = present(name, read)
    if match is None:
        return {name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": tensor}
    if match[3] in LAYOUTS["gpt2"].buffers:
        return {}
    is_weight = tensor.dim() == 2
    return {f"transformer.h.{match[2]}.{match[3]}": tensor.T.contiguous() if is_weight else tensor}


def _opt_to_big_code(name: str, read: Read) -> Tensors:
    match = LAYOUTS["opt"].pattern.fullmatch(name)
    tensor = present(name, read)
    if match is None:
        name = re.sub(r"^(model\.)?(decoder\.)?", "", name)
        if name == "embed_positions.weight":
            tensor = tensor[OPT_OFFSET:].contiguous()
        return {f"transformer.{_OPT_OUTSIDE[name]}" if name in _OPT_OUTSIDE else name: tensor}
    part, _, kind = match[3].rpartition(".")
    return {f"transformer.h.{match[2]}.{_OPT_INSIDE[part]}.{kind}": tensor}


CROSSINGS: dict[str, Crossing] = {
    "gpt_neox": Crossing("phi", LAYOUTS["phi"], _neox_refusal, _phi_config, _neox_to_phi, "input_layernorm"),
    "gpt2": Crossing(
        "gpt_bigcode", GPT_BIG_CODE, _gpt_2_refusal, _big_code(_OF_GPT_2, _GPT_2_DEFAULTS), _gpt_2_to_big_code
    ),
    "opt": Crossing("gpt_bigcode", GPT_BIG_CODE, _opt_refusal, _big_code(_OF_OPT, _OPT_DEFAULTS), _opt_to_big_code),
}
