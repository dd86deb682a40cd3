# %% [markdown]
# # A head whose answers are known
#
# **Are the largest weights of a pretrained head right, and what does it need for that?**

# %% tags=["folded"]
import torch
from matplotlib.patches import Rectangle

from regard.patterns import SlidingWindow
from regard_lab.seeing.palette import INK, LINES
from regard_lab.teaching import (
    Estimate,
    draw_curves,
    draw_map,
    every,
    figure,
    holds,
    label_axes,
    read_report,
    scale_beside,
    table,
)

report = read_report("answer_head")
figures = report.figures
LAYER = figures["layer"]
HEAD = figures["head"]

picture = figures["shown"]  # one reaction
product = picture["product"]
reactants = picture["reactants"]
origins = picture["origins"]  # of each product atom the true reactant atom
alpha = torch.tensor(picture["weights"])  # (product atoms, reactant atoms)
chosen = alpha.argmax(-1).tolist()


def are_alike(atom, other_atom):
    """Are two reactant atoms the same, or made the same by symmetry?"""
    if atom == other_atom:
        return True
    return any(atom in group and other_atom in group for group in picture["alike"])


is_right = [are_alike(atom, origin) for atom, origin in zip(chosen, origins)]

replaced = figures["replaced"]
windows = replaced["windows"]
distances = torch.tensor(figures["distances"])  # from each product atom to its origin


def share_inside(window):
    """The share of product atoms whose origin is inside of the window around them."""
    inside = SlidingWindow(window).allows(distances, torch.zeros_like(distances))
    return float(inside.double().mean())


origins_inside = {row["window"]: share_inside(row["window"]) for row in windows}

# %% tags=["folded"]
caption = (
    f"Frames: where each atom came from; dots: the largest weight ({sum(is_right)} of "
    f"{len(chosen)} right; atoms that symmetry makes the same count as one). Below: a window in "
    "the earlier layers loses few right answers, a window in the head's own layer nearly all of "
    "them."
)


def frame(row, column):
    """An orange frame around a cell of a map."""
    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=LINES[1], linewidth=1.6)


with figure("A head whose answers can be checked", 7.8, 7.2, caption) as drawing:
    above, below = drawing.subfigures(2, 1, height_ratios=(1.15, 1))
    weights_axes, heads_axes = above.subplots(1, 2, width_ratios=(1.3, 1))
    image = draw_map(weights_axes, alpha, product, reactants)
    for atom, origin in enumerate(origins):
        weights_axes.add_patch(frame(atom, origin))
    weights_axes.plot(chosen, range(len(chosen)), "o", color=LINES[1], markersize=4)
    weights_axes.set_xlabel("Weights to the atoms of the reactants", fontsize=10, color=INK)
    weights_axes.set_ylabel("atom of the product", fontsize=9, color=INK)

    draw_map(heads_axes, torch.tensor(figures["shares"]))
    heads_axes.set_xticks(range(8))
    heads_axes.set_yticks(range(12))
    label_axes(heads_axes, "Share of right atoms", "head", "layer")
    heads_axes.add_patch(frame(LAYER, HEAD))
    scale_beside(above, image, heads_axes, "weight, or share of right atoms")

    windows_axes = below.subplots()
    windows_axes.axhline(replaced["own"], color=INK, linestyle="--", linewidth=1, label="no window")
    curves = {
        "window in the earlier layers": [row["before"] for row in windows],
        "window in the head's layer": [row["own_layer"] for row in windows],
        "origins inside of the window": list(origins_inside.values()),
    }
    labels = ("Where a window hurts", "window", "share of right atoms")
    draw_curves(windows_axes, list(origins_inside), curves, labels, log="x")
    windows_axes.set_ylim(0, 1.03)

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
for i, atom in enumerate(product):
    j = int(alpha[i].argmax())
    if j == origins[i]:
        remark = ""
    elif are_alike(j, origins[i]):
        remark = f"symmetric to {origins[i]}"
    else:
        remark = f"wrong: it came from {origins[i]}"
    print(atom, "<-", reactants[j], j, remark)

# %% [markdown]
# More reactions were checked, with product atoms whose origins are certain:

# %% tags=["folded"]
atoms = len(distances)
print(f"{len(figures['reactions'])} reactions with {atoms} product atoms")
print(f"layer {LAYER}, head {HEAD} is right for {figures['head_share']:.0%} of them")
print(f"all 96 heads are right for {figures['mean_share']:.0%} on average")
print(f"the i-th product atom came from the i-th reactant atom in {figures['by_place']:.0%}")

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
rows = []
for row in windows:
    window = row["window"]
    shares = [f"{row[place]:.1%}" for place in ("before", "own_layer", "all")]
    rows.append((window, f"{origins_inside[window]:.1%}", *shares))
table(
    f"Right product atoms with windows (without: {replaced['own']:.1%})",
    (
        "window",
        "origins inside",
        "window in the earlier layers",
        "in the head's layer",
        "in all layers",
    ),
    rows,
)

# %% [markdown]
# A head that may look at no key returns zeros. So a head or a layer can be removed by a pattern:


# %% tags=["folded"]
def table_without(removed, columns, shares):
    """Show the share of right atoms for each column."""
    table(f"Right product atoms without {removed}", columns, [[f"{share:.1%}" for share in shares]])


without_head = replaced["without_head"]
without_layer = replaced["without_layer"]
heads_kept = replaced["heads_kept"]
table_without(
    "one head of layers 0 to 9",
    [f"head {head}" for head in range(len(without_head))],
    without_head,
)
table_without(
    "all heads of one layer",
    [f"layer {layer}" for layer in range(len(without_layer))],
    without_layer,
)
table_without(
    "most heads of layers 0 to 9",
    [f"{row['heads']} left" for row in heads_kept],
    [row["share"] for row in heads_kept],
)
print(report.source)

# %% [markdown]
# ## Claims


# %% tags=["claims"]
def share_of_atoms(value):
    """A share of the product atoms, and its standard error."""
    return Estimate.share(value, atoms)


head_share = share_of_atoms(figures["head_share"])
holds(
    "The head finds the origins of more than nine of ten product atoms.",
    head_share.above(0.9),
    f"{head_share} of {atoms}; the mean of all heads is {figures['mean_share']:.3f}",
)

in_first_layer = share_of_atoms(figures["shares"][0][HEAD])
in_last_layer = share_of_atoms(figures["shares"][-1][HEAD])
holds(
    "The same weights are right more often in the last layer than in the first.",
    in_last_layer.above(in_first_layer),
    f"{in_last_layer} and {in_first_layer}",
)

by_place = share_of_atoms(figures["by_place"])
holds(
    "The head does not count positions: assigning the i-th product atom to the i-th reactant atom "
    "is right far less often.",
    head_share.above(by_place.times(2)),
    f"{by_place}",
)

with_a_mistake = [row for row in figures["reactions"] if row["right"] < row["atoms"]]
reaction = with_a_mistake[0]  # the one in the picture
holds(
    "The weights in the picture choose as many right atoms as the report counted for this "
    "reaction.",
    sum(is_right) == reaction["right"],
    f"{sum(is_right)} and {reaction['right']} of {reaction['atoms']}",
)

NARROW = (8, 16)
verdicts = []
shares = []
for row in windows:
    if row["window"] not in NARROW:
        continue
    in_earlier_layers = share_of_atoms(row["before"])
    in_own_layer = share_of_atoms(row["own_layer"])
    verdicts += [in_earlier_layers.above(0.75), in_own_layer.below(0.25)]
    shares.append(f"window {row['window']}: {in_earlier_layers} and {in_own_layer}")
holds(
    "With narrow windows in the earlier layers more than three quarters of the answers stay right; "
    "with narrow windows in the head's own layer less than a quarter.",
    every(*verdicts),
    "; ".join(shares),
)

apart = max(abs(row["own_layer"] - origins_inside[row["window"]]) for row in windows)
holds(
    "A window in the head's own layer leaves about as many right answers as there are origins "
    "inside of the window.",
    apart < 0.1,
    f"at most {apart:.1%} of the atoms apart",
)

least = share_of_atoms(min(without_head))
holds(
    "No single head of the earlier layers is needed for more than a quarter of the answers.",
    least.above(0.75),
    f"without one of them at least {least}",
)
one_left = share_of_atoms(heads_kept[-1]["share"])
holds(
    "Together the heads are needed: with one head left in each of these layers more than a third "
    "of the answers is lost.",
    one_left.below(0.67),
    f"{one_left}",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, exercise


@exercise(
    "`distances` holds, for each product atom, how far away its origin is. Compute the share of the "
    "atoms whose origin lies inside a window of 32 atoms, which has 16 on each side.",
    CODE,
    hint="The mean of booleans, read as 0 and 1, is a share.",
    answer="(distances.abs() <= 16).double().mean()",
)
def origins_inside_of_32(share):
    expected = share_inside(32)
    holds(
        "This is the share.",
        abs(float(share) - expected) < 1e-9,
        f"{expected:.3f}, yours {float(share):.3f}",
    )


@exercise(
    "How many of the 96 heads are right for more than half of the atoms?",
    CODE,
    hint="`figures['shares']` has a row for each layer, and a number for each head.",
    answer="(torch.tensor(figures['shares']) > 0.5).sum()",
)
def heads_above_one_half(count):
    counted = 0
    for shares in figures["shares"]:
        counted += sum(share > 0.5 for share in shares)
    holds("That many are.", int(count) == counted, f"{counted}, you say {int(count)}")


# %% [markdown]
# Source: Schwaller et al. 2021, Extraction of organic chemistry grammar from unsupervised learning of chemical
# reactions.
