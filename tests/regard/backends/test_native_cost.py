"""The cost of a plan counts what the native kernel computes: whole panels of keys, and gradients."""

import pytest
import torch

import regard as rg


def plan_of(pattern, length, **options):
    q = torch.zeros(1, 2, length, 16, **options)
    return rg.plan_attention(q, q.detach(), q.detach(), pattern=pattern, backend="native")


@pytest.fixture(autouse=True)
def built():
    try:
        rg.plan_attention(*(torch.zeros(1, 1, 4, 4) for _ in "qkv"), backend="native")
    except rg.UnsupportedError as error:
        pytest.skip(str(error))


def test_keys_far_apart_cost_whole_panels():
    """Four keys of each 64 are computed as whole panels, each once."""
    alone, all_keys = plan_of("causal & fixed(64, summary=4, local=false)", 512), plan_of("causal", 512)
    kept = alone.problem.kept_pairs
    assert alone.cost.pairs >= 4 * kept  # a panel has 16 keys or more
    assert alone.cost.pairs <= all_keys.cost.pairs * 1.2


def test_gradients_move_more_bytes():
    assert plan_of("causal", 64, requires_grad=True).cost.bytes > 2 * plan_of("causal", 64).cost.bytes
