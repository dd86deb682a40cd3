"""Where transformers is installed: a converted folder loads there, and gives the logits of the repeated heads."""

import json
import sys

import pytest
import torch
from families import FAMILIES, HEAD_DIM, HEADS, LAYERS, LOOSE, ONE_HEAD, drawn, heads_of
from safetensors.torch import load_file, save_file

from regard.errors import UnsupportedError
from regard_lab.conversion import convert_kv_heads, layouts
from regard_lab.conversion.layouts import LAYOUTS

transformers = pytest.importorskip("transformers")
IDS = torch.randint(4, 61, (3, 11), generator=torch.Generator().manual_seed(1))
CASES = [(family, groups) for family in FAMILIES for groups in (1, 2) if groups == 1 or family not in ONE_HEAD]


@torch.no_grad()
def logits(model, ids=IDS):
    return model(ids).logits


def loaded(folder, dtype=torch.float64):
    """The folder as transformers loads it, with no key left over and none missing."""
    model, about = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not any(about.values()), about
    return model.eval()


def saved(model, folder, shard_size="1GB"):
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def pool(model, family, groups, method):
    """Replace each key/value head of a model by what its group becomes, by loops."""
    for layer in heads_of(model, family):
        for heads in (*layer.k, *layer.v):
            size = len(heads) // groups
            for j in range(0, len(heads), size):
                group = heads[j : j + size].clone()
                heads[j : j + size] = group[0] if method == "first" else sum(group) / size


@pytest.mark.parametrize(("family", "groups"), CASES)
def test_a_converted_folder_gives_the_logits_of_the_repeated_heads(tmp_path, family, groups):
    shard_size = "1GB" if (list(FAMILIES).index(family) + groups) % 2 else "20KB"
    model = drawn(transformers, family, **({} if family in ONE_HEAD else {"num_key_value_heads": HEADS}))
    saved(model, tmp_path / "in", shard_size)
    assert (tmp_path / "in" / "model.safetensors.index.json").exists() == (shard_size == "20KB")
    method = "first" if groups == 1 else "mean"
    report = convert_kv_heads(tmp_path / "in", tmp_path / "out", groups, method=method)

    before = logits(model)
    pool(model, family, groups, method)
    expected = logits(model)
    assert (before - expected).abs().max() > 0.05
    converted = loaded(tmp_path / "out")
    with torch.no_grad():
        found = converted(IDS, use_cache=True)
    close = 1e-5 if family in LOOSE else 1e-10
    torch.testing.assert_close(found.logits, expected, rtol=close, atol=close)
    single = loaded(tmp_path / "out", torch.float32)
    torch.testing.assert_close(logits(single), expected.float(), rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    cache = next(one for one in found.values() if hasattr(one, "get_seq_length"))
    kept = sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))
    if family not in ("mistral", "gemma2", "gemma3_text"):  # whose cache drops what the window has passed
        assert kept == 3 * 11 * report.kv_bytes["token"].after
    assert report.kv_bytes["token"] == tuple(2 * LAYERS * heads * HEAD_DIM * 8 for heads in (HEADS, groups))
    assert report.difference <= 1e-6


def turn_pairs(size, dims, generator, signs):
    """A random rotation that commutes with rotary positions: of pairs c, c + dims / 2; of the rest among themselves."""
    turn = torch.zeros(size, size, dtype=torch.float64)
    for c in range(dims // 2):
        angle = torch.rand((), generator=generator, dtype=torch.float64) * 6.3
        if signs:
            angle = torch.pi * (angle > 3.14).double()
        cos, sin = angle.cos(), angle.sin()
        turn[c, c], turn[c, c + dims // 2], turn[c + dims // 2, c], turn[c + dims // 2, c + dims // 2] = (
            cos, -sin, sin, cos
        )  # fmt: skip
    rest = size - dims
    if rest:
        turn[dims:, dims:] = torch.linalg.qr(torch.randn(rest, rest, generator=generator, dtype=torch.float64))[0]
    return turn


ROTATED = {"gpt2": 0, "opt": 0, "phi3": 4, "phi": 4, "stablelm": 4, "gpt_neox": 4}


@pytest.mark.parametrize("family", FAMILIES)
def test_align_finds_heads_that_are_copies_in_other_bases_and_another_order(tmp_path, family):
    """Heads that are rotated copies of few can be merged without loss; their plain mean is another model."""
    groups = 1 if family in ONE_HEAD else 2
    model = drawn(transformers, family, **({} if family in ONE_HEAD else {"num_key_value_heads": HEADS}))
    generator = torch.Generator().manual_seed(5)
    dims = ROTATED.get(family.split()[0], HEAD_DIM)
    order = torch.randperm(HEADS, generator=generator)
    for layer in heads_of(model, family):
        for heads in (*layer.k, *layer.v):
            heads.copy_(heads[:groups].repeat_interleave(HEADS // groups, 0).clone())
    expected_before = logits(model)
    for layer in heads_of(model, family):
        turns = [turn_pairs(HEAD_DIM, dims, generator, signs=family in ("qwen3", "gemma3_text")) for _ in range(HEADS)]
        bases = [
            torch.linalg.qr(torch.randn(HEAD_DIM, HEAD_DIM, generator=generator).double())[0] for _ in range(HEADS)
        ]
        for h in range(HEADS):
            for parts, turned in ((layer.q, turns), (layer.k, turns), (layer.v, bases)):
                for part in parts:
                    part[h] = turned[h] @ part[h]
            layer.o[h] = bases[h] @ layer.o[h]
        for heads in (*layer.q, *layer.k, *layer.v, layer.o):
            heads.copy_(heads[order].clone())
    close = 1e-5 if family in LOOSE else 1e-9
    torch.testing.assert_close(logits(model), expected_before, rtol=close, atol=close)  # only the bases changed
    saved(model, tmp_path / "in")
    report = convert_kv_heads(tmp_path / "in", tmp_path / "out", groups, method="align")
    torch.testing.assert_close(logits(loaded(tmp_path / "out")), expected_before, rtol=1e-5, atol=1e-5)
    assert report.invariance <= 1e-6
    assert all(min(one.pooled) > 0.999 for one in report.likeness)
    convert_kv_heads(tmp_path / "in", tmp_path / "mean", groups)
    assert (logits(loaded(tmp_path / "mean")) - expected_before).abs().max() > 0.05


def test_a_converted_folder_generates_where_regard_is_not_installed(tmp_path, monkeypatch):
    made = {"mistral": "MistralForCausalLM", "gpt_neox": "PhiForCausalLM", "opt": "GPTBigCodeForCausalLM"}
    for family in made:
        convert_kv_heads(saved(drawn(transformers, family).float(), tmp_path / family), tmp_path / f"{family}-out", 1)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("regard", "regard_lab")]:
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises
    for family, name in made.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / f"{family}-out")
        ids = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False, eos_token_id=None)
        assert (type(model).__name__, ids.shape) == (name, (1, 7))


@pytest.mark.parametrize(
    ("family", "settings", "groups", "reason"),
    [
        ("gpt2", {}, 2, "transformers has no grouped heads for GPT-2; GPTBigCode.*give 1 instead of 2"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, 1, "scale_attn_by_inverse_layer_idx=True"),
        ("opt", {}, 4, "no grouped heads for OPT.*give 1 instead of 4"),
        ("opt", {"do_layer_norm_before": False}, 1, "norms after each part"),
        ("opt", {"word_embed_proj_dim": 16}, 1, "holds the tensor 'model.decoder.project_(in|out).weight'"),
        ("gpt_neox", {"use_parallel_residual": False}, 2, "use_parallel_residual=false"),
        ("stablelm", {"qk_layernorm": True}, 2, "each head has a LayerNorm of its own"),
        ("phi", {"qk_layernorm": True}, 2, "queries and keys go through a LayerNorm"),
    ],
)
def test_what_no_class_can_represent_is_refused_with_the_reason(tmp_path, family, settings, groups, reason):
    saved(drawn(transformers, family, **settings), tmp_path / "in")
    with pytest.raises(UnsupportedError, match=reason):
        convert_kv_heads(tmp_path / "in", tmp_path / "out", groups)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def rewritten(folder, rename, config, buffers):
    """The folder as older versions wrote it: other names, other settings, and buffers in each layer."""
    tensors = {rename(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors | buffers, folder / "model.safetensors", {"format": "pt"})
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config(content)))


def test_a_folder_of_gpt2_as_it_was_first_published_is_read(tmp_path):
    model = drawn(transformers, "gpt2")
    saved(model, tmp_path / "in")
    buffers = {f"h.{layer}.attn.bias": torch.ones(1, 1, 8, 8) for layer in range(LAYERS)}
    kept = ("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "vocab_size", "model_type", "layer_norm_epsilon")
    rewritten(
        tmp_path / "in", lambda name: name.removeprefix("transformer."),
        lambda content: {name: content[name] for name in kept}, buffers,
    )  # fmt: skip
    convert_kv_heads(tmp_path / "in", tmp_path / "out", 1)
    pool(model, "gpt2", 1, "mean")
    torch.testing.assert_close(logits(loaded(tmp_path / "out")), logits(model), rtol=1e-6, atol=1e-6)


def test_a_folder_of_pythia_as_it_was_first_published_is_read(tmp_path):
    model = drawn(transformers, "gpt_neox")
    saved(model, tmp_path / "in")

    def config(content):
        rope = content.pop("rope_parameters")
        return {**content, "rotary_pct": rope["partial_rotary_factor"], "rotary_emb_base": rope["rope_theta"]}

    start = "gpt_neox.layers"
    buffers = {f"{start}.{n}.attention.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool) for n in range(LAYERS)}
    buffers |= {f"{start}.{n}.attention.masked_bias": torch.tensor(-1e9) for n in range(LAYERS)}
    buffers |= {f"{start}.{n}.attention.rotary_emb.inv_freq": torch.ones(2) for n in range(LAYERS)}
    rewritten(tmp_path / "in", lambda name: name.replace("lm_head", "embed_out"), config, buffers)
    convert_kv_heads(tmp_path / "in", tmp_path / "out", 2)
    pool(model, "gpt_neox", 2, "mean")
    torch.testing.assert_close(logits(loaded(tmp_path / "out")), logits(model), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", ["gpt_neox", "opt", "gpt2"])
def test_a_padded_row_of_another_family_gives_the_same_logits(tmp_path, family):
    model = drawn(transformers, family)
    convert_kv_heads(saved(model, tmp_path / "in"), tmp_path / "out", 1)
    pool(model, family, 1, "mean")
    live = torch.ones_like(IDS)
    live[0, :4] = 0
    live[1, 8:] = 0
    places = (live.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        found, expected = (
            each(IDS, attention_mask=live, position_ids=places).logits for each in (loaded(tmp_path / "out"), model)
        )
    torch.testing.assert_close(found[live.bool()], expected[live.bool()], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("config", "defaults", "names"),
    [("GPT2Config", layouts._GPT_2_DEFAULTS, layouts._OF_GPT_2), ("OPTConfig", layouts._OPT_DEFAULTS, layouts._OF_OPT)],
)
def test_what_a_config_does_not_say_has_the_default_of_its_family(config, defaults, names):
    """A config file may leave out what its class sets by default."""
    theirs = getattr(transformers, config)()
    assert {new: getattr(theirs, names[new]) for new in defaults} == defaults


@pytest.mark.parametrize("family", sorted({name.partition(" ")[0] for name in FAMILIES}))
def test_a_config_that_does_not_say_how_much_is_rotated_means_the_default_of_its_class(family):
    theirs = transformers.AutoConfig.for_model(family).to_dict()
    assert LAYOUTS[family].share({}) == LAYOUTS[family].share(theirs)


def test_random_heads_are_the_same_at_each_conversion_and_unlike_each_other(tmp_path):
    saved(drawn(transformers, "llama", num_key_value_heads=HEADS), tmp_path / "in")
    models = []
    for out in ("a", "b"):
        convert_kv_heads(tmp_path / "in", tmp_path / out, 2, method="random")
        models.append(loaded(tmp_path / out))
    assert torch.equal(*map(logits, models))
    k, v = models[0].model.layers[0].self_attn.k_proj, models[0].model.layers[1].self_attn.v_proj
    assert abs(torch.corrcoef(torch.stack([k.weight.flatten(), v.weight.flatten()]))[0, 1]) < 0.2
    assert 0.7 < k.weight.std() / drawn(transformers, "llama").model.layers[0].self_attn.k_proj.weight.std() < 1.4
