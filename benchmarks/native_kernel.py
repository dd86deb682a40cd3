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
from regard_lab.bench.processors import processor
from regard_lab.text.writing import markdown_table

REPORT = RESULTS / "native_cpu.md"
NOTES = REPORT.with_name("native_cpu_notes.md")  # written by hand: what was tried
TimedRun = Callable[[], object]
delta_rule = FUNCTIONS["torch_chunk_gated_delta_rule"]


@dataclass(frozen=True)
class KernelContest:
    """One comparison: how many times as long the other takes, or with `option` how many times as long ours takes."""

    work: str
    against: str
    goal: float
    ours: TimedRun
    other: TimedRun
    option: bool = False
    rounds: int = 9


def attend(q, k, v, **options) -> torch.Tensor:
    return rg.attention(q, k, v, backend="native", **options)


def tensors(
    heads: int, length: int, dim: int = 64, batch: int = 1, grad: bool = False
) -> list[torch.Tensor]:
    return [torch.randn(batch, heads, length, dim).requires_grad_(grad) for _ in range(3)]


def with_backward(call: Callable[..., torch.Tensor], leaves: list[torch.Tensor]) -> TimedRun:
    grad = torch.randn(leaves[0].shape).to(leaves[0].dtype)
    return lambda: torch.autograd.grad(call(*leaves), leaves, grad)


def prepared(call: Callable[..., torch.Tensor], qkv: list[torch.Tensor], grad: bool) -> TimedRun:
    """The call of these tensors, with its backward pass if gradients are wanted."""
    return with_backward(call, qkv) if grad else partial(call, *qkv)


def named(work: str, grad: bool) -> str:
    return f"{work} with backward" if grad else work


def small() -> list[KernelContest]:
    rows = []
    ours = partial(attend, pattern="causal")
    other = partial(F.scaled_dot_product_attention, is_causal=True)
    for length, grad in product((64, 128, 256), (False, True)):
        qkv = tensors(8, length, 32, batch=32, grad=grad)
        name = named(f"batch 32, 8 heads of 32, causal {length}", grad)
        calls = (prepared(ours, qkv, grad), prepared(other, qkv, grad))
        rows.append(KernelContest(name, "SDPA", 1.5, *calls))
    return rows


def halves() -> list[KernelContest]:
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
        calls = (prepared(ours, qkv, grad), prepared(other, qkv, grad))
        name = named(f"bfloat16, head_dim {dim}, {text} 2048", grad)
        rows.append(KernelContest(name, "SDPA", goals[text, grad], *calls))

    left = torch.randn(1024, 1024).bfloat16()
    right = torch.randn(1024, 1024).bfloat16()
    qkv = [x.bfloat16() for x in tensors(4, 2048, 128)]

    def products() -> None:
        for _ in range(4):
            left @ right

    name = "bfloat16, head_dim 128, full 2048"
    ours = partial(attend, *qkv)
    rows.append(KernelContest(name, "its products by torch.matmul", 0.75, ours, products))
    return rows


def padded() -> KernelContest:
    qkv = tensors(8, 512, batch=8)
    lengths = torch.randint(64, 513, (8,))
    starts = torch.zeros(8, dtype=torch.int64)
    keys = torch.arange(512)
    mask = (keys[None, :] <= keys[:, None]) & (keys < lengths[:, None, None, None])

    def ours() -> torch.Tensor:
        return attend(*qkv, pattern=p.Causal() & p.KeySpan(starts, lengths))

    name = "padded batch of 8 (random lengths), causal 512, a new pattern in every call"
    other = partial(F.scaled_dot_product_attention, *qkv, attn_mask=mask)
    return KernelContest(name, "SDPA with a boolean mask", 2.5, ours, other)


def decoding() -> KernelContest:
    """16k keys of 2 heads for 8 query heads; the caches take turns, so that none stays in the processor's cache."""
    q = torch.randn(1, 8, 1, 64)
    float_caches = []
    for _ in range(12):
        keys = torch.randn(1, 2, 16384, 64)
        values = torch.randn(1, 2, 16384, 64)
        float_caches.append((keys, values))
    scale = torch.rand(1, 2, 16384, 1) / 100

    def in_int8(x: torch.Tensor) -> Stored:
        return Stored((x * 30).clamp(-127, 127).to(torch.int8), scale)

    int8_caches = [(in_int8(keys), in_int8(values)) for keys, values in float_caches]

    def in_turns(caches: list) -> TimedRun:
        turns = cycle(caches)
        return lambda: attend(q, *next(turns))

    name = "one query of 8 heads over 16k keys of 2 heads, from an int8 cache"
    ours = in_turns(int8_caches)
    return KernelContest(name, "native from float32", 1.3, ours, in_turns(float_caches))


def latents() -> list[KernelContest]:
    """One query of 16 heads over 8,192 latents of 512 numbers with 64 rotary ones, as in DeepSeek-V3; in turns."""
    return [*latents_of(torch.float32, 12), *latents_of(torch.bfloat16, 24)]


def latents_of(dtype: torch.dtype, count: int) -> list[KernelContest]:
    """The same of one dtype, with as many sets of latents in turns."""
    q = torch.randn(1, 16, 1, 576, dtype=dtype)
    weights = torch.randn(16, 8192, dtype=dtype)
    sets = [torch.randn(1, 1, 8192, 576, dtype=dtype) for _ in range(count)]
    room = torch.empty_like(sets[0])

    def in_turns(call: Callable[[torch.Tensor], object]) -> TimedRun:
        turns = cycle(sets)
        return lambda: call(next(turns))

    def by_kernel(x: torch.Tensor) -> torch.Tensor:
        return attend(q, x, x[..., :512], pattern="causal", scale=192**-0.5)

    def by_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return q[0, :, 0] @ x[0, 0].T, weights @ x[0, 0, :, :512]

    name = f"one query of 16 heads over 8,192 latents of 576, {str(dtype).removeprefix('torch.')}"
    ours = in_turns(by_kernel)
    return [
        KernelContest(name, "a copy of the latents", 1 / 1.3, ours, in_turns(room.copy_)),
        KernelContest(name, "its two products by torch.matmul", 1.0, ours, in_turns(by_torch)),
    ]


def random_blocks(length: int, heads: int, count: int, block: int = 64) -> torch.Tensor:
    """Blocks of keys for each block of queries and head: its own and random earlier ones, -1 where there are fewer."""
    blocks = torch.full((1, heads, length // block, count), -1)
    for head in range(heads):
        for own_block in range(length // block):
            earlier = torch.randperm(own_block)[: count - 1]
            chosen = torch.cat([earlier, torch.tensor([own_block])])
            blocks[0, head, own_block, : len(chosen)] = chosen
    return blocks


def listed() -> list[KernelContest]:
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

        chosen = partial(attend_chosen, p.ChosenBlocks, blocks)
        calls = (prepared(chosen, qkv, grad), prepared(full, qkv, grad))
        name = named(f"chosen: 16 blocks of 64 of {length}, 4 heads", grad)
        rows.append(
            KernelContest(name, "full causal", goal, *calls, rounds=3 if length > 9000 else 9)
        )
    for lists, whose in ((1, "one list for all heads"), (4, "lists by head")):
        keys = torch.randint(4096, (1, lists, 4096, 128))
        qkv = tensors(4, 4096)
        ours = partial(attend_chosen, p.ChosenKeys, keys, *qkv)
        name = f"chosen: 128 keys a query of 4096, 4 heads, {whose}"
        rows.append(KernelContest(name, "full causal", 1, ours, partial(full, *qkv), rounds=5))
    return rows


def attend_chosen(
    kind: Callable[[torch.Tensor], p.Pattern],
    chosen: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> torch.Tensor:
    """Causal attention to chosen keys or blocks; the pattern is made in the call."""
    return attend(q, k, v, pattern=kind(chosen) & p.Causal())


def grids() -> list[KernelContest]:
    """A window of 7 x 7 on 64 x 64 cells beside full attention."""
    near = partial(attend, pattern=p.Neighbourhood((64, 64), 7))
    rows = []
    for grad, goal in ((False, 8), (True, 6)):
        qkv = tensors(8, 4096, grad=grad)
        calls = (prepared(near, qkv, grad), prepared(attend, qkv, grad))
        name = named("grid: 7 x 7 on 64 x 64, 8 heads", grad)
        rows.append(KernelContest(name, "full attention", goal, *calls, rounds=5))
    return rows


def recurrent() -> list[KernelContest]:
    """8 heads of 128 beside causal SDPA and beside the functions that transformers computes its layers with."""
    q, k, v = tensors(8, 4096, 128)
    linear = partial(attend, q, k, v, pattern="causal", mechanism="linear")
    sdpa = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
    name = "causal linear attention, 8 heads of 128, 4096 positions"
    rows = [KernelContest(name, "SDPA, softmax", 8.0, linear, sdpa)]
    for name, length, rule, channels, goal in (
        ("gated delta", 4096, torch_chunk_gated_delta_rule, (), 4.5),
        ("Kimi delta", 1024, chunk_kimi_delta_attention, (128,), 40.0),
    ):
        x = [torch.randn(1, length, 8, 128) for _ in range(3)]
        x += [-torch.rand(1, length, 8, *channels) / 5, torch.rand(1, length, 8)]
        ours = output_of(delta_rule)
        theirs = output_of(rule)
        name = f"{name}, 8 heads of 128, {length} positions"
        rows.append(
            KernelContest(name, "transformers", goal, partial(ours, *x), partial(theirs, *x))
        )
        if not channels:
            x = [tensor.clone().requires_grad_() for tensor in x]
            calls = (with_backward(ours, x), with_backward(theirs, x))
            rows.append(KernelContest(named(name, True), "transformers", 7.0, *calls))
    return [*rows, *steps()]


def output_of(rule: Callable[..., tuple]) -> Callable[..., torch.Tensor]:
    """A delta rule as transformers calls it, of positional arguments."""

    def output(query, key, value, g, beta) -> torch.Tensor:
        options = {"g": g, "beta": beta, "use_qk_l2norm_in_kernel": True}
        outputs, *_ = rule(query=query, key=key, value=value, **options)
        return outputs

    return output


def steps() -> list[KernelContest]:
    """A step of decoding of 24 layers with 32 heads of 128, whose memories come from memory."""
    x = torch.randn(1, 1, 32, 128)
    g = -torch.rand(1, 1, 32)
    b = torch.rand(1, 1, 32)
    memories = [torch.randn(1, 32, 128, 128) for _ in range(24)]
    room = [torch.empty_like(memory) for memory in memories]
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}

    @torch.no_grad()
    def step(rule: Callable[..., tuple], layers: cycle) -> None:
        layer = next(layers)
        _, memory = rule(x, x, x, g=g, beta=b, initial_state=memories[layer], **options)
        memories[layer] = memory

    def copy(layers: cycle) -> None:
        layer = next(layers)
        room[layer].copy_(memories[layer])

    ours = partial(step, delta_rule, cycle(range(24)))
    theirs = partial(step, torch_recurrent_gated_delta_rule, cycle(range(24)))
    copied = partial(copy, cycle(range(24)))
    name = "one step of gated delta, 32 heads of 128"
    return [
        KernelContest(name, "a copy of the memory", 1 / 1.5, ours, copied),
        KernelContest(name, "transformers", 10.0, ours, theirs),
    ]


def options() -> list[KernelContest]:
    q, k, v = tensors(4, 2048)
    plain = partial(attend, q, k, v, pattern="causal")

    def option(work: str, goal: float, ours: TimedRun, other: TimedRun = plain) -> KernelContest:
        return KernelContest(work, "plain native", goal, ours, other, option=True)

    dropped = partial(plain, dropout=0.1, dropout_seed=1)
    rows = [
        option("softcap, causal 2048", 1.25, partial(plain, softcap=30.0)),
        option("ALiBi, causal 2048", 1.1, partial(plain, bias=rg.bias.ALiBi())),
        option("dropout, causal 2048", 1.4, dropped),
    ]

    half = [x.bfloat16().requires_grad_() for x in (q, k, v)]
    precise = partial(attend, pattern="causal", precise=True)
    rounded = partial(attend, pattern="causal", precise=False)
    forward = (torch.no_grad()(partial(precise, *half)), torch.no_grad()(partial(rounded, *half)))
    backward = (with_backward(precise, half), with_backward(rounded, half))
    name = "precise=True, bfloat16 causal 2048"
    rows += [option(name, 1.8, *forward), option(named(name, True), 1.8, *backward)]

    leaves = tensors(4, 1024, grad=True)
    bias = torch.randn(4, 1024, 1024, requires_grad=True)
    grad = torch.randn(1, 4, 1024, 64)

    def learned() -> object:
        return torch.autograd.grad(attend(*leaves, bias=bias), [*leaves, bias], grad)

    without_bias = with_backward(attend, leaves)
    rows.append(option("learned bias, full 1024 with backward", 2.0, learned, without_bias))

    detail = partial(rg.attention_detail, q, k, v, pattern="causal", backend="native")
    return [
        *rows,
        option("entropy, causal 2048", 1.15, partial(detail, want="entropy")),
        option("received, causal 2048", 1.6, partial(detail, want="received")),
        option("top 8, causal 2048", 1.5, partial(detail, want=rg.top_keys(8))),
    ]


def check() -> None:
    """The kernel against the reference in float64, at the shapes that are timed."""
    for length, text in ((512, "full"), (2048, "causal"), (4096, "sliding_window(256)")):
        q, k, v = tensors(1, length)
        rows = slice(length - 64, length)
        output = attend(q, k, v, pattern=text)[:, :, rows]
        options = {"pattern": text, "backend": "reference", "q_start": length - 64}
        expected = rg.attention(q[:, :, rows].double(), k.double(), v.double(), **options)
        assert (output.double() - expected).abs().max() < 1e-5, text


def measured(row: KernelContest, rounds: int) -> tuple[float, float]:
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


def line(row: KernelContest) -> tuple[str, ...]:
    ours, other = measured(row, row.rounds)
    if row.option:
        ratio = ours / other
        is_met = ratio <= row.goal
        goal = f"at most {row.goal:g}"
    else:
        ratio = other / ours
        is_met = ratio >= row.goal
        goal = f"{row.goal:g}"
    times = (f"{ours * 1e3:.3f}", f"{other * 1e3:.3f}")
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
