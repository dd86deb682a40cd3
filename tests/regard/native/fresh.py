"""Wheels and source distributions of this tree, and new environments that install them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import torch

ROOT = Path(__file__).parents[3]
USE = """
import torch, regard as rg
q = torch.randn(1, 2, 40, 8)
plan = rg.plan_attention(q, q, q, pattern="causal")
found, expected = (rg.attention(q, q, q, pattern="causal", backend=name) for name in ("auto", "reference"))
assert (found - expected).abs().max() < 1e-5
print(rg.__file__, plan.backend)
"""


def distribution(kind: str, folder: Path, setting: str = "auto") -> Path:
    """A wheel or a source distribution of this tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    room = {**os.environ, "REGARD_NATIVE_BUILD": setting}
    done = subprocess.run(command, cwd=ROOT, env=room, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.iterdir()
    return found


def copied(folder: Path) -> Path:
    """The files of this tree that git knows, in another folder: nothing is compiled there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


class Fresh:
    """A new environment that sees the packages of this one, but neither regard nor a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder, packages = folder, folder / "packages"
        venv.create(folder / "room", with_pip=False)
        packages.mkdir()
        for path in Path(torch.__file__).parents[1].iterdir():
            if "regard" not in path.name and "ziglang" not in path.name:
                (packages / path.name).symlink_to(path)
        (site,) = (folder / "room").glob("lib/python*/site-packages")
        (site / "others.pth").write_text(f"{packages}\n")
        (folder / "empty").mkdir()

    def run(self, *command: str, path: str | None = None, fails: bool = False) -> str:
        """What a command prints, with these programs on its path; none of them if not given."""
        room = {name: value for name, value in os.environ.items() if name not in ("CXX", "PYTHONPATH")}
        room["PATH"] = str(self.folder / "empty") if path is None else path
        program, *words = command
        full = [str(self.folder / "room" / "bin" / program), *words]
        done = subprocess.run(full, cwd=self.folder, env=room, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self, *what: Path | str, path: str | None = None, fails: bool = False) -> str:
        """Install without an index: PyTorch and the build system are there already, and nothing is fetched."""
        words = "install", "--no-index", "--no-build-isolation", "--verbose", *map(str, what)
        return self.run("python", "-m", "pip", *words, path=path, fails=fails)
