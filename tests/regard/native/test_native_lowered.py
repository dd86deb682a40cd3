"""The source for AVX-512 runs on every processor with AVX2: built for AVX2, with the tiles of AVX-512, it gives the
bits of the kernel for AVX2, and passes the random calls."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.backends.native import backend
from regard.backends.native.build import LIBRARY, LOWERED, build
from regard.backends.native.library import Library, load

from .calls import AVX2, BEST
from .test_native_bits import PATTERNS, BitsCase, broken
from .test_native_sanitized import disassembled, fuzz, register_width

# it builds a library; where there is AVX-512, test_native_bits.py compares both
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lowered(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("lowered") / "lowered.so"
    return build(path, extra=("-O1", "-DRG_LOWERED"), kernels=LOWERED)


@pytest.fixture
def handle(lowered, monkeypatch, fresh_plans) -> Any:
    """The functions of that library, which computes every plan of the test."""
    library = load(lowered)
    assert isinstance(library, Library)
    assert library.tile == (12, 32)
    monkeypatch.setattr(backend, "load", lambda: library)
    return library.handle


def widest_of_avx512(library: Path) -> int:
    functions = disassembled(library).items()
    return max(register_width(code) for name, code in functions if "avx512::" in name)


def test_it_has_no_instruction_of_avx512(lowered):
    assert widest_of_avx512(lowered) == 256
    assert widest_of_avx512(LIBRARY) == 512


def test_its_tiles_give_the_bits_of_avx2(handle):
    def with_each(case: BitsCase, draw: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
        handle.rg_use_instructions(AVX2)
        of_avx2 = case.outputs_and_gradients()
        handle.rg_use_instructions(BEST)
        return of_avx2, case.outputs_and_gradients()

    assert not [*broken(with_each, PATTERNS, 60)]


def test_random_and_damaged_calls_compute_or_are_refused_by_it(lowered):
    done = fuzz(lowered, 120, seed=30_000)
    assert done.returncode == 0, done.stderr[-2000:]
