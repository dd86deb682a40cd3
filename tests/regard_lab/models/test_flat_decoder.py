"""Steps of a translator without its modules have the bits of steps through them; who looks inside still sees all."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from translators import ORDERS, SOURCES, TRANSFORMERS, begin, translator

from regard import record_attention
from regard.errors import ArgumentError
from regard.positions import Rotary
from regard_lab.models import TranslationTransformer, flat_decoder, kept_programs
from regard_lab.models.flat_decoder import FIRST_ROOM
from regard_lab.text import BEGIN
from regard_lab.text.batches import pad

SHORT_CONTEXTS = [*TRANSFORMERS[:-1], {"norm": "post", "activation": "swiglu", "tied": False}]


def is_flat(model: Any, state: Any) -> bool:
    return state.flat(model) is not None


def through_modules(state: Any) -> Any:
    """The same state, whose steps go through the modules from now on."""
    assert state.caches
    return state


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("changes", SHORT_CONTEXTS, ids=str)
def test_flat_steps_have_the_bits_of_steps_through_modules_after_any_reordering(
    changes: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_programs, "library_of_programs", lambda: None)
    model = translator(**changes).to(dtype)
    with torch.inference_mode():
        flat = begin(model)
        assert is_flat(model, flat)
        plain = through_modules(begin(model))
        ids = torch.tensor([BEGIN] * len(SOURCES))
        for order in [None, *ORDERS]:
            if order is not None:
                index = torch.tensor(order)
                flat.reorder(index)
                plain.reorder(index)
                ids = ids[index]
            for _ in range(2):
                logits = model.step(ids, flat)
                assert torch.equal(logits, model.step(ids, plain))
                ids = logits.argmax(-1)
        assert is_flat(model, flat)
        assert flat.length == plain.length == 10


@pytest.mark.parametrize("changes", SHORT_CONTEXTS, ids=str)
def test_flat_steps_without_the_library_are_those_of_modules_in_float64(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_programs, "library_of_programs", lambda: None)
    monkeypatch.setattr(flat_decoder, "load", lambda: "turned off")
    exact = translator(**changes)
    model = translator(**changes).float()
    with torch.inference_mode():
        flat, stepwise = begin(model), through_modules(begin(exact))
        assert is_flat(model, flat)
        ids = torch.tensor([BEGIN] * len(SOURCES))
        for _ in range(7):
            logits = exact.step(ids, stepwise)
            torch.testing.assert_close(
                model.step(ids, flat), logits, rtol=0, atol=1e-4, check_dtype=False
            )
            ids = logits.argmax(-1)


def test_a_long_target_gets_more_room() -> None:
    model = translator(positions="rotary")
    steps = 2 * FIRST_ROOM + 3
    with torch.no_grad():
        flat = begin(model)
        plain = through_modules(begin(model))
        for number in range(steps):
            ids = torch.tensor([number % 37 + 4, 5, number % 11 + 6])
            assert torch.equal(model.step(ids, flat), model.step(ids, plain)), number
        assert is_flat(model, flat)
    assert flat.length == steps
    assert flat.nbytes > flat.sources.nbytes


def hook(model: Any) -> None:
    model.decoder[1].feed_forward.narrow.register_forward_hook(lambda *_: None)


def replace(model: Any) -> None:
    projection = model.decoder[0].self_attention.to_q
    model.decoder[0].self_attention.to_q = nn.Sequential(projection)


def train_one_dropout(model: Any) -> None:
    model.decoder[2].around_feed_forward.dropout.train()


def replace_forward(model: Any) -> None:
    model.decoder[2].cross_attention.forward = model.decoder[2].cross_attention.forward


def parametrise(model: Any) -> None:
    nn.utils.parametrizations.weight_norm(model.decoder[0].feed_forward.widen)


def compile_a_projection(model: Any) -> None:
    model.decoder[1].self_attention.to_v.compile(backend="eager")


def keep_a_weight_as_a_tensor(model: Any) -> None:
    projection = model.decoder[1].cross_attention.to_output
    weight = projection.weight.detach()
    del projection.weight
    projection.weight = weight


def rotate_what_reads_the_source(model: Any) -> None:
    model.decoder[1].cross_attention.positions = Rotary()


def replace_what_projects_a_source(model: Any) -> None:
    layer = model.decoder[0].cross_attention
    layer.project_context = layer.project_context


def replace_the_steps(model: Any) -> None:
    model._through_layers = model._through_layers


@pytest.mark.parametrize(
    "change",
    [
        hook,
        replace,
        train_one_dropout,
        replace_forward,
        parametrise,
        compile_a_projection,
        keep_a_weight_as_a_tensor,
        rotate_what_reads_the_source,
        replace_what_projects_a_source,
        replace_the_steps,
        lambda model: model.bfloat16(),
    ],
)
def test_a_model_whose_modules_do_more_goes_through_them(change: Callable[[Any], Any]) -> None:
    model = translator()
    with torch.no_grad():
        assert is_flat(model, begin(model))
        change(model)
        assert not is_flat(model, begin(model))


def test_states_with_a_named_cache_and_with_gradients_go_through_modules() -> None:
    model = translator()
    assert not is_flat(model, begin(model))
    with torch.no_grad():
        for options in ({"cache": "static", "capacity": 5}, {"dtype": "int8"}):
            assert not is_flat(model, model.start(pad(SOURCES), **options))
        state = begin(model)
        assert is_flat(model, state)
        assert not is_flat(translator(), state)  # that of another model
    assert not is_flat(model, state)  # now gradients are recorded


def count_calls(model: Any, run: Callable[[], Any]) -> int:
    calls: list[Any] = []
    hook = model.decoder[1].cross_attention.register_forward_hook(
        lambda *called: calls.append(called)
    )
    run()
    hook.remove()
    return len(calls)


def record_one_step(model: Any, run: Callable[[], Any]) -> int:
    with record_attention(model.decoder) as recording:
        run()
    return len(recording["1.cross_attention"])


def count_with_hooks_of_all_modules(model: Any, run: Callable[[], Any]) -> int:
    called: list[Any] = []
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(module))
    run()
    hook.remove()
    return called.count(model.decoder[1].cross_attention)


@pytest.mark.parametrize("watch", [count_calls, record_one_step, count_with_hooks_of_all_modules])
def test_who_begins_to_look_during_a_translation_sees_its_next_step(
    watch: Callable[[Any, Callable[[], Any]], int],
) -> None:
    model = translator(decoder_pattern="causal_window(3)", positions="rotary")
    ids = torch.tensor([[BEGIN, 7, 8], [9, 10, 11], [4, 5, 6]])
    with torch.inference_mode():
        watched = begin(model)
        plain = through_modules(begin(model))
        assert torch.equal(model.step(ids[0], watched), model.step(ids[0], plain))
        assert is_flat(model, watched)
        logits = []
        assert watch(model, lambda: logits.append(model.step(ids[1], watched))) == 1
        assert torch.equal(logits[0], model.step(ids[1], plain))
        assert torch.equal(model.step(ids[2], watched), model.step(ids[2], plain))


def test_weights_that_change_count_at_once() -> None:
    model = translator()
    ids = torch.tensor([BEGIN, 7, 8])
    with torch.no_grad():
        flat = begin(model)
        plain = through_modules(begin(model))
        before = model.step(ids, flat)
        model.step(ids, plain)
        for parameter in model.decoder.parameters():
            parameter.data.copy_(parameter * 0.5)  # which changes neither address nor version
        after = model.step(ids, flat)
        assert is_flat(model, flat)
        assert torch.equal(after, model.step(ids, plain))
        assert not torch.allclose(before, after)


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_of_a_state_goes_on_by_itself(copied: Callable[[Any], Any]) -> None:
    model = translator()
    first = torch.tensor([BEGIN, 7, 8])
    with torch.no_grad():
        state = begin(model)
        model.step(first, state)
        second = copied(state)
        logits = model.step(first + 5, state)
        model.step(first + 9, second)
        assert torch.equal(model.step(first, state), model.step(first, _after(model, first)))
        assert logits.shape == (3, 41)


def _after(model: Any, first: torch.Tensor) -> Any:
    state = through_modules(begin(model))
    for ids in (first, first + 5):
        model.step(ids, state)
    return state


def test_a_translation_that_began_in_inference_mode_goes_on_outside_of_it() -> None:
    model = translator()
    ids = torch.tensor([BEGIN, 7, 8])
    with torch.inference_mode():
        state = begin(model)
        plain = through_modules(begin(model))
        model.step(ids, state)
        model.step(ids, plain)
    with torch.no_grad():
        assert torch.equal(model.step(ids, state), model.step(ids, plain))


def test_an_id_outside_of_the_vocabulary_is_named_and_changes_nothing() -> None:
    model = translator()
    ids = torch.tensor([BEGIN, 7, 8])
    with torch.no_grad():
        state = begin(model)
        with pytest.raises(ArgumentError, match="ids go from 2 to 41"):
            model.step(torch.tensor([BEGIN, 7, 41]), state)
        assert state.length == 0
        assert torch.equal(model.step(ids, state), model.step(ids, through_modules(begin(model))))


def test_every_class_of_a_translator_is_known() -> None:
    """One that a later version adds would slow down all translations without a word."""
    for changes in SHORT_CONTEXTS:
        model = TranslationTransformer(translator(**changes).config).eval()
        with torch.no_grad():
            assert is_flat(model, begin(model)), changes
