# %% [markdown]
# # Where articles are imprecise
#
# **Which sentences of the articles are not exact?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import math
import torch

import regard as rg
from regard import mechanisms as m, patterns as p
from regard.errors import ShapeError
from regard.positions import Sinusoidal
from regard_lab.teaching import (
    ROUNDING, comparisons, draw_curves, figure, holds, largest, mark_column, normal, operations, rounded, table,
)  # fmt: skip
from regard_lab.teaching.stepping import count_steps

DIMS, LENGTHS, STEPS = (4, 16, 64, 256), (64, 256, 1024, 4096), (16, 32, 64, 128, 256, 512)
heads = {dim: normal(SEED, 2, 1, 48, 12, dim) for dim in DIMS}  # q and k of 48 heads, 12 words
spread = {power: [float((q @ k.mT * dim**power).std()) for dim, (q, k) in heads.items()] for power in (-0.5, -2.0)}
entropy = {power: [float(rg.attention_detail(q, k, k, scale=dim**power, want=["entropy"]).entropy.mean())
                   for dim, (q, k) in heads.items()] for power in (-0.5, -2.0)}  # fmt: skip


def planned(mechanism, n):
    x, parameters = torch.zeros(1, 1, n, 16), mechanism.new_parameters() or None
    return rg.plan_attention(x, x, x, mechanism=mechanism, parameters=parameters).cost


draw = torch.Generator().manual_seed(SEED)
buckets = [torch.randint(max(2, n // 16), (n,), generator=draw).tolist() for n in LENGTHS]  # of the words, for LSH
counts = {
    "full, causal: pairs": [p.Causal().count(n, n) for n in LENGTHS],
    "strided, causal, s = √n: pairs": [(p.Strided(math.isqrt(n)) & p.Causal()).count(n, n) for n in LENGTHS],
    "LSH: comparisons of a sort": [comparisons(one) for one in buckets],
    "linear: operations": [planned(m.LinearTransformer(), n).flops for n in LENGTHS],
    "Linformer, k = 16: pairs": [planned(m.Linformer(n, 16), n).pairs for n in LENGTHS],
    "Linformer, k = n / 4: pairs": [planned(m.Linformer(n, n // 4), n).pairs for n in LENGTHS],
}
attended = [operations(lambda n=n: (torch.zeros(n, 64) @ torch.zeros(64, n)) @ torch.zeros(n, 64)) for n in STEPS]
recurrent = [operations(lambda n=n: torch.nn.RNN(64, 64)(torch.zeros(n, 64))) for n in STEPS]
sine, cosine = Sinusoidal(48)(torch.tensor([1])).double()[0].unflatten(0, (-1, 2)).unbind(-1)
waves = 2 * math.pi / torch.atan2(sine, cosine)  # the lengths of the 24 waves, in words

with figure("Where articles are imprecise, in numbers", 7.9, 7.6,
            "Each panel is about one sentence of the table below: what an article writes, and what is computed. Words "
            "in quotes are an article's own.") as drawing:  # fmt: skip
    (scaled, grown), (spent, waved) = drawing.subplots(2, 2)
    draw_curves(scaled, DIMS, {"divided by √d": spread[-0.5], "divided by d²": spread[-2.0]},
                ("Divided “by the square” of d", "d", "spread of the scores"), log="xy")  # fmt: skip
    names = ("full; Linformer, k = n / 4", "strided", "LSH, sorting", "linear; Linformer, k = 16")
    draw_curves(grown, LENGTHS, {name: [one / row[0] for one in row] for name, row in zip(names, counts.values())},
                ("Which are “O(n) or better”?", "words n", "times the count for 64 words"), log="xy")  # fmt: skip
    draw_curves(spent, STEPS, {"self-attention: 1 step": attended, "recurrent: n steps": recurrent},
                ("Recurrent networks are “less efficient”", "words n", "operations"), log="xy")  # fmt: skip
    mark_column(spent, 64, "n = d = 64")
    draw_curves(waved, range(24), {"computed": waves, "twice the last": waves[0] * 2 ** torch.arange(24)},
                ("“About twice the wavelength”", "wave", "words"))  # fmt: skip
    waved.set_yscale("log")
    waved.minorticks_off()

# %% [markdown]
# Articles simplify. Their formulas are right, and so are most of their sentences. These sentences are not exact:
#
# | an article writes | what holds |
# | --- | --- |
# | scores are scaled “by the square” of $d$ | by its square root |
# | the encoder's vector is the query | the decoder's state is the query; keys and values are the encoder's |
# | the score is of $s_t$; the text beside it says $s_{t-1}$ | Bahdanau: $s_{t-1}$; Luong: $s_t$ (lesson *alignment*) |
# | q, k and v are “typically much smaller than the input size” | so that all heads together cost as much as one |
# | four mechanisms are “of O(n) or better” | LSH sorts, strided has $n \sqrt{n}$ pairs, Linformer needs fixed $k$ |
# | recurrent networks are “less efficient” | beyond $n = d$ they need fewer operations, but one after another |
# | one head “can only focus on one position at a time” | it gives every visible position a weight above 0 |
# | the next dimensions “have about twice the wavelength” | the factor is $10000^{2/d}$ |
# | the sizes of cross-attention “must match” | only heads of q and k must, and the lengths of k and v |
# | mask after the softmax, or minus infinity before it | the same, unless every visible weight rounds to 0 |
#
# Divided “by the square”, scores become almost 0, and all words get almost the same weight. If all four mechanisms were
# linear, 4 times the words would cost 4 times as much in each; the second table shows what they cost. For long texts a
# “less efficient” recurrent network needs fewer operations, but each word waits for the one before.

# %% tags=["folded"]
table("Spread of the scores, and entropy of the weights in nats",
      ("d", "spread, √d", "spread, d²", "entropy, √d", "entropy, d²"),
      [(dim, f"{a:.3f}", f"{b:.6f}", f"{c:.3f}", f"{d:.3f}")
       for dim, a, b, c, d in zip(DIMS, *spread.values(), *entropy.values())])  # fmt: skip
growth = {name: row[-1] / row[-2] for name, row in counts.items()}
table("What grows with the number of words n", ("counted", *(f"n = {n:,}" for n in LENGTHS), "4 times the words"),
      [(name, *(f"{one:,}" for one in row), f"{growth[name]:.1f} times") for name, row in counts.items()])  # fmt: skip
table("Operations of a layer with d = 64", ("words n", "self-attention, 1 step", "recurrent, n steps"),
      [(f"{n:,}", f"{one:,}", f"{two:,}") for n, one, two in zip(STEPS, attended, recurrent)])  # fmt: skip

# %% [markdown]
# Why are q, k and v of a head small? Eight heads of $d / 8$ numbers have as many parameters, and need as many
# operations, as one head of $d$. What “must match”? In cross-attention the two sequences may have different lengths and
# different sizes.

# %%
costs = {}
for count, size in ((1, 512), (8, 64), (8, 512)):
    layer, q = rg.MultiHeadAttention(512, count, head_dim=size), torch.zeros(1, count, 100, size)
    costs[count, size] = sum(one.numel() for one in layer.parameters()), rg.plan_attention(q, q, q).cost.flops
    print("{} heads of {}: {:,} parameters, {:,} operations".format(count, size, *costs[count, size]))

x, context = torch.randn(1, 7, 32), torch.randn(1, 3, 48)
output = rg.MultiHeadAttention(dim=32, heads=4, context_dim=48)(x, context=context)
print("queries", list(x.shape), "context", list(context.shape), "output", list(output.shape))

# %% [markdown]
# The causal mask can be applied after the softmax or before it. Here are both, first for the scores of a head, then for
# a masked score that is far above the others:

# %%
q, k = (one[:, :1] for one in heads[64])  # of one head, (1, 1, 12, 64)
near, far, ways = (q @ k.mT / 8)[0, 0], torch.tensor([[0.0, 200.0], [0.0, 0.0]]), []  # exp(-200) is 0 in float32
for scores in (near, far):
    after = scores.softmax(-1).tril()  # later words set to 0,
    after = after / after.sum(-1, keepdim=True)  # and each row divided by its sum
    before = scores.masked_fill(torch.ones_like(scores).triu(1) == 1, -torch.inf).softmax(-1)
    ways.append((after, before))
    print("after the softmax", rounded(after[:2, :2]), "before it", rounded(before[:2, :2]))  # of the first two words

# %% [markdown]
# ## Claims

# %% tags=["claims"]
root, square = spread[-0.5], spread[-2.0]
holds("Divided by the square root of d, scores have the same spread for every d.",
      all(abs(one - 1) < 0.1 for one in root), f"{min(root):.2f} to {max(root):.2f} for d 4 to 256")  # fmt: skip
holds("Divided by the square of d, scores vanish and all words get equal weights.",
      square[-1] < 0.01 and abs(entropy[-2.0][-1] - math.log(12)) < 1e-3,
      f"spread {square[-1]:.6f}, entropy {entropy[-2.0][-1]:.4f} of at most {math.log(12):.4f}")  # fmt: skip
ratios = waves[1:] / waves[:-1]
holds("For d = 48 each wave is 10000^(2/48) times as long as the one before, not twice.",
      largest(ratios - 10000 ** (2 / 48)) < 1e-3 and ratios.max() < 2,
      f"{ratios.min():.3f} to {ratios.max():.3f}; the factor is 2 for d = {2 * math.log2(10000):.1f}")  # fmt: skip
holds("The waves go from 2π towards 10000 · 2π.",
      abs(waves[0] / math.tau - 1) < 1e-3 and 0.6 < waves[-1] / (10000 * math.tau) < 1,
      f"{waves[0]:.2f} to {waves[-1]:,.0f}; 10000 · 2π is {10000 * math.tau:,.0f}")  # fmt: skip
causal = rg.attention_detail(q, k, k, pattern="causal", want=["weights"]).weights[0, 0]
(after, before), (far_after, far_before) = ways
holds("Masking after the softmax and dividing by the remaining sum gives the same weights as minus infinity before it, "
      "and as regard's “causal”.",
      largest(after - before) < 1e-12 and largest(before - causal) < 1e-12, ROUNDING)  # fmt: skip
holds("The two ways of masking differ if every visible weight rounds to 0: masking after the softmax divides 0 by 0.",
      far_after[0].isnan().any() and float(far_before[0].sum()) == 1,
      "a masked score 200 above the others, in float32")  # fmt: skip
full, strided, lsh, linear, fixed, growing = growth.values()
holds("For 4 times the words, linear attention needs 4 times the operations, and Linformer with a fixed k 4 times the "
      "pairs.",
      linear == fixed == 4, f"{linear:.1f} and {fixed:.1f} times")  # fmt: skip
holds("Linformer needs 16 times the pairs if k grows with the length, and full attention about as many.",
      growing == 16 and 15 < full < 16.5, f"k = n / 4: {growing:.1f} times; full: {full:.1f} times")  # fmt: skip
holds("Sorting for LSH needs more than 4 times the comparisons, and strided patterns about 8 times the pairs.",
      4 < lsh < 6 and 7 < strided < 9, f"{lsh:.2f} and {strided:.2f} times")  # fmt: skip
once, often = (planned(m.LSH(chunk=16, buckets=256, rounds=rounds), 4096).pairs for rounds in (1, 8))
holds("Each round of LSH costs as much as the first: 8 rounds compute 8 times the pairs.",
      abs(often / once / 8 - 1) < 0.02, f"{often / once:.2f} times")  # fmt: skip
fewer = [n for n, one, two in zip(STEPS, attended, recurrent) if two < one]
holds("A recurrent layer needs fewer operations than self-attention for more than d words.",
      fewer == [n for n in STEPS if n > 64], f"d = 64: fewer for {', '.join(map(str, fewer))} words")  # fmt: skip
steps = {name: [count_steps(name, n, SEED)["steps"] for n in (16, 256)] for name in ("attention", "recurrent")}
holds("Self-attention computes all words in 1 step; the recurrent layer computes one word in each step.",
      steps == {"attention": [1, 1], "recurrent": [16, 256]},
      "for 16 and 256 words {attention} and {recurrent} steps".format(**steps))  # fmt: skip
looks = lambda states, words: rg.attention_detail(states, words, words, want=["weights"]).weights[0, 0]
states, words = normal(SEED, 1, 1, 3, 8), normal(SEED + 1, 1, 1, 5, 8)  # of a decoder, and of an encoder
weights, second = looks(states, words), torch.arange(8)[:, None] == 1
other = [looks(states.where(~second[:3], 0), words), looks(states, words.where(~second[:5], 0))]
by_state, by_word = ((one - weights).abs().amax(-1).gt(1e-6).nonzero().flatten().tolist() for one in other)
holds("The decoder's states are the queries: each gets one row of weights over the encoder's words.",
      weights.shape == (3, 5), f"{len(weights)} × {weights.shape[1]} weights for 3 states and 5 words")  # fmt: skip
holds("Replacing a state of the decoder changes only its own row; replacing a word of the encoder changes every row.",
      by_state == [1] and by_word == [0, 1, 2], f"rows {by_state} and {by_word}, counted from 0")  # fmt: skip
row = looks(q, k)[0]
holds("One head gives every word a weight above 0.", (row > 0).all(),
      f"{int((row > 0).sum())} of 12 words, the least {float(row.min()):.4f}; their entropy is that of "
      f"{float(torch.special.entr(row).sum().exp()):.1f} equal weights")  # fmt: skip
one, small, large = costs.values()
holds("Eight heads of d / 8 numbers cost as much as one head of d; eight heads of d cost 8 times as much.",
      small == one and large[1] == 8 * one[1], f"{large[1] / small[1]:.0f} times the operations")  # fmt: skip
holds("In cross-attention lengths and sizes of both sequences may differ.", output.shape == x.shape,
      f"queries {list(x.shape)} with a context {list(context.shape)} give {list(output.shape)}")  # fmt: skip
three, refusals = torch.zeros(1, 1, 3, 8), []
for k, v in ((three[..., :6], three), (three, three[:, :, :2])):
    try:
        rg.attention(three, k, v)
    except ShapeError as error:
        refusals.append(error)
holds("The size of a head in q and k, and the length of k and v, must match: regard refuses others.",
      len(refusals) == 2, "8 and 6 numbers; 3 keys and 2 values")  # fmt: skip

# %% [markdown]
# Sources: Vaswani et al. 2017, sections 3.2.1, 3.2.2, 3.5 and 4, table 1; Bahdanau et al. 2015, section 3.1; Luong et
# al. 2015, section 3; Kitaev et al. 2020, section 2; Wang et al. 2020, table 1; Child et al. 2019, section 4.3.
