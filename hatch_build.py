"""Compiles the native backend for a wheel or an editable install.

Without a compiler it is left out, and PyTorch computes attention alone. REGARD_NATIVE_BUILD=required makes that an
error; REGARD_NATIVE_BUILD=off leaves it out. REGARD_NATIVE_TARGET=linux-aarch64 builds a wheel for another machine:
its system, linux or darwin, and its processor.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("regard", "backends", "native")
SETTING = "REGARD_NATIVE_BUILD"
TARGET = "REGARD_NATIVE_TARGET"
SYSTEMS = ("linux", "darwin")
FOREIGN = Path("runs", "native")  # libraries for other machines, kept between builds


class NativeBuild(BuildHookInterface):
    """Adds the library to the wheel, which then fits one platform and any version of Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if (setting := os.environ.get(SETTING, "auto")) not in ("auto", "required", "off"):
            raise ValueError(f"{SETTING} is {setting!r}; it is auto, required or off")
        if setting == "off":
            return
        builder = load_builder(Path(self.root, FOLDER, "build.py"))
        target = target_of(os.environ.get(TARGET), builder)
        library = builder.LIBRARY
        if not target.is_here:
            library = Path(self.root, FOREIGN, str(target), target.library_name)
        try:
            builder.build(library, target=target)
        except builder.BuildError as reason:
            if setting == "required" or not target.is_here:
                raise
            self.app.display_warning(
                f"the native backend is left out, and PyTorch computes attention alone: {reason}"
            )
            return
        if version == "editable":
            return
        if target.is_here:
            build_data["artifacts"].append(str(FOLDER / library.name))
        else:
            build_data["force_include"][str(library)] = str(FOLDER / library.name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(target, library, builder)}"


def load_builder(path: Path) -> ModuleType:
    """build.py of the tree that is built, which need not be installed."""
    spec = importlib.util.spec_from_file_location("build_native", path)
    assert spec is not None
    assert spec.loader is not None
    builder = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = builder  # where its dataclasses look themselves up
    spec.loader.exec_module(builder)
    return builder


def target_of(setting: str | None, builder: ModuleType) -> Any:
    """The target that the setting names; this machine without a setting."""
    if setting is None:
        return builder.THIS_MACHINE
    system, _, machine = setting.partition("-")
    if system not in SYSTEMS or not machine:
        raise ValueError(
            f"{TARGET} is {setting!r}; it is a system, {' or '.join(SYSTEMS)}, and a processor, "
            "such as linux-aarch64 or darwin-arm64"
        )
    return builder.Target(system, machine)


def platform_tag(target: Any, library: Path, builder: ModuleType) -> str:
    """The platform tag of a wheel with this library, by the oldest system that the library itself names.

    On Linux it links to the GNU C library alone, so the wheel fits every distribution with the version that the library
    needs or a newer one (PEP 600). A Python for macOS may be built for Intel and Apple processors at once; the library
    fits one of them.
    """
    if target.system == "darwin":
        version = builder.oldest_macos(library)
        assert version is not None, f"{library} does not say which macOS it is for"
        machine = "arm64" if target.processor == "aarch64" else target.machine
        return f"macosx_{version[0]}_{version[1]}_{machine}"
    needed = builder.newest_glibc(library)
    if target.system == "linux" and needed is not None:
        return f"manylinux_{needed[0]}_{needed[1]}_{target.machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
