"""What each backend in pure PyTorch earns where the native kernel is missing, beside the best of the others.

python benchmarks/without_kernel.py

Every row is one call. The backend of the row and each other backend that takes the call are compared with the
reference in float64, then timed in turns, CPU seconds on one thread, shortest of seven rounds. The ratio is the time
of the fastest other one over that of the backend: below 1, the backend does not earn its lines there. Writes a report
into results/.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ["REGARD_NATIVE"] = "off"  # read when the first plan is made

import torch

import regard as rg
from benchmarks.report import heading
from regard.errors import RegardError
from regard_lab.bench.measuring import Pace, take_turns
from regard_lab.bench.report import markdown_table

REPORT = Path(__file__).parent / "results" / "without_kernel_cpu.md"
BIG_BIRD = "sliding_window(192) | global_tokens(0..63) | random_blocks(3, 64, 0)"
ROUNDS, ROWS = 7, 64


@dataclass(frozen=True)
class BackendRow:
    """A call, and the backend that it is there for."""

    backend: str
    part: str
    q_len: int
    k_len: int
    heads: tuple[int, int] = (2, 2)
    dtype: torch.dtype = torch.float32
    backward: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The call in a few words."""
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        backward = ", with backward" if self.backward else ""
        size = str(self.k_len) if self.q_len == self.k_len else f"{self.q_len} over {self.k_len}"
        return f"{size}, heads {self.heads[0]}/{self.heads[1]}, {str(self.dtype)[6:]}, {options or 'full'}{backward}"


def rows() -> list[BackendRow]:
    half, long = torch.bfloat16, 16_384
    return [
        BackendRow("fused", "windows in place", 4096, 4096, options={"pattern": "sliding_window(256)"}),
        BackendRow("fused", "windows in place", 4096, 4096, options={"pattern": "sliding_window(256)"}, backward=True),
        BackendRow("fused", "gathered keys", 4096, 4096, options={"pattern": BIG_BIRD}),
        BackendRow("fused", "gathered keys", 4096, 4096, options={"pattern": BIG_BIRD}, backward=True),
        BackendRow("tiled", "residues", 4096, 4096, options={"pattern": "strided(64)"}),
        BackendRow("tiled", "residues", 4096, 4096, options={"pattern": "strided(64)"}, backward=True),
        BackendRow("tiled", "residues", 4096, 4096, options={"pattern": "dilated_window(64, 8)"}),
        BackendRow("decode", "folded heads", 1, long, (8, 2)),
        BackendRow("decode", "folded heads", 1, long, (8, 2), half),
        BackendRow("decode", "chunks", 1, long, (8, 2), options={"softcap": 30.0}),
        BackendRow("fused", "row blocks", 2048, 2048, options={"pattern": "causal"}),
        BackendRow("fused", "row blocks", 2048, 2048, options={"pattern": "causal"}, backward=True),
        BackendRow("streamed", "options", 2048, 2048, options={"pattern": "causal", "softcap": 30.0}),
        BackendRow("streamed", "options", 2048, 2048, options={"pattern": "causal", "softcap": 30.0}, backward=True),
        BackendRow("streamed", "options", 2048, 2048, options={"pattern": "causal", "dropout": 0.1, "dropout_seed": 1}),
    ]


def call_of(row: BackendRow, backend: str, tensors: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
    attend = partial(rg.attention, backend=backend, **row.options)
    if not row.backward:
        return partial(attend, *tensors)
    pull = torch.ones_like(tensors[0])
    return lambda: torch.autograd.grad(attend(*tensors), tensors, pull)[0]


def check(row: BackendRow, backend: str, tensors: list[torch.Tensor]) -> None:
    """The last rows of the output against the reference in float64."""
    q, k, v = (x.detach() for x in tensors)
    count = min(ROWS, row.q_len)
    found = rg.attention(q, k, v, backend=backend, **row.options)[:, :, -count:]
    start = row.k_len - count
    expected = rg.attention(
        q[:, :, -count:].double(), k.double(), v.double(), backend="reference", q_start=start, **row.options
    )
    bound = 2e-2 if row.dtype == torch.bfloat16 else 1e-4
    assert (found.double() - expected).abs().max() < bound, (row.words, backend)


def measured(row: BackendRow) -> tuple[float, str, float]:
    """Shortest seconds of the backend, the fastest other one, and its seconds."""
    (heads, kv_heads), sizes = row.heads, (row.q_len, row.k_len, row.k_len)
    tensors = [
        torch.randn(1, heads if at == 0 else kv_heads, size, 64).to(row.dtype).requires_grad_(row.backward)
        for at, size in enumerate(sizes)
    ]
    calls: dict[str, Callable[[], torch.Tensor]] = {}
    for backend in ("tiled", "decode", "fused", "streamed", "reference"):
        call = call_of(row, backend, tensors)
        try:
            call()
        except RegardError:  # it refuses this call
            continue
        check(row, backend, tensors)
        calls[backend] = call
    times = take_turns(calls, time.process_time, Pace(rounds=ROUNDS, slow_rounds=ROUNDS))
    least = {backend: min(one.samples) for backend, one in times.items()}
    ours = least.pop(row.backend)
    other = min(least, key=lambda name: least[name])
    return ours, other, least[other]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lines = []
    for row in rows():
        ours, other, theirs = measured(row)
        times = f"{ours * 1e3:.2f}", other, f"{theirs * 1e3:.2f}", f"{theirs / ours:.2f}"
        lines.append((f"{row.backend}: {row.part}", row.words, *times))
        print(lines[-1], flush=True)
    about = (
        ", head_dim 64. Shortest CPU time on one thread, in turns. The ratio is the time of the fastest other "
        "backend over that of the row's: below 1, the backend does not earn its lines there"
    )
    head = heading("The backends in pure PyTorch, where the native kernel is missing", about)
    measured_rows = markdown_table(("backend and its part", "call", "ms", "fastest other", "ms", "ratio"), lines)
    REPORT.write_text("\n".join([*head, *measured_rows, ""]))


if __name__ == "__main__":
    main()
