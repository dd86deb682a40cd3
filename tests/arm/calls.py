"""Drawn calls of the native backend on one machine: python calls.py FIRST END prints a line of JSON for each.

The cases are those of `tests.regard.fuzz`, with numbers that float32 holds exactly. Conversions of other numbers from
float64, and logarithms, round differently on different processors, and only the kernel is compared here.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import platform
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from regard.backends.native import filling
from regard.backends.native.library import Library, load
from regard.core.tensors import Stored
from tests.regard.fuzz import judging, mechanisms
from tests.regard.fuzz.cases import SoftmaxCase, draw_case
from tests.regard.fuzz.mechanisms import MechanismCase, draw_mechanism, judge_mechanism
from tests.regard.fuzz.tensors import DrawnNumbers, SoftmaxCall

AVX2 = 2
THREADS = 3
STEPS = 2**18  # numbers are multiples of 1 / STEPS


def case_of(seed: int) -> SoftmaxCase | MechanismCase:
    """The case of a seed: one of five is of another mechanism than softmax."""
    return draw_mechanism(seed) if seed % 5 == 3 else draw_case(seed)


def exact_numbers(self: DrawnNumbers, *shape: int) -> torch.Tensor:
    """Sums of four whole numbers, which every machine draws alike, divided by a power of two."""
    drawn = torch.randint(-STEPS, STEPS + 1, (4, *shape), generator=self._drawn)
    return drawn.sum(0).double() / STEPS


_libc = ctypes.CDLL(None, use_errno=True)


def guarded(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with the same strides, in memory that ends with the last one, before a page without access."""
    if not x.numel():
        return x
    sizes = zip(x.shape, x.stride(), strict=True)
    reach = 1 + sum((size - 1) * stride for size, stride in sizes)
    length = reach * x.itemsize
    pages = -(-length // mmap.PAGESIZE)
    room = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    end = ctypes.c_void_p(address + pages * mmap.PAGESIZE)
    storage = torch.frombuffer(room, dtype=torch.uint8)  # keeps the memory
    first = pages * mmap.PAGESIZE - length
    copy = storage[first : first + length].view(x.dtype).as_strided(x.shape, x.stride())
    source = x.detach().as_strided((reach,), (1,), x.storage_offset())
    copy.as_strided((reach,), (1,)).copy_(source)
    assert _libc.mprotect(end, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0, ctypes.get_errno()
    return copy


def guarded_tensor(
    tensor: Callable[[SoftmaxCall, str, bool], torch.Tensor | Stored],
) -> Callable[[SoftmaxCall, str, bool], torch.Tensor | Stored]:
    """`SoftmaxCall.tensor`, whose tensors end where memory ends."""

    def of_call(call: SoftmaxCall, name: str, bad: bool) -> torch.Tensor | Stored:
        x = tensor(call, name, bad)
        if isinstance(x, Stored):
            scales = None if x.scales is None else guarded(x.scales)
            return Stored(guarded(x.numbers), scales)
        return guarded(x).requires_grad_(x.requires_grad)

    return of_call


def digest_of(x: torch.Tensor) -> str:
    """A hash of shape, dtype and bits; every NaN counts as the same one."""
    numbers = x.detach().contiguous()
    if numbers.is_floating_point():
        numbers = numbers.masked_fill(numbers.isnan(), torch.nan)
    found = hashlib.sha256(f"{tuple(x.shape)} {x.dtype}".encode())
    found.update(numbers.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


class BitRecorder:
    """Computes native results with 3 threads and with 1, and keeps the hashes of the first time by result.

    The kernel asks PyTorch how many threads it has, and gets `threads`. PyTorch itself has one: on a busy machine each
    of its many small operations would wait until three threads have run.
    """

    def __init__(self) -> None:
        self.bits: dict[int, dict[str, str]] = {}
        self.threads = 1

    def wrap(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(call: Any, backend: str, *options: Any, **named: Any) -> Any:
            if backend != "native":
                return compute(call, backend, *options, **named)
            for threads in (THREADS, 1):
                self.threads = threads
                results = compute(call, backend, *options, **named)
                bits = {name: digest_of(x) for name, x in results.items()}
                self.bits.setdefault(threads, bits)
            return results

        return recorded


def is_of_kernel(name: str, case: SoftmaxCase | MechanismCase) -> bool:
    """Whether the kernel alone computes a result; PyTorch computes the rest, with other last bits on other processors.

    PyTorch computes features of mechanisms, second derivatives, what belongs to a sink, sums of a bias's gradient, and
    whatever a gradient of a statistic passes through.
    """
    if isinstance(case, MechanismCase) or case.sink or name.startswith("dd "):
        return False
    if name == "output":
        return True
    return not (case.pulled or "sink" in case.want or name == "d bias")


def verdict_of(seed: int, recorder: BitRecorder) -> dict[str, Any]:
    """What a case gave, as one line of JSON."""
    recorder.bits = {}
    case = case_of(seed)
    if isinstance(case, MechanismCase):
        verdicts = judge_mechanism(case)
        verdicts = [verdict for verdict in verdicts if verdict.backend.endswith("native")]
    else:
        verdicts = judging.judge(case, ("native",))
    outcomes = [verdict.outcome for verdict in verdicts] or ["refused"]
    bits = recorder.bits.get(1, {})
    return {
        "seed": seed,
        "outcome": outcomes[0],
        "reason": "; ".join(verdict.reason for verdict in verdicts if verdict.outcome == "off"),
        "share": max((verdict.share for verdict in verdicts), default=0.0),
        "bits": bits,
        "of kernel": [name for name in bits if is_of_kernel(name, case)],
        "threads agree": bits == recorder.bits.get(THREADS, {}),
        "learns": bool(getattr(case, "learners", ())),
        "planted": getattr(case, "hidden", ""),
    }


def main(first: int, end: int) -> None:
    recorder = BitRecorder()
    torch.set_num_threads(1)
    # The library keeps this function from the first call on.
    torch.get_num_threads = lambda: recorder.threads
    library = load()
    assert isinstance(library, Library), library
    if platform.machine() == "x86_64":
        library.handle.rg_use_instructions(AVX2)
    filling.PRODUCTS_PER_THREAD = 1  # threads share calls of any size
    warnings.simplefilter("ignore")
    DrawnNumbers.numbers = exact_numbers
    SoftmaxCall.tensor = guarded_tensor(SoftmaxCall.tensor)
    judging._compute = recorder.wrap(judging._compute)
    mechanisms._compute = recorder.wrap(mechanisms._compute)
    with suppress(BrokenPipeError):
        for seed in range(first, end):
            print(json.dumps(verdict_of(seed, recorder)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
