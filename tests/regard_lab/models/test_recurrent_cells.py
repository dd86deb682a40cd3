"""Bahdanau's and Luong's cells and the LSTMN against loops written from the papers."""

import numpy as np
import pytest
import torch
from recurrent_by_loops import (
    CellsByLoops,
    additive,
    concat,
    context,
    dot,
    general,
    numbers,
    sigmoid,
    softmax,
)
from torch import nn
from torch._subclasses import FakeTensorMode

from regard.errors import ArgumentError, ShapeError
from regard.layers import record_attention
from regard.mechanisms import Additive, Concat, Dot, General, LocalPredictive
from regard_lab.models.recurrent import (
    BahdanauCell,
    CellState,
    FixedVectorCell,
    LuongCell,
    MemoryAttention,
)
from regard_lab.models.recurrent.cells import Memory
from regard_lab.models.recurrent.lstmn import LongShortTermMemoryNetwork, Tapes

X, H, M, OUT, LENGTH = 5, 7, 3, 11, 13  # sizes of x, state, memory and h~; words of the source
CELLS = {
    "gru": nn.GRUCell,
    "lstm": nn.LSTMCell,
    "tanh": nn.RNNCell,
    "2 gru": nn.GRU,
    "2 lstm": nn.LSTM,
}
SCORES = {
    "dot": (Dot(), dot),
    "general": (General(H, M), general),
    "concat": (Concat(H, M, hidden=17), concat),
    "additive": (Additive(H, M, hidden=17), additive),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def new_cell(kind, size):
    if kind.startswith("2"):
        return CELLS[kind](size, H, 2, batch_first=True).double()
    return CELLS[kind](size, H).double()


def first_state(kind):
    shape = (2, 1, H) if kind.startswith("2") else (1, H)
    h, c = torch.randn(2, *shape, dtype=torch.float64)
    states = [
        (h.reshape(-1, H)[layer].numpy(), c.reshape(-1, H)[layer].numpy())
        for layer in range(h.numel() // H)
    ]
    return (h, c) if "lstm" in kind else h, states


def given(memory_dim=M, steps=6):
    return torch.randn(1, steps, X, dtype=torch.float64), torch.randn(
        1, LENGTH, memory_dim, dtype=torch.float64
    )


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("fixed", [False, True])
def test_bahdanau_attends_with_the_state_before_and_feeds_what_it_found_or_a_fixed_vector(
    kind, fixed
):
    attention = MemoryAttention(Additive(H, M, hidden=17)).double()
    cell = (
        FixedVectorCell(new_cell(kind, X + M))
        if fixed
        else BahdanauCell(new_cell(kind, X + M), attention)
    )
    xs, states = given()
    start, hidden_states = first_state(kind)
    outputs, end = cell.sequence(
        xs, cell.begin(start), cell.attention.remember(states[:, -1:] if fixed else states)
    )

    loop = CellsByLoops(cell.cell)
    learned = numbers(attention.learned)
    for t, x in enumerate(xs[0].numpy()):
        c = (
            states[0, -1].numpy()
            if fixed
            else context(additive, learned, hidden_states[-1][0], states[0].numpy())
        )
        hidden_states = loop.step(np.concatenate([x, c]), hidden_states)
        np.testing.assert_allclose(
            outputs[0, t].detach(), np.concatenate([hidden_states[-1][0], c]), atol=1e-12
        )
    assert end.place == 6


# Pairs of each: every kind with and without feeding, every score likewise.
@pytest.mark.parametrize(
    ("kind", "name", "feeding", "local"),
    [
        *(
            (kind, name, (index + n) % 2 == 0, {})
            for index, kind in enumerate(CELLS)
            for n, name in enumerate(SCORES)
        ),
        ("2 gru", "dot", True, {"near": 1}),
        ("2 gru", "dot", False, {"near": 2}),
        *(("2 lstm", name, False, {"predicted": 2}) for name in SCORES),
    ],
)
def test_luong_moves_on_and_then_attends_to_all_or_around_a_place(kind, name, feeding, local):
    """Windows of local-m also reach past the end of the source, where no key is visible."""
    score, by_loop = SCORES[name]
    if "predicted" in local:
        score = LocalPredictive(score, window=local["predicted"], query_dim=H)
    near = local.get("near")
    memory_dim = H if name == "dot" else M
    attention = MemoryAttention(score, window=near).double()
    options = {"memory_dim": memory_dim, "output_dim": OUT, "input_feeding": feeding}
    cell = LuongCell(new_cell(kind, X + OUT if feeding else X), attention, **options).double()
    xs, states = given(memory_dim, steps=6 if near is None else LENGTH + near + 3)
    start, hidden_states = first_state(kind)
    outputs, _ = cell.sequence(xs, cell.begin(start), attention.remember(states))
    learned = numbers(attention.learned)

    def attend(h, t):
        seen = {"near": (t, near)} if near else local
        return context(by_loop, learned, h, states[0].numpy(), **seen)

    np.testing.assert_allclose(
        outputs[0].detach(), [*luong_by_loop(cell, xs, hidden_states, attend)], atol=1e-12
    )


def luong_by_loop(cell, xs, layers, attend, hidden=lambda layers: layers[-1][0]):
    loop = CellsByLoops(cell.cell)
    W = numbers(cell)["combine.weight"]
    fed = np.zeros(OUT)
    for t, x in enumerate(xs[0].numpy()):
        layers = loop.step(np.concatenate([x, fed]) if cell.input_feeding else x, layers)
        fed = np.tanh(W @ np.concatenate([attend(hidden(layers), t), hidden(layers)]))
        yield fed


def test_a_recording_hears_each_step_of_bahdanau_and_all_of_luong_at_once():
    attention = MemoryAttention(Additive(H, M, hidden=17)).double()
    xs, states = given()
    memory = attention.remember(states)
    bahdanau = BahdanauCell(new_cell("gru", X + M), attention)
    plain, _ = bahdanau.sequence(xs, bahdanau.begin(torch.zeros(1, H).double()), memory)
    with record_attention(bahdanau) as recording:
        heard, _ = bahdanau.sequence(xs, bahdanau.begin(torch.zeros(1, H).double()), memory)
    assert [detail.weights.shape for detail in recording["attention"]] == [(1, 1, 1, LENGTH)] * 6
    torch.testing.assert_close(heard, plain)

    luong = LuongCell(new_cell("2 gru", X), attention, memory_dim=M, output_dim=OUT).double()
    with record_attention(luong) as recording:
        luong.sequence(xs, luong.begin(torch.zeros(2, 1, H).double()), memory)
    (detail,) = recording["attention"]
    assert detail.weights.shape == (1, 1, 6, LENGTH)
    torch.testing.assert_close(detail.weights.sum(-1), torch.ones(1, 1, 6).double())


@pytest.mark.parametrize("kind", CELLS)
def test_a_reordered_state_holds_the_chosen_rows(kind):
    cell = LuongCell(
        new_cell(kind, X + OUT),
        MemoryAttention(Dot()),
        memory_dim=H,
        output_dim=OUT,
        input_feeding=True,
    )
    shape = (2, 5, H) if kind.startswith("2") else (5, H)
    h = torch.randn(shape)
    c = torch.randn(shape)
    fed = torch.randn(5, OUT)
    state = CellState(
        (h, c) if "lstm" in kind else h, fed, place=3, batch_axis=int(kind.startswith("2"))
    )
    index = torch.tensor([4, 0, 0])
    reordered = state.reorder(index)
    parts = reordered.recurrent if "lstm" in kind else (reordered.recurrent,)
    for part, before in zip(parts, (h, c), strict=False):
        assert torch.equal(part, before[..., index, :])
    assert torch.equal(reordered.fed, fed[index])
    assert reordered.place == 3
    assert state.nbytes == sum(
        part.nbytes for part in ((h, c, fed) if "lstm" in kind else (h, fed))
    )
    assert cell.begin(reordered.recurrent).fed.shape == (3, OUT)


class Minimal(nn.Module):
    """A cell of a user's own: s' = tanh(x W + s U)."""

    input_size = X + M
    hidden_size = H

    def __init__(self):
        super().__init__()
        self.read, self.keep = nn.Linear(X + M, H), nn.Linear(H, H)

    def forward(self, x, state):
        return torch.tanh(self.read(x) + self.keep(state))


def attended():
    return MemoryAttention(Additive(H, M, hidden=17)).double()


def test_a_cell_of_a_users_own_is_wrapped_if_it_is_called_as_those_of_torch_are():
    minimal = Minimal().double()
    attention = attended()
    torch_cell = nn.RNNCell(X + M, H).double()
    torch_cell.load_state_dict(
        {
            "weight_ih": minimal.read.weight,
            "bias_ih": minimal.read.bias,
            "weight_hh": minimal.keep.weight,
            "bias_hh": minimal.keep.bias,
        }
    )
    xs, states = given()
    start, _ = first_state("tanh")
    outputs = [
        cell.sequence(xs, cell.begin(start), attention.remember(states))[0]
        for cell in (BahdanauCell(minimal, attention), BahdanauCell(torch_cell, attention))
    ]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)


class NestedCells(nn.Module):
    """Two LSTM cells, one above the other, as a user writes them: a nested state, and no sizes."""

    def __init__(self, size):
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(size, H), nn.LSTMCell(H, H)])

    def forward(self, x, state):
        after = []
        for cell, (h, c) in zip(self.cells, state["layers"], strict=True):
            x, c = cell(x, (h, c))
            after.append((x, c))
        return {"layers": after, "steps": [state["steps"][0] + 1]}

    def as_lstm(self, size):
        """torch's two layers with the same weights."""
        layers = nn.LSTM(size, H, 2, batch_first=True).double()
        weights = {}
        for number, cell in enumerate(self.cells):
            for name, tensor in cell.named_parameters():
                weights[f"{name}_l{number}"] = tensor
        layers.load_state_dict(weights)
        return layers


def topmost(state):
    return state["layers"][-1][0]


def nested(h, c):
    """The state of `NestedCells` that equals (h, c) of torch's layers."""
    return {"layers": list(zip(h, c, strict=True)), "steps": [torch.zeros(h.shape[1], 2, 3)]}


def wrapped(kind, cell, attention, **more):
    """A cell of each kind, with the same weights for every `cell`."""
    torch.manual_seed(1)
    if kind == "bahdanau":
        return BahdanauCell(cell, attention, **more)
    if kind == "fixed":
        return FixedVectorCell(cell, **more)
    sizes = {"memory_dim": M, "output_dim": OUT, "input_feeding": kind == "luong, fed"}
    return LuongCell(
        cell, attention, **sizes, **({"hidden_dim": H, **more} if more else {})
    ).double()


@pytest.mark.parametrize("kind", ["bahdanau", "luong", "luong, fed", "fixed"])
def test_a_cell_with_a_nested_state_and_no_sizes_equals_the_layers_of_torch(kind):
    size = X + {"luong": 0, "luong, fed": OUT}.get(kind, M)
    cells = NestedCells(size).double()
    attention = attended()
    xs = torch.randn(3, 6, X, dtype=torch.float64, requires_grad=True)
    states = torch.randn(3, 1 if kind == "fixed" else LENGTH, M, dtype=torch.float64)
    h, c = torch.randn(2, 2, 3, H, dtype=torch.float64)
    results = []
    for cell, start, more in (
        (cells, nested(h, c), {"hidden": topmost}),
        (cells.as_lstm(size), (h, c), {}),
    ):
        cell = wrapped(kind, cell, attention, **more)
        memory = cell.attention.remember(states)
        begun = cell.begin(start)
        _, state = cell.sequence(xs[:, :4], begun, memory)
        index = torch.tensor([2, 0, 0, 1])  # as a beam search does
        output, state = cell.sequence(xs[index, 4:], state.reorder(index), memory.reorder(index))
        assert (begun.place, state.place) == (0, 6)
        results.append(
            [output, cell.hidden(state.recurrent), *torch.autograd.grad(output.square().sum(), xs)]
        )
        if more:
            assert torch.equal(state.recurrent["steps"][0], torch.full((4, 2, 3), 6.0))
            assert state.nbytes == 4 * (4 * H * 8 + 2 * 3 * 4 + OUT * 8 * (kind == "luong, fed"))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_another_part_of_the_state_of_torchs_layers_may_attend():
    """`hidden` holds for `sequence` too, which computes all steps of torch's layers at once by default."""
    attention, (xs, states) = attended(), given()
    cell = LuongCell(
        new_cell("2 lstm", X),
        attention,
        memory_dim=M,
        output_dim=OUT,
        hidden=lambda state: state[1][0],
    )
    cell, (start, hidden_states) = cell.double(), first_state("2 lstm")
    outputs, _ = cell.sequence(xs, cell.begin(start), attention.remember(states))
    learned = numbers(attention.learned)
    attend = lambda h, t: context(additive, learned, h, states[0].numpy())  # noqa: E731
    # the memory of the first layer
    expected = luong_by_loop(
        cell, xs, hidden_states, attend, hidden=lambda hidden_states: hidden_states[0][1]
    )
    np.testing.assert_allclose(outputs[0].detach(), [*expected], atol=1e-12)


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        (
            nested(*torch.zeros(2, 2, 3, H)),
            ArgumentError,
            r"say which one is the query, as in BahdanauCell\(..., hidden",
        ),
        (torch.zeros(3, 4, H), ArgumentError, r"shapes \(3, 4, 7\); say which one is the query"),
        (
            [torch.zeros(3, H), torch.zeros(4, H)],
            ShapeError,
            r"\(3, 7\) and \(4, 7\); their first axis must be the bat",
        ),
        ({"h": None}, ArgumentError, "tensors .batch, .... in tuples, lists and dicts"),
        ({}, ArgumentError, "give a tensor"),
        (torch.tensor(1.0), ArgumentError, "give a tensor"),
    ],
)
def test_a_nested_state_needs_a_batch_and_a_tensor_that_attends(state, error, words):
    with pytest.raises(error, match=words):
        BahdanauCell(NestedCells(X + M), attended()).begin(state)


def test_what_attends_has_the_size_that_was_given():
    with pytest.raises(ArgumentError, match="a NestedCells has no hidden_size; give hidden_dim"):
        LuongCell(NestedCells(X), attended(), memory_dim=M, output_dim=OUT, hidden=topmost)
    start = nested(*torch.zeros(2, 2, 3, H))
    cell = LuongCell(
        NestedCells(X), attended(), memory_dim=M, output_dim=OUT, hidden_dim=H + 1, hidden=topmost
    )
    with pytest.raises(ShapeError, match=r"has shape \(3, 7\); it needs \(batch, 8\)"):
        cell.begin(start)
    with pytest.raises(ShapeError, match=r"has shape \(3, 2, 3\); it needs \(batch, hidden_size\)"):
        BahdanauCell(NestedCells(X + M), attended(), hidden=lambda state: state["steps"][0]).begin(
            start
        )


@pytest.mark.parametrize(
    "changed",
    [
        lambda state: {**state, "steps": tuple(state["steps"])},
        lambda state: {**state, "steps": [torch.zeros(3, 2)]},
    ],
)
def test_a_cell_that_changes_the_form_of_its_state_is_refused(changed):
    class Changing(NestedCells):
        def forward(self, x, state):
            return changed(super().forward(x, state))

    cell = BahdanauCell(Changing(X + M).double(), attended(), hidden=topmost)
    memory = cell.attention.remember(torch.zeros(3, LENGTH, M).double())
    with pytest.raises(
        ArgumentError,
        match=r"Changing was given a state of shape .* must return the next state alone",
    ):
        cell(
            torch.zeros(3, X).double(),
            cell.begin(nested(*torch.zeros(2, 2, 3, H).double())),
            memory,
        )


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (nn.LSTMCell, "cell is <class .*LSTMCell'>; it needs nn.GRUCell"),
        (None, "cell is None; it needs nn.GRUCell"),
        (nn.Linear(X, H), r"cell is a Linear, which cannot be called as cell\(x, state\)"),
        (nn.LSTM(X, H, batch_first=True, proj_size=2), "make it without proj_size"),
        (nn.GRU(X, H), "needs batch_first=True"),
        (nn.GRU(X, H, batch_first=True, bidirectional=True), "one direction"),
    ],
)
def test_a_cell_that_cannot_run_step_by_step_is_refused_by_a_sentence(cell, words):
    for make in (
        lambda: BahdanauCell(cell, attended()),
        lambda: LuongCell(cell, attended(), memory_dim=M, output_dim=OUT),
        lambda: FixedVectorCell(cell),
    ):
        with pytest.raises(ArgumentError, match=words):
            make()


@pytest.mark.parametrize(
    ("kind", "state", "error", "words"),
    [
        (
            "lstm",
            torch.zeros(1, H),
            ArgumentError,
            r"state of LSTMCell is a pair \(hidden, memory\), and one tensor",
        ),
        (
            "gru",
            (torch.zeros(1, H), torch.zeros(1, H)),
            ArgumentError,
            "state of GRUCell is one tensor, and a pair",
        ),
        ("gru", None, ArgumentError, "the state is None; give a tensor"),
        (
            "gru",
            torch.zeros(1, H + 1),
            ShapeError,
            r"shape \(1, 8\); it needs \(batch, hidden_size\), of size 7",
        ),
        ("2 gru", torch.zeros(1, H), ShapeError, r"it needs \(layers, batch, hidden_size\)"),
    ],
)
def test_a_state_that_the_cell_does_not_have_is_refused(kind, state, error, words):
    luong = LuongCell(
        new_cell(kind, X), attended(), memory_dim=M, output_dim=OUT, input_feeding=True
    )
    for cell in (BahdanauCell(new_cell(kind, X + M), attended()), luong):
        with pytest.raises(error, match=words):
            cell.begin(state)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: Memory(x.view(3, 1, 1, 4), x.view(3, 1, 1, 4), None),
        lambda x: CellState((x, x), x),
        lambda x: Tapes(Memory(x.view(3, 1, 1, 4), x.view(3, 1, 1, 4), None), x),
    ],
)
def test_a_state_on_a_gpu_is_reordered_by_an_index_on_the_cpu(make):
    with FakeTensorMode():  # tensors with a device and a shape, and no numbers: no GPU is needed
        moved = make(torch.empty(3, 4, device="cuda")).reorder(torch.empty(5, dtype=torch.int64))
    held = (
        moved.fed
        if isinstance(moved, CellState)
        else moved.values
        if isinstance(moved, Memory)
        else moved.summary
    )
    assert (held.device.type, len(held)) == ("cuda", 5)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return LongShortTermMemoryNetwork(dim=5, hidden=7).double()


def test_the_network_is_the_equations_of_the_paper(network):
    xs = torch.randn(2, 11, 5, dtype=torch.float64)
    outputs, tapes = network(xs)
    weights = numbers(network.gates)
    score = numbers(network.attention.learned)
    W_x = score["query_weight"][0][:, :5]
    W_summary = score["query_weight"][0][:, 5:]
    W_h = score["key_weight"][0]
    v = score["energy"][0]
    for row, text in enumerate(xs.numpy()):
        hs = []
        cs = []
        summary = np.zeros(7)
        for x in text:
            past = np.zeros(7)
            if hs:
                s = softmax(
                    np.array([v @ np.tanh(W_h @ h + W_x @ x + W_summary @ summary) for h in hs])
                )
                summary = s @ np.array(hs)
                past = s @ np.array(cs)
            i, f, o, new = np.split(
                weights["weight"] @ np.concatenate([summary, x]) + weights["bias"], 4
            )
            cs.append(sigmoid(f) * past + sigmoid(i) * np.tanh(new))
            hs.append(sigmoid(o) * np.tanh(cs[-1]))
        np.testing.assert_allclose(outputs[row].detach(), hs, atol=1e-12)
        np.testing.assert_allclose(tapes.hidden[row].detach(), hs, atol=1e-12)
        np.testing.assert_allclose(tapes.memories[row].detach(), cs, atol=1e-12)
        np.testing.assert_allclose(tapes.summary[row].detach(), summary, atol=1e-12)


def test_a_text_in_pieces_equals_the_whole_and_reordered_tapes_go_on_from_the_chosen_rows(network):
    x = torch.randn(3, 7, 5, dtype=torch.float64)
    index = torch.tensor([2, 0, 2, 1])
    whole, end = network(x)
    first, tapes = network(x[:, :1])
    second, tapes = network(x[:, 1:5], tapes)
    last, after = network(x[:, 5:], tapes)
    torch.testing.assert_close(torch.cat([first, second, last], 1), whole, atol=1e-12, rtol=0)
    assert after.length == end.length == 7
    assert after.nbytes == 8 * 3 * (7 * (7 + 2 * 7) + 7)  # keys, both tapes, and the summary
    outputs, _ = network(x[index, 5:], tapes.reorder(index))
    torch.testing.assert_close(outputs, whole[index, 5:], atol=1e-12, rtol=0)


def test_no_step_sees_what_comes_later_and_each_learns_from_what_came_before(network):
    x = torch.randn(1, 6, 5, dtype=torch.float64, requires_grad=True)
    network(x)[0][0, 3].sum().backward()
    assert (x.grad[0].abs().amax(-1) > 0).tolist() == [True] * 4 + [False] * 2
    assert all(parameter.grad.abs().max() > 0 for parameter in network.parameters())


def test_a_recording_hears_how_it_attends_to_its_past(network):
    with record_attention(network) as recording:
        network(torch.randn(1, 5, 5, dtype=torch.float64))
    assert [detail.weights.shape[-1] for detail in recording["attention"]] == [0, 1, 2, 3, 4]
    for detail in recording["attention"][1:]:
        torch.testing.assert_close(detail.weights.sum(-1), torch.ones(1, 1, 1).double())
