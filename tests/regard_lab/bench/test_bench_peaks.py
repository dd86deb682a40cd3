"""Peaks are of this processor, and families are told apart by their numbers."""

import pytest
import torch

from regard.backends.native.build import BuildError
from regard_lab.bench import peaks
from regard_lab.bench.processors import family

AMD = "vendor_id\t: AuthenticAMD\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: AMD EPYC\n"
INTEL = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {}\n"


@pytest.mark.parametrize(
    ("info", "name"),
    [
        (AMD.format(25, 17), "Zen 4"),
        (AMD.format(25, 1), "Zen 3"),
        (AMD.format(25, 0x61), "Zen 4"),
        (AMD.format(26, 2), "Zen 5"),
        (AMD.format(23, 0x31), "Zen 2"),
        (AMD.format(99, 2), "AMD family 99"),
        (INTEL.format(143), "Sapphire Rapids"),
        (INTEL.format(999), "Intel model 999"),
        ("CPU part\t: 0xd0c\n", "Neoverse N1"),
        ("CPU part\t: 0xfff\n", "Arm part 0xfff"),
        ("", "unknown"),
    ],
)
def test_a_family_is_read_from_what_linux_says(info, name):
    assert family(info) == name


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(peaks, "ROUNDS", 2)
    monkeypatch.setattr(peaks, "OPERATIONS", 50_000_000)
    monkeypatch.setattr(peaks, "PRODUCT", 256)
    monkeypatch.setattr(peaks, "BYTES", 2**22)


def test_sums_in_registers_are_faster_than_half_of_a_product(quick):
    """A loop whose sums left the registers would be many times slower."""
    measured = peaks.measure_peaks()
    assert measured.float32 > 0.5 * measured.product
    assert min(measured.bfloat16, measured.copy, measured.sum) > 0
    assert {measured.float32_by, measured.bfloat16_by} <= {peaks.LOOP, peaks.PYTORCH}
    assert str(measured).startswith(f"float32 {measured.float32:.0f} GF/s ({measured.float32_by})")


def test_without_a_compiler_the_product_of_pytorch_is_the_peak(quick, monkeypatch):
    def fails():
        raise BuildError("no compiler")

    monkeypatch.setattr(peaks, "find_compiler", fails)
    threads = torch.get_num_threads()
    measured = peaks.measure_peaks()
    assert measured.float32_by == measured.bfloat16_by == peaks.PYTORCH
    assert measured.float32 == measured.product
    assert torch.get_num_threads() == threads
