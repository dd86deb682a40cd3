"""Compiles the native backend for a wheel or an editable install; without a compiler it is left out."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("regard", "backends", "native")


class NativeBuild(BuildHookInterface):
    """Adds the library to the wheel, which then fits this platform and any version of Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        spec = importlib.util.spec_from_file_location("build_native", Path(self.root, FOLDER, "build.py"))
        assert spec is not None
        assert spec.loader is not None
        builder = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(builder)
        try:
            library = builder.build()
        except builder.BuildError as reason:
            self.app.display_warning(f"the native backend is left out, and PyTorch computes attention alone: {reason}")
            return
        if version != "editable":
            build_data["artifacts"].append(str(FOLDER / library.name))
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
