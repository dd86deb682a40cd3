"""Local attention: local-p is the paper's up to one factor a query, counts visible keys alone; local-m is a pattern."""

import pytest
import torch
from score_calls import make_call

import regard as rg
from regard import mechanisms as m
from regard import patterns as p

EXACT = {"rtol": 1e-10, "atol": 1e-10}
LOCAL = ("local dot", "local general", "local additive", "local concat")


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("backend", ["reference", "streamed"])
def test_padding_on_either_side_changes_nothing(name, backend):
    call = make_call(name)
    spans = p.KeySpan(torch.tensor([3, 0]), torch.tensor([9, 6]))
    padded = call.ask(backend, pattern=spans, q_start=0).output
    k = call.k
    v = call.v
    for row, keys in enumerate((slice(3, 9), slice(0, 6))):
        call.k = k[:, :, keys]
        call.v = v[:, :, keys]
        alone = call.ask(backend, q_start=0).output
        torch.testing.assert_close(padded[row], alone[row], **EXACT)


def test_heads_that_see_other_keys_count_their_own():
    call = make_call("local dot")
    spans = p.PerHead([p.KeySpan(0, 4 + head) for head in range(6)])
    expected = call.ask("reference", pattern=spans).output
    torch.testing.assert_close(call.ask("streamed", pattern=spans).output, expected, **EXACT)
    for head in range(6):
        alone = call.ask("reference", pattern=p.KeySpan(0, 4 + head)).output
        torch.testing.assert_close(expected[:, head], alone[:, head], **EXACT)


def test_it_says_that_it_counts_keys_so_that_no_cache_continues_it():
    assert m.LocalPredictive(m.Dot(), 4, query_dim=5).counts_keys
    assert not m.Additive(5, 3, 7).counts_keys


def test_what_cannot_be_local_is_refused():
    for window in (0, 2.5, True):
        with pytest.raises(rg.ArgumentError, match="1 or more"):
            m.LocalPredictive(m.General(5, 3), window)
    with pytest.raises(rg.ArgumentError, match="query_dim is None"):
        m.LocalPredictive(m.Dot(), 4)
    with pytest.raises(rg.ArgumentError, match="query_dim is 4"):
        m.LocalPredictive(m.General(5, 3), 4, query_dim=4)
    with pytest.raises(rg.ArgumentError, match="no place"):
        m.LocalPredictive(m.LocalPredictive(m.General(5, 3), 4), 4)
