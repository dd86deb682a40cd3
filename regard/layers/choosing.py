"""Choosers: modules that decide by content which keys each query looks at, each with its paper.

`MultiHeadAttention(chooser=...)` calls one with its queries, keys and values. A choice is a pattern, ChosenBlocks or
ChosenKeys, so attention computes the chosen pairs alone. No gradient passes through a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from regard.arguments import shown, whole
from regard.errors import ArgumentError, UnsupportedError
from regard.patterns import Causal, CausalWindow, ChosenBlocks, ChosenKeys, Compressed, Pattern
from regard.patterns.bands import row_span
from regard.patterns.grid import Grid, four_axes
from regard.patterns.visible import visible_keys
from regard.positions import Rotary, as_rotary

MOST_SCORES = 1 << 21  # held at once while keys are chosen
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Pattern], torch.Tensor]


class Chooser(nn.Module):
    """Base class of choosers. Queries choose among the keys at their own position and before it.

    A pattern of the layer or the call is ANDed with what is chosen; it does not change the choice, except that keys
    which no query may look at count as zeros. Blocks are counted from the first key, so pad texts on the right. With a
    cache, block means and compressed keys are computed again from all its entries at each call.
    """

    branches = 1  # keys and values that the layer projects for each token and key/value head
    extra = 0  # numbers of the chooser that are stored with each key
    built = False  # whether it belongs to a layer
    softcap: float | None = None  # of the layer

    def build(
        self, dim: int, heads: int, kv_heads: int, head_dim: int, value_dim: int, scale: float
    ) -> None:
        """Make the weights for a layer of these sizes, which calls this once."""

    def kept(self, x: torch.Tensor, k: torch.Tensor, start: int) -> torch.Tensor:
        """The keys of x as caches keep them, (batch, branches · kv_heads, length, head_dim + extra)."""
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
            k, v: of the whole text, (batch, branches · kv_heads, k_len, head_dim + extra) and (..., v_dim).
            pattern: of the layer and the call, ANDed with the choice.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def loss(
        self, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, pattern: Pattern
    ) -> torch.Tensor:
        """The loss of a chooser that has one, a number, from the vectors, queries, keys and pattern of a call."""
        raise UnsupportedError(f"{type(self).__name__} has no loss of its own")


def _products(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """`q · k` of grouped heads, (batch, heads, rows, keys)."""
    grouped = q.unflatten(1, (k.shape[1], -1))  # (batch, kv_heads, group, rows, head_dim)
    return (grouped @ k[:, :, None].mT).flatten(1, 2)


def _row_blocks(q_len: int, numbers: int) -> list[slice]:
    """Rows whose scores are held at once, with so many numbers a row."""
    each = max(1, MOST_SCORES // max(1, numbers))
    return [slice(first, min(first + each, q_len)) for first in range(0, q_len, each)]


def _best(rows: list[slice], scores: Callable[[slice], torch.Tensor], top: int) -> torch.Tensor:
    """The columns of the `top` largest scores of each row; of equal scores the first. -1 where fewer are above -inf.

    `topk` alone takes any of equal scores, so a text that is continued would differ from the whole.
    """
    listed = []
    for some in rows:
        found = scores(some)
        count = min(top, found.shape[-1])
        least = found.topk(count, sorted=False).values.amin(-1, keepdim=True)
        above = found > least
        equal = (found == least) & (least > -torch.inf)
        needed = count - above.sum(-1, keepdim=True, dtype=torch.int32)
        best = above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= needed))
        columns = torch.arange(found.shape[-1], device=found.device)
        listed.append(torch.where(best, columns, -1).topk(count, sorted=False).values)
    return torch.cat(listed, 2)


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
        self.block, self.top = whole("MoBA's block", block, 1), whole("MoBA's top", top, 1)

    @torch.no_grad()
    def choose(self, q: torch.Tensor, k: torch.Tensor) -> ChosenBlocks:
        """The blocks that the last queries of a text look at: a list for each query and query head."""
        (batch, heads, q_len, _), k_len, block = q.shape, k.shape[2], self.block
        done = k_len // block
        start = k_len - q_len
        means = k[:, :, : done * block].unflatten(2, (done, block)).mean(3)
        # a block that is not full is the query's own or a later one: its score is replaced below
        means = functional.pad(means, (0, 0, 0, -(-k_len // block) - done))
        columns = torch.arange(means.shape[2], device=q.device)

        def scores(rows: slice) -> torch.Tensor:
            own = (
                torch.arange(start + rows.start, start + rows.stop, device=q.device)[:, None]
                // block
            )
            found = _products(q[:, :, rows], means)  # (batch, heads, rows, blocks)
            return found.masked_fill_(columns > own, -torch.inf).masked_fill_(
                columns == own, torch.inf
            )

        return ChosenBlocks(
            _best(_row_blocks(q_len, batch * heads * len(columns)), scores, self.top), block, 1
        )

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
        self.length, self.stride = length, stride
        self.places = nn.Parameter(0.02 * torch.randn(length, size))
        self.mix = nn.Sequential(nn.Linear(length * size, size), nn.GELU(), nn.Linear(size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, heads, n, size) -> (batch, heads, windows, size); the windows that n vectors complete."""
        if x.shape[2] < self.length:
            return x[:, :, :0]
        # (batch, heads, windows, length, size)
        windows = x.unfold(2, self.length, self.stride).mT + self.places
        return self.mix(windows.flatten(3))


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
        self.length, self.stride = (
            whole("NSA's length", length, 1),
            whole("NSA's stride", stride, 1),
        )
        self.block, self.top = whole("NSA's block", block, 1), whole("NSA's top", top, 3)
        self.window = whole("NSA's window", window, 1)
        if self.length % self.stride or self.block % self.stride or self.length > self.block:
            raise ArgumentError(
                f"NSA has length {length}, stride {stride} and block {block}; the stride must divide the length and "
                f"the block, and the length is at most the block"
            )

    def build(
        self, dim: int, heads: int, kv_heads: int, head_dim: int, value_dim: int, scale: float
    ) -> None:
        self.scale, self.to_gates = scale, nn.Linear(dim, 3 * heads)
        self.compress_keys, self.compress_values = (
            Compression(size, self.length, self.stride) for size in (head_dim, value_dim)
        )

    @torch.no_grad()
    def choose(self, q: torch.Tensor, compressed: torch.Tensor, k_len: int) -> ChosenBlocks:
        """The blocks that the last queries of a text of `k_len` tokens look at, given its compressed keys: a list for
        each query and key/value head."""
        (batch, kv_heads, windows, _), (_, heads, q_len, _) = compressed.shape, q.shape
        blocks = torch.arange(-(-k_len // self.block), device=q.device)
        columns = torch.arange(windows, device=q.device)
        # strides in a block and in a window
        units, spans = (
            self.block // self.stride,
            self.length // self.stride,
        )
        # In how many strides the window `units · j + t - (spans - 1)` overlaps block j: equation 9.
        shares = [min(t, spans - 1) - max(0, t - units + 1) + 1 for t in range(units + spans - 1)]

        def scores(rows: slice) -> torch.Tensor:
            at = torch.arange(
                k_len - q_len + rows.start, k_len - q_len + rows.stop, device=q.device
            )[:, None]
            hidden = ~Compressed(self.length, self.stride).allows(at, columns)
            weights = (
                (self.scale * _products(q[:, :, rows], compressed))
                .masked_fill_(hidden, -torch.inf)
                .softmax(-1)
            )
            # zeros in an empty row
            weights = weights.nan_to_num_(0).unflatten(1, (kv_heads, -1)).sum(2)
            padded = functional.pad(weights, (spans - 1, units * len(blocks) - windows))
            # `conv1d` with one channel takes ten times as long
            found = sum(
                share * padded[..., t::units][..., : len(blocks)] for t, share in enumerate(shares)
            )
            own = at // self.block
            found = torch.as_tensor(found).masked_fill(blocks > own, -torch.inf)
            return found.masked_fill(
                (blocks == 0) | (blocks == own) | (blocks == own - 1), torch.inf
            )

        rows = _row_blocks(q_len, batch * heads * max(windows, len(blocks)))
        return ChosenBlocks(_best(rows, scores, self.top), self.block, query_block=1)

    def forward(
        self,
        attend: Attend,
        x: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
    ) -> torch.Tensor:
        _refuse_for_windows(pattern)
        (k_0, k_1, k_2), (v_0, v_1, v_2) = k.chunk(3, 1), v.chunk(3, 1)
        compressed = self.compress_keys(k_0)
        chosen = pattern & Causal() & self.choose(q, compressed, k.shape[2])
        outputs = (
            attend(q, compressed, self.compress_values(v_0), Compressed(self.length, self.stride)),
            attend(q, k_1, v_1, chosen),
            attend(q, k_2, v_2, pattern & CausalWindow(self.window)),
        )
        # (3, batch, heads, length)
        gates = torch.sigmoid(self.to_gates(x)).unflatten(-1, (3, -1)).permute(2, 0, 3, 1)
        return (gates[..., None] * torch.stack(outputs)).sum(0)

    def extra_repr(self) -> str:
        return ", ".join(
            f"{name}={getattr(self, name)}"
            for name in ("length", "stride", "block", "top", "window")
        )


def _refuse_for_windows(pattern: Pattern) -> None:
    """Refuse a pattern that may hide tokens before a query, since a compressed key cannot be divided."""
    for part in pattern.canonical().factors:
        band = part.band()
        span = row_span(part)
        if (
            band is not None
            and band.left is None
            and not band.start
            and (band.right is None or band.right >= 0)
        ):
            continue
        if span is None or bool((span[0] > 0).any()):
            raise UnsupportedError(
                f"a compressed key of NSA stands for several tokens, and pattern {part} may hide some of them; give "
                f"causal, or a padding on the right as KeySpan(0, lengths)"
            )


class LightningIndexer(Chooser):
    """DeepSeek's lightning indexer: a small attention without values scores all keys, and each query looks at `top`.

        I_ts = Σ_h w_th · relu(q_th · k_s),   with w, q and k projected from x

    It learns by its own loss alone, the divergence between the attention's weights and `softmax(I)`: see `loss` and
    `choice_losses`. All heads of the layer share a choice. Caches keep its keys with those of the layer.

    Args:
        top: keys that a query looks at.
        heads, head_dim: of the indexer; head_dim is a multiple of the layer's kv_heads.
        positions: a Rotary that rotates its queries and keys, "rotary", or None.

    Set the attribute `dense` to True to let the layer look at all keys, as in the paper's warm-up.

    Source: DeepSeek-V3.2-Exp, DeepSeek-AI 2025, section 2.1, equations 1 to 4.

    >>> from regard.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention(dim=16, heads=4, kv_heads=2, chooser=LightningIndexer(top=3))
    >>> layer(torch.zeros(1, 7, 16)).shape
    torch.Size([1, 7, 16])
    """

    def __init__(
        self, top: int, heads: int = 4, head_dim: int = 32, positions: Rotary | str | None = None
    ) -> None:
        super().__init__()
        self.top, self.heads = (
            whole("LightningIndexer's top", top, 1),
            whole("LightningIndexer's heads", heads, 1),
        )
        self.head_dim = whole("LightningIndexer's head_dim", head_dim, 1)
        self.positions, self.dense = as_rotary(positions), False
        if self.positions is not None:
            self.positions.check(self.head_dim)

    def build(
        self, dim: int, heads: int, kv_heads: int, head_dim: int, value_dim: int, scale: float
    ) -> None:
        if self.head_dim % kv_heads:
            raise ArgumentError(
                f"LightningIndexer's head_dim is {self.head_dim} and must be a multiple of kv_heads, {kv_heads}: a "
                f"cache stores an equal part of each indexer key with each key/value head"
            )
        self.scale, self.extra = scale, self.head_dim // kv_heads
        self.to_q = nn.Linear(dim, self.heads * self.head_dim, bias=False)
        self.to_k = nn.Linear(dim, self.head_dim, bias=False)
        self.k_norm = nn.LayerNorm(self.head_dim)
        self.to_weights = nn.Linear(dim, self.heads, bias=False)

    def _rotated(self, x: torch.Tensor, start: int) -> torch.Tensor:
        return x if self.positions is None else self.positions.rotate_from(x, start)

    def _queries(self, x: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries (batch, heads, length, head_dim), with the weights of heads (batch, heads, length, 1)."""
        weights = self.to_weights(x).mT[..., None] * (self.heads * self.head_dim) ** -0.5
        return self._rotated(
            self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2), start
        ), weights

    def _keys(self, x: torch.Tensor, start: int) -> torch.Tensor:
        # (batch, 1, length, head_dim)
        return self._rotated(self.k_norm(self.to_k(x))[:, None], start)

    def kept(self, x: torch.Tensor, k: torch.Tensor, start: int) -> torch.Tensor:
        with torch.no_grad():
            keys = self._keys(x, start)[:, 0].unflatten(-1, (-1, self.extra)).transpose(1, 2)
        return torch.cat([k, keys.to(k.dtype)], -1)

    @torch.no_grad()
    def choose(self, x: torch.Tensor, keys: torch.Tensor) -> ChosenKeys:
        """The keys that the last queries of a text look at, given the indexer's keys (batch, 1, k_len, head_dim)."""
        (batch, length, _), k_len = x.shape, keys.shape[2]
        q, weights = self._queries(x, k_len - length)
        columns = torch.arange(k_len, device=x.device)

        def scores(rows: slice) -> torch.Tensor:
            found = (torch.relu(q[:, :, rows] @ keys.mT) * weights[:, :, rows]).sum(1, keepdim=True)
            at = torch.arange(
                k_len - length + rows.start, k_len - length + rows.stop, device=x.device
            )
            return found.masked_fill_(columns > at[:, None], -torch.inf)

        return ChosenKeys(_best(_row_blocks(length, batch * self.heads * k_len), scores, self.top))

    def forward(
        self,
        attend: Attend,
        x: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
    ) -> torch.Tensor:
        k, keys = k[..., : -self.extra], k[..., -self.extra :].transpose(1, 2).flatten(2)[:, None]
        pattern = pattern & Causal()
        return attend(q, k, v, pattern if self.dense else pattern & self.choose(x, keys))

    def loss(
        self, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, pattern: Pattern
    ) -> torch.Tensor:
        """The divergence `Σ KL(p_t || softmax(I_t))` over the batch and the queries of a text, in nats.

        p_t is the mean of the weights of the layer's heads. Both range over the keys that the pattern allows: of the
        chosen ones, or while `dense` of all up to t. A position at whose key no query may look is
        padding, and its query does not count. The gradient reaches the indexer alone. Only these pairs are computed,
        some rows at a time, and again in the backward pass.

        Args:
            x: (batch, length, dim).
            q, k: the layer's queries and keys of x, (batch, heads or kv_heads, length, head_dim).
            pattern: of the layer and the call.
        """
        pattern = pattern & Causal()
        grid = Grid.whole(x.shape[1], x.shape[1], 0, x.device)
        visible = visible_keys(pattern, grid)
        padding = (
            x.new_zeros(1, x.shape[1], dtype=torch.bool) if visible is None else ~visible.any(1)
        )
        x = x.detach().masked_fill(padding[..., None], 0)
        q = q.detach()
        k = k.detach()
        keys, (index_q, weights) = (
            self._keys(x, 0).masked_fill(padding[:, None, :, None], 0),
            self._queries(x, 0),
        )
        q = q.unflatten(1, (k.shape[1], -1))  # (batch, kv_heads, group, length, head_dim)
        chosen = None if self.dense else self.choose(x, keys).keys  # (batch, 1, length, top)
        row = "" if chosen is None else "r"

        def divergence(
            some: slice, index_q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor
        ) -> torch.Tensor:
            hidden = ~four_axes(
                pattern.evaluate(grid.block(range(some.start, some.stop), grid.keys))
            )
            listed = None if chosen is None else chosen[:, :, some]
            if listed is not None:
                shape = len(x), hidden.shape[1], *listed.shape[2:]
                hidden = hidden.expand(*shape[:3], -1).gather(
                    -1, listed.clamp(min=0).expand(shape)
                ) | (listed < 0)
            of_all = hidden.all(1, keepdim=True)  # hidden from every head

            def of(
                x: torch.Tensor,
            ) -> torch.Tensor:  # (batch, heads, rows that have keys of their own, keys, dim)
                batch, heads = (torch.arange(size, device=x.device) for size in x.shape[:2])
                return (
                    x
                    if chosen is None
                    else x[batch[:, None, None, None], heads[:, None, None], listed]
                )

            scores = torch.einsum(f"bhrd,bo{row}kd->bhrk", index_q[:, :, some], of(keys))
            scores = (torch.relu(scores) * weights[:, :, some]).sum(1, keepdim=True)
            # an empty row has p = 0
            scores = scores.masked_fill(of_all & ~of_all.all(-1, keepdim=True), -torch.inf)
            logits = self.scale * torch.einsum(
                f"bvgrd,bv{row}kd->bvgrk", q[:, :, :, some], of(k)
            ).flatten(1, 2)
            logits = (
                logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)
            )
            p = (
                logits.masked_fill(hidden, -torch.inf)
                .softmax(-1)
                .masked_fill(hidden, 0)
                .mean(1, keepdim=True)
            )
            p = p.masked_fill(padding[:, None, some, None], 0)
            return (torch.xlogy(p, p) - p * scores.log_softmax(-1).masked_fill(of_all, 0)).sum()

        # of one row and head
        columns = x.shape[1] if chosen is None else chosen.shape[-1] * (1 + self.head_dim // 4)
        rows = _row_blocks(
            x.shape[1], x.shape[0] * max(self.heads, k.shape[1] * q.shape[2]) * columns
        )
        parts = [
            checkpoint(divergence, some, index_q, weights, keys, use_reentrant=False)
            for some in rows
        ]
        return torch.stack([keys.sum() * 0, *parts]).sum()  # type: ignore[list-item]

    def extra_repr(self) -> str:
        return f"top={self.top}, heads={self.heads}, head_dim={self.head_dim}"


@contextmanager
def choice_losses(model: nn.Module) -> Generator[list[torch.Tensor]]:
    """Collect the losses of the indexers of a model while the `with` block runs; add them to the model's loss.

    >>> from regard.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention(dim=8, heads=2, chooser=LightningIndexer(top=3))
    >>> with choice_losses(layer) as losses:
    ...     loss = layer(torch.randn(1, 5, 8)).square().sum()
    >>> (loss + sum(losses)).backward()
    >>> layer.chooser.to_q.weight.grad is not None
    True
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"choice_losses takes a module with attention layers, not {shown(model)}"
        )
    losses: list[torch.Tensor] = []

    def add(layer: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        if options.get("cache") is not None:
            raise UnsupportedError(
                "an indexer learns from whole texts; leave out cache=, or choice_losses"
            )
        if options.get("bias") is not None:
            raise UnsupportedError(
                "an indexer learns weights without a bias; leave out bias=, or choice_losses"
            )
        if torch._C._current_graph_task_id() >= 0:
            return  # a checkpoint computes the layer again in the backward pass
        named = {name: options[name] for name in ("x", "positions", "pattern") if name in options}
        # a checkpoint around the layer does not repeat the loss
        with saved_tensors_hooks(lambda x: x, lambda x: x):
            losses.append(layer.choice_loss(*given[:1], **named))

    chosen = [
        one
        for one in model.modules()
        if isinstance(getattr(one, "chooser", None), LightningIndexer)
    ]
    hooks = [layer.register_forward_pre_hook(add, with_kwargs=True) for layer in chosen]
    try:
        yield losses
    finally:
        for hook in hooks:
            hook.remove()
