"""Compiles the C++ sources of this folder into `libregard_native.so`, with the compiler of the system or with Zig's.

`make .venv/ready` and `pip install` run this file where a compiler is. It imports nothing of regard, so that it works
before anything is installed: `python regard/backends/native/build.py`. The package `ziglang`, which
`pip install 'regard[compiler]'` brings, is a compiler for systems that have none.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "source"
LIBRARY = HERE / "libregard_native.so"
COMPILERS = ("g++", "c++", "clang++")
# -ffp-contract=off: the kernel decides where a product and a sum are rounded once, so that bits do not depend on
# the compiler's choice.
COMMON = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",
    "-Wno-unknown-warning-option",
)
WITHOUT_VECTORS = ("-mno-avx",)
KERNELS = {
    "avx2": ("-DRG_SPACE=avx2", "-DRG_WIDTH=8", "-mavx2", "-mfma", "-mf16c"),
    "wide": (
        "-DRG_SPACE=wide",
        "-DRG_WIDTH=4",
        "-DRG_REAL=double",
        "-DRG_DOUBLE",
        "-mavx2",
        "-mfma",
        "-mf16c",
    ),
    "avx512": (
        "-DRG_SPACE=avx512",
        "-DRG_WIDTH=16",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mfma",
        "-mf16c",
        "-mprefer-vector-width=512",
    ),
}
# The kernel for bfloat16 of an instruction set has its flags, but for the first, which names its C++ namespace.
KERNELS |= {
    f"bf16_{name}": (f"-DRG_SPACE=bf16_{name}", "-DRG_BF16", *KERNELS[name][1:])
    for name in ("avx2", "avx512")
}
KERNELS["bf16_pairs"] = ("-DRG_SPACE=bf16_pairs", *KERNELS["bf16_avx512"][1:], "-mavx512bf16")
ENTRIES = ("interpreter", "kept_calls", "few_rows", "programs")  # sources beside entry.cpp
ROWS = ("avx2", "avx512")  # the kernels whose instruction sets programs use
# The source for AVX-512 built for AVX2, which tests run on every processor; -DRG_LOWERED selects it in entry.cpp.
LOWERED = {
    name: tuple(
        "-mavx2" if flag == "-mavx512f" else flag
        for flag in flags
        # All other flags of AVX-512 are left out: -mavx512bw, -mavx512bf16, -mavx512vl, -mavx512dq.
        if not flag.startswith(("-mavx512b", "-mavx512v", "-mavx512d", "-mprefer"))
    )
    for name, flags in KERNELS.items()
}


class BuildError(Exception):
    """The library could not be built; the message is a sentence for the person who asked for it."""


def digest() -> str:
    """A short hash of sources and flags. A library that carries another one was built from other sources."""
    found = hashlib.sha256(repr((COMMON, WITHOUT_VECTORS, KERNELS)).encode())
    for path in sorted(SOURCE.iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def find_compiler() -> list[str]:
    """The command of a C++ compiler: $CXX, else the first of g++, c++ and clang++, else that of the package ziglang."""
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in COMPILERS:
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++"]
    names = ", ".join((*COMPILERS, "the package ziglang"))
    raise BuildError(f"no C++ compiler was found ({names}, or the one named by $CXX)")


def build(
    library: Path = LIBRARY,
    extra: tuple[str, ...] = (),
    kernels: Mapping[str, tuple[str, ...]] = KERNELS,
) -> Path:
    """Compile the library and return its path; an up-to-date file is not compiled again.

    Args:
        library: where it is written.
        extra: more flags for compiler and linker.
        kernels: the flags of each instruction set.

    Raises:
        BuildError: no compiler, or it failed; the message holds its first lines.
    """
    stamp = library.with_suffix(".digest")
    sources = digest()
    if not extra and library.is_file() and stamp.is_file() and stamp.read_text() == sources:
        return library
    compiler = find_compiler()
    with tempfile.TemporaryDirectory() as room:
        # The source and the flags of each object file.
        objects = {
            "entry": ("entry.cpp", (*WITHOUT_VECTORS, f'-DRG_SOURCES="{sources}"')),
            **{name: (f"{name}.cpp", WITHOUT_VECTORS) for name in ENTRIES},
            **{name: ("kernel.cpp", flags) for name, flags in kernels.items()},
            **{f"rows_{name}": ("rows.cpp", kernels[name]) for name in ROWS if name in kernels},
        }
        commands = [
            [
                *compiler,
                *COMMON,
                *flags,
                *extra,
                "-c",
                str(SOURCE / source),
                "-o",
                f"{room}/{name}.o",
            ]
            for name, (source, flags) in objects.items()
        ]
        _run_all(commands)
        files = [f"{room}/{name}.o" for name in objects]
        _run_all([[*_linker(compiler), "-shared", *files, *extra, "-o", f"{room}/library.so"]])
        library.parent.mkdir(parents=True, exist_ok=True)
        fresh = library.with_suffix(f".{os.getpid()}")
        shutil.copyfile(f"{room}/library.so", fresh)
        fresh.replace(library)  # a process that has loaded the old file keeps it
        stamp.write_text(sources)
    return library


def _linker(compiler: list[str]) -> list[str]:
    """The command that links. The kernel needs no C++ library; Zig would compile one, which takes minutes."""
    if compiler[-2:] == ["ziglang", "c++"]:
        return [*compiler[:-1], "cc", "-Wl,-s"]
    return [*compiler, "-static-libstdc++", "-static-libgcc"]


def newest_glibc(library: Path) -> tuple[int, int] | None:
    """The version of the GNU C library that a built library needs at least; None if it needs none."""
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library.read_bytes())
    return max(((int(major), int(minor)) for major, minor in versions), default=None)


def _run_all(commands: list[list[str]]) -> None:
    try:
        processes = [  # all at once
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for command in commands
        ]
    except OSError as reason:
        raise BuildError(
            f"the compiler {commands[0][0]} could not be started: {reason}"
        ) from reason
    outputs = [process.communicate()[0].decode(errors="replace") for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        if process.returncode:
            lines = "\n".join(output.splitlines()[:20])
            raise BuildError(
                f"the compiler {commands[0][0]} failed with code {process.returncode}:\n{lines}"
            )


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{build()}\n")
    except BuildError as reason:
        sys.exit(
            f"the native backend is not built, so attention is computed by PyTorch alone: {reason}"
        )
