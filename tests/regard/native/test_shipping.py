"""Wheels and source distributions hold the kernel or do without it, and new environments install and use them."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from regard.backends.native.build import HERE, LIBRARY, newest_glibc

ROOT = Path(__file__).parents[3]
OLDEST = (2, 28)  # the C library that the wheels of PyTorch need
built = pytest.mark.skipif(not LIBRARY.is_file(), reason="the native library is not built here")
USE = """
import json, torch, regard as rg
from regard.testing.health import check_backend
q = torch.randn(1, 2, 40, 8)
plan = rg.plan_attention(q, q, q, pattern="causal")
output = rg.attention(q, q, q, pattern="causal")
expected = rg.attention(q, q, q, pattern="causal", backend="reference")
assert (output - expected).abs().max() < 1e-5
native = check_backend("native")
print(json.dumps([rg.__file__, plan.backend, native.status, list(native.refused.values())]))
"""
BUILD = "its library is not built; run python -m regard.backends.native.build"


def run_hatchling(
    kind: str, folder: Path, setting: str = "auto"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    environment = {**os.environ, "REGARD_NATIVE_BUILD": setting}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def distribution(kind: str, folder: Path, setting: str = "auto") -> Path:
    """A wheel or a source distribution of this tree."""
    done = run_hatchling(kind, folder, setting)
    assert done.returncode == 0, done.stderr
    (path,) = folder.iterdir()
    return path


def files_of_git(*folders: str) -> list[str]:
    command = ["git", "ls-files", "-z", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


def copy_of_tree(folder: Path) -> Path:
    """The files of this tree that git knows, in another folder: nothing is compiled there."""
    for name in files_of_git():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


class Use(NamedTuple):
    """What an environment finds: the file of the package, the backend of a call, and the native one's state."""

    file: Path
    backend: str
    native: str
    refusals: list[str]


class FreshEnvironment:
    """A new environment that sees the packages of this one, but neither regard nor a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        packages = folder / "packages"
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
        environment = {**os.environ, "PATH": str(self.folder / "empty") if path is None else path}
        for name in ("CXX", "PYTHONPATH"):
            environment.pop(name, None)
        program, *words = command
        done = subprocess.run(
            [str(self.folder / "room" / "bin" / program), *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self, *what: Path | str, path: str | None = None, fails: bool = False) -> str:
        """Install without an index: PyTorch and the build system are there already, and nothing is fetched."""
        options = ("--no-index", "--no-build-isolation", "--verbose")
        words = ("-m", "pip", "install", *options, *map(str, what))
        return self.run("python", *words, path=path, fails=fails)

    def use(self) -> Use:
        printed = self.run("python", "-c", USE)
        file, *others = json.loads(printed.splitlines()[0])
        return Use(Path(file), *others)


@pytest.fixture
def fresh(tmp_path: Path) -> FreshEnvironment:
    return FreshEnvironment(tmp_path / "fresh")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return distribution("wheel", tmp_path_factory.mktemp("wheel"))


@built
def test_the_wheel_holds_the_kernel_and_the_sources_that_it_is_checked_against(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        assert file.read("regard/backends/native/libregard_native.so") == LIBRARY.read_bytes()
        assert b"Root-Is-Purelib: false" in file.read("regard-0.1.0.dist-info/WHEEL")
    sources = [*(HERE / "source").iterdir(), *(ROOT / "regard").rglob("*.py")]
    assert {str(path.relative_to(ROOT)) for path in sources} <= names


@built
def test_the_tag_of_the_wheel_names_the_c_library_that_the_kernel_needs(wheel):
    def printed_by(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    major, minor = newest_glibc(LIBRARY)
    symbols = printed_by("readelf", "--version-info", str(LIBRARY))
    versions = [tuple(map(int, pair)) for pair in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)]
    assert (major, minor) == max(versions) <= OLDEST
    assert f"-py3-none-manylinux_{major}_{minor}_" in wheel.name
    shown = printed_by(sys.executable, "-m", "auditwheel", "show", str(wheel))
    # auditwheel's list lacks some versions; for those it names the next one.
    named = re.search(r'"manylinux_(\d+)_(\d+)_', shown)
    assert named is not None, shown
    assert (major, minor) <= (int(named[1]), int(named[2])) <= OLDEST


@built
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_an_environment_uses_the_kernel_of_the_wheel_or_builds_it(fresh, tmp_path, kind):
    path = None if kind == "wheel" else os.environ["PATH"]
    fresh.install(distribution(kind, tmp_path / "dist"), path=path)
    use = fresh.use()
    assert use.file.is_relative_to(fresh.folder)
    assert (use.backend, use.native) == ("native", "ok")


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["required", "off"])
@pytest.mark.parametrize("editable", [False, True])
def test_pip_install_from_a_tree_builds_the_kernel_unless_it_is_off(
    fresh, tmp_path, monkeypatch, editable, setting
):
    tree = copy_of_tree(tmp_path / "tree")
    monkeypatch.setenv("REGARD_NATIVE_BUILD", setting)
    fresh.install(*(["--editable"] if editable else []), tree, path=os.environ["PATH"])
    use = fresh.use()
    installed = use.file.parents[1]
    assert installed == tree if editable else installed.is_relative_to(fresh.folder)
    if setting == "required":
        assert (use.backend, use.native) == ("native", "ok")
        assert (installed / LIBRARY.relative_to(ROOT)).is_file()
    else:
        assert (use.backend, use.native) == ("fused", "refused")
        assert BUILD in use.refusals[0]
        for folder in (tree, installed):
            assert not list(folder.rglob("libregard_native.*"))


def test_without_the_kernel_the_wheel_fits_every_system(tmp_path):
    wheel = distribution("wheel", tmp_path, "off")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as file:
        assert not [name for name in file.namelist() if "libregard_native" in name]


def test_the_source_distribution_holds_every_file_of_the_package_and_nothing_compiled(tmp_path):
    with tarfile.open(distribution("sdist", tmp_path)) as file:
        names = {name.split("/", 1)[1] for name in file.getnames()}
    outside = {"hatch_build.py", "pyproject.toml", "README.md", "LICENSE"}
    assert {*files_of_git("regard"), *outside} <= names
    assert not [name for name in names if "libregard_native" in name or name.startswith("tests/")]


def test_a_target_of_the_build_that_does_not_exist_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_NATIVE_TARGET", "plan9-mips")
    done = run_hatchling("wheel", tmp_path)
    assert done.returncode != 0
    words = "REGARD_NATIVE_TARGET is 'plan9-mips'; it is a system, linux or darwin, and a processor"
    assert words in done.stdout + done.stderr


def test_a_setting_of_the_build_that_does_not_exist_is_named(tmp_path):
    done = run_hatchling("wheel", tmp_path, "maybe")
    assert done.returncode != 0
    words = "REGARD_NATIVE_BUILD is 'maybe'; it is auto, required or off"
    assert words in done.stdout + done.stderr


NO_COMPILER = "no C++ compiler was found"


@pytest.mark.slow
def test_an_environment_without_a_compiler_installs_the_source_distribution_and_computes_by_pytorch(
    fresh, tmp_path
):
    printed = fresh.install(distribution("sdist", tmp_path / "dist"))
    assert "the native backend is left out" in printed
    use = fresh.use()
    assert (use.backend, use.native) == ("fused", "refused")
    assert BUILD in use.refusals[0]
    refused = fresh.run("python", "-m", "regard.backends.native.build", fails=True)
    compilers = "(g++, c++, clang++, the package ziglang, or the one named by $CXX)"
    assert f"{NO_COMPILER} {compilers}" in refused


@pytest.mark.slow
def test_where_the_kernel_is_required_a_missing_compiler_is_an_error(fresh, tmp_path, monkeypatch):
    archive = distribution("sdist", tmp_path / "dist")
    tree = copy_of_tree(tmp_path / "tree")
    monkeypatch.setenv("REGARD_NATIVE_BUILD", "required")
    for what in ([archive], [tree], ["--editable", tree]):
        assert NO_COMPILER in fresh.install(*what, fails=True)
    assert "No module named 'regard'" in fresh.run("python", "-c", "import regard", fails=True)
