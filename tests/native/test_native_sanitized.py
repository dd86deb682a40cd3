"""Random and damaged calls run through the library as it is, and through a build with sanitizers; the library for every
processor holds no instruction that only some processors have."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.backends.native.build import LIBRARY, build, find_compiler

FUZZ = Path(__file__).with_name("fuzz_native.py")
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
PLANTED = "-DRG_PLANTED_FAULT"  # reads one register behind the keys, see packing.h


def fuzz(library: Path, cases: int, preload: str = "", seed: int = 0) -> subprocess.CompletedProcess[str]:
    room = {**os.environ, "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, str(FUZZ), str(library), str(cases), str(seed)]
    return subprocess.run(command, env=room, capture_output=True, text=True, check=False)


def runtimes() -> str:
    """The sanitizers' libraries, which a process must load first."""
    names = ("libasan.so", "libubsan.so")
    found = [
        subprocess.run([*find_compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        for name in names
    ]
    return " ".join(one.stdout.strip() for one in found)


def test_random_and_damaged_calls_compute_or_are_refused():
    done = fuzz(LIBRARY, 300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "300 calls" in done.stdout


@pytest.mark.slow
def test_random_and_damaged_calls_are_clean_under_sanitizers(tmp_path):
    library = build(tmp_path / "sanitized.so", extra=SANITIZERS)
    done = fuzz(library, 2000, runtimes(), seed=10_000)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_sanitizers_notice_a_planted_fault(tmp_path):
    library = build(tmp_path / "faulty.so", extra=(*SANITIZERS, PLANTED))
    done = fuzz(library, 200, runtimes())
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr


def disassembled() -> dict[str, str]:
    """The instructions of every function of the library, by its name."""
    objdump = shutil.which("objdump")
    assert objdump is not None, "binutils come with every compiler"
    text = subprocess.run([objdump, "-d", "-C", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"\n[0-9a-f]+ <(.+)>:\n", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_instructions_of_some_processors_stay_in_their_namespaces():
    functions = disassembled()
    wide = {name for name, code in functions.items() if "%zmm" in code or "%k1" in code}
    ours = {name for name, code in functions.items() if "%ymm" in code}
    assert wide
    assert ours - wide
    assert all("avx512::" in name for name in wide), wide
    assert all(name.startswith(("avx2::", "avx512::", "wide::")) or "::" in name for name in ours)
    common = {name for name in functions if not re.search(r"\b(avx2|avx512|wide)::", name)}
    assert "rg_forward" in common
    assert not [name for name in common if "%ymm" in functions[name] or "%zmm" in functions[name]]
