"""In a training every forward and backward pass of the kernel has the same bits with one and with two threads.

The products of matrices around it are PyTorch's, which promise nothing of the kind.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import regard as rg
from regard.backends.native import filling, kernel, library
from regard_lab.cli.demo import SETTINGS
from regard_lab.models import TranslationTransformer
from regard_lab.text.translation_data import load_translation_data
from regard_lab.training.recipes import TranslationTraining

STEPS = 30  # of the demo's 2800


@pytest.fixture
def passes(monkeypatch, fresh_plans) -> Counter[str]:
    """Compute every pass again with the other number of threads, compare, and count.

    The results go on with the number of threads that the training was given, which is restored after each pass.
    """
    counts: Counter[str] = Counter()
    threads_of: dict[str, int] = {}  # of the pass before

    def noted(name: str) -> None:
        method = getattr(library.Library, name)

        def note(self: library.Library, call: Any, *rest: Any) -> None:
            threads_of[name] = call._obj.threads
            method(self, call, *rest)

        monkeypatch.setattr(library.Library, name, note)

    def doubled(name: str, entry: str) -> None:
        method = getattr(kernel.Kernel, name)

        def both(self: kernel.Kernel, *arguments: Any) -> Any:
            threads_before = torch.get_num_threads()
            results = {}
            for threads in (1, 2):
                torch.set_num_threads(threads)
                results[threads] = method(self, *arguments)
            torch.set_num_threads(threads_before)
            for alone, together in zip(*results.values(), strict=True):
                assert alone is together or torch.equal(alone, together), (name, self.problem)
            counts[name] += 1
            counts[f"{name} in threads"] += threads_of[entry] == 2
            return results[threads_before]

        monkeypatch.setattr(kernel.Kernel, name, both)

    noted("forward")
    noted("backward")
    doubled("compute", "forward")
    doubled("backward", "backward")
    return counts


def _attentions(config: TranslationTransformer.Config) -> int:
    """How many layers of attention the model has."""
    return config.encoder_layers + 2 * config.decoder_layers


def test_training_steps_of_a_model_with_dropout_and_padding(passes, monkeypatch):
    # Calls of this size are worth one thread otherwise.
    monkeypatch.setattr(filling, "PRODUCTS_PER_THREAD", 1)
    config = TranslationTransformer.Config(
        vocab_size=40, dim=32, heads=4, cross_kv_heads=2, attention_dropout=0.2
    )
    model = TranslationTransformer(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        source = torch.randint(4, 40, (5, 37))
        target = torch.randint(4, 40, (5, 29))
        for row in range(1, 5):
            source[row, 37 - 6 * row :], target[row, 29 - 5 * row :] = 0, 0  # padding
        loss = F.cross_entropy(
            model(source, target).flatten(0, 1), target.flatten(), ignore_index=0
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    calls = 2 * _attentions(config)
    assert passes == dict.fromkeys(
        ("compute", "backward", "compute in threads", "backward in threads"), calls
    )


@pytest.mark.parametrize("pattern", [SETTINGS.attention, SETTINGS.decoder_attention, "full"])
def test_short_sentences_are_trained_by_the_kernel_unasked(pattern):
    """Forward and backward pass in batches as the demo's take it half of the time of the fused operation."""
    q, k, v = (torch.randn(57, SETTINGS.heads, 14, 16, requires_grad=True) for _ in range(3))
    assert rg.plan_attention(q, k, v, pattern=pattern).backend == "native"


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_demo_trained_with_one_and_with_two_threads(passes, tmp_path, threads):
    """The kernel is named, so that the test does not depend on the planner. More than half of the calls are worth two
    threads; the rest are computed by one, as in any training."""
    data = load_translation_data(SETTINGS.data, seed=SETTINGS.seed, twins=SETTINGS.twins)
    settings = replace(SETTINGS, steps=STEPS, validate_every=STEPS)
    torch.set_num_threads(threads)
    training = TranslationTraining(settings, data=data).prepare(tmp_path / "run")
    for layer in training.model.modules():
        if isinstance(layer, rg.MultiHeadAttention):
            layer.options["backend"] = "native"
    assert training.run(tmp_path / "run", cpu=True).steps == STEPS
    calls = STEPS * _attentions(training.model.config)
    assert passes["backward"] == calls
    assert passes["compute"] >= calls  # validation computes without gradients
    assert passes["compute in threads"] > calls / 2
    assert passes["backward in threads"] > calls / 2
