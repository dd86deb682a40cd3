"""Models divided by tensor parallelism and by FSDP2: training and decoding as on one process."""

import pytest
import torch
from several_processes.test_tensor_parallel import IDS, trained
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from regard.distributed import shard_model, tensor_parallel_plan
from regard_lab.decoding import greedy_search
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer

SOURCES = torch.randint(4, 60, (3, 7), generator=torch.Generator().manual_seed(3))
WIDE = {"heads": 8, "head_dim": 4, "layers": 2}
MODELS = {
    "language": (LanguageModel, {**WIDE, "kv_heads": 2, "hidden_dim": 22, "biases": True}),
    "shared": (LanguageModel, {"heads": 4, "head_dim": 4, "kv_heads": 1}),
    "latents": (LanguageModel, {**WIDE, "latent_dim": 9, "rope_dim": 6}),
    "translation": (
        TranslationTransformer,
        {"cross_kv_heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    ),
    "encoder": (TextEncoder, {"layers": 2, "positions": "alibi", "head": "words"}),
}


def divided(name: str, how: str, count: int) -> nn.Module:
    torch.manual_seed(6)
    kind, settings = MODELS[name]
    module = kind(
        kind.Config(**{"vocab_size": 60, "dim": 24, "heads": 4, "dropout": 0.0, **settings})
    ).double()
    if how == "one":
        return module
    mesh = init_device_mesh("cpu", (count,))
    if how == "fsdp":
        return shard_model(module, mesh)
    return parallelize_module(module, mesh, tensor_parallel_plan(module))


def training(name: str, how: str, count: int) -> dict:
    inputs = (SOURCES, IDS) if name == "translation" else (IDS,)
    return trained(divided(name, how, count), *inputs)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # more processes than key/value heads, whose pool is started twice as fast as that of four
        ("shared", 2),
        ("language", 2),
        pytest.param("language", 4, marks=pytest.mark.slow),
        ("translation", 2),
        pytest.param("translation", 4, marks=pytest.mark.slow),
        ("encoder", 2),
        ("latents", 2),
    ],
)
def test_a_divided_model_is_trained_as_on_one_process(name, count, pools):
    expected = training(name, "one", 1)
    for shares in pools(count).run(training, name, "tensor", count):
        assert shares["losses"] == pytest.approx(expected["losses"], abs=1e-10)
        assert shares["weights"].keys() == expected["weights"].keys()
        for where, weight in shares["weights"].items():
            # Adam divides tiny gradients
            assert abs(weight - expected["weights"][where]).max() < 1e-7, where


def writing(name: str, how: str, count: int) -> tuple[list[tuple[int, ...]], int, int]:
    """What a model writes, and the bytes of its weights and caches on this process."""
    module = divided(name, how, count).eval()
    cached = 0
    if how != "fsdp":  # its weights are inference tensors once a search has run
        with torch.no_grad():
            state = module.start(SOURCES, cache="dynamic")  # of the same kind on every process
            module.step(SOURCES[:, 0], state)
        cached = state.nbytes
    texts = [tuple(hypothesis.ids) for hypothesis in greedy_search(module, SOURCES, max_tokens=12)]
    return texts, sum(bytes_here(weight) for weight in module.parameters()), cached


def bytes_here(weight: torch.Tensor) -> int:
    """The bytes of a weight, or of its part, on this process."""
    return weight.to_local().nbytes if isinstance(weight, DTensor) else weight.nbytes


@pytest.mark.parametrize("how", ["tensor", "fsdp"])
@pytest.mark.parametrize("name", ["language", "translation", "latents"])
def test_a_divided_model_writes_the_same_texts_with_a_part_of_the_memory(name, how, pools):
    texts, weights, cached = writing(name, "one", 1)
    for written, its_weights, its_caches in pools(2).run(writing, name, how, 2):
        assert written == texts
        assert its_weights < 0.75 * weights
        shares = 1 if name == "latents" else 2  # every process caches all latents
        assert how == "fsdp" or its_caches * shares == cached
