# %% [markdown]
# # A head whose answers are known
#
# **Are the largest weights of a pretrained head right, and what does it need for that?**

# %% tags=["folded"]
import torch
from matplotlib.patches import Rectangle

from regard.patterns import SlidingWindow
from regard_lab.seeing.canvas import INK
from regard_lab.teaching import (
    Estimate, draw_curves, draw_map, every, figure, holds, label_axes, read_report, scale_beside, table,
)  # fmt: skip

report = read_report("answer_head")
found, shown, replaced = report.figures, report.figures["shown"], report.figures["replaced"]
layer, head, windows = found["layer"], found["head"], replaced["windows"]
chosen = torch.tensor(shown["weights"]).argmax(-1).tolist()
alike = [{*group} for group in shown["alike"]]  # reactant atoms that symmetry makes the same
same = [any({one, origin} <= group for group in ({one}, *alike)) for one, origin in zip(chosen, shown["origins"])]
right = sum(same)
distances = torch.tensor(found["distances"])  # from each product atom to its origin


def inside(window):
    """The share of product atoms whose origin is inside of the window around them."""
    return float(SlidingWindow(window).allows(distances, torch.zeros_like(distances)).double().mean())


def frame(row, column):
    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=1.6)


with figure("A head whose answers can be checked", 7.8, 7.2,
            f"Frames: where each atom came from; dots: the largest weight ({right} of {len(chosen)} right; atoms that "
            "symmetry makes the same count as one). Below: a window in the earlier layers loses few right answers, a "
            "window in the head's own layer nearly all of them.") as drawing:  # fmt: skip
    above, below = drawing.subfigures(2, 1, height_ratios=(1.15, 1))
    weights, heads = above.subplots(1, 2, width_ratios=(1.3, 1))
    image = draw_map(weights, torch.tensor(shown["weights"]), shown["product"], shown["reactants"])
    for atom, origin in enumerate(shown["origins"]):
        weights.add_patch(frame(atom, origin))
    weights.plot(chosen, range(len(chosen)), "o", color="#D55E00", markersize=4)
    weights.set_xlabel("Weights to the atoms of the reactants", fontsize=10, color=INK)
    weights.set_ylabel("atom of the product", fontsize=9, color=INK)
    draw_map(heads, torch.tensor(found["shares"]))
    heads.set_xticks(range(8))
    heads.set_yticks(range(12))
    label_axes(heads, "Share of right atoms", "head", "layer")
    heads.add_patch(frame(layer, head))
    scale_beside(above, image, heads, "weight, or share of right atoms")
    hurt = below.subplots()
    curves = {
        "window in the earlier layers": [row["before"] for row in windows],
        "window in the head's layer": [row["own_layer"] for row in windows],
        "origins inside of the window": [inside(row["window"]) for row in windows],
    }
    hurt.axhline(replaced["own"], color=INK, linestyle="--", linewidth=1, label="no window")
    draw_curves(hurt, [row["window"] for row in windows], curves,
                ("Where a window hurts", "window", "share of right atoms"), log="x")  # fmt: skip
    hurt.set_ylim(0, 1.03)

# %% [markdown]
# For most models nobody knows the right attention weights. For a model of chemical reactions they are known: each atom
# of the product came from one atom of the reactants. RXNMapper is an encoder with 12 layers of 8 heads. It was trained
# to predict masked symbols of 1.3 million reactions, and was never told where atoms come from. Yet in layer 10, head 5,
# counted from 0, a product atom $i$ gives its largest weight to the atom that it came from:
#
# $$
# \text{origin}(i) = \operatorname{argmax}_j \, α_{i j}
# $$
#
# The weights of the picture are in the report:

# %%
for atom, row, origin, right_one in zip(shown["product"], shown["weights"], shown["origins"], same):
    choice = max(range(len(row)), key=row.__getitem__)
    remark = "" if choice == origin else f"symmetric to {origin}" if right_one else f"wrong: it came from {origin}"
    print(atom, "<-", shown["reactants"][choice], choice, remark)

# %% [markdown]
# More reactions were checked, with product atoms whose origins are certain:

# %% tags=["folded"]
atoms = len(distances)
print(f"{len(found['reactions'])} reactions with {atoms} product atoms")
print(f"layer {layer}, head {head} is right for {found['head_share']:.0%} of them")
print(f"all 96 heads are right for {found['mean_share']:.0%} on average")
print(f"the i-th product atom came from the i-th reactant atom in {found['by_place']:.0%}")

# %% [markdown]
# All layers of this model share their weights. So head 5 is the same head in each of them, and it is right more often
# in the higher ones.
#
# ## What the head needs
#
# Now parts of the attention are removed, without a change of the model's weights. regard does it while the model runs:
#
# ```python
# from regard.integrations.transformers import observe, change_attention
#
# with change_attention(model, layers=range(10), pattern="sliding_window(8) | global_tokens(0)"):
#     with observe(model, "weights", layers=10, heads=5) as observed:
#         model(ids)
# ```
#
# With a window in the ten earlier layers most answers stay right. So most of what the head needs about an atom comes
# from the atom's neighbours. In the head's own layer a window hides the answers: they are far away, on the other side
# of the arrow.

# %% tags=["folded"]
table(f"Right product atoms with windows (without: {replaced['own']:.1%})",
      ("window", "origins inside", "window in the earlier layers", "in the head's layer", "in all layers"),
      [(row["window"], f"{inside(row['window']):.1%}", *(f"{row[name]:.1%}" for name in ("before", "own_layer", "all")))
       for row in windows])  # fmt: skip

# %% [markdown]
# A head that may look at no key returns zeros. So a head or a layer can be removed by a pattern:

# %% tags=["folded"]
for without, shares in (
    ("one head of layers 0 to 9", {f"head {at}": share for at, share in enumerate(replaced["without_head"])}),
    ("all heads of one layer", {f"layer {at}": share for at, share in enumerate(replaced["without_layer"])}),
    ("most heads of layers 0 to 9", {f"{row['heads']} left": row["share"] for row in replaced["heads_kept"]}),
):
    table(f"Right product atoms without {without}", list(shares), [[f"{share:.1%}" for share in shares.values()]])
print(report.source)

# %% [markdown]
# ## Claims


# %% tags=["claims"]
def share(value):
    return Estimate.share(value, atoms)


holds("The head finds the origins of more than nine of ten product atoms.", share(found["head_share"]).above(0.9),
      f"{share(found['head_share'])} of {atoms}; the mean of all heads is {found['mean_share']:.3f}")  # fmt: skip
first, last = share(found["shares"][0][head]), share(found["shares"][-1][head])
holds("The same weights are right more often in the last layer than in the first.", last.above(first),
      f"{last} and {first}")  # fmt: skip
holds("The head does not count positions: assigning the i-th product atom to the i-th reactant atom is right far less "
      "often.",
      share(found["head_share"]).above(share(found["by_place"]).times(2)), f"{share(found['by_place'])}")  # fmt: skip
counted = next(row for row in found["reactions"] if row["right"] < row["atoms"])
holds("The weights in the picture choose as many right atoms as the report counted for this reaction.",
      right == counted["right"], f"{right} and {counted['right']} of {counted['atoms']}")  # fmt: skip
narrow = {row["window"]: (share(row["before"]), share(row["own_layer"])) for row in windows if row["window"] in (8, 16)}
holds("With narrow windows in the earlier layers more than three quarters of the answers stay right; with narrow "
      "windows in the head's own layer less than a quarter.",
      every(*(verdict for before, own in narrow.values() for verdict in (before.above(0.75), own.below(0.25)))),
      "; ".join(f"window {size}: {before} and {own}" for size, (before, own) in narrow.items()))  # fmt: skip
apart = max(abs(row["own_layer"] - inside(row["window"])) for row in windows)
holds("A window in the head's own layer leaves about as many right answers as there are origins inside of the window.",
      apart < 0.1, f"at most {apart:.1%} of the atoms apart")  # fmt: skip
alone = min(map(share, replaced["without_head"]), key=lambda one: one.value)
holds("No single head of the earlier layers is needed for more than a quarter of the answers.", alone.above(0.75),
      f"without one of them at least {alone}")  # fmt: skip
one_left = share(replaced["heads_kept"][-1]["share"])
holds("Together the heads are needed: with one head left in each of these layers more than a third of the answers is "
      "lost.",
      one_left.below(0.67), f"{one_left}")  # fmt: skip

# %% [markdown]
# Source: Schwaller et al. 2021, Extraction of organic chemistry grammar from unsupervised learning of chemical
# reactions.
