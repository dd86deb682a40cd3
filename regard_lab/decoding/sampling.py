"""Choosing the next id: the filters, the draw, and the most likely ids."""

from dataclasses import dataclass

import torch

from regard.arguments import is_whole, plain, real, shown, whole
from regard.backends.native.few_rows import log_sum_exp_of_few_rows
from regard.errors import ArgumentError
from regard.patterns.random_blocks import draw


def filtered_probabilities(
    scores: torch.Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> torch.Tensor:
    """Probabilities of the next ids after temperature, top-k, top-p and min-p, applied in this order.

        p = softmax(logits / temperature); each filter removes ids and renormalises the others

    Args:
        scores: logits (batch, vocab_size).
        temperature: above 1 flattens the probabilities, below 1 sharpens them; 0 keeps the most likely id only.
        top_k: keep the k most likely ids, and any tied with the last of them.
        top_p: keep the most likely ids whose probabilities add up to p; at least one.
        min_p: keep ids at least p times as likely as the most likely one.

    Returns:
        (batch, vocab_size), in float32 or float64; each batch row adds up to 1.

    Raises:
        ArgumentError: invalid settings.

    Source: top-k, Hierarchical Neural Story Generation, Fan et al. 2018, section 5.1; top-p, The Curious Case of Neural
    Text Degeneration, Holtzman et al. 2020, section 3.1; min-p, Turning Up the Heat, Nguyen et al. 2024, section 3.

    >>> filtered_probabilities(torch.tensor([[0.5, 0.3, 0.2]]).log(), top_k=2)
    tensor([[0.6250, 0.3750, 0.0000]])
    """
    check_filters(temperature, top_k, top_p, min_p)
    check_scores(scores)

    temperature = real("temperature", temperature)  # torch divides by no integer beyond 64 bits
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    if is_greedy(temperature):
        return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1)

    below_best = scores - scores.amax(-1, keepdim=True)
    scores = below_best / temperature  # at most 0, so the division cannot overflow
    if top_k is not None:
        least = scores.topk(min(top_k, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if top_p is not None and top_p < 1:
        scores = scores.masked_fill(~_nucleus(scores, top_p), -torch.inf)
    probabilities = scores.softmax(-1)
    if min_p:
        unlikely = probabilities < min_p * probabilities.amax(-1, keepdim=True)
        return scores.masked_fill(unlikely, -torch.inf).softmax(-1)
    return probabilities


def check_scores(scores: torch.Tensor) -> None:
    """Raise an ArgumentError unless these are logits (batch, vocab_size)."""
    has_axes = isinstance(scores, torch.Tensor) and scores.dim() == 2 and scores.shape[1] > 0
    if not has_axes or not (scores.is_floating_point() or scores.dtype == torch.int64):
        raise ArgumentError(
            f"scores are {shown(scores)}; give a tensor (batch, vocab_size) of real numbers"
        )


def is_greedy(temperature: float) -> bool:
    """Whether the temperature is 0, or too small to divide by in float32."""
    return temperature < torch.finfo(torch.float32).tiny


def check_filters(
    temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    """Raise an ArgumentError for invalid settings."""
    real("temperature", temperature, 0, needs="0 for the most likely id, or a number above 0")
    if top_k is not None:
        number = plain("top_k", top_k)
        if not is_whole(number) or number < 1:
            raise ArgumentError(
                f"top_k is {top_k}; give 1 or more, or leave it out to draw from all ids"
            )
    if top_p is not None:
        real("top_p", top_p, most=1, above=0, needs="a probability above 0, at most 1")
    if min_p is not None:
        real("min_p", min_p, 0, 1, needs="a share from 0 to 1 of the largest probability")


def _nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Mask of the most likely ids that together reach `top_p`; the first of equally likely ones."""
    ordered = scores.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.values.softmax(-1)
    more_likely = probabilities.cumsum(-1) - probabilities
    nucleus = torch.zeros_like(scores, dtype=torch.bool)
    return nucleus.scatter_(-1, ordered.indices, more_likely < top_p)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of sampling; see `filtered_probabilities` for their meaning.

    Args:
        temperature: 0 always takes the most likely id.
        top_k, top_p, min_p: which ids may be drawn; None for all.
        seed: a draw is a function of (seed, number of the text, ids written so far), so it is the same on every device
            and in every batch.

    Raises:
        ArgumentError: invalid settings.

    >>> Sampling(temperature=0.8, top_p=0.9, seed=7).is_greedy
    False
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_filters(self.temperature, self.top_k, self.top_p, self.min_p)
        seed = whole("seed", self.seed, 0, needs="an integer from 0 to 2**63 - 1")
        object.__setattr__(self, "seed", seed)

    @property
    def is_greedy(self) -> bool:
        return is_greedy(self.temperature)

    def choose(self, scores: torch.Tensor, rows: torch.Tensor, place: int) -> torch.Tensor:
        """Choose the next id of each text.

        Args:
            scores: logits (batch, vocab_size).
            rows: int64 (batch,), the number of each text.
            place: number of ids written so far.

        Returns:
            Ids (batch,).
        """
        check_scores(scores)
        whole("place", place, 0)
        is_tensor = isinstance(rows, torch.Tensor)
        if not is_tensor or rows.shape != scores.shape[:1] or rows.dtype != torch.int64:
            raise ArgumentError(
                f"rows are {shown(rows)}; give an int64 tensor, one number for each batch row"
            )
        if self.is_greedy:
            _, ids = likeliest(scores, 1)
            return ids[:, 0]

        probabilities = filtered_probabilities(
            scores,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
        )
        cumulative = probabilities.double().cumsum(-1)  # (batch, vocab_size)
        numbers = uniform(self.seed, rows, place).to(cumulative.device)
        drawn = numbers[:, None] * cumulative[:, -1:]
        # The first id whose cumulative probability is larger.
        return torch.searchsorted(cumulative, drawn, right=True)[:, 0]


GREEDY = Sampling(temperature=0)


def uniform(seed: int, rows: torch.Tensor, place: int) -> torch.Tensor:
    """A random number in [0, 1) for each row (batch,), of 52 bits, so that its product with a total stays below it."""
    rows = rows.cpu()
    # two whole numbers, since one draw has at most 31 bits: 31 and 21 of them make 52
    high = draw(seed, rows, 2 * place, torch.tensor(2**31, device="cpu"))
    low = draw(seed, rows, 2 * place + 1, torch.tensor(2**21, device="cpu"))
    return (high * 2**21 + low).double() / 2**52


# The most likely ids

IDS_PER_BLOCK = 128
FEW_SCORES = 1 << 15  # they are read sooner than they are divided into blocks
CACHED_SCORES = 1 << 18  # they fit in a core's cache while they are summed


def likeliest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest logits (batch, count) of each batch row, the largest first, and their ids (batch, count).

    Among many scores they lie in the blocks with the largest maxima, so every other block is read only once. A smaller
    vocabulary returns fewer.

    >>> likeliest(torch.tensor([[1.0, 5.0, 3.0]]), 2)[1].tolist()
    [[1, 2]]
    """
    blocks = scores.shape[1] // IDS_PER_BLOCK
    if scores.numel() <= FEW_SCORES or blocks <= 2 * count:
        return _largest(scores, min(count, scores.shape[1]))

    in_blocks = scores[:, : blocks * IDS_PER_BLOCK].unflatten(1, (blocks, IDS_PER_BLOCK))
    behind_blocks = scores[:, blocks * IDS_PER_BLOCK :]
    _, best_blocks = _largest(in_blocks.amax(-1), count)  # (batch, count)
    index = best_blocks[..., None].expand(-1, -1, IDS_PER_BLOCK)
    in_best = in_blocks.gather(1, index).flatten(1)  # (batch, count * IDS_PER_BLOCK)

    # Places count through the best blocks, in the order of `best_blocks`, and then through the ids behind all blocks.
    values, places = _largest(torch.cat([in_best, behind_blocks], 1), count)
    numbers = (places // IDS_PER_BLOCK).clamp(max=count - 1)  # those behind have no block
    ids_in_blocks = best_blocks.gather(1, numbers) * IDS_PER_BLOCK + places % IDS_PER_BLOCK
    ids_behind = places + (blocks - count) * IDS_PER_BLOCK  # the blocks that were left out
    return values, torch.where(places < in_best.shape[1], ids_in_blocks, ids_behind)


def log_total(scores: torch.Tensor) -> torch.Tensor:
    """log Σ exp(scores) of each batch row, (batch, 1), computed for a few rows at a time."""
    sum_few = log_sum_exp_of_few_rows()
    if sum_few is not None:
        total = sum_few(scores)
        if total is not None:
            return total
    rows = max(1, CACHED_SCORES // max(1, scores.shape[1]))
    if scores.shape[0] <= rows:
        return scores.logsumexp(-1, keepdim=True)
    return torch.cat([part.logsumexp(-1, keepdim=True) for part in scores.split(rows)])


def _largest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    # max takes a third of topk's time, and returns the first of equal scores
    best = scores.max(-1, keepdim=True) if count == 1 else scores.topk(count)
    return best.values, best.indices
