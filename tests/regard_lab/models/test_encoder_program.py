"""Short sources that one program reads have the numbers of the modules; who looks inside still sees the modules."""

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from measuring import NotedOperations
from program_steps import assert_close, note_computed
from torch import nn
from translators import translator

from regard.backends.native.library import load
from regard.backends.native.program import MOST_ROWS
from regard.errors import ArgumentError, ShapeError
from regard.layers import record_attention
from regard.patterns import CausalWindow
from regard.positions import Rotary
from regard_lab.models import TranslationTransformer
from regard_lab.models.encoder_program import _KEPT, EncoderProgram
from regard_lab.models.layers import Residual
from regard_lab.text import BEGIN, PAD

pytestmark = pytest.mark.skipif(
    isinstance(load(), str), reason="the compiled library computes programs"
)

CONFIGS: list[dict[str, Any]] = [
    {},
    {"norm": "post", "activation": "gelu", "encoder_pattern": "sliding_window(6)"},
    {"tied": False, "activation": "geglu", "encoder_layers": 3},
    {"positions": "learned", "max_length": 64, "activation": "silu", "norm": "post"},
    {"positions": "rotary", "activation": "swiglu", "norm": "post", "encoder_kv_heads": 1},
    {"encoder_kv_heads": 2, "cross_kv_heads": 1, "activation": "gelu-tanh"},
    {"positions": "rotary", "encoder_pattern": "sliding_window(4)", "cross_kv_heads": 2},
    {"encoder_pattern": "causal", "activation": "relu"},
    {"encoder_pattern": "causal_window(3)", "cross_pattern": "sliding_window(6)"},
]
LEFT_TO_MODULES: list[dict[str, Any]] = [
    {"encoder_pattern": "sliding_window(4) | global_tokens(0)"},
    {"encoder_pattern": "random_blocks(1, block=2, seed=0, past=true)"},
    {"encoder_pattern": "key_span(0, 5)"},
    {"encoder_mechanism": "performer(8)", "positions": "rotary"},
    {"encoder_mechanism": "linformer(16, 4)"},
    {"encoder_mechanism": "lsh(4, 4)"},
]
SIZES = [(1, 1), (1, 7), (1, 13), (2, 31), (5, 3), (1, MOST_ROWS)]  # texts and their length
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 11, 12, 40, 3]])


def random_source(texts: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(17 * texts + length)
    return torch.randint(4, 41, (texts, length), generator=generator)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each source that a program was asked for, whether it has read it."""
    return note_computed(monkeypatch, EncoderProgram, "encode")


def contexts_of(model: Any, source: torch.Tensor = SOURCE) -> list[torch.Tensor]:
    """The keys and values of a source that the layers of the decoder read."""
    with torch.no_grad():
        return [
            x for context in model.start(source).contexts for x in (context.keys, context.values)
        ]


def by_modules(model: Any, source: torch.Tensor = SOURCE) -> list[torch.Tensor]:
    """The same by the modules, of which one is hooked."""
    handle = model.encoder[0].register_forward_hook(lambda *_: None)
    try:
        return contexts_of(model, source)
    finally:
        handle.remove()


def assert_same_numbers(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for numbers, others in zip(found, expected, strict=True):
        torch.testing.assert_close(numbers, others, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_contexts_and_first_logits_are_those_of_the_modules(
    changes: dict[str, Any], read: list[bool]
) -> None:
    exact = translator(**changes)
    model = translator(**changes).float()
    for texts, length in SIZES:
        source = random_source(texts, length)
        expected = contexts_of(exact, source)
        for found, numbers in zip(contexts_of(model, source), expected, strict=True):
            assert_close(found, numbers)
        ids = torch.full((texts,), BEGIN)
        with torch.inference_mode():
            logits = model.step(ids, model.start(source))
            assert_close(logits, exact.step(ids, exact.start(source)))
    assert read == [True] * 2 * len(SIZES)


@pytest.mark.parametrize("changes", LEFT_TO_MODULES, ids=str)
def test_other_encoders_are_left_to_their_modules(
    changes: dict[str, Any], read: list[bool]
) -> None:
    source = SOURCE[:, :3]
    model = translator(**changes).float()
    for found, numbers in zip(
        contexts_of(model, source), contexts_of(translator(**changes), source), strict=True
    ):
        assert_close(found, numbers)
    assert read == []


def test_padding_many_ids_and_vectors_are_left_to_the_modules(read: list[bool]) -> None:
    model = translator().float()
    padded = SOURCE.clone()
    padded[1, 3:] = PAD
    contexts_of(model, padded)
    contexts_of(model, padded.flip(1))
    contexts_of(model, random_source(1, MOST_ROWS + 1))
    contexts_of(model, random_source(5, 13))
    with torch.no_grad():
        model.start(SOURCE, vectors=torch.zeros(2, 5, 24))
        model.encode(SOURCE)
    assert read == []
    contexts_of(model, random_source(1, MOST_ROWS))
    assert read == [True]


def test_sources_may_lie_anywhere_in_memory(read: list[bool]) -> None:
    model = translator(positions="rotary").float()
    expected = contexts_of(model)
    wide = torch.full((4, 11), 39)
    wide[1:3, 2:7] = SOURCE
    spread = torch.full((2, 10), 39)
    spread[:, ::2] = SOURCE
    for source in (wide[1:3, 2:7], spread[:, ::2], SOURCE.t().contiguous().t()):
        assert torch.equal(source, SOURCE)
        assert all(map(torch.equal, contexts_of(model, source), expected))
    row = SOURCE[:1].expand(3, -1)
    assert_same_numbers(contexts_of(model, row), by_modules(model, row))
    assert read == [True] * 5


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    "name",
    [
        "encoder.1",
        "encoder.0.attention",
        "encoder.1.attention.to_k",
        "encoder.0.feed_forward",
        "encoder.1.around_feed_forward.norm",
        "encoder_norm",
        "embedding",
        "decoder.1.cross_attention.to_v",
    ],
)
def test_a_hooked_module_is_called(name: str, norm: str, read: list[bool]) -> None:
    model = translator(norm=norm).float()
    expected = contexts_of(model)
    called: list[nn.Module] = []
    module = model.get_submodule(name)
    handle = module.register_forward_hook(lambda module, *_: called.append(module))
    assert_same_numbers(contexts_of(model), expected)
    assert called
    handle.remove()
    assert all(map(torch.equal, contexts_of(model), expected))
    assert read == [True, True]


def test_an_encode_in_another_place_is_called(
    read: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = translator().float()
    calls: list[int] = []
    encode = TranslationTransformer.encode

    def counted(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        return encode(self, *arguments)

    class OwnEncode(TranslationTransformer):
        encode = counted

    own = OwnEncode(model.config).float().eval()
    contexts_of(own)
    assert calls == [1]
    model.encode = lambda *arguments: counted(model, *arguments)
    contexts_of(model)
    assert calls == [1, 1]
    del model.encode
    monkeypatch.setattr(TranslationTransformer, "encode", counted)
    contexts_of(model)
    assert calls == [1, 1, 1]
    assert read == []


def replace_forward(model: Any) -> None:
    layer = model.encoder[1].attention
    layer.forward = type(layer).forward.__get__(layer)


def replace_with_a_derived_class(model: Any) -> None:
    class OwnLayer(type(model.encoder[0])):  # type: ignore[misc]
        pass

    model.encoder[0].__class__ = OwnLayer


def compile_a_layer(model: Any) -> None:
    model.encoder[1].compile(backend="eager")


def train(model: Any) -> None:
    model.encoder[0].train()


class OwnParameter(nn.Parameter):
    """A weight that may compute its products in its own way."""


def take_a_weight_of_another_class(model: Any) -> None:
    layer = model.encoder[0].attention.to_q
    layer.weight = OwnParameter(layer.weight.detach())


def take_a_norm_out(model: Any) -> None:
    model.encoder[0].around_attention.norm = nn.Identity()


def put_a_norm_last(model: Any) -> None:
    model.encoder[0].around_attention.norm_first = False


def rotate_the_keys_of_sources(model: Any) -> None:
    model.decoder[1].cross_attention.positions = Rotary()


@pytest.mark.parametrize(
    "change",
    [
        replace_forward,
        replace_with_a_derived_class,
        compile_a_layer,
        train,
        take_a_weight_of_another_class,
        take_a_norm_out,
        put_a_norm_last,
        rotate_the_keys_of_sources,
        torch.nn.Module.bfloat16,
        torch.nn.Module.double,
    ],
)
@pytest.mark.parametrize("reads_before", [False, True])
def test_modules_that_do_something_else_are_called(
    change: Callable[[Any], Any], reads_before: bool, read: list[bool]
) -> None:
    model = translator(dropout=0.0).float()
    if reads_before:
        contexts_of(model)
    change(model)
    contexts_of(model)
    assert read == [True] * reads_before


@pytest.mark.parametrize(
    "context",
    [
        NotedOperations,
        lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.enable_grad,
    ],
)
def test_who_watches_the_thread_sees_the_modules(
    context: Callable[[], AbstractContextManager[Any]], read: list[bool]
) -> None:
    model = translator().float()
    with torch.no_grad():
        model.start(SOURCE)
        with context():
            model.start(SOURCE)
        model.start(SOURCE)
    assert [computed for computed in read if computed] == [True, True]


def test_a_recording_has_the_attention_of_the_encoder(read: list[bool]) -> None:
    model = translator().float()
    contexts_of(model)
    with record_attention(model, want=["weights"]) as recording:
        contexts_of(model)
    weights = recording["encoder.1.attention"][0].weights
    assert weights.shape == (2, 4, 5, 5)
    contexts_of(model)
    assert read == [True, True]


def test_gradients_of_contexts_are_those_of_the_modules(read: list[bool]) -> None:
    model = translator().float()
    model.start(SOURCE).contexts[0].keys.sum().backward()
    assert model.encoder[0].attention.to_q.weight.grad.isfinite().all()
    assert read == []


@pytest.mark.parametrize("wrong", [41, -1, 10_000])
def test_an_id_outside_of_the_vocabulary_is_named(wrong: int, read: list[bool]) -> None:
    model = translator().float()
    source = SOURCE.clone()
    source[1, 2] = wrong
    with pytest.raises(ArgumentError) as by_program:
        contexts_of(model, source)
    with pytest.raises(ArgumentError) as expected:
        by_modules(model, source)
    assert str(by_program.value) == str(expected.value)
    contexts_of(model)
    assert read == [True]


def test_positions_that_are_not_learned_are_named() -> None:
    model = translator(positions="learned", max_length=7).float()
    contexts_of(model, random_source(2, 7))
    with pytest.raises(ShapeError) as by_program:
        contexts_of(model, random_source(2, 8))
    with pytest.raises(ShapeError) as expected:
        by_modules(model, random_source(2, 8))
    assert str(by_program.value) == str(expected.value)


@pytest.mark.parametrize(
    "name", ["encoder.0.attention.to_q", "encoder.1.feed_forward.narrow", "encoder_norm"]
)
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_count_as_in_the_modules(name: str, number: float) -> None:
    model = translator().float()
    expected = contexts_of(model)
    weight = model.get_submodule(name).weight
    with torch.no_grad():
        value = weight[3].clone()
        weight[3] = number
        found = contexts_of(model)
        assert not all(bool(x.isfinite().all()) for x in found)
        for numbers, others in zip(found, by_modules(model), strict=True):
            assert torch.equal(numbers.isfinite(), others.isfinite())
        weight[3] = value
    assert all(map(torch.equal, contexts_of(model), expected))


def other_numbers(model: Any) -> None:
    model.encoder[1].attention.to_q.weight.data.mul_(-1)  # changes neither address nor version


def other_memory(model: Any) -> None:
    weight = model.encoder[1].attention.to_q.weight
    weight.data = weight.data.flip(0).clone()


def other_layout(model: Any) -> None:
    weight = model.encoder[1].attention.to_q.weight
    weight.data = weight.data.flip(0).t().contiguous().t()


def other_weight(model: Any) -> None:
    layer = model.decoder[1].cross_attention.to_k
    layer.weight = nn.Parameter(layer.weight.flip(0))


def other_layer(model: Any) -> None:
    model.encoder[1] = translator().float().encoder[0]


def fewer_layers(model: Any) -> None:
    del model.encoder[0]


def other_pattern(model: Any) -> None:
    for layer in model.encoder:
        layer.attention.pattern = CausalWindow(2)


def other_epsilon(model: Any) -> None:
    model.encoder_norm.eps = 0.5


def other_scale(model: Any) -> None:
    model.encoder[0].attention.options["scale"] = 0.9


def fewer_words(model: Any) -> None:
    weight = model.embedding.weight
    weight.data = weight.data[4:].clone()


def norms_last(model: Any) -> None:
    for module in model.encoder.modules():
        if isinstance(module, Residual):
            module.norm_first = False


@pytest.mark.parametrize(
    "change",
    [
        other_numbers,
        other_memory,
        other_layout,
        other_weight,
        other_layer,
        fewer_layers,
        other_pattern,
        other_epsilon,
        other_scale,
        fewer_words,
        norms_last,
    ],
)
def test_what_is_changed_between_texts_counts_in_the_next(change: Callable[[Any], None]) -> None:
    model = translator().float()
    source = SOURCE.clamp(max=30)
    before = contexts_of(model, source)
    change(model)
    after = contexts_of(model, source)
    assert not all(map(torch.equal, before, after))
    assert_same_numbers(after, by_modules(model, source))


def test_a_table_that_became_shorter_names_no_id_behind_it(read: list[bool]) -> None:
    model = translator().float()
    contexts_of(model)
    weight = model.embedding.weight
    weight.data = weight.data[:33]  # where it was; SOURCE has the id 40
    with pytest.raises(IndexError):
        contexts_of(model)
    with pytest.raises(IndexError):
        by_modules(model)
    assert read == [True]


def test_sources_do_not_depend_on_the_dtype_of_new_tensors(read: list[bool]) -> None:
    for changes in CONFIGS[:5]:
        model = translator(**changes).float()
        expected = contexts_of(model)
        torch.set_default_dtype(torch.float64)
        try:
            found = contexts_of(translator(**changes).float())
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(map(torch.equal, found, expected))
    assert read == [True] * 10


def test_a_default_device_changes_nothing() -> None:
    model = translator().float()
    expected = contexts_of(model)
    torch.set_default_device("cpu")
    try:
        found = contexts_of(model)
    finally:
        torch.set_default_device(None)
    assert_same_numbers(found, expected)


def test_sources_of_several_threads_do_not_disturb_each_other() -> None:
    model = translator(positions="rotary", encoder_pattern="sliding_window(4)").float()
    sources = [random_source(*size) for size in ((1, 7), (2, 13), (3, 5), (1, 31))]
    alone = [contexts_of(model, source) for source in sources]
    equal: list[bool] = []

    def start(number: int) -> None:
        for _ in range(30):
            equal.append(all(map(torch.equal, contexts_of(model, sources[number]), alone[number])))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(len(sources))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert equal == [True] * 30 * len(sources)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_a_model_have_their_own_program(
    copied: Callable[[Any], Any], read: list[bool]
) -> None:
    model = translator().float()
    expected = contexts_of(model)
    other = copied(model)
    assert all(map(torch.equal, contexts_of(other), expected))
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.5)
    assert not any(map(torch.equal, contexts_of(other), expected))
    assert_same_numbers(contexts_of(other), by_modules(other))
    assert all(map(torch.equal, contexts_of(model), expected))
    assert read == [True] * 5


def test_a_kept_program_goes_with_its_model() -> None:
    model = translator().float()
    contexts_of(model)
    assert model in _KEPT._kept
    gc.collect()
    count = len(_KEPT._kept)
    del model
    gc.collect()
    assert len(_KEPT._kept) == count - 1


def test_contexts_of_inference_mode_are_as_those_of_modules_outside_of_it(
    read: list[bool],
) -> None:
    model = translator().float()
    ids = torch.tensor([BEGIN, 7])
    with torch.inference_mode():
        states = [model.start(SOURCE)]
        handle = model.encoder[0].register_forward_hook(lambda *_: None)
        states.append(model.start(SOURCE))
        handle.remove()
    assert read == [True]
    with torch.no_grad():
        first, second = (model.step(ids, state) for state in states)
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)
    for state in states:
        for context in state.contexts:
            assert context.keys.is_inference()
    with torch.no_grad():
        assert not model.start(SOURCE).contexts[0].keys.is_inference()


def test_states_do_not_share_what_they_have_read() -> None:
    model = translator().float()
    with torch.inference_mode():
        first = model.start(SOURCE)
        kept = first.contexts[0].keys.clone()
        second = model.start(SOURCE.flip(1))
        assert torch.equal(first.contexts[0].keys, kept)
        assert not torch.equal(second.contexts[0].keys, kept)


def test_large_models_are_left_to_the_threads_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, read: list[bool]
) -> None:
    model = translator().float()
    parts = [model.embedding, model.encoder, model.encoder_norm]
    parts += [layer.cross_attention for layer in model.decoder]
    most = sum(weight.numel() for part in parts for weight in part.parameters())
    for limit in (most, most - 1):
        monkeypatch.setattr("regard_lab.models.model_program.MOST_WEIGHTS", limit)
        contexts_of(translator().float())
    assert read == [True]


def test_states_with_caches_of_any_kind_read_the_same_sources(read: list[bool]) -> None:
    model = translator().float()
    ids = torch.tensor([BEGIN, 7])
    with torch.no_grad():
        expected = model.step(ids, model.start(SOURCE))
        state = model.start(SOURCE, "static", capacity=9)
        torch.testing.assert_close(model.step(ids, state), expected, rtol=1e-4, atol=1e-5)
    assert read == [True, True]
