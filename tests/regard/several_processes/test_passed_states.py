"""Sums over keys that go from process to process: causal linear mechanisms, values and gradients as on one process."""

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
    drawn = {
        one: torch.randn(2, heads, length, dim, generator=numbers, dtype=torch.float64)
        for one, (heads, dim) in sizes.items()
    }
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


def computed(call: Any, given: dict[str, torch.Tensor]) -> dict[str, Any]:
    leaves = {name: x.clone().requires_grad_() for name, x in given.items() if name != "grad"}
    parameters = {name: x for name, x in leaves.items() if name not in ("q", "k", "v")}
    output = call(leaves["q"], leaves["k"], leaves["v"], parameters=parameters or None)
    (output * given["grad"]).sum().backward()
    return {"output": output.detach(), **{name: x.grad for name, x in leaves.items()}}


def whole(count: int, name: str, padded: bool) -> dict[str, Any]:
    """What one process computes."""
    chosen = options(name, padded)
    return computed(
        lambda q, k, v, **more: regard.attention(q, k, v, **chosen, **more), tensors(count, name)
    )


def passed(count: int, name: str, padded: bool, device: str = "cpu") -> dict[str, Any]:
    layout = Layout("contiguous", LENGTHS[count])
    rank = dist.get_rank()
    own = {one: shard(x, layout, rank).to(device) for one, x in tensors(count, name).items()}
    chosen = options(name, padded)
    found = computed(
        lambda q, k, v, **more: distributed.attention(
            q, k, v, dist.group.WORLD, form="state", **chosen, **more
        ),
        own,
    )
    return {one: x.cpu().numpy() for one, x in found.items()}


@pytest.mark.parametrize(("count", "padded"), [(2, False), (4, True)])
@pytest.mark.parametrize("name", MECHANISMS)
def test_values_and_gradients_are_those_of_one_process(name, count, padded, pools):
    expected = whole(count, name, padded)
    parts = pools(count).run(passed, count, name, padded)
    layout = Layout("contiguous", LENGTHS[count])
    for what, x in expected.items():
        found = unshard([torch.from_numpy(one[what]) for one in parts], layout)
        assert (found - x).abs().max() < 1e-10, what


def bytes_sent(count: int, name: str) -> int:
    """Bytes that this process sends in a forward pass."""
    layout = Layout("contiguous", LENGTHS[count])
    rank = dist.get_rank()
    own = [shard(tensors(count, name)[one], layout, rank) for one in "qkv"]
    with torch.no_grad(), counted() as sent:
        distributed.attention(*own, dist.group.WORLD, form="state", **options(name, False))
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
    x = torch.randn(
        2, sum(LENGTHS[count]), 16, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    if several:
        layer = parallelize_module(
            layer, init_device_mesh("cpu", (count,)), ContextParallel(form="state")
        )
        x = shard(x, Layout("contiguous", LENGTHS[count]), dist.get_rank(), dim=1)
    output = layer(x)
    output.square().sum().backward()
    return {"output": output.detach().numpy()} | {
        name: one.grad.numpy() for name, one in layer.named_parameters()
    }


def test_a_layer_passes_its_state(pools):
    expected = layers(4, False)
    parts = pools(4).run(layers, 4, True)
    found = unshard(
        [torch.from_numpy(one["output"]) for one in parts], Layout("contiguous", LENGTHS[4]), dim=1
    )
    assert abs(found.numpy() - expected["output"]).max() < 1e-10
    for name in expected.keys() - {"output"}:
        assert abs(sum(one[name] for one in parts) - expected[name]).max() < 1e-10, name


def again(form: str) -> float:
    """How far the gradients of a second backward pass through one call are from those of the first."""
    q, k, v = (
        tensors(2, "linear")[name][:, :, : 5 + dist.get_rank()].requires_grad_() for name in "qkv"
    )
    output = distributed.attention(
        q, k, v, dist.group.WORLD, form=form, **options("linear", False)
    ).sum()
    first, second = (torch.autograd.grad(output, (q, k, v), retain_graph=True) for _ in range(2))
    return max(float((one - other).abs().max()) for one, other in zip(first, second, strict=True))


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
