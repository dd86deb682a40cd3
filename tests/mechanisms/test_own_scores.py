"""A score of somebody's own: computed by every backend as it is declared, or refused; never another score instead."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

import regard as rg
from regard import mechanisms as m
from regard.testing import make_qkv


@dataclass(frozen=True)
class Cosine(m.Score, enrol=False):
    """The cosine of query and key, times `scale`."""

    projects = True

    def project(self, q, k, parameters):
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), {}

    def lowered(self):
        return m.ScaledDot()


@pytest.mark.parametrize("backend", ["auto", "reference", "fused", "tiled", "streamed"])
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
