"""What heads look at on random ids that repeat, and which pairs of words one score is made of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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

LENGTH = 25  # ids of a block that occurs twice in a text
TEXTS = 8


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
    ids = _repeated_ids(model, length, texts, seed)

    with in_eval_mode(model):
        encoder, decoder, _ = weights_of(model, _sides(model, ids))
    # A row of weights is a layer of the model, but for recurrent layers, which have no weights.
    layers = list(range(max(len(encoder), len(decoder))))
    if isinstance(model, LanguageModel | TextEncoder):
        layers = layers_with_weights(model)

    translates = len(encoder) > 0 < len(decoder)
    # Our models read BEGIN before the ids, but for the encoder of a translator.
    is_ours = not isinstance(model, Subject)
    first_of_encoder = int(isinstance(model, TextEncoder))
    stacks = [
        ("encoder" if translates else "self", encoder, first_of_encoder),
        ("decoder" if translates else "self", decoder, int(is_ours)),
    ]
    previous: dict[Head, float] = {}
    induction: dict[Head, float] = {}
    for kind, weights, first in stacks:
        if not len(weights):
            continue
        means_of_previous = _mean_weights(weights, first, range(1, 2 * length), 1)
        means_of_induction = _mean_weights(weights, first, range(length, 2 * length), length - 1)
        for row, layer in enumerate(layers):
            for head in range(weights.shape[2]):
                name = Head(kind, layer, head)
                previous[name] = float(means_of_previous[row, head])
                induction[name] = float(means_of_induction[row, head])
    return {"previous": previous, "induction": induction}


def _repeated_ids(model: Any, length: int, texts: int, seed: int) -> torch.Tensor:
    """Different ids of words in each text, and then the same again, (texts, 2 * length)."""
    vocab_size = min(map(len, tables(model).values()))
    words = is_word(torch.arange(vocab_size), special_of(model)).nonzero().flatten()
    if len(words) < length:
        raise ArgumentError(
            f"length is {length}, and the vocabulary has {len(words)} ids; give fewer"
        )
    generator = torch.Generator().manual_seed(whole("seed", seed, 0))
    orders = [torch.randperm(len(words), generator=generator) for _ in range(texts)]
    drawn = torch.stack([words[order[:length]] for order in orders])
    return drawn.repeat(1, 2).to(next(model.parameters()).device)


def _mean_weights(weights: torch.Tensor, first: int, rows: range, back: int) -> torch.Tensor:
    """The mean weight of each head, (layers, heads), on the key that stands `back` positions before its query.

    Args:
        weights: (layers, batch, heads, rows, keys).
        first: the row of the first id of a text.
        rows: the queries, from there.
    """
    queries = first + torch.arange(rows.start, rows.stop)
    return weights[..., queries, queries - back].double().mean((1, 3))


def _sides(model: nn.Module, ids: torch.Tensor) -> Sides:
    """What a model reads as a text of these ids, (texts, length): with BEGIN and END as in training, if it is ours."""
    if isinstance(model, Subject):
        return dict.fromkeys(model.tables(), ids)
    begun = F.pad(ids, (1, 0), value=BEGIN)
    if isinstance(model, TextEncoder):
        return {"source": F.pad(begun, (0, 1), value=END), "written": begun}
    return {"source": F.pad(ids, (0, 1), value=END), "written": begun}


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
        names = [*map(visible, self.words), "(every text)"]
        parts = self.parts.flatten()
        largest = parts.abs().argsort(descending=True)[:count].tolist()
        pairs = []
        for index in largest:
            query, key = divmod(index, len(names))
            pairs.append((names[query], names[key], float(parts[index])))
        return pairs

    def text(self, count: int = 5) -> str:
        """The score, and the pairs that add or take most, in lines."""
        query = visible(self.words[self.query])
        key = visible(self.words[self.key])
        bias = f", of which {self.bias:+.2f} by distance" if self.bias else ""
        lines = [
            f"{self.head}, {query} -> {key}: score {self.score:.2f}{bias}, weight {self.weight:.3f}"
        ]
        for at_query, at_key, value in self.pairs(count):
            lines.append(f"  {value:+.2f}  {at_query} at the query, {at_key} at the key")
        return "\n".join(lines)


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
    kinds = "a LanguageModel or a TextEncoder, whose parts are known"
    of_kind("model", model, LanguageModel | TextEncoder, kinds)
    counts = {layer: attention.heads for layer, attention in attention_layers(model).items()}
    (chosen,) = named_heads(counts, [head])
    ids = ids_of_text(model, tokeniser, text)
    spans = tokeniser.words(ids)
    for name, index in (("query", query), ("key", key)):
        if not 0 <= whole(name, index) < len(spans):
            raise ArgumentError(f"{name} is {index}; the text has the words 0 to {len(spans) - 1}")
    block: Any = model.blocks[chosen.layer]
    attention = block.attention

    with in_eval_mode(model), record_attention(model, "weights") as recorded:
        model(torch.tensor([ids], device=next(model.parameters()).device))
    weights = []
    for layer in range(chosen.layer + 1):
        weights.append(recorded[f"blocks.{layer}.attention"][0].weights[0])
    parts = _parts_of(model, ids, weights[:-1])
    if attention.mechanism.declared != Softmax():
        raise UnsupportedError(
            f"{attention.mechanism.declared} has no scores q · k, so they have no parts"
        )
    special = model.config.special.replace("rotary_scaling", "")
    if special:
        raise UnsupportedError(
            f"scores of a model with {special} have no parts by words: they are no plain sums"
        )
    query_id = spans[query][1].stop - 1
    key_id = spans[key][1].stop - 1
    weight = float(weights[-1][chosen.head, query_id, key_id])
    if not weight:
        raise ArgumentError(
            f"{spans[query][0]!r} gives {spans[key][0]!r} no weight in {chosen}; choose another key"
        )

    normed = _normed(block.attention_norm, parts)
    kv_head = chosen.head // (attention.heads // attention.kv_heads)
    queries = _projected(attention.to_q, normed[query_id]).unflatten(-1, (attention.heads, -1))
    keys = _projected(attention.to_k, normed[key_id]).unflatten(-1, (attention.kv_heads, -1))
    q = queries[:, chosen.head]  # (ids + 1, head_dim)
    k = keys[:, kv_head]
    if attention.positions is not None:
        q = _rotated(attention.positions, q, query_id)
        k = _rotated(attention.positions, k, key_id)
    scale = attention.options["scale"] or 1 / math.sqrt(attention.head_dim)
    by_id = scale * q @ k.T
    by_word = _by_word(_by_word(by_id, spans).T, spans).T

    bias = 0.0
    if block.bias is not None:
        distance = torch.tensor([key_id - query_id])
        bias = float(block.bias.by_distance(distance, attention.heads)[chosen.head])
    return ScoreParts(
        head=chosen,
        words=tuple(word for word, _ in spans),
        query=query,
        key=key,
        score=float(by_word.sum()) + bias,
        weight=weight,
        bias=bias,
        parts=by_word.float().cpu(),
    )


def _rotated(positions: Any, vectors: torch.Tensor, position: int) -> torch.Tensor:
    """Vectors (parts, head_dim), all rotated to one position."""
    return positions.rotate(vectors[None, None], torch.full((len(vectors),), position))[0, 0]


def _projected(projection: nn.Linear, parts: torch.Tensor) -> torch.Tensor:
    """Project each of the parts (..., parts, dim) that a vector is the sum of; the last one includes the bias."""
    parts = F.linear(parts, projection.weight)
    if projection.bias is not None:
        parts[..., -1, :] += projection.bias
    return parts


def _by_word(rows: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
    """Sums over the ids of each word; the last row stays."""
    sums = [rows[ids.start : ids.stop].sum(0) for _, ids in spans]
    return torch.stack([*sums, rows[-1]])


def _normed(norm: Any, parts: torch.Tensor) -> torch.Tensor:
    """A norm of vectors that are sums of parts (length, parts, dim), divided among these; its bias is the last part."""
    x = parts.sum(1, keepdim=True)
    if isinstance(norm, nn.LayerNorm):
        parts = parts - parts.mean(-1, keepdim=True)
        x = x - x.mean(-1, keepdim=True)
    epsilon = norm.eps if norm.eps is not None else torch.finfo(x.dtype).eps
    inverse_size = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    parts = parts * inverse_size * norm.weight.to(x.dtype)
    bias = getattr(norm, "bias", None)
    if bias is not None:
        parts[:, -1] += bias
    return parts


def _parts_of(
    model: LanguageModel | TextEncoder, ids: list[int], weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The vectors after some layers, by the position that they came from: (length, length + 1, dim)."""
    device = model.embedding.weight.device
    positions = torch.arange(len(ids), device=device)
    x = model._embed_texts(torch.tensor([ids], device=device), positions)[0]
    parts = x.new_zeros(len(ids), len(ids) + 1, x.shape[-1])
    parts[positions, positions] = x
    blocks: list[Any] = list(model.blocks)
    for block, of_block in zip(blocks, weights, strict=False):  # those before the layer
        attention = block.attention
        v = _projected(attention.to_v, _normed(block.attention_norm, parts))
        v = v.unflatten(-1, (attention.kv_heads, -1))
        v = v.repeat_interleave(attention.heads // attention.kv_heads, -2)
        # i: queries, j: keys, p: parts, h: heads, v: numbers of a head
        outputs = torch.einsum("hij,jphv->iphv", of_block.to(v), v).flatten(-2)
        parts = parts + _projected(attention.to_output, outputs)
        x = parts.sum(1)
        parts[positions, positions] += block.feed_forward(block.feed_forward_norm(x))
    return parts
