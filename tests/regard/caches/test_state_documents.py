"""A state goes on with documents: each begins without a memory, and the state is that of the last one, or of each."""

import copy
from itertools import accumulate, pairwise

import pytest
import torch

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.layers.caches import RecurrentState

BATCH = 2
HEADS = 3
LENGTH = 37
CUTS = (0, 5, 6, 20, 21, 33, LENGTH)  # where calls begin
# By row; the first row has a document of one position, the second one that goes on over several calls.
LENGTHS = ((5, 9, 1, 6, 16), (2, 26, 4, 5))

MECHANISMS = {
    "gated delta": (m.GatedDelta(), ("log_decay", "strength")),
    "kimi delta": (m.KimiDelta(), ("log_decay by channel", "strength")),
    "retention": (m.Retention(), ()),
    "linear": (m.LinearTransformer(), ()),
}


def drawn(batch, length, gates):
    generator = torch.Generator().manual_seed(length + batch)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q = normal(batch, HEADS, length, 4)
    k = torch.nn.functional.normalize(normal(batch, HEADS, length, 4), dim=-1)
    v = normal(batch, HEADS, length, 5)
    parameters = {}
    for gate in gates:
        name, _, channels = gate.partition(" by ")
        shape = (batch, HEADS, length, 4) if channels else (batch, HEADS, length)
        values = torch.nn.functional.logsigmoid(normal(*shape))
        parameters[name] = values.exp() if name == "strength" else values
    return q, k, v, parameters


def state_of(mechanism, batch):
    return RecurrentState(mechanism, batch, HEADS, 4, 5, dtype=torch.float64)


def cut(tensors, parameters, rows, positions):
    parts = [x[rows, :, positions] for x in tensors]
    return parts, {name: x[rows, :, positions] for name, x in parameters.items()}


def ids_of(lengths):
    return torch.tensor([[d for d, n in enumerate(row) for _ in range(n)] for row in lengths])


def alone(mechanism, tensors, parameters, lengths):
    """The output of each document computed by itself, and the state after each row's last document."""
    rows = []
    states = []
    for row, of_row in enumerate(lengths):
        parts = []
        for start, stop in zip([0, *accumulate(of_row)], accumulate(of_row), strict=False):
            state = state_of(mechanism, 1)
            qkv, gates = cut(tensors, parameters, slice(row, row + 1), slice(start, stop))
            parts.append(state.attend(*qkv, parameters=gates or None))
        rows.append(torch.cat(parts, 2))
        states.append(state)
    return torch.cat(rows), states


def step_of(state, tensors):
    """What a state gives one more position: its whole content, seen from outside."""
    q, k, v, parameters = tensors
    return copy.copy(state).attend(q, k, v, parameters=parameters or None)


@pytest.mark.parametrize("name", MECHANISMS)
def test_documents_in_several_calls_are_each_computed_alone(name):
    mechanism, gates = MECHANISMS[name]
    *tensors, parameters = drawn(BATCH, LENGTH, gates)
    ids = ids_of(LENGTHS)
    state = state_of(mechanism, BATCH)
    outputs = []
    for start, stop in pairwise(CUTS):
        qkv, of_call = cut(tensors, parameters, slice(None), slice(start, stop))
        pattern = p.Causal() & p.SameDocument(ids[:, :stop])
        outputs.append(state.attend(*qkv, pattern=pattern, parameters=of_call or None))
    expected, states = alone(mechanism, tensors, parameters, LENGTHS)
    torch.testing.assert_close(torch.cat(outputs, 2), expected, rtol=0, atol=1e-10)
    *more, of_more = drawn(BATCH, 1, gates)
    one_by_one = [
        step_of(
            each,
            (*(x[row : row + 1] for x in more), {n: x[row : row + 1] for n, x in of_more.items()}),
        )
        for row, each in enumerate(states)
    ]
    ours = step_of(state, (*more, of_more))
    torch.testing.assert_close(ours, torch.cat(one_by_one), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MECHANISMS)
def test_packed_documents_go_on_from_the_state_of_each_and_leave_it(name):
    mechanism, gates = MECHANISMS[name]
    packings = ((5, 0, 11, 1), (0, 4, 2, 7), (3, 3, 0, 0))
    state = state_of(mechanism, 4)
    singles = [state_of(mechanism, 1) for _ in range(4)]
    for lengths in packings:
        total = sum(lengths)
        *tensors, parameters = drawn(1, total, gates)
        ends = torch.tensor([0, *accumulate(lengths)])
        packed = [x[0].transpose(0, 1) for x in tensors]
        output = state.attend_varlen(*packed, ends, parameters=parameters or None)
        parts = []
        for single, start, stop in zip(singles, ends.tolist(), ends[1:].tolist(), strict=False):
            qkv, of_call = cut(tensors, parameters, slice(None), slice(start, stop))
            parts.append(single.attend(*qkv, parameters=of_call or None))
        expected = torch.cat(parts, 2)[0].transpose(0, 1)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)
    *more, of_more = drawn(4, 1, gates)
    ours = step_of(state, (*more, of_more))
    for row, single in enumerate(singles):
        of_row = {n: x[row : row + 1] for n, x in of_more.items()}
        theirs = step_of(single, (*(x[row : row + 1] for x in more), of_row))
        torch.testing.assert_close(ours[row : row + 1], theirs, rtol=0, atol=1e-10)
    assert state.length == 11 + 7 + 3


def test_gradients_flow_through_documents_and_states():
    mechanism, gates = MECHANISMS["gated delta"]
    *tensors, parameters = drawn(1, 12, gates)
    leaves = [x.clone().requires_grad_() for x in (*tensors, *parameters.values())]
    named = dict(zip(parameters, leaves[3:], strict=True))
    ids = torch.tensor([0] * 4 + [1] * 8)

    def loss(pattern_of):
        state = state_of(mechanism, 1)
        total = 0
        for start, stop in ((0, 7), (7, 12)):
            qkv, of_call = cut(leaves[:3], named, slice(None), slice(start, stop))
            total = (
                total
                + state.attend(*qkv, pattern=pattern_of(stop), parameters=of_call).square().sum()
            )
        return total

    ours = torch.autograd.grad(loss(lambda n: p.Causal() & p.SameDocument(ids[:n])), leaves)
    expected = 0
    for start, stop in ((0, 4), (4, 12)):
        qkv, of_call = cut(leaves[:3], named, slice(None), slice(start, stop))
        output = state_of(mechanism, 1).attend(*qkv, parameters=of_call)
        expected = expected + output.square().sum()
    for mine, theirs in zip(ours, torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


def test_padding_is_hidden_beside_documents():
    mechanism, _ = MECHANISMS["retention"]
    *tensors, _ = drawn(1, 9, ())
    mask = torch.tensor([False, False, True, True, True, True, False, True, True])
    ids = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1])
    for x in tensors:
        x[:, :, ~mask] = torch.nan
    state = state_of(mechanism, 1)
    output = state.attend(*tensors, pattern=p.Causal() & p.KeyMask(mask) & p.SameDocument(ids))
    pattern = p.Causal() & p.KeyMask(mask) & p.SameDocument(ids)
    expected = rg.attention(*tensors, pattern=pattern, mechanism=mechanism)
    torch.testing.assert_close(output[:, :, mask], expected[:, :, mask], rtol=0, atol=1e-10)


def test_what_a_state_cannot_know_is_refused_and_changes_nothing():
    mechanism, _ = MECHANISMS["retention"]
    *tensors, _ = drawn(1, 6, ())
    state = state_of(mechanism, 1)
    ids = torch.tensor([0, 0, 1, 0, 0, 0])
    with pytest.raises(rg.UnsupportedError, match="comes again after another one"):
        state.attend(*tensors, pattern=p.Causal() & p.SameDocument(ids))
    with pytest.raises(rg.ShapeError, match="for 5 positions and the call has 6 keys"):
        state.attend(*tensors, pattern=p.Causal() & p.SameDocument(torch.zeros(5).long()))
    packed = [x[0].transpose(0, 1) for x in tensors]
    with pytest.raises(rg.ShapeError, match="batch is 2 in this call and 1 in this state"):
        state.attend_varlen(*packed, torch.tensor([0, 3, 6]))
    with pytest.raises(rg.ShapeError, match=r"cu_seqlens goes from 0 to 5; .* ends at 6"):
        state.attend_varlen(*packed, torch.tensor([0, 5]))
    assert state.length == 0
