# %% [markdown]
# # A picture that follows its caption
#
# **How do the words of a caption determine a picture through cross-attention?**

# %% tags=["parameters"]
TEXT = "a red circle left of a blue square"
SEED = 0

# %% tags=["folded"]
import torch

import regard as rg
from regard import patterns as p
from regard_lab.teaching import (
    ROUNDING,
    Estimate,
    draw_map,
    every,
    figure,
    holds,
    largest,
    normal,
    read_report,
    scale_beside,
    table,
)
from regard_lab.teaching.captions import (
    MOST_WORDS,
    SCENES,
    SIDE,
    Caption,
    nearest_scenes,
    read_caption,
    word_numbers,
)
from regard_lab.teaching.denoiser import GRID, PATCH, STEPS, load_denoiser, sample

PARTS = ("colour", "shape", "relation")
PICTURES = 3  # of each caption

model = load_denoiser()
captions = [read_caption(TEXT)]
changes = ["the caption"]
for part in PARTS:
    edited, old_word, new_word = captions[0].change_word(part)
    captions.append(edited)
    changes.append(f"{old_word} → {new_word}")

noise = normal(SEED, PICTURES, 3, SIDE, SIDE)  # the same for each caption
numbers, counts = word_numbers(captions)  # (captions, MOST_WORDS) and (captions,)
with rg.record_attention(model) as recording:
    stages = sample(
        model,
        noise.repeat(len(captions), 1, 1, 1),
        numbers.repeat_interleave(PICTURES, 0),
        counts.repeat_interleave(PICTURES, 0),
    )
pictures = stages[-1].unflatten(0, (len(captions), PICTURES))  # (captions, PICTURES, 3, SIDE, SIDE)


# %% tags=["folded"]
def draw_picture(axes, picture, title=""):
    """Draw a picture, (3, SIDE, SIDE)."""
    pixels = (picture.permute(1, 2, 0) / 2 + 0.5).clamp(0, 1)
    axes.imshow(pixels.numpy(), interpolation="nearest")
    axes.set_title(title, fontsize=8.5)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#999999")


columns = [noise, *pictures]
titles = ["noise"]
for change, caption in zip(changes, captions):
    first_thing = " ".join(caption.first)
    second_thing = " ".join(caption.second)
    titles.append(f"{change}\n\na {first_thing}\n{caption.relation}\na {second_thing}")

text = "Each row begins with the same noise. Only the caption differs from column to column."
with figure("One word changes, and the picture follows", 7.8, 5.6, text) as drawing:
    for row, panels in enumerate(drawing.subplots(PICTURES, len(columns))):
        for axes, column, title in zip(panels, columns, titles):
            draw_picture(axes, column[row], title if row == 0 else "")

# %% [markdown]
# A model that draws what a text says learns to remove noise. It gets a noisy picture and its caption, and estimates the
# picture without noise. To draw, it starts with noise alone and removes it in small steps:

# %% tags=["folded"]
steps = (0, 4, 8, 11, 13, STEPS)
text = f"The first picture above, after some of its {STEPS} steps."
with figure("From noise to a picture", 7.8, 1.8, text) as drawing:
    for axes, step in zip(drawing.subplots(1, len(steps)), steps):
        draw_picture(axes, stages[step][0], "noise" if step == 0 else f"step {step}")

# %% [markdown]
# In each block of the model the patches of the picture attend to each other, then to the words of the caption. The
# queries come from the picture, the keys and values from the text. The caption reaches the picture only here:
#
# $$
# x' = x + \operatorname{softmax}\left(\frac{q_{\text{picture}} k_{\text{words}}^\top}{\sqrt{d}}\right) v_{\text{words}}
# $$
#
# In regard this is one layer and a pattern that ends each caption after its last word:

# %%
x = torch.randn(2, 36, 64)  # patches of two pictures, (batch, patches, dim)
words = torch.randn(2, 8, 32)  # two captions, (batch, words, context_dim)
to_words = rg.MultiHeadAttention(dim=64, heads=4, context_dim=32)
spoken = p.KeySpan(0, torch.tensor([8, 7]))  # 8 words, and 7
x = x + to_words(x, context=words, pattern=spoken)
silent = to_words(x, context=words, pattern=p.KeySpan(0, 0))  # no words: only the output bias
print("without words:", (silent - to_words.to_output.bias).abs().max().item())

# %% [markdown]
# The weights show which word each patch looks at:

# %% tags=["folded"]
caption = captions[0]
details = [*recording["blocks.0.to_words"], *recording["blocks.1.to_words"]]
weights = torch.stack([detail.weights for detail in details])
weights = weights.mean((0, 2))  # over steps, blocks and heads
weights = weights.unflatten(0, (len(captions), PICTURES)).mean(1)  # (captions, patches, words)
maps = weights[0].T.unflatten(1, (GRID, GRID))  # of the first caption, (words, GRID, GRID)

# %% tags=["folded"]
title = f"Where the {GRID} × {GRID} patches look"
text = f"The weight of each word of “{caption}”, for every patch of its pictures."
with figure(title, 7.8, 4.2, text) as drawing:
    panels = drawing.subplots(2, MOST_WORDS // 2)
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, word, values in zip(panels.flat, caption.words, maps):
        axes.set_axis_on()
        image = draw_map(axes, values, limits=(0.0, float(maps.max())))
        axes.spines[:].set(visible=True, color="#bbbbbb")
        axes.set_aspect("equal")
        axes.set_title(word, fontsize=10)
    scale_beside(drawing, image, panels, "weight")

# %% [markdown]
# The weights do not show everything: the words attend to each other before the patches read them, so the vector of a
# word depends on the other words too. Patches without a thing look at words such as “of” and “a”.
#
# ## Does the picture show the caption?
#
# The model is small: pictures of 12 × 12 pixels with two things each. To decide what a drawn picture shows, it is
# compared with the true picture of every possible caption; the nearest one counts. A sixth of the scenes was held out
# from training. The model can draw them only if it has learned what each word means by itself.

# %% tags=["folded"]
report = read_report("caption")
figures = report.figures
print(
    f"{figures['parameters']:,} parameters, trained in {figures['cpu_seconds']} seconds of CPU "
    f"time; without cross-attention in {figures['without_cpu_seconds']} seconds"
)
print(
    f"{len(SCENES)} scenes, {figures['held_out_scenes']} of them held out; this caption "
    f"{'was' if caption.held_out else 'was not'} held out"
)


def halves(caption):
    """Rows and columns of the half of the picture with the first thing, and of the other half."""
    whole = slice(0, SIDE)
    near = slice(0, SIDE // 2)
    far = slice(SIDE // 2, SIDE)
    if caption.relation in ("right of", "below"):
        near, far = far, near
    if caption.relation in ("left of", "right of"):
        return [(whole, near), (whole, far)]
    return [(near, whole), (far, whole)]


right = []  # pictures of each caption that show it
rows = []
for edited, some_pictures in zip(captions, pictures):
    scenes = nearest_scenes(some_pictures)
    right.append(sum(scene == edited.scene for scene in scenes))
    moved = []  # in both halves
    for y, x in halves(caption):
        change = (some_pictures - pictures[0])[..., y, x].square().mean()
        moved.append(f"{change:.3f}")
    rows.append((edited, f"{right[-1]} of {PICTURES}", *moved))
table(
    f"{PICTURES} pictures of each caption; mean squared change from the first caption",
    (
        "caption",
        "pictures that show it",
        "change where the first thing was",
        "change in the other half",
    ),
    rows,
)

GIVEN = {
    "held out": "its own caption, held out in training",
    "colour changed": "… with another colour word",
    "shape changed": "… with another shape word",
    "relation changed": "… with the opposite relation",
    "another caption": "the caption of another picture",
    "no caption": "no caption",
    "no cross-attention": "a model without cross-attention",
}
shares = figures["shares"]
rows = []
for name, text in GIVEN.items():
    rows.append((text, *(f"{share:.1%}" for share in shares[name].values())))
table(
    f"Share of {figures['pictures']} pictures that show what the caption says",
    ("given", "all", "relation", "both colours", "both shapes"),
    rows,
)
print(report.source)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
all_right = {}  # shares of pictures in which the whole caption is right
for name in GIVEN:
    all_right[name] = Estimate.share(shares[name]["all"], figures["pictures"])
holds(
    "Pictures show what their captions say, for pairs of things that were held out from training.",
    all_right["held out"].above(0.95),
    f"{all_right['held out']} of the pictures; chance is 1 in {len(SCENES)}",
)

with_edits = {part: all_right[f"{part} changed"] for part in PARTS}
holds(
    "If one word changes, the picture from the same noise shows the changed caption.",
    every(*(share.above(0.95) for share in with_edits.values())),
    ", ".join(f"{part} {share}" for part, share in with_edits.items()),
)

ignoring = [all_right[name] for name in ("another caption", "no caption", "no cross-attention")]
most = max(ignoring, key=lambda share: share.value)
holds(
    "With another caption, without a caption or without cross-attention, pictures do not show the "
    "caption.",
    every(*(share.below(0.05) for share in ignoring)),
    f"at most {most}",
)
holds(
    "At least 10 of the 12 pictures drawn here show their captions.",
    sum(right) >= 10,
    f"{sum(right)} of {PICTURES * len(captions)}",
)

is_twice = []
own_weights = []  # in the half of each thing: the weight of its own colour and shape,
other_weights = []  # and of those of the other thing
for edited, grid in zip(captions, weights.unflatten(1, (GRID, GRID))):
    second = len(edited.words) - 2  # the place of the second thing's colour; its shape follows
    for thing, (y, x) in enumerate(halves(edited)):
        rows = slice(y.start // PATCH, y.stop // PATCH)
        columns = slice(x.start // PATCH, x.stop // PATCH)
        by_word = grid[rows, columns].mean((0, 1))  # (words,)
        by_thing = [float(by_word[1:3].sum()), float(by_word[second : second + 2].sum())]
        own_weights.append(by_thing[thing])
        other_weights.append(by_thing[1 - thing])
        is_twice.append(own_weights[-1] > 2 * other_weights[-1])
holds(
    "Patches read the words of the thing in their half: its colour and shape get at least twice "
    "the weight of those of the other thing.",
    all(is_twice),
    f"at least {min(own_weights):.2f} against at most {max(other_weights):.2f}",
)

seven_words = Caption(caption.first, "above", caption.second)  # “left of” is one word more
with rg.record_attention(model) as recording_of_seven:
    sample(model, noise, *word_numbers([seven_words] * PICTURES), steps=1)
weights_of_seven = recording_of_seven["blocks.0.to_words"][0].weights  # (..., patches, words)
holds(
    "The weights of each patch sum to 1, and no weight goes to words after the end of the caption.",
    largest(weights.sum(-1) - 1) < 1e-12 and largest(weights_of_seven[..., 7]) == 0,
    ROUNDING,
)
holds(
    "Without words, cross-attention adds only its output bias.",
    largest(silent - to_words.to_output.bias) < 1e-12,
    f"{ROUNDING}: a row with no key has the output zero",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, WHOLE_NUMBERS, exercise


@exercise(
    "A picture of 12 × 12 pixels is cut into patches of 2 × 2, and its caption has 8 words. How many "
    "rows and columns does the matrix of cross-attention weights have? Type two numbers.",
    WHOLE_NUMBERS,
    hint="The queries come from the picture, the keys from the text.",
    answer="36 8",
)
def shape_of_the_weights(shape):
    measured = [*recording["blocks.0.to_words"][0].weights.shape[2:]]
    holds("It has this shape.", shape == measured, f"{measured}, you say {shape}")


@exercise(
    "A patch is not allowed to look at any word. Which number does its attention return, before the "
    "output bias is added?",
    NUMBER,
    hint="It is a sum of no values.",
    answer="0",
)
def without_words(number):
    bias = to_words.to_output.bias
    patches = torch.zeros(1, 36, 64)  # (batch, patches, dim)
    one_caption = torch.zeros(1, 8, 32)  # (batch, words, context_dim)
    measured = largest(to_words(patches, context=one_caption, pattern=p.KeySpan(0, 0)) - bias)
    holds("It returns this.", abs(number - measured) < 1e-6, f"{measured:g}, you say {number:g}")


# %% [markdown]
# Source: Rombach et al. 2022, section 3.3; Ho et al. 2020; Song et al. 2021.
