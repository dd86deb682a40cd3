"""MultiHeadAttention inside a model whose sequence is divided: as on one process, gradients of weights included."""

import itertools
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
from regard.distributed.contents import about_weights
from regard.errors import ArgumentError
from regard.layers import LatentAttention, MultiHeadAttention
from several_processes.calls import on_a_linear_layer, with_a_recording

LENGTHS = {2: (7, 6), 4: (5, 3, 4, 1)}


def model() -> nn.Module:
    torch.manual_seed(3)
    options = {"dim": 16, "heads": 4, "sinks": True}
    grouped = {**options, "kv_heads": 2, "positions": "rotary"}
    latents = {**options, "latent_dim": 9, "rope_dim": 6, "head_dim": 5}
    first = MultiHeadAttention(pattern="causal", **grouped)
    second = MultiHeadAttention(pattern="causal_window(4)", **grouped)
    third = LatentAttention(pattern="causal", **latents)
    return nn.Sequential(first, nn.Linear(16, 16), second, third).double()


def input_and_gradient() -> torch.Tensor:
    """The whole input, and the gradient of the whole output."""
    numbers = torch.Generator().manual_seed(1)
    return torch.randn(2, 2, 13, 16, dtype=torch.float64, generator=numbers)


def shared(count: int, layout: str):
    """The output of this process and the gradients of all weights."""
    mesh = init_device_mesh("cpu", (count,))
    plan = {
        "0": ContextParallel(layout),
        "2": ContextParallel(layout, form="ring"),
        "3": ContextParallel(layout),
    }
    layers = parallelize_module(model(), mesh, plan)
    x, grad = shard(input_and_gradient(), Layout(layout, LENGTHS[count]), dist.get_rank())
    output = layers(x)
    (output * grad).sum().backward()
    gradients = {name: weight.grad.numpy() for name, weight in layers.named_parameters()}
    return output.detach().numpy(), gradients


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("count", [2, 4])
def test_layers_of_a_model_attend_over_all_processes(count, layout, pools):
    layers = model()
    x, grad = input_and_gradient()
    output = layers(x)
    (output * grad).sum().backward()
    of_processes = pools(count).run(shared, count, layout)
    parts = [torch.from_numpy(part) for part, _ in of_processes]
    together = unshard(parts, Layout(layout, LENGTHS[count]), dim=1)
    assert (together - output).abs().max() < 1e-10
    for name, weight in layers.named_parameters():
        total = sum(torch.from_numpy(gradients[name]) for _, gradients in of_processes)
        assert (total - weight.grad).abs().max() < 1e-10, name


def shared_and_sharded() -> tuple[float, dict[str, float]]:
    """The sequence on one dimension of the mesh, weights and rows on the other: differences from one process."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "places"))
    x, grad = input_and_gradient()
    alone = model()
    expected = alone(x)
    (expected * grad).sum().backward()

    plan = {name: ContextParallel("zigzag") for name in "023"}
    layers = shard_model(parallelize_module(model(), mesh["places"], plan), mesh["rows"])
    whole = torch.stack([x, expected.detach(), grad])
    part = shard(whole, Layout("zigzag", LENGTHS[2]), mesh.get_local_rank("places"))
    x, expected, grad = part[:, mesh.get_local_rank("rows")][:, None]
    output = layers(x)
    (output * grad).sum().backward()

    differences = {}
    weights = dict(alone.named_parameters())
    for name, weight in layers.named_parameters():
        local = weight.grad.to_local().contiguous()
        dist.all_reduce(local, group=mesh["places"].get_group())
        layout = (weight.grad.device_mesh, weight.grad.placements)
        total = DTensor.from_local(local, *layout, shape=weight.shape, stride=weight.stride())
        # FSDP2 takes the mean over its rows.
        difference = 2 * total.full_tensor() - weights[name].grad
        differences[name] = float(difference.abs().max())
    return float((output - expected).abs().max()), differences


def test_the_weights_of_layers_over_processes_are_divided_by_fsdp(pools):
    for of_output, of_gradients in pools(4).run(shared_and_sharded):
        assert of_output < 1e-10
        assert max(of_gradients.values()) < 1e-10, of_gradients


def with_a_cache():
    mesh = init_device_mesh("cpu", (2,))
    layer = parallelize_module(model()[0], mesh, ContextParallel())
    layer(input_and_gradient()[0], cache=layer.new_cache(batch=2))


class Derived(MultiHeadAttention):
    pass


def on_layers_that_are_no_plain_attention() -> list[str]:
    mesh = init_device_mesh("cpu", (2,))
    divided = parallelize_module(MultiHeadAttention(dim=16, heads=4), mesh, TensorParallel())
    refusals = []
    for layer in (divided, Derived(dim=16, heads=4), nn.Linear(2, 2)):
        with pytest.raises(ArgumentError) as refusal:
            parallelize_module(layer, mesh, ContextParallel())
        refusals.append(f"{refusal.value} {type(layer).__name__}")
    return refusals


def test_a_layer_with_a_meaning_of_its_own_keeps_it(pools):
    for refusals in pools(2).run(on_layers_that_are_no_plain_attention):
        kinds = ("DividedAttention", "Derived", "Linear")
        for refusal, kind in zip(refusals, kinds, strict=True):
            assert f"was given a {kind}" in refusal
            assert refusal.endswith(kind)


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
    reasons = {"input": "this layer needs (batch, length, 16)", "pattern": "stride is 0"}
    began = time.monotonic()
    of_first, of_second = pools(2).refusals(wrong_on_one, what)
    assert "process 1 refused the call: " in of_first
    assert reasons[what] in of_second
    assert time.monotonic() - began < 10


def test_other_weights_than_those_of_another_process_are_refused(pools):
    """As after different seeds; the output would be of no model at all."""
    for message in pools(2).refusals(wrong_on_one, "weights"):
        assert "Process 1 has weights with the checksum " in message
        assert "give all processes one seed" in message


def different(dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors of which no two are equal, with the differences that sums and XOR overlook."""
    count = 2 * 131_071 * 8 // dtype.itemsize + 3  # more than one chunk of 2^17 words
    drawn = torch.randint(1, 99, (count,), generator=torch.Generator().manual_seed(8)).to(dtype)
    ones = torch.ones(14, dtype=dtype)
    zeros = torch.zeros(14, dtype=dtype)
    units = torch.eye(14, dtype=dtype)
    tensors = [zeros, ones, zeros[:13], ones[:13], zeros.view(2, 7), zeros.view(7, 2)]
    tensors += [zeros[:0], zeros[:0].view(0, 3)]
    tensors += [*units, *(units[:-1] + units[1:])]
    tensors += [drawn, drawn.flip(0), drawn.roll(1), drawn.roll(count // 2)]
    tensors += [torch.cat([drawn, drawn[:1]]), drawn[1:]]
    if dtype.is_signed:
        tensors += [-ones, -drawn]
    return tensors


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8]
)
def test_weights_that_differ_have_other_checksums(dtype):
    """In one number, in the order, in the sign, in the shape, or in the number of ones."""
    tensors = different(dtype)
    texts = [about_weights([x]) for x in tensors]
    assert len(set(texts)) == len(texts)
    pairs = itertools.product(tensors[:5], repeat=2)
    assert len({about_weights(pair) for pair in pairs}) == 25
    columns = torch.zeros(14, 2, dtype=dtype)
    columns[:, 0] = 1
    not_contiguous = columns[:, 0]
    assert about_weights([not_contiguous]) == texts[1]
    behind_others = torch.cat([tensors[2], tensors[1]])[13:]
    assert about_weights([behind_others]) == texts[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_weights_have_one_checksum_on_cpu_and_gpu(dtype):
    for x in different(dtype):
        assert about_weights([x]) == about_weights([x.cuda()])


def test_what_a_layer_over_processes_refuses(pools):
    assert all("without a cache" in message for message in pools(2).refusals(with_a_cache))
    recorded = pools(2).refusals(with_a_recording, ContextParallel())
    assert all("record it on one process" in message for message in recorded)
    on_linear = pools(2).refusals(on_a_linear_layer, ContextParallel())
    assert all("name the attention layers" in message for message in on_linear)
    with pytest.raises(ArgumentError, match="layout is 'star'"):
        ContextParallel("star")
