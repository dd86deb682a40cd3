"""Compiles the C++ sources of this folder into one library, with the compiler of the system or with Zig's.

`make .venv/ready` and `pip install` run this file where a compiler is. It imports nothing of regard, so that it works
before anything is installed: `python regard/backends/native/build.py`. The package `ziglang`, which
`pip install 'regard[compiler]'` brings, is a compiler for systems that have none.

To build for another kind of machine, name its system, its processor and the file to write:
`python regard/backends/native/build.py --system linux --machine aarch64 --library arm.so`. The compiler is Zig's, else
GCC's cross-compiler `aarch64-linux-gnu-g++`; $CXX names another one.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "source"
COMPILERS = ("g++", "c++", "clang++")
OLDEST_GLIBC = "2.18"  # for Zig: the first one that tells C++ when a thread ends
OLDEST_MACOS = "11.0"  # the first one for Apple silicon
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


@dataclass(frozen=True)
class Architecture:
    """The flags for one kind of processor.

    plain: flags of the files that run before the processor is known.
    kernels: flags for each instruction set; the first flag names its C++ namespace.
    """

    plain: tuple[str, ...]
    kernels: Mapping[str, tuple[str, ...]]


def _kernels(
    flags: Mapping[str, tuple[str, ...]], double: tuple[str, ...], pairs: tuple[str, ...] = ()
) -> dict[str, tuple[str, ...]]:
    """The kernels for float32 with these flags, the same for bfloat16, and one for float64.

    pairs: more flags for the last instruction set, for a kernel that multiplies pairs of bfloat16 numbers directly.
    """
    kernels = {}
    for name, own in flags.items():
        kernels[name] = (f"-DRG_SPACE={name}", *own)
        kernels[f"bf16_{name}"] = (f"-DRG_SPACE=bf16_{name}", "-DRG_BF16", *own)
    kernels["wide"] = ("-DRG_SPACE=wide", "-DRG_REAL=double", "-DRG_DOUBLE", *double)
    if pairs:
        kernels["bf16_pairs"] = ("-DRG_SPACE=bf16_pairs", "-DRG_BF16", *own, *pairs)
    return kernels


_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mfma",
    "-mf16c",
    "-mprefer-vector-width=512",
)
# Without the first flag GCC loads the factors of later products too early, runs out of registers,
# and keeps sums in memory. The second flag silences compilers that do not know the first.
_IN_ORDER = ("-fno-schedule-insns", "-Wno-ignored-optimization-argument")
ARCHITECTURES = {
    "x86_64": Architecture(
        ("-mno-avx",),
        _kernels(
            {"avx2": ("-DRG_WIDTH=8", *_AVX2), "avx512": ("-DRG_WIDTH=16", *_AVX512)},
            double=("-DRG_WIDTH=4", *_AVX2),
            pairs=("-mavx512bf16",),
        ),
    ),
    "aarch64": Architecture(
        (), _kernels({"neon": ("-DRG_WIDTH=4", *_IN_ORDER)}, double=("-DRG_WIDTH=2", *_IN_ORDER))
    ),
}
# For any other processor, the compiler chooses the instructions for vectors of 16 bytes.
OTHER = Architecture(
    ("-DRG_GENERIC",),
    _kernels(
        {"generic": ("-DRG_GENERIC", "-DRG_WIDTH=4")}, double=("-DRG_GENERIC", "-DRG_WIDTH=2")
    ),
)
MACH_O = b"\xcf\xfa\xed\xfe"  # the first bytes of a 64-bit library for macOS
BUILD_VERSION = 0x32  # LC_BUILD_VERSION, the load command with the oldest system
ENTRIES = (
    "interpreter",
    "kept_calls",
    "both_passes",
    "few_rows",
    "programs",
)  # sources beside entry.cpp
SAME = {"AMD64": "x86_64", "arm64": "aarch64"}  # names of the same machines in other systems
# The source for AVX-512 built for AVX2, which tests run on every processor; -DRG_LOWERED selects it in entry.cpp.
LOWERED = {
    name: tuple(
        "-mavx2" if flag == "-mavx512f" else flag
        for flag in flags
        # All other flags of AVX-512 are left out: -mavx512bw, -mavx512bf16, -mavx512vl, -mavx512dq.
        if not flag.startswith(("-mavx512b", "-mavx512v", "-mavx512d", "-mprefer"))
    )
    for name, flags in ARCHITECTURES["x86_64"].kernels.items()
}


@dataclass(frozen=True)
class Target:
    """What a library is built for.

    system: "linux" or "darwin", as `sys.platform` names it.
    machine: the processor, as `platform.machine` names it.
    """

    system: str
    machine: str

    def __str__(self) -> str:
        return f"{self.system}-{self.machine}"

    @property
    def processor(self) -> str:
        """One name for a processor that systems name differently: "aarch64" for "arm64" too."""
        return SAME.get(self.machine, self.machine)

    @property
    def is_here(self) -> bool:
        here = THIS_MACHINE
        return (self.system, self.processor) == (here.system, here.processor)

    @property
    def library_name(self) -> str:
        return f"libregard_native.{'dylib' if self.system == 'darwin' else 'so'}"

    @property
    def of_zig(self) -> str:
        """The name that Zig has for it, with the oldest version of the system that the library runs on."""
        if self.system == "darwin":
            return f"{self.processor}-macos.{OLDEST_MACOS}"
        return f"{self.processor}-{self.system}-gnu.{OLDEST_GLIBC}"


THIS_MACHINE = Target(sys.platform, platform.machine())
LIBRARY = HERE / THIS_MACHINE.library_name


class BuildError(Exception):
    """The library could not be built; the message is a sentence for the person who asked for it."""


def digest() -> str:
    """A short hash of sources and flags. A library that carries another one was built from other sources."""
    found = hashlib.sha256(repr((COMMON, ARCHITECTURES, OTHER)).encode())
    for path in sorted(SOURCE.iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def architecture_of(machine: str) -> Architecture:
    """The flags for a machine of this name, as `platform.machine` returns it."""
    return ARCHITECTURES.get(SAME.get(machine, machine), OTHER)


def find_compiler(target: Target = THIS_MACHINE) -> list[str]:
    """The command of a C++ compiler: $CXX, else the first of g++, c++ and clang++, else that of the package ziglang.

    For another machine it is $CXX, else that of the package ziglang, else for Linux GCC's cross-compiler.
    """
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    has_zig = importlib.util.find_spec("ziglang") is not None
    zig = [sys.executable, "-m", "ziglang", "c++"]
    names = COMPILERS
    if not target.is_here:
        if has_zig:
            return [*zig, "-target", target.of_zig]
        names = (f"{target.processor}-linux-gnu-g++",) if target.system == "linux" else ()
    for name in names:
        if found := shutil.which(name):
            return [found]
    if has_zig:
        return zig
    listed = ", ".join((*names, "the package ziglang"))
    purpose = "" if target.is_here else f" for {target.system} on {target.machine}"
    raise BuildError(f"no C++ compiler{purpose} was found ({listed}, or the one named by $CXX)")


def build(
    library: Path = LIBRARY,
    extra: tuple[str, ...] = (),
    kernels: Mapping[str, tuple[str, ...]] | None = None,
    target: Target = THIS_MACHINE,
) -> Path:
    """Compile the library and return its path; an up-to-date file is not compiled again.

    Args:
        library: where it is written.
        extra: more flags for compiler and linker.
        kernels: the flags of each instruction set; those of the machine if omitted.
        target: what it is built for; this machine if omitted.

    Raises:
        BuildError: no compiler, or it failed; the message holds its first lines.
    """
    stamp = library.with_suffix(".digest")
    sources = digest()
    # Zig also needs the oldest system, which no source and no flag of the digest names.
    built_from = sources if target.is_here else f"{sources} {target.of_zig}"
    if not extra and library.is_file() and stamp.is_file() and stamp.read_text() == built_from:
        return library
    architecture = architecture_of(target.machine)
    compiler = find_compiler(target)
    by_target = _target_flags(compiler, target)
    with tempfile.TemporaryDirectory() as room:
        # The source and the flags of each object file.
        objects = {
            "entry": ("entry.cpp", (*architecture.plain, f'-DRG_SOURCES="{sources}"')),
            **{name: (f"{name}.cpp", architecture.plain) for name in ENTRIES},
        }
        for name, flags in (kernels or architecture.kernels).items():
            objects[name] = ("kernel.cpp", flags)
            if not {"-DRG_BF16", "-DRG_DOUBLE"} & set(flags):  # programs compute in float32
                objects[f"rows_{name}"] = ("rows.cpp", flags)
        commands = [
            [
                *compiler,
                *COMMON,
                *flags,
                *by_target,
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
        linked = f"{room}/{target.library_name}"
        linker = [*_linker(compiler, target), *by_target]
        _run_all([[*linker, "-shared", *files, *extra, "-o", linked]])
        library.parent.mkdir(parents=True, exist_ok=True)
        fresh = library.with_suffix(f".{os.getpid()}")
        shutil.copyfile(linked, fresh)
        fresh.replace(library)  # a process that has loaded the old file keeps it
        stamp.write_text(built_from)
    return library


def _is_zig(compiler: list[str]) -> bool:
    return "ziglang" in compiler or Path(compiler[0]).name == "zig"


def _target_flags(compiler: list[str], target: Target) -> list[str]:
    """Flags that name the oldest system; for Zig `-target` names it."""
    if target.system == "darwin" and not _is_zig(compiler):
        return [f"-mmacosx-version-min={OLDEST_MACOS}"]
    return []


def _linker(compiler: list[str], target: Target) -> list[str]:
    """The command that links a library for this target.

    Zig links as for C: for C++ it would first compile the standard C++ library, which takes minutes and which the
    kernel does not need. On macOS the functions of OpenMP are looked up when the library is loaded, and a library
    carries a name, which would otherwise be the path of a temporary folder.
    """
    linker = compiler
    flags = []
    if _is_zig(compiler):
        linker = ["cc" if word == "c++" else word for word in compiler]
        flags = ["-Wl,-s"]  # no paths of object files
    elif target.system != "darwin":
        flags = ["-static-libstdc++", "-static-libgcc"]
    if target.system == "darwin":
        name = f"@rpath/{target.library_name}"
        flags += ["-Wl,-undefined,dynamic_lookup", f"-Wl,-install_name,{name}"]
    return [*linker, *flags]


def newest_glibc(library: Path) -> tuple[int, int] | None:
    """The version of the GNU C library that a built library needs at least; None if it needs none."""
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library.read_bytes())
    return max(((int(major), int(minor)) for major, minor in versions), default=None)


def oldest_macos(library: Path) -> tuple[int, int] | None:
    """The oldest macOS that a built library runs on, as its load commands say; None if it is not for macOS."""
    content = library.read_bytes()
    if content[:4] != MACH_O:
        return None
    (count,) = struct.unpack_from("<I", content, 16)
    place = 32  # behind the header
    for _ in range(count):
        command, size = struct.unpack_from("<II", content, place)
        if command == BUILD_VERSION:
            (version,) = struct.unpack_from("<I", content, place + 12)
            return version >> 16, version >> 8 & 0xFF
        place += size
    return None


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


def main() -> None:
    """Build the library that the command line asks for."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument(
        "--system", default=sys.platform, help="what it is built for: linux or darwin"
    )
    options.add_argument(
        "--machine", default=platform.machine(), help="its processor, such as x86_64 or aarch64"
    )
    options.add_argument("--library", type=Path, default=LIBRARY, help="where it is written")
    chosen = options.parse_args()
    try:
        path = build(chosen.library, target=Target(chosen.system, chosen.machine))
    except BuildError as reason:
        sys.exit(
            f"the native backend is not built, so attention is computed by PyTorch alone: {reason}"
        )
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
