# %% [markdown]
# # Where articles are imprecise
#
# **Which sentences of the articles are not exact?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import math
from functools import partial

import torch

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.errors import ShapeError
from regard.positions import Sinusoidal
from regard_lab.teaching import (
    ROUNDING,
    comparisons,
    draw_curves,
    figure,
    holds,
    largest,
    mark_column,
    normal,
    operations,
    read_report,
    rounded,
    table,
)
from regard_lab.teaching.stepping import count_steps

DIMS = (4, 16, 64, 256)
WORDS = 12
qk_by_dim = {d: normal(SEED, 2, 1, 48, WORDS, d) for d in DIMS}  # q and k of 48 heads


def spread_of_scores(power):
    """The standard deviation of scores that are multiplied by d to this power, for each d."""
    spread = []
    for d, (q, k) in qk_by_dim.items():
        scores = q @ k.mT * d**power
        spread.append(float(scores.std()))
    return spread


def entropy_of_weights(power):
    """The mean entropy of their weights in nats, for each d."""
    entropy = []
    for d, (q, k) in qk_by_dim.items():
        detail = rg.attention_detail(q, k, k, scale=d**power, want=["entropy"])
        entropy.append(float(detail.entropy.mean()))
    return entropy


spread_by_root = spread_of_scores(-0.5)
spread_by_square = spread_of_scores(-2.0)
entropy_by_root = entropy_of_weights(-0.5)
entropy_by_square = entropy_of_weights(-2.0)

LENGTHS = (64, 256, 1024, 4096)


def strided_pattern(n):
    """The causal pattern of the Sparse Transformer, s = √n."""
    return p.Strided(math.isqrt(n)) & p.Causal()


def cost_of(mechanism, n):
    """What regard plans for n words."""
    x = torch.zeros(1, 1, n, 16)
    parameters = mechanism.new_parameters() or None
    return rg.plan_attention(x, x, x, mechanism=mechanism, parameters=parameters).cost


draw = torch.Generator().manual_seed(SEED)
sort_comparisons = []  # of the buckets of the words, for LSH
for n in LENGTHS:
    buckets = torch.randint(max(2, n // 16), (n,), generator=draw)
    sort_comparisons.append(comparisons(buckets.tolist()))
full_pairs = [p.Causal().count(n, n) for n in LENGTHS]
strided_pairs = [strided_pattern(n).count(n, n) for n in LENGTHS]
linear_operations = [cost_of(m.LinearTransformer(), n).flops for n in LENGTHS]
fixed_k_pairs = [cost_of(m.Linformer(n, 16), n).pairs for n in LENGTHS]
growing_k_pairs = [cost_of(m.Linformer(n, n // 4), n).pairs for n in LENGTHS]

LAYER_LENGTHS = (16, 32, 64, 128, 256, 512)


def attend(n):
    """The products of one head of self-attention, d = 64."""
    return (torch.zeros(n, 64) @ torch.zeros(64, n)) @ torch.zeros(n, 64)


def recur(n):
    """A recurrent layer, d = 64."""
    return torch.nn.RNN(64, 64)(torch.zeros(n, 64))


attention_operations = [operations(partial(attend, n)) for n in LAYER_LENGTHS]
recurrent_operations = [operations(partial(recur, n)) for n in LAYER_LENGTHS]

angles = Sinusoidal(48)(torch.tensor([1])).double()[0]  # sine and cosine of each wave, in turns
sine, cosine = angles.unflatten(0, (-1, 2)).unbind(-1)
waves = 2 * math.pi / torch.atan2(sine, cosine)  # the lengths of the 24 waves, in words

# %% tags=["folded"]
caption = (
    "Each panel is about one sentence of the lists below: what an article writes, and what is "
    "computed. Words in quotes are an article's own."
)
with figure("Where articles are imprecise, in numbers", 7.9, 7.6, caption) as drawing:
    (upper_left, upper_right), (lower_left, lower_right) = drawing.subplots(2, 2)

    curves = {"divided by √d": spread_by_root, "divided by d²": spread_by_square}
    labels = ("Divided “by the square” of d", "d", "spread of the scores")
    draw_curves(upper_left, DIMS, curves, labels, log="xy")

    counts = {
        "full; Linformer, k = n / 4": full_pairs,
        "strided": strided_pairs,
        "LSH, sorting": sort_comparisons,
        "linear; Linformer, k = 16": linear_operations,
    }
    curves = {}
    for name, numbers in counts.items():
        curves[name] = [number / numbers[0] for number in numbers]
    labels = ("Which are “O(n) or better”?", "words n", "times the count for 64 words")
    draw_curves(upper_right, LENGTHS, curves, labels, log="xy")

    curves = {
        "self-attention: 1 step": attention_operations,
        "recurrent: n steps": recurrent_operations,
    }
    labels = ("Recurrent networks are “less efficient”", "words n", "operations")
    draw_curves(lower_left, LAYER_LENGTHS, curves, labels, log="xy")
    mark_column(lower_left, 64, "n = d = 64")

    curves = {"computed": waves, "twice the last": waves[0] * 2 ** torch.arange(24)}
    labels = ("“About twice the wavelength”", "wave", "words")
    draw_curves(lower_right, range(24), curves, labels)
    lower_right.set_yscale("log")
    lower_right.minorticks_off()

# %% [markdown]
# Articles simplify. Their formulas are right, and so are most of their sentences. The lists quote sentences that are
# not exact, from *Understanding Transformers (Part 2)* (U), *Papers Explained Review 09* (P) and *How Multi Head
# Attention Math Works in Transformers* (H). First those that are reversed: who builds a layer from them builds it the
# wrong way round.
#
# ## Which word influences which
#
# - P: “each position can only influence the current and preceding positions in the sequence”. Reversed: it
#   influences itself and later positions.
# - P: the mask forbids “future tokens attending to past tokens”. Reversed: past tokens must not attend to future
#   ones.
# - H: the encoder's vector “is then used as the query in the decoder's attention mechanism”. Reversed: the queries
#   are the decoder's; the encoder gives a key and a value for each word.
# - U: self-attention “is used in both the encoder and decoder layers” and lets a model “consider the entire input
#   sequence for each token”. In the decoder, each word sees itself and the words before.
#
# Change one word of six, and look which outputs move; then ask which words move one output.


# %%
def moved_by(word, pattern):
    """The positions whose outputs move if a word changes."""
    before = rg.attention(six, six, six, pattern=pattern)[0, 0]  # (words, size)
    changed = six.clone()
    changed[:, :, word] = 0
    after = rg.attention(changed, changed, changed, pattern=pattern)[0, 0]
    return (after != before).any(-1).nonzero().flatten().tolist()


six = normal(SEED, 1, 1, 6, 8)  # (batch, heads, words, size)
influenced = moved_by(2, "causal")
influencing = []
for word in range(6):
    if 2 in moved_by(word, "causal"):
        influencing.append(word)
print("word 2 influences the positions", influenced)
print("position 2 is influenced by the words", influencing)

visible = {}  # how many words move each output
for pattern in ("full", "causal"):
    moved = [moved_by(word, pattern) for word in range(6)]
    visible[pattern] = [sum(place in moves for moves in moved) for place in range(6)]
    print(pattern, visible[pattern])

# %% [markdown]
# The causal mask can be applied after the softmax or before it. P shows both. They are the same, unless every visible
# weight rounds to 0. Here are both, first for the scores of a head, then for a masked score that is far above the
# others:


# %%
def mask_after(scores):
    """The weights, masked after the softmax."""
    weights = scores.softmax(-1).tril()  # later words set to 0,
    return weights / weights.sum(-1, keepdim=True)  # and each row divided by its sum


def mask_before(scores):
    """The weights, masked before the softmax."""
    later = torch.ones_like(scores).triu(1) == 1  # row i, column j: is j > i?
    return scores.masked_fill(later, -torch.inf).softmax(-1)


q, k = qk_by_dim[64][:, :, :1]  # of one head, (batch, heads, words, 64)
near = (q @ k.mT / 64**0.5)[0, 0]
far = torch.tensor([[0.0, 200.0], [0.0, 0.0]])  # exp(-200) is 0 in float32
for scores in (near, far):
    after = rounded(mask_after(scores)[:2, :2])  # of the first two words
    before = rounded(mask_before(scores)[:2, :2])
    print("after the softmax", after, "before it", before)

# %% [markdown]
# ## What a layer computes
#
# - U: keys “can be matched against the query”. Softly: every value counts, more where the key resembles the query.
# - P: “the division of the input into multiple heads”. Nothing is divided: each head reads all numbers of a word.
# - H: “The query, key, and value vectors are all learned during training”. Their projections are learned; the
#   vectors are computed from the words.
# - H: “their dimensions are typically much smaller than the input size”. So that all heads together cost as much as
#   one.
# - H: the final projection makes “the model's output interpretable”. It mixes the heads.
# - H: it allows “the model to output a single vector”. One for each word.
# - H: “Single head attention can only focus on one position at a time”. It gives every visible position a weight
#   above 0.
# - P: of the two sequences of cross-attention, the “embedding dimensions must match”. Only the sizes of q and k
#   must, and the lengths of k and v.
# - H: Bahdanau's “variable length context vector”. Its length is fixed; the number of vectors varies.
#
# A dictionary returns the value whose key is equal to the query. Attention returns a mean of all values. The larger the
# scores, the closer it comes to a dictionary:

# %%
keys = torch.nn.functional.normalize(normal(SEED, 1, 1, 6, 8), dim=-1)  # six, of length 1
query_of_key = keys[:, :, [2]]  # equal to the third
look_up = {}  # the weights, by the factor of the scores
for factor in (1, 100):
    detail = rg.attention_detail(query_of_key, keys, keys, scale=factor, want=["weights"])
    look_up[factor] = detail.weights[0, 0, 0]
    print(factor, rounded(look_up[factor]))

# %% [markdown]
# What does a head read? A projection has a weight for each number of a word and each number of the head, so the
# gradient shows which numbers of the word count:

# %%
four_heads = rg.MultiHeadAttention(16, 4)  # of 4 numbers each
word = torch.randn(1, 1, 16, requires_grad=True)  # (batch, words, dim)
query = four_heads.to_q(word)[0, 0, :4]  # of the first head
(read,) = torch.autograd.grad(query.sum(), word)
numbers_read = int((read != 0).sum())
heads_output = torch.randn(1, 1, 16, requires_grad=True)  # of four heads, side by side
(mixed,) = torch.autograd.grad(four_heads.to_output(heads_output)[0, 0, 0], heads_output)
numbers_mixed = int((mixed != 0).sum())
print(f"the first head reads {numbers_read} of 16 numbers of a word")
print(f"the first number of the output depends on {numbers_mixed} of 16 numbers of the heads")

# %% [markdown]
# What is learned? A layer has the same parameters for any text; q, k and v are computed from its words. What comes out?
# One vector for each word. Only Bahdanau's decoder reads a source with one context vector in each step, as long for 3
# words as for 30:

# %%
learned_numbers = sum(parameter.numel() for parameter in four_heads.parameters())
numbers_of_queries = []
vectors_of_output = []
for length in (3, 30):
    sentence = torch.randn(1, length, 16)
    numbers_of_queries.append(four_heads.to_q(sentence).numel())
    vectors_of_output.append(four_heads(sentence).shape[1])
print(f"learned: {learned_numbers} numbers; queries for 3 and 30 words: {numbers_of_queries}")
print("vectors of the output, for 3 and for 30 words:", vectors_of_output)

context_sizes = []
for length in (3, 30):
    source = torch.randn(1, 1, length, 8)
    context_sizes.append(rg.attention(source[:, :, :1], source, source).shape[3])
print("numbers of a context vector, for 3 and for 30 words of the source:", context_sizes)

# %% [markdown]
# Why are q, k and v of a head small? Eight heads of $d / 8$ numbers have as many parameters, and need as many
# operations, as one head of $d$. What must match? In cross-attention the two sequences may have different lengths and
# different sizes.

# %%
parameters = {}  # by number and size of heads
flops = {}
for heads, size in ((1, 512), (8, 64), (8, 512)):
    layer = rg.MultiHeadAttention(512, heads, head_dim=size)
    zeros = torch.zeros(1, heads, 100, size)  # (batch, heads, words, size)
    parameters[heads, size] = sum(tensor.numel() for tensor in layer.parameters())
    flops[heads, size] = rg.plan_attention(zeros, zeros, zeros).cost.flops
    print(
        f"{heads} heads of {size}: {parameters[heads, size]:,} parameters, "
        f"{flops[heads, size]:,} operations"
    )

x = torch.randn(1, 7, 32)  # (batch, words, dim)
context = torch.randn(1, 3, 48)  # (batch, words, context_dim)
output = rg.MultiHeadAttention(dim=32, heads=4, context_dim=48)(x, context=context)
print("queries", list(x.shape), "context", list(context.shape), "output", list(output.shape))

# %% [markdown]
# ## Scores and positions
#
# - H: scores “are scaled by the square of the dimension of the keys”. By its square root; divided by the square, all
#   words get almost the same weight.
# - H: “the hidden dimensions 2 and 3 have about twice the wavelength”. The factor is $10000^{2/d}$.
#
# One article writes the score with $s_t$, and $s_{t-1}$ in the text beside it. Bahdanau's is of $s_{t-1}$, Luong's of
# $s_t$ (lesson *alignment*).

# %% tags=["folded"]
rows = []
for place, d in enumerate(DIMS):
    spread = (f"{spread_by_root[place]:.3f}", f"{spread_by_square[place]:.6f}")
    entropy = (f"{entropy_by_root[place]:.3f}", f"{entropy_by_square[place]:.3f}")
    rows.append((d, *spread, *entropy))
table(
    "Spread of the scores, and entropy of the weights in nats",
    ("d", "spread, √d", "spread, d²", "entropy, √d", "entropy, d²"),
    rows,
)

# %% [markdown]
# ## Costs and quality
#
# - H: four mechanisms “have a complexity per layer of O(n) or better”. LSH sorts, strided has $n \sqrt{n}$ pairs,
#   Linformer needs fixed $k$.
# - H: of recurrent networks: $n d^2$, “making it less efficient than the Transformer”. Beyond $n = d$ they need
#   fewer operations, but one after another.
# - H: the Sparse Transformer, “used in the GPT-3 language model”, with patterns “strided and fixed”. GPT-3's layers
#   are dense and locally banded in turn.
# - H: $Q' (K'^T V)$ in the place of the softmax. The sum must be divided by $Q' (K'^T 1)$.
# - H: “where Q', K', and V are all in the same dimension”. The number of features and the size of values are free.
# - P: windows: “without sacrificing the ability to capture long-range dependencies within the data”. What is outside
#   of all windows is lost.
# - P: fewer key/value heads: “without diminishing the model's capacity to capture complex data relationships”. The
#   fewer, the higher the loss.
# - H: one key/value head: “faster decoding with minimal quality degradation”. P is right: “this approach can lead to
#   quality degradation”.
#
# If all four mechanisms were linear, 4 times the words would cost 4 times as much in each. For long texts a recurrent
# network needs fewer operations than attention, but each word waits for the one before.


# %% tags=["folded"]
def growth(counts):
    """How many times as much 4 times the words need."""
    return counts[-1] / counts[-2]


rows = []
for name, numbers in (
    ("full, causal: pairs", full_pairs),
    ("strided, causal, s = √n: pairs", strided_pairs),
    ("LSH: comparisons of a sort", sort_comparisons),
    ("linear: operations", linear_operations),
    ("Linformer, k = 16: pairs", fixed_k_pairs),
    ("Linformer, k = n / 4: pairs", growing_k_pairs),
):
    rows.append((name, *(f"{number:,}" for number in numbers), f"{growth(numbers):.1f} times"))
table(
    "What grows with the number of words n",
    ("counted", *(f"n = {n:,}" for n in LENGTHS), "4 times the words"),
    rows,
)

rows = []
for n, attention, recurrent in zip(LAYER_LENGTHS, attention_operations, recurrent_operations):
    rows.append((f"{n:,}", f"{attention:,}", f"{recurrent:,}"))
table(
    "Operations of a layer with d = 64",
    ("words n", "self-attention, 1 step", "recurrent, n steps"),
    rows,
)

# %% [markdown]
# GPT-3 has a context of 2,048 tokens. Its layers are dense and locally banded in turn; the paper does not say how wide
# the bands are. Here they have 256 tokens:

# %%
dense_pairs = p.Causal().count(2048, 2048)
banded_pairs = p.CausalWindow(256).count(2048, 2048)
share_in_turn = (dense_pairs + banded_pairs) / (2 * dense_pairs)
share_strided = strided_pattern(2048).count(2048, 2048) / dense_pairs
print(f"pairs that are kept: in turn {share_in_turn:.0%}, strided {share_strided:.0%}")

# %% [markdown]
# Linear attention: without the divisor, the output is the sum of so many values, not their mean. The features may have
# another size than the values:

# %%
long_q, long_k, long_v = normal(SEED, 3, 1, 1, 500, 16)  # (batch, heads, words, size) each
q_features = torch.nn.functional.elu(long_q) + 1
k_features = torch.nn.functional.elu(long_k) + 1
undivided = q_features @ (k_features.mT @ long_v)
divisor = q_features @ k_features.sum(2, keepdim=True).mT
linear_output = rg.attention(long_q, long_k, long_v, mechanism=m.LinearTransformer())
times_too_large = undivided.norm(dim=-1) / linear_output.norm(dim=-1)
print(f"without the divisor at least {times_too_large.min():,.0f} times too large")

few_values = rg.attention(long_q, long_k, long_v[..., :5], mechanism=m.Performer(features=40))
print("40 features, values of", few_values.shape[3])

# %% [markdown]
# What windows and fewer key/value heads cost was measured on trained models (lessons *choosing* and *grouped*):

# %% tags=["folded"]
recall_report = read_report("choosing")
recalled = {}  # the mean of three seeds
for name in ("all keys", "the last 64"):
    accuracies = recall_report.figures[name]["accuracy"]
    recalled[name] = sum(accuracies) / len(accuracies)
table(
    "Recall of what is far back",
    ("each query sees", "share recalled"),
    [(name, f"{share:.3f}") for name, share in recalled.items()],
)
print(recall_report.source)

heads_report = read_report("generation")
every_row = heads_report.figures["rows"]
bits = {8: sum(row["control"] for row in every_row) / len(every_row)}  # by key/value heads
for count in (4, 2, 1):
    of_seeds = [row["uptrained"] for row in every_row if row["kv_heads"] == count]
    bits[count] = sum(of_seeds) / len(of_seeds)
rows = [(count, f"{number:.3f}") for count, number in bits.items()]
table("Bits for each character (lower is better)", ("key/value heads", "bits"), rows)
print(heads_report.source)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
holds(
    "In causal attention a word influences itself and later words; earlier words and itself influence it.",
    influenced == [2, 3, 4, 5] and influencing == [0, 1, 2],
    f"word 2 of 6 influences {influenced}; position 2 is influenced by {influencing}",
)
holds(
    "In an encoder each output depends on every word, in a decoder on its own and the earlier words.",
    visible == {"full": [6] * 6, "causal": [1, 2, 3, 4, 5, 6]},
    f"of 6 words: {visible['full']} and {visible['causal']}",
)

holds(
    "Divided by the square root of d, scores have the same spread for every d.",
    all(abs(spread - 1) < 0.1 for spread in spread_by_root),
    f"{min(spread_by_root):.2f} to {max(spread_by_root):.2f} for d 4 to 256",
)
equal_weights = math.log(WORDS)  # their entropy
holds(
    "Divided by the square of d, scores vanish and all words get equal weights.",
    spread_by_square[-1] < 0.01 and abs(entropy_by_square[-1] - equal_weights) < 1e-3,
    f"spread {spread_by_square[-1]:.6f}, entropy {entropy_by_square[-1]:.4f} of at most "
    f"{equal_weights:.4f}",
)

ratios = waves[1:] / waves[:-1]
holds(
    "For d = 48 each wave is 10000^(2/48) times as long as the one before, not twice.",
    largest(ratios - 10000 ** (2 / 48)) < 1e-3 and ratios.max() < 2,
    f"{ratios.min():.3f} to {ratios.max():.3f}; the factor is 2 for d = {2 * math.log2(10000):.1f}",
)
shortest = 2 * math.pi
longest = 10000 * 2 * math.pi
holds(
    "The waves go from 2π towards 10000 · 2π.",
    abs(waves[0] / shortest - 1) < 1e-3 and 0.6 < waves[-1] / longest < 1,
    f"{waves[0]:.2f} to {waves[-1]:,.0f}; 10000 · 2π is {longest:,.0f}",
)

causal = rg.attention_detail(q, k, k, pattern="causal", want=["weights"]).weights[0, 0]
same_ways = largest(mask_after(near) - mask_before(near)) < 1e-12
holds(
    "Masking after the softmax and dividing by the remaining sum gives the same weights as minus "
    "infinity before it, and as regard's “causal”.",
    same_ways and largest(mask_before(near) - causal) < 1e-12,
    ROUNDING,
)
first_after = mask_after(far)[0]
first_before = mask_before(far)[0]
holds(
    "The two ways of masking differ if every visible weight rounds to 0: masking after the softmax "
    "divides 0 by 0.",
    first_after.isnan().any() and float(first_before.sum()) == 1,
    "a masked score 200 above the others, in float32",
)

holds(
    "A query that is equal to a key gives weight to every other key too; with scores 100 times as "
    "large, attention is a look-up.",
    0 < look_up[1].min() and look_up[1].max() < 0.9 and look_up[100][2] > 0.999,
    f"the weight of the equal key is {look_up[1][2]:.2f}, then {look_up[100][2]:.4f}",
)
holds(
    "The learned numbers are those of the projections; there are more queries for more words.",
    learned_numbers == 4 * (16 * 16 + 16) and numbers_of_queries == [3 * 16, 30 * 16],
    f"{learned_numbers} learned; {numbers_of_queries[0]} and {numbers_of_queries[1]} of queries",
)
holds(
    "A layer returns one vector for each word.",
    vectors_of_output == [3, 30],
    f"{vectors_of_output[0]} for 3 words, {vectors_of_output[1]} for 30",
)
holds(
    "Each head reads every number of a word, and each number of the output depends on every head.",
    numbers_read == 16 and numbers_mixed == 16,
    f"{numbers_read} and {numbers_mixed} of 16 numbers",
)
holds(
    "A context vector has the same length for a short and for a long source.",
    context_sizes == [8, 8],
    f"{context_sizes[0]} numbers for 3 words, {context_sizes[1]} for 30",
)

linear = growth(linear_operations)
fixed_k = growth(fixed_k_pairs)
holds(
    "For 4 times the words, linear attention needs 4 times the operations, and Linformer with a "
    "fixed k 4 times the pairs.",
    linear == 4 and fixed_k == 4,
    f"{linear:.1f} and {fixed_k:.1f} times",
)
growing_k = growth(growing_k_pairs)
full = growth(full_pairs)
holds(
    "Linformer needs 16 times the pairs if k grows with the length, and full attention about as "
    "many.",
    growing_k == 16 and 15 < full < 16.5,
    f"k = n / 4: {growing_k:.1f} times; full: {full:.1f} times",
)
lsh = growth(sort_comparisons)
strided = growth(strided_pairs)
holds(
    "Sorting for LSH needs more than 4 times the comparisons, and strided patterns about 8 times "
    "the pairs.",
    4 < lsh < 6 and 7 < strided < 9,
    f"{lsh:.2f} and {strided:.2f} times",
)
one_round = cost_of(m.LSH(chunk=16, buckets=256, rounds=1), 4096).pairs
eight_rounds = cost_of(m.LSH(chunk=16, buckets=256, rounds=8), 4096).pairs
holds(
    "Each round of LSH costs as much as the first: 8 rounds compute 8 times the pairs.",
    abs(eight_rounds / one_round / 8 - 1) < 0.02,
    f"{eight_rounds / one_round:.2f} times",
)

fewer = []  # for which lengths the recurrent layer needs fewer operations
for n, attention, recurrent in zip(LAYER_LENGTHS, attention_operations, recurrent_operations):
    if recurrent < attention:
        fewer.append(n)
holds(
    "A recurrent layer needs fewer operations than self-attention for more than d words.",
    fewer == [n for n in LAYER_LENGTHS if n > 64],
    f"d = 64: fewer for {', '.join(str(n) for n in fewer)} words",
)
attention_steps = [count_steps("attention", n, SEED)["steps"] for n in (16, 256)]
recurrent_steps = [count_steps("recurrent", n, SEED)["steps"] for n in (16, 256)]
holds(
    "Self-attention computes all words in 1 step; the recurrent layer computes one word in each "
    "step.",
    attention_steps == [1, 1] and recurrent_steps == [16, 256],
    f"for 16 and 256 words {attention_steps} and {recurrent_steps} steps",
)

holds(
    "Layers that are dense and banded in turn keep more than half of the pairs, strided layers less "
    "than a tenth.",
    share_in_turn > 0.5 and share_strided < 0.1,
    f"{share_in_turn:.0%} and {share_strided:.0%} of the causal pairs of 2,048 tokens",
)
holds(
    "Without the divisor, linear attention over 500 words is more than 500 times too large; divided, "
    "it is regard's.",
    times_too_large.min() > 500 and largest(undivided / divisor - linear_output) < 1e-12,
    f"{times_too_large.min():,.0f} to {times_too_large.max():,.0f} times; divided, {ROUNDING}",
)
holds(
    "The number of features and the size of the values are free.",
    few_values.shape == (1, 1, 500, 5),
    f"queries of 16 numbers, 40 features, outputs of {few_values.shape[3]}",
)
holds(
    "Windows lose what is far back: a trained model recalls less than a tenth of it.",
    recalled["the last 64"] < 0.1 and recalled["all keys"] > 0.9,
    f"report: {recalled['the last 64']:.3f} with the last 64 keys, {recalled['all keys']:.3f} with all",
)
holds(
    "The fewer key/value heads a trained model has, the more bits a character needs.",
    bits[8] < bits[4] < bits[2] < bits[1],
    f"report: {bits[8]:.3f} with 8, {bits[4]:.3f} with 4, {bits[1]:.3f} with 1",
)


def cross_weights(states, words):
    """The weights of an encoder's words for a decoder's states, (states, words)."""
    return rg.attention_detail(states, words, words, want=["weights"]).weights[0, 0]


def changed_rows(weights, changed_weights):
    """Which rows of the weights differ."""
    distances = (changed_weights - weights).abs().amax(-1)  # (rows,)
    return (distances > 1e-6).nonzero().flatten().tolist()


states = normal(SEED, 1, 1, 3, 8)  # of a decoder, (batch, heads, length, size)
words = normal(SEED + 1, 1, 1, 5, 8)  # of an encoder
weights = cross_weights(states, words)
holds(
    "The decoder's states are the queries: each gets one row of weights over the encoder's words.",
    weights.shape == (3, 5),
    f"{len(weights)} × {weights.shape[1]} weights for 3 states and 5 words",
)
other_states = states.clone()
other_states[:, :, 1] = 0
other_words = words.clone()
other_words[:, :, 1] = 0
rows_by_state = changed_rows(weights, cross_weights(other_states, words))
rows_by_word = changed_rows(weights, cross_weights(states, other_words))
holds(
    "Replacing a state of the decoder changes only its own row; replacing a word of the encoder "
    "changes every row.",
    rows_by_state == [1] and rows_by_word == [0, 1, 2],
    f"rows {rows_by_state} and {rows_by_word}, counted from 0",
)

first_row = cross_weights(q, k)[0]  # of one head
positive = int((first_row > 0).sum())
as_many_equal = float(torch.special.entr(first_row).sum().exp())
holds(
    "One head gives every word a weight above 0.",
    positive == WORDS,
    f"{positive} of 12 words, the least {float(first_row.min()):.4f}; their entropy is that of "
    f"{as_many_equal:.1f} equal weights",
)

same_parameters = parameters[8, 64] == parameters[1, 512]
same_flops = flops[8, 64] == flops[1, 512]
holds(
    "Eight heads of d / 8 numbers cost as much as one head of d; eight heads of d cost 8 times as "
    "much.",
    same_parameters and same_flops and flops[8, 512] == 8 * flops[1, 512],
    f"{flops[8, 512] / flops[8, 64]:.0f} times the operations",
)
holds(
    "In cross-attention lengths and sizes of both sequences may differ.",
    output.shape == x.shape,
    f"queries {list(x.shape)} with a context {list(context.shape)} give {list(output.shape)}",
)

three = torch.zeros(1, 1, 3, 8)  # (batch, heads, length, size)
refusals = []
for k, v in ((three[..., :6], three), (three, three[:, :, :2])):
    try:
        rg.attention(three, k, v)
    except ShapeError as error:
        refusals.append(error)
holds(
    "The size of a head in q and k, and the length of k and v, must match: regard refuses others.",
    len(refusals) == 2,
    "8 and 6 numbers; 3 keys and 2 values",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, WHOLE_NUMBERS, exercise


@exercise(
    "Six words are counted from 0, and attention is causal. Which words influence the output at "
    "position 3?",
    WHOLE_NUMBERS,
    hint="Position 3 may look at itself and at the words before it.",
    answer="0 1 2 3",
)
def influencing_position_3(places):
    measured = []
    for word in range(6):
        if 3 in moved_by(word, "causal"):
            measured.append(word)
    holds("These words do.", places == measured, f"{measured}, you say {places}")


@exercise(
    "By which factor is each wave of sinusoidal positions longer than the one before, for $d = 48$?",
    NUMBER,
    hint="$10000^{2 / d}$, which is not 2.",
    answer="1.468",
)
def factor_of_waves(factor):
    measured = float(waves[1] / waves[0])
    holds(
        "By this factor.",
        abs(factor - measured) < 0.01,
        f"{measured:.3f}, you say {factor:g}",
    )


# %% [markdown]
# Sources: Vaswani et al. 2017, sections 3.2.1, 3.2.2, 3.5 and 4, table 1; Bahdanau et al. 2015, section 3.1; Luong et
# al. 2015, section 3; Kitaev et al. 2020, section 2; Wang et al. 2020, table 1; Child et al. 2019, section 4.3; Brown
# et al. 2020, section 2.1; Katharopoulos et al. 2020, section 3.2.
