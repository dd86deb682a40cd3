"""Installs a wheel into a clean environment, here or in a Python for Arm under qemu, and computes there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pip
import torch

from regard.backends.native.build import THIS_MACHINE

from .checking import require
from .emulated import Emulated

# Computes with the best backend and by the reference, and checks the native backend by formulas. It runs with the
# compiled library, and again without it.
USE = """
import json, platform, torch, regard as rg
from regard.testing.health import check_backend
q = torch.randn(1, 2, 40, 8)
plan = rg.plan_attention(q, q, q, pattern="causal")
output = rg.attention(q, q, q, pattern="causal")
expected = rg.attention(q, q, q, pattern="causal", backend="reference")
layer = rg.MultiHeadAttention(16, 2, pattern="causal", positions=rg.positions.Rotary())
cache = layer.new_cache(batch=1)
x = torch.randn(1, 5, 16)
with torch.no_grad():
    steps = torch.cat([layer(x[:, i : i + 1], cache=cache) for i in range(5)], 1)
    whole = layer(x)
native = check_backend("native")
print(json.dumps({
    "file": rg.__file__,
    "machine": platform.machine(),
    "backend": plan.backend,
    "native": native.status,
    "wrong": native.wrong,
    "error": max((output - expected).abs().max().item(), (steps - whole).abs().max().item()),
}))
"""
# For other machines: the tag that pip gets, and the wheel that it has to choose.
ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "a Mac with Apple silicon": ("macosx_14_0_arm64", "darwin-arm64"),
    "x86-64 with the GNU C library 2.17": ("manylinux_2_17_x86_64", "pure"),
    "Alpine Linux": ("musllinux_1_2_x86_64", "pure"),
    "Windows": ("win_amd64", "pure"),
}


def is_native(path: Path) -> bool:
    """Whether this machine loads the kernel of a wheel, or the wheel has none."""
    tag = path.stem.rpartition("-")[2]
    here = "manylinux" if THIS_MACHINE.system == "linux" else "macosx"
    return tag == "any" or (tag.startswith(here) and tag.endswith(THIS_MACHINE.machine))


def is_for_arm(path: Path) -> bool:
    tag = path.stem.rpartition("-")[2]
    return tag.startswith("manylinux") and tag.endswith("aarch64")


class CleanEnvironment:
    """A new environment of this machine that sees the packages of this one, but not regard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        packages = folder / "packages"
        packages.mkdir(parents=True)
        venv.create(folder / "room", with_pip=False)
        for path in Path(torch.__file__).parents[1].iterdir():
            if "regard" not in path.name:
                (packages / path.name).symlink_to(path)
        (site,) = (folder / "room").glob("lib/python*/site-packages")
        (site / "others.pth").write_text(f"{packages}\n", "utf-8")

    def run(self, *words: str | Path) -> str:
        """What its Python prints with these words."""
        environment = dict(os.environ)
        environment.pop("PYTHONPATH", None)
        python = self.folder / "room" / "bin" / "python"
        done = subprocess.run(
            [str(python), *map(str, words)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        require(done.returncode == 0, done.stdout + done.stderr[-2000:])
        return done.stdout

    def install(self, *words: str | Path) -> str:
        return self.run("-m", "pip", "install", "--no-index", "--no-deps", *words)


class ArmEnvironment:
    """A folder for the packages of the emulated Python, without regard."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site"
        # Only pip of this environment, which is pure Python.
        self.tools = folder / "tools"
        self.tools.mkdir(parents=True)
        (self.tools / "pip").symlink_to(Path(pip.__file__).parent)

    def run(self, *words: str | Path) -> str:
        paths = [self.site, self.tools]
        done = Emulated().run("-W", "ignore", *words, paths=paths, folder=self.tools)
        require(done.returncode == 0, done.stdout + done.stderr[-2000:])
        return done.stdout

    def install(self, *words: str | Path) -> str:
        options = ("--no-index", "--no-deps", "--target", self.site)
        return self.run("-m", "pip", "install", *options, *words)


def try_wheel(path: Path) -> str:
    """Install a wheel and compute with it, then remove its library and compute again; a sentence says where."""
    with tempfile.TemporaryDirectory() as folder:
        if is_native(path):
            environment: CleanEnvironment | ArmEnvironment = CleanEnvironment(Path(folder))
            where = "installed and computed here"
        elif is_for_arm(path):
            if (reason := Emulated().missing) is not None:
                return f"not tried, since {reason}"
            environment = ArmEnvironment(Path(folder))
            where = "installed and computed under qemu"
        else:
            return "not tried: no machine for it is here"
        environment.install(path)
        has_kernel = not path.stem.endswith("-any")
        use = used(environment)
        expected = ("native", "ok") if has_kernel else ("fused", "refused")
        require((use["backend"], use["native"]) == expected, f"{path.name} computes by {use}")
        if not has_kernel:
            return f"{where} by PyTorch"
        for library in Path(use["file"]).parent.glob("backends/native/libregard_native.*"):
            library.unlink()
        use = used(environment)
        without = (use["backend"], use["native"]) == ("fused", "refused")
        require(without, f"{path.name} computes by {use} without its library")
        return f"{where} on {use['machine']}, and without its library by PyTorch"


def used(environment: CleanEnvironment | ArmEnvironment) -> dict[str, Any]:
    """What the installed package computes with."""
    use = json.loads(environment.run("-c", USE).splitlines()[-1])
    require(use["error"] < 1e-5 and not use["wrong"], f"the installed package is wrong: {use}")
    return use


def choices_of_pip(wheels: Mapping[str, Path]) -> list[str]:
    """Which of these wheels pip chooses here, under qemu and for other machines; sentences.

    Raises:
        WrongArchiveError: it chooses one whose kernel the machine cannot load, or none.
    """
    (folder,) = {path.parent for path in wheels.values()}
    sentences = []
    with tempfile.TemporaryDirectory() as room:
        name = f"{THIS_MACHINE.system}-{THIS_MACHINE.machine}"
        if name in wheels:
            here = CleanEnvironment(Path(room, "here"))
            printed = here.install("--find-links", folder, "regard")
            sentences.append(_chosen("this machine", printed, wheels[name]))
        if "linux-aarch64" in wheels and Emulated().missing is None:
            arm = ArmEnvironment(Path(room, "arm"))
            printed = arm.install("--find-links", folder, "regard")
            sentences.append(_chosen("emulated Arm", printed, wheels["linux-aarch64"]))
    for where, (tag, name) in ELSEWHERE.items():
        if name in wheels:
            sentences.append(_chosen(where, _downloaded(tag, folder), wheels[name]))
    return sentences


def _downloaded(tag: str, folder: Path) -> str:
    """What pip prints when it downloads regard for machines with this tag; the folder is its only index."""
    with tempfile.TemporaryDirectory() as room:
        options = ("--no-index", "--no-deps", "--only-binary", ":all:", "--platform", tag)
        command = [sys.executable, "-m", "pip", "download", *options, "-d", room]
        command += ["--find-links", str(folder), "regard"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr


def _chosen(where: str, printed: str, path: Path) -> str:
    require(path.name in printed, f"on {where} pip did not choose {path.name}: {printed[-500:]}")
    return f"pip chooses {path.name} on {where}"
