"""A recurrent state: continuing a text equals computing it at once, in memory that does not grow."""

import copy

import pytest
import torch
from torch.overrides import TorchFunctionMode

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.layers.caches import RecurrentState
from regard.mechanisms.base import Sizes
from regard.mechanisms.linear import Products

EXACT = {"rtol": 1e-12, "atol": 1e-12}
MECHANISMS = [
    m.LinearTransformer(),
    m.LinearTransformer(Products(2)),
    m.Performer(17),
    m.RandomFeature(3),
    m.RandomFeature(7, gated=True),
    m.Retention(),
    m.GatedDelta(),
    m.KimiDelta(),
]
every = pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
LENGTH = 139


def text(mechanism=MECHANISMS[0], length=LENGTH, dtype=torch.float64):
    q, k, v = (
        torch.randn(2, heads, length, dim, dtype=dtype) for heads, dim in ((6, 5), (3, 5), (3, 7))
    )
    parameters = {}
    for name, shape in mechanism.parameter_shapes(Sizes(2, 6, 3, length, 5)).items():
        x = torch.rand(shape, dtype=dtype)
        parameters[name] = {"log_decay": -x, "strength": x / 5}.get(name, x)
    return q, k, v, parameters


def state(mechanism=MECHANISMS[0], **options) -> RecurrentState:
    return RecurrentState(mechanism, 2, 3, 5, 7, **{"dtype": torch.float64, **options})


def go_on(state, q, k, v, parameters, steps, **options):
    """The outputs of so many positions at a time, from where the state is."""
    told = []
    for step in steps:
        here = slice(state.length, state.length + step)
        handed = {name: x[:, :, here] for name, x in parameters.items()}
        told.append(
            state.attend(q[:, :, here], k[:, :, here], v[:, :, here], parameters=handed, **options)
        )
    return torch.cat(told, dim=2)


HOLES = p.KeyMask(torch.arange(LENGTH) % torch.tensor([[2], [5]]) > 0)


@every
@pytest.mark.parametrize(
    "steps", [[1] * LENGTH, [5, 128, 2, 1, 0, 3]], ids=["one by one", "pieces"]
)
@pytest.mark.parametrize(
    "span", [p.Full(), p.KeySpan(torch.tensor([0, 9]), torch.tensor([7, 120])), HOLES], ids=str
)
def test_continuing_equals_computing_at_once(mechanism, steps, span):
    q, k, v, parameters = text(mechanism)
    pattern = p.Causal() & span
    whole = rg.attention(q, k, v, pattern=pattern, mechanism=mechanism, parameters=parameters)
    told = go_on(state(mechanism), q, k, v, parameters, steps, pattern=pattern)
    torch.testing.assert_close(told, whole, **EXACT)


@pytest.mark.parametrize(
    "values", [[1e-8, 0.9, 0.5, 0.99, 0.3], [0.0, 1e-4, 0.5, 1 - 1e-6, 1.0]], ids=str
)
@pytest.mark.parametrize("steps", [[131, 132], [64, 1, 1, 1, 196]], ids=str)
def test_gradients_of_gates_are_as_exact_as_those_of_the_whole_text(values, steps):
    mechanism = m.RandomFeature(64, gated=True)
    length = sum(steps)
    q, k, v, _ = text(mechanism, length, torch.float32)
    gates = torch.tensor(values)[torch.randint(len(values), (2, 3, length))]
    gates[..., 0] = (
        0.5  # the first row sees one key: a gradient of 0, whose rounding error is divided by 1 - gate
    )

    def gradients(dtype, call):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, gates)]
        return torch.autograd.grad(call(*leaves).square().sum(), leaves)

    exact = gradients(
        torch.float64,
        lambda q, k, v, gate: rg.attention(
            q,
            k,
            v,
            pattern="causal",
            mechanism=mechanism,
            parameters={"gate": gate},
            backend="reference",
        ),
    )
    found = gradients(
        torch.float32,
        lambda q, k, v, gate: go_on(
            state(mechanism, dtype=torch.float32), q, k, v, {"gate": gate}, steps
        ),
    )
    for name, one, other in zip(["q", "k", "v", "gate"], found, exact, strict=True):
        error = (one - other).abs().max() / other.abs().max()
        assert error <= torch.finfo(torch.float32).eps * length, (
            f"{name}: {error:.1e} of the largest"
        )


def test_what_is_kept_does_not_grow_and_no_call_changes_it_in_place():
    q, k, v, _ = text()
    one = state()
    go_on(one, q, k, v, {}, [1])
    size = one.nbytes
    place = copy.copy(one)
    first = go_on(one, q, k, v, {}, [90, 1])
    assert one.nbytes == size == 2 * 3 * 5 * 8 * 8
    assert (one.length, place.length) == (92, 1)
    assert torch.equal(go_on(place, q, k, v, {}, [90, 1]), first)


@every
def test_a_saved_state_goes_on_as_it_was(mechanism, tmp_path):
    q, k, v, parameters = text(mechanism)
    one = state(mechanism)
    fresh = state(mechanism)
    fresh.save(tmp_path / "fresh")
    assert RecurrentState.load(tmp_path / "fresh", mechanism).length == 0
    go_on(one, q, k, v, parameters, [50], pattern=p.Causal() & p.KeySpan(torch.tensor([0, 60])))
    one.save(tmp_path / "state")
    loaded = RecurrentState.load(tmp_path / "state", mechanism)
    assert (loaded.length, repr(loaded)) == (50, repr(one))
    assert torch.equal(
        go_on(loaded, q, k, v, parameters, [9]), go_on(one, q, k, v, parameters, [9])
    )


def test_a_file_of_another_mechanism_or_a_changed_one_is_refused(tmp_path):
    one = state()
    go_on(one, *text(), [3])
    one.save(tmp_path / "state")
    with pytest.raises(rg.errors.CheckpointError, match="this call needs one of 'performer"):
        RecurrentState.load(tmp_path / "state", m.Performer(5))
    damaged = bytearray((tmp_path / "state").read_bytes())
    damaged[-3] ^= 1
    (tmp_path / "state").write_bytes(damaged)
    with pytest.raises(rg.errors.CheckpointError):
        RecurrentState.load(tmp_path / "state", MECHANISMS[0])


def test_a_sum_is_cropped_to_all_or_nothing():
    q, k, v, _ = text()
    one = state()
    first = go_on(one, q, k, v, {}, [20])
    one.crop(20)
    with pytest.raises(rg.UnsupportedError, match="20 positions are summed up"):
        one.crop(19)
    assert one.length == 20
    one.crop(0)
    assert (one.length, one.nbytes) == (0, 0)
    assert torch.equal(go_on(one, q, k, v, {}, [20]), first)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"pattern": None, "q": 2}, rg.ShapeError, "a query and a key for each position"),
        (
            {"pattern": p.Causal() & p.SameDocument(torch.arange(9))},
            rg.UnsupportedError,
            "continued by causal",
        ),
        ({"pattern": "causal_window(3)"}, rg.UnsupportedError, " takes "),
        ({"scale": 0.5}, rg.UnsupportedError, "has no scale"),
        ({"parameters": {"gate": torch.ones(2, 3, 4)}}, rg.errors.ArgumentError, "learns nothing"),
        ({"dtype": torch.float32}, rg.ShapeError, "make one with dtype=torch.float64"),
    ],
)
def test_a_refused_call_changes_nothing(change, error, words):
    q, k, v, _ = text()
    one = state(dtype=change.pop("dtype", torch.float64))
    with pytest.raises(error, match=words):
        one.attend(q[:, :, : change.pop("q", 4)], k[:, :, :4], v[:, :, :4], **change)
    assert (one.length, one.nbytes) == (0, 0)


def test_padding_holds_nothing_that_reaches_an_output():
    q, k, v, _ = text(length=9)
    pattern = p.Causal() & p.KeySpan(torch.tensor([2, 0]), torch.tensor([9, 4]))
    clean = go_on(state(), q, k, v, {}, [4, 1, 4], pattern=pattern)
    for x in (q, k, v):
        x[0, :, :2] = torch.nan
    for x in (k, v):
        x[1, :, 4:] = torch.nan
    dirty = go_on(state(), q, k, v, {}, [4, 1, 4], pattern=pattern)
    assert torch.equal(clean, dirty)
    assert not dirty[0, :, :2].any()


def test_a_step_inside_a_step_of_one_state_is_refused_and_no_position_is_lost():
    q, k, v, _ = text(length=3)
    expected = go_on(state(), q, k, v, {}, [1, 1, 1])
    ours = state()
    inside = []

    class Stepping(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if not inside:
                inside.append(go_on(ours, q, k, v, {}, [1]))
            return func(*args, **(kwargs or {}))

    first = [x[:, :, :1] for x in (q, k, v)]
    with (
        Stepping(),
        pytest.raises(
            rg.errors.ArgumentError, match="was at position 0 when the call began and is at 1"
        ),
    ):
        ours.attend(*first)
    assert torch.equal(torch.cat([*inside, go_on(ours, q, k, v, {}, [1, 1])], 2), expected)


@every
def test_gradients_reach_back_through_every_call(mechanism):
    q, k, v, parameters = text(mechanism, length=12)
    learning = [x.requires_grad_() for x in (q, k, v, *parameters.values())]
    whole = rg.attention(q, k, v, pattern="causal", mechanism=mechanism, parameters=parameters)
    told = go_on(state(mechanism), q, k, v, parameters, [3, 1, 1, 7])
    expected = torch.autograd.grad(whole.square().sum(), learning)
    torch.testing.assert_close(
        torch.autograd.grad(told.square().sum(), learning), expected, rtol=1e-9, atol=1e-9
    )


def test_a_mask_needs_a_number_for_the_keys_of_earlier_calls_too():
    q, k, v, _ = text(length=9)
    one = state()
    pattern = p.Causal() & p.KeyMask(torch.arange(5) > 0)
    go_on(one, q, k, v, {}, [4], pattern=pattern)
    with pytest.raises(rg.ShapeError, match="5 keys and the call has 8"):
        go_on(one, q, k, v, {}, [4], pattern=pattern)
    assert one.length == 4
