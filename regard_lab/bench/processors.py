"""The name of the processor, as the operating system gives it."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

# Linux on Arm gives two numbers instead of a name: one for the maker, one for the processor.
ARM: Mapping[tuple[int, int], str] = {
    (0x41, 0xD07): "Arm Cortex-A57",
    (0x41, 0xD08): "Arm Cortex-A72",
    (0x41, 0xD0B): "Arm Cortex-A76",
    (0x41, 0xD0C): "Arm Neoverse N1",
    (0x41, 0xD40): "Arm Neoverse V1",
    (0x41, 0xD49): "Arm Neoverse N2",
    (0x41, 0xD4F): "Arm Neoverse V2",
    (0x41, 0xD83): "Arm Neoverse V3",
    (0x41, 0xD8E): "Arm Neoverse N3",
    (0x61, 0x022): "Apple M1",
    (0x61, 0x023): "Apple M1",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}


def processor() -> str:
    """The name of the processor and its widest vector instructions, as far as the system gives them."""
    return f"{_name()}, {torch.backends.cpu.get_cpu_capability()}"


def _name() -> str:
    if sys.platform == "darwin":
        found = _of_macos()
    else:
        info = Path("/proc/cpuinfo")
        found = of_linux(info.read_text("utf-8", "replace")) if info.exists() else ""
    return found or platform.processor() or platform.machine() or "unknown"


def of_linux(cpuinfo: str) -> str:
    """The name in the text of /proc/cpuinfo; empty if it has none.

    >>> of_linux("model name : AMD EPYC 9R14")
    'AMD EPYC 9R14'
    >>> of_linux("CPU implementer : 0x41\\nCPU part : 0xd40"), of_linux("CPU implementer : 0x48\\nCPU part : 0xd01")
    ('Arm Neoverse V1', 'Arm processor 0x48 0xd01')
    """
    values = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    if "model name" in values:
        return values["model name"]
    implementer, part = values.get("CPU implementer"), values.get("CPU part")
    if implementer is None or part is None:
        return values.get("Hardware", "")
    numbers = int(implementer, 16), int(part, 16)
    return ARM.get(numbers, f"Arm processor {implementer} {part}")


def _of_macos() -> str:
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
