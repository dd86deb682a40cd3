"""A small language model that continues texts by itself writes what a search writes that asks it for each step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from ended_by_ids import EndedByIds

from regard.backends.native.library import load
from regard.backends.native.program import Beam, Choice, Program, Written
from regard.errors import ShapeError
from regard.layers.caches import StaticCache
from regard_lab.decoding import Sampling, beam_search, generate
from regard_lab.decoding.options import SpecialIds
from regard_lab.decoding.search import MOST_BEFORE_ASKING
from regard_lab.models import LanguageConfig, LanguageModel

pytestmark = pytest.mark.skipif(
    isinstance(load(), str), reason="the compiled library computes programs"
)

CONFIGS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary", "norm": "rms", "activation": "swiglu", "kv_heads": 2},
    {"positions": "learned", "max_length": 128, "tied": False},
    {"positions": "sinusoidal", "activation": "geglu"},
    {"positions": "rotary", "pattern": "causal_window(5)"},
]
PROMPTS = torch.tensor([[5, 6, 7, 8, 9], [9, 10, 11, 12, 13], [13, 14, 15, 16, 17]])
TOKENS = 71  # of the longest texts; dynamic caches grow twice, and those of windows move
ENDING = SpecialIds(end=14)


def telling_model(**changes: Any) -> LanguageModel:
    """A model that repeats itself little, so that its texts differ and some of them end."""
    torch.manual_seed(3)
    model = LanguageModel(LanguageConfig(vocab_size=41, dim=24, heads=4, layers=3, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.3).add_(0.2 * torch.randn(parameter.shape))
    return model.eval()


def search(model: Any, beam: int, special: SpecialIds = ENDING, **options: Any) -> list[Any]:
    options = {"max_tokens": TOKENS} | options
    if beam > 1:
        return beam_search(model, PROMPTS, beam, special=special, count=2, **options)
    return generate(model, PROMPTS, special=special, **options)


def without_writing(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> Any:
    """The result where each step is asked for."""
    with monkeypatch.context() as patch:
        patch.delattr(LanguageModel, "continue_texts")
        return call()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each call of a program wrote."""
    steps: list[int] = []
    write = Program.write

    def noted(self: Program, *arguments: Any) -> Written:
        result = write(self, *arguments)
        steps.append(len(result.ids))
        return result

    monkeypatch.setattr(Program, "write", noted)
    return steps


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_texts_and_log_probabilities_have_the_bits_of_a_search_step_by_step(
    changes: dict[str, Any], beam: int, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = telling_model(**changes)
    found = search(model, beam)
    if beam == 1:
        assert sum(written) > TOKENS // 2
    assert found == without_writing(monkeypatch, lambda: search(model, beam))


def test_the_texts_of_these_tests_end_at_different_places() -> None:
    texts = [text for changes in CONFIGS for [text] in search(telling_model(**changes), 1)]
    assert len({len(text.ids) for text in texts if text.finished}) > 3
    assert any(not text.finished for text in texts)


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_named_cache_gives_the_same_texts(
    cache: str, beam: int, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = telling_model(positions="rotary")
    call = partial(search, model, beam, cache=cache)
    assert call() == without_writing(monkeypatch, call)
    assert sum(written) > 10


def test_a_beam_over_windows_is_asked_for_each_step(written: list[int]) -> None:
    never_ending = SpecialIds(end=None)
    search(telling_model(positions="rotary"), 3, never_ending)
    assert sum(written) > TOKENS // 2
    written.clear()
    # Each step of a search moves the entries of a window, so its attention reads them in other slots.
    search(telling_model(positions="rotary", pattern="causal_window(5)"), 3, never_ending)
    assert not written


def test_who_ends_texts_is_asked_after_each_id_as_step_by_step(
    written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for changes in CONFIGS:
        model = telling_model(**changes)
        stopping, alone = EndedByIds(), EndedByIds()
        found = search(model, 1, over=stopping)
        assert found == without_writing(monkeypatch, lambda: search(model, 1, over=alone))  # noqa: B023
        assert stopping.asked == alone.asked
    assert max(written) == MOST_BEFORE_ASKING


def test_the_state_is_that_of_steps_and_a_copy_of_before_is_not_disturbed() -> None:
    model = telling_model(positions="rotary")
    ids = torch.tensor([4, 20, 30])
    never = torch.tensor([0, 1])
    totals = torch.tensor([[-0.1, -0.2, -0.3]], dtype=torch.float64)
    beam = Beam(totals, torch.full((1,), -torch.inf, dtype=torch.float64))
    for rows in (None, beam):
        with torch.inference_mode():
            state, untouched, stepwise = (model.start(PROMPTS) for _ in range(3))
            untouched.groups = state.groups  # the caches share their memory
            result = model.continue_texts(ids, state, Choice(9, never, None, rows))
            assert result is not None
            found, _ = result
            before = ids
            for step, (chosen, _) in enumerate(found.steps()):
                model.step(before, stepwise)
                before = torch.tensor(chosen)
                if found.parents is not None:
                    stepwise.reorder(found.parents[step])
            assert state.length == stepwise.length == PROMPTS.shape[1] + len(found.ids)
            assert torch.equal(model.step(before, state), model.step(before, stepwise))
            expected = model.step(ids, model.start(PROMPTS))
            assert torch.equal(model.step(ids, untouched), expected)


def test_slots_that_were_not_written_are_free_again() -> None:
    model = telling_model()
    special = SpecialIds(end=None)
    with torch.inference_mode():
        state = model.start(PROMPTS, "static", capacity=40)
        ids = torch.tensor([4, 20, 30])
        first = model.step(ids, state)
        end = int(first[1].argmax())
        memory = state.groups[0].caches.each[0]._held.planes["k"].data_ptr()
        result = model.continue_texts(ids, state, Choice(9, torch.tensor([0]), end))
        assert result is not None
        model.step(ids, state)
        [cache, *_] = state.groups[0].caches.each
        assert isinstance(cache, StaticCache)
        assert cache._held.planes["k"].data_ptr() == memory  # nothing was moved
    assert special.end is None


def test_positions_end_where_they_end_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = telling_model(positions="learned", max_length=13)
    never_ending = SpecialIds(end=None)
    call = partial(search, model, 1, never_ending, max_tokens=9)
    assert call() == without_writing(monkeypatch, call)
    with pytest.raises(ShapeError, match="positions 13 to 13"):
        search(model, 1, never_ending, max_tokens=10)


def test_an_interruption_leaves_the_state_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = telling_model()
    ids = torch.tensor([4, 20, 30])
    with torch.inference_mode():
        state, untouched = model.start(PROMPTS), model.start(PROMPTS)
        with monkeypatch.context() as patch:
            write = Program.write

            def interrupted(self: Program, *arguments: Any) -> Written:
                write(self, *arguments)
                raise KeyboardInterrupt

            patch.setattr(Program, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                model.continue_texts(ids, state, Choice(9, torch.tensor([0]), None))
        assert state.length == PROMPTS.shape[1]
        assert torch.equal(model.step(ids, state), model.step(ids, untouched))


def watch_a_block(model: Any) -> Any:
    return model.blocks[0].register_forward_hook(lambda *_: None)


def put_a_step_in_its_place(model: Any) -> None:
    step = model.step
    model.step = lambda *arguments: step(*arguments)


@pytest.mark.parametrize(
    "change", [watch_a_block, put_a_step_in_its_place, lambda model: model.double()]
)
def test_who_looks_inside_sees_each_step(change: Callable[[Any], Any], written: list[int]) -> None:
    model = telling_model()
    expected = search(model, 1)
    assert written
    written.clear()
    change(model)
    assert [text.ids for [text] in search(model, 1)] == [text.ids for [text] in expected]
    assert not written


def test_draws_and_constraints_ask_for_each_step(written: list[int]) -> None:
    model = telling_model()
    search(model, 1, sampling=Sampling(temperature=0.5, seed=3))
    search(model, 1, no_repeat=3)
    search(model, 3, min_length=4)
    assert not written
