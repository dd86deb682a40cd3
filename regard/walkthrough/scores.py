"""How each score is written in PyTorch: of one word, of all words, and in all heads at once."""

from __future__ import annotations

from dataclasses import dataclass

from regard.errors import UnsupportedError
from regard.mechanisms import Mechanism, Softmax
from regard.mechanisms.scores import Additive, Concat, Dot, General, ScaledDot, Score


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
