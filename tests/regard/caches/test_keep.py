"""`cache.keep`: a text goes on as the whole text with the dropped keys hidden."""

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.layers.caches import heavy_hitters, load_cache, new_cache, observed_keys, paged
from regard.patterns.bands import Diagonals

LENGTH = 13  # positions before entries are dropped
TOTAL = 20  # and in all
BATCH = 2
HEADS = 4
KV_HEADS = 2
DIM = 24
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


def layer_of(pattern="causal", **options):
    torch.manual_seed(2)
    sizes = {"kv_heads": KV_HEADS, "positions": "rotary"}
    return rg.MultiHeadAttention(DIM, HEADS, pattern=pattern, **(sizes | options)).double()


def latent_layer_of(pattern):
    torch.manual_seed(2)
    sizes = {"latent_dim": 8, "rope_dim": 4, "head_dim": 8}
    return rg.LatentAttention(DIM, HEADS, pattern=pattern, **sizes).double()


def texts() -> torch.Tensor:
    return torch.randn(BATCH, TOTAL, DIM).double()


def hide_dropped(kept: torch.Tensor) -> torch.Tensor:
    """Pairs (batch, heads, TOTAL, TOTAL) whose key is not hidden: later queries look at kept and later keys alone."""
    if kept.dim() == 1:
        kept = kept[None]
    if kept.dim() == 2:
        kept = kept[:, None]
    by_head = kept.repeat_interleave(HEADS // kept.shape[1], 1).expand(BATCH, HEADS, -1)
    is_kept = torch.zeros(BATCH, HEADS, TOTAL, dtype=torch.bool).scatter(-1, by_head, True)
    is_kept[:, :, LENGTH:] = True
    allowed = torch.ones(BATCH, HEADS, TOTAL, TOTAL, dtype=torch.bool)
    allowed[:, :, LENGTH:] = is_kept[:, :, None]
    return allowed


def whole_with_hidden_keys(layer, x, kept, **options) -> torch.Tensor:
    """The outputs behind LENGTH of the whole text at once."""
    return layer(x, pattern=p.Explicit(hide_dropped(kept)), **options)[:, LENGTH:]


def continued(layer, x, cache, kept, sizes=(1, 3, 2, 1), **options):
    """The outputs behind LENGTH, where all entries but these were dropped."""
    layer(x[:, :LENGTH], cache=cache, **options)
    cache.keep(kept)
    assert (cache.length, cache.entries) == (LENGTH, kept.shape[-1])
    rest = x[:, LENGTH : LENGTH + sum(sizes)]
    return torch.cat([layer(part, cache=cache, **options) for part in rest.split(sizes, 1)], 1)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["dynamic", "static", "paged"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_going_on_is_the_whole_text_with_the_dropped_keys_hidden(kind, pattern):
    layer = layer_of(pattern)
    x = texts()
    with torch.no_grad():
        for kept in (ALIKE, BY_ROW, BY_HEAD):
            cache = layer.new_cache(BATCH, kind, LENGTH if kind == "static" else None)
            output = continued(layer, x, cache, kept)
            expected = whole_with_hidden_keys(layer, x, kept)
            torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kept", [ALIKE, BY_ROW, BY_HEAD])
@pytest.mark.parametrize(
    "new_bias", [rg.bias.ALiBi, lambda: rg.bias.T5Relative(4, buckets=8, max_distance=16).double()]
)
def test_biases_and_gradients_are_those_of_the_whole_text(kept, new_bias):
    bias = new_bias()
    layer = layer_of(positions=None)
    x = texts()
    output = continued(layer, x, layer.new_cache(BATCH), kept, bias=bias)
    expected = whole_with_hidden_keys(layer, x, kept, bias=bias)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)

    learned = [layer.to_k.weight]
    if isinstance(bias, torch.nn.Module):
        learned += bias.parameters()
    grads = torch.autograd.grad(output.square().sum(), learned)
    expected_grads = torch.autograd.grad(expected.square().sum(), learned)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kept", [ALIKE, BY_ROW, BY_HEAD[:, :1]])
@pytest.mark.parametrize(
    ("pattern", "form"), [("causal", "absorbed"), ("causal_window(6)", "expanded")]
)
@torch.no_grad()
def test_latents_of_dropped_positions_are_hidden(kept, pattern, form):
    layer = latent_layer_of(pattern)
    x = texts()
    output = continued(layer, x, layer.new_cache(BATCH, "paged"), kept, form=form)
    expected = whole_with_hidden_keys(layer, x, kept)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kept", [ALIKE, BY_ROW, BY_HEAD])
def test_full_attention_goes_on_position_by_position(kept):
    layer = layer_of("full")
    x = texts()
    output = continued(layer, x, layer.new_cache(BATCH), kept, sizes=(1,))
    end = LENGTH + 1
    allowed = hide_dropped(kept)[..., :end, :end]
    expected = layer(x[:, :end], pattern=p.Explicit(allowed))
    torch.testing.assert_close(output, expected[:, LENGTH:], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "bound"), [("int8", 0.02), ("bfloat16", 0.02), ("float64", 1e-12)]
)
def test_kept_entries_are_kept_again_reordered_cropped_and_read_from_a_file(tmp_path, dtype, bound):
    layer = layer_of()
    x = texts()
    rows = torch.tensor([1, 0])
    first_kept = torch.cat([BY_ROW, torch.tensor([[10], [10]])], -1)
    then_kept = torch.cat([BY_ROW, torch.tensor([[14, 16], [14, 16]])], -1)
    with torch.no_grad():
        for kind in ("dynamic", "paged"):
            cache = layer.new_cache(BATCH, kind, dtype=dtype)
            layer(x[:, :LENGTH], cache=cache)
            cache.keep(first_kept)
            layer(x[:, LENGTH:17], cache=cache)
            cache.keep(then_kept)
            cache.crop(15)
            cache.reorder(rows)
            cache.save(tmp_path / kind)

            allowed = hide_dropped(BY_ROW)
            allowed[:, :, :15] = True
            allowed[:, :, 15:, LENGTH] = False
            expected = layer(x[rows], pattern=p.Explicit(allowed[rows]))[:, 15:]
            for held in (cache, load_cache(tmp_path / kind)):
                assert (held.length, held.entries) == (15, 6)
                assert torch.equal(held.positions[:, 0, :5], BY_ROW.sort(-1).values[rows])
                output = layer(x[rows, 15:], cache=held)
                torch.testing.assert_close(output, expected, rtol=0, atol=bound)


def test_statistics_have_the_positions_of_the_text():
    x = texts()
    want = ("received", "weights", rg.top_keys(3), rg.weights_of([1], [3]))
    for kept in (ALIKE, BY_HEAD):
        layer = layer_of()
        cache = layer.new_cache(BATCH)
        with torch.no_grad(), rg.layers.record_attention(layer, want) as recording:
            continued(layer, x, cache, kept, sizes=(7,))
            detail = recording[""][-1]
            whole_with_hidden_keys(layer, x, kept)
            weights = recording[""][-1].weights[:, :, LENGTH:]
        torch.testing.assert_close(detail.weights, weights)
        torch.testing.assert_close(detail.received, weights.sum(-2))
        torch.testing.assert_close(detail.chosen_weights, weights[:, 3:, 1:2])
        torch.testing.assert_close(detail.top_keys.weights, weights.topk(3).values)
        assert torch.equal(detail.top_keys.indices, weights.topk(3).indices)
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
            branch = torch.cat([text, drafts[:, path], more], 1)
            whole = layer(branch, pattern=p.Explicit(mask))
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
    heads_of_first_key_head = [[0, 5, 0, 1, 0, 2, 0], [0, 0, 3, 3, 0, 0, 1]]
    heads_of_second_key_head = [[4, 0, 0, 3, 1, 0, 0], [0, 2, 0, 3, 0, 0, 1]]
    received = torch.tensor([heads_of_first_key_head + heads_of_second_key_head]).double()
    assert heavy_hitters(received, 4, kv_heads=2).tolist() == [[[1, 3, 5, 6], [0, 3, 5, 6]]]
    heaviest_alone = heavy_hitters(received, 2, kv_heads=2, recent=0)
    assert heaviest_alone.tolist() == [[[1, 3], [0, 3]]]
    held = torch.tensor([[[0, 2, 3, 5, 6], [0, 3, 4, 5, 6]]])
    chosen = observed_keys(received, 4, kv_heads=2, window=2, pool=3, positions=held)
    assert chosen.tolist() == [[[0, 2, 5, 6], [3, 4, 5, 6]]]


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
