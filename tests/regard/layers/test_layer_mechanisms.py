"""A layer of any mechanism: it holds what the mechanism learns, and continues texts as the whole would go."""

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
    **{str(one): one for one in RECURRENT},
}
EVERY = pytest.mark.parametrize("name", MECHANISMS)
STATES = [name for name, one in MECHANISMS.items() if one.has_state]
CACHED = [name for name, one in MECHANISMS.items() if name != "gated" and one not in RECURRENT]


def make_layer(name: str, **options) -> MultiHeadAttention:
    torch.manual_seed(1)
    shared = MECHANISMS[name].shares_keys
    given = {
        "dim": 24,
        "heads": 4,
        "kv_heads": 4 if shared else 2,
        "pattern": "causal",
        "positions": Rotary(dims=2),
    }
    return MultiHeadAttention(**{**given, "mechanism": MECHANISMS[name], **options}).double()


def text(length: int = 11, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, 24, dtype=torch.float64)


@EVERY
def test_every_parameter_learns(name):
    layer = make_layer(name)
    layer(text()).square().sum().backward()
    for called, parameter in layer.named_parameters():
        assert parameter.grad is not None, f"{called} gets no gradient"
        if called != "to_k.bias":  # the same number added to all scores of a row changes no softmax
            assert float(parameter.grad.abs().max()) > 0, f"{called} has no gradient"


@pytest.mark.parametrize("cuts", [[1] * 11, [4, 1, 6]])
@pytest.mark.parametrize("name", STATES)
def test_a_state_continues_as_the_whole_in_memory_that_does_not_grow(name, cuts):
    layer = make_layer(name)
    x = text()
    state = layer.new_cache(batch=2)
    at = 0
    sizes = set()
    assert isinstance(state, RecurrentState)
    with torch.no_grad():
        whole = layer(x)
        for cut in cuts:
            torch.testing.assert_close(
                layer(x[:, at : at + cut], cache=state), whole[:, at : at + cut], **EXACT
            )
            at += cut
            sizes.add(state.nbytes)
        assert len(sizes) == 1
        state.reorder(torch.tensor([1, 0, 1]))
        more = text(3)
        order = torch.cat([x, more], 1)[[1, 0, 1]]
        torch.testing.assert_close(layer(order[:, 11:], cache=state), layer(order)[:, 11:], **EXACT)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", CACHED)
def test_a_cache_of_keys_continues_as_the_whole(name, kind):
    layer = make_layer(name)
    x = text()
    cache = layer.new_cache(batch=2, kind=kind, capacity=11 if kind == "static" else None)
    with torch.no_grad():
        whole = layer(x)
        for at, stop in ((0, 4), (4, 5), (5, 11)):
            torch.testing.assert_close(
                layer(x[:, at:stop], cache=cache), whole[:, at:stop], **EXACT
            )


@pytest.mark.parametrize("mechanism", RECURRENT, ids=str)
def test_decays_and_strengths_are_those_of_the_models(mechanism):
    layer = make_layer(str(mechanism))
    x = text(5)
    gates = layer.mechanism.gate(x) or {}
    if "strength" in gates:
        above = float("inf") if mechanism == m.SSD() else 1
        assert ((gates["strength"] > 0) & (gates["strength"] < above)).all()
    if "log_decay" in gates:
        assert (gates["log_decay"] < 0).all()
        assert (
            gates["log_decay"].shape == (2, 2, 5, 6)[: 4 if mechanism.decays_by == "channel" else 3]
        )
    if mechanism == m.SSD():  # one step for both
        rate = layer.mechanism.gates.log_rate.exp()
        torch.testing.assert_close(gates["log_decay"], -rate[:, None] * gates["strength"])
    length = layer.mechanism.queries(torch.randn(2, 4, 3, 6)).norm(dim=-1)
    assert bool((length - 1).abs().max() < 1e-5) == mechanism.corrects


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
    padded = torch.cat([torch.full_like(x[:, :2], 9.0), x, torch.full_like(x[:, :3], -7.0)], 1)
    torch.testing.assert_close(layer(padded, pattern=p.KeySpan(2, 9))[:, 2:9], alone, **EXACT)


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


def test_the_words_of_a_state_that_cannot_be():
    with pytest.raises(rg.UnsupportedError, match="no recurrent state"):
        make_layer("additive").new_cache(1, kind="state")
    with pytest.raises(
        rg.UnsupportedError, match="decays and strengths of all keys, which a cache lacks"
    ):
        make_layer("gated_delta").new_cache(1, kind="dynamic")
    with pytest.raises(rg.UnsupportedError, match="it cannot attend to a context"):
        make_layer("retention", positions=None).project_context(text(3))
    with pytest.raises(rg.UnsupportedError, match="a cache of keys holds no gates"):
        make_layer("gated").new_cache(1, kind="dynamic")
    with pytest.raises(rg.ArgumentError, match="leave out capacity, dtype and first"):
        make_layer("linear").new_cache(1, capacity=5)
    local = make_layer(
        "dot", mechanism=m.Softmax(m.LocalPredictive(m.Dot(), window=4, query_dim=6))
    )
    with pytest.raises(rg.UnsupportedError, match="depends on the number of keys"):
        local.new_cache(1)
    with pytest.raises(rg.UnsupportedError, match="not causal"):
        make_layer("dot", pattern=None, mechanism=m.Linformer(length=9, rank=2)).new_cache(1)
    with pytest.raises(rg.UnsupportedError, match="cannot attend to a context"):
        make_layer("lsh", pattern=None, positions=None)(text(3), text(4))
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
