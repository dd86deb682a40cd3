"""After an exception at any line of a call, and inside a call, other calls give the same bits as ever."""

import inspect
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from injections import Line, interrupted, lines_of

import regard as rg
from regard import patterns as p
from regard.functional.kept import PLANS
from regard.layers.recording import Recording
from regard.mechanisms import draws
from regard.patterns.counts import _remembered_count as counted
from regard.patterns.fixed import _last_keys
from regard.patterns.random_blocks import _table
from regard.patterns.visible import _remembered_keys as seen
from regard.positions import Rotary, _kept_cos_and_sin

Run = Callable[[], Any]
KEPT = (draws._cached_directions, counted, seen, _last_keys, _table, _kept_cos_and_sin)

torch.set_num_threads(1)


def forget() -> None:
    """Forget all plans and tables, as in a new process."""
    PLANS.forget()
    for table in KEPT:
        table.cache_clear()


def tensors(
    q_len: int, k_len: int, turned: bool, dtype: torch.dtype, seed: int = 7
) -> list[torch.Tensor]:
    """q, k and v, `turned` as views of tensors whose heads and positions are exchanged."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    qkv = [draw(2, 4, q_len, 6), draw(2, 2, k_len, 6), draw(2, 2, k_len, 5)]
    if turned:
        return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv]
    return qkv


def calling(
    q_len: int = 11, k_len: int = 13, turned: bool = False, learns: bool = True, **options: Any
) -> Run:
    """A function that computes attention, and its gradients, with a `hook` on the gradient of the output."""
    dtype = options.pop("dtype", torch.float32)
    hook = options.pop("hook", None)
    q, k, v = tensors(q_len, k_len, turned, dtype, options.pop("seed", 7))
    if str(options.get("mechanism", "")).startswith("lsh"):
        k = q = torch.nn.functional.normalize(q[:, :2], dim=-1)
        v = v[:, :, : q.shape[2]]

    @torch.enable_grad()  # it may be called in the midst of an operation of autograd
    def call() -> list[torch.Tensor]:
        inputs = [x.detach().requires_grad_(learns) for x in (q, k, v)]
        if k is q:
            inputs[1] = inputs[0]
        output = rg.attention(*inputs, **options)
        if hook is not None:
            output.register_hook(hook)
        if not learns:
            return [output]
        return [output, *torch.autograd.grad(output.square().sum(), inputs)]

    return call


CALLS: dict[str, dict[str, Any]] = {
    "native": {"backend": "native", "pattern": "causal"},
    "linear": {"mechanism": "linear"},
    "linear, causal": {"mechanism": "linear", "pattern": "causal"},
    "performer": {
        "mechanism": "performer(features=8, seed=1)",
        "pattern": "causal & key_span(2, 12)",
    },
    "lsh": {
        "mechanism": "lsh(chunk=4, buckets=4, rounds=2, seed=1)",
        "pattern": "causal",
        "k_len": 11,
    },
    "streamed": {"backend": "streamed", "pattern": "causal_window(4)", "softcap": 5.0, "sink": 0.5},
    "tiled": {"backend": "tiled", "pattern": "strided(4)"},
    "tiled, biased": {
        "backend": "tiled",
        "pattern": "strided(4)",
        "bias": rg.bias.ALiBi(),
        "dtype": torch.float64,
    },
    "fused, gathered": {
        "backend": "fused",
        "pattern": "sliding_window(1) | key_set(0)",
        "dtype": torch.float64,
    },
    "fused": {"backend": "fused", "pattern": "causal & random_blocks(1, block=3, seed=2)"},
    "reference": {"backend": "reference", "pattern": "fixed(4)", "dropout": 0.1, "dropout_seed": 5},
    "decode": {"backend": "decode", "q_len": 1, "pattern": "causal", "learns": False},
    "automatic": {"pattern": p.Causal() & p.SameDocument(torch.arange(13) // 5)},
}


def of_call(name: str) -> tuple[Run, list[Run]]:
    options = CALLS[name]
    return calling(**options), [calling(**options), calling(turned=True, **options)]


def of_layer() -> tuple[Run, list[Run]]:
    torch.manual_seed(3)
    layer = rg.MultiHeadAttention(12, 2, pattern="causal", positions=Rotary())
    x = torch.randn(2, 7, 12)

    def call(length: int) -> list[torch.Tensor]:
        output = layer(x[:, :length])
        return [output, *torch.autograd.grad(output.square().sum(), [*layer.parameters()])]

    def recorded() -> torch.Tensor:
        with rg.record_attention(layer) as recording:
            layer(x)
        return recording[""][0].weights

    def run() -> None:
        recorded()
        call(7)

    return run, [
        partial(call, 7),
        recorded,
        partial(call, 5),
        lambda: torch.tensor(len(layer.recordings)),
    ]


PATHS: dict[str, Callable[[], tuple[Run, list[Run]]]] = {
    **{name: partial(of_call, name) for name in CALLS},
    "layer": of_layer,
}


def same(result: Any, expected: Any) -> bool:
    if isinstance(result, torch.Tensor):
        return torch.equal(result, expected)
    return all(map(same, result, expected))


def cleaning() -> set[tuple[str, int]]:
    """Lines that undo what a `with` block began: nothing is left to undo an interruption there."""
    file = inspect.getfile(Recording)
    cleaning = set()
    for function, beginning in ((rg.record_attention, "finally:"), (Recording.end, "def end")):
        text, start = inspect.getsourcelines(inspect.unwrap(function))
        for number, line in enumerate(text, start):
            if line.strip().startswith(beginning):
                cleaning |= {(file, after) for after in range(number, start + len(text))}
                break
    return cleaning


def fault_after(line: Line, checks: list[Run], expected: list[Any]) -> str:
    """What is wrong with the checks after an interruption at a line; empty if nothing is."""
    try:
        results = [check() for check in checks]
    except Exception as error:
        return f"{line}: {error!r}"
    return "" if same(results, expected) else str(line)


@pytest.mark.parametrize("name", PATHS)
def test_after_an_interruption_at_any_line_calls_give_the_same_bits(name):
    """A fifth of the interruptions in a process that knows no plan.

    A line may not be reached: what an interrupted call did not return to the kernel is made anew by the next one.
    """
    run, checks = PATHS[name]()
    expected = [check() for check in checks]
    forget()
    apart = cleaning()
    cold = [line for line in lines_of(run) if line[:2] not in apart]
    warm = [line for line in lines_of(run) if line[:2] not in apart]
    for check in checks:
        check()

    choices = random.Random(1)
    faults = []
    interruptions = 0
    for line in choices.choices(cold, k=3):
        forget()
        interruptions += interrupted(run, line)
        faults.append(fault_after(line, checks, expected))
    for line in choices.choices(warm, k=13):
        interruptions += interrupted(run, line)
        faults.append(fault_after(line, checks, expected))
    assert interruptions > 8
    assert not any(faults), faults
