"""Numbers of the articles' own examples, computed with regard for the page "The articles, section by section"."""

from __future__ import annotations

import json
import math
from functools import cache
from statistics import mean

import torch

import regard as rg
from docs.making.measured import RESULTS
from regard.patterns import parse
from regard_lab.models.layers import Residual
from regard_lab.models.recurrent import LongShortTermMemoryNetwork
from regard_lab.models.recurrent.translator import BidirectionalEncoder
from regard_lab.models.translation_transformer import TranslationConfig, TranslationTransformer

SENTENCE = "Life is short, eat dessert first"
SEED, DIM, QUERY_DIM, VALUE_DIM = 123, 16, 24, 28
EXACT = 1e-12


@cache
def example() -> dict[str, torch.Tensor]:
    """The well-known worked example: six words, vectors of 16 numbers, d_q = d_k = 24, d_v = 28, the second word.

    Words are sorted for their ids; the comma is dropped. Vectors and matrices are each drawn after seed 123.
    """
    words = SENTENCE.replace(",", "").split()
    ids = torch.tensor([sorted(words).index(word) for word in words])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        x = torch.nn.Embedding(len(words), DIM)(ids).detach()  # (words, DIM)
        torch.manual_seed(SEED)
        queries, keys, values = (torch.rand(size, DIM) for size in (QUERY_DIM, QUERY_DIM, VALUE_DIM))
    q, k, v = (x @ matrix.T for matrix in (queries, keys, values))  # (words, size)
    detail = rg.attention_detail(q[None, None], k[None, None], v[None, None], want=["weights"])
    return {
        "ids": ids, "scores": q[1] @ k.T, "weights": detail.weights[0, 0, 1], "contexts": detail.output[0, 0],
        "queries": queries, "keys": keys, "values": values,
    }  # fmt: skip


def ids() -> str:
    """The ids of the six words."""
    return f"ids {', '.join(map(str, example()['ids'].tolist()))}"


def matrices() -> str:
    """The shapes of the three matrices."""
    shapes = " and ".join(" × ".join(map(str, example()[name].shape)) for name in ("queries", "keys", "values"))
    return f"W_q, W_k and W_v of {shapes} numbers"


def scores() -> str:
    """The scores of the second word before scaling."""
    return f"ω of the second word: {_listed(example()['scores'])}"


def weights() -> str:
    """The weights of the second word."""
    return f"weights of the second word: {_listed(example()['weights'])}"


def contexts() -> str:
    """The shape of the context vectors, and the beginning of the second."""
    contexts = example()["contexts"]
    first = _listed(contexts[1, :2])
    return f"{' × '.join(map(str, contexts.shape))} numbers; the second vector starts with {first}"


def _listed(numbers: torch.Tensor) -> str:
    return ", ".join(f"{number:.4f}" for number in numbers.tolist())


def z_by_hand() -> str:
    """Five scores, five weights and a sum of five values for the first word, compared with rg.attention."""
    q, k, v = _projected()
    exponentials = [math.exp(float(q[0] @ key) / math.sqrt(len(key))) for key in k]
    z = sum(exponential / sum(exponentials) * value for exponential, value in zip(exponentials, v, strict=True))
    _check(rg.attention(q[None, None], k[None, None], v[None, None])[0, 0, 0] - z)
    return f"z1 as a sum of {len(k)} weighted values is rg.attention to {EXACT:g}"


def by_columns() -> str:
    """V softmax(QᵀK / sqrt(d))ᵀ with words as columns, compared with rg.attention."""
    q, k, v = (x.T for x in _projected())  # (d, T), as the article writes them
    z = v @ ((q.T @ k) / math.sqrt(len(q))).softmax(-1).T
    _check(rg.attention(q.T[None, None], k.T[None, None], v.T[None, None])[0, 0].T - z)
    return f"QᵀK of {q.shape[1]} × {q.shape[1]} scores; Z of {z.shape[0]} × {z.shape[1]} is rg.attention to {EXACT:g}"


def _projected() -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of five words, (5, 64) each."""
    return torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64).unbind(0)


def joined_heads() -> str:
    """Heads computed one by one, concatenated and multiplied by the last matrix, compared with the layer."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        layer, x = rg.MultiHeadAttention(dim=64, heads=8).double(), torch.randn(1, 5, 64, dtype=torch.float64)
        q, k, v = (part(x).unflatten(-1, (8, 8)).transpose(1, 2) for part in (layer.to_q, layer.to_k, layer.to_v))
        heads = [rg.attention(q[:, [h]], k[:, [h]], v[:, [h]])[:, 0] for h in range(8)]
        _check(layer.to_output(torch.cat(heads, -1)) - layer(x))
    return f"8 heads of 8 numbers, concatenated and multiplied by W_o of 64 × 64, are the layer to {EXACT:g}"


def both_directions() -> str:
    """How many states of the bidirectional encoder change with the last word."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        encoder = BidirectionalEncoder("gru", 8, 8, 1, 0.0)
        x = torch.randn(1, 5, 8)
        other = x.clone()
        other[:, -1] = torch.randn(8)
        moved = (encoder(x, None)[0] - encoder(other, None)[0])[0] != 0  # (5, 8): forwards, then backwards
    forwards, backwards = (int(half.any(-1).sum()) for half in moved.chunk(2, -1))
    return f"another last word of 5 changes {backwards} backward states and {forwards} forward state"


def big_bird_pairs() -> str:
    """The pairs that window, global and random words keep of all pairs."""
    pattern = parse("sliding_window(4) | global_tokens(0) | random_blocks(1, block=4, seed=0)")
    return f"{pattern.count(256, 256):,} of {256**2:,} pairs of 256 words"


def lstmn() -> str:
    """What an LSTMN keeps of a text."""
    network = LongShortTermMemoryNetwork(dim=8, hidden=8)
    _, tapes = network(torch.zeros(1, 12, 8))
    return f"after 12 words the tape holds {tapes.length} states that the next word attends to; an LSTM holds 1"


def six_layers() -> str:
    """The residual connections of an encoder with six layers."""
    encoder = TranslationTransformer(TranslationConfig(vocab_size=10, dim=8, heads=2, encoder_layers=6)).encoder
    sub_layers = sum(isinstance(module, Residual) for module in encoder.modules())
    return f"{len(encoder)} layers with {sub_layers} sub-layers, each with its residual connection and norm"


def transfer() -> str:
    """The committed report of transfer learning, for the fewest labels."""
    records = json.loads((RESULTS / "transfer_cpu" / "transfer.json").read_text(encoding="utf-8"))["records"]
    fewest = min(record["labels"] for record in records)
    few = [record for record in records if record["labels"] == fewest]
    scratch, pretrained = (mean(record[name] for record in few) for name in ("scratch", "transfer"))
    return (
        f"{fewest} labels: {scratch:.3f} right from scratch, {pretrained:.3f} after masked words "
        f"([report](../benchmarks/results/transfer_cpu/transfer.md))"
    )


def _check(difference: torch.Tensor) -> None:
    assert float(difference.abs().max()) < EXACT, "an example of the articles differs from regard"


NUMBERS = {
    function.__name__: function
    for function in (
        ids, matrices, scores, weights, contexts, z_by_hand, by_columns, joined_heads, both_directions, big_bird_pairs,
        lstmn, six_layers, transfer,
    )
}  # fmt: skip
