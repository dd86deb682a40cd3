"""`attach` computes, part by part and in wrappers, what eager attention computes, or refuses with a true reason."""

import copy
from types import SimpleNamespace

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import hugging_face_small as small
import hugging_face_sweep as sweep
import torch
import transformers as tf
from each_value import slow_except
from hugging_face_families import BY_NAME, IMAGE, SIZES, TRANSLATOR
from torch import nn

import regard as rg
from regard.integrations.transformers import attach, detach, explain, masks, modules, observe
from regard.integrations.transformers import reading as read

IDS = torch.randint(3, 98, (2, 9), generator=torch.Generator().manual_seed(2))


def needs(kind):
    if kind not in small.types():
        pytest.skip(f"this version of transformers has no {kind}")


WHOLE = (
    "deepseek_v4",
    "deepseek_v32",
    "glm_moe_dsa",
    "hy_v4",
    "falcon",
    "bridgetower",
    "qwen2_vl",
    "gemma4_text",
    "blt",
)
PARTS = {
    "longt5": "LongT5LocalAttention: its windows are blocks in its own code",
    "pegasus_x": "PegasusXGlobalLocalAttention: its windows are blocks in its own code",
    "aria": "AriaCrossAttention: its attention is written out, and not plain: ",
    "jamba": "JambaMambaMixer: a recurrent or linear layer, which has no softmax",
}


LIKE_OTHERS = {"glm_moe_dsa", "hy_v4", "pegasus_x"}  # as deepseek_v32 and longt5 are


@pytest.mark.parametrize("kind", slow_except([*WHOLE, *PARTS], fast={*WHOLE, *PARTS} - LIKE_OTHERS))
def test_an_architecture_gives_the_numbers_of_eager_attention(kind):
    """Parts that regard cannot compute stay, and are named with their reason."""
    needs(kind)
    row = sweep.row(kind)
    assert row["status"] in (sweep.EQUAL, sweep.PARTLY), row
    assert row["far"] <= 1e-5
    assert row["calls"] > 0
    if kind in PARTS:
        assert row["status"] == sweep.PARTLY
        assert any(PARTS[kind] in reason for reason in row["outside"])


def test_outside_names_the_modules_and_explain_lists_them():
    model = attach(small.built("jamba"))
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    scanned = [name for name, kind in kinds.items() if kind == "JambaMambaMixer"]
    assert scanned
    assert [*model.outside] == scanned
    explained = explain(model, IDS)
    assert list(explained.silent) == scanned
    line = "outside: model.layers.0.mamba (JambaMambaMixer: a recurrent or linear layer"
    assert line in repr(explained)
    assert len(explained.calls) == model.config.num_hidden_layers - len(scanned)
    assert "outside" not in detach(model).__dict__


def test_the_audio_of_gemma_4_stays_and_its_text_is_computed():
    needs("gemma4_audio")
    model = small.built("gemma4")
    model.model.audio_tower = tower = small.built("gemma4_audio")
    attach(model)
    assert tower.config._attn_implementation != "regard"
    assert model.model.language_model.config._attn_implementation == "regard"
    assert all(name.startswith("model.audio_tower") for name in model.outside)
    assert len(model.outside) == 2


@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba", "fnet", "resnet"])
def test_a_model_without_attention_is_refused(kind):
    model = small.built(kind)
    with pytest.raises(
        rg.UnsupportedError, match="has no attention layer that regard could compute"
    ):
        attach(model)
    assert model.config._attn_implementation != "regard"


@pytest.mark.parametrize(
    ("alibi", "name"), [(True, "falcon-rw"), (False, "falcon-7b"), (False, "falcon-40b")]
)
def test_falcon_is_refused_for_alibi_alone(alibi, name):
    config = tf.FalconConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        alibi=alibi,
        num_kv_heads=2,
        new_decoder_architecture=name == "falcon-40b",
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = tf.FalconForCausalLM(config).eval()
    if alibi:
        with pytest.raises(rg.UnsupportedError, match="adds ALiBi"):
            attach(model)
        assert model.config._attn_implementation != "regard"
        return
    unpadded = torch.ones(2, 9, dtype=torch.long)
    unpadded[0, :3] = 0
    options = {
        "max_new_tokens": 5,
        "do_sample": False,
        "attention_mask": unpadded,
        "pad_token_id": 0,
    }
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(IDS, attention_mask=unpadded).logits
        words = model.generate(IDS, **options)
        attach(model)
        output = model(IDS, attention_mask=unpadded).logits
        assert checks.farthest(output, expected, unpadded.bool()) <= 1e-5
        assert torch.equal(model.generate(IDS, **options), words)
    assert explain(model, IDS).silent == ()
    assert explain(model, IDS).calls[0].pattern == "causal"
    kinds = {type(layer.self_attention).__name__ for layer in detach(model).transformer.h}
    assert kinds == {"FalconAttention"}


@pytest.mark.parametrize("left_out", ["attention_mask", "mask_function"])
def test_a_model_that_would_give_other_numbers_is_refused_and_stays_as_it_was(left_out):
    """What is left out is the mask of padding, or the window of five ids."""
    model = BY_NAME["Mistral"].model().train()
    with (
        checks.dropped(left_out),
        pytest.raises(rg.UnsupportedError, match="differs from its own eager attention"),
    ):
        attach(model)
    assert model.config._attn_implementation == "sdpa"
    assert not {"outside", "unchecked", "_regard_before", "_regard_hooks"} & model.__dict__.keys()
    with checks.dropped(left_out):
        assert attach(model, check=False).config._attn_implementation == "regard"


def test_the_comparison_leaves_modes_generators_gradients_and_observers_as_they_were():
    model = BY_NAME["Llama"].model().train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    attached = attach(BY_NAME["GPT-2"].model())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with observe(attached, "entropy") as observed:
        attach(model)
        attached(IDS)
    assert len(observed.calls) == 3
    assert torch.equal(torch.rand(3), expected)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model.lm_head.weight.grad, torch.ones_like(model.lm_head.weight))
    assert model.unchecked == ()


def test_a_model_that_changes_itself_for_short_inputs_is_given_back():
    """BigBird exchanges its attention for full attention there."""
    model = BY_NAME["BigBird"].model()
    kinds = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(rg.UnsupportedError, match="replace=True"):
        attach(model)
    attach(model, replace=True)
    assert model.encoder.attention_type == "block_sparse"
    assert {name: type(module) for name, module in detach(model).named_modules()} == kinds


class Lora(nn.Module):
    """Holds a model as peft does: `wrapper.base_model.model`."""

    def __init__(self, model):
        super().__init__()
        self.base_model = nn.Module()
        self.base_model.model = model

    def forward(self, *args, **keywords):
        return self.base_model.model(*args, **keywords)


class Sentences(nn.Module):
    """Holds a model as the first part of a SentenceTransformer does, which hands on one mapping."""

    def __init__(self, model):
        super().__init__()
        self.auto_model = model

    def forward(self, features):
        features["vectors"] = self.auto_model(**features).last_hidden_state.mean(1)
        return features


@pytest.mark.parametrize("kind", ["peft", "sentence-transformers"])
def test_a_wrapper_is_opened(kind):
    if kind == "peft":
        wrapper = Lora(BY_NAME["Llama"].model())
        inputs = IDS
        name = "logits"
    else:
        wrapper = nn.Sequential(Sentences(BY_NAME["BERT"].model()))
        inputs = {"input_ids": IDS}
        name = "vectors"
    inner = modules.models_inside(wrapper)[0]
    with torch.no_grad():
        expected = wrapper(copy.copy(inputs))[name]
        assert attach(wrapper) is wrapper
        output = wrapper(copy.copy(inputs))[name]
    assert inner.config._attn_implementation == "regard"
    assert (wrapper.outside, wrapper.unchecked) == ({}, ())
    assert checks.farthest(output, expected) <= 1e-5
    calls = explain(wrapper, copy.copy(inputs)).calls
    assert len(calls) == len(modules.attention_modules(wrapper))
    assert detach(wrapper) is wrapper
    assert inner.config._attn_implementation == "sdpa"


def test_a_module_that_holds_no_model_is_refused():
    with pytest.raises(rg.ArgumentError, match="a module that holds one"):
        attach(nn.Linear(2, 2))


OWN_ANSWERS = {
    "OPT": lambda: BY_NAME["OPT"].model(),
    "Persimmon": lambda: tf.PersimmonModel(tf.PersimmonConfig(**SIZES)),
    "BERT": lambda: BY_NAME["BERT"].model(),
    "BART": lambda: tf.BartModel(tf.BartConfig(**TRANSLATOR)),
    "MPT": lambda: tf.MptModel(tf.MptConfig(vocab_size=99, d_model=32, n_heads=4, n_layers=2)),
    "YOLOS": lambda: tf.YolosModel(
        tf.YolosConfig(**{**IMAGE, "image_size": [32, 32]}, num_detection_tokens=3)
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", OWN_ANSWERS)
def test_output_attentions_is_refused_by_every_model_with_one_sentence(name):
    model = attach(OWN_ANSWERS[name]().eval())
    inputs = {"pixel_values": pixels(1)} if name == "YOLOS" else {"input_ids": IDS}
    with pytest.raises(
        rg.UnsupportedError, match=r"stores no weights; leave it out and collect them with.*observe"
    ):
        model(**inputs, output_attentions=True)
    model(**inputs, output_attentions=False)
    detach(model).set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True)
    assert len(output["decoder_attentions" if name == "BART" else "attentions"]) > 0


@pytest.mark.parametrize("kind", ["GPT2", "StableLm"])
def test_a_model_that_was_loaded_by_name_refuses_output_attentions(kind):
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4} if kind == "GPT2" else SIZES
    config = getattr(tf, f"{kind}Config")(**sizes)
    model = getattr(tf, f"{kind}Model")._from_config(config, attn_implementation="regard").eval()
    with torch.no_grad(), pytest.raises(rg.UnsupportedError, match="stores no weights"):
        model(IDS, output_attentions=True)


def test_the_two_sided_window_of_t5gemma_2_is_a_window_and_the_model_compiles_in_one_graph():
    needs("t5gemma2")
    model = attach(small.built("t5gemma2"))
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5], "use_cache": False}
    explained = explain(model, inputs)
    assert explained.calls[0].pattern == "sliding_window(4)"
    assert all(call.dense is None for call in explained.calls)
    torch._dynamo.reset()
    with torch.no_grad():
        expected = model(**inputs).logits
        with pytest.warns(rg.integrations.transformers.UnreadMaskWarning):
            output = torch.compile(model, fullgraph=True, backend="eager")(**inputs).logits
    assert checks.farthest(output, expected) <= 1e-5


def pixels(*shape):
    return torch.randn(*shape, 3, 32, 32, generator=torch.Generator().manual_seed(3))


# Models whose modules hold copies of their config, and inputs that reach them.
COPIED = {
    "ViTMAEForPreTraining": ("vit_mae", lambda config: {"pixel_values": pixels(2)}),
    "CLIPSegForImageSegmentation": (
        "clipseg",
        lambda config: {"pixel_values": pixels(2), "input_ids": IDS},
    ),
}


def implementations(model):
    """The implementation that each module reads from its config, by name."""
    names = {}
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        if isinstance(config, tf.PreTrainedConfig):
            names[name] = config._attn_implementation
    return names


@torch.no_grad()
@pytest.mark.parametrize("name", COPIED)
def test_modules_that_hold_a_copy_of_a_config_call_regard_too(name):
    kind, inputs_of = COPIED[name]
    model = small.drawn(getattr(tf, name), kind)
    inputs = inputs_of(model.config)
    before = implementations(model)
    expected = sweep.outputs_of(model, inputs)
    explained = explain(attach(model), inputs)
    assert explained.silent == ()
    assert {call.layer for call in explained.calls} == set(modules.attention_modules(model))
    assert set(implementations(model).values()) == {"regard"}
    for key, output in sweep.outputs_of(model, inputs).items():
        assert checks.farthest(output, expected[key]) <= 1e-5
    assert implementations(detach(model)) == before


def test_a_copy_that_cannot_be_set_is_refused_and_nothing_changes():
    model = small.drawn(tf.ViTMAEForPreTraining, "vit_mae")
    model.decoder.decoder_layers[1].attention.config = SimpleNamespace(_attn_implementation="sdpa")
    before = implementations(model)
    with pytest.raises(
        rg.UnsupportedError, match="cannot be set on ViTMAEAttention inside of ViTMAEForPreTraining"
    ):
        attach(model)
    assert implementations(model) == before


@pytest.mark.parametrize("size", [1, 2, 5])
def test_windows_of_a_models_own_code_are_read_and_others_are_not(size):
    def around(sliding_window):
        return lambda batch, head, q, k: (q - k).abs() < sliding_window

    def strange(sliding_window):
        return lambda batch, head, q, k: ((q - k).abs() < sliding_window) & (k != 3)

    positions = torch.arange(9)
    pairs = around(size)(0, 0, positions[:, None], positions[None])
    assert torch.equal(read.pattern_of(around(size), range(9)).dense(9, 9), pairs)
    with pytest.raises(read.UnknownMaskError):
        read.pattern_of(strange(size), range(9))


def test_a_graph_gets_numbers_where_the_code_of_a_model_computes_with_its_mask():
    """DeepSeek-V4 lengthens a mask only if it is a tensor."""
    needs("deepseek_v4")
    masks.COMPUTING.discard("deepseek_v4")
    model = attach(small.built("deepseek_v4"))
    assert "deepseek_v4" in masks.COMPUTING
    torch._dynamo.reset()
    with torch.no_grad():
        expected = model(IDS, use_cache=False).logits
        output = torch.compile(model, backend="eager")(IDS, use_cache=False).logits
    assert checks.farthest(output, expected) <= 1e-5
