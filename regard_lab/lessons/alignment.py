# %% [markdown]
# # Bahdanau and Luong
#
# **Does a decoder attend before or after it updates its state?**

# %% tags=["parameters"]
TEXT = "the animal did not cross the street"
SEED = 0

# %% tags=["folded"]
import torch
from torch import nn

from regard.layers import record_attention
from regard.mechanisms import Additive, General
from regard_lab.models.recurrent import BahdanauCell, LuongCell, MemoryAttention
from regard_lab.models.recurrent.cells import top
from regard_lab.seeing.palette import INK, LINES
from regard_lab.teaching import (
    ROUNDING,
    draw_map,
    embedded,
    figure,
    holds,
    label_axes,
    largest,
    normal,
    scale_beside,
    seeded,
    table,
    words_of,
)

# the inputs of the decoder's steps: in training, the words of the translation
WRITTEN = ("das", "Tier", "überquerte", "die", "Straße", "nicht")
STEPS = len(WRITTEN)
EDITED = 2  # the step whose input is replaced
DIM = 12  # numbers of a word
HIDDEN = 16  # numbers of a state
EXACT = 1e-12  # results in float64 that differ by less are equal except for rounding

words = words_of(TEXT)
encoder = seeded(SEED, nn.GRU, DIM, HIDDEN // 2, batch_first=True, bidirectional=True)
h = encoder(embedded(words, DIM, SEED))[0].detach()  # its states, (1, words, HIDDEN)
written = embedded(WRITTEN, DIM, SEED + 1)  # (1, STEPS, DIM)
edited = written.clone()
edited[:, EDITED] = normal(SEED + 2, DIM)


def attention(score, **sizes):
    """Attention to the encoder's states; untrained weights are enlarged, so that rows differ visibly."""
    module = seeded(SEED, MemoryAttention, score(query_dim=HIDDEN, key_dim=HIDDEN, **sizes))
    for parameter in module.parameters():
        parameter.data *= 5
    return module


def luong(input_feeding):
    input_dim = DIM + HIDDEN if input_feeding else DIM
    return seeded(
        SEED,
        LuongCell,
        seeded(SEED, nn.GRUCell, input_dim, HIDDEN),
        attention(General),
        memory_dim=HIDDEN,
        output_dim=HIDDEN,
        input_feeding=input_feeding,
    )


bahdanau_gru = seeded(SEED, nn.GRUCell, DIM + HIDDEN, HIDDEN)
decoders = {
    "Bahdanau": BahdanauCell(bahdanau_gru, attention(Additive, hidden=HIDDEN)),
    "Luong": luong(input_feeding=False),
    "Luong, input feeding": luong(input_feeding=True),
}


def run(cell, written, h):
    """The weights of every step, (STEPS, words), and the states, (STEPS, HIDDEN)."""
    memory = cell.attention.remember(h)  # computes once what the score needs of every h_j
    state = cell.begin(torch.zeros(1, HIDDEN).double())  # of the recurrent cell and what it is fed
    states = []
    with record_attention(cell) as recording, torch.no_grad():
        for y in written.unbind(1):
            _, state = cell(y, state, memory)
            states.append(top(state.recurrent))  # s_t
    weights = [detail.weights[0, 0] for detail in recording["attention"]]
    return torch.cat(weights), torch.cat(states)


weights = {}
weights_moved = {}  # how far the weights of each step move when one target word is replaced
states_moved = {}  # how far the states move when the source is replaced
for name, cell in decoders.items():
    weights[name], states = run(cell, written, h)
    weights_of_edited, _ = run(cell, edited, h)
    _, states_of_other_source = run(cell, written, -h)  # any other source would do
    weights_moved[name] = (weights_of_edited - weights[name]).abs().amax(1)  # (STEPS,)
    states_moved[name] = (states_of_other_source - states).abs().amax(1)  # (STEPS,)

# %% tags=["folded"]
caption = (
    "Above: the weights of each step. Below: how far they change when “überquerte”, the input of "
    "step 2, is replaced. Luong's change at step 2, Bahdanau's one step later."
)
with figure("When the decoders attend", 7.9, 5.4, caption) as drawing:
    panels = drawing.subplots(2, 2, height_ratios=(2.4, 1))
    rows = [f"{step}: {word}" for step, word in enumerate(WRITTEN)]
    cell_height = 3.0 / len(words)
    left, right = panels[0]
    draw_map(left, weights["Bahdanau"], rows, words, cell=cell_height)
    image = draw_map(right, weights["Luong"], (), words, cell=cell_height)
    bold = {"fontsize": 9.5, "fontweight": "bold"}
    left.set_xlabel("Bahdanau: attend, then update the state", **bold)
    right.set_xlabel("Luong: update the state, then attend", **bold)
    left.set_ylabel("step: input ↓, source word →", fontsize=9)

    highest = max(float(weights_moved["Bahdanau"].max()), float(weights_moved["Luong"].max()))
    for axes, name in zip(panels[1], ("Bahdanau", "Luong")):
        axes.axvspan(EDITED - 0.5, EDITED + 0.5, color=LINES[1], alpha=0.25, linewidth=0)
        axes.text(EDITED, 1.05 * highest, "replaced", ha="center", fontsize=8.5, color=INK)
        axes.bar(range(STEPS), weights_moved[name].tolist(), color=LINES[0], width=0.6)
        axes.set(ylim=(0, 1.25 * highest), xlim=(-0.5, STEPS - 0.5))
        label_axes(axes, "", "step", "change of weights" if name == "Bahdanau" else "")
    scale_beside(drawing, image, panels[0], "attention weight")

# %% [markdown]
# A recurrent **encoder** reads the source, and gives each source word $j$ a state, the vector $h_j$. A recurrent
# **decoder** writes the translation word by word. It keeps a state too: $s_t$ after step $t$. The input of step $t$ is
# $y_{t-1}$, the vector of the word that was written last, and a recurrent cell $f$, such as a GRU, computes the next
# state. In each step the decoder also gives a weight to each source word. The mean of the $h_j$ with these weights is
# the context $c_t$.
#
# **Bahdanau's** decoder attends with its previous state $s_{t-1}$. Then it updates the state with what it has read:
#
# $$
# c_t = \sum_j \operatorname{softmax}_j(v^\top \tanh(W s_{t-1} + U h_j)) \, h_j, \qquad
# s_t = f(s_{t-1}, [y_{t-1};\, c_t])
# $$
#
# **Luong's** decoder updates its state first. Then it attends with the new state:
#
# $$
# s_t = f(s_{t-1}, y_{t-1}), \qquad c_t = \sum_j \operatorname{softmax}_j(s_t^\top W h_j) \, h_j
# $$
#
# $[y;\, c]$ joins two vectors to one. The vector $v$ and the matrices $W$ and $U$ are learned, and Luong's $W$ is
# another one. So the scores differ too. Bahdanau's is additive. Luong's is multiplicative, a single matrix product for
# all words; his paper calls it general.
#
# In the code below a recurrent cell of PyTorch and an attention make a decoder. `remember` prepares the states $h$ for
# the attention, `begin` makes the decoder's first state, and a call computes one step.

# %%
encoded = torch.randn(1, 7, 16)  # h of seven words
y = torch.randn(1, 12)  # the word that was written last

additive = MemoryAttention(Additive(query_dim=16, key_dim=16, hidden=16))
cell = BahdanauCell(nn.GRUCell(12 + 16, 16), additive)  # the input of a step is [y; c]
state = cell.begin(torch.zeros(1, 16))
output, state = cell(y, state, additive.remember(encoded))
print(tuple(output.shape))  # the state and the context

multiplicative = MemoryAttention(General(query_dim=16, key_dim=16))
cell = LuongCell(nn.GRUCell(12, 16), multiplicative, memory_dim=16, output_dim=16)
state = cell.begin(torch.zeros(1, 16))
output, state = cell(y, state, multiplicative.remember(encoded))
print(tuple(output.shape))  # one vector, computed from the state and the context

# %% [markdown]
# One article writes $\operatorname{score}(s_t, h_j)$ and says in the same place that the state $s_{t-1}$ attends. This
# mixes the two decoders: Luong's attends with $s_t$, Bahdanau's with $s_{t-1}$.
#
# Luong's paper adds **input feeding**. What a step has computed from its state and its context is also an input of the
# next step. So the decoder knows what it has read, but one step later than Bahdanau's.
#
# Other words for what these decoders do: their attention is *soft*, because every word gets some weight (*hard*
# attention picks one word), and *global*, because it covers the whole source. Luong's *local* attention covers a window
# around one place, such as `D` words on each side of word $t$ in step $t$: `MemoryAttention(score, window=D)`.
#
# **Any recurrent cell** can be wrapped so, also your own: a module that is called as `cell(x, state)` and returns the
# next state. The state may be nested. Then `hidden` says which of its tensors attends.


# %%
class TwoCells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(12, 16), nn.LSTMCell(16, 16)])

    def forward(self, x, state):  # the state is a list of two pairs
        first = self.cells[0](x, state[0])
        second = self.cells[1](first[0], state[1])
        return [first, second]


def upper_hidden(state):
    return state[-1][0]


own = LuongCell(
    TwoCells(), multiplicative, memory_dim=16, output_dim=16, hidden_dim=16, hidden=upper_hidden
)
zeros = torch.zeros(1, 16)
state = own.begin([(zeros, zeros), (zeros, zeros)])
output, state = own(y, state, multiplicative.remember(encoded))
print(tuple(output.shape))

# %% [markdown]
# To see the order, one input word is replaced, as in the figure. If the weights of its own step move, the decoder has
# read the word before it attends. The decoders are not trained, so only the step at which their weights change has a
# meaning, not the words to which they attend.

# %% tags=["folded"]
rows = []
for step, word in enumerate(WRITTEN):
    replaced = "yes" if step == EDITED else ""
    changes = [f"{moved[step]:.3f}" for moved in weights_moved.values()]
    rows.append((step, word, replaced, *changes))
title = "How far the weights of each step move when one word is replaced"
table(title, ("step", "input", "replaced", *weights_moved), rows)

# %% [markdown]
# ## Claims


# %% tags=["folded"]
def learned_by(cell):
    """The learned tensors of the score, of its only head."""
    return {name: tensor[0] for name, tensor in cell.attention.learned.items()}


def bahdanau_weights():
    """The weights of every step by the formula."""
    cell = decoders["Bahdanau"]
    learned = learned_by(cell)
    W = learned["query_weight"]
    U = learned["key_weight"]
    v = learned["energy"]
    s = torch.zeros(1, HIDDEN).double()
    rows = []
    for y in written.unbind(1):
        alpha = (torch.tanh(s @ W.T + h[0] @ U.T) @ v).softmax(-1)
        c = alpha[None] @ h[0]
        s = cell.cell(torch.cat([y, c], -1), s)
        rows.append(alpha)
    return torch.stack(rows)


def luong_weights():
    """The same for Luong's formula: the state is updated first."""
    cell = decoders["Luong"]
    W = learned_by(cell)["weight"]
    s = torch.zeros(1, HIDDEN).double()
    rows = []
    for y in written.unbind(1):
        s = cell.cell(y, s)
        rows.append((s @ W @ h[0].T)[0].softmax(-1))
    return torch.stack(rows)


def first_step_moved(distances):
    """The first step whose value moves; None if none does."""
    moved = (distances > EXACT).nonzero()
    return int(moved[0]) if len(moved) else None


# Two LSTM cells of your own, and PyTorch's LSTM of two layers with the same weights.
two_cells = seeded(SEED, TwoCells)
lstm = seeded(SEED, nn.LSTM, DIM, HIDDEN, 2, batch_first=True)
for name, weight in lstm.state_dict().items():
    kind, layer = name.rsplit("_l", 1)  # such as weight_ih_l0
    two_cells.cells[int(layer)].get_parameter(kind).data.copy_(weight)

h_0, c_0 = normal(SEED + 3, 2, 1, HIDDEN)  # of the lower layer
h_1, c_1 = normal(SEED + 4, 2, 1, HIDDEN)  # of the upper layer
sizes = {"memory_dim": HIDDEN, "output_dim": HIDDEN, "hidden_dim": HIDDEN, "input_feeding": False}
own = seeded(SEED, LuongCell, two_cells, attention(General), hidden=upper_hidden, **sizes)
with_lstm = seeded(SEED, LuongCell, lstm, attention(General), **sizes)


def outputs_of(cell, start):
    return cell.sequence(written, cell.begin(start), cell.attention.remember(h))[0]


own_outputs = outputs_of(own, [(h_0, c_0), (h_1, c_1)])
outputs_of_lstm = outputs_of(with_lstm, (torch.stack([h_0, h_1]), torch.stack([c_0, c_1])))

# %% tags=["claims"]
holds(
    "Both cells compute the formulas of their papers.",
    largest(bahdanau_weights() - weights["Bahdanau"]) < EXACT
    and largest(luong_weights() - weights["Luong"]) < EXACT,
    f"weights of {STEPS} steps, {ROUNDING}",
)
bahdanau_step = first_step_moved(weights_moved["Bahdanau"])
holds(
    "Bahdanau's weights are computed before the word is read: they change only at the next step.",
    bahdanau_step == EDITED + 1,
    f"the word of step {EDITED} changes weights from step {bahdanau_step} on",
)
luong_step = first_step_moved(weights_moved["Luong"])
holds(
    "Luong's weights are computed after the word is read: they change at the same step.",
    luong_step == first_step_moved(weights_moved["Luong, input feeding"]) == EDITED,
    f"from step {luong_step} on",
)
bahdanau_moved = states_moved["Bahdanau"]
luong_moved = states_moved["Luong"]
holds(
    "Bahdanau's context enters the decoder's state; Luong's does not.",
    first_step_moved(bahdanau_moved) == 0 and first_step_moved(luong_moved) is None,
    f"with another source the states change by {bahdanau_moved.max():.3f} and by "
    f"{luong_moved.max():.3f}",
)
fed_moved = states_moved["Luong, input feeding"]
holds(
    "With input feeding, Luong's context enters the state one step later.",
    first_step_moved(fed_moved) == 1,
    f"{fed_moved[0]:.3f} at step 0, {fed_moved[1]:.3f} at step 1",
)
holds(
    "Two LSTM cells of your own, wrapped, give what PyTorch's LSTM of two layers gives.",
    largest(own_outputs - outputs_of_lstm) < EXACT,
    f"{STEPS} steps, {ROUNDING}",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, WHOLE_NUMBERS, exercise

EDITED_LATER = 4
s = normal(SEED + 5, 1, HIDDEN)  # a state of the decoder, (1, HIDDEN)
W = learned_by(decoders["Luong"])["weight"]  # (HIDDEN, HIDDEN)


@exercise(
    "The input of step 4 is replaced. From which step on do the weights of Bahdanau's decoder change, "
    "and from which step on those of Luong's? Type two numbers.",
    WHOLE_NUMBERS,
    hint="One decoder attends before it reads the input of its step, the other afterwards.",
    answer="5 4",
)
def steps_that_change(steps):
    replaced = written.clone()
    replaced[:, EDITED_LATER] = normal(SEED + 6, DIM)
    measured = []
    for name in ("Bahdanau", "Luong"):
        moved = run(decoders[name], replaced, h)[0] - weights[name]
        measured.append(first_step_moved(moved.abs().amax(1)))
    holds("They change from these steps on.", steps == measured, f"{measured}, you say {steps}")


@exercise(
    "`s` (1, 16) is a state of Luong's decoder, `W` (16, 16) its learned matrix, and `h[0]` has a "
    "row for each source word. Compute the weights of the source words.",
    CODE,
    hint="The score of word j is $s W h_j$, and the softmax goes over the words.",
    answer="(s @ W @ h[0].T)[0].softmax(-1)",
)
def weights_of_luong(alpha):
    scores = torch.stack([s[0] @ W @ h_j for h_j in h[0]])
    expected = scores.softmax(-1)
    holds(
        "These are the weights of Luong's attention.",
        alpha.shape == expected.shape and largest(alpha - expected) < 1e-9,
        f"the largest is {expected.max():.3f}, yours {alpha.max():.3f}",
    )


# %% [markdown]
# Source: Bahdanau et al. 2015, section 3.1 and A.1.2; Luong et al. 2015, sections 3 and 3.3; Xu et al. 2015 (hard
# attention).
