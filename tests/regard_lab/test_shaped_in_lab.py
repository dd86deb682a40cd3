"""Tensors without values give the shape, dtype and device of a call with values; the default device is not used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from regard import mechanisms as m
from regard import patterns as p
from regard.core.plan import AttentionDetail
from regard.core.result import top_keys, weights_of
from regard_lab.decoding import Sampling, generate
from regard_lab.models import LanguageConfig, LanguageModel

WANT = ("log_sum_exp", "entropy", "received", "distance", "sink", "weights", top_keys(3), weights_of([1, 2], [0]))
TOLD = ("output", "log_sum_exp", "entropy", "received", "distance", "sink", "weights", "chosen_weights")
LENGTHS = torch.tensor([3, 7])


def told(detail: AttentionDetail) -> dict[str, tuple[Any, ...]]:
    tensors = {name: getattr(detail, name) for name in TOLD}
    tensors |= {"indices": detail.top_keys.indices, "top weights": detail.top_keys.weights}
    return {name: (tuple(x.shape), x.dtype, x.requires_grad) for name, x in tensors.items()}


PATTERNS = (
    p.SlidingWindow(4), p.GlobalTokens([0]), p.RandomBlocks(1, block=2), p.KeySpan(0, LENGTHS),
    p.SameDocument(torch.arange(20) // 5), p.Explicit(torch.ones(7, 11).bool()), p.Where(lambda i, j: i > j),
    p.KeySpan(0, LENGTHS.to("meta")), p.SameDocument((torch.arange(20) // 5).to("meta")),
)  # fmt: skip


MECHANISMS = (
    m.LinearTransformer(), m.Performer(8), m.LSH(chunk=4, buckets=2), m.Linformer(11, 3), m.Softmax(m.General(5, 5)),
)  # fmt: skip


@pytest.fixture
def _default_device_without_values() -> Iterator[None]:
    """Every tensor that is made without a device has no values, so that using one as a number fails."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


DEFAULTED = ("causal", p.SlidingWindow(6), p.DilatedWindow(4, 2), p.GlobalTokens([0, 5]) | p.CausalWindow(2),
             p.RandomBlocks(1, block=2, seed=3), p.Causal() & p.Strided(3), p.Fixed(4, summary=2),
             p.KeySpan(0, LENGTHS), p.SameDocument(torch.arange(150) // 50),
             p.PerHead([p.Causal()] * 3 + [p.Strided(2)] * 3),
             p.Where(lambda i, j: (i + j) % 3 == 0), ~p.Full())  # fmt: skip


@pytest.mark.usefixtures("_default_device_without_values")
def test_decoding_makes_no_tensor_on_the_default_device():
    with torch.device("cpu"):
        model = LanguageModel(LanguageConfig(vocab_size=50, dim=16, heads=2)).eval()
        prompts, scores, rows = torch.tensor([[5, 6, 7], [0, 0, 8]]), torch.randn(2, 50), torch.arange(2)
    sampling = Sampling(top_k=11, top_p=0.9, seed=1)
    assert sampling.choose(scores, rows, 0).device.type == "cpu"
    assert len(generate(model, prompts, max_tokens=3, sampling=sampling, count=2)) == 2
    assert len(generate(model, prompts, max_tokens=3, beam=2)) == 2
