"""The tables of the pages about models of transformers, from the committed reports."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from docs.making.measured import RESULTS
from regard.arguments import count_of


@cache
def report() -> dict[str, Any]:
    """The committed report of families."""
    return json.loads((RESULTS / "pretrained_families_cpu" / "families.json").read_text(encoding="utf-8"))


def families() -> str:
    """A row for each family: what its attention is, whether it works, and how far numbers differ."""
    lines = ["| family | attention | status | logits | gradients | generation |", "|---|---|---|---|---|---|"]
    for row in report()["families"]:
        head = f"| {row['name']} | {row['attention']} | {row['status']} |"
        if "reason" in row:
            why = row["reason"].partition("regard would never be ")[2].partition(": ")[2].partition(";")[0]
            lines.append(f"{head} {why} | | |")
            continue
        ways = row["tokens"]
        same = "the same tokens" if ways and all(ways.values()) else "other tokens" if ways else ""
        lines.append(f"{head} {max(row['logits'].values()):.0e} | {row['gradients']:.0e} | {same} |")
    return "\n".join(lines)


def compared() -> str:
    """What was compared, in sentences."""
    found = report()
    rows = found["families"]
    working = [row for row in rows if "reason" not in row]
    ways = sorted({way for row in working for way in row["tokens"]})
    paddings = max((row["logits"] for row in working), key=len)
    dropped = min(far for row in working for far in row.get("control", {}).values())
    return (
        f"Compared are tiny random models of {len(rows)} families, with weights so large that attention is not "
        f"uniform, in "
        f"{found['sizes']['rows']} batch rows of {found['sizes']['length']} ids, of which half are padded "
        f"({', '.join(name for name in paddings if name != 'none')}). The table shows the largest difference from "
        f"eager attention at any position that is not padding. Tolerances: {found['tolerances']['logits']:.0e} for "
        f"logits, and {found['tolerances']['gradients']:.0e} for gradients, relative to the norm of a parameter's "
        f"gradient. Generated tokens are compared with: {', '.join(ways)}. In all models every attention module "
        f"called regard. As a control, "
        f"the padding is ignored on purpose: the smallest difference then is {dropped:.1f}. "
        f"torch {found['versions']['torch']}, transformers {found['versions']['transformers']}."
    )


@cache
def swept() -> dict[str, Any]:
    """The committed report of every architecture."""
    return json.loads((RESULTS / "pretrained_families_cpu" / "architectures.json").read_text(encoding="utf-8"))


def architectures() -> str:
    """A row for each architecture that could be built: what happened, and the reasons."""
    lines = ["| architecture | built as | result | what stays outside, or why |", "|---|---|---|---|"]
    for row in swept()["architectures"]:
        if row["status"] != "not built":
            why = "; ".join(row.get("outside", ())) if "reason" not in row else _cause(row["reason"])
            lines.append(f"| {row['type']} | {row['class']} | {row['status']} | {why} |")
    return "\n".join(lines)


def _cause(reason: str) -> str:
    """Why a model is refused, without its name and the way out."""
    for before in ("regard would never be called: ", "has no attention layer that regard could compute"):
        if before in reason:
            start = "" if before.endswith(": ") else "no attention layer"
            return start + reason.partition(before)[2].rpartition("; ")[0]
    return reason.partition("; nothing was changed")[0]


def architectures_compared() -> str:
    """How many architectures were compared, with what result."""
    found = swept()
    counts = Counter(row["status"] for row in found["architectures"])
    far = max(row.get("far", 0.0) for row in found["architectures"])
    return (
        f"transformers {found['versions']['transformers']} lists {len(found['architectures'])} architectures. "
        f"{counts['not built']} could not be built small, since their configs do not fit together or a package is "
        f"missing. Of the others {counts['equal']} give the numbers of their eager attention, and "
        f"{counts['equal, parts outside']} more do so with parts that stay outside; {counts['refused']} are refused; "
        f"{counts['not compared']} are attached and were not compared, because no generic inputs fit them. The "
        f"largest difference is {far:.0e} of the norm of an output; at most 1e-4 counts as equal. Each model got four "
        f"rows of fourteen ids, one of them padded and one with another last word, or images or sounds. "
        f"torch {found['versions']['torch']}."
    )


@cache
def atoms() -> dict[str, Any]:
    """The committed report of the head that maps atoms."""
    return json.loads((RESULTS / "atom_maps_cpu" / "atom_maps.json").read_text(encoding="utf-8"))


def atom_table() -> str:
    """A row for each reaction."""
    lines = ["| reaction | written as | product atoms that find their own |", "|---|---|---|"]
    for row in atoms()["reactions"]:
        lines.append(f"| {row['name']} | ``{row['smiles']}`` | {row['right']} of {row['atoms']} |")
    return "\n".join(lines)


def atom_verdict() -> str:
    """The shares, in a paragraph."""
    found = atoms()
    total = sum(row["atoms"] for row in found["reactions"])
    return (
        f"Layer {found['layer']}, head {found['head']}, counted from 0: {found['head_share']:.1%} of {total} product "
        f"atoms of {len(found['reactions'])} reactions give their largest weight to the atom that they came from; with "
        f"the weights of both directions added, {found['both_ways']:.1%}. The 96 heads of the model reach "
        f"{found['mean_share']:.1%} on average, and the best of them on these reactions, layer {found['best'][0]}, "
        f"head {found['best'][1]}, {found['best_share']:.1%}. Assigning the i-th product atom to the i-th reactant "
        f"atom is right for {found['by_place']:.1%}. Weights through regard differ from those of eager "
        f"attention by at most {found['difference']:.0e}."
    )


def atom_windows() -> str:
    """A row for each window: the share of right atoms with it in the layers before the head, or in its own."""
    found = atoms()["replaced"]
    lines = ["| window | in the earlier layers | in the head's own layer | in all layers |", "|---|---|---|---|"]
    lines.append(f"| none | {found['own']:.1%} | {found['own']:.1%} | {found['own']:.1%} |")
    for row in found["windows"]:
        lines.append(f"| {row['window']} | {row['before']:.1%} | {row['own_layer']:.1%} | {row['all']:.1%} |")
    return "\n".join(lines)


def atom_erased() -> str:
    """The shares without heads or layers, in a paragraph."""
    found, layer = atoms()["replaced"], atoms()["layer"]
    heads, layers = found["without_head"], found["without_layer"]
    worst, least = min(range(8), key=heads.__getitem__), min(range(len(layers)), key=layers.__getitem__)
    kept = ", ".join(f"{count_of(row['heads'], 'heads')} {row['share']:.1%}" for row in found["heads_kept"])
    return (
        f"If the same head is removed from all of the layers 0 to {layer - 1}, {heads[worst]:.1%} (head {worst}) to "
        f"{max(heads):.1%} of the atoms are right; if all heads of one of these layers are removed, "
        f"{layers[least]:.1%} (layer {least}) to {max(layers):.1%}. With fewer heads left in each of these layers: "
        f"{kept}."
    )


PARTS: dict[str, Callable[[], str]] = {
    "families-table": families,
    "families-compared": compared,
    "architectures-table": architectures,
    "architectures-compared": architectures_compared,
    "atom-table": atom_table,
    "atom-verdict": atom_verdict,
    "atom-windows": atom_windows,
    "atom-erased": atom_erased,
}
