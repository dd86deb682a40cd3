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
    ROUNDING, Estimate, draw_map, every, figure, holds, largest, normal, read_report, scale_beside, table,
)  # fmt: skip
from regard_lab.teaching.captions import (
    GRID, MOST_WORDS, PATCH, SCENES, SIDE, STEPS, Caption, load_denoiser, read_caption, sample, shown, word_numbers,
)  # fmt: skip

PARTS, PICTURES = ("colour", "shape", "relation"), 3
caption, model, report = read_caption(TEXT), load_denoiser(), read_report("caption")
edits = [caption.changed(part) for part in PARTS]  # (caption, old word, new word)
captions = [caption, *(edited for edited, _, _ in edits)]
noise = normal(SEED, PICTURES, 3, SIDE, SIDE)  # the same for each caption
words, counts = (numbers.repeat_interleave(PICTURES, 0) for numbers in word_numbers(captions))
with rg.record_attention(model) as recording:
    stages = sample(model, noise.repeat(len(captions), 1, 1, 1), words, counts)
pictures = stages[-1].unflatten(0, (len(captions), PICTURES))


def draw_picture(axes, picture, title=""):
    axes.imshow((picture.permute(1, 2, 0) / 2 + 0.5).clamp(0, 1).numpy(), interpolation="nearest")
    axes.set_title(title, fontsize=8.5)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#999999")


def in_lines(one):
    return "\n".join(["a " + " ".join(one.first), one.relation, "a " + " ".join(one.second)])


with figure("One word changes, and the picture follows", 7.8, 5.6,
            "Each row begins with the same noise. Only the caption "
            "differs from column to column.") as drawing:  # fmt: skip
    changes = ["the caption", *(f"{old} → {new}" for _, old, new in edits)]
    columns = [noise, *pictures]
    titles = ["noise", *(f"{change}\n\n{in_lines(one)}" for change, one in zip(changes, captions))]
    for row, panels in enumerate(drawing.subplots(PICTURES, len(columns))):
        for axes, column, title in zip(panels, columns, titles):
            draw_picture(axes, column[row], title if row == 0 else "")

# %% [markdown]
# A model that draws what a text says learns to remove noise. It gets a noisy picture and its caption, and estimates the
# picture without noise. To draw, it starts with noise alone and removes it in small steps:

# %% tags=["folded"]
with figure("From noise to a picture", 7.8, 1.8,
            f"The first picture above, after some of its {STEPS} steps.") as drawing:  # fmt: skip
    steps = (0, 4, 8, 11, 13, STEPS)
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
patches, context = torch.randn(2, 36, 64), torch.randn(2, 8, 32)  # two pictures; captions of 8 and of 7 words
reads = rg.MultiHeadAttention(dim=64, heads=4, context_dim=32)
patches = patches + reads(patches, context=context, pattern=p.KeySpan(0, torch.tensor([8, 7])))
silent = reads(patches, context=context, pattern=p.KeySpan(0, 0))  # no words: only the output bias is added
print("without words:", (silent - reads.to_output.bias).abs().max().item())

# %% [markdown]
# The weights show which word each patch looks at:

# %% tags=["folded"]
details = [*recording["blocks.0.to_words"], *recording["blocks.1.to_words"]]
weights = torch.stack([detail.weights for detail in details]).mean((0, 2))  # over steps, blocks and heads
weights = weights.unflatten(0, (len(captions), PICTURES)).mean(1)  # (captions, patches, words)
looked = weights[0].T.unflatten(1, (GRID, GRID))

with figure(f"Where the {GRID} × {GRID} patches look", 7.8, 4.2,
            f"The weight of each word of “{caption}”, for every patch of its pictures.") as drawing:  # fmt: skip
    panels = drawing.subplots(2, MOST_WORDS // 2)
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, word, values in zip(panels.flat, caption.words, looked):
        axes.set_axis_on()
        image = draw_map(axes, values, limits=(0.0, float(looked.max())))
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
print(f"{report.figures['parameters']:,} parameters, trained in {report.figures['cpu_seconds']} seconds of CPU time; "
      f"without cross-attention in {report.figures['without_cpu_seconds']} seconds")  # fmt: skip
print(f"{len(SCENES)} scenes, {report.figures['held_out_scenes']} of them held out; this caption "
      f"{'was' if caption.held_out else 'was not'} held out")  # fmt: skip


def halves(one):
    """Rows and columns of the half of the picture where the first thing is, and of the other half."""
    near, far, whole = slice(0, SIDE // 2), slice(SIDE // 2, SIDE), slice(0, SIDE)
    order = (near, far) if one.relation in ("left of", "above") else (far, near)
    return [(whole, half) if one.relation in ("left of", "right of") else (half, whole) for half in order]


right = [sum(scene == one.scene for scene in shown(row)) for row, one in zip(pictures, captions)]
moved = [[float((row - pictures[0])[..., y, x].square().mean()) for y, x in halves(caption)] for row in pictures]
table(f"{PICTURES} pictures of each caption; mean squared change from the first caption",
      ("caption", "pictures that show it", "change where the first thing was", "change in the other half"),
      [(one, f"{found} of {PICTURES}", *(f"{change:.3f}" for change in both))
       for one, found, both in zip(captions, right, moved)])  # fmt: skip
shares = report.figures["shares"]
given = {
    "held out": "its own caption, held out in training", "colour changed": "… with another colour word",
    "shape changed": "… with another shape word", "relation changed": "… with the opposite relation",
    "another caption": "the caption of another picture", "no caption": "no caption",
    "no cross-attention": "a model without cross-attention",
}  # fmt: skip
table(f"Share of {report.figures['pictures']} pictures that show what the caption says",
      ("given", "all", "relation", "both colours", "both shapes"),
      [(text, *(f"{share:.1%}" for share in shares[name].values())) for name, text in given.items()])  # fmt: skip
print(report.source)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
all_right = {name: Estimate.share(row["all"], report.figures["pictures"]) for name, row in shares.items()}
edited = {part: all_right[f"{part} changed"] for part in PARTS}
ignoring = [all_right[name] for name in ("another caption", "no caption", "no cross-attention")]
holds("Pictures show what their captions say, for pairs of things that were held out from training.",
      all_right["held out"].above(0.95),
      f"{all_right['held out']} of the pictures; chance is 1 in {len(SCENES)}")  # fmt: skip
holds("If one word changes, the picture from the same noise shows the changed caption.",
      every(*(share.above(0.95) for share in edited.values())),
      ", ".join(f"{part} {share}" for part, share in edited.items()))  # fmt: skip
holds("With another caption, without a caption or without cross-attention, pictures do not show the caption.",
      every(*(share.below(0.05) for share in ignoring)),
      f"at most {max(ignoring, key=lambda share: share.value)}")  # fmt: skip
holds("At least 10 of the 12 pictures drawn here show their captions.", sum(right) >= 10,
      f"{sum(right)} of {PICTURES * len(captions)}")  # fmt: skip
read = []  # for each thing of each caption: the weight of its own colour and shape in its half, and of the other's
for one, grid in zip(captions, weights.unflatten(1, (GRID, GRID))):
    for thing, (y, x) in enumerate(halves(one)):
        here = grid[y.start // PATCH : y.stop // PATCH, x.start // PATCH : x.stop // PATCH].mean((0, 1))
        named = [here[1:3].sum(), here[len(one.words) - 2 : len(one.words)].sum()]
        read.append((float(named[thing]), float(named[1 - thing])))
holds("Patches read the words of the thing in their half: its colour and shape get at least twice the weight of those "
      "of the other thing.",
      all(own > 2 * other for own, other in read),
      f"at least {min(own for own, _ in read):.2f} against at most {max(other for _, other in read):.2f}")  # fmt: skip
seven = [Caption(caption.first, "above", caption.second)] * PICTURES  # captions of seven words
with rg.record_attention(model) as ended:
    sample(model, noise, *word_numbers(seven), steps=1)
holds("The weights of each patch sum to 1, and no weight goes to words after the end of the caption.",
      largest(weights.sum(-1) - 1) < 1e-12 and largest(ended["blocks.0.to_words"][0].weights[..., 7]) == 0,
      ROUNDING)  # fmt: skip
holds("Without words, cross-attention adds only its output bias.", largest(silent - reads.to_output.bias) < 1e-12,
      f"{ROUNDING}: a row with no key has the output zero")  # fmt: skip

# %% [markdown]
# Source: Rombach et al. 2022, section 3.3; Ho et al. 2020; Song et al. 2021.
