"""Sums over keys that go from process to process: causal linear mechanisms, values and gradients as on one process."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

import regard
from regard import distributed
from regard import mechanisms as m
from regard import patterns as p
from regard.distributed import ContextParallel, Layout, shard, unshard
from regard.layers import MultiHeadAttention
from several_processes.calls import counted

LENGTHS = {2: (9, 6), 4: (0, 9, 0, 69)}
MECHANISMS = {
    "linear": m.LinearTransformer(),
    "performer": m.Performer(features=8, seed=0),
    "random feature": m.RandomFeature(6, seed=1),
    "gated random feature": m.RandomFeature(6, gated=True, seed=1),
    "retention": m.Retention(),
    "kimi delta": m.KimiDelta(),
    "shared gated delta": m.GatedDelta(),
}


def tensors(count: int, name: str) -> dict[str, torch.Tensor]:
    """Whole q, k, v, the gradient of the output, and for gates a number for each key."""
    length = sum(LENGTHS[count])
    numbers = torch.Generator().manual_seed(3)
    sizes = {"q": (4, 5), "k": (2, 5), "v": (2, 3), "grad": (4, 3)}
    if "shared" in name:  # two value heads share a query and a key head
        sizes |= {"q": (1, 5), "k": (1, 5), "grad": (2, 3)}
    drawn = {}
    for tensor, (heads, dim) in sizes.items():
        shape = (2, heads, length, dim)
        drawn[tensor] = torch.randn(shape, generator=numbers, dtype=torch.float64)
    if "delta" in name:
        shape = (2, 2, length, 5) if "kimi" in name else (2, 2, length)
        drawn["log_decay"] = -torch.rand(shape, generator=numbers, dtype=torch.float64)
        drawn["strength"] = torch.rand(1, 2, length, generator=numbers, dtype=torch.float64) / 5
    elif "gated" in name:
        drawn["gate"] = torch.rand(1, 2, length, generator=numbers, dtype=torch.float64) * 0.5 + 0.4
    return drawn


def options(name: str, padded: bool) -> dict[str, Any]:
    pattern = p.Causal() & p.KeySpan(torch.tensor([0, 11]), None) if padded else p.Causal()
    return {"mechanism": MECHANISMS[name], "pattern": pattern}


def computed(call: Any, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items() if name != "grad"}
    parameters = {name: x for name, x in leaves.items() if name not in ("q", "k", "v")}
    output = call(leaves["q"], leaves["k"], leaves["v"], parameters=parameters or None)
    (output * tensors["grad"]).sum().backward()
    return {"output": output.detach(), **{name: x.grad for name, x in leaves.items()}}


def whole(count: int, name: str, padded: bool) -> dict[str, Any]:
    """What one process computes."""
    return computed(partial(regard.attention, **options(name, padded)), tensors(count, name))


def passed(count: int, name: str, padded: bool, device: str = "cpu") -> dict[str, Any]:
    """What this process computes of its part."""
    part = {}
    for tensor, x in tensors(count, name).items():
        part[tensor] = shard(x, Layout("contiguous", LENGTHS[count]), dist.get_rank()).to(device)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, parameters: Any) -> torch.Tensor:
        chosen = {**options(name, padded), "parameters": parameters}
        return distributed.attention(q, k, v, dist.group.WORLD, form="state", **chosen)

    return {result: x.cpu().numpy() for result, x in computed(attend, part).items()}


def joined(parts: list[Any], count: int, dim: int = 2) -> torch.Tensor:
    """The parts of all processes as one tensor."""
    layout = Layout("contiguous", LENGTHS[count])
    return unshard([torch.from_numpy(part) for part in parts], layout, dim=dim)


@pytest.mark.parametrize(("count", "padded"), [(2, False), (4, True)])
@pytest.mark.parametrize("name", MECHANISMS)
def test_values_and_gradients_are_those_of_one_process(name, count, padded, pools):
    parts = pools(count).run(passed, count, name, padded)
    for result, expected in whole(count, name, padded).items():
        together = joined([part[result] for part in parts], count)
        assert (together - expected).abs().max() < 1e-10, result


def bytes_sent(count: int, name: str) -> int:
    """Bytes that this process sends in a forward pass."""
    layout = Layout("contiguous", LENGTHS[count])
    rank = dist.get_rank()
    q, k, v = (shard(tensors(count, name)[tensor], layout, rank) for tensor in "qkv")
    with torch.no_grad(), counted() as sent:
        distributed.attention(q, k, v, dist.group.WORLD, form="state", **options(name, False))
    return sum(sent)


def test_only_sums_of_a_fixed_size_are_sent(pools):
    sums = 2 * 2 * 5 * (3 + 1) * 8  # batch · kv_heads · features · (v_dim + 1) numbers of 8 bytes
    headers = 2 * 4 * 8  # four sizes for each key/value head
    assert pools(4).run(bytes_sent, 4, "linear") == [headers, sums + headers, sums + headers, 0]


def layers(count: int, several: bool) -> dict[str, Any]:
    torch.manual_seed(4)
    layer = MultiHeadAttention(
        dim=16,
        heads=4,
        kv_heads=2,
        pattern="causal",
        mechanism="random_feature(6, seed=0, sigma=1, gated=true)",
    ).double()
    numbers = torch.Generator().manual_seed(5)
    x = torch.randn(2, sum(LENGTHS[count]), 16, dtype=torch.float64, generator=numbers)
    if several:
        mesh = init_device_mesh("cpu", (count,))
        layer = parallelize_module(layer, mesh, ContextParallel(form="state"))
        x = shard(x, Layout("contiguous", LENGTHS[count]), dist.get_rank(), dim=1)
    output = layer(x)
    output.square().sum().backward()
    gradients = {name: weight.grad.numpy() for name, weight in layer.named_parameters()}
    return {"output": output.detach().numpy(), **gradients}


def test_a_layer_passes_its_state(pools):
    expected = layers(4, False)
    parts = pools(4).run(layers, 4, True)
    output = joined([part["output"] for part in parts], 4, dim=1)
    assert abs(output.numpy() - expected["output"]).max() < 1e-10
    for name in expected.keys() - {"output"}:
        total = sum(part[name] for part in parts)
        assert abs(total - expected[name]).max() < 1e-10, name


def again(form: str) -> float:
    """How far the gradients of a second backward pass through one call are from those of the first."""
    length = 5 + dist.get_rank()
    whole = tensors(2, "linear")
    qkv = [whole[name][:, :, :length].requires_grad_() for name in "qkv"]
    chosen = options("linear", False)
    output = distributed.attention(*qkv, dist.group.WORLD, form=form, **chosen).sum()
    first = torch.autograd.grad(output, qkv, retain_graph=True)
    second = torch.autograd.grad(output, qkv, retain_graph=True)
    return max(float((x - y).abs().max()) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("form", ["state", "gather", "ring"])
def test_a_second_backward_pass_gives_the_same_gradients(form, pools):
    assert max(pools(2).run(again, form)) < 1e-10


def refusing(changed: dict[str, Any]) -> None:
    q = torch.zeros(1, 2, 4, 3)
    chosen = {"mechanism": m.LinearTransformer(), "pattern": "causal", "form": "state"} | changed
    call = distributed.attention_detail if "want" in chosen else distributed.attention
    call(q, q, q, dist.group.WORLD, **chosen)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mechanism": m.Softmax()}, "is for mechanisms with a state"),
        ({"pattern": "full"}, "computes causal or causal & key_span, not full"),
        ({"layout": "zigzag"}, "needs layout='contiguous'"),
        ({"backend": "linear"}, "form='state' from sums"),
    ],
)
def test_what_sums_cannot_compute_is_refused(changed, words, pools):
    assert all(words in message for message in pools(2).refusals(refusing, changed))
