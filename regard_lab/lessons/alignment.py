"""Lesson: Bahdanau's decoder attends before it updates its state, Luong's after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from regard.layers import record_attention
from regard.mechanisms import Additive, General
from regard_lab.lessons.figures import Figure, begin, draw_map, scale_beside
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table
from regard_lab.lessons.words import ROUNDING, embedded, largest, normal, rounded, seeded, words_of
from regard_lab.models.recurrent import AttentionCell, BahdanauCell, LuongCell, MemoryAttention
from regard_lab.models.recurrent.cells import top

TEXT = "the animal did not cross the street"
WRITTEN = ("das", "Tier", "überquerte", "die", "Straße", "nicht")
DIM, HIDDEN = 12, 16
EDITED = 2  # the target word of this step is replaced
SHARPER = 5.0  # factor on untrained weights, so that rows differ visibly
EXACT = 1e-12

CODE = """\
import torch
from regard.mechanisms import Additive, General
from regard_lab.models.recurrent import BahdanauCell, LuongCell, MemoryAttention

read = torch.randn(1, 7, 16)  # encoder outputs for seven words
attention = MemoryAttention(Additive(query_dim=16, key_dim=16, hidden=16))
bahdanau = BahdanauCell(torch.nn.GRUCell(12 + 16, 16), attention)  # input [y; context]
output, state = bahdanau(torch.randn(1, 12), bahdanau.begin(torch.zeros(1, 16)), attention.remember(read))

attention = MemoryAttention(General(query_dim=16, key_dim=16))
luong = LuongCell(torch.nn.GRUCell(12, 16), attention, memory_dim=16, output_dim=16)
output, state = luong(torch.randn(1, 12), luong.begin(torch.zeros(1, 16)), attention.remember(read))"""


def teach(settings: Settings) -> Lecture:
    """Run two decoders on the same target words, replace one word, and compare when the weights change."""
    words = words_of(settings.text, TEXT)
    seed = settings.seed
    read, written = _encoded(words, seed), embedded(WRITTEN, DIM, seed + 1)
    edited = written.clone()
    edited[:, EDITED] = normal(seed + 2, DIM)
    decoders: dict[str, AttentionCell] = {
        "bahdanau": _bahdanau(seed),
        "luong": _luong(seed),
        "luong, fed": _luong(seed, input_feeding=True),
    }
    numbers: dict[str, Any] = {"read": list(words), "written": list(WRITTEN), "edited": EDITED, "decoders": {}}
    for name, cell in decoders.items():
        weights, states = steps(cell, written, read)
        by_edit = (steps(cell, edited, read)[0] - weights).abs().amax(1)  # (steps,)
        by_source = (steps(cell, written, -read)[1] - states).abs().amax(1)
        numbers["decoders"][name] = {
            "weights": rounded(weights),
            "edit_moves_weights": rounded(by_edit), "edit_moves_from": _first(by_edit),
            "source_moves_states": rounded(by_source), "source_moves_from": _first(by_source),
        }  # fmt: skip
    numbers["by_hand"] = {
        name: largest(formula(decoders[name], written, read) - steps(decoders[name], written, read)[0]) < EXACT
        for name, formula in (("bahdanau", bahdanau_by_hand), ("luong", luong_by_hand))
    }
    return numbers, (
        "Both decoders compute attention weights over the source words for each target word. Bahdanau's decoder "
        "attends with its previous state s_{t-1} and then updates the state with the context: s_t = f(s_{t-1}, "
        "[y_{t-1}; c_t]). Luong's decoder first updates its state, h_t = f(h_{t-1}, y_{t-1}), and then attends "
        "with the new state.",
        "The scores differ too: Bahdanau's is additive, v · tanh(W s + U h_j); Luong's is multiplicative, hᵀ W "
        "h_j, which is a single matrix product for all words.",
        "Luong's paper adds input feeding: the vector that a step computes from its state and its context is also an "
        "input of the next step, beside the next word. So the decoder knows what it has attended to, but one step "
        "later than Bahdanau's.",
        f"To observe the order, one target word is replaced: “{WRITTEN[EDITED]}”, the input of step {EDITED}. The "
        "decoders are not trained, so only the step at which the weights change is meaningful, not the words that "
        "they attend to. Source: Bahdanau et al. 2015, section 3.1 and A.1.2; Luong et al. 2015, sections 3 and 3.3.",
    )


def steps(cell: AttentionCell, written: torch.Tensor, read: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights (steps, source words) and the recurrent states (steps, HIDDEN) of every step."""
    attention = cell.attention
    assert isinstance(attention, MemoryAttention)
    memory, state = attention.remember(read), cell.begin(torch.zeros(1, HIDDEN, dtype=read.dtype))
    states = []
    with record_attention(cell) as recording:
        for y in written.unbind(1):
            _, state = cell(y, state, memory)
            states.append(top(state.recurrent))
    weights = [detail.weights[0, 0] for detail in recording["attention"]]  # (1, words read) each
    return torch.cat(weights).detach(), torch.cat(states).detach()


def bahdanau_by_hand(cell: AttentionCell, written: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """e_j = v · tanh(W s_{t-1} + U h_j), α = softmax(e), c = Σ α_j h_j, s_t = f(s_{t-1}, [y; c])."""
    learned = _learned(cell)
    s, rows = torch.zeros(1, HIDDEN, dtype=read.dtype), []
    for y in written.unbind(1):
        energies = torch.tanh(s @ learned["query_weight"].T + read[0] @ learned["key_weight"].T) @ learned["energy"]
        rows.append(energies.softmax(-1))
        s = cell.cell(torch.cat([y, rows[-1][None] @ read[0]], -1), s)
    return torch.stack(rows)


def luong_by_hand(cell: AttentionCell, written: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """h_t = f(h_{t-1}, y), e_j = h_tᵀ W h_j, α = softmax(e)."""
    matrix, h, rows = _learned(cell)["weight"], torch.zeros(1, HIDDEN, dtype=read.dtype), []
    for y in written.unbind(1):
        h = cell.cell(y, h)
        rows.append((h @ matrix @ read[0].T)[0].softmax(-1))
    return torch.stack(rows)


def _first(moved: torch.Tensor) -> int | None:
    """The first step whose value changes; None if none does."""
    found = (moved > EXACT).nonzero().flatten().tolist()
    return found[0] if found else None


def _learned(cell: AttentionCell) -> dict[str, torch.Tensor]:
    """The parameters of the score, without the axis of its single head."""
    assert isinstance(cell.attention, MemoryAttention)
    return {name: value[0] for name, value in cell.attention.learned.items()}


def _encoded(words: tuple[str, ...], seed: int) -> torch.Tensor:
    """Outputs of a bidirectional recurrent encoder for each word."""
    encoder = seeded(seed, nn.GRU, DIM, HIDDEN // 2, batch_first=True, bidirectional=True)
    return encoder(embedded(words, DIM, seed))[0].detach()  # (1, words, HIDDEN)


def _bahdanau(seed: int) -> BahdanauCell:
    attention = seeded(seed, MemoryAttention, Additive(query_dim=HIDDEN, key_dim=HIDDEN, hidden=HIDDEN))
    return BahdanauCell(seeded(seed, nn.GRUCell, DIM + HIDDEN, HIDDEN), _sharper(attention))


def _luong(seed: int, input_feeding: bool = False) -> LuongCell:
    attention = _sharper(seeded(seed, MemoryAttention, General(query_dim=HIDDEN, key_dim=HIDDEN)))
    cell = seeded(seed, nn.GRUCell, DIM + HIDDEN * input_feeding, HIDDEN)
    return seeded(
        seed, LuongCell, cell, attention, memory_dim=HIDDEN, output_dim=HIDDEN, input_feeding=input_feeding
    )  # fmt: skip


def _sharper(attention: MemoryAttention) -> MemoryAttention:
    for parameter in attention.parameters():
        parameter.data *= SHARPER
    return attention


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    moved = [numbers["decoders"][name]["edit_moves_weights"] for name in ("bahdanau", "luong", "luong, fed")]
    rows = tuple(
        (str(step), word, "replaced" if step == EDITED else "", *(f"{value:.3f}" for value in values))
        for step, (word, *values) in enumerate(zip(WRITTEN, *moved, strict=True))
    )
    columns = ("step", "input", "", "Bahdanau", "Luong", "Luong, input feeding")
    yield Table("How far the weights of each step move when one target word is replaced", columns, rows)


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    bahdanau, luong, fed = (numbers["decoders"][name] for name in ("bahdanau", "luong", "luong, fed"))
    yield Claim(
        "Both cells are equal to the formulas of their papers.",
        all(numbers["by_hand"].values()),
        f"weights of {len(WRITTEN)} steps, {ROUNDING}",
    )
    yield Claim(
        "Bahdanau's weights are computed before the word is read: they change only at the next step.",
        bahdanau["edit_moves_from"] == EDITED + 1,
        f"the word of step {EDITED} changes weights from step {bahdanau['edit_moves_from']} on",
    )
    yield Claim(
        "Luong's weights are computed after the word is read: they change at the same step.",
        luong["edit_moves_from"] == fed["edit_moves_from"] == EDITED,
        f"from step {luong['edit_moves_from']} on",
    )
    yield Claim(
        "Bahdanau's context enters the decoder's state; Luong's does not.",
        bahdanau["source_moves_from"] == 0 and luong["source_moves_from"] is None,
        f"with another source the states change by {max(bahdanau['source_moves_states']):.3f} and by "
        f"{max(luong['source_moves_states']):.3f}",
    )
    yield Claim(
        "With input feeding, Luong's context enters the state one step later.",
        fed["source_moves_from"] == 1,
        f"{fed['source_moves_states'][0]:.3f} at step 0, {fed['source_moves_states'][1]:.3f} at step 1",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    read, names = (
        numbers["read"],
        {"bahdanau": "Bahdanau: attend, then update the state", "luong": "Luong: update the state, then attend"},
    )
    width = min(max(4.2, 0.19 * len(read)), 9.0)
    begin(figure, "When the decoders attend", 2 * width + 1.6, 6.4)
    panels = figure.subplots(2, 2, height_ratios=(3, 1.2))
    steps_read = [f"{step}: {word}" for step, word in enumerate(WRITTEN)]
    moved = [numbers["decoders"][name]["edit_moves_weights"] for name in names]
    highest = 1.15 * max(max(values) for values in moved)
    for column, (name, title) in enumerate(names.items()):
        above, below = panels[:, column]
        weights = torch.tensor(numbers["decoders"][name]["weights"])
        rows = steps_read if column == 0 else ()
        image = draw_map(above, weights, rows, read, cell=0.8 * width / len(read))
        above.set_xlabel(title, fontsize=10, fontweight="bold")
        colours = ["#D55E00" if step == EDITED else "#0072B2" for step in range(len(WRITTEN))]
        below.bar(range(len(WRITTEN)), moved[column], color=colours, width=0.6)
        orange = "orange" if moved[column][EDITED] else "its bar is 0"
        below.set(ylim=(0, highest), xlim=(-0.5, len(WRITTEN) - 0.5))
        below.set_xticks(range(len(WRITTEN)), [str(step) for step in range(len(WRITTEN))])
        below.set_xlabel(f"step; “{WRITTEN[EDITED]}”, the input of step {EDITED} ({orange}), is replaced", fontsize=9)
        below.spines[["top", "right"]].set_visible(False)
        below.tick_params(labelsize=8)
    panels[0, 0].set_ylabel("step: input word ↓, source word →", fontsize=8.5)
    panels[1, 0].set_ylabel("change of weights", fontsize=9, labelpad=14)
    scale_beside(figure, image, panels[0], "attention weight")
