"""A score of somebody's own: computed by every backend as it is declared, or refused; never another score instead."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

import regard as rg
from regard import mechanisms as m
from regard.backends.native.library import load
from regard.testing import make_qkv


@dataclass(frozen=True)
class Cosine(m.Score, enrol=False):
    """The cosine of query and key, times `scale`."""

    projects = True

    def project(self, q, k, parameters):
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), {}

    def lowered(self):
        return m.ScaledDot()


@pytest.mark.parametrize("backend", ["auto", "reference", "fused", "streamed"])
def test_a_projected_score_is_the_formula_on_every_backend(backend):
    q, k, v = make_qkv(q_len=12, k_len=12)
    found = rg.attention(q, k, v, pattern="causal_window(5)", mechanism=m.Softmax(Cosine()), scale=8.0, backend=backend)
    same = rg.attention(
        F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, pattern="causal_window(5)", scale=8.0, backend="reference"
    )
    assert torch.allclose(found, same, atol=1e-5)


def test_a_score_without_a_formula_is_refused():
    class Empty(m.Score, enrol=False):
        pass

    with pytest.raises(rg.ArgumentError, match=r"no backend knows the formula of Empty; define lowered\(\)"):
        m.Softmax(Empty())


def test_a_projection_that_would_never_be_called_is_refused():
    class Silent(Cosine, enrol=False):
        projects = False

    with pytest.raises(rg.ArgumentError, match=r"Silent defines project, .*`projects = True`"):
        m.Softmax(Silent())


@pytest.mark.parametrize("backend", ["auto", "native", "reference"])
def test_a_projection_of_another_size_says_so_or_is_refused(backend):
    @dataclass(frozen=True)
    class Near(m.Score, enrol=False):
        """-|q - k|² / 2 up to what is the same for every key: one more number in each vector."""

        projects = True

        def project(self, q, k, parameters):
            ones, lengths = torch.ones_like(q[..., :1]), k.square().sum(-1, keepdim=True)
            return torch.cat([q, ones], -1), torch.cat([k, -lengths / 2], -1), {}

        def lowered(self):
            return m.ScaledDot()

    class Told(Near, enrol=False):
        def projected_dim(self, head_dim):
            return head_dim + 1

    class Narrow(Near, enrol=False):
        def project(self, q, k, parameters):
            return q[..., :4], k[..., :4], {}

    if backend == "native" and isinstance(load(), str):
        pytest.skip("no native library")
    q, k, v = (x.double() for x in make_qkv(q_len=12, k_len=12))
    call = {"pattern": "causal", "scale": 0.7, "backend": backend}
    for wrong in (Near, Narrow):
        with pytest.raises(rg.ShapeError, match=r"project returned .* define projected_dim"):
            rg.attention(q, k, v, mechanism=m.Softmax(wrong()), **call)
    groups = q.shape[1] // k.shape[1]
    scores = -0.35 * torch.cdist(q, k.repeat_interleave(groups, 1)).square()
    hidden = ~torch.ones(12, 12, dtype=torch.bool).tril()
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v.repeat_interleave(groups, 1)
    found = rg.attention(q, k, v, mechanism=m.Softmax(Told()), **call)
    assert torch.allclose(found, expected, atol=1e-12)
