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
from regard_lab.seeing.canvas import KEY, QUERY
from regard_lab.teaching import (
    ROUNDING, draw_cells, draw_map, embedded, figure, holds, largest, normal, scale_beside, seeded, table
)  # fmt: skip

WORDS = ("a", "red", "ball", "on", "green", "grass", "under", "a", "blue", "sky")
THINGS = {"sky": "#56B4E9", "ball": "#D55E00", "grass": "#009E73"}  # what a cell can show, and its colour
HEIGHT, WIDTH, CHANNELS, CONTEXT_DIM, HEADS = 12, 16, 32, 48, 2
NOISE, SHARPNESS = 0.1, 5.0  # of the cells; how much the score of the right word exceeds that of a random one

# The picture: sky above, grass below, a ball between. Each cell is the vector of its thing, and noise.
down, right = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
picture = torch.where(down < HEIGHT // 2, 0, 2).masked_fill((down - 6.5) ** 2 + (right - 5.5) ** 2 < 12, 1)
vectors = normal(SEED + 1, len(THINGS), CHANNELS)
image = (vectors[picture] + NOISE * normal(SEED + 2, HEIGHT, WIDTH, CHANNELS)).permute(2, 0, 1)[None]
cells = image.flatten(2).mT  # (batch, height * width, channels)
words = embedded(WORDS, CONTEXT_DIM, SEED)  # (batch, words, context_dim)

# A random layer, whose query projection maps the vector of each thing to a multiple of the key of its word.
layer = seeded(SEED, rg.MultiHeadAttention, CHANNELS, HEADS, context_dim=CONTEXT_DIM, projection_bias=False)
named = torch.tensor([WORDS.index(thing) for thing in THINGS])
keys = layer.to_k(words)[0, named].unflatten(1, (HEADS, -1)).detach()  # (things, heads, head_dim)
wanted = keys / keys.square().sum(-1, keepdim=True) * SHARPNESS * math.sqrt(layer.head_dim)
layer.to_q.weight.data = (torch.linalg.pinv(vectors) @ wanted.flatten(1)).mT

with rg.record_attention(layer) as recording:
    output = layer(cells, context=words)
per_head = recording[""][0].weights  # (batch, heads, height * width, words)
weights = per_head[0].mean(0).detach()

with figure("From the cells of an image to the words of a sentence", 7.9, 3.0,
            "Each blue map shows how much weight the cells give to one word. The cells of the sky look at “sky”, "
            "those of the ball at “ball”, those of the grass at “grass”.") as drawing:  # fmt: skip
    panels = drawing.subplots(2, 6)
    shown, *maps = [panels[0, 0], *panels[0, 1:], *panels[1, 1:]]
    draw_cells(shown, picture, list(THINGS.values()), "equal")
    shown.set_title("cells: queries", fontsize=9, color=QUERY)
    panels[1, 0].set_axis_off()
    panels[1, 0].text(0.5, 0.95, "words: keys\nand values", fontsize=9, color=KEY, ha="center", va="top")
    for thing, x, y in (("sky", 12, 2), ("ball", 5.5, 6.5), ("grass", 11.5, 9)):
        shown.text(x, y, thing, ha="center", va="center", fontsize=8.5)
    for axes, word, column in zip(maps, WORDS, weights.T):
        drawn = draw_map(axes, column.unflatten(0, (HEIGHT, WIDTH)))
        axes.set_title(f"“{word}”", fontsize=9.5, color=KEY, fontweight="bold" if word in THINGS else "normal")
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
prompt = torch.randn(1, 10, 48)  # (batch, words, context_dim)
y = layer_of_image(grid.flatten(2).mT, context=prompt)  # (batch, height * width, channels)
print(tuple(y.mT.unflatten(2, (12, 16)).shape))  # an image again

# %% [markdown]
# Nothing in the figure is trained. Its query projection is computed: a cell of the sky gets a query similar to the
# key of “sky”, and likewise for ball and grass. Keys, values and the noise of the cells are random.

# %% tags=["folded"]
meanings = {
    "queries": ("batch, height * width, channels", cells), "context": ("batch, words, context_dim", words),
    "weights": ("batch, heads, height * width, words", per_head), "output": ("batch, height * width, channels", output),
}  # fmt: skip
rows = [(name, axes, " × ".join(map(str, tensor.shape))) for name, (axes, tensor) in meanings.items()]
table("Shapes", ("tensor", "axes", "here"), rows)
things = picture.flatten()  # what each cell shows
rows = [
    (thing, *(f"{weight:.2f}" for weight in weights[things == number].mean(0))) for number, thing in enumerate(THINGS)
]
table("Mean weight of each word for the cells that show a thing", ("cells of", *WORDS), rows)

# %% [markdown]
# Cell 3 and word 3 have nothing in common, so “earlier” has no meaning between them. regard refuses a pattern that
# compares their positions:

# %%
refusal = ""
try:
    layer(cells, context=words, pattern="causal")
except UnsupportedError as error:
    refusal = str(error)
print(refusal)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
holds("The output has the image's shape, and the weights have a row for every cell and a column for every word.",
      output.shape == cells.shape and per_head.shape[2:] == (HEIGHT * WIDTH, len(WORDS)),
      f"cells of {CHANNELS} channels attend to words of {CONTEXT_DIM} numbers")  # fmt: skip
holds("The weights of each cell sum to 1.", largest(weights.sum(-1) - 1) < 1e-12, ROUNDING)
right_cells = int((weights.argmax(-1) == named[things]).sum())
holds("Every cell gives its largest weight to the word for what it shows.", right_cells == HEIGHT * WIDTH,
      f"{right_cells} of {HEIGHT * WIDTH} cells")  # fmt: skip
q, k, v = (
    one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (layer.to_q(cells), layer.to_k(words), layer.to_v(words))
)
heads = (q @ k.mT / math.sqrt(layer.head_dim)).softmax(-1) @ v
by_hand = layer.to_output(heads.transpose(1, 2).flatten(2))
holds("The layer computes the formula written out in PyTorch.", largest(by_hand - output) < 1e-12, ROUNDING)
order = torch.randperm(len(things), generator=torch.Generator().manual_seed(SEED))
holds("Cells are independent: shuffling the cells shuffles the outputs.",
      largest(layer(cells[:, order], context=words) - output[:, order]) < 1e-12, ROUNDING)  # fmt: skip
holds("The pattern “causal” between an image and a sentence is refused.", bool(refusal), refusal or "it was not")

# %% [markdown]
# Source: Vaswani et al. 2017, section 3.2.3; Rombach et al. 2022, section 3.3.
