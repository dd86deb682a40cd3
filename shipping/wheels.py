"""Builds the wheels for every machine on one Linux machine, opens and checks each, and tries those that it can run.

    python -m shipping.wheels                              all of them, into dist/
    python -m shipping.wheels --only linux-aarch64 pure    some of them

They are made from the source distribution, so that it is known to be whole. Zig compiles for other machines. The wheel
for 64-bit Arm is tried under qemu if `python -m shipping.emulated --fetch` has brought a Python for it; nothing here
runs a library for macOS.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regard.backends.native.build import LIBRARY, THIS_MACHINE, BuildError, Target, build

from . import ROOT
from .checking import WrongArchiveError, check_sdist, check_wheel
from .trying import choices_of_pip, try_wheel

PURE = "pure"
NAMES = ("linux-x86_64", "linux-aarch64", "darwin-arm64", PURE)
COMPILED = ROOT / "runs" / "native"  # libraries for other machines
TOOLS = ("pip", "hatchling", "auditwheel", "ziglang")  # modules that are run as programs
HASHES = "SHA256SUMS"


@dataclass(frozen=True)
class Built:
    """A wheel, the remarks of its check, and where it was tried."""

    name: str
    path: Path
    remarks: tuple[str, ...]
    tried: str


def require_tools(tools: Sequence[str] = TOOLS) -> None:
    """Say which tools are not installed, before anything is built.

    Raises:
        SystemExit: one or more are missing.
    """
    missing = [name for name in tools if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"nothing is built: {', '.join(missing)} cannot be imported; "
            "`pip install 'regard[shipping]'` installs what builds and checks archives"
        )


@contextmanager
def made_aside(out: Path) -> Iterator[Path]:
    """A folder in `out` for archives that are not finished; at the end they replace those of earlier builds.

    After an error or an interruption inside the block nothing of them is left, and what was in `out` is as before. An
    interruption while they are moved can leave archives of both builds in `out`, each of them whole.
    """
    partial = out / "partial"
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        # A folder without hashes is no finished release, so earlier ones go first and new ones come last.
        if (partial / HASHES).exists():
            (out / HASHES).unlink(missing_ok=True)
        for path in sorted(partial.iterdir(), key=lambda path: path.name == HASHES):
            for earlier in out.glob(of_same_machine(path.name)):
                earlier.unlink()
            path.replace(out / path.name)
    finally:
        shutil.rmtree(partial)


def of_same_machine(name: str) -> str:
    """A pattern for archives that differ from this one in the oldest system alone.

    >>> of_same_machine("regard-0.1.0-py3-none-manylinux_2_18_aarch64.whl")
    'regard-0.1.0-py3-none-manylinux_*_aarch64.whl'
    """
    return re.sub(r"-(manylinux|macosx)_\d+_\d+_", r"-\1_*_", name)


def run_command(main: Callable[[list[str]], None], words: list[str]) -> None:
    """Run a command of this package; what goes wrong is one sentence.

    Raises:
        SystemExit: with code 1 after an error, and with 130 after an interruption.
    """
    try:
        main(words)
    except (BuildError, WrongArchiveError) as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        print("\ninterrupted; archives of earlier builds are as they were", file=sys.stderr)
        raise SystemExit(130) from None


def hatchling(tree: Path, kind: str, out: Path, target: str | None = None) -> Path:
    """What hatchling builds of a tree: an "sdist" or a "wheel"; for a target, or without a kernel if it is None."""
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "REGARD_NATIVE_BUILD": "off"}
    environment.pop("REGARD_NATIVE_TARGET", None)
    if target is not None:
        environment |= {"REGARD_NATIVE_BUILD": "required", "REGARD_NATIVE_TARGET": target}
    with tempfile.TemporaryDirectory() as room:
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", room]
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{kind} for {target} was not built: {done.stdout}{done.stderr}")
        (path,) = Path(room).iterdir()
        return Path(shutil.move(path, out / path.name))


def unpacked(sdist: Path, folder: Path) -> Path:
    """The tree of a source distribution."""
    with tarfile.open(sdist) as file:
        file.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def compiled(name: str) -> Path:
    """The library for a target, compiled if its sources changed."""
    system, machine = name.split("-")
    target = Target(system, machine)
    if target.is_here:
        return build(LIBRARY)
    return build(COMPILED / name / target.library_name, target=target)


def put_libraries(names: Sequence[str], tree: Path) -> None:
    """Copy compiled libraries where the build of a tree looks for them; those of other sources are compiled again."""
    for name in names:
        library = compiled(name)
        folder = tree / library.parent.relative_to(ROOT)
        folder.mkdir(parents=True, exist_ok=True)
        for path in (library, library.with_suffix(".digest")):
            shutil.copyfile(path, folder / path.name)


def build_all(tree: Path, out: Path, names: Sequence[str] = NAMES) -> tuple[Path, dict[str, Path]]:
    """The source distribution of a tree and the wheels that are made from it, by name."""
    sdist = hatchling(tree, "sdist", out)
    print(f"built {sdist.name}", flush=True)
    wheels = {}
    with tempfile.TemporaryDirectory() as room:
        source = unpacked(sdist, Path(room))
        put_libraries([name for name in names if name != PURE], source)
        for name in names:
            wheels[name] = hatchling(source, "wheel", out, None if name == PURE else name)
            print(f"built {wheels[name].name}", flush=True)
    return sdist, wheels


def check_all(sdist: Path, wheels: dict[str, Path]) -> list[Built]:
    """Open and try each wheel, and let pip choose among them."""
    check_sdist(sdist)
    built = []
    for name, path in wheels.items():
        remarks = check_wheel(path)
        tried = try_wheel(path)
        print(f"{path.name}: {'; '.join(remarks)}; {tried}", flush=True)
        built.append(Built(name, path, tuple(remarks), tried))
    for sentence in choices_of_pip(wheels):
        print(sentence, flush=True)
    return built


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m shipping.wheels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    chosen = parser.parse_args(words)
    if THIS_MACHINE.system != "linux":
        raise SystemExit("the wheels for every machine are built on Linux; `make wheel` builds one")
    require_tools()
    with made_aside(chosen.out) as partial:
        sdist, wheels = build_all(ROOT, partial, chosen.only)
        check_all(sdist, wheels)


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
