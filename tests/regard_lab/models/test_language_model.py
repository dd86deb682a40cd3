"""A language model is that of its papers; padding, batches, caches and chunks change nothing in any of its kinds."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from language_by_formulas import scores
from language_models import GPT2, KINDS, SIZES, language_model, lossless_caches

import regard as rg
from regard.layers import choice_losses
from regard.positions import Rotary, YaRN
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.text import PAD
from regard_lab.text.batches import pad

EXACT = {"rtol": 0, "atol": 1e-12}
texts = st.lists(st.integers(1, 22), min_size=1, max_size=7)
sides = st.sampled_from(["left", "right"])
EVERY = pytest.mark.parametrize("kind", KINDS)


@EVERY
@settings(max_examples=4)
@given(rows=st.lists(texts, min_size=1, max_size=4), side=sides, more=st.integers(0, 3))
def test_a_padded_batch_equals_each_text_alone(kind, rows, side, more):
    model = language_model(kind)
    ids = pad([*rows, [5] * (max(map(len, rows)) + more)], side)
    with torch.no_grad():
        together = model(ids)
        torch.testing.assert_close(model(ids, vectors=model.embedding(ids)), together, **EXACT)
        for row, alone in enumerate(rows):
            torch.testing.assert_close(
                together[row][ids[row] != PAD], model(torch.tensor([alone]))[0], **EXACT
            )


@EVERY
@settings(max_examples=5)
@given(data=st.data(), rows=st.lists(texts, min_size=1, max_size=3), added=texts, side=sides)
def test_a_cache_continues_unequal_prompts_as_each_text_computed_whole(
    kind, data, rows, added, side
):
    """`start`, then `step` by one id and `extend` by several, against `forward` of each whole text alone.

    No position sees what comes later, or the scores of a prefix would differ from those of the whole.
    """
    model = language_model(kind)
    length = max(map(len, rows)) + len(added)
    options = data.draw(st.sampled_from(lossless_caches(kind, length)))
    with torch.no_grad():
        # (1 + added, vocab_size)
        whole = [model(torch.tensor([[*row, *added]]))[0, len(row) - 1 :] for row in rows]
        expected = torch.stack(whole)
        state = model.start(pad([*rows], side), **options)
        torch.testing.assert_close(state.next_scores, expected[:, 0], **EXACT)
        place = 0
        ids = torch.tensor([added] * len(rows))
        while place < len(added):
            stop = data.draw(st.integers(place + 1, len(added)))
            single = stop == place + 1
            logits = (
                model.step(ids[:, place], state)[:, None]
                if single
                else model.extend(ids[:, place:stop], state)
            )
            torch.testing.assert_close(logits, expected[:, place + 1 : stop + 1], **EXACT)
            assert state.next_scores is None
            place = stop
            assert state.length == max(map(len, rows)) + place


def test_a_stack_of_windows_sees_as_far_as_its_reach_and_no_further():
    model = language_model("window")  # 2 layers of 3 keys: 4 positions back
    ids = torch.arange(1, 10)[None]
    for place in range(9):
        changed = ids.clone()
        changed[0, place] = 22
        moved = (model(changed) != model(ids)).any(-1)[0]
        assert moved.nonzero().flatten().tolist() == list(range(place, min(9, place + 5)))


@EVERY
def test_every_parameter_learns(kind):
    model = copy.deepcopy(language_model(kind)).train()
    with choice_losses(model) as losses:  # by which alone an indexer learns
        scores = model(torch.tensor([[5, 6, 7, 3, 9], [8, 9, 0, 0, 0]]))
    sum(losses, scores.logsumexp(-1).sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # the same number added to all scores of a row changes no softmax
        if not name.endswith("to_k.bias"):
            assert float(parameter.grad.abs().max()) > 0, name


@pytest.mark.parametrize(
    "kind", ["llama", "gpt2", "linear", "windows alternating with full", "indexer"]
)
def test_gradient_checkpointing_gives_the_same_gradients_and_runs_each_block_twice(kind):
    config = {**SIZES, **KINDS[kind], "dropout": 0.3}
    if kind != "linear":
        config["attention_dropout"] = 0.2
    gradients = []
    calls = []
    for again in (False, True):
        torch.manual_seed(1)
        model = (
            LanguageModel(LanguageConfig(**config, gradient_checkpointing=again)).double().train()
        )
        calls.append(0)
        for block in model.blocks:
            block.feed_forward.register_forward_hook(
                lambda *_: calls.__setitem__(-1, calls[-1] + 1)
            )
        torch.manual_seed(2)
        with choice_losses(model) as losses:
            scores = model(torch.tensor([[5, 6, 7, 8, 9], [0, 0, 4, 3, 2]]))
            sum(losses, scores.logsumexp(-1).sum()).backward()
        assert len(losses) == (config["layers"] if kind == "indexer" else 0)
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert calls[1] == 2 * calls[0] == 2 * config["layers"]
    for stored, computed_again in zip(*gradients, strict=True):
        assert torch.equal(stored, computed_again)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "alibi", "linear", "window"])
def test_bfloat16_runs_near_float64(kind):
    exact = language_model(kind)
    model = copy.deepcopy(exact).bfloat16()
    ids = torch.tensor([[5, 6, 7, 8], [0, 0, 4, 3]])
    with torch.no_grad():
        rounded = model.step(ids[:, 3], model.start(ids[:, :3]))
        expected = exact(ids)[:, -1]
    assert rounded.dtype == torch.bfloat16
    assert float((rounded.double() - expected).abs().max()) < 0.05 * float(expected.abs().max())


@pytest.mark.parametrize("style", ["llama", "gpt2"])
def test_a_model_at_its_start_is_nearly_uniform(style):
    torch.manual_seed(3)
    model = LanguageModel(
        LanguageConfig(vocab_size=211, dim=64, layers=3, **({} if style == "llama" else GPT2))
    )
    with torch.no_grad():
        log_probabilities = model(torch.randint(1, 211, (8, 31))).log_softmax(-1)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1).mean()
    assert math.log(211) - 0.3 < float(entropy) < math.log(211) - 1e-4
    small = math.sqrt(2 / (5 * 64))
    for block in model.blocks:
        for part, last in ((block.attention, "to_output"), (block.feed_forward, "narrow")):
            for name, layer in part.named_children():
                if isinstance(layer, torch.nn.Linear):
                    expected = small / math.sqrt(6) if name == last else small
                    assert abs(float(layer.weight.detach().std()) / expected - 1) < 0.1, name


def test_layers_have_the_norms_gates_scaled_positions_and_patterns_of_the_config():
    model = language_model("windows alternating with full")
    seen = [str(block.attention.pattern.canonical()) for block in model.blocks]
    assert seen == ["causal_window(3)", "causal", "causal_window(3)"]
    config = LanguageConfig(**{**SIZES, **KINDS["norms and gates"]})
    for block in LanguageModel(LanguageConfig.from_dict(config.to_dict())).blocks:
        assert block.attention.positions == Rotary(scaling=YaRN(4.0, trained=6))
        assert block.attention.q_norm is not None
        assert block.attention.to_output_gate is not None
    assert all(
        block.attention.to_forget is not None for block in language_model("forget gates").blocks
    )


def test_ids_that_cannot_be_are_refused_with_their_numbers():
    model = language_model("gpt2")
    with pytest.raises(rg.ArgumentError, match="5 to 23"):
        model(torch.tensor([[5, 23]]))
    with pytest.raises(rg.ShapeError, match="int64"):
        model(torch.zeros(1, 2))
    long = LanguageModel(LanguageConfig(**SIZES, **GPT2, max_length=4)).eval()
    with pytest.raises(rg.ShapeError, match="0 to 3"):
        long(torch.ones(1, 5, dtype=torch.int64))
    state = long.start(torch.ones(1, 4, dtype=torch.int64))
    with pytest.raises(rg.ShapeError, match="0 to 3"):
        long.step(torch.tensor([1]), state)
    assert state.length == 4
    assert state.next_scores is not None


GROUPED = {**SIZES, "dim": 24, "heads": 4, "kv_heads": 2, "layers": 3}


@pytest.mark.parametrize("style", ["gpt2", "llama", "alibi"])
def test_a_model_computes_what_its_papers_write(style):
    torch.manual_seed(5)
    choices = {"gpt2": GPT2, "llama": {"tied": False}, "alibi": {"positions": "alibi"}}[style]
    model = LanguageModel(LanguageConfig(**GROUPED, **choices)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        logits = model(torch.tensor([[5, 6, 22, 7, 1]]))[0]
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    expected = scores(weights, [5, 6, 22, 7, 1], heads=4, kv_heads=2, style=style)
    torch.testing.assert_close(logits, torch.from_numpy(expected), rtol=0, atol=1e-12)


@torch.no_grad()
def test_later_layers_add_the_values_of_the_first_and_subtract_second_heads():
    model = language_model("values of the first layer, differences")
    first, second, third = (block.attention for block in model.blocks)
    for number, attention in enumerate((first, second, third)):
        assert attention.difference.lambda_init == 0.8 - 0.6 * math.exp(-0.3 * number)
    model = copy.deepcopy(model)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    before = model(ids)
    own_value, (first, second) = before.clone(), (block.attention for block in model.blocks[:2])
    second.value_mix.copy_(torch.tensor([0.0, 1.0]))
    residual = model(ids)
    second.to_v.weight.normal_()
    assert torch.equal(model(ids), residual)
    assert not torch.allclose(residual, own_value)
    second.value_mix.copy_(torch.tensor([1.0, 0.0]))
    assert not torch.allclose(model(ids), residual)
