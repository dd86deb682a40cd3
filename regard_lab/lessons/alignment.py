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
from regard_lab.seeing.canvas import LINES
from regard_lab.teaching import (
    ROUNDING, draw_map, embedded, figure, holds, label_axes, largest, normal, scale_beside, seeded, table, words_of
)  # fmt: skip

WRITTEN = ("das", "Tier", "überquerte", "die", "Straße", "nicht")  # the inputs of the decoder's steps
EDITED, DIM, HIDDEN, EXACT = 2, 12, 16, 1e-12  # the word of step 2 is replaced
words = words_of(TEXT)
encoder = seeded(SEED, nn.GRU, DIM, HIDDEN // 2, batch_first=True, bidirectional=True)
read = encoder(embedded(words, DIM, SEED))[0].detach()  # (1, words, HIDDEN)
written = embedded(WRITTEN, DIM, SEED + 1)
edited = written.clone()
edited[:, EDITED] = normal(SEED + 2, DIM)


def attention(score, **sizes):
    """Attention to the encoder's outputs; untrained weights are enlarged, so that rows differ visibly."""
    made = seeded(SEED, MemoryAttention, score(query_dim=HIDDEN, key_dim=HIDDEN, **sizes))
    for parameter in made.parameters():
        parameter.data *= 5
    return made


def luong(fed=False):
    cell, sizes = seeded(SEED, nn.GRUCell, DIM + HIDDEN * fed, HIDDEN), {"memory_dim": HIDDEN, "output_dim": HIDDEN}
    return seeded(SEED, LuongCell, cell, attention(General), input_feeding=fed, **sizes)


decoders = {
    "Bahdanau": BahdanauCell(seeded(SEED, nn.GRUCell, DIM + HIDDEN, HIDDEN), attention(Additive, hidden=HIDDEN)),
    "Luong": luong(), "Luong, input feeding": luong(fed=True),
}  # fmt: skip


def run(cell, written, read):
    """The weights (steps, source words) and the states (steps, HIDDEN) of every step."""
    memory, state, states = cell.attention.remember(read), cell.begin(torch.zeros(1, HIDDEN).double()), []
    with record_attention(cell) as recording, torch.no_grad():
        for y in written.unbind(1):
            _, state = cell(y, state, memory)
            states.append(top(state.recurrent))
    return torch.cat([detail.weights[0, 0] for detail in recording["attention"]]), torch.cat(states)


found = {name: run(cell, written, read) for name, cell in decoders.items()}
moved = {  # how far the weights of each step move when one target word is replaced
    name: (run(cell, edited, read)[0] - found[name][0]).abs().amax(1) for name, cell in decoders.items()
}
entered = {  # how far the states move when the source is replaced
    name: (run(cell, written, -read)[1] - found[name][1]).abs().amax(1) for name, cell in decoders.items()
}

with figure("When the decoders attend", 7.9, 5.4,
            "Above: the weights of each step. Below: how far they change when “überquerte”, the input of step 2, is "
            "replaced. Luong's change at step 2, Bahdanau's one step later.") as drawing:  # fmt: skip
    panels = drawing.subplots(2, 2, height_ratios=(2.4, 1))
    orders = {"Bahdanau": "attend, then update the state", "Luong": "update the state, then attend"}
    for (above, below), (name, order) in zip(panels.T, orders.items()):
        rows = [f"{step}: {word}" for step, word in enumerate(WRITTEN)] if name == "Bahdanau" else ()
        image = draw_map(above, found[name][0], rows, words, cell=3.0 / len(words))
        above.set_xlabel(f"{name}: {order}", fontsize=9.5, fontweight="bold")
        colours = [LINES[1] if step == EDITED else LINES[0] for step in range(len(WRITTEN))]
        below.bar(range(len(WRITTEN)), moved[name].tolist(), color=colours, width=0.6)
        below.set(ylim=(0, 1.15 * max(float(moved[one].max()) for one in orders)), xlim=(-0.5, len(WRITTEN) - 0.5))
        label_axes(below, "", "step", "change of weights" if name == "Bahdanau" else "")
    panels[0, 0].set_ylabel("step: input ↓, source word →", fontsize=9)
    scale_beside(drawing, image, panels[0], "attention weight")

# %% [markdown]
# Both decoders give weights to the source words at each word that they write. **Bahdanau's** decoder attends with its
# previous state $s_{t-1}$. Then it updates the state with what it has read, the context $c_t$:
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
# The scores differ too. Bahdanau's is additive. Luong's is multiplicative, a single matrix product for all words.

# %%
states = torch.randn(1, 7, 16)  # outputs of the encoder for seven words
before = MemoryAttention(Additive(query_dim=16, key_dim=16, hidden=16))
cell = BahdanauCell(nn.GRUCell(12 + 16, 16), before)  # the input of a step is [y; context]
start, y = cell.begin(torch.zeros(1, 16)), torch.randn(1, 12)
output, state = cell(y, start, before.remember(states))
print(tuple(output.shape))  # the state and the context

after = MemoryAttention(General(query_dim=16, key_dim=16))
cell = LuongCell(nn.GRUCell(12, 16), after, memory_dim=16, output_dim=16)
output, state = cell(y, start, after.remember(states))
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
# around one place: `MemoryAttention(score, window=D)`.
#
# **Any recurrent cell** can be wrapped so, also your own: a module that is called as `cell(x, state)` and returns the
# next state. The state may be nested. Then `hidden` says which of its tensors attends.


# %%
class TwoCells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(12, 16), nn.LSTMCell(16, 16)])

    def forward(self, x, state):  # the state is a list of two pairs
        states = []
        for cell, pair in zip(self.cells, state):
            states.append(cell(x, pair))
            x = states[-1][0]
        return states


own = LuongCell(TwoCells(), after, memory_dim=16, output_dim=16, hidden_dim=16, hidden=lambda state: state[-1][0])
zeros = torch.zeros(1, 16)
output, state = own(y, own.begin([(zeros, zeros), (zeros, zeros)]), after.remember(states))
print(tuple(output.shape))

# %% [markdown]
# To see the order, one input word is replaced. The decoders are not trained, so only the step at which their weights
# change has a meaning, not the words to which they attend.

# %% tags=["folded"]
rows = [
    (step, word, "yes" if step == EDITED else "", *(f"{change[step]:.3f}" for change in moved.values()))
    for step, word in enumerate(WRITTEN)
]
table("How far the weights of each step move when one word is replaced", ("step", "input", "replaced", *moved), rows)

# %% [markdown]
# ## Claims

# %% tags=["claims"]


def by_hand(name):
    """The weights of every step by the formulas above."""
    cell, s, rows = decoders[name], torch.zeros(1, HIDDEN).double(), []
    learned = {key: value[0] for key, value in cell.attention.learned.items()}
    for y in written.unbind(1):
        if name == "Luong":
            s = cell.cell(y, s)
            scores = (s @ learned["weight"] @ read[0].T)[0]
        else:
            hidden = torch.tanh(s @ learned["query_weight"].T + read[0] @ learned["key_weight"].T)
            scores = hidden @ learned["energy"]
        rows.append(scores.softmax(-1))
        if name != "Luong":
            s = cell.cell(torch.cat([y, rows[-1][None] @ read[0]], -1), s)
    return torch.stack(rows)


def first(changes):
    """The first step whose value changes; None if none does."""
    return next((step for step, change in enumerate(changes.tolist()) if change > EXACT), None)


bahdanau, plain, fed = decoders
holds("Both cells compute the formulas of their papers.",
      all(largest(by_hand(name) - found[name][0]) < EXACT for name in (bahdanau, plain)),
      f"weights of {len(WRITTEN)} steps, {ROUNDING}")  # fmt: skip
holds("Bahdanau's weights are computed before the word is read: they change only at the next step.",
      first(moved[bahdanau]) == EDITED + 1,
      f"the word of step {EDITED} changes weights from step {first(moved[bahdanau])} on")  # fmt: skip
holds("Luong's weights are computed after the word is read: they change at the same step.",
      first(moved[plain]) == first(moved[fed]) == EDITED, f"from step {first(moved[plain])} on")  # fmt: skip
changes = [float(entered[name].max()) for name in (bahdanau, plain)]
holds("Bahdanau's context enters the decoder's state; Luong's does not.",
      first(entered[bahdanau]) == 0 and first(entered[plain]) is None,
      f"with another source the states change by {changes[0]:.3f} and by {changes[1]:.3f}")  # fmt: skip
holds("With input feeding, Luong's context enters the state one step later.", first(entered[fed]) == 1,
      f"{entered[fed][0]:.3f} at step 0, {entered[fed][1]:.3f} at step 1")  # fmt: skip
own, same = seeded(SEED, TwoCells), seeded(SEED, nn.LSTM, DIM, HIDDEN, 2, batch_first=True)
own.load_state_dict({f"cells.{name[-1]}.{name[:-3]}": tensor for name, tensor in same.state_dict().items()})
sizes = {"memory_dim": HIDDEN, "output_dim": HIDDEN, "hidden_dim": HIDDEN, "input_feeding": False}
first_states = [tuple(normal(SEED + one, 2, 1, HIDDEN)) for one in (3, 4)]
outputs = [
    wrapped.sequence(written, wrapped.begin(start), wrapped.attention.remember(read))[0]
    for wrapped, start in (
        (seeded(SEED, LuongCell, own, attention(General), hidden=lambda state: state[-1][0], **sizes), first_states),
        (seeded(SEED, LuongCell, same, attention(General), **sizes), tuple(map(torch.stack, zip(*first_states)))),
    )
]
holds("Two LSTM cells of your own, wrapped, give what PyTorch's LSTM of two layers gives.",
      largest(outputs[0] - outputs[1]) < EXACT, f"{len(WRITTEN)} steps, {ROUNDING}")  # fmt: skip

# %% [markdown]
# Source: Bahdanau et al. 2015, section 3.1 and A.1.2; Luong et al. 2015, sections 3 and 3.3; Xu et al. 2015 (hard
# attention).
