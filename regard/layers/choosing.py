"""Choosers: modules that decide by content which keys each query looks at, each with its paper.

MoBA and NSA are here, and `LightningIndexer` in a file of its own, since it also learns by a loss of its own.
`MultiHeadAttention(chooser=...)` calls one with its queries, keys and values. A choice is a pattern, ChosenBlocks or
ChosenKeys, so attention computes the chosen pairs alone. No gradient passes through a choice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from regard.arguments import whole
from regard.errors import ArgumentError, UnsupportedError
from regard.patterns import Causal, CausalWindow, ChosenBlocks, Compressed, Pattern
from regard.patterns.bands import row_span

MOST_SCORES = 1 << 21  # numbers that are held at once while keys are chosen
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Pattern], torch.Tensor]


class Chooser(nn.Module):
    """Base class of choosers. Queries choose among the keys at their own position and before it.

    A pattern of the layer or the call is ANDed with what is chosen; it does not change the choice, except that keys
    which no query may look at count as zeros. Blocks are counted from the first key, so pad texts on the right. With a
    cache, block means and compressed keys are computed again from all its entries at each call.
    """

    branches = 1  # keys and values that the layer projects for each token and key/value head
    extra_dim = 0  # numbers of the chooser that are stored with each key
    built = False  # whether it belongs to a layer
    softcap: float | None = None  # of the layer

    def build(
        self, dim: int, heads: int, kv_heads: int, head_dim: int, value_dim: int, scale: float
    ) -> None:
        """Make the weights for a layer of these sizes, which calls this once."""

    def cached_keys(self, x: torch.Tensor, k: torch.Tensor, start: int) -> torch.Tensor:
        """The keys of x as caches hold them, (batch, branches · kv_heads, length, head_dim + extra_dim).

        Args:
            x: (batch, length, dim).
            k: the keys of the layer, (batch, branches · kv_heads, length, head_dim).
            start: the position of the first one.
        """
        return k

    def forward(
        self,
        attend: Attend,
        x: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
    ) -> torch.Tensor:
        """The outputs of the heads, (batch, heads, length, v_dim), of the last queries of a text.

        Args:
            attend: computes attention of queries, keys and values with a pattern.
            x: the vectors of the queries, (batch, length, dim).
            q: (batch, heads, length, head_dim).
            k, v: of the whole text, (batch, branches · kv_heads, k_len, head_dim + extra_dim) and (..., v_dim).
            pattern: of the layer and the call, ANDed with the choice.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def loss(
        self, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, pattern: Pattern
    ) -> torch.Tensor:
        """The loss of a chooser that has one, a number, from the vectors, queries, keys and pattern of a call."""
        raise UnsupportedError(f"{type(self).__name__} has no loss of its own")


def grouped_products(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """`q · k` of grouped heads, (batch, heads, rows, keys)."""
    grouped = q.unflatten(1, (k.shape[1], -1))  # (batch, kv_heads, group, rows, head_dim)
    return (grouped @ k[:, :, None].mT).flatten(1, 2)


def row_blocks(q_len: int, numbers: int) -> list[slice]:
    """Rows whose scores are held at once, if each row has so many numbers."""
    rows = max(1, MOST_SCORES // max(1, numbers))
    return [slice(first, min(first + rows, q_len)) for first in range(0, q_len, rows)]


def positions_of_rows(rows: slice, start: int, device: torch.device) -> torch.Tensor:
    """The positions of some queries, (rows, 1); the first query of the call stands at `start`."""
    return torch.arange(start + rows.start, start + rows.stop, device=device)[:, None]


def best_columns(
    blocks: list[slice], scores_of: Callable[[slice], torch.Tensor], top: int
) -> torch.Tensor:
    """The columns of the `top` largest scores of each row; of equal scores the first. -1 where fewer are above -inf.

    `topk` alone takes any of equal scores, so a text that is continued would differ from the whole.

    Args:
        blocks: the rows that are scored at once.
        scores_of: computes the scores of such rows, (batch, heads, rows, columns).
        top: how many columns.

    Returns:
        (batch, heads, q_len, top), or all columns if these are fewer.
    """
    chosen = []
    for rows in blocks:
        scores = scores_of(rows)
        count = min(top, scores.shape[-1])
        least = scores.topk(count, sorted=False).values.amin(-1, keepdim=True)

        above = scores > least
        equal = (scores == least) & (least > -torch.inf)
        equal_needed = count - above.sum(-1, keepdim=True, dtype=torch.int32)
        first_equal = equal & (equal.cumsum(-1, dtype=torch.int32) <= equal_needed)

        columns = torch.arange(scores.shape[-1], device=scores.device)
        numbers = torch.where(above | first_equal, columns, -1)
        chosen.append(numbers.topk(count, sorted=False).values)
    return torch.cat(chosen, 2)


class MoBA(Chooser):
    """Mixture of block attention: each query looks at its own block, and at past blocks whose mean keys resemble it.

        s_c = q · mean_c,   mean_c = Σ k_j / block,   over j in block c

    A query looks at its own block, and at the top - 1 earlier blocks with the largest s. MoBA has no weights, and
    gradients reach queries, keys and values through the chosen pairs alone. Each query head chooses for itself.

    Args:
        block: keys in a block.
        top: blocks that a query looks at, with its own.

    Source: MoBA: Mixture of Block Attention for Long-Context LLMs, Lu et al. 2025, section 2.2.

    >>> from regard.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention(dim=16, heads=4, kv_heads=2, chooser=MoBA(block=2, top=2))
    >>> layer(torch.zeros(1, 7, 16)).shape
    torch.Size([1, 7, 16])
    """

    def __init__(self, block: int = 64, top: int = 8) -> None:
        super().__init__()
        self.block = whole("MoBA's block", block, 1)
        self.top = whole("MoBA's top", top, 1)

    @torch.no_grad()
    def choose(self, q: torch.Tensor, k: torch.Tensor) -> ChosenBlocks:
        """The blocks that the last queries of a text look at: a list for each query and query head."""
        batch, heads, q_len, _ = q.shape
        k_len = k.shape[2]
        start = k_len - q_len
        full_blocks = k_len // self.block
        blocks = -(-k_len // self.block)

        by_block = k[:, :, : full_blocks * self.block].unflatten(2, (full_blocks, self.block))
        # A block that is not full is the query's own or a later one: its score is replaced below.
        means = functional.pad(by_block.mean(3), (0, 0, 0, blocks - full_blocks))
        numbers = torch.arange(blocks, device=q.device)

        def scores_of(rows: slice) -> torch.Tensor:
            own_block = positions_of_rows(rows, start, q.device) // self.block
            scores = grouped_products(q[:, :, rows], means)  # (batch, heads, rows, blocks)
            scores.masked_fill_(numbers > own_block, -torch.inf)
            return scores.masked_fill_(numbers == own_block, torch.inf)

        rows = row_blocks(q_len, batch * heads * blocks)
        return ChosenBlocks(best_columns(rows, scores_of, self.top), self.block, query_block=1)

    def forward(
        self,
        attend: Attend,
        x: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
    ) -> torch.Tensor:
        return attend(q, k, v, pattern & Causal() & self.choose(q, k))

    def extra_repr(self) -> str:
        return f"block={self.block}, top={self.top}"


class Compression(nn.Module):
    """One vector for each window of `length` vectors, `stride` apart: `W2 gelu(W1 concat(x_t + place_t))`."""

    def __init__(self, size: int, length: int, stride: int) -> None:
        super().__init__()
        self.length = length
        self.stride = stride
        self.places = nn.Parameter(0.02 * torch.randn(length, size))
        self.mix = nn.Sequential(nn.Linear(length * size, size), nn.GELU(), nn.Linear(size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, heads, n, size) -> (batch, heads, windows, size); the windows that n vectors complete."""
        if x.shape[2] < self.length:
            return x[:, :, :0]
        windows = x.unfold(2, self.length, self.stride).mT  # (batch, heads, windows, length, size)
        return self.mix((windows + self.places).flatten(3))


class NSA(Chooser):
    """Native sparse attention: three branches with keys and values of their own, added with learned gates.

        output = Σ_b gate_b · attention(q, k_b, v_b),   gate = sigmoid(W x), by branch and head

    - compressed: one key and value for each window of `length` tokens, `stride` apart;
    - chosen: `top` blocks: the first, the query's own, the one before it, and those with the most weight. The weight of
      a block is that of the compressed windows which overlap it, summed over the query heads of a key/value head;
    - window: the last `window` tokens.

    Gradients reach the gates, the compression and all three branches; none passes through the choice.

    Args:
        length, stride: of the compressed windows; `stride` divides `length` and `block`.
        block: keys in a chosen block, `length` or more.
        top: chosen blocks, 3 or more.
        window: tokens of the window.

    Raises:
        ArgumentError: sizes that do not fit.

    Source: Native Sparse Attention, Yuan et al. 2025, section 3.3, equations 5 to 12. Here keys are compressed after
    they are rotated, and the gates are computed by one matrix instead of an MLP.

    >>> from regard.layers import MultiHeadAttention
    >>> chooser = NSA(length=4, stride=2, block=4, top=3, window=8)
    >>> MultiHeadAttention(dim=16, heads=4, kv_heads=2, chooser=chooser)(torch.zeros(1, 33, 16)).shape
    torch.Size([1, 33, 16])
    """

    branches = 3

    def __init__(
        self, length: int = 32, stride: int = 16, block: int = 64, top: int = 16, window: int = 512
    ) -> None:
        super().__init__()
        self.length = whole("NSA's length", length, 1)
        self.stride = whole("NSA's stride", stride, 1)
        self.block = whole("NSA's block", block, 1)
        self.top = whole("NSA's top", top, 3)
        self.window = whole("NSA's window", window, 1)
        if self.length % self.stride or self.block % self.stride or self.length > self.block:
            raise ArgumentError(
                f"NSA has length {length}, stride {stride} and block {block}; the stride must divide the length and "
                f"the block, and the length is at most the block"
            )

    def build(
        self, dim: int, heads: int, kv_heads: int, head_dim: int, value_dim: int, scale: float
    ) -> None:
        self.scale = scale
        self.to_gates = nn.Linear(dim, 3 * heads)
        self.compress_keys = Compression(head_dim, self.length, self.stride)
        self.compress_values = Compression(value_dim, self.length, self.stride)

    @torch.no_grad()
    def choose(self, q: torch.Tensor, compressed: torch.Tensor, k_len: int) -> ChosenBlocks:
        """The blocks that the last queries of a text of `k_len` tokens look at, given its compressed keys: a list for
        each query and key/value head."""
        batch, kv_heads, windows, _ = compressed.shape
        _, heads, q_len, _ = q.shape
        blocks = -(-k_len // self.block)
        block_numbers = torch.arange(blocks, device=q.device)
        window_numbers = torch.arange(windows, device=q.device)

        strides_of_block = self.block // self.stride
        strides_of_window = self.length // self.stride
        # In how many strides a window overlaps block j, by the place t of the window: it is window
        # `strides_of_block · j + t - (strides_of_window - 1)`. Equation 9.
        overlaps = []
        for t in range(strides_of_block + strides_of_window - 1):
            first = max(0, t - strides_of_block + 1)
            overlaps.append(min(t, strides_of_window - 1) - first + 1)
        padding = (strides_of_window - 1, strides_of_block * blocks - windows)

        def scores_of(rows: slice) -> torch.Tensor:
            positions = positions_of_rows(rows, k_len - q_len, q.device)
            hidden = ~Compressed(self.length, self.stride).allows(positions, window_numbers)
            scores = self.scale * grouped_products(q[:, :, rows], compressed)
            weights = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
            weights = weights.nan_to_num_(0)  # an empty row has zeros
            of_windows = functional.pad(weights.unflatten(1, (kv_heads, -1)).sum(2), padding)

            # A convolution with one channel takes ten times as long.
            of_blocks = of_windows.new_zeros(*of_windows.shape[:3], blocks)
            for t, overlap in enumerate(overlaps):
                of_blocks += overlap * of_windows[..., t::strides_of_block][..., :blocks]

            own_block = positions // self.block
            always = (block_numbers == 0) | (block_numbers == own_block)
            always |= block_numbers == own_block - 1
            of_blocks.masked_fill_(block_numbers > own_block, -torch.inf)
            return of_blocks.masked_fill_(always, torch.inf)

        rows = row_blocks(q_len, batch * heads * max(windows, blocks))
        return ChosenBlocks(best_columns(rows, scores_of, self.top), self.block, query_block=1)

    def forward(
        self,
        attend: Attend,
        x: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
    ) -> torch.Tensor:
        for part in pattern.canonical().factors:
            if not _allows_all_earlier_keys(part):
                raise UnsupportedError(
                    f"a compressed key of NSA stands for several tokens, and pattern {part} may hide some of them; "
                    f"give causal, or a padding on the right as KeySpan(0, lengths)"
                )

        k_windows, k_blocks, k_near = k.chunk(3, 1)
        v_windows, v_blocks, v_near = v.chunk(3, 1)
        compressed_k = self.compress_keys(k_windows)
        compressed_v = self.compress_values(v_windows)
        chosen = self.choose(q, compressed_k, k.shape[2])

        outputs = (
            attend(q, compressed_k, compressed_v, Compressed(self.length, self.stride)),
            attend(q, k_blocks, v_blocks, pattern & Causal() & chosen),
            attend(q, k_near, v_near, pattern & CausalWindow(self.window)),
        )
        gates = torch.sigmoid(self.to_gates(x)).unflatten(-1, (3, -1))  # (batch, length, 3, heads)
        by_branch = gates.permute(2, 0, 3, 1)  # (3, batch, heads, length)
        return (by_branch[..., None] * torch.stack(outputs)).sum(0)

    def extra_repr(self) -> str:
        return (
            f"length={self.length}, stride={self.stride}, block={self.block}, top={self.top}, "
            f"window={self.window}"
        )


def _allows_all_earlier_keys(part: Pattern) -> bool:
    """Whether no token before a query can be hidden from it, except by padding on the right."""
    band = part.band()
    if band is not None and band.left is None and not band.start:
        return band.right is None or band.right >= 0
    span = row_span(part)
    if span is None:
        return False
    starts, _ = span
    return not bool((starts > 0).any())
