"""`cache.keep`: a text goes on as the whole text with the dropped keys hidden."""

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.layers.caches import heavy_hitters, load_cache, new_cache, observed_keys, paged
from regard.patterns.bands import Diagonals

LENGTH, TOTAL = 13, 20  # positions before entries are dropped, and in all
ALIKE = torch.tensor([9, 0, 3, 12, 4])  # in any order
BY_ROW = torch.tensor([[12, 1, 2, 5, 7], [0, 3, 4, 9, 11]])
BY_HEAD = torch.tensor([[[0, 3, 4, 9, 11], [12, 1, 2, 5, 7]], [[6, 7, 8, 9, 10], [0, 2, 4, 6, 8]]])
OTHERS = p.PerHead([p.Causal(), p.CausalWindow(5), p.Causal() & p.Strided(2), p.Causal()])
PADDED = p.Causal() & p.KeySpan(torch.tensor([0, 3]))
NEAR_A_GAP = ("causal_window(1) | (causal & prefix(2))", Diagonals(99, -3))
PATTERNS = [
    "causal",
    "causal_window(4)",
    "causal & (strided(3) | prefix(2))",
    *NEAR_A_GAP,
    OTHERS,
    PADDED,
]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(paged, "PAGE", 4)


def layer_of(pattern="causal", *, latent=False, **options):
    torch.manual_seed(2)
    if latent:
        sizes = {"latent_dim": 8, "rope_dim": 4, "head_dim": 8}
        return rg.LatentAttention(24, 4, pattern=pattern, **sizes).double()
    return rg.MultiHeadAttention(
        24, 4, kv_heads=2, pattern=pattern, **({"positions": "rotary"} | options)
    ).double()


def allowed(kept: torch.Tensor, batch: int = 2) -> torch.Tensor:
    """Pairs (batch, heads, TOTAL, TOTAL) whose key is not hidden: later queries look at kept and later keys alone."""
    kept = kept[None, None] if kept.dim() == 1 else kept[:, None] if kept.dim() == 2 else kept
    mask = torch.ones(batch, 4, TOTAL, TOTAL, dtype=torch.bool)
    mask[:, :, LENGTH:, :LENGTH] = False
    by_head = kept.repeat_interleave(4 // kept.shape[1], 1).expand(batch, 4, -1)
    mask[:, :, LENGTH:] |= torch.zeros(batch, 4, TOTAL, dtype=torch.bool).scatter(
        -1, by_head, True
    )[:, :, None]
    return mask


def continued(layer, x, cache, kept, sizes=(1, 3, 2, 1), **options):
    layer(x[:, :LENGTH], cache=cache, **options)
    cache.keep(kept)
    assert (cache.length, cache.entries) == (LENGTH, kept.shape[-1])
    rest = x[:, LENGTH : LENGTH + sum(sizes)]
    return torch.cat([layer(part, cache=cache, **options) for part in rest.split(sizes, 1)], 1)


@pytest.mark.parametrize("kind", ["dynamic", "static", "paged"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_going_on_is_the_whole_text_with_the_dropped_keys_hidden(kind, pattern):
    layer = layer_of(pattern)
    x = torch.randn(2, TOTAL, 24).double()
    with torch.no_grad():
        for kept in (ALIKE, BY_ROW, BY_HEAD):
            cache = layer.new_cache(2, kind, LENGTH if kind == "static" else None)
            found = continued(layer, x, cache, kept)
            wanted = layer(x, pattern=p.Explicit(allowed(kept)))[:, LENGTH:]
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kept", [ALIKE, BY_ROW, BY_HEAD])
def test_biases_gradients_latents_and_full_attention_too(kept):
    x = torch.randn(2, TOTAL, 24).double()
    mask = p.Explicit(allowed(kept))
    for bias in (rg.bias.ALiBi(), rg.bias.T5Relative(4, buckets=8, max_distance=16).double()):
        layer = layer_of(positions=None)
        found = continued(layer, x, layer.new_cache(2), kept, bias=bias)
        wanted = layer(x, pattern=mask, bias=bias)[:, LENGTH:]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        for learned in (
            layer.to_k.weight,
            *(bias.parameters() if isinstance(bias, torch.nn.Module) else ()),
        ):
            grads = [
                torch.autograd.grad(y.square().sum(), learned, retain_graph=True)[0]
                for y in (found, wanted)
            ]
            torch.testing.assert_close(*grads, rtol=0, atol=1e-10)
    for pattern, form in (("causal", "absorbed"), ("causal_window(6)", "expanded")):
        layer = layer_of(pattern, latent=True)
        of_latents = kept[:, :1] if kept.dim() == 3 else kept
        with torch.no_grad():
            found = continued(layer, x, layer.new_cache(2, "paged"), of_latents, form=form)
            wanted = layer(x, pattern=p.Explicit(allowed(of_latents)))[:, LENGTH:]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    layer = layer_of("full")
    found = continued(layer, x, layer.new_cache(2), kept, sizes=(1,))
    wanted = layer(
        x[:, : LENGTH + 1], pattern=p.Explicit(allowed(kept)[..., : LENGTH + 1, : LENGTH + 1])
    )
    torch.testing.assert_close(found, wanted[:, LENGTH:], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "bound"), [("int8", 0.02), ("bfloat16", 0.02), ("float64", 1e-12)]
)
def test_kept_entries_are_kept_again_reordered_cropped_and_read_from_a_file(tmp_path, dtype, bound):
    layer = layer_of()
    x = torch.randn(2, TOTAL, 24).double()
    rows = torch.tensor([1, 0])
    with torch.no_grad():
        for kind in ("dynamic", "paged"):
            cache = layer.new_cache(2, kind, dtype=dtype)
            layer(x[:, :LENGTH], cache=cache)
            cache.keep(torch.cat([BY_ROW, torch.tensor([[10], [10]])], -1))
            layer(x[:, LENGTH:17], cache=cache)
            cache.keep(torch.cat([BY_ROW, torch.full((2, 1), 14), torch.full((2, 1), 16)], -1))
            cache.crop(15)
            cache.reorder(rows)
            cache.save(tmp_path / kind)
            mask = allowed(BY_ROW)[..., 15:, :]
            mask[..., LENGTH] = False
            q_rows = torch.cat([torch.ones(2, 4, 15, TOTAL, dtype=torch.bool), mask], 2)[rows]
            wanted = layer(x[rows], pattern=p.Explicit(q_rows))[:, 15:]
            for one in (cache, load_cache(tmp_path / kind)):
                assert (one.length, one.entries) == (15, 6)
                assert torch.equal(one.positions[:, 0, :5], BY_ROW.sort(-1).values[rows])
                torch.testing.assert_close(
                    layer(x[rows, 15:], cache=one), wanted, rtol=0, atol=bound
                )


def test_statistics_have_the_positions_of_the_text():
    x = torch.randn(2, TOTAL, 24).double()
    want = ("received", "weights", rg.top_keys(3), rg.weights_of([1], [3]))
    for kept in (ALIKE, BY_HEAD):
        layer = layer_of()
        cache = layer.new_cache(2)
        with torch.no_grad(), rg.layers.record_attention(layer, want) as recording:
            continued(layer, x, cache, kept, sizes=(7,))
            found = recording[""][-1]
            layer(x, pattern=p.Explicit(allowed(kept)))
            wanted = recording[""][-1].weights[:, :, LENGTH:]
        torch.testing.assert_close(found.weights, wanted)
        torch.testing.assert_close(found.received, wanted.sum(-2))
        torch.testing.assert_close(found.chosen_weights, wanted[:, 3:, 1:2])
        torch.testing.assert_close(found.top_keys.weights, wanted.topk(3).values)
        assert torch.equal(found.top_keys.indices, wanted.topk(3).indices)
        with pytest.raises(
            UnsupportedError, match="distance counts positions, and this cache dropped 8 of them by"
        ):
            rg.attention_detail(
                torch.randn(2, 4, 1, 6).double(), cache.keys, cache.values, want="distance"
            )


@pytest.mark.parametrize("kind", ["dynamic", "static", "paged"])
def test_the_accepted_path_of_a_tree_goes_on_as_its_branch_alone(kind):
    layer = layer_of()
    text = torch.randn(2, 11, 24).double()
    drafts = torch.randn(2, 6, 24).double()
    more = torch.randn(2, 3, 24).double()
    tree = p.Tree(torch.tensor([-1, 0, 0, 2, -1, 2]))
    path = torch.tensor([0, 2, 5])
    assert tree.depths.tolist() == [0, 1, 1, 2, 0, 2]
    with torch.no_grad():
        for kept in (None, torch.tensor([0, 1, 5, 10])):
            cache = layer.new_cache(2, kind, None if kind == "dynamic" else 40)
            layer(text, cache=cache)
            if kept is not None:
                cache.keep(kept)
            heads = layer(drafts, pattern=tree, positions=cache.length + tree.depths, cache=cache)
            cache.keep(11 + path, after=11)
            assert cache.length == 14
            mask = torch.ones(17, 17, dtype=torch.bool).tril()
            if kept is not None:
                mask[11:, :11] = False
                mask[11:, kept] = True
            whole = layer(torch.cat([text, drafts[:, path], more], 1), pattern=p.Explicit(mask))
            torch.testing.assert_close(heads[:, path], whole[:, 11:14], rtol=0, atol=1e-12)
            torch.testing.assert_close(layer(more, cache=cache), whole[:, 14:], rtol=0, atol=1e-12)


def test_a_window_with_first_entries_stays_a_plan_of_its_pattern():
    """What a pattern does not look at costs no mask."""
    layer = layer_of("causal_window(4) | (causal & prefix(2))")
    cache = layer.new_cache(1)
    with torch.no_grad():
        layer(torch.randn(1, 30, 24).double(), cache=cache)
        cache.keep(torch.tensor([0, 1, *range(24, 30)]))
    q = torch.randn(1, 4, 1, 6).double()
    plan = rg.plan_attention(q, cache.keys, cache.values, pattern=layer.pattern)
    assert (plan.problem.pattern, plan.problem.k_len) == (layer.pattern.canonical(), 8)
    assert "explicit" in str(
        rg.plan_attention(q, cache.keys, cache.values, pattern="causal & strided(5)").problem
    )


def test_policies_choose_for_each_key_head_among_what_is_held():
    of_one = [[0, 5, 0, 1, 0, 2, 0], [0, 0, 3, 3, 0, 0, 1]]
    of_other = [[4, 0, 0, 3, 1, 0, 0], [0, 2, 0, 3, 0, 0, 1]]
    received = torch.tensor([of_one + of_other]).double()
    held = torch.tensor([[[0, 2, 3, 5, 6], [0, 3, 4, 5, 6]]])
    assert heavy_hitters(received, 4, kv_heads=2).tolist() == [[[1, 3, 5, 6], [0, 3, 5, 6]]]
    found = observed_keys(received, 4, kv_heads=2, window=2, pool=3, positions=held)
    assert found.tolist() == [[[0, 2, 5, 6], [3, 4, 5, 6]]]


def test_what_cannot_be_kept_is_refused_and_leaves_the_cache():
    cache = new_cache("dynamic", 2, 2, 4)
    cache.append(torch.randn(2, 2, 9, 4), torch.randn(2, 2, 9, 4))
    cache.keep(torch.tensor([[0, 3, 5], [1, 3, 7]]))
    before = cache.keys.numbers.clone()
    for kept, options, error, message in (
        ([0, 3], {}, ShapeError, "keep takes positions as an int64 tensor"),
        (torch.tensor([0.0]), {}, ShapeError, "keep takes positions as an int64 tensor"),
        (
            torch.zeros(3, 1, dtype=torch.int64),
            {},
            ShapeError,
            r"\(batch, n\) or \(batch, kv_heads, n\)",
        ),
        (
            torch.tensor([4]),
            {},
            ArgumentError,
            "keep: 4 is not held; this cache holds 3 entries of 9 positions",
        ),
        (torch.tensor([3, 3]), {}, ArgumentError, "keep: 3 is named twice"),
        (torch.tensor([-1]), {}, ArgumentError, "keep: -1 is not held"),
        (
            torch.tensor([3]),
            {"after": 5},
            ArgumentError,
            "keep: 3 is before 5, where entries stay in any case",
        ),
        (torch.tensor([]).long(), {"after": 10}, ArgumentError, "after"),
        (
            torch.tensor([]).long(),
            {"after": 1},
            ArgumentError,
            "rows or heads kept different numbers of entries",
        ),
    ):
        with pytest.raises(error, match=message):
            cache.keep(kept, **options)
    with pytest.raises(
        ArgumentError,
        match=r"different numbers of entries before position 6, .* give 8 or more, or 0",
    ):
        cache.crop(6)
    assert torch.equal(cache.keys.numbers, before)
    assert (
        repr(cache) == "GrowingCache(batch=2, kv_heads=2, length=9, head_dim=4, entries=3, float32)"
    )
    cache.crop(5)  # two entries of each row are before it
    ring = new_cache("ring", 1, 2, 4, capacity=3)
    with pytest.raises(UnsupportedError, match="a ring itself drops its oldest entries"):
        ring.keep(torch.tensor([], dtype=torch.int64))
    q = torch.randn(2, 2, 1, 4)
    k = cache.keys
    v = cache.values
    for options, message in (
        ({"dropout": 0.5}, "dropout counts positions"),
        ({"q_start": torch.tensor([3, 3])}, "q_start by batch row counts positions"),
        (
            {"mechanism": "linear_transformer", "pattern": "causal"},
            "works only with softmax; keep all entries",
        ),
    ):
        with pytest.raises(UnsupportedError, match=message):
            rg.attention(q, k, v, **options)
