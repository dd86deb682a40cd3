"""Models of transformers give the same numbers through regard, also in hard cases; with `-m slow` all families."""

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import hugging_face_sweep as sweep
import torch
import transformers as tf
from hugging_face_families import BY_NAME, SIZES, VOCAB
from transformers_versions import CACHE

import regard as rg
from regard.integrations.transformers import attach, detach, explain, observe

QUICK = (
    "Mistral",
    "Gemma 2",
    "gpt-oss",
    "Llama 4",
    "BERT",
    "ModernBERT",
    "Longformer",
    "LED",
    "BigBird",
    "Bloom",
    "MPNet",
    "T5",
    "Falcon",
)
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BY_NAME]


@pytest.mark.parametrize("name", EVERY)
def test_a_family_is_as_its_status_says(name):
    assert checks.faults(checks.row(BY_NAME[name])) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_no_architecture_is_wrong_and_none_is_lost(part):
    """Those that transformers can build small; what was equal when the report was made still is."""
    known = sweep.committed()
    rows = [sweep.row(kind) for kind in sweep.architectures()[part::16]]
    assert [row for row in rows if row["status"] == sweep.WRONG] == []
    held = (sweep.EQUAL, sweep.PARTLY)
    lost = [
        row
        for row in rows
        if known.get(row["type"], row)["status"] in held and row["status"] not in held
    ]
    assert lost == []


def test_the_report_of_architectures_holds_none_that_is_wrong():
    statuses = [row["status"] for row in sweep.committed().values()]
    assert sweep.WRONG not in statuses
    assert sum(status in (sweep.EQUAL, sweep.PARTLY) for status in statuses) >= 300


@pytest.mark.parametrize("kind", ["mpt", "deberta", "deberta-v2", "wavlm", "trocr"])
def test_models_that_add_a_bias_of_their_own_are_equal_with_padding_and_go_back(kind):
    row = sweep.row(kind)
    assert (row["status"], row["outside"]) == (sweep.EQUAL, [])
    assert row["calls"] >= 2
    model = attach(sweep.small.built(kind))
    ours = [one for one in model.modules() if type(one).__module__.endswith("transformers.biased")]
    assert len(ours) >= 2
    detach(model)
    assert not any(type(one).__module__.startswith("regard") for one in ours)


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
    inputs, live = checks.inputs_of(family, padding)
    inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
    for place in marks:
        inputs["global_attention_mask"][place] = 1
    expected, found = checks.both(family, model, lambda: checks.output_of(model, inputs))
    assert checks.farthest(found, expected, live) <= checks.TOLERANCE


@pytest.mark.parametrize("length", [14, 67])
def test_big_birds_blocks(length):
    """Short inputs change its type of attention; 67 is padded to whole blocks."""
    settings = {**SIZES, "max_position_embeddings": 256, "block_size": 4, "num_random_blocks": 2}
    ids = torch.randint(3, 99, (4, length))
    live = torch.ones(4, length, dtype=torch.long)
    live[0, :5], live[1, -7:], live[2, [3, 9]] = 0, 0, 0
    outputs = []
    for ours in (False, True):
        torch.manual_seed(1)
        model = tf.BigBirdModel(
            tf.BigBirdConfig(**settings, initializer_range=0.1), add_pooling_layer=False
        ).eval()
        model = attach(model, replace=True) if ours else model
        with torch.no_grad():
            outputs.append(model(ids, attention_mask=live).last_hidden_state)
    assert checks.farthest(*outputs, live.bool()) <= checks.TOLERANCE
    assert model.encoder.attention_type == ("original_full" if length == 14 else "block_sparse")
    assert type(model.encoder.layer[0].attention.self).__name__.startswith("RegardBigBird")
    if length > 14:
        with pytest.raises(rg.UnsupportedError, match="random blocks"):
            model.train()(ids)


@pytest.mark.parametrize("kind", ["BigBird", "Falcon", "LED"])
def test_a_model_with_replaced_modules_reads_its_cache(kind):
    """Its keyword differs between versions of transformers, and an unknown keyword is no reason to forget the keys."""
    if kind == "BigBird":
        model = tf.BigBirdForCausalLM(
            tf.BigBirdConfig(
                **SIZES, is_decoder=True, attention_type="original_full", initializer_range=0.3
            )
        )
    elif kind == "Falcon":
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.3}
        model = tf.FalconForCausalLM(
            tf.FalconConfig(vocab_size=99, hidden_size=32, alibi=False, **sizes)
        )
    else:
        model = BY_NAME["LED"].model()
    model = model.eval()
    ids = torch.randint(3, 99, (2, 13))
    given, name = ({"input_ids": ids}, "decoder_input_ids") if kind == "LED" else ({}, "input_ids")
    outputs = []
    for ours in (False, True):
        model = attach(model, replace=True) if ours else model
        with torch.no_grad():
            cache = model(**given, **{name: ids[:, :7]}, use_cache=True)[CACHE]
            outputs.append(model(**given, **{name: ids[:, 7:], CACHE: cache}).logits)
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
        found = attach(model)(ids).logits
    assert float((found - expected).abs().max()) <= 1e-5
    assert (model.outside, model.unchecked, len(explain(model, {"input_ids": ids}).calls)) == (
        {},
        (),
        3,
    )


IDS = torch.randint(3, VOCAB, (3, 20), generator=torch.Generator().manual_seed(8))
LIVE = torch.ones(3, 20, dtype=torch.long)
LIVE[0, :6], LIVE[1, :1] = 0, 0


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
        for start in (0, 8, 14):  # the second part is quantised, the third reads what was stored
            part = slice(start, {0: 8, 8: 14, 14: 20}[start])
            logits = model(
                IDS[:, part], attention_mask=LIVE[:, : part.stop], **{CACHE: cache}
            ).logits
        return logits

    expected, found = checks.both(family, model, lambda: run(quantised(model)))
    assert checks.farthest(found, expected) <= checks.TOLERANCE
    with torch.no_grad():
        exact = run(tf.DynamicCache(config=model.config))
    assert 1e-4 < checks.farthest(found, exact) < 1.0


@pytest.mark.parametrize("name", ["Mistral", "gpt-oss"])
def test_a_prompt_that_generate_reads_in_chunks(name):
    family = BY_NAME[name]
    model = family.model()
    given = {
        "attention_mask": LIVE,
        "max_new_tokens": 8,
        "do_sample": False,
        "disable_compile": True,
    }
    expected, found = checks.both(
        family, model, lambda: model.generate(IDS, prefill_chunk_size=6, **given)
    )
    assert torch.equal(expected, found)
    with torch.no_grad(), observe(model, "log_sum_exp", layers=0) as observed:
        whole = model.generate(IDS, prefill_chunk_size=6, **given)
    assert torch.equal(whole, found)
    assert [call.q_len for call in observed.calls][:4] == [6, 6, 6, 2]


@pytest.mark.parametrize("name", ["Llama", "Gemma 2"])
def test_a_model_with_an_assistant_writes_what_it_writes_alone(name):
    family = BY_NAME[name]
    assistant = BY_NAME["GPT-2"].model()
    model = family.model()
    given = {"max_new_tokens": 12, "do_sample": False}
    alone, found = checks.both(family, model, lambda: model.generate(IDS[1:2, 1:], **given))
    assert torch.equal(alone, found)
    attach(assistant)
    with torch.no_grad(), observe(model, "log_sum_exp", layers=0) as observed:
        assisted = model.generate(IDS[1:2, 1:], assistant_model=assistant, **given)
    assert torch.equal(assisted, alone)
    # several ids of the assistant in one call
    assert max(call.q_len for call in observed.calls[1:]) > 1


def test_a_compiled_model_has_the_gradients_of_eager_attention():
    family = BY_NAME["Gemma 2"]
    model = family.shallow()
    expected = checks.gradients_of(family, model, "eager", padding="left")
    torch._dynamo.reset()
    found = checks.gradients_of(
        family, model, "regard", torch.compile(model, backend="aot_eager"), "left"
    )
    assert checks.relative(found, expected) <= checks.GRADIENTS


@pytest.mark.parametrize("name", ["ViT", "T5"])
def test_a_compiled_model_has_the_outputs_of_eager_attention(name):
    """Without masks, and with a bias by distance: one graph each, forward."""
    family = BY_NAME[name]
    model = family.model()
    inputs, live = checks.inputs_of(
        family, "right" if "right" in checks.paddings_of(family) else "none"
    )
    given = inputs | ({} if name == "ViT" else {"use_cache": False})
    checks.use(family, model, "eager")
    graphs = []

    def counting(graph, _):
        graphs.append(sum("regard.attention" in str(node.target) for node in graph.graph.nodes))
        return graph

    with torch.no_grad():
        expected = checks.output_of(model, given)
        checks.use(family, model, "regard")
        layers = len(explain(model, given).calls)
        torch._dynamo.reset()
        found = checks.output_of(torch.compile(model, backend=counting, fullgraph=True), given)
    assert graphs == [layers]
    assert checks.farthest(found, expected, live) <= checks.TOLERANCE
