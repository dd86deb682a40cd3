"""Rotating and regrouping key/value heads so that a group's mean loses less, without changing the model.

Each head writes keys and values in a basis of its own, so the mean of two heads cancels much of both. Some changes of
basis leave the outputs of a layer as they are:

    values   v -> R v  with  Wo -> Wo Rᵀ, for any orthogonal R of each head
    keys     k -> R k  with  q -> R q, or with W -> W Rᵀ in scores qᵀ W k, if R commutes with the rotation by
             positions: within each rotary pair a plane rotation, elsewhere any orthogonal matrix; behind a norm with
             shared weights only signs
    heads    any order, if the query heads and their columns of Wo move along

`align` chooses, among these, the rotations that bring the heads of each group closest to their mean (Procrustes), and
the groups whose heads can be brought closest. Closeness is measured on the keys and values of a text: only the second
moments E[x xᵀ] of the layer's inputs are needed.

Source: generalised Procrustes analysis, Gower 1975; rotations of heads before merging, 2-D ones for rotary keys:
Align Attention Heads Before Merging Them, Jin et al. 2024 (arXiv 2412.20677).
"""

from dataclasses import dataclass

import torch

from regard_lab.bench.measuring import threads
from regard_lab.conversion.heads import KeySpace, Projections

ROUNDS = 30  # of rotating each head towards the others of its group, at most
PROGRESS = 1e-7  # relative; less than this in a round ends the search


@dataclass(frozen=True)
class Alignment:
    """New order and rotations of a layer's key/value heads.

    Args:
        order: old numbers of the heads in their new order; neighbours form a group.
        keys: rotations of keys and queries in the new order, (kv_heads, head_dim, head_dim).
        values: rotations of values, (kv_heads, v_dim, v_dim).
    """

    order: list[int]
    keys: torch.Tensor
    values: torch.Tensor

    def applied(self, layer: Projections, *, queries: bool = True) -> Projections:
        """The layer with rotated heads in the new order; its outputs are the same.

        Args:
            queries: whether queries are rotated with their keys; if not, `matrices` are.
        """
        members, readers = layer.members, self._readers(layer.members)
        keys, values = (
            rotations.repeat_interleave(members, 0) for rotations in (self.keys, self.values)
        )
        return Projections(
            q=keys @ layer.q[readers] if queries else layer.q[readers],
            k=self.keys @ layer.k[self.order],
            v=self.values @ layer.v[self.order],
            o=torch.einsum("ohd,hed->ohe", layer.o[:, readers], values),
        )

    def matrices(self, learned: torch.Tensor) -> torch.Tensor:
        """The matrices W of scores qᵀ W k (heads, query_dim, key_dim) for the rotated keys: W Rᵀ in the new order."""
        members = len(learned) // len(self.order)
        return learned[self._readers(members)] @ self.keys.repeat_interleave(members, 0).mT

    def _readers(self, members: int) -> torch.Tensor:
        """The query heads in their new order, `members` for each key/value head."""
        return (torch.tensor(self.order)[:, None] * members + torch.arange(members)).flatten()


def align(
    layer: Projections,
    groups: int,
    moment: torch.Tensor | None,
    space: KeySpace,
    *,
    regroup: bool = True,
) -> Alignment:
    """Order and rotations that bring the heads of each group close to their mean.

    Args:
        groups: key/value heads after the conversion.
        moment: (dim + 1, dim + 1), the mean of x xᵀ for inputs with a 1 as last number; None for inputs of which
            nothing is known: their numbers are then taken as independent.
        space: what the keys allow.
        regroup: whether heads may be regrouped; otherwise neighbours stay together.
    """
    keys, values = (gram(heads, moment) for heads in (layer.k, layer.v))
    size = layer.kv_heads // groups
    members = [list(range(first, first + size)) for first in range(0, layer.kv_heads, size)]
    if regroup and 1 < size < layer.kv_heads:
        match = sum(
            closest / closest.diagonal().sum()
            for closest in (key_matches(keys, space), _nuclear(values))
        )
        assert isinstance(match, torch.Tensor)
        members = grouped(match, members)
    order = [head for group in members for head in group]
    turned_keys = torch.cat([rotated_keys(_block(keys, group), space) for group in members])
    turned_values = torch.cat([procrustes(_block(values, group)) for group in members])
    return Alignment(order, turned_keys, turned_values)


def gram(heads: torch.Tensor, moment: torch.Tensor | None) -> torch.Tensor:
    """Mean products of the heads' outputs: (heads, size, heads, size) for heads (heads, size, dim + 1)."""
    flat = heads.flatten(0, 1)
    products = flat @ (flat if moment is None else flat @ moment).T
    return products.reshape(*heads.shape[:2], *heads.shape[:2])


def _block(products: torch.Tensor, group: list[int]) -> torch.Tensor:
    return products[group][:, :, group]


@threads(1)  # two threads took 140 times as long on a busy machine
def procrustes(products: torch.Tensor) -> torch.Tensor:
    """Orthogonal matrices (heads, size, size) that bring each head close to the mean of all.

    Args:
        products: (heads, size, heads, size), as from `gram`.
    """
    heads, size = products.shape[:2]
    turns = torch.eye(size, dtype=products.dtype).repeat(heads, 1, 1)
    # The head that is closest to the others comes first.
    first = int(_nuclear(products).sum(1).argmax())
    for head in range(heads):
        turns[head], _ = _nearest_rotation(products[first, :, head])
    before = 0.0
    for _ in range(ROUNDS if heads > 2 else 1):
        closeness = 0.0
        for head in range(heads):
            others = (
                torch.einsum("hde,hef->df", turns, products[:, :, head])
                - turns[head] @ products[head, :, head]
            )
            turns[head], one = _nearest_rotation(others)
            closeness += one
        if closeness - before <= PROGRESS * closeness:
            break
        before = closeness
    return turns


def _nearest_rotation(products: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The orthogonal R with the largest trace of R · productsᵀ, and this trace: R b is close to a for a bᵀ."""
    left, values, right = torch.linalg.svd(products)
    return left @ right, float(values.sum())


def rotated_keys(products: torch.Tensor, space: KeySpace) -> torch.Tensor:
    """Rotations (heads, size, size) of keys that bring them close to their mean, of those that `space` allows."""
    heads, size = products.shape[:2]
    turns = torch.zeros(heads, size, size, dtype=products.dtype)
    pairs, rest = space.split(size)
    if len(pairs):
        first, second = pairs.T
        phases = _phases(_pair_products(products, pairs), signs=space.normed)  # (pairs, heads)
        turns[:, first, first] = turns[:, second, second] = phases.real.T
        turns[:, second, first], turns[:, first, second] = phases.imag.T, -phases.imag.T
    if len(rest) and space.normed:
        each = products[:, rest][..., rest].diagonal(dim1=1, dim2=3)  # (heads, heads, rest)
        turns[:, rest, rest] = _phases(
            each.permute(2, 0, 1).to(torch.complex128), signs=True
        ).real.T
    elif len(rest):
        turns[:, rest[:, None], rest] = procrustes(products[:, rest][..., rest])
    return turns


def _pair_products(products: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Products of heads as complex numbers, conj(a) · b, for each rotary pair: (pairs, heads, heads)."""
    first, second = pairs.T
    part = {
        (x, y): products[:, i][..., j].diagonal(dim1=1, dim2=3).permute(2, 0, 1)
        for x, i in enumerate((first, second))
        for y, j in enumerate((first, second))
    }
    return torch.complex(part[0, 0] + part[1, 1], part[0, 1] - part[1, 0])


def _phases(products: torch.Tensor, *, signs: bool) -> torch.Tensor:
    """Complex numbers of size 1 (pairs, heads), or signs, that bring the heads close to their mean in each pair."""
    if signs:
        products = products.real.to(products.dtype)
    _, heads, _ = products.shape
    start = products.abs().sum(-1).argmax(-1)  # (pairs,)
    phases = _unit(products[torch.arange(len(products)), start].conj(), signs)  # (pairs, heads)
    for _ in range(ROUNDS if heads > 2 else 1):
        for head in range(heads):
            others = (phases.conj() * products[:, :, head]).sum(-1) - phases[
                :, head
            ].conj() * products[:, head, head]
            phases[:, head] = _unit(others.conj(), signs)
    return phases


def _unit(numbers: torch.Tensor, signs: bool) -> torch.Tensor:
    if signs:
        return torch.where(numbers.real < 0, -1.0, 1.0).to(numbers.dtype)
    return torch.polar(torch.ones_like(numbers.real), numbers.angle())


# Groups


def key_matches(products: torch.Tensor, space: KeySpace) -> torch.Tensor:
    """The largest product of each pair of heads over the rotations that `space` allows: (heads, heads)."""
    pairs, rest = space.split(products.shape[1])
    found = products.new_zeros(len(products), len(products))
    if len(pairs):
        turned = _pair_products(products, pairs)
        found = found + (turned.real if space.normed else turned).abs().sum(0)
    if len(rest):
        left = products[:, rest][..., rest]
        found = found + (
            left.diagonal(dim1=1, dim2=3).abs().sum(-1) if space.normed else _nuclear(left)
        )
    return found


@threads(1)
def _nuclear(products: torch.Tensor) -> torch.Tensor:
    """The largest product of each pair of heads over all rotations, the sum of singular values: (heads, heads)."""
    # Of two heads, either order gives the same.
    first, second = torch.triu_indices(len(products), len(products))
    sums = torch.linalg.svdvals(products[first, :, second]).sum(-1)
    found = products.new_zeros(len(products), len(products))
    found[first, second] = found[second, first] = sums
    return found


def grouped(match: torch.Tensor, groups: list[list[int]]) -> list[list[int]]:
    """Groups of the given sizes whose heads match best: heads of two groups are swapped while that improves the sum.

    >>> grouped(torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]), [[0, 1], [2, 3]])
    [[0, 2], [1, 3]]
    """
    group_of = torch.zeros(len(match), dtype=torch.long)
    for number, group in enumerate(groups):
        group_of[group] = number
    off = match - torch.diag(match.diagonal())
    for _ in range(len(match) ** 2):
        inside = off @ torch.nn.functional.one_hot(group_of, len(groups)).to(off)  # (heads, groups)
        own = inside.gather(1, group_of[:, None])
        there = inside[:, group_of]  # head a beside the group of head b
        gain = there + there.T - own - own.T - 2 * off
        gain[group_of[:, None] == group_of] = 0
        best = int(gain.argmax())
        a, b = divmod(best, len(match))
        if gain[a, b] <= 1e-12 * match.abs().sum():
            break
        group_of[a], group_of[b] = group_of[b].clone(), group_of[a].clone()
    found = [(group_of == number).nonzero().flatten().tolist() for number in range(len(groups))]
    return sorted(found)
