"""Models divided by heads and hidden numbers: outputs, gradients, training and decoding as on one process."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from regard.bias import ALiBi, Bias, T5Relative
from regard.distributed import TensorParallel, tensor_parallel_plan
from regard.errors import ArgumentError
from regard.layers import FeedForward, LatentAttention, MultiHeadAttention
from regard.patterns import (
    Causal,
    CausalWindow,
    Explicit,
    Full,
    KeySpan,
    Pattern,
    PerHead,
    Prefix,
    Strided,
)
from several_processes.calls import on_a_linear_layer, with_a_recording

IDS = torch.randint(4, 60, (3, 11), generator=torch.Generator().manual_seed(2))


def per_head() -> PerHead:
    return PerHead([CausalWindow(1 + head) if head % 3 else Causal() for head in range(12)])


def explicit(heads: int) -> Explicit:
    return Explicit(torch.rand(1, heads, 11, 11, generator=torch.Generator().manual_seed(4)) < 0.6)


def t5() -> T5Relative:
    bias = T5Relative(8, buckets=8, max_distance=20).double()
    with torch.no_grad():
        bias.weight.copy_(torch.arange(64).view(8, 8) / 10)
    return bias


def tensor_bias() -> torch.Tensor:
    drawn = torch.randn(8, 11, 11, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return drawn.requires_grad_()


CAUSAL = {"pattern": "causal"}
TWO_KEY_HEADS = {"heads": 8, "kv_heads": 2}
THREE_KEY_HEADS = {"heads": 12, "kv_heads": 3}
GATED = "random_feature(6, seed=0, sigma=1, gated=true)"
LATENT = {"heads": 8, "latent_dim": 9, "rope_dim": 6, "value_dim": 5}
LAYERS: dict[str, dict[str, Any]] = {
    "heads": {"heads": 4, **CAUSAL, "positions": "rotary"},
    "grouped": {"heads": 8, "kv_heads": 4, "pattern": "causal_window(4)", "sinks": True},
    "one key head": {"heads": 8, "kv_heads": 1, **CAUSAL, "projection_bias": False},
    "two key heads": {**TWO_KEY_HEADS, "value_dim": 3, "softcap": 20.0},
    "three key heads": {**THREE_KEY_HEADS, **CAUSAL, "positions": "rotary"},
    "a pattern for each head": THREE_KEY_HEADS,
    "a mask for each head": TWO_KEY_HEADS,
    "a tensor of biases": {**TWO_KEY_HEADS, **CAUSAL},
    "T5": {**TWO_KEY_HEADS, **CAUSAL},
    "norms and gates": {
        **TWO_KEY_HEADS,
        **CAUSAL,
        "positions": "rotary",
        "qk_norm": True,
        "output_gate": True,
    },
    "additive scores": {**TWO_KEY_HEADS, "mechanism": "softmax(additive(4, 4, 5))"},
    "linear": {**TWO_KEY_HEADS, **CAUSAL, "mechanism": "linear_transformer"},
    "gates": {**TWO_KEY_HEADS, **CAUSAL, "mechanism": GATED},
    "Linformer": {"heads": 8, "kv_heads": 8, "mechanism": "linformer(11, 4)"},
    "LSH": {"heads": 8, **CAUSAL, "mechanism": "lsh(4, 2, 2)"},
    "latents": {**LATENT, **CAUSAL, "sinks": True},
    "absorbed latents": {**LATENT, "query_latent_dim": 7, "projection_bias": True},
}
# Options of the calls of some layers, made for each call since their tensors learn.
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "two key heads": lambda: {"bias": ALiBi()},
    "a pattern for each head": lambda: {"pattern": per_head() & Strided(3)},
    "a mask for each head": lambda: {"pattern": explicit(8)},
    "a tensor of biases": lambda: {"bias": tensor_bias()},
    "T5": lambda: {"bias": t5()},
    "latents": lambda: {"bias": ALiBi()},
    "absorbed latents": lambda: {"bias": t5(), "form": "absorbed"},
}


def layer(name: str) -> MultiHeadAttention | LatentAttention:
    torch.manual_seed(1)
    kind = LatentAttention if "latent_dim" in LAYERS[name] else MultiHeadAttention
    module = kind(dim=24, head_dim=4, **LAYERS[name]).double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight) / 10)  # sinks and biases begin as zeros
    return module


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def computed(module: nn.Module, name: str) -> dict[str, Any]:
    """Output and gradients of a layer for an input that is alike on all processes."""
    numbers = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(2, 11, 24, dtype=torch.float64, generator=numbers) for _ in range(2))
    x.requires_grad_()
    options = OPTIONS.get(name, dict)()
    output = module(x, **options)
    (output * grad).sum().backward()
    results = {"output": output.detach(), "x": x.grad}
    for weight_name, weight in module.named_parameters():
        results[weight_name] = whole(weight.grad)
    bias = options.get("bias")
    if isinstance(bias, torch.Tensor):
        results["bias"] = bias.grad
    if isinstance(bias, T5Relative):
        results["bias"] = bias.weight.grad
    return {result: x.numpy() for result, x in results.items()}


def divided(module: nn.Module, count: int) -> nn.Module:
    """A layer, or all layers of a model, divided among so many processes."""
    is_layer = isinstance(module, MultiHeadAttention | LatentAttention | FeedForward)
    plan = TensorParallel() if is_layer else tensor_parallel_plan(module)
    return parallelize_module(module, init_device_mesh("cpu", (count,)), plan)


def divided_layer(count: int, name: str) -> dict[str, Any]:
    return computed(divided(layer(name), count), name)


@pytest.mark.parametrize(
    ("name", "count"), [*zip(LAYERS, cycle((4, 2))), ("grouped", 4), ("T5", 2)]
)
def test_a_divided_layer_computes_what_one_process_computes(name, count, pools):
    expected = computed(layer(name), name)
    for results in pools(count).run(divided_layer, count, name):
        assert results.keys() == expected.keys()
        for result, x in results.items():
            assert x.shape == expected[result].shape, result
            assert abs(x - expected[result]).max() < 1e-10, result


def layer_of_plain_heads() -> MultiHeadAttention:
    torch.manual_seed(1)
    options = {"pattern": "causal", "positions": "rotary", "output_gate": True}
    return MultiHeadAttention(dim=24, head_dim=4, heads=8, kv_heads=4, **options).double()


def divided_by_pytorch(count: int) -> dict[str, Any]:
    """What a layer computes that is divided by PyTorch's own styles, as the page on several processes says."""
    layer = layer_of_plain_heads()
    projections = ("to_q", "to_k", "to_v", "to_output_gate")
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in projections}
    plan["to_output"] = RowwiseParallel()
    parallelize_module(layer, init_device_mesh("cpu", (count,)), plan)
    layer.heads //= count
    layer.kv_heads //= count
    return computed(layer, "heads")


def test_the_styles_of_pytorch_suffice_for_plain_heads_that_the_processes_divide(pools):
    expected = computed(layer_of_plain_heads(), "heads")
    for results in pools(2).run(divided_by_pytorch, 2):
        assert results.keys() == expected.keys()
        for name, result in results.items():
            assert abs(result - expected[name]).max() < 1e-10, name


def trained(module: nn.Module, *inputs: torch.Tensor) -> dict[str, Any]:
    """The loss of some steps with clipped gradients, and the weights after them; the last input holds the targets."""
    ids = inputs[-1]
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        logits = module(*inputs)[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        losses.append(loss.item())
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimiser.step()
    weights = {name: whole(one.detach()).numpy() for name, one in module.named_parameters()}
    return {"losses": losses, "weights": weights}


class TiedModel(nn.Module):
    """A model whose output matrix is its table of embeddings, and whose layers share a projection."""

    def __init__(self, *ties: str) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.embedding = nn.Embedding(60, 24)
        self.head = nn.Linear(24, 60, bias=False)
        self.layers = nn.ModuleList(
            MultiHeadAttention(dim=24, heads=8, pattern="causal") for _ in range(2)
        )
        self.forward_part = FeedForward(24, 24)
        self.scale = nn.Parameter(torch.ones(24))
        for name in ties:
            first, second = name.split(" = ")
            owner, _, last = first.rpartition(".")
            setattr(self.get_submodule(owner), last, self.get_parameter(second))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x + self.forward_part(x))


TIES = ("head.weight = embedding.weight", "layers.1.to_q.weight = layers.0.to_q.weight")


def divided_tied_training(count: int) -> tuple[dict[str, Any], int, bool]:
    module = TiedModel(*TIES).double()
    del module.scale  # a parameter of the model itself stays a plain tensor
    module = divided(module, count)
    tied = module.head._parameters["weight"] is module.embedding._parameters["weight"]
    return trained(module, IDS), len([*module.parameters()]), tied


def test_tied_weights_stay_one_parameter(pools):
    alone = TiedModel(*TIES).double()
    del alone.scale
    expected = trained(alone, IDS)
    parameters = len([*alone.parameters()])
    for results, count, tied in pools(2).run(divided_tied_training, 2):
        assert (count, tied) == (parameters, True)
        assert results["losses"] == pytest.approx(expected["losses"], abs=1e-10)
        for name, weight in results["weights"].items():
            # Adam divides by tiny gradients.
            assert abs(weight - expected["weights"][name]).max() < 1e-7, name


@pytest.mark.parametrize(
    ("tie", "names"),
    [
        (
            "forward_part.narrow.weight = layers.0.to_output.weight",
            ("layers.0.to_output", "forward_part.narrow"),
        ),
        ("head.bias = layers.0.to_q.bias", ("head", "layers.0.to_q")),
        ("head.bias = scale", ("the model itself", "head")),
    ],
)
def test_ties_of_weights_that_are_not_divided_alike_are_refused(tie, names):
    with pytest.raises(ArgumentError, match=r"untie") as refusal:
        tensor_parallel_plan(TiedModel(tie))
    assert all(name in str(refusal.value) for name in names)


def dropping(count: int) -> tuple[Any, Any, int]:
    """The output of layers that drop in training, which hidden numbers stay, and the next draw after them."""
    torch.manual_seed(7)
    attention = divided(MultiHeadAttention(dim=16, heads=4, dropout=0.5), count)
    forward = divided(FeedForward(16, 1024, dropout=0.25), count)
    hidden = []
    forward.narrow.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
    output = forward(attention(torch.ones(1, 40, 16)))
    return output.detach().numpy(), (hidden[0] != 0).numpy(), int(torch.randint(2**62, ()))


def test_each_process_drops_its_own_numbers_and_the_generators_stay_alike(pools):
    (first, stays, draw), (second, stays_in_second, second_draw) = pools(2).run(dropping, 2)
    assert (first == second).all()
    assert draw == second_draw
    passes_relu = stays.any(1) & stays_in_second.any(1)  # relu gives zeros of its own
    assert passes_relu.any()
    agreeing = (stays == stays_in_second)[:, :, passes_relu[0]].mean()
    assert agreeing < 0.9


def too_many_processes() -> None:
    divided(MultiHeadAttention(dim=18, heads=6), 4)


def with_forget_gates() -> None:
    divided(MultiHeadAttention(dim=16, heads=4, pattern="causal", forgetting=True), 2)


def with_a_tie_across() -> None:
    layer = FeedForward(8, 8)
    layer.narrow.weight = layer.widen.weight
    divided(layer, 2)


REFUSED = [
    (
        4,
        (too_many_processes,),
        "6 query heads cannot be divided among 4 processes, each with as many; "
        "numbers of processes that can: 1, 2, 3",
    ),
    (2, (on_a_linear_layer, TensorParallel()), "given a Linear"),
    (2, (with_forget_gates,), "forgetting or a chooser; divide"),
    (
        2,
        (with_a_tie_across,),
        "of another module too, where it was divided along axis 0, and here it would be divided along axis 1; untie",
    ),
    (2, (with_a_recording, TensorParallel()), "record it on one process"),
]


@pytest.mark.parametrize(("count", "call", "words"), REFUSED)
def test_what_cannot_be_divided_is_refused_with_the_numbers(count, call, words, pools):
    assert all(words in message for message in pools(count).refusals(*call))


def weights_that_are_no_dtensors(count: int) -> dict[str, list[str]]:
    by_layer = {}
    for name in LAYERS:
        weights = divided(layer(name), count).named_parameters()
        by_layer[name] = [name for name, weight in weights if not isinstance(weight, DTensor)]
    return by_layer


def test_every_weight_of_a_divided_layer_is_a_dtensor_so_that_one_optimiser_takes_all(pools):
    for by_layer in pools(2).run(weights_that_are_no_dtensors, 2):
        assert by_layer == {name: [] for name in LAYERS}


def test_a_plan_for_what_has_no_such_layer_is_refused():
    with pytest.raises(ArgumentError, match="model is an int; give a module"):
        tensor_parallel_plan(3)  # ty: ignore
    sentence = "has no MultiHeadAttention, LatentAttention or FeedForward inside"
    with pytest.raises(ArgumentError, match=sentence):
        tensor_parallel_plan(nn.Linear(2, 2))


# Biases that learn: the present weights in every call, and gradients of all processes


class LearnedBias(nn.Module, Bias):
    """A bias with two parameters, in one row for all heads or a row for each."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(8)
        self.steep = nn.Parameter(torch.rand(rows, 1, dtype=torch.float64, generator=numbers))
        self.wave = nn.Parameter(torch.rand(rows, 1, dtype=torch.float64, generator=numbers))

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return -self.steep * distances.abs().sqrt() + (self.wave * distances).sin()


class LearnedBiasOutsideModules(Bias):
    """A bias that learns and is no module."""

    learns = True

    def __init__(self) -> None:
        self.inner = LearnedBias(8)
        self.parameters = self.inner.parameters

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return self.inner.by_distance(distances, heads)


BIASES: dict[str, Callable[[], Any]] = {
    "T5": t5,
    "shared by all heads": lambda: LearnedBias(1),
    "a row for each head": lambda: LearnedBias(8),
}


class Biased(nn.Module):
    """Two layers that learn a bias each."""

    def __init__(self, bias: str, pattern: Any = None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(
            MultiHeadAttention(dim=24, head_dim=4, heads=8, kv_heads=2, pattern=pattern).double()
            for _ in range(2)
        )
        self.biases = nn.ModuleList(BIASES[bias]() for _ in range(2))
        with torch.no_grad():
            for weight in self.biases[1].parameters():
                weight.mul_(-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, bias in zip(self.layers, self.biases, strict=True):
            x = x + layer(x, bias=bias)
        return x


def steps_with_biases(module: nn.Module) -> list[list[Any]]:
    """The loss before each step, with and without gradients, and the gradients of the biases."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, foreach=False)
    x = torch.randn(2, 11, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    steps = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        gradients = [whole(weight.grad).tolist() for weight in module.biases.parameters()]
        with torch.no_grad():
            steps.append([loss.item(), module(x).square().mean().item(), *gradients])
        optimiser.step()
    return steps


def divided_steps_with_biases(count: int, bias: str) -> list[list[Any]]:
    return steps_with_biases(divided(Biased(bias), count))


def assert_close(lists: list[Any], expected: list[Any]) -> None:
    for numbers, wanted in zip(lists, expected, strict=True):
        pair = torch.tensor(numbers), torch.tensor(wanted)
        torch.testing.assert_close(*pair, rtol=0, atol=1e-10)


@pytest.mark.parametrize("bias", BIASES)
def test_every_call_has_the_present_weights_of_its_own_bias(bias, pools):
    expected = steps_with_biases(Biased(bias))
    for steps in pools(2).run(divided_steps_with_biases, 2, bias):
        for step, wanted in zip(steps, expected, strict=True):
            assert_close(step, wanted)


# Patterns by head with which the two processes look at different keys.
REACHES: dict[str, list[Pattern]] = {
    "as many keys": [KeySpan(0, 7)] * 4 + [KeySpan(40, 47)] * 4,
    "more keys": [Prefix(7)] * 4 + [Full()] * 4,
    "no keys": [KeySpan(0, 0)] * 4 + [CausalWindow(5)] * 4,
}


def gradients_of_bias(count: int, bias: str, reach: str) -> list[Any]:
    """Gradients of a bias and of the input by one layer, divided where there are several processes."""
    torch.manual_seed(1)
    pattern = PerHead(REACHES[reach])
    module = MultiHeadAttention(dim=24, head_dim=4, heads=8, pattern=pattern).double()
    if count > 1:
        module = divided(module, count)
    numbers = torch.Generator().manual_seed(9)
    x = torch.randn(2, 47, 24, dtype=torch.float64, generator=numbers, requires_grad=True)
    learned = LearnedBiasOutsideModules() if bias == "no module" else BIASES[bias]()
    for start in (0, torch.tensor([5, 2])):
        module(x, bias=learned, q_start=start).square().sum().backward()
    return [leaf.grad.tolist() for leaf in (x, *learned.parameters())]


@pytest.mark.parametrize(
    ("bias", "reach"), [*zip(cycle([*BIASES, "no module"]), [*REACHES, *REACHES], strict=False)]
)
def test_the_gradients_of_a_bias_are_summed_where_processes_look_at_different_keys(
    bias, reach, pools
):
    expected = gradients_of_bias(1, bias, reach)
    for gradients in pools(2).run(gradients_of_bias, 2, bias, reach):
        assert_close(gradients, expected)
