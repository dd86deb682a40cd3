# %% [markdown]
# # A memory that is overwritten
#
# **What do forgetting and correcting do to a memory whose facts change?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import torch

import regard as rg
from regard.mechanisms import SSD, DeltaRule, GatedDelta
from regard_lab.seeing.canvas import INK
from regard_lab.teaching import ROUNDING, draw_map, figure, holds, largest, normal, scale_beside, table

FACTS = (("door", "open"), ("cat", "asleep"), ("lamp", "on"), ("door", "shut"), ("lamp", "off"), ("door", "open"),
         ("door", "shut"))  # fmt: skip
THINGS, STATES = (tuple(dict.fromkeys(words)) for words in zip(*FACTS))
D, DECAY = 8, 0.7  # head_dim; what forgetting keeps from one fact to the next
axis = dict(zip(THINGS, torch.linalg.qr(normal(SEED, D, D))[0]))  # a key of length 1 for each thing, at right angles
KEYS = torch.stack([axis[thing] for thing, _ in FACTS])  # (facts, head_dim)
VALUES = torch.eye(len(STATES), dtype=torch.float64)[[STATES.index(state) for _, state in FACTS]]
RULES = {"adds": (1.0, False), "forgets": (DECAY, False), "corrects": (1.0, True), "does both": (DECAY, True)}


def remembered(decay, corrects, keys=KEYS, values=VALUES, strength=1.0):
    """The memory (head_dim, v_dim) after all facts."""
    memory = torch.zeros(keys.shape[1], values.shape[1], dtype=keys.dtype)
    for k, v in zip(keys, values):
        memory = decay * memory
        known = memory.T @ k if corrects else 0
        memory = memory + strength * torch.outer(k, v - known)
    return memory


def read(memory):
    """What the memory returns for each thing, (things, states)."""
    return torch.stack([axis[thing] @ memory for thing in THINGS])


answers = {rule: read(remembered(*how)) for rule, how in RULES.items()}

with figure("What a memory returns", 8.0, 2.6,
            "After seven facts, the last of which are: the door is shut, the lamp is off, the cat is asleep. Rows are "
            f"the keys by which it is asked, columns the values. Forgetting keeps {DECAY} of the memory from one fact "
            "to the next.") as drawing:  # fmt: skip
    panels = drawing.subplots(1, len(RULES))
    for axes, (rule, found) in zip(panels, answers.items()):
        image = draw_map(axes, found, THINGS if rule == "adds" else (), STATES, limits=(0.0, 2.0))
        axes.set_title(rule, fontsize=10, color=INK)
        for row, numbers in enumerate(found.tolist()):
            for column, number in enumerate(numbers):
                if abs(number) > 0.005:
                    ink = "white" if number > 1.2 else INK
                    axes.text(column, row, f"{number:.2g}", ha="center", va="center", fontsize=8.5, color=ink)
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
k = torch.nn.functional.normalize(torch.randn(1, 1, 3, 8), dim=-1)  # (batch, heads, length, head_dim)
v = torch.randn(1, 1, 3, 4)
given = {"log_decay": torch.full((1, 1, 3), -0.1), "strength": torch.ones(1, 1, 3)}
out = rg.attention(k, k, v, pattern="causal", mechanism=GatedDelta(), parameters=given, scale=1.0)
print(torch.allclose(out, v, atol=1e-6))  # each word reads by its own key what was just written

# %% [markdown]
# Layers and models take them by name, in all layers or alternating with exact attention:
# `regard train language-model --mechanism gated_delta --mechanism softmax`. The state is the cache:

# %%
layer = rg.MultiHeadAttention(64, 4, pattern="causal", mechanism="gated_delta")  # learns decays and strengths
state = layer.new_cache(batch=1)
for word in torch.randn(1, 1000, 64).split(100, dim=1):
    layer(word, cache=state)
print(state.nbytes)

# %% [markdown]
# A memory of $d \times d$ numbers holds $d$ keys at right angles. More keys, or similar ones, disturb each other, and
# correcting alone never removes a key that does not return. Forgetting makes room, and a decay of 0 empties the memory
# at once, as at the beginning of another document.
#
# ## Claims

# %% tags=["folded"]
COUNTS = (4, 8, 16, 32)


def error(count, decay, corrects):
    """The mean error of the values of `count` keys that were written once, relative to their size."""
    keys = torch.nn.functional.normalize(normal(SEED + 1, count, D), dim=-1)
    keys = torch.linalg.qr(normal(SEED + 1, D, D))[0][:count] if count <= D else keys
    values = normal(SEED + 2, count, D)
    return float((keys @ remembered(decay, corrects, keys, values) - values).norm() / values.norm())


errors = {count: [error(count, *RULES[rule]) for rule in ("adds", "corrects")] for count in COUNTS}
table(f"Error of the values of n keys in a memory of {D} × {D} numbers; the keys are at right angles up to n = {D}",
      ("keys n", "adds", "corrects"),
      [(f"{count}", *(f"{one:.2f}" for one in row)) for count, row in errors.items()])  # fmt: skip

# %% tags=["claims"]
truth = VALUES[[max(at for at, fact in enumerate(FACTS) if fact[0] == thing) for thing in THINGS]]
added, faded, exact, both = answers.values()
DOOR, CAT, LAMP = map(THINGS.index, ("door", "cat", "lamp"))
OPEN, SHUT, ASLEEP = map(STATES.index, ("open", "shut", "asleep"))
half = read(remembered(1.0, True, strength=0.5))
before, (k, v) = remembered(1.0, True, KEYS[:-1], VALUES[:-1]), (KEYS[-1], VALUES[-1])
leaf = before.clone().requires_grad_()
(slope,) = torch.autograd.grad((leaf.T @ k - v).square().sum() / 2, leaf)
mechanisms = {"adds": SSD(), "forgets": SSD(), "corrects": DeltaRule(), "does both": GatedDelta()}
questions, keys, values = (x[None, None] for x in (torch.stack(list(axis.values())), KEYS, VALUES))
ones, computed = torch.ones(1, 1, len(FACTS), dtype=torch.float64), {}
for rule, mechanism in mechanisms.items():
    gates = {"strength": ones} | ({} if rule == "corrects" else {"log_decay": (RULES[rule][0] * ones).log()})
    options = {"pattern": "causal", "mechanism": mechanism, "scale": 1.0}
    after = rg.attention(questions, keys, values, parameters=gates, q_start=len(FACTS), **options)
    computed[rule] = after[0, 0]
emptied = gates | {"log_decay": gates["log_decay"].index_fill(2, torch.tensor([3]), -torch.inf)}
whole = rg.attention(questions, keys, values, parameters=emptied, q_start=len(FACTS), **options)
gates, keys, values = {name: x[:, :, 3:] for name, x in gates.items()}, keys[:, :, 3:], values[:, :, 3:]
alone = rg.attention(questions, keys, values, parameters=gates, q_start=len(FACTS), **options)
holds("A memory that only adds returns every value that a key ever had, as often as it had it.",
      largest(added[DOOR] - VALUES[[0, 3, 5, 6]].sum(0)) < 1e-12,
      f"the door is {added[DOOR, OPEN]:.0f} times open and {added[DOOR, SHUT]:.0f} times shut")  # fmt: skip
holds("Forgetting prefers the newer value, but the older one stays.", faded[DOOR, SHUT] > faded[DOOR, OPEN] > 0.1,
      f"the door is {faded[DOOR, SHUT]:.2f} shut and {faded[DOOR, OPEN]:.2f} open")  # fmt: skip
holds("Forgetting also weakens what never changed.",
      abs(faded[CAT, ASLEEP] - DECAY**5) < 1e-12, f"the cat is {faded[CAT, ASLEEP]:.2f} asleep")  # fmt: skip
holds("Correcting returns the last value of every key and nothing else.", largest(exact - truth) < 1e-12, ROUNDING)
holds("With a strength of 0.5 half of the difference is written.", largest(half[CAT] - truth[CAT] / 2) < 1e-12,
      f"the cat is {half[CAT, ASLEEP]:.2f} asleep")  # fmt: skip
holds("Correcting is a step of gradient descent on the error of the value that is returned.",
      largest(before - slope - remembered(1.0, True)) < 1e-12, ROUNDING)  # fmt: skip
holds(f"{D} keys at right angles fit into {D} × {D} numbers, and twice as many do not.",
      errors[8][1] < 1e-12 < 0.1 < errors[16][1], f"errors of {errors[8][1]:.2f} and {errors[16][1]:.2f}")  # fmt: skip
holds("regard computes the same memories.",
      max(largest(computed[rule] - answers[rule]) for rule in RULES) < 1e-12, ROUNDING)  # fmt: skip
holds("A decay of 0 empties the memory: what follows is read as if the text began there.",
      largest(whole - alone) < 1e-12, ROUNDING)  # fmt: skip

# %% [markdown]
# What trained models make of it is measured in `benchmarks/results/behaviour_cpu/behaviour.md`, under "overwriting".
#
# Sources: Schlag et al. 2021 (the delta rule in a fast memory); Sun et al. 2023 (RetNet); Yang et al. 2024 and 2025
# (DeltaNet, Gated DeltaNet); Kimi Linear, 2025.
