"""Folders of the Llama layout: key/value heads are pooled, all else stays bit for bit, the rest is refused."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard_lab.conversion.folder_conversion as conversion
from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard_lab.conversion import convert_kv_heads
from regard_lab.conversion.folders import earlier_conversion

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


FAMILIES = {"llama": {}, "mistral": {}, "qwen2": {"biases": True}, "qwen3": {"norms": True}}


def pooled(tensor, groups, method):
    """Neighbouring heads, by loops."""
    size = HEADS // groups
    heads = tensor.split(HEAD_DIM)
    new = [heads[j * size : (j + 1) * size] for j in range(groups)]
    return torch.cat([group[0] if method == "first" else torch.stack(group).double().mean(0) for group in new])


def tensors_of(folder):
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@pytest.mark.parametrize(
    ("family", "shards", "dtype", "method"),
    [
        ("llama", 1, torch.float32, "mean"), ("mistral", 3, torch.bfloat16, "mean"),
        ("qwen2", 1, torch.float16, "mean"), ("qwen3", 3, torch.float32, "mean"),
        ("qwen2", 3, torch.bfloat16, "first"), ("llama", 3, torch.float16, "first"),
    ],
)  # fmt: skip
def test_heads_are_pooled_and_all_else_stays_bit_for_bit(tmp_path, family, shards, dtype, method):
    tensors = llama_tensors(dtype=dtype, **FAMILIES[family])
    folder = write_folder(tmp_path / "in", tensors, llama_config(model_type=family), shards)
    report = convert_kv_heads(folder, tmp_path / "out", 2, method=method)
    found = tensors_of(tmp_path / "out")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        is_pooled = "k_proj" in name or "v_proj" in name
        expected = pooled(tensor, 2, method).to(dtype) if is_pooled else tensor
        assert found[name].dtype == dtype
        assert torch.equal(found[name], expected), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    told = config.pop("regard_conversion")
    assert config == llama_config(model_type=family, num_key_value_heads=2)
    assert (told["method"], told["num_key_value_heads"]) == (method, {"before": 8, "after": 2})
    assert report.kind == family
    assert report.difference <= 1e-6
    assert report.kv_bytes["token"] == tuple(2 * LAYERS * heads * HEAD_DIM * dtype.itemsize for heads in (8, 2))
    assert report.parameters == tuple(sum(map(torch.numel, each.values())) for each in (tensors, found))


def test_repeating_and_pooling_again_gives_the_same_tensors(tmp_path):
    tensors = llama_tensors(kv_heads=2)
    config = llama_config(num_key_value_heads=2)
    report = convert_kv_heads(write_folder(tmp_path / "in", tensors, config), tmp_path / "more", 8)
    convert_kv_heads(tmp_path / "more", tmp_path / "back", 2)
    assert report.method == "repeat"
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in tensors_of(tmp_path / "back").items())
    told = json.loads((tmp_path / "back" / "config.json").read_text())["regard_conversion"]
    assert told["earlier"]["method"] == "repeat"


def test_an_index_counts_what_is_there(tmp_path):
    folder = write_folder(tmp_path / "in", llama_tensors(), shards=4)
    convert_kv_heads(folder, tmp_path / "out", 1)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    found = tensors_of(tmp_path / "out")
    numbers = sum(map(torch.numel, found.values()))
    assert index["metadata"] == {"total_parameters": numbers, "total_size": 4 * numbers}
    for name, shard in index["weight_map"].items():
        assert name in load_file(tmp_path / "out" / shard)


def test_tokenisers_settings_and_licences_are_copied_and_programs_are_not(tmp_path):
    folder = write_folder(tmp_path / "in", llama_tensors())
    kept = (
        "tokenizer.json",
        "tokenizer.model",
        "merges.txt",
        "generation_config.json",
        "chat_template.jinja",
        "LICENSE",
    )
    for name in (*kept, "modeling.py", "pytorch_model.bin", "README.md"):
        (folder / name).write_text(name)
    convert_kv_heads(folder, tmp_path / "out", 2)
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found == {*kept, "config.json", "model.safetensors"}
    assert (tmp_path / "out" / "tokenizer.model").read_text() == "tokenizer.model"


def test_a_folder_of_links_is_read(tmp_path):
    """A hub's local folders are made of links."""
    blobs = write_folder(tmp_path / "blobs", llama_tensors(), shards=2)
    (tmp_path / "in").mkdir()
    for path in blobs.iterdir():
        (tmp_path / "in" / path.name).symlink_to(path)
    convert_kv_heads(tmp_path / "in", tmp_path / "out", 2)
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())


def test_an_index_that_misplaces_a_tensor_is_refused(tmp_path):
    folder = write_folder(tmp_path / "in", llama_tensors(), shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = next(iter(index["weight_map"].values()))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"disagree on the shard of 'lm_head\.weight'"):
        convert_kv_heads(folder, tmp_path / "out", 2)


def test_only_an_earlier_conversion_is_replaced(tmp_path):
    folder = write_folder(tmp_path / "in", llama_tensors(), shards=2)
    write_folder(tmp_path / "other", llama_tensors())
    with pytest.raises(CheckpointError, match="is not an earlier conversion"):
        convert_kv_heads(folder, tmp_path / "other", 2)
    convert_kv_heads(folder, tmp_path / "out", 2)
    convert_kv_heads(folder, tmp_path / "out", 4)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_key_value_heads"] == 4
    assert (earlier_conversion(folder), earlier_conversion(tmp_path / "out")) == (
        None,
        "8 to 4 key/value heads by mean",
    )
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds notes\.txt beside a conversion"):
        convert_kv_heads(folder, tmp_path / "out", 2)


K_WEIGHT = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("changed", "settings", "error", "reason"),
    [
        ({"model.layers.0.self_attn.qkv_proj.weight": (3, 2)}, {}, UnsupportedError, "qkv_proj"),
        ({"model.layers.0.self_attn.k_proj.weight_scale": (1,)}, {}, UnsupportedError, "weight_scale"),
        ({"model.layers.0.self_attn.k_proj.inv_freq": (3,)}, {}, UnsupportedError, "k_proj.inv_freq"),
        ({"score.weight": (2, DIM)}, {}, UnsupportedError, "'score.weight', which is not part of the layout of llama"),
        ({"model.layers.2.self_attn.k_norm.weight": (24,)}, {"model_type": "qwen3"}, CheckpointError, "k_norm.weight"),
        ({"model.layers.2.self_attn.k_norm.weight": (3,)}, {}, UnsupportedError, "k_norm.weight"),
        ({K_WEIGHT: None}, {}, CheckpointError, f"lacks the tensor '{K_WEIGHT}'"),
        ({K_WEIGHT: (23, DIM)}, {}, CheckpointError, f"'{K_WEIGHT}' is F32 .23, 12.; the sizes"),
        ({}, {"num_key_value_heads": 4}, CheckpointError, "the sizes in config.json"),
        ({}, {"num_key_value_heads": 3}, CheckpointError, "no multiple of 3"),
        ({}, {"num_attention_heads": "8"}, CheckpointError, "num_attention_heads is '8'"),
        ({}, {"num_hidden_layers": 4}, CheckpointError, "holds 3 layers"),
        ({}, {"model_type": "bloom"}, UnsupportedError, "'bloom'.*llama, mistral, qwen2, qwen3"),
        ({}, {"quantization_config": {}}, UnsupportedError, "is quantised"),
    ],
)
def test_what_is_not_understood_is_refused_by_its_name(tmp_path, changed, settings, error, reason):
    tensors = llama_tensors()
    tensors |= {name: torch.zeros(shape) for name, shape in changed.items() if shape is not None}
    tensors = {name: tensor for name, tensor in tensors.items() if changed.get(name, ()) is not None}
    folder = write_folder(tmp_path / "in", tensors, llama_config(**settings))
    with pytest.raises(error, match=reason):
        convert_kv_heads(folder, tmp_path / "out", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_numbers_that_are_not_finite_are_named_and_not_written(tmp_path):
    tensors = llama_tensors()
    tensors[K_WEIGHT][3, 1] = torch.nan
    with pytest.raises(CheckpointError, match="not finite"):
        convert_kv_heads(write_folder(tmp_path / "in", tensors), tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()


def test_layers_that_are_not_counted_from_nought_and_heads_that_cannot_be_are_refused(tmp_path):
    tensors = {name.replace("layers.2.", "layers.7."): tensor for name, tensor in llama_tensors().items()}
    with pytest.raises(CheckpointError, match="3 layers"):
        convert_kv_heads(write_folder(tmp_path / "strange", tensors), tmp_path / "out", 2)
    folder = write_folder(tmp_path / "in", llama_tensors())
    for kv_heads in (3, 8, 16):
        with pytest.raises(ArgumentError, match=r"cannot become 3|another number that divides 8"):
            convert_kv_heads(folder, tmp_path / "out", kv_heads)


def test_a_pickle_is_never_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    folder = write_folder(tmp_path / "in", llama_tensors())
    (folder / "model.safetensors").unlink()
    (folder / "weights.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"has neither model.*if weights\.safetensors holds all weights, name it"):
        convert_kv_heads(folder, tmp_path / "out", 2)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UnsupportedError, match=r"pytorch_model\.bin, a pickle.*write safetensors with save_pretrained"):
        convert_kv_heads(folder, tmp_path / "out", 2)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/other.safetensors", ".hidden", 3])
def test_an_index_that_names_a_file_elsewhere_is_refused(tmp_path, name):
    folder = write_folder(tmp_path / "in", llama_tensors(), shards=2)
    (tmp_path / "other.safetensors").write_bytes(next(folder.glob("*.safetensors")).read_bytes())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json names the file"):
        convert_kv_heads(folder, tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()


def header(entry):
    text = json.dumps({"lm_head.weight": entry}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:4], "has 4 bytes"), (lambda data: data[:100], "has 100 bytes"),
        (lambda data: data[:-1], r"has \d+ bytes; its header describes"),
        (lambda data: data[:8] + b"\xff" * 32 + data[40:], "is not valid JSON"),
        (lambda data: pickle.dumps({"a": 1}, protocol=2) + bytes(100), "is truncated, or is not a tensor file"),
        (lambda data: header({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}), "does not fill its shape"),
        (lambda data: header({"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}), "impossible shape"),
        (lambda data: header({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}), "leave a gap or overlap"),
        (lambda data: header({"dtype": "Q4", "shape": [1], "data_offsets": [0, 4]}), "has dtype 'Q4'"),
        (lambda data: header({"dtype": "F32", "shape": [1]}), "not that of a tensor file"),
        (lambda data: header([]), "not that of a tensor file"),
    ],
)  # fmt: skip
def test_a_file_that_is_damaged_or_claims_what_cannot_be_is_refused(tmp_path, damage, reason):
    folder = write_folder(tmp_path / "in", llama_tensors())
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=rf"model\.safetensors.*{reason}|{reason}.*model\.safetensors"):
        convert_kv_heads(folder, tmp_path / "out", 2)
    folder = write_folder(tmp_path / "shards", llama_tensors(), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors cannot be read"):
        convert_kv_heads(folder, tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_fails_its_oracle_is_not_written(tmp_path, monkeypatch):
    honest = conversion.TensorWriter.write

    def damaging(writer, name, tensor):
        honest(writer, name, tensor.roll(1, 0) if len(tensor) == 2 * HEAD_DIM else tensor)

    monkeypatch.setattr(conversion.TensorWriter, "write", damaging)
    with pytest.raises(RegardError, match=r"differ by .* nothing was written"):
        convert_kv_heads(write_folder(tmp_path / "in", llama_tensors()), tmp_path / "out", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def cut_short(paths):
    paths[-1].write_bytes(paths[-1].read_bytes()[:-1])


def swapped(paths):
    first, last = paths[0].read_bytes(), paths[-1].read_bytes()
    paths[0].write_bytes(last)
    paths[-1].write_bytes(first)


def not_finite(paths):
    path = [path for path in paths if any(name.endswith("k_proj.weight") for name in load_file(path))][-1]
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("k_proj.weight"))
    save_file(tensors | {name: tensors[name].clone().fill_(torch.nan)}, path)


@pytest.mark.parametrize(("damage", "method"), [(cut_short, "mean"), (swapped, "align"), (not_finite, "align")])
def test_damage_in_the_last_of_three_files_leaves_nothing_written(tmp_path, damage, method):
    folder = write_folder(tmp_path / "in", llama_tensors(), shards=3)
    paths = sorted(folder.glob("*.safetensors"))
    damage(paths)
    words = {cut_short: paths[-1].name, swapped: "model.safetensors.index.json", not_finite: "not finite; nothing was"}
    with pytest.raises(RegardError, match=re.escape(words[damage])):
        convert_kv_heads(folder, tmp_path / "out", 2, method=method)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_disk_that_is_full_leaves_nothing_written(tmp_path, monkeypatch):
    honest, written = conversion.TensorWriter.write, []

    def filling(writer, name, tensor):
        written.append(name)
        if len(written) == 12:
            raise OSError(28, "No space left on device")
        honest(writer, name, tensor)

    monkeypatch.setattr(conversion.TensorWriter, "write", filling)
    with pytest.raises((OSError, RegardError), match="No space left"):
        convert_kv_heads(write_folder(tmp_path / "in", llama_tensors(), shards=3), tmp_path / "out", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


# Each conversion in a fork of a process that has loaded everything.
PROGRAM = """
import json, os, resource, sys, torch
from regard_lab.conversion import convert_kv_heads
from regard_lab.conversion.folders import earlier_conversion
from regard.functional import attention
torch.set_num_threads(1)
attention(*torch.zeros(3, 1, 1, 2, 2, dtype=torch.float64))  # what loads on first use is loaded
for folder, out, limit, method in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:
        if os.path.exists("/proc/self/status"):  # elsewhere memory cannot be limited so
            held = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) << 10
            resource.setrlimit(resource.RLIMIT_DATA, (held + limit,) * 2)
        convert_kv_heads(folder, out, 2, method=method)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def codes_with_memory(*conversions):
    """The exit code of each: a folder, where it goes, the bytes that are allowed beside what was loaded, a method."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([[str(x), str(y), *more] for x, y, *more in conversions])]
    answer = subprocess.run(command, capture_output=True, text=True, env={"OMP_NUM_THREADS": "1"})
    return [int(line) for line in answer.stdout.split()], answer.stderr


def test_neither_layers_nor_tensors_are_held_together(tmp_path):
    """24 layers of 1 MiB are aligned in 20 MiB; 36 MiB, whose largest tensor has 4, are pooled in half as much."""
    tensors = {"model.norm.weight": torch.ones(256)}
    for layer in range(24):
        start = f"model.layers.{layer}.self_attn"
        tensors |= {f"{start}.{part}_proj.weight": torch.randn(256, 256) for part in "qkvo"}
    config = llama_config(hidden_size=256, num_hidden_layers=24, head_dim=32)
    layers = write_folder(tmp_path / "layers", tensors, config, shards=3)
    wide = llama_tensors()
    for layer in range(LAYERS):
        wide |= {f"model.layers.{layer}.mlp.{part}_proj.weight": torch.zeros(1024, 1024)
                 for part in ("gate", "up", "down")}  # fmt: skip
    folder = write_folder(tmp_path / "in", wide)
    assert (folder / "model.safetensors").stat().st_size > 36 << 20
    codes, errors = codes_with_memory(
        (layers, tmp_path / "aligned", 20 << 20, "align"), (folder, tmp_path / "out", 18 << 20, "mean"),
        (layers, tmp_path / "less", 4 << 20, "align"),
    )  # fmt: skip
    assert codes[:2] == [0, 0], errors
    assert codes[2]  # the limit is felt
