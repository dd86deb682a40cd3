"""The name and the family of the processor, as the operating system gives them."""

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
        found = of_linux(_cpuinfo())
    return found or platform.processor() or platform.machine() or "unknown"


def _cpuinfo() -> str:
    """What Linux says of the processors; empty elsewhere."""
    file = Path("/proc/cpuinfo")
    return file.read_text("utf-8", "replace") if file.exists() else ""


def _fields(cpuinfo: str) -> dict[str, str]:
    """The fields of the first processor in the text of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def of_linux(cpuinfo: str) -> str:
    """The name in the text of /proc/cpuinfo; empty if it has none.

    >>> of_linux("model name : AMD EPYC 9R14")
    'AMD EPYC 9R14'
    >>> of_linux("CPU implementer : 0x41\\nCPU part : 0xd40"), of_linux("CPU implementer : 0x48\\nCPU part : 0xd01")
    ('Arm Neoverse V1', 'Arm processor 0x48 0xd01')
    """
    values = _fields(cpuinfo)
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


# AMD's families by number; a name holds from its model number to the next.
_AMD = {
    23: ((0, "Zen"), (0x30, "Zen 2")),
    25: (
        (0, "Zen 3"),
        (0x10, "Zen 4"),
        (0x20, "Zen 3"),
        (0x60, "Zen 4"),
        (0x80, "Zen 3"),
        (0xA0, "Zen 4"),
    ),
    26: ((0, "Zen 5"),),
}
# Intel's of family 6, by number.
_INTEL = {
    63: "Haswell",
    79: "Broadwell",
    85: "Skylake or Cascade Lake",
    106: "Ice Lake",
    143: "Sapphire Rapids",
    173: "Granite Rapids",
    207: "Emerald Rapids",
}


def family(info: str | None = None) -> str:
    """The family of the processor, by which figures can be compared; "unknown" where the system does not report it.

    Args:
        info: the text that Linux gives in /proc/cpuinfo; that of this machine by default.

    >>> family("vendor_id : AuthenticAMD\\ncpu family : 25\\nmodel : 17\\n")
    'Zen 4'
    """
    if info is None:
        info = _cpuinfo()
    fields = _fields(info)
    if "CPU part" in fields:
        part = int(fields["CPU part"], 16)
        maker = int(fields.get("CPU implementer", "0x41"), 16)
        name = ARM.get((maker, part))
        return f"Arm part {fields['CPU part']}" if name is None else name.removeprefix("Arm ")
    number = int(fields.get("cpu family", 0))
    model = int(fields.get("model", 0))
    if fields.get("vendor_id") == "AuthenticAMD":
        names = [name for first, name in _AMD.get(number, ()) if model >= first]
        return names[-1] if names else f"AMD family {number}"
    if fields.get("vendor_id") == "GenuineIntel":
        return _INTEL.get(model, f"Intel model {model}")
    return "unknown"
