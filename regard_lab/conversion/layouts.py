"""The table of layouts: how each family of Hugging Face names and joins the projections of its attention layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from regard.positions import Rotary
from regard_lab.conversion.projections import KeySpace, Projections

Read = Callable[[str], torch.Tensor | None]
"""Reads a tensor by its name; None if there is none."""


@dataclass(frozen=True)
class Sizes:
    """The sizes in a config."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dim: int


@dataclass(frozen=True, kw_only=True)
class Layout:
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
        if re.fullmatch(self.outside, name):
            return True
        match = self.pattern.fullmatch(name)
        if match is None:
            return False
        part, _, kind = match[3].rpartition(".")
        known = {*self.projections, *self.kept, *(self.norms or ())}
        return match[3] in self.buffers or (part in known and kind in ("weight", "bias"))

    def is_projection(self, name: str) -> bool:
        """Whether a tensor is converted with the heads: weights of the projections, biases of all but the output."""
        match = self.pattern.fullmatch(name)
        if match is None:
            return False
        part, _, kind = match[3].rpartition(".")
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

    def shapes(self, sizes: Sizes) -> dict[str, list[int]]:
        """The shapes of a layer's projections, weights and biases, by their names in the layer."""
        rows = {self.q: sizes.heads, self.k: sizes.kv_heads, self.v: sizes.kv_heads}
        if self.fused:
            rows = {self.q: sizes.heads + 2 * sizes.kv_heads}
        shapes = {name: [count * sizes.head_dim, sizes.dim] for name, count in rows.items()}
        shapes[self.o] = [sizes.dim, sizes.heads * sizes.head_dim]
        weights = {f"{name}.weight": shape[::-1] if self.transposed else shape for name, shape in shapes.items()}
        return weights | {f"{name}.bias": shape[:1] for name, shape in shapes.items()}

    # Between tensors and projections

    def read(self, layer: str, sizes: Sizes, read: Read) -> Projections:
        """The projections of a layer in float64."""

        def part(name: str) -> torch.Tensor:
            weight, bias = (read(f"{layer}.{name}.{kind}") for kind in ("weight", "bias"))
            assert weight is not None
            weight = (weight.T if self.transposed else weight).double()
            column = weight.new_zeros(len(weight), 1) if bias is None else bias.double()[:, None]
            return torch.cat([weight, column], 1)

        heads, kv_heads, size = sizes.heads, sizes.kv_heads, sizes.head_dim
        if self.fused == "by head":
            q, k, v = part(self.q).unflatten(0, (heads, 3, size)).unbind(1)
        else:
            rows = [heads * size, kv_heads * size, kv_heads * size]
            parts = part(self.q).split(rows) if self.fused else [part(name) for name in (self.q, self.k, self.v)]
            q, k, v = (one.unflatten(0, (-1, size)) for one in parts)
        output = read(f"{layer}.{self.o}.weight")
        assert output is not None
        output = (output.T if self.transposed else output).double()
        return Projections(q, k, v, output.unflatten(1, (heads, -1)))

    def write(self, projections: Projections, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The weights and biases of a layer by their names in the layer, except the bias of the output."""
        q, k, v = projections.q, projections.k, projections.v
        if self.fused == "by head":
            joined = {self.q: torch.stack([q, k, v], 1).flatten(0, 2)}
        elif self.fused:
            joined = {self.q: torch.cat([q, k, v]).flatten(0, 1)}
        else:
            joined = {name: one.flatten(0, 1) for name, one in ((self.q, q), (self.k, k), (self.v, v))}
        tensors = {}
        for name, rows in joined.items():
            weight = rows[:, :-1].to(dtype)
            tensors[f"{name}.weight"] = weight.T if self.transposed else weight
            tensors[f"{name}.bias"] = rows[:, -1].to(dtype)
        output = projections.o.flatten(1).to(dtype)
        tensors[f"{self.o}.weight"] = output.T if self.transposed else output
        return {name: tensor.contiguous() for name, tensor in tensors.items()}


LLAMA = Layout()
_GEMMA_2 = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
_GPT_2 = Layout(
    layers="[transformer.]h", q="attn.c_attn", k="attn.c_attn", v="attn.c_attn", o="attn.c_proj", fused="stacked",
    transposed=True, kept=("ln_1", "ln_2", "mlp.c_fc", "mlp.c_proj"), rotary=0.0,
    outside=r"(?:transformer\.)?(?:wte\.weight|wpe\.weight|ln_f\.(?:weight|bias))|lm_head\.weight",
    buffers=("attn.bias", "attn.masked_bias"), config=("n_embd", "n_layer", "n_head", None),
    refused={"scale_attn_by_inverse_layer_idx": "scores are divided by the number of the layer, which GPTBigCode does "
             "not do", "add_cross_attention": "layers with cross-attention"},
)  # fmt: skip

LAYOUTS: dict[str, Layout] = {
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
    "gpt_neox": Layout(
        layers="[gpt_neox.]layers", q="attention.query_key_value", k="attention.query_key_value",
        v="attention.query_key_value", o="attention.dense", fused="by head", rotary=0.25,
        kept=("input_layernorm", "post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        outside=r"(?:gpt_neox\.)?(?:embed_in\.weight|final_layer_norm\.(?:weight|bias))|(?:embed_out|lm_head)\.weight",
        buffers=("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"),
        config=("hidden_size", "num_hidden_layers", "num_attention_heads", None),
    ),
    "gpt2": _GPT_2,
    "opt": Layout(
        layers="[model.][decoder.]layers", o="self_attn.out_proj", rotary=0.0, buffers=(),
        kept=("self_attn_layer_norm", "final_layer_norm", "fc1", "fc2"),
        outside=r"(?:model\.)?(?:decoder\.)?(?:embed_tokens\.weight|embed_positions\.weight|"
                r"final_layer_norm\.(?:weight|bias))|lm_head\.weight",
        config=("hidden_size", "num_hidden_layers", "num_attention_heads", None),
    ),
}  # fmt: skip
GPT_BIG_CODE = replace(_GPT_2, transposed=False)
