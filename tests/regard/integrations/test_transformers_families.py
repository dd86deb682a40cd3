"""Models of transformers give the same numbers through regard, also in hard cases; with `-m slow` all families."""

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import hugging_face_sweep as sweep
import torch
import transformers as tf
from each_value import slow_except
from hugging_face_families import BY_NAME, QUICK, SIZES, VOCAB
from transformers_versions import CACHE

import regard as rg
from regard.integrations.transformers import attach, detach, explain, observe
from regard.integrations.transformers.tiny_inputs import tiny_inputs


@pytest.mark.parametrize("name", slow_except(BY_NAME, fast=QUICK))
def test_a_family_is_as_its_status_says(name):
    assert checks.faults(checks.row(BY_NAME[name])) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_no_architecture_is_wrong_and_none_is_lost(part):
    """Those that transformers can build small; what was equal when the report was made still is."""
    known = sweep.committed()
    rows = [sweep.row(kind) for kind in sweep.architectures()[part::16]]
    assert [row for row in rows if row["status"] == sweep.WRONG] == []
    works = (sweep.EQUAL, sweep.PARTLY)
    worked = [row for row in rows if known.get(row["type"], row)["status"] in works]
    assert [row for row in worked if row["status"] not in works] == []


def test_the_report_of_architectures_holds_none_that_is_wrong():
    statuses = [row["status"] for row in sweep.committed().values()]
    assert sweep.WRONG not in statuses
    assert sum(status in (sweep.EQUAL, sweep.PARTLY) for status in statuses) >= 300


def test_the_report_compares_gradients_and_its_refusals_have_reasons():
    rows = sweep.committed().values()
    compared = [row for row in rows if row.get("gradients", 1.0) <= sweep.GRADIENTS]
    assert len(compared) >= 320
    in_double = [row["gradients in double"] for row in rows if "gradients in double" in row]
    assert max(in_double, default=0.0) <= sweep.DOUBLE
    refused = [row["reason"] for row in rows if row["status"] == sweep.REFUSED]
    with_attention = [reason for reason in refused if "has no attention layer" not in reason]
    assert len(with_attention) <= 40
    assert [reason for reason in with_attention if "no tiny input reaches it" in reason] == []


NEED_INPUTS = ("bros", "cpmant", "cvt", "data2vec-vision", "levit", "lilt", "sew-d")


@pytest.mark.parametrize("kind", slow_except(NEED_INPUTS, fast={*NEED_INPUTS} - {"cvt"}))
def test_models_that_need_inputs_of_their_own_are_proven_plain(kind):
    row = sweep.row(kind)
    assert (row["status"], row["outside"]) == (sweep.EQUAL, [])
    assert row["gradients"] <= sweep.GRADIENTS


@pytest.mark.parametrize("attention", ["prob", "full"])
@pytest.mark.parametrize("distil", [True, False])
def test_informer_halves_its_sequence_with_and_without_gradients(distil, attention):
    """Its encoder gets no mask from eager attention, and a mask of the first layer would fit no other."""
    config = sweep.small.small("informer")
    config.distil = distil
    config.attention_type = attention
    config.encoder_layers = 3
    torch.manual_seed(0)
    model = tf.InformerModel(config).eval()
    model.set_attn_implementation("eager")
    (inputs,) = tiny_inputs(model)
    expected = sweep.outputs_of(model, inputs)
    gradients = sweep.gradients_of(model, inputs, expected)
    attach(model)
    for name, output in sweep.outputs_of(model, inputs).items():
        torch.testing.assert_close(output, expected[name], rtol=1e-5, atol=1e-5)
    ours = sweep.gradients_of(model, inputs, expected)
    assert checks.relative(ours, gradients) <= sweep.GRADIENTS


@pytest.mark.parametrize("kind", ["mpt", "deberta", "deberta-v2", "wavlm", "trocr"])
def test_models_that_add_a_bias_of_their_own_are_equal_with_padding_and_go_back(kind):
    row = sweep.row(kind)
    assert (row["status"], row["outside"]) == (sweep.EQUAL, [])
    assert row["calls"] >= 2
    model = attach(sweep.small.built(kind))
    ours = [
        module
        for module in model.modules()
        if type(module).__module__.endswith("transformers.biased")
    ]
    assert len(ours) >= 2
    detach(model)
    assert not any(type(module).__module__.startswith("regard") for module in ours)


def test_a_dropped_padding_mask_or_window_fails_the_comparison():
    """Otherwise the comparisons above would prove nothing."""
    family = BY_NAME["Mistral"]
    assert min(checks.control(family, family.model()).values()) > 1e-2
    with checks.dropped("mask_function"):
        assert checks.logits(family, family.model(), "none") > 1e-2


@pytest.mark.parametrize("name", ["LongformerModel", "BigBirdModel"])
def test_a_name_given_at_loading_is_refused_where_nothing_would_call_regard(name):
    """transformers accepts the name there, and the model would read the mask as numbers."""
    config = getattr(tf, name.replace("Model", "Config"))(**SIZES, attn_implementation="regard")
    model = getattr(tf, name)(config).eval()
    with pytest.raises(
        rg.UnsupportedError, match=r"computes with this mask itself.*give it to attach"
    ):
        model(
            input_ids=torch.randint(3, 99, (2, 14)),
            attention_mask=torch.ones(2, 14, dtype=torch.long),
        )


@pytest.mark.parametrize(
    "marks", [[(0, 0), (1, 0), (2, 0), (3, 0)], [(0, 0), (1, 4), (3, 7), (3, 8)]]
)
@pytest.mark.parametrize(
    ("name", "padding"), [("Longformer", "none"), ("Longformer", "holes"), ("LED", "left")]
)
def test_global_tokens_may_differ_by_row(name, marks, padding):
    family = BY_NAME[name]
    model = family.model()
    inputs, unpadded = checks.inputs_of(family, padding)
    inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
    for place in marks:
        inputs["global_attention_mask"][place] = 1
    expected, output = checks.both(family, model, lambda: checks.output_of(model, inputs))
    assert checks.farthest(output, expected, unpadded) <= checks.TOLERANCE


@pytest.mark.parametrize("length", [14, 67])
def test_big_birds_blocks(length):
    """Short inputs change its type of attention; 67 is padded to whole blocks."""
    settings = {**SIZES, "max_position_embeddings": 256, "block_size": 4, "num_random_blocks": 2}
    ids = torch.randint(3, 99, (4, length))
    unpadded = torch.ones(4, length, dtype=torch.long)
    unpadded[0, :5] = 0
    unpadded[1, -7:] = 0
    unpadded[2, [3, 9]] = 0
    outputs = []
    for is_attached in (False, True):
        torch.manual_seed(1)
        config = tf.BigBirdConfig(**settings, initializer_range=0.1)
        model = tf.BigBirdModel(config, add_pooling_layer=False).eval()
        if is_attached:
            attach(model, replace=True)
        with torch.no_grad():
            outputs.append(model(ids, attention_mask=unpadded).last_hidden_state)
    assert checks.farthest(*outputs, unpadded.bool()) <= checks.TOLERANCE
    assert model.encoder.attention_type == ("original_full" if length == 14 else "block_sparse")
    assert type(model.encoder.layer[0].attention.self).__name__.startswith("RegardBigBird")
    if length > 14:
        with pytest.raises(rg.UnsupportedError, match="random blocks"):
            model.train()(ids)


def big_bird_decoder():
    settings = {"is_decoder": True, "attention_type": "original_full", "initializer_range": 0.3}
    return tf.BigBirdForCausalLM(tf.BigBirdConfig(**SIZES, **settings))


def falcon_with_rotary_positions():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = {"alibi": False, "initializer_range": 0.3}
    return tf.FalconForCausalLM(tf.FalconConfig(vocab_size=99, **sizes, **settings))


CACHED = {
    "BigBird": big_bird_decoder,
    "Falcon": falcon_with_rotary_positions,
    "LED": lambda: BY_NAME["LED"].model(),
}


@pytest.mark.parametrize("kind", CACHED)
def test_a_model_with_replaced_modules_reads_its_cache(kind):
    """Its keyword differs between versions of transformers, and an unknown keyword is no reason to forget the keys."""
    model = CACHED[kind]().eval()
    ids = torch.randint(3, 99, (2, 13))
    name = "decoder_input_ids" if kind == "LED" else "input_ids"
    inputs = {"input_ids": ids} if kind == "LED" else {}
    outputs = []
    for is_attached in (False, True):
        if is_attached:
            attach(model, replace=True)
        with torch.no_grad():
            cache = model(**inputs, **{name: ids[:, :7]}, use_cache=True)[CACHE]
            outputs.append(model(**inputs, **{name: ids[:, 7:], CACHE: cache}).logits)
    assert checks.farthest(*outputs) <= checks.TOLERANCE


def test_explain_shows_windows_and_the_share_of_pairs():
    family = BY_NAME["Mistral"]
    model = attach(family.model())
    explained = explain(model, {"input_ids": torch.randint(3, 99, (1, 400))})
    assert [call.pattern for call in explained.calls] == ["causal_window(5)"] * 3
    assert all(call.share < 0.2 and call.dense is None for call in explained.calls)
    table = repr(explained)
    assert "model.layers.{0..2}.self_attn" in table
    assert "4 heads over 2" in table
    assert len(table.splitlines()) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft reads an old name of transformers
def test_a_model_of_peft_is_opened():
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
    adapted = peft.LoraConfig(
        target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False
    )
    model = peft.get_peft_model(BY_NAME["Llama"].model(), adapted).eval()
    ids = torch.randint(3, 99, (2, 9))
    with torch.no_grad():
        expected = model(ids).logits
        output = attach(model)(ids).logits
    assert checks.farthest(output, expected) <= 1e-5
    assert (model.outside, model.unchecked) == ({}, ())
    assert len(explain(model, {"input_ids": ids}).calls) == 3


IDS = torch.randint(3, VOCAB, (3, 20), generator=torch.Generator().manual_seed(8))
UNPADDED = torch.ones(3, 20, dtype=torch.long)
UNPADDED[0, :6] = 0
UNPADDED[1, :1] = 0


class Int8(tf.cache_utils.QuantizedLayer):
    """transformers' own cache for quantised keys and values, in 8 bits with one scale for each row."""

    def _quantize(self, tensor, axis):
        scale = tensor.abs().amax(-1, keepdim=True) / 127
        return (tensor / scale).round().to(torch.int8), scale

    def _dequantize(self, stored):
        return stored[0] * stored[1]


def quantised(model):
    cache = tf.DynamicCache(config=model.config)
    cache.layers = [
        Int8(residual_length=4) for _ in cache.layers or range(model.config.num_hidden_layers)
    ]
    return cache


def test_a_quantised_cache_gives_the_logits_of_eager_attention_and_rounds():
    family = BY_NAME["Llama"]
    model = family.model()

    def run(cache):
        # the second part is quantised, the third reads what was stored
        for start, stop in ((0, 8), (8, 14), (14, 20)):
            ids = IDS[:, start:stop]
            logits = model(ids, attention_mask=UNPADDED[:, :stop], **{CACHE: cache}).logits
        return logits

    expected, output = checks.both(family, model, lambda: run(quantised(model)))
    assert checks.farthest(output, expected) <= checks.TOLERANCE
    with torch.no_grad():
        exact = run(tf.DynamicCache(config=model.config))
    assert 1e-4 < checks.farthest(output, exact) < 1.0


@pytest.mark.parametrize("name", ["Mistral", "gpt-oss"])
def test_a_prompt_that_generate_reads_in_chunks(name):
    family = BY_NAME[name]
    model = family.model()
    options = {
        "attention_mask": UNPADDED,
        "prefill_chunk_size": 6,
        "max_new_tokens": 8,
        "do_sample": False,
        "disable_compile": True,
    }
    expected, words = checks.both(family, model, lambda: model.generate(IDS, **options))
    assert torch.equal(expected, words)
    with torch.no_grad(), observe(model, "log_sum_exp", layers=0) as observed:
        assert torch.equal(model.generate(IDS, **options), words)
    assert [call.q_len for call in observed.calls][:4] == [6, 6, 6, 2]


@pytest.mark.parametrize("name", ["Llama", "Gemma 2"])
def test_a_model_with_an_assistant_writes_what_it_writes_alone(name):
    family = BY_NAME[name]
    assistant = BY_NAME["GPT-2"].model()
    model = family.model()
    prompt = IDS[1:2, 1:]
    options = {"max_new_tokens": 12, "do_sample": False}
    expected, alone = checks.both(family, model, lambda: model.generate(prompt, **options))
    assert torch.equal(expected, alone)
    attach(assistant)
    with torch.no_grad(), observe(model, "log_sum_exp", layers=0) as observed:
        assisted = model.generate(prompt, assistant_model=assistant, **options)
    assert torch.equal(assisted, alone)
    # several ids of the assistant in one call
    assert max(call.q_len for call in observed.calls[1:]) > 1


def test_a_compiled_model_has_the_gradients_of_eager_attention():
    family = BY_NAME["Gemma 2"]
    model = family.shallow(1)
    expected = checks.gradients_of(family, model, "eager", padding="left")
    torch._dynamo.reset()
    run = torch.compile(model, backend="aot_eager")
    gradients = checks.gradients_of(family, model, "regard", run, "left")
    assert checks.relative(gradients, expected) <= checks.GRADIENTS


@pytest.mark.parametrize("name", ["ViT", "T5"])
def test_a_compiled_model_has_the_outputs_of_eager_attention(name):
    """Without masks, and with a bias by distance: one graph each, forward."""
    family = BY_NAME[name]
    model = family.shallow()
    inputs, unpadded = checks.inputs_of(family, "none" if name == "ViT" else "right")
    if name != "ViT":
        inputs["use_cache"] = False
    checks.use(family, model, "eager")
    graphs = []

    def counting(graph, _):
        graphs.append(sum("regard.attention" in str(node.target) for node in graph.graph.nodes))
        return graph

    with torch.no_grad():
        expected = checks.output_of(model, inputs)
        checks.use(family, model, "regard")
        layers = len(explain(model, inputs).calls)
        torch._dynamo.reset()
        run = torch.compile(model, backend=counting, fullgraph=True)
        output = checks.output_of(run, inputs)
    assert graphs == [layers]
    assert checks.farthest(output, expected, unpadded) <= checks.TOLERANCE
