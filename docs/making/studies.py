"""Pages and parts of pages that show committed reports: written again from the numbers that are stored with them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.complexity import report as complexity_report
from benchmarks.complexity.results import CostTable
from docs.making.rendering import table
from docs.making.speed import RESULTS
from regard.arguments import count_of
from regard_lab.bench import Results
from regard_lab.bench import report as bench_report
from regard_lab.seeing.lens_study import LensReport
from regard_lab.seeing.lens_study.study import lens_table, routes_table

BENCHES = ("attention_cpu", "attention_cuda", "bench_zen4_cpu", "mechanisms_cpu", "runtimes_cpu")
# Counts by law, by command and by machine: many, and in the file.
COUNTED_APART = ("law ", "regard ", "as ")
MOST_COUNTS = 3
ATOMS = "atom_maps_cpu/atom_maps.json"


def stored(name: str) -> Any:
    """The numbers of a report."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def report_pages() -> dict[str, str]:
    """The text of every report whose numbers are stored, by its path from docs/."""
    pages = {}
    for name in BENCHES:
        pages[f"{name}/bench.md"] = bench_report.render_markdown(Results.load(RESULTS / name))
    costs = CostTable.load(RESULTS / "complexity_cpu")
    pages["complexity_cpu/complexity.md"] = complexity_report.render_markdown(costs)
    pages["lenses_cpu/lenses.md"] = "\n".join(_lenses().markdown()) + "\n"
    return {f"../benchmarks/results/{name}": text for name, text in pages.items()}


def _lenses() -> LensReport:
    return LensReport.load(RESULTS / "lenses_cpu")


def lenses() -> str:
    """Every lens, and what the columns mean."""
    return "\n".join(lens_table(_lenses().rows)) + f"\n\n{_lenses().legend}"


def lens_verdict() -> str:
    """The default lens beside raw attention, in sentences."""
    shares = {
        name: f"{row['order']:.1%} and {row['cause']:.1%}" for name, row in _lenses().rows.items()
    }
    return (
        "Two shares of the verified sentences are measured: the referent has a larger relevance than the other noun, "
        "and the word with the largest relevance belongs to the cause (it is the referent or the adjective). Erasure "
        f"reaches {shares['erase']}; integrated gradients {shares['gradients']}; raw cross-attention while the pronoun "
        f"is written, in its best head, {shares['cross_head']}; raw attention of *it*, in its best encoder head, "
        f"{shares['it']}; random relevance {shares['random']}. As a reference, swapping a noun, with the German so far "
        f"unchanged, reaches {_lenses().rows['swap']['order']:.1%} for the first share."
    )


def families() -> str:
    """A row for each family: what its attention is, whether it works, and how far numbers differ."""
    rows = []
    for row in stored("pretrained_families_cpu/families.json")["families"]:
        name = "Falcon with ALiBi" if row["name"] == "Falcon" else row["name"]
        cells = [name, row["attention"], row["status"]]
        if "reason" in row:
            _, _, reason = row["reason"].partition("regard would never be ")
            _, _, why = reason.partition(": ")
            cells += [why.partition(";")[0], "", ""]
        else:
            logits = max(row["logits"].values())
            cells += [f"{logits:.0e}", f"{row['gradients']:.0e}", _tokens_of(row)]
        rows.append(cells)
    return table("family | attention | status | logits | gradients | generation", rows)


def _tokens_of(row: dict[str, Any]) -> str:
    """Whether a family generates the tokens of eager attention; an empty text if it does not generate."""
    is_same = row["tokens"].values()
    if not is_same:
        return ""
    return "the same tokens" if all(is_same) else "other tokens"


def families_compared() -> str:
    """What was compared, in sentences."""
    compared = stored("pretrained_families_cpu/families.json")
    working = [row for row in compared["families"] if "reason" not in row]
    paddings = max((row["logits"] for row in working), key=len)
    ways = set()
    without_padding = []
    for row in working:
        ways |= set(row["tokens"])
        without_padding += row.get("control", {}).values()
    return (
        "Compared are tiny random models of {count} families, with weights so large that attention is not uniform, in "
        "{sizes[rows]} batch rows of {sizes[length]} ids, of which half are padded ({padded}). The table shows the "
        "largest difference from eager attention at any position that is not padding. Tolerances: "
        "{tolerances[logits]:.0e} for logits, and {tolerances[gradients]:.0e} for gradients, relative to the norm of a "
        "parameter's gradient. Generated tokens are compared with: {ways}. In all models every attention module called "
        "regard. As a control, the padding is ignored on purpose: the smallest difference then is {dropped:.1f}. "
        "torch {versions[torch]}, transformers {versions[transformers]}."
    ).format(
        **compared,
        count=len(compared["families"]),
        padded=", ".join(name for name in paddings if name != "none"),
        ways=", ".join(sorted(ways)),
        dropped=min(without_padding),
    )


# What the report does not say of an architecture whose result depends on its config.
DEPENDS = {"falcon": "with rotary positions; with ALiBi it is refused"}


def architectures() -> str:
    """A row for each architecture: what happened, and why."""
    rows = []
    for row in stored("pretrained_families_cpu/architectures.json")["architectures"]:
        if row["status"] == "not built":
            rows.append((row["type"], "", row["status"], f"``{row['reason']}``"))
            continue
        if "reason" in row:
            remarks = [_cause(row["reason"])]
        else:
            remarks = [*row.get("outside", ())]
            if row["type"] in DEPENDS:
                remarks.append(DEPENDS[row["type"]])
        rows.append((row["type"], row["class"], row["status"], "; ".join(remarks)))
    return table("architecture | built as | result | what stays outside, or why", rows)


def _cause(reason: str) -> str:
    """Why a model is refused, without its name and the way out."""
    never_called = "regard would never be called: "
    no_layer = "has no attention layer that regard could compute"
    if never_called in reason:
        return reason.partition(never_called)[2].rpartition("; ")[0]
    if no_layer in reason:
        return "no attention layer" + reason.partition(no_layer)[2].rpartition("; ")[0]
    return reason.partition("; nothing was changed")[0]


def architectures_compared() -> str:
    """How many architectures were compared, with what result."""
    compared = stored("pretrained_families_cpu/architectures.json")
    rows = compared["architectures"]
    versions = compared["versions"]
    counts = Counter(row["status"] for row in rows)
    largest = max(row.get("far", 0.0) for row in rows)
    reasons = [row["reason"] for row in rows if row["status"] == "refused"]
    without = sum("has no attention layer" in reason for reason in reasons)
    return (
        f"transformers {versions['transformers']} lists {len(rows)} architectures. {counts['not built']} "
        f"could not be built small, since their configs do not fit together or a package is missing. Of the others "
        f"{counts['equal']} give the numbers of their eager attention, and {counts['equal, parts outside']} more do so "
        f"with parts that stay outside; {counts['refused'] - without} are refused for the reasons below, and {without} "
        f"are refused because they have no attention layer; {counts['not compared']} are attached and were not "
        f"compared, because no inputs here fit them. The largest difference is "
        f"{largest:.0e} of the norm of an output; at most 1e-4 counts as equal. Each "
        f"model got four rows of fourteen ids, one of them padded and one with another last word, or images, sounds or "
        f"others. {_gradients_compared(rows)} "
        f"torch {versions['torch']}."
    )


def _gradients_compared(rows: list[dict[str, Any]]) -> str:
    """In how many architectures gradients were compared, with what result."""
    compared = [row for row in rows if "gradients" in row]
    rounded = [row for row in compared if "gradients in double" in row]
    largest = max(row["gradients"] for row in compared if row not in rounded)
    sentence = (
        f"In {len(compared)} of them gradients were compared too: those of the outputs, each times a random number, "
        f"added, by every parameter, by inputs that are numbers, and by the embeddings of ids. In "
        f"{len(compared) - len(rounded)} they differ by at most {largest:.0e} of their norm, or of a thousandth of the "
        f"largest one in the model (float32)"
    )
    if rounded:
        names = ", ".join(row["type"] for row in rounded)
        farther = max(row["gradients"] for row in rounded)
        in_double = max(row["gradients in double"] for row in rounded)
        sentence += (
            f"; in {names} by up to {farther:.0e}, which is rounding: in float64 they differ by at "
            f"most {in_double:.0e}"
        )
    return sentence + "."


def atoms() -> str:
    """A row for each reaction."""
    rows = []
    for row in stored(ATOMS)["reactions"]:
        right = f"{row['right']} of {row['atoms']}"
        rows.append((row["name"], f"``{row['smiles']}``", right))
    return table("reaction | written as | product atoms that find their own", rows)


def atom_verdict() -> str:
    """The shares, in a paragraph."""
    report = stored(ATOMS)
    return (
        "Layer {layer}, head {head}, counted from 0: {head_share:.1%} of {total} product atoms of {count} reactions "
        "give their largest weight to the atom that they came from; with the weights of both directions added, "
        "{both_ways:.1%}. The 96 heads of the model reach {mean_share:.1%} on average, and the best of them on these "
        "reactions, layer {best[0]}, head {best[1]}, {best_share:.1%}. Assigning the i-th product atom to the i-th "
        "reactant atom is right for {by_place:.1%}. Weights through regard differ from those of eager attention by at "
        "most {difference:.0e}."
    ).format(
        **report,
        total=sum(row["atoms"] for row in report["reactions"]),
        count=len(report["reactions"]),
    )


def atom_windows() -> str:
    """A row for each window: the share of right atoms with it in the layers before the head, or in its own."""
    replaced = stored(ATOMS)["replaced"]
    unchanged = f"{replaced['own']:.1%}"
    rows = [["none", unchanged, unchanged, unchanged]]
    for row in replaced["windows"]:
        shares = [f"{row[layers]:.1%}" for layers in ("before", "own_layer", "all")]
        rows.append([row["window"], *shares])
    return table("window | in the earlier layers | in the head's own layer | in all layers", rows)


def atom_erased() -> str:
    """The shares without heads or layers, in a paragraph."""
    replaced = stored(ATOMS)["replaced"]
    heads = replaced["without_head"]
    layers = replaced["without_layer"]
    fewest = min(heads[:8])
    fewer_heads = []
    for row in replaced["heads_kept"]:
        fewer_heads.append(f"{count_of(row['heads'], 'heads')} {row['share']:.1%}")
    return (
        f"If the same head is removed from all of the layers 0 to {stored(ATOMS)['layer'] - 1}, {fewest:.1%} "
        f"(head {heads.index(fewest)}) to {max(heads):.1%} of the atoms are right; if all heads of one of "
        f"these layers are removed, {min(layers):.1%} (layer {layers.index(min(layers))}) to {max(layers):.1%}. With "
        f"fewer heads left in each of these layers: {', '.join(fewer_heads)}."
    )


def reliability() -> str:
    """A row for each run: what it shows, what was counted, and when."""
    rows = []
    for name, record in stored("reliability.json")["runs"].items():
        unit = record["unit"]
        if record["cases"] == 1:
            unit = unit.replace("parts", "part")
        few = f" of {record['asked']:,}" if record["cases"] < record["asked"] else ""
        cases = f"{record['cases']:,}{few} {unit}"

        counted = []
        for what, count in sorted(record["counts"].items(), key=lambda entry: -entry[1]):
            if not what.startswith(COUNTED_APART):
                counted.append(f"{count:,} {what}")
        counted = ", ".join(counted[:MOST_COUNTS])
        rows.append((name, record["claim"], cases, counted, len(record["wrong"]), record["last"]))
    return table("run | what it shows | cases | counted | wrong | date", rows)


def reliability_summary() -> str:
    """How much was run."""
    runs = stored("reliability.json")["runs"]
    minutes = sum(record["cpu_seconds"] for record in runs.values()) / 60
    return f"The {len(runs)} runs took {minutes:.0f} minutes of CPU time in all."


PARTS: dict[str, Callable[[], str]] = {
    "lens-summary": lambda: "\n\n".join(_lenses().summary()),
    "lens-routes": lambda: "\n".join(routes_table(_lenses().routes)),
    "lens-table": lenses,
    "lens-verdict": lens_verdict,
    "families-table": families,
    "families-compared": families_compared,
    "architectures-table": architectures,
    "architectures-compared": architectures_compared,
    "atom-table": atoms,
    "atom-verdict": atom_verdict,
    "atom-windows": atom_windows,
    "atom-erased": atom_erased,
    "reliability-runs": reliability,
    "reliability-summary": reliability_summary,
}
