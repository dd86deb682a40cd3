"""A cache that keeps a window and the sinks gives the numbers of a cache that keeps all keys, and is as small."""

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import torch
import transformers as tf
from hugging_face_families import BY_NAME
from transformers_versions import CACHE

import regard as rg
from regard import patterns as p
from regard.integrations.transformers import attach, change_attention
from regard.integrations.transformers.window_cache import WindowLayer
from regard.patterns.dropping import kept_keys

IDS = torch.randint(3, 99, (3, 60), generator=torch.Generator().manual_seed(8))
SINKS = p.CausalWindow(6) | p.Prefix(2)


def attention_mask(padding, length):
    mask = torch.ones(3, length, dtype=torch.long)
    for row, count in enumerate(padding):
        mask[row, :count] = 0
    return mask


@torch.no_grad()
def logits(model, cache, padding, parts):
    outputs = []
    start = 0
    for size in parts:
        stop = start + size
        mask = attention_mask(padding, stop) if any(padding) else None
        outputs.append(model(IDS[:, start:stop], attention_mask=mask, **{CACHE: cache}).logits)
        start = stop
    return torch.cat(outputs, 1)


def entries(cache):
    return [layer.keys.shape[2] for layer in cache.layers]


def kinds_of(cache):
    return [type(layer).__name__ for layer in cache.layers]


@pytest.mark.parametrize(
    ("pattern", "padding", "parts"),
    [
        (SINKS, (0, 0, 0), (10, *[1] * 40)),
        (SINKS, (4, 0, 1), (12, 5, 1, 1, 9, *[1] * 12, 2, 1)),
        (p.CausalWindow(6), (4, 0, 1), (5, *[1] * 30)),
        (p.CausalWindow(7) | p.Prefix(5), (4, 0, 1), (10, *[1] * 40)),
        (p.CausalWindow(7) | p.Prefix(5), (0, 0, 0), (5, *[1] * 30)),
    ],
)
def test_decoding_gives_the_numbers_of_the_whole_cache_and_of_no_cache(pattern, padding, parts):
    model = BY_NAME["Llama"].model()
    with change_attention(model, pattern=pattern) as change:
        whole = tf.DynamicCache()
        small = change.new_cache(attention_mask(padding, parts[0]))
        expected = logits(model, whole, padding, parts)
        output = logits(model, small, padding, parts)
        at_once = logits(model, None, padding, (sum(parts),))
    unpadded = attention_mask(padding, sum(parts)).bool()
    assert checks.farthest(output, expected, unpadded) <= 1e-5
    assert checks.farthest(output, at_once, unpadded) <= 1e-5
    first, window = kept_keys(pattern)
    assert max(entries(small)) <= first + max(padding) + window
    assert entries(whole) == [sum(parts)] * 3
    assert small.get_seq_length() == sum(parts)


def test_the_room_is_that_of_the_window():
    model = BY_NAME["Llama"].model()
    with change_attention(model, pattern=SINKS) as change:
        cache = change.new_cache()
        logits(model, cache, (0, 0, 0), (10, *[1] * 50))
    rooms = {
        layer.keys.untyped_storage().nbytes() // layer.keys[:, :, :1].nbytes
        for layer in cache.layers
    }
    # sinks, the window without the query's own, and the least spare room
    assert rooms == {2 + 5 + 16}


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}])
def test_generate_writes_the_same_tokens(options):
    model = BY_NAME["Llama"].model()
    prompt = IDS[:, :12]
    mask = attention_mask((3, 0, 1), 12)
    options = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False, **options}
    with change_attention(model, pattern=SINKS) as change:
        torch.manual_seed(0)
        expected = model.generate(prompt, **options)
        torch.manual_seed(0)
        cache = change.new_cache(mask)
        assert torch.equal(model.generate(prompt, **{CACHE: cache}, **options), expected)
    assert max(entries(cache)) <= 3 + 2 + 6


def test_layers_with_a_window_of_their_own_and_layers_that_stay_keep_their_kind():
    model = BY_NAME["Gemma 3"].model()
    with change_attention(model, layers=[1], pattern=SINKS) as change:
        cache = change.new_cache()
        windowed = "DynamicSlidingWindowLayer"
        assert kinds_of(cache) == [windowed, "WindowLayer", windowed]
        parts = (9, *[1] * 30)
        expected = logits(model, tf.DynamicCache(config=model.config), (0, 0, 0), parts)
        assert checks.farthest(logits(model, cache, (0, 0, 0), parts), expected) <= 1e-5
    with change_attention(BY_NAME["Llama"].model(), layers=[1], pattern=SINKS) as change:
        assert kinds_of(change.new_cache()) == ["DynamicLayer", "WindowLayer", "DynamicLayer"]


def test_a_cache_of_an_inference_block_is_used_outside_of_it():
    model = BY_NAME["Llama"].model()
    with change_attention(model, pattern=SINKS) as change:
        cache = change.new_cache()
        with torch.inference_mode():
            logits(model, cache, (0, 0, 0), (9, *[1] * 9))
        with torch.no_grad():
            output = model(IDS[:, 18:19], **{CACHE: cache}).logits
            expected = model(IDS[:, :19]).logits[:, -1:]
    assert checks.farthest(output, expected) <= 1e-5


def test_what_a_cache_cannot_keep_is_refused():
    model = BY_NAME["Llama"].model()
    with (
        change_attention(model, pattern="strided(4)") as change,
        pytest.raises(rg.UnsupportedError, match="any"),
    ):
        change.new_cache()
    windowed = change_attention(BY_NAME["Mistral"].model(), pattern=SINKS)
    with pytest.raises(rg.UnsupportedError, match="none to drop"):
        windowed.new_cache()
    translating = change_attention(BY_NAME["BART"].model(), layers=[0], pattern=p.CausalWindow(4))
    with pytest.raises(rg.UnsupportedError, match="two sequences"):
        translating.new_cache()
    with change_attention(model, pattern=SINKS) as change:
        cache = change.new_cache()  # without the padding of the rows
        with pytest.raises(rg.UnsupportedError, match=r"new_cache\(attention_mask"):
            logits(model, cache, (4, 0, 1), (10, 1))
        cache = change.new_cache()
        logits(model, cache, (0, 0, 0), (10, 1))
        with pytest.raises(rg.UnsupportedError, match="cannot go back"):
            cache.layers[0].crop(-1)
        holes = torch.ones(3, 12, dtype=torch.long).index_fill(1, torch.tensor([9]), 0)
        with torch.no_grad(), pytest.raises(rg.UnsupportedError, match="positions are not known"):
            model(IDS[:, :1], attention_mask=holes, **{CACHE: cache})
    attach(model)
    # the pattern is gone, the cache is not
    with pytest.raises(rg.ShapeError, match="another layer or cache"):
        logits(model, cache, (0, 0, 0), (1,))


def test_crop_removes_entries_while_all_are_there():
    layer = WindowLayer(2, 8)
    layer.update(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
    layer.crop(-2)
    assert (layer.get_seq_length(), layer.keys.shape[2]) == (3, 3)


@pytest.mark.parametrize("held", [5, 13])
@torch.no_grad()
def test_entries_of_other_texts_are_refused_and_change_nothing(held):
    """Also where a step would slide the window in place."""
    layer = WindowLayer(first=2, window=6)
    for entry in torch.randn(held, 2, 3, 1, 4):
        layer.update(entry, entry)
    before = layer.keys.clone()
    for rows in (1, 3):
        entry = torch.randn(rows, 3, 1, 4)
        with pytest.raises(rg.ShapeError, match=f"entries of 2 texts, and this call has {rows};"):
            layer.update(entry, entry)
    assert layer.get_seq_length() == held
    assert torch.equal(layer.keys, before)
