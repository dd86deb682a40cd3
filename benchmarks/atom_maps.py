"""Counts how many product atoms find their own by one attention head of RXNMapper, through regard.

python benchmarks/atom_maps.py

It then gives layers windows and erases heads and layers by change_attention, and counts again. ALBERT's layers share
one module; here each gets a copy of its own, so that each can have its own pattern.

Needs transformers and the files of rxnmapper (pip install --no-deps rxnmapper). The reactions, whose maps are certain,
are in tests/regard/integrations/atom_maps.py. Writes results/atom_maps_cpu/, of which a page of the documentation and
a lesson are made (python benchmarks/lesson_reports.py answer_head).
"""

import json
import sys
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "regard" / "integrations"))
import atom_maps as maps  # noqa: E402

from benchmarks.report import options  # noqa: E402
from regard import patterns as p  # noqa: E402
from regard.integrations.transformers import attach, change_attention, detach, observe  # noqa: E402
from regard_lab.bench.results import environment  # noqa: E402

OUT = HERE / "results" / "atom_maps_cpu"
WINDOWS = (2, 4, 8, 16, 32)
LAYERS = 12
HEADS = 8
NOTHING = p.KeySpan(0, 0)  # a head without keys: its output is zeros
SHOWN = 1  # the reaction whose weights are kept for a picture: the product is written backwards


def share_of(model: Any, words: dict[str, int]) -> float:
    """The share of product atoms that find their own by the head."""
    right = 0
    atoms = 0
    for reaction in maps.REACTIONS:
        tokens = maps.tokens_of(reaction.smiles, words)
        of_head = observe(model, "weights", layers=maps.LAYER, heads=maps.HEAD)
        with torch.no_grad(), of_head as observed:
            model(tokens.ids)
        weights = observed.calls[0].weights[0, 0]
        right += maps.right(reaction, maps.chosen_atoms(weights, tokens))
        atoms += len(reaction.origins)
    return right / atoms


def replaced(words: dict[str, int]) -> dict[str, Any]:
    """The share with other attention: windows, heads and layers without keys, in the layers before the head or in its
    own. A window also has [CLS] as a global token."""
    model = attach(maps.load_with_own_layers())
    before = list(range(maps.LAYER))

    def share(layers: list[int], pattern: p.Pattern) -> float:
        with change_attention(model, layers, pattern=pattern):
            return share_of(model, words)

    def erased(heads: set[int]) -> p.Pattern:
        return p.PerHead([NOTHING if head in heads else p.Full() for head in range(HEADS)])

    def window(size: int) -> p.Pattern:
        return p.SlidingWindow(size) | p.GlobalTokens([0])

    windows = []
    for size in WINDOWS:
        windows.append(
            {
                "window": size,
                "before": share(before, window(size)),
                "own_layer": share([maps.LAYER], window(size)),
                "all": share(list(range(LAYERS)), window(size)),
            }
        )
    heads_kept = []
    for count in (6, 4, 2, 1):
        of_first = share(before, erased(set(range(count, HEADS))))
        heads_kept.append({"heads": count, "share": of_first})
    return {
        "own": share_of(model, words),
        "windows": windows,
        "without_head": [share(before, erased({head})) for head in range(HEADS)],
        "without_layer": [share([layer], NOTHING) for layer in before],
        "heads_kept": heads_kept,
    }


def distances(reaction: maps.Reaction, tokens: maps.Tokens) -> list[int]:
    """How far each product atom is from the nearest atom that is right for it, in symbols."""
    nearest = []
    for number, place in enumerate(tokens.product_atoms):
        of_right_atoms = []
        for atom, place_of_atom in enumerate(tokens.reactant_atoms):
            if reaction.is_right(number, atom):
                of_right_atoms.append(place - place_of_atom)
        nearest.append(min(of_right_atoms))
    return nearest


def picture_of(reaction: maps.Reaction, tokens: maps.Tokens, weights: torch.Tensor) -> Any:
    """The weights from product atoms to reactant atoms, with the signs of both and what is right."""
    of_atoms = weights[tokens.product_atoms][:, tokens.reactant_atoms]
    rows = []
    for row in of_atoms.tolist():
        rows.append([round(weight, 4) for weight in row])
    return {
        "product": [tokens.words[place] for place in tokens.product_atoms],
        "reactants": [tokens.words[place] for place in tokens.reactant_atoms],
        "origins": list(reaction.origins),
        "alike": [list(group) for group in reaction.alike],
        "weights": rows,
    }


def main() -> None:
    options(__doc__).parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if maps.folder() is None:
        sys.exit("rxnmapper is not installed: pip install --no-deps rxnmapper")
    model = maps.load()
    words = maps.vocabulary()
    rows: list[dict[str, Any]] = []
    shares = torch.zeros(LAYERS, HEADS)
    both = 0
    by_place = 0
    worst = 0.0
    apart: list[int] = []
    for reaction in maps.REACTIONS:
        tokens = maps.tokens_of(reaction.smiles, words)
        attach(model)
        with torch.no_grad(), observe(model, "weights") as observed:
            model(tokens.ids)
        # (layers, heads, length, length)
        weights = torch.stack([call.weights[0] for call in observed.calls])
        detach(model).set_attn_implementation("eager")
        with torch.no_grad():
            eager = torch.cat(model(tokens.ids, output_attentions=True).attentions)
        worst = max(worst, float((weights - eager).abs().max()))
        for layer, head in product(range(LAYERS), range(HEADS)):
            atoms = maps.chosen_atoms(weights[layer, head], tokens)
            shares[layer, head] += maps.right(reaction, atoms)
        chosen = weights[maps.LAYER, maps.HEAD]
        apart += distances(reaction, tokens)
        both += maps.right(reaction, maps.both_ways(chosen, tokens))
        by_place += maps.right(reaction, list(range(len(reaction.origins))))
        if len(rows) == SHOWN:
            shown = picture_of(reaction, tokens, chosen)
        rows.append(
            {
                "name": reaction.name,
                "smiles": reaction.smiles,
                "atoms": len(reaction.origins),
                "right": maps.right(reaction, maps.chosen_atoms(chosen, tokens)),
            }
        )
    best = list(divmod(int(shares.argmax()), HEADS))
    total = sum(row["atoms"] for row in rows)
    ranked = (shares / total).flatten().sort(descending=True).values
    report = {
        "command": "python benchmarks/atom_maps.py",
        "date": date.today().isoformat(),
        "layer": maps.LAYER,
        "head": maps.HEAD,
        "head_share": float(shares[maps.LAYER, maps.HEAD]) / total,
        "mean_share": float(ranked.mean()),
        "best_share": float(ranked[0]),
        "best": best,
        "both_ways": both / total,
        "by_place": by_place / total,
        "difference": worst,
        "reactions": rows,
        "shares": (shares / total).tolist(),
        "shown": shown,
        "distances": apart,
        "replaced": replaced(words),
        "environment": environment(),
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "atom_maps.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report["replaced"], indent=1))


if __name__ == "__main__":
    main()
