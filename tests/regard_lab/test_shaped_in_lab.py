"""Decoding makes no tensor on the default device, so that it works whatever that is."""

import pytest
import torch

from regard_lab.decoding import Sampling, generate
from regard_lab.models import LanguageConfig, LanguageModel


def test_decoding_makes_no_tensor_on_the_default_device(request: pytest.FixtureRequest):
    model = LanguageModel(LanguageConfig(vocab_size=50, dim=16, heads=2)).eval()
    prompts = torch.tensor([[5, 6, 7], [0, 0, 8]])
    scores = torch.randn(2, 50)
    rows = torch.arange(2)
    sampling = Sampling(top_k=11, top_p=0.9, seed=1)
    request.addfinalizer(lambda: torch.set_default_device(None))
    torch.set_default_device("meta")  # tensors without values, so that using one as a number fails
    assert sampling.choose(scores, rows, 0).device.type == "cpu"
    assert len(generate(model, prompts, max_tokens=3, sampling=sampling, count=2)) == 2
    assert len(generate(model, prompts, max_tokens=3, beam=2)) == 2
