"""Layers with a replaced pattern or mechanism compute eager attention's numbers of the same pairs, compiled too."""

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import torch
import transformers as tf
from hugging_face_families import BY_NAME, GENERATES, VOCAB
from torch._dynamo.testing import CompileCounterWithBackend
from transformers_versions import CACHE

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.integrations.transformers import change_attention, detach, explain

IDS = torch.randint(3, VOCAB, (3, 24), generator=torch.Generator().manual_seed(4))
STREAMING = p.CausalWindow(5) | p.Prefix(2)


def model_of(name):
    return BY_NAME[name].model()


def output(model, ids=IDS, **options):
    with torch.no_grad():
        return checks.output_of(model, {"input_ids": ids, **options})


def patterns_of(model):
    return [call.pattern for call in explain(model, IDS).calls]


def traces_in(model):
    """The attributes that regard left on modules of a model."""
    names = set()
    for module in model.modules():
        names.update(module.__dict__)
    return [name for name in names if name.startswith("_regard")]


def eager(model, allowed, ids=IDS, **options):
    """The model's own eager attention with these pairs, (q_len, k_len) or with a batch."""
    model.set_attn_implementation("eager")
    allowed = allowed.expand(len(ids), 1, *allowed.shape[-2:])
    mask = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    if isinstance(model, tf.OPTForCausalLM):  # which would count positions in the mask
        positions = torch.arange(ids.shape[1])[None].expand(len(ids), -1)
        options = {"position_ids": positions, **options}
    return output(model, ids, attention_mask=mask, **options)


BLOCKS = "sliding_window(4) | global_tokens(0) | random_blocks(2, 3, seed=1)"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("Llama", "causal_window(5) | prefix(2)"),
        ("Llama", "strided(4) | global_tokens(0)"),
        ("Qwen 3", "sliding_window(6)"),
        ("GPT-2", "strided(4) | global_tokens(0)"),
        ("GPT-NeoX", "causal_window(5) | prefix(2)"),
        ("OPT", "sliding_window(6)"),
        ("BERT", BLOCKS),
        ("ALBERT", BLOCKS),
        ("RoBERTa", "sliding_window(6) | global_tokens(0, 3)"),
        ("DistilBERT", "sliding_window(6) | global_tokens(0)"),
    ],
)
def test_a_model_computes_the_pattern_and_a_causal_one_stays_causal(name, pattern):
    model = model_of(name)
    of_model = p.Causal() if BY_NAME[name].kind == GENERATES else p.Full()
    change_attention(model, pattern=pattern)
    changed = output(model)
    detach(model)
    expected = eager(model, (p.parse(pattern) & of_model).dense(24, 24))
    assert checks.farthest(changed, expected) <= checks.TOLERANCE
    assert checks.farthest(changed, eager(model, of_model.dense(24, 24))) > 1e-2


def test_layers_are_chosen_by_number_and_by_name():
    model = model_of("Llama")
    change = change_attention(model, [0, "model.layers.2.self_attn"], pattern="causal_window(5)")
    assert change.layers == ("model.layers.0.self_attn", "model.layers.2.self_attn")
    assert patterns_of(model) == ["causal_window(5)", "causal", "causal_window(5)"]
    second = change_attention(model, 1, pattern="causal_window(3)")
    assert patterns_of(model)[1] == "causal_window(3)"
    with pytest.raises(rg.ArgumentError, match="changed already"):
        change_attention(model, pattern="causal_window(8)")
    change.undo()
    assert patterns_of(model) == ["causal", "causal_window(3)", "causal"]
    second.undo()
    assert model.config._attn_implementation == "sdpa"


def test_the_end_of_a_block_and_detach_take_everything_back():
    model = model_of("BERT")
    table = model.embeddings.position_embeddings.weight
    before = output(model)
    with change_attention(model, pattern="sliding_window(4)", length=300):
        assert checks.farthest(output(model), before) > 1e-2
    assert torch.equal(output(model), before)
    change_attention(model, pattern="sliding_window(4)", length=300)
    detach(model)
    assert torch.equal(output(model), before)
    assert model.embeddings.position_embeddings.weight is table
    assert model.config.max_position_embeddings == 128
    assert model.config._attn_implementation == "sdpa"
    assert traces_in(model) == []


@pytest.mark.parametrize("padding", ["left", "right", "holes"])
@pytest.mark.parametrize("pattern", [STREAMING, STREAMING & ~p.KeySpan(3, 5), p.CausalWindow(4)])
def test_padded_rows_compute_what_they_compute_alone(pattern, padding):
    """The first keys of a row are those behind its padding."""
    model = model_of("Llama")
    unpadded = torch.ones(3, 24, dtype=torch.bool)
    unpadded[0, :7] = False
    unpadded[1, :2] = False
    if padding == "right":
        unpadded = unpadded.flip(1)
    elif padding == "holes":
        unpadded[0, [12, 15]] = False
        unpadded[2, 9] = False
    change_attention(model, pattern=pattern)
    positions = (unpadded.long().cumsum(-1) - 1).clamp_min(0)
    together = output(model, attention_mask=unpadded.long(), position_ids=positions)
    for row in range(3):
        ids = IDS[row : row + 1]
        if padding == "holes":
            # Positions of the pattern count keys in holes; eager attention gets the pairs.
            start = int(unpadded[row].int().argmax())
            allowed = torch.zeros(24, 24, dtype=torch.bool)
            allowed[start:, start:] = (pattern & p.Causal()).dense(24 - start, 24 - start)
            allowed = (allowed & unpadded[row]) | torch.diag(~unpadded[row])
            detach(model)
            of_row = eager(model, allowed, ids, position_ids=positions[row : row + 1])
            alone = of_row[0][unpadded[row]]
            change_attention(model, pattern=pattern)
        else:
            alone = output(model, ids[:, unpadded[row]])[0]
        assert checks.farthest(together[row][unpadded[row]], alone) <= checks.TOLERANCE


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Llama", {"num_beams": 3}),
        ("Mistral", {}),
        ("gpt-oss", {}),
        ("Mistral", {"cache_implementation": "static"}),
        ("gpt-oss", {"cache_implementation": "static"}),
    ],
)
def test_caches_generate_the_tokens_of_no_cache(name, options):
    """Also where a cache drops keys before the window of the model."""
    model = model_of(name)
    unpadded = torch.ones(3, 24, dtype=torch.long)
    unpadded[0, :7] = 0
    change_attention(model, pattern=p.CausalWindow(4) | p.Prefix(3))
    options = {
        "attention_mask": unpadded,
        "max_new_tokens": 8,
        "do_sample": False,
        "disable_compile": True,
        **options,
    }
    with_cache = model.generate(IDS, **options)
    options |= {"use_cache": False, "cache_implementation": None}
    assert torch.equal(model.generate(IDS, **options), with_cache)


def gradients_of(model, **options):
    model.zero_grad()
    model(IDS, labels=IDS, **options).loss.backward()
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def test_gradients_are_those_of_eager_attention():
    model = model_of("Llama")
    change_attention(model, pattern=STREAMING)
    gradients = gradients_of(model)
    detach(model).set_attn_implementation("eager")
    allowed = (STREAMING & p.Causal()).dense(24, 24).expand(3, 1, 24, 24)
    mask = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    expected = gradients_of(model, attention_mask=mask)
    assert checks.relative(gradients, expected) <= checks.GRADIENTS


@pytest.mark.parametrize(
    ("name", "offset"), [("RoBERTa", 1), ("GPT-2", 0), ("OPT", 2), ("BART", 2)]
)
def test_tables_of_positions_are_lengthened_by_repeating_their_rows(name, offset):
    """BART's two tables, and the row for padding before the first position of RoBERTa."""
    model = model_of(name)
    names = ("position_embeddings", "embed_positions", "wpe")
    tables = [module for path, module in model.named_modules() if path.endswith(names)]
    tables = [table for table in tables if isinstance(table, torch.nn.Embedding)]
    before = [table.weight.detach().clone() for table in tables]
    count = len(before[0]) - offset
    with change_attention(model, pattern="sliding_window(8)", length=300) as change:
        assert change.length == 300
        for table, rows in zip(tables, before, strict=True):
            assert table.num_embeddings == len(table.weight) == offset + 300
            assert torch.equal(table.weight[: len(rows)], rows)
            assert torch.equal(table.weight[offset + count : offset + 2 * count], rows[offset:])
        ids = torch.randint(3, VOCAB, (2, 300))
        options = {"decoder_input_ids": ids} if name == "BART" else {}
        assert bool(output(model, ids, **options).isfinite().all())
        assert model.config.max_position_embeddings == (301 if name == "RoBERTa" else 300)
        with torch.no_grad():
            tables[0].weight[offset].fill_(7.0)  # as training would
    assert [len(table.weight) for table in tables] == [len(rows) for rows in before]
    assert bool((tables[0].weight[offset] == 7).all())


def test_a_lengthened_model_is_saved_and_loaded_by_transformers(tmp_path):
    model = model_of("BERT")
    with change_attention(model, pattern="sliding_window(4)", length=300):
        model.save_pretrained(tmp_path)
    loaded = tf.BertModel.from_pretrained(tmp_path, add_pooling_layer=False)
    assert loaded.embeddings.position_embeddings.num_embeddings == 300
    assert loaded.config.max_position_embeddings == 300


@pytest.mark.parametrize("padded", [False, True])
def test_a_linear_mechanism_computes_its_formula(padded):
    """Each layer's output is compared with the mechanism on the layer's own queries, keys and values."""
    model = model_of("Llama")
    unpadded = torch.ones(3, 24, dtype=torch.long)
    unpadded[0, :7] = 0
    change_attention(model, 1, mechanism="linear_transformer")
    options = {"attention_mask": unpadded} if padded else {}
    explained = explain(model, {"input_ids": IDS, **options})
    assert "mechanism" in explained.calls[1].options[0]
    assert explained.calls[0].options == explained.calls[2].options
    changed = output(model, **options)
    detach(model)
    tf.AttentionInterface.register("linear_oracle", linear_in_the_second_layer)
    tf.AttentionMaskInterface.register("linear_oracle", tf.masking_utils.sdpa_mask)
    model.set_attn_implementation("linear_oracle")
    assert checks.farthest(changed, output(model, **options), unpadded.bool()) <= checks.TOLERANCE


def linear_in_the_second_layer(module, q, k, v, mask, **options):
    """Katharopoulos et al. 2020, equation 4, in the second layer; eager attention in the others."""
    allowed = torch.ones(24, 24).tril().bool() if mask is None else mask
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    if module.layer_idx == 1:
        feature = torch.nn.functional.elu
        weights = (feature(q) + 1) @ (feature(k) + 1).mT * allowed
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
    else:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~allowed, torch.finfo(torch.float32).min).softmax(-1)
    return (weights @ v).transpose(1, 2).contiguous(), None


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Llama", {}, "nothing is changed"),
        ("Llama", {"pattern": "causl"}, "causl"),
        ("Llama", {"pattern": "causal", "layers": 3}, "there is no layer 3"),
        ("Llama", {"pattern": "causal", "layers": "model.layers.9"}, "no attention module"),
        ("Llama", {"pattern": "causal", "length": 999}, "rotary positions"),
        ("T5", {"pattern": "sliding_window(4)", "length": 999}, "no learned table"),
        ("Marian", {"pattern": "sliding_window(4)", "length": 999}, "computed"),
        ("BERT", {"pattern": "sliding_window(4)", "length": 128}, "128 positions already"),
        (
            "BART",
            {"pattern": "sliding_window(4)", "layers": "model.decoder.layers.0.encoder_attn"},
            "common origin",
        ),
        ("Llama", {"pattern": p.Explicit(torch.ones(4, 4).bool())}, "rows of one call"),
        ("Llama", {"pattern": p.PerHead([p.Causal()] * 3)}, "has 4 heads"),
        ("Llama", {"mechanism": m.Linformer(length=24, rank=4)}, "learned tensors"),
        ("Llama", {"mechanism": m.LSH(chunk=4, buckets=4)}, "queries that are the keys"),
        ("Llama", {"mechanism": 3}, "give a Mechanism"),
        ("Longformer", {"pattern": "sliding_window(4)"}, "attention_window"),
        ("Falcon", {"pattern": "sliding_window(4)"}, "does not call registered attention"),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_changes_nothing(name, options, words):
    model = model_of(name)
    before = model.config._attn_implementation
    with pytest.raises(rg.RegardError, match=words):
        change_attention(model, **options)
    assert model.config._attn_implementation == before
    assert traces_in(model) == []


def test_calls_whose_positions_are_unknown_are_refused():
    model = model_of("Llama")
    change_attention(model, pattern="causal_window(4) | global_tokens(1)")
    unpadded = torch.ones(3, 24, dtype=torch.long)
    unpadded[0, :7] = 0
    with pytest.raises(rg.UnsupportedError, match="pad on the right"):
        output(model, attention_mask=unpadded)
    packed = torch.cat([torch.arange(10), torch.arange(14)]).expand(3, -1)
    with pytest.raises(rg.UnsupportedError, match="packs several documents"):
        output(model, position_ids=packed, use_cache=False)
    cache = tf.DynamicCache(config=model.config)
    output(model, IDS[:, :20], **{CACHE: cache})
    with pytest.raises(rg.UnsupportedError, match="from which positions count"):
        output(model, IDS[:, 20:], **{CACHE: cache}, attention_mask=torch.ones(3, 1, 4, 24).bool())


def test_packed_documents_take_a_window():
    model = model_of("Llama")
    change_attention(model, pattern="causal_window(4)")
    positions = torch.cat([torch.arange(10), torch.arange(14)]).expand(3, -1)
    packed = output(model, position_ids=positions, use_cache=False)
    assert checks.farthest(packed[:, 10:], output(model, IDS[:, 10:])) <= checks.TOLERANCE


PATTERNS = [
    p.Causal(),
    p.CausalWindow(3),
    p.Strided(3),
    p.Prefix(4),
    p.KeySpan(2, 5),
    ~p.Prefix(3),
    p.SameBlock(4),
    p.GlobalTokens([0, 5]),
    p.CausalWindow(3) | p.Prefix(2),
    p.PerHead([p.Prefix(2), p.Causal()]),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_a_moved_pattern_allows_the_pairs_counted_from_its_origin(pattern):
    for origin in (-3, 0, 3, 5):
        moved = pattern.moved((origin,))
        positions = torch.arange(max(0, origin), 14)
        q = positions[:, None]
        k = positions[None]
        assert torch.equal(moved.allows(q, k), pattern.allows(q - origin, k - origin))


def test_a_pattern_moved_by_row_has_the_pairs_of_each_row():
    pattern = (p.CausalWindow(3) | p.Prefix(2)) & ~p.KeySpan(4, 6)
    moved = pattern.moved((0, 3, 5))
    for row, origin in enumerate((0, 3, 5)):
        ours = moved.for_row(row).dense(14, 14)[origin:, origin:]
        assert torch.equal(ours, pattern.dense(14 - origin, 14 - origin))
    assert p.GlobalTokens([1]).moved((0, 3)) is None
    assert p.Fixed(4).moved((3,)) is None
    assert p.Fixed(4).moved((4,)) == p.Fixed(4)


UNPADDED = torch.ones(3, 24, dtype=torch.long)
LEFT = UNPADDED.clone()
RIGHT = UNPADDED.clone()
LEFT[0, :7] = 0
LEFT[1, :2] = 0
RIGHT[0, -7:] = 0
RIGHT[2, -1] = 0
NEAR = p.CausalWindow(3) | p.Prefix(2)


def compiled(model, backend="eager"):
    torch._dynamo.reset()
    return torch.compile(model, backend=backend, fullgraph=True)


def farthest(run, model, unpadded=UNPADDED, **options):
    """The largest difference, at unpadded positions if there are outputs for them."""
    compiled_output = output(run, **options)
    expected = output(model, **options)
    compared = unpadded.bool() if unpadded.shape == expected.shape[:2] else None
    return checks.farthest(compiled_output, expected, compared)


def test_a_window_with_first_keys_is_one_graph_for_every_padding():
    model = BY_NAME["Mistral"].shallow(1)
    before = output(model)
    change_attention(model, pattern=NEAR)
    counter = CompileCounterWithBackend("eager")
    run = compiled(model, counter)
    options = {"use_cache": False}
    assert farthest(run, model, **options) <= checks.TOLERANCE
    for unpadded in (UNPADDED, LEFT, RIGHT):
        assert (
            farthest(run, model, unpadded, attention_mask=unpadded, **options) <= checks.TOLERANCE
        )
    assert counter.frame_count == 2, "one graph without a mask and one for every mask"
    assert checks.farthest(output(run, **options), before) > 1e-2


def test_a_pattern_that_cannot_be_moved_is_computed_where_rows_begin_at_the_first_key_and_else_refused():
    model = BY_NAME["Llama"].shallow(1)
    change_attention(model, pattern="strided(4) | global_tokens(0)")
    run = compiled(model)
    for unpadded in (UNPADDED, RIGHT):
        assert (
            farthest(run, model, unpadded, attention_mask=unpadded, use_cache=False)
            <= checks.TOLERANCE
        )
    with pytest.raises(
        rg.UnsupportedError, match=r"whose first keys are different.*pad on the right"
    ):
        output(run, attention_mask=LEFT, use_cache=False)


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        (NEAR, {"position_ids": torch.arange(24)[None]}),
        ("strided(4) | global_tokens(0)", {"attention_mask": UNPADDED[:1]}),
    ],
    ids=["packed", "padding"],
)
def test_a_graph_checks_once_what_all_layers_share(pattern, options):
    """Each check reads a boolean, which waits for a GPU."""
    model = BY_NAME["Llama"].shallow()
    checked = []

    def counting(graph, inputs):
        checked.append(sum("checked" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    change_attention(model, pattern=pattern)
    options = {"ids": IDS[:1], "use_cache": False, **options}
    assert farthest(compiled(model, counting), model, **options) <= checks.TOLERANCE
    assert model.config.num_hidden_layers > 1
    assert checked == [1]


def test_packed_documents_are_refused_by_the_graph_and_computed_by_distance():
    model = BY_NAME["Llama"].shallow(1)
    options = {"ids": IDS[:1], "use_cache": False}
    one_document = torch.arange(24)[None]
    two_documents = torch.cat([torch.arange(10), torch.arange(14)])[None]
    with change_attention(model, pattern=NEAR):
        run = compiled(model)
        assert farthest(run, model, position_ids=one_document, **options) <= 1e-5
        with pytest.raises(rg.UnsupportedError, match="packs several documents"):
            output(run, position_ids=two_documents, **options)
    change_attention(model, pattern="causal_window(5)")
    run = compiled(model)
    assert farthest(run, model, position_ids=two_documents, **options) <= checks.TOLERANCE


def test_a_compiled_step_with_a_static_cache_reads_the_window_and_the_first_unpadded_keys():
    model = BY_NAME["Llama"].shallow(1)
    change_attention(model, pattern=NEAR)
    expected = logits_of_steps(model, model)
    assert checks.farthest(logits_of_steps(model, compiled(model)), expected) <= checks.TOLERANCE


@torch.no_grad()
def logits_of_steps(model, run):
    cache = tf.StaticCache(model.config, max_cache_len=32)
    model(IDS[:, :20], attention_mask=LEFT[:, :20], **{CACHE: cache})
    steps = []
    for position in range(20, 24):
        options = {
            "attention_mask": LEFT[:, : position + 1],
            "position_ids": torch.full((3, 1), position),
            CACHE: cache,
        }
        steps.append(run(IDS[:, position : position + 1], **options).logits)
    return torch.cat(steps, 1)


def test_gradients_of_a_compiled_model_are_those_of_the_uncompiled_one():
    model = BY_NAME["Llama"].shallow(1)
    change_attention(model, pattern=NEAR)
    gradients = []
    for run in (model, compiled(model, "aot_eager")):
        model.zero_grad()
        logits = run(input_ids=IDS, attention_mask=LEFT, use_cache=False).logits
        logits[LEFT.bool()].square().mean().backward()
        of_parameters = [x.grad.flatten() for x in model.parameters() if x.grad is not None]
        gradients.append(torch.cat(of_parameters))
    expected, of_compiled = gradients
    assert float((of_compiled - expected).norm() / expected.norm()) <= 1e-4
