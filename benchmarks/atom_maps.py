"""Counts how many product atoms find their own by one attention head of RXNMapper, through regard.

python benchmarks/atom_maps.py

Needs transformers and the files of rxnmapper (pip install --no-deps rxnmapper). The reactions, whose maps are certain,
are in tests/integrations/atom_maps.py. Writes results/atom_maps_cpu/, of which a page of the documentation is made.
"""

import json
import sys
from datetime import date
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "integrations"))
import atom_maps as maps  # noqa: E402

from regard.integrations.transformers import attach, detach, observe  # noqa: E402

OUT = HERE / "results" / "atom_maps_cpu"


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if maps.folder() is None:
        sys.exit("rxnmapper is not installed: pip install --no-deps rxnmapper")
    model, words = maps.load(), maps.vocabulary()
    rows, shares, both, by_place, worst = [], torch.zeros(12, 8), 0, 0, 0.0
    for reaction in maps.REACTIONS:
        tokens = maps.tokens_of(reaction.smiles, words)
        attach(model)
        with torch.no_grad(), observe(model, "weights") as observed:
            model(tokens.ids)
        weights = torch.stack([call.weights[0] for call in observed.calls])  # (layers, heads, length, length)
        detach(model).set_attn_implementation("eager")
        with torch.no_grad():
            eager = torch.cat(model(tokens.ids, output_attentions=True).attentions)
        worst = max(worst, float((weights - eager).abs().max()))
        for layer in range(12):
            for head in range(8):
                shares[layer, head] += maps.right(reaction, maps.chosen_atoms(weights[layer, head], tokens))
        chosen = weights[maps.LAYER, maps.HEAD]
        both += maps.right(reaction, maps.both_ways(chosen, tokens))
        by_place += maps.right(reaction, list(range(len(reaction.origins))))
        found = maps.right(reaction, maps.chosen_atoms(chosen, tokens))
        rows.append({"name": reaction.name, "smiles": reaction.smiles, "atoms": len(reaction.origins), "right": found})
    best = [int(place) for place in divmod(int(shares.argmax()), 8)]
    total = sum(row["atoms"] for row in rows)
    ranked = (shares / total).flatten().sort(descending=True).values
    report = {
        "command": "python benchmarks/atom_maps.py", "date": date.today().isoformat(), "layer": maps.LAYER,
        "head": maps.HEAD, "head_share": float(shares[maps.LAYER, maps.HEAD]) / total,
        "mean_share": float(ranked.mean()),
        "best_share": float(ranked[0]), "best": best, "both_ways": both / total,
        "by_place": by_place / total, "difference": worst, "reactions": rows,
    }  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "atom_maps.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in report.items() if name != "reactions"}))


if __name__ == "__main__":
    main()
