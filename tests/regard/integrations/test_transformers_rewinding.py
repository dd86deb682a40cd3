"""Hybrid models go back: drafts are rejected, and caches are cropped, as if the removed positions had never been."""

import copy
import pickle
import random

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import hugging_face_checks as checks
import small_transformers as models
import torch
import transformers
from each_value import slow_except
from injections import disturbed, instructions_of
from transformers_versions import CACHE

import regard as rg
from regard.integrations.transformers import attach, detach, rewinding

if CACHE != "cache":
    pytest.skip(
        "caches of memories record their past from transformers 5.24 on", allow_module_level=True
    )

KINDS = (
    "qwen3_next",
    "qwen3_5_text",
    "olmo_hybrid",
    "kimi_linear",
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "nemotron_h",
    "zamba2",
)
EACH = ("qwen3_next", "kimi_linear", "bamba", "falcon_h1")  # of each kind of layer and cache
ALL = slow_except([*KINDS, "mamba2"], fast=(*EACH, "mamba2"))
LENGTH = 41
IDS = torch.randint(3, 98, (2, LENGTH), generator=torch.Generator().manual_seed(5))


def built(kind, seed=None):
    """A small model with its own attention; with a seed, of other weights."""
    model = models.with_memories(kind)
    model.set_attn_implementation("eager")
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.3 * torch.rand(parameter.shape, generator=generator))
    return model


def recorded_cache(model):
    cache = transformers.DynamicCache(config=model.config)
    cache.activate_past_recording()
    return cache


@torch.no_grad()
@pytest.mark.parametrize("kind", ALL)
def test_drafts_of_another_model_and_of_the_text_change_no_word(kind):
    """The draft model is a hybrid too, which goes back over tokens that it wrote one by one."""
    ids = IDS[:1, :11]
    model = built(kind)
    expected = model.generate(ids, max_new_tokens=17, do_sample=False)
    attach(model)
    # transformers asks the cache of a draft model for its length, which memories alone do not have.
    draft = attach(built("bamba" if kind == "mamba2" else kind, seed=7))
    for options in ({"assistant_model": draft}, {"prompt_lookup_num_tokens": 3}):
        written = model.generate(ids, max_new_tokens=17, do_sample=False, **options)
        assert torch.equal(written, expected), options
    with pytest.raises(ValueError, match="stateful"):
        detach(model).generate(ids, max_new_tokens=3, do_sample=False, assistant_model=draft)


def walks():
    """Walks through the text: the end of each part, with the lengths of drafts behind it that are removed."""
    draws = random.Random(11)
    for _ in range(2):
        walk = []
        stop = 0
        while stop < LENGTH:
            stop = min(LENGTH, stop + draws.choice([1, 1, 2, 5, 13]))
            walk.append((stop, draws.choice([[], [1], [3], [1, 1], [2, 1, 1]])))
        yield walk


def walked(model, walk, *, drafts):
    """The logits of the text in the parts of a walk."""
    cache = recorded_cache(model) if drafts else transformers.DynamicCache(config=model.config)
    parts = []
    start = 0
    for stop, lengths in walk:
        parts.append(model(IDS[:, start:stop], cache=cache).logits)
        start = stop
        if not drafts:
            continue
        for length in lengths:
            model(torch.full((2, length), 50 + length), cache=cache)
        cache.crop(-sum(lengths))
    return torch.cat(parts, 1)


@torch.no_grad()
@pytest.mark.parametrize("kind", ALL)
def test_a_cropped_cache_goes_on_as_if_the_removed_words_had_never_been(kind):
    model = built(kind)
    expected = [walked(model, walk, drafts=False) for walk in walks()]
    attach(model)
    for walk, theirs in zip(walks(), expected, strict=True):
        assert checks.farthest(walked(model, walk, drafts=True), theirs) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kind", EACH)
def test_a_crop_gives_the_memory_of_float64(kind):
    model = attach(built(kind).double())
    model.set_experts_implementation("eager")
    straight = recorded_cache(model)
    model(IDS[:, :29], cache=straight)
    back = recorded_cache(model)
    model(IDS, cache=back)
    back.crop(29 - LENGTH)
    compared = 0
    for ours, expected in zip(back.layers, straight.layers, strict=True):
        if isinstance(ours, rewinding.LinearAttentionLayer):
            memory, exact = ours.recurrent_states[0], expected.recurrent_states[0]
            assert float((memory - exact).abs().max()) <= 1e-12 * float(exact.abs().max())
            compared += 1
    assert compared


@torch.no_grad()
@pytest.mark.parametrize("kind", EACH)
def test_copies_files_and_other_rows_of_a_cache_go_back_too(kind):
    model = attach(built(kind))
    cache = recorded_cache(model)
    model(IDS, cache=cache)
    swapped = copy.deepcopy(cache)
    swapped.reorder_cache(torch.tensor([1, 0]))
    for other, ids in ((pickle.loads(pickle.dumps(cache)), IDS), (swapped, IDS.flip(0))):
        other.crop(-12)
        ours = model(ids[:, -12:], cache=other).logits
        straight = model(ids[:, :-12], use_cache=True).cache
        expected = model(ids[:, -12:], cache=straight).logits
        assert checks.farthest(ours, expected) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kind", EACH)
@pytest.mark.parametrize("length", [1, 7])
def test_a_cache_that_was_reset_goes_back_in_its_next_text(kind, length):
    model = attach(built(kind))
    cache = recorded_cache(model)
    model(IDS, cache=cache)
    cache.reset()
    model(IDS[:, :length], cache=cache)
    model(IDS[:, -3:], cache=cache)
    cache.crop(-3)
    ours = model(IDS[:, length:19], cache=cache).logits
    straight = model(IDS[:, :length], use_cache=True).cache
    expected = model(IDS[:, length:19], cache=straight).logits
    assert checks.farthest(ours, expected) <= 1e-5


@torch.no_grad()
def test_a_cache_refuses_to_go_back_further_than_it_recorded():
    model = attach(built("qwen3_next"))
    cache = recorded_cache(model)
    layer = cache.layers[0]
    model(IDS, cache=cache)
    cache.crop(0)
    model(IDS[:, :3], cache=cache)
    with pytest.raises(rg.UnsupportedError, match=r"at most 3 positions.* 4 are to be removed"):
        cache.crop(-4)
    cache.crop(-3)  # a refused call changed nothing of this layer
    assert layer._tape is None
    unrecorded = transformers.DynamicCache(config=model.config)
    model(IDS, cache=unrecorded)
    assert not unrecorded.is_croppable
    with pytest.raises(RuntimeError, match="activate_past_recording"):
        unrecorded.crop(-1)


@torch.no_grad()
@pytest.mark.parametrize("kind", EACH)
@pytest.mark.parametrize("length", [1, 2])
def test_words_that_another_library_computed_are_not_removed(kind, length):
    model = attach(built(kind))
    cache = recorded_cache(model)
    model(IDS, cache=cache)
    assert cache.is_croppable
    detach(model)
    model(IDS[:, :length], cache=cache)
    assert not cache.is_croppable
    with pytest.raises(rg.UnsupportedError, match="were not recorded"):
        cache.crop(-1)
    cache.crop(0)
    attach(model)
    model(IDS[:, :5], cache=cache)
    cache.crop(-5)


@torch.no_grad()
def test_a_layer_says_what_its_record_takes_and_a_crop_frees_it():
    model = attach(built("qwen3_next"))
    cache = recorded_cache(model)
    model(IDS, cache=cache)
    layer = cache.layers[0]
    memory = layer.recurrent_states[0]
    module = model.model.layers[0].linear_attn
    keys = module.num_k_heads * module.head_k_dim
    values_and_gates = module.num_v_heads * (module.head_v_dim + 2)
    expected = memory.nbytes + 4 * len(IDS) * LENGTH * (keys + values_and_gates)
    assert repr(layer).endswith(f"(41 positions recorded in {expected} bytes)")
    cache.crop(-1)
    assert repr(layer).endswith("(0 positions recorded in 0 bytes)")


@torch.no_grad()
def test_models_with_a_memory_that_regard_does_not_compute_still_refuse_drafts():
    model = attach(built("jamba"))
    assert model.outside
    with pytest.raises(ValueError, match="stateful"):
        model.generate(IDS[:1], max_new_tokens=2, do_sample=False, prompt_lookup_num_tokens=2)


def test_an_interruption_before_a_call_leaves_no_tape_for_other_calls():
    kind = rewinding._class_for(transformers.cache_utils.LinearAttentionLayer)
    layers = []
    managers = []

    def enter():
        layers.append(kind())
        managers.append(rewinding.recording(layers[-1], shifts=False))
        managers[-1].__enter__()

    def interrupt():
        raise KeyboardInterrupt

    instructions = instructions_of(enter)
    managers[-1].__exit__(None, None, None)
    assert instructions > 11
    for number in range(instructions):
        with pytest.raises(KeyboardInterrupt):
            disturbed(enter, number, interrupt)
        assert rewinding.tape_of_call.get() is None
        assert not layers[-1]._records
