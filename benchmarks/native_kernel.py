"""Compares the native backend with PyTorch where `regard bench` does not: small and padded batches, bfloat16,
options, an int8 cache, latents, keys that a tensor lists, windows on grids, recurrent mechanisms, and two threads.

python benchmarks/native_kernel.py [--rows PART ...]

Times are CPU seconds on one thread, measured in turns in one process; a row shows medians over the rounds. The kernel
is compared with the reference backend in float64 before anything is timed. Rows against "plain native" compare options
with the same call without them. Writes a report into results/; with `--rows` rows are printed alone.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

import regard as rg
from benchmarks.report import RESULTS, heading
from benchmarks.report import options as arguments
from regard import patterns as p
from regard.backends.native.library import load
from regard.core.tensors import Stored
from regard.integrations.transformers.recurring import FUNCTIONS
from regard_lab.bench.measuring import Pace, take_turns
from regard_lab.bench.results import processor
from regard_lab.text.writing import markdown_table

REPORT = RESULTS / "native_cpu.md"
NOTES = REPORT.with_name("native_cpu_notes.md")  # written by hand: what was tried
Run = Callable[[], object]
delta_rule = FUNCTIONS["torch_chunk_gated_delta_rule"]


@dataclass(frozen=True)
class Duel:
    """One comparison: how many times as long the other takes, or with `option` how many times as long ours takes."""

    work: str
    against: str
    goal: float
    ours: Run
    other: Run
    option: bool = False
    rounds: int = 9


def attend(q, k, v, **options) -> torch.Tensor:
    return rg.attention(q, k, v, backend="native", **options)


def tensors(
    heads: int, length: int, dim: int = 64, batch: int = 1, grad: bool = False
) -> list[torch.Tensor]:
    return [torch.randn(batch, heads, length, dim).requires_grad_(grad) for _ in range(3)]


def with_backward(call: Callable[..., torch.Tensor], leaves: list[torch.Tensor]) -> Run:
    grad = torch.randn(leaves[0].shape).to(leaves[0].dtype)
    return lambda: torch.autograd.grad(call(*leaves), leaves, grad)


def small() -> list[Duel]:
    rows = []
    for length in (64, 128, 256):
        for grad in (False, True):
            qkv = tensors(8, length, 32, batch=32, grad=grad)
            ours = partial(attend, pattern="causal")
            other = partial(F.scaled_dot_product_attention, is_causal=True)
            calls = [
                with_backward(one, qkv) if grad else partial(one, *qkv) for one in (ours, other)
            ]
            name = f"batch 32, 8 heads of 32, causal {length}{' with backward' if grad else ''}"
            rows.append(Duel(name, "SDPA", 1.5, *calls))
    return rows


def halves() -> list[Duel]:
    """bfloat16, also against products of matrices alone, with as many multiplications."""
    rows = []
    goals = {
        ("full", False): 2.1,
        ("causal", False): 2.5,
        ("full", True): 1.7,
        ("causal", True): 2.2,
    }
    for dim, text, grad in product((64, 128), ("full", "causal"), (False, True)):
        qkv = [x.bfloat16().requires_grad_(grad) for x in tensors(4, 2048, dim)]
        ours = partial(attend, pattern=text)
        other = partial(F.scaled_dot_product_attention, is_causal=text == "causal")
        calls = [with_backward(one, qkv) if grad else partial(one, *qkv) for one in (ours, other)]
        name = f"bfloat16, head_dim {dim}, {text} 2048{' with backward' if grad else ''}"
        rows.append(Duel(name, "SDPA", goals[text, grad], *calls))
    one, two = (torch.randn(1024, 1024).bfloat16() for _ in range(2))
    qkv = [x.bfloat16() for x in tensors(4, 2048, 128)]
    products = lambda: [one @ two for _ in range(4)]  # noqa: E731
    rows.append(
        Duel(
            "bfloat16, head_dim 128, full 2048",
            "its products by torch.matmul",
            0.75,
            lambda: attend(*qkv),
            products,
        )
    )
    return rows


def padded() -> Duel:
    qkv = tensors(8, 512, batch=8)
    lengths = torch.randint(64, 513, (8,))
    pattern = p.Causal() & p.KeySpan(torch.zeros(8, dtype=torch.int64), lengths)
    keys = torch.arange(512)
    mask = (keys[None, :] <= keys[:, None]) & (keys < lengths[:, None, None, None])
    return Duel(
        "padded batch of 8 (random lengths), causal 512, a new pattern in every call",
        "SDPA with a boolean mask",
        2.5,
        lambda: attend(
            *qkv, pattern=p.Causal() & p.KeySpan(pattern.parts[1].start, pattern.parts[1].stop)
        ),
        partial(F.scaled_dot_product_attention, *qkv, attn_mask=mask),
    )


def decoding() -> Duel:
    """16k keys of 2 heads for 8 query heads; the caches take turns, so that none stays in the processor's cache."""
    q = torch.randn(1, 8, 1, 64)
    wide = [tuple(torch.randn(1, 2, 16384, 64) for _ in range(2)) for _ in range(12)]
    scale = torch.rand(1, 2, 16384, 1) / 100
    whole = [
        tuple(Stored((x * 30).clamp(-127, 127).to(torch.int8), scale) for x in one) for one in wide
    ]

    def in_turns(caches: list) -> Run:
        turns = cycle(caches)
        return lambda: attend(q, *next(turns))

    name = "one query of 8 heads over 16k keys of 2 heads, from an int8 cache"
    return Duel(name, "native from float32", 1.3, in_turns(whole), in_turns(wide))


def latents() -> list[Duel]:
    """One query of 16 heads over 8,192 latents of 512 numbers with 64 rotary ones, as in DeepSeek-V3; in turns."""
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        q = torch.randn(1, 16, 1, 576, dtype=dtype)
        weights = torch.randn(16, 8192, dtype=dtype)
        every = [
            torch.randn(1, 1, 8192, 576, dtype=dtype)
            for _ in range(24 if dtype == torch.bfloat16 else 12)
        ]
        room = torch.empty_like(every[0])

        def in_turns(call: Callable[[torch.Tensor], object], every=every) -> Run:
            turns = cycle(every)
            return lambda: call(next(turns))

        ours = in_turns(
            lambda x, q=q: attend(q, x, x[..., :512], pattern="causal", scale=192**-0.5)
        )

        def by_torch(x, q=q, weights=weights):
            return (
                q[0, :, 0] @ x[0, 0].T,
                weights @ x[0, 0, :, :512],
            )

        name = (
            f"one query of 16 heads over 8,192 latents of 576, {str(dtype).removeprefix('torch.')}"
        )
        rows.append(Duel(name, "a copy of the latents", 1 / 1.3, ours, in_turns(room.copy_)))
        rows.append(Duel(name, "its two products by torch.matmul", 1.0, ours, in_turns(by_torch)))
    return rows


def random_blocks(length: int, heads: int, count: int, block: int = 64) -> torch.Tensor:
    """Blocks of keys for each block of queries and head: its own and random earlier ones, -1 where there are fewer."""
    blocks = torch.full((1, heads, length // block, count), -1)
    for head in range(heads):
        for own in range(length // block):
            before = torch.randperm(own)[: count - 1]
            blocks[0, head, own, : len(before) + 1] = torch.cat([before, torch.tensor([own])])
    return blocks


def listed() -> list[Duel]:
    """Chosen keys beside full causal attention; each call has a new pattern, as a layer that chooses makes it."""
    rows = []
    full = partial(attend, pattern="causal")
    for length, grad, goal in (
        (4096, False, 2),
        (4096, True, 2),
        (16_384, False, 5),
        (16_384, True, 4),
    ):
        blocks = random_blocks(length, 4, 16)
        qkv = tensors(4, length, grad=grad)

        def ours(q, k, v, blocks=blocks):
            return attend(q, k, v, pattern=p.ChosenBlocks(blocks) & p.Causal())

        calls = [with_backward(one, qkv) if grad else partial(one, *qkv) for one in (ours, full)]
        name = f"chosen: 16 blocks of 64 of {length}, 4 heads{' with backward' if grad else ''}"
        rows.append(Duel(name, "full causal", goal, *calls, rounds=3 if length > 9000 else 9))
    for lists, whose in ((1, "one list for all heads"), (4, "lists by head")):
        keys = torch.randint(4096, (1, lists, 4096, 128))
        qkv = tensors(4, 4096)
        ours = lambda qkv=qkv, keys=keys: attend(*qkv, pattern=p.ChosenKeys(keys) & p.Causal())  # noqa: E731
        name = f"chosen: 128 keys a query of 4096, 4 heads, {whose}"
        rows.append(Duel(name, "full causal", 1, ours, partial(full, *qkv), rounds=5))
    return rows


def grids() -> list[Duel]:
    """A window of 7 x 7 on 64 x 64 cells beside full attention."""
    near = partial(attend, pattern=p.Neighbourhood((64, 64), 7))
    rows = []
    for grad, goal in ((False, 8), (True, 6)):
        qkv = tensors(8, 4096, grad=grad)
        calls = [with_backward(one, qkv) if grad else partial(one, *qkv) for one in (near, attend)]
        name = f"grid: 7 x 7 on 64 x 64, 8 heads{' with backward' if grad else ''}"
        rows.append(Duel(name, "full attention", goal, *calls, rounds=5))
    return rows


def recurrent() -> list[Duel]:
    """8 heads of 128 beside causal SDPA and beside the functions that transformers computes its layers with."""
    q, k, v = tensors(8, 4096, 128)
    linear = partial(attend, q, k, v, pattern="causal", mechanism="linear")
    sdpa = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
    rows = [
        Duel(
            "causal linear attention, 8 heads of 128, 4096 positions",
            "SDPA, softmax",
            8.0,
            linear,
            sdpa,
        )
    ]
    for name, length, rule, channels, goal in (
        ("gated delta", 4096, torch_chunk_gated_delta_rule, (), 4.5),
        ("Kimi delta", 1024, chunk_kimi_delta_attention, (128,), 40.0),
    ):
        x = [torch.randn(1, length, 8, 128) for _ in range(3)]
        x += [-torch.rand(1, length, 8, *channels) / 5, torch.rand(1, length, 8)]
        ours = output_of(delta_rule)
        theirs = output_of(rule)
        name = f"{name}, 8 heads of 128, {length} positions"
        rows.append(Duel(name, "transformers", goal, partial(ours, *x), partial(theirs, *x)))
        if not channels:
            x = [one.clone().requires_grad_() for one in x]
            both = with_backward(ours, x), with_backward(theirs, x)
            rows.append(Duel(f"{name} with backward", "transformers", 7.0, *both))
    return [*rows, *steps()]


def output_of(rule: Callable[..., tuple]) -> Callable[..., torch.Tensor]:
    """A delta rule as transformers calls it, of positional arguments."""
    names = "query", "key", "value", "g", "beta"
    return lambda *given: rule(
        **dict(zip(names, given, strict=True)), use_qk_l2norm_in_kernel=True
    )[0]


def steps() -> list[Duel]:
    """A step of decoding of 24 layers with 32 heads of 128, whose memories come from memory."""
    x = torch.randn(1, 1, 32, 128)
    g = -torch.rand(1, 1, 32)
    b = torch.rand(1, 1, 32)
    memories = [torch.randn(1, 32, 128, 128) for _ in range(24)]
    room = [torch.empty_like(one) for one in memories]
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    turns = [cycle(range(len(memories))) for _ in range(3)]

    def step(rule: Callable[..., tuple], turn: cycle) -> None:
        at = next(turn)
        memories[at] = rule(x, x, x, g=g, beta=b, initial_state=memories[at], **options)[1]

    def copied() -> None:
        at = next(turns[2])
        room[at].copy_(memories[at])

    ours, theirs = (
        partial(step, rule, turn)
        for rule, turn in zip((delta_rule, torch_recurrent_gated_delta_rule), turns, strict=False)
    )
    name = "one step of gated delta, 32 heads of 128"
    return [
        Duel(name, "a copy of the memory", 1 / 1.5, torch.no_grad()(ours), copied),
        Duel(name, "transformers", 10.0, torch.no_grad()(ours), torch.no_grad()(theirs)),
    ]


def options() -> list[Duel]:
    q, k, v = tensors(4, 2048)
    plain = partial(attend, q, k, v, pattern="causal")
    rows = [
        Duel(
            "softcap, causal 2048",
            "plain native",
            1.25,
            partial(plain, softcap=30.0),
            plain,
            option=True,
        ),
        Duel(
            "ALiBi, causal 2048",
            "plain native",
            1.1,
            partial(plain, bias=rg.bias.ALiBi()),
            plain,
            option=True,
        ),
        Duel(
            "dropout, causal 2048",
            "plain native",
            1.4,
            partial(plain, dropout=0.1, dropout_seed=1),
            plain,
            option=True,
        ),
    ]
    half = [x.bfloat16().requires_grad_() for x in (q, k, v)]
    one, two = (partial(attend, pattern="causal", precise=precise) for precise in (True, False))
    for name, pair in (
        ("", [torch.no_grad()(partial(call, *half)) for call in (one, two)]),
        (" with backward", [with_backward(call, half) for call in (one, two)]),
    ):
        rows.append(
            Duel(
                f"precise=True, bfloat16 causal 2048{name}", "plain native", 1.8, *pair, option=True
            )
        )
    leaves = tensors(4, 1024, grad=True)
    bias = torch.randn(4, 1024, 1024, requires_grad=True)
    grad = torch.randn(1, 4, 1024, 64)
    learned = lambda: torch.autograd.grad(attend(*leaves, bias=bias), [*leaves, bias], grad)  # noqa: E731
    rows.append(
        Duel(
            "learned bias, full 1024 with backward",
            "plain native",
            2.0,
            learned,
            with_backward(attend, leaves),
            True,
        )
    )

    def detail(want):
        return rg.attention_detail(q, k, v, pattern="causal", backend="native", want=want)

    for name, want, goal in (
        ("entropy", "entropy", 1.15),
        ("received", "received", 1.6),
        ("top 8", rg.top_keys(8), 1.5),
    ):
        rows.append(
            Duel(
                f"{name}, causal 2048",
                "plain native",
                goal,
                partial(detail, want),
                plain,
                option=True,
            )
        )
    return rows


def check() -> None:
    """The kernel against the reference in float64, at the shapes that are timed."""
    for length, text in ((512, "full"), (2048, "causal"), (4096, "sliding_window(256)")):
        q, k, v = tensors(1, length)
        rows = slice(length - 64, length)
        found = attend(q, k, v, pattern=text)[:, :, rows]
        options = {"pattern": text, "backend": "reference", "q_start": length - 64}
        expected = rg.attention(q[:, :, rows].double(), k.double(), v.double(), **options)
        assert (found.double() - expected).abs().max() < 1e-5, text


def measured(row: Duel, rounds: int) -> tuple[float, float]:
    """Median CPU seconds of both, in turns."""
    pace = Pace(rounds=rounds, slow_rounds=rounds, shortest=0.02)
    times = take_turns({"ours": row.ours, "other": row.other}, time.process_time, pace)
    return times["ours"].median, times["other"].median


def busy() -> float:
    """CPU seconds that all processes of the machine have used."""
    numbers = [int(x) for x in Path("/proc/stat").read_text().split()[1:9]]
    # Without idle and waiting.
    return (sum(numbers) - numbers[3] - numbers[4]) / os.sysconf("SC_CLK_TCK")


def threads_speedup(seconds: float = 20) -> str:
    """A sentence on the wall time of one thread over that of two, with the load of the machine meanwhile.

    Rounds of either kind are timed for some seconds, and the shortest of each is taken. A round with other work on the
    processors takes longer, so on a busy machine the ratio is below that of a quiet one.
    """
    qkv = tensors(4, 4096)
    least = {1: math.inf, 2: math.inf}
    call = partial(attend, *qkv, pattern="causal")
    cpu = {1: math.inf, 2: math.inf}
    began = time.perf_counter()
    own = time.process_time()
    all_of_it = busy()
    while time.perf_counter() - began < seconds:
        for count in (1, 2):
            torch.set_num_threads(count)
            call()  # OpenMP's threads wake up
            start = time.perf_counter()
            before = time.process_time()
            call()
            least[count] = min(least[count], time.perf_counter() - start)
            cpu[count] = min(cpu[count], time.process_time() - before)
    torch.set_num_threads(1)
    spent = time.perf_counter() - began
    others = (busy() - all_of_it - (time.process_time() - own)) / spent
    return (
        f"Two threads against one, causal 4096, 4 heads: the shortest wall times, {least[1] * 1e3:.1f} ms and "
        f"{least[2] * 1e3:.1f} ms, have the ratio {least[1] / least[2]:.2f} (goal 1.85), and both threads together "
        f"used {cpu[2] / cpu[1]:.2f} times the CPU time of one. Meanwhile other processes used {others:.1f} of the "
        f"{os.cpu_count()} processors."
    )


def line(row: Duel) -> tuple[str, ...]:
    ours, other = measured(row, row.rounds)
    ratio = ours / other if row.option else other / ours
    is_met = ratio <= row.goal if row.option else ratio >= row.goal
    goal = f"{'at most ' if row.option else ''}{row.goal:g}"
    times = f"{ours * 1e3:.3f}", f"{other * 1e3:.3f}"
    return row.work, row.against, *times, f"{ratio:.2f}", goal, "yes" if is_met else "no"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", nargs="*", default=[], help="parts of names of rows")
    parts = parser.parse_args().rows
    torch.set_num_threads(1)
    torch.manual_seed(0)
    library = load()
    assert not isinstance(library, str), library
    check()
    began = os.getloadavg()[0]
    lines = []
    for row in [
        *small(),
        *halves(),
        padded(),
        decoding(),
        *latents(),
        *listed(),
        *grids(),
        *recurrent(),
        *options(),
    ]:
        if not parts or any(part in row.work for part in parts):
            lines.append(line(row))
            print(lines[-1], flush=True)
    if parts:
        return
    about = (
        f": {processor()}, kernel for {library.instructions}, float32 and head_dim 64 where a row says nothing else. "
        f"CPU time on one thread in turns; load of the machine {began:.1f} at the beginning and "
        f"{os.getloadavg()[0]:.1f} at the end. Against PyTorch the ratio is its time over ours; against plain native "
        "it is the time of the option over that of the plain call"
    )
    head = heading("The native backend beside PyTorch, and its options", about)
    rows = markdown_table(
        ("work", "against", "ours, ms", "other, ms", "ratio", "goal", "met"), lines
    )
    REPORT.write_text("\n".join([*head, *rows, "", threads_speedup(), "", NOTES.read_text()]))


if __name__ == "__main__":
    main()
