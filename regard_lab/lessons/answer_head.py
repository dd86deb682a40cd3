"""Lesson: a head that is the answer: a pretrained head whose weights can be checked atom by atom, and what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from regard.arguments import count_of
from regard.patterns import SlidingWindow
from regard_lab.lessons.figures import INK, Axes, Figure, begin, draw_curves, draw_map, label_axes, scale_beside
from regard_lab.lessons.report import read_report
from regard_lab.lessons.taught import Claim, Estimate, Lecture, Settings, Table, every

NARROW = (8, 16)  # windows on which claims are made

CODE = """\
# from regard.integrations.transformers import attach, observe, replace_attention    the guide loads the model
# with replace_attention(model, layers=range(10), pattern="sliding_window(8) | global_tokens(0)"):
#     with observe(model, "weights", layers=10, heads=5) as observed:
#         model(ids)
from regard_lab.lessons.report import read_report

shown = read_report("answer_head").figures["shown"]  # weights of layer 10, head 5 for one reaction
for atom, row, origin in zip(shown["product"], shown["weights"], shown["origins"]):
    chosen = max(range(len(row)), key=row.__getitem__)
    print(atom, "<-", chosen, shown["reactants"][chosen], "right" if chosen == origin else f"it came from {origin}")"""


def teach(settings: Settings) -> Lecture:
    """Choose an origin for each product atom by the weights of the report, and read what other attention costs."""
    report = read_report("answer_head")
    figures = report.figures
    atoms = len(figures["distances"])
    numbers: dict[str, Any] = {
        **{name: figures[name] for name in ("layer", "head", "head_share", "mean_share", "by_place", "shares")},
        **{name: figures[name] for name in ("shown", "replaced", "reactions")},
        "atoms": atoms,
        "chosen": _chosen(figures["shown"]["weights"]),
        "inside": {row["window"]: _inside(figures["distances"], row["window"])
                   for row in figures["replaced"]["windows"]},
    }  # fmt: skip
    numbers["right"] = _right(figures["shown"], numbers["chosen"])
    return numbers, (
        "For most models the right attention weights are unknown. For a model of chemical reactions they are "
        "known: each atom of the product came from one atom of the reactants. RXNMapper, an encoder with 12 layers "
        "of 8 heads, was trained on 1.3 million reactions to predict masked symbols, and was never told where "
        f"atoms come from. Yet in layer {figures['layer']}, head {figures['head']}, counted from 0, a product "
        "atom gives its largest weight to the atom that it came from.",
        f"This is checked on {len(figures['reactions'])} reactions with {atoms} product atoms whose origins are "
        f"certain; atoms that are equivalent by symmetry count as one. The model's 96 heads are right for "
        f"{figures['mean_share']:.0%} of them on average. Its twelve layers share their weights, so it is the same "
        "head in all of them, and it is right more often in the higher ones.",
        "Then parts of the attention are removed, without changing the model's weights. With a window in the ten "
        "earlier layers most answers of the head stay right, so most of what these layers must tell it about an "
        "atom comes from the atom's neighbours. In the head's own layer a window hides the answers, which are far "
        "away, on the other side of the arrow. A head or a layer that may look at no key returns zeros.",
        f"{report.source} The weights in the picture are in the report too. Source: Schwaller et al. 2021, "
        "Extraction of organic chemistry grammar from unsupervised learning of chemical reactions.",
    )


def _chosen(weights: list[list[float]]) -> list[int]:
    """The reactant atom with the largest weight, for each product atom."""
    return torch.tensor(weights).argmax(-1).tolist()


def _right(shown: dict[str, Any], chosen: list[int]) -> int:
    """How many product atoms chose the atom that they came from, or one that symmetry makes the same."""
    groups = [{*group} for group in shown["alike"]]
    pairs = zip(chosen, shown["origins"], strict=True)
    return sum(one == origin or any({one, origin} <= group for group in groups) for one, origin in pairs)


def _inside(distances: list[int], window: int) -> float:
    """The share of product atoms whose origin is inside of a window, by the positions of both."""
    origins = torch.zeros(len(distances), dtype=torch.long)
    return float(SlidingWindow(window).allows(torch.tensor(distances), origins).double().mean())


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    replaced = numbers["replaced"]
    windows = tuple(
        (
            f"{row['window']}", f"{numbers['inside'][row['window']]:.1%}", f"{row['before']:.1%}",
            f"{row['own_layer']:.1%}", f"{row['all']:.1%}",
        )
        for row in replaced["windows"]
    )  # fmt: skip
    own = f"{replaced['own']:.1%}"
    heads, layers = replaced["without_head"], replaced["without_layer"]
    erased = (
        ("nothing", own),
        *((f"head number {head} of layers 0 to {len(layers) - 1}", f"{share:.1%}") for head, share in enumerate(heads)),
        *((f"all heads of layer {layer}", f"{share:.1%}") for layer, share in enumerate(layers)),
        *((f"all but {count_of(row['heads'], 'heads')} in each of layers 0 to {len(layers) - 1}", f"{row['share']:.1%}")
          for row in replaced["heads_kept"]),
    )  # fmt: skip
    yield Table(
        f"Right product atoms with windows (without: {own})",
        ("window", "origins inside", "window in the earlier layers", "in the head's layer", "in all layers"),
        windows,
    )
    yield Table("Right product atoms without heads or layers", ("without", "right"), erased)


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    atoms, replaced = numbers["atoms"], numbers["replaced"]

    def share(value: float) -> Estimate:
        return Estimate.share(value, atoms)

    narrow = [row for row in replaced["windows"] if row["window"] in NARROW]
    alone = [share(one) for one in replaced["without_head"]]
    shown = next(row for row in numbers["reactions"] if row["right"] < row["atoms"])
    few = min(replaced["heads_kept"], key=lambda row: row["heads"])
    yield Claim(
        "The head finds the origins of more than nine of ten product atoms.",
        share(numbers["head_share"]).above(0.9),
        f"{share(numbers['head_share'])} of {atoms}; the mean of all heads is {numbers['mean_share']:.3f}",
    )
    yield Claim(
        "The same weights are right more often in the last layer than in the first.",
        share(numbers["shares"][-1][numbers["head"]]).above(share(numbers["shares"][0][numbers["head"]])),
        f"{share(numbers['shares'][-1][numbers['head']])} and {share(numbers['shares'][0][numbers['head']])}",
    )
    yield Claim(
        "It does not count positions: assigning the i-th product atom to the i-th reactant atom is right far less "
        "often.",
        share(numbers["head_share"]).above(share(numbers["by_place"]).times(2)),
        f"{share(numbers['by_place'])}",
    )
    yield Claim(
        "The weights in the picture choose as many right atoms as the report counted for this reaction.",
        numbers["right"] == shown["right"],
        f"{numbers['right']} and {shown['right']} of {shown['atoms']}",
    )
    yield Claim(
        "With narrow windows in the earlier layers more than three quarters of the answers stay right; with "
        "narrow windows in the head's own layer less than a quarter.",
        every(
            *(share(row["before"]).above(0.75) for row in narrow),
            *(share(row["own_layer"]).below(0.25) for row in narrow),
        ),
        "; ".join(f"window {row['window']}: {share(row['before'])} and {share(row['own_layer'])}" for row in narrow),
    )
    yield Claim(
        "No single head of the earlier layers is needed for more than a quarter of the answers.",
        every(*(one.above(0.75) for one in alone)),
        f"without one of them at least {min(alone, key=lambda one: one.value)}",
    )
    yield Claim(
        "Together the heads are needed: with one head left in each of these layers more than a third of the "
        "answers is lost.",
        share(few["share"]).below(0.67),
        f"{share(few['share'])}",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "A head whose answers can be checked", 12.4, 4.6)
    weights, heads, windows = figure.subplots(1, 3, width_ratios=(1.25, 1, 1.25))
    _draw_weights(figure, weights, numbers)
    image = draw_map(heads, torch.tensor(numbers["shares"]))
    heads.set_xticks(range(8), [f"{head}" for head in range(8)])
    heads.set_yticks(range(12), [f"{layer}" for layer in range(12)])
    label_axes(heads, "Right atoms of each head", "head", "layer")
    heads.add_patch(_box(numbers["layer"], numbers["head"]))
    scale_beside(figure, image, heads, "share of right atoms")
    rows = numbers["replaced"]["windows"]
    sizes = [row["window"] for row in rows]
    windows.axhline(numbers["replaced"]["own"], color=INK, linestyle="--", linewidth=1, label="no window")
    curves = {
        "in the earlier layers": [row["before"] for row in rows],
        "in the head's layer": [row["own_layer"] for row in rows],
        "origins inside": [numbers["inside"][size] for size in sizes],
    }
    draw_curves(windows, sizes, curves, ("Where a window hurts", "window", "share of right atoms"), log="x")
    windows.set_ylim(0, 1.03)


def _draw_weights(figure: Figure, axes: Axes, numbers: dict[str, Any]) -> None:
    """The weights of one reaction; the origin of each product atom has a frame, its choice a dot."""
    shown = numbers["shown"]
    image = draw_map(axes, torch.tensor(shown["weights"]), shown["product"], shown["reactants"])
    for atom, origin in enumerate(shown["origins"]):
        axes.add_patch(_box(atom, origin))
    axes.plot(numbers["chosen"], range(len(numbers["chosen"])), "o", color="#d55e00", markersize=3.5)
    axes.set_title("Weights to the reactants", fontsize=10, color=INK)
    note = (
        f"frame: where the atom came from; dot: largest weight\n{numbers['right']} of {len(shown['origins'])} are "
        "right: atoms that symmetry makes\ninterchangeable count as one"
    )
    axes.set_xlabel(note, fontsize=8.5, color=INK)
    axes.set_ylabel("atom of the product", fontsize=9, color=INK)
    scale_beside(figure, image, axes, "weight")


def _box(row: int, column: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#d55e00", linewidth=1.6)
