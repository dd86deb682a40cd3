# %% [markdown]
# # The norm before or after
#
# **The Transformer of 2017 has a norm after each sum. Why do most later models have it before each part?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import math
from dataclasses import replace
from itertools import product

import torch
import torch.nn.functional as F

import regard as rg
from regard.layers import FeedForward
from regard_lab.models.layers import EncoderLayer
from regard_lab.seeing.architecture import architecture_of_hugging_face
from regard_lab.teaching import (
    does_not_hold,
    draw_curves,
    figure,
    holds,
    largest,
    model_drawing,
    table,
)

DIM = 16  # numbers of a word
WORDS = 8  # of the vocabulary
LENGTH = 4  # of a text
TEXTS = 16  # of a batch
PLACES = ("post", "pre")


class NormedLayers(torch.nn.Module):
    """Layers with the norm in one of two places; they predict a word for each word of a text."""

    def __init__(self, place, layers):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, DIM)
        self.positions = torch.nn.Embedding(LENGTH, DIM)
        self.layers = torch.nn.ModuleList()
        for _ in range(layers):
            attention = rg.MultiHeadAttention(DIM, 2)
            self.layers.append(EncoderLayer(attention, FeedForward(DIM, 4 * DIM), place, 0.0))
        # the sum that comes out of the last layer has no norm yet in pre-norm
        self.last_norm = torch.nn.LayerNorm(DIM) if place == "pre" else torch.nn.Identity()
        self.to_words = torch.nn.Linear(DIM, WORDS)
        for weight in self.layers.parameters():
            if weight.dim() == 2:
                torch.nn.init.xavier_uniform_(weight)

    def forward(self, ids):
        """The logits (texts, LENGTH, WORDS), and the vectors after the embedding and after each layer."""
        x = self.embedding(ids) + self.positions.weight
        passed = [x]
        for layer in self.layers:
            x = layer(x, None)
            passed.append(x)
        return self.to_words(self.last_norm(x)), passed


def new_stack(place, layers, seed):
    """A stack with random weights, and a generator of random texts."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return NormedLayers(place, layers), torch.Generator().manual_seed(seed + 100)


def loss_of(stack, ids):
    """The task: return each word of the text."""
    logits, _ = stack(ids)
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


# %% tags=["folded"]
# Before the training: means over stacks with different random weights.
DEPTHS = (6, 24)
DEEP = DEPTHS[-1]
STACKS = 16
CHANGE = 0.01  # of a matrix, as a share of the standard deviation of its numbers


def measure(place, layers):
    """The mean squares of the vectors, (layers + 1,), and the lengths of the gradients by layer, (layers,)."""
    squares = []
    lengths = []
    for number in range(STACKS):
        stack, generator = new_stack(place, layers, SEED + number)
        ids = torch.randint(WORDS, (TEXTS, LENGTH), generator=generator)
        logits, passed = stack(ids)
        F.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
        squares.append(torch.stack([x.detach().square().mean() for x in passed]))
        # the last matrix of the feed-forward network
        of_layers = [layer.feed_forward.narrow.weight.grad.norm() for layer in stack.layers]
        lengths.append(torch.stack(of_layers))
    return torch.stack(squares).mean(0), torch.stack(lengths).mean(0)


def movement(place, layers):
    """How far the output moves if each number of all matrices changes a little; its length is 1."""
    moved = []
    for number in range(STACKS):
        stack, generator = new_stack(place, layers, SEED + number)
        ids = torch.randint(WORDS, (TEXTS, LENGTH), generator=generator)
        with torch.no_grad():
            before, _ = stack(ids)
            for weight in stack.layers.parameters():
                if weight.dim() == 2:
                    change = torch.randn(weight.shape, generator=generator)
                    weight += CHANGE * weight.std() * change
            after, _ = stack(ids)
        moved.append(float((after - before).norm() / before.norm()))
    return sum(moved) / STACKS


measured = {key: measure(*key) for key in product(PLACES, DEPTHS)}
moved = {place: movement(place, DEEP) for place in PLACES}
sizes = {place: measured[place, DEEP][0] for place in PLACES}
gradients = {key: lengths for key, (_, lengths) in measured.items()}

# %% tags=["folded"]
# A training: 8 layers, the same rate for all, Adam as in the paper.
LAYERS = 8
STEPS = 100
WARM_UP = 60  # steps in which the rate rises
RATE = 0.005
TRAININGS = {
    "post-norm": ("post", 0),
    "pre-norm": ("pre", 0),
    "post-norm, warm-up": ("post", WARM_UP),
}


def train(place, warm_up, seed):
    """The losses, as means of ten steps, (STEPS / 10,)."""
    stack, generator = new_stack(place, LAYERS, seed)
    optimiser = torch.optim.Adam(stack.parameters(), betas=(0.9, 0.98))
    losses = []
    for step in range(STEPS):
        rate = RATE * min(1, (step + 1) / warm_up) if warm_up else RATE
        optimiser.param_groups[0]["lr"] = rate
        ids = torch.randint(WORDS, (TEXTS, LENGTH), generator=generator)
        optimiser.zero_grad()
        loss = loss_of(stack, ids)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return torch.tensor(losses).view(-1, 10).mean(1).tolist()


losses = {name: train(*training, SEED) for name, training in TRAININGS.items()}

# %% tags=["folded"]
caption = (
    "Left: in pre-norm every layer makes the vectors longer. Middle: in post-norm the last layers have "
    "the largest gradients, in pre-norm the smallest. Right: at the same learning rate, pre-norm learns "
    f"at once and post-norm needs warm-up; {math.log(WORDS):.2f} is the loss of guessing."
)
with figure("The same layers with the norm in two places", 7.8, 3.5, caption) as drawing:
    left, middle, right = drawing.subplots(1, 3)
    every_third = list(range(0, DEEP + 1, 3))
    curves = {f"{place}-norm": sizes[place][every_third].tolist() for place in PLACES}
    labels = ("Size of the vectors", "layers passed", "mean square of their numbers")
    draw_curves(left, every_third, curves, labels)

    numbers = list(range(2, DEEP + 1, 2))
    curves = {f"{place}-norm": gradients[place, DEEP][1::2].tolist() for place in PLACES}
    labels = ("Gradients before training", f"layer of {DEEP}", "length of the gradient")
    draw_curves(middle, numbers, curves, labels)
    middle.set_ylim(bottom=0)

    steps = list(range(10, STEPS + 1, 10))
    draw_curves(right, steps, losses, ("Training", "steps", "loss"), columns=1)
    right.set_ylim(bottom=0)

# %% [markdown]
# A layer of a Transformer has two parts, attention and a feed-forward network. What a part returns is added to its
# input $x$; this is the [residual connection](encoder.md). A **norm** brings a vector to mean 0 and mean square 1,
# before two learned vectors $\gamma$ and $\beta$ change that. (Code also adds a small number below the root, so that
# nothing is divided by 0.)
#
# $$
# \operatorname{norm}(x) = \frac{x - \operatorname{mean}(x)}{\sqrt{\operatorname{var}(x)}} \, \gamma + \beta
# $$
#
# The paper of 2017 applies the norm after each sum (**post-norm**):
#
# $$
# x' = \operatorname{norm}(x + \operatorname{part}(x))
# $$
#
# GPT-2, Llama and most later models apply it before each part (**pre-norm**), and once more after the last layer:
#
# $$
# x' = x + \operatorname{part}(\operatorname{norm}(x))
# $$
#
# The difference is what happens to the sum. In pre-norm nothing brings $x$ back to mean square 1. If a part adds
# numbers that are independent of $x$, the mean squares add up:

# %%
torch.manual_seed(0)
pre = torch.randn(10_000)  # their mean square is 1
post = pre
for _ in range(4):
    part = torch.randn(10_000)  # what a part returns
    pre = pre + part
    post = F.layer_norm(post + part, post.shape)
    print(f"pre-norm {pre.square().mean():.2f}, post-norm {post.square().mean():.2f}")

# %% [markdown]
# In pre-norm, the norm after the last layer divides by the size of $x$, the root of its mean square. So the larger $x$
# is, the smaller the gradient that this norm passes back to the layers:

# %%
numbers = torch.randn(10_000)
gradient = torch.randn(10_000)  # of what the norm returns
for size in (1, 2, 4):
    x = (size * numbers).requires_grad_()
    F.layer_norm(x, x.shape).backward(gradient)
    print(f"size {size}: the gradient has the length {x.grad.norm():.1f}")

# %% [markdown]
# So a deep pre-norm stack begins with small gradients. In post-norm the gradient of the last layer keeps its size,
# however many layers there are.
#
# The size of gradients is not the whole reason why post-norm is hard to train: Adam divides its steps by that size.
# Liu et al. 2020 found another one: the same change of the weights moves the output further in post-norm. There every
# layer counts as much as all layers before it together. In pre-norm one layer adds little to a large sum. So the first
# steps are too large for a deep post-norm stack, which recovers from them slowly, if at all. **Warm-up** avoids this:
# the learning rate begins near 0 and rises for some steps. The paper of 2017 uses 4,000 such steps.
#
# The task of the training is as easy as possible: return each word of the text. At the same learning rate, pre-norm has
# learned it after 50 steps. Post-norm has hardly begun by then, and needs warm-up.

# %% tags=["folded"]
rows = []
for name, curve in losses.items():
    rows.append((name, *(f"{curve[step // 10 - 1]:.2f}" for step in (10, 30, 50, 70, STEPS))))
columns = ("training", "step 10", "30", "50", "70", f"{STEPS}")
table(f"Loss (guessing: {math.log(WORDS):.2f}), means of ten steps", columns, rows)

# %% [markdown]
# Xiong et al. report that both forms give comparable results once they are trained.
#
# Two models that have the norm in different places:

# %% tags=["folded"]
bert = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
}
gpt2 = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
}
drawn = replace(architecture_of_hugging_face(bert), title="BERT: post-norm")
model_drawing(drawn, "Each norm stands after a sum.")
drawn = replace(architecture_of_hugging_face(gpt2), title="GPT-2: pre-norm")
model_drawing(drawn, "Each norm stands before a part, and one more after the last layer.")

# %% [markdown]
# `regard train translation --norm post` trains a translator of the one kind, `--norm pre` of the other.
# `regard show FOLDER` draws where the norms of a model stand.
#
# ## Claims

# %% tags=["folded"]
last_gradients = {key: float(of_layers[-1]) for key, of_layers in gradients.items()}
by_depth = {place: last_gradients[place, DEEP] / last_gradients[place, 6] for place in PLACES}
times_as_large = last_gradients["post", DEEP] / last_gradients["pre", DEEP]
added = sizes["pre"].diff()  # by each layer, (DEEP,)
by_quarter = [float(quarter.mean()) for quarter in added.chunk(4)]  # in a layer of it, on average
shares = added / sizes["pre"][1:]
share_of_first = float(shares[: DEEP // 4].mean())
share_of_last = float(shares[-DEEP // 4 :].mean())
final = {name: curve[-1] for name, curve in losses.items()}

# %% tags=["claims"]
holds(
    "In post-norm the vectors have the same size after every layer.",
    largest(sizes["post"][1:] - 1) < 0.01,
    f"mean square {float(sizes['post'][1]):.2f} after the first, {float(sizes['post'][-1]):.2f} after "
    f"layer {DEEP}",
)
holds(
    "In pre-norm the vectors grow from the first layer to the last, by about as much in each quarter of "
    "the layers.",
    min(by_quarter) > 0.5 * max(by_quarter),
    f"mean square {float(sizes['pre'][0]):.1f} before the first layer, {float(sizes['pre'][-1]):.1f} "
    f"after the last; on average over a quarter, a layer adds {min(by_quarter):.2f} to "
    f"{max(by_quarter):.2f}",
)
holds(
    "So the last of many pre-norm layers changes the sum less than the first ones.",
    share_of_last < 0.5 * share_of_first,
    f"a layer adds {share_of_first:.0%} of the mean square after it in the first quarter, and "
    f"{share_of_last:.0%} in the last",
)
holds(
    "With four times as many layers the last gradient is about half as long in pre-norm, and about as "
    "long as before in post-norm.",
    0.4 < by_depth["pre"] < 0.7 and 0.7 < by_depth["post"] < 1.5,
    f"from 6 to {DEEP} layers, {by_depth['pre']:.2f} times and {by_depth['post']:.2f} times as long",
)
holds(
    "So in a deep stack the last gradient of post-norm is more than twice as long as that of pre-norm.",
    times_as_large > 2,
    f"{times_as_large:.1f} times as long with {DEEP} layers",
)
holds(
    "A small change of all matrices moves the output of a deep post-norm stack further.",
    moved["post"] > 1.5 * moved["pre"],
    f"by {moved['post']:.1%} of its length, in pre-norm by {moved['pre']:.1%}; each number changed by about "
    f"{CHANGE:.0%}",
)
holds(
    "Post-norm learns more with warm-up than without.",
    final["post-norm, warm-up"] < 0.5 * final["post-norm"],
    f"loss {final['post-norm, warm-up']:.2f} and {final['post-norm']:.2f} after {STEPS} steps",
)
does_not_hold(
    "A Transformer cannot be trained without warm-up.",
    final["pre-norm"] > 0.5,
    f"pre-norm has a loss of {final['pre-norm']:.2f}",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, NUMBER, exercise, one_of


@exercise(
    "The numbers of $x$ have the mean square 1. Each of the two parts of a pre-norm layer adds 0.5 to "
    "the mean square. How large is it after 12 layers?",
    NUMBER,
    hint="12 layers have 24 parts.",
    answer="13",
)
def size_after_12_layers(size):
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    for part in range(24):
        x = x + 0.5**0.5 * torch.randn(100_000, generator=torch.Generator().manual_seed(part + 1))
    measured = float(x.square().mean())
    holds("It is that large.", abs(size - measured) < 0.3, f"{measured:.2f}, you say {size:g}")


@exercise(
    "A part returns zeros for every input. In which form does $x$ then pass the layer unchanged?",
    one_of("pre-norm", "post-norm", "both", "neither"),
    hint="Write 0 for the part in both formulas.",
    answer="pre-norm",
)
def unchanged_by_a_part_of_zeros(form):
    x = torch.tensor([3.0, -1.0, 0.5, 2.0])
    zeros = torch.zeros(4)
    moved = {
        "pre-norm": largest(x + zeros - x),
        "post-norm": largest(F.layer_norm(x + zeros, x.shape) - x),
    }
    unchanged = [name for name, distance in moved.items() if distance == 0]
    is_right = [form] == unchanged
    shown = ", ".join(f"{name} moves it by {distance:.2f}" for name, distance in moved.items())
    holds("It passes unchanged in this form only.", is_right, shown)


@exercise(
    "Compute the rates of the training with warm-up as a tensor (100,), from `RATE`, `WARM_UP` and "
    "`STEPS`. They rise by equal amounts to `RATE`, reach it at step 60, and stay there.",
    CODE,
    hint="The first step has a 60th of `RATE`, not 0.",
    answer="RATE * (torch.arange(1, STEPS + 1) / WARM_UP).clamp(max=1)",
)
def rates_of_warm_up(rates):
    expected = torch.tensor([RATE * min(1, (step + 1) / WARM_UP) for step in range(STEPS)])
    apart = largest(rates - expected)
    holds("These are the rates.", apart < 1e-7, f"at most {apart:.2g} apart")


# %% [markdown]
# Source: Vaswani et al. 2017, sections 3.1 (the norm after each sum) and 5.3 (warm-up); Xiong et al. 2020, section 3
# (gradients before training; their Theorem 1 has the root of the number of layers); Liu et al. 2020, section 4
# (changes of the output).
