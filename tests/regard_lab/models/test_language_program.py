"""Steps of a small language model by one program have the numbers of its modules; its caches hold the same texts."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from measuring import NotedOperations
from program_steps import assert_close, note_computed
from torch import Tensor, nn

from regard import record_attention
from regard.backends.native.library import load
from regard.errors import ArgumentError, RegardError
from regard_lab.decoding import Sampling, generate
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.models.language_program import LanguageProgram
from regard_lab.models.text_program import MOST_ROWS_OF_A_STEP

pytestmark = pytest.mark.skipif(
    isinstance(load(), str), reason="the compiled library computes programs"
)

COMPUTED: list[dict[str, Any]] = [
    {},
    {"positions": "rotary", "kv_heads": 2, "activation": "swiglu"},
    {"positions": "learned", "norm": "layer", "activation": "gelu"},
    {"positions": "sinusoidal", "activation": "geglu", "tied": False},
    {"norm": "layer", "biases": False, "activation": "gelu-tanh"},
    {"pattern": "causal_window(4)", "positions": "rotary"},
]
LEFT_TO_MODULES: list[dict[str, Any]] = [
    {"qk_norm": True},
    {"positions": "alibi"},
    {"value_residual": True},
    {"pattern": "causal_window(3) | (causal & prefix(2))"},
    {"mechanism": "linear"},
]
PROMPTS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]])


def model_of(**changes: Any) -> LanguageModel:
    torch.manual_seed(3)
    return LanguageModel(LanguageConfig(vocab_size=41, dim=24, heads=4, layers=3, **changes)).eval()


def exact_model(model: LanguageModel) -> LanguageModel:
    """The same model in float64, whose steps no program computes."""
    return copy.deepcopy(model).double()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    return note_computed(monkeypatch, LanguageProgram, "step")


class ModelPair:
    """A text that a model and its float64 copy write together."""

    def __init__(self, model: LanguageModel, prompts: Tensor = PROMPTS, **options: Any) -> None:
        self.model = model
        self.exact = exact_model(model)
        self.state = model.start(prompts, **options)
        options.pop("dtype", None)
        self.other = self.exact.start(prompts, **options)
        self.ids = prompts[:, -1]

    def step(self) -> None:
        logits = self.exact.step(self.ids, self.other)
        assert_close(self.model.step(self.ids, self.state), logits)
        self.ids = logits.argmax(-1)
        assert self.state.length == self.other.length

    def change(self, change: Callable[[Any], Any]) -> None:
        change(self.state)
        change(self.other)


@pytest.mark.each_value
@pytest.mark.parametrize("changes", COMPUTED, ids=str)
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
@torch.no_grad()
def test_logits_are_those_of_the_modules_in_long_texts_that_are_reordered_and_cropped(
    changes: dict[str, Any], cache: str | None, computed: list[bool]
) -> None:
    options = {"cache": cache, "capacity": 80} if cache == "static" else {"cache": cache}
    pair = ModelPair(model_of(**changes), **options)
    for _ in range(21):
        pair.step()
    for order in ([0, 0, 2, 1, 1], [4, 1], [1, 0, 0]):
        index = torch.tensor(order)
        pair.change(lambda state, index=index: state.reorder(index))
        pair.ids = pair.ids[index]
        for _ in range(3):
            pair.step()
    if pair.state.goes_back:
        pair.change(lambda state: state.crop(9))
        for _ in range(5):
            pair.step()
        more = torch.tensor([[7, 8], [9, 5], [6, 6]])
        assert_close(pair.model.extend(more, pair.state), pair.exact.extend(more, pair.other))
        for _ in range(5):
            pair.step()
    assert all(computed)
    assert len(computed) >= 30


@pytest.mark.parametrize("changes", LEFT_TO_MODULES, ids=str)
@torch.no_grad()
def test_other_layers_are_left_to_their_modules(
    changes: dict[str, Any], computed: list[bool]
) -> None:
    pair = ModelPair(model_of(**changes))
    for _ in range(3):
        pair.step()
    assert computed == []


@pytest.mark.parametrize(
    "options",
    [{"cache": "paged"}, {"cache": "dynamic", "dtype": "bfloat16"}, {"dtype": "int8"}],
    ids=str,
)
@torch.no_grad()
def test_other_caches_are_left_to_the_modules(
    options: dict[str, Any], computed: list[bool]
) -> None:
    model = model_of()
    state = model.start(PROMPTS, **options)
    for _ in range(3):
        model.step(PROMPTS[:, 0], state)
    assert computed == [False] * 3


@torch.no_grad()
def test_texts_that_begin_at_different_places_are_left_to_the_modules(
    computed: list[bool],
) -> None:
    pair = ModelPair(model_of(), torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]]))
    pair.step()
    assert computed == []


def count_operations(step: Callable[[], Any], model: LanguageModel) -> None:
    with NotedOperations() as operations:
        step()
    assert len(operations.names) > 30


def record(step: Callable[[], Any], model: LanguageModel) -> None:
    with record_attention(model) as recording:
        step()
    assert recording


def hook_a_projection(step: Callable[[], Any], model: LanguageModel) -> None:
    called: list[nn.Module] = []
    projection = model.blocks[1].attention.to_q  # ty: ignore[unresolved-attribute]
    hook = projection.register_forward_hook(lambda module, *_: called.append(module))
    step()
    hook.remove()
    assert called == [projection]


@pytest.mark.parametrize("look", [count_operations, record, hook_a_projection])
@torch.no_grad()
def test_whoever_looks_at_a_step_sees_it(
    look: Callable[[Callable[[], Any], LanguageModel], None], computed: list[bool]
) -> None:
    pair = ModelPair(model_of(positions="rotary"))
    pair.step()
    look(pair.step, pair.model)
    pair.step()
    assert computed == [True, False, True]


@torch.no_grad()
def test_weights_that_change_count_at_once(computed: list[bool]) -> None:
    pair = ModelPair(model_of())
    pair.step()
    for model in (pair.model, pair.exact):
        for parameter in model.blocks.parameters():
            parameter.data.copy_(parameter * 0.5)  # which changes neither address nor version
    pair.step()
    for model in (pair.model, pair.exact):
        for parameter in model.blocks.parameters():
            parameter.data = parameter.data * 1.5
    pair.step()
    assert computed == [True] * 3


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))],
    ids=["copy", "deepcopy", "pickle"],
)
@torch.no_grad()
def test_a_copy_of_a_state_goes_on_by_itself(copied: Callable[[Any], Any]) -> None:
    model = model_of(positions="rotary")
    exact = exact_model(model)
    first, second = torch.tensor([5, 6, 7]), torch.tensor([15, 16, 17])
    state = model.start(PROMPTS)
    model.step(first, state)
    forked = copied(state)
    for ids in (first, second):
        a, b = model.step(ids, state), model.step(second, forked)
        model.step(first, forked) if ids is first else None
    expected = exact.start(PROMPTS)
    for ids in (first, first):
        exact.step(ids, expected)
    assert_close(a, exact.step(second, expected))
    expected = exact.start(PROMPTS)
    for ids in (first, second, first):
        exact.step(ids, expected)
    assert_close(b, exact.step(second, expected))


@torch.no_grad()
def test_after_an_error_a_state_is_unchanged() -> None:
    pair = ModelPair(model_of())
    pair.step()
    with pytest.raises(ArgumentError, match="41"):
        pair.model.step(torch.tensor([5, 6, 41]), pair.state)
    with pytest.raises(RegardError):
        pair.model.step(torch.tensor([5, 6]), pair.state)
    weight = pair.model.blocks[1].attention.to_q.weight  # ty: ignore[unresolved-attribute]
    value = weight[3, 2].clone()
    weight[3, 2] = torch.nan
    assert pair.model.step(pair.ids, copy.copy(pair.state)).isnan().all()
    weight[3, 2] = value
    for _ in range(5):
        pair.step()


def write_into_a_ring(model: LanguageModel, capacity: int) -> None:
    state = model.start(PROMPTS, "ring", capacity=capacity)
    for _ in range(4):
        model.step(PROMPTS[:, 0], state)


@torch.no_grad()
def test_a_full_static_cache_and_a_ring_that_is_too_short_are_refused_as_ever() -> None:
    model = model_of()
    state = model.start(PROMPTS, "static", capacity=6)
    for _ in range(2):
        model.step(PROMPTS[:, 0], state)
    with pytest.raises(ArgumentError, match="capacity"):
        model.step(PROMPTS[:, 0], state)
    assert state.length == 6
    model = model_of(pattern="causal_window(4)")
    with pytest.raises(ArgumentError, match="a larger cache"):
        write_into_a_ring(model, capacity=2)


@torch.no_grad()
def test_the_memory_of_a_window_does_not_grow_with_the_text(computed: list[bool]) -> None:
    model = model_of(pattern="causal_window(4)")
    state = model.start(PROMPTS.repeat(1, 20))
    sizes = set()
    for _ in range(60):
        model.step(PROMPTS[:, 0], state)
        sizes.add(state.nbytes)
    assert len(sizes) == 1
    assert computed == [True] * 60


@torch.no_grad()
def test_many_texts_and_other_integers_are_left_to_the_modules(computed: list[bool]) -> None:
    model = model_of()
    rows = MOST_ROWS_OF_A_STEP + 1
    state = model.start(PROMPTS[:1].expand(rows, -1))
    model.step(torch.full((rows,), 7), state)
    model.step(torch.tensor([7, 8, 9], dtype=torch.int32), model.start(PROMPTS))
    assert computed == [False, False]


@torch.no_grad()
def test_a_program_is_for_the_model_that_began_the_text(computed: list[bool]) -> None:
    model, untied = model_of(), model_of(tied=False)
    state = model.start(PROMPTS)
    model.step(PROMPTS[:, 0], state)
    untied.step(PROMPTS[:, 0], state)  # by its modules
    assert computed == [True]


def test_steps_with_gradients_are_those_of_the_modules(computed: list[bool]) -> None:
    model = model_of()
    state = model.start(PROMPTS)
    logits = model.step(PROMPTS[:, 0], state)
    assert logits.requires_grad
    assert computed == []


@pytest.mark.parametrize(
    "options",
    [{"beam": 3, "count": 2}, {"sampling": Sampling(top_k=5, seed=1), "count": 3}, {}],
    ids=str,
)
def test_searches_write_the_texts_of_a_model_without_programs(
    options: dict[str, Any], computed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(positions="rotary")
    texts = generate(model, PROMPTS, max_tokens=12, **options)
    assert all(computed)
    assert computed or not options  # the likeliest ids are written without a step
    monkeypatch.setattr(LanguageProgram, "of", lambda *_: None)
    expected = generate(model, PROMPTS, max_tokens=12, **options)
    for found_of_prompt, expected_of_prompt in zip(texts, expected, strict=True):
        for hypothesis, wanted in zip(found_of_prompt, expected_of_prompt, strict=True):
            assert hypothesis.ids == wanted.ids
            assert hypothesis.log_probability == pytest.approx(wanted.log_probability, abs=1e-4)
