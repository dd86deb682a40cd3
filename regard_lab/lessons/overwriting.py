# %% [markdown]
# # A memory that is overwritten
#
# **What do forgetting and correcting do to a memory whose facts change?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
from dataclasses import dataclass

import torch

import regard as rg
from regard.mechanisms import SSD, DeltaRule, GatedDelta
from regard_lab.seeing.palette import INK
from regard_lab.teaching import (
    ROUNDING,
    draw_map,
    figure,
    holds,
    largest,
    normal,
    scale_beside,
    table,
)

FACTS = (
    ("door", "open"),
    ("cat", "asleep"),
    ("lamp", "on"),
    ("door", "shut"),
    ("lamp", "off"),
    ("door", "open"),
    ("door", "shut"),
)
THINGS = ("door", "cat", "lamp")
STATES = ("open", "asleep", "on", "shut", "off")
D = 8  # head_dim
DECAY = 0.7  # what forgetting keeps from one fact to the next

directions = torch.linalg.qr(normal(SEED, D, D))[0]  # of length 1, at right angles
key_of = dict(zip(THINGS, directions))
value_of = dict(zip(STATES, torch.eye(len(STATES), dtype=torch.float64)))
keys = torch.stack([key_of[thing] for thing, _ in FACTS])  # (facts, D)
values = torch.stack([value_of[state] for _, state in FACTS])  # (facts, states)


@dataclass(frozen=True)
class MemoryRule:
    """How a memory is changed before and while a fact is written."""

    a: float  # the decay
    corrects: bool


RULES = {
    "adds": MemoryRule(1.0, corrects=False),
    "forgets": MemoryRule(DECAY, corrects=False),
    "corrects": MemoryRule(1.0, corrects=True),
    "does both": MemoryRule(DECAY, corrects=True),
}


def remember(rule, keys, values, b=1.0):
    """The memory S after all facts, (D, states); b is the strength."""
    S = torch.zeros(keys.shape[1], values.shape[1], dtype=keys.dtype)
    for k, v in zip(keys, values):
        S = rule.a * S
        if rule.corrects:
            v = v - S.T @ k
        S = S + b * torch.outer(k, v)
    return S


def read(S):
    """What the memory returns for each thing, (things, states)."""
    return torch.stack([key_of[thing] @ S for thing in THINGS])


returned = {name: read(remember(rule, keys, values)) for name, rule in RULES.items()}

# %% tags=["folded"]
caption = (
    "After seven facts, the last of which are: the door is shut, the lamp is off, the cat is "
    "asleep. Rows are the keys by which it is asked, columns the values. Forgetting keeps "
    f"{DECAY} of the memory from one fact to the next."
)
with figure("What a memory returns", 8.0, 2.6, caption) as drawing:
    panels = drawing.subplots(1, len(RULES))
    for axes, (name, memory) in zip(panels, returned.items()):
        labels = THINGS if axes is panels[0] else ()
        image = draw_map(axes, memory, labels, STATES, limits=(0.0, 2.0))
        axes.set_title(name, fontsize=10, color=INK)
        for row, column in (memory.abs() > 0.005).nonzero().tolist():
            number = float(memory[row, column])
            ink = "white" if number > 1.2 else INK
            axes.text(
                column, row, f"{number:.2g}", ha="center", va="center", fontsize=8.5, color=ink
            )
    scale_beside(drawing, image, panels, "returned")

# %% [markdown]
# [Linear attention](linear.md) keeps a sum $S = \sum_j k_j v_j^\top$ instead of keys and values. A query reads it:
# $S^\top q$ is the sum of all values, each as strong as its key is similar to $q$. But a sum has no last value. When a
# key returns with another value, the old one stays beside the new.
#
# Two steps were added to the sum. **Forgetting** multiplies the memory by a decay $a$ before each key. **Correcting**,
# the delta rule, first reads what the memory returns for the key, and writes only the difference:
#
# $$
# S_t = a_t S_{t-1} + b_t \, k_t \, (v_t - a_t S_{t-1}^\top k_t)^\top
# $$
#
# The strength $b_t$ is the share of the difference that is written. RetNet and Mamba-2 forget, DeltaNet corrects, and
# Gated DeltaNet, which is in Qwen3-Next, does both. Kimi Linear does too, with a decay for each channel of a key. A
# model computes decays and strengths from each word, so it learns what to forget. Here they are given:

# %%
k = torch.randn(1, 1, 3, 8)  # (batch, heads, length, head_dim)
k = k / k.norm(dim=-1, keepdim=True)
v = torch.randn(1, 1, 3, 4)
log_a = torch.full((1, 1, 3), -0.1)
b = torch.ones(1, 1, 3)
z = rg.attention(
    k,
    k,
    v,
    pattern="causal",
    mechanism=GatedDelta(),
    parameters={"log_decay": log_a, "strength": b},
    scale=1.0,
)
print(torch.allclose(z, v, atol=1e-6))  # each word reads by its own key what was just written

# %% [markdown]
# Layers and models take them by name, in all layers or alternating with exact attention:
# `regard train language-model --mechanism gated_delta --mechanism softmax`. The state is the cache:

# %%
layer = rg.MultiHeadAttention(64, 4, pattern="causal", mechanism="gated_delta")  # learns a and b
state = layer.new_cache(batch=1)
for hundred_words in torch.randn(1, 1000, 64).split(100, dim=1):
    layer(hundred_words, cache=state)
print(state.nbytes)

# %% [markdown]
# A memory of $d \times d$ numbers holds $d$ keys at right angles. More keys, or similar ones, disturb each other, and
# correcting alone never removes a key that does not return. Forgetting makes room, and a decay of 0 empties the memory
# at once, as at the beginning of another document.
#
# ## Claims

# %% tags=["folded"]
COUNTS = (4, 8, 16, 32)  # keys


def keys_for(count):
    """`count` keys of length 1, at right angles if there is room."""
    if count <= D:
        return torch.linalg.qr(normal(SEED + 1, D, D))[0][:count]
    return torch.nn.functional.normalize(normal(SEED + 1, count, D), dim=-1)


def error(rule, count):
    """The mean error of the values of `count` keys that are written once, relative to their size."""
    some_keys = keys_for(count)
    some_values = normal(SEED + 2, count, D)
    S = remember(rule, some_keys, some_values)
    return float((some_keys @ S - some_values).norm() / some_values.norm())


errors_of_adding = {count: error(RULES["adds"], count) for count in COUNTS}
errors_of_correcting = {count: error(RULES["corrects"], count) for count in COUNTS}
rows = []
for count in COUNTS:
    adding = errors_of_adding[count]
    correcting = errors_of_correcting[count]
    rows.append((count, f"{adding:.2f}", f"{correcting:.2f}"))
table(
    f"Error of the values of n keys in a memory of {D} × {D} numbers; the keys are at right angles "
    f"up to n = {D}",
    ("keys n", "adds", "corrects"),
    rows,
)

# %% tags=["claims"]
added = returned["adds"]  # (things, states) each
faded = returned["forgets"]
corrected = returned["corrects"]
DOOR = THINGS.index("door")
CAT = THINGS.index("cat")
OPEN = STATES.index("open")
SHUT = STATES.index("shut")
ASLEEP = STATES.index("asleep")

is_of_the_door = torch.tensor([thing == "door" for thing, _ in FACTS])
holds(
    "A memory that only adds returns every value that a key ever had, as often as it had it.",
    largest(added[DOOR] - values[is_of_the_door].sum(0)) < 1e-12,
    f"the door is {added[DOOR, OPEN]:.0f} times open and {added[DOOR, SHUT]:.0f} times shut",
)
holds(
    "Forgetting prefers the newer value, but the older one stays.",
    faded[DOOR, SHUT] > faded[DOOR, OPEN] > 0.1,
    f"the door is {faded[DOOR, SHUT]:.2f} shut and {faded[DOOR, OPEN]:.2f} open",
)
holds(
    "Forgetting also weakens what never changed.",
    abs(faded[CAT, ASLEEP] - DECAY**5) < 1e-12,
    f"the cat is {faded[CAT, ASLEEP]:.2f} asleep",
)

last_state = dict(FACTS)  # of each thing
last_values = torch.stack([value_of[last_state[thing]] for thing in THINGS])
holds(
    "Correcting returns the last value of every key and nothing else.",
    largest(corrected - last_values) < 1e-12,
    ROUNDING,
)

half = read(remember(RULES["corrects"], keys, values, b=0.5))
holds(
    "With a strength of 0.5 half of the difference is written.",
    largest(half[CAT] - last_values[CAT] / 2) < 1e-12,
    f"the cat is {half[CAT, ASLEEP]:.2f} asleep",
)

before = remember(RULES["corrects"], keys[:-1], values[:-1])
after = remember(RULES["corrects"], keys, values)
S = before.clone().requires_grad_()
loss = (S.T @ keys[-1] - values[-1]).square().sum() / 2
(gradient,) = torch.autograd.grad(loss, S)
holds(
    "Correcting is a step of gradient descent on the error of the value that is returned.",
    largest(before - gradient - after) < 1e-12,
    ROUNDING,
)
holds(
    f"{D} keys at right angles fit into {D} × {D} numbers, and twice as many do not.",
    errors_of_correcting[D] < 1e-12 and errors_of_correcting[2 * D] > 0.1,
    f"errors of {errors_of_correcting[D]:.2f} and {errors_of_correcting[2 * D]:.2f}",
)

MECHANISMS = {"adds": SSD(), "forgets": SSD(), "corrects": DeltaRule(), "does both": GatedDelta()}
queries = torch.stack([key_of[thing] for thing in THINGS])


def read_with_regard(name, gates, first=0):
    """What regard's memory returns for each thing after the facts from `first` on."""
    recent_gates = {gate: numbers[None, None, first:] for gate, numbers in gates.items()}
    z = rg.attention(
        queries[None, None],
        keys[None, None, first:],
        values[None, None, first:],
        pattern="causal",
        mechanism=MECHANISMS[name],
        parameters=recent_gates,
        q_start=len(FACTS),
        scale=1.0,
    )
    return z[0, 0]


b = torch.ones(len(FACTS), dtype=torch.float64)
furthest = 0.0
for name, rule in RULES.items():
    gates = {"strength": b}
    if name != "corrects":  # the delta rule has no decay
        gates["log_decay"] = torch.log(rule.a * b)
    furthest = max(furthest, largest(read_with_regard(name, gates) - returned[name]))
holds(
    "regard computes the same memories.",
    furthest < 1e-12,
    ROUNDING,
)

EMPTIED = 3  # the fact before which the memory is emptied
log_a = torch.full((len(FACTS),), DECAY, dtype=torch.float64).log()
gates = {"strength": b, "log_decay": log_a}
log_a_with_zero = log_a.clone()
log_a_with_zero[EMPTIED] = -torch.inf
whole = read_with_regard("does both", {"strength": b, "log_decay": log_a_with_zero})
alone = read_with_regard("does both", gates, first=EMPTIED)
holds(
    "A decay of 0 empties the memory: what follows is read as if the text began there.",
    largest(whole - alone) < 1e-12,
    ROUNDING,
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise


@exercise(
    "A memory keeps 0.7 of itself from one fact to the next. How strong is a value after three more facts, "
    "whose keys are at right angles to its own?",
    NUMBER,
    hint="Each of the three facts multiplies the memory by 0.7.",
    answer="0.343",
)
def after_three_facts(strength):
    S = remember(RULES["forgets"], directions[:4], torch.eye(4, dtype=torch.float64))
    measured = float((directions[0] @ S)[0])
    holds(
        "It is that strong.",
        abs(strength - measured) < 1e-3,
        f"{measured:.3f}, you say {strength:g}",
    )


@exercise(
    "A memory that corrects with a strength of 0.5 is told the same fact twice. Which share of the "
    "value does it return?",
    NUMBER,
    hint="The first time, half of the value is written. The second time, half of what is missing is added.",
    answer="0.75",
)
def told_twice(share):
    twice = directions[:1].expand(2, -1)
    one = torch.ones(2, 1, dtype=torch.float64)
    measured = float(directions[0] @ remember(RULES["corrects"], twice, one, b=0.5))
    holds(
        "It returns that much.", abs(share - measured) < 1e-3, f"{measured:.3f}, you say {share:g}"
    )


# %% [markdown]
# What trained models make of it is measured in `benchmarks/results/behaviour_cpu/behaviour.md`, under "overwriting".
#
# Sources: Schlag et al. 2021 (the delta rule in a fast memory); Sun et al. 2023 (RetNet); Yang et al. 2024 and 2025
# (DeltaNet, Gated DeltaNet); Kimi Linear, 2025.
