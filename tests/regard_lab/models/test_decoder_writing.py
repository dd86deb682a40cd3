"""A translator that continues texts by itself writes what a search writes that asks it for each step."""

import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from ended_by_ids import EndedByIds
from torch import nn
from translators import SOURCES, begin, translator

from regard.backends.native.library import load
from regard.backends.native.program import Beam, Choice, Program, Written
from regard.errors import RegardError, ShapeError
from regard.patterns import CausalWindow
from regard_lab.decoding import Hypothesis, Sampling, beam_search, generate, greedy_search
from regard_lab.decoding.options import SpecialIds
from regard_lab.decoding.search import MOST_BEFORE_ASKING
from regard_lab.models import TranslationTransformer
from regard_lab.models.decoder_program import _KEPT
from regard_lab.models.flat_decoder import FIRST_ROOM
from regard_lab.models.layers import Residual
from regard_lab.text import BEGIN
from regard_lab.text.batches import pad

pytestmark = pytest.mark.skipif(
    isinstance(load(), str), reason="the compiled library computes programs"
)

CONFIGS: list[dict[str, Any]] = [
    {},
    {"norm": "post", "activation": "gelu"},
    {"tied": False, "activation": "geglu"},
    {"positions": "learned", "max_length": 128},
    {"positions": "rotary", "decoder_pattern": "causal_window(3)"},
    {"encoder_kv_heads": 2, "decoder_kv_heads": 1, "cross_kv_heads": 2, "positions": "rotary"},
]
TOKENS = 2 * FIRST_ROOM + 7  # of the longest texts; the room of a target grows twice
# The model of a test is random, and seldom ends a text by the END of the tokenisers.
ENDING = SpecialIds(end=14)


def telling_translator(**changes: Any) -> TranslationTransformer:
    """A translator in float32 that repeats itself little, so that its texts differ and some of them end."""
    model = translator(**changes).float().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.mul_(1.2).add_(0.15 * noise)
    return model


def search(model: Any, beam: int, special: SpecialIds = ENDING, **options: Any) -> list[Any]:
    sources = pad(SOURCES)
    options = {"max_tokens": TOKENS} | options
    if beam == 1:
        return greedy_search(model, sources, special=special, **options)
    return beam_search(model, sources, beam, special=special, count=2, **options)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each call of a program wrote."""
    return note_steps(monkeypatch, "write", lambda result: len(result.ids))


def note_steps(
    monkeypatch: pytest.MonkeyPatch, name: str, count: Callable[[Any], int]
) -> list[int]:
    """The number of steps of each call of a method of programs."""
    steps: list[int] = []
    method = getattr(Program, name)

    def noted(self: Program, *arguments: Any) -> Any:
        result = method(self, *arguments)
        steps.append(count(result))
        return result

    monkeypatch.setattr(Program, name, noted)
    return steps


def without_writing(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> Any:
    """The result where each step is asked for."""
    with monkeypatch.context() as patch:
        patch.delattr(TranslationTransformer, "continue_texts")
        return call()


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_texts_and_log_probabilities_have_the_bits_of_a_search_step_by_step(
    changes: dict[str, Any], beam: int, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = telling_translator(**changes)
    found = search(model, beam)
    assert sum(written) > (FIRST_ROOM if beam < 5 else 0)  # a wide beam often contains END
    calls = len(written)
    assert found == without_writing(monkeypatch, lambda: search(model, beam))
    assert len(written) == calls


@pytest.mark.parametrize("beam", [1, 2, 3])
def test_no_step_is_computed_that_a_search_step_by_step_does_not_need(
    beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = note_steps(monkeypatch, "run", lambda _: 1)
    together = note_steps(monkeypatch, "write", lambda result: len(result.ids) + result.is_scored)
    for changes in CONFIGS:
        model = telling_translator(**changes)
        alone.clear()
        together.clear()
        search(model, beam)
        steps = sum(alone) + sum(together)
        assert sum(together) > sum(alone)
        alone.clear()
        without_writing(monkeypatch, lambda: search(model, beam))  # noqa: B023
        assert sum(alone) == steps


def count_steps(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a call, and how many steps programs have computed in it.

    Modules read SOURCES, which are padded.
    """
    with monkeypatch.context() as patch:
        alone = note_steps(patch, "run", lambda _: 1)
        together = note_steps(patch, "write", lambda result: len(result.ids) + result.is_scored)
        result = call()
    return result, sum(alone) + sum(together)


def test_texts_that_end_with_their_first_id_take_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = telling_translator()
    with torch.inference_mode():
        first = model.step(torch.tensor([BEGIN] * len(SOURCES)), begin(model)).argmax(-1).tolist()
    for end in first:
        special = SpecialIds(end=end, never=())
        call = partial(search, model, 1, special)
        found, steps = count_steps(monkeypatch, call)
        expected, expected_steps = without_writing(
            monkeypatch, partial(count_steps, monkeypatch, call)
        )
        assert found == expected
        assert steps == expected_steps
        assert [text.ids == () for text in found] == [number == end for number in first]
    # One source alone is over after that step.
    call = partial(greedy_search, model, pad(SOURCES[:1]), TOKENS, SpecialIds(end=first[0]))
    [text], steps = count_steps(monkeypatch, call)
    assert text.ids == ()
    assert text.finished
    assert steps == 2  # one of them reads the source, which has no padding


@pytest.mark.parametrize("most", [1, 2, TOKENS])
def test_as_many_steps_are_computed_as_step_by_step(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for changes in CONFIGS[:3]:
        call = partial(search, telling_translator(**changes), 1, max_tokens=most)
        found, steps = count_steps(monkeypatch, call)
        step_by_step = partial(count_steps, monkeypatch, call)
        assert (found, steps) == without_writing(monkeypatch, step_by_step)
        assert steps <= most


def test_draws_are_those_of_a_search_step_by_step(
    written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = partial(
        generate,
        telling_translator(),
        pad(SOURCES),
        max_tokens=13,
        sampling=Sampling(seed=3),
        count=3,
        special=ENDING,
    )
    found, steps = count_steps(monkeypatch, call)
    step_by_step = partial(count_steps, monkeypatch, call)
    assert (found, steps) == without_writing(monkeypatch, step_by_step)
    assert not written


def test_the_texts_of_these_tests_end_at_different_places(written: list[int]) -> None:
    texts: list[Hypothesis] = []
    for changes in CONFIGS:
        texts += search(telling_translator(**changes), 1)
    lengths = {len(text.ids) for text in texts if text.finished}
    assert len(lengths) > 3
    assert any(not text.finished and len(text.ids) == TOKENS for text in texts)


@pytest.mark.parametrize("end", [None, 7])
def test_a_text_ends_at_its_most_tokens_or_never(
    end: int | None, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = telling_translator()
    special = SpecialIds(end=end, never=(0, 1, 2))
    for beam in (1, 3):
        for most in (1, 2, 3, 11):
            options: dict[str, Any] = {"special": special, "max_tokens": most}
            found = search(model, beam, **options)
            call = partial(search, model, beam, **options)
            assert found == without_writing(monkeypatch, call)
            if end is None and beam == 1:
                assert all(len(text.ids) == most for text in found)


def test_who_ends_texts_is_asked_after_each_id_as_step_by_step(
    written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for changes in CONFIGS:
        model = telling_translator(**changes)
        asked_by, alone = EndedByIds(), EndedByIds()
        options: dict[str, Any] = {"max_tokens": TOKENS, "special": ENDING}
        found = generate(model, pad(SOURCES), over=asked_by, **options)
        stepwise = partial(generate, model, pad(SOURCES), over=alone, **options)
        assert found == without_writing(monkeypatch, stepwise)
        assert asked_by.asked == alone.asked
    assert max(written) == MOST_BEFORE_ASKING


def test_the_state_is_that_of_steps(written: list[int]) -> None:
    model = telling_translator(positions="rotary")
    ids = torch.tensor([BEGIN] * len(SOURCES))
    never = torch.tensor([0, 1])
    with torch.inference_mode():
        state = begin(model)
        result = model.continue_texts(ids, state, Choice(9, never, None))
        assert result is not None
        found, logits = result
        stepwise = begin(model)
        for chosen, log_probs in found.steps():
            expected = model.step(ids, stepwise)
            expected[:, never] = -torch.inf
            ids = expected.argmax(-1)
            assert chosen == ids.tolist()
            gains = expected.log_softmax(-1).gather(1, ids[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(log_probs), gains, rtol=0, atol=1e-6)
        assert logits is None
        assert state.length == stepwise.length == 9
        assert torch.equal(model.step(ids, state), model.step(ids, stepwise))


def test_a_step_in_which_a_text_may_end_is_left_to_the_search() -> None:
    model = telling_translator()
    ids = torch.tensor([BEGIN] * len(SOURCES))
    with torch.inference_mode():
        first = model.step(ids, begin(model))
        end = int(first[1].argmax())
        state = begin(model)
        result = model.continue_texts(ids, state, Choice(9, torch.tensor([0]), end))
        assert result is not None
        found, logits = result
        assert found.steps() == []
        assert found.is_scored
        assert state.length == 1
        first[:, 0] = -torch.inf
        assert logits is not None
        assert torch.equal(logits, first)


def interrupt_after_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Program.write

    def interrupted(self: Program, *arguments: Any) -> Written:
        write(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Program, "write", interrupted)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_state_is_as_it_was_after_an_interruption(
    beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = telling_translator()
    ids = torch.tensor([BEGIN, 7, 8])
    rows = None
    if beam > 1:
        totals = torch.tensor([[-0.1, -0.2, -0.3]], dtype=torch.float64)
        rows = Beam(totals, torch.full((1,), -torch.inf, dtype=torch.float64))
    choice = Choice(9, torch.tensor([0]), None, rows)
    with torch.inference_mode():
        state, untouched = begin(model), begin(model)
        for of_steps in (state, untouched):
            model.step(ids, of_steps)
            model.step(ids + 1, of_steps)
        with monkeypatch.context() as patch:
            interrupt_after_writing(patch)
            with pytest.raises(KeyboardInterrupt):
                model.continue_texts(ids, state, choice)
        assert state.length == 2
        assert torch.equal(model.step(ids, state), model.step(ids, untouched))


def test_positions_end_where_they_end_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = telling_translator(positions="learned", max_length=13)
    never_ending = SpecialIds(end=None)
    assert search(model, 1, never_ending, max_tokens=13) == without_writing(
        monkeypatch, lambda: search(model, 1, never_ending, max_tokens=13)
    )
    with pytest.raises(ShapeError, match="positions 13 to 13"):
        search(model, 1, never_ending, max_tokens=14)


def test_logits_that_are_not_finite_are_refused_as_step_by_step(written: list[int]) -> None:
    model = telling_translator()
    [text, *_] = search(model, 1)
    assert sum(written) > 3
    with torch.no_grad():
        model.embedding.weight[text.ids[3]] = torch.nan
    with pytest.raises(RegardError, match="logits are not finite"):
        search(model, 1)


class OwnStep(TranslationTransformer):
    """A translator whose steps do more."""

    calls = 0

    def step(self, ids: torch.Tensor, state: Any) -> torch.Tensor:
        self.calls += 1
        return super().step(ids, state)


def test_a_step_of_its_own_is_asked_for_each_time(written: list[int]) -> None:
    model = telling_translator()
    own = OwnStep(model.config).eval()
    own.load_state_dict(model.state_dict())
    texts = search(own, 1)
    assert not written
    assert own.calls >= max(len(text.ids) for text in texts)
    assert texts == search(model, 1)


def test_a_step_that_is_put_in_the_place_of_the_class_is_asked_for(
    written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = telling_translator()
    expected = search(model, 1)
    written.clear()
    calls: list[int] = []
    step = TranslationTransformer.step

    def counted(self: Any, *arguments: Any) -> torch.Tensor:
        calls.append(1)
        return step(self, *arguments)

    monkeypatch.setattr(TranslationTransformer, "step", counted)
    assert search(model, 1) == expected
    assert not written
    assert len(calls) >= max(len(text.ids) for text in expected)


def test_texts_do_not_depend_on_the_dtype_of_new_tensors(written: list[int]) -> None:
    model = telling_translator()
    for beam in (1, 3):
        expected = search(model, beam)
        torch.set_default_dtype(torch.float64)
        try:
            assert search(model, beam) == expected
        finally:
            torch.set_default_dtype(torch.float32)
    assert sum(written) > FIRST_ROOM


@pytest.mark.parametrize("look", ["hook", "training", "profiler", "instance"])
def test_who_looks_inside_sees_each_step(look: str, written: list[int]) -> None:
    model = telling_translator(dropout=0.0)
    expected = search(model, 1)
    written.clear()
    calls: list[int] = []
    if look == "hook":
        model.decoder[0].feed_forward.register_forward_hook(lambda *_: calls.append(1))
        found = search(model, 1)
        assert calls
    elif look == "training":
        found = search(model.train(), 1)
    elif look == "profiler":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            found = search(model, 1)
    else:
        step = model.step
        model.step = lambda *arguments: calls.append(1) or step(*arguments)  # type: ignore
        found = search(model, 1)
        assert calls
    assert not written
    assert [text.ids for text in found] == [text.ids for text in expected]


def other_pattern(model: Any) -> None:
    for layer in model.decoder:
        layer.self_attention.pattern = CausalWindow(2)


def other_epsilon(model: Any) -> None:
    model.decoder_norm.eps = 0.5


def other_weight(model: Any) -> None:
    layer = model.decoder[1].self_attention.to_q
    layer.weight = nn.Parameter(layer.weight.flip(0))


def other_memory(model: Any) -> None:
    weight = model.decoder[1].self_attention.to_q.weight
    weight.data = weight.data.flip(0).clone()


def fewer_words(model: Any) -> None:
    weight = model.embedding.weight
    weight.data = weight.data[:33]  # where it was


def other_numbers(model: Any) -> None:
    model.decoder[1].self_attention.to_q.weight.data.mul_(-1)


def other_layer(model: Any) -> None:
    model.decoder[1] = telling_translator().decoder[2]


def layer_with_norms_last(model: Any) -> None:
    for part in model.decoder[1].children():
        if isinstance(part, Residual):
            part.norm_first = False


@pytest.mark.parametrize(
    "change",
    [
        other_pattern,
        other_epsilon,
        other_weight,
        other_memory,
        fewer_words,
        other_numbers,
        other_layer,
        layer_with_norms_last,
    ],
)
def test_what_is_changed_between_texts_counts_in_the_next(
    change: Callable[[Any], None], written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = telling_translator()
    before = search(model, 1)
    change(model)
    after = search(model, 1)
    assert after != before
    model = telling_translator()
    change(model)  # before its first text
    assert search(model, 1) == after
    model.decoder[0].register_forward_hook(lambda *_: None)  # so that its modules compute
    texts = [text.ids for text in search(model, 1)]
    assert texts == [text.ids for text in after]


def test_a_norm_that_does_nothing_is_called_if_it_is_hooked(written: list[int]) -> None:
    model = telling_translator(norm="post")
    calls: list[int] = []
    model.decoder_norm.register_forward_hook(lambda *_: calls.append(1))
    texts = search(model, 1)
    assert not written
    assert len(calls) >= max(len(text.ids) for text in texts)


def test_texts_of_several_threads_do_not_disturb_each_other() -> None:
    model = telling_translator(positions="rotary")
    sources = [[5, 6, 7, 8, 3], [9, 3], [11, 12, 13, 3], [17, 4, 4, 3]]

    def texts_of(source: list[int]) -> list[Hypothesis]:
        return greedy_search(model, pad([source]), 40, ENDING)

    alone = [texts_of(source) for source in sources]
    found: dict[int, list[Any]] = {number: [] for number in range(len(sources))}

    def write(number: int) -> None:
        for _ in range(20):
            found[number].append(texts_of(sources[number]))

    threads = [threading.Thread(target=write, args=(number,)) for number in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, expected in enumerate(alone):
        assert found[number] == [expected] * 20


def test_a_kept_program_goes_with_its_model() -> None:
    model = telling_translator()
    search(model, 1)
    assert model in _KEPT._kept
    gc.collect()
    count = len(_KEPT._kept)
    del model
    gc.collect()
    assert len(_KEPT._kept) == count - 1
