"""Random and damaged calls run through the library as it is, and through a build with sanitizers; the library for every
processor holds no instruction that only some processors have."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.backends.native.build import LIBRARY, build, find_compiler

FUZZ = Path(__file__).with_name("fuzz_native.py")
# Threads of the system instead of OpenMP's, which the sanitizer of threads cannot follow into its library.
THREADS = ("-O1", "-g", "-fsanitize=thread", "-fno-omit-frame-pointer", "-DRG_OWN_THREADS")
SANITIZERS = (
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)
PLANTED = "-DRG_PLANTED_FAULT"  # reads one register behind the keys, see packing.h
RACE = "-DRG_PLANTED_RACE"  # threads take their turns without an atomic operation, see tasks.h


def fuzz(
    library: Path, cases: int, preload: str = "", seed: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run `fuzz_native.py` in a process that has loaded these libraries of sanitizers before."""
    command = [sys.executable, str(FUZZ), str(library), str(cases), str(seed)]
    environment = {**os.environ, "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0"}
    environment["OMP_NUM_THREADS"] = "2"
    if "tsan" in preload:
        command = ["setarch", "--addr-no-randomize", *command]  # its memory lies at fixed addresses
        # Python, PyTorch and the C library wait for each other in ways that it was not built into and cannot see. Its
        # findings in them are left out, and PyTorch gets no threads beside those of the kernel.
        environment["TSAN_OPTIONS"] = "halt_on_error=1 ignore_noninstrumented_modules=1"
        environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def printed_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def runtimes(*names: str) -> str:
    """The sanitizers' libraries, which a process must load first."""
    compiler = find_compiler()
    return " ".join(printed_by(*compiler, f"-print-file-name={name}").strip() for name in names)


def test_random_and_damaged_calls_compute_or_are_refused():
    done = fuzz(LIBRARY, 80)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "80 calls" in done.stdout


@pytest.mark.slow
def test_random_and_damaged_calls_are_clean_under_sanitizers(tmp_path):
    library = build(tmp_path / "sanitized.so", extra=SANITIZERS)
    done = fuzz(library, 2000, runtimes("libasan.so", "libubsan.so"), seed=10_000)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_sanitizers_notice_a_planted_fault(tmp_path):
    library = build(tmp_path / "faulty.so", extra=(*SANITIZERS, PLANTED))
    done = fuzz(library, 200, runtimes("libasan.so", "libubsan.so"))
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr


@pytest.mark.slow
def test_threads_do_not_read_what_others_write(tmp_path):
    library = build(tmp_path / "threads.so", extra=THREADS)
    done = fuzz(library, 600, runtimes("libtsan.so"), seed=20_000)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "600 calls" in done.stdout


@pytest.mark.slow
def test_the_sanitizer_of_threads_notices_a_planted_race(tmp_path):
    library = build(tmp_path / "racing.so", extra=(*THREADS, RACE))
    done = fuzz(library, 200, runtimes("libtsan.so"))
    assert done.returncode != 0
    assert "ThreadSanitizer: data race" in done.stderr


def disassembled(library: Path = LIBRARY) -> dict[str, str]:
    """The instructions of every function of the library, by its name."""
    objdump = shutil.which("objdump")
    assert objdump is not None, "binutils come with every compiler"
    parts = re.split(r"\n[0-9a-f]+ <(.+)>:\n", printed_by(objdump, "-d", "-C", str(library)))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def register_width(code: str) -> int:
    """The bits of the widest registers in use: 512 of AVX-512, 256 of AVX, or 128 of older instruction sets."""
    if re.search(r"%zmm|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b", code):
        return 512
    return 256 if re.search(r"%ymm|\tv[a-z]", code) else 128


# The namespaces of functions that only some processors run, and the widest registers in each.
WIDTHS = {
    "avx512": 512,
    "avx2": 256,
    "wide": 256,
    "bf16_avx2": 256,
    "bf16_avx512": 512,
    "bf16_pairs": 512,
}


def namespaces_of(function: str) -> set[str]:
    return set(re.findall(r"\b(\w+)::", function)) & set(WIDTHS)


def test_instructions_of_some_processors_stay_in_their_namespaces():
    functions = disassembled()
    widest = dict.fromkeys(WIDTHS, 0)
    for name, code in functions.items():
        width = register_width(code)
        namespaces = namespaces_of(name)
        assert namespaces or width == 128, name
        for namespace in namespaces:
            widest[namespace] = max(widest[namespace], width)
    assert widest == WIDTHS
    assert "rg_forward" in functions  # in no namespace


def test_products_of_bfloat16_pairs_stay_in_their_namespace():
    names = {name for name, code in disassembled().items() if "vdpbf16ps" in code}
    assert names
    assert all("bf16_pairs" in namespaces_of(name) for name in names)
