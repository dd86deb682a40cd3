"""What heads look at on random ids that repeat, and which pairs of words one score is made of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from regard.arguments import of_kind, whole
from regard.errors import ArgumentError, UnsupportedError
from regard.layers.recording import record_attention
from regard.mechanisms import Softmax
from regard.reprs import brief
from regard_lab.models import LanguageModel, TextEncoder
from regard_lab.seeing.heads.replacing import Head, attention_layers, named_heads
from regard_lab.seeing.lenses.contrast import (
    Sides,
    Subject,
    is_word,
    special_of,
    tables,
    weights_of,
)
from regard_lab.seeing.maps import ids_of_text
from regard_lab.seeing.terminal import visible
from regard_lab.seeing.watching import Span, in_eval_mode, layers_with_weights
from regard_lab.text import BEGIN, END, Tokeniser

LENGTH, TEXTS = 25, 8  # ids of a block that occurs twice in a text, and texts


@torch.no_grad()
def head_scores(
    model: nn.Module, *, length: int = LENGTH, texts: int = TEXTS, seed: int = 0
) -> dict[str, dict[Head, float]]:
    """How much each head of self-attention looks at the word before, and at what followed the same word earlier.

    A text is `length` different ids, drawn at random, and then the same ids again, so that nothing but the repetition
    can be learned from it. "previous" is the mean of w[i, i - 1], and "induction" the mean of w[i, i - length + 1] over
    the second copy.

    A head that looks at all earlier ids alike has about 0.1 and 0.03. A high induction score is a sign of an induction
    head; whether the head also copies what it finds is measured by `ablate`.

    Args:
        model: as for `ablate`; self-attention of encoder and decoder for a translator.
        length: ids of a block.
        texts: how many texts are drawn.
        seed: decides which.

    Returns:
        The numbers, from 0 to 1, of each head, as "induction" and "previous".

    Raises:
        UnsupportedError: a model without heads, or without weights.

    Source: In-context Learning and Induction Heads, Olsson et al. 2022, the definition by repeated random tokens.

    >>> from regard_lab.models import LanguageModel
    >>> model = LanguageModel(LanguageModel.Config(vocab_size=300, dim=16, heads=2, layers=1))
    >>> scores = head_scores(model)
    >>> sorted(scores), 0 < scores["previous"][Head("self", 0, 1)] < 1
    (['induction', 'previous'], True)
    """
    length = whole("length", length, 2)
    texts = whole("texts", texts, 1)
    if not isinstance(model, Subject):
        attention_layers(model)  # refuses a model without heads
    known: Any = model
    vocab_size = min(map(len, tables(known).values()))
    words = is_word(torch.arange(vocab_size), special_of(model)).nonzero().flatten()
    if len(words) < length:
        raise ArgumentError(
            f"length is {length}, and the vocabulary has {len(words)} ids; give fewer"
        )
    generator = torch.Generator().manual_seed(whole("seed", seed, 0))
    drawn = torch.stack(
        [words[torch.randperm(len(words), generator=generator)[:length]] for _ in range(texts)]
    )
    ids = drawn.repeat(1, 2).to(next(model.parameters()).device)
    with in_eval_mode(model):
        encoder, decoder, _ = weights_of(model, _sides(model, ids))
    ours = not isinstance(model, Subject)
    # A row of weights is a layer of the model, but for recurrent layers, which have no weights.
    layers = (
        layers_with_weights(model)
        if isinstance(model, LanguageModel | TextEncoder)
        else range(max(len(encoder), len(decoder)))
    )
    both = len(encoder) > 0 < len(decoder)
    stacks = [
        ("encoder" if both else "self", encoder, int(isinstance(model, TextEncoder))),
        ("decoder" if both else "self", decoder, int(ours)),  # after BEGIN
    ]
    scores: dict[str, dict[Head, float]] = {"previous": {}, "induction": {}}
    for kind, weights, start in stacks:
        for name, back, first in (("previous", 1, 1), ("induction", length - 1, length)):
            rows = start + torch.arange(first, 2 * length) if len(weights) else torch.arange(0)
            means = weights[..., rows, rows - back].double().mean((1, 3))  # (layers, heads)
            for row, head in product(*map(range, means.shape)):
                scores[name][Head(kind, layers[row], head)] = float(means[row, head])
    return scores


def _sides(model: nn.Module, ids: torch.Tensor) -> Sides:
    """What a model reads as a text of these ids, (texts, length): with BEGIN and END as in training, if it is ours."""
    if isinstance(model, Subject):
        return dict.fromkeys(model.tables(), ids)
    begun = F.pad(ids, (1, 0), value=BEGIN)
    ended = F.pad(ids, (0, 1), value=END)
    return {
        "source": F.pad(begun, (0, 1), value=END) if isinstance(model, TextEncoder) else ended,
        "written": begun,
    }


@brief
@dataclass(frozen=True, eq=False)
class ScoreParts:
    """One score as a sum over pairs of words.

    Args:
        head: whose score it is.
        words: the words of the text.
        query, key: the words whose last sub-words look and are looked at.
        score: before the softmax, with the scale.
        weight: after the softmax.
        bias: the part that depends on the distance alone (ALiBi); it is part of the score.
        parts: (words + 1, words + 1): what a word that reached the query and a word that reached the key add. The last
            row and column are what is added for every text: biases of projections and norms.

    >>> parts = torch.diag(torch.tensor([1.0, 2.0, 0.0]))
    >>> print(ScoreParts(Head("self", 1, 0), ("The", "cat"), 1, 0, 3.0, 0.9, 0.0, parts).text(2))
    self 1.0, cat -> The: score 3.00, weight 0.900
      +2.00  cat at the query, cat at the key
      +1.00  The at the query, The at the key
    """

    head: Head
    words: tuple[str, ...]
    query: int
    key: int
    score: float
    weight: float
    bias: float
    parts: torch.Tensor

    def pairs(self, count: int = 5) -> list[tuple[str, str, float]]:
        """The pairs that add or take most: the word at the query, the word at the key, and what they add."""
        names = (*map(visible, self.words), "(every text)")
        order = self.parts.abs().flatten().argsort(descending=True)[:count].tolist()
        found = [(*divmod(at, len(names)), float(self.parts.flatten()[at])) for at in order]
        return [(names[row], names[column], value) for row, column, value in found]

    def text(self, count: int = 5) -> str:
        """The score, and the pairs that add or take most, in lines."""
        query, key = (visible(self.words[at]) for at in (self.query, self.key))
        bias = f", of which {self.bias:+.2f} by distance" if self.bias else ""
        lines = [
            f"{self.head}, {query} -> {key}: score {self.score:.2f}{bias}, weight {self.weight:.3f}"
        ]
        return "\n".join(
            lines
            + [
                f"  {value:+.2f}  {one} at the query, {other} at the key"
                for one, other, value in self.pairs(count)
            ]
        )


@torch.no_grad()
def score_parts(
    model: LanguageModel | TextEncoder,
    tokeniser: Tokeniser,
    text: str,
    head: Head | str,
    query: int,
    key: int,
) -> ScoreParts:
    """Divide one score of a head among pairs of words: one that reached the query, and one that reached the key.

        score = scale · (R_i W_q x_i) · (R_j W_k x_j) + bias(j - i),   x_i = sum over words a of x_i(a)

    A score is bilinear in the two vectors, and each vector is a sum over the words that earlier layers brought to its
    position. The sum of all parts is the score, up to rounding. Rotary positions turn all parts at a position alike,
    by the position of the query or key, not by that of the word they came from.

    What is not linear is held at the value that it has on this text: the weights of earlier layers, the size by which
    each norm divides, and the output of each feed-forward, which counts as the word at whose position it is computed.
    So a part says what the score is made of, not what it would be for another text; `ablate` and a lens measure that.

    Args:
        model: a language model or an encoder, whose norms come first.
        tokeniser: the tokeniser that the model was trained with.
        text: the text.
        head: such as "1.3".
        query, key: indices of words, as `look_text` has them: 0 is "<begin>". Their last sub-words are taken.

    Raises:
        ArgumentError: a head or a word that does not exist, or a key that the query may not look at.
        UnsupportedError: another model, or a mechanism without such scores.

    Source: A Mathematical Framework for Transformer Circuits, Elhage et al. 2021, "QK circuits" and "Additivity".
    """
    of_kind(
        "model",
        model,
        LanguageModel | TextEncoder,
        "a LanguageModel or a TextEncoder, whose parts are known",
    )
    counts = {layer: attention.heads for layer, attention in attention_layers(model).items()}
    (chosen,) = named_heads(counts, [head])
    ids = ids_of_text(model, tokeniser, text)
    spans = tokeniser.words(ids)
    for name, at in (("query", query), ("key", key)):
        if not 0 <= whole(name, at) < len(spans):
            raise ArgumentError(f"{name} is {at}; the text has the words 0 to {len(spans) - 1}")
    rows = [spans[at][1].stop - 1 for at in (query, key)]
    with in_eval_mode(model), record_attention(model, "weights") as recorded:
        model(torch.tensor([ids], device=next(model.parameters()).device))
    details = [
        recorded[f"blocks.{layer}.attention"][0].weights[0] for layer in range(chosen.layer + 1)
    ]
    block: Any = model.blocks[chosen.layer]
    attention = block.attention
    parts = _parts_of(model, ids, details[: chosen.layer])
    if attention.mechanism.declared != Softmax():
        raise UnsupportedError(
            f"{attention.mechanism.declared} has no scores q · k, so they have no parts"
        )
    if special := model.config.special.replace("rotary_scaling", ""):
        raise UnsupportedError(
            f"scores of a model with {special} have no parts by words: they are no plain sums"
        )
    weight = float(details[-1][chosen.head, rows[0], rows[1]])
    if not weight:
        raise ArgumentError(
            f"{spans[query][0]!r} gives {spans[key][0]!r} no weight in {chosen}; choose another key"
        )
    normed = _normed(block.attention_norm, parts)
    sides = []
    for at, projection, heads in zip(
        rows, (attention.to_q, attention.to_k), (attention.heads, attention.kv_heads), strict=True
    ):
        vectors = _projected(projection, normed[at])
        one = vectors.unflatten(-1, (heads, -1))[
            :, chosen.head // (attention.heads // heads)
        ]  # (words + 1, head_dim)
        sides.append(
            one
            if attention.positions is None
            else attention.positions.rotate(one[None, None], torch.full((len(one),), at))[0, 0]
        )
    scale = attention.options["scale"] or 1 / math.sqrt(attention.head_dim)
    grid = _by_word(_by_word(scale * sides[0] @ sides[1].T, spans).T, spans).T
    distance = torch.tensor([rows[1] - rows[0]])
    bias = (
        0.0
        if block.bias is None
        else float(block.bias.by_distance(distance, attention.heads)[chosen.head])
    )
    words = tuple(word for word, _ in spans)
    return ScoreParts(
        chosen, words, query, key, float(grid.sum()) + bias, weight, bias, grid.float().cpu()
    )


def _projected(projection: nn.Linear, parts: torch.Tensor) -> torch.Tensor:
    """Project each of the parts (..., parts, dim) that a vector is the sum of; the last one includes the bias."""
    parts = F.linear(parts, projection.weight)
    if projection.bias is not None:
        parts[..., -1, :] += projection.bias
    return parts


def _by_word(rows: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
    """Sums over the ids of each word; the last row stays."""
    return torch.stack([*(rows[ids.start : ids.stop].sum(0) for _, ids in spans), rows[-1]])


def _normed(norm: Any, parts: torch.Tensor) -> torch.Tensor:
    """A norm of vectors that are sums of parts (length, parts, dim), divided among these; its bias is the last part."""
    x = parts.sum(1, keepdim=True)
    if isinstance(norm, nn.LayerNorm):
        parts, x = (one - one.mean(-1, keepdim=True) for one in (parts, x))
    epsilon = norm.eps if norm.eps is not None else torch.finfo(x.dtype).eps
    parts = parts * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * norm.weight.to(x.dtype)
    if (bias := getattr(norm, "bias", None)) is not None:
        parts[:, -1] += bias
    return parts


def _parts_of(
    model: LanguageModel | TextEncoder, ids: list[int], weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The vectors after some layers, by the position that they came from: (length, length + 1, dim)."""
    device = model.embedding.weight.device
    length = len(ids)
    x = model._embed_texts(torch.tensor([ids], device=device), torch.arange(length, device=device))[
        0
    ]
    own = torch.arange(length, device=device)
    parts = x.new_zeros(length, length + 1, x.shape[-1])
    parts[own, own] = x
    blocks: list[Any] = list(model.blocks)
    for block, looked in zip(blocks, weights, strict=False):  # those before the layer
        attention = block.attention
        values = _projected(attention.to_v, _normed(block.attention_norm, parts))
        values = values.unflatten(-1, (attention.kv_heads, -1))
        values = values.repeat_interleave(attention.heads // attention.kv_heads, -2)
        mixed = torch.einsum("hij,jphv->iphv", looked.to(values), values).flatten(-2)
        parts = parts + _projected(attention.to_output, mixed)
        x = parts.sum(1)
        parts[own, own] += block.feed_forward(block.feed_forward_norm(x))
    return parts
