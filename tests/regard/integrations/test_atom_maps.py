"""A pretrained head through regard: product atoms find the atoms that they came from."""

import re
from pathlib import Path

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import atom_maps
import torch

from regard.integrations.transformers import attach, observe

REPORT = Path(__file__).parents[3] / "benchmarks" / "results" / "atom_maps_cpu" / "atom_maps.json"
LAYER_NAME = (
    "encoder.albert_layer_groups.0.albert_layers.0.attention"  # ALBERT's layers share one module
)


@pytest.fixture(scope="module")
def model():
    if atom_maps.folder() is None:
        pytest.skip("rxnmapper is not installed: pip install --no-deps rxnmapper")
    return atom_maps.load()


@pytest.fixture(scope="module")
def weights(model):
    """Tokens and the weights of all layers, (12, 8, length, length), of each reaction."""
    words = atom_maps.vocabulary()
    found = []
    attach(model)
    for reaction in atom_maps.REACTIONS:
        tokens = atom_maps.tokens_of(reaction.smiles, words)
        with torch.no_grad(), observe(model, "weights") as observed:
            model(tokens.ids)
        found.append(
            (reaction, tokens, torch.stack([call.weights[0] for call in observed[LAYER_NAME]]))
        )
    return found


def test_one_head_finds_almost_all_atoms_and_the_mean_head_few(weights):
    """Position alone, the i-th atom for the i-th, is the other comparison: products are written in other orders."""
    atoms = sum(len(reaction.origins) for reaction, _, _ in weights)

    def share(layer, head):
        return (
            sum(
                atom_maps.right(r, atom_maps.chosen_atoms(w[layer, head], t)) for r, t, w in weights
            )
            / atoms
        )

    shares = torch.tensor([[share(layer, head) for head in range(8)] for layer in range(12)])
    by_place = sum(atom_maps.right(r, list(range(len(r.origins)))) for r, _, _ in weights) / atoms
    assert float(shares[atom_maps.LAYER, atom_maps.HEAD]) >= 0.9
    assert float(shares.mean()) < 0.4
    assert by_place < 0.5


def test_maps_name_every_product_atom_once_and_only_atoms_of_its_element():
    """Also without the model: the known maps are consistent."""
    words = {
        word: 0
        for reaction in atom_maps.REACTIONS
        for word in atom_maps.TOKEN.findall(reaction.smiles)
    }
    words |= {"[CLS]": 0, "[SEP]": 0}
    for reaction in atom_maps.REACTIONS:
        tokens = atom_maps.tokens_of(reaction.smiles, words)
        assert len(tokens.product_atoms) == len(reaction.origins) == len(set(reaction.origins)), (
            reaction.name
        )
        elements = [
            [tokens.words[one].strip("[]+-H").upper() for one in atoms]
            for atoms in (tokens.reactant_atoms, tokens.product_atoms)
        ]
        found = [elements[0][origin] for origin in reaction.origins]
        assert [one.removesuffix("H") for one in found] == [
            one.removesuffix("H") for one in elements[1]
        ], reaction.name
        for group in reaction.alike:
            assert len({elements[0][one] for one in group}) == 1, reaction.name


def test_the_code_of_the_guide_runs(model):
    """It is marked `py`, since pages run where rxnmapper is not installed too."""
    page = (Path(__file__).parents[3] / "docs" / "recipes" / "atom-maps.md").read_text("utf-8")
    code = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    assert len(code) == 2
    exec(compile("\n".join(code), "atom-maps.md", "exec"), {})
