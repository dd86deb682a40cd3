"""Layers that share a mask with an earlier one: their numbers, and that whatever looks at a call still sees it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import GPT2Config, GPT2Model, masking_utils

import regard.integrations.transformers.attending as attending
from regard.backends.native.library import Library
from regard.functional.repeated import REPEATED
from regard.integrations.transformers import attach, change_attention, observe
from regard.integrations.transformers.masks import regard_mask

BATCH = 2
HEADS = 3
DIM = 5
SCALE = 0.37
# By name: q_len, k_len, the mask function, unpadded keys, and whether there is a bias.
UNPADDED = torch.tensor([[1] * 11, [0] * 3 + [1] * 8]).bool()
HOLES = torch.tensor([[1] * 11, [1, 0] * 5 + [1]]).bool()
CASES = {
    "a text": (11, 11, "bidirectional", None, False),
    "a step": (1, 11, "causal", None, False),
    "steps": (2, 11, "causal", None, False),
    "a long text": (19, 19, "causal", None, False),
    "padding": (11, 11, "bidirectional", UNPADDED, False),
    "a padded step": (1, 11, "causal", UNPADDED, False),
    "holes": (11, 11, "bidirectional", HOLES, False),
    "a step with a bias": (1, 11, "causal", None, True),
    "a text with a bias": (19, 19, "bidirectional", None, True),
    "a padded step with a bias": (1, 11, "causal", UNPADDED, True),
}


class Layer(nn.Module):
    """A module that calls attention."""


class LayerTensors:
    """The tensors of one layer's call, whose mask is new, and what formulas give for it."""

    def __init__(self, name, seed=0, k_len=None, dtype=torch.float64):
        q_len, known_k_len, kind, self.unpadded, has_bias = CASES[name]
        self.kind = kind
        self.q_len = q_len
        self.k_len = k_len or known_k_len
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator, dtype=dtype)

        self.q = draw(BATCH, q_len, HEADS, DIM).transpose(1, 2)
        self.k = draw(BATCH, HEADS, self.k_len, DIM)
        self.v = draw(BATCH, HEADS, self.k_len, DIM)
        # As T5 makes it: the heads are the last axis in memory.
        self.bias = draw(q_len, self.k_len, HEADS).permute(2, 0, 1)[None] if has_bias else None

    def mask(self):
        function = getattr(masking_utils, f"{self.kind}_mask_function")
        start = self.k_len - self.q_len
        return regard_mask(
            BATCH,
            self.q_len,
            self.k_len,
            start,
            mask_function=function,
            attention_mask=self.unpadded,
            dtype=self.q.dtype,
        )

    def attend(self, mask, module=None, **options):
        if self.bias is not None:
            options["position_bias"] = self.bias
        output, _ = attending.regard_attention(
            module or Layer(), self.q, self.k, self.v, mask, scaling=SCALE, **options
        )
        return output

    def expected(self):
        """The same by softmax, (batch, q_len, heads, dim)."""
        scores = self.q @ self.k.mT * SCALE
        if self.bias is not None:
            scores = scores + self.bias
        i = torch.arange(self.q_len)[:, None] + self.k_len - self.q_len
        j = torch.arange(self.k_len)
        allowed = (j <= i) if self.kind == "causal" else (j == j)[None]
        if self.unpadded is not None:
            allowed = allowed & self.unpadded[:, None, None]
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0)
        return (weights @ self.v).transpose(1, 2)


@pytest.fixture
def usual(monkeypatch):
    """How many calls took the usual way."""
    calls = []
    whole = attending.attention

    def counted(q, k, v, **options):
        calls.append(q.shape)
        return whole(q, k, v, **options)

    monkeypatch.setattr(attending, "attention", counted)
    return calls


def warm(name, k_len=None, times=3):
    """Calls of earlier forward passes, each with a mask of its own."""
    for seed in range(times):
        tensors = LayerTensors(name, seed, k_len)
        mask = tensors.mask()
        tensors.attend(mask)
        tensors.attend(mask)


@pytest.mark.parametrize("name", CASES)
def test_layers_of_one_mask_have_the_numbers_of_softmax_and_only_the_first_takes_the_usual_way(
    name, usual
):
    warm(name)
    mask = LayerTensors(name).mask()
    for layer in range(4):
        usual.clear()
        tensors = LayerTensors(name, 100 + layer)
        output = tensors.attend(mask)
        torch.testing.assert_close(output, tensors.expected(), rtol=1e-12, atol=1e-12)
        assert output.is_contiguous()
        assert len(usual) <= (layer == 0)


def test_steps_over_growing_keys_have_the_numbers_of_softmax_and_the_library_knows_them(usual):
    warm("a step", 17)
    warm("a step", 18)
    warm("a step", 19)
    usual.clear()
    for k_len in (*range(20, 32), 23, 20):
        mask = LayerTensors("a step", k_len=k_len).mask()
        for layer in range(3):
            tensors = LayerTensors("a step", layer, k_len)
            output = tensors.attend(mask)
            torch.testing.assert_close(output, tensors.expected(), rtol=1e-12, atol=1e-12)
    assert not usual


@pytest.mark.parametrize("name", CASES)
def test_a_nan_in_a_later_layer_reaches_the_queries_that_may_look_at_it_and_no_others(name):
    warm(name)
    tensors = LayerTensors(name)
    mask = tensors.mask()
    tensors.attend(mask)
    number = 3  # a key of the second batch row, which its padding and its holes hide
    expected = tensors.expected()
    i = torch.arange(tensors.q_len) + tensors.k_len - tensors.q_len
    looks = i >= number if tensors.kind == "causal" else i >= 0
    if name in ("holes",):
        looks = looks & False
    if tensors.unpadded is UNPADDED:
        number = 2
        looks = looks & False
    tensors.v = tensors.v.clone()
    tensors.v[1, :, number] = torch.nan
    output = tensors.attend(mask)
    assert output[1, looks].isnan().all()
    torch.testing.assert_close(output[0], expected[0], rtol=1e-12, atol=1e-12)
    rest = output[1, ~looks], expected[1, ~looks]
    torch.testing.assert_close(*rest, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["a text", "a step", "padding", "a step with a bias"])
def test_gradients_of_layers_that_share_a_mask_are_those_of_softmax(name):
    warm(name)
    tensors = LayerTensors(name)
    mask = tensors.mask()
    tensors.attend(mask)
    leaves = [tensors.q, tensors.k, tensors.v, *([] if tensors.bias is None else [tensors.bias])]
    for x in leaves:
        x.requires_grad_()
    grad = torch.randn(BATCH, tensors.q_len, HEADS, DIM, dtype=torch.float64)
    gradients = torch.autograd.grad(tensors.attend(mask), leaves, grad)
    expected = torch.autograd.grad(tensors.expected(), leaves, grad)
    torch.testing.assert_close(gradients, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_a_profiler_sees_the_call_of_every_layer(name):
    warm(name)
    tensors = LayerTensors(name)
    mask = tensors.mask()
    tensors.attend(mask)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        tensors.attend(mask)
        tensors.attend(mask)
    events = [event for event in profile.events() if event.name == "regard::attention"]
    assert len(events) == 2


class Seeing(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["a step with a bias", "padding"])
def test_beside_a_mode_and_in_autocast_a_layer_takes_the_usual_way(name, usual):
    warm(name)
    tensors = LayerTensors(name)
    mask = tensors.mask()
    tensors.attend(mask)
    for block in (Seeing(), torch.autocast("cpu", torch.bfloat16)):
        usual.clear()
        with block:
            tensors.attend(mask)
        assert len(usual) == 1


@pytest.mark.parametrize("name", ["a text", "a step", "padding", "a step with a bias"])
def test_a_mask_for_other_sizes_is_refused_by_later_layers_too(name):
    warm(name)
    warm(name, 13) if name != "padding" else None
    tensors = LayerTensors(name)
    mask = tensors.mask()
    tensors.attend(mask)
    tensors.k = torch.cat((tensors.k, tensors.k[:, :, :2]), 2)
    tensors.v = torch.cat((tensors.v, tensors.v[:, :, :2]), 2)
    with pytest.raises(ValueError, match="the mask was made for another layer or cache"):
        tensors.attend(mask)


def test_a_bias_that_is_changed_in_place_is_read_again():
    warm("a step with a bias")
    tensors = LayerTensors("a step with a bias")
    mask = tensors.mask()
    tensors.attend(mask)
    tensors.bias.mul_(-2)
    torch.testing.assert_close(tensors.attend(mask), tensors.expected(), rtol=1e-12, atol=1e-12)


def test_padding_that_is_changed_in_place_between_forward_passes_is_read_again():
    tensors = LayerTensors("holes")
    tensors.unpadded = HOLES.clone()
    tensors.attend(tensors.mask())
    tensors.attend(tensors.mask())
    tensors.unpadded[1, 2] = False
    mask = tensors.mask()
    for _ in range(2):
        torch.testing.assert_close(tensors.attend(mask), tensors.expected(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["a text", "a step", "a step with a bias"])
def test_another_scale_or_softcap_of_a_later_layer_is_computed_as_it_is(name):
    warm(name)
    tensors = LayerTensors(name)
    mask = tensors.mask()
    tensors.attend(mask)
    capped = tensors.attend(mask, softcap=0.5)
    fresh = tensors.attend(tensors.mask(), softcap=0.5)
    assert torch.equal(capped, fresh)
    assert not torch.equal(capped, tensors.attend(mask))


def test_an_interrupted_layer_leaves_the_next_one_right(monkeypatch):
    warm("a step with a bias")
    tensors = LayerTensors("a step with a bias")
    mask = tensors.mask()
    tensors.attend(mask)
    whole = Library.forward

    def interrupted(self, call):
        raise KeyboardInterrupt

    monkeypatch.setattr(REPEATED, "repeat", None)  # as where there is no function of C
    monkeypatch.setattr(Library, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tensors.attend(mask)
    monkeypatch.setattr(Library, "forward", whole)
    torch.testing.assert_close(tensors.attend(mask), tensors.expected(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["a step", "a step with a bias", "padding"])
def test_threads_that_share_a_mask_get_the_bits_of_one(name):
    warm(name)
    mask = LayerTensors(name).mask()
    layers = [LayerTensors(name, seed) for seed in range(6)]
    alone = [layer.attend(mask) for layer in layers]

    def attend(layer):
        return [layer.attend(mask) for _ in range(20)]

    with ThreadPoolExecutor(3) as pool:
        for outputs, expected in zip(pool.map(attend, layers), alone, strict=True):
            assert all(torch.equal(output, expected) for output in outputs)


def test_a_model_is_observed_and_changed_after_warm_calls(attached_gpt2):
    model, ids = attached_gpt2
    for _ in range(3):
        before = model(ids).last_hidden_state
    with observe(model, "entropy") as observed:
        model(ids)
    assert all(len(observed[f"h.{layer}.attn"]) == 1 for layer in range(3))
    with change_attention(model, 1, pattern="causal_window(2)"):
        changed = model(ids).last_hidden_state
    assert not torch.allclose(changed, before)
    assert torch.equal(model(ids).last_hidden_state, before)


@pytest.fixture
def attached_gpt2():
    config = GPT2Config(vocab_size=23, n_embd=12, n_layer=3, n_head=2, n_positions=16)
    model = attach(GPT2Model(config).eval(), check=False)
    with torch.no_grad():
        yield model, torch.randint(0, 23, (2, 7), generator=torch.Generator().manual_seed(3))
