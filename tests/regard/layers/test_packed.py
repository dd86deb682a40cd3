"""Packed weights: the same numbers, one copy that is never stale, and refusals of gradients and exports."""

import copy
import io
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from regard.errors import UnsupportedError
from regard.layers import LatentAttention, MultiHeadAttention, pack_weights, packed, unpack_weights
from regard.positions import Rotary

ROWS, DIM, HIDDEN = 13, 37, 41


def network(dtype=torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 11, bias=False))
    return layers.eval().to(dtype)


def rows(dtype=torch.float32) -> torch.Tensor:
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1)).to(dtype)


def outputs(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return module(x)


def assert_close(result, expected):
    tolerance = 0.02 if expected.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture
def pair():
    """A network with packed weights, and the same plain."""
    plain = network()
    layers = copy.deepcopy(plain)
    assert pack_weights(layers).layers == ("0", "2")
    return layers, plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(DIM,), (1, DIM), (2, 3, DIM), (0, DIM), (67, DIM)])
def test_packed_weights_give_the_numbers_of_plain_ones(dtype, shape):
    layers = network(dtype)
    x = torch.randn(shape).to(dtype)
    expected = outputs(layers, x)
    pack_weights(layers)
    assert_close(outputs(layers, x), expected)


def test_a_transposed_input_gives_the_same_numbers(pair):
    layers, plain = pair
    x = torch.randn(DIM, ROWS).T
    assert_close(outputs(layers, x), outputs(plain, x))


def test_unpacking_gives_the_same_bits_in_the_same_order_and_the_class_back():
    layers = network()
    before = {name: x.clone() for name, x in layers.named_parameters()}
    pack_weights(layers)
    unpack_weights(layers)
    after = dict(layers.named_parameters())
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert [type(layers[0]), type(layers[2])] == [nn.Linear, nn.Linear]
    assert vars(layers[0]).keys() == vars(network()[0]).keys()
    assert after["0.weight"].requires_grad


def test_who_holds_a_parameter_has_it_back_after_unpacking():
    layers = network()
    held = layers[0].weight
    pack_weights(layers)
    assert unpack_weights(layers)[0].weight is held


def test_a_packed_weight_is_kept_once():
    layers = network()
    layers[0].weight.marked = True
    pack_weights(layers)
    # The parameter was freed, so another object takes its place.
    assert not hasattr(unpack_weights(layers)[0].weight, "marked")


def test_packing_twice_packs_once(pair):
    layers, _ = pair
    weight = layers[0].weight
    report = pack_weights(layers)
    assert report.layers == ("0", "2")
    assert report.bytes == 4 * (DIM * HIDDEN + HIDDEN * 11)
    assert layers[0].weight is weight


def test_packing_again_packs_an_assigned_weight_or_says_why_not(pair):
    layers, plain = pair
    layers[0].weight = nn.Parameter(3 * plain[0].weight.detach())
    layers[2].weight = nn.Parameter(plain[2].weight.detach().double())
    report = pack_weights(layers)
    assert report.layers == ("0",)
    assert report.plain == {"2": "its weight is float64"}
    assert_close(
        outputs(layers[0], rows()),
        nn.functional.linear(rows(), 3 * plain[0].weight, plain[0].bias).detach(),
    )


def test_state_dict_holds_plain_weights(pair):
    layers, plain = pair
    ours, theirs = layers.state_dict(), plain.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("assign", [False, True])
def test_loaded_weights_are_packed(pair, assign):
    layers, plain = pair
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(3)
    layers.load_state_dict(plain.state_dict(), assign=assign)
    assert layers[0].is_packed
    assert_close(outputs(layers, rows()), outputs(plain, rows()))


def test_load_state_dict_names_missing_and_unexpected_weights(pair):
    layers, plain = pair
    state = plain.state_dict()
    state["0.wait"] = state.pop("0.weight")
    with pytest.raises(RuntimeError, match=r"(?s)Missing.*0\.weight.*Unexpected.*0\.wait"):
        layers.load_state_dict(state)
    assert_close(outputs(layers, rows()), outputs(plain, rows()))


def test_a_change_in_place_of_a_parameter_that_was_packed_is_seen():
    layers = network()
    held = layers[0].weight
    pack_weights(layers)
    with torch.no_grad():
        held.mul_(2)
    with pytest.raises(UnsupportedError, match=r"37 by 41 .* was changed in place"):
        outputs(layers, rows())


def test_elements_of_a_packed_weight_cannot_be_written_past_the_layer(pair):
    layers, _ = pair
    for write in (
        lambda weight: weight.copy_(torch.zeros(HIDDEN, DIM)),
        lambda weight: weight.data.copy_(torch.zeros(HIDDEN, DIM)),
        lambda weight: weight.__setitem__(0, 0.0),
    ):
        with pytest.raises((RuntimeError, NotImplementedError)), torch.no_grad():
            write(layers[0].weight)


def test_a_packed_weight_that_is_scaled_counts(pair):
    layers, plain = pair
    with torch.no_grad():
        layers[2].weight.mul_(2)
    assert_close(outputs(layers, rows()), 2 * outputs(plain, rows()))


def test_an_assigned_weight_counts(pair):
    layers, plain = pair
    layers[2].weight = nn.Parameter(3 * plain[2].weight.detach())
    assert_close(outputs(layers, rows()), 3 * outputs(plain, rows()))


def test_functional_call_takes_the_weights_that_it_is_given(pair):
    layers, plain = pair
    weights = {name: 2 * x.detach() for name, x in plain.named_parameters()}
    with torch.no_grad():
        ours = torch.func.functional_call(layers, weights, rows())
        theirs = torch.func.functional_call(plain, weights, rows())
    assert_close(ours, theirs)
    assert_close(outputs(layers, rows()), outputs(plain, rows()))


def test_copies_and_pickles_are_packed_and_apart(pair):
    layers, plain = pair
    file = io.BytesIO()
    torch.save(layers, file)
    file.seek(0)
    copies = (
        copy.deepcopy(layers),
        pickle.loads(pickle.dumps(layers)),
        torch.load(file, weights_only=False),
    )
    with torch.no_grad():
        layers[0].weight.mul_(5)
    for other in copies:
        assert other[0].is_packed
        assert_close(outputs(other, rows()), outputs(plain, rows()))
        assert type(unpack_weights(other)[0]) is nn.Linear


def test_another_dtype_is_packed_where_it_can_be(pair):
    layers, plain = pair
    layers.bfloat16()
    assert layers[0].is_packed
    assert layers[0].weight.dtype == torch.bfloat16
    layers.load_state_dict(plain.state_dict())
    layers.double()
    assert not layers[0].is_packed
    x = rows(torch.float64)
    assert_close(outputs(layers, x), outputs(copy.deepcopy(plain).bfloat16().double(), x))
    layers.float()
    assert layers[0].is_packed


def test_a_compiled_graph_computes_with_the_weights_of_today(pair):
    layers, plain = pair
    torch.compiler.reset()  # all modules compiled by a process share one limit of recompilations
    # Without the compiler of C++, which imports setuptools beside what other tests imported.
    torch._dynamo.reset()
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
    assert_close(outputs(compiled, rows()), outputs(plain, rows()))
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(3)
    layers.load_state_dict(plain.state_dict())
    assert_close(outputs(compiled, rows()), outputs(plain, rows()))
    unpack_weights(layers)
    assert_close(outputs(compiled, rows()), outputs(plain, rows()))


def test_what_needs_gradients_is_refused(pair):
    layers, _ = pair
    with pytest.raises(UnsupportedError, match="packed weights give no gradients"):
        layers(rows())
    unpack_weights(layers)
    frozen = pack_and_freeze(layers)
    assert not frozen(rows()).requires_grad  # nothing needs a gradient
    with pytest.raises(UnsupportedError, match="packed weights give no gradients"):
        frozen(rows().requires_grad_())


def pack_and_freeze(layers: nn.Module) -> nn.Module:
    layers.requires_grad_(False)
    pack_weights(layers)
    return layers


def test_training_is_refused(pair):
    layers, plain = pair
    with pytest.raises(UnsupportedError, match="is in training mode"):
        outputs(layers.train(), rows())
    with pytest.raises(UnsupportedError, match=r"in training mode.*\.eval\(\)"):
        pack_weights(plain.train())
    assert type(plain[0]) is nn.Linear


@pytest.mark.parametrize("strict", [False, True])
def test_export_is_refused(pair, strict):
    layers, _ = pair
    with torch.no_grad(), pytest.raises(Exception, match="cannot be exported"):
        torch.export.export(layers, (rows(),), strict=strict)


@pytest.mark.filterwarnings("ignore:.*jit.trace:DeprecationWarning")
def test_tracing_is_refused(pair):
    layers, _ = pair
    with torch.no_grad(), pytest.raises(UnsupportedError, match="cannot be exported"):
        torch.jit.trace(layers, (rows(),))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_inputs_of_another_dtype_are_refused(pair, dtype):
    layers, _ = pair
    with pytest.raises(UnsupportedError, match=r"packed in torch\.float32, and the input is"):
        outputs(layers, torch.ones(ROWS, DIM, dtype=dtype))


def test_autocast_is_refused(pair):
    layers, _ = pair
    with torch.autocast("cpu"), pytest.raises(UnsupportedError, match="under autocast"):
        outputs(layers, rows())


def test_inputs_of_another_size_are_refused(pair):
    layers, _ = pair
    with pytest.raises(UnsupportedError, match="with 37 numbers, and the input has 43"):
        outputs(layers, torch.randn(ROWS, 43))


@pytest.mark.filterwarnings("ignore:torch.ao.quantization:DeprecationWarning")
def test_quantisation_is_refused(pair):
    layers, _ = pair
    with pytest.raises(UnsupportedError, match="these are packed"):
        torch.ao.quantization.quantize_dynamic(layers, {nn.Linear}, inplace=True)


class _Shares(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(HIDDEN, DIM)
        self.inner = nn.Linear(DIM, DIM)
        self.logits = nn.Linear(DIM, HIDDEN, bias=False)
        self.logits.weight = self.embedding.weight


def test_what_others_read_stays_plain_with_the_reason():
    module = nn.ModuleDict(
        {
            "shares": _Shares(),
            "theirs": nn.TransformerEncoderLayer(DIM - 1, 4, HIDDEN, batch_first=True),
            "latent": LatentAttention(36, 4, head_dim=8, latent_dim=12, rope_dim=4),
            "wide": nn.Linear(DIM, DIM).double(),
            "hooked": nn.utils.parametrizations.weight_norm(nn.Linear(DIM, DIM)),
        }
    ).eval()
    report = pack_weights(module)
    assert "shares.inner" in report.layers
    assert not any(name.startswith(("theirs", "hooked", "wide")) for name in report.layers)
    assert report.plain["shares.logits"] == "its weight is shared with another layer"
    assert report.plain["theirs.linear1"].startswith("TransformerEncoderLayer of PyTorch reads")
    assert report.plain["latent.to_k"].startswith("latent attention multiplies")
    assert report.plain["wide"] == "its weight is float64"
    assert "wide stays plain: its weight is float64" in str(report)


def test_a_module_without_anything_to_pack_is_refused():
    with pytest.raises(
        UnsupportedError, match=r"Sequential has no linear layer .*\(0: its weight is float64"
    ):
        pack_weights(nn.Sequential(nn.Linear(3, 5).double()).eval())


def test_a_processor_without_the_product_is_refused(monkeypatch):
    monkeypatch.setattr(packed, "_multiply", fails)
    packed.why_not_packed_here.cache_clear()
    layers = network()
    with pytest.raises(
        UnsupportedError, match=r"no packed product of oneDNN here \(could not create"
    ):
        pack_weights(layers)
    assert type(layers[0]) is nn.Linear
    packed.why_not_packed_here.cache_clear()


def fails(*_: object) -> None:
    raise RuntimeError("could not create a primitive")


@pytest.mark.parametrize("inference", [nullcontext, torch.inference_mode])
def test_weights_made_in_inference_mode_are_packed(inference):
    with inference():
        layers = network()
        expected = outputs(layers, rows())
    pack_weights(layers)
    assert_close(outputs(layers, rows()), expected)


def test_a_layer_of_attention_with_packed_weights_gives_its_numbers():
    torch.manual_seed(0)
    layer = MultiHeadAttention(24, 6, kv_heads=2, pattern="causal", positions=Rotary()).eval()
    x = torch.randn(2, ROWS, 24)
    expected = outputs(layer, x)
    assert pack_weights(layer).layers == ("to_q", "to_k", "to_v", "to_output")
    assert_close(outputs(layer, x), expected)
    cache = layer.new_cache(batch=2)
    with torch.no_grad():
        steps = [layer(x[:, :7], cache=cache)]
        steps += [layer(x[:, step : step + 1], cache=cache) for step in range(7, ROWS)]
    assert_close(torch.cat(steps, 1), expected)
    unpack_weights(layer)
    assert torch.equal(outputs(layer, x), expected)
