"""Compiled models with replaced attention are one graph, which gives the numbers of the uncompiled model."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'regard[transformers]'")

import hugging_face_checks as checks
import torch
import transformers as tf
from hugging_face_families import BY_NAME, VOCAB
from torch._dynamo.testing import CompileCounterWithBackend
from transformers_versions import CACHE

import regard as rg
from regard import patterns as p
from regard.integrations.transformers import replace_attention

IDS = torch.randint(3, VOCAB, (3, 24), generator=torch.Generator().manual_seed(4))
LIVE = torch.ones(3, 24, dtype=torch.long)
LEFT, RIGHT = LIVE.clone(), LIVE.clone()
LEFT[0, :7] = LEFT[1, :2] = 0
RIGHT[0, -7:] = RIGHT[2, -1] = 0
STREAMING = p.CausalWindow(3) | p.Prefix(2)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def compiled(model, backend="eager"):
    return torch.compile(model, backend=backend, fullgraph=True)


@torch.no_grad()
def output(run, ids=IDS, **given):
    if isinstance(getattr(run, "_orig_mod", run), tf.T5ForConditionalGeneration):
        given["decoder_input_ids"] = IDS[:, :9]
    return run(input_ids=ids, **given)[0]


def farthest(run, model, live=LIVE, **given):
    """The largest difference, at live positions if there are outputs for them."""
    found, expected = (output(one, **given) for one in (run, model))
    return checks.farthest(found, expected, live.bool() if live.shape == expected.shape[:2] else None)


@pytest.mark.parametrize("name", ["Mistral", "BERT", "T5"])
def test_a_window_with_first_keys_is_one_graph_for_every_padding(name):
    model = BY_NAME[name].shallow()
    own = output(model)
    replace_attention(model, pattern=STREAMING)
    counter = CompileCounterWithBackend("eager")
    run, options = compiled(model, counter), {} if name == "BERT" else {"use_cache": False}
    assert farthest(run, model, **options) <= checks.TOLERANCE
    for live in (LIVE, LEFT, RIGHT):
        assert farthest(run, model, live, attention_mask=live, **options) <= checks.TOLERANCE
    assert counter.frame_count == 2, "one graph without a mask and one for every mask"
    assert checks.farthest(output(run, **options), own) > 1e-2


def test_a_pattern_that_cannot_be_moved_is_computed_where_rows_begin_at_the_first_key_and_else_refused():
    model = BY_NAME["Llama"].shallow()
    replace_attention(model, pattern="strided(4) | global_tokens(0)")
    run = compiled(model)
    for live in (LIVE, RIGHT):
        assert farthest(run, model, live, attention_mask=live, use_cache=False) <= checks.TOLERANCE
    with pytest.raises(rg.UnsupportedError, match=r"whose first keys are different.*pad on the right"):
        output(run, attention_mask=LEFT, use_cache=False)


@pytest.mark.parametrize("given", ["packed", "padding"])
def test_a_graph_checks_once_what_all_layers_share(given):
    """Each check reads a boolean, which waits for a GPU."""
    model, checked = BY_NAME["Llama"].shallow(), []

    def counting(graph, inputs):
        checked.append(sum("checked" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    replace_attention(model, pattern=STREAMING if given == "packed" else "strided(4) | global_tokens(0)")
    options = {"position_ids": torch.arange(24)[None]} if given == "packed" else {"attention_mask": LIVE[:1]}
    assert farthest(compiled(model, counting), model, ids=IDS[:1], use_cache=False, **options) <= checks.TOLERANCE
    assert model.config.num_hidden_layers > 1
    assert checked == [1]


def test_packed_documents_are_refused_by_the_graph_and_computed_by_distance():
    model, places = BY_NAME["Llama"].shallow(), torch.cat([torch.arange(10), torch.arange(14)])[None]
    with replace_attention(model, pattern=STREAMING):
        run = compiled(model)
        assert farthest(run, model, ids=IDS[:1], use_cache=False, position_ids=torch.arange(24)[None]) <= 1e-5
        with pytest.raises(rg.UnsupportedError, match="packs several documents"):
            output(run, IDS[:1], use_cache=False, position_ids=places)
    replace_attention(model, pattern="causal_window(5)")
    assert farthest(compiled(model), model, ids=IDS[:1], use_cache=False, position_ids=places) <= checks.TOLERANCE


def test_a_mask_of_pairs_is_checked_by_the_graph():
    model = BY_NAME["Llama"].shallow()
    replace_attention(model, pattern=STREAMING)
    run, pairs = compiled(model), torch.ones(3, 1, 24, 24, dtype=torch.bool).tril()
    assert farthest(run, model, attention_mask=pairs, use_cache=False) <= checks.TOLERANCE
    pairs = pairs.clone()
    pairs[0, ..., :3] = False
    with pytest.raises(rg.UnsupportedError, match="a mask of pairs and rows that begin at different keys"):
        output(run, attention_mask=pairs, use_cache=False)


def test_a_compiled_step_with_a_static_cache_reads_the_window_and_the_first_live_keys():
    model = BY_NAME["Llama"].shallow()
    replace_attention(model, pattern=STREAMING)
    found = []
    for run in (model, compiled(model)):
        cache = tf.StaticCache(model.config, max_cache_len=32)
        with torch.no_grad():
            model(IDS[:, :20], attention_mask=LEFT[:, :20], **{CACHE: cache})
            found.append([
                run(IDS[:, at : at + 1], attention_mask=LEFT[:, : at + 1], **{CACHE: cache},
                    position_ids=torch.full((3, 1), at)).logits
                for at in range(20, 24)
            ])  # fmt: skip
    assert checks.farthest(torch.cat(found[1], 1), torch.cat(found[0], 1)) <= checks.TOLERANCE


def test_gradients_of_a_compiled_model_are_those_of_the_uncompiled_one():
    model = BY_NAME["Llama"].shallow()
    replace_attention(model, pattern=STREAMING)
    gradients = []
    for run in (model, compiled(model, "aot_eager")):
        model.zero_grad()
        run(input_ids=IDS, attention_mask=LEFT, use_cache=False).logits[LEFT.bool()].square().mean().backward()
        gradients.append(torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None]))
    assert float((gradients[1] - gradients[0]).norm() / gradients[0].norm()) <= 1e-4
