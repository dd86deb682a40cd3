"""LSH attention, the mechanism of the Reformer: each query attends to keys with the same hash."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from regard.arguments import check_fields, count_of, whole
from regard.devices import in_float64
from regard.errors import ArgumentError
from regard.mechanisms.base import STATISTICS, FormulaInputs, FormulaResult, Mechanism, Sizes
from regard.mechanisms.draws import directions
from regard.patterns import Causal, KeySpan, Pattern
from regard.patterns.arguments import at_least_one
from regard.patterns.grid import Grid
from regard.patterns.visible import visible_keys


@dataclass(frozen=True)
class LSH(Mechanism):
    """A query attends to nearby keys of its own bucket, in any of several rounds of hashing.

        h(x) = argmax([x R; -x R]),   weights = softmax(q_i · k_j · scale over the allowed j),   k_j = q_j / |q_j|

    The queries are the keys: q and k of a call are one tensor (q may be its last rows), and keys are brought to unit
    length inside. In one round, visible keys are ordered by (bucket, position) and cut into chunks:

        i may look at j  if  h(i) = h(j)  and  j's chunk is i's own or the one before it

    A pair of several rounds counts once. A query looks at its own position only if no other key is allowed; if its own
    position is hidden, its row is empty. A text that fits into one chunk is not hashed: all pairs are allowed.

    Causal: later keys are masked, and chunks are counted inside each bucket instead of over all of them, so that no
    later key moves a border; a query among the first `chunk` visible keys looks at all keys before it. A prefix, or a
    text continued token by token, gives the same as the whole text.

    Args:
        chunk: keys in a chunk. The paper takes twice the mean size of a bucket, 2 · length / buckets; a bucket that
            outgrows it is cut.
        buckets: how many a round has, an even number; or several even numbers, whose product they are: each is hashed
            by itself, so that many buckets cost about as much as their sum.
        rounds: of hashing, each with a rotation R of its own. Each adds allowed pairs and costs as much as the first.
        seed: decides the rotations, with the round, `buckets` and head_dim alone; heads share them, devices too.

    Raises:
        ArgumentError: a number outside its range.

    Source: Reformer, Kitaev et al. 2020, section 2, equations 2 to 5.

    >>> from regard import attention
    >>> x, v = torch.randn(1, 2, 300, 16), torch.randn(1, 2, 300, 16)
    >>> attention(x, x, v, pattern="causal", mechanism=LSH(chunk=32, buckets=16, rounds=2)).shape
    torch.Size([1, 2, 300, 16])
    """

    chunk: int = 64
    buckets: int | tuple[int, ...] = 64
    rounds: int = 4
    seed: int = 0

    patterns: ClassVar[tuple[type[Pattern], ...] | None] = (Causal, KeySpan)
    options: ClassVar[frozenset[str]] = frozenset({"scale"})
    statistics: ClassVar[frozenset[str]] = frozenset(STATISTICS) - {"sink"}
    shares_keys: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, chunk=at_least_one, rounds=at_least_one, seed=whole)
        factors = tuple(whole("LSH's buckets", factor, 2) for factor in self.factors)
        if not factors:
            raise ArgumentError("LSH's buckets is (); it needs one even number or more")
        object.__setattr__(self, "buckets", factors if len(factors) > 1 else factors[0])
        for factor in factors:
            if factor % 2:
                raise ArgumentError(
                    f"LSH's buckets is {self.buckets}; both ends of a direction are buckets: even numbers"
                )

    @property
    def factors(self) -> tuple[int, ...]:
        """The numbers of buckets that are hashed separately."""
        return self.buckets if isinstance(self.buckets, tuple) else (self.buckets,)

    @property
    def bucket_count(self) -> int:
        """Buckets of a round."""
        return math.prod(self.factors)

    def reason_against(
        self, pattern: Pattern, sizes: Sizes, head_dim: int, scale: float
    ) -> str | None:
        if sizes.heads != sizes.kv_heads:
            return (
                f"queries are the keys here, and {count_of(sizes.heads, 'heads')} of queries cannot be "
                f"{sizes.kv_heads} of keys; give as many key/value heads as heads"
            )
        return None

    def formula(self, inputs: FormulaInputs) -> FormulaResult:
        """Attention over the pairs that some round allows.

        o_i = Σ_{j in P_i} exp(q_i · k_j · scale - z(i, P_i)) v_j,   P_i = the union of P_i^(r) over the rounds r
        P_i^(r) = {j : h_r(q_i) = h_r(k_j), chunk(s_i) - 1 <= chunk(s_j) <= chunk(s_i)},   chunk(s) = floor(s / m)
        """
        q = inputs.q
        k = inputs.k
        grid = inputs.grid
        dtype = inputs.sum_dtype
        visible = visible_keys(inputs.pattern, grid)
        if visible is None:
            visible = grid.k_pos.new_ones(1, len(grid.keys), dtype=torch.bool)
        else:
            visible = visible[:, 0]

        columns = self.own_keys(q, k, grid, visible)  # (batch or 1, q_len)
        causal = Causal() in inputs.pattern.factors
        allowed = self._allowed_pairs(k, columns, visible, causal)  # (batch, heads, q_len, keys)
        # Their output is zeros, even if the query holds NaN.
        empty_rows = ~allowed.any(-1, keepdim=True)
        scores = q.to(dtype).masked_fill(empty_rows, 0) @ self.unit(k.to(dtype)).mT * inputs.scale
        scores = scores.masked_fill(~allowed, -math.inf).masked_fill(empty_rows, 0)
        weights = scores.softmax(-1).masked_fill(empty_rows, 0)
        log_sum_exp = scores.logsumexp(-1).masked_fill(empty_rows[..., 0], -math.inf)
        return FormulaResult(weights @ inputs.v.to(dtype), log_sum_exp, weights, allowed)

    def _allowed_pairs(
        self, k: torch.Tensor, columns: torch.Tensor, visible: torch.Tensor, causal: bool
    ) -> torch.Tensor:
        """Which pairs are allowed, (batch, heads, q_len, keys), of queries whose own keys are at these columns."""
        j = torch.arange(k.shape[2], device=k.device)
        i = columns[:, None, :, None]

        def of_queries(numbers: torch.Tensor) -> torch.Tensor:
            """Numbers of every key (..., keys) as those of every query (..., q_len, 1)."""
            return rows_at(numbers[..., None], columns)

        # Queries that are not hashed look at all keys, if causal at all before them. They are the first `chunk` visible
        # ones of a causal text, and all of another text that fits into one chunk.
        rank = visible.cumsum(-1) - 1  # (batch or 1, keys)
        fits_one_chunk = visible.sum(-1, keepdim=True) <= self.chunk
        is_unhashed = (rank < self.chunk) & (causal | fits_one_chunk)
        allowed = of_queries(is_unhashed[:, None]).expand(*k.shape[:2], -1, len(j))

        for bucket in self.bucket(k).unbind(2):  # (batch, heads, keys)
            same_bucket = of_queries(bucket) == bucket[..., None, :]  # equation 4
            chunk = self._sorted_places(bucket, visible, causal) // self.chunk
            chunks_back = of_queries(chunk) - chunk[..., None, :]
            near = (chunks_back >= 0) & (chunks_back <= 1)
            allowed = allowed | same_bucket & near  # equation 5

        another_key = j < i if causal else j != i
        has_own_key = i < len(j)
        others = allowed & visible[:, None, None] & another_key & has_own_key
        return others | (j == i) & ~others.any(-1, keepdim=True)

    def _sorted_places(
        self, bucket: torch.Tensor, visible: torch.Tensor, causal: bool
    ) -> torch.Tensor:
        """s_i, the visible keys before each key in order of (bucket, position); if causal, of its bucket only."""
        is_bucket = F.one_hot(bucket, self.bucket_count)  # (batch, heads, keys, buckets)
        counted = is_bucket * visible[:, None, :, None]
        place_in_bucket = counted.cumsum(-2).gather(-1, bucket[..., None])[..., 0] - 1
        if causal:
            return place_in_bucket
        sizes = counted.sum(-2)  # (batch, heads, buckets)
        keys_of_lower_buckets = sizes.cumsum(-1) - sizes
        return place_in_bucket + keys_of_lower_buckets.gather(-1, bucket)

    def bucket(self, keys: torch.Tensor) -> torch.Tensor:
        """The bucket of every key in every round: (batch, heads, rounds, keys) of (batch, heads, keys, head_dim).

        The length of a vector does not matter. In float64, so that two shapes or machines do not round a key into
        different buckets.
        """
        exact_keys = in_float64(keys.detach())
        halves = [factor // 2 for factor in self.factors]
        count = self.rounds * sum(halves)
        rotations = directions(self.seed, count, keys.shape[-1], orthogonal=False, like=exact_keys)
        by_round = rotations.split(sum(halves))
        buckets = [self._bucket_of_round(exact_keys, R.split(halves)) for R in by_round]
        return torch.stack(buckets, 2).to(keys.device)

    def _bucket_of_round(
        self, keys: torch.Tensor, rotations: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """The bucket of every key in one round, (batch, heads, keys): the factors' hashes as digits of a number."""
        number = torch.zeros(keys.shape[:-1], dtype=torch.int64, device=keys.device)
        for R in rotations:
            rotated = keys @ R.mT  # (batch, heads, keys, half a factor)
            largest, ahead = rotated.max(-1)
            least, behind = rotated.min(-1)
            digit = ahead.where(largest >= -least, len(R) + behind)  # argmax([x R; -x R])
            number = number * (2 * len(R)) + digit
        return number

    def unit(self, keys: torch.Tensor) -> torch.Tensor:
        """Keys at unit length; zeros stay zeros, with a finite gradient."""
        length = keys.norm(dim=-1, keepdim=True)
        return keys / length.masked_fill(length == 0, 1)

    def own_keys(
        self, q: torch.Tensor, k: torch.Tensor, grid: Grid, visible: torch.Tensor | None
    ) -> torch.Tensor:
        """The column of each query's own key: (batch or 1, q_len); one past the last where it has none.

        Args:
            q: (batch, heads, q_len, head_dim).
            k: (batch, heads, keys, head_dim).
            grid: where these stand.
            visible: which keys are visible, (batch or 1, keys); None for all.

        Raises:
            ArgumentError: queries that are not the keys at their positions.
        """
        keys = len(grid.keys)
        columns = grid.q_pos.view(-1 if grid.per_batch else 1, q.shape[2]) - grid.keys.start
        columns = columns.masked_fill((columns < 0) | (columns >= keys), keys)
        if visible is not None:
            rows = max(len(columns), len(visible))
            columns = columns.expand(rows, -1)
            visible = F.pad(visible, (0, 1)).expand(rows, -1)
            columns = columns.masked_fill(~visible.gather(1, columns), keys)
        if (q.data_ptr(), q.shape, q.stride()) != (k.data_ptr(), k.shape, k.stride()):
            self._check_shared(q.detach(), rows_at(k.detach(), columns), columns < keys)
        return columns

    def _check_shared(self, q: torch.Tensor, k_rows: torch.Tensor, has_key: torch.Tensor) -> None:
        unequal = (q != k_rows) & ~(q.isnan() & k_rows.isnan())
        differs = unequal.any(-1) & has_key[:, None]  # (batch, heads, q_len)
        if differs.any():
            raise ArgumentError(
                f"{self}: its queries are its keys, and {int(differs.sum())} of "
                f"{count_of(differs.numel(), 'vectors')} of q are not k's at their "
                f"positions; pass the same tensor as q and k, or its last rows as q, and keep k unrounded"
            )

    def __str__(self) -> str:
        buckets = " x ".join(map(str, self.factors))
        return f"{self.text_name}(chunk={self.chunk}, buckets={buckets}, rounds={self.rounds}, seed={self.seed})"


def rows_at(x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Rows of x (batch or 1, heads, keys, dim) at columns (batch or 1, n), zeros past the end: (batch, heads, n, ·)."""
    padded = F.pad(x, (0, 0, 0, 1))
    if len(columns) == 1:
        return padded.index_select(2, columns[0])
    padded = padded.expand(len(columns), -1, -1, -1)
    rows = [keys.index_select(1, chosen) for keys, chosen in zip(padded, columns, strict=True)]
    return torch.stack(rows)
