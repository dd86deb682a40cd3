"""After an exception at any line of a call, and inside a call, other calls give the same bits as ever.

A long run: `python -m tests.test_interruptions 20000`.
"""

from __future__ import annotations

import inspect
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
from injections import interrupted, lines_of

import regard as rg
from regard import patterns as p
from regard.functional.kept import PLANS
from regard.layers.caches import RecurrentState, new_cache
from regard.layers.recording import Recording
from regard.mechanisms import draws
from regard.patterns.counts import _remembered as counted
from regard.patterns.fixed import _last_keys
from regard.patterns.random_blocks import _table
from regard.patterns.tiles import _remembered as seen
from regard.positions import Rotary, _cos_and_sin

Run = Callable[[], Any]
KEPT = (draws._kept, counted, seen, _last_keys, _table, _cos_and_sin)

torch.set_num_threads(1)


def forget() -> None:
    """Forget all plans and tables, as in a new process."""
    PLANS.forget()
    for table in KEPT:
        table.cache_clear()


def tensors(q_len: int, k_len: int, turned: bool, dtype: torch.dtype, seed: int = 7) -> list[torch.Tensor]:
    """q, k and v, `turned` as views of tensors whose heads and positions are exchanged."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    shapes = (2, 4, q_len, 6), (2, 2, k_len, 6), (2, 2, k_len, 5)
    every = [draw(shape) for shape in shapes]
    return [x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x for x in every]


def calling(q_len: int = 11, k_len: int = 13, turned: bool = False, learns: bool = True, **options: Any) -> Run:
    """A function that computes attention, and its gradients, with a `hook` on the gradient of the output."""
    dtype, hook = options.pop("dtype", torch.float32), options.pop("hook", None)
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


LINFORMER = {name: torch.randn(4, 13, generator=torch.Generator().manual_seed(3)) for name in ("to_k", "to_v")}
CALLS: dict[str, dict[str, Any]] = {
    "native": {"backend": "native", "pattern": "causal"},
    "linear": {"mechanism": "linear"},
    "linear, causal": {"mechanism": "linear", "pattern": "causal"},
    "performer": {"mechanism": "performer(features=8, seed=1)", "pattern": "causal & key_span(2, 12)"},
    "lsh": {"mechanism": "lsh(chunk=4, buckets=4, rounds=2, seed=1)", "pattern": "causal", "k_len": 11},
    "streamed": {"backend": "streamed", "pattern": "causal_window(4)", "softcap": 5.0, "sink": 0.5},
    "tiled": {"backend": "tiled", "pattern": "strided(4)"},
    "tiled, biased": {"backend": "tiled", "pattern": "strided(4)", "bias": rg.bias.ALiBi(), "dtype": torch.float64},
    "fused, gathered": {"backend": "fused", "pattern": "sliding_window(1) | key_set(0)", "dtype": torch.float64},
    "fused": {"backend": "fused", "pattern": "causal & random_blocks(1, block=3, seed=2)"},
    "reference": {"backend": "reference", "pattern": "fixed(4)", "dropout": 0.1, "dropout_seed": 5},
    "decode": {"backend": "decode", "q_len": 1, "pattern": "causal", "learns": False},
    "automatic": {"pattern": p.Causal() & p.SameDocument(torch.arange(13) // 5)},
}


def of_call(name: str) -> tuple[Run, list[Run]]:
    options = CALLS[name]
    return calling(**options), [calling(**options), calling(turned=True, **options)]


def of_state() -> tuple[Run, list[Run]]:
    """Steps of a state; after an interruption it has all of the step that was interrupted, or nothing."""
    rows = [x[:1].expand(2, -1, -1, -1) for x in tensors(11, 11, False, torch.float32)]  # equal, for `reorder`
    draw = rg.mechanisms.Performer(features=8, seed=1)
    states: list[RecurrentState] = []

    def step(state: RecurrentState) -> torch.Tensor:
        return state.attend(*(x[: state.batch, :, state.length : state.length + 1] for x in rows))

    def steps() -> None:
        states[:] = [RecurrentState(draw, 2, 2, 6, 5)]
        for _ in range(4):
            step(states[0])
        states[0].reorder(torch.tensor([1]))
        step(states[0])

    def rest() -> torch.Tensor:
        state = states.pop() if states else RecurrentState(draw, 2, 2, 6, 5)
        while state.length < 10:
            step(state)
        return step(state)[:1]

    return steps, [rest, rest]


def of_cache(kind: str) -> tuple[Run, list[Run]]:
    """Entries of a cache; after an interruption it has all of those that were being appended, or none."""
    _, k, v = tensors(70, 140, False, torch.float32)
    caches: list[Any] = []
    made = partial(new_cache, kind, 2, 2, 6, v_dim=5, capacity=140 if kind in ("static", "ring") else None)

    def append(entries: Any, size: int) -> Any:
        here = slice(entries.length, entries.length + size)
        return entries.append(k[:, :, here], v[:, :, here])

    def run() -> None:
        caches[:] = [made()]
        for size in (3, 1, 70, 1, 2):
            append(caches[0], size)
        caches[0].crop(60)
        append(caches[0], 30)

    def rest() -> list[torch.Tensor]:
        entries = caches.pop() if caches else made()
        while entries.length < 139:
            append(entries, 139 - entries.length)
        return [*append(entries, 1)]

    return run, [rest, rest]


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

    return run, [partial(call, 7), recorded, partial(call, 5), lambda: torch.tensor(len(layer.recordings))]


PATHS: dict[str, Callable[[], tuple[Run, list[Run]]]] = {
    **{name: partial(of_call, name) for name in CALLS},
    "state": of_state, "layer": of_layer,
    **{f"{kind} cache": partial(of_cache, kind) for kind in ("dynamic", "static", "ring", "paged")},
}  # fmt: skip


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
        found |= {(inspect.getfile(Recording), line) for line in range(start + first, start + len(text))}
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
    chosen, wrong, done = random.Random(seed), [], 0
    each = {True: chosen.choices(cold, k=count // 5), False: chosen.choices(warm, k=count - count // 5)}
    for is_cold, lines in each.items():
        for at in lines:
            if is_cold:
                forget()
            done += interrupted(make, at)
            try:
                alike = all(same(one(), known) for one, known in zip(check, expected, strict=True))
            except Exception as error:
                alike, at = False, (*at, repr(error))
            if not alike:
                wrong.append(f"{name}, {'cold' if is_cold else 'warm'}: {at}")
    return done, wrong


@pytest.mark.parametrize("name", PATHS)
def test_after_an_interruption_at_any_line_calls_give_the_same_bits(name):
    done, wrong = wrong_after(name, 16, 1)
    assert done > 8
    assert not wrong


def run(count: int, seed: int) -> int:
    """Interrupt every path, `count` times in all, and print how often a result was wrong; also returned."""
    began, wrong, total = time.monotonic(), [], 0
    for name in PATHS:
        started = time.monotonic()
        found = wrong_after(name, count // len(PATHS), seed)
        print(
            f"{name}: {found[0]} interruptions, {len(found[1])} wrong, {time.monotonic() - started:.1f} s", flush=True
        )
        wrong += found[1]
        total += found[0]
    print(*wrong[:20], sep="\n")
    print(f"{total} interruptions, {len(wrong)} wrong, {total / (time.monotonic() - began):.0f} a second")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(bool(run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
