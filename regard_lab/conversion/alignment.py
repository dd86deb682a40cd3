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
from itertools import chain

import torch

from regard_lab.bench.measuring import threads
from regard_lab.conversion.heads import KeySpace, Projections

ROUNDS = 30  # of rotating each head towards the others of its group, at most
PROGRESS = 1e-7  # relative; less than this in a round ends the search
ROUNDING = 1e-12  # relative; a swap that improves groups by less does not count


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
        readers = self._readers(layer.members)
        q = layer.q[readers]
        if queries:
            q = self.keys.repeat_interleave(layer.members, 0) @ q
        values_read = self.values.repeat_interleave(layer.members, 0)  # (heads, v_dim, v_dim)
        return Projections(
            q=q,
            k=self.keys @ layer.k[self.order],
            v=self.values @ layer.v[self.order],
            o=torch.einsum("ohd,hed->ohe", layer.o[:, readers], values_read),
        )

    def matrices(self, learned: torch.Tensor) -> torch.Tensor:
        """The matrices W of scores qᵀ W k (heads, query_dim, key_dim) for the rotated keys: W Rᵀ in the new order."""
        members = len(learned) // len(self.order)
        keys_read = self.keys.repeat_interleave(members, 0)
        return learned[self._readers(members)] @ keys_read.mT

    def _readers(self, members: int) -> torch.Tensor:
        """The query heads in their new order, `members` for each key/value head."""
        first = torch.tensor(self.order) * members
        return (first[:, None] + torch.arange(members)).flatten()


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
    keys = gram(layer.k, moment)
    values = gram(layer.v, moment)
    size = layer.kv_heads // groups
    members = [list(range(first, first + size)) for first in range(0, layer.kv_heads, size)]
    if regroup and 1 < size < layer.kv_heads:
        match_of_keys = key_matches(keys, space)
        match_of_values = _nuclear(values)
        match = match_of_keys / match_of_keys.diagonal().sum()
        match = match + match_of_values / match_of_values.diagonal().sum()
        members = grouped(match, members)

    order = list(chain.from_iterable(members))
    key_rotations = [rotated_keys(_block(keys, group), space) for group in members]
    value_rotations = [procrustes(_block(values, group)) for group in members]
    return Alignment(order, torch.cat(key_rotations), torch.cat(value_rotations))


def gram(heads: torch.Tensor, moment: torch.Tensor | None) -> torch.Tensor:
    """Mean products of the heads' outputs: (heads, size, heads, size) for heads (heads, size, dim + 1)."""
    rows = heads.flatten(0, 1)
    weighted = rows if moment is None else rows @ moment
    return (rows @ weighted.T).reshape(*heads.shape[:2], *heads.shape[:2])


def _block(products: torch.Tensor, group: list[int]) -> torch.Tensor:
    return products[group][:, :, group]


@threads(1)  # two threads took 140 times as long on a busy machine
def procrustes(products: torch.Tensor) -> torch.Tensor:
    """Orthogonal matrices (heads, size, size) that bring each head close to the mean of all.

    Args:
        products: (heads, size, heads, size), as from `gram`.
    """
    heads, size = products.shape[:2]
    rotations = torch.eye(size, dtype=products.dtype).repeat(heads, 1, 1)
    # Each head is turned to the one that is closest to the others, then to the mean of the others.
    closest = int(_nuclear(products).sum(1).argmax())
    for head in range(heads):
        rotations[head], _ = _nearest_rotation(products[closest, :, head])

    closeness_before = 0.0
    for _ in range(ROUNDS if heads > 2 else 1):
        closeness = 0.0
        for head in range(heads):
            of_all = torch.einsum("hde,hef->df", rotations, products[:, :, head])
            of_others = of_all - rotations[head] @ products[head, :, head]
            rotations[head], trace = _nearest_rotation(of_others)
            closeness += trace
        if closeness - closeness_before <= PROGRESS * closeness:
            break
        closeness_before = closeness
    return rotations


def _nearest_rotation(products: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The orthogonal R with the largest trace of R · productsᵀ, and this trace: R b is close to a for a bᵀ."""
    left, values, right = torch.linalg.svd(products)
    return left @ right, float(values.sum())


def rotated_keys(products: torch.Tensor, space: KeySpace) -> torch.Tensor:
    """Rotations (heads, size, size) of keys that bring them close to their mean, of those that `space` allows."""
    heads, size = products.shape[:2]
    rotations = torch.zeros(heads, size, size, dtype=products.dtype)
    pairs, rest = space.split(size)
    if len(pairs):
        first, second = pairs.T
        phases = _phases(_pair_products(products, pairs), signs=space.normed)  # (pairs, heads)
        rotations[:, first, first] = phases.real.T
        rotations[:, second, second] = phases.real.T
        rotations[:, second, first] = phases.imag.T
        rotations[:, first, second] = -phases.imag.T

    of_rest = products[:, rest][..., rest]
    if len(rest) and space.normed:
        by_number = of_rest.diagonal(dim1=1, dim2=3).permute(2, 0, 1)  # (rest, heads, heads)
        signs = _phases(by_number.to(torch.complex128), signs=True)
        rotations[:, rest, rest] = signs.real.T
    elif len(rest):
        rotations[:, rest[:, None], rest] = procrustes(of_rest)
    return rotations


def _pair_products(products: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Products of heads as complex numbers, conj(a) · b, for each rotary pair: (pairs, heads, heads)."""
    first, second = pairs.T

    def between(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Products of the left number of each pair in one head and the right one in another: (pairs, heads, heads)."""
        return products[:, left][..., right].diagonal(dim1=1, dim2=3).permute(2, 0, 1)

    real = between(first, first) + between(second, second)
    imaginary = between(first, second) - between(second, first)
    return torch.complex(real, imaginary)


def _phases(products: torch.Tensor, *, signs: bool) -> torch.Tensor:
    """Complex numbers of size 1 (pairs, heads), or signs, that bring the heads close to their mean in each pair."""
    if signs:
        products = products.real.to(products.dtype)
    _, heads, _ = products.shape
    start = products.abs().sum(-1).argmax(-1)  # (pairs,)
    phases = _unit(products[torch.arange(len(products)), start].conj(), signs)  # (pairs, heads)
    for _ in range(ROUNDS if heads > 2 else 1):
        for head in range(heads):
            of_all = (phases.conj() * products[:, :, head]).sum(-1)
            of_others = of_all - phases[:, head].conj() * products[:, head, head]
            phases[:, head] = _unit(of_others.conj(), signs)
    return phases


def _unit(numbers: torch.Tensor, signs: bool) -> torch.Tensor:
    if signs:
        return torch.where(numbers.real < 0, -1.0, 1.0).to(numbers.dtype)
    return torch.polar(torch.ones_like(numbers.real), numbers.angle())


# Groups


def key_matches(products: torch.Tensor, space: KeySpace) -> torch.Tensor:
    """The largest product of each pair of heads over the rotations that `space` allows: (heads, heads)."""
    pairs, rest = space.split(products.shape[1])
    matches = products.new_zeros(len(products), len(products))
    if len(pairs):
        of_pairs = _pair_products(products, pairs)
        matches = matches + (of_pairs.real if space.normed else of_pairs).abs().sum(0)
    of_rest = products[:, rest][..., rest]
    if len(rest) and space.normed:
        matches = matches + of_rest.diagonal(dim1=1, dim2=3).abs().sum(-1)
    elif len(rest):
        matches = matches + _nuclear(of_rest)
    return matches


@threads(1)
def _nuclear(products: torch.Tensor) -> torch.Tensor:
    """The largest product of each pair of heads over all rotations, the sum of singular values: (heads, heads)."""
    # Of two heads, either order gives the same.
    first, second = torch.triu_indices(len(products), len(products))
    sums = torch.linalg.svdvals(products[first, :, second]).sum(-1)
    matches = products.new_zeros(len(products), len(products))
    matches[first, second] = sums
    matches[second, first] = sums
    return matches


def grouped(match: torch.Tensor, groups: list[list[int]]) -> list[list[int]]:
    """Groups of the given sizes whose heads match best: heads of two groups are swapped while that improves the sum.

    >>> grouped(torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]), [[0, 1], [2, 3]])
    [[0, 2], [1, 3]]
    """
    group_of = torch.zeros(len(match), dtype=torch.long)
    for number, group in enumerate(groups):
        group_of[group] = number
    between_heads = match - torch.diag(match.diagonal())
    least_gain = ROUNDING * match.abs().sum()
    for _ in range(len(match) ** 2):
        is_member = torch.nn.functional.one_hot(group_of, len(groups)).to(match)  # (heads, groups)
        to_group = between_heads @ is_member
        to_own_group = to_group.gather(1, group_of[:, None])  # (heads, 1)
        to_group_of = to_group[:, group_of]  # of head a to the group of head b
        gain = to_group_of + to_group_of.T - to_own_group - to_own_group.T - 2 * between_heads
        gain[group_of[:, None] == group_of] = 0

        a, b = divmod(int(gain.argmax()), len(match))
        if gain[a, b] <= least_gain:
            break
        group_of[[a, b]] = group_of[[b, a]]
    members = [(group_of == number).nonzero().flatten() for number in range(len(groups))]
    return sorted(heads.tolist() for heads in members)
