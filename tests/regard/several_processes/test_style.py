"""MultiHeadAttention inside a model whose sequence is divided: as on one process, gradients of weights included."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

import regard
from regard.distributed import ContextParallel, Layout, TensorParallel, shard, shard_model, unshard
from regard.distributed.group import about_weights
from regard.errors import ArgumentError
from regard.layers import LatentAttention, MultiHeadAttention
from several_processes.calls import on_a_linear_layer, with_a_recording

LENGTHS = {2: (7, 6), 4: (5, 3, 4, 1)}


def model() -> nn.Module:
    torch.manual_seed(3)
    layers = [
        MultiHeadAttention(
            dim=16, heads=4, kv_heads=2, pattern=pattern, positions="rotary", sinks=True
        )
        for pattern in ("causal", "causal_window(4)")
    ]
    latent = LatentAttention(
        16, 4, latent_dim=9, rope_dim=6, head_dim=5, pattern="causal", sinks=True
    )
    return nn.Sequential(layers[0], nn.Linear(16, 16), layers[1], latent).double()


def whole() -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, 13, 16, dtype=torch.float64, generator=numbers) for _ in range(2))


def shared(count: int, layout: str):
    """The output of this process and the gradients of all weights."""
    mesh = init_device_mesh("cpu", (count,))
    plan = {
        "0": ContextParallel(layout),
        "2": ContextParallel(layout, form="ring"),
        "3": ContextParallel(layout),
    }
    layers = parallelize_module(model(), mesh, plan)
    division = Layout(layout, LENGTHS[count])
    rank = dist.get_rank()
    x, grad = (shard(one, division, rank, dim=1) for one in whole())
    output = layers(x)
    (output * grad).sum().backward()
    return output.detach().numpy(), {
        name: one.grad.numpy() for name, one in layers.named_parameters()
    }


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("count", [2, 4])
def test_layers_of_a_model_attend_over_all_processes(count, layout, pools):
    layers = model()
    x, grad = whole()
    output = layers(x)
    (output * grad).sum().backward()
    found = pools(count).run(shared, count, layout)
    parts = unshard(
        [torch.from_numpy(one) for one, _ in found], Layout(layout, LENGTHS[count]), dim=1
    )
    assert (parts - output).abs().max() < 1e-10
    for name, one in layers.named_parameters():
        assert (
            sum(torch.from_numpy(grads[name]) for _, grads in found) - one.grad
        ).abs().max() < 1e-10, name


def shared_and_sharded() -> tuple[float, dict[str, float]]:
    """The sequence on one dimension of the mesh, weights and rows on the other: differences from one process."""
    mesh, (x, grad) = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "places")), whole()
    alone = model()
    expected = alone(x)
    (expected * grad).sum().backward()
    layers = parallelize_module(
        model(), mesh["places"], {name: ContextParallel("zigzag") for name in "023"}
    )
    layers = shard_model(layers, mesh["rows"])
    division = Layout("zigzag", LENGTHS[2])
    place = mesh.get_local_rank("places")
    row = mesh.get_local_rank("rows")
    own = [
        shard(one, division, place, dim=1)[row : row + 1] for one in (x, expected.detach(), grad)
    ]
    output = layers(own[0])
    (output * own[2]).sum().backward()
    found = {}
    for (name, one), other in zip(layers.named_parameters(), alone.parameters(), strict=True):
        local = one.grad.to_local().contiguous()
        dist.all_reduce(local, group=mesh["places"].get_group())
        total = DTensor.from_local(
            local, one.grad.device_mesh, one.grad.placements, shape=one.shape, stride=one.stride()
        )
        # FSDP2 takes the mean over its rows
        found[name] = float((2 * total.full_tensor() - other.grad).abs().max())
    return float((output - own[1]).abs().max()), found


def test_the_weights_of_layers_over_processes_are_divided_by_fsdp(pools):
    for far, grads in pools(4).run(shared_and_sharded):
        assert far < 1e-10
        assert max(grads.values()) < 1e-10, grads


def with_a_cache():
    mesh = init_device_mesh("cpu", (2,))
    layer = parallelize_module(model()[0], mesh, ContextParallel())
    layer(whole()[0], cache=layer.new_cache(batch=2))


def on_layers_that_are_no_plain_attention() -> list[str]:
    mesh = init_device_mesh("cpu", (2,))
    said = []
    divided = parallelize_module(MultiHeadAttention(dim=16, heads=4), mesh, TensorParallel())
    for layer in (divided, Mine(dim=16, heads=4), nn.Linear(2, 2)):
        with pytest.raises(ArgumentError) as refusal:
            parallelize_module(layer, mesh, ContextParallel())
        said.append(f"{refusal.value} {type(layer).__name__}")
    return said


class Mine(MultiHeadAttention):
    pass


def test_a_layer_with_a_meaning_of_its_own_keeps_it(pools):
    for said in pools(2).run(on_layers_that_are_no_plain_attention):
        for one, name in zip(said, ("DividedAttention", "Mine", "Linear"), strict=True):
            assert f"was given a {name}" in one
            assert one.endswith(name)


def wrong_on_one(what: str) -> None:
    wrong = dist.get_rank() == 1
    layer = parallelize_module(model()[0], init_device_mesh("cpu", (2,)), ContextParallel())
    if wrong and what == "weights":
        nn.init.normal_(layer.to_k.weight)
    x = torch.zeros(1, 5, 17 if wrong and what == "input" else 16, dtype=torch.float64)
    if what == "positions":
        layer.positions = regard.positions.Rotary(base=100.0 if wrong else 1000.0)
    layer(x, pattern="strided(0)" if wrong and what == "pattern" else None)


@pytest.mark.parametrize("what", ["input", "pattern"])
def test_a_layer_that_refuses_on_one_process_does_not_leave_the_others_waiting(what, pools):
    began = time.monotonic()
    other, own = pools(2).refusals(wrong_on_one, what)
    assert "process 1 refused the call: " in other
    assert {"input": "this layer needs (batch, length, 16)", "pattern": "stride is 0"}[what] in own
    assert time.monotonic() - began < 10


def test_other_weights_than_those_of_another_process_are_refused(pools):
    """As after different seeds; the output would be of no model at all."""
    for message in pools(2).refusals(wrong_on_one, "weights"):
        assert "Process 1 has weights with the checksum " in message
        assert "give all processes one seed" in message


def different(dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors of which no two are equal, with the differences that sums and XOR overlook."""
    many = 2 * 131_071 * 8 // dtype.itemsize + 3  # more than one chunk of 2^17 words
    drawn = torch.randint(1, 99, (many,), generator=torch.Generator().manual_seed(8)).to(dtype)
    ones = torch.ones(14, dtype=dtype)
    zeros = torch.zeros(14, dtype=dtype)
    alike = [
        zeros,
        ones,
        zeros[:13],
        ones[:13],
        zeros.view(2, 7),
        zeros.view(7, 2),
        zeros[:0],
        zeros[:0].view(0, 3),
    ]
    marked = [torch.eye(14, dtype=dtype)[at] for at in range(14)]
    pairs = [
        torch.eye(14, dtype=dtype)[at] + torch.eye(14, dtype=dtype)[at + 1] for at in range(13)
    ]
    moved = [
        drawn,
        drawn.flip(0),
        drawn.roll(1),
        drawn.roll(many // 2),
        torch.cat([drawn, drawn[:1]]),
        drawn[1:],
    ]
    return [*alike, *marked, *pairs, *moved, *([-ones, -drawn] if dtype.is_signed else [])]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8]
)
def test_weights_that_differ_have_other_checksums(dtype):
    """In one number, in the order, in the sign, in the shape, or in the number of ones."""
    tensors = different(dtype)
    texts = [about_weights([one]) for one in tensors]
    assert len(set(texts)) == len(texts)
    assert len({about_weights([one, other]) for one in tensors[:5] for other in tensors[:5]}) == 25
    wide = torch.zeros(14, 2, dtype=dtype)
    wide[:, 0] = 1
    apart = wide[:, 0]  # not contiguous
    assert about_weights([apart]) == texts[1]
    # where it begins in memory
    assert about_weights([torch.cat([tensors[2], tensors[1]])[13:]]) == texts[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_weights_have_one_checksum_on_cpu_and_gpu(dtype):
    for one in different(dtype):
        assert about_weights([one]) == about_weights([one.cuda()])


def test_what_a_layer_over_processes_refuses(pools):
    assert all("without a cache" in message for message in pools(2).refusals(with_a_cache))
    for call, words in (
        (with_a_recording, "record it on one process"),
        (on_a_linear_layer, "name the attention layers"),
    ):
        assert all(words in message for message in pools(2).refusals(call, ContextParallel()))
    with pytest.raises(ArgumentError, match="layout is 'star'"):
        ContextParallel("star")
