"""Public calls on a device without float64, forward and backward, compared with the CPU: prints one line of JSON.

It is a program, since the device stands for PyTorch's in the whole process: see `test_device_without_float64.py`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from contracts.mechanism_cells import MECHANISMS, make_call
from device_without_float64 import DEVICE, REFUSED, Mode, OnDevice, put

import regard as rg
from regard import patterns as p
from regard.layers.caches import new_cache
from regard.mechanisms import LinearTransformer, Retention

Tensors = list[torch.Tensor]
Make = Callable[..., torch.Tensor]
KEYS = 40
torch.manual_seed(0)


class ComparedSide:
    """Where a call is computed: on the CPU, or on the device with the same numbers."""

    def __init__(self, on_device: bool) -> None:
        self.on_device = on_device
        self.leaves: Tensors = []
        self.generator = torch.Generator().manual_seed(7)

    def put(self, x: torch.Tensor, learns: bool = False) -> torch.Tensor:
        if self.on_device:
            return put(x, learns)
        return x.clone().requires_grad_(learns)

    def leaf(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor that learns."""
        x = torch.randn(shape, generator=self.generator).to(dtype)
        leaf = self.put(x, learns=True)
        self.leaves.append(leaf)
        return leaf

    def leaf_of(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor that learns, with these numbers."""
        leaf = self.put(x.detach(), learns=True)
        self.leaves.append(leaf)
        return leaf

    def numbers(self, *shape: int) -> torch.Tensor:
        return self.put(torch.randn(shape, generator=self.generator))

    def integers(self, below: int, *shape: int) -> torch.Tensor:
        return self.put(torch.randint(below, shape, generator=self.generator))

    def mask(self, *shape: int) -> torch.Tensor:
        return self.put(torch.rand(shape, generator=self.generator) > 0.2)

    def layer(self, make: Callable[[], torch.nn.Module]) -> Any:
        """A module whose parameters and buffers are here."""
        torch.manual_seed(3)
        module = make()
        for part in module.modules():
            for name, x in list(part._parameters.items()):
                if x is not None:
                    part._parameters[name] = self.put(x.detach(), learns=True)
                    self.leaves.append(part._parameters[name])
            for name, x in list(part._buffers.items()):
                if x is not None:
                    part._buffers[name] = self.put(x)
        return module


CALLS: dict[str, Callable[[ComparedSide], Any]] = {}


def call(name: str) -> Callable[[Callable[[ComparedSide], Any]], Callable[[ComparedSide], Any]]:
    def keep(function: Callable[[ComparedSide], Any]) -> Callable[[ComparedSide], Any]:
        CALLS[name] = function
        return function

    return keep


def qkv(side: ComparedSide, kv_heads: int = 2, dtype: torch.dtype = torch.float32) -> Tensors:
    shapes = ((2, 4, KEYS, 32), (2, kv_heads, KEYS, 32), (2, kv_heads, KEYS, 32))
    return [side.leaf(*shape, dtype=dtype) for shape in shapes]


def add_call(
    name: str,
    options: Callable[[ComparedSide], dict[str, Any]],
    kv_heads: int = 2,
    dtype: torch.dtype = torch.float32,
) -> None:
    """A call of `attention` with these options."""

    def compute(side: ComparedSide) -> torch.Tensor:
        tensors = qkv(side, kv_heads, dtype)
        return rg.attention(*tensors, **options(side))

    CALLS[name] = compute


PATTERNS = (
    "full",
    "causal",
    "causal_window(7)",
    "sliding_window(9)",
    "dilated_window(5, 2)",
    "causal & strided(7)",
    "causal & fixed(8, summary=2)",
    "causal & (sliding_window(8) | global_tokens(0, 3))",
    "random_blocks(2, 8, 1, past=true) & causal",
    "neighbourhood((5, 8), (3, 3))",
    "prefix(9) | causal",
    "key_span(3, 31) & causal",
    "causal & ~causal_window(5)",
)
for text in PATTERNS:
    add_call(f"pattern {text}", lambda side, text=text: {"pattern": text})
for half in (torch.bfloat16, torch.float16):
    add_call(f"causal in {half}", lambda side: {"pattern": "causal"}, dtype=half)

OPTIONS: dict[str, Callable[[ComparedSide], dict[str, Any]]] = {
    "softcap": lambda side: {"softcap": 5.0},
    "scale": lambda side: {"scale": -0.3},
    "dropout": lambda side: {"dropout": 0.2, "dropout_seed": 3},
    "bias tensor": lambda side: {"bias": side.leaf(4, KEYS, KEYS)},
    "ALiBi": lambda side: {"bias": rg.bias.ALiBi()},
    "T5 bias": lambda side: {"bias": side.layer(lambda: rg.bias.T5Relative(4))},
    "Forgetting": lambda side: {"bias": rg.bias.Forgetting(-side.numbers(2, 4, KEYS).abs() / 8)},
    "sink of heads": lambda side: {"sink": side.leaf(4)},
    "sink number": lambda side: {"sink": 0.5},
    "q_start of rows": lambda side: {"q_start": side.put(torch.tensor([3, 0]))},
    "KeyMask": lambda side: {"pattern": p.Causal() & p.KeyMask(side.mask(2, KEYS))},
    "Explicit": lambda side: {"pattern": p.Explicit(side.mask(KEYS, KEYS))},
    "KeySpan of rows": lambda side: {"pattern": p.KeySpan(side.put(torch.tensor([0, 3])), KEYS)},
    "SameDocument": lambda side: {
        "pattern": p.Causal() & p.SameDocument(side.put(torch.arange(KEYS) // 9))
    },
    "PerHead": lambda side: {"pattern": p.PerHead([p.Causal(), p.Full()] * 2)},
    "ChosenBlocks": lambda side: {
        "pattern": p.Causal() & p.ChosenBlocks(side.integers(5, 2, 2, 10, 2), 8, 4)
    },
    "ChosenKeys": lambda side: {
        "pattern": p.Causal() & p.ChosenKeys(side.integers(KEYS, 2, 2, KEYS, 5))
    },
}
for name, options in OPTIONS.items():
    add_call(name, lambda side, options=options: {"pattern": "causal", **options(side)})


@call("a step of decoding")
def step(side: ComparedSide) -> torch.Tensor:
    with torch.no_grad():
        tensors = [side.numbers(1, heads, n, 32) for heads, n in ((4, 1), (2, KEYS), (2, KEYS))]
        return rg.attention(*tensors, pattern="causal")


@call("packed documents")
def packed(side: ComparedSide) -> torch.Tensor:
    ends = side.put(torch.tensor([0, 10, 30]))
    tensors = [side.leaf(30, heads, 32) for heads in (4, 2, 2)]
    return rg.attention_varlen(*tensors, ends, ends, pattern="causal")


STATISTICS = ("entropy", "received", "distance", "log_sum_exp", "weights", "sink")
for statistic in STATISTICS:

    def of_statistic(side: ComparedSide, statistic: str = statistic) -> torch.Tensor:
        detail = rg.attention_detail(*qkv(side), pattern="causal", want=[statistic])
        return getattr(detail, statistic)

    CALLS[f"statistic {statistic}"] = of_statistic


@call("top keys")
def top(side: ComparedSide) -> torch.Tensor:
    detail = rg.attention_detail(*qkv(side), pattern="causal", want=[rg.top_keys(3)])
    return detail.top_keys.weights


def add_mechanism(name: str) -> None:
    """A call of a mechanism with its parameters, all of which learn."""

    def compute(side: ComparedSide) -> torch.Tensor:
        example = make_call(name, dtype=torch.float32)
        k = side.leaf_of(example.k)
        q = k if example.q is example.k else side.leaf_of(example.q)
        parameters = {key: side.leaf_of(x) for key, x in (example.parameters or {}).items()}
        options = {"mechanism": example.mechanism, "parameters": parameters or None}
        if example.always_causal:
            options["pattern"] = "causal"
        return rg.attention(q, k, side.leaf_of(example.v), **options)

    CALLS[f"mechanism {name}"] = compute


for name in MECHANISMS:
    add_mechanism(name)


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "MultiHeadAttention": lambda: rg.MultiHeadAttention(64, 4, kv_heads=2, pattern="causal"),
    "MultiHeadAttention with Rotary": lambda: rg.MultiHeadAttention(
        64, 4, kv_heads=2, pattern="causal", positions=rg.positions.Rotary()
    ),
    "MultiHeadAttention with YaRN": lambda: rg.MultiHeadAttention(
        64, 4, pattern="causal", positions=rg.positions.Rotary(scaling="yarn(4, 4096)")
    ),
    "LatentAttention": lambda: rg.LatentAttention(64, 4, latent_dim=24, pattern="causal"),
}
for name, make in LAYERS.items():
    CALLS[name] = lambda side, make=make: side.layer(make)(side.leaf(2, 20, 64))


@call("Rotary with given positions")
def given_positions(side: ComparedSide) -> torch.Tensor:
    layer = side.layer(LAYERS["MultiHeadAttention with Rotary"])
    return layer(side.leaf(2, 20, 64), positions=side.put(torch.arange(20)))


@call("Rotary with axes")
def axes(side: ComparedSide) -> torch.Tensor:
    rotary = rg.positions.Rotary(axes=(4, 6, 6))
    return rotary.rotate(side.leaf(2, 4, 20, 32), side.integers(9, 2, 20, 3))


@call("Sinusoidal")
def sinusoidal(side: ComparedSide) -> torch.Tensor:
    return rg.positions.Sinusoidal(64)(side.put(torch.arange(20)))


def add_cache(name: str, layer_options: dict[str, Any] | None = None, **options: Any) -> None:
    """Steps of a layer with a cache."""

    def make() -> torch.nn.Module:
        return rg.MultiHeadAttention(
            64, 4, **{"kv_heads": 2, "pattern": "causal", **(layer_options or {})}
        )

    def steps(side: ComparedSide) -> torch.Tensor:
        layer = side.layer(make)
        cache = layer.new_cache(batch=2, **options)
        with torch.no_grad():
            return torch.cat([layer(side.numbers(2, n, 64), cache=cache) for n in (5, 1, 1)], 1)

    CALLS[f"cache {name}"] = steps


add_cache("dynamic")
add_cache("dynamic with Rotary", {"positions": rg.positions.Rotary()})
add_cache("in int8", dtype=torch.int8)
add_cache("in bfloat16", dtype=torch.bfloat16)
add_cache("static", kind="static", capacity=16)
add_cache("paged", kind="paged", capacity=256)
add_cache("ring", {"pattern": "causal & causal_window(5)"}, kind="ring", capacity=8)
add_cache("state of linear attention", {"kv_heads": 4, "mechanism": LinearTransformer()})
add_cache("state of retention", {"kv_heads": 4, "mechanism": Retention()})


@call("cache with forget gates")
def forgetting_cache(side: ComparedSide) -> Any:
    """Refused by a sentence: the cache keeps sums in float64."""
    device = DEVICE if side.on_device else "cpu"
    cache = new_cache("dynamic", 2, 2, 32, forgetting=1, device=device)
    return torch.zeros(cache.length + 1)


@call("negative control")
def control(side: ComparedSide) -> torch.Tensor:
    """The stand-in refuses float64 in every way in which the GPU does."""
    x = side.numbers(3, 5)
    if side.on_device:
        wide = torch.ones(5, dtype=torch.float64)
        for make in (
            x.double,
            lambda: wide.to(x.device),
            lambda: torch.zeros(3, dtype=torch.float64, device=x.device),
            lambda: torch.arange(3, dtype=torch.float64, device=x.device),
            lambda: x.sum(dtype=torch.float64),
            lambda: x + torch.ones(5),
        ):
            try:
                make()
            except (TypeError, RuntimeError):
                continue
            raise AssertionError("the stand-in made float64 or mixed devices")
        REFUSED.clear()
    return x


@contextmanager
def on(side: ComparedSide) -> Iterator[None]:
    if not side.on_device:
        yield
        return
    with Mode():
        yield


def computed(function: Callable[[ComparedSide], Any], on_device: bool) -> list[torch.Tensor | None]:
    """The result of a call and the gradients of everything that learns, on the CPU."""
    side = ComparedSide(on_device)
    with on(side):
        output = function(side)
        results = [output]
        if output.requires_grad:
            cotangent = side.put(
                torch.randn(output.shape, generator=side.generator).to(output.dtype)
            )
            leaves = [leaf for leaf in side.leaves if leaf.requires_grad]
            results += torch.autograd.grad(output, leaves, cotangent, allow_unused=True)
    found: list[torch.Tensor | None] = []
    for x in results:
        numbers = x.numbers if isinstance(x, OnDevice) else x
        wrong_place = x is not None and isinstance(x, OnDevice) != on_device
        assert not wrong_place, "a result is on another device"
        found.append(None if numbers is None else numbers.detach())
    return found


def verdict(function: Callable[[ComparedSide], Any]) -> str:
    """Empty if the device gives the CPU's numbers, else what went wrong."""
    try:
        expected = computed(function, on_device=False)
        REFUSED.clear()
        results = computed(function, on_device=True)
    except Exception as error:
        return "".join(traceback.format_exception_only(error)).strip()[:400] + _place(error)
    if REFUSED:
        return f"refused on the way: {dict(REFUSED)}"
    for x, y in zip(results, expected, strict=True):
        # One backend gives zeros where another gives no gradient.
        if x is None or y is None:
            other = y if x is None else x
            if other is None or not other.count_nonzero():
                continue
            return "a gradient is missing"
        rounding = 64 * torch.finfo(y.dtype).eps if y.is_floating_point() else 0
        size = y.double().abs().nan_to_num(posinf=0.0).amax().item() if y.numel() else 0
        if not torch.allclose(x.double(), y.double(), rtol=rounding, atol=rounding * (1 + size)):
            return f"another result, by {(x.double() - y.double()).abs().max().item():.3g}"
    return ""


def _place(error: Exception) -> str:
    """The last line of regard that was running."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "/regard/" in frame.filename and "/tests/" not in frame.filename:
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = [name for name in CALLS if not sys.argv[1:] or sys.argv[1] in name]
    print(json.dumps({name: verdict(CALLS[name]) for name in chosen}))
