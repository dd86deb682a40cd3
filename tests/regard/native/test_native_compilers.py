"""Compilers of LLVM, such as Zig's and Apple's, build the kernel too, and so does any compiler for processors that no
file of the sources is for; the bits are those of the library of this processor."""

import ctypes
import importlib.util
import json
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.backends.native.build import (
    ARCHITECTURES,
    COMMON,
    LIBRARY,
    OTHER,
    SOURCE,
    Target,
    architecture_of,
    build,
    find_compiler,
)

ZIG = f"{sys.executable} -m ziglang c++"
zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="the package ziglang is not installed"
)
# What a process finds with a library: the bits of outputs, statistics and gradients in every dtype.
DIGESTS = """
import hashlib, json, sys, torch, regard as rg
from pathlib import Path
from regard.backends.native import backend, library
found = library.load(Path(sys.argv[1]))
assert isinstance(found, library.Library), found
backend.load = lambda: found
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(7)
digests = []
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    for q_len, k_len in ((1, 41), (5, 300), (67, 67)):
        for pattern in ("full", "causal", "sliding_window(11)"):
            shapes = ((2, 4, q_len, 24), (2, 2, k_len, 24), (2, 2, k_len, 40))
            q, k, v = ((6 * torch.rand(shape, generator=generator) - 3).to(dtype) for shape in shapes)
            for instructions in (0, 3, 2):
                found.handle.rg_use_instructions(instructions)
                leaves = [x.clone().requires_grad_() for x in (q, k, v)]
                want = ("entropy", "top_keys(5)")
                detail = rg.attention_detail(*leaves, pattern=pattern, want=want, backend="native")
                gradients = torch.autograd.grad(detail.output.float().square().sum(), leaves)
                parts = [detail.output, detail.entropy, detail.top_keys.weights, *gradients]
                numbers = torch.cat([x.detach().double().flatten() for x in parts])
                digests.append(hashlib.sha256(bytes(numbers.view(torch.uint8).tolist())).hexdigest())
print(json.dumps(digests))
"""
HALVES = """
#include "vectors.h"
extern "C" void widen(const uint16_t *x, float *y, long n) {
  for (long i = 0; i < n; i++) y[i] = (float)((const generic::half_number *)x)[i];
}
extern "C" void narrow(const float *x, uint16_t *y, long n) {
  for (long i = 0; i < n; i++) ((generic::half_number *)y)[i] = (generic::half_number)x[i];
}
"""


def digests(library: Path) -> list[str]:
    command = [sys.executable, "-c", DIGESTS, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@zig
def test_zig_compiles_a_kernel_without_a_warning(tmp_path):
    flags = next(iter(architecture_of(platform.machine()).kernels.values()))
    source = ("-O0", "-c", str(SOURCE / "kernel.cpp"), "-o", str(tmp_path / "kernel.o"))
    command = [*ZIG.split(), *COMMON, *flags, *source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def installed_compilers() -> list[str]:
    """The compilers of this machine that must build the whole library."""
    names = [name for name in ("g++", "clang++") if shutil.which(name)]
    return [*names, *([ZIG] if importlib.util.find_spec("ziglang") else [])]


@pytest.mark.slow
@pytest.mark.parametrize(
    "compiler", installed_compilers(), ids=lambda words: "zig" if "zig" in words else words
)
def test_the_library_of_each_compiler_gives_the_same_bits(tmp_path, monkeypatch, compiler):
    monkeypatch.setenv("CXX", compiler)
    assert digests(build(tmp_path / "another.so")) == digests(LIBRARY)


@pytest.mark.slow
def test_the_library_for_any_processor_gives_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", shlex.join(find_compiler()))  # not one that compiles for others
    extra = (
        "-O1",
        "-DRG_GENERIC",
        "-mfma",
    )  # without -mfma the C library rounds once, in a hundred times the time
    library = build(tmp_path / "generic.so", extra=extra, target=Target(sys.platform, "another"))
    assert digests(library) == digests(LIBRARY)


def test_machines_have_the_flags_of_their_processor_by_each_of_its_names():
    assert architecture_of("AMD64") is ARCHITECTURES["x86_64"]
    assert architecture_of("arm64") is architecture_of("aarch64") is ARCHITECTURES["aarch64"]
    assert architecture_of("riscv64") is OTHER


def test_float16_of_a_compiler_without_such_a_type_is_that_of_pytorch(tmp_path):
    source = tmp_path / "halves.cpp"
    source.write_text(HALVES)
    library = tmp_path / "halves.so"
    flags = (*COMMON, *OTHER.kernels["generic"], "-fvisibility=default", f"-I{SOURCE}", "-shared")
    subprocess.run([*find_compiler(), *flags, str(source), "-o", str(library)], check=True)
    functions = ctypes.CDLL(str(library))

    def converted(function: str, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        y = torch.empty(len(x), dtype=dtype)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y))
        functions[function](*pointers, ctypes.c_long(len(x)))
        return y

    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.half)
    widened = converted("widen", halves, torch.float32)
    assert torch.equal(widened.nan_to_num(1.5), halves.float().nan_to_num(1.5))
    # Each number, the middles between neighbours, and what is next to those.
    numbers = widened[widened.isfinite()].unique()
    middles = (numbers[1:] + numbers[:-1]) / 2
    limits = torch.tensor([65519.996, 65520.0, 65536.0, 3e38, torch.inf, torch.nan, 1e-45])
    near = [middles.nextafter(torch.tensor(far)) for far in (torch.inf, -torch.inf)]
    floats = torch.cat([numbers, middles, *near, limits, -limits])
    narrowed = converted("narrow", floats, torch.half)
    same = narrowed.view(torch.int16) == floats.half().view(torch.int16)
    assert (same | (floats.isnan() & narrowed.isnan())).all()
