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
from regard_lab.seeing.palette import INK, LINES, UNSEEN
from regard_lab.teaching import (
    ROUNDING,
    draw_cells,
    draw_map,
    figure,
    holds,
    largest,
    seeded,
    table,
    watch,
    words_of,
    write_numbers,
)
from regard_lab.text.vocabularies import BEGIN

PASSES = 60

words = words_of(TEXT)
n = len(words)
vocabulary = ["<begin>", *sorted(set(words))]
ids = torch.tensor([[BEGIN, *(BEGIN + vocabulary.index(word) for word in words)]])
read = ids[:, :-1]  # each word that is read, (1, n)
wanted = ids[0, 1:]  # and the word that follows it, (n,)

config = LanguageConfig(
    vocab_size=BEGIN + len(vocabulary), dim=32, heads=4, layers=2, positions="learned"
)
model = seeded(SEED, LanguageModel, config).eval()  # keeps its random weights
trained = seeded(SEED, LanguageModel, config).eval()  # begins with the same weights


def mean_loss(logits):
    return F.cross_entropy(logits, wanted)


def train(model):
    """Train on the sentence for some passes; return the logits before each pass and after the last."""
    parameters = list(model.parameters())
    logits_by_pass = []
    for step in range(PASSES + 1):
        logits = model(read)[0]  # (n, vocabulary)
        logits_by_pass.append(logits.detach())
        gradients = torch.autograd.grad(mean_loss(logits), parameters)
        learning_rate = 0.01 * (1 - step / PASSES)
        with torch.no_grad():
            # gradient descent; each gradient is divided by the root mean square of its numbers
            for parameter, gradient in zip(parameters, gradients):
                size = gradient.square().mean().sqrt().clamp(min=1e-30)
                parameter -= learning_rate * gradient / size
    return logits_by_pass


logits_by_pass = train(trained)
before = logits_by_pass[0].softmax(-1)  # (n, vocabulary)
after = logits_by_pass[-1].softmax(-1)
right_before = int((before.argmax(-1) == wanted).sum())
right_after = int((after.argmax(-1) == wanted).sum())

# %% tags=["folded"]
of_true_next_word = torch.stack([before[range(n), wanted], after[range(n), wanted]], 1)  # (n, 2)

caption = (
    "Each row is a training example: the model reads the grey words and predicts the framed one. "
    "Right: the probability that it gives to the framed word before and after "
    f"{PASSES} passes."
)
title = f"One sentence: {n} training examples in one pass"
with figure(title, 7.9, 1.4 + 0.28 * n, caption) as drawing:
    left, right = drawing.subplots(1, 2, width_ratios=(6, 1))
    size = 8.5 if n <= 12 else 6

    grey = torch.ones(n, n + 1).tril().long()
    draw_cells(left, grey, ("white", UNSEEN), "auto")
    centred = {"ha": "center", "va": "center", "fontsize": size, "color": INK}
    for row in range(n):
        for column, word in enumerate(["<begin>", *words][: row + 2]):
            left.text(column, row, word, parse_math=False, **centred)
        # a frame around the word that follows
        x = [row + 0.55, row + 1.45, row + 1.45, row + 0.55, row + 0.55]
        y = [row - 0.42, row - 0.42, row + 0.42, row + 0.42, row - 0.42]
        left.plot(x, y, color=LINES[1], linewidth=1.6)
    left.spines[:].set_visible(False)

    draw_map(right, of_true_next_word, columns=("before", "after"))
    write_numbers(right, of_true_next_word, size)

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
    at_once = small(text)[0]  # the logits after each word, in one pass, (5, vocabulary)
    one_by_one = []
    for t in range(5):
        logits = small(text[:, : t + 1])[0]  # in a pass of its own
        one_by_one.append(logits[-1])
print(torch.allclose(at_once, torch.stack(one_by_one)))

# %% [markdown]
# A cache keeps the keys and values of earlier words. Then each step computes only one position:

# %%
with torch.no_grad():
    state = small.start(text[:, :1])
    steps = [state.next_scores]
    for t in (1, 2, 3, 4):
        steps.append(small.step(text[:, t], state))
print(torch.allclose(at_once, torch.cat(steps)))

# %% [markdown]
# ## Claims


# %% tags=["folded"]
def in_one_pass():
    return model(read)[0]


def logits_after(t):
    """The logits after the word t, in a pass over only the words up to there, (vocabulary,)."""
    words_up_to_t = read[:, : t + 1]
    return model(words_up_to_t)[0, -1]


def without_cache():
    return torch.stack([logits_after(t) for t in range(n)])


def with_cache():
    state = model.start(read[:, :1])
    logits = [state.next_scores]
    for t in range(1, n):
        logits.append(model.step(read[:, t], state))
    return torch.cat(logits)


with torch.no_grad():
    logits = in_one_pass()  # (n, vocabulary)
    logits_without_cache = without_cache()
    logits_with_cache = with_cache()

# The first layer is called once in each pass.
ways = {"training": in_one_pass, "writing": with_cache, "without a cache": without_cache}
passes = {}
for name, way in ways.items():
    first_layer = watch({"first layer": model.blocks[0]}, way)["first layer"]
    positions = sum(x.shape[1] for x in first_layer.inputs)
    passes[name] = (first_layer.calls, positions)


def gradient_of(loss):
    return torch.autograd.grad(loss, list(model.parameters()))


gradients = gradient_of(F.cross_entropy(in_one_pass(), wanted, reduction="sum"))
sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
for t in range(n):  # each example in a pass of its own
    of_example = gradient_of(F.cross_entropy(logits_after(t), wanted[t]))
    sums = [total + gradient for total, gradient in zip(sums, of_example)]
gradient_differences = [largest(gradient - total) for gradient, total in zip(gradients, sums)]

edited = read.clone()
edited[0, -1] = BEGIN if int(read[0, -1]) != BEGIN else int(wanted[-1])
with torch.no_grad():
    moved = (model(edited) - model(read))[0].norm(dim=-1)  # of the logits, (n,)

title = f"What the first layer computes for {n} words"
rows = [(name, *counts) for name, counts in passes.items()]
table(title, ("when", "passes, one after the other", "positions"), rows)

# %% tags=["claims"]
holds(
    "At every position, one pass gives the same logits as a pass over only the words up to there.",
    largest(logits - logits_without_cache) < 1e-9,
    f"{n} positions, {ROUNDING}",
)
holds(
    "Word by word with a cache, the logits are the same.",
    largest(logits - logits_with_cache) < 1e-9,
    ROUNDING,
)
holds(
    "The gradient of one pass is the sum of the gradients of its examples, each computed in a pass "
    "of its own.",
    max(gradient_differences) < 1e-9,
    f"all parameters, {ROUNDING}",
)
prefixes = n * (n + 1) // 2  # the words of all texts that writing without a cache reads
holds(
    "Training takes one pass for all words; writing takes one pass for each word.",
    passes == {"training": (1, n), "writing": (n, n), "without a cache": (n, prefixes)},
    f"1 pass against {n}; without a cache {passes['without a cache'][1]} positions instead of {n}",
)
holds(
    "Replacing the last word changes no earlier logits.",
    largest(moved[:-1]) < 1e-9 < float(moved[-1]),
    f"the logits after it change by {float(moved[-1]):.2f}, all others do not change except for "
    "rounding",
)
holds(
    "All positions learn at once: after training, each predicts its next word.",
    right_after == n,
    f"{right_before} of {n} before, {right_after} after {PASSES} passes",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, NUMBER, exercise


@exercise(
    "20 words are written without a cache. How many positions does the first layer compute in all "
    "passes together?",
    NUMBER,
    hint="The first pass computes 1 position, the last one 20.",
    answer="210",
)
def positions_without_a_cache(count):
    def write():
        for length in range(1, 21):
            model(torch.full((1, length), BEGIN))

    inputs = watch({"first layer": model.blocks[0]}, write)["first layer"].inputs
    counted = sum(x.shape[1] for x in inputs)
    holds("It computes that many.", count == counted, f"{counted}, you say {count:g}")


@exercise(
    "`logits` (n, vocabulary) come from one pass, and `wanted` (n,) holds the ids of the words that "
    "follow. Compute the probability of the whole sentence.",
    CODE,
    hint="It is the product of the probabilities of its words.",
    answer="logits.softmax(-1)[range(n), wanted].prod()",
)
def probability_of_the_sentence(probability):
    loss = F.cross_entropy(logits, wanted, reduction="sum")
    expected = float(torch.exp(-loss))
    holds(
        "This is the probability.",
        abs(float(probability) / expected - 1) < 1e-6,
        f"{expected:.3g}, yours {float(probability):.3g}",
    )


# %% [markdown]
# Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.3.
