"""Choosers, against the equations of their papers written query by query in float64."""

import pytest
import torch
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


def heads_of(joined: torch.Tensor, heads: int) -> torch.Tensor:
    return joined.unflatten(-1, (heads, -1)).transpose(1, 2)


def looked_at(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The output for one query (head_dim,) of some keys and values; zeros for none."""
    return (q @ k.T * HEAD_DIM**-0.5).softmax(-1) @ v if len(k) else v.new_zeros(v.shape[-1])


def by_query(layer: MultiHeadAttention, x: torch.Tensor, output) -> torch.Tensor:
    """The layer's output, where `output(b, h, t)` is that of one head for one query."""
    rows = [
        torch.stack([torch.cat([output(b, h, t) for h in range(HEADS)]) for t in range(LENGTH)])
        for b in range(BATCH)
    ]
    return layer.to_output(torch.stack(rows))


def moba_formula(layer: MultiHeadAttention, x: torch.Tensor) -> torch.Tensor:
    """Lu et al. 2025, equations 2 to 6."""
    q = heads_of(layer.to_q(x), HEADS)
    k = heads_of(layer.to_k(x), KV_HEADS)
    v = heads_of(layer.to_v(x), KV_HEADS)
    block, top = layer.chooser.block, layer.chooser.top

    def output(b: int, h: int, t: int) -> torch.Tensor:
        keys = k[b, h // 3]
        values = v[b, h // 3]
        own = t // block
        past = [(q[b, h, t] @ keys[c * block : (c + 1) * block].mean(0)).item() for c in range(own)]
        best = sorted(range(own), key=lambda c: -past[c])[: top - 1]
        at = [j for j in range(t + 1) if j // block in {*best, own}]
        return looked_at(q[b, h, t], keys[at], values[at])

    return by_query(layer, x, output)


def nsa_formula(layer: MultiHeadAttention, x: torch.Tensor) -> torch.Tensor:
    """Yuan et al. 2025, equations 5 to 12, numbered from 0."""
    nsa = layer.chooser
    q = heads_of(layer.to_q(x), HEADS)
    k = heads_of(layer.to_k(x), 3 * KV_HEADS)
    v = heads_of(layer.to_v(x), 3 * KV_HEADS)
    gates = torch.sigmoid(nsa.to_gates(x))

    def compressed(b: int, head: int, module, x: torch.Tensor) -> torch.Tensor:
        starts = range(0, LENGTH - nsa.length + 1, nsa.stride)
        first, _, second = module.mix
        rows = [(x[b, head, at : at + nsa.length] + module.places).flatten() for at in starts]
        return second(torch.nn.functional.gelu(first(torch.stack(rows))))

    short = {
        (b, g): (compressed(b, g, nsa.compress_keys, k), compressed(b, g, nsa.compress_values, v))
        for b in range(BATCH)
        for g in range(KV_HEADS)
    }

    def chosen(b: int, g: int, t: int) -> list[int]:
        ends = [c for c in range(len(short[b, g][0])) if c * nsa.stride + nsa.length - 1 <= t]
        weight = [0.0] * (LENGTH // nsa.block + 1)
        own = t // nsa.block
        for h in range(3 * g, 3 * g + 3):
            p_compressed = (q[b, h, t] @ short[b, g][0][ends].T * HEAD_DIM**-0.5).softmax(-1)
            for j in range(len(weight)):
                for m in range(nsa.block // nsa.stride):
                    for n in range(nsa.length // nsa.stride):
                        c = nsa.block // nsa.stride * j + m - n
                        weight[j] += p_compressed[c].item() if c in ends else 0.0
        kept = {0, own, max(own - 1, 0)}
        rest = sorted({*range(own)} - kept, key=lambda j: -weight[j])
        kept |= {*rest[: nsa.top - len(kept)]}
        return [j for j in range(t + 1) if j // nsa.block in kept]

    def output(b: int, h: int, t: int) -> torch.Tensor:
        g = h // 3
        ends = [c for c in range(len(short[b, g][0])) if c * nsa.stride + nsa.length - 1 <= t]
        near = range(max(0, t - nsa.window + 1), t + 1)
        parts = (
            looked_at(q[b, h, t], *(one[ends] for one in short[b, g])),
            *(
                looked_at(q[b, h, t], k[b, head][at], v[b, head][at])
                for head, at in ((KV_HEADS + g, chosen(b, g, t)), (2 * KV_HEADS + g, [*near]))
            ),
        )
        return sum(gates[b, t, branch * HEADS + h] * one for branch, one in enumerate(parts))

    return by_query(layer, x, output)


def indexer_scores(indexer: LightningIndexer, x: torch.Tensor) -> torch.Tensor:
    """I of DeepSeek-AI 2025, equation 1, (batch, queries, keys)."""
    q = indexer.to_q(x).unflatten(-1, (3, 6))
    k = indexer.k_norm(indexer.to_k(x))
    products = torch.einsum("bthd,bsd->bhts", q, k).clamp_min(0)
    return torch.einsum("bth,bhts->bts", indexer.to_weights(x), products) / 18**0.5


def indexer_formula(layer: MultiHeadAttention, x: torch.Tensor) -> torch.Tensor:
    """DeepSeek-AI 2025, equations 1 and 2."""
    q = heads_of(layer.to_q(x), HEADS)
    k = heads_of(layer.to_k(x), KV_HEADS)
    v = heads_of(layer.to_v(x), KV_HEADS)
    scores = indexer_scores(layer.chooser, x)

    def output(b: int, h: int, t: int) -> torch.Tensor:
        best = sorted(range(t + 1), key=lambda s: -scores[b, t, s].item())[: layer.chooser.top]
        return looked_at(q[b, h, t], k[b, h // 3][best], v[b, h // 3][best])

    return by_query(layer, x, output)


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
    found = layer(x)
    expected = formula(layer, x)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    grad = torch.randn_like(found)
    named = [*layer.named_parameters()]
    one, other = (
        torch.autograd.grad(y, [x, *(weight for _, weight in named)], grad, allow_unused=True)
        for y in (found, expected)
    )
    for (label, _), mine, theirs in zip([("x", x), *named], one, other, strict=True):
        if untouched and label.startswith(untouched):
            assert mine is None, label  # it learns by its own loss alone
        else:
            assert theirs.abs().max() > 0, label
            torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=0, msg=label)


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
    [found] = losses
    scores = indexer_scores(layer.chooser, x)
    q = heads_of(layer.to_q(x), HEADS).detach()
    k = heads_of(layer.to_k(x), KV_HEADS).detach().repeat_interleave(3, 1)
    expected = scores.new_zeros(())
    for b in range(BATCH):
        for t in range(lengths[b]):
            keys = sorted(range(t + 1), key=lambda s: -scores[b, t, s].item())[
                : t + 1 if dense else layer.chooser.top
            ]
            keys = [s for s in keys if t - s < 31]
            logits = (k[b][:, keys] @ q[b, :, t, :, None] * HEAD_DIM**-0.5)[..., 0]
            p_t = (3 * torch.tanh(logits / 3)).softmax(-1).mean(0)
            expected = expected + (p_t * (p_t.log() - scores[b, t, keys].log_softmax(-1))).sum()
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    weights = [*layer.chooser.parameters()]
    for mine, theirs in zip(
        *(torch.autograd.grad(y, weights) for y in (found, expected)), strict=True
    ):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=0)
    x.requires_grad_()
    with choice_losses(layer) as others:
        layer(x=x)
    others[0].backward()
    assert (x.grad, len(losses)) == (None, 1)
    with pytest.raises(UnsupportedError, match="leave out bias="), choice_losses(layer):
        layer(x, bias=torch.zeros(1))
    assert all(
        (weight.grad is None) != name.startswith("chooser")
        for name, weight in layer.named_parameters()
    )


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("kind", ["dynamic", "paged", "static"])
def test_a_text_goes_on_with_a_cache_as_at_once(name, kind):
    options = {"positions": "rotary"} if name == "indexer" else {}
    layer = new_layer(NEW[name]() if name != "indexer" else new_indexer(**options))
    x = vectors()
    layer.eval()
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
            parts = torch.cat(
                [layer(part, cache=cache) for part in x.split([31, LENGTH - 31], 1)], 1
            )
        assert parts.isfinite().all(), name
        assert (parts - layer(x)).abs().median() < 0.05, name


def test_statistics_are_those_of_the_chosen_pairs():
    layer = new_layer(MoBA(block=5, top=2))
    x = vectors()
    with rg.record_attention(layer) as recording:
        layer(x)
    weights = recording[""][0].weights
    assert weights.shape == (BATCH, HEADS, LENGTH, LENGTH)
    assert int((weights > 0).sum(-1).max()) == 10
    with (
        rg.record_attention(layer := new_layer(new_nsa())),
        pytest.raises(UnsupportedError, match="neither bias nor"),
    ):
        layer(x)


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
