"""A sharded folder of Hugging Face is converted one layer at a time, in memory that does not grow with its layers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_folders import llama_config, llama_tensors, write_folder

import regard_lab.conversion.folder_conversion as conversion
from regard_lab.conversion import convert_kv_heads

pytest.importorskip("resource", reason="this system does not tell the peak memory of a process")

DIM, HIDDEN, HEADS, LAYERS = 1024, 2816, 8, 6
PROGRAM = """
import resource, sys
from regard_lab.conversion import convert_kv_heads
source, warm, method = sys.argv[1:]
convert_kv_heads(warm, warm + "-out", 2, method=method)  # what loads on first use is loaded
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert_kv_heads(source, source + "-out", 2, method=method)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024))
"""


def layer_tensors(dim: int, hidden: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        **{f"self_attn.{part}_proj.weight": torch.randn(dim, dim) for part in "qkvo"},
        **{f"mlp.{part}_proj.weight": torch.ones(hidden, dim) for part in ("gate", "up")},
        "mlp.down_proj.weight": torch.ones(dim, hidden),
        **{f"{part}_layernorm.weight": torch.ones(dim) for part in ("input", "post_attention")},
    }


def write_sharded(folder: Path) -> int:
    """Layers with the same numbers, a shard for each; returns the bytes of the largest shard."""
    folder.mkdir()
    config = llama_config(hidden_size=DIM, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                          num_key_value_heads=HEADS, head_dim=DIM // HEADS)  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    one, weight_map, largest = layer_tensors(DIM, HIDDEN), {}, 0
    for number in range(LAYERS + 1):
        own = {f"model.layers.{number}.{name}": tensor for name, tensor in one.items()}
        if number == LAYERS:
            own = {"model.embed_tokens.weight": torch.ones(1000, DIM), "model.norm.weight": torch.ones(DIM)}
        shard = f"model-{number + 1:05}-of-{LAYERS + 1:05}.safetensors"
        save_file(own, folder / shard, {"format": "pt"})
        weight_map |= dict.fromkeys(own, shard)
        largest = max(largest, (folder / shard).stat().st_size)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return largest


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mean", "align"])
def test_a_folder_of_300_mebibytes_needs_less_than_three_of_its_shards(tmp_path, method):
    """A shard is a layer of 49 MiB; its attention projections take 32 MiB in float64, and four copies fit."""
    largest = write_sharded(tmp_path / "source")
    small = {f"model.layers.0.{name}": tensor for name, tensor in layer_tensors(32, 48).items()}
    config = llama_config(hidden_size=32, num_hidden_layers=1, head_dim=4)
    write_folder(tmp_path / "warm", small, config)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "source"), str(tmp_path / "warm"), method]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    grown = int(answer.stdout)
    assert grown < 3 * largest, f"{grown / 2**20:.0f} MiB beside shards of {largest / 2**20:.0f} MiB"


@pytest.mark.parametrize(("most", "count"), [(-1, 1), (60, 0)])
def test_the_time_of_many_layers_is_told_after_the_first(tmp_path, monkeypatch, most, count):
    monkeypatch.setattr(conversion, "LONG", most)
    told = []
    convert_kv_heads(write_folder(tmp_path / "in", llama_tensors()), tmp_path / "out", 2, tell=told.append)
    assert len(told) == count
    assert all(re.fullmatch(r"the first of 3 layers took \d+ s; all take about \d+ min", line) for line in told)
