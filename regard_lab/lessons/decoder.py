# %% [markdown]
# # The decoder
#
# **How does one pass train every position, if words are written one by one?**

# %% tags=["parameters"]
TEXT = "the quick brown fox jumps over the lazy dog"
SEED = 0

# %% tags=["folded"]
import torch
import torch.nn.functional as F

from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.seeing.canvas import INK, LINES, UNSEEN
from regard_lab.teaching import (
    ROUNDING, draw_cells, draw_map, figure, holds, largest, seeded, table, watch, words_of, write_numbers,
)  # fmt: skip
from regard_lab.text.vocabularies import BEGIN

words = words_of(TEXT)
vocabulary = ["<begin>", *sorted(set(words))]
ids = torch.tensor([[BEGIN, *(BEGIN + vocabulary.index(word) for word in words)]])
read, wanted = ids[:, :-1], ids[0, 1:]  # each word that is read, and the word that follows it
config = LanguageConfig(vocab_size=BEGIN + len(vocabulary), dim=32, heads=4, layers=2, positions="learned")
model, trained = (seeded(SEED, LanguageModel, config).eval() for _ in range(2))  # the same random weights
PASSES = 60


def train(model):
    """Train on the sentence for some passes; return the logits before each pass and after the last."""
    logits, parameters = [], list(model.parameters())
    for step in range(PASSES + 1):
        logits.append(model(read)[0])
        gradients = torch.autograd.grad(F.cross_entropy(logits[-1], wanted), parameters)
        with torch.no_grad():  # gradient descent; each gradient is divided by the root mean square of its numbers
            for parameter, gradient in zip(parameters, gradients):
                size = gradient.square().mean().sqrt().clamp(min=1e-30)
                parameter -= 0.01 * (1 - step / PASSES) * gradient / size
    return [one.detach() for one in logits]


logits = train(trained)
right = [int((one.argmax(-1) == wanted).sum()) for one in logits]
chances = [one.softmax(-1)[range(len(words)), wanted] for one in (logits[0], logits[-1])]  # of the true next word

count, size = len(words), 8.5 if len(words) <= 12 else 6
with figure(f"One sentence: {count} training examples in one pass", 7.9, 1.4 + 0.28 * count,
            "Each row is a training example: the model reads the grey words and predicts the framed one. Right: the "
            f"probability that it gives to the framed word before and after {PASSES} passes.") as drawing:  # fmt: skip
    left, side = drawing.subplots(1, 2, width_ratios=(6, 1))
    draw_cells(left, torch.ones(count, count + 1).tril().long(), ("white", UNSEEN), "auto")
    for row in range(count):
        for column, word in enumerate(["<begin>", *words][: row + 2]):
            left.text(column, row, word, ha="center", va="center", fontsize=size, color=INK, parse_math=False)
        frame = [row + 0.55, row + 1.45, row + 1.45, row + 0.55, row + 0.55]
        up, down = row - 0.42, row + 0.42
        left.plot(frame, [up, up, down, down, up], color=LINES[1], linewidth=1.6)
    left.spines[:].set_visible(False)
    values = torch.stack(chances, 1)
    image = draw_map(side, values, columns=("before", "after"))
    write_numbers(side, values, size)

# %% [markdown]
# A decoder writes text: it computes the probability of the next word from the words before it. The product of these
# probabilities is the probability of the text:
#
# $$
# p(y_1, \ldots, y_n) = \prod_t p(y_t \mid y_1, \ldots, y_{t-1})
# $$
#
# **In training** the whole text is known. One pass computes the probabilities after every word, and each is compared
# with the word that follows. This is valid because of the causal mask: no position looks at the word that it predicts.
# So a sentence of $n$ words gives $n$ training examples in one pass.
#
# **When it writes**, the next word depends on the words chosen before, so words are written one by one. One pass over
# the text and one pass for each word give the same logits:

# %%
from regard_lab.models import LanguageConfig, LanguageModel

small = LanguageModel(LanguageConfig(vocab_size=10, dim=32, heads=4)).double().eval()
text = torch.tensor([[2, 5, 6, 7, 8]])
with torch.no_grad():
    at_once = small(text)[0]  # the logits after each word, in one pass
    one_by_one = torch.stack([small(text[:, :stop])[0, -1] for stop in range(1, 6)])
print(torch.allclose(at_once, one_by_one))

# %% [markdown]
# A cache keeps the keys and values of earlier words. Then each step computes only one position:

# %%
with torch.no_grad():
    state = small.start(text[:, :1])
    steps = [state.next_scores] + [small.step(text[:, place], state) for place in range(1, 5)]
print(torch.allclose(at_once, torch.cat(steps)))

# %% [markdown]
# ## Claims


# %% tags=["folded"]
def without_cache(read):
    return torch.stack([model(read[:, :stop])[0, -1] for stop in range(1, read.shape[1] + 1)])


def with_cache(read):
    state = model.start(read[:, :1])
    return torch.cat([state.next_scores, *(model.step(read[:, place], state) for place in range(1, read.shape[1]))])


def gradient(loss):
    return list(torch.autograd.grad(loss, list(model.parameters())))


def apart(one, other):
    return max(largest(x - y) for x, y in zip(one, other))


with torch.no_grad():
    at_once, by_prefixes, cached = model(read)[0], without_cache(read), with_cache(read)
in_one_pass = gradient(F.cross_entropy(model(read)[0], wanted, reduction="sum"))
losses = [F.cross_entropy(model(read[:, :n])[0, -1:], wanted[n - 1 : n]) for n in range(1, count + 1)]
summed = [sum(parts) for parts in zip(*map(gradient, losses))]

ways = {
    "training": lambda: model(read),
    "writing": lambda: with_cache(read),
    "without a cache": lambda: without_cache(read),
}
layer = {name: watch({"layer": model.blocks[0]}, call)["layer"] for name, call in ways.items()}
passes = {name: (seen.calls, sum(x.shape[1] for x in seen.inputs)) for name, seen in layer.items()}

edited = read.clone()
edited[0, -1] = BEGIN if int(read[0, -1]) != BEGIN else int(wanted[-1])
with torch.no_grad():
    moved = (model(edited) - model(read))[0].norm(dim=-1)

table(f"What the first layer computes for {count} words", ("when", "passes, one after the other", "positions"),
      [(name, *counts) for name, counts in passes.items()])  # fmt: skip

# %% tags=["claims"]
holds("At every position, one pass gives the same logits as a pass over only the words up to there.",
      apart(at_once, by_prefixes) < 1e-9, f"{count} positions, {ROUNDING}")  # fmt: skip
holds("Word by word with a cache, the logits are the same.", apart(at_once, cached) < 1e-9, ROUNDING)
holds("The gradient of one pass is the sum of the gradients of its examples, each computed in a pass of its own.",
      apart(in_one_pass, summed) < 1e-9, f"all parameters, {ROUNDING}")  # fmt: skip
holds(
    "Training takes one pass for all words; writing takes one pass for each word.",
    passes == {"training": (1, count), "writing": (count, count), "without a cache": (count, count * (count + 1) // 2)},
    f"1 pass against {count}; without a cache {passes['without a cache'][1]} positions instead of {count}",
)
holds("Replacing the last word changes no earlier logits.", largest(moved[:-1]) < 1e-9 < float(moved[-1]),
      f"the logits after it change by {float(moved[-1]):.2f}, all others do not "
      "change except for rounding")  # fmt: skip
holds("All positions learn at once: after training, each predicts its next word.", right[-1] == count,
      f"{right[0]} of {count} before, {right[-1]} after {PASSES} passes")  # fmt: skip

# %% [markdown]
# Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.3.
