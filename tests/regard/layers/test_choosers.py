"""Choosers, against the equations of their papers written query by query in float64."""

from dataclasses import dataclass

import pytest
import torch
from layer_cases import split_heads
from torch.distributed.tensor.parallel import ParallelStyle

import regard as rg
from regard import patterns as p
from regard.distributed import ContextParallel
from regard.errors import ArgumentError, UnsupportedError
from regard.layers import (
    NSA,
    Chooser,
    LightningIndexer,
    MoBA,
    MultiHeadAttention,
    choice_losses,
)

DIM = 22
HEADS = 6
KV_HEADS = 2
GROUP = 3  # query heads of a key/value head
HEAD_DIM = 5
VALUE_DIM = 3
LENGTH = 47
BATCH = 2


def new_layer(chooser: Chooser | None, **options) -> MultiHeadAttention:
    """A layer in float64 with prime sizes and grouped heads."""
    torch.manual_seed(1)
    sizes = {"kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "value_dim": VALUE_DIM}
    return MultiHeadAttention(DIM, HEADS, **sizes, chooser=chooser, **options).double()


def new_nsa() -> NSA:
    torch.manual_seed(2)
    sizes = {"length": 4, "stride": 2, "block": 6, "top": 4, "window": 7}
    return NSA(**sizes)


def new_indexer(**options) -> LightningIndexer:
    torch.manual_seed(2)
    return LightningIndexer(top=5, heads=3, head_dim=6, **options)


NEW = {"moba": lambda: MoBA(block=5, top=3), "nsa": new_nsa, "indexer": new_indexer}


def vectors() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)


# Formulas, one query of one head at a time


@dataclass
class HeadTensors:
    """The queries, keys and values of a layer, (batch, heads, length, size)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def of(cls, layer: MultiHeadAttention, x: torch.Tensor, branches: int = 1) -> "HeadTensors":
        q = split_heads(layer.to_q(x), HEADS)
        k = split_heads(layer.to_k(x), branches * KV_HEADS)
        v = split_heads(layer.to_v(x), branches * KV_HEADS)
        return cls(q, k, v)


def mean_of_values(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The output for one query (head_dim,) of some keys and values; zeros for none."""
    if not len(k):
        return v.new_zeros(v.shape[-1])
    return (q @ k.T * HEAD_DIM**-0.5).softmax(-1) @ v


def joined_output(layer: MultiHeadAttention, output) -> torch.Tensor:
    """The layer's output, where `output(b, h, t)` is that of one head for one query."""
    texts = []
    for b in range(BATCH):
        rows = []
        for t in range(LENGTH):
            rows.append(torch.cat([output(b, h, t) for h in range(HEADS)]))
        texts.append(torch.stack(rows))
    return layer.to_output(torch.stack(texts))


def moba_formula(layer: MultiHeadAttention, x: torch.Tensor) -> torch.Tensor:
    """Lu et al. 2025, equations 2 to 6."""
    heads = HeadTensors.of(layer, x)
    block = layer.chooser.block
    top = layer.chooser.top

    def output(b: int, h: int, t: int) -> torch.Tensor:
        query = heads.q[b, h, t]
        keys = heads.k[b, h // GROUP]
        values = heads.v[b, h // GROUP]
        own_block = t // block
        scores = []
        for c in range(own_block):
            mean_key = keys[c * block : (c + 1) * block].mean(0)
            scores.append((query @ mean_key).item())
        best = sorted(range(own_block), key=lambda c: -scores[c])[: top - 1]
        chosen = [j for j in range(t + 1) if j // block in {*best, own_block}]
        return mean_of_values(query, keys[chosen], values[chosen])

    return joined_output(layer, output)


class NSAFormula:
    """Yuan et al. 2025, equations 5 to 12, numbered from 0."""

    def __init__(self, layer: MultiHeadAttention, x: torch.Tensor) -> None:
        self.nsa = layer.chooser
        self.heads = HeadTensors.of(layer, x, branches=3)
        self.gates = torch.sigmoid(self.nsa.to_gates(x))
        self.compressed_k = {}
        self.compressed_v = {}
        for b in range(BATCH):
            for g in range(KV_HEADS):
                k = self.heads.k[b, g]
                v = self.heads.v[b, g]
                self.compressed_k[b, g] = self.compress(self.nsa.compress_keys, k)
                self.compressed_v[b, g] = self.compress(self.nsa.compress_values, v)

    def compress(self, module, vectors: torch.Tensor) -> torch.Tensor:
        """Equation 7, for the vectors (length, size) of one head."""
        first, _, second = module.mix
        windows = []
        for start in range(0, LENGTH - self.nsa.length + 1, self.nsa.stride):
            window = vectors[start : start + self.nsa.length] + module.places
            windows.append(window.flatten())
        return second(torch.nn.functional.gelu(first(torch.stack(windows))))

    def complete_windows(self, t: int) -> list[int]:
        """The windows whose last token is not after t."""
        windows = range(len(self.compressed_k[0, 0]))
        return [c for c in windows if c * self.nsa.stride + self.nsa.length - 1 <= t]

    def block_weights(self, b: int, g: int, t: int) -> list[float]:
        """Equations 8 to 10: the weights of the windows that overlap a block, over the heads of a group."""
        windows = self.complete_windows(t)
        strides_of_block = self.nsa.block // self.nsa.stride
        strides_of_window = self.nsa.length // self.nsa.stride
        weights = [0.0] * (LENGTH // self.nsa.block + 1)
        for h in range(GROUP * g, GROUP * (g + 1)):
            scores = self.heads.q[b, h, t] @ self.compressed_k[b, g][windows].T
            p_window = (scores * HEAD_DIM**-0.5).softmax(-1)
            for j in range(len(weights)):
                for m in range(strides_of_block):
                    for n in range(strides_of_window):
                        c = strides_of_block * j + m - n
                        if c in windows:
                            weights[j] += p_window[c].item()
        return weights

    def chosen_keys(self, b: int, g: int, t: int) -> list[int]:
        """Equations 11 and 12: the first block, the own one, the one before, and those with the most weight."""
        weights = self.block_weights(b, g, t)
        own_block = t // self.nsa.block
        blocks = {0, own_block, max(own_block - 1, 0)}
        others = sorted({*range(own_block)} - blocks, key=lambda j: -weights[j])
        blocks |= {*others[: self.nsa.top - len(blocks)]}
        return [j for j in range(t + 1) if j // self.nsa.block in blocks]

    def output(self, b: int, h: int, t: int) -> torch.Tensor:
        """Equation 5."""
        g = h // GROUP
        query = self.heads.q[b, h, t]
        windows = self.complete_windows(t)
        chosen = self.chosen_keys(b, g, t)
        near = list(range(max(0, t - self.nsa.window + 1), t + 1))
        second = KV_HEADS + g
        third = 2 * KV_HEADS + g
        k = self.heads.k[b]
        v = self.heads.v[b]
        compressed_k = self.compressed_k[b, g]
        compressed_v = self.compressed_v[b, g]
        branches = (
            mean_of_values(query, compressed_k[windows], compressed_v[windows]),
            mean_of_values(query, k[second][chosen], v[second][chosen]),
            mean_of_values(query, k[third][near], v[third][near]),
        )
        total = torch.zeros_like(branches[0])
        for branch, output in enumerate(branches):
            total = total + self.gates[b, t, branch * HEADS + h] * output
        return total


def nsa_formula(layer: MultiHeadAttention, x: torch.Tensor) -> torch.Tensor:
    return joined_output(layer, NSAFormula(layer, x).output)


def indexer_scores(indexer: LightningIndexer, x: torch.Tensor) -> torch.Tensor:
    """I of DeepSeek-AI 2025, equation 1, (batch, queries, keys)."""
    q = indexer.to_q(x).unflatten(-1, (3, 6))
    k = indexer.k_norm(indexer.to_k(x))
    products = torch.einsum("bthd,bsd->bhts", q, k).clamp_min(0)
    return torch.einsum("bth,bhts->bts", indexer.to_weights(x), products) / 18**0.5


def best_keys(scores: torch.Tensor, t: int, count: int) -> list[int]:
    """The keys up to t with the largest scores (keys,), of equal ones the first."""
    return sorted(range(t + 1), key=lambda s: -scores[s].item())[:count]


def indexer_formula(layer: MultiHeadAttention, x: torch.Tensor) -> torch.Tensor:
    """DeepSeek-AI 2025, equations 1 and 2."""
    heads = HeadTensors.of(layer, x)
    scores = indexer_scores(layer.chooser, x)

    def output(b: int, h: int, t: int) -> torch.Tensor:
        keys = best_keys(scores[b, t], t, layer.chooser.top)
        g = h // GROUP
        return mean_of_values(heads.q[b, h, t], heads.k[b, g][keys], heads.v[b, g][keys])

    return joined_output(layer, output)


def indexer_divergence(
    layer: MultiHeadAttention, x: torch.Tensor, lengths: list[int], window: int, softcap: float
) -> torch.Tensor:
    """DeepSeek-AI 2025, equations 3 and 4: Σ KL(p_t || softmax(I_t)) over the texts of these lengths."""
    scores = indexer_scores(layer.chooser, x)
    heads = HeadTensors.of(layer, x)
    q = heads.q.detach()
    k = heads.k.detach().repeat_interleave(GROUP, 1)
    total = scores.new_zeros(())
    for b in range(BATCH):
        for t in range(lengths[b]):
            count = t + 1 if layer.chooser.dense else layer.chooser.top
            keys = [s for s in best_keys(scores[b, t], t, count) if t - s < window]
            logits = (k[b][:, keys] @ q[b, :, t, :, None] * HEAD_DIM**-0.5)[..., 0]
            p_t = (softcap * torch.tanh(logits / softcap)).softmax(-1).mean(0)
            log_choice = scores[b, t, keys].log_softmax(-1)
            total = total + (p_t * (p_t.log() - log_choice)).sum()
    return total


@pytest.mark.parametrize(
    ("name", "formula", "untouched"),
    [
        ("moba", moba_formula, ()),
        ("nsa", nsa_formula, ()),
        ("indexer", indexer_formula, ("chooser",)),
    ],
)
def test_a_chooser_is_its_formula_in_values_and_gradients(name, formula, untouched, monkeypatch):
    monkeypatch.setattr("regard.layers.choosing.MOST_SCORES", 999)  # several blocks of rows
    layer = new_layer(NEW[name]())
    x = vectors().requires_grad_()
    output = layer(x)
    expected = formula(layer, x)
    torch.testing.assert_close(output, expected, atol=1e-10, rtol=0)

    learned = {"x": x, **dict(layer.named_parameters())}
    slopes = torch.randn_like(output)
    tensors = list(learned.values())
    grads = torch.autograd.grad(output, tensors, slopes, allow_unused=True)
    expected_grads = torch.autograd.grad(expected, tensors, slopes, allow_unused=True)
    for name, grad, expected_grad in zip(learned, grads, expected_grads, strict=True):
        if untouched and name.startswith(untouched):
            assert grad is None, name  # it learns by its own loss alone
        else:
            assert expected_grad.abs().max() > 0, name
            torch.testing.assert_close(grad, expected_grad, atol=1e-10, rtol=0, msg=name)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_the_indexer_learns_the_weights_of_attention_over_what_it_chooses(dense, padded):
    layer = new_layer(new_indexer(), softcap=3.0, pattern="causal_window(31)")
    x = vectors()
    layer.chooser.dense = dense
    lengths = [LENGTH, 29] if padded else [LENGTH] * 2
    texts = x.clone().requires_grad_()
    with torch.no_grad():
        texts[1, lengths[1] :] = torch.nan
    with choice_losses(layer) as losses:
        layer(texts, pattern=p.KeySpan(0, torch.tensor(lengths)))
    [loss] = losses
    expected = indexer_divergence(layer, x, lengths, window=31, softcap=3.0)
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=0)
    weights = [*layer.chooser.parameters()]
    grads = torch.autograd.grad(loss, weights)
    expected_grads = torch.autograd.grad(expected, weights)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert expected_grad.abs().max() > 0
        torch.testing.assert_close(grad, expected_grad, atol=1e-10, rtol=0)


def test_the_loss_of_an_indexer_reaches_it_alone_and_needs_whole_texts_without_a_bias():
    layer = new_layer(new_indexer())
    x = vectors().requires_grad_()
    with choice_losses(layer) as losses:
        layer(x=x)
    layer(x)  # behind the block no loss is collected
    [loss] = losses
    loss.backward()
    assert x.grad is None
    for name, weight in layer.named_parameters():
        assert (weight.grad is not None) == name.startswith("chooser"), name
    with pytest.raises(UnsupportedError, match="leave out bias="), choice_losses(layer):
        layer(x, bias=torch.zeros(1))
    with pytest.raises(UnsupportedError, match="leave out cache="), choice_losses(layer):
        layer(x, cache=layer.new_cache(BATCH))


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("kind", ["dynamic", "paged", "static"])
def test_a_text_goes_on_with_a_cache_as_at_once(name, kind):
    chooser = new_indexer(positions="rotary") if name == "indexer" else NEW[name]()
    layer = new_layer(chooser).eval()
    x = vectors()
    whole = layer(x)
    cache = layer.new_cache(BATCH, kind=kind, capacity=LENGTH if kind == "static" else None)
    with torch.no_grad():
        parts = [layer(part, cache=cache) for part in x.split([17, 1, 2, 1, LENGTH - 21], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", NEW)
def test_padding_on_the_right_changes_nothing_even_with_nan(name):
    layer = new_layer(NEW[name]())
    x = vectors()
    lengths = torch.tensor([LENGTH, 29])
    padded = x.clone()
    padded[1, 29:] = torch.nan
    with torch.no_grad():
        out = layer(padded, pattern=p.KeySpan(0, lengths))
        torch.testing.assert_close(out[0], layer(x)[0], atol=1e-12, rtol=0)
        torch.testing.assert_close(out[1, :29], layer(x[1:, :29])[0], atol=1e-12, rtol=0)


def test_int8_entries_are_chosen_and_computed():
    x = vectors().float()
    for name, new in NEW.items():
        layer = new_layer(new()).float().eval()
        cache = layer.new_cache(BATCH, dtype="int8")
        with torch.no_grad():
            parts = [layer(part, cache=cache) for part in x.split([31, LENGTH - 31], 1)]
        output = torch.cat(parts, 1)
        assert output.isfinite().all(), name
        assert (output - layer(x)).abs().median() < 0.05, name


def test_statistics_are_those_of_the_chosen_pairs():
    layer = new_layer(MoBA(block=5, top=2))
    x = vectors()
    with rg.record_attention(layer) as recording:
        layer(x)
    weights = recording[""][0].weights
    assert weights.shape == (BATCH, HEADS, LENGTH, LENGTH)
    assert int((weights > 0).sum(-1).max()) == 10
    of_branches = new_layer(new_nsa())
    with (
        rg.record_attention(of_branches),
        pytest.raises(UnsupportedError, match="neither bias nor"),
    ):
        of_branches(x)


def divided(style: ParallelStyle) -> None:
    style._apply(new_layer(MoBA()), None)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: MoBA(0), ArgumentError, "MoBA's block is 0"),
        (lambda: new_layer("moba"), ArgumentError, "chooser is 'moba'; make one of regard.layers"),
        (
            lambda: new_layer(MoBA(), sinks=True),
            UnsupportedError,
            "chooser MoBA needs a layer with no sinks",
        ),
        (
            lambda: new_layer(MoBA(), mechanism="linear_transformer"),
            UnsupportedError,
            "softmax without parameters",
        ),
        (
            lambda: new_layer(new_layer(MoBA()).chooser),
            ArgumentError,
            "another layer has this chooser",
        ),
        (lambda: NSA(stride=5), ArgumentError, "stride must divide the length"),
        (
            lambda: new_layer(LightningIndexer(top=2, head_dim=3)),
            ArgumentError,
            "multiple of kv_heads, 2",
        ),
        (
            lambda: new_layer(MoBA())(vectors(), context=vectors()),
            UnsupportedError,
            "cannot attend to a context",
        ),
        (lambda: new_layer(MoBA())(vectors(), q_start=3), UnsupportedError, "leave out q_start"),
        (
            lambda: new_layer(MoBA()).new_cache(1, kind="ring", capacity=4),
            UnsupportedError,
            "keeps all entries",
        ),
        (
            lambda: new_layer(MoBA()).choice_loss(vectors()),
            UnsupportedError,
            "MoBA has no loss of its own",
        ),
        (
            lambda: new_layer(None).choice_loss(vectors()),
            UnsupportedError,
            "Chooser has no loss of its own",
        ),
        (
            lambda: new_layer(new_nsa())(
                vectors(), pattern=p.SameDocument(torch.arange(LENGTH) // 9)
            ),
            UnsupportedError,
            "stands for several tokens",
        ),
        (
            lambda: new_layer(new_nsa())(vectors(), pattern=p.KeySpan(torch.tensor([0, 4]))),
            UnsupportedError,
            "stands for several tokens",
        ),
        (lambda: divided(ContextParallel()), UnsupportedError, "ContextParallel divides positions"),
    ],
)
def test_what_a_chooser_cannot_do_is_refused_in_a_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()
