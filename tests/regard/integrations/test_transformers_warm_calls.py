"""A warm call inside a model looks up what computes it: few functions of Python run, and nothing is planned again."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'regard[transformers]'")

import sys

import torch
import transformers as tf
from transformers_versions import CACHE

from regard.backends.native.library import load
from regard.integrations.transformers import attach
from regard.integrations.transformers.attending import regard_attention

SIZES = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def functions_of_a_call(model, run, layer=2):
    """How many functions of Python a call of the model's third layer runs, from regard_attention on."""
    counted = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code is regard_attention.__code__:
            counted.append(0)
            inside.append(frame)
        if event == "call" and inside:
            counted[-1] += 1
        if event == "return" and inside and frame is inside[-1]:
            inside.pop()

    inside: list = []
    for _ in range(3):
        run()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    assert len(counted) == SIZES["num_hidden_layers"]
    return counted[layer]


@pytest.mark.parametrize(("way", "most"), [("decoding", 12), ("prompt", 15), ("gradients", 22)])
def test_a_warm_call_runs_few_functions(way, most):
    torch.manual_seed(0)
    model = attach(tf.LlamaModel(tf.LlamaConfig(**SIZES)).eval())
    if way == "decoding":
        cache = tf.DynamicCache()
        with torch.no_grad():
            model(torch.randint(3, 99, (1, 40)), **{CACHE: cache})
            found = functions_of_a_call(model, lambda: model(torch.tensor([[5]]), **{CACHE: cache}))
    else:
        ids = torch.randint(3, 99, (1, 16))
        with torch.set_grad_enabled(way == "gradients"):
            found = functions_of_a_call(model, lambda: model(ids, use_cache=False))
    without_native = isinstance(load(), str)
    assert found <= most + 2 * without_native
