"""Compiles the native backend for a wheel or an editable install.

Without a compiler it is left out, and PyTorch computes attention alone. REGARD_NATIVE_BUILD=required makes that an
error; REGARD_NATIVE_BUILD=off leaves it out.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from platform import machine
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("regard", "backends", "native")
SETTING = "REGARD_NATIVE_BUILD"


class NativeBuild(BuildHookInterface):
    """Adds the library to the wheel, which then fits this platform and any version of Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if (setting := os.environ.get(SETTING, "auto")) not in ("auto", "required", "off"):
            raise ValueError(f"{SETTING} is {setting!r}; it is auto, required or off")
        if setting == "off":
            return
        spec = importlib.util.spec_from_file_location(
            "build_native", Path(self.root, FOLDER, "build.py")
        )
        assert spec is not None
        assert spec.loader is not None
        builder = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = builder  # where its dataclasses look themselves up
        spec.loader.exec_module(builder)
        try:
            library = builder.build()
        except builder.BuildError as reason:
            if setting == "required":
                raise
            self.app.display_warning(
                f"the native backend is left out, and PyTorch computes attention alone: {reason}"
            )
            return
        if version != "editable":
            build_data["artifacts"].append(str(FOLDER / library.name))
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform(builder.newest_glibc(library))}"


def platform(glibc: tuple[int, int] | None) -> str:
    """The platform tag of a wheel whose library needs this version of the GNU C library at least.

    It links to nothing else, so on Linux the wheel fits every distribution with that version or a newer one (PEP 600).
    A Python for macOS may be built for Intel and Apple processors at once; the library fits that of this machine alone.
    """
    if sys.platform == "darwin":
        return f"macosx_11_0_{machine()}"
    name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if glibc is None or not name.startswith("linux_"):
        return name
    return name.replace("linux", f"manylinux_{glibc[0]}_{glibc[1]}", 1)
