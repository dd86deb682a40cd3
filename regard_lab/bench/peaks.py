"""The highest rates of one core of this processor, measured in the same run as what is compared with them."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from regard.backends.native.build import BuildError, find_compiler
from regard.reprs import brief
from regard_lab.bench.measuring import threads

SOURCE = Path(__file__).with_name("peak.cpp")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")
ROUNDS = 24  # the fastest counts, since other programs slow down the rest
OPERATIONS = 2_000_000_000  # in one round in registers: some hundredths of a second
PRODUCT = 768  # rows and columns of PyTorch's product
BYTES = 2**27  # read in a round, more than a processor's cache holds
LOOP = "multiply-adds in registers"
PYTORCH = "PyTorch's product"


@brief
@dataclass(frozen=True)
class Peaks:
    """The highest rates of one thread.

    Args:
        float32: operations in float32, in units of 10^9 a second.
        bfloat16: the same in bfloat16.
        copy: bytes that a copy reads and writes, in units of 10^9 a second.
        sum: bytes that a sum of float32 numbers reads, in units of 10^9 a second.
        product: operations of PyTorch's product of two matrices in float32, in units of 10^9 a second.
        float32_by: what was measured for `float32`: "multiply-adds in registers", which needs a compiler, or "PyTorch's
            product".
        bfloat16_by: the same for `bfloat16`.
    """

    float32: float
    bfloat16: float
    copy: float
    sum: float
    product: float
    float32_by: str
    bfloat16_by: str

    def or_higher(self, other: Peaks) -> Peaks:
        """The higher of each rate, and by what it was measured."""
        chosen = other.to_dict()
        for name, rate in self.to_dict().items():
            if isinstance(rate, float) and rate > chosen[name]:
                chosen[name] = rate
                if f"{name}_by" in chosen:
                    chosen[f"{name}_by"] = self.to_dict()[f"{name}_by"]
        return Peaks(**chosen)

    def to_dict(self) -> dict[str, Any]:
        """The rates by name, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"float32 {self.float32:.0f} GF/s ({self.float32_by}), bfloat16 {self.bfloat16:.0f} GF/s "
            f"({self.bfloat16_by}), PyTorch's product in float32 {self.product:.0f} GF/s, a copy {self.copy:.1f} GB/s, "
            f"a sum {self.sum:.1f} GB/s"
        )


def measure_peaks() -> Peaks:
    """Measure the rates of one thread, in CPU time."""
    with threads(1), torch.inference_mode():
        in_registers = _rates_in_registers()
        by_product = {
            name: _rate_of_product(getattr(torch, name)) for name in ("float32", "bfloat16")
        }
        source = torch.ones(BYTES // 4)
        target = torch.empty_like(source)
        copied = _fastest(lambda: target.copy_(source))
        summed = _fastest(source.sum)
    rates: dict[str, Any] = {"copy": 2 * BYTES / copied / 1e9, "sum": BYTES / summed / 1e9}
    for name, product in by_product.items():
        rate = in_registers.get(name, 0.0)
        rates[name] = rate or product
        rates[f"{name}_by"] = LOOP if rate else PYTORCH
    return Peaks(product=by_product["float32"], **rates)


def _rate_of_product(dtype: torch.dtype) -> float:
    x = torch.ones(PRODUCT, PRODUCT, dtype=dtype)
    return 2 * PRODUCT**3 / _fastest(lambda: x @ x) / 1e9


def _rates_in_registers() -> dict[str, float]:
    """Rates by dtype: empty without a compiler, and 0 for a dtype that the processor has no instruction for."""
    try:
        command = find_compiler()
    except BuildError:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"peak{'.dylib' if platform.system() == 'Darwin' else '.so'}"
        arguments = [*command, *FLAGS, str(SOURCE), "-o", str(path)]
        if subprocess.run(arguments, capture_output=True, check=False).returncode:
            return {}
        library = ctypes.CDLL(str(path))
        return {name: _rate_of(library, name) for name in ("float32", "bfloat16")}


def _rate_of(library: ctypes.CDLL, name: str) -> float:
    function = getattr(library, f"peak_{name}")
    function.argtypes = [ctypes.c_int64]
    function.restype = ctypes.c_int64
    of_round = function(1)
    if not of_round:
        return 0.0
    rounds = OPERATIONS // of_round
    return of_round * rounds / _fastest(lambda: function(rounds)) / 1e9


def _fastest(call: Callable[[], object]) -> float:
    """The shortest CPU time of a call, in seconds."""
    call()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return best
