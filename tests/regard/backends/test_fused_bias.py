"""The fused backend adds a bias of any shape to the allowed pairs of any pattern."""

import pytest
import torch

import regard as rg


@pytest.mark.parametrize("pattern", [None, "causal", "causal_window(3)", "key_span(2, 5)", "global_tokens(0)"])
@pytest.mark.parametrize("shape", [(7,), (2, 1, 1, 7), (1, 4, 7, 1), (2, 4, 7, 7)])
def test_a_bias_tensor_is_added_as_in_the_reference(pattern, shape):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 7, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(shape, generator=generator, dtype=torch.float64)
    if shape[-1] > 1:
        bias[..., 0] = -torch.inf
    found, expected = (
        rg.attention(q, k, v, pattern=pattern, bias=bias, backend=name) for name in ("fused", "reference")
    )
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
