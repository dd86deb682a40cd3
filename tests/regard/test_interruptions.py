"""After an exception at any line of a call, and inside a call, other calls give the same bits as ever."""

import inspect
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from injections import interrupted, lines_of

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
    shapes = (2, 4, q_len, 6), (2, 2, k_len, 6), (2, 2, k_len, 5)
    every = [draw(shape) for shape in shapes]
    return [x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x for x in every]


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
        return [output, *(torch.autograd.grad(output.square().sum(), inputs) if learns else ())]

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


def same(found: Any, expected: Any) -> bool:
    if isinstance(found, torch.Tensor):
        return torch.equal(found, expected)
    return all(map(same, found, expected))


def cleaning() -> set[tuple[str, int]]:
    """Lines that undo what a `with` block began: nothing is left to undo an interruption there."""
    found = set()
    for function, end in ((rg.record_attention, "finally:"), (Recording.end, "def end")):
        text, start = inspect.getsourcelines(inspect.unwrap(function))
        first = next(place for place, one in enumerate(text) if one.strip().startswith(end))
        found |= {
            (inspect.getfile(Recording), line) for line in range(start + first, start + len(text))
        }
    return found


def wrong_after(name: str, count: int, seed: int) -> tuple[int, list[str]]:
    """Interrupt a path at some of its lines, a fifth in a process that knows no plan: how often, and what was wrong.

    A line may not be reached: what an interrupted call did not return to the kernel is made anew by the next one.
    """
    make, check = PATHS[name]()
    expected = [one() for one in check]
    forget()
    apart = cleaning()
    cold, warm = ([at for at in lines_of(make) if at[:2] not in apart] for _ in range(2))
    [one() for one in check]
    chosen = random.Random(seed)
    wrong = []
    done = 0
    each = {
        True: chosen.choices(cold, k=count // 5),
        False: chosen.choices(warm, k=count - count // 5),
    }
    for is_cold, lines in each.items():
        for at in lines:
            if is_cold:
                forget()
            done += interrupted(make, at)
            try:
                alike = all(same(one(), known) for one, known in zip(check, expected, strict=True))
            except Exception as error:
                alike = False
                at = (*at, repr(error))
            if not alike:
                wrong.append(f"{name}, {'cold' if is_cold else 'warm'}: {at}")
    return done, wrong


@pytest.mark.parametrize("name", PATHS)
def test_after_an_interruption_at_any_line_calls_give_the_same_bits(name):
    done, wrong = wrong_after(name, 16, 1)
    assert done > 8
    assert not wrong
