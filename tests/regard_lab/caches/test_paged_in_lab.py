"""A paged cache shares pages between batch rows and forks, and copies no entry to do so."""

from __future__ import annotations

import pytest
import torch

from regard.layers.caches import PagedCache, paged
from regard_lab.decoding import beam_search
from regard_lab.models import LanguageModel

HEADS, DIM = 2, 4


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(paged, "PAGE", 4)


def entries(batch: int, added: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, HEADS, added, DIM), torch.randn(batch, HEADS, added, DIM)


def filled(batch: int, length: int, **options) -> PagedCache:
    cache = PagedCache(batch, HEADS, DIM, **options)
    cache.append(*entries(batch, length))
    return cache


def test_a_language_model_writes_the_same_texts_with_pages(monkeypatch):
    torch.manual_seed(0)
    model = LanguageModel(LanguageModel.Config(vocab_size=40, dim=16, layers=2, heads=2)).eval()
    prompts = torch.randint(4, 40, (2, 9))
    with torch.no_grad():
        states = {kind: model.start(prompts, kind) for kind in ("dynamic", "paged")}
        for step in range(12):
            index = torch.tensor([1, 0, 1, 0]) if step == 0 else torch.tensor([3, 1, 1, 0])
            found = []
            for state in states.values():
                state.reorder(index)
                found.append(model.step(torch.tensor([5, 6, 7, 8]) + step, state))
            torch.testing.assert_close(*found, atol=1e-6, rtol=0)
    wanted = beam_search(model, prompts, 4, count=4, max_length=8)
    start = LanguageModel.start
    monkeypatch.setattr(LanguageModel, "start", lambda self, prompts: start(self, prompts, "paged"))
    found = beam_search(model, prompts, 4, count=4, max_length=8)
    assert [[one.ids for one in row] for row in found] == [[one.ids for one in row] for row in wanted]
    shared = states["paged"].groups[0].caches.each[0]
    assert shared.pages < 4 * 6, "beams share the pages of what they have in common"
