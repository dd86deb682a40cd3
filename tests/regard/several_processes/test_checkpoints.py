"""`torch.distributed.checkpoint` saves divided models, which any other number of processes loads and trains on."""

from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as checkpoints
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from regard.distributed import shard_model, tensor_parallel_plan
from regard.layers import FeedForward, LatentAttention, MultiHeadAttention

X = torch.randn(2, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


class Small(nn.Module):
    """One layer of each kind that is divided."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        heads = MultiHeadAttention(
            dim=16, heads=4, kv_heads=2, pattern="causal", positions="rotary", sinks=True
        )
        latents = LatentAttention(
            dim=16, heads=4, latent_dim=7, rope_dim=4, head_dim=5, pattern="causal"
        )
        self.layers = nn.ModuleList([heads, latents, FeedForward(16, 22, "swiglu")]).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def divided(how: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model: nn.Module = Small(seed)
    if how == "heads":
        model = parallelize_module(
            model, init_device_mesh("cpu", (2,)), tensor_parallel_plan(model)
        )
    elif how == "shards":
        shard_model(model, init_device_mesh("cpu", (2,)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def trained(model: nn.Module, optimiser: torch.optim.Optimizer) -> float:
    """The loss before one step; every process has the same batch."""
    loss = model(X).square().mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    return loss.item()


def save(folder: str, how: str) -> list[float]:
    """Weights and training are saved after one step; the losses of the two steps that follow."""
    model, optimiser = divided(how, 1)
    trained(model, optimiser)
    checkpoints.save(
        model.state_dict(),
        storage_writer=HuggingFaceStorageWriter(f"{folder}/weights", save_distributed=True),
    )
    weights, states = get_state_dict(model, optimiser)
    checkpoints.save({"model": weights, "optimiser": states}, checkpoint_id=f"{folder}/training")
    return [trained(model, optimiser) for _ in range(2)]


def load(folder: str, how: str) -> tuple[float, list[float]]:
    """The loss with the weights alone, and the losses of a training that goes on; both models began with others."""
    model, _ = divided(how, 5)
    weights: dict[str, Any] = model.state_dict()
    checkpoints.load(weights, storage_reader=HuggingFaceStorageReader(f"{folder}/weights"))
    model.load_state_dict(weights)
    with torch.no_grad():
        loss = model(X).square().mean().item()
    model, optimiser = divided(how, 6)
    weights, states = get_state_dict(model, optimiser)
    state = {"model": weights, "optimiser": states}
    checkpoints.load(state, checkpoint_id=f"{folder}/training")
    set_state_dict(model, optimiser, model_state_dict=weights, optim_state_dict=states)
    return loss, [trained(model, optimiser) for _ in range(2)]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    ("saved", "loaded"), [("heads", "one"), ("shards", "heads"), ("one", "shards")]
)
def test_a_model_that_one_division_saved_is_loaded_and_trained_by_another(
    saved, loaded, pools, tmp_path
):

    def run(function: Any, how: str) -> list[Any]:
        """What each process returned, or this one if the model is whole."""
        if how == "one":
            return [function(str(tmp_path), how)]
        return pools(2).run(function, str(tmp_path), how)

    expected = run(save, saved)[0]
    for loss, losses in run(load, loaded):
        assert loss == pytest.approx(expected[0], abs=1e-12)
        assert losses == pytest.approx(expected, abs=1e-12)
