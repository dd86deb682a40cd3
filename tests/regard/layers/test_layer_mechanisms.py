"""A layer with any mechanism holds what the mechanism learns, and continues a text as it computes the whole."""

import pytest
import torch

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.layers import MultiHeadAttention
from regard.layers.caches.state import RecurrentState
from regard.positions import Rotary

EXACT = {"rtol": 0, "atol": 1e-11}
RECURRENT = (
    m.Retention(),
    m.Lightning(),
    m.SSD(),
    m.GatedLinear(),
    m.DeltaRule(),
    m.GatedDelta(),
    m.KimiDelta(),
)
MECHANISMS: dict[str, m.Mechanism] = {
    "dot": m.Softmax(m.Dot()),
    "general": m.Softmax(m.General(6, 6)),
    "additive": m.Softmax(m.Additive(6, 6, 5)),
    "concat": m.Softmax(m.Concat(6, 6, 5)),
    "linear": m.LinearTransformer(),
    "performer": m.Performer(features=7),
    "random-feature": m.RandomFeature(features=7),
    "gated": m.RandomFeature(features=7, gated=True),
    "lsh": m.LSH(chunk=3, buckets=4, rounds=2),
    **{str(mechanism): mechanism for mechanism in RECURRENT},
}
EVERY = pytest.mark.parametrize("name", MECHANISMS)
WITH_STATE = [name for name, mechanism in MECHANISMS.items() if mechanism.has_state]
WITH_CACHE = [name for name in MECHANISMS if name not in {"gated", *map(str, RECURRENT)}]


def make_layer(name: str, **options) -> MultiHeadAttention:
    """A causal layer with Rotary, in float64; options change it."""
    torch.manual_seed(1)
    mechanism = MECHANISMS[name]
    defaults = {
        "dim": 24,
        "heads": 4,
        "kv_heads": 4 if mechanism.shares_keys else 2,
        "pattern": "causal",
        "positions": Rotary(dims=2),
        "mechanism": mechanism,
    }
    return MultiHeadAttention(**{**defaults, **options}).double()


def text(length: int = 11, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, 24, dtype=torch.float64)


@EVERY
def test_every_parameter_learns(name):
    layer = make_layer(name)
    layer(text()).square().sum().backward()
    for name_of_parameter, parameter in layer.named_parameters():
        assert parameter.grad is not None, name_of_parameter
        # The bias of keys adds one number to all scores of a row, which changes no softmax.
        if name_of_parameter != "to_k.bias":
            assert float(parameter.grad.abs().max()) > 0, name_of_parameter


@pytest.mark.parametrize("name", ["delta_rule", "gated_delta", "kimi_delta"])
@torch.no_grad()
def test_a_layer_learns_strengths_up_to_most_strength(name):
    layer = rg.MultiHeadAttention(24, 3, pattern="causal", mechanism=name)
    text_of_wider = f"{name}(most_strength=1.5)"
    wider = rg.MultiHeadAttention(24, 3, pattern="causal", mechanism=text_of_wider)
    wider.load_state_dict(layer.state_dict())
    x = torch.randn(2, 11, 24)
    strength = layer.mechanism.gate(x)["strength"]
    assert torch.equal(wider.mechanism.gate(x)["strength"], 1.5 * strength)
    assert str(wider.mechanism.declared) == text_of_wider
    assert not torch.allclose(wider(x), layer(x))
    for refused in (0, 2.5):
        with pytest.raises(rg.ArgumentError, match="above 0 and at most 2"):
            rg.MultiHeadAttention(24, 3, mechanism=f"{name}(most_strength={refused})")


@pytest.mark.parametrize(
    ("name", "biased"),
    [
        ("gated_linear", {"mechanism.gates.to_decay.1.bias"}),
        ("ssd", {"mechanism.gates.bias"}),
        ("gated_delta", {"mechanism.gates.bias"}),
        ("kimi_delta", {"mechanism.gates.bias"}),
    ],
)
def test_a_decay_has_one_bias(name, biased):
    """That of the last matrix, or the one in the softplus beside the rate."""
    layer = rg.MultiHeadAttention(24, 3, pattern="causal", mechanism=name)
    gates = [path for path, _ in layer.named_parameters() if ".gates." in path]
    assert {path for path in gates if path.endswith("bias")} == biased


@pytest.mark.parametrize("cuts", [[1] * 11, [4, 1, 6]])
@pytest.mark.parametrize("name", WITH_STATE)
@torch.no_grad()
def test_a_state_continues_as_the_whole_in_memory_that_does_not_grow(name, cuts):
    layer = make_layer(name)
    x = text()
    state = layer.new_cache(batch=2)
    assert isinstance(state, RecurrentState)
    outputs = []
    sizes = set()
    for part in x.split(cuts, 1):
        outputs.append(layer(part, cache=state))
        sizes.add(state.nbytes)
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x), **EXACT)
    assert len(sizes) == 1


@pytest.mark.parametrize("name", WITH_STATE)
@torch.no_grad()
def test_a_reordered_state_continues_the_texts_in_their_new_order(name):
    layer = make_layer(name)
    x = text(14)
    state = layer.new_cache(batch=2)
    layer(x[:, :11], cache=state)
    order = torch.tensor([1, 0, 1])
    state.reorder(order)
    continued = layer(x[order, 11:], cache=state)
    torch.testing.assert_close(continued, layer(x[order])[:, 11:], **EXACT)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", WITH_CACHE)
@torch.no_grad()
def test_a_cache_of_keys_continues_as_the_whole(name, kind):
    layer = make_layer(name)
    x = text()
    cache = layer.new_cache(batch=2, kind=kind, capacity=11 if kind == "static" else None)
    outputs = [layer(part, cache=cache) for part in x.split([4, 1, 6], 1)]
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x), **EXACT)


@pytest.mark.parametrize("mechanism", RECURRENT, ids=str)
def test_decays_and_strengths_are_those_of_the_models(mechanism):
    layer = make_layer(str(mechanism))
    x = text(5)
    gates = layer.mechanism.gate(x) or {}
    if "strength" in gates:
        above = float("inf") if mechanism == m.SSD() else 1
        assert ((gates["strength"] > 0) & (gates["strength"] < above)).all()
    if "log_decay" in gates:
        by_key = (2, 2, 5)  # batch, kv_heads, length
        shape = (*by_key, 6) if mechanism.decays_by == "channel" else by_key
        assert gates["log_decay"].shape == shape
        assert (gates["log_decay"] < 0).all()
    if mechanism == m.SSD():  # one step for both
        rate = layer.mechanism.gates.log_rate.exp()
        torch.testing.assert_close(gates["log_decay"], -rate[:, None] * gates["strength"])


@pytest.mark.parametrize("mechanism", RECURRENT, ids=str)
def test_queries_and_keys_of_a_delta_rule_alone_have_length_1(mechanism):
    of_layer = make_layer(str(mechanism)).mechanism
    heads = torch.randn(2, 4, 3, 6)
    for vectors in (of_layer.queries(heads), of_layer.keys(heads)):
        has_length_1 = bool((vectors.norm(dim=-1) - 1).abs().max() < 1e-5)
        assert has_length_1 == mechanism.corrects


def test_a_cache_keeps_keys_as_the_score_compares_them():
    layer = make_layer("additive")
    cache = layer.new_cache(batch=2)
    layer(text(), cache=cache)
    assert cache.keys.shape == (2, 2, 11, 5)  # 2 key/value heads, 5 hidden numbers
    assert cache.values.shape == (2, 2, 11, 6)


@EVERY
def test_padding_changes_nothing(name):
    layer = make_layer(name, positions=None)
    x = text(7, batch=1)
    alone = layer(x)
    left = torch.full_like(x[:, :2], 9.0)
    right = torch.full_like(x[:, :3], -7.0)
    padded = layer(torch.cat([left, x, right], 1), pattern=p.KeySpan(2, 9))
    torch.testing.assert_close(padded[:, 2:9], alone, **EXACT)


@pytest.mark.parametrize(
    "name", ["general", "additive", "concat", "linear", "performer", "random-feature"]
)
def test_a_context_is_projected_once_and_attended_to(name):
    layer = make_layer(name, pattern=None, positions=None, context_dim=10)
    x = text(3)
    context = torch.randn(2, 7, 10, dtype=torch.float64)
    projected = layer.project_context(context)
    torch.testing.assert_close(layer(x, projected), layer(x, context), **EXACT)
    torch.testing.assert_close(
        layer(x, context, pattern=p.KeySpan(0, 5)), layer(x, context[:, :5]), rtol=0, atol=1e-10
    )


LOCAL = m.Softmax(m.LocalPredictive(m.Dot(), window=4, query_dim=6))
LINFORMER = m.Linformer(length=9, rank=2)


@pytest.mark.parametrize(
    ("layer", "options", "words"),
    [
        (make_layer("additive"), {"kind": "state"}, "no recurrent state"),
        (make_layer("linear"), {"capacity": 5}, "leave out capacity, dtype and first"),
        (
            make_layer("gated_delta"),
            {"kind": "dynamic"},
            "decays and strengths of all keys, which a cache lacks",
        ),
        (make_layer("gated"), {"kind": "dynamic"}, "a cache of keys holds no gates"),
        (make_layer("dot", mechanism=LOCAL), {}, "depends on the number of keys"),
        (make_layer("dot", pattern=None, mechanism=LINFORMER), {}, "not causal"),
    ],
    ids=["state of scores", "capacity", "decays", "gates", "local", "linformer"],
)
def test_a_cache_that_cannot_continue_a_mechanism_is_refused(layer, options, words):
    with pytest.raises(rg.RegardError, match=words):
        layer.new_cache(1, **options)


@pytest.mark.parametrize("name", ["retention", "lsh"])
def test_a_mechanism_of_one_text_refuses_a_context(name):
    layer = make_layer(name, pattern=None, positions=None)
    with pytest.raises(rg.UnsupportedError, match="cannot attend to a context"):
        layer(text(3), text(4))


def test_a_mechanism_that_does_not_fit_the_heads_is_refused():
    with pytest.raises(rg.ArgumentError, match="must be heads"):
        make_layer("lsh", kv_heads=2)
    with pytest.raises(rg.ShapeError, match="compares queries of 5"):
        make_layer("dot", mechanism=m.Softmax(m.General(5, 5)))


@pytest.mark.parametrize("name", ["additive", "linear", "performer", "lsh"])
def test_a_recording_sees_weights_that_sum_to_one(name):
    layer = make_layer(name)
    with rg.record_attention(layer) as recording:
        layer(text())
    weights = recording[""][0].weights
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), **EXACT)
