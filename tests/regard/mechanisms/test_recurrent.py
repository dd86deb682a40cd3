"""Recurrent mechanisms against their papers' steps: heads, decays of any size, long texts, and what is refused."""

import pytest
import torch
from recurrent_calls import MEMBERS, draw_call

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.backends import recurrence
from regard.layers.caches import RecurrentState


def test_constant_decays_are_those_of_the_papers():
    v = torch.zeros(1, 4, 0, 1, dtype=torch.float64)
    decays = m.Retention().constant_log_decay(v)[0, :, 0].exp()
    expected = torch.tensor([31 / 32, 63 / 64, 127 / 128, 255 / 256], dtype=torch.float64)
    torch.testing.assert_close(decays, expected)
    slopes = m.Lightning(0.5).constant_log_decay(v)[0, :, 0]
    expected = -torch.tensor([1 / 8, 1 / 32, 1 / 128, 1 / 512], dtype=torch.float64)
    torch.testing.assert_close(slopes, expected)


EXTREMES = {
    "no decay": torch.zeros_like,
    "strong": lambda log_decay: torch.full_like(log_decay, -20),
    "one of -1e6": lambda log_decay: log_decay.index_fill(2, torch.tensor([100]), -1e6),
    "everything is forgotten at two keys": lambda log_decay: log_decay.index_fill(
        2, torch.tensor([50, 300]), -torch.inf
    ),
    "forgotten at every key": lambda log_decay: torch.full_like(log_decay, -torch.inf),
}


@pytest.mark.parametrize(
    "mechanism", [m.SSD(), m.GatedLinear(), m.GatedDelta(), m.KimiDelta()], ids=str
)
@pytest.mark.parametrize("extreme", EXTREMES)
def test_decays_of_any_size_are_as_exact_as_others_with_gradients(mechanism, extreme):
    call = draw_call(mechanism, 530, (1, 1, 1), decays=0.1)
    call.parameters["log_decay"] = EXTREMES[extreme](call.parameters["log_decay"])
    computed = call.to(torch.float32).output_and_gradients(backend="linear")
    expected = call.output_and_gradients(backend="reference")
    for numbers, exact in zip(computed, expected, strict=True):
        assert (numbers - exact).abs().max() <= 3e-5 * exact.abs().max()


@pytest.mark.parametrize("backend", ["linear", "native"])
@pytest.mark.parametrize("mechanism", [m.DeltaRule(), m.GatedDelta(), m.KimiDelta()], ids=str)
def test_strengths_up_to_2_are_as_exact_as_others_with_gradients(mechanism, backend):
    call = draw_call(mechanism, 331, (1, 1, 1), decays=0.1)
    strength = 2 * call.parameters["strength"]
    strength[:, :, 7] = 2.0
    call.parameters["strength"] = strength
    assert (strength > 1.5).any()
    computed = call.to(torch.float32).output_and_gradients(backend=backend)
    expected = call.output_and_gradients(backend="reference")
    for numbers, exact in zip(computed, expected, strict=True):
        assert (numbers - exact).abs().max() <= 3e-5 * exact.abs().max()


def test_a_strength_of_2_changes_the_sign_of_what_the_memory_holds_for_a_key():
    """So the memory counts modulo 2, as no product of factors between 0 and 1 does."""
    key = torch.tensor([0.6, 0.8], dtype=torch.float64).expand(1, 1, 8, 2)
    v = torch.zeros(1, 1, 8, 1, dtype=torch.float64)
    v[:, :, 0] = 3.0
    strength = torch.full((1, 1, 8), 2.0, dtype=torch.float64)
    strength[:, :, 0] = 1.0
    options = {"mechanism": m.DeltaRule(most_strength=2), "parameters": {"strength": strength}}
    output = rg.attention(key, key, v, pattern="causal", scale=1.0, **options)
    expected = torch.tensor([3.0, -3.0] * 4, dtype=torch.float64)
    torch.testing.assert_close(output[0, 0, :, 0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mechanism", [m.GatedDelta(), m.KimiDelta()], ids=str)
def test_a_hundred_thousand_keys_leave_the_memory_right(mechanism):
    call = draw_call(mechanism, 100_000, (1, 1, 1), dtype=torch.float32, decays=2e-5)
    exact = call.to(torch.float64)
    state = RecurrentState(mechanism, 2, 1, 5, 3)
    exact_state = RecurrentState(mechanism, 2, 1, 5, 3, dtype=torch.float64)
    output = state.attend(call.q, call.k, call.v, parameters=call.parameters)
    expected = exact_state.attend(exact.q, exact.k, exact.v, parameters=exact.parameters)
    assert output.isfinite().all()
    assert (output - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("mechanism", MEMBERS, ids=str)
def test_blocks_and_chunks_of_a_text_continue_one_memory(mechanism, monkeypatch):
    monkeypatch.setattr(recurrence, "BLOCK", 64)
    call = draw_call(mechanism, 201)
    computed = call.output_and_gradients(backend="linear")
    expected = call.output_and_gradients(backend="reference")
    for numbers, exact in zip(computed, expected, strict=True):
        assert (numbers - exact).abs().max() <= 1e-12 * exact.abs().max()


def test_a_nan_reaches_only_later_rows_of_its_document_and_value_head():
    ids = torch.tensor([0] * 30 + [1] * 30 + [0] * 10)
    pattern = p.Causal() & p.SameDocument(ids)
    call = draw_call(m.GatedDelta())
    clean = call.output(pattern)
    call.v[0, 3, 10] = torch.nan
    output = call.output(pattern)
    reached = torch.zeros(2, 4, 70, dtype=torch.bool)
    reached[0, 3, 10:30] = True
    reached[0, 3, 60:] = True
    assert torch.equal(output.isnan().all(-1), reached)
    assert torch.equal(output[~reached], clean[~reached])


def test_what_a_recurrent_mechanism_refuses():
    call = draw_call(m.GatedDelta())
    q, k, v = call.q, call.k, call.v
    options = {"mechanism": call.mechanism, "parameters": call.parameters}
    with pytest.raises(rg.UnsupportedError, match="full is not causal; add & causal"):
        call.output("full")
    with pytest.raises(rg.UnsupportedError, match="does not compute entropy"):
        rg.attention_detail(q, k, v, pattern="causal", want="entropy", **options)
    with pytest.raises(rg.ShapeError, match="q has 4, k 2 and v 4 heads"):
        rg.attention(torch.cat((q, q), 1), k, v, pattern="causal", **options)
    with pytest.raises(rg.ShapeError, match="axis 'kv_heads' is 2 in k"):
        rg.attention(q, k, v)
    call.parameters["log_decay"] = q
    with pytest.raises(rg.ShapeError, match=r"parameter 'log_decay'.*\(2, 4, 70\)"):
        call.output()
