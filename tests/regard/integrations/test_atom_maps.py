"""A pretrained head through regard: product atoms find the atoms that they came from."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'regard[transformers]'"
)

import atom_maps
import torch

from regard.integrations.transformers import attach, observe

REPORT = Path(__file__).parents[3] / "benchmarks" / "results" / "atom_maps_cpu" / "atom_maps.json"
# ALBERT's layers share one module.
LAYER_NAME = "encoder.albert_layer_groups.0.albert_layers.0.attention"


@pytest.fixture(scope="module")
def model():
    if atom_maps.folder() is None:
        pytest.skip("rxnmapper is not installed: pip install --no-deps rxnmapper")
    return atom_maps.load()


@dataclass(frozen=True)
class Read:
    """A reaction that the model has read: weights of all layers, (12, 8, length, length)."""

    reaction: atom_maps.Reaction
    tokens: atom_maps.Tokens
    weights: torch.Tensor

    def right(self, layer, head):
        chosen = atom_maps.chosen_atoms(self.weights[layer, head], self.tokens)
        return atom_maps.right(self.reaction, chosen)

    def right_by_place(self):
        return atom_maps.right(self.reaction, list(range(len(self.reaction.origins))))


@pytest.fixture(scope="module")
def reactions(model):
    words = atom_maps.vocabulary()
    reactions = []
    attach(model)
    for reaction in atom_maps.REACTIONS:
        tokens = atom_maps.tokens_of(reaction.smiles, words)
        with torch.no_grad(), observe(model, "weights") as observed:
            model(tokens.ids)
        weights = torch.stack([call.weights[0] for call in observed[LAYER_NAME]])
        reactions.append(Read(reaction, tokens, weights))
    return reactions


def test_one_head_finds_almost_all_atoms_and_the_mean_head_few(reactions):
    """Position alone, the i-th atom for the i-th, is the other comparison: products are written in other orders."""
    atoms = sum(len(read.reaction.origins) for read in reactions)
    shares = torch.zeros(12, 8)
    for layer in range(12):
        for head in range(8):
            shares[layer, head] = sum(read.right(layer, head) for read in reactions) / atoms
    by_place = sum(read.right_by_place() for read in reactions) / atoms
    assert float(shares[atom_maps.LAYER, atom_maps.HEAD]) >= 0.9
    assert float(shares.mean()) < 0.4
    assert by_place < 0.5


def elements_of(tokens, atoms):
    return [tokens.words[atom].strip("[]+-H").upper() for atom in atoms]


def test_maps_name_every_product_atom_once_and_only_atoms_of_its_element():
    """Also without the model: the known maps are consistent."""
    words = {"[CLS]": 0, "[SEP]": 0}
    for reaction in atom_maps.REACTIONS:
        words |= dict.fromkeys(atom_maps.TOKEN.findall(reaction.smiles), 0)
    for reaction in atom_maps.REACTIONS:
        tokens = atom_maps.tokens_of(reaction.smiles, words)
        origins = reaction.origins
        assert len(tokens.product_atoms) == len(origins) == len(set(origins)), reaction.name
        reactants = elements_of(tokens, tokens.reactant_atoms)
        products = elements_of(tokens, tokens.product_atoms)
        assert [reactants[origin] for origin in origins] == products, reaction.name
        for group in reaction.alike:
            assert len({reactants[atom] for atom in group}) == 1, reaction.name


def test_the_code_of_the_guide_runs(model):
    """It is marked `py`, since pages run where rxnmapper is not installed too."""
    page = (Path(__file__).parents[3] / "docs" / "recipes" / "atom-maps.md").read_text("utf-8")
    code = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    assert len(code) == 2
    exec(compile("\n".join(code), "atom-maps.md", "exec"), {})
