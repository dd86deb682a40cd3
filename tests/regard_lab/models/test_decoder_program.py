"""Steps of a float32 translator by one program have the numbers of its modules; who looks inside still sees all."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from measuring import NotedOperations
from program_steps import assert_close, note_computed
from torch import nn
from translators import ORDERS, SOURCES, begin, translator

from regard.backends.native.library import load
from regard.errors import ArgumentError
from regard_lab.models.decoder_program import DecoderProgram
from regard_lab.models.flat_decoder import FIRST_ROOM
from regard_lab.models.text_program import MOST_ROWS_OF_A_STEP
from regard_lab.text import BEGIN

pytestmark = pytest.mark.skipif(
    isinstance(load(), str), reason="the compiled library computes programs"
)

COMPILED: list[dict[str, Any]] = [
    {},
    {"norm": "post", "activation": "gelu"},
    {"tied": False, "activation": "geglu"},
    {"positions": "learned", "max_length": 128, "activation": "silu"},
    {"positions": "rotary", "activation": "swiglu", "norm": "post"},
    {"encoder_kv_heads": 2, "decoder_kv_heads": 1, "cross_kv_heads": 2, "activation": "gelu-tanh"},
    {"positions": "rotary", "decoder_pattern": "causal_window(3)"},
]
LEFT_TO_PYTORCH: list[dict[str, Any]] = [
    {"positions": "rotary", "cross_pattern": "sliding_window(6)"},
    {"decoder_pattern": "causal_window(2) | key_span(0, 2)"},
    {"decoder_pattern": "key_span(1, 9)"},
]


@pytest.fixture
def compiled_steps(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    return note_computed(monkeypatch, DecoderProgram, "step")


@pytest.mark.parametrize("changes", COMPILED, ids=str)
def test_logits_are_those_of_the_modules_after_any_reordering_and_in_a_long_target(
    changes: dict[str, Any], compiled_steps: list[bool]
) -> None:
    exact = translator(**changes)
    model = translator(**changes).float()
    with torch.inference_mode():
        state = begin(model)
        stepwise = begin(exact)
        assert stepwise.caches  # through modules
        ids = torch.tensor([BEGIN] * len(SOURCES))
        for order in [None, *ORDERS]:
            if order is not None:
                index = torch.tensor(order)
                state.reorder(index)
                stepwise.reorder(index)
                ids = ids[index]
            for _ in range(FIRST_ROOM // 4):
                logits = exact.step(ids, stepwise)
                assert_close(model.step(ids, state), logits)
                ids = logits.argmax(-1)
    assert compiled_steps == [True] * (5 * FIRST_ROOM // 4)


@pytest.mark.parametrize("changes", LEFT_TO_PYTORCH, ids=str)
def test_patterns_that_a_program_does_not_know_are_left_to_pytorch(
    changes: dict[str, Any], compiled_steps: list[bool]
) -> None:
    model = translator(**changes).float()
    with torch.no_grad():
        state = begin(model)
        assert state.flat(model) is not None
        model.step(torch.tensor([BEGIN] * 3), state)
    assert compiled_steps == []


def count_operations(step: Callable[[], Any]) -> None:
    with NotedOperations() as operations:
        step()
    assert len(operations.names) > 50


def profile(step: Callable[[], Any]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    assert any(event.key == "aten::linear" for event in profiler.key_averages())


def batch_it(step: Callable[[], Any]) -> None:
    torch.func.vmap(lambda x: x + 0 * step().sum())(torch.zeros(2))


@pytest.mark.parametrize("look", [count_operations, profile, batch_it])
def test_who_looks_at_the_operations_of_pytorch_sees_them(
    look: Callable[[Callable[[], Any]], None], compiled_steps: list[bool]
) -> None:
    model = translator().float()
    ids = torch.tensor([BEGIN] * 3)
    with torch.no_grad():
        state = begin(model)
        model.step(ids, state)
        look(lambda: model.step(ids, state))
        model.step(ids, state)
    assert compiled_steps == [True, False, True]


def test_many_rows_and_other_integers_are_left_to_pytorch(compiled_steps: list[bool]) -> None:
    model = translator().float()
    with torch.no_grad():
        state = begin(model, SOURCES[:1])
        state.reorder(torch.tensor([0] * (MOST_ROWS_OF_A_STEP + 1)))
        many = model.step(torch.tensor([BEGIN] * (MOST_ROWS_OF_A_STEP + 1)), state)
        few = begin(model, SOURCES[:1])
        torch.testing.assert_close(model.step(torch.tensor([BEGIN]), few)[0], many[3])
        model.step(torch.tensor([BEGIN], dtype=torch.int32), begin(model, SOURCES[:1]))
    assert compiled_steps == [False, True, False]


def change_in_place(model: Any) -> None:
    for parameter in model.decoder.parameters():
        parameter.data.copy_(parameter * 0.5)  # which changes neither address nor version


def change_the_memory(model: Any) -> None:
    for parameter in model.decoder.parameters():
        parameter.data = parameter.data * 0.5


@pytest.mark.parametrize("change", [change_in_place, change_the_memory])
def test_weights_that_change_count_at_once(
    change: Callable[[Any], None], compiled_steps: list[bool]
) -> None:
    model = translator().float()
    exact = translator()
    ids = torch.tensor([BEGIN, 7, 8])
    with torch.no_grad():
        state = begin(model)
        stepwise = begin(exact)
        assert_close(model.step(ids, state), exact.step(ids, stepwise))
        change(model)
        change(exact)
        assert_close(model.step(ids, state), exact.step(ids, stepwise))
    assert compiled_steps == [True, True]


def test_weights_of_another_layout_or_dtype_are_left_to_pytorch(compiled_steps: list[bool]) -> None:
    model = translator().float()
    ids = torch.tensor([BEGIN, 7, 8])
    weight = model.decoder[1].self_attention.to_q.weight
    with torch.no_grad():
        state = begin(model)
        before = model.step(ids, state)
        weight.data = weight.data.t().contiguous().t()
        again = begin(model)
        torch.testing.assert_close(model.step(ids, again), before)
        state = begin(model)
        weight.data = weight.data.contiguous()
        torch.testing.assert_close(model.step(ids, state), before)
    assert compiled_steps == [True]  # with the strided weight there was no program


def test_a_weight_with_nan_gives_nan_and_the_next_step_goes_on() -> None:
    model = translator().float()
    ids = torch.tensor([BEGIN, 7, 8])
    with torch.no_grad():
        state = begin(model)
        before = model.step(ids, begin(model))
        weight = model.decoder[1].self_attention.to_q.weight
        value = weight[3, 2].clone()
        weight[3, 2] = torch.nan
        assert model.step(ids, state).isnan().all()
        weight[3, 2] = value
        assert state.length == 1
        assert torch.equal(model.step(ids, begin(model)), before)


def test_an_id_outside_of_the_vocabulary_is_named_and_changes_nothing() -> None:
    model = translator().float()
    with torch.no_grad():
        state = begin(model)
        with pytest.raises(ArgumentError, match="ids go from 2 to 41"):
            model.step(torch.tensor([BEGIN, 7, 41]), state)
        assert state.length == 0


def test_large_models_are_left_to_the_threads_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, compiled_steps: list[bool]
) -> None:
    model = translator().float()
    weights = {
        id(x): x.numel() for x in [*model.decoder.parameters(), *model.decoder_norm.parameters()]
    }
    weights[id(model.embedding.weight)] = model.embedding.weight.numel()
    most = sum(weights.values())
    for limit in (most, most - 1):
        monkeypatch.setattr("regard_lab.models.model_program.MOST_WEIGHTS", limit)
        model = translator().float()  # another one: the program of a model is kept
        with torch.no_grad():
            model.step(torch.tensor([BEGIN] * 3), begin(model))
    assert compiled_steps == [True]


def test_a_frozen_projection_that_is_hooked_is_called() -> None:
    model = translator().float()
    ids = torch.tensor([BEGIN, 7, 8])
    called: list[nn.Module] = []
    with torch.no_grad():
        state = begin(model)
        model.step(ids, state)
        model.decoder[2].feed_forward.narrow.register_forward_hook(
            lambda module, *_: called.append(module)
        )
        model.step(ids, state)
    assert called == [model.decoder[2].feed_forward.narrow]
