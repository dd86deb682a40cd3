"""Folders of Hugging Face: key/value heads are pooled, all else stays bit for bit, the rest is refused."""

import json
import pickle
import sys

import pytest
import torch
from families import FAMILIES, HEAD_DIM, HEADS, LAYERS, LOOSE, drawn, heads_of
from safetensors.torch import load_file, save_file
from transformers_versions import CACHE

from regard.errors import (
    ArgumentError,
    CheckpointError,
    NotFoundError,
    RegardError,
    UnsupportedError,
)
from regard_lab.conversion import convert_kv_heads, pretrained
from regard_lab.conversion.folders import earlier_conversion
from regard_lab.conversion.own_models import moments_of
from regard_lab.conversion.pretrained import PretrainedConversion, row_ids

transformers = pytest.importorskip("transformers")
IDS = torch.randint(4, 61, (3, 11), generator=torch.Generator().manual_seed(1))
PARTLY_ROTATED = {"phi3": 4, "phi": 4, "stablelm": 4}
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"


@torch.no_grad()
def logits(model, ids=IDS):
    return model(ids).logits


def loaded(folder, dtype=torch.float64):
    """The folder as transformers loads it, with no key left over and none missing."""
    model, about = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True
    )
    assert not any(about.values()), about
    return model.eval()


def saved(model, folder, shard_size="1GB"):
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A folder whose tensors lie in several files."""
    return saved(
        drawn(transformers, "llama").float(), tmp_path_factory.mktemp("llama") / "in", "20KB"
    )


def pool(model, family, groups, method):
    """Replace each key/value head of a model by what its group becomes, by loops."""
    for layer in heads_of(model, family):
        for heads in (*layer.k, *layer.v):
            size = len(heads) // groups
            for j in range(0, len(heads), size):
                group = heads[j : j + size].clone()
                heads[j : j + size] = group[0] if method == "first" else sum(group) / size


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_folder_gives_the_logits_of_the_repeated_heads(tmp_path, family):
    groups = 1 + list(FAMILIES).index(family) % 2
    model = drawn(transformers, family)
    saved(model, tmp_path / "in", "1GB" if groups == 1 else "20KB")
    method = "first" if groups == 1 else "mean"
    report = convert_kv_heads(tmp_path / "in", tmp_path / "out", groups, method=method)

    before = logits(model)
    pool(model, family, groups, method)
    expected = logits(model)
    assert (before - expected).abs().max() > 0.05
    converted = loaded(tmp_path / "out")
    with torch.no_grad():
        outputs = converted(IDS, use_cache=True)
    close = 1e-5 if family in LOOSE else 1e-10
    torch.testing.assert_close(outputs.logits, expected, rtol=close, atol=close)
    cached = sum(layer.keys.nbytes + layer.values.nbytes for layer in outputs[CACHE].layers)
    # whose cache drops what the window has passed
    if family not in (
        "mistral",
        "gemma2",
        "gemma3_text",
    ):
        assert cached == 3 * 11 * report.kv_bytes["token"].after
    assert report.kv_bytes["token"] == tuple(
        2 * LAYERS * heads * HEAD_DIM * 8 for heads in (HEADS, groups)
    )
    assert report.parameters.after == sum(parameter.numel() for parameter in converted.parameters())
    assert report.difference <= 1e-6


def turn_pairs(size, dims, generator, signs):
    """A random rotation that commutes with rotary positions: of pairs c, c + dims / 2; of the rest among themselves."""
    turn = torch.zeros(size, size, dtype=torch.float64)
    for c in range(dims // 2):
        angle = torch.rand((), generator=generator, dtype=torch.float64) * 6.3
        if signs:
            angle = torch.pi * (angle > 3.14).double()
        cos = angle.cos()
        sin = angle.sin()
        partner = c + dims // 2
        turn[c, c], turn[c, partner], turn[partner, c], turn[partner, partner] = cos, -sin, sin, cos
    if size > dims:
        rest = torch.randn(size - dims, size - dims, generator=generator, dtype=torch.float64)
        turn[dims:, dims:] = torch.linalg.qr(rest)[0]
    return turn


@pytest.mark.parametrize("family", FAMILIES)
def test_align_finds_heads_that_are_copies_in_other_bases_and_another_order(tmp_path, family):
    """Heads that are rotated copies of few can be merged without loss; their plain mean is another model."""
    model = drawn(transformers, family)
    groups = 2
    generator = torch.Generator().manual_seed(5)
    dims = PARTLY_ROTATED.get(family.split()[0], HEAD_DIM)
    order = torch.randperm(HEADS, generator=generator)
    for layer in heads_of(model, family):
        for heads in (*layer.k, *layer.v):
            heads.copy_(heads[:groups].repeat_interleave(HEADS // groups, 0).clone())
    expected_before = logits(model)
    for layer in heads_of(model, family):
        turns = [
            turn_pairs(HEAD_DIM, dims, generator, signs=family in ("qwen3", "gemma3_text"))
            for _ in range(HEADS)
        ]
        bases = [
            torch.linalg.qr(torch.randn(HEAD_DIM, HEAD_DIM, generator=generator).double())[0]
            for _ in range(HEADS)
        ]
        for h in range(HEADS):
            for parts, turned in ((layer.q, turns), (layer.k, turns), (layer.v, bases)):
                for part in parts:
                    part[h] = turned[h] @ part[h]
            layer.o[h] = bases[h] @ layer.o[h]
        for heads in (*layer.q, *layer.k, *layer.v, layer.o):
            heads.copy_(heads[order].clone())
    close = 1e-5 if family in LOOSE else 1e-9
    # only the bases changed
    torch.testing.assert_close(logits(model), expected_before, rtol=close, atol=close)
    saved(model, tmp_path / "in")
    report = convert_kv_heads(tmp_path / "in", tmp_path / "out", groups, method="align")
    torch.testing.assert_close(
        logits(loaded(tmp_path / "out")), expected_before, rtol=1e-5, atol=1e-5
    )
    assert report.invariance <= 1e-6
    convert_kv_heads(tmp_path / "in", tmp_path / "mean", groups)
    assert (logits(loaded(tmp_path / "mean")) - expected_before).abs().max() > 0.05


def tensors_of(folder):
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    return tensors


def test_all_but_keys_and_values_stays_bit_for_bit_and_the_config_records_the_conversion(tmp_path):
    model = drawn(transformers, "qwen2").to(torch.bfloat16)
    saved(model, tmp_path / "in", "20KB")
    convert_kv_heads(tmp_path / "in", tmp_path / "out", 2)
    before = tensors_of(tmp_path / "in")
    after = tensors_of(tmp_path / "out")
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        assert after[name].dtype == torch.bfloat16
        if "k_proj" in name or "v_proj" in name:
            heads = tensor.unflatten(0, (2, HEADS // 2, HEAD_DIM)).double().mean(1).flatten(0, 1)
            tensor = heads.to(torch.bfloat16)
        assert torch.equal(after[name], tensor), name
    old, new = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("in", "out"))
    recorded = new.pop("regard_conversion")
    assert new == {**old, "num_key_value_heads": 2}
    assert (recorded["method"], recorded["num_key_value_heads"]) == (
        "mean",
        {"before": 8, "after": 2},
    )


def test_repeating_and_pooling_again_gives_the_same_tensors(tmp_path):
    saved(drawn(transformers, "llama", num_key_value_heads=2).float(), tmp_path / "in")
    report = convert_kv_heads(tmp_path / "in", tmp_path / "more", 8)
    convert_kv_heads(tmp_path / "more", tmp_path / "back", 2)
    before = tensors_of(tmp_path / "in")
    assert report.method == "repeat"
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in tensors_of(tmp_path / "back").items()
    )
    recorded = json.loads((tmp_path / "back" / "config.json").read_text())["regard_conversion"]
    assert recorded["earlier"]["method"] == "repeat"


def test_tokenisers_and_licences_are_copied_and_programs_are_not_and_links_are_followed(
    llama, tmp_path
):
    (tmp_path / "in").mkdir()
    for path in llama.iterdir():  # a hub's local folders are made of links
        (tmp_path / "in" / path.name).symlink_to(path)
    copied = ("tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja", "LICENSE")
    for name in (*copied, "modeling.py", "pytorch_model.bin", "README.md"):
        (tmp_path / "in" / name).write_text(name)
    convert_kv_heads(tmp_path / "in", tmp_path / "out", 2)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {*copied, "config.json", "generation_config.json", "model.safetensors"}
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())


def test_a_converted_folder_generates_where_regard_is_not_installed(llama, tmp_path, monkeypatch):
    convert_kv_heads(llama, tmp_path / "out", 1)
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("regard", "regard_lab")
    ]:
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = model.generate(
        torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False, eos_token_id=None
    )
    assert (type(model).__name__, ids.shape) == ("LlamaForCausalLM", (1, 7))


def test_only_an_earlier_conversion_is_replaced(llama, tmp_path):
    saved(drawn(transformers, "llama"), tmp_path / "other")
    with pytest.raises(CheckpointError, match="is not an earlier conversion"):
        convert_kv_heads(llama, tmp_path / "other", 2)
    convert_kv_heads(llama, tmp_path / "out", 2)
    convert_kv_heads(llama, tmp_path / "out", 4)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_key_value_heads"] == 4
    earlier = earlier_conversion(llama), earlier_conversion(tmp_path / "out")
    assert earlier == (None, "8 to 4 key/value heads by mean")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds notes\.txt beside a conversion"):
        convert_kv_heads(llama, tmp_path / "out", 2)


BART = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
OTHERS = {
    "olmo2": (
        "Olmo2",
        {},
        {},
        UnsupportedError,
        r"q_norm.weight of 'olmo2' is \(24,\), and may depend",
    ),
    "gpt_oss": ("GptOss", {"head_dim": 6}, {}, UnsupportedError, "sinks of 'gpt_oss'"),
    "cohere": (
        "Cohere",
        {},
        {"method": "align"},
        UnsupportedError,
        "align rotates keys, and how 'cohere'",
    ),
    "opt": (
        "OPT",
        {"word_embed_proj_dim": 24, "ffn_dim": 20},
        {},
        UnsupportedError,
        "'opt' would not load with 2",
    ),
    "gpt_neox": ("GPTNeoX", {}, {}, UnsupportedError, "no layer of 'gpt_neox' has k_proj"),
    "gpt2": (
        "GPT2",
        {"num_key_value_heads": None},
        {},
        UnsupportedError,
        "no grouped heads for 'gpt2'",
    ),
    "gemma4": (
        "Gemma4Text",
        {},
        {},
        UnsupportedError,
        "the layers of 'gemma4_text' have heads of several sizes",
    ),
    "bart": ("Bart", BART, {}, UnsupportedError, "not one decoder"),
    "stablelm": (
        "StableLm",
        {"qk_layernorm": True},
        {},
        UnsupportedError,
        "layernorm.* of 'stablelm'",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_whose_heads_are_not_understood_is_refused_with_the_reason(tmp_path, name):
    kind, settings, options, error, reason = OTHERS[name]
    sizes = {
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 20,
        "num_hidden_layers": 1,
        "d_model": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    kinds = {
        "bart": "BartForConditionalGeneration",
        "gpt2": "GPT2LMHeadModel",
        "gemma4": "Gemma4ForCausalLM",
    }
    config = getattr(transformers, f"{kind}Config")(**{**sizes, "pad_token_id": 0, **settings})
    saved(getattr(transformers, kinds.get(name, f"{kind}ForCausalLM"))(config), tmp_path / "in")
    with pytest.raises(error, match=reason):
        convert_kv_heads(tmp_path / "in", tmp_path / "out", 2, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


K_WEIGHT = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("changed", "settings", "error", "reason"),
    [
        (
            {"model.layers.0.self_attn.k_proj.weight_scale": (1,)},
            {},
            CheckpointError,
            "unexpected keys.*weight_scale",
        ),
        ({K_WEIGHT: None}, {}, CheckpointError, f"missing keys such as '{K_WEIGHT}'"),
        ({K_WEIGHT: (23, 24)}, {}, CheckpointError, "transformers cannot load|mismatched keys"),
        (
            {},
            {"num_key_value_heads": 4},
            CheckpointError,
            "transformers cannot load|mismatched keys",
        ),
        ({}, {"num_hidden_layers": "many"}, CheckpointError, "transformers cannot load"),
        ({}, {"architectures": ["os"]}, UnsupportedError, "'os', which transformers does not have"),
        (
            {},
            {"model_type": "mistral"},
            UnsupportedError,
            "says that its LlamaForCausalLM is of type 'mistral'",
        ),
        ({}, {"quantization_config": {}}, UnsupportedError, "is quantised"),
        ({K_WEIGHT: torch.nan}, {}, CheckpointError, "not finite; nothing was written"),
    ],
)
def test_tensors_and_settings_that_do_not_fit_are_named_and_nothing_is_written(
    tmp_path, changed, settings, error, reason
):
    folder = saved(drawn(transformers, "llama").float(), tmp_path / "in")
    tensors = load_file(folder / WEIGHTS)
    for name, change in changed.items():
        if change is None:
            del tensors[name]
        elif isinstance(change, tuple):
            tensors[name] = torch.zeros(change)
        else:
            tensors[name][3, 1] = change
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(error, match=reason):
        convert_kv_heads(folder, tmp_path / "out", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_pickle_is_never_opened_and_an_index_names_no_file_elsewhere(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    folder = saved(drawn(transformers, "llama").float(), tmp_path / "in", "20KB")
    index = json.loads((folder / INDEX).read_text())
    for name in ("../other.safetensors", "/etc/passwd", ".hidden", 3):
        changed = {**index, "weight_map": {**index["weight_map"], "model.norm.weight": name}}
        (folder / INDEX).write_text(json.dumps(changed))
        with pytest.raises(
            CheckpointError, match=r"model\.safetensors\.index\.json names the file"
        ):
            convert_kv_heads(folder, tmp_path / "out", 2)
    for path in [*folder.glob("*.safetensors"), folder / INDEX]:
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(
        UnsupportedError,
        match=r"pytorch_model\.bin, a pickle.*write safetensors with save_pretrained",
    ):
        convert_kv_heads(folder, tmp_path / "out", 2)
    assert not (tmp_path / "exploded").exists()


def test_a_folder_that_is_cut_short_or_fails_its_oracle_leaves_nothing_written(
    llama, tmp_path, monkeypatch
):
    honest = pretrained.HeadedLayer.write
    with monkeypatch.context() as patch:
        patch.setattr(
            pretrained.HeadedLayer,
            "write",
            lambda self, made: honest(self, made.resized(1, "first")),
        )
        with pytest.raises((RegardError, RuntimeError)):
            convert_kv_heads(llama, tmp_path / "out", 2)

    def rolled(self, made):
        return honest(self, pretrained.Projections(made.q, made.k.roll(1, 0), made.v, made.o))

    with monkeypatch.context() as patch:
        patch.setattr(pretrained.HeadedLayer, "write", rolled)
        with pytest.raises(RegardError, match=r"differ by .* nothing was written"):
            convert_kv_heads(llama, tmp_path / "out", 2)
    saved(drawn(transformers, "llama"), tmp_path / "in")
    path = tmp_path / "in" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors is damaged; put a whole file there"
    ):
        convert_kv_heads(tmp_path / "in", tmp_path / "out", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_the_moments_are_those_of_the_inputs_of_the_layers(llama):
    conversion = PretrainedConversion(llama, 2, "align")
    seen = {}
    queries = {name: layer.q for name, layer in conversion.layers.items()}
    for name, query in queries.items():
        query.register_forward_pre_hook(
            lambda _, inputs, name=name: seen.update({name: inputs[0].flatten(0, 1)})
        )
    moments = moments_of(queries, lambda: conversion.model(IDS))
    assert len(moments) == LAYERS
    for name, moment in moments.items():
        x = torch.cat([seen[name].detach(), torch.ones(33, 1)], 1).double()
        torch.testing.assert_close(moment, x.T @ x / 33)


@torch.no_grad()
def test_a_text_groups_the_heads_that_it_makes_alike(tmp_path):
    """Heads that agree on the inputs of the text, and differ elsewhere, are merged without loss on it only with it."""
    model = drawn(transformers, "llama", num_hidden_layers=1)
    rows = model.model.embed_tokens.weight
    rows[:, 4:] = 0  # inputs have 4 numbers; what heads do with the others is not seen
    for layer in heads_of(model, "llama"):
        for weight in (layer.k[0], layer.v[0]):
            copies = weight[:2, :, :4].clone()
            for head in range(HEADS):
                weight[head, :, :4] = copies[head % 2]
                # neighbours agree on what is not seen
                weight[head, :, 4:] = 100 * weight[head // 4, :, 4:]
        for bias in (layer.k[1], layer.v[1]):
            bias.zero_()
    model.save_pretrained(tmp_path / "in")
    expected = model(IDS).logits
    errors = {}
    for out, calibration in (
        ("text", lambda model_calibrated: model_calibrated(IDS)),
        ("none", None),
    ):
        report = convert_kv_heads(
            tmp_path / "in", tmp_path / out, 2, method="align", calibration=calibration
        )
        errors[out] = float((logits(loaded(tmp_path / out)) - expected).abs().max())
        assert report.method == "align"
    assert errors["text"] < 1e-6 < 1e-2 < errors["none"]


def test_numbers_of_heads_that_cannot_be_and_what_cannot_be_calibrated_are_refused(llama, tmp_path):
    for kv_heads in (3, 8, 16):
        with pytest.raises(ArgumentError, match=r"cannot become 3|another number that divides 8"):
            convert_kv_heads(llama, tmp_path / "out", kv_heads)
    with pytest.raises(
        ArgumentError,
        match=r"the calibration did not run 'model\.layers\.0\.self_attn' of the model",
    ):
        convert_kv_heads(llama, tmp_path / "out", 2, calibration=lambda model: None)
    with pytest.raises(ArgumentError, match="a function that runs the model"):
        convert_kv_heads(llama, tmp_path / "out", 2, calibration="text")
    with pytest.raises(NotFoundError, match="has no tokeniser that transformers can read"):
        row_ids(llama, "text")
    assert not (tmp_path / "out").exists()
