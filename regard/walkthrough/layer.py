"""One attention layer as a walkthrough shows it: its weights by head, and each score function written in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from regard.bias import ALiBi, series
from regard.errors import UnsupportedError
from regard.layers import MultiHeadAttention
from regard.mechanisms import Mechanism, Softmax
from regard.mechanisms.scores import Additive, Concat, Dot, General, ScaledDot, Score
from regard.patterns import Causal, Full
from regard.walkthrough.steps import Axis, Walker


@dataclass(frozen=True)
class ScoreLines:
    """Expressions with places for i, the chosen word, h, the head, and n and m, how many look and are looked at.

    Args:
        formula: of one pair.
        says: what the formula does.
        one, all, heads: the scores (m), (n, m) and (heads, n, m).
        hidden: the layer before a score that has one, (m, hidden); `one` then reads it.
        hidden_formula: of it.
    """

    formula: str
    says: str
    one: str
    all: str
    heads: str
    hidden: str = ""
    hidden_formula: str = ""


DOT = ScoreLines(
    formula="ω_{ij} = q_i · k_j",
    says="How well does the question fit each answer? The dot product multiplies them number by number and adds up.",
    one="{k} @ {q}[{i}]",
    all="{q} @ {k}.T",
    heads="{Q} @ {K}.mT",
)
GENERAL = ScoreLines(
    formula="ω_{ij} = q_i^T W_a k_j",
    says="Luong's general score: a matrix says which number of a query is compared with which number of a key.",
    one="{k} @ ({q}[{i}] @ W_a[{h}])",
    all="{q} @ W_a[{h}] @ {k}.T",
    heads="{Q} @ W_a @ {K}.mT",
)
ADDITIVE = ScoreLines(
    formula="ω_{ij} = v_a^T h_{ij}",
    says="Bahdanau's additive score: the hidden layer of each pair becomes one number, its score.",
    one="hidden @ v_a[{h}]",
    all="torch.tanh(({q} @ W_a[{h}].T)[:, None] + {k} @ U_a[{h}].T) @ v_a[{h}]",
    heads='torch.einsum("hijd,hd->hij", torch.tanh(({Q} @ W_a.mT)[:, :, None] + ({K} @ U_a.mT)[:, None]), v_a)',
    hidden="torch.tanh({q}[{i}] @ W_a[{h}].T + {k} @ U_a[{h}].T)",
    hidden_formula="h_{ij} = tanh(W_a q_i + U_a k_j)",
)
CONCAT = ScoreLines(
    formula="ω_{ij} = v_a^T h_{ij}",
    says="Luong's concat score: the hidden layer of each pair becomes one number, its score.",
    one="hidden @ v_a[{h}]",
    all="torch.tanh(torch.cat([{q}[:, None].expand(-1, {m}, -1), {k}.expand({n}, -1, -1)], -1) @ W_a[{h}].T) "
    "@ v_a[{h}]",
    heads='torch.einsum("hijd,hd->hij", torch.tanh(torch.cat([{Q}[:, :, None].expand(-1, -1, {m}, -1), '
    "{K}[:, None].expand(-1, {n}, -1, -1)], -1) @ W_a[:, None].mT), v_a)",
    hidden="torch.tanh(torch.cat([{q}[{i}].expand({m}, -1), {k}], -1) @ W_a[{h}].T)",
    hidden_formula="h_{ij} = tanh(W_a [q_i ; k_j])",
)

SCORES = ("scaled_dot", "dot", "general", "concat", "additive")
LINES: dict[type[Score], ScoreLines] = {
    ScaledDot: DOT, Dot: DOT, General: GENERAL, Concat: CONCAT, Additive: ADDITIVE
}  # fmt: skip
# What a score learned, as its paper calls it, and whether there is one for each key head rather than query head.
LETTERS: dict[type[Score], dict[str, tuple[str, bool]]] = {
    General: {"weight": ("W_a", False)},
    Concat: {"weight": ("W_a", True), "energy": ("v_a", False)},
    Additive: {"query_weight": ("W_a", False), "key_weight": ("U_a", True), "energy": ("v_a", False)},
}


def new_score(name: str, head_dim: int) -> Score:
    """A score of queries and keys of one size, by its name in `SCORES`."""
    found: dict[str, Score] = {
        "scaled_dot": ScaledDot(),
        "dot": Dot(),
        "general": General(head_dim, head_dim),
        "concat": Concat(head_dim, head_dim, hidden=head_dim),
        "additive": Additive(head_dim, head_dim, hidden=head_dim),
    }
    return found[name]


def score_of(mechanism: Mechanism) -> Score:
    """The score of a softmax.

    Raises:
        UnsupportedError: a mechanism that has no weights of this kind.
    """
    if not isinstance(mechanism, Softmax) or type(mechanism.score) not in LINES:
        raise UnsupportedError(
            f"this layer attends by {mechanism}; a walk goes through softmax attention by one of the scores "
            f"{', '.join(SCORES)}"
        )
    return mechanism.score


@dataclass(frozen=True)
class Scene:
    """Who looks at whom in a walk, and which word and head are followed alone.

    Args:
        layer: in float64.
        readers, read: the words that look, and those that are looked at, as axes.
        x, c: the names of their vectors; the same in self-attention.
        word, head: places, from 0.
        origin: where the weights come from.
        bias: added to the scores by distance.
    """

    layer: MultiHeadAttention
    readers: Axis
    read: Axis
    x: str
    c: str
    word: int
    head: int
    origin: str
    bias: ALiBi | None = None

    @property
    def crosses(self) -> bool:
        return self.x != self.c

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.layer.heads // self.layer.kv_heads

    @property
    def score(self) -> Score:
        return score_of(self.layer.mechanism.declared)

    @property
    def lines(self) -> ScoreLines:
        return LINES[type(self.score)]

    @property
    def multiplies(self) -> bool:
        """Are the scores dot products, which PyTorch's own call computes?"""
        return self.lines is DOT

    @property
    def scaling(self) -> str:
        """What follows the scores in a line; nothing where they stay as they are."""
        given = self.layer.options["scale"]
        if given is not None:
            return f" * {given!r}"
        return f" / math.sqrt({self.layer.head_dim})" if isinstance(self.score, ScaledDot) else ""

    @property
    def source_of_keys(self) -> tuple[str, int, Axis]:
        """The vectors that keys and values are made of, the key/value head of the head that is followed, the words."""
        return self.c, self.head // self.group, self.read

    @property
    def chosen(self) -> str:
        return self.readers.labels[self.word]

    @property
    def causal(self) -> bool:
        return self.layer.pattern.canonical() == Causal() and not self.crosses

    @property
    def varies_by_head(self) -> bool:
        return self.layer.pattern.varies_by_head

    @property
    def mask(self) -> str:
        """The expression that says who may look at whom, (n, m) or (heads, n, m); empty where all may."""
        n, m = len(self.readers), len(self.read)
        if self.causal:
            return f"torch.ones({n}, {n}, dtype=torch.bool).tril()"
        if (pattern := self.layer.pattern.canonical()) == Full():
            return ""
        return f'parse("{pattern}").dense({n}, {m}, q_start=0){"[0]" if self.varies_by_head else ""}'


def give_layer(walker: Walker, scene: Scene) -> None:
    """Hand over a layer's weights, with an axis for heads.

    Raises:
        UnsupportedError: a layer that does what no step shows.
    """
    layer = scene.layer
    if layer.options["softcap"] is not None or layer.to_k is None:
        raise UnsupportedError("this layer caps its scores or shares queries and keys; a walk shows neither")
    for letter, projection, heads in (
        ("q", layer.to_q, layer.heads), ("k", layer.to_k, layer.kv_heads), ("v", layer.to_v, layer.kv_heads)
    ):  # fmt: skip
        _give_projection(walker, letter, projection, heads, scene.origin)
    walker.give("W_o", layer.to_output.weight, f"of the output, {scene.origin}")
    if layer.to_output.bias is not None:
        walker.give("b_o", layer.to_output.bias, f"of the output, {scene.origin}")
    for name, (letter, of_keys) in LETTERS.get(type(scene.score), {}).items():
        learned = layer.mechanism.learned[name]
        shared = learned.repeat_interleave(scene.group, 0) if of_keys else learned
        walker.give(letter, shared, f"of the score, {scene.origin}")
    if scene.bias is not None:
        slopes = series(layer.heads) if scene.bias.slopes is None else scene.bias.slopes
        walker.give("slopes", torch.tensor(slopes, dtype=torch.float64), "of the distance in each head")
    walker.give("layer", layer, "a regard.MultiHeadAttention of these weights")


def _give_projection(walker: Walker, letter: str, projection: nn.Linear, heads: int, origin: str) -> None:
    what = {"q": "queries", "k": "keys", "v": "values"}[letter]
    walker.give(f"W_{letter}", projection.weight.unflatten(0, (heads, -1)), f"of the {what}, {origin}")
    if projection.bias is not None:
        walker.give(f"b_{letter}", projection.bias.unflatten(0, (heads, -1)), f"of the {what}, {origin}")
