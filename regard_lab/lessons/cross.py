# %% [markdown]
# # Cross-attention
#
# **How does one sequence attend to another of a different length and size?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import math

import torch

import regard as rg
from regard.errors import UnsupportedError
from regard_lab.seeing.palette import KEY, LINES, QUERY
from regard_lab.teaching import (
    ROUNDING,
    draw_cells,
    draw_map,
    embedded,
    figure,
    holds,
    largest,
    normal,
    scale_beside,
    seeded,
    table,
)

WORDS = ("a", "red", "ball", "on", "green", "grass", "under", "a", "blue", "sky")
THINGS = {"sky": LINES[5], "ball": LINES[1], "grass": LINES[2]}  # with their colours
HEIGHT = 12  # of the image, in cells
WIDTH = 16
CHANNELS = 32  # numbers of a cell
CONTEXT_DIM = 48  # numbers of a word
HEADS = 2
NOISE = 0.1  # of the cells
SHARPNESS = 5.0  # how much the score of the right word exceeds that of a random one

# The picture: sky above, grass below, a ball between.
row, column = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
sky_and_grass = torch.where(row < HEIGHT // 2, 0, 2)
in_ball = (row - 6.5) ** 2 + (column - 5.5) ** 2 < 12
picture = sky_and_grass.masked_fill(in_ball, 1)  # the number of a thing for each cell

# Each cell is the vector of its thing, and noise.
vectors = normal(SEED + 1, len(THINGS), CHANNELS)
noise = NOISE * normal(SEED + 2, HEIGHT, WIDTH, CHANNELS)
image = (vectors[picture] + noise).permute(2, 0, 1)[None]  # (batch, channels, height, width)
x = image.flatten(2).mT  # (batch, height * width, channels)
c = embedded(WORDS, CONTEXT_DIM, SEED)  # (batch, words, context_dim)

# A random layer, whose query projection maps the vector of each thing to a multiple of the key of
# its word.
layer = seeded(
    SEED,
    rg.MultiHeadAttention,
    CHANNELS,
    HEADS,
    context_dim=CONTEXT_DIM,
    projection_bias=False,
)
places = torch.tensor([WORDS.index(thing) for thing in THINGS])
keys = layer.to_k(c)[0, places].unflatten(1, (HEADS, -1)).detach()  # (things, heads, head_dim)
lengths_squared = keys.square().sum(-1, keepdim=True)
queries = keys / lengths_squared * SHARPNESS * math.sqrt(layer.head_dim)
layer.to_q.weight.data = (torch.linalg.pinv(vectors) @ queries.flatten(1)).mT

with rg.record_attention(layer) as recording:
    z = layer(x, context=c)
per_head = recording[""][0].weights  # (batch, heads, height * width, words)
weights = per_head[0].mean(0).detach()  # of both heads, (height * width, words)

# %% tags=["folded"]
caption = (
    "Each blue map shows how much weight the cells give to one word. The cells of the sky look at "
    "“sky”, those of the ball at “ball”, those of the grass at “grass”."
)
title = "From the cells of an image to the words of a sentence"
with figure(title, 7.9, 3.0, caption) as drawing:
    panels = drawing.subplots(2, 6)

    of_cells = panels[0, 0]
    draw_cells(of_cells, picture, list(THINGS.values()), "equal")
    of_cells.set_title("cells: queries", fontsize=9, color=QUERY)
    for thing, right, down in (("sky", 12, 2), ("ball", 5.5, 6.5), ("grass", 11.5, 9)):
        of_cells.text(right, down, thing, ha="center", va="center", fontsize=8.5)

    note = panels[1, 0]
    note.set_axis_off()
    note.text(0.5, 0.95, "words: keys\nand values", fontsize=9, color=KEY, ha="center", va="top")

    maps = [*panels[0, 1:], *panels[1, 1:]]
    for axes, word, of_word in zip(maps, WORDS, weights.T):
        drawn = draw_map(axes, of_word.unflatten(0, (HEIGHT, WIDTH)))
        fontweight = "bold" if word in THINGS else "normal"
        axes.set_title(f"“{word}”", fontsize=9.5, color=KEY, fontweight=fontweight)
        axes.set_aspect("equal")
        axes.spines[:].set(visible=True, color="#cccccc")
    scale_beside(drawing, drawn, panels, "weight, mean of heads")

# %% [markdown]
# In cross-attention the queries come from one sequence $x$, the keys and values from another one, the context $c$. The
# projections map both to the size $d$ of a head:
#
# $$
# z = \operatorname{softmax}\left(\frac{(x W_q)(c W_k)^\top}{\sqrt{d}}\right) c W_v
# $$
#
# So both length and vector size may differ. Use it where one thing reads another: a decoder reads the source text, an
# image reads the words that describe it. An image is a sequence too: each cell is a vector of its channels.

# %%
layer_of_image = rg.MultiHeadAttention(dim=32, heads=2, context_dim=48)
grid = torch.randn(1, 32, 12, 16)  # (batch, channels, height, width)
cells = grid.flatten(2).mT  # (batch, height * width, channels)
prompt = torch.randn(1, 10, 48)  # (batch, words, context_dim)
output = layer_of_image(cells, context=prompt)  # (batch, height * width, channels)
print(tuple(output.mT.unflatten(2, (12, 16)).shape))  # an image again

# %% [markdown]
# Nothing in the figure is trained. Its query projection is computed: a cell of the sky gets a query similar to the
# key of “sky”, and likewise for ball and grass. Keys, values and the noise of the cells are random.

# %% tags=["folded"]
tensors = [
    ("queries", "batch, height * width, channels", x),
    ("context", "batch, words, context_dim", c),
    ("weights", "batch, heads, height * width, words", per_head),
    ("output", "batch, height * width, channels", z),
]
rows = [(name, axes, " × ".join(map(str, tensor.shape))) for name, axes, tensor in tensors]
table("Shapes", ("tensor", "axes", "here"), rows)

thing_of_cell = picture.flatten()  # (height * width,)
rows = []
for number, thing in enumerate(THINGS):
    mean_weights = weights[thing_of_cell == number].mean(0)
    rows.append((thing, *(f"{weight:.2f}" for weight in mean_weights)))
title = "Mean weight of each word for the cells that show a thing"
table(title, ("cells of", *WORDS), rows)

# %% [markdown]
# Cell 3 and word 3 have nothing in common, so “earlier” has no meaning between them. regard refuses a pattern that
# compares their positions:

# %%
refusal = ""
try:
    layer_of_image(cells, context=prompt, pattern="causal")
except UnsupportedError as error:
    refusal = str(error)
print(refusal)

# %% [markdown]
# ## Claims


# %% tags=["folded"]
def split_heads(vectors):
    """(batch, length, heads * head_dim) -> (batch, heads, length, head_dim)."""
    return vectors.unflatten(-1, (HEADS, -1)).transpose(1, 2)


q = split_heads(layer.to_q(x))
k = split_heads(layer.to_k(c))
v = split_heads(layer.to_v(c))
z_of_heads = (q @ k.mT / math.sqrt(layer.head_dim)).softmax(-1) @ v
by_hand = layer.to_output(z_of_heads.transpose(1, 2).flatten(2))

right_cells = int((weights.argmax(-1) == places[thing_of_cell]).sum())

shuffled = torch.randperm(HEIGHT * WIDTH, generator=torch.Generator().manual_seed(SEED))
z_of_shuffled = layer(x[:, shuffled], context=c)

# %% tags=["claims"]
holds(
    "The output has the image's shape, and the weights have a row for every cell and a column for "
    "every word.",
    z.shape == x.shape and per_head.shape[2:] == (HEIGHT * WIDTH, len(WORDS)),
    f"cells of {CHANNELS} channels attend to words of {CONTEXT_DIM} numbers",
)
holds("The weights of each cell sum to 1.", largest(weights.sum(-1) - 1) < 1e-12, ROUNDING)
holds(
    "Every cell gives its largest weight to the word for what it shows.",
    right_cells == HEIGHT * WIDTH,
    f"{right_cells} of {HEIGHT * WIDTH} cells",
)
holds(
    "The layer computes the formula written out in PyTorch.",
    largest(by_hand - z) < 1e-12,
    ROUNDING,
)
holds(
    "Cells are independent: shuffling the cells shuffles the outputs.",
    largest(z_of_shuffled - z[:, shuffled]) < 1e-12,
    ROUNDING,
)
holds(
    "The pattern “causal” between an image and a sentence is refused.",
    bool(refusal),
    refusal or "it was not",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, WHOLE_NUMBERS, exercise


@exercise(
    "An image of 6 × 5 cells attends to a sentence of 7 words. How many rows and columns does "
    "the matrix of weights have? Type two numbers.",
    WHOLE_NUMBERS,
    hint="A row for each query, a column for each key.",
    answer="30 7",
)
def shape_of_the_weights(shape):
    queries = torch.zeros(1, 1, 6 * 5, 8)  # (batch, heads, cells, head_dim)
    words = torch.zeros(1, 1, 7, 8)
    measured = rg.attention_detail(queries, words, words, want=["weights"]).weights.shape[2:]
    holds("It has this shape.", shape == [*measured], f"{[*measured]}, you say {shape}")


@exercise(
    "A layer has `dim=32` and `context_dim=48`. How many weights does the projection of its keys have?",
    NUMBER,
    hint="Keys are made of the context, and all heads together have 32 numbers.",
    answer="1536",
)
def weights_of_the_key_projection(count):
    counted = layer_of_image.to_k.weight.numel()
    holds("It has that many.", count == counted, f"{counted:,}, you say {count:g}")


# %% [markdown]
# Source: Vaswani et al. 2017, section 3.2.3; Rombach et al. 2022, section 3.3.
