"""A recurrent state: continuing a text equals computing it at once, in memory that does not grow."""

import copy

import pytest
import torch
from mechanism_tensors import MechanismTensors
from torch.overrides import TorchFunctionMode

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.layers.caches import RecurrentState
from regard.mechanisms.base import Sizes
from regard.mechanisms.linear import Products
from regard.storage import save_tensors

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


class StateText(MechanismTensors):
    """Queries, keys and values of a text, and the parameters that a mechanism takes for its keys."""

    def part(self, places: slice) -> "StateText":
        parameters = {name: x[:, :, places] for name, x in self.parameters.items()}
        return StateText(
            self.q[:, :, places], self.k[:, :, places], self.v[:, :, places], parameters
        )

    def whole_output(self, mechanism, pattern="causal", **options) -> torch.Tensor:
        options |= {"mechanism": mechanism, "parameters": self.parameters}
        return rg.attention(self.q, self.k, self.v, pattern=pattern, **options)


def draw_text(mechanism=MECHANISMS[0], length=LENGTH, dtype=torch.float64) -> StateText:
    q = torch.randn(2, 6, length, 5, dtype=dtype)
    k = torch.randn(2, 3, length, 5, dtype=dtype)
    v = torch.randn(2, 3, length, 7, dtype=dtype)
    parameters = {}
    for name, shape in mechanism.parameter_shapes(Sizes(2, 6, 3, length, 5)).items():
        share = torch.rand(shape, dtype=dtype)
        parameters[name] = {"log_decay": -share, "strength": share / 5}.get(name, share)
    return StateText(q, k, v, parameters)


def new_state(mechanism=MECHANISMS[0], **options) -> RecurrentState:
    return RecurrentState(mechanism, 2, 3, 5, 7, **{"dtype": torch.float64, **options})


def go_on(state: RecurrentState, text: StateText, steps: list[int], **options) -> torch.Tensor:
    """The outputs of so many positions at a time, from where the state is."""
    outputs = []
    for step in steps:
        part = text.part(slice(state.length, state.length + step))
        outputs.append(state.attend(part.q, part.k, part.v, parameters=part.parameters, **options))
    return torch.cat(outputs, dim=2)


HOLES = p.KeyMask(torch.arange(LENGTH) % torch.tensor([[2], [5]]) > 0)


@pytest.mark.each_value(pairs=[("mechanism", "span"), ("mechanism", "steps")])
@every
@pytest.mark.parametrize(
    "steps", [[1] * LENGTH, [5, 128, 2, 1, 0, 3]], ids=["one by one", "pieces"]
)
@pytest.mark.parametrize(
    "span", [p.Full(), p.KeySpan(torch.tensor([0, 9]), torch.tensor([7, 120])), HOLES], ids=str
)
def test_continuing_equals_computing_at_once(mechanism, steps, span):
    text = draw_text(mechanism)
    pattern = p.Causal() & span
    continued = go_on(new_state(mechanism), text, steps, pattern=pattern)
    torch.testing.assert_close(continued, text.whole_output(mechanism, pattern), **EXACT)


@pytest.mark.parametrize(
    "values", [[1e-8, 0.9, 0.5, 0.99, 0.3], [0.0, 1e-4, 0.5, 1 - 1e-6, 1.0]], ids=str
)
@pytest.mark.parametrize("steps", [[131, 132], [64, 1, 1, 1, 196]], ids=str)
def test_gradients_of_gates_are_as_exact_as_those_of_the_whole_text(values, steps):
    mechanism = m.RandomFeature(64, gated=True)
    length = sum(steps)
    text = draw_text(mechanism, length, torch.float32)
    gates = torch.tensor(values)[torch.randint(len(values), (2, 3, length))]
    # The first row looks at one key: a gradient of 0, whose rounding error is divided by 1 - gate.
    gates[..., 0] = 0.5
    text.parameters["gate"] = gates

    def gradients(dtype, compute):
        leaves = [x.to(dtype).requires_grad_() for x in text.tensors]
        q, k, v, gate = leaves
        output = compute(StateText(q, k, v, {"gate": gate}))
        return torch.autograd.grad(output.square().sum(), leaves)

    expected = gradients(
        torch.float64, lambda text: text.whole_output(mechanism, backend="reference")
    )
    computed = gradients(
        torch.float32,
        lambda text: go_on(new_state(mechanism, dtype=torch.float32), text, steps),
    )
    bound = torch.finfo(torch.float32).eps * length
    for name, grad, exact in zip(["q", "k", "v", "gate"], computed, expected, strict=True):
        error = (grad - exact).abs().max() / exact.abs().max()
        assert error <= bound, f"{name}: {error:.1e} of the largest"


def test_the_sums_do_not_grow_and_no_call_changes_them_in_place():
    text = draw_text()
    state = new_state()
    go_on(state, text, [1])
    size = state.nbytes
    copied = copy.copy(state)
    output = go_on(state, text, [90, 1])
    assert state.nbytes == size == 2 * 3 * 5 * 8 * 8
    assert (state.length, copied.length) == (92, 1)
    assert torch.equal(go_on(copied, text, [90, 1]), output)


@every
def test_a_saved_state_goes_on_as_it_was(mechanism, tmp_path):
    text = draw_text(mechanism)
    new_state(mechanism).save(tmp_path / "new")
    assert RecurrentState.load(tmp_path / "new", mechanism).length == 0
    state = new_state(mechanism)
    go_on(state, text, [50], pattern=p.Causal() & p.KeySpan(torch.tensor([0, 60])))
    state.save(tmp_path / "state")
    loaded = RecurrentState.load(tmp_path / "state", mechanism)
    assert (loaded.length, repr(loaded)) == (50, repr(state))
    assert torch.equal(go_on(loaded, text, [9]), go_on(state, text, [9]))


def test_a_file_of_another_mechanism_or_a_changed_one_is_refused(tmp_path):
    state = new_state()
    go_on(state, draw_text(), [3])
    state.save(tmp_path / "state")
    with pytest.raises(rg.errors.CheckpointError, match="this call needs one of 'performer"):
        RecurrentState.load(tmp_path / "state", m.Performer(5))
    damaged = bytearray((tmp_path / "state").read_bytes())
    damaged[-3] ^= 1
    (tmp_path / "state").write_bytes(damaged)
    with pytest.raises(rg.errors.CheckpointError):
        RecurrentState.load(tmp_path / "state", MECHANISMS[0])


def test_a_file_without_the_sums_of_its_mechanism_is_refused(tmp_path):
    words = {"state": str(MECHANISMS[0]), "format": "1", "length": "3"}
    words |= {"batch": "2", "kv_heads": "3", "head_dim": "5", "v_dim": "7"}
    save_tensors(tmp_path / "state", {"log": torch.zeros(2, 3, 1)}, words)
    with pytest.raises(rg.errors.CheckpointError, match=r"not the sums of .* batch=2"):
        RecurrentState.load(tmp_path / "state", MECHANISMS[0])


def test_a_sum_is_cropped_to_all_or_nothing():
    text = draw_text()
    state = new_state()
    output = go_on(state, text, [20])
    state.crop(20)
    with pytest.raises(rg.UnsupportedError, match="20 positions are summed up"):
        state.crop(19)
    assert state.length == 20
    state.crop(0)
    assert (state.length, state.nbytes) == (0, 0)
    assert torch.equal(go_on(state, text, [20]), output)


@pytest.mark.parametrize(
    ("q_len", "dtype", "options", "error", "words"),
    [
        (2, "float64", {}, rg.ShapeError, "a query and a key for each position"),
        (
            4,
            "float64",
            {"pattern": p.Causal() & p.SameDocument(torch.arange(9) % 2)},
            rg.UnsupportedError,
            "comes again",
        ),
        (4, "float64", {"pattern": "causal_window(3)"}, rg.UnsupportedError, " takes "),
        (4, "float64", {"scale": 0.5}, rg.UnsupportedError, "has no scale"),
        (
            4,
            "float64",
            {"parameters": {"gate": torch.ones(2, 3, 4)}},
            rg.errors.ArgumentError,
            "learns nothing",
        ),
        (4, "float32", {}, rg.ShapeError, "make one with dtype=torch.float64"),
    ],
)
def test_a_refused_call_changes_nothing(q_len, dtype, options, error, words):
    text = draw_text(length=4)
    state = new_state(dtype=getattr(torch, dtype))
    with pytest.raises(error, match=words):
        state.attend(text.q[:, :, :q_len], text.k, text.v, **options)
    assert (state.length, state.nbytes) == (0, 0)


def test_padding_holds_nothing_that_reaches_an_output():
    text = draw_text(length=9)
    pattern = p.Causal() & p.KeySpan(torch.tensor([2, 0]), torch.tensor([9, 4]))
    clean = go_on(new_state(), text, [4, 1, 4], pattern=pattern)
    for x in (text.q, text.k, text.v):
        x[0, :, :2] = torch.nan
    for x in (text.k, text.v):
        x[1, :, 4:] = torch.nan
    padded = go_on(new_state(), text, [4, 1, 4], pattern=pattern)
    assert torch.equal(clean, padded)
    assert not padded[0, :, :2].any()


def test_a_step_inside_a_step_of_one_state_is_refused_and_no_position_is_lost():
    text = draw_text(length=3)
    expected = go_on(new_state(), text, [1, 1, 1])
    state = new_state()
    inside = []

    class Stepping(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if not inside:
                inside.append(go_on(state, text, [1]))
            return func(*args, **(kwargs or {}))

    first = text.part(slice(0, 1))
    with (
        Stepping(),
        pytest.raises(
            rg.errors.ArgumentError, match="was at position 0 when the call began and is at 1"
        ),
    ):
        state.attend(first.q, first.k, first.v)
    assert torch.equal(torch.cat([*inside, go_on(state, text, [1, 1])], 2), expected)


@every
def test_gradients_reach_back_through_every_call(mechanism):
    text = draw_text(mechanism, length=12)
    learned = [x.requires_grad_() for x in text.tensors]
    whole = text.whole_output(mechanism)
    continued = go_on(new_state(mechanism), text, [3, 1, 1, 7])
    expected = torch.autograd.grad(whole.square().sum(), learned)
    grads = torch.autograd.grad(continued.square().sum(), learned)
    torch.testing.assert_close(grads, expected, rtol=1e-9, atol=1e-9)


def test_a_mask_needs_a_number_for_the_keys_of_earlier_calls_too():
    text = draw_text(length=9)
    state = new_state()
    pattern = p.Causal() & p.KeyMask(torch.arange(5) > 0)
    go_on(state, text, [4], pattern=pattern)
    with pytest.raises(rg.ShapeError, match="5 keys and the call has 8"):
        go_on(state, text, [4], pattern=pattern)
    assert state.length == 4
