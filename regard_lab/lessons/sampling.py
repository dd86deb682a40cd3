# %% [markdown]
# # Drawing the next word
#
# **What do temperature, top-k and top-p change in what a model writes?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import torch

from regard_lab.decoding.sampling import Sampling, filtered_probabilities
from regard_lab.seeing.palette import FAINT, LINES
from regard_lab.teaching import (
    ROUNDING,
    figure,
    holds,
    label_axes,
    largest,
    table,
)

# How many of 100 texts that begin with "The animal was too" continue with each word.
COUNTS = {"tired": 40, "hungry": 25, "wide": 15, "old": 10, "late": 6, "blue": 3, "cross": 1}
WORDS = tuple(COUNTS)
DRAWS = 20_000
SETTINGS = {
    "as counted": {},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 2": {"temperature": 2.0},
    "top-k 3": {"top_k": 3},
    "top-p 0.6": {"top_p": 0.6},
}

counts = torch.tensor(list(COUNTS.values()), dtype=torch.float64)
logits = (counts / counts.sum()).log()  # their softmax gives the shares of the counts, (words,)

probabilities = {}  # by setting, (words,)
drawn = {}  # the same, counted in words that are drawn
for name, setting in SETTINGS.items():
    probabilities[name] = filtered_probabilities(logits[None], **setting)[0]
    texts = torch.arange(DRAWS)  # each draws its own next word
    ids = Sampling(seed=SEED, **setting).choose(logits.expand(DRAWS, -1), texts, place=0)
    drawn[name] = torch.bincount(ids, minlength=len(WORDS)) / DRAWS

# %% tags=["folded"]
caption = (
    f"Bars: how often each word is drawn in {DRAWS:,} draws. Marks: the probability that the setting "
    "gives it. Top-k and top-p remove words, which then have no bar."
)
with figure("One model, five ways to draw its next word", 8, 3.0, caption) as drawing:
    panels = drawing.subplots(1, len(SETTINGS), sharey=True)
    places = range(len(WORDS))
    for axes, name in zip(panels, SETTINGS):
        axes.barh(places, drawn[name].tolist(), 0.4, color=LINES[0])
        # Taller than the bars, so that they are seen on the paper above and below them.
        marks = {"markersize": 14, "markeredgewidth": 2.5, "color": LINES[1]}
        axes.plot(probabilities[name].tolist(), places, "|", **marks)
        label_axes(axes, name, "share", "")
        axes.set(xlim=(-0.02, 0.85), ylim=(len(WORDS) - 0.5, -0.5), xticks=(0, 0.4, 0.8))
        axes.grid(axis="x", color=FAINT, alpha=0.2)
    panels[0].set_yticks(places, WORDS, fontsize=9)

# %% [markdown]
# A language model gives every word of its vocabulary a **logit** $s_i$. The softmax makes probabilities of the logits,
# and the next word is drawn from them. Here the model is a table of counts: of 100 texts, 40 go on with *tired*, 25
# with *hungry* and so on. Its logits are the logarithms of these shares, because the softmax then gives the shares
# back.
#
# Why not always take the most probable word? Then the model writes the same text every time. If words are drawn from
# all probabilities, improbable ones are drawn too: each of them seldom, but there are many. Three settings choose a
# point between the two.
#
# The **temperature** $T$ divides the logits before the softmax:
#
# $$
# p_i = \frac{\exp(s_i / T)}{\sum_j \exp(s_j / T)}
# $$
#
# With $T = 1$ the probabilities are those of the model. Below 1, frequent words become more probable; above 1, rare
# words do. The ratio of two probabilities is raised to the power $1 / T$. Nothing can be divided by $T = 0$; this
# setting means that the most probable word is always taken.

# %%
p = torch.tensor([0.40, 0.25, 0.15, 0.10, 0.06, 0.03, 0.01])  # (words,), the most probable first
s = p.log()
T = 0.5
colder = (s / T).softmax(-1)
print(colder.numpy().round(2))

# %% [markdown]
# **Top-k** keeps the $k$ most probable words. **Top-p** keeps only as many of the most probable words as are needed for
# their probabilities to add up to $p$: few words where the model is sure, many where it is not. Both then divide the
# probabilities that are left by their sum.

# %%
k = 3
top_k = p * (p >= p.topk(k).values[-1])
top_k = top_k / top_k.sum()
print(top_k.numpy().round(2))

sum_before = p.cumsum(0) - p  # of the more probable words
top_p = p * (sum_before < 0.6)
top_p = top_p / top_p.sum()
print(top_p.numpy().round(2))

# %% [markdown]
# If several settings are given, the temperature comes first, then top-k, then top-p. One function of regard computes
# all of them, for logits (batch, words). Top-k and top-p differ most where the model is sure; here the first word has a
# probability of 0.9:

# %%
sure = torch.tensor([[0.90, 0.04, 0.03, 0.02, 0.01]])
print((filtered_probabilities(sure.log(), top_k=3) > 0).sum().item(), "words with top-k 3")
print((filtered_probabilities(sure.log(), top_p=0.6) > 0).sum().item(), "word with top-p 0.6")

# %% tags=["folded"]
rows = []
for place, word in enumerate(WORDS):
    shares = [f"{float(drawn[name][place]):.3f}" for name in SETTINGS]
    rows.append((word, COUNTS[word], *shares))
table(f"How often each word is drawn, of {DRAWS:,} draws", ("word", "count", *SETTINGS), rows)

# %% [markdown]
# `regard generate RUN "text" --temperature 0.5 --top-p 0.9` draws in this way from a model of your own.
#
# ## Claims

# %% tags=["folded"]
TIRED = WORDS.index("tired")
HUNGRY = WORDS.index("hungry")


def ratio_of(name):
    """How many times as often "tired" is drawn as "hungry"."""
    return float(drawn[name][TIRED] / drawn[name][HUNGRY])


furthest = 0.0  # in standard errors of a share
for name in SETTINGS:
    expected = probabilities[name]
    error = (expected * (1 - expected) / DRAWS).sqrt().clamp(min=1 / DRAWS)
    furthest = max(furthest, largest((drawn[name] - expected) / error))
kept = {name: int((drawn[name] > 0).sum()) for name in SETTINGS}
words_of_top_p = {"the table": int((probabilities["top-p 0.6"] > 0).sum())}
words_of_top_p["a sure model"] = int((filtered_probabilities(sure.log(), top_p=0.6) > 0).sum())
written_out = {"temperature 0.5": colder, "top-k 3": top_k, "top-p 0.6": top_p}
from_formulas = max(
    largest(computed - probabilities[name]) for name, computed in written_out.items()
)
always = Sampling(temperature=0.0).choose(logits.expand(100, -1), torch.arange(100), place=0)
by_hand = counts[:3] / counts[:3].sum()

# %% tags=["claims"]
holds(
    "Words are drawn as often as their probabilities say.",
    furthest < 5,
    f"at most {furthest:.1f} standard errors apart, {len(SETTINGS)} settings",
)
holds(
    "A temperature of 0.5 squares the ratio of two words, one of 2 takes its root.",
    abs(ratio_of("temperature 0.5") / 1.6**2 - 1) < 0.1
    and abs(ratio_of("temperature 2") / 1.6**0.5 - 1) < 0.1,
    f"“tired” is drawn {ratio_of('temperature 0.5'):.2f} times as often as “hungry” at 0.5, "
    f"{ratio_of('temperature 2'):.2f} times at 2; counted {40 / 25:.2f}",
)
holds(
    "The lines above compute the probabilities from which regard draws.",
    from_formulas < 1e-6,
    f"{len(written_out)} settings, {ROUNDING}",
)
holds(
    "At a temperature of 0 the most probable word is always taken.",
    bool((always == TIRED).all()),
    f"{int((always == TIRED).sum())} of {len(always)} draws",
)
holds(
    "Top-k 3 draws the three most frequent words alone, in the ratio of their counts.",
    kept["top-k 3"] == 3 and largest(probabilities["top-k 3"][:3] - by_hand) < 1e-6,
    f"{kept['top-k 3']} words, {ROUNDING}",
)
holds(
    "Top-p keeps fewer words where the model is sure.",
    words_of_top_p == {"the table": 2, "a sure model": 1},
    ", ".join(f"{name}: {count}" for name, count in words_of_top_p.items()),
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, NUMBER, exercise


@exercise(
    "*tired* is 1.6 times as probable as *hungry*. How many times as probable is it at a temperature "
    "of 0.25?",
    NUMBER,
    hint="The ratio is raised to the power $1 / T$.",
    answer="6.55",
)
def ratio_at_a_quarter(ratio):
    p = filtered_probabilities(logits[None], temperature=0.25)[0]
    measured = float(p[TIRED] / p[HUNGRY])
    holds(
        "It is that many times as probable.",
        abs(ratio - measured) < 0.05,
        f"{measured:.3f}, you say {ratio:g}",
    )


@exercise(
    "How many words of the table does top-p 0.85 keep?",
    NUMBER,
    hint="Add up 40, 25, 15, 10, ... until you have 85.",
    answer="4",
)
def words_of_top_p_85(count):
    counted = int((filtered_probabilities(logits[None], top_p=0.85) > 0).sum())
    holds("It keeps that many.", count == counted, f"{counted}, you say {count:g}")


@exercise(
    "Compute the probabilities of the words with top-k 2, from `logits` (7,). All but two of them are 0.",
    CODE,
    hint="Set the other logits to minus infinity before the softmax, as a mask does.",
    answer="logits.masked_fill(logits < logits.topk(2).values[-1], -torch.inf).softmax(-1)",
)
def two_words(p):
    expected = filtered_probabilities(logits[None], top_k=2)[0]
    apart = largest(p - expected)
    holds("These are the probabilities.", apart < 1e-6, f"at most {apart:.2g} apart")


# %% [markdown]
# Source: Fan et al. 2018 (top-k), section 5.4; Holtzman et al. 2020 (top-p), section 3.1.
