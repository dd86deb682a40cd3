"""The head of RXNMapper that points from each product atom to the atom that it came from, on reactions with known maps.

The PyPI package rxnmapper (MIT licence) contains the weights: an ALBERT with 12 layers of 8 heads, trained on 1.3
million reactions without maps (Schwaller et al. 2021, Extraction of organic chemistry grammar from unsupervised
learning of chemical reactions). Only its files are read; the package needs an older transformers and is not imported.
"""

import copy
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

LAYER = 10
HEAD = 5
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|[BCNOSPFIbcnosp]|[().=#\-+\\/:~@?*$\d]")
ATOM = re.compile(r"\[[^\]]+\]|Br|Cl|[BCNOSPFIbcnosp]")


@dataclass(frozen=True)
class Reaction:
    """A reaction whose map is certain.

    Args:
        name: what kind of reaction it is.
        smiles: reactants and product; atoms are counted as they are written, those of the reactants first.
        origins: the reactant atom of each product atom.
        alike: groups of reactant atoms that symmetry makes interchangeable.
    """

    name: str
    smiles: str
    origins: tuple[int, ...]
    alike: tuple[tuple[int, ...], ...] = ()

    def is_right(self, product_atom: int, reactant_atom: int) -> bool:
        atoms = {reactant_atom, self.origins[product_atom]}
        return len(atoms) == 1 or any(atoms <= set(group) for group in self.alike)


REACTIONS = [
    Reaction(
        "amide from an acid chloride",
        "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
        (0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11),
        ((7, 11), (8, 10)),
    ),
    Reaction(
        "the same, the product written backwards",
        "CC(=O)Cl.NCc1ccccc1>>c1ccccc1CNC(C)=O",
        (7, 8, 9, 10, 11, 6, 5, 4, 1, 0, 2),
        ((7, 11), (8, 10)),
    ),
    Reaction(
        "amide from an acid",
        "CC(C)C(=O)O.NC1CC1>>CC(C)C(=O)NC1CC1",
        (0, 1, 2, 3, 4, 6, 7, 8, 9),
        ((0, 2), (8, 9)),
    ),
    Reaction(
        "esterification",
        "O=C(O)CCc1ccccc1.CO>>COC(=O)CCc1ccccc1",
        (11, 12, 1, 0, 3, 4, 5, 6, 7, 8, 9, 10),
        ((0, 2), (6, 10), (7, 9)),
    ),
    Reaction(
        "hydrolysis of an ester",
        "CCOC(=O)c1ccccc1.[OH-].[Na+]>>O=C(O)c1ccccc1",
        (4, 3, 11, 5, 6, 7, 8, 9, 10),
        ((4, 11), (6, 10), (7, 9)),
    ),
    Reaction(
        "ether synthesis",
        "CCBr.Oc1ccccc1>>CCOc1ccccc1",
        (0, 1, 3, 4, 5, 6, 7, 8, 9),
        ((5, 9), (6, 8)),
    ),
    Reaction(
        "Suzuki coupling",
        "OB(O)c1ccccc1.Brc1ccncc1>>c1ccc(-c2ccncc2)cc1",
        (6, 5, 4, 3, 10, 11, 12, 13, 14, 15, 8, 7),
        ((4, 8), (5, 7), (11, 15), (12, 14)),
    ),
    Reaction(
        "Sonogashira coupling",
        "C#Cc1ccccc1.Ic1ccc(OC)cc1>>COc1ccc(C#Cc2ccccc2)cc1",
        (14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7, 16, 15),
        ((3, 7), (4, 6), (10, 16), (11, 15)),
    ),
    Reaction(
        "Buchwald-Hartwig amination",
        "Brc1ccc(C#N)cc1.C1COCCN1>>N#Cc1ccc(N2CCOCC2)cc1",
        (6, 5, 4, 3, 2, 1, 14, 13, 12, 11, 10, 9, 8, 7),
        ((2, 8), (3, 7), (9, 13), (10, 12)),
    ),
    Reaction(
        "reduction of a ketone",
        "CC(=O)c1ccc(F)cc1.[BH4-].[Na+]>>CC(O)c1ccc(F)cc1",
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
        ((4, 9), (5, 8)),
    ),
    Reaction(
        "reduction of a nitro group",
        "O=[N+]([O-])c1ccc(C)cc1.[Fe]>>Nc1ccc(C)cc1",
        (1, 3, 4, 5, 6, 7, 8, 9),
        ((4, 9), (5, 8)),
    ),
    Reaction(
        "azide substitution",
        "CCCBr.[N-]=[N+]=[N-].[Na+]>>CCCN=[N+]=[N-]",
        (0, 1, 2, 4, 5, 6),
        ((4, 6),),
    ),
    Reaction(
        "removal of a Boc group",
        "CC(C)(C)OC(=O)NCCc1ccccc1.Cl>>NCCc1ccccc1",
        (7, 8, 9, 10, 11, 12, 13, 14, 15),
        ((11, 15), (12, 14)),
    ),
    Reaction(
        "sulfonamide",
        "CS(=O)(=O)Cl.Nc1ccccc1>>CS(=O)(=O)Nc1ccccc1",
        (0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11),
        ((2, 3), (7, 11), (8, 10)),
    ),
    Reaction(
        "Grignard addition",
        "C[Mg]Br.O=Cc1ccccc1>>CC(O)c1ccccc1",
        (0, 4, 3, 5, 6, 7, 8, 9, 10),
        ((6, 10), (7, 9)),
    ),
    Reaction(
        "reductive amination",
        "CCC=O.NCc1ccccc1>>CCCNCc1ccccc1",
        (0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11),
        ((7, 11), (8, 10)),
    ),
]


def folder() -> Path | None:
    """The folder of the weights, or None where rxnmapper is not installed."""
    package = find_spec("rxnmapper")
    if package is None or not package.submodule_search_locations:
        return None
    models = Path(package.submodule_search_locations[0]) / "models" / "transformers"
    return models / "albert_heads_8_uspto_all_1310k"


def load() -> Any:
    """The model. transformers reads the file of weights with weights_only=True, which runs no code of a pickle."""
    from transformers import AlbertModel

    return AlbertModel.from_pretrained(folder(), add_pooling_layer=False).eval()


def load_with_own_layers() -> Any:
    """The same model with twelve copies of the layer that ALBERT uses twelve times."""
    model = load()
    (group,) = model.encoder.albert_layer_groups
    config = model.config
    copies = [copy.deepcopy(group, {id(config): config}) for _ in range(config.num_hidden_layers)]
    model.encoder.albert_layer_groups = torch.nn.ModuleList(copies)
    config.num_hidden_groups = config.num_hidden_layers
    return model


@dataclass(frozen=True)
class Tokens:
    """A reaction as the model reads it: ids (1, length), and where its atoms are."""

    words: list[str]
    ids: torch.Tensor
    reactant_atoms: list[int]
    product_atoms: list[int]


def tokens_of(smiles: str, vocabulary: dict[str, int]) -> Tokens:
    words = ["[CLS]", *TOKEN.findall(smiles), "[SEP]"]
    assert "".join(words[1:-1]) == smiles
    arrow = words.index(">>")
    atoms = [place for place, word in enumerate(words) if ATOM.fullmatch(word)]
    atoms = [place for place in atoms if 0 < place < len(words) - 1]
    ids = torch.tensor([[vocabulary[word] for word in words]])
    reactant_atoms = [place for place in atoms if place < arrow]
    product_atoms = [place for place in atoms if place > arrow]
    return Tokens(words, ids, reactant_atoms, product_atoms)


def vocabulary() -> dict[str, int]:
    place = folder()
    assert place is not None
    words = (place / "vocab.txt").read_text("utf-8").splitlines()
    return {word: number for number, word in enumerate(words)}


def chosen_atoms(weights: torch.Tensor, tokens: Tokens) -> list[int]:
    """The reactant atom with the largest weight for each product atom, of weights (length, length) of one head."""
    return weights[tokens.product_atoms][:, tokens.reactant_atoms].argmax(1).tolist()


def both_ways(weights: torch.Tensor, tokens: Tokens) -> list[int]:
    """The same of the sum of the weights in both directions, as RXNMapper begins."""
    forth = weights[tokens.product_atoms][:, tokens.reactant_atoms]
    back = weights[tokens.reactant_atoms][:, tokens.product_atoms]
    return (forth + back.T).argmax(1).tolist()


def right(reaction: Reaction, chosen: list[int]) -> int:
    """How many product atoms found their own."""
    assert len(chosen) == len(reaction.origins)
    return sum(reaction.is_right(product, reactant) for product, reactant in enumerate(chosen))
