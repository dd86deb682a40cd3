"""The layer: padding, contexts, recordings, sinks, and calls that it refuses."""

import threading

import pytest
import torch
from layer_cases import EXACT, make_layer, texts

import regard as rg
from regard import patterns as p
from regard.layers import FeedForward, ProjectedContext
from regard.positions import Rotary, Sinusoidal

MASK = p.Explicit(torch.ones(9, 18, dtype=torch.bool))
WRONG_CALLS = {
    "a bias of another size": {"x": texts(), "bias": torch.zeros(3, 3)},
    "spans of five texts": {"x": texts(), "pattern": p.KeySpan(torch.zeros(5).long())},
    "three texts": {"x": texts(3)},
    "vectors of another size": {"x": texts(dim=11)},
    "another position": {"x": texts(), "q_start": 3},
    "no position": {"x": texts(), "q_start": "x"},
    "a mask": {"x": texts(), "pattern": MASK},
    "a mask inside": {"x": texts(), "pattern": ~MASK & p.Full()},
    "a context": {"x": texts(), "context": texts()},
}


class TestCache:
    @pytest.mark.parametrize("name", WRONG_CALLS)
    def test_a_refused_call_leaves_the_cache_as_it_was(self, name):
        layer = make_layer()
        cache = layer.new_cache(batch=2)
        layer(texts(), cache=cache)
        keys = cache.keys.clone()
        with pytest.raises(rg.RegardError):
            layer(**WRONG_CALLS[name], cache=cache)
        assert torch.equal(cache.keys, keys)

    def test_q_start_may_be_the_length_of_the_cache(self):
        layer = make_layer()
        cache = layer.new_cache(batch=2)
        other = layer.new_cache(batch=2)
        x = texts()
        layer(x, cache=cache)
        layer(x, cache=other)
        assert torch.equal(layer(x, cache=cache, q_start=9), layer(x, cache=other))


class TestPadding:
    @pytest.mark.parametrize("side", ["left", "right"])
    @pytest.mark.parametrize("positions", [None, Rotary(dims=2)])
    def test_padded_texts_equal_the_texts_alone(self, side, positions):
        layer = make_layer(positions=positions)
        lengths = torch.tensor([9, 4, 1])
        x = texts(3)
        start = 9 - lengths if side == "left" else torch.zeros(3).long()
        stop = start + lengths
        padded = layer(x, pattern=p.KeySpan(start, stop))
        for row in range(3):
            text = slice(int(start[row]), int(stop[row]))
            alone = layer(x[row : row + 1, text])[0]
            torch.testing.assert_close(padded[row, text], alone, **EXACT)


class TestContext:
    def test_a_projected_context_is_the_context(self):
        layer = make_layer(pattern=None, positions=None, context_dim=7)
        x = texts()
        z = texts(length=5, dim=7)
        span = p.KeySpan(0, torch.tensor([5, 2]))
        projected = layer.project_context(z)
        assert torch.equal(layer(x, projected, pattern=span), layer(x, z, pattern=span))
        assert (projected.length, projected.keys.shape) == (5, (2, 2, 5, 3))
        assert projected.nbytes == 2 * 2 * 2 * 5 * 3 * 8
        order = torch.tensor([1, 0])
        torch.testing.assert_close(
            layer(x[order], projected.reorder(order)), layer(x[order], z[order]), **EXACT
        )

    def test_positions_without_a_common_origin_are_refused_unless_q_start_gives_one(self):
        x = texts()
        z = texts(length=5)
        for layer in (make_layer(positions=None), make_layer(pattern=None), make_layer()):
            for context in (z, layer.project_context(z)):
                with pytest.raises(rg.UnsupportedError, match="no common origin"):
                    layer(x, context)
                assert layer(x, context, q_start=2).shape == x.shape

    def test_with_q_start_queries_and_context_are_turned_to_their_positions(self):
        layer = make_layer(pattern="causal", positions=Rotary(dims=2))
        x = texts()
        whole = layer(x)
        torch.testing.assert_close(layer(x, x, q_start=0), whole, **EXACT)
        torch.testing.assert_close(layer(x[:, 4:], x, q_start=4), whole[:, 4:], **EXACT)
        by_row = layer(torch.stack([x[0, 4:7], x[1, 2:5]]), x, q_start=torch.tensor([4, 2]))
        torch.testing.assert_close(by_row, torch.stack([whole[0, 4:7], whole[1, 2:5]]), **EXACT)

    def test_a_context_of_another_size_or_batch_is_refused_with_the_numbers(self):
        layer = make_layer(pattern=None, positions=None, context_dim=7)
        with pytest.raises(rg.ShapeError, match=r"'batch' is 2 in x .* but 3 in the context"):
            layer(texts(), texts(3, 5, 7))
        with pytest.raises(
            rg.ShapeError, match=r"context has shape \(2, 5, 6\).*\(batch, length, 7\)"
        ):
            layer(texts(), texts(2, 5, 6))
        with pytest.raises(rg.ShapeError, match="contexts have size 7 and x has 12"):
            layer(texts())
        larger_heads = ProjectedContext(*torch.zeros(2, 2, 2, 5, 4, dtype=torch.float64))
        with pytest.raises(rg.ShapeError, match="head_dim"):
            layer(texts(), larger_heads)


class TestRecording:
    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            make_layer(sinks=True).float(), FeedForward(12, 24), make_layer(kv_heads=1).float()
        )

    def test_it_sees_every_layer_each_time_and_changes_no_bit(self):
        model = self.model()
        x = texts().float()
        plain = model(x)
        with rg.record_attention(model, want=["weights", "entropy"]) as recording:
            assert torch.equal(model(x), plain)
            model(x)
        counts = {name: len(details) for name, details in recording.details.items()}
        assert counts == {"0": 2, "2": 2}
        assert recording["2"][1].weights.shape == (2, 4, 9, 9)
        model(x)  # after the block nothing is recorded
        assert len(recording["0"]) == 2
        with pytest.raises(
            rg.ArgumentError, match="no attention layer is called '1'; there are 0, 2"
        ):
            _ = recording["1"]

    def test_it_ends_when_the_block_fails_and_inner_blocks_give_back_to_outer_ones(self):
        model = self.model()
        x = texts().float()
        with rg.record_attention(model) as outer:
            with pytest.raises(rg.ShapeError), rg.record_attention(model[0]) as inner:
                model(torch.cat([x, x], -1))
            with rg.record_attention(model[0]) as second_inner:
                model(x)
            model(x)
        assert len(inner[""]) == 0
        assert len(second_inner[""]) == 1
        assert len(outer["0"]) == len(outer["2"]) == 1

    def test_other_threads_are_not_seen(self):
        model = self.model()
        x = texts().float()
        with rg.record_attention(model) as recording:
            thread = threading.Thread(target=lambda: model(x))
            thread.start()
            thread.join()
            assert recording["0"] == []
            model(x)
        assert len(recording["0"]) == 1

    def test_a_model_without_attention_is_refused(self):
        with (
            pytest.raises(rg.ArgumentError, match="FeedForward has no MultiHeadAttention"),
            rg.record_attention(FeedForward(2, 3)),
        ):
            pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 5}, "dim 12 does not divide into 5 heads"),
        (
            {"kv_heads": 3},
            "kv_heads is 3, by which 4 query heads cannot be divided .* give one of 1, 2, 4",
        ),
        ({"kv_heads": 0}, "kv_heads is 0; it needs a whole number, 1 or more"),
        ({"head_dim": 0}, "head_dim is 0; it needs a whole number, 1 or more"),
        ({"value_dim": 0}, "value_dim"),
        ({"sinks": 4}, "sinks is 4; it is True or False"),
        ({"value_dim": 2.5}, "value_dim"),
        ({"positions": Sinusoidal(4)}, "added to embeddings"),
        ({"positions": Rotary(), "head_dim": 3}, "rotates pairs"),
        ({"pattern": "causl"}, "there is no pattern 'causl'; did you mean 'causal'"),
    ],
)
def test_a_layer_that_cannot_be_is_refused(options, words):
    with pytest.raises(rg.ArgumentError, match=words):
        make_layer(**{"kv_heads": None, **options})


# Sinks


def test_sinks_begin_with_zeros_and_learn():
    layer = rg.MultiHeadAttention(dim=12, heads=4, sinks=True)
    assert layer.sinks.tolist() == [0, 0, 0, 0]
    layer(torch.randn(2, 5, 12)).square().sum().backward()
    assert (layer.sinks.grad != 0).all()
    assert "sinks=True" in repr(layer)
    assert "sinks" not in rg.MultiHeadAttention(dim=12, heads=4).state_dict()
