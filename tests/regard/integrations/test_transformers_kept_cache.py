"""`keep_entries` against attention in plain PyTorch that hides the dropped keys."""

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.masking_utils import eager_mask
from transformers_versions import CACHE

from regard.errors import ArgumentError, UnsupportedError
from regard.integrations.transformers import attach, keep_entries, observe
from regard.layers.caches import heavy_hitters

PROMPT = 11
LATER = 5
IDS = torch.randint(1, 40, (2, PROMPT + LATER), generator=torch.Generator().manual_seed(3))


def model_of(sliding: bool = False):
    torch.manual_seed(1)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    sizes |= {"num_key_value_heads": 2, "vocab_size": 40, "max_position_embeddings": 64}
    if sliding:
        config = transformers.MistralConfig(**sizes, sliding_window=6)
        return transformers.MistralForCausalLM(config).double().eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).double().eval()


def logits_with_hidden(model, ids, kept):
    """The logits where queries after the prompt look at the kept keys of it alone, by the formula of attention."""

    def hiding(module, q, k, v, mask, scaling, **others):
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        scores = q @ k.mT * scaling + mask[..., : k.shape[2]]
        positions = kept[module.layer_idx]
        if positions is not None:
            positions = positions.expand(2, 2, -1)  # (batch, kv_heads, count)
            is_kept = torch.zeros(2, 2, PROMPT, dtype=torch.bool).scatter(-1, positions, True)
            is_dropped = ~is_kept.repeat_interleave(2, 1)[:, :, None]
            scores[:, :, PROMPT:, :PROMPT].masked_fill_(is_dropped, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    AttentionInterface.register("hiding", hiding)
    AttentionMaskInterface.register("hiding", eager_mask)
    model.set_attn_implementation("hiding")
    return model(ids).logits


BY_HEAD = torch.tensor([[[0, 2, 9, 10], [3, 4, 5, 10]], [[1, 2, 3, 4], [0, 5, 9, 10]]])


@pytest.mark.parametrize(
    "second", [torch.tensor([0, 1, 7]), None], ids=["both layers", "one layer"]
)
@torch.no_grad()
def test_a_model_goes_on_as_if_the_dropped_keys_were_hidden(second):
    kept = [BY_HEAD, second]
    expected = logits_with_hidden(model_of(), IDS, kept)
    model = attach(model_of())
    cache = model(IDS[:, :PROMPT], use_cache=True)[CACHE]
    keep_entries(cache, kept)
    assert cache.get_seq_length() == PROMPT
    with observe(model, "received") as observed:
        logits = [
            model(IDS[:, start:stop], **{CACHE: cache}).logits
            for start, stop in ((11, 12), (12, 15), (15, 16))
        ]
    torch.testing.assert_close(torch.cat(logits, 1), expected[:, PROMPT:], rtol=0, atol=1e-12)
    received = observed[0][-1].received
    assert received.shape == (2, 4, PROMPT + LATER)
    assert received[0, 0].nonzero().flatten().tolist() == [0, 2, 9, 10, 11, 12, 13, 14, 15]


KEPT = torch.tensor([0, 4, 5, 10])


def kept_cache(model, prompt, **options):
    """The cache of a prompt, of which the entries KEPT are left."""
    cache = model(prompt, use_cache=True, **options)[CACHE]
    keep_entries(cache, KEPT)
    return cache


@torch.no_grad()
def test_a_padded_row_goes_on_as_it_does_alone():
    """Alone it has its own positions: rotary angles are of float32."""
    model = attach(model_of())
    mask = torch.ones(2, PROMPT + 1, dtype=torch.long)
    mask[1, :3] = 0
    cache = kept_cache(model, IDS[:, :PROMPT], attention_mask=mask[:, :PROMPT])
    last = IDS[:, PROMPT : PROMPT + 1]
    output = model(last, attention_mask=mask, **{CACHE: cache}).logits
    for row, first in ((0, 0), (1, 3)):
        places = torch.arange(PROMPT + 1)[None, first:]
        prompt = IDS[row : row + 1, first:PROMPT]
        single = model(prompt, position_ids=places[:, :-1], use_cache=True)[CACHE]
        keep_entries(single, KEPT[KEPT >= first] - first)
        options = {"position_ids": places[:, -1:], CACHE: single}
        alone = model(last[row : row + 1], **options).logits
        torch.testing.assert_close(output[row : row + 1], alone, rtol=0, atol=1e-12)


@torch.no_grad()
def test_beams_and_generate_go_on_and_a_crop_counts_the_text():
    model = attach(model_of())
    cache = kept_cache(model, IDS[:, :PROMPT])
    cache.reorder_cache(torch.tensor([1, 1]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    text = IDS[[1, 1], : PROMPT + 1]
    written = model.generate(text, **{CACHE: cache}, max_new_tokens=4, do_sample=False)

    cache = kept_cache(model, text[:, :PROMPT])
    following = text[:, PROMPT:]
    steps = []
    for _ in range(4):
        following = model(following, **{CACHE: cache}).logits[:, -1:].argmax(-1)
        steps.append(following)
    assert torch.equal(written[:, PROMPT + 1 :], torch.cat(steps, 1))

    keep_entries(cache, torch.tensor([0, 10, 14]))
    cache.crop(-1)
    assert (cache.get_seq_length(), cache.layers[1].keys.shape[2]) == (14, 2)


def test_heavy_hitters_of_observed_weights_are_kept():
    model = attach(model_of())
    with torch.no_grad(), observe(model, "received") as observed:
        cache = model(IDS[:, :PROMPT], use_cache=True)[CACHE]
    chosen = [
        heavy_hitters(observed[layer][0].received, 4, kv_heads=2, recent=1) for layer in range(2)
    ]
    keep_entries(cache, chosen)
    assert torch.equal(cache.layers[1].entries.positions, chosen[1])
    for kv_head in range(2):
        summed = observed[1][0].received[0, 2 * kv_head : 2 * kv_head + 2].sum(0)[: PROMPT - 1]
        heaviest = sorted(summed.topk(3).indices.tolist())
        assert chosen[1][0, kv_head].tolist() == [*heaviest, PROMPT - 1]


def test_what_is_no_plain_cache_is_refused():
    model = attach(model_of(sliding=True))
    with torch.no_grad():
        cache = model(IDS[:, :PROMPT], use_cache=True)[CACHE]
    with pytest.raises(
        UnsupportedError, match="layer 0 of this cache is DynamicSlidingWindowLayer"
    ):
        keep_entries(cache, torch.tensor([0]))
    with pytest.raises(ArgumentError, match="cache"):
        keep_entries((1, 2), torch.tensor([0]))
    model = attach(model_of())
    with torch.no_grad():
        cache = model(IDS[:, :PROMPT], use_cache=True)[CACHE]
        with pytest.raises(ArgumentError, match="for all 2 layers, or a list with one for each"):
            keep_entries(cache, [torch.tensor([0])])
        with pytest.raises(ArgumentError, match="keep: 11 is not a position of this text"):
            keep_entries(cache, [torch.tensor([0]), torch.tensor([PROMPT])])
        assert [type(layer).__name__ for layer in cache.layers] == ["DynamicLayer"] * 2
    with pytest.raises(ArgumentError, match="holds no entries yet"):
        keep_entries(DynamicCache(config=model.config), torch.tensor([0]))
