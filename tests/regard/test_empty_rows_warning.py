"""A call whose first queries have no key says so once, since its axes are often in a wrong order."""

import warnings

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.errors import EmptyRowsWarning
from regard.functional import remarks

# (batch, length, heads, dim) where (batch, heads, length, dim) is asked for: 40 heads, 8 of them for keys
Q = torch.randn(2, 40, 16, 4)
K = torch.randn(2, 40, 4, 4)


@pytest.fixture(autouse=True)
def nothing_known(fresh_plans):
    remarks._warned.clear()


def warned(call) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [warning for warning in caught if issubclass(warning.category, EmptyRowsWarning)]


@pytest.mark.parametrize("call", [rg.attention, rg.attention_detail])
@pytest.mark.parametrize(
    "pattern", ["causal", p.CausalWindow(3), p.Causal() & p.KeySpan(0, [3, 2])]
)
def test_queries_before_the_first_key_are_named_once_for_a_shape_with_the_numbers(call, pattern):
    (warning,) = warned(lambda: call(Q, K, K, pattern=pattern))
    assert "12 of 16 queries stand before the first key" in str(warning.message)
    assert "layout='bnhd' takes (batch, length, heads, head_dim)" in str(warning.message)
    assert "q_start=-12" in str(warning.message)
    assert warning.filename == __file__
    assert not warned(lambda: call(Q, K, K, pattern=pattern))
    assert len(warned(lambda: call(Q[..., :3], K[..., :3], K, pattern=pattern))) == 1


def test_it_is_true_of_the_output():
    with pytest.warns(EmptyRowsWarning, match="12 of 16"):
        output = rg.attention(Q, K, K, pattern="causal")
    assert not output[:, :, :12].any()
    assert output[:, :, 12:].any(-1).all()


def test_no_call_is_named_that_says_where_its_queries_stand_or_that_has_keys_for_all():
    layer = rg.MultiHeadAttention(8, 2, pattern="causal").eval()
    x = torch.randn(2, 5, 8)
    queries = Q[0].transpose(0, 1)
    keys = K[0].transpose(0, 1)
    ends = torch.tensor([[0, 16], [0, 4]])
    quiet = {
        "q_start": lambda: rg.attention(Q, K, K, pattern="causal", q_start=-12),
        "q_start of 0": lambda: rg.attention(Q, K, K, pattern="causal", q_start=0),
        "no pattern": lambda: rg.attention(Q, K, K),
        "both sides": lambda: rg.attention(Q, K, K, pattern="sliding_window(50)"),
        "fewer queries": lambda: rg.attention(K, Q, Q, pattern="causal"),
        "a layer": lambda: layer(x, cache=layer.new_cache(2)),
        "documents": lambda: rg.attention_varlen(queries, keys, keys, *ends, pattern="causal"),
    }
    assert [name for name, call in quiet.items() if warned(call)] == []
