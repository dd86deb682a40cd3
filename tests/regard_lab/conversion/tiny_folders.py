"""Tiny folders of the Llama layout with random weights, written by the safetensors package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

DIM, HIDDEN, VOCAB, LAYERS, HEADS, HEAD_DIM = 12, 10, 17, 3, 8, 4


def llama_config(**settings: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "rope_theta": 10000.0,
        **settings,
    }


def llama_tensors(
    kv_heads: int = HEADS, dtype: torch.dtype = torch.float32, *, biases: bool = False, norms: bool = False
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    inner = HEADS * HEAD_DIM
    rows = {"q_proj": inner, "k_proj": kv_heads * HEAD_DIM, "v_proj": kv_heads * HEAD_DIM}
    tensors = {"model.embed_tokens.weight": draw(VOCAB, DIM), "model.norm.weight": draw(DIM)}
    for layer in range(LAYERS):
        start = f"model.layers.{layer}"
        for part, count in rows.items():
            tensors[f"{start}.self_attn.{part}.weight"] = draw(count, DIM)
            if biases:
                tensors[f"{start}.self_attn.{part}.bias"] = draw(count)
        tensors[f"{start}.self_attn.o_proj.weight"] = draw(DIM, inner)
        if norms:
            tensors |= {f"{start}.self_attn.{part}_norm.weight": draw(HEAD_DIM) for part in "qk"}
        tensors |= {f"{start}.mlp.{part}_proj.weight": draw(HIDDEN, DIM) for part in ("gate", "up")}
        tensors[f"{start}.mlp.down_proj.weight"] = draw(DIM, HIDDEN)
        tensors |= {f"{start}.{part}_layernorm.weight": draw(DIM) for part in ("input", "post_attention")}
    return tensors


def write_folder(
    folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any] | None = None, shards: int = 1
) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama_config() if config is None else config))
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder
    weight_map = {}
    for number in range(shards):  # a layer's tensors lie in several shards
        shard = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        own = names[number::shards]
        save_file({name: tensors[name] for name in own}, folder / shard, {"format": "pt"})
        weight_map |= dict.fromkeys(own, shard)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    about = {"total_parameters": sum(map(torch.numel, tensors.values())), "total_size": size}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": about, "weight_map": weight_map}))
    return folder
