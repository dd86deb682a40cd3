"""Compares the native backend with PyTorch's own attention and other libraries.

python benchmarks/native_kernel.py [GROUP ...]

Times are CPU seconds on one thread, measured in turns in one process; a row shows medians over the rounds. The kernel
is compared with the reference backend in float64 before anything is timed. Rows against "plain native" compare options
with the same call without them. The group `flexible` compiles FlexAttention for minutes. Writes a report into results/;
with groups, only their rows of it are replaced.
"""

import argparse
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

import regard as rg
from regard import patterns as p
from regard.backends.native.library import load
from regard.core.tensors import Stored
from regard_lab.bench.measuring import Pace, take_turns

REPORT = Path(__file__).parent / "results" / "native_cpu.md"
NOTES = REPORT.with_name("native_cpu_notes.md")  # written by hand: goals that were missed, and what was tried
Run = Callable[[], object]
WINDOW = "sliding_window({})"
BIG_BIRD = "sliding_window(192) | global_tokens(0..63) | random_blocks(3, 64, 0)"


@dataclass(frozen=True)
class Row:
    """One comparison: how many times as long the other takes, or with `option` how many times as long ours takes."""

    work: str
    against: str
    goal: float
    ours: Run
    other: Run
    option: bool = False


def attend(q, k, v, **options) -> torch.Tensor:
    return rg.attention(q, k, v, backend="native", **options)


def tensors(heads: int, length: int, dim: int = 64, batch: int = 1, grad: bool = False) -> list[torch.Tensor]:
    return [torch.randn(batch, heads, length, dim).requires_grad_(grad) for _ in range(3)]


def with_backward(call: Callable[..., torch.Tensor], leaves: list[torch.Tensor]) -> Run:
    grad = torch.randn(leaves[0].shape)
    return lambda: torch.autograd.grad(call(*leaves), leaves, grad)


def plain(grad: bool, *sizes: tuple[int, int, float, float]) -> list[Row]:
    """Rows (length, heads, goal of full, goal of causal) against SDPA."""
    rows = []
    for length, heads, full, causal in sizes:
        for name, goal in (("full", full), ("causal", causal)):
            if not goal:
                continue
            qkv = tensors(heads, length, grad=grad)
            ours = partial(attend, pattern=name)
            other = partial(F.scaled_dot_product_attention, is_causal=name == "causal")
            calls = [with_backward(one, qkv) if grad else partial(one, *qkv) for one in (ours, other)]
            rows.append(Row(f"{name} {length}{' with backward' if grad else ''}", "SDPA", goal, *calls))
    return rows


def small() -> list[Row]:
    rows = []
    for length in (64, 128, 256):
        for grad in (False, True):
            qkv = tensors(8, length, 32, batch=32, grad=grad)
            ours = partial(attend, pattern="causal")
            other = partial(F.scaled_dot_product_attention, is_causal=True)
            calls = [with_backward(one, qkv) if grad else partial(one, *qkv) for one in (ours, other)]
            name = f"batch 32, 8 heads of 32, causal {length}{' with backward' if grad else ''}"
            rows.append(Row(name, "SDPA", 1.5, *calls))
    return rows


def padded() -> Row:
    qkv, lengths = tensors(8, 512, batch=8), torch.randint(64, 513, (8,))
    pattern = p.Causal() & p.KeySpan(torch.zeros(8, dtype=torch.int64), lengths)
    keys = torch.arange(512)
    mask = (keys[None, :] <= keys[:, None]) & (keys < lengths[:, None, None, None])
    return Row(
        "padded batch of 8 (random lengths), causal 512, a new pattern in every call", "SDPA with a boolean mask", 2.5,
        lambda: attend(*qkv, pattern=p.Causal() & p.KeySpan(pattern.parts[1].start, pattern.parts[1].stop)),
        partial(F.scaled_dot_product_attention, *qkv, attn_mask=mask),
    )  # fmt: skip


def windows() -> list[Row]:
    from local_attention import LocalAttention

    rows = []
    for length, window, goal in ((4096, 256, 2.5), (4096, 512, 2.5), (16384, 256, 4.5), (16384, 512, 4.5)):
        qkv = tensors(2, length, grad=True)
        module = LocalAttention(
            window_size=window // 2, look_backward=1, look_forward=1, exact_windowsize=True, autopad=True,
            use_rotary_pos_emb=False,
        )  # fmt: skip
        ours = with_backward(partial(attend, pattern=WINDOW.format(window)), qkv)
        other = with_backward(module, qkv)
        rows.append(Row(f"window {window} at {length} with backward", "local-attention", goal, ours, other))
    return rows


def flexible() -> Iterator[Row]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def banded(half: int) -> Callable[..., torch.Tensor]:
        return lambda b, h, i, j: (i - j).abs() <= half

    def strided(stride: int) -> Callable[..., torch.Tensor]:
        return lambda b, h, i, j: ((i - j).abs() < stride) | ((i - j) % stride == 0)

    def by_table(dense: torch.Tensor) -> Callable[..., torch.Tensor]:
        return lambda b, h, i, j: dense[i, j]

    cases = [
        *((f"window {w}", WINDOW.format(w), n, 2, 2.5, banded(w // 2)) for n in (4096, 16384) for w in (256, 512)),
        *(("BigBird", BIG_BIRD, n, 2, 4.0, by_table(p.parse(BIG_BIRD).dense(n, n))) for n in (4096, 16384)),
        ("strided 64, by the backend that is chosen,", "strided(64)", 4096, 2, 25.0, strided(64)),
    ]
    for name, text, length, heads, goal, rule in cases:
        qkv = tensors(heads, length)
        torch.compiler.reset()
        block_mask = create_block_mask(rule, None, None, length, length, device="cpu")
        compiled = torch.compile(flex_attention, dynamic=False)
        compiled(*qkv, block_mask=block_mask)
        attention = rg.attention if text == "strided(64)" else attend
        ours, other = partial(attention, *qkv, pattern=text), partial(compiled, *qkv, block_mask=block_mask)
        torch.testing.assert_close(ours(), other(), atol=1e-5, rtol=1e-4)
        yield Row(f"{name} at {length}", "FlexAttention compiled", goal, ours, other)


def decoding() -> list[Row]:
    """16k keys of 2 heads for 8 query heads; the caches take turns, so that none stays in the processor's cache."""
    length, rows = 16384, []
    q = torch.randn(1, 8, 1, 64)

    def in_turns(caches: list, call: Callable[..., object]) -> Run:
        at = [0]

        def run() -> object:
            at[0] = (at[0] + 1) % len(caches)
            return call(*caches[at[0]])

        return run

    wide = [tuple(torch.randn(1, 2, length, 64) for _ in range(2)) for _ in range(12)]
    half = [tuple(x.bfloat16() for x in one) for one in wide]
    scale = torch.rand(1, 2, length, 1) / 100
    whole = [tuple(Stored((x * 30).clamp(-127, 127).to(torch.int8), scale) for x in one) for one in wide]
    sdpa = partial(F.scaled_dot_product_attention, enable_gqa=True)
    ours = in_turns(wide, lambda k, v: attend(q, k, v))
    name = "one query of 8 heads over 16k keys of 2 heads"
    rows.append(Row(name, "SDPA enable_gqa", 3.0, ours, in_turns(wide, lambda k, v: sdpa(q, k, v))))
    q16 = q.bfloat16()
    calls = in_turns(half, lambda k, v: attend(q16, k, v)), in_turns(half, lambda k, v: sdpa(q16, k, v))
    rows.append(Row(f"{name}, in bfloat16", "SDPA enable_gqa", 1.2, *calls))
    calls = in_turns(whole, lambda k, v: attend(q, k, v)), ours
    rows.append(Row(f"{name}, from an int8 cache", "native from float32", 1.3, *calls))
    return rows


def options() -> list[Row]:
    q, k, v = tensors(4, 2048)
    plain = partial(attend, q, k, v, pattern="causal")
    rows = [
        Row("softcap, causal 2048", "plain native", 1.25, partial(plain, softcap=30.0), plain, option=True),
        Row("ALiBi, causal 2048", "plain native", 1.1, partial(plain, bias=rg.bias.ALiBi()), plain, option=True),
        Row(
            "dropout, causal 2048", "plain native", 1.4, partial(plain, dropout=0.1, dropout_seed=1), plain, option=True
        ),
    ]
    leaves = tensors(4, 1024, grad=True)
    bias = torch.randn(4, 1024, 1024, requires_grad=True)
    grad = torch.randn(1, 4, 1024, 64)
    learned = lambda: torch.autograd.grad(attend(*leaves, bias=bias), [*leaves, bias], grad)  # noqa: E731
    rows.append(
        Row("learned bias, full 1024 with backward", "plain native", 2.0, learned, with_backward(attend, leaves), True)
    )
    detail = lambda want: rg.attention_detail(q, k, v, pattern="causal", backend="native", want=want)  # noqa: E731
    for name, want, goal in (
        ("entropy", "entropy", 1.15),
        ("received", "received", 1.6),
        ("top 8", rg.top_keys(8), 1.5),
    ):
        rows.append(Row(f"{name}, causal 2048", "plain native", goal, partial(detail, want), plain, option=True))
    return rows


def overhead() -> Row:
    qkv = tensors(4, 16)
    return Row("16 queries, 4 heads: one call (microseconds more)", "SDPA", 8.0, partial(attend, *qkv),
               partial(F.scaled_dot_product_attention, *qkv))  # fmt: skip


def check() -> None:
    """The kernel against the reference in float64, at the shapes that are timed."""
    for length, text in ((512, "full"), (2048, "causal"), (4096, WINDOW.format(256))):
        q, k, v = tensors(1, length)
        rows = slice(length - 64, length)
        found = attend(q, k, v, pattern=text)[:, :, rows]
        options = {"pattern": text, "backend": "reference", "q_start": length - 64}
        expected = rg.attention(q[:, :, rows].double(), k.double(), v.double(), **options)
        assert (found.double() - expected).abs().max() < 1e-5, text


def measured(row: Row, rounds: int = 9) -> tuple[float, float]:
    """Median CPU seconds of both, in turns."""
    pace = Pace(rounds=rounds, slow_rounds=rounds, shortest=0.02)
    times = take_turns({"ours": row.ours, "other": row.other}, time.process_time, pace)
    return times["ours"].median, times["other"].median


def busy() -> float:
    """CPU seconds that all processes of the machine have used."""
    numbers = [int(x) for x in Path("/proc/stat").read_text().split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / os.sysconf("SC_CLK_TCK")  # without idle and waiting


def threads_speedup(seconds: float = 60) -> str:
    """A sentence on the wall time of one thread over that of two, with the load of the machine meanwhile.

    Rounds of either kind are timed for some seconds, and the shortest of each is taken. A round with other work on the
    processors takes longer, so on a busy machine the ratio is below that of a quiet one.
    """
    qkv, least = tensors(4, 4096), {1: math.inf, 2: math.inf}
    call, cpu = partial(attend, *qkv, pattern="causal"), {1: math.inf, 2: math.inf}
    began, own, all_of_it = time.perf_counter(), time.process_time(), busy()
    while time.perf_counter() - began < seconds:
        for count in (1, 2):
            torch.set_num_threads(count)
            call()  # OpenMP's threads wake up
            start, before = time.perf_counter(), time.process_time()
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


def line(row: Row) -> str:
    ours, other = measured(row)
    if "microseconds" in row.work:
        ratio, met = 1e6 * (ours - other), 1e6 * (ours - other) <= row.goal
    elif row.option:
        ratio, met = ours / other, ours / other <= row.goal
    else:
        ratio, met = other / ours, other / ours >= row.goal
    goal = f"{'at most ' if row.option or 'microseconds' in row.work else ''}{row.goal:g}"
    times = f"{ours * 1e3:.3f} | {other * 1e3:.3f}"
    return f"| {row.work} | {row.against} | {times} | {ratio:.2f} | {goal} | {'yes' if met else 'no'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    groups = {
        "plain": lambda: plain(False, (512, 2, 1.1, 1.7), (2048, 2, 1.1, 1.2), (8192, 1, 1.1, 1.2)),
        "gradients": lambda: plain(True, (512, 2, 1.08, 1.7), (2048, 2, 1.08, 1.3)),
        "small": small, "padded": lambda: [padded()], "windows": windows, "decoding": decoding,
        "overhead": lambda: [overhead()], "options": options, "flexible": flexible,
    }  # fmt: skip
    parser.add_argument("groups", nargs="*", help=f"of rows that are measured: {', '.join(groups)}; all by default")
    chosen = parser.parse_args().groups
    if strangers := set(chosen) - set(groups):
        parser.error(f"there is no group {', '.join(sorted(strangers))}; the groups are {', '.join(groups)}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    library = load()
    assert not isinstance(library, str), library
    check()
    began, lines, measured_now = os.getloadavg()[0], {} if not chosen else earlier_lines(), 0
    for name in chosen or groups:
        for row in groups[name]():
            lines[row.work] = line(row)
            measured_now += 1
            print(lines[row.work], flush=True)
    rows = "all rows" if not chosen else f"{measured_now} of {len(lines)} rows, the others by earlier runs"
    text = "\n".join(
        [
            "# The native backend beside PyTorch and other libraries",
            "",
            f"`{' '.join(['python benchmarks/native_kernel.py', *chosen])}`, {date.today():%Y-%m-%d}, {rows}: "
            f"{platform.processor() or platform.machine()} {_processor()}, kernel for {library.instructions}, PyTorch "
            f"{torch.__version__}, float32 and head_dim 64 where a row says nothing else. CPU time on one thread in "
            f"turns; load of the machine {began:.1f} at the beginning and {os.getloadavg()[0]:.1f} at the end. Against "
            "other libraries the ratio is their time over ours; against plain native it is the time of the option over "
            "that of the plain call.",
            "",
            "| work | against | ours, ms | other, ms | ratio | goal | met |",
            "|---|---|---|---|---|---|---|",
            *lines.values(),
            "",
            threads_speedup(),
            "",
            NOTES.read_text(),
        ]
    )
    REPORT.write_text(text)


def earlier_lines() -> dict[str, str]:
    """The rows of the report by their work."""
    lines = REPORT.read_text().splitlines() if REPORT.exists() else []
    return {x.split(" | ")[0].removeprefix("| "): x for x in lines if x.endswith(("| yes |", "| no |"))}


def _processor() -> str:
    for entry in Path("/proc/cpuinfo").read_text().splitlines():
        if entry.startswith("model name"):
            return entry.split(":")[1].strip()
    return ""


if __name__ == "__main__":
    main()
