"""Encoder layers with packed weights compute what their modules do, in few operations or by programs."""

import copy
import pickle
import threading
from importlib import import_module

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import torch
import transformers as tf
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard.integrations.transformers import (
    attach,
    detach,
    layer_program,
    observe,
    packed_layers,
)
from regard.integrations.transformers.packed_layers import LAYERS, MODELS
from regard.layers import unpack_weights
from regard.layers.packed import pack_weights

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "max_position_embeddings": 83,
    "pad_token_id": 1,
}
ODD_SIZES = {**SIZES, "hidden_size": 52, "intermediate_size": 101}
BOTH = pytest.mark.parametrize("sizes", [SIZES, ODD_SIZES], ids=["panels", "odd"])


def ids_of(batch=2, length=7):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(3, 96, (batch, length), generator=generator)


def model_of(name, sizes):
    """A small model with such layers, whose numbers are all different from those of a new model."""
    path = next(path for path, layer in LAYERS.items() if layer == f"{name}Layer")
    module = import_module(f"{MODELS}{path}")
    torch.manual_seed(0)
    kind = getattr(module, f"{name}Model", None) or getattr(module, f"{name}Encoder")
    config = kind.config_class(**sizes)
    if name == "BertGeneration":
        kind = tf.BertGenerationEncoder
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def numbers(model, ids=None, **inputs):
    with torch.inference_mode():
        return model(input_ids=ids_of() if ids is None else ids, **inputs)[0]


def in_float64(model, ids=None, **inputs):
    """The numbers of the model's own code, before it is attached."""
    return numbers(copy.deepcopy(model).double(), ids, **inputs)


def assert_equals(found, expected):
    assert expected.dtype == torch.float64
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-5)


@pytest.fixture
def calls(monkeypatch):
    """What computed each layer."""
    names = []

    def note(owner, name, label):
        compute = getattr(owner, name)

        def noted(*args):
            output = compute(*args)
            names.append(label if output is not None else "modules")
            return output

        monkeypatch.setattr(owner, name, noted)

    note(packed_layers, "_behind_attention", "operations")
    note(layer_program.LayerProgram, "outputs", "program")
    compute = packed_layers._compute

    def noted(*args):
        output = compute(*args)
        if output is None:
            names.append("modules")
        return output

    monkeypatch.setattr(packed_layers, "_compute", noted)
    return names


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def panels():
    """Whether PyTorch packs in panels on this processor."""
    layer = nn.Linear(64, 64).eval()
    pack_weights(layer)
    has_library = layer_program.library_of_programs() is not None
    return has_library and layer_program.panels_of(layer) is not None


@BOTH
@pytest.mark.parametrize("name", [layer.removesuffix("Layer") for layer in LAYERS.values()])
def test_each_kind_of_layer_computes_what_its_modules_do(name, sizes, calls, one_thread):
    model = model_of(name, sizes)
    expected = in_float64(model)
    attach(model, pack=True)
    calls.clear()
    assert_equals(numbers(model), expected)
    assert len(calls) == 2
    assert "modules" not in calls


def test_few_rows_are_computed_by_programs_and_many_by_operations(calls, one_thread, panels):
    model = model_of("Bert", SIZES)
    cases = {(1, 1): 1, (3, 11): 1, (2, 32): 1, (5, 13): 2, (7, 41): 2}
    expected = {shape: in_float64(model, ids_of(*shape)) for shape in cases}
    attach(model, pack=True)
    for shape in cases:
        calls.clear()
        assert_equals(numbers(model, ids_of(*shape)), expected[shape])
        is_small = shape[0] * shape[1] <= 64
        assert calls == ["program" if panels and is_small else "operations"] * 2
    torch.set_num_threads(2)
    calls.clear()
    numbers(model)
    assert calls == ["operations"] * 2


@BOTH
def test_padding_masks_and_relu_give_the_numbers_of_the_model(sizes, calls, one_thread):
    model = model_of("Roberta", {**sizes, "hidden_act": "relu"})
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    expected = in_float64(model, attention_mask=mask)
    attach(model, pack=True)
    calls.clear()
    assert_equals(numbers(model, attention_mask=mask)[mask.bool()], expected[mask.bool()])
    assert len(calls) == 2
    assert "modules" not in calls


def replace_dense(layer):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    old = layer.intermediate.dense
    layer.intermediate.dense = Doubled(old.in_features, old.out_features).eval()


CHANGES = {
    "a hook of a product": lambda layer: layer.output.dense.register_forward_hook(
        lambda module, args, output: 2 * output
    ),
    "a hook before attention": lambda layer: layer.attention.self.register_forward_pre_hook(
        lambda module, args: (2 * args[0], *args[1:])
    ),
    "another product": replace_dense,
    "another norm": lambda layer: setattr(layer.output, "LayerNorm", nn.Identity()),
    "another activation": lambda layer: setattr(
        layer.intermediate, "intermediate_act_fn", nn.Tanh()
    ),
    "an activation's function": lambda layer: setattr(
        layer.intermediate.intermediate_act_fn, "act", torch.tanh
    ),
    "its own forward": lambda layer: setattr(layer.output, "forward", lambda x, y: x[..., :1] + y),
    "chunks": lambda layer: setattr(layer, "chunk_size_feed_forward", 1),
    "plain weights": unpack_weights,
}


@BOTH
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("was_called", [False, True])
def test_a_changed_layer_calls_its_modules(change, sizes, was_called, calls, one_thread):
    model = model_of("Bert", sizes)
    plain = copy.deepcopy(model)
    attach(model, pack=True)
    if was_called:
        numbers(model)
    torch.manual_seed(5)
    CHANGES[change](model.encoder.layer[1])
    torch.manual_seed(5)
    CHANGES[change](plain.encoder.layer[1])
    expected = in_float64(plain)
    calls.clear()
    assert_equals(numbers(model), expected)
    assert calls[1:] == ["modules"]
    assert calls[0] != "modules"


def test_dropout_that_is_switched_on_is_not_left_out(calls):
    model = attach(model_of("Bert", SIZES), pack=True)
    before = numbers(model)
    model.encoder.layer[0].output.dropout.train().p = 0.5
    calls.clear()
    assert not torch.allclose(numbers(model), before)
    assert calls[0] == "modules"


def test_what_watches_all_modules_or_operations_sees_them(calls):
    model = attach(model_of("Bert", SIZES), pack=True)
    numbers(model)
    calls.clear()
    with FlopCounterMode(display=False):
        numbers(model)
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    numbers(model)
    hook.remove()
    assert calls == ["modules"] * 4


def set_new(module, name):
    setattr(module, name, nn.Parameter(getattr(module, name) + 0.5))


FOLLOWED = {
    "a new bias": lambda layer: set_new(layer.intermediate.dense, "bias"),
    "a bias in place": lambda layer: layer.attention.self.value.bias.add_(0.5),
    "a norm's new weight": lambda layer: set_new(layer.attention.output.LayerNorm, "weight"),
    "an epsilon": lambda layer: setattr(layer.output.LayerNorm, "eps", 0.3),
    "a loaded state": lambda layer: layer.load_state_dict(
        {name: 1.5 * x for name, x in layer.state_dict().items()}
    ),
}


@BOTH
@pytest.mark.parametrize("change", FOLLOWED)
def test_later_changes_of_weights_are_followed(change, sizes, calls, one_thread):
    model = model_of("Bert", sizes)
    plain = copy.deepcopy(model)
    attach(model, pack=True)
    numbers(model)
    with torch.no_grad():
        FOLLOWED[change](model.encoder.layer[0])
        FOLLOWED[change](plain.encoder.layer[0])
    expected = in_float64(plain)
    calls.clear()
    assert_equals(numbers(model), expected)
    assert "modules" not in calls


def test_detached_layers_have_their_own_class_and_no_notes():
    model = model_of("Bert", SIZES)
    layer = model.encoder.layer[0]
    kind, names = type(layer), set(vars(layer))
    attach(model, pack=True)
    numbers(model)
    assert isinstance(layer, kind)
    assert type(layer) is not kind
    detach(model)
    assert type(layer) is kind
    assert set(vars(layer)) == names


def test_copies_and_pickles_of_layers_compute_alone(calls, one_thread):
    model = attach(model_of("Bert", SIZES), pack=True)
    expected = numbers(model)
    layer = model.encoder.layer[0]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other) is type(layer)
        assert packed_layers.KEPT not in vars(other)
        with torch.no_grad():
            layer.output.dense.bias.add_(1)
        model.encoder.layer[0] = other
        calls.clear()
        assert torch.equal(numbers(model), expected)
        assert "modules" not in calls


def test_two_threads_get_the_numbers_of_one(one_thread):
    model = attach(model_of("Bert", SIZES), pack=True)
    batches = [ids_of(1, 11), ids_of(2, 17)]
    expected = [numbers(model, ids) for ids in batches]
    wrong = []

    def run(number):
        torch.set_num_threads(1)
        for _ in range(40):
            if not torch.allclose(numbers(model, batches[number]), expected[number], atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_attention_is_observed_as_before(calls):
    model = attach(model_of("Bert", SIZES), pack=True)
    with observe(model, "weights") as observed:
        numbers(model)
    packed_layers.restore_layers(model)
    with observe(model, "weights") as expected:
        numbers(model)
    assert len(observed.calls) == len(expected.calls) == 2
    assert "modules" not in calls


def test_weights_that_do_not_lie_in_panels_are_not_read_so(monkeypatch):
    layer = nn.Linear(64, 128).eval()
    pack_weights(layer)
    monkeypatch.setattr(layer_program, "WIDTH", 32)
    assert layer_program.panels_of(layer) is None
    odd = nn.Linear(64, 96).eval()
    half = nn.Linear(64, 64, dtype=torch.bfloat16).eval()
    monkeypatch.undo()
    for other in (odd, half):
        pack_weights(other)
        assert layer_program.panels_of(other) is None
