"""A Python for 64-bit Arm that qemu runs on this machine, in a folder that git ignores.

    python -m shipping.emulated --fetch     brings it: packages of Debian, PyTorch and NumPy

It needs Debian 12 with the package qemu-user-static.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import ROOT

FOLDER = ROOT / "runs" / "arm"
QEMU = ("qemu-aarch64-static", "qemu-aarch64")
PROCESSOR = "neoverse-n1"
DEBIAN = (
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "libssl3",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "liblzma5",
    "libbz2-1.0",
    "libuuid1",
    "zlib1g",
)
# The newest PyTorch whose wheel for Arm needs no library of CUDA: later ones have 420 MB. It is older than the oldest
# one that regard supports, and has everything that the kernel uses.
TORCH = "torch==2.10.0"
NUMPY = "numpy==2.4.6"
# What PyTorch and the cases of the tests import besides; it is pure Python.
PURE_PACKAGES = (
    *("typing_extensions", "sympy==1.14.0", "mpmath", "networkx", "filelock", "fsspec"),
    *("pytest", "pluggy", "iniconfig", "packaging", "pygments"),
)
SIZES = {  # in MB
    f"15 lists and {len(DEBIAN)} packages of Debian": 31,
    TORCH: 146,
    NUMPY: 16,
    f"{len(PURE_PACKAGES)} packages of pure Python": 12,
}


class MissingError(Exception):
    """Something that emulation needs is not installed; the message is a sentence."""


class Emulated:
    """The folder of a Python for Arm: `system` holds Debian's packages, `packages` those of Python."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder.resolve()
        self.system = self.folder / "system"
        self.packages = self.folder / "packages"

    @property
    def python(self) -> Path:
        return self.system / "usr" / "bin" / "python3.11"

    @property
    def is_fetched(self) -> bool:
        return self.system.is_dir() and self.packages.is_dir()

    @property
    def missing(self) -> str | None:
        """What is missing to run it, in a sentence."""
        if not any(map(shutil.which, QEMU)):
            return f"{QEMU[0]} is not installed (Debian's package qemu-user-static)"
        if not self.is_fetched:
            return (
                f"no Python for Arm in {shown(self.folder)}; "
                f"`python -m shipping.emulated --fetch` brings it ({sum(SIZES.values())} MB)"
            )
        return None

    def fetch(self) -> None:
        """Bring what is missing; what comes, and how large it is, is printed before."""
        for what, size in SIZES.items():
            print(f"{size:4} MB  {what}")
        print(f"{sum(SIZES.values()):4} MB  in all, into {shown(self.folder)}", flush=True)
        if not self.system.is_dir():
            self._fetch_system()
        if not self.packages.is_dir():
            self._fetch_packages()

    def _fetch_system(self) -> None:
        lists = self.folder / "lists"
        archives = self.folder / "archives"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        archives.mkdir(exist_ok=True)
        options = [f"-oAPT::{name}=arm64" for name in ("Architecture", "Architectures")]
        apt = ("apt-get", "-qq", *options, f"-oDir::State::Lists={lists}")
        subprocess.run([*apt, "update"], check=True)
        subprocess.run([*apt, "download", *DEBIAN], check=True, cwd=archives)
        partial = self._empty("system.partial")
        for archive in sorted(archives.glob("*.deb")):
            subprocess.run(["dpkg", "-x", archive, partial], check=True)
        partial.rename(self.system)

    def _fetch_packages(self) -> None:
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:")
        arm = ("--platform", "manylinux_2_28_aarch64", "--platform", "manylinux_2_27_aarch64")
        partial = self._empty("packages.partial")
        options = (*arm, "--python-version", "3.11", "--target", str(partial))
        subprocess.run([*pip, *options, TORCH, NUMPY, *PURE_PACKAGES], check=True)
        partial.rename(self.packages)

    def _empty(self, name: str) -> Path:
        """An empty folder, which gets its final name when it is complete: an interrupted download begins again."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def run(
        self, *words: str | Path, paths: Sequence[Path] = (), folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these words on its command line; `paths` come before its packages.

        Raises:
            MissingError: it cannot run here.
        """
        if (reason := self.missing) is not None:
            raise MissingError(reason)
        qemu = next(filter(None, map(shutil.which, QEMU)))
        libraries = self.system / "usr" / "lib" / "aarch64-linux-gnu"
        command = [
            *(qemu, "-cpu", PROCESSOR, "-L", self.system),
            *("-E", f"LD_LIBRARY_PATH={libraries}", self.python, *words),
        ]
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (*paths, self.packages)))
        # Compiled modules are kept: emulated, compiling those of PyTorch takes most of the time of its start.
        environment["PYTHONPYCACHEPREFIX"] = str(self.folder / "pycache")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.run(
            list(map(str, command)),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def shown(path: Path) -> str:
    """A path as it is printed: below this tree, relative to it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m shipping.emulated",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fetch", action="store_true", help="bring what is missing")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    chosen = parser.parse_args(words)
    arm = Emulated(chosen.folder)
    if not any(map(shutil.which, QEMU)):
        print(f"nothing is brought: {arm.missing}")
        return
    if chosen.fetch and not arm.is_fetched:
        try:
            arm.fetch()
        except subprocess.CalledProcessError as error:
            command = " ".join(map(str, error.cmd[:4]))
            raise SystemExit(
                f"{command} ... failed with code {error.returncode}; run this again: it brings what is still missing"
            ) from None
    if arm.missing is not None:
        print(arm.missing)
        return
    done = arm.run("-c", "import platform, torch; print(platform.machine(), torch.__version__)")
    print(done.stdout.strip() or done.stderr[-2000:])


if __name__ == "__main__":
    main(sys.argv[1:])
